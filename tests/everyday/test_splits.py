"""The split of a sample stays what it is, whatever says it and whatever writes it again."""

from __future__ import annotations

import io
import tarfile

import pytest
from PIL import Image
from tests.cli.conftest import run  # noqa: F401 - a fixture

import shoal
from shoal.build import build_shards, merge, reshard
from shoal.errors import OptionError, WriteError
from shoal.formats import write_format

COUNTS = {"train": 5, "val": 3}


def put_tar(path, keys):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key in keys:
            info = tarfile.TarInfo(f"{key}.txt")
            info.size = len(key)
            tar.addfile(info, io.BytesIO(key.encode()))


def keys_of(split, first=0):
    return [f"{split}{number}" for number in range(first, COUNTS[split])]


def named(folder):
    put_tar(folder / "train-0.tar", keys_of("train")[:2])
    put_tar(folder / "train-1.tar", keys_of("train")[2:])
    put_tar(folder / "val-0.tar", keys_of("val"))


def in_folders(folder):
    for split in COUNTS:
        put_tar(folder / split / "a.tar", keys_of(split))


def energon(folder):
    put_tar(folder / "a.tar", keys_of("train")[:4])
    put_tar(folder / "b.tar", keys_of("val"))
    put_tar(folder / "c.tar", keys_of("train")[4:])
    put_tar(folder / "d.tar", ["excluded"])
    (folder / ".nv-meta").mkdir()
    text = "split_parts: {train: [a.tar, c.tar], val: [b.tar]}\nexclude: [d.tar]\n"
    (folder / ".nv-meta" / "split.yaml").write_text(text)


def manifest(folder):
    for split in COUNTS:
        with shoal.ShardWriter(folder / f"{split[::-1]}-%06d.tar", split=split, max_samples=2) as writer:
            for key in keys_of(split):
                writer.write({"__key__": key, "txt": key})


SHARDS = {"names": named, "folders": in_folders, "energon": energon, "manifest": manifest}
COPIES = {
    "reshard": lambda source, out: reshard(source, out, workers=1),
    "reshard a dataset": lambda source, out: reshard(shoal.Dataset(source), out, workers=1),
    "reshard a view": lambda source, out: reshard(shoal.Dataset(source).where("txt != 'x'"), out, workers=1),
    "reshard in another order": lambda source, out: reshard(
        shoal.Dataset(source).select(sorted(range(sum(COUNTS.values())), key=lambda row: row % 3)), out, workers=1
    ),
    "reshard a concatenation": lambda source, out: reshard(
        shoal.Dataset(source).take(1).concat(shoal.Dataset(source).skip(1)), out, workers=1
    ),
    "merge": lambda source, out: merge([source], out, workers=1),
    "build": lambda source, out: build_shards(source, out, workers=1),
    "build with a function": lambda source, out: build_shards(source, out, dict, workers=1),
    "build of a mapped dataset": lambda source, out: build_shards(shoal.Dataset(source).map(dict), out, workers=1),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("kind", SHARDS)
def test_what_is_written_again_keeps_its_splits(tmp_path, kind, copy):
    SHARDS[kind](tmp_path / "in")
    COPIES[copy](tmp_path / "in", tmp_path / "out")
    for split in COUNTS:
        assert sorted(shoal.Dataset(tmp_path / "out", split=split).keys()) == keys_of(split)
    assert len(shoal.Dataset(tmp_path / "out")) == 8


@pytest.mark.parametrize("kind", SHARDS)
def test_one_split_stays_that_split(tmp_path, kind):
    SHARDS[kind](tmp_path / "in")
    reshard(shoal.Dataset(tmp_path / "in", split="val"), tmp_path / "one", workers=1)
    reshard(tmp_path / "in", tmp_path / "two", split="val", workers=1)
    for out in ("one", "two"):
        assert shoal.Dataset(tmp_path / out, split="validation").keys() == keys_of("val")
        with pytest.raises(shoal.FieldError):
            len(shoal.Dataset(tmp_path / out, split="train"))


def test_merging_takes_two_words_for_a_split_as_one(tmp_path):
    named(tmp_path / "a")
    shoal.write_samples([{"__key__": "more", "txt": "x"}], tmp_path / "b", split="val")
    shoal.write_samples([{"__key__": "dev", "txt": "x"}], tmp_path / "c", split="dev")
    merge([tmp_path / name for name in "abc"], tmp_path / "out", workers=1)
    assert shoal.Dataset(tmp_path / "out", split="val").keys() == [*keys_of("val"), "more", "dev"]
    assert list(shoal.load_dataset(tmp_path / "out")) == ["train", "validation"]
    both = shoal.load_dataset([str(tmp_path / "b"), str(tmp_path / "c")], split="val")
    assert both.keys() == ["more", "dev"]


def test_splits_of_one_name_are_refused(tmp_path):
    manifest(tmp_path / "in")
    for write in (lambda out: reshard(tmp_path / "in", out), lambda out: merge([tmp_path / "in"], out)):
        with pytest.raises(OptionError, match=r"\{split\} in the name"):
            write(tmp_path / "out" / "a-%03d.tar")
        assert not list((tmp_path / "out").glob("*.tar"))


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv", "jsonl.gz"])
def test_files_of_other_formats_keep_their_splits(tmp_path, ending):
    for split in COUNTS:
        write_format(f"{tmp_path}/in/{split}.{ending}", [{"__key__": key, "n": 1} for key in keys_of(split)])
    build_shards(tmp_path / "in", tmp_path / "out", workers=1)
    for split in COUNTS:
        assert shoal.Dataset(tmp_path / "out", split=split).keys() == keys_of(split)


@pytest.mark.parametrize("kind", SHARDS)
def test_the_command_counts_each_split(run, tmp_path, kind):  # noqa: F811 - a fixture
    SHARDS[kind](tmp_path / "in")
    counted = run("info", tmp_path / "in", "--json").json["splits"]
    assert sorted(split["samples"] for split in counted.values()) == [3, 5]
    for split in ("val", "validation"):
        only = run("info", tmp_path / "in", "--split", split, "--json").json
        assert (only["samples"], [each["samples"] for each in only["splits"].values()]) == (3, [3])
        assert run("ls", tmp_path / "in", "--split", split, "--json").json["shards"]


# Folders of images


@pytest.fixture
def images(tmp_path):
    for path in ("train/cat/1", "train/dog/1", "train/emu/1", "val/dog/1", "val/emu/2"):
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "in" / f"{path}.png")
    return tmp_path / "in"


LABELS = {"train": [(0, "cat"), (1, "dog"), (2, "emu")], "val": [(1, "dog"), (2, "emu")]}


def test_splits_are_no_classes(images):
    for options in ({}, {"format": "imagefolder"}):
        for split, labels in LABELS.items():
            for load in (shoal.Dataset, shoal.load_dataset):
                dataset = load(images, split=split, **options)
                assert [(sample["cls"], sample["class_name"]) for sample in dataset] == labels
        labels = [(sample["cls"], sample["class_name"]) for sample in shoal.Dataset(images, **options)]
        assert labels == LABELS["train"] + LABELS["val"]
    assert [sample["class_name"] for sample in shoal.Dataset(images / "train")] == ["cat", "dog", "emu"]


def test_images_are_built_into_their_splits(images, tmp_path):
    build_shards(images, tmp_path / "out", workers=1)
    for split, labels in LABELS.items():
        samples = list(shoal.Dataset(tmp_path / "out", split=split))
        assert [sample["cls"] for sample in samples] == [label for label, _ in labels]
        assert [sample["__key__"].split("/")[1] for sample in samples] == [name for _, name in labels]
    (images / "val" / "3.png").write_bytes((images / "val" / "dog" / "1.png").read_bytes())
    with pytest.raises(WriteError, match="class"):
        build_shards(images / "val", tmp_path / "other", labels=True, workers=1)


def test_packing_several_splits_into_one_is_refused(run, images, tmp_path):  # noqa: F811 - a fixture
    done = run("pack", images, tmp_path / "out", "--label-from-folder")
    assert done.code == 2
    assert "train and validation" in done.err
    assert "--split" in done.err
    assert run("pack", images / "val", tmp_path / "out", "--split", "val", "--label-from-folder").code == 0
    assert [sample["cls"] for sample in shoal.Dataset(tmp_path / "out", split="val")] == [0, 1]
