"""load_dataset: what a path stands for, which splits it has, and who else may answer."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from datasets import ReadInstruction
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal import Dataset, DatasetDict, ShardWriter, load_dataset
from shoal.dataset import _load as resolve_module
from shoal.dataset import register_resolver, resolvers, source_from_data_source
from shoal.dataset._load import SplitPart, parse_split, rows_of
from shoal.errors import FieldError, FormatError, ObjectNotFoundError, OptionError, StoreError
from shoal.formats import _registry as registry_module
from shoal.formats import register_format
from shoal.protocols import Resolved
from shoal.shard import find_split
from shoal.store import store_for

COUNTS = {"train": 7, "val": 3, "test": 5}
SPLITS = {"train": 7, "validation": 3, "test": 5}


def fill(root, names=COUNTS):
    """One shard a name, its samples called after it."""
    for name, count in names.items():
        with ShardWriter(f"{root}/{name}-%06d.tar", max_samples=4) as writer:
            for number in range(count):
                writer.write({"__key__": f"{name}{number}", "txt": f"{name} {number}", "json": {"width": number}})


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "pets")
    return tmp_path / "pets"


@pytest.fixture
def bare(folder):
    """The same without what shoal keeps beside the tars."""
    shutil.rmtree(folder / ".shoal")
    return folder


def put(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, path)


# ------------------------------------------------------------------------------------------------- from paths to splits


@pytest.mark.parametrize("shown", [str, Path, "{}/".format, "file://{}".format, "{}/.shoal/manifest.json".format])
def test_a_folder_with_a_manifest(folder, shown):
    splits = load_dataset(shown(folder))
    assert type(splits) is DatasetDict
    assert splits.num_samples == SPLITS
    assert splits.num_shards == {"train": 2, "validation": 1, "test": 2}
    assert splits["test"][0]["txt"] == "test 0"


def test_a_manifest_keeps_what_it_says(tmp_path):
    with ShardWriter(tmp_path / "a-%06d.tar", split="gold", metadata={"name": "pets"}) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    put(tmp_path / "stray-test.tar", tmp_path / "a-000000.tar")
    splits = load_dataset(tmp_path)
    assert list(splits) == ["gold"]
    assert splits["gold"].metadata == {"name": "pets"}
    assert load_dataset(tmp_path, split="gold").metadata == {"name": "pets"}


def test_a_folder_without_a_manifest_is_split_by_names(bare):
    assert load_dataset(bare).num_samples == SPLITS
    assert load_dataset(bare, split="validation").keys() == ["val0", "val1", "val2"]


def test_a_folder_for_each_split(bare, tmp_path):
    put(tmp_path / "by/train/0.tar", bare / "train-000000.tar")
    put(tmp_path / "by/test/deep/0.tar", bare / "test-000000.tar")
    put(tmp_path / "by/dev/0.tar", bare / "val-000000.tar")
    assert load_dataset(tmp_path / "by").num_samples == {"validation": 3, "test": 4, "train": 4}
    assert Dataset(tmp_path / "by", split="test").keys() == load_dataset(tmp_path / "by", split="test").keys()


def test_names_without_a_split_word_are_train_whatever_the_folders_above(bare, tmp_path):
    root = tmp_path / "test_of_validation"
    for number in range(2):
        put(root / f"data-{number:06d}.tar", bare / f"train-{number:06d}.tar")
    pattern = f"{root}/data-{{000000..000001}}.tar"
    for path in (root, pattern, f"{root}/*.tar", [root / "data-000000.tar", root / "data-000001.tar"]):
        assert load_dataset(path).num_samples == {"train": 7}
    assert len(load_dataset(pattern, split="train")) == 7


def test_a_folder_called_after_a_split_counts(bare, tmp_path):
    put(tmp_path / "test/0.tar", bare / "test-000000.tar")
    for path in (tmp_path / "test", tmp_path / "test" / "0.tar", f"{tmp_path}/test/*.tar"):
        assert list(load_dataset(path)) == ["test"]


def test_the_current_folder(bare, tmp_path, monkeypatch):
    monkeypatch.chdir(bare)
    for path in (".", "*.tar", "./*.tar"):
        assert load_dataset(path).num_samples == {"test": 5, "train": 7, "validation": 3}
    assert load_dataset("test-000000.tar").num_samples == {"test": 4}


@pytest.mark.parametrize(
    "pattern, counts",
    [
        ("{}/train-000001.tar", {"train": 3}),
        ("{}/{{val,test}}-*.tar", {"validation": 3, "test": 5}),
        ("{}/t*-000000.tar", {"test": 4, "train": 4}),
        ("{0}/val-000000.tar::{0}/train-000000.tar", {"validation": 3, "train": 4}),
    ],
)
def test_files_and_patterns(bare, pattern, counts):
    assert load_dataset(pattern.format(bare)).num_samples == counts


def test_lists_of_files_patterns_and_folders(bare, tmp_path):
    fill(tmp_path / "more", {"test": 2})
    splits = load_dataset([bare / "val-000000.tar", f"{bare}/test-*.tar", tmp_path / "more"])
    assert splits.num_samples == {"validation": 3, "test": 7}


def test_urls():
    fill("memory://test_load/pets")
    assert load_dataset("memory://test_load/pets").num_samples == SPLITS
    assert len(load_dataset("memory://test_load/pets/test-{000000..000001}.tar", split="test")) == 5


def test_compressed_tars(bare):
    path = bare / "train-000000.tar"
    (bare / "eval.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert load_dataset(bare / "eval.tar.gz").num_samples == {"test": 4}


def test_options_and_types_reach_the_dataset(folder):
    @shoal.packable
    class Note:
        txt: str

    assert load_dataset(folder, split="test", decode=False)[0]["txt"] == b"test 0"
    assert load_dataset(folder, split="test", sample_type=Note)[1] == Note("test 1")
    splits = load_dataset(folder, sample_type=Note)
    assert splits.sample_type is Note
    assert splits["train"].head(1) == [Note("train 0")]
    assert load_dataset(folder).sample_type is None


def test_a_registered_format(tmp_path, monkeypatch):
    monkeypatch.setattr(registry_module, "_FORMATS", dict(registry_module._FORMATS))

    def open_lines(path, options):
        urls = [path] if isinstance(path, str) else list(path)
        raise FormatError("opened", found=" ".join(Path(url).name for url in urls))

    register_format("lines", [".lines"], open_lines)
    for name in ("a-train.lines", "sub/test.lines", ".hidden.lines", "readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for options in ({}, {"format": "lines"}):
        splits = load_dataset(tmp_path, **options)
        assert list(splits) == ["train", "test"]
        with pytest.raises(FormatError, match=r"found test\.lines"):
            len(splits["test"])
    with pytest.raises(ObjectNotFoundError, match="no notes files"):
        load_dataset(tmp_path, format="notes")


# ----------------------------------------------------------------------------------------------------------- data_files


@pytest.mark.parametrize("shown", [str, "file://{}".format])
@pytest.mark.parametrize(
    "files, counts",
    [
        ("test-*.tar", {"train": 5}),
        (["test-000000.tar", "val-*.tar"], {"train": 7}),
        ({"gold": "test-{000000..000001}.tar", "dev": ["val-000000.tar"]}, {"gold": 5, "dev": 3}),
        ({"train": "train-000000.tar::train-000001.tar"}, {"train": 7}),
        ({"all of it": "."}, {"all of it": 15}),
    ],
)
def test_data_files(bare, shown, files, counts):
    assert load_dataset(shown(bare), data_files=files).num_samples == counts


def test_data_files_may_be_elsewhere(bare, tmp_path):
    files = {"a": f"{bare}/val-*.tar", "b": f"file://{bare}/test-000000.tar", "c": bare / "train-000000.tar"}
    assert load_dataset(tmp_path / "nowhere", data_files=files).num_samples == {"a": 3, "b": 4, "c": 4}


def test_data_files_have_splits_of_their_own(folder):
    assert len(load_dataset(folder, data_files={"dev": "test-*.tar"}, split="validation")) == 5
    with pytest.raises(FieldError, match="expected gold, found train"):
        load_dataset(folder, data_files={"gold": "test-*.tar"}, split="train")


@pytest.mark.parametrize(
    "path, files, error",
    [
        ("{}", "none-*.tar", ObjectNotFoundError),
        ("{}", {"train": []}, ObjectNotFoundError),
        ("{}", {"train": "none.tar"}, ObjectNotFoundError),
        ("{}", {"train": 3}, OptionError),
        ("{}", {"train": {"a": "b"}}, OptionError),
        (["{}"], "test-*.tar", OptionError),
    ],
)
def test_data_files_that_make_no_sense(folder, path, files, error):
    path = path.format(folder) if isinstance(path, str) else path
    with pytest.raises(error):
        load_dataset(path, data_files=files)


# ------------------------------------------------------------------------------------------------------- split=


def keys(path, split):
    return load_dataset(path, split=split).keys()


def test_with_a_split_it_is_a_dataset(folder, bare):
    assert type(load_dataset(folder, split="train")) is Dataset
    assert type(load_dataset(f"{folder}/test-*.tar")) is DatasetDict


@pytest.mark.parametrize(
    "word, split", [("val", "validation"), ("dev", "validation"), ("Training", "train"), ("eval", "test")]
)
def test_other_words_for_a_split(folder, word, split):
    assert keys(folder, word) == keys(folder, split)
    assert keys(folder, f"{word}[:2]") == keys(folder, split)[:2]


@pytest.mark.parametrize("split", ["holdout", "holdout[:3]", "train+holdout", "", "train["])
def test_a_split_that_is_not_there_names_those_that_are(folder, split):
    with pytest.raises((FieldError, OptionError)) as caught:
        load_dataset(folder, split=split)
    if "holdout" in split:
        assert "expected train or validation or test, found holdout" in str(caught.value)
    assert load_dataset(f"{folder}/test-*.tar", split="test").keys() == keys(folder, "test")
    with pytest.raises(FieldError, match="expected test, found train"):
        load_dataset(f"{folder}/test-*.tar", split="train")


def test_a_word_that_could_mean_two_splits_means_neither(folder):
    with pytest.raises(FieldError, match="val or dev"):
        find_split("validation", ["val", "dev"])
    assert find_split("val", ["val", "dev"]) == "val"


PARTS = ["train[:2]", "train[-2:]", "train[2:4]", "train[50%:]", "test[:100]", "validation[:0]", "train[5:2]"]
SUMS = ["train+test", "test+train", "train+train", "train[:2]+test[-1:]+train[2:3]", "all", "train + validation + test"]


@pytest.mark.parametrize("split", [*PARTS, *SUMS])
@pytest.mark.parametrize("manifest", [True, False])
def test_slices_and_sums(folder, split, manifest):
    if not manifest:
        shutil.rmtree(folder / ".shoal")
    whole = {name: keys(folder, name) for name in SPLITS}
    expected = []
    for part in ("train+validation+test" if split == "all" else split.replace(" ", "")).split("+"):
        name, _, rest = part.partition("[")
        start, _, stop = rest.rstrip("]").partition(":")
        start = "4" if start == "50%" else start  # 3.5 is rounded to 4
        expected += whole[name][int(start) if start else None : int(stop) if stop else None]
    found = keys(folder, split)
    assert sorted(found) == sorted(expected)
    assert split == "all" or found == expected


def test_a_sum_of_a_manifests_splits_keeps_its_metadata(tmp_path):
    for name in ("train", "test"):
        with ShardWriter(tmp_path / f"{name}-%06d.tar", metadata={"name": "pets"}) as writer:
            writer.write({"__key__": name, "txt": "x"})
    assert load_dataset(tmp_path, split="test+train").metadata == {"name": "pets"}
    assert keys(tmp_path, "test+train") == ["test", "train"]


BOUNDS = st.none() | st.integers(-100, 100)


@given(BOUNDS, BOUNDS, st.booleans(), st.booleans(), st.integers(0, 1000))
def test_slices_are_what_hugging_face_takes_them_for(start, stop, percent, drop, length):
    mark = "%" if percent else ""
    sides = ["" if bound is None else f"{bound}{mark}" for bound in (start, stop)]
    drop = drop and percent and any(sides) and length >= 100
    spec = f"train[{sides[0]}:{sides[1]}]{'(pct1_dropremainder)' if drop else ''}"
    rounding = {"rounding": "pct1_dropremainder"} if drop else {}
    peer = ReadInstruction("train", from_=start, to=stop, unit="%" if percent and any(sides) else "abs", **rounding)
    [expected] = peer.to_absolute({"train": length})
    [part] = parse_split(spec, ["train"])
    rows = rows_of(part, length)
    assert list(rows) == list(range(expected.from_, expected.to))


@pytest.mark.parametrize(
    "spec",
    [
        "train[:101%]",
        "train[:10%:2]",
        "train[10%:20]",
        "train[3]",
        "[:3]",
        "train[a:b]",
        "+",
        "train+",
        "train[1:2](closest)",
    ],
)
def test_a_split_that_cannot_be_read(spec):
    with pytest.raises((OptionError, FieldError), match=r"split|slice|percent"):
        parse_split(spec, ["train"])


def test_too_few_samples_to_drop_a_remainder():
    with pytest.raises(OptionError, match="100 samples or more, found 99"):
        rows_of(SplitPart("train", 0, 10, percent=True, drop_remainder=True), 99)


def test_a_split_with_marks_in_its_name():
    assert parse_split("a+b[:3]", ["a+b[:3]"]) == (SplitPart("a+b[:3]"),)
    assert parse_split("all", ["all", "train"]) == (SplitPart("all"),)


# ------------------------------------------------------------------------------------------------------------ bad input


def test_everything_but_the_path_is_by_keyword(folder):
    with pytest.raises(TypeError, match="write sample_type=DictSample"):
        load_dataset(folder, shoal.DictSample)
    with pytest.raises(TypeError, match="write split='train'"):
        load_dataset(folder, "train")


@pytest.mark.parametrize(
    "path, error",
    [
        ("nothing-here.tar", ObjectNotFoundError),
        ("nothing-here", ObjectNotFoundError),
        ("nothing-*.tar", ObjectNotFoundError),
        ([], ObjectNotFoundError),
        (None, OptionError),
        (3, OptionError),
        (b"data.tar", OptionError),
        ([1, 2], OptionError),
    ],
)
def test_a_path_that_leads_nowhere(tmp_path, monkeypatch, path, error):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        load_dataset(path)


def test_options_that_make_no_sense(folder):
    with pytest.raises(OptionError, match="split is a text"):
        load_dataset(folder, split=3)
    with pytest.raises(OptionError, match="sample_type is a class"):
        load_dataset(folder, sample_type="Note")
    with pytest.raises(TypeError, match="streamed"):
        load_dataset(folder, streamed=True)


# ---------------------------------------------------------------------------------------------------------- DatasetDict


def test_a_missing_split_is_a_key_error_that_names_those_present(folder):
    splits = load_dataset(folder)
    with pytest.raises(KeyError, match="expected train or validation or test, found holdout"):
        splits["holdout"]
    with pytest.raises(FieldError, match="it is empty"):
        DatasetDict()["train"]
    assert splits.get("holdout") is None
    assert "train" in splits


def test_the_verbs_of_the_only_split(folder):
    one = load_dataset(f"{folder}/test-*.tar")
    assert one.only is one["test"]
    assert [found["__key__"] for found in one.head(2)] == ["test0", "test1"]
    assert one.select([4, 0]).keys() == ["test4", "test0"]
    assert one.where("width >= 3").keys() == ["test3", "test4"]
    assert [found["__key__"] for found in one.ordered()] == one["test"].keys()
    assert [len(batch["__key__"]) for batch in one.ordered(batch_size=3)] == [3, 2]
    assert sorted(found["__key__"] for found in one.shuffled(seed=1)) == one["test"].keys()
    assert one["test"].seed == 1


def test_as_type_of_the_only_split(folder):
    @shoal.packable
    class Note:
        txt: str

    @shoal.packable
    class Loud:
        text: str

    @shoal.lens
    def shout(src: Note) -> Loud:
        return Loud(src.txt.upper())

    one = load_dataset(f"{folder}/test-*.tar", sample_type=Note)
    assert one.as_type(Loud)[0] == Loud("TEST 0")


@pytest.mark.parametrize(
    "verb",
    [
        lambda splits: splits.ordered(),
        lambda splits: splits.shuffled(),
        lambda splits: splits.as_type(dict),
        lambda splits: splits.head(),
        lambda splits: splits.select([0]),
        lambda splits: splits.where("width > 1"),
    ],
)
def test_with_several_splits_a_verb_names_them(folder, verb):
    with pytest.raises(OptionError, match=r"one split.*train, validation, test.*choose one"):
        verb(load_dataset(folder))
    with pytest.raises(OptionError, match="found none"):
        verb(DatasetDict())


def test_each_applies_a_verb_to_all(folder):
    wide = load_dataset(folder).each(lambda ds: ds.where("width >= 2"))
    assert type(wide) is DatasetDict
    assert wide.num_samples == {"train": 5, "validation": 1, "test": 3}


def test_a_repr_opens_nothing(tmp_path):
    kept = {name: Dataset(tmp_path / f"{name}.tar") for name in ("train", "validation")}
    lines = repr(DatasetDict(kept, sample_type=shoal.DictSample)).splitlines()
    assert lines[0] == "DatasetDict[DictSample]"
    assert [line.split()[0] for line in lines[1:]] == ["train", "validation"]
    assert len({line.index("Dataset(") for line in lines[1:]}) == 1
    assert repr(DatasetDict()) == "DatasetDict without splits"


# ----------------------------------------------------------------------------------------------------------- DataSource


class Source:
    """Shards by name, each opened by a function; counts how often."""

    def __init__(self, openers):
        self.openers = openers
        self.opened = []

    @property
    def shards(self):
        return ((name, self.open_shard(name)) for name in self.list_shards())

    def list_shards(self):
        return list(self.openers)

    def open_shard(self, shard_id):
        self.opened.append(shard_id)
        return self.openers[shard_id]()


class Scrambled(io.FileIO):
    """A file whose bytes on disk are not those that it reads."""

    def readall(self):
        return bytes(255 - byte for byte in super().readall())

    def read(self, size=-1):
        return bytes(255 - byte for byte in super().read(size))


class Pipe(io.RawIOBase):
    """Bytes that come once, in small pieces, and cannot be sought."""

    def __init__(self, data):
        self.rest = data

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = self.rest[: min(len(buffer), 1000)]
        self.rest = self.rest[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)


def opened(path):
    return open(path, "rb")


def unbuffered(path):
    return open(path, "rb", buffering=0)


def at_offset(path):
    file = opened(path)
    file.seek(512)
    return file


@pytest.mark.parametrize(
    "opener",
    [
        opened,
        unbuffered,
        lambda path: io.BytesIO(path.read_bytes()),
        lambda path: Pipe(path.read_bytes()),
        lambda path: gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(path.read_bytes()))),
    ],
    ids=["file", "raw", "memory", "pipe", "unpacked"],
)
def test_every_kind_of_stream(bare, opener):
    files = {f"{name}/odd*na?me[{{1..2}}].tar": bare / f"{name}-000000.tar" for name in COUNTS}
    source = Source({name: lambda path=path: opener(path) for name, path in files.items()})
    splits = load_dataset(source)
    assert source.opened == []
    assert splits.num_samples == {"train": 4, "validation": 3, "test": 4}
    assert [found["txt"] for found in splits["test"]] == [f"test {number}" for number in range(4)]
    assert splits["validation"].get("val2")["json"] == {"width": 2}
    assert splits["train"].where("width == 3").keys() == ["train3"]
    assert sorted(source.opened) == sorted(files)  # each once
    assert load_dataset(source, split="test[:1]+val").keys() == ["test0", "val0", "val1", "val2"]


def test_a_stream_that_changes_bytes_is_not_read_behind_its_back(bare, tmp_path):
    plain = (bare / "test-000000.tar").read_bytes()
    (tmp_path / "secret").write_bytes(bytes(255 - byte for byte in plain))
    assert len(load_dataset(Source({"a.tar": lambda: Scrambled(tmp_path / "secret")}), split="train")) == 4


def test_names_without_an_ending_are_known_by_content(bare):
    source = Source({"blob": lambda: opened(bare / "test-000000.tar")})
    assert len(load_dataset(source, split="train")) == 4


def test_a_stream_that_starts_inside_a_file(bare, tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 512 + (bare / "test-000000.tar").read_bytes())
    assert len(load_dataset(Source({"a.tar": lambda: at_offset(tmp_path / "big")}), split="train")) == 4


def test_an_index_is_made_once_for_the_same_bytes_and_not_used_for_others(bare):
    def count(name):
        return load_dataset(Source({"a.tar": lambda: io.BytesIO((bare / name).read_bytes())}), split="train").keys()

    assert count("test-000000.tar") == ["test0", "test1", "test2", "test3"]
    assert count("train-000000.tar") == ["train0", "train1", "train2", "train3"]


def test_a_file_that_is_replaced_is_read_anew(bare, tmp_path):
    source = Source({"a.tar": lambda: opened(tmp_path / "now.tar")})
    for name in ("test", "train"):
        shutil.copy(bare / f"{name}-000000.tar", tmp_path / "next.tar")
        os.replace(tmp_path / "next.tar", tmp_path / "now.tar")
        assert load_dataset(source, split="train").keys() == [f"{name}{number}" for number in range(4)]


def test_as_a_source_of_samples(bare):
    source = source_from_data_source(Source({"a.tar": lambda: opened(bare / "test-000000.tar")}))
    assert len(source) == 4
    assert source.find("test2") == 2
    source.close()


def raising(error):
    def opener():
        raise error

    return opener


@pytest.mark.parametrize(
    "opener, match",
    [
        (raising(KeyError("gone")), "KeyError: 'gone'"),
        (raising(PermissionError("no")), "PermissionError: no"),
        (lambda: None, "gave no bytes"),
        (lambda: io.StringIO("text"), "gave no bytes"),
    ],
)
def test_a_source_that_gives_no_bytes(opener, match):
    splits = load_dataset(Source({"train-0.tar": opener}))
    with pytest.raises(StoreError, match=match) as caught:
        len(splits["train"])
    assert caught.value.shard == "train-0.tar"


def test_a_source_without_shards_and_one_that_is_written_to():
    with pytest.raises(ObjectNotFoundError, match="lists no shards"):
        load_dataset(Source({}))
    store = store_for("data-source://9/a.tar")
    for write in (
        store.create,
        lambda url: store.write_all(url, b""),
        lambda url: store.append(url, b""),
        store.delete,
        lambda url: store.move(url, url),
    ):
        with pytest.raises(StoreError, match="only read"):
            write("data-source://9/a.tar")
    with pytest.raises(ObjectNotFoundError, match="no data source has this shard"):
        store.open("data-source://99/a.tar")


def test_the_urls_of_a_source_are_a_folder(bare):
    source = Source({name: lambda: io.BytesIO(b"12345") for name in ("a/b.tar", "c.tar")})
    load_dataset(source)
    url = next(url for url in sorted(resolve_urls(source)))
    root = url.removesuffix("/a/b.tar")
    store = store_for(root)
    assert store.is_folder(root)
    assert not store.is_folder(url)
    assert [(info.url.removeprefix(root), info.size) for info in store.list(root)] == [("/a/b.tar", 5), ("/c.tar", 5)]
    assert [info.url.removeprefix(root) for info in store.list(root, 1)] == ["/c.tar"]
    assert store.read_all(url) == b"12345"


def resolve_urls(source):
    return [ref.url for ref in source_from_data_source(source).shards]


def test_copies_are_gone_when_the_process_is(bare, tmp_path):
    script = f"""
        import io, os, shoal
        class Source:
            @property
            def shards(self): ...
            def list_shards(self):
                return ["a.tar"]
            def open_shard(self, name):
                return io.BytesIO(open({str(bare / "test-000000.tar")!r}, "rb").read())
        assert len(shoal.load_dataset(Source(), split="train")) == 4
        assert len(os.listdir({str(tmp_path / "temp")!r})) == 1
    """
    (tmp_path / "temp").mkdir()
    run(script, {"TMPDIR": str(tmp_path / "temp")})
    assert os.listdir(tmp_path / "temp") == []


def run(script, variables):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ------------------------------------------------------------------------------------------------------------ resolvers


class Lab:
    def __init__(self, resolved, scheme="lab"):
        self.resolved = resolved
        self.scheme = scheme
        self.asked = []

    def matches(self, reference):
        return reference.startswith(self.scheme)

    def resolve(self, reference, *, split=None, data_files=None):
        self.asked.append((reference, split, data_files))
        return self.resolved


@contextlib.contextmanager
def registered(resolver):
    """With this resolver as the only one that is registered."""
    before = dict(resolve_module._REGISTERED)
    resolve_module._REGISTERED.clear()
    register_resolver("lab", resolver)
    try:
        yield resolver
    finally:
        resolve_module._REGISTERED.clear()
        resolve_module._REGISTERED.update(before)


def test_a_resolver_may_give_files_folders_splits_and_sources(folder):
    source = Source({"a.tar": lambda: opened(folder / "test-000000.tar")})
    cases = [
        (folder, SPLITS),
        (f"{folder}/test-*.tar", {"test": 5}),
        ([f"{folder}/val-*.tar", folder / "test-000000.tar"], {"validation": 3, "test": 4}),
        ({"x": folder / "test-000000.tar", "y": [f"{folder}/val-*.tar"], "z": source}, {"x": 4, "y": 3, "z": 4}),
        (source, {"train": 4}),
    ]
    for files, counts in cases:
        with registered(Lab(Resolved(files))):
            assert load_dataset("lab://pets").num_samples == counts


def test_a_resolver_may_know_the_type_and_the_user_knows_better(folder):
    @shoal.packable
    class Note:
        txt: str

    with registered(Lab(Resolved(folder, Note))):
        assert load_dataset("lab://pets", split="test")[0] == Note("test 0")
        assert load_dataset("lab://pets").sample_type is Note
        assert load_dataset("lab://pets", split="test", sample_type=dict)[0]["txt"] == "test 0"


def test_a_resolver_is_told_what_was_asked(folder):
    with registered(Lab(Resolved(folder), scheme="@")) as lab:
        for split in (None, "val", "train[:2]", "train+test", "all"):
            load_dataset("@pets/cats", split=split)
        load_dataset("@pets/cats", data_files={"train": "a-*.tar"})
    assert [split for _, split, _ in lab.asked] == [None, "val", "train", None, None, None]
    assert lab.asked[-1] == ("@pets/cats", None, {"train": "a-*.tar"})


def test_paths_and_urls_of_stores_are_never_asked_about(folder):
    fill("memory://test_load/never")
    with registered(Lab(Resolved("nowhere"), scheme="")) as lab:
        load_dataset(folder)
        load_dataset(f"file://{folder}")
        load_dataset("memory://test_load/never")
    assert lab.asked == []


def test_registering(folder):
    with registered(Lab(Resolved(folder))):
        assert "lab" in resolvers()
        with pytest.raises(OptionError, match=r"registered already.*replace=True"):
            register_resolver("lab", Lab(None))
        register_resolver("lab", Lab(Resolved(f"{folder}/val-*.tar")), replace=True)
        assert list(load_dataset("lab://x")) == ["validation"]
    for wrong, shown in ((3, "int"), (Lab, "the class Lab")):
        with pytest.raises(OptionError, match=shown):
            register_resolver("wrong", wrong)


def test_a_resolver_that_breaks_its_promise(folder):
    with registered(Lab(["a.tar"])), pytest.raises(OptionError, match="expected a Resolved, found list"):
        load_dataset("lab://x")


@pytest.mark.parametrize(
    "reference, match",
    [
        ("@user/data", r"@ references.*shoal\[atmosphere\]"),
        ("odd://x", r"odd:// references.*shoal\.resolvers.*register_resolver"),
    ],
)
def test_a_reference_that_nobody_understands(reference, match):
    with registered(Lab(None)), pytest.raises(FormatError, match=match) as caught:
        load_dataset(reference)
    assert "lab" in str(caught.value)


def installed(site, name, points, module):
    """A package with entry points, as an installer leaves it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shoal.resolvers]\n" + "\n".join(points) + "\n")
    (site / f"{name}.py").write_text(textwrap.dedent(module))


def test_an_installed_resolver(folder, tmp_path):
    module = f"""
        from shoal.protocols import Resolved
        class Zoo:
            def matches(self, reference):
                return reference.startswith("zoo://")
            def resolve(self, reference, *, split=None, data_files=None):
                return Resolved({str(folder)!r})
        zoo = Zoo()
    """
    installed(tmp_path / "site", "zoo_for_shoal", ["zoo = zoo_for_shoal:zoo"], module)
    installed(
        tmp_path / "site", "torn", ["torn = torn:resolver", "kind = zoo_for_shoal:Zoo"], "raise ImportError('no wings')"
    )
    script = """
        import shoal
        from shoal.dataset import resolvers
        import sys
        assert "zoo_for_shoal" not in sys.modules, "only a reference asks for resolvers"
        print(shoal.load_dataset("zoo://pets").num_samples)
        assert "zoo" in resolvers() and "torn" not in resolvers(), resolvers()
        try:
            shoal.load_dataset("odd://pets")
        except shoal.ShoalError as error:
            print(error)
    """
    first, second = run(script, {"PYTHONPATH": str(tmp_path / "site")}).splitlines()
    assert first == str(SPLITS)
    assert "zoo" in second
    assert "torn (cannot be loaded: ImportError: no wings)" in second
    assert "kind (cannot be loaded: OptionError" in second
