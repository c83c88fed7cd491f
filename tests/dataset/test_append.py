"""Samples are added to datasets of segments: by several processes at once, and by processes that die.

This file is also the program that runs in the children.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shard.segments import write_as_segments

import shoal
from shoal.errors import ObjectChangedError, OptionError, SchemaMismatchError, UnsafeNameError, WriteError
from shoal.shard import verify_dataset
from shoal.shard._commit import load_generation
from shoal.store import LocalStore, register_store
from shoal.store._operations import list_objects


def sample(number, name="k"):
    return {"__key__": f"{name}{number:03d}", "json": {"n": number}, "bin": bytes([number % 256]) * 700}


def k(*numbers):
    return [f"k{number:03d}" for number in numbers]


def make(root, count=10, **options):
    return write_as_segments(str(root), {"train": map(sample, range(count))}, **options)


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    return make(tmp_path / "data" if request.param == "local" else f"memory://append/{tmp_path.name}/data")


def names(root):
    return sorted(info.url for info in list_objects(root) if not info.url.endswith("lock"))


def test_samples_are_added_and_what_was_open_stays(root):
    ds = shoal.Dataset(root)
    view, first = ds.where("n >= 8"), ds.select([9, 0])
    before = load_generation(root)
    grown = ds.append(map(sample, range(10, 21)), max_samples=5)
    assert (ds.keys(), view.keys()) == (k(*range(10)), k(8, 9))
    assert grown.keys() == shoal.Dataset(root).keys() == k(*range(21))
    assert [os.path.basename(url) for url in grown.shards] == [f"train-{number:06d}.tar" for number in range(6)]
    assert [found["json"]["n"] for found in grown] == list(range(21))
    assert (view.refresh().keys(), first.refresh().keys()) == (k(*range(8, 21)), k(9, 0))
    assert not [problem for report in verify_dataset(root) for problem in report.problems]
    assert load_generation(root).lineage == before.lineage
    files = names(root)
    assert grown.append([]).keys() == grown.keys()
    assert names(root) == files


def test_deleted_samples_stay_deleted_and_their_keys_taken(root):
    ds = shoal.Dataset(root).tombstone(k(1))
    grown = ds.append([sample(10)])
    assert grown.keys() == k(0, *range(2, 11))
    assert grown.restore().keys() == k(*range(11))
    with pytest.raises(WriteError, match=r"there already.*k001"):
        ds.append([sample(1)])


@pytest.mark.parametrize(
    "pattern, added",
    [
        ("part{:04d}.tar", "part0003.tar"),
        ("a1-%03d-x.tar.gz", "a1-003-x.tar.gz"),
        ("in/%05d.tar.zst", "in/00003.tar.zst"),
        ("one.tar", "one-000000.tar"),
    ],
)
def test_new_shards_are_called_and_compressed_as_the_old_ones(tmp_path, pattern, added):
    root = make(tmp_path, pattern=pattern, metadata={"name": "pets"}, max_samples=99 if pattern == "one.tar" else 4)
    ds = shoal.Dataset(root).append([sample(10)])
    assert os.path.relpath(ds.shards[-1], root) == added
    last = ds.source.index.record(len(ds.shards) - 1)
    assert last.compression == {"gz": "gzip", "zst": "zstd"}.get(pattern.rpartition(".")[2])
    assert ds[10]["json"] == {"n": 10}
    assert ds.metadata == {"name": "pets"}
    assert ds.append([sample(11)]).keys() == k(*range(12))


@shoal.packable
class Point:
    x: float
    name: str


@shoal.packable
class Renamed:
    x: float
    label: str


def test_typed_samples_are_numbered_on(tmp_path):
    root = write_as_segments(str(tmp_path), {"train": [Point(float(n), f"p{n}") for n in range(5)]})
    ds = shoal.Dataset(root)
    grown = ds.append(Point(float(n), f"p{n}") for n in range(5, 9)).append([("mine", Point(1.0, "q"))])
    assert grown.keys() == [*(f"{number:09d}" for number in range(9)), "mine"]
    assert grown["mine"].name == "q"
    assert grown.schema.name == "Point"
    wrong = ([Renamed(1.0, "a")], "label"), ([{"txt": "hi"}], "expected Point"), ([Point(1.0, "a"), 3], "another type")
    for samples, match in wrong:
        with pytest.raises(SchemaMismatchError, match=match):
            ds.append(samples)
    assert len(shoal.Dataset(root)) == 10


@pytest.mark.parametrize(
    "samples, error, match",
    [
        ([sample(20), sample(3)], WriteError, "there already .*k003"),
        ([sample(20), sample(21), sample(20)], WriteError, "there already .*k020"),
        ([sample(20), {"__key__": "a.b", "txt": "x"}], UnsafeNameError, "no dot"),
        ([sample(20), {"__key__": "k021", "json": {"n": "text"}}], SchemaMismatchError, "n"),
        ([{"__key__": 3, "txt": "x"}], WriteError, "a key is text"),
    ],
)
def test_what_cannot_be_added_leaves_nothing_behind(root, samples, error, match):
    before = names(root)
    with pytest.raises(error, match=match):
        shoal.Dataset(root).append(samples, max_samples=1)
    assert names(root) == before
    assert shoal.Dataset(root).append([sample(20)]).keys() == k(*range(10), 20)


def test_only_one_split_grows(tmp_path):
    splits = {"train": map(sample, range(5)), "val": map(sample, range(3))}
    root = write_as_segments(str(tmp_path), splits)
    with pytest.raises(OptionError, match=r"one split: expected train or val,.*split='train'"):
        shoal.Dataset(root).append([sample(50)])
    ds = shoal.Dataset(root)
    last = ds.select([7])
    grown = shoal.Dataset(root, split="train").append([sample(50)])
    assert grown.keys() == k(*range(5), 50)
    assert shoal.Dataset(root, split="val").keys() == k(0, 1, 2)
    assert last.refresh()[0]["__key__"] == "k002"  # of validation, whose rows come after those that were added
    for view in (grown.select([0]), grown.map(len), grown.columns(["json"])):
        with pytest.raises(OptionError, match="not to a view"):
            view.append([sample(20)])


def test_two_openings_append_to_what_is_there_then(root):
    one, two = shoal.Dataset(root), shoal.Dataset(root)
    assert len(two) == 10
    one.append([sample(10)])
    assert two.append([sample(11)]).keys() == k(*range(12))
    with pytest.raises(WriteError, match=r"Another writer has added.*k010"):
        two.append([sample(12), sample(10)])
    assert two.append([sample(12)]).keys() == k(*range(13))
    assert [os.path.basename(url) for url in shoal.Dataset(root).shards[3:]] == [
        f"train-{number:06d}.tar" for number in (3, 4, 5)
    ]


def test_a_dataset_that_was_replaced_is_not_added_to(root):
    ds = shoal.Dataset(root)
    assert len(ds) == 10
    make(root, 3, new_lineage=True)
    with pytest.raises(ObjectChangedError, match=r"was replaced.*[Cc]all refresh\(\)"):
        ds.append([sample(20)])
    assert ds.refresh().append([sample(20)]).keys() == k(0, 1, 2, 20)


# ------------------------------------------------------------------------------------------------------------- children


def run_child(*arguments):
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    command = [sys.executable, "-W", "error", __file__, *map(str, arguments)]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})


def test_two_processes_append_and_delete_at_once(tmp_path):
    root = make(tmp_path / "data")
    children = [run_child("race", root, name) for name in "ab"]
    for child in children:
        error = child.communicate()[1]
        assert (child.returncode, error) == (0, "")
    ds = shoal.Dataset(root)
    expected = {f"{name}{number:03d}" for name in "ab" for number in range(16)} - {"a000", "b000"}
    assert len(ds) == 10 + len(expected)
    assert set(ds.keys()) == {*k(*range(10)), *expected}
    assert ds.keys()[:10] == k(*range(10))
    assert all(found["bin"] == bytes([found["json"]["n"]]) * 700 for found in ds)
    assert not [problem for report in verify_dataset(root) for problem in report.problems]


def race(root, name):
    dataset = shoal.Dataset(root)
    for number in range(0, 16, 4):
        grown = dataset.append([sample(at, name) for at in range(number, number + 4)], max_samples=3)
    grown.tombstone([f"{name}000"])


class DyingStore(LocalStore):
    """Ends the process at its n-th change."""

    def __init__(self, steps):
        super().__init__()
        self._left = steps

    def step(self):
        self._left -= 1
        if not self._left:
            os._exit(9)

    def create(self, url):
        self.step()
        return super().create(url)

    def write_all(self, url, data):
        self.step()
        return super().write_all(url, data)

    def delete(self, url):
        self.step()
        return super().delete(url)


def die(root, steps):
    register_store("file", DyingStore(int(steps)))
    shoal.Dataset(root).append(map(sample, range(10, 15)), max_samples=2)


def test_killed_at_any_step_it_is_the_old_dataset_or_the_new_one(tmp_path):
    root = make(tmp_path / "data")
    tars = [f"train-{number:06d}.tar" for number in range(6)]
    seen = set()
    for steps in itertools.count(1, 3):
        target = str(tmp_path / f"target-{steps}")
        shutil.copytree(root, target)
        child = run_child("die", target, steps)
        error = child.communicate()[1]
        found = shoal.Dataset(target).keys()
        assert found in (k(*range(10)), k(*range(15))), error
        seen.add(len(found))
        if len(found) == 10:
            again = shoal.Dataset(target).append(map(sample, range(10, 15)), max_samples=2)
            assert again.keys() == k(*range(15))
            assert [each["json"]["n"] for each in again] == list(range(15))
            assert sorted(name for name in os.listdir(target) if "tar" in name) == tars
            assert not os.listdir(f"{target}/.shoal/writing")
        if child.returncode == 0:
            break
        assert child.returncode == 9, error
    assert seen == {10, 15}


def main(action, *arguments):
    {"race": race, "die": die}[action](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
