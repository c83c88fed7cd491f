"""Ranges of a far object that are in memory, or on their way: read from while they still come."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING

from shoal.errors import StoreError

from ._base import FarReader, ObjectInfo, ObjectReader

if TYPE_CHECKING:
    from typing import Protocol

    class _Far(FarReader, ObjectReader, Protocol): ...


__all__ = ["HeldReader", "Segment"]


_NOBODY = 1 << 63


class Segment:
    """One range of an object. Whoever calls `fetch` first fetches it; others read what has come, or wait for it.

    Every wait ends: it is for a thread that makes a request with a timeout.
    """

    def __init__(self, reader: FarReader, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self._reader = reader
        self._pieces: list[bytes] = []
        self._starts: list[int] = []
        self._come = start
        """Up to where bytes are here."""
        self._wanted = _NOBODY
        """Up to where somebody waits for them."""
        self._changed = threading.Condition()
        self._begun = self._ended = self._dropped = False
        self._process = os.getpid()
        self._error: Exception | None = None

    def fetch(self) -> None:
        """Fetch it in this thread, unless some thread has begun to. Raises nothing: `read` does."""
        with self._changed:
            if self._begun or self._dropped:
                return
            self._begun = True
        try:
            self._fill()
        except Exception as error:  # noqa: BLE001 - raised again where its bytes are asked for
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _fill(self) -> None:
        pieces = self._reader.stream(self.start, self.stop)
        try:
            for piece in pieces:
                with self._changed:
                    if self._dropped:
                        return
                    self._pieces.append(piece)
                    self._starts.append(self._come)
                    self._come += len(piece)
                    if self._come >= self._wanted:  # who waits for more is not woken for less
                        self._wanted = _NOBODY
                        self._changed.notify_all()
        finally:
            pieces.close()

    def read(self, start: int, stop: int) -> bytes | None:
        """The bytes ``[start, stop)``, which are of this range; None when it was dropped. Raises what `fetch` met."""
        if self._process != os.getpid():  # the thread that fetches is not in this process
            return None
        if self._come < stop:
            if not self._begun:
                self.fetch()
            with self._changed:
                while self._come < stop and not self._ended:
                    self._wanted = min(self._wanted, stop)
                    self._changed.wait()
        pieces, starts = self._pieces, self._starts
        if self._come < stop or self._dropped:
            if self._error is not None:
                raise self._error
            return None
        at = bisect_right(starts, start) - 1
        piece, low = pieces[at], start - starts[at]
        if stop - starts[at] <= len(piece):
            return piece[low : stop - starts[at]]
        parts = [memoryview(piece)[low:]]
        while (at := at + 1) < len(starts) and starts[at] < stop:
            parts.append(memoryview(pieces[at])[: stop - starts[at]])
        return b"".join(parts)

    def drop(self) -> None:
        """Let go of its bytes, and of those that still come."""
        with self._changed:
            self._dropped = self._begun = True
            self._pieces, self._starts = [], []
            self._come = self.start
            self._ended = True
            self._changed.notify_all()


class HeldReader:
    """A far object read through what of it is held; what is not held is fetched when it is read, as ever."""

    def __init__(self, reader: _Far) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._held: tuple[tuple[int, ...], tuple[Segment, ...]] = ((), ())
        """Replaced as a whole, so that who reads needs no lock."""

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    @property
    def is_far(self) -> bool:
        """Whether reading it still takes requests: not where all of it has come into the cache."""
        return bool(getattr(self._reader, "is_far", True))

    def hold(self, ranges: Iterable[tuple[int, int]]) -> list[Segment]:
        """Segments for these ranges, which must not overlap what is held; nothing is fetched yet."""
        made = [Segment(self._reader, start, stop) for start, stop in ranges]
        with self._lock:
            self._replace([*self._held[1], *made])
        return made

    def release(self, segments: Iterable[Segment]) -> None:
        """Forget these segments, and drop their bytes."""
        if self._process != os.getpid():  # somebody may have held the lock when this process was forked
            return
        gone = set(map(id, segments))
        with self._lock:
            leaving = [segment for segment in self._held[1] if id(segment) in gone]
            self._replace([segment for segment in self._held[1] if id(segment) not in gone])
        for segment in leaving:
            segment.drop()

    def _replace(self, segments: list[Segment]) -> None:
        segments.sort(key=lambda segment: segment.start)
        self._held = (tuple(segment.start for segment in segments), tuple(segments))

    def read(self, start: int, stop: int) -> bytes:
        found = self._from_held(start, stop)
        return self._reader.read(start, stop) if found is None else found

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        found = [self._from_held(start, stop) for start, stop in zip(starts, stops, strict=True)]
        missing = [at for at, data in enumerate(found) if data is None]
        if missing:
            fetched = self._reader.read_many([starts[at] for at in missing], [stops[at] for at in missing])
            for at, data in zip(missing, fetched, strict=True):
                found[at] = data
        return [data for data in found if data is not None]

    def _from_held(self, start: int, stop: int) -> bytes | None:
        """Bytes of one segment, or of several that follow each other; None where some are not held."""
        firsts, segments = self._held
        at = bisect_right(firsts, start) - 1
        if at < 0 or start >= stop or segments[at].stop <= start:
            return None
        if stop <= segments[at].stop:
            return self._read(segments[at], start, stop)
        parts = []
        while start < stop:
            if at == len(segments) or segments[at].start > start:
                return None
            part = self._read(segments[at], start, min(stop, segments[at].stop))
            if part is None:
                return None
            parts.append(part)
            start, at = start + len(part), at + 1
        return b"".join(parts)

    def _read(self, segment: Segment, start: int, stop: int) -> bytes | None:
        try:
            return segment.read(start, stop)
        except StoreError:
            self.release([segment])  # who asks again gets a new attempt
            raise

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        """The object's own stream: what is held is not looked at."""
        return self._reader.stream(start, stop)

    def close(self) -> None:
        self.release(self._held[1])
        self._reader.close()
