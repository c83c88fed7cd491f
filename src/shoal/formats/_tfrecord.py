"""TFRecord files, ``tf.train.Example`` and CRC-32C.

It is a protocol buffer of features by name, each a list of byte strings, of float32 or of int64. Nearly all Examples
have one value, or one long array, in each feature; those are quick here.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import ChecksumError, DecodeError, EncodeError, OptionError, TruncatedError
from shoal.store import ObjectReader

from ._sources import Values, kept_offsets

__all__ = [
    "RecordOptions",
    "TFRecordPart",
    "crc32c",
    "crc32c_of_ranges",
    "decode_example",
    "encode_example",
    "frame",
    "pack_record",
]

Int64 = npt.NDArray[np.int64]
Compression = Literal["", "GZIP", "ZLIB"]
UInt32 = npt.NDArray[np.uint32]


# ------------------------------------------------------------------------------------------------------- TFRecord files


# A record is its length (8 bytes), the masked CRC-32C of those 8 bytes, the data, and the masked CRC-32C of the data.

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
_FRAME = _HEAD.size + _TAIL.size
_CHUNK = 8 << 20
_LOOK = 256 << 10
_GAP = 64 << 10
"""Records nearer to each other than this are read at once."""
_LOOKED_AT = 32
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
    def _starts(self) -> Int64:
        """Where each record begins, and where the last one ends."""
        if self._window is None:
            return kept_offsets(self._reader, "tfrecord", lambda reader: _record_starts(_Stored(reader)))
        return kept_offsets(self._reader, f"tfrecord {self._window}", lambda _: _record_starts(self._plain))

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
        for part in self._chunks(_LOOK):
            chunk += part
            starts, end = _walk(chunk, 0, 0)
            if len(starts):
                stops = np.append(starts[1:], end)
                for at in range(min(_LOOKED_AT, len(starts))):
                    with contextlib.suppress(ChecksumError, DecodeError):
                        yield self._decoded(self._records(chunk, starts[at : at + 1], stops[at : at + 1], 0)[0], None)
                return

    def read(self, rows: Int64, fields: Sequence[str] | None) -> list[Values]:
        """These records: those near each other are read at once."""
        order = np.argsort(rows, kind="stable")
        starts, stops = self._starts[:-1][rows[order]], self._starts[1:][rows[order]]
        far = np.flatnonzero(starts[1:] > np.maximum.accumulate(stops)[:-1] + _GAP) + 1
        found: list[Values] = [{}] * len(rows)
        wanted = None if fields is None else frozenset(fields)
        for run in np.split(np.arange(len(rows)), far) if len(rows) else ():
            base = int(starts[run[0]])
            data = self._plain.read(base, int(stops[run].max()))
            records = self._records(data, starts[run] - base, stops[run] - base, base)
            for place, record in zip(order[run].tolist(), records, strict=True):
                found[place] = self._decoded(record, wanted)
        return found

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All records in order, a few MiB of the file at a time."""
        return self._runs(fields, _CHUNK)

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

    def _records(self, data: bytes, starts: Int64, stops: Int64, base: int) -> list[bytes]:
        """The data of records that lie in ``data``, each checked."""
        firsts, lasts = starts + _HEAD.size, stops - _TAIL.size
        if len(starts) and int(stops.max()) > len(data):
            raise TruncatedError("the file ends inside a record", offset=base + len(data))
        if self._options.verify:
            self._check(data, firsts, lasts, base)
        return [data[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]

    def _check(self, data: bytes, firsts: Int64, lasts: Int64, base: int) -> None:
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


def _record_starts(plain: _Bytes) -> Int64:
    """Where each record of a file begins, and where the last one ends. Only the lengths of large records are read."""
    parts, base = [], 0
    while base < plain.size:
        data = plain.read(base, base + _CHUNK)
        starts, end = _walk(data, 0, base, inside=plain.size - base)
        if not len(starts):
            raise _cut_short(base, data)
        parts.append(starts + base)
        base += end
    return np.concatenate([*parts, np.array([base], np.int64)]).astype(np.int64)


def _walk(data: bytes, at: int, base: int, inside: int | None = None) -> tuple[Int64, int]:
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


def _inflated(reader: ObjectReader, window: int, size: int = _CHUNK) -> Iterator[bytes]:
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


def pack_record(sample: Mapping[str, Any]) -> bytes:
    """A framed ``tf.train.Example`` of a sample's fields."""
    return frame(encode_example(sample))


# ---------------------------------------------------------------- tf.train.Example, read and written without TensorFlow


_BYTES, _FLOATS, _INTS = 1, 2, 3
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_ONE_FLOAT = struct.Struct("<f")
_MISSING: Any = object()
_FEW = 16
"""Up to this many numbers a loop is quicker than arrays."""


def decode_example(
    data: bytes, wanted: Container[str] | None = None, lists: Container[str] | bool = ()
) -> dict[str, Any]:
    """The features of an Example by name.

    One value is that value (``bytes``, ``int`` or ``float``), unless ``lists`` names the feature, or is True; several
    are an array of int64 or float32, or a list of ``bytes``; none are None. ``wanted`` says which features are read.
    The feature lists of a SequenceExample are lists, with an item for each step.

    Raises DecodeError for bytes that are no Example.

    Example:
        >>> data = encode_example({"name": b"cat", "legs": 4, "weights": [1.5, 2.5]})
        >>> decode_example(data)
        {'legs': 4, 'name': b'cat', 'weights': array([1.5, 2.5], dtype=float32)}
    """
    found: dict[str, Any] = {}
    try:
        for tag, start, stop in _messages(data, 0, len(data)):
            if tag == 1:
                _features(data, start, stop, wanted, lists, found)
            elif tag == 2:
                for _, first, last in _messages(data, start, stop):
                    _entry(data, first, last, wanted, lists, _feature_list, found)
    except (IndexError, ValueError, struct.error) as error:
        raise DecodeError("these bytes are no tf.train.Example", found=error) from error
    return found


def _features(
    data: bytes, at: int, stop: int, wanted: Container[str] | None, lists: Container[str] | bool, found: dict[str, Any]
) -> None:
    """All features. What every writer writes is read here, in one go; anything else is left to `_entry`.

    That is: a name of up to 127 bytes, then a feature with one list, which has one part. Its lengths must fit each
    other, so that nothing damaged is taken for it.
    """
    while at < stop:
        begin = at
        at += 1
        size = data[at]
        at += 1
        if size & 0x80:
            size, at = _varint(data, at - 1)
        end = at + size
        if data[begin] != 0x0A or end > stop:
            raise ValueError("a part goes past its end")
        value = _MISSING
        if size > 8 and data[at] == 0x0A and (middle := at + 2 + data[at + 1]) < end - 6 and data[middle] == 0x12:
            name = str(data[at + 2 : middle], "utf-8")
            if wanted is not None and name not in wanted:
                at = end
                continue
            value = _single(data, middle + 1, end, lists if isinstance(lists, bool) else name in lists)
            if value is not _MISSING:
                found[name] = value
        if value is _MISSING:
            _entry(data, at, end, wanted, lists, _feature, found)
        at = end


def _single(data: bytes, at: int, end: int, as_list: bool) -> Any:
    """The feature that begins at its length; _MISSING where it is not one list of one part up to ``end``."""
    size = data[at]
    at += 1
    if size & 0x80:
        size, at = _varint(data, at - 1)
    kind = data[at]
    if at + size != end:
        return _MISSING
    at += 1
    size = data[at]
    at += 1
    if size & 0x80:
        size, at = _varint(data, at - 1)
    if at + size != end or size < 2 or data[at] != 0x0A:
        return _MISSING
    at += 1
    size = data[at]
    at += 1
    if size & 0x80:
        size, at = _varint(data, at - 1)
    if at + size != end:
        return _MISSING
    if kind == 0x0A:
        return [data[at:end]] if as_list else data[at:end]
    return _packed(data, at, end, kind, as_list)


def _packed(data: bytes, at: int, end: int, kind: int, as_list: bool) -> Any:
    size = end - at
    if kind == 0x1A:
        if not as_list and 0 < size <= 10:
            value, after = _varint(data, at)
            if after == end:  # a single number, as most are
                return _signed(value)
        return _one_or_all(_packed_ints(data[at:end]), as_list)
    if kind == 0x12:
        if size == 4 and not as_list:
            return _ONE_FLOAT.unpack_from(data, at)[0]
        return _one_or_all(_packed_floats(data[at:end]), as_list)
    return _MISSING


def _signed(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def _one_or_all(values: Any, as_list: bool) -> Any:
    if as_list or len(values) > 1:
        return values
    return values.item() if len(values) else None


def _messages(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The parts of a message that have a length: the number of each, where it begins, where it ends."""
    while at < stop:
        tag = data[at]
        at += 1
        if tag & 0x80:
            tag, at = _varint(data, at - 1)
        kind = tag & 7
        if kind == _DELIMITED:
            size = data[at]
            at += 1
            if size & 0x80:
                size, at = _varint(data, at - 1)
            end = at + size
            if end > stop:
                raise ValueError(f"a part of {size} bytes goes past its end")
            yield tag >> 3, at, end
            at = end
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"no such wire type: {kind}")
    if at > stop:
        raise ValueError("it ends inside a value")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number takes more than ten bytes")


def _entry(
    data: bytes,
    at: int,
    stop: int,
    wanted: Container[str] | None,
    lists: Container[str] | bool,
    read: Callable[[bytes, int, int, bool], Any],
    found: dict[str, Any],
) -> None:
    """One name with its feature."""
    name, start, end = "", stop, stop
    for tag, first, last in _messages(data, at, stop):
        if tag == 1:
            name = str(data[first:last], "utf-8")
        elif tag == 2:
            start, end = first, last
    if wanted is None or name in wanted:
        found[name] = read(data, start, end, lists if isinstance(lists, bool) else name in lists)


def _feature_list(data: bytes, at: int, stop: int, as_list: bool) -> list[Any]:
    return [_feature(data, start, end, as_list) for tag, start, end in _messages(data, at, stop) if tag == 1]


def _feature(data: bytes, at: int, stop: int, as_list: bool) -> Any:
    kind, start, end = 0, stop, stop
    for tag, first, last in _messages(data, at, stop):
        kind, start, end = tag, first, last
    if kind == _BYTES:
        values = [data[first:last] for tag, first, last in _messages(data, start, end) if tag == 1]
        return values if as_list or len(values) > 1 else values[0] if values else None
    if kind == _FLOATS:
        return _numbers(data, start, end, as_list, _FIXED32, _packed_floats)
    if kind == _INTS:
        return _numbers(data, start, end, as_list, _VARINT, _packed_ints)
    return None


def _numbers(data: bytes, at: int, stop: int, as_list: bool, single: int, unpack: Callable[[bytes], Any]) -> Any:
    """Numbers packed in one run, as all writers do, or one by one, as the format allows too."""
    parts = []
    while at < stop:
        tag, at = _varint(data, at)
        if tag == 1 << 3 | _DELIMITED:
            size, at = _varint(data, at)
            if at + size > stop:
                raise ValueError(f"{size} bytes of numbers go past their end")
            parts.append(unpack(data[at : at + size]))
            at += size
        elif tag == 1 << 3 | single:
            end = at + 4 if single == _FIXED32 else _varint(data, at)[1]
            parts.append(unpack(data[at:end]))
            at = end
        else:
            raise ValueError(f"no such part of a list of numbers: {tag}")
    values = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else unpack(b"")
    return _one_or_all(values, as_list)


def _packed_floats(data: bytes) -> Any:
    return np.frombuffer(data, "<f4")


def _packed_ints(data: bytes) -> Any:
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if len(raw) and (not len(ends) or ends[-1] != len(raw) - 1):
        raise ValueError("the last number has no end")
    if len(ends) == len(raw):
        return raw.astype(np.int64)
    if len(ends) <= _FEW:
        return np.array(list(_each_int(data)), np.uint64).view(np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    if int((ends - starts).max()) > 9:
        raise ValueError("a number takes more than ten bytes")
    shifts = (np.arange(len(raw)) - np.repeat(starts, ends - starts + 1)) * 7
    pieces = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(pieces, starts).view(np.int64)


def _each_int(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value & 0xFFFFFFFFFFFFFFFF


def encode_example(features: Mapping[str, Any]) -> bytes:
    """An Example with these features: bytes and text, whole numbers and truth values, or floats (which become float32).

    A value may also be a list of these, or an array of one axis. Names are sorted, so equal features give equal bytes.
    Raises EncodeError for anything else.

    Example:
        >>> encode_example({"a": 1}).hex(" ")
        '0a 0c 0a 0a 0a 01 61 12 05 1a 03 0a 01 01'
    """
    entries = b"".join(
        _delimited(1, _delimited(1, name.encode()) + _delimited(2, _encoded(name, features[name])))
        for name in sorted(features)
    )
    return _delimited(1, entries)


def _encoded(name: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        return _delimited(_BYTES, _delimited(1, _plain(value)))
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (bytes, bytearray, memoryview, str)):
        return _delimited(_BYTES, b"".join(_delimited(1, _plain(item)) for item in value))
    array = np.atleast_1d(np.asarray(value))
    if array.ndim == 1 and array.dtype.kind == "f":
        return _delimited(_FLOATS, _delimited(1, array.astype("<f4").tobytes()))
    if array.ndim == 1 and array.dtype.kind in "iub":
        return _delimited(_INTS, _delimited(1, _pack_ints(name, array)))
    raise EncodeError(
        "a feature is bytes, text, numbers or a list of these",
        found=f"{type(value).__name__} of {array.ndim} axes and type {array.dtype}",
        field=name,
        hint="encode it first, as .npy for example",
    )


def _plain(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _pack_ints(name: str, array: Any) -> bytes:
    if array.dtype == np.uint64 and len(array) and int(array.max()) >= 1 << 63:
        raise EncodeError("a whole number of a feature has 64 bits with a sign", found=int(array.max()), field=name)
    values = array.astype(np.int64).view(np.uint64)
    if not len(values) or int(values.max()) < 0x80:
        return bytes(values.astype(np.uint8))
    return b"".join(map(_as_varint, values.tolist()))


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | _DELIMITED,)) + _as_varint(len(data)) + data


# ---------------------------------------------------------------------- CRC-32C (Castagnoli), as TFRecord files have it


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

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    found = _compiled()
    if found is not None:
        return found(data)
    return int(_by_numpy(data, np.zeros(1, np.int64), np.array([len(data)]))[0])


def crc32c_of_ranges(data: bytes, starts: Int64, stops: Int64) -> UInt32:
    """The checksums of several ranges of some bytes."""
    found = _compiled()
    if found is None:
        return _by_numpy(data, starts, stops)
    ranges = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.array([found(data[start:stop]) for start, stop in ranges], np.uint32)


def _by_numpy(data: bytes, starts: Int64, stops: Int64) -> UInt32:
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


def _fill(registers: UInt32, data: bytes, starts: Int64, sizes: Int64, counts: Int64, firsts: Int64) -> None:
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


def _ones_shifted(sizes: Int64) -> UInt32:
    """What as many bytes of zeros make of a register of ones."""
    found = np.full(len(sizes), _ONES, np.uint32)
    for power in range(int(sizes.max(initial=0)).bit_length()):
        found = np.where(sizes >> power & 1, _apply(_zeros_tables(power), found), found).astype(np.uint32)
    return found


def crc32c_of_words(words: npt.NDArray[np.uint64]) -> UInt32:
    """The checksums of many numbers of eight bytes, all at once."""
    steps = np.ascontiguousarray(words, "<u8").view("<u2").reshape(-1, 4)
    table, register = _pair_table(), np.full(len(words), _ONES, np.uint32)
    for column in range(4):
        register = table[(register & 0xFFFF) ^ steps[:, column]] ^ register >> np.uint32(16)
    return register ^ np.uint32(_ONES)


@functools.cache
def _byte_table() -> UInt32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table.astype(np.uint32)


@functools.cache
def _pair_table() -> UInt32:
    """What two bytes at once do to the register."""
    one, pairs = _byte_table(), np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        pairs = one[pairs & 0xFF] ^ pairs >> np.uint32(8)
    return pairs


def _apply(tables: UInt32, registers: UInt32) -> UInt32:
    """Registers after the bytes of zeros that these tables are about."""
    found: UInt32 = tables[0][registers & 0xFF]
    for byte in (1, 2, 3):
        found = found ^ tables[byte][registers >> np.uint32(8 * byte) & 0xFF]
    return found


@functools.cache
def _piece_tables() -> UInt32:
    """What a piece of zeros makes of each byte of the register."""
    return _zeros_tables(_PIECE.bit_length() - 1)


@functools.cache
def _zeros_tables(power: int) -> UInt32:
    """What 2**power bytes of zeros make of each byte of the register."""
    values = np.arange(256, dtype=np.uint32)
    bytes_alone = np.stack([values << np.uint32(8 * byte) for byte in range(4)])
    if power:
        smaller = _zeros_tables(power - 1)
        return _apply(smaller, _apply(smaller, bytes_alone))
    one: UInt32 = _byte_table()[bytes_alone & 0xFF] ^ bytes_alone >> np.uint32(8)
    return one
