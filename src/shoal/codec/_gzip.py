"""Gzip around another field: ``meta.json.gz``. Output is the same on every run, input is bounded."""

from __future__ import annotations

import io

from shoal.codec._codec import Buffer
from shoal.errors import DecodeError

try:
    from isal import isal_zlib as _zlib
except ImportError:  # isal has no wheel for every platform; zlib does the same, slower
    import zlib as _zlib  # type: ignore[no-redef]

__all__ = ["GZIP_MAGIC", "crc32", "gunzip", "gzip", "inflate"]

GZIP_MAGIC = b"\x1f\x8b"
_GZIP, _RAW = 31, -15  # zlib's names for the two framings
_PIECE = 1 << 20

crc32 = _zlib.crc32


def gzip(data: Buffer) -> bytes:
    """Compress, with no time and no name in the header: the same data gives the same bytes."""
    return bytes(_zlib.compress(data, 2, _GZIP))


def gunzip(data: Buffer, max_bytes: int) -> bytes:
    """Decompress one or several gzip members; raise `DecodeError` past ``max_bytes`` or when cut short."""
    stream = _zlib.decompressobj(_GZIP)
    plain = stream.decompress(data, max_bytes + 1)
    if stream.eof and not stream.unused_data:
        return _bounded(plain, max_bytes)
    if len(plain) > max_bytes:
        return _bounded(plain, max_bytes)
    if not stream.eof:
        raise DecodeError("the gzip data is cut short", expected="the end of the gzip stream", offset=len(data))
    return _gunzip_members(data, max_bytes)


def _gunzip_members(data: Buffer, max_bytes: int) -> bytes:
    # Several members, or zeros after the first, are rare in a field: the file reader knows all their rules.
    from gzip import GzipFile

    plain = io.BytesIO()
    with GzipFile(fileobj=io.BytesIO(data)) as stream:
        while piece := stream.read(_PIECE):
            plain.write(piece)
            if plain.tell() > max_bytes:
                break
    return _bounded(plain.getvalue(), max_bytes)


def _bounded(plain: bytes, max_bytes: int) -> bytes:
    if len(plain) > max_bytes:
        raise DecodeError(
            "the gzip data grows too large", expected=f"at most {max_bytes} bytes", found="more", hint="raise max_bytes"
        )
    return plain


def inflate(data: Buffer, size: int) -> bytes:
    """Undo raw deflate where the result must have exactly ``size`` bytes."""
    stream = _zlib.decompressobj(_RAW)
    plain: bytes = stream.decompress(data, size + 1)
    if len(plain) != size:
        found = "more" if len(plain) > size else len(plain)
        raise DecodeError("the deflated data has another size than declared", expected=f"{size} bytes", found=found)
    return plain
