"""A far object that is read from front to back: read ahead more and more for as long as it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ._base import FarReader, ObjectInfo, ObjectReader
from ._held import HeldReader, Segment
from ._parallel import submit
from ._ranges import cut_range

__all__ = ["ForwardReader", "read_forward"]

_FIRST_AHEAD, _MOST_AHEAD = 1 << 20, 48 << 20
_PART = 16 << 20
_NEAR = 64 << 10
"""A reader that skips less than this goes on; one that skips more wants little of the object."""


def read_forward(reader: ObjectReader) -> ObjectReader:
    """The reader, read ahead where it is far; for one thread."""
    return ForwardReader(HeldReader(reader)) if isinstance(reader, FarReader) else reader


class ForwardReader:
    """Reads that follow each other have what comes next fetched meanwhile, the more the longer they do.

    Where reads skip, as from one header to the next over a large member, only what is asked for is fetched.
    """

    def __init__(self, reader: HeldReader) -> None:
        self._reader = reader
        self._segments: deque[Segment] = deque()
        self._next = 0
        """Where the last read ended."""
        self._known = 0
        """Up to where bytes are asked for."""
        self._ahead = 0

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.info.size)
        if self._next - _MOST_AHEAD <= start <= self._next + _NEAR:
            self._ahead = min(max(2 * self._ahead, _FIRST_AHEAD), _MOST_AHEAD)
        else:
            self.close()
        self._let_go(start)
        self._ask(start, min(stop + self._ahead, self.info.size))
        self._next = stop
        return self._reader.read(start, stop)

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def _ask(self, start: int, stop: int) -> None:
        """Have bytes asked for up to ``stop``, in requests that are not too small."""
        first = max(start, self._known)
        if not self._ahead or (stop < self.info.size and stop - first < min(self._ahead // 2, _PART)):
            return
        made = self._reader.hold(cut_range(first, stop, _PART)) if first < stop else []
        for segment in made:
            submit(segment.fetch)
        self._segments += made
        self._known = max(self._known, stop)

    def _let_go(self, start: int) -> None:
        gone = []
        while self._segments and self._segments[0].stop <= start:
            gone.append(self._segments.popleft())
        if gone:
            self._reader.release(gone)

    def close(self) -> None:
        """Let go of what was fetched; the object stays open."""
        self._reader.release(self._segments)
        self._segments.clear()
        self._known = self._ahead = 0

    def __del__(self) -> None:
        self.close()
