"""Where a scan gets its bytes: an open object or a stream, asked for forward positions only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from shoal.errors import StoreError
from shoal.store import ObjectReader, read_forward

from ._beside import Beside, Started

__all__ = ["ExpectingFeed", "Feed", "ReaderFeed", "StreamFeed", "SupportsRead"]

_WORTH_A_THREAD = 1 << 20
_MOST_AT_ONCE = 1 << 22  # parts that are only passed by should not take the memory of a member


class SupportsRead(Protocol):
    """All that streaming needs of a file, a pipe or a socket."""

    def read(self, size: int, /) -> bytes | None: ...


class Feed(Protocol):
    """Bytes by position, never backwards."""

    @property
    def size(self) -> int | None:
        """How many bytes there are in all, where that is known."""
        ...

    def at(self, position: int, length: int) -> bytes:
        """The ``length`` bytes from ``position`` on; fewer only at the end. ``position`` never goes back."""
        ...


@runtime_checkable
class ExpectingFeed(Feed, Protocol):
    """A feed that can read what is wanted next while what it gave is worked on."""

    def expect(self, position: int, length: int) -> None:
        """Say which bytes will be asked for next."""
        ...

    def settle(self) -> None:
        """Let go of what was expected and did not come to be asked for."""
        ...


class ReaderFeed:
    """An open object: nothing is held between calls, but for what is expected, or read ahead of one that is far."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = read_forward(reader)
        self._is_near = self._reader is reader  # a far one reads ahead by itself
        self._beside = Beside()
        self._expected: tuple[int, int, Started[bytes]] | None = None
        self.size: int | None = reader.info.size

    def at(self, position: int, length: int) -> bytes:
        expected, self._expected = self._expected, None
        if expected is not None and expected[:2] == (position, length) and expected[2].is_here:
            return expected[2].future.result()
        return self._reader.read(position, position + length)

    def expect(self, position: int, length: int) -> None:
        if self._is_near and self.size is not None and self.size - position >= _WORTH_A_THREAD:
            reading = self._beside.start(self._reader.read, position, position + length)
            self._expected = (position, length, reading)

    def settle(self) -> None:
        self._expected = None
        self._beside.close()


class StreamFeed:
    """Anything with ``read``: holds only what was read past the position asked for last.

    The ``size`` is known once the stream has ended.
    """

    def __init__(self, stream: SupportsRead) -> None:
        self._stream = stream
        self._held = b""
        self._start = 0
        self.size: int | None = None

    def at(self, position: int, length: int) -> bytes:
        self._drop_before(position)
        missing = length - len(self._held)
        if missing > 0 and self.size is None:
            self._held = b"".join([self._held, *self._parts(self._start + len(self._held), missing)])
        return self._held if len(self._held) == length else self._held[:length]

    def _drop_before(self, position: int) -> None:
        if position < self._start:
            raise ValueError(f"a stream does not go back: byte {position} asked for after byte {self._start}")
        held = self._start + len(self._held)
        if position <= held:
            self._held = self._held[position - self._start :]
        else:
            self._held = b""
            for _ in self._parts(held, position - held):  # read on without keeping it
                pass
        self._start = position

    def _parts(self, at: int, length: int) -> Iterator[bytes]:
        """``length`` bytes from ``at``, where the stream stands, in parts: pipes and sockets give less at a time."""
        while length > 0 and self.size is None:
            part = self._stream.read(min(length, _MOST_AT_ONCE))
            if part is None:
                raise StoreError(
                    "the stream has nothing to read yet", expected="a blocking stream", found="a non-blocking one"
                )
            yield part
            at, length = at + len(part), length - len(part)
            if not part:
                self.size = at
