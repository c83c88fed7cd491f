"""Arrays: ``.npy``, ``.npz`` and webdataset's tenbin.

The header is a few dozen bytes of text that recur from sample to sample, so it is parsed once and remembered.
"""

from __future__ import annotations

import ast
import io
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.errors import DecodeError, EncodeError

from ._codec import Buffer, Codec, Limits
from ._documents import crc32, inflate, refuse_pickle

__all__ = ["NPY_CODECS", "NPZ_CODECS", "TENBIN_CODECS", "Array", "array_view", "as_array", "decode_npy", "encode_npy"]

Array = npt.NDArray[Any]
_NPY_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 20  # room for some 40,000 columns
_MAX_CACHED = 10_000  # longer headers are parsed each time, so that hostile ones cannot fill the memory
_HEADER_KEYS = {"descr", "fortran_order", "shape"}
_NPY_PREFIX = {1: 10, 2: 12, 3: 12}  # by version: the bytes before the header's text
_OBJECTS = -1
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip must have a time: the same one, so that the same arrays give the same bytes
_UNIX = 3
_LOCAL_HEADER = 30
_ENCRYPTED = 1
_TENBIN_MAGIC = b"~TenBin~"
_TENBIN_PREFIX = struct.Struct("<8sq")
_HEADER = struct.Struct("<8s8sq")
_ALIGN = 64
_TYPES = {name: np.dtype("<" + name) for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


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
    if len(data) < _NPY_PREFIX[2]:
        raise DecodeError(
            "these bytes are too few for a .npy file", expected=f"{_NPY_PREFIX[2]} or more", found=len(data)
        )
    # Version 1 has a length of two bytes, later ones of four; _parse_header refuses what is neither.
    size = data[8] | data[9] << 8 if data[6] == 1 else int.from_bytes(data[8:12], "little")
    end = _NPY_PREFIX.get(data[6], 0) + size
    if size > _MAX_HEADER or end > len(data):
        limit = min(_MAX_HEADER, len(data))
        raise DecodeError("the .npy header is too long", expected=f"at most {limit} bytes", found=size, offset=8)
    return end


def _parse_header(header: bytes) -> _Layout:
    if not header.startswith(_NPY_MAGIC) or header[6] not in _NPY_PREFIX:
        raise DecodeError("these bytes are not a .npy file", expected=_NPY_MAGIC, found=header[:8], offset=0)
    try:
        text = header[_NPY_PREFIX[header[6]] :].decode("utf-8" if header[6] == 3 else "latin-1")
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


NPY_CODECS = (
    Codec(
        "npy",
        ("npy",),
        "a .npy array",
        lambda limits: lambda data: decode_npy(data, limits.allow_pickle),
        lambda options: lambda value: encode_npy(value, options.allow_pickle),
        automatic=True,
    ),
)


def _decode_npz(data: Buffer, limits: Limits) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    _check_sizes(members, limits.max_bytes)
    view = memoryview(data)
    arrays: dict[str, Any] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise DecodeError("the npz holds one name twice", found=name, offset=member.header_offset)
        arrays[name] = _decode_member(member, _unpack(member, view), limits)
    return arrays


def _check_sizes(members: list[zipfile.ZipInfo], max_bytes: int) -> None:
    declared = sum(member.file_size for member in members)
    if declared > max_bytes:
        raise DecodeError(
            "the npz declares too much data",
            expected=f"at most {max_bytes} bytes",
            found=declared,
            hint="raise max_bytes",
        )


def _decode_member(member: zipfile.ZipInfo, data: Buffer, limits: Limits) -> Any:
    if crc32(data) != member.CRC:
        raise DecodeError("a member of the npz is damaged: its checksum differs", found=member.filename)
    return decode_npy(data, limits.allow_pickle) if member.filename.endswith(".npy") else bytes(data)


def _unpack(member: zipfile.ZipInfo, view: memoryview) -> Buffer:
    packed = _packed(member, view)
    if member.compress_type == zipfile.ZIP_DEFLATED:
        return inflate(packed, member.file_size)
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED:
        raise DecodeError("the npz is compressed in a way NumPy does not use", found=f"method {member.compress_type}")
    if len(packed) != member.file_size:
        raise DecodeError("a stored member has two sizes", expected=member.file_size, found=len(packed))
    return packed


def _packed(member: zipfile.ZipInfo, view: memoryview) -> memoryview:
    header = view[member.header_offset : member.header_offset + _LOCAL_HEADER]
    if len(header) < _LOCAL_HEADER or bytes(header[:4]) != b"PK\x03\x04":
        raise DecodeError("a member of the npz has no header", found=member.filename, offset=member.header_offset)
    skip = _LOCAL_HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start = member.header_offset + skip
    if start + member.compress_size > len(view):
        raise DecodeError("a member of the npz goes past its end", found=member.filename, offset=start)
    return view[start : start + member.compress_size]


def _encode_npz(value: Any, allow_pickle: bool) -> bytes:
    if not isinstance(value, Mapping):
        raise EncodeError("this is not a mapping", expected="a mapping of names to arrays", found=type(value).__name__)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in value.items():
            archive.writestr(_member(name), encode_npy(array, allow_pickle))
    return stream.getvalue()


def _member(name: Any) -> zipfile.ZipInfo:
    if not isinstance(name, str) or "\0" in name:
        raise EncodeError("an array in an npz needs a name", expected="text without NUL", found=repr(name))
    member = zipfile.ZipInfo(name + ".npy", _EARLIEST)
    member.create_system = _UNIX
    member.external_attr = 0o600 << 16
    return member


NPZ_CODECS = (
    Codec(
        "npz",
        ("npz",),
        "a zip of .npy arrays",
        lambda limits: lambda data: _decode_npz(data, limits),
        lambda options: lambda value: _encode_npz(value, options.allow_pickle),
        automatic=True,
    ),
)


# A chunk is the magic, the length as int64, and the bytes padded to a multiple of 64. A header chunk is the type's
# short name and an array name in 8 bytes each, the number of dimensions, and the dimensions, as int64. All is little-
# endian.
def _decode_tenbin(data: Buffer) -> list[Array]:
    chunks = list(_chunks(data))
    if len(chunks) % 2:
        raise DecodeError("the last array has a header and no data", offset=chunks[-1][0])
    return [_decode_array(data, *header, *payload) for header, payload in zip(chunks[::2], chunks[1::2], strict=True)]


def _chunks(data: Buffer) -> Iterator[tuple[int, int]]:
    """Where each chunk's bytes start, and how many there are."""
    offset = 0
    while offset < len(data):
        magic, size = _TENBIN_PREFIX.unpack_from(data, offset)
        if magic != _TENBIN_MAGIC:
            raise DecodeError(
                "a chunk does not start with the magic", expected=_TENBIN_MAGIC, found=magic, offset=offset
            )
        start = offset + _TENBIN_PREFIX.size
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
    yield _TENBIN_PREFIX.pack(_TENBIN_MAGIC, len(data))
    yield data
    yield bytes(-len(data) % _ALIGN)


TENBIN_CODECS = (
    Codec(
        "tenbin",
        ("ten", "tenbin", "tb"),
        "a tenbin list of arrays",
        lambda limits: _decode_tenbin,
        lambda options: _encode_tenbin,
        automatic=True,
    ),
)
