"""Tenbin: webdataset's ``.ten``, a list of arrays, each a header chunk and a data chunk.

A chunk is the magic, the length as int64, and the bytes padded to a multiple of 64. A header chunk is the type's short
name and an array name in 8 bytes each, the number of dimensions, and the dimensions, as int64. All is little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.codec._array import Array, array_view, as_array
from shoal.codec._codec import Buffer, Codec
from shoal.errors import DecodeError, EncodeError

__all__ = ["CODECS"]

_MAGIC = b"~TenBin~"
_PREFIX = struct.Struct("<8sq")
_HEADER = struct.Struct("<8s8sq")
_ALIGN = 64
_TYPES = {name: np.dtype("<" + name) for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def _decode_tenbin(data: Buffer) -> list[Array]:
    chunks = list(_chunks(data))
    if len(chunks) % 2:
        raise DecodeError("the last array has a header and no data", offset=chunks[-1][0])
    return [_decode_array(data, *header, *payload) for header, payload in zip(chunks[::2], chunks[1::2], strict=True)]


def _chunks(data: Buffer) -> Iterator[tuple[int, int]]:
    """Where each chunk's bytes start, and how many there are."""
    offset = 0
    while offset < len(data):
        magic, size = _PREFIX.unpack_from(data, offset)
        if magic != _MAGIC:
            raise DecodeError("a chunk does not start with the magic", expected=_MAGIC, found=magic, offset=offset)
        start = offset + _PREFIX.size
        if not 0 <= size <= len(data) - start:
            raise DecodeError("a chunk goes past the end", expected=size, found=len(data) - start, offset=offset)
        yield start, size
        offset = start + size + -size % _ALIGN


def _decode_array(data: Buffer, header: int, header_size: int, start: int, size: int) -> Array:
    if header_size < _HEADER.size:
        raise DecodeError("an array header is too short", expected=_HEADER.size, found=header_size, offset=header)
    name, _, rank = _HEADER.unpack_from(data, header)
    if header_size != _HEADER.size + 8 * rank:
        raise DecodeError(
            "an array header has the wrong size", expected=_HEADER.size + 8 * rank, found=header_size, offset=header
        )
    dtype = _TYPES.get(name.rstrip(b"\0").decode("latin-1"))
    if dtype is None:
        raise DecodeError("an array has an unknown type", expected=" ".join(_TYPES), found=name, offset=header)
    shape = struct.unpack_from(f"<{rank}q", data, header + _HEADER.size)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise DecodeError(
            "an array's shape does not fit its data", expected=f"{size} bytes", found=f"{dtype}{shape}", offset=header
        )
    return array_view(data, dtype, shape, start)


def _encode_tenbin(value: Any) -> bytes:
    arrays = value if isinstance(value, list | tuple) else [value]
    return b"".join(part for array in arrays for part in _encode_array(as_array(array)))


def _encode_array(array: Array) -> Iterator[bytes]:
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _NAMES:
        raise EncodeError("tenbin cannot hold this type", expected=" ".join(_TYPES), found=array.dtype)
    name = _NAMES[dtype].encode()
    yield from _chunk(_HEADER.pack(name, b"", array.ndim) + struct.pack(f"<{array.ndim}q", *array.shape))
    yield from _chunk(array.astype(dtype, copy=False).tobytes())


def _chunk(data: bytes) -> Iterator[bytes]:
    yield _PREFIX.pack(_MAGIC, len(data))
    yield data
    yield bytes(-len(data) % _ALIGN)


CODECS = (
    Codec(
        "tenbin",
        ("ten", "tenbin", "tb"),
        "a tenbin list of arrays",
        lambda limits: _decode_tenbin,
        lambda options: _encode_tenbin,
        automatic=True,
    ),
)
