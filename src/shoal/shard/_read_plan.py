"""Read plans: the byte ranges that a read of some samples and fields needs, after coalescing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal._typing import IntArray
from shoal.store._options import options_for
from shoal.store._ranges import merge_ranges, plan_ranges

from ._extents import Extents

__all__ = [
    "LOCAL_GAP_BYTES",
    "MAX_READ_BYTES",
    "ONE_RANGE",
    "Ranges",
    "ReadCost",
    "ReadPlan",
    "estimate",
    "is_run",
    "join_ranges",
    "plan_members",
    "plan_reads",
    "prefetch_ranges",
    "whole_blocks",
]

Ranges = list[tuple[int, int]]
REMOTE_GAP_BYTES = 128 << 10
"""Bytes between two wanted ranges that cost less to fetch than another request does."""
LOCAL_GAP_BYTES = 4096
"""Two members with less between them are read in one go: a header and padding always, another small field sometimes."""
MAX_READ_BYTES = 2 << 20
"""Of one read of neighbours: it should still be in the processor's cache when members are cut out."""
ONE_RANGE = np.zeros(1, np.int64)
_NO_LIMIT = 1 << 62
_FAR = np.int64(1 << 42)
_SHARD_BITS = 43
"""A shard's number and an offset in it are one number for sorting: 8 TiB a shard, a million shards a batch."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The ranges to read for some rows, and the range that each value is in."""

    shards: IntArray
    """For each range, the number of its shard."""
    starts: IntArray
    stops: IntArray
    ranges: IntArray
    """For each row, or for each field and row, the range that it is in; `ONE_RANGE` if there is only one."""
    blocks: range | None = None
    """The blocks that the ranges are, if they are whole blocks of one shard."""
    has_empty: bool = False
    """Whether some members are in no range, because they are empty."""

    @property
    def size(self) -> int:
        """The bytes in all ranges."""
        return int((self.stops - self.starts).sum())


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Requests, and the bytes in them; ``wanted`` are the bytes of the fields alone."""

    requests: int = 0
    bytes: int = 0
    wanted: int = 0

    def __add__(self, other: ReadCost) -> ReadCost:
        return ReadCost(self.requests + other.requests, self.bytes + other.bytes, self.wanted + other.wanted)


def plan_reads(extents: Extents, *, max_gap: int = LOCAL_GAP_BYTES, max_bytes: int = MAX_READ_BYTES) -> ReadPlan:
    """Plan the reads of some rows: members are read together if at most ``max_gap`` bytes lie between them.

    Ranges do not grow over ``max_bytes`` by more than their last row that way. A negative ``max_gap`` reads each row by
    itself. Where the fields of a row are far from each other, each is planned by itself. Rows may be in any order and
    repeat.
    """
    if (blocks := whole_blocks(extents)) is not None:
        return _plan_blocks(extents, blocks)
    starts, stops = extents.starts, extents.stops
    if isinstance(extents.rows, slice) and max_gap >= 0 and not any(extents.sparse) and starts.size:
        first, last = int(starts.min()), int(stops.max())
        if last - first <= min(max_bytes, int((stops - starts).sum()) + min(max_gap, LOCAL_GAP_BYTES) * starts.size):
            return ReadPlan(ONE_RANGE, np.array([first]), np.array([last]), ONE_RANGE)
    if any(extents.sparse):
        low = np.where(starts < 0, _FAR, starts).min(axis=0, initial=_FAR)
    else:
        low = starts.min(axis=0, initial=_FAR)
    high = stops.max(axis=0, initial=0)
    present = (starts >= 0).sum(axis=0) if any(extents.sparse) else len(starts)
    near = high - low <= (stops - starts).sum(axis=0) + LOCAL_GAP_BYTES * present
    if len(starts) == 1 or bool(near.all()):
        return plan_members(extents.shard_numbers, low, high, max_gap, max_bytes)
    if max_gap < 0:  # a row with its fields near each other is one range, whatever the other rows are
        starts, stops = np.where(near, 0, starts), np.where(near, 0, stops)
        starts[0, near], stops[0, near] = low[near], high[near]
    numbers = None if extents.shard_numbers is None else np.tile(extents.shard_numbers, len(starts))
    plan = plan_members(numbers, starts.ravel(), stops.ravel(), max_gap, max_bytes)
    ranges = plan.ranges.reshape(starts.shape)
    if max_gap < 0:
        ranges[:, near] = ranges[0, near]
    return ReadPlan(plan.shards, plan.starts, plan.stops, ranges, None, plan.has_empty)


def whole_blocks(extents: Extents) -> range | None:
    """Return the blocks that these rows are, if they are whole blocks of one shard with all their fields."""
    rows = extents.rows
    if not isinstance(rows, slice) or not extents.is_complete:
        return None
    blocks = extents.first_shard.blocks
    if blocks is None:
        return None
    edges = blocks.rows
    first = int(edges.searchsorted(rows.start))
    if first + 1 < len(edges) and edges.item(first) == rows.start and edges.item(first + 1) == rows.stop:
        return range(first, first + 1)
    last = int(edges.searchsorted(rows.stop))
    if first >= last or edges[first] != rows.start or edges[last] != rows.stop:
        return None
    return range(first, last)


def _plan_blocks(extents: Extents, blocks: range) -> ReadPlan:
    known = extents.first_shard.blocks
    assert known is not None  # noqa: S101 - these rows are blocks of it
    starts, stops = known.offsets[blocks.start : blocks.stop], known.offsets[blocks.start + 1 : blocks.stop + 1]
    if len(blocks) == 1:
        return ReadPlan(ONE_RANGE, starts, stops, ONE_RANGE, blocks)
    counts = np.diff(known.rows[blocks.start : blocks.stop + 1])
    return ReadPlan(np.zeros(len(blocks), np.int64), starts, stops, np.repeat(np.arange(len(blocks)), counts), blocks)


def plan_members(numbers: IntArray | None, low: IntArray, high: IntArray, max_gap: int, max_bytes: int) -> ReadPlan:
    """Plan the reads of rows or members from ``low`` to ``high`` in these shards; empty ones are in range 0."""
    count = len(low)
    wanted = None if bool((high > low).all()) else (high > low).nonzero()[0]
    if numbers is not None:
        low, high = low + (numbers << _SHARD_BITS), high + (numbers << _SHARD_BITS)
    if wanted is not None:
        low, high = low[wanted], high[wanted]
    order = None
    if len(low) > 1 and not bool((low[1:] >= low[:-1]).all()):
        order = low.argsort(kind="stable")
        low, high = low[order], high[order]
    starts, stops, found = merge_ranges(low, high, max_gap, max_bytes)
    if order is not None or wanted is not None:
        ranges = np.zeros(count, np.int64)
        at = order if wanted is None else wanted if order is None else wanted[order]
        ranges[at] = found
    else:
        ranges = found
    has_empty = wanted is not None
    if numbers is None:
        return ReadPlan(np.zeros(len(starts), np.int64), starts, stops, ranges, None, has_empty)
    shards = starts >> _SHARD_BITS
    bases = shards << _SHARD_BITS
    return ReadPlan(shards, starts - bases, stops - bases, ranges, None, has_empty)


def prefetch_ranges(extents: Extents) -> Ranges:
    """Return the ranges of the object to request for rows of one shard that are prefetched together.

    Ranges are joined if requesting the bytes between them costs less than another request.
    """
    plan = plan_reads(extents, max_gap=REMOTE_GAP_BYTES, max_bytes=_NO_LIMIT)
    starts, stops = extents.first_shard.stored_ranges(plan.starts, plan.stops)
    return join_ranges(list(zip(starts.tolist(), stops.tolist(), strict=True)))


def join_ranges(ranges: Ranges) -> Ranges:
    """Join ranges that follow each other if at most 128 KiB lie between two."""
    starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
    starts, stops, _ = merge_ranges(starts, stops, REMOTE_GAP_BYTES)
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def estimate(plan: ReadPlan, extents: Extents) -> ReadCost:
    """Return what a plan asks of the store. Of a compressed shard, each block that is touched counts once.

    Object stores join ranges of one object into fewer requests.
    """
    wanted = int((extents.stops - extents.starts).sum())
    requests = size = 0
    for number, shard in extents.shards.items():
        own = slice(None) if extents.shard_numbers is None else plan.shards == number
        starts, stops = (edges.tolist() for edges in shard.stored_ranges(plan.starts[own], plan.stops[own]))
        if shard.far is not None and shard.index.facts.compression is None:
            joined = plan_ranges(starts, stops, most=options_for(shard.url).part_size)
            starts, stops = joined.starts, joined.stops
        requests, size = requests + len(starts), size + sum(stops) - sum(starts)
    return ReadCost(requests, size, wanted)


def is_run(rows: IntArray) -> bool:
    """Whether these are neighbours, each right behind the one before it.

    Examples:
        >>> is_run(np.array([4, 5, 6])), is_run(np.array([4, 6, 5]))
        (True, False)
    """
    return len(rows) > 1 and int(rows[-1] - rows[0]) == len(rows) - 1 and bool((rows[1:] - rows[:-1] == 1).all())
