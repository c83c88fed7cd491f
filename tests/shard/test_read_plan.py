"""Read plans: every requested byte once, in as few ranges as gap and size limits allow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.shard._read_plan import REMOTE_GAP_BYTES, plan_reads, row_ranges, span_parts, span_ranges


@st.composite
def members(draw):
    """Members as they lie in a tar (none overlaps another), some missing, asked for in any order and more than once."""
    at, extents = draw(st.integers(1, 5000)), []
    for _ in range(draw(st.integers(0, 20))):
        size = draw(st.integers(0, 3000))
        extents.append((at, size))
        at += size + draw(st.integers(0, 3000))
    chosen = draw(st.lists(st.sampled_from([(0, 0), *extents]), max_size=40))
    return np.array([a for a, _ in chosen], np.int64), np.array([s for _, s in chosen], np.int64)


LIMITS = {"gap": st.integers(0, 4096), "most": st.integers(1, 20_000)}


@given(members(), LIMITS["gap"], LIMITS["most"])
def test_each_member_is_where_the_plan_says(wanted, gap, most):
    offsets, sizes = wanted
    plan = plan_reads(offsets, sizes, gap=gap, most=most)
    archive = np.random.default_rng(0).integers(0, 256, int((offsets + sizes).max(initial=0)), np.uint8)
    buffers = [archive[a:b] for a, b in zip(plan.starts.tolist(), plan.stops.tolist(), strict=True)]
    assert len(plan.places) == len(plan.within) == len(offsets)
    for offset, size, place, within in zip(
        offsets.tolist(), sizes.tolist(), plan.places.tolist(), plan.within.tolist(), strict=True
    ):
        if offset == 0:
            assert within < 0
        else:
            assert buffers[place][within : within + size].tolist() == archive[offset : offset + size].tolist()
            assert within + size <= len(buffers[place])


@given(members(), LIMITS["gap"], LIMITS["most"])
def test_nothing_outside_is_read_and_ranges_neither_overlap_nor_go_back(wanted, gap, most):
    offsets, sizes = wanted
    plan = plan_reads(offsets, sizes, gap=gap, most=most)
    present = offsets > 0
    if not present.any():
        assert len(plan.starts) == plan.bytes_read == 0
        return
    assert plan.starts[0] == offsets[present].min()
    assert plan.stops[-1] == (offsets + sizes)[present].max()
    assert (plan.starts <= plan.stops).all()
    assert (plan.starts[1:] >= plan.stops[:-1]).all()
    assert plan.bytes_read == (plan.stops - plan.starts).sum()


@given(members(), LIMITS["gap"], LIMITS["most"])
def test_joining_keeps_to_the_gap_and_the_most(wanted, gap, most):
    offsets, sizes = wanted
    plan = plan_reads(offsets, sizes, gap=gap, most=most)
    for number, (start, stop) in enumerate(zip(plan.starts.tolist(), plan.stops.tolist(), strict=True)):
        inside = (plan.places == number) & (offsets > 0)
        assert stop - start <= max(most, int(sizes[inside].max()))
        order = np.argsort(offsets[inside], kind="stable")
        begin, end = offsets[inside][order], (offsets + sizes)[inside][order]
        assert (begin[1:] - np.maximum.accumulate(end)[:-1] <= gap).all()


@given(members(), LIMITS["gap"])
def test_all_that_the_gap_allows_is_joined(wanted, gap):
    plan = plan_reads(*wanted, gap=gap)
    assert (plan.starts[1:] - plan.stops[:-1] > gap).all()


@pytest.mark.parametrize("most", [1000, 4096])
def test_a_long_run_is_cut_into_ranges_of_about_the_most(most):
    offsets = 512 + 1024 * np.arange(200)
    plan = plan_reads(offsets, np.full(200, 100), gap=4096, most=most)
    assert (plan.stops - plan.starts).max() <= most
    assert len(plan.starts) <= 2 * -(-(200 * 1024) // most) + 1


def test_a_member_larger_than_the_most_is_read_whole():
    plan = plan_reads(np.array([512, 5000]), np.array([4000, 10]), gap=4096, most=100)
    assert plan.starts.tolist() == [512, 5000]
    assert plan.stops.tolist() == [4512, 5010]


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
