"""A few samples of each of many shards are the same, however they are read."""

from __future__ import annotations

import pathlib
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import shoal
from shoal.errors import ChecksumError, TruncatedError
from shoal.shard import ShardSource
from shoal.shard._few import raw_few

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


def test_it_is_how_a_shuffled_batch_is_read(source: ShardSource) -> None:
    def few(rows: list[int]) -> bool:
        return raw_few(source.shard, source.starts, np.array(rows), "bin") is not None

    assert few([5, 100, 200, 7])
    assert not few([5, 6, 7])  # of one shard
    assert not few([*range(20), 100])  # many of a shard
    assert raw_few(source.shard, source.starts, np.array([5, 100]), "none") is None


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
    with pytest.raises(wrong) as caught:
        source.raw_rows(np.array([1, 3 * EACH + 17, 200]), "bin")
    if damage == "flip":
        assert isinstance(caught.value, ChecksumError)
        assert (caught.value.key, caught.value.field, caught.value.offset) == (f"k{3 * EACH + 17}", "bin", offset)
    assert len(source.raw_rows(np.array([1, 200]), "bin")) == 2


def test_a_sample_that_lacks_the_field(tmp_path: pathlib.Path) -> None:
    raw = written(tmp_path / "data", lacking=50).raw_rows(np.array([3, 50, 200]), "bin")
    assert (raw.starts < 0).tolist() == [False, True, False]
    assert raw.keys() == ["k3", "k50", "k200"]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_shards_are_read_by_their_blocks(tmp_path: pathlib.Path, compression: str) -> None:
    source = written(tmp_path / "data", compression=compression)
    rows = np.array([3, 470, 50, 200])
    assert raw_few(source.shard, source.starts, rows, "bin") is None
    raw = source.raw_rows(rows, "bin")
    found = [bytes(raw.data[start : start + size]) for start, size in zip(raw.starts, raw.sizes, strict=True)]
    assert found == list(map(value, rows.tolist()))
