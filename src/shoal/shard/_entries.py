"""The entries of one buffer: a member, with the PAX and GNU headers before it, is one entry."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import HeaderError, TarError, TruncatedError, UnsupportedMemberError

from ._header import BLOCK, REGULAR, HeaderTable, holds_data, padded, parse_header, parse_headers, parse_pax, refuse_sparse

__all__ = ["Entries", "read_entries"]

_ZERO = bytes(BLOCK)
_EXTENDED = b"xgXLK"  # headers that speak of the member after them
_MOST_EXTENDED = 1 << 20
_KINDS = {"1": "hard link", "2": "symbolic link", "3": "device", "4": "device", "5": "folder", "6": "fifo"}


@dataclass(slots=True)
class Entries:
    """What one buffer gave, and why it stopped. Positions count from the buffer's start."""

    names: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    stop: int = 0
    """Where the first entry starts that is not in it. 0 with a name: one large member, whose bytes were not asked for."""
    needed: int = BLOCK
    """How many bytes from ``stop`` on the next entry takes."""
    at_marker: bool = False
    """Whether a block of zeros stands at ``stop``."""
    error: TarError | None = None


def read_entries(data: bytes, base: int, shared: dict[str, bytes], skipped: Counter[str], large_bytes: int | None) -> Entries:
    """Read every whole entry of a buffer, up to its end, an end marker or damage.

    ``base`` is where the buffer starts, for errors. ``shared`` keeps the global PAX records from buffer to buffer.
    """
    reader = _Reader(data, base, shared, skipped, large_bytes)
    try:
        reader.read_all()
    except TarError as error:
        reader.found.error = error
    return reader.found


class _Reader:
    """Takes plain members many at a time, everything else header by header."""

    def __init__(self, data: bytes, base: int, shared: dict[str, bytes], skipped: Counter[str], large_bytes: int | None) -> None:
        self._data = data
        self._base = base
        self._shared = shared
        self._skipped = skipped
        self._large = 1 << 62 if large_bytes is None else large_bytes
        self._blocks = len(data) // BLOCK
        self._pending: dict[str, bytes] = {}
        self.found = Entries()

    def read_all(self) -> None:
        table = parse_headers(self._data)
        row: int | None = 0
        while row is not None and row < self._blocks:
            row = self._one(row) if self._pending or self._shared else self._chain(table, row)
        if row is not None:
            self.found.needed = (row + 1) * BLOCK - self.found.stop

    def _chain(self, table: HeaderTable, row: int) -> int | None:
        """Read on from ``row``: the plain members that stand there, all at once, or else what stands there."""
        part = table.run(row)
        special = np.flatnonzero((table.kinds[part] != REGULAR[0]) | (table.sizes[part] >= self._large))
        whole = int(np.searchsorted(table.next_rows[part], self._blocks, "right"))
        count = min(int(special[0]) if len(special) else whole, whole)
        if count:
            return self._plain(table, slice(part.start, part.start + count))
        return self._each(table, part) if part.stop > part.start else self._one(row)

    def _plain(self, table: HeaderTable, part: slice) -> int:
        starts = table.rows[part] * BLOCK
        self._append(table.names(part), starts.tolist(), (starts + BLOCK).tolist(), table.sizes[part].tolist())
        row = int(table.next_rows[part.stop - 1])
        self.found.stop = row * BLOCK
        return row

    def _each(self, table: HeaderTable, part: slice) -> int | None:
        """A chain that starts with something special, header by header from the columns already read."""
        columns = (table.names(part), table.sizes[part].tolist(), table.kinds[part].tolist(), table.rows[part].tolist())
        row: int | None = int(table.rows[part.start])
        for name, size, kind, at in zip(*columns, strict=True):
            if row != at:  # damage, the buffer's end, or a PAX size that moved the chain
                return row
            row = self._entry(name, size, kind, at)
        return row

    def _one(self, row: int) -> int | None:
        block = self._data[row * BLOCK : (row + 1) * BLOCK]
        if block == _ZERO:
            return self._end(row)
        header = parse_header(block, self._base + row * BLOCK)
        return self._entry(header.name, header.size, header.kind, row)

    def _end(self, row: int) -> None:
        if self._pending:
            raise TruncatedError("the archive ends between a member and the header before it", offset=self._base + row * BLOCK)
        self.found.at_marker = True

    def _entry(self, name: bytes, size: int, kind: int, row: int) -> int | None:
        """Take one header and what it carries; None when its data is not all in the buffer, or not wanted."""
        records = {**self._shared, **self._pending}
        if records and kind not in _EXTENDED:
            name, size = records.get("path", name), _pax_size(records, size, self._base + row * BLOCK)
        stop = row + 1 + (padded(size) // BLOCK if holds_data(kind) else 0)
        if kind in REGULAR and size >= self._large:
            return self._large_member(name, size, row, stop)
        if stop > self._blocks:
            return self._stop_short(kind, size, row, stop)
        if kind in _EXTENDED:
            self._extend(kind, row, size)
            return stop
        self._member(name, size, kind, row)
        self._pending = {}
        self.found.stop = stop * BLOCK
        return stop

    def _large_member(self, name: bytes, size: int, row: int, stop: int) -> None:
        """Given alone, so only from the start of a buffer; anywhere else it ends the buffer."""
        if self.found.stop == 0:
            self._append([name], [0], [(row + 1) * BLOCK], [size])
        self.found.needed = stop * BLOCK - self.found.stop

    def _stop_short(self, kind: int, size: int, row: int, stop: int) -> None:
        self.found.needed = stop * BLOCK - self.found.stop
        if kind in _EXTENDED and size > _MOST_EXTENDED:
            problem = "a PAX or GNU header is too long"
            raise HeaderError(problem, expected=f"at most {_MOST_EXTENDED} bytes", found=size, offset=self._base + row * BLOCK)

    def _extend(self, kind: int, row: int, size: int) -> None:
        """Remember what a PAX or GNU header says of the next member, or of all that follow."""
        at = (row + 1) * BLOCK
        content = self._data[at : at + size]
        if kind in b"LK":
            if kind == ord("L"):
                self._pending = {**self._pending, "path": content.partition(b"\0")[0]}
            return
        records = parse_pax(content, self._base + at)
        refuse_sparse(records, self._base + row * BLOCK)
        if kind == ord("g"):
            self._shared.update({keyword: value for keyword, value in records.items() if keyword in ("path", "size")})
        else:
            self._pending = {**self._pending, **records}

    def _member(self, name: bytes, size: int, kind: int, row: int) -> None:
        if kind == ord("S"):
            hint = "write it again with `tar --no-sparse`"
            raise UnsupportedMemberError("a sparse member cannot be read", found=repr(name), offset=self._base + row * BLOCK, hint=hint)
        if kind not in REGULAR:
            self._skipped[_KINDS.get(chr(kind), f"unknown kind {chr(kind)!r}")] += 1
            return
        self._append([name], [self.found.stop], [(row + 1) * BLOCK], [size])

    def _append(self, names: list[bytes], starts: list[int], offsets: list[int], sizes: list[int]) -> None:
        self.found.names += names
        self.found.starts += starts
        self.found.offsets += offsets
        self.found.sizes += sizes


def _pax_size(records: dict[str, bytes], size: int, offset: int) -> int:
    if "size" not in records:
        return size
    if not records["size"].isdigit():
        raise HeaderError("a PAX size is not a number", found=repr(records["size"]), offset=offset)
    return int(records["size"])
