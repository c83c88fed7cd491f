"""Read plans: byte ranges that are requested together, and long ones that are cut so that several are in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["RangePlan", "cut_range", "plan_ranges"]

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
    cuts = [cut for start, stop in _coalesce(starts, stops, gap, over_fetch) for cut in cut_range(start, stop, most)]
    return RangePlan(tuple(start for start, _ in cuts), tuple(stop for _, stop in cuts))


def _coalesce(starts: Sequence[int], stops: Sequence[int], gap: int, over_fetch: float) -> Iterator[tuple[int, int]]:
    wanted = sorted((start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop)
    if not wanted:
        return
    (begin, end), wasted = wanted[0], 0
    for start, stop in wanted[1:]:
        hole = max(start - end, 0)
        useful = (end - begin - wasted) + max(stop - max(start, end), 0)
        if hole <= min(gap, _FREE_GAP_BYTES) or (hole <= gap and wasted + hole <= over_fetch * useful):
            wasted, end = wasted + hole, max(end, stop)
        else:
            yield begin, end
            begin, end, wasted = start, stop, 0
    yield begin, end


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
