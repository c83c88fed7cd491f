"""A far object read forwards: bytes are handed on as they come, while they are still in the processor's cache."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ._base import FarReader, ObjectInfo, ObjectReader

__all__ = ["PulledReader"]


class PulledReader:
    """Some ranges of an object, read in order by one thread; each range is one request, made when it is come to.

    What lies before the last read is forgotten. Anything else is read through ``reader``, which need not be far.

    Example:
        >>> from shoal.store import store_for
        >>> _ = store_for("memory://pulled/a").write_all("memory://pulled/a", b"0123456789")
        >>> reader = PulledReader(store_for("memory://pulled/a").open("memory://pulled/a"), [(2, 5), (7, 10)])
        >>> reader.read(3, 5), reader.read(7, 8)
        (b'34', b'7')
    """

    def __init__(self, reader: ObjectReader, ranges: Sequence[tuple[int, int]]) -> None:
        self._reader = reader
        self._far = reader if isinstance(reader, FarReader) else None
        self._ranges = list(reversed(ranges))
        self._pieces: Generator[bytes] | None = None
        self._held: list[bytes] = []
        self._start = self._stop = self._end = -1
        """What is held, and where the request ends."""

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    def read(self, start: int, stop: int) -> bytes:
        if self._far is None or not self._reaches(self._far, start, stop):
            return self._reader.read(start, stop)
        while self._stop < stop and self._pieces is not None:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._held.append(piece)
            self._stop += len(piece)
            self._forget(start)
        return self._cut(start, min(stop, self._stop))

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
