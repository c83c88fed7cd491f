"""Compaction removes the bytes of deleted samples and nothing else, whatever happens meanwhile.

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
from tests.dataset.test_append import DyingStore
from tests.shard.segments import write_as_segments

import shoal
from shoal.errors import FormatError, ObjectChangedError, ObjectExistsError, OptionError
from shoal.shard import _compact, verify_dataset
from shoal.shard._commit import load_generation
from shoal.store import register_store
from shoal.store._operations import list_objects
from shoal.store._registry import store_for

GONE = [1, 2, 8, 9, 10, 11]
"""Of the first shard two samples, of the second none, of the third all."""


def sample(number, split="t"):
    return {"__key__": f"{split}{number:03d}", "json": {"n": number}, "txt": f"secret-{split}{number:03d}"}


def make(root, **options):
    splits = {"train": map(sample, range(14)), "val": (sample(number, "v") for number in range(4))}
    return write_as_segments(str(root), splits, **options)


def tars(root):
    found = (info.url for info in list_objects(root) if "/.shoal/" not in info.url)
    return {url.rpartition("/")[2]: bytes(store_for(url).read_all(url)) for url in found}


def keys(*numbers):
    return [f"t{number:03d}" for number in numbers]


LEFT = keys(*(number for number in range(14) if number not in GONE))
VAL = [f"v{number:03d}" for number in range(4)]


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.zst"])
def test_the_bytes_of_deleted_samples_are_gone(tmp_path, place, ending):
    target = tmp_path / "data" if place == "local" else f"memory://compact/{tmp_path.name}"
    options = {"metadata": {"by": "me"}, "hashed": True, "shards_per_segment": 3}
    root = make(target, pattern="{split}-%06d." + ending, **options)
    ds = shoal.Dataset(root).tombstone(keys(*GONE))
    before, old = tars(root), load_generation(root)
    by_path = {record.path: record for record in map(ds.source.index.record, range(len(ds.shards)))}

    left = ds.compact()

    assert left.keys() == shoal.Dataset(root, tombstones=False).keys() == [*LEFT, *VAL]
    assert [found["txt"] for found in left] == [f"secret-{key}" for key in [*LEFT, *VAL]]
    assert left.where("n >= 7").keys() == keys(7, 12, 13)
    assert left.tombstones == ()
    assert left.metadata == {"by": "me"}
    after, new = tars(root), load_generation(root)
    assert before.keys() - after.keys() == {f"train-000002.{ending}"}
    assert [name for name in after if after[name] != before[name]] == [f"train-000000.{ending}"]
    if ending == "tar":
        assert b"secret-t000" in after["train-000000.tar"]
        assert not any(b"secret-t00%d" % number in data for data in after.values() for number in (1, 2, 8, 9))
    assert new.lineage != old.lineage
    assert new.splits["val"] == old.splits["val"]
    assert all(left.source.index.record(number).sha256 for number in range(len(left.shards)))
    assert left.source.index.record(1) == by_path[f"train-000001.{ending}"]
    assert not [problem for report in verify_dataset(root) for problem in report.problems]
    assert load_generation(root) == new == (left.compact(), load_generation(root))[1]


def test_datasets_that_are_open_say_that_it_was_replaced(tmp_path):
    root = make(tmp_path)
    ds = shoal.Dataset(root)
    assert ds[0]["json"] == {"n": 0}
    shoal.Dataset(root, split="train").tombstone(["t005"])
    shoal.Dataset(root).compact()
    with pytest.raises(ObjectChangedError, match=r"was replaced.*[Cc]all refresh\(\)"):
        ds[5]
    assert ds.refresh()[5]["json"] == {"n": 6}
    with pytest.raises(ObjectChangedError, match="was replaced"):
        ds.tombstone(["t006"])


def test_only_the_split_that_is_open_is_compacted(tmp_path):
    root = make(tmp_path)
    shoal.Dataset(root).tombstone(["t000", "v000"])
    assert shoal.Dataset(root, split="val").compact().keys() == VAL[1:]
    assert [stone.key for stone in shoal.Dataset(root).tombstones] == ["t000"]
    assert len(shoal.Dataset(root, tombstones=False)) == 17


def test_a_split_without_samples_vanishes(tmp_path):
    root = make(tmp_path)
    ds = shoal.Dataset(root)
    assert ds.tombstone(VAL).compact().keys() == keys(*range(14))
    assert list(load_generation(root).splits) == ["train"]


def test_what_cannot_be_compacted(tmp_path):
    root = make(tmp_path / "new")
    for view in (shoal.Dataset(root).select([0]), shoal.Dataset(root).map(len)):
        with pytest.raises(OptionError, match="not to a view"):
            view.compact()
    with shoal.ShardWriter(f"{tmp_path}/old/a-%06d.tar") as writer:
        writer.write(sample(0))
    with pytest.raises(FormatError, match="Only datasets with an index"):
        shoal.Dataset(tmp_path / "old" / "a-000000.tar").compact()


def test_changes_that_others_make_meanwhile_are_not_lost(tmp_path, monkeypatch):
    root = make(tmp_path)
    shoal.Dataset(root).tombstone(keys(*GONE))
    copy, found = _compact.copy_samples, []

    def copy_slowly(*args, **options):
        if not found:
            with pytest.raises(ObjectExistsError, match="is being written by another writer"):
                shoal.Dataset(root, split="train").append([sample(20)])
            found.extend(shoal.Dataset(root, split="train").tombstone(["t007"]).keys())
        return copy(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(_compact, "copy_samples", copy_slowly)
        with pytest.raises(ObjectExistsError, match="written by another writer in the meantime"):
            shoal.Dataset(root).compact()
    assert shoal.Dataset(root, split="train").keys() == found
    assert not os.listdir(f"{root}/.shoal/writing")
    assert shoal.Dataset(root, split="train").compact().keys() == found


# ------------------------------------------------------------------------------------------------------------- children


def test_killed_at_any_step_it_is_the_old_dataset_or_the_new_one(tmp_path):
    root = make(tmp_path / "data")
    shoal.Dataset(root).tombstone(keys(*GONE))
    done = str(tmp_path / "done")
    shutil.copytree(root, done)
    shoal.Dataset(done).compact()
    seen = set()
    for steps in itertools.count(1, 2):
        target = str(tmp_path / f"target-{steps}")
        shutil.copytree(root, target)
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
        command = [sys.executable, "-W", "error", __file__, target, str(steps)]
        env = {**os.environ, "PYTHONPATH": path}
        child = subprocess.run(command, text=True, capture_output=True, env=env, check=False)
        found = shoal.Dataset(target)
        assert found.keys() == [*LEFT, *VAL]
        assert [each["txt"] for each in found] == [f"secret-{key}" for key in [*LEFT, *VAL]]
        seen.add(len(shoal.Dataset(target, tombstones=False)))
        assert found.compact().keys() == [*LEFT, *VAL]
        assert tars(target) == tars(done)
        assert not os.listdir(f"{target}/.shoal/writing")
        if child.returncode == 0:
            break
        assert child.returncode == 9, child.stderr
    assert seen == {12, 18}


class DyingMovesStore(DyingStore):
    def move(self, source, target):
        self.step()
        return super().move(source, target)


def main(root, steps):
    register_store("file", DyingMovesStore(int(steps)))
    shoal.Dataset(root).compact()


if __name__ == "__main__":
    main(*sys.argv[1:])
