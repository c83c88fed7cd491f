"""Prefetched batches stay within their budget, and memory does not grow with the number of batches."""

from __future__ import annotations

import dataclasses
import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import psutil
import pytest

from shoal.load import DataLoader
from shoal.load._collate import size_of


class Tracked:
    """Counts the batches that are alive."""

    def __init__(self) -> None:
        self.alive = 0
        self.most = 0
        self.made = 0
        self.lock = threading.Condition()

    def made_one(self, array: np.ndarray) -> np.ndarray:
        with self.lock:
            self.alive += 1
            self.made += 1
            self.most = max(self.most, self.alive)
            self.lock.notify_all()
        weakref.finalize(array, self._gone)
        return array

    def _gone(self) -> None:
        with self.lock:
            self.alive -= 1


@pytest.mark.parametrize("budget, most", [(1, 1), (2_000_000, 2), (4_500_000, 4), (1 << 40, 16)])
@pytest.mark.parametrize("chain", ["batches", "after a filter"])
def test_batches_made_ahead_stay_within_the_budget(budget: int, most: int, chain: str) -> None:
    tracked = Tracked()

    def large(batch: Any) -> np.ndarray:
        return tracked.made_one(np.zeros(1_000_000, np.uint8))

    loader = DataLoader(range(400), batch_size=None, num_workers=4, prefetch=16, memory_budget=budget)
    if chain == "batches":
        loader = loader.batch(1).map(large)
    else:  # two lines of work share the budget
        loader = loader.filter(lambda _: True).batch(1).map(large)
        most = max(1, most // 2) if most < 16 else 16
    for batch in islice(loader, 60):
        assert batch.nbytes == 1_000_000
        del batch
    loader.close()
    # One is in the caller's hands beside those that were made ahead.
    assert tracked.most <= most + 1
    assert tracked.made >= 60


def test_the_first_batch_is_seen_before_more_are_begun() -> None:
    tracked = Tracked()
    loader = DataLoader(range(100), batch_size=1, num_workers=4, prefetch=8, memory_budget=10)
    iterator = iter(loader.map(lambda _: tracked.made_one(np.zeros(1000))))
    next(iterator)
    assert tracked.most <= 2
    iterator.close()


def test_batches_of_many_sizes_stay_about_within_the_budget() -> None:
    tracked = Tracked()
    held: list[int] = []
    sizes = np.random.default_rng(1).integers(1, 100, 300) * 10_000

    def made(batch: list[int]) -> np.ndarray:
        return tracked.made_one(np.zeros(int(sizes[batch[0]]), np.uint8))

    loader = DataLoader(range(300), batch_size=1, num_workers=2, prefetch=64, memory_budget=5_000_000).map(made)
    for batch in loader:
        held.append(loader.stats().ready)
        del batch
    loader.close()
    assert max(held) <= 30  # of half a megabyte each, on average, ten fit: not sixty-four
    assert max(held) >= 3


def rss() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


CHAINS: dict[str, Callable[[DataLoader], DataLoader]] = {
    "batch": lambda line: line.batch(8),
    "batch, map": lambda line: line.batch(8).map(lambda batch: batch * 2),
    "filter": lambda line: line.filter(lambda value: value[0] % 3).batch(8),
    "bucket": lambda line: line.bucket([30, 60], 4, lambda value: int(value[0]) % 90),
    "shuffle": lambda line: line.shuffle(100, 1).batch(8),
    "buffer": lambda line: line.flat_map(lambda value: [value]).shuffle(100, 1).batch(8),
    "unbatch": lambda line: line.batch(8).unbatch().batch(4),
    "window": lambda line: line.window(4, 2),
    "skipping": lambda line: line.map(failing).batch(8),
}


def failing(value: np.ndarray) -> np.ndarray:
    if value[0] % 50 == 3:
        raise ValueError(value[0])
    return value


@pytest.mark.filterwarnings("ignore:skipped:shoal.errors.ShoalWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chain", CHAINS)
def test_nothing_grows_with_the_number_of_batches(chain: str, workers: int) -> None:
    class Data:
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, at: int) -> np.ndarray:
            return np.full(200, at % 251)

    skip = {"on_error": "skip", "error_budget": 4000} if chain == "skipping" else {}
    line = DataLoader(Data(), batch_size=None, num_workers=workers, prefetch=4, **skip)
    loader = CHAINS[chain](line).repeat()
    iterator = iter(loader)
    tracemalloc.start()
    peaks = []
    for count in (150, 600):
        gc.collect()
        tracemalloc.reset_peak()
        for _ in islice(iterator, count):
            loader.state_dict()
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    iterator.close()
    # The 450 batches more would be 2.8 MB at the least. How many are on their way at a time is left to the threads.
    assert peaks[1] < 1.1 * peaks[0] + 1_500_000


def test_the_process_does_not_grow_with_the_number_of_batches() -> None:
    loader = DataLoader(np.zeros((20_000, 4000), np.uint8), batch_size=50, shuffle=True, num_workers=2, prefetch=4)
    iterator = iter(loader.repeat())
    for _ in islice(iterator, 500):
        pass
    before = rss()
    for _ in islice(iterator, 4000):  # 800 MB of batches
        pass
    assert rss() - before < 16 << 20
    iterator.close()


def test_a_batch_is_gone_when_the_caller_lets_go_of_it() -> None:
    loader = DataLoader(range(50), batch_size=1, num_workers=1, prefetch=1).map(lambda _: np.zeros(10))
    gone: list[weakref.ref[Any]] = []
    for batch in loader:
        assert all(ref() is None for ref in gone)
        gone = [weakref.ref(batch)]
        del batch
    assert gone[0]() is None
    loader.close()


def test_a_batch_that_is_kept_is_not_overwritten() -> None:
    loader = DataLoader(np.arange(4000).reshape(400, 10), batch_size=4, num_workers=2, prefetch=4)
    kept = list(loader)
    list(loader)
    assert np.array_equal(np.concatenate(kept), np.arange(4000).reshape(400, 10))
    loader.close()


@dataclasses.dataclass
class Record:
    pixels: np.ndarray
    name: str


def test_sizes_are_those_of_what_is_held() -> None:
    import torch

    pixels = np.zeros((10, 10), np.float32)
    assert size_of(pixels) == 400
    assert size_of(torch.zeros(10, 10)) == 400
    assert size_of({"a": pixels, "b": b"1234"}) == 404
    assert size_of([pixels] * 20) == 8000
    assert size_of((pixels, pixels)) == 800
    assert 400 <= size_of(Record(pixels, "x")) < 600
    assert size_of([]) == 0
