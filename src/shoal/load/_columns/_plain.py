"""Texts, byte strings, numbers and truth values of many payloads at once, where walking found them stored alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.codec import Buffer
from shoal.schema import BoolType, BytesType, FieldType, FloatType, IntType, OptionalType, StrType
from shoal.shard import as_arrow

from ._walk import Walked, gather

__all__ = ["Values", "inner_type", "is_plain", "plain_values", "values_in_place"]

Int64 = npt.NDArray[np.int64]
Column = npt.NDArray[Any]
_AT_ONCE = 1 << 16

_FLOAT64, _FALSE, _TRUE = 0xCB, 0xC2, 0xC3
_INTS = {
    0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xCF: ">u8", 0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8",
}  # fmt: skip
_IS_INT = np.zeros(256, bool)
_IS_INT[:0x80] = _IS_INT[0xE0:] = _IS_INT[list(_INTS)] = True
_IS_BYTES = np.zeros(256, bool)
_IS_BYTES[0xC4:0xC7] = True
_IS_TEXT = np.zeros(256, bool)
_IS_TEXT[0xA0:0xC0] = _IS_TEXT[0xD9:0xDC] = True


def inner_type(kind: FieldType) -> FieldType:
    """What an optional field holds where it holds something."""
    return kind.of if isinstance(kind, OptionalType) else kind


def is_plain(kind: FieldType) -> bool:
    """Whether fields of this type can be read by `plain_values`."""
    return type(inner_type(kind)) in _READERS


class Values(Protocol):
    """A field of many samples; ``tolist`` of some of them gives Python values."""

    def __getitem__(self, rows: Int64 | slice, /) -> Column:
        """Of some of the samples."""
        ...


def plain_values(data: Buffer, walked: Walked, kind: FieldType) -> Column | None:
    """One plain field of all payloads: an array of numbers or truth values, or of texts or byte strings as objects.

    None where it is stored in more than one way, or in one that is not simply the value: a number that is none in some
    samples, a whole number in a field of floats. Decoding the samples says what is right then.
    """
    return _READERS[type(inner_type(kind))](data, walked)


def values_in_place(data: Buffer, walked: Walked, kind: FieldType) -> Values | None:
    """The same of very many payloads that stay where they are: texts and byte strings are made when asked for."""
    inner = inner_type(kind)
    if isinstance(inner, StrType):
        lying = _lying_texts(data, walked)
        return None if lying is None or not _are_texts(lying) else _Texts(lying)
    if isinstance(inner, BytesType):
        return _ByteStrings(memoryview(data), walked) if bool(_IS_BYTES[walked.codes].all()) else None
    return plain_values(data, walked, kind)


class _Texts:
    def __init__(self, lying: pa.Array) -> None:
        self._lying = lying

    def __getitem__(self, rows: Int64 | slice) -> Column:
        return _made_texts(self._lying, _numbers(rows, len(self._lying) // 2))


class _ByteStrings:
    def __init__(self, view: memoryview, walked: Walked) -> None:
        self._view = view
        self._walked = walked

    def __getitem__(self, rows: Int64 | slice) -> Column:
        return _made_bytes(self._view, self._walked.starts[rows], self._walked.sizes[rows])


def _numbers(rows: Int64 | slice, count: int) -> Int64:
    return np.arange(count)[rows] if isinstance(rows, slice) else rows


def _are_texts(lying: pa.Array) -> bool:
    """Whether all are UTF-8; looked at in parts, since Arrow copies them for that."""
    count = len(lying) // 2
    try:
        for start in range(0, count, _AT_ONCE):
            lying.take(as_arrow(2 * np.arange(start, min(start + _AT_ONCE, count)))).validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _floats(data: Buffer, walked: Walked) -> Column | None:
    if not bool((walked.codes == _FLOAT64).all()):
        return None
    return gather(data, walked.starts, 8).view(">f8").astype(np.float64)


def _bools(data: Buffer, walked: Walked) -> Column | None:
    values: Column = walked.codes == _TRUE
    return values if bool((values | (walked.codes == _FALSE)).all()) else None


def _ints(data: Buffer, walked: Walked) -> Column | None:
    codes = walked.codes
    if not bool(_IS_INT[codes].all()):
        return None
    values = codes.astype(np.int8).astype(np.int64)  # right for those that are their own code
    for code, dtype in _INTS.items():
        rows = np.flatnonzero(codes == code)
        if len(rows):
            found = gather(data, walked.starts[rows], np.dtype(dtype).itemsize).view(dtype)
            if code == 0xCF and bool((found >> np.uint64(63)).any()):  # Python has room for it, int64 has not
                return None
            values[rows] = found.astype(np.int64)
    return values


def _texts(data: Buffer, walked: Walked) -> Column | None:
    lying = _lying_texts(data, walked)
    try:
        return None if lying is None else _made_texts(lying, np.arange(len(walked.starts)))
    except pa.ArrowException:  # one is not UTF-8: reading the sample alone says which
        return None


def _lying_texts(data: Buffer, walked: Walked) -> pa.Array | None:
    """Texts over the bytes as they lie, as Arrow has them: text, gap, text, gap.

    Its offsets must rise, so payloads that do not lie in order are not for it.
    """
    if not bool(_IS_TEXT[walked.codes].all()):
        return None
    count = len(walked.starts)
    offsets = np.empty(2 * count + 1, np.int64)
    offsets[:-1:2] = walked.starts
    np.add(walked.starts, walked.sizes, out=offsets[1::2])
    offsets[-1] = offsets[-2]
    if bool((offsets[1:] < offsets[:-1]).any()):
        return None
    return pa.Array.from_buffers(pa.large_utf8(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _made_texts(lying: pa.Array, rows: Int64) -> Column:
    texts: Column = lying.take(as_arrow(2 * rows)).to_numpy(zero_copy_only=False)
    return texts


def _byte_strings(data: Buffer, walked: Walked) -> Column | None:
    if not bool(_IS_BYTES[walked.codes].all()):
        return None
    return _made_bytes(memoryview(data), walked.starts, walked.sizes)


def _made_bytes(view: memoryview, starts: Int64, sizes: Int64) -> Column:
    stops = (starts + sizes).tolist()
    values = np.empty(len(stops), object)
    values[:] = [bytes(view[start:stop]) for start, stop in zip(starts.tolist(), stops, strict=True)]
    return values


_READERS: Mapping[type, Callable[[Buffer, Walked], Column | None]] = {
    StrType: _texts,
    IntType: _ints,
    FloatType: _floats,
    BoolType: _bools,
    BytesType: _byte_strings,
}
