"""A far object read through its local copy: what is there is read from disk, what is not is fetched once a machine."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from shoal.errors import StoreError

from ._base import FarReader, ObjectInfo, ObjectReader
from ._claims import Claims, is_claimed
from ._disk import CELL, CachedObject, make_room
from ._local import LocalStore
from ._options import options_for

if TYPE_CHECKING:
    from typing import Protocol

    class _Far(FarReader, ObjectReader, Protocol): ...


__all__ = ["CachedReader", "cached_reader"]

_LONGEST_WAIT = 30.0
"""Seconds that another process's download is waited for; then the cell is fetched here too."""
_POLL = 0.005, 0.1
_CHECK_EVERY = 64 << 20
"""Bytes written after which the size of the cache is looked at."""
_LONGEST_END = 64 << 10
_MOST_RUN = 16
"""Cells that are claimed at a time: what others wait for is being fetched, not only planned."""


def cached_reader(reader: ObjectReader, mode: str | None) -> ObjectReader:
    """The reader through the cache, as ``mode`` says: ``"blocks"`` or ``"shards"``; as it is for None, or if near.

    With ``"shards"`` the whole object is here when this returns. An object that is here wholly is read like any file. A
    cache that cannot be written costs requests, nothing else.
    """
    if mode is None or not isinstance(reader, FarReader):
        return reader
    made = CachedReader(reader)
    if mode == "shards":
        made.fetch_all()
    whole = made.local()
    return made if whole is None else whole


class CachedReader:
    """Some cells on disk, the others far away; both are one object."""

    def __init__(self, reader: _Far) -> None:
        self._reader = reader
        self._copy = CachedObject(reader.info)
        self._usable = False
        self._written = 0
        self._whole: ObjectReader | None = None
        try:
            self._copy.open()
            self._usable = True
        except OSError:
            pass

    @property
    def info(self) -> ObjectInfo:
        return self._reader.info

    @property
    def is_far(self) -> bool:
        """Whether some of it is still to be fetched."""
        return self._whole is None

    def local(self) -> ObjectReader | None:
        """The copy as a file, where it is whole, or lacks only its end, which is then fetched."""
        if self._whole is None and self._usable:
            with contextlib.suppress(OSError, StoreError):  # a cache that fails is none
                self._fetch_end()
                if self._copy.is_whole():
                    self._whole = _Renamed(LocalStore().open(self._copy.path), self.info)
        return self._whole

    def _fetch_end(self) -> None:
        """A tar ends with some kilobytes that who reads samples never comes to: it would never be whole."""
        start, stop = self._copy.bounds(self._copy.cells - 1)
        if 0 < stop - start <= _LONGEST_END and self._copy.lacks_end():
            self.read(start, stop)

    def fetch_all(self) -> None:
        """Have all of it on disk."""
        for _ in self.stream(0, self.info.size):
            pass
        self.local()

    def read(self, start: int, stop: int) -> bytes:
        if self._whole is not None:
            return self._whole.read(start, stop)
        pieces = list(self.stream(start, stop))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        if self._whole is not None:
            return self._whole.read_many(starts, stops)
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        """The bytes, whole cells at a time where they have to be fetched."""
        stop = min(stop, self.info.size)
        if start >= stop:
            return
        if not self._usable:
            yield from self._reader.stream(start, stop)
            return
        at = start // CELL * CELL
        with contextlib.closing(self._cells(start // CELL, -(-stop // CELL))) as pieces:
            for piece in pieces:
                low, high = max(start - at, 0), min(stop - at, len(piece))
                at += len(piece)
                if low < high:
                    yield piece if high - low == len(piece) else piece[low:high]

    def _cells(self, first: int, last: int) -> Generator[bytes]:
        """Cells from disk or from afar, in order, in pieces."""
        while first < last:
            if self._has(first):
                yield self._from_disk(first)
                first += 1
                continue
            run = itertools.takewhile(lambda cell: not self._has(cell), range(first, min(last, first + _MOST_RUN)))
            claims = Claims(self._copy, run)
            try:
                yield from self._download(claims) if claims.cells else self._awaited(first)
            finally:
                claims.close()
            first += max(1, len(claims.cells))

    def _has(self, cell: int) -> bool:
        try:
            return self._copy.has(cell)
        except (OSError, ValueError):
            return False

    def _from_disk(self, cell: int) -> bytes:
        low, high = self._copy.bounds(cell)
        try:
            data = self._copy.read(low, high)
        except OSError:
            data = b""
        if len(data) == high - low:
            return data
        with contextlib.suppress(OSError):  # the file was cut: a cache never says what is not so
            self._copy.forget(cell)
        return self._reader.read(low, high)

    # ----------------------------------------------------------------------------------------------------- fetching

    def _awaited(self, cell: int) -> Generator[bytes]:
        """A cell that another thread or process is fetching; after a while it is fetched here too."""
        ends, pause = time.monotonic() + _LONGEST_WAIT, _POLL[0]
        while not self._has(cell) and time.monotonic() < ends and is_claimed(self._copy, cell):
            threading.Event().wait(pause)
            pause = min(2 * pause, _POLL[1])
        if self._has(cell):
            yield self._from_disk(cell)
            return
        claims = Claims(self._copy, [cell], force=True)
        try:
            yield from self._download(claims)
        finally:
            claims.close()

    def _download(self, claims: Claims) -> Generator[bytes]:
        cells = claims.cells
        at, stop = self._copy.bounds(cells[0])[0], self._copy.bounds(cells[-1])[1]
        crc, cell = 0, cells[0]
        pieces = self._reader.stream(at, stop)
        with contextlib.closing(pieces):
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    end = self._copy.bounds(cell)[1]
                    part = rest[: end - at]
                    crc = crc32(part, crc)
                    self._keep(at, part)
                    at, rest = at + len(part), rest[len(part) :]
                    if at == end:
                        self._finish(cell, crc)
                        claims.give(cell)
                        crc, cell = 0, cell + 1
                yield piece
        self.local()

    def _keep(self, at: int, part: memoryview) -> None:
        if self._usable:
            try:
                self._copy.write(at, part)
            except OSError:  # the disk is full, or gone
                self._usable = False

    def _finish(self, cell: int, crc: int) -> None:
        if not self._usable:
            return
        try:
            self._copy.done(cell, crc)
        except OSError:
            self._usable = False
            return
        self._written += CELL
        if self._written >= _CHECK_EVERY:
            self._written = 0
            make_room(options_for(self.info.url).cache_bytes, self._copy.folder)

    def close(self) -> None:
        self._copy.close()
        self._reader.close()
        if self._whole is not None:
            self._whole.close()


class _Renamed:
    """A file under the URL and version of the object it is a copy of."""

    def __init__(self, reader: ObjectReader, info: ObjectInfo) -> None:
        self.info = info
        self._reader = reader
        self.read = reader.read
        self.read_many = reader.read_many
        self.read_into = reader.read_into  # type: ignore[attr-defined]
        self.close = reader.close
