"""Readers of remote objects that fetch ahead."""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING

from shoal.errors import StoreError

from ._base import ObjectInfo, ObjectReader, RemoteReader
from ._concurrency import submit
from ._requests import cut_range

if TYPE_CHECKING:
    from typing import Protocol

    class _Far(RemoteReader, ObjectReader, Protocol): ...


__all__ = ["PrefetchRange", "PrefetchedReader", "StreamingReader", "read_forward"]

_NOBODY = 1 << 63
_FIRST_AHEAD, _MOST_AHEAD = 1 << 20, 48 << 20
_PART = 16 << 20
_NEAR = 64 << 10
"""A reader that skips less than this goes on; one that skips more wants little of the object."""


class PrefetchRange:
    """One range of an object. Whoever calls `fetch` first fetches it; others read what has come, or wait for it.

    Every wait ends: it is for a thread that makes a request with a timeout.
    """

    def __init__(self, reader: RemoteReader, start: int, stop: int) -> None:
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


class PrefetchedReader:
    """A far object read through what of it is held; what is not held is fetched when it is read, as ever."""

    def __init__(self, reader: _Far) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._held: tuple[tuple[int, ...], tuple[PrefetchRange, ...]] = ((), ())
        """Replaced as a whole, so that who reads needs no lock."""

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    @property
    def is_far(self) -> bool:
        """Whether reading it still takes requests: not where all of it has come into the cache."""
        return bool(getattr(self._reader, "is_far", True))

    def hold(self, ranges: Iterable[tuple[int, int]]) -> list[PrefetchRange]:
        """Segments for these ranges, which must not overlap what is held; nothing is fetched yet."""
        made = [PrefetchRange(self._reader, start, stop) for start, stop in ranges]
        with self._lock:
            self._replace([*self._held[1], *made])
        return made

    def release(self, segments: Iterable[PrefetchRange]) -> None:
        """Forget these segments, and drop their bytes."""
        if self._process != os.getpid():  # somebody may have held the lock when this process was forked
            return
        gone = set(map(id, segments))
        with self._lock:
            leaving = [segment for segment in self._held[1] if id(segment) in gone]
            self._replace([segment for segment in self._held[1] if id(segment) not in gone])
        for segment in leaving:
            segment.drop()

    def _replace(self, segments: list[PrefetchRange]) -> None:
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

    def _read(self, segment: PrefetchRange, start: int, stop: int) -> bytes | None:
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


class StreamingReader:
    """Some ranges of an object, read in order by one thread; each range is one request, made when it is come to.

    What lies before the last read is forgotten. Anything else is read through ``reader``, which need not be far.
    ``held`` are bytes that are here already, in pieces that follow each other, and where they begin.

    Example:
        >>> from shoal.store import store_for
        >>> _ = store_for("memory://pulled/a").write_all("memory://pulled/a", b"0123456789")
        >>> reader = StreamingReader(store_for("memory://pulled/a").open("memory://pulled/a"), [(2, 5), (7, 10)])
        >>> reader.read(3, 5), reader.read(7, 8)
        (b'34', b'7')
    """

    def __init__(
        self, reader: ObjectReader, ranges: Sequence[tuple[int, int]], held: tuple[int, Sequence[bytes]] = (-1, ())
    ) -> None:
        self._reader = reader
        self._far = reader if isinstance(reader, RemoteReader) else None
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

    def _reaches(self, far: RemoteReader, start: int, stop: int) -> bool:
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


def read_forward(reader: ObjectReader) -> ObjectReader:
    """The reader, read ahead where it is far; for one thread."""
    return ForwardReader(PrefetchedReader(reader)) if isinstance(reader, RemoteReader) else reader


class ForwardReader:
    """Reads that follow each other have what comes next fetched meanwhile, the more the longer they do.

    Where reads skip, as from one header to the next over a large member, only what is asked for is fetched.
    """

    def __init__(self, reader: PrefetchedReader) -> None:
        self._reader = reader
        self._segments: deque[PrefetchRange] = deque()
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
