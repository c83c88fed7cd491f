"""Which bytes to read for which members. Pure: the plan says what a reader would do."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["GAP_BYTES", "ReadPlan", "Run", "is_run", "plan_reads", "whole_spans"]

Int64 = npt.NDArray[np.int64]

GAP_BYTES = 4096
"""Two members with less between them are read in one go: a header and padding always, another small field sometimes."""
MOST_BYTES = 16 << 20
_FAR = np.int64(1 << 62)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Ranges to read, and for each wanted member the range that holds it and where in it."""

    starts: Int64
    stops: Int64
    places: Int64
    within: Int64
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


def plan_reads(offsets: Int64, sizes: Int64, *, gap: int = GAP_BYTES, most: int = MOST_BYTES) -> ReadPlan:
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


def _range_firsts(begin: Int64, end: Int64, gap: int, most: int) -> npt.NDArray[np.bool_]:
    """Which members start a new range."""
    first = np.ones(len(begin), bool)
    first[1:] = begin[1:] - end[:-1] > gap
    # A run of close members is cut at multiples of ``most`` from its start; a member across one stands alone.
    run_start = begin[np.maximum.accumulate(np.where(first, np.arange(len(begin)), 0))] if len(begin) else begin
    for edge in (begin, np.maximum(end - 1, begin)):
        parts = (edge - run_start) // most
        first[1:] |= parts[1:] != parts[:-1]
    return first


def is_run(rows: Int64) -> bool:
    """Whether these are neighbours, each right behind the one before it.

    Example:
        >>> is_run(np.array([4, 5, 6])), is_run(np.array([4, 6, 5]))
        (True, False)
    """
    return len(rows) > 1 and int(rows[-1] - rows[0]) == len(rows) - 1 and bool((rows[1:] - rows[:-1] == 1).all())


def whole_spans(offsets: Sequence[Int64], sizes: Sequence[Int64]) -> tuple[Int64, Int64]:
    """For each sample, from its first member to the end of its last, given each field's members.

    A sample without any starts far behind its end, 0, so that no field of it is found there.

    Example:
        >>> starts, stops = whole_spans([np.array([512]), np.array([1536])], [np.array([3]), np.array([5])])
        >>> starts.tolist(), stops.tolist()
        ([512], [1541])
    """
    low = functools.reduce(np.minimum, [np.where(offset > 0, offset, _FAR) for offset in offsets])
    high = functools.reduce(np.maximum, [offset + size for offset, size in zip(offsets, sizes, strict=True)])
    return low, high
