"""Readers of remote objects that prefetch.

They give byte ranges by offset, as far as those have arrived: reads skip and go back, and a sample is cut before the
request that brings it has ended. A `PrefetchQueue` returns complete results, in order.
"""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterable, Sequence

from shoal.errors import StoreError

from ._base import ObjectInfo, ObjectReader, RemoteObjectReader, RemoteReader
from ._concurrency import submit
from ._fork import ForkSafeLock
from ._ranges import cut_range

__all__ = ["PrefetchRange", "PrefetchedReader", "StreamingReader", "read_forward"]

_NO_WAITER = 1 << 63
_FIRST_PREFETCH_BYTES, _MAX_PREFETCH_BYTES = 1 << 20, 48 << 20
_PART_BYTES = 16 << 20
_MAX_SKIP_BYTES = 64 << 10
"""A read that skips at most this many bytes is sequential; after a longer skip nothing is prefetched."""


class PrefetchRange:
    """One range of an object. The first thread that calls `fetch` fetches it; others read what has arrived, or wait.

    Every wait ends, because the fetching thread makes a request with a timeout.
    """

    def __init__(self, reader: RemoteReader, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self._reader = reader
        self._pieces: list[bytes] = []
        self._starts: list[int] = []
        self._arrived = start
        """Where the bytes that have arrived end."""
        self._awaited = _NO_WAITER
        """The smallest end that a thread waits for."""
        self._changed = threading.Condition()
        self._begun = self._ended = self._dropped = False
        self._process = os.getpid()
        self._error: Exception | None = None

    def fetch(self) -> None:
        """Fetch the range in this thread, unless a thread has begun to. Raises nothing: `read` does."""
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
                    self._starts.append(self._arrived)
                    self._arrived += len(piece)
                    if self._arrived >= self._awaited:  # do not wake a thread that needs more
                        self._awaited = _NO_WAITER
                        self._changed.notify_all()
        finally:
            pieces.close()

    def read(self, start: int, stop: int) -> bytes | None:
        """Return the bytes ``[start, stop)`` of this range; None if it was dropped. Raises the error of `fetch`."""
        if self._process != os.getpid():  # forked: the fetching thread is in the parent
            return None
        if self._arrived < stop:
            if not self._begun:
                self.fetch()
            with self._changed:
                while self._arrived < stop and not self._ended:
                    self._awaited = min(self._awaited, stop)
                    self._changed.wait()
        pieces, starts = self._pieces, self._starts
        if self._arrived < stop or self._dropped:
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
        """Drop its bytes, and those that still arrive."""
        with self._changed:
            self._dropped = self._begun = True
            self._pieces, self._starts = [], []
            self._arrived = self.start
            self._ended = True
            self._changed.notify_all()


class PrefetchedReader:
    """Remote reader that serves prefetched ranges from memory and fetches the rest on demand."""

    def __init__(self, reader: RemoteObjectReader) -> None:
        self._reader = reader
        self._lock = ForkSafeLock()
        self._process = os.getpid()
        self._held: tuple[tuple[int, ...], tuple[PrefetchRange, ...]] = ((), ())
        """Starts and ranges, replaced together, so that readers need no lock."""

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    @property
    def is_remote(self) -> bool:
        """Whether reading still needs requests: not once the object is completely in the disk cache."""
        return bool(getattr(self._reader, "is_remote", True))

    @property
    def holds_ranges(self) -> bool:
        """Whether some ranges are prefetched."""
        return bool(self._held[1])

    def hold(self, ranges: Iterable[tuple[int, int]]) -> list[PrefetchRange]:
        """Add ranges, which must not overlap those that are held; nothing is fetched yet."""
        made = [PrefetchRange(self._reader, start, stop) for start, stop in ranges]
        with self._lock:
            self._replace([*self._held[1], *made])
        return made

    def release(self, segments: Iterable[PrefetchRange]) -> None:
        """Forget these ranges, and drop their bytes."""
        if self._process != os.getpid():  # forked: the lock may be held for ever
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
        """Return bytes of one range, or of several adjacent ones; None if some bytes are not held."""
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
            self.release([segment])  # the next read makes a new attempt
            raise

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        """Stream from the object itself, not from the prefetched ranges."""
        return self._reader.stream(start, stop)

    def close(self) -> None:
        self.release(self._held[1])
        self._reader.close()


class StreamingReader:
    """Reads ranges of an object in order, from one thread; each range is one request, made when it is reached.

    Bytes before the last read are forgotten. Bytes outside the ranges are read through ``reader``, which need not be
    remote. ``held`` is the start of bytes that were read already, and their pieces.

    Examples:
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
        self._remote = reader if isinstance(reader, RemoteReader) else None
        self._ranges = list(reversed(ranges))
        self._pieces: Generator[bytes] | None = None
        self._start, self._held = held[0], list(held[1])
        self._stop = self._end = self._start + sum(map(len, self._held))
        """Where the bytes that are held end, and where the request ends."""

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    def read(self, start: int, stop: int) -> bytes:
        if self._remote is None or not self._advance_to(self._remote, start, stop):
            return self._reader.read(start, stop)
        self._pull(start, stop)
        return self._cut(start, min(stop, self._stop))

    def pieces(self, start: int, stop: int) -> list[tuple[int, bytes]]:
        """Return the pieces that contain the bytes ``[start, stop)``, each with its offset, without a copy.

        The first and the last may contain more. Empty if the bytes are not in one of the ranges.
        """
        if self._remote is None or not self._advance_to(self._remote, start, stop):
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

    def _advance_to(self, remote: RemoteReader, start: int, stop: int) -> bool:
        """Advance to the first range that ends after ``start``, and return whether it contains these bytes."""
        while self._ranges and start >= self._end:
            self.close()
            first, self._end = self._ranges.pop()
            self._start = self._stop = first
            self._pieces = remote.stream(first, self._end)
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
        """End the current request; the object stays open."""
        if self._pieces is not None:
            self._pieces.close()
        self._pieces, self._held = None, []


def read_forward(reader: ObjectReader) -> ObjectReader:
    """Return a reader for sequential reads by one thread, which prefetches if the object is remote."""
    return ForwardReader(PrefetchedReader(reader)) if isinstance(reader, RemoteReader) else reader


class ForwardReader:
    """Prefetches while reads are sequential, more with each read.

    When reads skip, as from one header to the next over a large member, nothing is prefetched.
    """

    def __init__(self, reader: PrefetchedReader) -> None:
        self._reader = reader
        self._segments: deque[PrefetchRange] = deque()
        self._next = 0
        """Where the last read ended."""
        self._requested = 0
        """Where the bytes that were requested end."""
        self._prefetch_bytes = 0

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.info.size)
        if self._next - _MAX_PREFETCH_BYTES <= start <= self._next + _MAX_SKIP_BYTES:
            self._prefetch_bytes = min(max(2 * self._prefetch_bytes, _FIRST_PREFETCH_BYTES), _MAX_PREFETCH_BYTES)
        else:
            self.close()
        self._release_before(start)
        self._prefetch(start, min(stop + self._prefetch_bytes, self.info.size))
        self._next = stop
        return self._reader.read(start, stop)

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def _prefetch(self, start: int, stop: int) -> None:
        """Request bytes up to ``stop``, in requests that are not too small."""
        first = max(start, self._requested)
        if not self._prefetch_bytes or (
            stop < self.info.size and stop - first < min(self._prefetch_bytes // 2, _PART_BYTES)
        ):
            return
        made = self._reader.hold(cut_range(first, stop, _PART_BYTES)) if first < stop else []
        for segment in made:
            submit(segment.fetch)
        self._segments += made
        self._requested = max(self._requested, stop)

    def _release_before(self, start: int) -> None:
        gone = []
        while self._segments and self._segments[0].stop <= start:
            gone.append(self._segments.popleft())
        if gone:
            self._reader.release(gone)

    def close(self) -> None:
        """Drop what was fetched; the object stays open."""
        self._reader.release(self._segments)
        self._segments.clear()
        self._requested = self._prefetch_bytes = 0

    def __del__(self) -> None:
        self.close()
