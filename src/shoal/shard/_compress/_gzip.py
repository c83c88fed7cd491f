"""gzip, by isal where it has a wheel and by zlib elsewhere: one member with full flushes, and members of others."""

from __future__ import annotations

import zlib
from typing import cast

from shoal.errors import TarError
from shoal.shard._tar import crc32

try:
    from isal import isal_zlib as _fast
except ImportError:  # platforms without a wheel
    import zlib as _fast  # type: ignore[no-redef]

__all__ = ["GZIP_ERROR", "GZIP_MAGIC", "GzipBlocks", "GzipMember", "inflate_block"]

GZIP_MAGIC = b"\x1f\x8b\x08"  # with the method: there is only deflate
GZIP_ERROR = cast("type[Exception]", _fast.error)
"""What `GzipMember` raises on damage. (isal's types say this is an exception; it is a class of them.)"""

# No flags, no time, no extra flags, system unknown: what isal and zlib write here differs, this does not.
_HEADER = GZIP_MAGIC + bytes.fromhex("00 00000000 00 ff")
_GZIP, _RAW = 31, -15  # zlib's names for the two framings
_FAST_LEVELS = range(1, 3)


class GzipBlocks:
    """One gzip member with a full flush at the end of each block."""

    def __init__(self, level: int) -> None:
        library = _fast if level in _FAST_LEVELS else zlib
        self._deflate = library.compressobj(level, library.DEFLATED, _RAW)
        self._header = _HEADER
        self._crc = 0
        self._size = 0

    def add(self, data: bytes | bytearray | memoryview) -> bytes:
        self._crc = crc32(data, self._crc)
        self._size += memoryview(data).nbytes
        return b"".join((self._begin(), self._deflate.compress(data), self._deflate.flush(zlib.Z_FULL_FLUSH)))

    def finish(self) -> bytes:
        trailer = self._crc.to_bytes(4, "little") + (self._size & 0xFFFFFFFF).to_bytes(4, "little")
        return b"".join((self._begin(), self._deflate.flush(zlib.Z_FINISH), trailer))

    def _begin(self) -> bytes:
        header, self._header = self._header, b""
        return header


def inflate_block(stored: bytes, size: int, *, first: bool) -> bytes:
    """Inflate one block, stopping at one byte more than ``size``; raise TarError where it is no deflated data."""
    try:
        plain: bytes = _fast.decompressobj(_GZIP if first else _RAW).decompress(stored, size + 1)
    except GZIP_ERROR as error:
        raise TarError("a compressed block is damaged", expected="deflated data", found=error) from error
    return plain


class GzipMember:
    """Decompress one gzip member, as `bz2.BZ2Decompressor` does one stream; checksum and length are verified."""

    def __init__(self) -> None:
        self._stream = _fast.decompressobj(_GZIP)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, most: int, /) -> bytes:
        plain = self._stream.decompress(self._stream.unconsumed_tail + data, most)
        # A full answer may leave more inside, even where all input is taken.
        self.needs_input = not self._stream.unconsumed_tail and len(plain) < most
        return plain
