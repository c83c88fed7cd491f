"""Samples of shards cached in memory equal those read from the store, in any order and from any thread."""

from __future__ import annotations

import pathlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray
from tests.shard.watched import watched_store

import shoal
from shoal.errors import ChecksumError, PositionError, ShoalError, TruncatedError
from shoal.load import DataLoader
from shoal.shard import ShardMemoryCache, ShardSource, _memory_cache

COUNT = 300
FIELDS = ["a.bin", "b.bin"]


def value(number: int, field: str) -> bytes:
    return bytes([number % 251, len(field)]) * (1 + (number * 37) % 4000)


def written(folder: pathlib.Path, **options: Any) -> str:
    with shoal.ShardWriter(str(folder / "x-%03d.tar"), max_samples=110, **options) as writer:
        for number in range(COUNT):
            writer.write({"__key__": f"k{number}", **{name: value(number, name) for name in FIELDS}})
    return str(folder)


def source_of(path: str) -> ShardSource:
    source = shoal.Dataset(path, decode=False).source
    assert isinstance(source, ShardSource)
    return source


def cached_of(path: str) -> tuple[ShardMemoryCache, ShardSource]:
    """A cache, and what reads through it."""
    source = source_of(path)
    found = ShardMemoryCache.over(source, 1 << 30)
    assert found is not None
    return found, source.with_memory(found)


def values(source: ShardSource, rows: list[int]) -> dict[str, list[bytes]]:
    _, columns = source.columns(np.array(rows, np.int64), FIELDS)
    return {name: list(column) for name, column in columns.items()}


def expected(rows: list[int]) -> dict[str, list[bytes]]:
    return {name: [value(row, name) for row in rows] for name in FIELDS}


EVERY = list(range(COUNT))


@pytest.fixture(params=[None, "gzip", "zstd"])
def folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    return written(tmp_path / "data", **({} if request.param is None else {"compression": request.param}))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.lists(st.integers(0, COUNT - 1), max_size=60), max_size=6), large=st.booleans())
def test_any_rows_in_any_order(folder: str, calls: list[list[int]], large: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_memory_cache, "_LARGE_BYTES", 1 if large else 1 << 30)
        _, source = cached_of(folder)
        alone = source_of(folder)
        for rows in calls:
            numbers = np.array(rows, np.int64)
            assert values(source, rows) == expected(rows)
            assert source.columns(numbers, FIELDS)[0].keys() == [f"k{row}" for row in rows]
            assert source.column(numbers, "b.bin") == expected(rows)["b.bin"]
            assert source.read(numbers) == alone.read(numbers)
            assert source.read(numbers, ["b.bin"]) == alone.read(numbers, ["b.bin"])


def test_it_fills_a_few_blocks_a_call_and_then_reads_no_more(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "data")
    monkeypatch.setattr(_memory_cache, "BLOCKS_AT_ONCE", 1)
    monkeypatch.setattr(_memory_cache, "_LARGE_BYTES", 1 << 30)
    (cache, source), shards = cached_of(path), len(source_of(path).shards)
    assert cache.full_share == 0
    assert values(source, EVERY) == expected(EVERY)
    assert 0 < cache.full_share <= 1 / shards
    while cache.full_share < 1:
        assert values(source, EVERY) == expected(EVERY)
    for tar in pathlib.Path(path).glob("*.tar"):
        tar.write_bytes(b"")  # whatever is read now is missing
    assert values(source, EVERY) == expected(EVERY)
    assert [sample["a.bin"] for sample in source.read(np.array([7, 2, 290]))] == expected([7, 2, 290])["a.bin"]


def test_large_samples_are_kept_from_the_second_epoch_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "data")
    monkeypatch.setattr(_memory_cache, "_LARGE_BYTES", 1000)
    cache, source = cached_of(path)
    order = np.random.default_rng(0).permutation(COUNT)
    for batch in np.array_split(order, 10):
        assert cache.full_share == 0
        assert values(source, batch.tolist()) == expected(batch.tolist())
    assert values(source, order[:30].tolist()) == expected(order[:30].tolist())
    assert cache.is_full


def test_the_store_is_asked_for_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory_cache, "_LARGE_BYTES", 1 << 30)
    store = watched_store(scatters=True)
    with shoal.ShardWriter("watched://kept/x-%03d.tar", max_samples=110) as writer:
        for number in range(COUNT):
            writer.write({"__key__": f"k{number}", **{name: value(number, name) for name in FIELDS}})
    cache, source = cached_of("watched://kept")
    store.ranges.clear()
    for _ in range(3):
        assert values(source, EVERY) == expected(EVERY)
    assert (len(store.ranges), store.bytes_read) == (cache.blocks, cache.stored_bytes)


def test_columns_cannot_change_what_is_kept(folder: str) -> None:
    _, source = cached_of(folder)
    for _ in range(2):
        column = source.column(np.array(EVERY), "a.bin")
        for view in (column.buffer, column.view(0), *column.views(), memoryview(column.to_arrow().buffers()[2])):
            assert view.readonly


def test_a_column_stays_what_it_was_when_the_file_changes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_memory_cache, "BLOCKS_AT_ONCE", 1)
    monkeypatch.setattr(_memory_cache, "_LARGE_BYTES", 1 << 30)
    path = written(tmp_path / "data")
    cache, source = cached_of(path)
    held = source.column(np.array(EVERY[::7]), "a.bin")  # most of it from blocks that are not in memory yet
    assert cache.full_share < 1
    for tar in pathlib.Path(path).glob("*.tar"):
        with tar.open("r+b") as file:  # the same file, which is open
            file.write(bytes(tar.stat().st_size))
    with pytest.raises(ChecksumError):
        source.columns(np.array(EVERY[::-1]), ["b.bin"])
    assert held == [value(number, "a.bin") for number in EVERY[::7]]


def test_threads_share_it(folder: str) -> None:
    _, source = cached_of(folder)

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        return all(values(source, rows) == expected(rows) for rows in rng.integers(0, COUNT, (20, 32)).tolist())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(16)))


def test_only_the_damaged_sample_fails(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "data")
    source = source_of(path)
    offset = int(source.shard(0).index.fields["a.bin"].offset[7])
    tar = pathlib.Path(source.shards[0].url.removeprefix("file://"))
    data = bytearray(tar.read_bytes())
    data[offset] ^= 1
    tar.write_bytes(data)
    _, cached = cached_of(path)
    for _ in range(3):
        for read in (lambda: values(cached, EVERY[:20]), lambda: cached.read(np.arange(20))):
            with pytest.raises(ChecksumError) as caught:
                read()
            assert (caught.value.key, caught.value.field, caught.value.offset) == ("k7", "a.bin", offset)
        assert values(cached, [6, 8, 9]) == expected([6, 8, 9])


def test_a_shard_that_was_cut_short(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "data")
    _, source = cached_of(path)
    for tar in pathlib.Path(path).glob("*.tar"):
        with tar.open("r+b") as file:
            file.truncate(4096)
    for _ in range(2):  # what failed is not taken to be there
        with pytest.raises(TruncatedError):
            values(source, EVERY[100:110])


@pytest.mark.parametrize("rows", [[-1], [0, COUNT]])
def test_positions_that_are_not(tmp_path: pathlib.Path, rows: list[int]) -> None:
    _, source = cached_of(written(tmp_path / "data"))
    with pytest.raises(PositionError):
        source.columns(np.array(rows), FIELDS)
    with pytest.raises(PositionError):
        source.column(np.array(rows), "a.bin")
    with pytest.raises(PositionError):
        source.read(np.array(rows))


def test_too_large_or_unlike_shards_are_not_kept(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "data")
    assert ShardMemoryCache.over(source_of(path), 1000) is None
    with shoal.ShardWriter(str(tmp_path / "unlike" / "x-%03d.tar"), max_samples=1) as writer:
        writer.write({"__key__": "a", "x.bin": b"1"})
        writer.write({"__key__": "b", "y.bin": b"2"})
    assert ShardMemoryCache.over(source_of(str(tmp_path / "unlike")), 1 << 30) is None


def test_a_loader_gives_the_same_batches_with_and_without(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "data")
    for fields in (None, ["b.bin"]):
        dataset = shoal.Dataset(path, decode=False, fields=fields)
        kept = DataLoader(dataset, batch_size=16, shuffle=True, seed=3, num_workers=2)
        alone = DataLoader(dataset, batch_size=16, shuffle=True, seed=3, num_workers=0, memory_budget=1000)
        for _ in range(2):
            assert list(kept) == list(alone)


def test_a_map_sees_the_same_samples_with_and_without(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "data")
    for look in (lambda sample: sorted(sample.items()), lambda sample: sample["a.bin"]):
        dataset = shoal.Dataset(path, decode=False).map(look)
        kept = DataLoader(dataset, batch_size=16, shuffle=True, seed=3, num_workers=2)
        alone = DataLoader(dataset, batch_size=16, shuffle=True, seed=3, num_workers=0, memory_budget=1000)
        assert list(kept) == list(alone)


def test_samples_that_lack_a_field(tmp_path: pathlib.Path) -> None:
    with shoal.ShardWriter(str(tmp_path / "sparse" / "x-%03d.tar")) as writer:
        for number in range(50):
            writer.write({"__key__": f"k{number}", "a.bin": b"a", **({"b.bin": b"b"} if number % 3 else {})})
    dataset = shoal.Dataset(str(tmp_path / "sparse"), decode=False)
    batch = next(iter(DataLoader(dataset, batch_size=50, shuffle=True, seed=1)))
    lacking = [key for key, field in zip(batch["__key__"], batch["b.bin"], strict=True) if field is None]
    assert sorted(lacking) == sorted(f"k{number}" for number in range(0, 50, 3))


@shoal.packable
class Text:
    txt: str


def test_a_shard_that_needs_more_fields_than_the_first(tmp_path: pathlib.Path) -> None:
    """Where some samples lack a field, its value is in their JSON."""
    with shoal.ShardWriter(str(tmp_path / "data" / "x-%03d.tar"), max_samples=20) as writer:
        for number in range(60):
            has_text = number < 20 or number % 2
            writer.write({"json": {"txt": f"{number}"}, **({"txt": f"{number}"} if has_text else {})})
    kept = DataLoader(shoal.Dataset[Text](str(tmp_path / "data")), batch_size=16, shuffle=True, seed=3)
    assert sorted(int(text) for batch in kept for text in batch.txt) == list(range(60))


@shoal.packable
class Point:
    at: NDArray[np.float32]
    name: str
    weight: float


def point(number: int) -> Point:
    return Point(np.full(5, number, np.float32), "n" * (number % 9), number / 2)


def test_typed_batches_are_the_same_with_and_without(tmp_path: pathlib.Path) -> None:
    shoal.write_samples(map(point, range(500)), tmp_path / "typed" / "x.tar")
    dataset = shoal.Dataset[Point](str(tmp_path / "typed" / "x.tar"))
    kept = DataLoader(dataset, batch_size=32, shuffle=True, seed=3, num_workers=2)
    alone = DataLoader(dataset, batch_size=32, shuffle=True, seed=3, num_workers=0, memory_budget=1000)
    for _ in range(2):
        for left, right in zip(kept, alone, strict=True):
            assert (left.at == right.at).all()
            assert (left.name, left.weight, left.keys) == (right.name, right.weight, right.keys)


def test_typed_arrays_of_several_lengths_are_the_same_with_and_without(tmp_path: pathlib.Path) -> None:
    points = [Point(np.full(number % 5, number, np.float32), "n", 0.5) for number in range(300)]
    shoal.write_samples(points, tmp_path / "ragged" / "x.tar")
    dataset = shoal.Dataset[Point](str(tmp_path / "ragged" / "x.tar"))
    kept = DataLoader(dataset, batch_size=32, shuffle=True, seed=3)
    alone = DataLoader(dataset, batch_size=32, shuffle=True, seed=3, num_workers=0, memory_budget=1000)
    for left, right in zip(kept, alone, strict=True):
        assert [array.tolist() for array in left.at] == [array.tolist() for array in right.at]


def test_a_value_that_cannot_be_decoded_is_named(tmp_path: pathlib.Path) -> None:
    with shoal.ShardWriter(str(tmp_path / "bad" / "x-%03d.tar")) as writer:
        for number in range(10):
            writer.write({"__key__": f"k{number}", "json": b"{}" if number != 4 else b"{"})
    with pytest.raises(ShoalError) as caught:
        list(DataLoader(shoal.Dataset(str(tmp_path / "bad")), batch_size=5, shuffle=True))
    assert caught.value.key == "k4"
