"""Byte ranges that are read together: everything in shoal merges them here, and long ones are cut into several."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shoal._typing import IntArray

__all__ = ["RangePlan", "cut_range", "merge_ranges", "plan_ranges"]

_FREE_GAP_BYTES = 4096
"""A gap of at most this many bytes, such as a tar's headers and padding, costs less to fetch than another request."""


@dataclass(frozen=True, slots=True)
class RangePlan:
    """Requests that together fetch every wanted byte; sorted, and no byte is in two of them."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.starts)

    def gather(self, fetched: Sequence[bytes], start: int, stop: int) -> bytes:
        """The wanted range ``[start, stop)`` out of what the requests brought."""
        if start >= stop:
            return b""
        at = bisect_right(self.starts, start) - 1
        if stop <= self.stops[at]:
            data, base = fetched[at], self.starts[at]
            return data if start == base and stop == self.stops[at] else data[start - base : stop - base]
        parts = []
        while start < stop:  # a long range came in several requests
            end = min(stop, self.stops[at])
            parts.append(memoryview(fetched[at])[start - self.starts[at] : end - self.starts[at]])
            start, at = end, at + 1
        return b"".join(parts)


def plan_ranges(
    starts: Sequence[int],
    stops: Sequence[int],
    *,
    gap: int = 256 << 10,
    over_fetch: float = 0.25,
    most: int = 16 << 20,
) -> RangePlan:
    """Join near ranges into few requests, and cut long ones so that several can be in flight.

    Ranges at most ``gap`` bytes apart are joined as long as the bytes nobody asked for stay under ``over_fetch`` of the
    bytes asked for (gaps under 4 KiB are always joined); no request is longer than ``most``.

    Examples:
        >>> plan = plan_ranges([0, 600, 10_000_000], [500, 900, 10_000_100])
        >>> list(zip(plan.starts, plan.stops))
        [(0, 900), (10000000, 10000100)]
    """
    wanted = sorted((start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop)
    if not wanted:
        return RangePlan((), ())
    low, high = np.array(wanted, np.int64).T
    useful = high - np.maximum(low, np.concatenate((low[:1], np.maximum.accumulate(high)[:-1])))
    begins, ends, numbers = merge_ranges(low, high, min(gap, _FREE_GAP_BYTES))
    sizes = np.bincount(numbers, np.maximum(useful, 0))
    joined: list[tuple[int, int, float]] = []
    for start, stop, size in zip(begins.tolist(), ends.tolist(), sizes.tolist(), strict=True):
        first, end, known = joined[-1] if joined else (start, start - gap - 1, 0.0)
        if start - end <= gap and stop - first <= (1 + over_fetch) * (known + size):
            joined[-1] = first, stop, known + size
        else:
            joined.append((start, stop, size))
    cuts = [cut for start, stop, _ in joined for cut in cut_range(start, stop, most)]
    return RangePlan(tuple(start for start, _ in cuts), tuple(stop for _, stop in cuts))


def merge_ranges(
    starts: IntArray, stops: IntArray, max_gap: int, max_bytes: int | None = None
) -> tuple[IntArray, IntArray, IntArray]:
    """Merge ranges, which are in the order of their starts, if at most ``max_gap`` bytes lie between them.

    Return where merged ranges start and stop, and for each given range the number of the one that it is in. Merged
    ranges exceed ``max_bytes`` at most by their last range. A negative ``max_gap`` merges nothing.

    Examples:
        >>> merge_ranges(np.array([0, 600, 5000]), np.array([500, 900, 6000]), 1000)
        (array([   0, 5000]), array([ 900, 6000]), array([0, 0, 1]))
    """
    is_first = np.ones(len(starts), bool)
    if len(starts) > 1 and max_gap >= 0:
        np.greater(starts[1:] - np.maximum.accumulate(stops)[:-1], max_gap, out=is_first[1:])
        if max_bytes is not None and stops[-1] - starts[0] > max_bytes:
            parts = starts // max_bytes
            is_first[1:] |= parts[1:] != parts[:-1]
    firsts = is_first.nonzero()[0]
    return starts[firsts], np.maximum.reduceat(stops, firsts) if len(firsts) else stops, is_first.cumsum() - 1


def cut_range(start: int, stop: int, most: int) -> list[tuple[int, int]]:
    """Cut into near-equal pieces of at most ``most`` bytes, so that those in flight end together.

    Examples:
        >>> cut_range(0, 100, 40)
        [(0, 34), (34, 67), (67, 100)]
    """
    size = stop - start
    count = max(1, -(-size // most))
    bounds = [start + -(-size * number // count) for number in range(count + 1)]
    return list(pairwise(bounds))
