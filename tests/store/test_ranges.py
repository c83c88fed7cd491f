"""The read plan: every wanted byte once, few requests, a bounded number of bytes nobody asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.store import plan_ranges

RANGES = st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 5_000)), max_size=30)
DATA = bytes(number * 7919 % 251 for number in range(110_000))


def split(ranges):
    return [start for start, _ in ranges], [start + size for start, size in ranges]


@given(RANGES, st.integers(0, 20_000), st.floats(0, 1), st.integers(1, 30_000))
def test_a_plan_brings_exactly_what_was_asked_for(ranges, gap, over_fetch, most):
    starts, stops = split(ranges)
    plan = plan_ranges(starts, stops, gap=gap, over_fetch=over_fetch, most=most)
    fetched = [DATA[start:stop] for start, stop in zip(plan.starts, plan.stops, strict=True)]
    found = [plan.gather(fetched, start, stop) for start, stop in zip(starts, stops, strict=True)]
    assert found == [DATA[start:stop] for start, stop in zip(starts, stops, strict=True)]


@given(RANGES, st.integers(0, 20_000), st.floats(0, 1), st.integers(1, 30_000))
def test_a_plan_fetches_no_byte_twice_and_few_in_vain(ranges, gap, over_fetch, most):
    starts, stops = split(ranges)
    plan = plan_ranges(starts, stops, gap=gap, over_fetch=over_fetch, most=most)
    wanted = {at for start, stop in zip(starts, stops, strict=True) for at in range(start, stop)}
    assert all(0 < stop - start <= most for start, stop in zip(plan.starts, plan.stops, strict=True))
    assert all(stop <= start for stop, start in zip(plan.stops, plan.starts[1:], strict=False))
    fetched = sum(plan.stops) - sum(plan.starts)
    free = min(gap, 4096) * len(ranges)
    assert len(wanted) <= fetched <= len(wanted) * (1 + over_fetch) + free


def test_near_ranges_are_one_request_and_far_ones_are_not():
    plan = plan_ranges([0, 100_000, 200_000, 9_000_000], [90_000, 190_000, 290_000, 9_000_001])
    assert list(zip(plan.starts, plan.stops, strict=True)) == [(0, 290_000), (9_000_000, 9_000_001)]


def test_what_is_wanted_out_of_much_is_not_worth_reading_all():
    starts = list(range(0, 10_000_000, 200_000))
    plan = plan_ranges(starts, [start + 1000 for start in starts])
    assert len(plan) == len(starts)
    assert sum(plan.stops) - sum(plan.starts) == 1000 * len(starts)


def test_a_tar_read_in_order_is_read_in_one_go():
    """Members lie a header and some padding apart."""
    starts = [512 + number * 2048 for number in range(1000)]
    plan = plan_ranges(starts, [start + 100 for start in starts], over_fetch=0.0)
    assert len(plan) == 1


def test_a_long_range_is_cut_into_equal_parts():
    plan = plan_ranges([0], [100 << 20], most=16 << 20)
    sizes = [stop - start for start, stop in zip(plan.starts, plan.stops, strict=True)]
    assert len(sizes) == 7
    assert max(sizes) - min(sizes) <= 1
