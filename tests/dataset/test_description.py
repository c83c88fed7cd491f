"""What a dataset is asked for: what cannot be is refused at once, and told what would do."""

from __future__ import annotations

import io

import pytest

import shoal
from shoal.errors import OptionError, SchemaMismatchError


@shoal.packable
class Number:
    n: int


@shoal.packable
class Pair:
    first: str
    second: str


class Packs:
    """A class of the user's own that packs itself."""

    def __init__(self, text):
        self.text = text

    @classmethod
    def from_bytes(cls, data):
        return cls(bytes(data).decode())

    @property
    def packed(self):
        return self.text.encode()


@pytest.mark.parametrize(
    "path, told",
    [
        ("-", "webdataset.stream"),
        (io.BytesIO(b""), "webdataset.stream"),
        ("pipe:cat a.tar", "no command is run"),
        (None, "a path, a pattern"),
        (5, "a path, a pattern"),
        (["a.tar", None], "found None"),
    ],
)
def test_what_names_no_dataset_is_refused_with_what_would(path, told):
    with pytest.raises(OptionError, match=told):
        shoal.Dataset(path)


def test_paths_may_come_one_by_one(tmp_path):
    shoal.write_samples([Number(1)], tmp_path / "a.tar")
    assert len(shoal.Dataset(path for path in [tmp_path / "a.tar"])) == 1


def test_a_rule_for_keys_is_a_key_rule():
    with pytest.raises(OptionError, match="a KeyRule, found 'flatten'"):
        shoal.Dataset("a.tar", rule="flatten")


@pytest.mark.parametrize("kind", [int, str, list])
def test_a_class_that_is_no_type_of_samples_is_refused(tmp_path, kind):
    shoal.write_samples([Number(1)], tmp_path / "a.tar")
    with pytest.raises(OptionError, match=f"a @packable class.*found {kind.__name__}"):
        shoal.Dataset[kind](tmp_path / "a.tar")[0]


def test_a_class_that_packs_itself_is_one(tmp_path):
    with shoal.ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "k", "msgpack": b"words"})
    assert shoal.Dataset[Packs](tmp_path / "a.tar")[0].text == "words"


def test_types_in_one_folder_leave_each_other_readable(tmp_path):
    shoal.write_samples([Number(1)], tmp_path / "numbers.tar")
    assert shoal.Dataset(tmp_path).sample_type.__name__ == "Number"
    shoal.write_samples([Pair("a", "b")], tmp_path / "pairs.tar", append=True)
    assert [sample.to_dict() for sample in shoal.Dataset(tmp_path)] == [{"n": 1}, {"first": "a", "second": "b"}]
    assert shoal.Dataset[Number](tmp_path / "numbers.tar")[0] == Number(1)


def test_payloads_among_plain_samples_are_dicts(tmp_path):
    shoal.write_samples([Number(1)], tmp_path / "a.tar")
    shoal.write_samples([{"__key__": "k", "txt": "hi"}], tmp_path / "b.tar", append=True)
    first, second = shoal.Dataset(tmp_path)
    assert (first["msgpack"], second["txt"]) == ({"n": 1}, "hi")


def test_a_sample_without_the_payload_that_others_have_is_named(tmp_path):
    shoal.write_samples([Number(1)], tmp_path / "a.tar")
    shoal.write_samples([{"__key__": "k", "txt": "hi"}], tmp_path / "b.tar", append=True)
    with pytest.raises(SchemaMismatchError, match=r"no payload.*b\.tar, key k.*Dataset\[dict\]"):
        list(shoal.Dataset(f"{tmp_path}/*.tar"))


def test_streaming_is_taken_and_changes_nothing(tmp_path):
    shoal.write_samples([Number(1)], tmp_path / "a.tar")
    assert len(shoal.load_dataset(str(tmp_path), split="train", streaming=True)) == 1


def test_one_compressed_tar_is_named_by_its_ending(tmp_path):
    ds = shoal.write_samples([Number(1), Number(2)], tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert list(ds) == [Number(1), Number(2)]
    assert shoal.load_dataset(str(tmp_path / "a.tar.gz"), split="train", sample_type=Number)[1] == Number(2)


@pytest.mark.parametrize("data", [{}, {"train": [1], "test": [2]}])
def test_a_loader_takes_one_dataset_of_several(data):
    with pytest.raises(OptionError, match="a loader reads one dataset"):
        list(shoal.DataLoader(data))


def test_only_datasets_are_mixed():
    with pytest.raises(OptionError, match="only datasets"):
        shoal.mix([1, 2])
