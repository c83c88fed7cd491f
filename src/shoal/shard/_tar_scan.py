"""The entries of one buffer: a member, with the PAX and GNU headers before it, is one entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.errors import HeaderError, TarError, TruncatedError, UnsupportedMemberError

from ._header import (
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
from ._name_table import Names, name_table

__all__ = ["EXTENDED", "Entries", "read_entries"]

Numbers = list[int] | npt.NDArray[np.int64]

_ZERO = bytes(BLOCK)
EXTENDED = b"xgXLK"  # headers that speak of the member after them
_MOST_EXTENDED = 1 << 20
_MOST_DIGITS = 20  # of a PAX size
_SPARSE = ord("S")
_KINDS = {"1": "hard link", "2": "symbolic link", "3": "device", "4": "device", "5": "folder", "6": "fifo"}


@dataclass(slots=True)
class Entries:
    """What one buffer gave, and why it stopped. Positions count from the buffer's start."""

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
    reader = _Reader(data, base, shared, skipped, large_bytes, encoding)
    try:
        reader.read_all()
    except TarError as error:
        reader.found.error = error
    return reader.found


class _Reader:
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
        self.found = Entries()

    def read_all(self) -> None:
        table = parse_headers(self._data)
        row: int | None = 0
        while row is not None and row < self._blocks:
            row = self._one(row) if self._pending is not None or self._shared else self._chain(table, row)
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
        if part.stop == part.start:
            return self._one(row)
        timed = self._timed(table, part)
        return self._each(table, part) if timed is None else timed

    def _plain(self, table: HeaderTable, part: slice) -> int:
        rows, names = table.rows[part], self._names(table, part)
        count = len(names)
        starts = rows[:count] * BLOCK
        self._append(names, starts, starts + BLOCK, table.sizes[part][:count])
        next_rows = table.next_rows[part]
        row = int(next_rows[count - 1]) if count else int(rows[0])
        self.found.stop = row * BLOCK
        if count < len(rows):
            raise self._name_error(table.names(part)[count], row, int(next_rows[count]))
        return row

    def _names(self, table: HeaderTable, part: slice) -> Names:
        """The names of plain headers, up to the first that cannot be read."""
        is_short = self._encoding == "utf-8" and not table.prefixed[part].any()
        found = name_table(table.heads[part, :NAME_BYTES]) if is_short else None
        return _decoded(table.names(part), self._encoding) if found is None else found

    def _timed(self, table: HeaderTable, part: slice) -> int | None:
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
        self.found.at_marker = True

    def _entry(self, name: bytes, size: int, kind: int, row: int) -> int | None:
        """Take one header and what it carries; None when its data is not all in the buffer, or not wanted."""
        if kind in EXTENDED:
            return self._extended(kind, size, row)
        named_by_pax = False
        if self._pending or self._shared:
            name, size, named_by_pax = self._amended(name, size, row)
        stop = row + 1 + (padded(size) // BLOCK if holds_data(kind) else 0)
        if kind == _SPARSE or self._refused:
            raise self._refusal(kind, row, stop)
        if kind in REGULAR and size >= self._large:
            self._large_member(self._text(name, named_by_pax, row, stop), size, row, stop)
            return None
        if stop > self._blocks:
            self.found.needed = stop * BLOCK - self.found.stop
            return None
        if kind in REGULAR:
            self._append([self._text(name, named_by_pax, row, stop)], [self.found.stop], [(row + 1) * BLOCK], [size])
        else:
            self._skipped[_KINDS.get(chr(kind), f"unknown kind {chr(kind)!r}")] += 1
        self._pending = None
        self.found.stop = stop * BLOCK
        return stop

    def _amended(self, name: bytes, size: int, row: int) -> tuple[bytes, int, bool]:
        """A member's name and size as the headers before it say, and whether PAX gave the name."""
        pending = self._pending or {}
        records = {**self._shared, **pending}
        if "path" in records:
            return records["path"], self._pax_size(records, size, row), self._named_by_pax or "path" not in pending
        return name, self._pax_size(records, size, row), False

    def _pax_size(self, records: dict[str, bytes], size: int, row: int) -> int:
        if "size" not in records:
            return size
        if not records["size"].isdigit() or len(records["size"]) > _MOST_DIGITS:
            found = repr(records["size"][: 2 * _MOST_DIGITS])
            raise HeaderError(
                "a PAX size cannot be read",
                expected=f"at most {_MOST_DIGITS} digits",
                found=found,
                offset=self._base + row * BLOCK,
            )
        return int(records["size"])

    def _large_member(self, name: str, size: int, row: int, stop: int) -> None:
        """Given alone, so only from the start of a buffer; anywhere else it ends the buffer."""
        if self.found.stop == 0:
            self._append([name], [0], [(row + 1) * BLOCK], [size])
        self.found.needed = stop * BLOCK - self.found.stop

    def _extended(self, kind: int, size: int, row: int) -> int | None:
        """Take a header that speaks of the next member, or of all that follow."""
        stop = row + 1 + padded(size) // BLOCK
        self.found.needed = stop * BLOCK - self.found.stop
        if (
            self.found.needed > _MOST_EXTENDED
        ):  # all that stand before one member, or a stream of them would have no end
            problem = "the PAX and GNU headers of a member are too long"
            raise HeaderError(
                problem,
                expected=f"at most {_MOST_EXTENDED} bytes",
                found=self.found.needed,
                offset=self._base + row * BLOCK,
            )
        if stop > self._blocks:
            return None
        content = self._data[(row + 1) * BLOCK : (row + 1) * BLOCK + size]
        if kind == ord("g"):
            self._share(content, row, stop)
        else:
            self._remember(kind, content, row)
        return stop

    def _share(self, content: bytes, row: int, stop: int) -> None:
        if self._pending is None:  # on its own, so an entry of its own
            self.found.error_stop = stop * BLOCK
        records = parse_pax(content, self._base + (row + 1) * BLOCK)
        self._shared.update({keyword: value for keyword, value in records.items() if keyword in ("path", "size")})
        self.found.error_stop = None
        if self._pending is None:
            self.found.stop = stop * BLOCK

    def _remember(self, kind: int, content: bytes, row: int) -> None:
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
        self.found.error_stop = None if tables is None else (stop + tables) * BLOCK
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
        self.found.error_stop = stop * BLOCK
        return HeaderError(
            "a member's name cannot be read",
            expected=f"{self._encoding} text",
            found=repr(name[:200]),
            offset=self._base + row * BLOCK,
            hint="name the encoding: KeyRule(encoding='latin-1')",
        )

    def _append(self, names: Names, starts: Numbers, offsets: Numbers, sizes: Numbers) -> None:
        self.found.names.append(names)
        self.found.starts.append(starts)
        self.found.offsets.append(offsets)
        self.found.sizes.append(sizes)


def _sparse_error(offset: int) -> TarError:
    return UnsupportedMemberError(
        "a sparse member cannot be read", offset=offset, hint="write it again with `tar --no-sparse`"
    )


def _decoded(names: list[bytes], encoding: str) -> list[str]:
    """The names as text, up to the first that cannot be read."""
    try:
        if encoding == "utf-8":
            return b"\0".join(names).decode().split("\0")  # no name of a plain header holds a NUL
        return [name.decode(encoding) for name in names]
    except UnicodeDecodeError:
        return list(_readable(names, encoding))


def _readable(names: list[bytes], encoding: str) -> Iterator[str]:
    for name in names:
        try:
            yield name.decode(encoding)
        except UnicodeDecodeError:
            return
