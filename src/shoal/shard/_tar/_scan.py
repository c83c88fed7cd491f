"""Walk a tar: every regular member, as columns, a chunk of the archive at a time.

``scan`` is the one walker. The index, sequential streaming and ``verify`` all read what it yields:

- a ``Chunk`` for a run of whole members, with the bytes that hold them;
- a ``Gap`` where the archive is damaged and the caller chose to go on. What was gathered before a gap and what comes
  after it must not be joined: they may be halves of two samples.

Memory stays at one chunk, or at one member where a member is larger.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import HeaderError, ShoalWarning, TarError, TruncatedError

from ._entries import EXTENDED, Entries, read_entries
from ._feed import ExpectingFeed, Feed
from ._header import BLOCK, parse_headers
from ._name_table import Names, as_texts

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


_DEFAULT = ScanOptions()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of regular members, perhaps none; positions count from the archive's start.

    Chunks and gaps follow each other without a hole.
    """

    named: Names
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

    @property
    def names(self) -> list[str]:
        """The members' names as texts: made anew each time."""
        return as_texts([self.named])


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes ``[start, stop)`` that could not be read as members."""

    start: int
    stop: int
    error: TarError


def scan(
    feed: Feed,
    options: ScanOptions = _DEFAULT,
    *,
    start: int = 0,
    skipped: Counter[str] | None = None,
    on_damage: Callable[[TarError], None] | None = None,
    on_no_marker: Callable[[str], object] | None = None,
) -> Iterator[Chunk | Gap]:
    """Yield every regular member of an archive, in order, from the header at byte ``start`` on.

    ``skipped`` counts the members left out, by reason. Damage raises a TarError with its byte offset; with
    ``on_damage`` that error is handed over instead, and unless it raises, the scan goes on at the next sound header.
    Warns (ShoalWarning) when the archive has no end marker, because its last sample may be cut; with ``on_no_marker``
    that is told there instead, which unlike catching a warning is safe on several threads.
    """
    walk = _Walk(feed, options, Counter() if skipped is None else skipped, start, on_no_marker or _warn)
    try:
        yield from _chunks(walk, on_damage)
    finally:
        if isinstance(feed, ExpectingFeed):
            feed.settle()


def _chunks(walk: _Walk, on_damage: Callable[[TarError], None] | None) -> Iterator[Chunk | Gap]:
    while not walk.ended:
        try:
            chunk = walk.next_chunk()
        except TarError as error:
            if on_damage is None:
                raise
            on_damage(error)
            yield Gap(walk.position, walk.resume(error), error)
            continue
        if chunk is not None:
            yield chunk


def _warn(text: str) -> None:
    warnings.warn(text, ShoalWarning, stacklevel=2)


class _Walk:
    """The position in one archive, and the global PAX records seen so far."""

    def __init__(
        self,
        feed: Feed,
        options: ScanOptions,
        skipped: Counter[str],
        start: int,
        on_no_marker: Callable[[str], object],
    ) -> None:
        self._feed = feed
        self._expects = feed.expect if isinstance(feed, ExpectingFeed) else None
        self._options = options
        self._skipped = skipped
        self._on_no_marker = on_no_marker
        self._shared: dict[str, bytes] = {}
        self._want = options.chunk_bytes
        self._error: TarError | None = None
        self._behind_error: int | None = None
        self._at_marker = False
        self._zeros_until = 0
        self._start = start
        self.position = start
        self.ended = False

    def next_chunk(self) -> Chunk | None:
        """The next members; None when more must be read first, or when the archive has ended."""
        if self._error is not None:  # found behind the members that were given last
            raise self._error
        if self._at_marker:
            self._end_at_marker()
            return None
        data = self._feed.at(self.position, self._want)
        if not data:
            self._end_without_marker()
            return None
        options = self._options
        entries = read_entries(
            data, self.position, self._shared, self._skipped, large_bytes=options.large_bytes, encoding=options.encoding
        )
        if entries.stop or entries.error or entries.at_marker:
            return self._take(entries, data)
        return self._next_entry(entries, data)

    def _take(self, entries: Entries, data: bytes) -> Chunk | None:
        self._error, self._at_marker = entries.error, entries.at_marker
        self._behind_error = None if entries.error_stop is None else self.position + entries.error_stop
        base, self.position = self.position, self.position + entries.stop
        self._want = self._options.chunk_bytes
        self._expect_next(entries, base)
        return self._chunk(entries, data, base) if entries.stop else None

    def _expect_next(self, entries: Entries, base: int) -> None:
        """Have the next bytes read while the caller is busy with these, unless it may want the first members only."""
        goes_on = entries.stop and not (entries.error or entries.at_marker)
        if self._expects is not None and goes_on and base > self._start:
            self._expects(self.position, self._want)

    def _chunk(self, entries: Entries, data: bytes, base: int) -> Chunk:
        starts, offsets, sizes = (
            np.concatenate(parts, dtype=np.int64) if parts else np.empty(0, np.int64)
            for parts in (entries.starts, entries.offsets, entries.sizes)
        )
        named = entries.names[0] if len(entries.names) == 1 else as_texts(entries.names)
        return Chunk(named, starts + base, offsets + base, sizes, data, base, self.position)

    def _next_entry(self, entries: Entries, data: bytes) -> Chunk | None:
        """The next entry does not fit the buffer: pass a large member by, or read more."""
        self._check_size(entries.needed, len(data))
        if entries.names:  # one large member, which comes without its bytes
            base, self.position = self.position, self.position + entries.needed
            self._want = self._options.chunk_bytes
            return self._chunk(entries, b"", base)
        self._want = max(entries.needed, self._options.chunk_bytes)
        return None

    def _check_size(self, needed: int, held: int) -> None:
        # Fewer bytes than asked for are the end, whatever the size was when the object was opened.
        size = self.position + held if held < self._want else self._feed.size
        if size is not None and self.position + needed > size:
            raise self._cut("a header" if needed <= BLOCK else "a member", self.position + needed, size)
        if size is None and needed > self._options.most_member_bytes:
            most = self._options.most_member_bytes
            raise HeaderError(
                "a member declares more bytes than allowed",
                expected=f"at most {most}",
                found=needed,
                offset=self.position,
            )

    def _cut(self, where: str, expected: int, size: int) -> TruncatedError:
        problem = f"the archive ends inside {where}"
        return TruncatedError(
            problem, expected=f"bytes up to {expected}", found=f"the end at {size}", offset=self.position
        )

    def _end_without_marker(self) -> None:
        size = self._feed.size
        if size is not None and size < self.position:
            raise self._cut("a member", self.position, size)
        if size is not None and size > self.position:
            raise TruncatedError(
                "the archive became shorter while it was read",
                expected=f"{size} bytes",
                found=self.position,
                offset=self.position,
            )
        self.ended = True
        if self.position:
            self._on_no_marker(
                f"the archive ends at byte {self.position} without an end marker: if it was cut there, its last sample"
                " may be incomplete"
            )

    def _end_at_marker(self) -> None:
        """Behind the end marker only zeros may follow: anything else would be lost without a word."""
        self._zeros_until = self.position + BLOCK
        while data := self._feed.at(self._zeros_until, 1 << 20):
            if data.count(0) != len(data):
                raise HeaderError(
                    "data follows the end of the archive",
                    expected="only zeros",
                    found=f"other bytes after byte {self._zeros_until}",
                    offset=self.position,
                    hint="are these several tars in one file? join them with `tar --concatenate`",
                )
            self._zeros_until += len(data)
        self.ended = True

    def resume(self, error: TarError) -> int:
        """Move behind damage: to the end of the entry at fault where that is known, else to the next sound header."""
        behind, at = self._behind_error, max(self.position + BLOCK, self._zeros_until)
        self._error, self._behind_error, self._at_marker = None, None, False
        self._want = self._options.chunk_bytes
        self.position = behind if behind is not None else self._next_sound(at, error.offset == self.position)
        return self.position

    def _next_sound(self, at: int, first_is_lost: bool) -> int:
        lost = b""
        while data := self._feed.at(at, self._options.chunk_bytes):
            lost = lost or data[:BLOCK]
            table = parse_headers(data)
            if len(table.rows):
                named = first_is_lost and _named_by(lost, table.heads[0].tobytes())
                return self._inside(at + int(table.next_rows[0] if named else table.rows[0]) * BLOCK)
            at += len(data) // BLOCK * BLOCK or len(data)
        self.ended = True
        return at

    def _inside(self, position: int) -> int:
        size = self._feed.size
        self.ended = size is not None and position > size
        return size if size is not None and self.ended else position


def _named_by(lost: bytes, head: bytes) -> bool:
    """Whether ``lost``, the block behind a damaged header, gave the name of the member whose header is ``head``.

    Then the damaged header was a PAX or GNU one, and the name that is left may be cut or made of question marks.
    """
    if head[156] in EXTENDED:
        return False
    return _PAX_RECORD.match(lost) is not None or (lost[:100] == head[:100] and lost[99] != 0)


_PAX_RECORD = re.compile(rb"\d{1,7} [^=\n]+=")
