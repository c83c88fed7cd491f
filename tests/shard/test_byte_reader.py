"""Members are read in parts, each to its place; ranges and scattered reads give the same bytes."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import shoal
from shoal.errors import ChecksumError, StoreError, TruncatedError
from shoal.shard import ScatterSpec, ShardSource, _read
from shoal.shard._byte_reader import PlainBytes
from shoal.shard._read import read_scattered
from shoal.store import MemoryStore, ScatterReader, store_for

SIZES = [40, 43, 61, 40, 52, 700, 40, 5000, 41]


def source_of(url):
    source = shoal.Dataset(url, decode=False).source
    assert isinstance(source, ShardSource)
    return source


@pytest.fixture(params=["plain", "gzip", "memory"])
def source(request, tmp_path):
    url = f"memory://{tmp_path.name}/a.tar" if request.param == "memory" else str(tmp_path / "a.tar")
    rng = np.random.default_rng(1)
    with shoal.ShardWriter(url, compression="gzip" if request.param == "gzip" else None) as writer:
        for size in SIZES:
            writer.write({"bin": rng.bytes(size)})
    source = source_of(url)
    yield source
    source.close()


def put_together(kept: bytes, cuts: ScatterSpec, rows: list[bytes], size: int) -> bytes:
    gaps, at, whole = list(cuts.gaps), 0, b""
    gaps[cuts.varying] += size - cuts.size
    for number, gap in enumerate(gaps):
        whole += kept[at : at + gap] + (rows[number] if number < len(rows) else b"")
        at += gap
    return whole


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "cuts",
    [
        ScatterSpec((5, 10), (25,), 1),
        ScatterSpec((5, 10), (25,), 0),
        ScatterSpec((3, 0, 7), (20, 10), 1),
        ScatterSpec((0, 0), (40,), 1),
    ],
)
def test_the_pieces_put_together_are_the_members(source, monkeypatch, cuts, threads):
    monkeypatch.setattr(_read, "_MIN_THREAD_READ_BYTES", 1)
    for rows in (np.arange(len(SIZES)), np.array([7, 2, 2, 8, 0])):
        outs = [bytearray(len(rows) * size) for size in cuts.taken]
        extents = source.extents(rows, ["bin"])
        found = read_scattered(extents, cuts, [memoryview(out) for out in outs], threads)
        assert found is not None
        for at, row in enumerate(rows.tolist()):
            taken = [bytes(out[at * size : (at + 1) * size]) for out, size in zip(outs, cuts.taken, strict=True)]
            expected = source.read(np.array([row]))[0]["bin"]
            assert put_together(found[at], cuts, taken, SIZES[row]) == expected
        assert extents.keys() == [f"{row:09d}" for row in rows]


def test_members_too_small_for_the_cuts_are_not_cut(source):
    out = memoryview(bytearray(41 * len(SIZES)))
    assert read_scattered(source.extents(np.arange(len(SIZES)), ["bin"]), ScatterSpec((0, 0), (41,), 1), [out]) is None


def test_samples_that_lack_the_field_are_not_cut(tmp_path):
    with shoal.ShardWriter(str(tmp_path / "a-%06d.tar"), max_samples=2) as writer:
        for number in range(4):
            writer.write({"txt": "x", **({"bin": bytes(30)} if number != 2 else {})})
    source, out = source_of(tmp_path), memoryview(bytearray(4 * 20))
    cuts = ScatterSpec((4, 6), (20,), 1)
    assert read_scattered(source.extents(np.array([0, 2]), ["bin"]), cuts, [out]) is None
    assert read_scattered(source.extents(np.array([2, 3]), ["bin"]), cuts, [out]) is None
    assert read_scattered(source.extents(np.array([0, 3]), ["bin"]), cuts, [out]) == [bytes(10)] * 2


def test_samples_of_several_shards_keep_their_order(tmp_path):
    with shoal.ShardWriter(str(tmp_path / "a-%06d.tar"), max_samples=4) as writer:
        for number in range(10):
            writer.write({"bin": bytes([number]) * 30})
    rows, out = np.array([9, 0, 5, 4, 3, 8]), bytearray(6 * 20)
    extents = source_of(tmp_path).extents(rows, ["bin"])
    found = read_scattered(extents, ScatterSpec((4, 6), (20,), 1), [memoryview(out)])
    assert bytes(out) == b"".join(bytes([row]) * 20 for row in rows)
    assert found == [bytes([row]) * 10 for row in rows]
    assert [extents.url(at)[-5] for at in range(6)] == ["2", "0", "1", "1", "0", "2"]


def test_damage_is_named(tmp_path):
    with shoal.ShardWriter(str(tmp_path / "a.tar")) as writer:
        for number in range(4):
            writer.write({"bin": bytes([number]) * 600})
    data = bytearray((tmp_path / "a.tar").read_bytes())
    at = data.find(bytes([2]) * 600)
    data[at + 300] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    out = memoryview(bytearray(4 * 500))
    extents = source_of(tmp_path / "a.tar").extents(np.array([3, 2, 0]), ["bin"])
    with pytest.raises(ChecksumError) as caught:
        read_scattered(extents, ScatterSpec((50, 50), (500,), 1), [out])
    assert (caught.value.key, caught.value.field, caught.value.offset) == ("000000002", "bin", at)


@given(st.binary(max_size=300), st.lists(st.integers(0, 60), max_size=12), st.integers(0, 320))
def test_reading_into_parts_is_reading(data, lengths, start):
    store = MemoryStore()
    store.write_all("memory://x", data)
    tar, size = PlainBytes(store.open("memory://x")), sum(lengths)
    parts = [memoryview(bytearray(length)) for length in lengths]
    if size and start + size > len(data):
        with pytest.raises(TruncatedError):
            tar.read_into(start, parts)
    else:
        tar.read_into(start, parts)
        assert b"".join(parts) == data[start : start + size]


def test_a_local_file_fills_more_parts_than_one_call_takes(tmp_path):
    data = np.random.default_rng(0).bytes(9000)
    (tmp_path / "x").write_bytes(data)
    reader = store_for(str(tmp_path / "x")).open(str(tmp_path / "x"))
    assert isinstance(reader, ScatterReader)
    parts = [memoryview(bytearray(3)) for _ in range(2500)]
    assert reader.read_into(1000, parts) == 0
    assert b"".join(parts) == data[1000:8500]
    assert reader.read_into(8000, parts) == 6500  # the file ends before
    assert b"".join(parts[:333]) == data[8000:8999]
    assert reader.read_into(8900, parts[:50]) == 50
    with pytest.raises(TruncatedError):
        PlainBytes(reader).read_into(8000, parts)
    reader.close()
    with pytest.raises(StoreError):
        reader.read_into(0, parts)
