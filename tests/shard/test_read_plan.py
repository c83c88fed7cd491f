"""Read plans: every requested byte, in as few ranges as gap and size limits allow, at the cost that was estimated."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.shard.samples import Opened, reads

import shoal
from shoal.shard import ShardSource
from shoal.shard._extents import Extents
from shoal.shard._read import fetch
from shoal.shard._read_plan import (
    LOCAL_GAP_BYTES,
    REMOTE_GAP_BYTES,
    ReadPlan,
    estimate,
    join_ranges,
    plan_reads,
    prefetch_ranges,
)


@functools.cache
def some_extents() -> Extents:
    """Those of a shard; tests put other places into them."""
    with shoal.ShardWriter("memory://read-plan/x.tar") as writer:
        for number in range(2):
            writer.write({"__key__": f"k{number}", "bin": b"x"})
    source = shoal.Dataset("memory://read-plan").source
    assert isinstance(source, ShardSource)
    return source.extents(np.array([1, 0]))


@st.composite
def extents(draw, most_fields=4, interleaved=True):
    """Members that do not overlap, in the order of rows or in any; some are missing or empty. Rows in any order."""
    count, fields = draw(st.integers(1, 12)), draw(st.integers(1, most_fields))
    cells = list(itertools.product(range(count), range(fields)))
    if interleaved and draw(st.booleans()):
        cells = draw(st.permutations(cells))
    starts, stops = np.full((fields, count), -1), np.full((fields, count), -1)
    at = draw(st.integers(512, 5000))
    for row, field in cells:
        if draw(st.integers(0, 9)):
            starts[field, row] = at
            at += draw(st.integers(0, 3000))
            stops[field, row] = at
            at += draw(st.integers(0, 3000) | st.integers(4000, 20_000))
    numbers = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), np.int64)
    if draw(st.booleans()):
        numbers[:] = 0
    shards = {number: some_extents().first_shard for number in sorted(set(numbers.tolist()))}
    shards = shards if len(shards) > 1 else {0: some_extents().first_shard}
    sparse = tuple((starts < 0).any(axis=1).tolist())
    names = tuple(f"f{number}" for number in range(fields))
    which, rows = numbers if len(shards) > 1 else None, np.arange(count)
    keys = some_extents().row_keys.take(np.zeros(count, np.int64))
    found = Extents(tuple(shards), which, rows, names, starts, stops, None, sparse, keys, True, shards)
    return found.take(np.array(draw(st.lists(st.integers(0, count - 1), max_size=30)), np.int64))


@dataclass
class Unit:
    """What is planned as one: a row, or a member."""

    shard: int
    range: int
    start: int
    stop: int
    wanted: int
    members: int


def shard_of(extents: Extents, row: int) -> int:
    return 0 if extents.shard_numbers is None else int(extents.shard_numbers[row])


def members_of(extents: Extents, plan: ReadPlan) -> list[Unit]:
    """Every member that is not empty, and its range."""
    ranges = np.broadcast_to(plan.ranges, extents.starts.shape)
    return [
        Unit(shard_of(extents, row), int(ranges[field, row]), start, stop, stop - start, 1)
        for field, (low, high) in enumerate(zip(extents.starts.tolist(), extents.stops.tolist(), strict=True))
        for row, (start, stop) in enumerate(zip(low, high, strict=True))
        if stop > start
    ]


def units_of(extents: Extents, plan: ReadPlan) -> list[Unit]:
    """The rows that are planned as one, or else members."""
    if plan.ranges.ndim == 2:
        return members_of(extents, plan)
    units = []
    for row in range(len(extents)):
        there = extents.starts[:, row] >= 0
        starts, stops = extents.starts[there, row], extents.stops[there, row]
        if len(starts) and stops.max() > starts.min():
            low, high = int(starts.min()), int(stops.max())
            units.append(
                Unit(shard_of(extents, row), int(plan.ranges[row]), low, high, int((stops - starts).sum()), len(starts))
            )
    return units


LIMITS = {"gap": st.integers(-1, 5000), "most": st.integers(1, 20_000)}


@settings(max_examples=150)
@given(extents(), LIMITS["gap"], LIMITS["most"])
def test_each_member_is_in_its_range(extents, gap, most):
    plan = plan_reads(extents, max_gap=gap, max_bytes=most)
    for member in members_of(extents, plan):
        assert plan.shards[member.range] == member.shard
        assert plan.starts[member.range] <= member.start < member.stop <= plan.stops[member.range]
    assert plan.size == (plan.stops - plan.starts).sum()


@settings(max_examples=150)
@given(extents(), LIMITS["gap"], LIMITS["most"])
def test_nothing_outside_is_read_and_ranges_are_in_order(extents, gap, most):
    plan = plan_reads(extents, max_gap=gap, max_bytes=most)
    units = units_of(extents, plan)
    assert sorted({unit.range for unit in units}) == list(range(len(plan.starts)))
    for number, start, stop in zip(range(len(plan.starts)), plan.starts.tolist(), plan.stops.tolist(), strict=True):
        own = [unit for unit in units if unit.range == number]
        assert (start, stop) == (min(unit.start for unit in own), max(unit.stop for unit in own))
    order = list(zip(plan.shards.tolist(), plan.starts.tolist(), strict=True))
    assert order == sorted(order)


@settings(max_examples=150)
@given(extents(interleaved=False), st.integers(0, 5000), LIMITS["most"])
def test_ranges_do_not_overlap(extents, gap, most):
    plan = plan_reads(extents, max_gap=gap, max_bytes=most)
    ranges = zip(plan.shards.tolist(), plan.starts.tolist(), plan.stops.tolist(), strict=True)
    for (shard, _, stop), (other, start, _) in itertools.pairwise(ranges):
        assert shard < other or stop <= start


@settings(max_examples=150)
@given(extents(), st.integers(0, 5000), LIMITS["most"])
def test_joining_keeps_to_the_gap_and_the_most(extents, gap, most):
    """Between rows at most the gap is bridged; between the fields of one row at most 4 KiB for each field."""
    plan = plan_reads(extents, max_gap=gap, max_bytes=most)
    units = units_of(extents, plan)
    for number, (start, stop) in enumerate(zip(plan.starts.tolist(), plan.stops.tolist(), strict=True)):
        own = sorted((unit for unit in units if unit.range == number), key=lambda unit: unit.start)
        assert stop - start <= most + max(unit.stop - unit.start for unit in own)
        reached = itertools.accumulate((unit.stop for unit in own), max)
        assert all(unit.start - before <= gap for before, unit in zip(reached, own[1:], strict=False))
        assert all(unit.stop - unit.start - unit.wanted <= LOCAL_GAP_BYTES * unit.members for unit in own)


@settings(max_examples=150)
@given(extents(most_fields=1), st.integers(0, 5000))
def test_all_that_the_gap_allows_is_joined(extents, gap):
    plan = plan_reads(extents, max_gap=gap, max_bytes=1 << 40)
    same = plan.shards[1:] == plan.shards[:-1]
    assert (plan.starts[1:] - plan.stops[:-1] > gap)[same].all()


@settings(max_examples=150)
@given(extents())
def test_with_a_negative_gap_each_row_is_planned_by_itself(extents):
    def ranges(plan):
        return zip(plan.shards.tolist(), plan.starts.tolist(), plan.stops.tolist(), strict=True)

    plan = plan_reads(extents, max_gap=-1)
    alone = [plan_reads(extents.take(np.array([row])), max_gap=-1) for row in range(len(extents))]
    assert sorted(ranges(plan)) == sorted(one for each in alone for one in ranges(each))


def at(offsets, sizes):
    offsets, sizes = np.array([offsets]), np.array([sizes])
    rows = np.arange(offsets.shape[1])
    return replace(some_extents(), rows=rows, starts=offsets, stops=offsets + sizes)


@pytest.mark.parametrize("most", [1000, 4096])
def test_a_long_run_is_cut_into_ranges_of_about_the_most(most):
    plan = plan_reads(at(512 + 1024 * np.arange(200), np.full(200, 100)), max_gap=4096, max_bytes=most)
    assert (plan.stops - plan.starts).max() <= most
    assert len(plan.starts) <= 2 * -(-(200 * 1024) // most) + 1


def test_a_member_larger_than_the_most_is_read_whole():
    plan = plan_reads(at([512, 5000], [4000, 10]), max_gap=4096, max_bytes=100)
    assert plan.starts.tolist() == [512, 5000]
    assert plan.stops.tolist() == [4512, 5010]


# ---------------------------------------------------------------------------------------------------------------- cost


@settings(max_examples=150)
@given(reads(), st.booleans())
def test_the_store_serves_what_was_estimated(read, scatters):
    with Opened(read.dataset, scatters=scatters) as opened:
        expected = opened.source().estimate(read.rows, read.fields)
        assert expected.wanted == sum(len(value) for row in read.expected for value in row.values())
        for way in (ShardSource.read, ShardSource.columns):
            source = opened.source()  # a new one, which holds no blocks
            opened.store.ranges.clear()
            way(source, read.rows, read.fields)
            assert (len(opened.store.ranges), opened.store.bytes_read) == (expected.requests, expected.bytes)


@settings(max_examples=100)
@given(reads(), st.integers(-1, 8192), st.integers(1, 1 << 16))
def test_a_plan_of_any_limits_costs_what_it_says(read, gap, most):
    with Opened(read.dataset) as opened:
        extents = opened.source().extents(read.rows, read.fields)
        plan = plan_reads(extents, max_gap=gap, max_bytes=most)
        expected = estimate(plan, extents)
        opened.store.ranges.clear()
        fetch(extents, plan)
        found = len(opened.store.ranges), opened.store.bytes_read
        assert found == (expected.requests, expected.bytes)
        if read.dataset.compression is None:
            assert found == (len(plan.starts), plan.size)


# ------------------------------------------------------------------------------------------------------------ prefetch


@pytest.fixture(scope="module", params=[None, "zstd"])
def source(request):
    root = f"memory://ranges/{request.param}"
    with shoal.ShardWriter(f"{root}/a-%06d.tar", compression=request.param) as writer:
        for number in range(400):
            body = np.random.default_rng(number).bytes(1 + 37 * number)
            writer.write({"__key__": f"k{number}", "bin": body, "cls": number} | ({"txt": "x"} if number % 3 else {}))
    return shoal.Dataset(root).source


@given(st.data())
def test_every_wanted_member_is_in_one_prefetched_range(source, data):
    rows = np.array(data.draw(st.lists(st.integers(0, 399), min_size=1, max_size=40)))
    fields = data.draw(st.sampled_from([None, ["bin"], ["cls"], ["cls", "txt"], ["txt"]]))
    extents = source.extents(rows, fields)
    ranges = prefetch_ranges(extents)
    assert ranges == sorted(ranges)
    assert all(b[0] - a[1] > REMOTE_GAP_BYTES for a, b in itertools.pairwise(ranges))
    there = extents.stops > extents.starts
    stored = source.shard(0).stored_ranges(extents.starts[there], extents.stops[there])
    for start, stop in zip(*(edges.tolist() for edges in stored), strict=True):
        assert any(low <= start and stop <= high for low, high in ranges)


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 18)), max_size=20))
def test_ranges_that_follow_each_other_are_joined(steps):
    at, ranges = 0, []
    for gap, size in steps:
        ranges.append((at + gap, at + gap + size))
        at += gap + size
    joined = join_ranges(ranges)
    assert all(b[0] - a[1] > REMOTE_GAP_BYTES for a, b in itertools.pairwise(joined))
    assert all(any(low <= start and stop <= high for low, high in joined) for start, stop in ranges)
