"""Read and write tar headers: blocks of 512 bytes.

``parse_header`` reads one header of any kind and says what is wrong with it. ``parse_headers`` reads all plain headers
of a buffer at once with NumPy and leaves the rest to ``parse_header``: the two agree, which a property test checks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from shoal._typing import BoolArray, IntArray, UInt8Array, UInt64Array
from shoal.errors import HeaderError, TruncatedError, WriteError

__all__ = [
    "BLOCK",
    "MOST_PLAIN_NAME",
    "MOST_PLAIN_SIZE",
    "NAME_BYTES",
    "HeaderTable",
    "build_header",
    "holds_data",
    "lay_out",
    "member_bytes",
    "padded",
    "parse_header",
    "parse_headers",
    "parse_pax",
    "says_time_only",
]

_Sizes = TypeVar("_Sizes", int, IntArray)
BLOCK = 512
NAME_BYTES = 100
REGULAR = b"0\x007"  # '0', the old NUL, and '7' (contiguous) all are plain files
# Links, devices, folders and fifos carry no data, whatever their size field says.
_WITHOUT_DATA = b"123456"
_GNU_MAGIC = b"ustar  \0"  # has times where ustar has the prefix (`tar --incremental`)
_USTAR = int.from_bytes(b"usta", "little")
_TWO_ZEROS = np.uint64(0x3030)
_EIGHT_ZEROS = np.uint64(0x3030303030303030)
_NOT_OCTAL = np.uint64(0xF8F8F8F8F8F8F8F8)
_JOINS = [
    (np.uint64(3), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(6), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(12), np.uint64(32), np.uint64(0x00000000FFFFFFFF)),
]
_TWO_BYTES, _FIVE_DIGITS, _EIGHT_DIGITS = np.uint64(16), np.uint64(15), np.uint64(24)  # in bits
_GAPS = [bytes(-size % BLOCK + BLOCK) for size in range(BLOCK)]  # behind data of any size: its padding, and a header
_SIZE_SHIFTS = np.arange(30, -1, -3)
_CHECKSUM_SHIFTS = np.arange(15, -1, -3)


@dataclass(frozen=True, slots=True)
class Header:
    """One parsed header. ``name`` is raw: how to decode it is the reader's choice."""

    name: bytes
    size: int
    kind: int


def padded(size: _Sizes) -> _Sizes:
    """``size``, or an array of sizes, rounded up to whole blocks."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


def holds_data(kind: int) -> bool:
    """Whether data blocks follow a header of this kind."""
    return kind not in _WITHOUT_DATA


def parse_header(block: bytes | memoryview, offset: int) -> Header:
    """Read one header. ``offset`` is where it stands, for the error.

    Raises HeaderError when the checksum does not fit or a number is not one, TruncatedError when it is short.
    """
    block = bytes(block)
    if len(block) < BLOCK:
        raise TruncatedError(
            "the archive ends inside a header", expected=f"{BLOCK} bytes", found=len(block), offset=offset
        )
    _check_sum(block, offset)
    name = block[:100].partition(b"\0")[0]
    kind = block[156]
    if kind == 0 and name.endswith(b"/"):
        kind = ord("5")  # before ustar, a trailing slash was all that marked a folder
    prefix = b"" if block[257:265] == _GNU_MAGIC else block[345:500].partition(b"\0")[0]
    if prefix and kind not in b"LKS":
        name = prefix + b"/" + name
    return Header(name, _number(block[124:136], offset), kind)


def _number(field: bytes, offset: int) -> int:
    """Octal digits, or base-256 when the first byte says so."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        raise HeaderError("a member's size is negative", found=int.from_bytes(field, "big", signed=True), offset=offset)
    digits = field.partition(b"\0")[0].strip(b" ")
    if any(digit not in b"01234567" for digit in digits):
        raise HeaderError("a header's number cannot be read", expected="octal digits", found=repr(field), offset=offset)
    return int(digits or b"0", 8)


def _check_sum(block: bytes, offset: int) -> None:
    try:
        stated = _number(block[148:156], offset)
    except HeaderError:
        stated = -1
    if not same_checksum(block, stated):
        looks_tar = block[257:262] == b"ustar"
        problem = "a member header is damaged" if looks_tar or offset else "this is not a tar archive"
        hint = (
            "run `shoal verify` to see how much is readable, or read with on_error='skip'"
            if looks_tar or offset
            else None
        )
        raise HeaderError(
            problem, expected="a header whose checksum fits", found=f"{block[:16]!r}...", offset=offset, hint=hint
        )


def same_checksum(block: bytes, stated: int) -> bool:
    """Some old writers summed signed bytes; both are accepted, as every tar does."""
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    if unsigned == stated:
        return True
    signed = sum(b - 256 if b > 127 else b for b in block[:148] + block[156:]) + 8 * 32
    return signed == stated


@dataclass(frozen=True, slots=True)
class HeaderTable:
    """The plain headers of a buffer, as columns. ``rows`` counts blocks from the buffer's start.

    A row is only a candidate: data may hold bytes that look like a header (a tar in a tar). ``run`` follows the chain
    from a row known to be one, so candidates inside data are never visited.
    """

    rows: IntArray
    next_rows: IntArray
    sizes: IntArray
    kinds: UInt8Array
    prefixed: npt.NDArray[np.bool_]
    heads: UInt8Array
    breaks: IntArray
    """Positions where the next candidate is not where the chain goes on."""

    def run(self, row: int) -> slice:
        """The longest unbroken chain of plain headers that starts at block ``row``; empty when none does."""
        at = int(np.searchsorted(self.rows, row))
        if at == len(self.rows) or self.rows[at] != row:
            return slice(0, 0)
        stop = int(np.searchsorted(self.breaks, at))
        return slice(at, int(self.breaks[stop]) + 1)

    def names(self, part: slice) -> list[bytes]:
        """The raw names of a run."""
        heads = self.heads[part]
        names: list[bytes] = np.ascontiguousarray(heads[:, :NAME_BYTES]).view(f"S{NAME_BYTES}").ravel().tolist()
        for at in np.flatnonzero(self.prefixed[part]).tolist():
            names[at] = parse_header(heads[at].tobytes(), 0).name
        return [name.partition(b"\0")[0] for name in names] if b"\0" in b"".join(names) else names


def parse_headers(data: bytes | memoryview) -> HeaderTable:
    """Read every plain header in ``data``, which starts at a block boundary.

    Plain means: ustar magic, octal size, a checksum that fits. Anything else is not in the table.
    """
    blocks = np.frombuffer(data, np.uint8, len(data) // BLOCK * BLOCK).reshape(-1, BLOCK)
    rows = np.flatnonzero(blocks[:, 257:261].view("<u4")[:, 0] == _USTAR)
    heads = blocks[rows]
    sizes, numbered = _sizes(heads)
    stated, summed = _checksums(heads)
    sums = _sums(heads) - heads[:, 148:156].sum(axis=1, dtype=np.uint32) + 8 * 32
    kinds = heads[:, 156]
    ended = (heads[:, 154] == 0) | (heads[:, 155] == 0) | (heads[:, 155] == 32)  # a NUL hides the checksum's last byte
    plain = numbered & summed & ended & (stated == sums) & (kinds != 0)
    if not plain.all():
        rows, heads, sizes, kinds = rows[plain], heads[plain], sizes[plain], kinds[plain]
    return _table(rows, heads, sizes, kinds)


def _table(rows: IntArray, heads: UInt8Array, sizes: IntArray, kinds: UInt8Array) -> HeaderTable:
    empty = kinds - np.uint8(_WITHOUT_DATA[0]) < len(_WITHOUT_DATA)  # wraps below, so one comparison checks both ends
    next_rows = rows + 1 + np.where(empty, 0, (sizes + BLOCK - 1) // BLOCK)
    broken = np.ones(len(rows), bool)
    broken[:-1] = next_rows[:-1] != rows[1:]
    return HeaderTable(rows, next_rows, sizes, kinds, heads[:, 345] != 0, heads, np.flatnonzero(broken))


def _sums(heads: UInt8Array) -> npt.NDArray[np.uint32]:
    """The sum of each header's bytes. Headers of one writer are alike in most places, which are summed once."""
    words = heads.view(np.uint64)
    differ = np.flatnonzero((words != words[:1]).any(axis=0))
    differing = np.ascontiguousarray(words[:, differ]).view(np.uint8)
    alike = heads[:1].sum(dtype=np.uint32) - differing[:1].sum(dtype=np.uint32)
    sums: npt.NDArray[np.uint32] = differing.sum(axis=1, dtype=np.uint32) + alike
    return sums


def _sizes(heads: UInt8Array) -> tuple[IntArray, BoolArray]:
    """The sizes, of eleven digits, and which rows hold one; a NUL or a space must end each."""
    high, high_fits = _octal(_word(heads, 124))
    low, low_fits = _octal(_word(heads, 127))
    ends = heads[:, 135]
    sizes = high >> _FIVE_DIGITS << _EIGHT_DIGITS | low
    return sizes.astype(np.int64), high_fits & low_fits & ((ends == 0) | (ends == 32))


def _checksums(heads: UInt8Array) -> tuple[IntArray, BoolArray]:
    """The stated checksums, of six digits, and which rows hold one."""
    stated, fits = _octal(_word(heads, 148) << _TWO_BYTES | _TWO_ZEROS)
    ends = heads[:, 154]
    return stated.astype(np.int64), fits & ((ends == 0) | (ends == 32))


def _word(heads: UInt8Array, at: int) -> UInt64Array:
    return np.ascontiguousarray(heads[:, at : at + 8]).view("<u8")[:, 0]


def _octal(digits: UInt64Array) -> tuple[UInt64Array, BoolArray]:
    """The numbers of eight octal digits each, the first in the lowest byte, and which are such digits.

    Neighbours are joined to pairs, pairs to fours, fours to eights, in all rows at once.
    """
    value = digits ^ _EIGHT_ZEROS
    fits = value & _NOT_OCTAL == 0
    for digit_bits, width, joined in _JOINS:
        value = (value << digit_bits | value >> width) & joined
    return value, fits


def parse_pax(data: bytes, offset: int) -> dict[str, bytes]:
    """The records of a PAX header: ``{keyword: raw value}``.

    Raises HeaderError when a record's length does not fit.
    """
    records: dict[str, bytes] = {}
    at = 0
    while at < len(data) and data[at] != 0:
        space = data.find(b" ", at, at + 20)
        length = int(data[at:space]) if space > at and data[at:space].isdigit() else 0
        record = data[space + 1 : at + length]
        keyword, equals, value = record.partition(b"=")
        if length < 5 or at + length > len(data) or not keyword or not equals or not record.endswith(b"\n"):
            raise HeaderError(
                "a PAX header is damaged",
                expected="'length keyword=value'",
                found=repr(data[at : at + 32]),
                offset=offset + at,
            )
        records[keyword.decode("utf-8", "replace")] = value[:-1]
        at += length
    return records


_TIME = re.compile(rb"(\d+) mtime=\d+\.\d+\n")


def says_time_only(data: bytes) -> bool:
    """Whether a PAX header is whole and holds nothing but a modification time."""
    found = _TIME.fullmatch(data)
    return found is not None and int(found[1]) == len(data)


_FIXED = b"0000444\x000000000\x000000000\x00"  # mode, uid, gid: the same for everyone
_OWNER = b"ustar\x0000bigdata".ljust(40, b"\0") + b"bigdata".ljust(32, b"\0") + b"0000000\x000000000\x00"
_MOST_OCTAL = 8**11
MOST_PLAIN_NAME = 100
MOST_PLAIN_SIZE = _MOST_OCTAL - 1
"""What a header of one block holds, and no other before it."""


def build_header(name: bytes, size: int, mtime: int = 0, kind: bytes = b"0") -> bytes:
    """The header, or headers, of one member: ustar, with PAX before it only where the name or the size needs it.

    The same arguments give the same bytes, always. Raises WriteError for a time that no tar can hold.

    Examples:
        >>> len(build_header(b"a.txt", 5)), len(build_header(b"x" * 300 + b".txt", 5))
        (512, 1536)
    """
    if not 0 <= mtime < _MOST_OCTAL:
        raise WriteError(
            "a member's time does not fit a tar", expected=f"seconds from 0 to {_MOST_OCTAL - 1}", found=mtime
        )
    split = _split_name(name)
    if split is not None and size < _MOST_OCTAL:
        return _ustar(*split, size, mtime, kind)
    records = (b"" if split else _pax_record(b"path", name)) + (
        b"" if size < _MOST_OCTAL else _pax_record(b"size", b"%d" % size)
    )
    extended = _ustar(b"././@PaxHeader", b"", len(records), mtime, b"x") + records.ljust(padded(len(records)), b"\0")
    return extended + _ustar(*(split or (name[:100], b"")), size if size < _MOST_OCTAL else 0, mtime, kind)


def _split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """(name, prefix) as ustar stores them, or None when they do not fit."""
    if len(name) <= 100:
        return name, b""
    slash = name.find(b"/", len(name) - 101)
    return (name[slash + 1 :], name[:slash]) if 0 < slash <= 155 and slash + 1 < len(name) else None


def _ustar(name: bytes, prefix: bytes, size: int, mtime: int, kind: bytes) -> bytes:
    numbers = b"%011o\0%011o\0" % (size, mtime)
    # the checksum is taken with its own field as eight spaces
    total = sum(name) + sum(numbers) + sum(prefix) + kind[0] + _CONSTANT_SUM
    end = _END if not prefix else _TAIL + prefix.ljust(167, b"\0")
    return b"%b%b%b%06o\0 %b%b" % (name.ljust(100, b"\0"), _FIXED, numbers, total, kind, end)


_TAIL = bytes(100) + _OWNER  # the link's name comes first
_END = _TAIL + bytes(167)
_CONSTANT_SUM = sum(_FIXED) + sum(_TAIL) + 8 * 32


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    r"""``length keyword=value\n``, where the length counts its own digits."""
    body = b" %s=%s\n" % (keyword, value)
    length = len(body) + len(str(len(body)))
    length = len(body) + len(str(length))
    return b"%d%s" % (length, body)


_NAME, _SIZE, _CHECKSUM = slice(0, MOST_PLAIN_NAME), slice(124, 135), slice(148, 154)


def member_bytes(name: bytes, size: int) -> int:
    """How many bytes of a tar a member takes, with its headers and padding."""
    return len(build_header(name, size)) + padded(size)


def lay_out(
    names: Sequence[bytes], contents: Sequence[bytes], sizes: IntArray, mtime: int
) -> tuple[bytearray, IntArray]:
    """The members one after the other, each with the header that ``build_header`` gives it; and where their data is.

    Examples:
        >>> data, offsets = lay_out([b"a.txt"], [b"hello"], np.array([5]), 0)
        >>> bytes(data) == build_header(b"a.txt", 5) + b"hello" + bytes(507), offsets.tolist()
        (True, [512])
    """
    odd = {at: build_header(names[at], int(sizes[at]), mtime) for at in _odd(names, sizes)}
    leads = np.full(len(sizes), BLOCK)
    gaps = [bytes(BLOCK), *map(_GAPS.__getitem__, (sizes % BLOCK).tolist())]
    for at, head in odd.items():
        leads[at] = len(head)
        gaps[at] += bytes(len(head) - BLOCK)
    gaps[-1] = gaps[-1][BLOCK:]
    parts = [b""] * (2 * len(gaps) - 1)
    parts[::2], parts[1::2] = gaps, contents
    data = bytearray().join(parts)
    offsets = np.cumsum(leads) + np.cumsum(padded_sizes := -(-sizes // BLOCK) * BLOCK) - padded_sizes
    np.frombuffer(data, np.uint8).reshape(-1, BLOCK)[offsets // BLOCK - 1] = _plain_headers(names, sizes, mtime)
    for at, head in odd.items():
        data[offsets[at] - len(head) : offsets[at]] = head
    return data, offsets


def _odd(names: Sequence[bytes], sizes: IntArray) -> list[int]:
    """The members that do not fit a header of the plain form."""
    if max(map(len, names)) <= MOST_PLAIN_NAME and sizes.max() <= MOST_PLAIN_SIZE:
        return []
    return [at for at, name in enumerate(names) if len(name) > MOST_PLAIN_NAME or sizes[at] > MOST_PLAIN_SIZE]


def _plain_headers(names: Sequence[bytes], sizes: IntArray, mtime: int) -> UInt8Array:
    """A header of one block for each member: nearly all of it is the same for all."""
    common, total = _common(mtime)
    headers = np.empty((len(names), BLOCK), np.uint8)
    headers[:] = common
    texts = np.array(names, f"S{MOST_PLAIN_NAME}").view(np.uint8).reshape(-1, MOST_PLAIN_NAME)
    digits = _octal_digits(sizes, _SIZE_SHIFTS)
    totals = texts.sum(axis=1, dtype=np.uint32) + digits.sum(axis=1, dtype=np.uint32) + total
    headers[:, _NAME] = texts
    headers[:, _SIZE] = digits
    headers[:, _CHECKSUM] = _octal_digits(totals, _CHECKSUM_SHIFTS)
    return headers


@functools.lru_cache(maxsize=8)
def _common(mtime: int) -> tuple[UInt8Array, int]:
    """What all headers of one time share, and what it adds to their checksums."""
    header = build_header(b"", 0, mtime)
    total = sum(header) - sum(header[148:156]) - sum(header[_SIZE]) + 8 * ord(" ")
    return np.frombuffer(header, np.uint8), total


def _octal_digits(numbers: npt.NDArray[np.integer], shifts: IntArray) -> UInt8Array:
    return ((numbers[:, None] >> shifts) & 7).astype(np.uint8) + np.uint8(ord("0"))
