"""NumPy's ``.npz``: a zip of ``.npy`` files, read without a copy where it is not compressed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

from shoal.codec._array import decode_npy, encode_npy
from shoal.codec._codec import Buffer, Codec, Limits
from shoal.codec._gzip import crc32, inflate
from shoal.errors import DecodeError, EncodeError

__all__ = ["CODECS"]

_EARLIEST = (1980, 1, 1, 0, 0, 0)  # a zip must have a time: the same one, so that the same arrays give the same bytes
_UNIX = 3
_LOCAL_HEADER = 30
_ENCRYPTED = 1


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


CODECS = (
    Codec(
        "npz",
        ("npz",),
        "a zip of .npy arrays",
        lambda limits: lambda data: _decode_npz(data, limits),
        lambda options: lambda value: _encode_npz(value, options.allow_pickle),
        automatic=True,
    ),
)
