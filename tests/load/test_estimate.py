"""Predictions equal what a real loader then requests from a store that counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import shoal
from shoal.errors import OptionError
from shoal.load import DataLoader, predict
from shoal.store import ObjectInfo, ObjectReader, local_path, register_store, store_for


class CountingReader:
    """A local file that counts the ranges asked of it."""

    def __init__(self, reader: ObjectReader, store: CountingStore, url: str) -> None:
        self._reader = reader
        self._store = store
        self.info = replace(reader.info, url=url)

    def read(self, start: int, stop: int) -> bytes:
        self._store.count(1, stop - start)
        return self._reader.read(start, stop)

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        self._store.count(len(starts), sum(stops) - sum(starts))
        return self._reader.read_many(starts, stops)

    def close(self) -> None:
        self._reader.close()


class CountingStore:
    """The local disk under ``counted://``, with what was asked of its tars."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = self.bytes = 0

    def count(self, requests: int, size: int) -> None:
        with self._lock:
            self.requests += requests
            self.bytes += size

    def info(self, url: str) -> ObjectInfo:
        return replace(store_for("/").info(_path(url)), url=url)

    def open(self, url: str) -> Any:
        reader = store_for("/").open(_path(url))
        return CountingReader(reader, self, url) if url.endswith(".tar") else reader

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        for info in store_for("/").list(_path(url), depth):
            yield replace(info, url="counted://" + local_path(info.url))

    def read_all(self, url: str) -> bytes:
        return store_for("/").read_all(_path(url))

    def is_folder(self, url: str) -> bool:
        return store_for("/").is_folder(_path(url))


def _path(url: str) -> str:
    return url.removeprefix("counted://")


@pytest.fixture
def counted() -> CountingStore:
    store = CountingStore()
    register_store("counted", store)
    return store


class ScatteringReader(CountingReader):
    """The same, for a file that fills several buffers at once, as local ones do."""

    def read_into(self, start: int, parts: Sequence[memoryview]) -> int:
        self._store.count(1, sum(map(len, parts)))
        return self._reader.read_into(start, parts)  # type: ignore[attr-defined, no-any-return]


class CountingDisk(CountingStore):
    """The local disk itself, with what is asked of its tars."""

    def __init__(self, disk: Any) -> None:
        super().__init__()
        self._disk = disk

    def __getattribute__(self, name: str) -> Any:
        own = ("_disk", "_lock", "count", "requests", "bytes", "open")
        return object.__getattribute__(self, name) if name in own else getattr(self._disk, name)

    def open(self, url: str) -> Any:
        reader = self._disk.open(url)
        return ScatteringReader(reader, self, reader.info.url) if url.endswith(".tar") else reader


@pytest.fixture
def disk() -> Iterator[CountingDisk]:
    real = store_for("/")
    register_store("file", CountingDisk(real))
    yield store_for("/")  # type: ignore[misc]
    register_store("file", real)


@shoal.packable
class Typed:
    values: NDArray[np.float32]
    name: str


def write_plain(folder: Path, count: int, **options: Any) -> str:
    rng = np.random.default_rng(1)
    with shoal.ShardWriter(folder / "train-%06d.tar", max_samples=70, **options) as writer:
        for number in range(count):
            writer.write({"bin": bytes(int(rng.integers(100, 4000))), "txt": f"{number}", "json": {"n": number}})
    return f"counted://{folder}"


def write_typed(folder: Path, count: int) -> str:
    samples = (Typed(np.full(50, number, np.float32), f"{number}") for number in range(count))
    shoal.write_samples(samples, folder, max_samples=90)
    return f"counted://{folder}"


def measured(store: CountingStore, url: str, world: int, make: Any = None, **options: Any) -> tuple[int, int, int]:
    """Requests, bytes and batches of one epoch of all ranks, each a process of its own as far as the store knows."""
    requests = size = steps = 0
    for rank in range(world):
        dataset = shoal.Dataset(url) if make is None else make(shoal.Dataset(url))
        source = dataset.source
        for number in range(len(source.shards)):  # opening is not foretold
            source.shard(number)
        before = store.requests, store.bytes
        # In the caller's thread: threads go on to the next epoch before this one has ended.
        settings = {"num_workers": 0, **options}
        steps = len(list(DataLoader(dataset, rank=rank, world_size=world, **settings)))
        requests += store.requests - before[0]
        size += store.bytes - before[1]
        source.close()
    return requests, size, steps


CASES: list[dict[str, Any]] = [
    {"batch_size": 16},
    {"batch_size": 16, "shuffle": True, "seed": 3},
    {"batch_size": 7, "shuffle": True, "window": 60, "block_samples": 5, "lanes": 6},
    {"batch_size": 16, "drop_last": True, "tail": "drop"},
    {"batch_size": 8, "shuffle": True, "tail": "uneven"},
    {"batch_size": 1},
]


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("write", [write_plain, write_typed])
@pytest.mark.parametrize("world", [1, 3])
def test_few_batches_are_foretold_exactly(
    counted: CountingStore, tmp_path: Path, write: Any, options: dict[str, Any], world: int
) -> None:
    url = write(tmp_path / "data", 60 if options["batch_size"] == 1 else 330)
    foretold = predict(shoal.Dataset(url), **options, rank=0, world_size=world)
    assert foretold.is_exact
    assert (foretold.requests, foretold.bytes, foretold.steps) == measured(counted, url, world, **options)


@pytest.mark.parametrize("options", CASES[:-1], ids=str)
@pytest.mark.parametrize("write", [write_plain, write_typed])
def test_many_batches_are_foretold_within_a_twentieth(
    counted: CountingStore, tmp_path: Path, write: Any, options: dict[str, Any]
) -> None:
    url = write(tmp_path / "data", 3500)
    foretold = predict(shoal.Dataset(url), **options, rank=0, world_size=2)
    requests, size, steps = measured(counted, url, 2, **options)
    assert not foretold.is_exact
    assert foretold.steps == steps
    assert foretold.requests == pytest.approx(requests, rel=0.05)
    assert foretold.bytes == pytest.approx(size, rel=0.05)
    assert foretold.rank_bytes == pytest.approx(size / 2, rel=0.05)


@pytest.mark.parametrize(
    "make",
    [
        lambda dataset: dataset.columns(["txt", "json"]),
        lambda dataset: dataset.where("n >= 100"),
        lambda dataset: dataset.map(lambda sample: sample["txt"]),
        lambda dataset: dataset.select([5, 300, 7, 8, 9, 200]),
    ],
)
def test_views_read_what_they_need(counted: CountingStore, tmp_path: Path, make: Any) -> None:
    url = write_plain(tmp_path / "data", 330)
    foretold = predict(make(shoal.Dataset(url)), batch_size=16, shuffle=True)
    assert (foretold.requests, foretold.bytes, foretold.steps) == measured(
        counted, url, 1, make, batch_size=16, shuffle=True
    )


def test_compressed_blocks_count_once_a_batch(counted: CountingStore, tmp_path: Path) -> None:
    """The last few blocks are held, so what is foretold bounds what is read."""
    url = write_plain(tmp_path / "data", 330, compression="gzip")
    foretold = predict(shoal.Dataset(url), batch_size=16, shuffle=True)
    requests, size, _ = measured(counted, url, 1, batch_size=16, shuffle=True)
    assert 0 < requests <= foretold.requests
    assert 0 < size <= foretold.bytes


@pytest.mark.parametrize("options", [case for case in CASES if "shuffle" in case], ids=str)
@pytest.mark.parametrize("write", [write_plain, write_typed])
@pytest.mark.parametrize("world", [1, 2])
def test_local_shards_that_are_held_are_foretold_closely(
    disk: CountingDisk, tmp_path: Path, write: Any, options: dict[str, Any], world: int
) -> None:
    """Blocks are read once by each rank, and stay; which samples are read alone before that is for speed to decide."""
    url = write(tmp_path / "data", 3500).removeprefix("counted://")
    foretold = predict(shoal.Dataset(url), **options, rank=0, world_size=world)
    requests, size, steps = measured(disk, url, world, **options)
    assert (foretold.held_bytes > 0) == (world == 1)  # one of many readers would hold what is for the others
    assert foretold.steps == steps
    assert foretold.bytes == pytest.approx(size, rel=0.05)
    assert foretold.requests == pytest.approx(requests, rel=0.35)


@pytest.mark.parametrize("options", [{"batch_size": 16}, {"batch_size": 16, "shuffle": True, "memory_budget": 1}])
@pytest.mark.parametrize("write", [write_plain, write_typed])
def test_local_shards_that_are_not_held_are_foretold_within_a_twentieth(
    disk: CountingDisk, tmp_path: Path, write: Any, options: dict[str, Any]
) -> None:
    url = write(tmp_path / "data", 3500).removeprefix("counted://")
    foretold = predict(shoal.Dataset(url), **options)
    requests, size, steps = measured(disk, url, 1, **options)
    assert (foretold.held_bytes, foretold.steps) == (0, steps)
    assert foretold.requests == pytest.approx(requests, rel=0.05)
    assert foretold.bytes == pytest.approx(size, rel=0.05)


def test_threads_read_at_most_the_batches_ahead_more(counted: CountingStore, tmp_path: Path) -> None:
    url = write_plain(tmp_path / "data", 3500)
    options = {"batch_size": 32, "shuffle": True, "num_workers": 2, "prefetch": 4}
    foretold = predict(shoal.Dataset(url), **options)
    requests, _, _ = measured(counted, url, 1, **options)
    assert 0.95 * foretold.requests <= requests <= 1.05 * foretold.requests + 5 * 32  # of the next epoch


def test_nothing_is_read(counted: CountingStore, tmp_path: Path) -> None:
    url = write_plain(tmp_path / "data", 330)
    predict(shoal.Dataset(url), batch_size=16, shuffle=True, bandwidth=1e8, latency=0.01)
    assert counted.requests == 5  # the first block of each of five shards, which says whether its index fits
    assert counted.bytes == 5 * 512


def test_time_is_requests_and_bytes(counted: CountingStore, tmp_path: Path) -> None:
    url = write_plain(tmp_path / "data", 330)
    one = predict(shoal.Dataset(url), batch_size=16, bandwidth=1e6, latency=0.5, num_workers=2)
    assert one.requests == 21 + 4  # batches, of which four begin in one shard and end in the next
    assert one.first_batch_seconds == pytest.approx(0.5 * (2 + 1), rel=0.01, abs=0.1)  # one shard, one range of it
    assert one.epoch_seconds == pytest.approx(0.5 * 25 / 2 + one.bytes / 1e6)
    assert predict(shoal.Dataset(url), batch_size=16).first_batch_seconds is None


def test_replicas_and_ranks_that_share_blocks() -> None:
    kept = {"shuffle": True, "window": 600, "block_samples": 10, "lanes": 6, "rank": 0}
    assert predict(range(10_000), **kept, world_size=3).block_readers == 1
    assert predict(range(10_000), **kept, world_size=4).block_readers == 2
    assert predict(range(10_000), **kept, world_size=4, replication=2).block_readers == 1
    assert predict(range(10_000), **kept, world_size=4, replication=2, batch_size=10).steps == 500


def test_memory_is_what_is_made_ahead(tmp_path: Path) -> None:
    url = write_typed(tmp_path / "data", 330).removeprefix("counted://")
    one = predict(shoal.Dataset(url), batch_size=10, num_workers=2, prefetch=5)
    assert one.resident_bytes == pytest.approx(6 * one.batch_bytes)
    assert predict(shoal.Dataset(url), batch_size=10, num_workers=0).resident_bytes == pytest.approx(one.batch_bytes)
    small = predict(shoal.Dataset(url), batch_size=10, num_workers=2, prefetch=5, memory_budget=1)
    assert small.resident_bytes == pytest.approx(2 * one.batch_bytes)


def test_shuffling_says_how_well_it_mixes(tmp_path: Path) -> None:
    samples = (Typed(np.zeros(5, np.float32), "") for _ in range(900))
    shoal.write_samples(samples, tmp_path, max_samples=300)
    url = str(tmp_path)
    assert predict(shoal.Dataset(url), shuffle=True).shuffle_quality == pytest.approx(1, abs=0.05)
    assert predict(shoal.Dataset(url)).shuffle_quality < 0.7
    assert predict(shoal.Dataset(url)).window_samples == 1
    assert predict(shoal.Dataset(url), shuffle=True).window_samples == 900


def test_a_loader_with_verbs_is_foretold_as_it_is(counted: CountingStore, tmp_path: Path) -> None:
    url = write_plain(tmp_path / "data", 330)
    loader = shoal.Dataset(url).shuffle(1000).map(lambda sample: sample["txt"]).batch(33)
    assert predict(loader).steps == 10
    copied = shoal.Dataset(url).flat_map(lambda sample: [sample] * 2).batch(32)
    unknown = predict(copied)
    assert unknown.steps is None
    before = counted.requests, counted.bytes
    assert len(list(copied.with_options(num_workers=0))) == 21
    assert (unknown.requests, unknown.bytes) == (counted.requests - before[0], counted.bytes - before[1])
    assert predict(shoal.Dataset(url).flat_map(list).batch(32), steps_per_epoch=7).steps == 7


def test_repeats_are_counted() -> None:
    assert predict(range(10), batch_size=2, rank=0, world_size=4).repeated == 2
    assert predict(range(10), batch_size=2, rank=0, world_size=4, tail="uneven").repeated == 0


@pytest.mark.parametrize("data", [iter([1, 2]), DataLoader(range(3), sampler=[1, 2])], ids=["stream", "sampler"])
def test_what_has_no_order_is_refused(data: Any) -> None:
    with pytest.raises(OptionError, match="known beforehand"):
        predict(data)


def test_a_bandwidth_is_a_number_above_zero() -> None:
    with pytest.raises(OptionError, match="bandwidth"):
        predict(range(3), bandwidth=0)


def test_an_empty_dataset_needs_nothing() -> None:
    foretold = predict(range(0))
    assert (foretold.steps, foretold.rank_samples, foretold.repeated) == (0, 0, 0)
