"""Work on every shard: each once, whatever kills it; what failed is tried again.

This file is also the child that dies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import shoal
from shoal.dataset import FailedShard, ShardDone, ShardReport
from shoal.errors import OptionError


@shoal.packable
class Numbered:
    vector: NDArray[np.float32]
    number: int


def typed(root, count=10, per_shard=3):
    return shoal.write_samples(
        [Numbered(np.zeros(2, np.float32), n) for n in range(count)], root, max_samples=per_shard
    )


def total(samples):
    return sum(sample.number for sample in samples)


def names(shards):
    return [shard.rpartition("-")[2] for shard in shards]


def test_the_function_gets_the_samples_of_each_shard(tmp_path):
    seen = []
    report = typed(tmp_path).process_shards(lambda samples: seen.append([s.number for s in samples]))
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert isinstance(report, ShardReport)
    assert report.ok
    assert names(report.done) == ["000000.tar", "000001.tar", "000002.tar", "000003.tar"]
    assert set(report.results.values()) == {None}


def test_views_lenses_and_stages_are_honoured(tmp_path):
    dataset = typed(tmp_path)
    seen = []
    view = dataset.where("number >= 4 and number != 7").filter(lambda s: s.number % 2 == 0).map(lambda s: s.number * 10)
    report = view.process_shards(seen.append)
    assert seen == [[40], [60, 80], []]
    assert len(report.done) == 3
    seen.clear()
    dataset.select([9, 1, 0]).process_shards(lambda samples: seen.append([s.number for s in samples]))
    assert seen == [[1, 0], [9]]


def test_a_second_run_skips_what_is_done_and_keeps_its_results(tmp_path):
    dataset, checkpoint = typed(tmp_path / "data"), tmp_path / "done.jsonl"
    first = dataset.process_shards(total, checkpoint=checkpoint)
    calls = []
    second = dataset.process_shards(calls.append, checkpoint=checkpoint)
    assert calls == []
    assert second.skipped == first.done
    assert second.results == first.results
    assert list(second.results.values()) == [3, 12, 21, 9]


def test_failed_shards_are_listed_and_tried_again(tmp_path):
    dataset, checkpoint = typed(tmp_path / "data"), tmp_path / "done.jsonl"
    broken = {3, 9}

    def work(samples):
        if samples[0].number in broken:
            raise ValueError(f"cannot take {samples[0].number}")
        return total(samples)

    report = dataset.process_shards(work, checkpoint=checkpoint, on_error="continue")
    assert not report.ok
    assert report.failed == (
        FailedShard(dataset.shards[1], "ValueError: cannot take 3"),
        FailedShard(dataset.shards[3], "ValueError: cannot take 9"),
    )
    broken.remove(3)
    report = dataset.process_shards(work, checkpoint=checkpoint, on_error="continue")
    assert (names(report.done), names(report.skipped)) == (["000001.tar"], ["000000.tar", "000002.tar"])
    assert [one.shard for one in report.failed] == [dataset.shards[3]]
    with pytest.raises(ValueError, match="cannot take 9") as caught:
        dataset.process_shards(work, checkpoint=checkpoint)
    assert "shard-000003.tar" in caught.value.__notes__[0]


@pytest.mark.parametrize("workers", [1, 3])
def test_raise_stops_and_keeps_what_was_done(tmp_path, workers):
    dataset, checkpoint = typed(tmp_path / "data", 30), tmp_path / "done.jsonl"
    seen = []

    def work(samples):
        seen.append(samples[0].number)
        if samples[0].number == 6:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        dataset.process_shards(work, checkpoint=checkpoint, workers=workers)
    assert len(seen) < 10
    before = set(seen)
    with pytest.raises(RuntimeError, match="enough"):
        dataset.process_shards(work, checkpoint=checkpoint, workers=workers)
    assert {0, 3} <= before
    assert seen.count(0) == seen.count(3) == 1 or workers > 1


def test_workers_run_at_once_and_no_more_than_asked(tmp_path):
    dataset = typed(tmp_path, 36)
    running, most, lock = 0, 0, threading.Lock()
    met = threading.Barrier(3, timeout=60)

    def work(samples):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        met.wait()  # only when three are at it at once
        with lock:
            running -= 1
        return total(samples)

    report = dataset.process_shards(work, workers=3)
    assert most == 3
    assert sum(report.results.values()) == sum(range(36))
    assert list(report.results) == list(dataset.shards)


def test_progress_is_told_of_each_shard(tmp_path):
    dataset, checkpoint = typed(tmp_path / "data"), tmp_path / "done.jsonl"
    dataset.process_shards(total, checkpoint=checkpoint, shards=dataset.shards[:2])
    told: list[ShardDone] = []
    dataset.process_shards(total, checkpoint=checkpoint, progress=told.append)
    assert [(one.number, one.total, one.samples, one.error) for one in told] == [(3, 4, 3, None), (4, 4, 1, None)]


def test_a_shard_that_changed_or_is_seen_otherwise_is_done_again(tmp_path):
    dataset, checkpoint = typed(tmp_path / "data"), tmp_path / "done.jsonl"
    dataset.process_shards(total, checkpoint=checkpoint)
    view = dataset.where("number != 4").process_shards(total, checkpoint=checkpoint)
    assert (names(view.done), len(view.skipped)) == (["000001.tar"], 3)
    rewritten = [Numbered(np.ones(200, np.float32), n) for n in range(10)]
    other = shoal.write_samples(rewritten, tmp_path / "data", max_samples=3, overwrite=True)
    assert len(other.process_shards(total, checkpoint=checkpoint).done) == 4


def test_results_that_json_does_not_hold_are_given_once(tmp_path):
    dataset, checkpoint = typed(tmp_path / "data"), tmp_path / "done.jsonl"
    first = dataset.process_shards(lambda samples: np.array([s.number for s in samples]), checkpoint=checkpoint)
    assert [value.tolist() for value in first.results.values()] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert dataset.process_shards(total, checkpoint=checkpoint).results == {}


def test_a_torn_last_line_counts_for_nothing(tmp_path):
    dataset, checkpoint = typed(tmp_path / "data"), tmp_path / "done.jsonl"
    dataset.process_shards(total, checkpoint=checkpoint)
    whole = checkpoint.read_bytes()
    for cut in range(len(whole)):
        checkpoint.write_bytes(whole[:cut])
        report = dataset.process_shards(total, checkpoint=checkpoint)
        assert len(report.skipped) >= whole[:cut].count(b"\n")
        assert len(report.skipped) + len(report.done) == 4
        assert len(dataset.process_shards(total, checkpoint=checkpoint).skipped) == 4


def test_mistakes_are_refused_before_any_work(tmp_path):
    dataset = typed(tmp_path / "data")
    (tmp_path / "notes.txt").write_text("something else")
    calls = []
    for options in (
        {"on_error": "ignore"},
        {"workers": 0},
        {"checkpoint": tmp_path / "notes.txt"},
        {"shards": ["elsewhere.tar"]},
    ):
        with pytest.raises(OptionError):
            dataset.process_shards(calls.append, **options)
    assert calls == []
    assert (tmp_path / "notes.txt").read_text() == "something else"


# -------------------------------------------------------------------------------------------------- the child that dies


def child(root, checkpoint, log, dies_at):
    """Note each shard as it is worked on, then die in the midst of one."""

    def work(samples):
        first = samples[0].number
        with open(log, "a") as file:
            file.write(f"{first}\n")
        if first == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return total(samples)

    report = shoal.Dataset(root, sample_type=Numbered).process_shards(work, checkpoint=checkpoint)
    print(json.dumps({"done": len(report.done), "skipped": len(report.skipped), "sum": sum(report.results.values())}))


def test_kill_9_loses_only_the_shard_that_was_worked_on(tmp_path):
    typed(tmp_path / "data", 12)
    log = tmp_path / "log"

    def run(dies_at):
        arguments = [str(tmp_path / "data"), str(tmp_path / "done.jsonl"), str(log), str(dies_at)]
        return subprocess.run(
            [sys.executable, __file__, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2],
        )

    assert run(3).returncode == -signal.SIGKILL
    assert run(9).returncode == -signal.SIGKILL
    last = run(-1)
    assert json.loads(last.stdout) == {"done": 1, "skipped": 3, "sum": sum(range(12))}
    assert log.read_text().split() == ["0", "3", "3", "6", "9", "9"]


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
