"""A far object read forwards: bytes are handed on as they come, while they are still in the processor's cache."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence

from ._base import FarReader, ObjectInfo, ObjectReader

__all__ = ["PulledReader"]


class PulledReader:
    """Some ranges of an object, read in order by one thread; each range is one request, made when it is come to.

    What lies before the last read is forgotten. Anything else is read through ``reader``, which need not be far.
    ``held`` are bytes that are here already, in pieces that follow each other, and where they begin.

    Example:
        >>> from shoal.store import store_for
        >>> _ = store_for("memory://pulled/a").write_all("memory://pulled/a", b"0123456789")
        >>> reader = PulledReader(store_for("memory://pulled/a").open("memory://pulled/a"), [(2, 5), (7, 10)])
        >>> reader.read(3, 5), reader.read(7, 8)
        (b'34', b'7')
    """

    def __init__(
        self, reader: ObjectReader, ranges: Sequence[tuple[int, int]], held: tuple[int, Sequence[bytes]] = (-1, ())
    ) -> None:
        self._reader = reader
        self._far = reader if isinstance(reader, FarReader) else None
        self._ranges = list(reversed(ranges))
        self._pieces: Generator[bytes] | None = None
        self._start, self._held = held[0], list(held[1])
        self._stop = self._end = self._start + sum(map(len, self._held))
        """What is held, and where the request ends."""

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    def read(self, start: int, stop: int) -> bytes:
        if self._far is None or not self._reaches(self._far, start, stop):
            return self._reader.read(start, stop)
        self._pull(start, stop)
        return self._cut(start, min(stop, self._stop))

    def pieces(self, start: int, stop: int) -> list[tuple[int, bytes]]:
        """The pieces as they came that hold the bytes ``[start, stop)``, each with its position, and without a copy.

        The first and the last may hold more. Nothing where the bytes are in none of the ranges.
        """
        if self._far is None or not self._reaches(self._far, start, stop):
            return []
        self._pull(start, stop)
        self._forget(start)
        begins = itertools.accumulate(map(len, self._held), initial=self._start)
        return list(zip(begins, self._held, strict=False)) if self._stop >= stop else []

    def _pull(self, start: int, stop: int) -> None:
        while self._stop < stop and self._pieces is not None:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._held.append(piece)
            self._stop += len(piece)
            if self._stop <= start:  # passed over
                self._forget(start)

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def _reaches(self, far: FarReader, start: int, stop: int) -> bool:
        """Whether the range under way, or one that comes, has these bytes; then it is the one under way."""
        while self._ranges and start >= self._end:
            self.close()
            first, self._end = self._ranges.pop()
            self._start = self._stop = first
            self._pieces = far.stream(first, self._end)
        return self._start <= start and stop <= self._end

    def _forget(self, start: int) -> None:
        while self._held and self._start + len(self._held[0]) <= start:
            self._start += len(self._held.pop(0))

    def _cut(self, start: int, stop: int) -> bytes:
        self._forget(start)
        at, parts = self._start, []
        for piece in self._held:
            if at >= stop:
                break
            low, high = max(start - at, 0), min(stop - at, len(piece))
            parts.append(piece if high - low == len(piece) else memoryview(piece)[low:high])
            at += len(piece)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """End the request under way; the object stays open."""
        if self._pieces is not None:
            self._pieces.close()
        self._pieces, self._held = None, []
