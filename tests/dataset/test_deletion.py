"""Samples are deleted and restored in datasets of segments: from several openings at once, and by processes that die.

This file is also the program that runs in the children.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shard.segments import write_as_segments

import shoal
from shoal.errors import ObjectChangedError, OptionError
from shoal.shard._commit import load_generation

ROWS = 12


def make(root, **options):
    """Three shards of train and one of validation, in the new format."""
    counts = {"train": ROWS, "val": 4}
    splits = {
        split: [{"__key__": f"{split[0]}{n:03d}", "txt": f"text {n}", "cls": n} for n in range(count)]
        for split, count in counts.items()
    }
    return write_as_segments(str(root), splits, **options)


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    return make(tmp_path / "data" if request.param == "local" else f"memory://deletion/{tmp_path.name}/data")


def t(*numbers):
    return [f"t{number:03d}" for number in numbers]


def test_a_tombstone_names_the_key_the_shard_and_the_row(root):
    left = shoal.Dataset(root).tombstone(["t005", "v002"])
    assert [(stone.key, stone.shard, stone.row, stone.reason) for stone in left.tombstones] == [
        ("t005", f"{root}/train-000001.tar", 1, None),
        ("v002", f"{root}/val-000000.tar", 2, None),
    ]
    assert left.describe().deleted == 2
    assert shoal.Dataset(root, split="val").tombstones == left.tombstones[1:]
    assert len(left.restore(left.tombstones[:1])) == ROWS + 3
    assert shoal.Dataset(root).restore().tombstones == ()


def test_one_call_is_one_commit_and_nothing_to_do_is_none(root):
    ds = shoal.Dataset(root)
    first = load_generation(root)
    ds.tombstone(["t001", "v001"])
    second = load_generation(root)
    assert (second.parent, second.lineage) == (first.id, first.lineage)
    shoal.Dataset(root, tombstones=False).tombstone(["t001"])
    shoal.Dataset(root).restore([])
    assert load_generation(root) == second


def test_a_reason_has_no_place(root):
    with pytest.raises(OptionError, match="reason must be None"):
        shoal.Dataset(root).tombstone(["t001"], reason="blurred")
    assert shoal.Dataset(root).tombstones == ()


def test_a_dataset_that_was_opened_before_deletes_the_same_rows(root):
    ds = shoal.Dataset(root)
    view = ds.where("cls >= 2")
    first = ds.select([0, 3, ROWS])
    shoal.Dataset(root, split="train").tombstone(t(0, 2))
    ds.tombstone(["t003"])  # on top of what others have deleted
    assert (len(ds), len(view), len(first)) == (ROWS + 4, ROWS, 3)
    assert shoal.Dataset(root, split="train").keys() == t(1, *range(4, ROWS))
    assert view.refresh().keys() == [*t(*range(4, ROWS)), "v002", "v003"]
    assert first.refresh().keys() == ["v000"]


def test_a_dataset_that_was_replaced_is_not_deleted_from(root):
    ds = shoal.Dataset(root)
    view = ds.select([1])
    make(root, new_lineage=True)
    with pytest.raises(ObjectChangedError, match=r"The dataset was replaced.*[Cc]all refresh\(\)"):
        ds.tombstone(["t001"])
    with pytest.raises(ValueError, match=r"was replaced.*choose again"):
        view.refresh()
    assert ds.refresh().tombstone(["t001"]).keys()[:2] == t(0, 2)


def run_child(*arguments):
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    command = [sys.executable, "-W", "error", __file__, *map(str, arguments)]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})


def test_two_processes_delete_at_once_and_lose_nothing(tmp_path):
    root = make(tmp_path / "data")
    children = [run_child(root, *t(*range(first, ROWS, 2))) for first in (0, 1)]
    for child in children:
        error = child.communicate()[1]
        assert (child.returncode, error) == (0, "")
    assert shoal.Dataset(root).keys() == [f"v{number:03d}" for number in range(4)]
    assert len(shoal.Dataset(root).restore()) == ROWS + 4


def main(root, *keys):
    dataset = shoal.Dataset(root)
    for key in keys:
        dataset.tombstone([key])  # by the generation that it opened, whatever the other has deleted since


if __name__ == "__main__":
    main(*sys.argv[1:])
