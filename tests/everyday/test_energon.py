"""A dataset that Megatron-Energon prepared has the splits of its ``split.yaml``."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile

import pytest

import shoal
from shoal.errors import FieldError, ManifestError
from shoal.shard import load_manifest
from shoal.store import join_url, store_for

SHARDS, SAMPLES = 6, 4
EXPLICIT = """
exclude: []
split_parts:
  train:
  - shard_000.tar
  - shard_001.tar
  - shard_002.tar
  val:
  - shard_003.tar
  test:
  - shard_004.tar
"""
BRACES = """
split_parts:
  train: ["shard_{000..002}.tar"]
  val: ["shard_00[34].tar"]
  test: ["shard_004.tar"]
exclude: ["shard_{004..005}.tar"]
"""
LAYOUTS = {
    "explicit": (EXPLICIT, {"train": [0, 1, 2], "val": [3], "test": [4]}),
    "braces, globs and exclude": (BRACES, {"train": [0, 1, 2], "val": [3], "test": []}),
}


def prepare(root, split_yaml):
    for shard in range(SHARDS):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            for number in range(SAMPLES):
                member = tarfile.TarInfo(f"{shard}-{number}.txt")
                member.size = 5
                tar.addfile(member, io.BytesIO(b"hello"))
        store_for(root).write_all(join_url(root, f"shard_{shard:03d}.tar"), data.getvalue())
    store_for(root).write_all(join_url(root, ".nv-meta", "split.yaml"), split_yaml.encode())
    store_for(root).write_all(join_url(root, ".nv-meta", ".info.json"), json.dumps({"shard_counts": {}}).encode())
    return root


def keys(shards):
    return [f"{shard}-{number}" for shard in shards for number in range(SAMPLES)]


def keys_of(dataset):
    return [sample["__key__"] for sample in dataset]


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    return str(tmp_path / "data") if request.param == "local" else f"memory://energon-{request.node.name}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_split_is_what_split_yaml_lists(root, layout):
    text, splits = LAYOUTS[layout]
    prepare(root, text)
    for name in ("train", "val"):
        assert keys_of(shoal.Dataset(root, split=name)) == keys(splits[name])
        assert keys_of(shoal.load_dataset(root, split=name)) == keys(splits[name])
        assert keys_of(shoal.load_dataset([root], split=name)) == keys(splits[name])
    assert keys_of(shoal.load_dataset(root, split="validation")) == keys(splits["val"])
    loaded = shoal.load_dataset(root)
    assert {name: keys_of(part) for name, part in loaded.items()} == {name: keys(splits[name]) for name in splits}
    assert loaded.num_samples == {name: SAMPLES * len(shards) for name, shards in splits.items()}
    assert keys_of(shoal.load_dataset(root, split="train[:2]+val[2:]")) == [*keys([0])[:2], *keys(splits["val"])[2:]]
    assert keys_of(shoal.Dataset(root)) == [key for shards in splits.values() for key in keys(shards)]
    assert next(iter(shoal.DataLoader(shoal.Dataset(root, split="val"), batch_size=None)))["__key__"] == "3-0"
    with pytest.raises(FieldError, match="train or val or test"):
        len(shoal.Dataset(root, split="gold"))


def test_what_shoal_writes_from_it_keeps_the_splits(tmp_path):
    root = prepare(str(tmp_path / "data"), EXPLICIT)
    command = [sys.executable, "-m", "shoal", "index", root]
    subprocess.run(command, check=True, capture_output=True)
    manifest = load_manifest(root)
    assert {name: len(records) for name, records in manifest.splits.items()} == {"train": 3, "val": 1, "test": 1}
    assert keys_of(shoal.load_dataset(root, split="train")) == keys([0, 1, 2])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_appending_keeps_the_splits(root, layout, split):
    text, splits = LAYOUTS[layout]
    prepare(root, text)
    shoal.write_samples([{"__key__": "new", "txt": "hello"}], f"{root}/new-%06d.tar", split=split, append=True)
    for name, shards in splits.items():
        new = ["new"] if name in (split, "val" if split == "validation" else split) else []
        if shards or new:
            assert keys_of(shoal.Dataset(root, split=name)) == [*keys(shards), *new]
    assert len(shoal.Dataset(root)) == SAMPLES * sum(map(len, splits.values())) + 1


def test_a_shard_of_two_splits(root):
    prepare(root, "split_parts: {train: [shard_000.tar, shard_001.tar], val: [shard_001.tar, shard_002.tar]}")
    assert keys_of(shoal.load_dataset(root, split="val[2:6]+train[:6]")) == [*keys([1, 2])[2:6], *keys([0, 1])[:6]]
    assert keys_of(shoal.load_dataset(root, split="train+val")) == keys([0, 1, 1, 2])


@pytest.mark.parametrize(
    "text, problem",
    [
        ("split_parts: [", "cannot be read"),
        ("train: [shard_000.tar]", "cannot be read"),
        ("split_parts: {train: [shard_999.tar]}", "not in the folder: found shard_999.tar"),
        ("split_parts: {train: [shard_000.tar]}\nexclude: [shard_000.tar/0-1]", "excludes a single sample"),
    ],
)
def test_a_split_yaml_that_cannot_be_followed_is_an_error(tmp_path, text, problem):
    root = prepare(str(tmp_path / "data"), text)
    for call in (shoal.Dataset, lambda path: len(shoal.load_dataset(path, split="train"))):
        with pytest.raises(ManifestError, match=problem):
            len(call(root))
    assert len(shoal.Dataset(f"{root}/*.tar")) == SHARDS * SAMPLES
