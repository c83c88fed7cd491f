"""Small numbers of samples from many shards equal samples read one by one."""

from __future__ import annotations

import gc
import pathlib
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import shoal
from shoal.errors import ChecksumError, DecodeError, TruncatedError
from shoal.shard import ShardSource
from shoal.shard._index import KnownIndex
from shoal.shard._random_access import SourceExtents, few_raw, few_samples

SHARDS, EACH = 12, 40


def value(number: int) -> bytes:
    return bytes([number % 251]) * (1 + number * 97 % 9000)


def written(folder: pathlib.Path, lacking: int = -1, **options: Any) -> ShardSource:
    with shoal.ShardWriter(str(folder / "x-%03d.tar"), max_samples=EACH, **options) as writer:
        for number in range(SHARDS * EACH):
            fields = {"txt": "other"} if number == lacking else {"bin": value(number), "txt": "other"}
            writer.write({"__key__": f"k{number}", **fields})
    source = shoal.Dataset(str(folder), decode=False).source
    assert isinstance(source, ShardSource)
    return source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ShardSource:
    return written(tmp_path_factory.mktemp("few") / "data")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.integers(0, SHARDS * EACH - 1), min_size=1, max_size=60))
def test_any_rows_in_any_order(source: ShardSource, rows: list[int]) -> None:
    raw = source.raw_rows(np.array(rows, np.int64), "bin")
    ends = (raw.starts + raw.sizes).tolist()
    assert [raw.data[start:end] for start, end in zip(raw.starts.tolist(), ends, strict=True)] == list(map(value, rows))
    assert raw.keys() == [f"k{row}" for row in rows]
    assert raw.keys(np.array([len(rows) - 1])) == [f"k{rows[-1]}"]
    assert [raw.url(at) for at in range(len(rows))] == [source.shards[row // EACH].url for row in rows]
    assert source.read(np.array(rows, np.int64)) == [
        {"__key__": f"k{row}", "__url__": source.shards[row // EACH].url, "bin": value(row), "txt": b"other"}
        for row in rows
    ]


def test_it_is_how_a_shuffled_batch_is_read(source: ShardSource) -> None:
    def few(rows: list[int]) -> bool:
        flat, numbers = SourceExtents(source.starts), np.array(rows)
        raw = few_raw(flat, source.shard, source.starts, numbers, "bin")
        assert (raw is None) == (few_samples(flat, source.shard, source.starts, numbers, {}) is None)
        return raw is not None

    assert few([5, 100, 200, 7])
    assert not few([5, 6, 7])  # of one shard
    assert not few([*range(20), 100])  # neighbours
    assert not few([*range(0, 40, 2)] * 7 + [100])  # many of a shard
    assert few_raw(SourceExtents(source.starts), source.shard, source.starts, np.array([5, 100]), "none") is None


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damage_is_told_of_its_sample(tmp_path: pathlib.Path, damage: str) -> None:
    source = written(tmp_path / "data")
    offset = int(source.shard(3).index.fields["bin"].offset[17])
    tar = tmp_path / "data" / "x-003.tar"
    data = bytearray(tar.read_bytes())
    data[offset] ^= 1
    with tar.open("r+b") as file:  # the same file, which is open
        file.write(data)
        if damage == "cut":
            file.truncate(offset)
    wrong: type[Exception] = ChecksumError if damage == "flip" else TruncatedError
    rows = np.array([1, 3 * EACH + 17, 200])
    for read in (lambda: source.raw_rows(rows, "bin"), lambda: source.read(rows)):
        with pytest.raises(wrong) as caught:
            read()
        if isinstance(caught.value, ChecksumError):
            assert (caught.value.key, caught.value.field, caught.value.offset) == (f"k{3 * EACH + 17}", "bin", offset)
    assert len(source.raw_rows(np.array([1, 200]), "bin")) == len(source.read(np.array([1, 200]))) == 2


def test_a_sample_that_lacks_the_field(tmp_path: pathlib.Path) -> None:
    source = written(tmp_path / "data", lacking=50)
    assert ["bin" in sample for sample in source.read(np.array([3, 50, 200]))] == [True, False, True]
    raw = source.raw_rows(np.array([3, 50, 200]), "bin")
    assert (raw.starts < 0).tolist() == [False, True, False]
    assert raw.keys() == ["k3", "k50", "k200"]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_shards_are_read_by_their_blocks(tmp_path: pathlib.Path, compression: str) -> None:
    source = written(tmp_path / "data", compression=compression)
    rows = np.array([3, 470, 50, 200])
    assert few_raw(SourceExtents(source.starts), source.shard, source.starts, rows, "bin") is None
    assert [sample["bin"] for sample in source.read(rows)] == list(map(value, rows.tolist()))
    raw = source.raw_rows(rows, "bin")
    found = [bytes(raw.data[start : start + size]) for start, size in zip(raw.starts, raw.sizes, strict=True)]
    assert found == list(map(value, rows.tolist()))


def test_a_value_that_cannot_be_decoded_is_named(source: ShardSource) -> None:
    def decode(data: bytes) -> bytes:
        if data == value(200):
            raise DecodeError("no")
        return data[:1]

    assert [sample["bin"] for sample in source.read(np.array([1, 100]), None, {"bin": decode})] == [b"\x01", b"d"]
    with pytest.raises(DecodeError) as caught:
        source.read(np.array([1, 200, 100]), None, {"bin": decode})
    assert (caught.value.key, caught.value.shard) == ("k200", source.shards[200 // EACH].url)


def test_shards_of_other_fields_are_read_by_themselves(tmp_path: pathlib.Path) -> None:
    with shoal.ShardWriter(str(tmp_path / "x-%03d.tar"), max_samples=1) as writer:
        for number in range(6):
            writer.write({"__key__": f"k{number}", **({"a.bin": b"a"} if number % 2 else {"b.bin": b"b"})})
    source = shoal.Dataset(str(tmp_path), decode=False).source
    for _ in range(2):
        found = source.read(np.array([5, 0, 3, 4]))
        assert [sample["__key__"] for sample in found] == ["k5", "k0", "k3", "k4"]
        assert [[name for name in sample if name[0] != "_"] for sample in found] == [
            ["a.bin"],
            ["b.bin"],
            ["a.bin"],
            ["b.bin"],
        ]


def test_a_shard_written_anew_is_met_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.shard._open_shards.most_open", lambda: 1)
    source = written(tmp_path / "data")
    rows = np.array([1, 3 * EACH + 5, 200])
    source.read(rows)
    written(tmp_path / "again", lacking=3 * EACH + 5)
    for name in ("x-003.tar", ".shoal/index/x-003.tar.arrow"):
        (tmp_path / "again" / name).replace(tmp_path / "data" / name)
    assert ["bin" in sample for sample in source.read(rows)] == [True, False, True]


def test_indexes_that_were_copied_are_let_go_of(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.shard._open_shards.most_open", lambda: 1)
    monkeypatch.setattr("shoal.shard._open_shards._MAX_KNOWN_INDEXES", 1)
    source = written(tmp_path / "data")
    rows = np.arange(0, SHARDS * EACH, 7)
    assert [sample["bin"] for sample in source.read(rows)] == list(map(value, rows.tolist()))
    own = {shard.url for shard in source.shards}
    gc.collect()
    held = [one for one in gc.get_objects() if type(one) is KnownIndex and one.info.url in own]
    assert len(held) <= 2
    assert [sample["bin"] for sample in source.read(rows)] == list(map(value, rows.tolist()))


def test_a_shard_of_another_length_than_was_counted_is_read_by_itself(tmp_path: pathlib.Path) -> None:
    source = written(tmp_path / "data")
    flat, rows = SourceExtents(source.starts - np.arange(SHARDS + 1)), np.array([1, 200])  # as if each had one fewer
    assert few_samples(flat, source.shard, source.starts, rows, {}) is None
