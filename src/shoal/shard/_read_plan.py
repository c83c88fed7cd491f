"""Read plans: the byte ranges that a read of some samples and fields needs, after coalescing."""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray

from ._index import Blocks, LongExtents, ShardIndex

__all__ = [
    "LOCAL_GAP_BYTES",
    "Run",
    "SpanPart",
    "is_run",
    "plan_reads",
    "row_ranges",
    "span_parts",
    "span_ranges",
    "whole_spans",
]

Ranges = list[tuple[int, int]]
REMOTE_GAP_BYTES = 128 << 10
"""Bytes between two wanted ranges that cost less to fetch than another request does."""
PART_BYTES = 32 << 20
"""Of one request: enough that its start does not count, few enough that several in flight are no burden."""
LOCAL_GAP_BYTES = 4096
"""Two members with less between them are read in one go: a header and padding always, another small field sometimes."""
MOST_BYTES = 16 << 20
_FAR = np.int64(1 << 62)


@dataclass(frozen=True, slots=True)
class SpanPart:
    """Some ranges of one object, and the last of the spans that end in them."""

    span: int
    ranges: tuple[tuple[int, int], ...]
    head: int
    """What lies before this position is the end of a span that begins in the part before."""
    tail: int
    """What lies behind this position is the beginning of a span that ends in the part that follows."""


def span_ranges(index: ShardIndex, first: int, last: int, fields: Sequence[str] | None = None) -> Ranges:
    """The ranges of the object that hold these fields of the samples ``[first, last)``; near ones are joined.

    Where all fields are wanted and the samples are whole blocks, that is one range from the first header to the last
    byte of padding.
    """
    blocks = index.blocks
    if blocks is None or not (fields is None or set(fields) >= set(index.fields)):
        return row_ranges(index, np.arange(first, last), fields)
    low, high = np.searchsorted(blocks.rows, first, "right") - 1, np.searchsorted(blocks.rows, last)
    if blocks.rows[low] == first and blocks.rows[high] == last:
        places = blocks.offsets if blocks.stored is None else blocks.stored
        return [(int(places[low]), int(places[high]))]
    return row_ranges(index, np.arange(first, last), None)


def row_ranges(
    index: ShardIndex, rows: IntArray, fields: Sequence[str] | None = None, *, gap: int = REMOTE_GAP_BYTES
) -> Ranges:
    """The ranges of the object that hold these fields of these samples: joined where at most ``gap`` lies between."""
    starts, stops = _members(index, rows, fields)
    if index.blocks is not None and index.blocks.stored is not None:
        starts, stops = _stored(index.blocks, index.blocks.stored, starts, stops)
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order]) if len(order) else stops
    if not len(starts):
        return []
    firsts = np.flatnonzero(np.concatenate(([True], starts[1:] - stops[:-1] > gap)))
    ends = stops[np.append(firsts[1:] - 1, len(stops) - 1)]
    return list(zip(starts[firsts].tolist(), ends.tolist(), strict=True))


def _members(index: ShardIndex, rows: IntArray, fields: Sequence[str] | None) -> tuple[IntArray, IntArray]:
    """Where the wanted members lie in the tar; empty ones, and those that are missing, are left out."""
    if isinstance(index.fields, LongExtents):
        chosen = np.isin(index.fields.entry_rows, rows)
        if fields is not None:
            wanted = [code for code, name in enumerate(index.fields.names) if name in fields]
            chosen &= np.isin(index.fields.codes, wanted)
        offset, size = index.fields.offset[chosen].astype(np.int64), index.fields.size[chosen].astype(np.int64)
    else:
        parts = [part for name, part in index.fields.items() if fields is None or name in fields]
        none = np.empty(0, np.int64)
        offset = np.concatenate([none, *(part.offset[rows].astype(np.int64) for part in parts)])
        size = np.concatenate([none, *(part.size[rows].astype(np.int64) for part in parts)])
    there = (offset > 0) & (size > 0)
    return offset[there], (offset + size)[there]


def _stored(blocks: Blocks, stored: IntArray, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
    """The compressed blocks that ranges of the tar lie in."""
    first = np.searchsorted(blocks.offsets, starts, "right") - 1
    last = np.searchsorted(blocks.offsets, stops, "left")
    return stored[first], stored[last]


def span_parts(
    index: ShardIndex,
    spans: Sequence[tuple[int, int]],
    fields: Sequence[str] | None = None,
    *,
    most: int = PART_BYTES,
) -> Iterator[SpanPart]:
    """What to fetch for spans that are read one after the other: parts of at most ``most`` bytes, or of one span.

    Where the spans lie one behind the other, parts begin and end at multiples of ``most``, wherever spans do: stores
    keep large objects in pieces of a few even megabytes, and a request that begins inside of one makes the store read
    all of it. Two such requests for a piece cost it twice the work.
    """
    ranges = [span_ranges(index, first, last, fields) for first, last in spans]
    bounds = _bounds(ranges)
    is_even = len(bounds) > 1 and max(stop - start for start, stop in pairwise(bounds)) <= most
    return _even_parts(bounds, most) if is_even else _parts_by_span(ranges, most)


def _bounds(ranges: Sequence[Ranges]) -> list[int]:
    """Where spans begin that lie one behind the other, and where the last one ends; nothing where they do not."""
    if not ranges or any(len(own) != 1 for own in ranges):
        return []
    bounds = [ranges[0][0][0], *(own[0][1] for own in ranges)]
    return bounds if bounds[:-1] == [own[0][0] for own in ranges] else []


def _even_parts(bounds: list[int], most: int) -> Iterator[SpanPart]:
    start = bounds[0]
    while start < bounds[-1]:
        stop = min((start // most + 1) * most, bounds[-1])
        last = bisect_right(bounds, stop) - 1
        yield SpanPart(last - 1, ((start, stop),), bounds[bisect_left(bounds, start)], bounds[last])
        start = stop


def _parts_by_span(ranges: Sequence[Ranges], most: int) -> Iterator[SpanPart]:
    held, size = Ranges(), 0
    for number, own in enumerate(ranges):
        length = sum(stop - start for start, stop in own)
        if number and size + length > most:
            yield _whole_part(number - 1, held)
            held, size = [], 0
        held, size = _joined(held, own), size + length
    if ranges:
        yield _whole_part(len(ranges) - 1, held)


def _whole_part(span: int, ranges: Ranges) -> SpanPart:
    return SpanPart(span, tuple(ranges), ranges[0][0] if ranges else 0, ranges[-1][1] if ranges else 0)


def _joined(held: Ranges, more: Ranges) -> Ranges:
    if held and more and 0 <= more[0][0] - held[-1][1] <= REMOTE_GAP_BYTES:
        return [*held[:-1], (held[-1][0], more[0][1]), *more[1:]]
    return [*held, *more]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Ranges to read, and for each wanted member the range that holds it and where in it."""

    starts: IntArray
    stops: IntArray
    places: IntArray
    within: IntArray
    """Negative for a member that does not exist."""

    @property
    def bytes_read(self) -> int:
        """How many bytes the ranges hold in all."""
        return int((self.stops - self.starts).sum())


@dataclass(frozen=True, slots=True)
class Run:
    """Rows ``[first, last)``, whose members are in the bytes ``[start, stop)``."""

    first: int
    last: int
    start: int
    stop: int


def plan_reads(offsets: IntArray, sizes: IntArray, *, gap: int = LOCAL_GAP_BYTES, most: int = MOST_BYTES) -> ReadPlan:
    """Merge wanted members into ranges, neighbours joined when at most ``gap`` bytes lie between them.

    ``offsets`` may come in any order and repeat; 0 marks a member that does not exist. No range grows over ``most``
    bytes by joining.
    """
    wanted = np.flatnonzero(offsets > 0)
    order = wanted[np.argsort(offsets[wanted], kind="stable")]
    begin, end = offsets[order], np.maximum.accumulate(offsets[order] + sizes[order]) if len(order) else offsets[order]
    first = _range_firsts(begin, end, gap, most)
    number = np.cumsum(first) - 1
    starts = begin[first]
    stops = end[np.append(np.flatnonzero(first)[1:] - 1, len(end) - 1)] if len(end) else end
    places, within = np.zeros(len(offsets), np.int64), np.full(len(offsets), -1, np.int64)
    places[order] = number
    within[order] = begin - starts[number]
    return ReadPlan(starts, stops, places, within)


def _range_firsts(begin: IntArray, end: IntArray, gap: int, most: int) -> npt.NDArray[np.bool_]:
    """Which members start a new range."""
    first = np.ones(len(begin), bool)
    first[1:] = begin[1:] - end[:-1] > gap
    # A run of close members is cut at multiples of ``most`` from its start; a member across one stands alone.
    run_start = begin[np.maximum.accumulate(np.where(first, np.arange(len(begin)), 0))] if len(begin) else begin
    for edge in (begin, np.maximum(end - 1, begin)):
        parts = (edge - run_start) // most
        first[1:] |= parts[1:] != parts[:-1]
    return first


def is_run(rows: IntArray) -> bool:
    """Whether these are neighbours, each right behind the one before it.

    Examples:
        >>> is_run(np.array([4, 5, 6])), is_run(np.array([4, 6, 5]))
        (True, False)
    """
    return len(rows) > 1 and int(rows[-1] - rows[0]) == len(rows) - 1 and bool((rows[1:] - rows[:-1] == 1).all())


def whole_spans(offsets: Sequence[IntArray], sizes: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """For each sample, from its first member to the end of its last, given each field's members.

    A sample without any starts far behind its end, 0, so that no field of it is found there.

    Examples:
        >>> starts, stops = whole_spans([np.array([512]), np.array([1536])], [np.array([3]), np.array([5])])
        >>> starts.tolist(), stops.tolist()
        ([512], [1541])
    """
    low = functools.reduce(np.minimum, [np.where(offset > 0, offset, _FAR) for offset in offsets])
    high = functools.reduce(np.maximum, [offset + size for offset, size in zip(offsets, sizes, strict=True)])
    return low, high
