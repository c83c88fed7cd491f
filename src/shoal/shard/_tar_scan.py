"""Scan a tar archive and yield its members as columns.

The index, sequential streaming and ``verify`` all read what ``scan`` yields:

- a ``Chunk`` for a run of complete members, with the bytes that hold them;
- an ``UnreadableRange`` where the archive is damaged and the caller chose to continue. Members before and after it must
  not be joined: they may be halves of two samples.

Memory stays at one chunk, or at one member where a member is larger.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import HeaderError, StoreError, TarError, TruncatedError, UnsupportedMemberError
from shoal.store._base import ObjectReader
from shoal.store._readers import read_forward

from ._background_thread import MIN_THREAD_BYTES, BackgroundThread, PendingCall
from ._member_names import Names, as_texts, name_table
from ._tar_header import (
    BLOCK,
    NAME_BYTES,
    REGULAR,
    HeaderTable,
    holds_data,
    padded,
    parse_header,
    parse_headers,
    parse_pax,
    says_time_only,
)

__all__ = [
    "EXTENDED",
    "Chunk",
    "Feed",
    "ReaderFeed",
    "ScanOptions",
    "StreamFeed",
    "SupportsRead",
    "UnreadableRange",
    "scan",
]

Numbers = list[int] | npt.NDArray[np.int64]
_ZERO = bytes(BLOCK)
EXTENDED = b"xgXLK"  # headers that describe the members after them
_MAX_EXTENDED_BYTES = 1 << 20
_MAX_SIZE_DIGITS = 20  # of a PAX size
_SPARSE = ord("S")
_KIND_NAMES = {"1": "hard link", "2": "symbolic link", "3": "device", "4": "device", "5": "folder", "6": "fifo"}
_PAX_RECORD = re.compile(rb"\d{1,7} [^=\n]+=")
_MAX_STREAM_READ_BYTES = 1 << 22  # skipped bytes should not take the memory of a member


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of a scan."""

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
    starts: IntArray
    """Where each member's first header stands, PAX and GNU headers included."""
    offsets: IntArray
    """Where each member's bytes start."""
    sizes: IntArray
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
class UnreadableRange:
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
) -> Iterator[Chunk | UnreadableRange]:
    """Yield every regular member of an archive, in order, from the header at byte ``start`` on.

    ``skipped`` counts the members left out, by reason. Damage raises a TarError with its byte offset; with
    ``on_damage`` that error is handed over instead, and unless it raises, the scan goes on at the next sound header.
    An archive without an end marker is truncated, because its last sample may lack members.
    """
    walk = _Walk(feed, options, Counter() if skipped is None else skipped, start)
    try:
        yield from _chunks(walk, on_damage)
    finally:
        if isinstance(feed, ExpectingFeed):
            feed.settle()


def _chunks(walk: _Walk, on_damage: Callable[[TarError], None] | None) -> Iterator[Chunk | UnreadableRange]:
    while not walk.ended:
        try:
            chunk = walk.next_chunk()
        except TarError as error:
            if on_damage is None:
                raise
            on_damage(error)
            yield UnreadableRange(walk.position, walk.resume(error), error)
            continue
        if chunk is not None:
            yield chunk


class _Walk:
    """The position in one archive, and the global PAX records seen so far."""

    def __init__(
        self,
        feed: Feed,
        options: ScanOptions,
        skipped: Counter[str],
        start: int,
    ) -> None:
        self._feed = feed
        self._prefetch = feed.expect if isinstance(feed, ExpectingFeed) else None
        self._options = options
        self._skipped = skipped
        self._shared: dict[str, bytes] = {}
        self._wanted_bytes = options.chunk_bytes
        self._error: TarError | None = None
        self._error_stop: int | None = None
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
        data = self._feed.at(self.position, self._wanted_bytes)
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
        self._error_stop = None if entries.error_stop is None else self.position + entries.error_stop
        base, self.position = self.position, self.position + entries.stop
        self._wanted_bytes = self._options.chunk_bytes
        self._expect_next(entries, base)
        return self._chunk(entries, data, base) if entries.stop else None

    def _expect_next(self, entries: Entries, base: int) -> None:
        """Have the next bytes read while the caller is busy with these, unless it may want the first members only."""
        goes_on = entries.stop and not (entries.error or entries.at_marker)
        if self._prefetch is not None and goes_on and base > self._start:
            self._prefetch(self.position, self._wanted_bytes)

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
            self._wanted_bytes = self._options.chunk_bytes
            return self._chunk(entries, b"", base)
        self._wanted_bytes = max(entries.needed, self._options.chunk_bytes)
        return None

    def _check_size(self, needed: int, held: int) -> None:
        # Fewer bytes than asked for are the end, whatever the size was when the object was opened.
        size = self.position + held if held < self._wanted_bytes else self._feed.size
        if size is not None and self.position + needed > size:
            raise self._truncated_error("a header" if needed <= BLOCK else "a member", self.position + needed, size)
        if size is None and needed > self._options.most_member_bytes:
            most = self._options.most_member_bytes
            raise HeaderError(
                "a member declares more bytes than allowed",
                expected=f"at most {most}",
                found=needed,
                offset=self.position,
            )

    def _truncated_error(self, where: str, expected: int, size: int) -> TruncatedError:
        problem = f"the archive ends inside {where}"
        return TruncatedError(
            problem, expected=f"bytes up to {expected}", found=f"the end at {size}", offset=self.position
        )

    def _end_without_marker(self) -> None:
        size = self._feed.size
        if size is not None and size < self.position:
            raise self._truncated_error("a member", self.position, size)
        if size is not None and size > self.position:
            raise TruncatedError(
                "the archive became shorter while it was read",
                expected=f"{size} bytes",
                found=self.position,
                offset=self.position,
            )
        self.ended = True
        if self.position == 0:
            raise TruncatedError(
                "The shard is empty (0 bytes)",
                hint="Download or write it again; a tar without samples still has an end marker",
                offset=0,
            )
        raise TruncatedError(
            "The archive ends without an end marker, so its last sample may lack members",
            hint="Download or write it again, or recover the other samples with `shoal repair`",
            offset=self.position,
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
        if self.ended:
            return self.position
        behind, at = self._error_stop, max(self.position + BLOCK, self._zeros_until)
        self._error, self._error_stop, self._at_marker = None, None, False
        self._wanted_bytes = self._options.chunk_bytes
        self.position = behind if behind is not None else self._next_sound(at, error.offset == self.position)
        return self.position

    def _next_sound(self, at: int, first_is_lost: bool) -> int:
        lost = b""
        while data := self._feed.at(at, self._options.chunk_bytes):
            lost = lost or data[:BLOCK]
            table = parse_headers(data)
            if len(table.rows):
                named = first_is_lost and _is_name_of(lost, table.heads[0].tobytes())
                return self._inside(at + int(table.next_rows[0] if named else table.rows[0]) * BLOCK)
            at += len(data) // BLOCK * BLOCK or len(data)
        self.ended = True
        return at

    def _inside(self, position: int) -> int:
        size = self._feed.size
        self.ended = size is not None and position > size
        return size if size is not None and self.ended else position


def _is_name_of(lost: bytes, head: bytes) -> bool:
    """Whether ``lost``, the block behind a damaged header, gave the name of the member whose header is ``head``.

    Then the damaged header was a PAX or GNU one, and the name that is left may be cut or made of question marks.
    """
    if head[156] in EXTENDED:
        return False
    return _PAX_RECORD.match(lost) is not None or (lost[:100] == head[:100] and lost[99] != 0)


@dataclass(slots=True)
class Entries:
    """The entries of one buffer, and why reading stopped. Positions count from the buffer's start."""

    names: list[Names] = field(default_factory=list)
    """In parts, as they were found; so are the others."""
    starts: list[Numbers] = field(default_factory=list)
    offsets: list[Numbers] = field(default_factory=list)
    sizes: list[Numbers] = field(default_factory=list)
    stop: int = 0
    """Where the first entry starts that is not in it. 0 with a name: one large member, which came without its bytes."""
    needed: int = BLOCK
    """How many bytes from ``stop`` on the next entry takes."""
    at_marker: bool = False
    """Whether a block of zeros stands at ``stop``."""
    error: TarError | None = None
    """What is wrong with the entry at ``stop``."""
    error_stop: int | None = None
    """Where that entry ends; None when nobody can tell."""


def read_entries(
    data: bytes,
    base: int,
    shared: dict[str, bytes],
    skipped: Counter[str],
    *,
    large_bytes: int | None = None,
    encoding: str = "utf-8",
) -> Entries:
    """Read every whole entry of a buffer, up to its end, an end marker or damage.

    ``base`` is where the buffer starts, for errors. ``shared`` keeps the global PAX records from buffer to buffer.
    """
    reader = _EntryReader(data, base, shared, skipped, large_bytes, encoding)
    try:
        reader.read_all()
    except TarError as error:
        reader.entries.error = error
    return reader.entries


class _EntryReader:
    """Takes plain members many at a time, everything else header by header."""

    def __init__(
        self,
        data: bytes,
        base: int,
        shared: dict[str, bytes],
        skipped: Counter[str],
        large_bytes: int | None,
        encoding: str,
    ) -> None:
        self._data = data
        self._base = base
        self._shared = shared
        self._skipped = skipped
        self._large = 1 << 62 if large_bytes is None else large_bytes
        self._encoding = encoding
        self._blocks = len(data) // BLOCK
        self._pending: dict[str, bytes] | None = None
        """What headers said of the next member; None when none stands before it."""
        self._named_by_pax = False
        self._refused: TarError | None = None
        """Why the next member cannot be given."""
        self.entries = Entries()

    def read_all(self) -> None:
        table = parse_headers(self._data)
        row: int | None = 0
        while row is not None and row < self._blocks:
            row = self._read_header(row) if self._pending is not None or self._shared else self._read_chain(table, row)
        if row is not None:
            self.entries.needed = (row + 1) * BLOCK - self.entries.stop

    def _read_chain(self, table: HeaderTable, row: int) -> int | None:
        """Read on from ``row``: the plain members that stand there, all at once, or else what stands there."""
        part = table.run(row)
        special = np.flatnonzero((table.kinds[part] != REGULAR[0]) | (table.sizes[part] >= self._large))
        whole = int(np.searchsorted(table.next_rows[part], self._blocks, "right"))
        count = min(int(special[0]) if len(special) else whole, whole)
        if count:
            return self._read_plain(table, slice(part.start, part.start + count))
        if part.stop == part.start:
            return self._read_header(row)
        timed = self._read_timed(table, part)
        return self._read_special_chain(table, part) if timed is None else timed

    def _read_plain(self, table: HeaderTable, part: slice) -> int:
        rows, names = table.rows[part], self._names(table, part)
        count = len(names)
        starts = rows[:count] * BLOCK
        self._append(names, starts, starts + BLOCK, table.sizes[part][:count])
        next_rows = table.next_rows[part]
        row = int(next_rows[count - 1]) if count else int(rows[0])
        self.entries.stop = row * BLOCK
        if count < len(rows):
            raise self._name_error(table.names(part)[count], row, int(next_rows[count]))
        return row

    def _names(self, table: HeaderTable, part: slice) -> Names:
        """The names of plain headers, up to the first that cannot be read."""
        is_short = self._encoding == "utf-8" and not table.prefixed[part].any()
        found = name_table(table.heads[part, :NAME_BYTES]) if is_short else None
        return _decode_names(table.names(part), self._encoding) if found is None else found

    def _read_timed(self, table: HeaderTable, part: slice) -> int | None:
        """Members that each have a PAX header which only says a time, as webdataset writes them: all at once too."""
        pairs = (part.stop - part.start) // 2
        extended, plain = slice(part.start, part.start + 2 * pairs, 2), slice(part.start + 1, part.start + 2 * pairs, 2)
        fits = (table.kinds[extended] == ord("x")) & (table.kinds[plain] == REGULAR[0])
        fits &= (table.sizes[plain] < self._large) & (table.next_rows[plain] <= self._blocks)
        starts = (table.rows[extended] * BLOCK).tolist()
        sizes = table.sizes[extended].tolist()
        count = 0
        for good, start, size in zip(fits.tolist(), starts, sizes, strict=True):
            if not good or not says_time_only(self._data[start + BLOCK : start + BLOCK + size]):
                break
            count += 1
        plain = slice(plain.start, plain.start + 2 * count, 2)
        names = self._names(table, plain) if count else []
        if len(names) < max(count, 1):
            return None
        self._append(names, starts[:count], (table.rows[plain] + 1) * BLOCK, table.sizes[plain])
        row = int(table.next_rows[plain][-1])
        self.entries.stop = row * BLOCK
        return row

    def _read_special_chain(self, table: HeaderTable, part: slice) -> int | None:
        """A chain that starts with something special, header by header from the columns already read."""
        columns = (table.names(part), table.sizes[part].tolist(), table.kinds[part].tolist(), table.rows[part].tolist())
        row: int | None = int(table.rows[part.start])
        for name, size, kind, at in zip(*columns, strict=True):
            if row != at:  # damage, the buffer's end, or a PAX size that moved the chain
                return row
            row = self._entry(name, size, kind, at)
        return row

    def _read_header(self, row: int) -> int | None:
        block = self._data[row * BLOCK : (row + 1) * BLOCK]
        if block == _ZERO:
            self._end(row)
            return None
        header = parse_header(block, self._base + row * BLOCK)
        return self._entry(header.name, header.size, header.kind, row)

    def _end(self, row: int) -> None:
        if self._pending is not None:
            cut = TruncatedError(
                "the archive ends between a member and the header before it", offset=self._base + row * BLOCK
            )
            raise self._refused or cut
        self.entries.at_marker = True

    def _entry(self, name: bytes, size: int, kind: int, row: int) -> int | None:
        """Take one header and what it carries; None when its data is not all in the buffer, or not wanted."""
        if kind in EXTENDED:
            return self._read_extended(kind, size, row)
        named_by_pax = False
        if self._pending or self._shared:
            name, size, named_by_pax = self._apply_pax(name, size, row)
        stop = row + 1 + (padded(size) // BLOCK if holds_data(kind) else 0)
        if kind == _SPARSE or self._refused:
            raise self._refusal(kind, row, stop)
        if kind in REGULAR and size >= self._large:
            self._large_member(self._text(name, named_by_pax, row, stop), size, row, stop)
            return None
        if stop > self._blocks:
            self.entries.needed = stop * BLOCK - self.entries.stop
            return None
        if kind in REGULAR:
            self._append([self._text(name, named_by_pax, row, stop)], [self.entries.stop], [(row + 1) * BLOCK], [size])
        else:
            self._skipped[_KIND_NAMES.get(chr(kind), f"unknown kind {chr(kind)!r}")] += 1
        self._pending = None
        self.entries.stop = stop * BLOCK
        return stop

    def _apply_pax(self, name: bytes, size: int, row: int) -> tuple[bytes, int, bool]:
        """A member's name and size as the headers before it say, and whether PAX gave the name."""
        pending = self._pending or {}
        records = {**self._shared, **pending}
        if "path" in records:
            return records["path"], self._pax_size(records, size, row), self._named_by_pax or "path" not in pending
        return name, self._pax_size(records, size, row), False

    def _pax_size(self, records: dict[str, bytes], size: int, row: int) -> int:
        if "size" not in records:
            return size
        if not records["size"].isdigit() or len(records["size"]) > _MAX_SIZE_DIGITS:
            found = repr(records["size"][: 2 * _MAX_SIZE_DIGITS])
            raise HeaderError(
                "a PAX size cannot be read",
                expected=f"at most {_MAX_SIZE_DIGITS} digits",
                found=found,
                offset=self._base + row * BLOCK,
            )
        return int(records["size"])

    def _large_member(self, name: str, size: int, row: int, stop: int) -> None:
        """Given alone, so only from the start of a buffer; anywhere else it ends the buffer."""
        if self.entries.stop == 0:
            self._append([name], [0], [(row + 1) * BLOCK], [size])
        self.entries.needed = stop * BLOCK - self.entries.stop

    def _read_extended(self, kind: int, size: int, row: int) -> int | None:
        """Take a header that speaks of the next member, or of all that follow."""
        stop = row + 1 + padded(size) // BLOCK
        self.entries.needed = stop * BLOCK - self.entries.stop
        # The limit is for all that precede one member, or a stream of them would have no end.
        if self.entries.needed > _MAX_EXTENDED_BYTES:
            problem = "the PAX and GNU headers of a member are too long"
            raise HeaderError(
                problem,
                expected=f"at most {_MAX_EXTENDED_BYTES} bytes",
                found=self.entries.needed,
                offset=self._base + row * BLOCK,
            )
        if stop > self._blocks:
            return None
        content = self._data[(row + 1) * BLOCK : (row + 1) * BLOCK + size]
        if kind == ord("g"):
            self._read_global_pax(content, row, stop)
        else:
            self._keep_for_next(kind, content, row)
        return stop

    def _read_global_pax(self, content: bytes, row: int, stop: int) -> None:
        if self._pending is None:  # on its own, so an entry of its own
            self.entries.error_stop = stop * BLOCK
        records = parse_pax(content, self._base + (row + 1) * BLOCK)
        self._shared.update({keyword: value for keyword, value in records.items() if keyword in ("path", "size")})
        self.entries.error_stop = None
        if self._pending is None:
            self.entries.stop = stop * BLOCK

    def _keep_for_next(self, kind: int, content: bytes, row: int) -> None:
        """Where two headers disagree the first one counts, as for every reader that stands on ``tarfile``."""
        records: dict[str, bytes] = {}
        if kind == ord("L"):
            records = {"path": content.partition(b"\0")[0]}
        elif kind != ord("K"):
            records = self._pax_records(content, row)
        before = self._pending or {}
        if "path" in records and "path" not in before:
            self._named_by_pax = kind != ord("L")
        self._pending = {**records, **before}

    def _pax_records(self, content: bytes, row: int) -> dict[str, bytes]:
        """The records; where they are damaged, or say that it is sparse, the member they speak of is refused."""
        try:
            records = parse_pax(content, self._base + (row + 1) * BLOCK)
        except HeaderError as error:
            self._refused = error
            return {}
        if any(keyword.startswith("GNU.sparse") for keyword in records):
            self._refused = _sparse_error(self._base + row * BLOCK)
        return records

    def _refusal(self, kind: int, row: int, stop: int) -> TarError:
        tables = self._sparse_tables(row) if kind == _SPARSE else 0
        self.entries.error_stop = None if tables is None else (stop + tables) * BLOCK
        return self._refused or _sparse_error(self._base + row * BLOCK)

    def _sparse_tables(self, row: int) -> int | None:
        """How many blocks of its map a sparse member has before its data; None when they go on behind the buffer."""
        flag, at = 482, row
        while at < self._blocks and self._data[at * BLOCK + flag]:
            flag, at = 504, at + 1
        return at - row if at < self._blocks else None

    def _text(self, name: bytes, named_by_pax: bool, row: int, stop: int) -> str:
        """The name as text: PAX writes UTF-8 whatever the other names are in, though some writers did not know."""
        for encoding in ("utf-8", self._encoding) if named_by_pax else (self._encoding,):
            try:
                return name.decode(encoding)
            except UnicodeDecodeError:
                continue
        raise self._name_error(name, row, stop)

    def _name_error(self, name: bytes, row: int, stop: int) -> HeaderError:
        self.entries.error_stop = stop * BLOCK
        return HeaderError(
            "a member's name cannot be read",
            expected=f"{self._encoding} text",
            found=repr(name[:200]),
            offset=self._base + row * BLOCK,
            hint="name the encoding: KeyRule(encoding='latin-1')",
        )

    def _append(self, names: Names, starts: Numbers, offsets: Numbers, sizes: Numbers) -> None:
        self.entries.names.append(names)
        self.entries.starts.append(starts)
        self.entries.offsets.append(offsets)
        self.entries.sizes.append(sizes)


def _sparse_error(offset: int) -> TarError:
    return UnsupportedMemberError(
        "a sparse member cannot be read", offset=offset, hint="write it again with `tar --no-sparse`"
    )


def _decode_names(names: list[bytes], encoding: str) -> list[str]:
    """The names as text, up to the first that cannot be read."""
    try:
        if encoding == "utf-8":
            return b"\0".join(names).decode().split("\0")  # no name of a plain header holds a NUL
        return [name.decode(encoding) for name in names]
    except UnicodeDecodeError:
        return list(_decode_until_error(names, encoding))


def _decode_until_error(names: list[bytes], encoding: str) -> Iterator[str]:
    for name in names:
        try:
            yield name.decode(encoding)
        except UnicodeDecodeError:
            return


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
        self._is_local = self._reader is reader  # a far one reads ahead by itself
        self._thread = BackgroundThread()
        self._expected: tuple[int, int, PendingCall[bytes]] | None = None
        self.size: int | None = reader.info.size

    def at(self, position: int, length: int) -> bytes:
        expected, self._expected = self._expected, None
        if expected is not None and expected[:2] == (position, length) and expected[2].is_here:
            return expected[2].future.result()
        return self._reader.read(position, position + length)

    def expect(self, position: int, length: int) -> None:
        if self._is_local and self.size is not None and self.size - position >= MIN_THREAD_BYTES:
            reading = self._thread.start(self._reader.read, position, position + length)
            self._expected = (position, length, reading)

    def settle(self) -> None:
        self._expected = None
        self._thread.close()


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
            part = self._stream.read(min(length, _MAX_STREAM_READ_BYTES))
            if part is None:
                raise StoreError(
                    "the stream has nothing to read yet", expected="a blocking stream", found="a non-blocking one"
                )
            yield part
            at, length = at + len(part), length - len(part)
            if not part:
                self.size = at
