"""Walk a tar: every regular member, as columns, a chunk of the archive at a time.

``scan`` is the one walker. The index, sequential streaming and ``verify`` all read what it yields:

- a ``Chunk`` for a run of whole members, with the bytes that hold them;
- a ``Gap`` where the archive is damaged and the caller chose to go on. What was gathered before a gap and what comes
  after it must not be joined: they may be halves of two samples.

Memory stays at one chunk, or at one member where a member is larger.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import HeaderError, ShoalWarning, TarError, TruncatedError

from ._entries import Entries, read_entries
from ._feed import Feed
from ._header import BLOCK, parse_headers

__all__ = ["Chunk", "Gap", "ScanOptions", "scan"]

Int64 = npt.NDArray[np.int64]

@dataclass(frozen=True, slots=True)
class ScanOptions:
    """How a scan goes about it."""

    chunk_bytes: int = 2 << 20
    """How much is read at a time."""
    most_member_bytes: int = 1 << 34
    """A member that says it is larger is refused when the archive's own size cannot contradict it (streams)."""
    large_bytes: int | None = None
    """Members from this size on come alone in a chunk without bytes; None gives every member its bytes."""
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of regular members, perhaps none. Chunks follow each other without a hole; positions count from the archive's start."""

    names: list[str]
    starts: Int64
    """Where each member's first header stands, PAX and GNU headers included."""
    offsets: Int64
    """Where each member's bytes start."""
    sizes: Int64
    data: bytes
    """The archive's bytes from ``base`` on; empty for a member over ``large_bytes``."""
    base: int
    stop: int
    """Where the next header is expected."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes ``[start, stop)`` that could not be read as members."""

    start: int
    stop: int
    error: TarError


def scan(
    feed: Feed,
    options: ScanOptions = ScanOptions(),  # noqa: B008 - a frozen value
    *,
    skipped: Counter[str] | None = None,
    on_damage: Callable[[TarError], None] | None = None,
) -> Iterator[Chunk | Gap]:
    """Yield every regular member of an archive, in order.

    ``skipped`` counts the members left out, by reason. Damage raises a TarError with its byte offset; with
    ``on_damage`` that error is handed over instead, and unless it raises, the scan goes on at the next sound header.
    Warns (ShoalWarning) when the archive has no end marker, because its last sample may be cut.
    """
    walk = _Walk(feed, options, Counter() if skipped is None else skipped)
    while not walk.ended:
        try:
            chunk = walk.next_chunk()
        except TarError as error:
            if on_damage is None:
                raise
            on_damage(error)
            yield Gap(walk.position, walk.resume(), error)
            continue
        if chunk is not None:
            yield chunk


class _Walk:
    """The position in one archive, and the global PAX records seen so far."""

    def __init__(self, feed: Feed, options: ScanOptions, skipped: Counter[str]) -> None:
        self._feed = feed
        self._options = options
        self._skipped = skipped
        self._shared: dict[str, bytes] = {}
        self._want = options.chunk_bytes
        self._error: TarError | None = None
        self._at_marker = False
        self.position = 0
        self.ended = False

    def next_chunk(self) -> Chunk | None:
        """The next members; None when more must be read first, or when the archive has ended."""
        if self._error is not None:  # found behind the members that were given last
            raise self._error
        if self._at_marker:
            return self._end_at_marker()
        data = self._feed.at(self.position, self._want)
        if not data:
            return self._end_without_marker()
        entries = read_entries(data, self.position, self._shared, self._skipped, self._options.large_bytes)
        self._error, self._at_marker = entries.error, entries.at_marker
        if entries.stop or entries.error or entries.at_marker:
            return self._take(entries, data)
        return self._next_entry(entries, data)

    def _take(self, entries: Entries, data: bytes) -> Chunk | None:
        base, self.position = self.position, self.position + entries.stop
        self._want = self._options.chunk_bytes
        return self._chunk(entries, data, base) if entries.stop else None

    def _chunk(self, entries: Entries, data: bytes, base: int) -> Chunk:
        names = _decoded(entries.names, self._options.encoding, base)
        starts, offsets, sizes = (np.array(column, np.int64) for column in (entries.starts, entries.offsets, entries.sizes))
        return Chunk(names, starts + base, offsets + base, sizes, data, base, self.position)

    def _next_entry(self, entries: Entries, data: bytes) -> Chunk | None:
        """The next entry does not fit the buffer: pass a large member by, or read more."""
        self._check_size(entries.needed, len(data))
        if entries.names:  # one large member, which comes without its bytes
            base, self.position = self.position, self.position + entries.needed
            return self._chunk(entries, b"", base)
        self._want = max(entries.needed, self._options.chunk_bytes)
        return None

    def _check_size(self, needed: int, held: int) -> None:
        size = self._feed.size if self._feed.size is not None else self.position + held if held < self._want else None
        if size is not None and self.position + needed > size:
            where = "a header" if needed <= BLOCK else "a member"
            raise TruncatedError(
                f"the archive ends inside {where}", expected=f"bytes up to {self.position + needed}", found=f"the end at {size}", offset=self.position
            )
        if needed > self._options.most_member_bytes:
            most = self._options.most_member_bytes
            raise HeaderError("a member declares more bytes than allowed", expected=f"at most {most}", found=needed, offset=self.position)

    def _end_without_marker(self) -> None:
        self.ended = True
        if self.position:
            warnings.warn(
                f"the archive ends at byte {self.position} without an end marker: if it was cut there, its last sample may be incomplete",
                ShoalWarning,
                stacklevel=2,
            )

    def _end_at_marker(self) -> None:
        """Behind the end marker only zeros may follow: anything else would be lost without a word."""
        at = self.position + BLOCK
        while data := self._feed.at(at, 1 << 20):
            if data.count(0) != len(data):
                raise HeaderError(
                    "data follows the end of the archive",
                    expected="only zeros",
                    found=f"other bytes after byte {at}",
                    offset=self.position,
                    hint="are these several tars in one file? join them with `tar --concatenate`",
                )
            at += len(data)
        self.ended = True

    def resume(self) -> int:
        """Move to the next sound header after damage, or to the end."""
        self._error, self._at_marker = None, False
        self._want = self._options.chunk_bytes
        at = self.position + BLOCK
        while data := self._feed.at(at, self._options.chunk_bytes):
            if len(rows := parse_headers(data).rows):
                self.position = at + int(rows[0]) * BLOCK
                return self.position
            at += len(data) // BLOCK * BLOCK or len(data)
        self.position, self.ended = at, True
        return at


def _decoded(names: list[bytes], encoding: str, base: int) -> list[str]:
    try:
        if encoding == "utf-8":
            whole = b"\0".join(names).decode().split("\0")  # no name holds a NUL
            if len(whole) == len(names):
                return whole
        return [name.decode(encoding) for name in names]
    except UnicodeDecodeError as error:
        found = repr(error.object[max(0, error.start - 20) : error.end + 20])
        hint = "name the encoding: KeyRule(encoding='latin-1')"
        raise HeaderError("a member's name cannot be read", expected=f"{encoding} text", found=found, offset=base, hint=hint) from None
