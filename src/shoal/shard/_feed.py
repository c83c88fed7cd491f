"""Where a scan gets its bytes: an open object or a stream, asked for forward positions only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from shoal.store import ObjectReader

__all__ = ["Feed", "ReaderFeed", "StreamFeed", "SupportsRead"]


class SupportsRead(Protocol):
    """All that streaming needs of a file, a pipe or a socket."""

    def read(self, size: int, /) -> bytes: ...


class Feed(Protocol):
    """Bytes by position, never backwards."""

    @property
    def size(self) -> int | None:
        """How many bytes there are in all, where that is known."""
        ...

    def at(self, position: int, length: int) -> bytes:
        """The ``length`` bytes from ``position`` on; fewer only at the end. ``position`` never goes back."""
        ...


class ReaderFeed:
    """An open object: nothing is held between calls."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self.size: int | None = reader.info.size

    def at(self, position: int, length: int) -> bytes:
        return self._reader.read(position, position + length)


class StreamFeed:
    """Anything with ``read``: holds only what was read past the position asked for last."""

    def __init__(self, stream: SupportsRead) -> None:
        self._stream = stream
        self._held = b""
        self._start = 0
        self.size: int | None = None

    def at(self, position: int, length: int) -> bytes:
        self._drop_before(position)
        if len(self._held) < length:
            self._held = b"".join([self._held, *self._parts(length - len(self._held))])
        return self._held if len(self._held) == length else self._held[:length]

    def _drop_before(self, position: int) -> None:
        held = self._start + len(self._held)
        if position <= held:
            self._held = self._held[position - self._start :]
        else:
            self._held = b""
            for _ in self._parts(position - held):  # read on without keeping it
                pass
        self._start = position

    def _parts(self, length: int) -> Iterator[bytes]:
        """``length`` bytes in parts: pipes and sockets give less than asked for."""
        while length > 0 and (part := self._stream.read(min(length, 1 << 24))):
            yield part
            length -= len(part)
