"""plan_reads: every wanted byte once, as few ranges as the gap allows, none larger than allowed by joining."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.shard._read_plan import plan_reads


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
