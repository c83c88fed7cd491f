"""Arrays on the wire: written as ``.npy``, read from ``.npy`` and from atdata's compact form, without a copy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.codec import Buffer, array_view, as_array, decode_npy, encode_npy
from shoal.errors import CodecError, DecodeError

__all__ = [
    "NPY_MAGIC",
    "ArrayBytes",
    "array_or_bytes",
    "array_reader",
    "array_writer",
    "as_array",
    "decode_array",
    "encode_npy",
    "read_compact",
]

Array = npt.NDArray[Any]

NPY_MAGIC = b"\x93NUMPY"
_MAX_DIMENSIONS = 64
_MAX_DTYPE = 32  # the longest name of a dtype that is looked for in bytes of unknown meaning
_MAX_HEADER = 4096  # longer ones are not remembered
_BUFFERED = "biufc"  # the kinds that offer their bytes as they are
_DTYPE = re.compile(rb"[<>|=][biufcmMSUV?]\d*(?:\[[\w/]+\])?")


class ArrayBytes(NamedTuple):
    """Where an array's numbers lie within its bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


def decode_array(data: Buffer) -> np.ndarray[Any, Any]:
    """The array in a field's bytes, ``.npy`` or compact, as a read-only view of them.

    Raises:
        DecodeError: The bytes are neither.

    Example:
        >>> decode_array(bytes.fromhex("033c693201020000000000000000000100"))
        array([0, 1], dtype=int16)
    """
    if data[:6] == NPY_MAGIC:
        return decode_npy(data)
    found = read_compact(data)
    return array_view(data, found.dtype, found.shape, found.offset)


def array_reader(decode: Callable[[memoryview], Array]) -> Callable[[memoryview], Array]:
    """``decode``, made quick for arrays that look like the one before: same header, same size.

    Whatever ``decode`` refuses stays refused, because only what it took is remembered.
    """
    last: tuple[bytes, int, tuple[int, ...], Any, Any] = (b"", -1, (), None, None)

    def read(data: memoryview) -> Array:
        nonlocal last  # one tuple, replaced as a whole, so threads see the old one or the new one
        header, size, shape, dtype, order = last
        if len(data) == size and bytes(data[: len(header)]) == header:
            return np.ndarray(shape, dtype, data if data.readonly else data.toreadonly(), len(header), None, order)
        array = decode(data)
        start = len(data) - array.nbytes
        if start <= _MAX_HEADER:
            order = "C" if array.flags.c_contiguous else "F"
            last = (bytes(data[:start]), len(data), array.shape, array.dtype, order)
        return array

    return read


def array_writer(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """``encode``, made quick for arrays that look like the one before: same dtype, same shape, in C order."""
    last: tuple[Any, tuple[int, ...], bytes] = (None, (), b"")

    def write(value: Any) -> bytes:
        nonlocal last
        dtype, shape, header = last
        if value.__class__ is np.ndarray and value.dtype is dtype and value.shape == shape and value.flags.c_contiguous:
            return b"".join((header, value))  # type: ignore[arg-type] # it offers its bytes
        data = encode(value)
        if (
            value.__class__ is np.ndarray
            and value.dtype.kind in _BUFFERED
            and value.flags.c_contiguous
            and value.nbytes
        ):
            last = (value.dtype, value.shape, data[: len(data) - value.nbytes])
        return data

    return write


def read_compact(data: Buffer) -> ArrayBytes:
    """The header of atdata's compact form: ``u8 n | dtype.str | u8 ndim | ndim x int64 | the numbers, in C order``."""
    end = 1 + (data[0] if len(data) else 0)
    name = bytes(data[1:end])
    dimensions = data[end] if end < len(data) else -1
    offset = end + 1 + 8 * dimensions
    if not _DTYPE.fullmatch(name) or not 0 <= dimensions <= _MAX_DIMENSIONS or offset > len(data):
        raise DecodeError("these bytes are not an array", expected=".npy or atdata's compact form", found=_start(data))
    dtype = _dtype(name)
    shape = tuple(int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(end + 1, offset, 8))
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != len(data) - offset:
        raise DecodeError("the array has another size than its header says", expected=size, found=len(data) - offset)
    return ArrayBytes(dtype, shape, offset)


def _dtype(name: bytes) -> np.dtype[Any]:
    try:
        return np.dtype(name.decode("ascii"))
    except (TypeError, ValueError) as error:
        raise DecodeError("these bytes are not an array", expected="a NumPy dtype", found=name) from error


def _start(data: Buffer) -> str:
    return f"{len(data)} bytes from {bytes(data[:8])!r}" if len(data) else "no bytes"


def array_or_bytes(data: Buffer) -> Array | bytes:
    """Bytes of unknown meaning: an array where they are exactly one, ``.npy`` or compact; else as they are."""
    if data[:6] == NPY_MAGIC or (len(data) > 3 and 2 <= data[0] <= _MAX_DTYPE and data[1] in b"<>|="):
        try:
            return decode_array(data)
        except CodecError:
            return bytes(data)
    return bytes(data)
