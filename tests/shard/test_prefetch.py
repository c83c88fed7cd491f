"""Prefetching keeps to its memory budget, and samples cut from streamed ranges equal those of complete blocks."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.shard._prefetch import PiecedBlocks, Prefetcher, _ConnectionSpeed
from shoal.store import ObjectInfo, ObjectReader, StreamingReader, store_for


class Task:
    """Done at once; remembers that it was."""

    def __init__(self, name: int, size: int) -> None:
        self.name = name
        self.size = size
        self.done = threading.Event()

    def begin(self) -> None: ...

    def run(self) -> None:
        self.done.set()

    def drop(self) -> None: ...


def begun(tasks: list[Task], ahead: Prefetcher, count: int) -> bool:
    """Whether these many tasks are done, and no more are held."""
    return all(task.done.wait(20) for task in tasks[:count]) and [ahead.is_held(task.name) for task in tasks] == [
        at < count for at in range(len(tasks))
    ]


def test_the_next_begins_when_there_is_room_for_it():
    tasks = [Task(number, 30) for number in range(6)]
    ahead = Prefetcher(iter(tasks), most_bytes=100, at_once=4)
    ahead.go_on()
    assert begun(tasks, ahead, 3)
    ahead.shrink(0, 15)
    assert begun(tasks, ahead, 3)
    ahead.shrink(0, 5)
    assert begun(tasks, ahead, 4)
    assert ahead.most_held == 100
    ahead.close()


def test_what_was_used_is_not_counted_again_when_it_is_let_go_of():
    tasks = [Task(number, 30) for number in range(4)]
    ahead = Prefetcher(iter(tasks), most_bytes=60, at_once=4)
    ahead.go_on()
    assert begun(tasks, ahead, 2)
    ahead.shrink(0, 25)
    ahead.release(lambda name: name == 0)
    assert all(task.done.wait(20) for task in tasks[:3])
    assert not tasks[3].done.is_set()
    ahead.shrink(0, 30)  # which is gone
    assert not ahead.is_held(3)
    ahead.close()


def test_a_shard_is_cut_by_what_is_known_of_the_line_when_it_is_come_to():
    line = _ConnectionSpeed()
    for _ in range(5):
        line.note(32 << 20, 0.5)  # 67 MB/s
    assert (line.part_bytes(0), line.at_once) == (32 << 20, 4)  # too few to say anything
    line.note(32 << 20, 0.5)
    assert (line.part_bytes(0), line.part_bytes(1), line.at_once) == (32 << 20, 8 << 20, 10)
    for _ in range(9):
        line.note(8 << 20, 0.02)
    assert (line.part_bytes(2), line.at_once) == (8 << 20, 10)


def test_one_slow_request_among_others_is_not_a_slow_line():
    line = _ConnectionSpeed()
    for number in range(30):
        line.note(32 << 20, 1.0 if number % 6 == 0 else 0.2)
    assert (line.part_bytes(0), line.at_once) == (32 << 20, 4)


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
