"""``tf.train.Example`` and ``tf.train.SequenceExample``, encoded and decoded without TensorFlow.

An Example is a protocol buffer of features by name; a feature is a list of byte strings, of float32 or of int64. Most
Examples have one value, or one long array, in each feature: `_features` decodes these without the general parser.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import numpy as np

from shoal.errors import DecodeError, EncodeError

__all__ = ["decode_example", "encode_example"]

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

    Examples:
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
    return [] if as_list else None


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

    A value may also be a list of these, or an array of one axis; an empty list is a feature without a kind. Names are
    sorted, so equal features give equal bytes. Raises EncodeError for anything else.

    Examples:
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
    if isinstance(value, (list, tuple)) and not value:  # a feature without a kind, which every parser takes for empty
        return b""
    if isinstance(value, (list, tuple)) and isinstance(value[0], (bytes, bytearray, memoryview, str)):
        return _delimited(_BYTES, b"".join(_delimited(1, _plain(item)) for item in value))
    array = np.atleast_1d(np.asarray(value))
    if array.ndim == 1 and array.dtype.kind in "SU":
        return _delimited(_BYTES, b"".join(_delimited(1, _plain(item)) for item in array.tolist()))
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
