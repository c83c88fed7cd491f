"""Local workers: one that dies, functions and errors that cannot be pickled."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
from tests.build.built import numbers

import shoal
from shoal.build import LocalEngine
from shoal.errors import ErrorBudgetExceeded, OptionError, WorkerError
from shoal.shard import unfinished_writes


def dies(sample):
    if sample["cls"] == 33:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_worker_that_is_killed_ends_the_build_and_nothing_is_lost(tmp_path):
    engine = LocalEngine(2, "fork")
    with pytest.raises(WorkerError, match=r"signal 9.*train-000003"):
        shoal.build_shards(numbers(), tmp_path / "out", dies, max_samples=10, engine=engine)
    assert not list(tmp_path.rglob("*.partial"))
    # A tar that was complete when its worker was ended, before it could say so, is written again.
    (write,) = unfinished_writes(str(tmp_path / "out"))
    done = {record.path: (tmp_path / "out" / record.path).stat().st_ino for record in write.shards}
    assert 1 <= len(done) < 5
    shutil.copytree(tmp_path / "out", tmp_path / "kept")
    with pytest.raises(WorkerError):
        shoal.build_shards(numbers(), tmp_path / "out", dies, max_samples=10, engine=engine)
    assert done.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}.items()


def test_a_function_that_others_cannot_get_is_refused(tmp_path):
    with pytest.raises(OptionError, match="top of a module"):
        shoal.build_shards(numbers(), tmp_path / "out", lambda sample: sample, engine=LocalEngine(2, "forkserver"))
    shoal.build_shards(numbers(), tmp_path / "out", lambda sample: sample, engine=LocalEngine(2, "fork"))


class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def raises_odd(sample):
    raise OddError(1, 2)


def test_an_error_that_cannot_be_pickled_is_a_failure_like_any_other(tmp_path):
    with pytest.raises(ErrorBudgetExceeded, match="OddError: 1"):
        shoal.build_shards(numbers(), tmp_path / "out", raises_odd, engine=LocalEngine(2, "fork"), max_samples=10)
