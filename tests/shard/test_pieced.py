"""Samples out of pieces as they come: the same as out of whole blocks, wherever the pieces were cut."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.shard._prefetch import PiecedBlocks
from shoal.store import ObjectInfo, ObjectReader, StreamingReader, store_for


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
    spans, blocks = shard.spans(), PiecedBlocks(shard)
    assert len(spans) > 2
    for span in spans:
        assert blocks.read(pulled, *span) == shard.read_span(*span)


def test_what_is_no_block_or_is_damaged_is_left_to_others(shard):
    reader = Cut(store_for(shard.url).open(shard.url), [5000])
    size = reader.info.size
    first, last = shard.spans()[0]
    assert PiecedBlocks(shard).read(StreamingReader(reader, [(0, size)]), first, last - 1) is None
    assert PiecedBlocks(shard).read(StreamingReader(reader, [(5000, size)]), first, last) is None
    held = bytearray(reader.read(0, size))
    held[700] ^= 1
    assert PiecedBlocks(shard).read(StreamingReader(reader, (), (0, [bytes(held)])), first, last) is None
    held[700] ^= 1
    rows = PiecedBlocks(shard).read(StreamingReader(reader, (), (0, [bytes(held)])), first, last)
    assert rows == shard.read_span(first, last)
