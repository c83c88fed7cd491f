"""TFRecord files, and the CRC-32C checksums in them.

A record is its length (8 bytes), the masked CRC-32C of those 8 bytes, the data, and the masked CRC-32C of the data.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray, UInt32Array
from shoal.errors import ChecksumError, DecodeError, OptionError, TruncatedError
from shoal.store._base import ObjectReader

from ._sources import Values, cached_offsets, nearby_runs
from ._tf_example import decode_example

__all__ = ["RecordOptions", "TFRecordPart", "crc32c", "crc32c_of_ranges", "frame"]

Compression = Literal["", "GZIP", "ZLIB"]

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
_FRAME = _HEAD.size + _TAIL.size
_CHUNK_BYTES = 8 << 20
_SCHEMA_BYTES = 256 << 10
_SCHEMA_RECORDS = 32
"""How many records are asked which features there are."""


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """How records are read."""

    compression: Compression | None = None
    """None: as the first bytes say."""
    example: bool = True
    """Whether records are ``tf.train.Example``; else each is bytes in the field ``record``."""
    lists: tuple[str, ...] | bool = ()
    """Features that are lists even where they have one value."""
    verify: bool = True

    def __post_init__(self) -> None:
        if self.compression not in (None, "", "GZIP", "ZLIB"):
            found = repr(self.compression)
            raise OptionError("no such compression", expected="None, '', 'GZIP' or 'ZLIB'", found=found)


class TFRecordPart:
    """One open TFRecord file. A compressed one is unpacked into memory when records are asked for by number."""

    def __init__(self, reader: ObjectReader, options: RecordOptions) -> None:
        self._reader = reader
        self._options = options
        self._lock = threading.Lock()
        self._window = _wbits(reader, options.compression)

    @functools.cached_property
    def _plain(self) -> _Bytes:
        """The records' bytes, by range."""
        if self._window is None:
            return _Stored(self._reader)
        with self._lock:
            return _Unpacked(b"".join(_inflated(self._reader, self._window)))

    @functools.cached_property
    def _starts(self) -> IntArray:
        """Where each record begins, and where the last one ends."""
        if self._window is None:
            return cached_offsets(self._reader, "tfrecord", lambda reader: _record_starts(_Stored(reader)))
        return cached_offsets(self._reader, f"tfrecord {self._window}", lambda _: _record_starts(self._plain))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def fields(self) -> tuple[str, ...]:
        """The features of the first records."""
        return self._names

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        if not self._options.example:
            return ("record",)
        return tuple(dict.fromkeys(name for values in self._first() for name in values))

    def _first(self) -> Iterator[Values]:
        """The first records, without those that are damaged: reading them says so."""
        chunk = b""
        for part in self._chunks(_SCHEMA_BYTES):
            chunk += part
            starts, end = _walk(chunk, 0, 0)
            if len(starts):
                stops = np.append(starts[1:], end)
                for at in range(min(_SCHEMA_RECORDS, len(starts))):
                    with contextlib.suppress(ChecksumError, DecodeError):
                        yield self._decoded(self._records(chunk, starts[at : at + 1], stops[at : at + 1], 0)[0], None)
                return

    def read(self, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        """These records: those near each other are read at once."""
        order = np.argsort(rows, kind="stable")
        starts, stops = self._starts[:-1][rows[order]], self._starts[1:][rows[order]]
        found: list[Values] = [{}] * len(rows)
        wanted = None if fields is None else frozenset(fields)
        for run in nearby_runs(starts, stops):
            base = int(starts[run[0]])
            data = self._plain.read(base, int(stops[run].max()))
            records = self._records(data, starts[run] - base, stops[run] - base, base)
            for place, record in zip(order[run].tolist(), records, strict=True):
                found[place] = self._decoded(record, wanted)
        return found

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All records in order, a few MiB of the file at a time."""
        return self._runs(fields, _CHUNK_BYTES)

    def _runs(self, fields: Sequence[str] | None, chunk_size: int) -> Iterator[list[Values]]:
        wanted = None if fields is None else frozenset(fields)
        pending: list[bytes] = []
        have = needed = base = 0
        for chunk in self._chunks(chunk_size):
            pending.append(chunk)
            have += len(chunk)
            if have < needed:
                continue
            data = pending[0] if len(pending) == 1 else b"".join(pending)
            starts, end = _walk(data, 0, base)
            if len(starts):
                stops = np.append(starts[1:], end)
                yield [self._decoded(record, wanted) for record in self._records(data, starts, stops, base)]
            rest, base = data[end:], base + end
            pending, have, needed = [rest] if rest else [], len(rest), _size_of(rest)
        if have:
            raise _cut_short(base, b"".join(pending))

    def _chunks(self, size: int) -> Iterator[bytes]:
        return _stored(self._reader, size) if self._window is None else _inflated(self._reader, self._window, size)

    def _records(self, data: bytes, starts: IntArray, stops: IntArray, base: int) -> list[bytes]:
        """The data of records that lie in ``data``, each checked."""
        firsts, lasts = starts + _HEAD.size, stops - _TAIL.size
        if len(starts) and int(stops.max()) > len(data):
            raise TruncatedError("the file ends inside a record", offset=base + len(data))
        if self._options.verify:
            self._check(data, firsts, lasts, base)
        return [data[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]

    def _check(self, data: bytes, firsts: IntArray, lasts: IntArray, base: int) -> None:
        unpack = _TAIL.unpack_from
        expected = np.array([unpack(data, last)[0] for last in lasts.tolist()], np.uint32)
        found = masked(crc32c_of_ranges(data, firsts, lasts).astype(np.uint64)).astype(np.uint32)
        bad = np.flatnonzero(found != expected)
        if len(bad):
            raise ChecksumError(
                "a record's bytes are not those that were written",
                expected=f"{int(expected[bad[0]]):#010x}",
                found=f"{int(found[bad[0]]):#010x}",
                offset=base + int(firsts[bad[0]]),
            )

    def _decoded(self, record: bytes, wanted: Container[str] | None) -> Values:
        if not self._options.example:
            return {"record": record} if wanted is None or "record" in wanted else {}
        return decode_example(record, wanted, self._options.lists)


class _Stored:
    """The bytes as they are stored."""

    def __init__(self, reader: ObjectReader) -> None:
        self.read = reader.read
        self.size = reader.info.size


class _Unpacked:
    """The bytes of a compressed file, in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]


_Bytes = _Stored | _Unpacked


def _record_starts(plain: _Bytes) -> IntArray:
    """Where each record of a file begins, and where the last one ends. Only the lengths of large records are read."""
    parts, base = [], 0
    while base < plain.size:
        data = plain.read(base, base + _CHUNK_BYTES)
        starts, end = _walk(data, 0, base, inside=plain.size - base)
        if not len(starts):
            raise _cut_short(base, data)
        parts.append(starts + base)
        base += end
    return np.concatenate([*parts, np.array([base], np.int64)]).astype(np.int64)


def _walk(data: bytes, at: int, base: int, inside: int | None = None) -> tuple[IntArray, int]:
    """Where whole records begin in ``data``, and where the last of them ends; their lengths are checked.

    ``inside`` is how many bytes there are, where ``data`` need not hold the records but only their heads.
    """
    starts, lengths, checks = [], [], []
    unpack, most, limit = _HEAD.unpack_from, len(data) - _HEAD.size, len(data) if inside is None else inside
    while at <= most:
        length, check = unpack(data, at)
        starts.append(at)
        lengths.append(length)
        checks.append(check)
        at += length + _FRAME
        if at > limit:
            break
    _check_lengths(starts, lengths, checks, base)
    if at > limit:
        at = starts.pop()
    return np.array(starts, np.int64), at


def _check_lengths(starts: list[int], lengths: list[int], checks: list[int], base: int) -> None:
    found = masked(crc32c_of_words(np.array(lengths, np.uint64)).astype(np.uint64))
    bad = np.flatnonzero(found != np.array(checks, np.uint64))
    if len(bad):
        raise ChecksumError(
            "the length of a record is damaged, or this is no TFRecord file",
            expected=f"{checks[bad[0]]:#010x}",
            found=f"{int(found[bad[0]]):#010x}",
            offset=base + starts[bad[0]],
            hint="is it compressed? say so with compression_type",
        )


def _cut_short(base: int, rest: bytes) -> TruncatedError:
    return TruncatedError(
        "the file ends inside a record", expected=f"{_size_of(rest)} bytes", found=f"{len(rest)}", offset=base
    )


def _size_of(rest: bytes) -> int:
    """How many bytes the record takes that begins here, as far as one can see."""
    size: int = _HEAD.unpack_from(rest)[0] + _FRAME if len(rest) >= _HEAD.size else _HEAD.size
    return size


def _wbits(reader: ObjectReader, asked: Compression | None) -> int | None:
    """How zlib names the compression of a file; None for none."""
    if asked is not None:
        return {"": None, "GZIP": 31, "ZLIB": 15}[asked]
    head = reader.read(0, 12)
    if len(head) == 12 and _is_head(head):
        return None
    if head[:2] == b"\x1f\x8b":
        return 31
    zlib = len(head) > 1 and head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
    return 15 if zlib else None


def _is_head(head: bytes) -> bool:
    return bool(masked(crc32c(head[:8])) == _HEAD.unpack(head)[1])


def _stored(reader: ObjectReader, size: int) -> Iterator[bytes]:
    for start in range(0, reader.info.size, size):
        yield reader.read(start, start + size)


def _inflated(reader: ObjectReader, window: int, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """The unpacked bytes, some at a time."""
    import zlib

    stream, offset = zlib.decompressobj(window), 0
    try:
        for packed in _stored(reader, size):
            chunk = packed
            while chunk:
                yield stream.decompress(chunk, size)
                if stream.eof and stream.unused_data:  # one gzip member may follow another
                    chunk, stream = stream.unused_data, zlib.decompressobj(window)
                else:
                    chunk = stream.unconsumed_tail
            offset += len(packed)
        yield stream.flush()
    except zlib.error as error:
        raise DecodeError("the compressed bytes are damaged", found=error, offset=offset) from error
    if not stream.eof and reader.info.size:
        raise TruncatedError("the compressed bytes end too early", offset=reader.info.size)


def frame(data: bytes) -> bytes:
    """A record as it is stored: its length and its data, each with its checksum."""
    length = len(data).to_bytes(8, "little")
    return b"".join((length, _TAIL.pack(masked(crc32c(length))), data, _TAIL.pack(masked(crc32c(data)))))


_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_PIECE = 256
"""Bytes of a piece, a power of two: long enough that joining costs little, short enough for many side by side."""
_AT_ONCE = 8192


def masked(crc: Any) -> Any:
    """A checksum as it is stored: turned and shifted, because CRCs of data with CRCs in it are weak.

    Takes a number or an array of them.
    """
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ONES


@functools.cache
def _compiled() -> Callable[[bytes], int] | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    # Without its compiled part the package is slower than what is below.
    return google_crc32c.value if google_crc32c.implementation == "c" else None


def crc32c(data: bytes) -> int:
    """The checksum of some bytes.

    Examples:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    found = _compiled()
    if found is not None:
        return found(data)
    return int(_by_numpy(data, np.zeros(1, np.int64), np.array([len(data)]))[0])


def crc32c_of_ranges(data: bytes, starts: IntArray, stops: IntArray) -> UInt32Array:
    """The checksums of several ranges of some bytes."""
    found = _compiled()
    if found is None:
        return _by_numpy(data, starts, stops)
    ranges = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.array([found(data[start:stop]) for start, stop in ranges], np.uint32)


def _by_numpy(data: bytes, starts: IntArray, stops: IntArray) -> UInt32Array:
    """Pieces of all ranges side by side, two bytes of each at a step; then the pieces of each range are joined.

    A CRC is linear: that of two pieces one after the other is that of the first, shifted by the length of the second,
    added to that of the second. Zeros before the data change nothing when the register starts at zero, so the first
    piece of a range is filled up with them, and what the register starts with is added at the end.
    """
    sizes = stops - starts
    counts = -(-sizes // _PIECE)
    firsts = np.cumsum(counts) - counts
    registers = np.zeros(int(counts.sum()), np.uint32)
    _fill(registers, data, starts, sizes, counts, firsts)
    found = np.zeros(len(starts), np.uint32)
    for step in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > step)
        found[rows] = _apply(_piece_tables(), found[rows]) ^ registers[firsts[rows] + step]
    return found ^ _ones_shifted(sizes) ^ np.uint32(_ONES)


def _fill(
    registers: UInt32Array, data: bytes, starts: IntArray, sizes: IntArray, counts: IntArray, firsts: IntArray
) -> None:
    """The register after each piece, had it started at zero."""
    raw = np.frombuffer(data, np.uint8)
    pieces = np.arange(len(registers))
    owner = np.repeat(np.arange(len(starts)), counts)
    ends = starts[owner] + sizes[owner] - (counts[owner] - 1 - (pieces - firsts[owner])) * _PIECE
    table, columns = _pair_table(), np.arange(_PIECE)
    for at in range(0, len(pieces), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        places = ends[some, None] - _PIECE + columns
        inside = places >= starts[owner[some], None]
        block = np.where(inside, raw[np.where(inside, places, 0)], 0).astype(np.uint8)
        steps = np.ascontiguousarray(block.view("<u2").T)
        register = np.zeros(steps.shape[1], np.uint32)
        for step in steps:
            register = table[(register & 0xFFFF) ^ step] ^ register >> np.uint32(16)
        registers[some] = register


def _ones_shifted(sizes: IntArray) -> UInt32Array:
    """What as many bytes of zeros make of a register of ones."""
    found = np.full(len(sizes), _ONES, np.uint32)
    for power in range(int(sizes.max(initial=0)).bit_length()):
        found = np.where(sizes >> power & 1, _apply(_zeros_tables(power), found), found).astype(np.uint32)
    return found


def crc32c_of_words(words: npt.NDArray[np.uint64]) -> UInt32Array:
    """The checksums of many numbers of eight bytes, all at once."""
    steps = np.ascontiguousarray(words, "<u8").view("<u2").reshape(-1, 4)
    table, register = _pair_table(), np.full(len(words), _ONES, np.uint32)
    for column in range(4):
        register = table[(register & 0xFFFF) ^ steps[:, column]] ^ register >> np.uint32(16)
    return register ^ np.uint32(_ONES)


@functools.cache
def _byte_table() -> UInt32Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table.astype(np.uint32)


@functools.cache
def _pair_table() -> UInt32Array:
    """What two bytes at once do to the register."""
    one, pairs = _byte_table(), np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        pairs = one[pairs & 0xFF] ^ pairs >> np.uint32(8)
    return pairs


def _apply(tables: UInt32Array, registers: UInt32Array) -> UInt32Array:
    """Registers after the bytes of zeros that these tables are about."""
    found: UInt32Array = tables[0][registers & 0xFF]
    for byte in (1, 2, 3):
        found = found ^ tables[byte][registers >> np.uint32(8 * byte) & 0xFF]
    return found


@functools.cache
def _piece_tables() -> UInt32Array:
    """What a piece of zeros makes of each byte of the register."""
    return _zeros_tables(_PIECE.bit_length() - 1)


@functools.cache
def _zeros_tables(power: int) -> UInt32Array:
    """What 2**power bytes of zeros make of each byte of the register."""
    values = np.arange(256, dtype=np.uint32)
    bytes_alone = np.stack([values << np.uint32(8 * byte) for byte in range(4)])
    if power:
        smaller = _zeros_tables(power - 1)
        return _apply(smaller, _apply(smaller, bytes_alone))
    one: UInt32Array = _byte_table()[bytes_alone & 0xFF] ^ bytes_alone >> np.uint32(8)
    return one
