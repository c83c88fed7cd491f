"""Dataset[T]: types asked for, types kept in the manifest, plain shards as typed samples, lenses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

import shoal
from shoal.errors import FieldError, LensNotFoundError, SchemaMismatchError, WriteError


@shoal.packable
class ImageSample:
    image: NDArray[np.float32]
    label: str
    confidence: float


@shoal.packable
class Captioned:
    txt: str
    width: int


@shoal.packable
class Elsewhere:
    other: int


def images(count):
    return [ImageSample(np.full((2, 2), n, np.float32), f"label {n}", n / 2) for n in range(count)]


def test_a_type_in_brackets_or_by_keyword_or_from_the_manifest(tmp_path):
    samples = images(5)
    written = shoal.write_samples(samples, tmp_path / "data.tar")
    assert list(written) == samples
    assert written.sample_type is ImageSample
    assert list(shoal.Dataset[ImageSample](tmp_path / "data.tar")) == samples
    assert shoal.Dataset(tmp_path / "data.tar", sample_type=ImageSample)[-1] == samples[-1]
    generated = shoal.Dataset(tmp_path)
    assert generated.sample_type.__name__ == "ImageSample"
    assert [sample.label for sample in generated] == [sample.label for sample in samples]
    assert generated.schema == ImageSample.__schema__


def test_payloads_without_a_type_are_dict_samples_and_dicts_on_request(tmp_path):
    shoal.write_samples(images(2), tmp_path / "data.tar")
    (tmp_path / ".shoal" / "manifest.json").unlink()
    sample = shoal.Dataset(tmp_path / "data.tar")[1]
    assert isinstance(sample, shoal.DictSample)
    assert sample.label == "label 1"
    assert sample["image"].tolist() == [[1, 1], [1, 1]]
    plain = shoal.Dataset(tmp_path / "data.tar", sample_type=dict, decode=False)[1]
    assert plain["msgpack"] == images(2)[1].packed


def test_plain_fields_are_read_as_a_typed_sample_by_name(tmp_path):
    with shoal.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(3):
            writer.write({"txt": f"n{number}", "json": {"width": number}, "jpg": b"..."})
    assert list(shoal.Dataset[Captioned](tmp_path)) == [Captioned(f"n{n}", n) for n in range(3)]
    (batch,) = shoal.Dataset[Captioned](tmp_path).ordered(8)
    assert batch.width == [0, 1, 2]


def test_a_sample_that_does_not_fit_names_its_shard_and_key(tmp_path):
    shoal.write_samples(images(2), tmp_path)
    with pytest.raises(SchemaMismatchError) as caught:
        _ = shoal.Dataset[Elsewhere](tmp_path)[1]
    assert caught.value.key == "000000001"
    assert caught.value.shard.endswith("shard-000000.tar")


def test_as_type_goes_through_the_registered_lens_only(tmp_path):
    @shoal.packable
    class Simple:
        label: str

    @shoal.lens
    def simplify(source: ImageSample) -> Simple:
        return Simple(label=source.label)

    dataset = shoal.write_samples(images(20), tmp_path)
    simple = dataset.as_type(Simple)
    assert simple.sample_type is Simple
    assert simple[3] == Simple("label 3")
    assert [label for batch in simple.ordered(batch_size=16) for label in batch.label] == [
        f"label {n}" for n in range(20)
    ]
    assert simple.where("true").sample_type is Simple
    with pytest.raises(LensNotFoundError):
        dataset.as_type(Elsewhere)


def test_the_same_samples_give_the_same_bytes_and_limits_cut(tmp_path):
    for name in ("a", "b"):
        shoal.write_samples(images(10), tmp_path / name / "data.tar", max_samples=4)
    first, second = ([p.read_bytes() for p in sorted((tmp_path / name).glob("*.tar"))] for name in ("a", "b"))
    assert first == second
    assert len(first) == 3


def test_what_cannot_be_written_is_refused_before_a_byte_is(tmp_path):
    with pytest.raises(WriteError, match="no samples"):
        shoal.write_samples([], tmp_path / "x")
    with pytest.raises(SchemaMismatchError) as caught:
        shoal.write_samples([*images(2), dataclasses.replace(images(1)[0], label=3)], tmp_path / "y")
    assert caught.value.key == "000000002"
    assert "label" in str(caught.value)
    with pytest.raises(SchemaMismatchError, match="sample 1 is of another type"):
        shoal.write_samples([images(1)[0], Elsewhere(1)], tmp_path / "z")
    assert not list(tmp_path.glob("*/*.tar"))


def test_fields_of_a_typed_sample_are_not_those_of_the_shard(tmp_path):
    shoal.write_samples(images(1), tmp_path / "a.tar")
    path, why = str(tmp_path / "a.tar"), r"found label; of typed samples, select_columns\(\[...\]\)"
    with pytest.raises(FieldError, match=why):
        shoal.Dataset[ImageSample](path, fields=["label"])[0]
    with pytest.raises(FieldError, match=why):
        shoal.Dataset[ImageSample](path).columns(["label"])
    assert shoal.Dataset[ImageSample](path, fields=["msgpack"])[0].label == "label 0"
    assert shoal.Dataset[ImageSample](path).select_columns(["label"])[0] == {"label": "label 0"}


def test_options_that_do_not_exist_are_named(tmp_path):
    with pytest.raises(TypeError, match="no option 'shuffle'"):
        shoal.Dataset(tmp_path, shuffle=True)


def test_a_class_that_packs_itself_is_read_through_its_own_from_bytes(tmp_path):
    class Own:
        def __init__(self, text):
            self.text = text

        @classmethod
        def from_bytes(cls, data):
            return cls(bytes(data).decode())

        @property
        def as_wds(self):
            return {"msgpack": self.text.encode()}

    with shoal.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        writer.write(Own("hello"))
    assert shoal.Dataset(tmp_path, sample_type=Own)[0].text == "hello"


def test_a_users_data_source_is_opened_as_a_path_is(tmp_path):
    shoal.write_samples(images(4), tmp_path / "data.tar")

    class Folder:
        @property
        def shards(self):
            return ((name, self.open_shard(name)) for name in self.list_shards())

        def list_shards(self):
            return ["data.tar"]

        def open_shard(self, name):
            return (tmp_path / name).open("rb")

    assert list(shoal.Dataset(Folder(), sample_type=ImageSample)) == images(4)


def test_shuffled_takes_the_names_of_atdatas_buffers():
    dataset = shoal.write_samples(images(160), "memory://test-typed/buffers/a-%06d.tar", max_samples=2)

    def confidences(**options):
        return [value for batch in dataset.shuffled(batch_size=16, seed=1, **options) for value in batch.confidence]

    def shards_of_first(found):  # 32 blocks are mixed at a time: here each is a shard of two
        return len({value * 2 // 2 for value in found[:64]})

    plain = confidences()
    assert confidences(buffer_shards=100, buffer_samples=64) == confidences(buffer_shards=1) == plain
    assert shards_of_first(plain) == 32
    mixed = confidences(buffer_samples=160)
    assert sorted(mixed) == sorted(plain) == [number / 2 for number in range(160)]
    assert shards_of_first(mixed) > 40
    assert sorted(confidences(buffer_samples=10_000)) == sorted(plain)
    seen = [sample.confidence for sample in dataset.shuffled(seed=1, buffer_shards=100, buffer_samples=10_000)]
    assert seen == [sample.confidence for sample in dataset.shuffled(seed=1)]
    for wrong in ({"buffer_samples": 0}, {"buffer_shards": 2.5}, {"buffer_samples": True}):
        with pytest.raises(shoal.errors.OptionError, match="out of range"):
            dataset.shuffled(**wrong)
