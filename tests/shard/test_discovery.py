"""The shards and splits that paths, patterns, lists and folders name."""

from __future__ import annotations

import pytest

from shoal.errors import FieldError, ObjectNotFoundError
from shoal.shard import Manifest, ShardWriter, load_manifest, locate_shards, manifest_url
from shoal.shard._journal import commit


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train-%06d.tar", 3), ("val-%06d.tar", 2)):
        with ShardWriter(tmp_path / name, max_samples=1) as writer:
            for number in range(count):
                writer.write({"__key__": f"{number}", "txt": name})
    return tmp_path


def found(path, split=None):
    return [ref.url.rpartition("/")[2] for ref in locate_shards(path, split).shards]


EVERY = ["train-000000.tar", "train-000001.tar", "train-000002.tar", "val-000000.tar", "val-000001.tar"]


def test_a_folder_is_what_its_manifest_says(folder):
    (folder / "stray.tar").write_bytes(b"")
    assert found(folder) == found(str(folder)) == found(f"{folder}/") == EVERY
    assert found(manifest_url(str(folder))) == EVERY
    located = locate_shards(folder)
    assert [ref.samples for ref in located.shards] == [1] * 5
    assert located.manifest == load_manifest(str(folder))
    assert located.root == str(folder)


@pytest.mark.parametrize("split, names", [("train", EVERY[:3]), ("validation", EVERY[3:])])
def test_a_split_by_manifest_and_by_names(folder, split, names):
    assert found(folder, split) == names
    assert found(f"{folder}/*.tar", split) == names
    assert found([f"{folder}/{name}" for name in EVERY], split) == names


def test_a_split_that_is_not_there_names_those_that_are(folder):
    for path in (folder, f"{folder}/*.tar"):
        with pytest.raises(FieldError, match=r"no such split.*train or validation.*holdout"):
            locate_shards(path, "holdout")


def test_a_split_of_an_empty_dataset(tmp_path):
    commit(str(tmp_path), lambda before: Manifest({}))
    with pytest.raises(FieldError, match="it is empty"):
        locate_shards(tmp_path, "train")


def test_a_folder_without_a_manifest_is_every_tar_below_it(tmp_path):
    for name in ("b.tar", "a/x.tar.gz", "a/y.TGZ", ".hidden/no.tar", "a/.no.tar", "a/readme.txt", "z.tar.zst"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [ref.url.removeprefix(f"{tmp_path}/") for ref in locate_shards(tmp_path).shards] == [
        "a/x.tar.gz",
        "a/y.TGZ",
        "b.tar",
        "z.tar.zst",
    ]


def test_a_folder_with_nothing_in_it_says_so(tmp_path):
    with pytest.raises(ObjectNotFoundError, match=r"no tar shards.*shoal pack"):
        locate_shards(tmp_path)


@pytest.mark.parametrize(
    "pattern",
    [
        "{root}/train-{{000000..000002}}.tar::{root}/val-{{000000..000001}}.tar",
        "{root}/{{train,val}}-*.tar",
        "{root}/*-00000?.tar",
    ],
)
def test_patterns(folder, pattern):
    assert found(pattern.format(root=folder)) == EVERY


def test_a_list_keeps_its_order(folder):
    assert found([f"{folder}/val-*.tar", folder / "train-000001.tar"]) == [*EVERY[3:], EVERY[1]]


def test_a_pattern_that_matches_nothing_says_so(folder):
    with pytest.raises(ObjectNotFoundError, match="matches no file"):
        locate_shards(f"{folder}/nothing-*.tar")
