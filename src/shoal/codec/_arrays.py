"""NumPy's ``.npy``: read as a view of the given bytes, without a copy.

The header is a few dozen bytes of text that recur from sample to sample, so it is parsed once and remembered.
"""

from __future__ import annotations

import ast
import io
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.codec._codec import Buffer, Codec
from shoal.codec._pickle import refuse_pickle
from shoal.errors import DecodeError, EncodeError

__all__ = ["CODECS", "Array", "array_view", "as_array", "decode_npy", "encode_npy"]

Array = npt.NDArray[Any]

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 20  # room for some 40,000 columns
_MAX_CACHED = 10_000  # longer headers are parsed each time, so that hostile ones cannot fill the memory
_HEADER_KEYS = {"descr", "fortran_order", "shape"}
_PREFIX = {1: 10, 2: 12, 3: 12}  # by version: the bytes before the header's text
_OBJECTS = -1


class _Layout(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Any
    size: int  # in bytes; _OBJECTS where only pickle knows


def array_view(data: Buffer, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, order: Any = "C") -> Array:
    """A read-only array over ``data`` from ``offset`` on."""
    # Read-only, because the bytes may be a shared block, where writing would change the neighbours' data.
    return np.ndarray(shape, dtype, data if type(data) is bytes else memoryview(data).toreadonly(), offset, None, order)


def decode_npy(data: Buffer, allow_pickle: bool = False) -> Array:
    """The array in ``data``, as a read-only view of it.

    Raises:
        DecodeError: The header is damaged, or declares more or fewer bytes than there are.
        UnsafeCodecError: The array holds Python objects and ``allow_pickle`` is false.

    Example:
        >>> decode_npy(encode_npy(np.arange(3)))
        array([0, 1, 2])
    """
    end = _header_end(data)
    dtype, shape, order, size = (_cached_header if end <= _MAX_CACHED else _parse_header)(bytes(data[:end]))
    if size == _OBJECTS:
        return _decode_objects(data, allow_pickle)
    if len(data) - end != size:
        found = len(data) - end
        raise DecodeError("the array has another size than its header says", expected=size, found=found, offset=end)
    return array_view(data, dtype, shape, end, order)


def _header_end(data: Buffer) -> int:
    if len(data) < _PREFIX[2]:
        raise DecodeError("these bytes are too few for a .npy file", expected=f"{_PREFIX[2]} or more", found=len(data))
    # Version 1 has a length of two bytes, later ones of four; _parse_header refuses what is neither.
    size = data[8] | data[9] << 8 if data[6] == 1 else int.from_bytes(data[8:12], "little")
    end = _PREFIX.get(data[6], 0) + size
    if size > _MAX_HEADER or end > len(data):
        limit = min(_MAX_HEADER, len(data))
        raise DecodeError("the .npy header is too long", expected=f"at most {limit} bytes", found=size, offset=8)
    return end


def _parse_header(header: bytes) -> _Layout:
    if not header.startswith(_MAGIC) or header[6] not in _PREFIX:
        raise DecodeError("these bytes are not a .npy file", expected=_MAGIC, found=header[:8], offset=0)
    try:
        text = header[_PREFIX[header[6]] :].decode("utf-8" if header[6] == 3 else "latin-1")
        fields = ast.literal_eval(text.strip())
        if not isinstance(fields, dict) or fields.keys() != _HEADER_KEYS:
            raise ValueError(f"the keys are not {sorted(_HEADER_KEYS)}")
        return _layout(fields["descr"], fields["fortran_order"], fields["shape"])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise DecodeError("the .npy header is damaged", found=error, offset=10) from error


_cached_header = lru_cache(maxsize=4096)(_parse_header)


def _layout(descr: Any, fortran: Any, shape: Any) -> _Layout:
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"{shape!r} is not a shape")
    if type(fortran) is not bool:
        raise ValueError(f"fortran_order is {fortran!r}")
    dtype = np.lib.format.descr_to_dtype(descr)
    size = _OBJECTS if dtype.hasobject else math.prod(shape) * dtype.itemsize
    return _Layout(dtype, shape, "F" if fortran else "C", size)


def _decode_objects(data: Buffer, allow_pickle: bool) -> Array:
    if not allow_pickle:
        raise refuse_pickle("an array of Python objects")
    array: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=True)
    return array


def as_array(value: Any) -> Array:
    """The array that ``value`` is or stands for: a NumPy array or scalar, a tensor, anything with ``__array__``."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # a torch tensor, wherever it lives; torch itself is not imported for it
        value = value.detach().cpu().numpy()
    elif not hasattr(value, "__array__"):
        raise EncodeError("this is not an array", expected="an array or a tensor", found=type(value).__name__)
    return np.asarray(value)


def encode_npy(value: Any, allow_pickle: bool = False) -> bytes:
    """The ``.npy`` bytes of an array, the same as ``numpy.save`` writes."""
    array = as_array(value)
    if array.dtype.hasobject and not allow_pickle:
        raise refuse_pickle("an array of Python objects")
    if array.dtype.isbuiltin == 2:
        # NumPy would write bfloat16 and its like as anonymous bytes, which come back as another type.
        raise EncodeError("npy cannot hold this type", expected="a NumPy type", found=array.dtype)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    header = None if array.dtype.hasobject else _write_header(array.dtype, array.shape, fortran)
    if header is None:
        return _encode_slowly(array, allow_pickle)
    return b"".join((header, _raw(array.T if fortran else array)))


@lru_cache(maxsize=4096)
def _write_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes | None:
    """The header in version 1.0, or None for what it cannot hold (thousands of columns, names outside latin-1)."""
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    stream = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(stream, fields)
    except (ValueError, UnicodeEncodeError):
        return None
    return stream.getvalue()


def _raw(array: Array) -> bytes | memoryview:
    if not array.nbytes:
        return b""
    # As bytes first: datetimes and structures do not offer the buffer protocol themselves.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _encode_slowly(array: Array, allow_pickle: bool) -> bytes:
    # The first version that can hold it, as numpy.save finds it, but without its warning about NumPy before 1.17.
    for version in ((1, 0), (2, 0), (3, 0)):
        stream = io.BytesIO()
        try:
            np.lib.format.write_array(stream, array, version, allow_pickle=allow_pickle)
        except ValueError:
            continue
        return stream.getvalue()
    raise EncodeError("npy cannot hold this type", found=array.dtype)


CODECS = (
    Codec(
        "npy",
        ("npy",),
        "a .npy array",
        lambda limits: lambda data: decode_npy(data, limits.allow_pickle),
        lambda options: lambda value: encode_npy(value, options.allow_pickle),
        automatic=True,
    ),
)
