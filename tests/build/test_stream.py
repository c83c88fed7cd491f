"""Sources that can only be read in order: one process reads, the bytes are those of one worker, a rerun passes over."""

from __future__ import annotations

import pytest
from tests.build.built import double, fails_at_seven, tree

import shoal
from shoal.build import LocalEngine
from shoal.errors import ErrorBudgetExceeded, ObjectExistsError, OptionError, WriteError

ENGINES = [LocalEngine(1), LocalEngine(3, "fork")]


def numbers(count=200, changed=None):
    for number in range(count):
        yield {"cls": number, "txt": f"number {number % 150}" if number != changed else "other"}


def values(root, field="cls"):
    return [sample[field] for sample in shoal.Dataset(root)]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_generator_is_written_in_order(tmp_path, engine):
    report = shoal.build_shards(numbers(), tmp_path / "out", double, max_samples=30, engine=engine)
    assert values(tmp_path / "out") == list(range(200))
    assert [shard.samples for shard in report.shards] == [30] * 6 + [20]
    assert shoal.Dataset(tmp_path / "out")[7]["__key__"] == "000000007"


def test_the_bytes_are_those_of_one_worker(tmp_path):
    ask = {"max_samples": 17, "splits": {"a": 0.7, "b": 0.3}, "sample": 0.8, "dedupe": ["txt"], "error_budget": 99}
    reports = [
        shoal.build_shards(numbers, tmp_path / str(at), fails_at_seven, engine=engine, **ask)
        for at, engine in enumerate(ENGINES)
    ]
    assert tree(tmp_path / "0") == tree(tmp_path / "1")
    assert reports[0].failures == reports[1].failures
    assert reports[0].duplicates == reports[1].duplicates > 10
    assert set(reports[0].splits) == {"a", "b"}


def test_shards_are_cut_by_bytes(tmp_path):
    report = shoal.build_shards(
        ({"bin": bytes(5000)} for _ in range(40)), tmp_path / "out", max_bytes=60_000, workers=1
    )
    assert max(shard.bytes for shard in report.shards) <= 60_000 + 10_240
    assert report.samples == 40


def test_a_stream_among_sources_makes_all_of_them_one(tmp_path):
    shoal.build_shards([[{"cls": 5}], numbers(3)], tmp_path / "out", workers=1)
    assert values(tmp_path / "out") == [5, 0, 1, 2]


def test_a_dataset_that_filters_is_a_stream(tmp_path):
    shoal.write_samples([{"cls": n} for n in range(20)], str(tmp_path / "in"))
    dataset = shoal.Dataset(tmp_path / "in").filter(lambda sample: sample["cls"] % 3 == 0)
    shoal.build_shards(dataset, tmp_path / "out", workers=1)
    assert values(tmp_path / "out") == list(range(0, 20, 3))


def stops(samples, at):
    for number, sample in enumerate(samples):
        if number == at:
            raise KeyboardInterrupt
        yield sample


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_rerun_passes_over_what_is_done(tmp_path, engine):
    called = []

    def count(sample):
        called.append(sample["cls"])
        return sample

    with pytest.raises(KeyboardInterrupt):
        shoal.build_shards(stops(numbers(), 100), tmp_path / "out", count, max_samples=20, engine=LocalEngine(1))
    done = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    assert len(done) >= 3
    called.clear()
    report = shoal.build_shards(numbers(), tmp_path / "out", count, max_samples=20, engine=engine)
    assert report.written == 10 - len(done)
    assert done.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}.items()
    assert engine.workers > 1 or min(called) == 20 * len(done)
    assert values(tmp_path / "out") == list(range(200))


@pytest.mark.parametrize("again", [lambda: numbers(changed=3), lambda: numbers(10), lambda: numbers(changed=59)])
def test_other_samples_are_refused(tmp_path, again):
    with pytest.raises(KeyboardInterrupt):
        shoal.build_shards(stops(numbers(), 130), tmp_path / "out", max_samples=20, workers=1)
    with pytest.raises(WriteError, match="not those of the interrupted build"):
        shoal.build_shards(again(), tmp_path / "out", max_samples=20, workers=1)


def test_a_finished_stream_is_not_known_again(tmp_path):
    shoal.build_shards(numbers(5), tmp_path / "out", workers=1)
    with pytest.raises(ObjectExistsError):
        shoal.build_shards(numbers(6), tmp_path / "out", workers=1)
    shoal.build_shards(numbers(6), tmp_path / "out", workers=1, overwrite=True)
    assert len(shoal.Dataset(tmp_path / "out")) == 6


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_too_many_failures_end_it(tmp_path, engine):
    with pytest.raises(ErrorBudgetExceeded, match="not 27"):
        shoal.build_shards(numbers(), tmp_path / "out", fails_at_seven, error_budget=2, engine=engine)
    assert not list((tmp_path / "out").glob(".*.partial"))


@pytest.mark.parametrize(
    "ask",
    [{"shuffle": True}, {"sample": 10}, {"error_budget": 0.1}, {"retry": True}, {"source": iter([])}],
    ids=" ".join,
)
def test_what_a_stream_cannot_do_is_refused(tmp_path, ask):
    with pytest.raises((OptionError, WriteError)):
        shoal.build_shards(**{"source": numbers(5), "out": tmp_path / "out", "workers": 1, **ask})


def test_memory_does_not_wait_for_a_slow_batch(tmp_path):
    """Results are wanted in order, so no more than a few batches are read ahead of one that is not done."""
    read = []

    def source():
        for number in range(3000):
            read.append(number)
            yield {"cls": number}

    engine = LocalEngine(2, "fork")
    progress = []

    def look(now):
        progress.append(len(read) - now.samples)

    shoal.build_shards(source, tmp_path / "out", engine=engine, progress=look, max_samples=10_000)
    assert max(progress) <= 64 * 2 * 5
