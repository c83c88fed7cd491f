"""Which ranges of a far shard are fetched, and how long blocks are kept: arithmetic only."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.shard._read_plan import REMOTE_GAP_BYTES, row_ranges, span_parts, span_ranges
from shoal.shard._shuffle_window import BlockRefCounts


@pytest.fixture(scope="module", params=[None, "zstd"])
def shard(request):
    root = f"memory://ranges/{request.param}"
    with shoal.ShardWriter(f"{root}/a-%06d.tar", compression=request.param) as writer:
        for number in range(400):
            body = np.random.default_rng(number).bytes(1 + 37 * number)
            writer.write({"__key__": f"k{number}", "bin": body, "cls": number} | ({"txt": "x"} if number % 3 else {}))
    return shoal.Dataset(root).source.shard(0)


def covers(ranges, start, stop):
    return any(low <= start and stop <= high for low, high in ranges)


@given(st.data())
def test_every_wanted_member_is_in_one_range(shard, data):
    rows = np.array(data.draw(st.lists(st.integers(0, 399), min_size=1, max_size=40)))
    fields = data.draw(st.sampled_from([None, ["bin"], ["cls"], ["cls", "txt"], ["txt"]]))
    index = shard.index
    ranges = row_ranges(index, rows, fields)
    assert ranges == sorted(ranges)
    assert all(b[0] - a[1] > REMOTE_GAP_BYTES for a, b in itertools.pairwise(ranges))
    stored = index.blocks.stored
    for name in fields or index.fields:
        for row in rows.tolist():
            start, size = int(index.fields[name].offset[row]), int(index.fields[name].size[row])
            if not start:
                continue
            if stored is None:
                assert covers(ranges, start, start + size)
            else:
                first = int(np.searchsorted(index.blocks.offsets, start, "right")) - 1
                assert covers(ranges, int(stored[first]), int(stored[first + 1]))


@given(st.integers(1, 1 << 22), st.sampled_from([None, ["cls"]]))
def test_parts_hold_all_spans_once_and_in_order(shard, most, fields):
    spans = shard.spans(fields)
    parts = list(span_parts(shard.index, spans, fields, most=most))
    assert [part.span for part in parts] == sorted({part.span for part in parts})
    assert parts[-1].span == len(spans) - 1
    first, left_over = 0, None
    for part in parts:
        own = [one for span in spans[first : part.span + 1] for one in span_ranges(shard.index, *span, fields)]
        size = sum(stop - start for start, stop in part.ranges)
        assert size <= most or first == part.span
        if left_over is not None:  # what the part before has of the first span, and what this one has of it
            assert own.pop(0) == (left_over, part.head)
            assert left_over < part.ranges[0][0] < part.head
        else:
            assert part.head == part.ranges[0][0]
        assert all(covers(part.ranges, *one) for one in own)
        left_over = part.tail if part.tail < part.ranges[-1][1] else None
        first = part.span + 1
    assert left_over is None


def test_parts_of_what_lies_one_behind_the_other_end_at_multiples(shard):
    largest = max(stop - start for one in shard.spans() for start, stop in span_ranges(shard.index, *one))
    parts = list(span_parts(shard.index, shard.spans(), most=largest))
    assert len(parts) > 1
    assert all(one.ranges[0][1] == other.ranges[0][0] for one, other in itertools.pairwise(parts))
    assert all(part.ranges[0][1] % largest == 0 for part in parts[:-1])


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=5), st.integers(0, 99))
def test_a_block_is_over_with_its_last_read_of_an_epoch(epochs, seed):
    """However far ahead the order is known, and whether reads come before they are known."""
    uses, told, read = BlockRefCounts(), 0, []
    line = [(epoch, block) for epoch, blocks in enumerate(epochs) for block in blocks]
    over, draw = [], random.Random(seed)
    while len(read) < len(line):
        if told < len(line) and draw.random() < 0.6:
            epoch, block = line[told]
            over += uses.expect(epoch, np.array([block]))
            told += 1
        elif len(read) < told:
            over += uses.read(np.array([line[len(read)][1]]))
            read.append(line[len(read)])
    assert all(block not in uses for block in range(6))
    assert set(over) == {block for _, block in line}


def test_reads_before_they_are_known_are_counted_when_they_are():
    uses = BlockRefCounts()
    assert uses.read(np.array([3, 3])) == set()
    assert uses.expect(0, np.array([3, 3, 3])) == set()
    assert uses.read(np.array([3])) == {3}
    assert 3 not in uses
