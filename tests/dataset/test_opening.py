"""What is at a path: a dataset, one that is not finished, or one beside tars that it does not name."""

from __future__ import annotations

import os
import shutil
import warnings

import pytest
from tests.shard.segments import write_as_segments

import shoal
from shoal import ShoalWarning
from shoal.errors import ManifestError
from shoal.shard import verify_dataset
from shoal.shard._writing import WriteHead, Writing


def make(root):
    samples = ({"__key__": f"k{number:03d}", "txt": f"text {number}"} for number in range(8))
    return write_as_segments(str(root), {"train": samples})


def touch_later(folder):
    """Give a folder a time after that of the manifest, however coarse the clock of the file system is."""
    later = os.stat(f"{folder}/.shoal/manifest.json").st_mtime_ns + 10**9
    os.utime(folder, ns=(later, later))


def test_a_tar_that_the_dataset_does_not_name_warns_once(tmp_path):
    root = make(tmp_path)
    shutil.copy(f"{root}/train-000000.tar", f"{root}/stray.tar")
    touch_later(root)
    with pytest.warns(ShoalWarning, match=r"1 tar that is no part of the dataset: 'stray.tar'.*shoal index.*verify"):
        assert len(shoal.Dataset(root)) == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(shoal.Dataset(root, split="train")) == 8
    reports = {os.path.basename(report.url): report for report in verify_dataset(root)}
    assert [problem.problem for problem in reports["stray.tar"].notes] == [
        "the manifest does not list this tar, so no reader sees it"
    ]
    os.unlink(f"{root}/stray.tar")
    touch_later(root)
    assert len(shoal.Dataset(root)) == 8


def test_tars_that_are_being_written_do_not_warn(tmp_path):
    root = make(tmp_path)
    with Writing.begin(root, WriteHead("append", "more-%06d.tar", "train")) as writing:
        assert writing.reserve("more-000000.tar")
        touch_later(root)
        assert len(shoal.Dataset(root)) == 8
        writing.discard()
    assert shoal.Dataset(root).append([{"__key__": "new", "txt": "x"}]).refresh().keys()[-1] == "new"


@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_write_that_is_not_finished_is_named(tmp_path, place):
    root = str(tmp_path / "data") if place == "local" else f"memory://opening/{tmp_path.name}"
    with Writing.begin(root, WriteHead("write", "train-%06d.tar", "train")) as writing:
        assert writing.reserve("train-000000.tar")
        with pytest.raises(
            ManifestError, match=r"was not finished.*'train-%06d.tar' by .*process.*shoal repair"
        ) as error:
            len(shoal.Dataset(root))
        assert error.value.shard == root
