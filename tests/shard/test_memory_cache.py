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


def resident_of(path: str) -> ShardMemoryCache:
    found = ShardMemoryCache.over(source_of(path), 1 << 30)
    assert found is not None
    return found


@pytest.fixture(params=[None, "gzip", "zstd"])
def folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    return written(tmp_path / "data", **({} if request.param is None else {"compression": request.param}))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.lists(st.integers(0, COUNT - 1), max_size=60), max_size=6))
def test_any_rows_in_any_order(folder: str, calls: list[list[int]]) -> None:
    resident = resident_of(folder)
    for rows in calls:
        found = resident.columns(np.array(rows, np.int64), FIELDS)
        assert found == {name: [value(row, name) for row in rows] for name in FIELDS}
        assert resident.keys(np.array(rows, np.int64)) == [f"k{row}" for row in rows]
        raw = resident.raw_rows(np.array(rows, np.int64), "b.bin")
        assert raw is not None
        cut = zip(raw.starts.tolist(), raw.sizes.tolist(), strict=True)
        assert [bytes(raw.data[start : start + size]) for start, size in cut] == [value(row, "b.bin") for row in rows]
        assert [raw.url(at) for at in range(len(rows))] == resident.urls(np.array(rows, np.int64))


def test_it_fills_a_few_blocks_a_call_and_then_reads_no_more(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "data")
    resident, counted = resident_of(path), len({*source_of(path).shards})
    monkeypatch.setattr(_memory_cache, "BLOCKS_AT_ONCE", 1)
    resident.columns(np.arange(COUNT), FIELDS)
    assert 0 < resident.full_share <= 1 / counted
    while resident.full_share < 1:
        resident.columns(np.arange(COUNT), FIELDS)
    for tar in pathlib.Path(path).glob("*.tar"):
        tar.write_bytes(b"")  # whatever is read now is missing
    assert resident.columns(np.arange(COUNT), FIELDS)["a.bin"] == [value(row, "a.bin") for row in range(COUNT)]


def test_threads_share_it(folder: str) -> None:
    resident = resident_of(folder)

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            rows = rng.integers(0, COUNT, 32)
            if resident.columns(rows, FIELDS)["a.bin"] != [value(row, "a.bin") for row in rows.tolist()]:
                return False
        return True

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
    resident = resident_of(path)
    for _ in range(3):
        with pytest.raises(ChecksumError) as caught:
            resident.columns(np.arange(20), FIELDS)
        assert (caught.value.key, caught.value.field, caught.value.offset) == ("k7", "a.bin", offset)
        sound = np.array([6, 8, 9])
        assert resident.columns(sound, FIELDS)["a.bin"] == [value(row, "a.bin") for row in sound.tolist()]


def test_a_shard_that_was_cut_short(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "data")
    resident = resident_of(path)
    for tar in pathlib.Path(path).glob("*.tar"):
        with tar.open("r+b") as file:
            file.truncate(4096)
    with pytest.raises(TruncatedError):
        resident.columns(np.arange(100, 110), FIELDS)
    with pytest.raises(TruncatedError):  # what failed is not taken to be there
        resident.columns(np.arange(100, 110), FIELDS)


@pytest.mark.parametrize("rows", [[-1], [0, COUNT]])
def test_positions_that_are_not(tmp_path: pathlib.Path, rows: list[int]) -> None:
    resident = resident_of(written(tmp_path / "data"))
    with pytest.raises(PositionError):
        resident.columns(np.array(rows), FIELDS)
    with pytest.raises(PositionError):
        resident.raw_rows(np.array(rows), "a.bin")


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
