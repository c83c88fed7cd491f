"""Array codecs: ``.npy``, ``.npz`` and webdataset's tenbin.

Decoded arrays are read-only views of the bytes where possible. A ``.npy`` header is a few dozen bytes that recur from
sample to sample, so parsed headers are cached.
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

from shoal._crc32 import crc32
from shoal._typing import AnyArray
from shoal.errors import DecodeError, EncodeError

from ._codec import Buffer, Codec, Limits
from ._documents import inflate, unsafe_pickle_error

__all__ = ["NPY_CODECS", "NPZ_CODECS", "TENBIN_CODECS", "array_view", "as_array", "decode_npy", "encode_npy"]

_NPY_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 1 << 20  # room for some 40,000 columns
_MAX_CACHED_HEADER_BYTES = 10_000  # longer headers are parsed each time, so that hostile ones cannot fill the memory
_HEADER_KEYS = {"descr", "fortran_order", "shape"}
_NPY_PREFIX_BYTES = {1: 10, 2: 12, 3: 12}  # by version: the bytes before the header's text
_UNKNOWN_SIZE = -1  # of arrays of Python objects
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # zip requires a time; a fixed one, so that the same arrays give the same bytes
_ZIP_UNIX = 3
_ZIP_HEADER_BYTES = 30
_ZIP_ENCRYPTED_FLAG = 1
_TENBIN_MAGIC = b"~TenBin~"
_TENBIN_PREFIX = struct.Struct("<8sq")
_TENBIN_HEADER = struct.Struct("<8s8sq")
_TENBIN_ALIGN_BYTES = 64
_TENBIN_DTYPES = {
    name: np.dtype("<" + name) for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
}
_TENBIN_NAMES = {dtype: name for name, dtype in _TENBIN_DTYPES.items()}


class _NpyHeader(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Any
    size: int  # in bytes, or _UNKNOWN_SIZE


def array_view(data: Buffer, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, order: Any = "C") -> AnyArray:
    """Return a read-only array over ``data``, starting at ``offset``."""
    # Read-only, because the bytes may be part of a shared block, where a write would change other samples.
    return np.ndarray(shape, dtype, data if type(data) is bytes else memoryview(data).toreadonly(), offset, None, order)


def decode_npy(data: Buffer, allow_pickle: bool = False) -> AnyArray:
    """Return the array in ``data``, as a read-only view of it.

    Raises:
        DecodeError: The header is damaged, or declares more or fewer bytes than there are.
        UnsafeCodecError: The array holds Python objects and ``allow_pickle`` is false.

    Examples:
        >>> decode_npy(encode_npy(np.arange(3)))
        array([0, 1, 2])
    """
    end = _header_end(data)
    dtype, shape, order, size = (_cached_header if end <= _MAX_CACHED_HEADER_BYTES else _parse_header)(
        bytes(data[:end])
    )
    if size == _UNKNOWN_SIZE:
        return _decode_objects(data, allow_pickle)
    if len(data) - end != size:
        problem = "the array has another size than its header says"
        raise DecodeError(problem, expected=size, found=len(data) - end, offset=end)
    return array_view(data, dtype, shape, end, order)


def _header_end(data: Buffer) -> int:
    if len(data) < _NPY_PREFIX_BYTES[2]:
        raise DecodeError(
            "these bytes are too few for a .npy file", expected=f"{_NPY_PREFIX_BYTES[2]} or more", found=len(data)
        )
    # The length has two bytes in version 1 and four in later versions; _parse_header checks the version.
    size = data[8] | data[9] << 8 if data[6] == 1 else int.from_bytes(data[8:12], "little")
    end = _NPY_PREFIX_BYTES.get(data[6], 0) + size
    if size > _MAX_HEADER_BYTES or end > len(data):
        limit = min(_MAX_HEADER_BYTES, len(data))
        raise DecodeError("the .npy header is too long", expected=f"at most {limit} bytes", found=size, offset=8)
    return end


def _parse_header(header: bytes) -> _NpyHeader:
    if not header.startswith(_NPY_MAGIC) or header[6] not in _NPY_PREFIX_BYTES:
        raise DecodeError("these bytes are not a .npy file", expected=_NPY_MAGIC, found=header[:8], offset=0)
    try:
        text = header[_NPY_PREFIX_BYTES[header[6]] :].decode("utf-8" if header[6] == 3 else "latin-1")
        fields = ast.literal_eval(text.strip())
        if not isinstance(fields, dict) or fields.keys() != _HEADER_KEYS:
            raise ValueError(f"the keys are not {sorted(_HEADER_KEYS)}")
        return _check_header(fields["descr"], fields["fortran_order"], fields["shape"])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise DecodeError("the .npy header is damaged", found=error, offset=10) from error


_cached_header = lru_cache(maxsize=4096)(_parse_header)


def _check_header(descr: Any, fortran: Any, shape: Any) -> _NpyHeader:
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"{shape!r} is not a shape")
    if type(fortran) is not bool:
        raise ValueError(f"fortran_order is {fortran!r}")
    dtype = np.lib.format.descr_to_dtype(descr)
    size = _UNKNOWN_SIZE if dtype.hasobject else math.prod(shape) * dtype.itemsize
    return _NpyHeader(dtype, shape, "F" if fortran else "C", size)


def _decode_objects(data: Buffer, allow_pickle: bool) -> AnyArray:
    if not allow_pickle:
        raise unsafe_pickle_error("an array of Python objects")
    array: AnyArray = np.lib.format.read_array(io.BytesIO(data), allow_pickle=True)
    return array


def as_array(value: Any) -> AnyArray:
    """Return ``value`` as a NumPy array: an array, a NumPy scalar, a tensor, or anything with ``__array__``."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # a torch tensor on any device; torch need not be imported for this
        value = value.detach().cpu().numpy()
    elif not hasattr(value, "__array__"):
        raise EncodeError("this is not an array", expected="an array or a tensor", found=type(value).__name__)
    return np.asarray(value)


def encode_npy(value: Any, allow_pickle: bool = False) -> bytes:
    """Return the ``.npy`` bytes of an array, the same as ``numpy.save`` writes."""
    array = as_array(value)
    if array.dtype.hasobject and not allow_pickle:
        raise unsafe_pickle_error("an array of Python objects")
    if array.dtype.isbuiltin == 2:
        # NumPy would write bfloat16 and other added types as untyped bytes, which are read as another type.
        raise EncodeError("npy cannot hold this type", expected="a NumPy type", found=array.dtype)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    header = None if array.dtype.hasobject else _write_header(array.dtype, array.shape, fortran)
    if header is None:
        return _encode_general(array, allow_pickle)
    return b"".join((header, _array_bytes(array.T if fortran else array)))


@lru_cache(maxsize=4096)
def _write_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes | None:
    """Return the header in version 1.0, or None if that cannot hold it (thousands of columns, names beyond latin-1)."""
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    stream = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(stream, fields)
    except (ValueError, UnicodeEncodeError):
        return None
    return stream.getvalue()


def _array_bytes(array: AnyArray) -> bytes | memoryview:
    if not array.nbytes:
        return b""
    # Viewed as bytes, because datetimes and structured arrays do not support the buffer protocol.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _encode_general(array: AnyArray, allow_pickle: bool) -> bytes:
    # The lowest version that can hold the array, as numpy.save chooses it, but without its warning about old NumPy.
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
    _check_npz_size(members, limits.max_bytes)
    view = memoryview(data)
    arrays: dict[str, Any] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise DecodeError("the npz holds one name twice", found=name, offset=member.header_offset)
        arrays[name] = _decode_member(member, _decompress_member(member, view), limits)
    return arrays


def _check_npz_size(members: list[zipfile.ZipInfo], max_bytes: int) -> None:
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


def _decompress_member(member: zipfile.ZipInfo, view: memoryview) -> Buffer:
    packed = _member_bytes(member, view)
    if member.compress_type == zipfile.ZIP_DEFLATED:
        return inflate(packed, member.file_size)
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ZIP_ENCRYPTED_FLAG:
        raise DecodeError("the npz is compressed in a way NumPy does not use", found=f"method {member.compress_type}")
    if len(packed) != member.file_size:
        raise DecodeError("a stored member has two sizes", expected=member.file_size, found=len(packed))
    return packed


def _member_bytes(member: zipfile.ZipInfo, view: memoryview) -> memoryview:
    header = view[member.header_offset : member.header_offset + _ZIP_HEADER_BYTES]
    if len(header) < _ZIP_HEADER_BYTES or bytes(header[:4]) != b"PK\x03\x04":
        raise DecodeError("a member of the npz has no header", found=member.filename, offset=member.header_offset)
    skip = _ZIP_HEADER_BYTES + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
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
            archive.writestr(_zip_info(name), encode_npy(array, allow_pickle))
    return stream.getvalue()


def _zip_info(name: Any) -> zipfile.ZipInfo:
    if not isinstance(name, str) or "\0" in name:
        raise EncodeError("an array in an npz needs a name", expected="text without NUL", found=repr(name))
    member = zipfile.ZipInfo(name + ".npy", _ZIP_TIME)
    member.create_system = _ZIP_UNIX
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


# A tenbin chunk is the magic, the length as int64, and the bytes padded to a multiple of 64. Each array has a header
# chunk (the dtype's short name and an array name in 8 bytes each, the number of dimensions and the dimensions as int64)
# and a data chunk. All numbers are little-endian.
def _decode_tenbin(data: Buffer) -> list[AnyArray]:
    chunks = list(_tenbin_chunks(data))
    if len(chunks) % 2:
        raise DecodeError("the last array has a header and no data", offset=chunks[-1][0])
    return [
        _decode_tenbin_array(data, *header, *payload) for header, payload in zip(chunks[::2], chunks[1::2], strict=True)
    ]


def _tenbin_chunks(data: Buffer) -> Iterator[tuple[int, int]]:
    """Yield the start and the size of each chunk's bytes."""
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
        offset = start + size + -size % _TENBIN_ALIGN_BYTES


def _decode_tenbin_array(data: Buffer, header: int, header_size: int, start: int, size: int) -> AnyArray:
    if header_size < _TENBIN_HEADER.size:
        raise DecodeError(
            "an array header is too short", expected=_TENBIN_HEADER.size, found=header_size, offset=header
        )
    name, _, rank = _TENBIN_HEADER.unpack_from(data, header)
    if header_size != _TENBIN_HEADER.size + 8 * rank:
        raise DecodeError(
            "an array header has the wrong size",
            expected=_TENBIN_HEADER.size + 8 * rank,
            found=header_size,
            offset=header,
        )
    dtype = _TENBIN_DTYPES.get(name.rstrip(b"\0").decode("latin-1"))
    if dtype is None:
        raise DecodeError("an array has an unknown type", expected=" ".join(_TENBIN_DTYPES), found=name, offset=header)
    shape = struct.unpack_from(f"<{rank}q", data, header + _TENBIN_HEADER.size)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise DecodeError(
            "an array's shape does not fit its data", expected=f"{size} bytes", found=f"{dtype}{shape}", offset=header
        )
    return array_view(data, dtype, shape, start)


def _encode_tenbin(value: Any) -> bytes:
    arrays = value if isinstance(value, list | tuple) else [value]
    return b"".join(part for array in arrays for part in _encode_tenbin_array(as_array(array)))


def _encode_tenbin_array(array: AnyArray) -> Iterator[bytes]:
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _TENBIN_NAMES:
        raise EncodeError("tenbin cannot hold this type", expected=" ".join(_TENBIN_DTYPES), found=array.dtype)
    name = _TENBIN_NAMES[dtype].encode()
    yield from _tenbin_chunk(_TENBIN_HEADER.pack(name, b"", array.ndim) + struct.pack(f"<{array.ndim}q", *array.shape))
    yield from _tenbin_chunk(array.astype(dtype, copy=False).tobytes())


def _tenbin_chunk(data: bytes) -> Iterator[bytes]:
    yield _TENBIN_PREFIX.pack(_TENBIN_MAGIC, len(data))
    yield data
    yield bytes(-len(data) % _TENBIN_ALIGN_BYTES)


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
