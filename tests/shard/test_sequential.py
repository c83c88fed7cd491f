"""Shards in order: samples cut from streamed pieces equal those of complete blocks; slow connections are noticed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.errors import ChecksumError
from shoal.shard._extents import shard_extents
from shoal.shard._read import read_samples
from shoal.shard._sequential import _pieced_samples, _read_samples, _ReadAhead
from shoal.store import ObjectInfo, ObjectReader, StreamingReader, store_for


def read_ahead(requests):
    """What reads ahead after requests of these bytes and seconds."""
    shoal.write_samples([{"txt": "x"}], "memory://ahead", overwrite=True)
    ahead = _ReadAhead(shoal.Dataset("memory://ahead").source, None, _read_samples)
    for size, seconds in requests:
        ahead._note(size, seconds)
    return ahead


def test_slow_connections_are_noticed_after_some_requests_and_stay_slow():
    slow = [(32 << 20, 0.5)] * 6  # 67 MB/s
    assert not read_ahead(slow[:5])._is_slow  # too few to say anything
    assert read_ahead(slow)._is_slow
    assert read_ahead([*slow, *[(8 << 20, 0.02)] * 9])._is_slow


def test_one_slow_request_among_others_is_not_a_slow_connection():
    assert not read_ahead([(32 << 20, 1.0 if number % 6 == 0 else 0.2) for number in range(30)])._is_slow


@dataclass
class Cut:
    """An object that comes in pieces that end at these places."""

    reader: ObjectReader
    ends: list[int]

    @property
    def info(self) -> ObjectInfo:
        return self.reader.info

    def read(self, start, stop):
        return self.reader.read(start, stop)

    def read_many(self, starts, stops):
        return self.reader.read_many(starts, stops)

    def stream(self, start, stop):
        edges = sorted({start, stop, *(end for end in self.ends if start < end < stop)})
        for low, high in itertools.pairwise(edges):
            yield self.reader.read(low, high)

    def close(self):
        self.reader.close()


@pytest.fixture(scope="module")
def shard():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shoal.shard._shard_file.BLOCK_BYTES", 30_000)
        patched.setattr("shoal.shard._shard_file._GATHERED_BYTES", 30_000)
        with shoal.ShardWriter("memory://pieced/a-%06d.tar") as writer:
            for number in range(60):
                body = np.random.default_rng(number).bytes(37 * number)
                some = {"txt": "x" * number} if number % 3 else {}
                writer.write({"__key__": f"k{number}", "bin": body, **some, "end": b""})
    return shoal.Dataset("memory://pieced").source.shard(0)


@given(st.lists(st.integers(1, 99_000), max_size=40), st.booleans())
def test_they_are_those_of_whole_blocks(shard, ends, at_blocks):
    ends += shard.index.blocks.offsets.tolist() if at_blocks else []
    reader = Cut(store_for(shard.url).open(shard.url), ends)
    pulled = StreamingReader(reader, [(0, reader.info.size)])
    spans = shard.spans()
    assert len(spans) > 2
    for span in spans:
        extents = shard_extents(shard, slice(*span))
        assert _pieced_samples(shard, pulled, extents) == read_samples(extents)


def test_what_is_no_block_is_left_to_others_and_damage_is_found(shard):
    reader = Cut(store_for(shard.url).open(shard.url), [5000])
    size = reader.info.size
    first, last = shard.spans()[0]
    extents = shard_extents(shard, slice(first, last))

    def pieced(held, extents=extents, ranges=()):
        return _pieced_samples(shard, StreamingReader(reader, ranges, (0, held)), extents)

    assert pieced([], shard_extents(shard, slice(first, last - 1)), [(0, size)]) is None
    assert pieced([], extents, [(5000, size)]) is None
    held = bytearray(reader.read(0, size))
    held[700] ^= 1
    with pytest.raises(ChecksumError):
        pieced([bytes(held)])
    held[700] ^= 1
    assert pieced([bytes(held)]) == read_samples(extents)
