"""Compressed shards: told by their content, written in blocks a reader can start at.

A **gzip** shard is one member: raw deflate with a full flush at each block's end, after which nothing refers back, so
that inflating can start there. One member, because `tarfile`'s stream mode, and so webdataset, silently stops after the
first of several. A **zstd** shard is one frame a block, each with its size and checksum. **bz2** and **xz** are written
and read in order; for random access they are unpacked once into the cache, as are compressed tars of other makers.

The same blocks at the same level give the same bytes: no time, no name, no threads. The bytes also depend on the
library that compresses, and so on its version. For gzip that is isal at levels 1 and 2 (2 is the default: smaller than
zlib's level 1 at several times its speed), zlib at levels 3 to 9, and zlib at every level where isal has no wheel.
isal's level 3 is left out on purpose: its bytes differ between x86 processors with and without AVX2 or AVX-512; those
of levels 1 and 2 do not, from SSE4.2 on.
"""

from __future__ import annotations

import bz2
import lzma
from typing import Literal, Protocol, get_args

from shoal.errors import OptionError, TarError

from ._gzip import GZIP_MAGIC, GzipBlocks, inflate_block
from ._zstd import ZSTD_MAGIC, ZstdBlocks, decompress_frame, is_skippable

__all__ = [
    "COMPRESSIONS",
    "BlockCompressor",
    "Compression",
    "check_compression",
    "decompress_block",
    "fitting_compression",
    "sniff",
]

Compression = Literal["gzip", "bz2", "xz", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)

Buffer = bytes | bytearray | memoryview

_BZ2_BLOCK, _BZ2_END = bytes.fromhex("314159265359"), bytes.fromhex("177245385090")
_ENDINGS: dict[str, Compression] = {
    **dict.fromkeys((".tar.gz", ".tgz"), "gzip"),
    **dict.fromkeys((".tar.bz2", ".tbz2"), "bz2"),
    **dict.fromkeys((".tar.xz", ".txz"), "xz"),
    **dict.fromkeys((".tar.zst", ".tzst"), "zstd"),
}
_LEVELS = {"gzip": range(1, 10), "bz2": range(1, 10), "xz": range(10), "zstd": range(1, 23)}
_DEFAULT_LEVEL = {"gzip": 2, "bz2": 9, "xz": 6, "zstd": 3}


def sniff(head: bytes) -> Compression | None:
    """Say by an object's first bytes (10 are enough) how it is compressed; None when it is not.

    Example:
        >>> sniff(bz2.compress(b"a tar")), sniff(b"BZh9.jpg")
        ('bz2', None)
    """
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    if head.startswith(ZSTD_MAGIC) or is_skippable(head):
        return "zstd"
    # A member of a plain tar may well be called BZh9, so look at what must come next too.
    if head.startswith(b"BZh") and head[3:4] in b"123456789" and head[4:10] in {_BZ2_BLOCK, _BZ2_END}:
        return "bz2"
    return None


def fitting_compression(name: str, compression: str | None) -> str | None:
    """What a shard of this name is compressed with: what was asked for, or else what the name's ending says.

    Raises OptionError where they differ: readers here go by content, others by the name.

    Example:
        >>> fitting_compression("a.tar.gz", None), fitting_compression("a.tar", "zstd")
        ('gzip', 'zstd')
    """
    named = next((found for ending, found in _ENDINGS.items() if name.lower().endswith(ending)), None)
    if compression is not None and named not in (None, compression):
        raise OptionError("the name says another compression", expected=f"{named}, for {name}", found=compression)
    return compression or named


def check_compression(compression: str, level: int | None) -> None:
    """Raise OptionError for a compression or level that does not exist."""
    if compression not in COMPRESSIONS:
        raise OptionError("no such compression", expected=f"one of {', '.join(COMPRESSIONS)}", found=compression)
    levels = _LEVELS[compression]
    if level is not None and level not in levels:
        expected = f"{levels.start} to {levels.stop - 1}"
        raise OptionError(f"no such level of {compression}", expected=expected, found=level)


class BlockCompressor:
    """Compress one shard, block by block.

    ``add`` gives the bytes to write for one block, ``finish`` those that end the shard. Where ``seekable`` is true, the
    bytes of ``add`` are the block, whole: `decompress_block` reads them alone. Raises OptionError for a compression or
    level that does not exist, MissingExtraError for zstd without the ``zstd`` extra.

    Example:
        >>> shard = BlockCompressor("gzip")
        >>> stored = [shard.add(b"first block"), shard.add(b"second block"), shard.finish()]
        >>> import gzip
        >>> gzip.decompress(b"".join(stored))
        b'first blocksecond block'
        >>> decompress_block("gzip", stored[1], 12, first=False)
        b'second block'
    """

    def __init__(self, compression: str, level: int | None = None) -> None:
        check_compression(compression, level)
        self._encoder = _encoder(compression, _DEFAULT_LEVEL[compression] if level is None else level)
        self.compression = compression
        self.seekable = compression in {"gzip", "zstd"}

    def add(self, data: Buffer) -> bytes:
        """Compress one block and end it."""
        return self._encoder.add(data)

    def finish(self) -> bytes:
        """End the shard; nothing can be added after it."""
        return self._encoder.finish()


class _Encoder(Protocol):
    def add(self, data: Buffer) -> bytes: ...

    def finish(self) -> bytes: ...


def _encoder(compression: str, level: int) -> _Encoder:
    if compression == "gzip":
        return GzipBlocks(level)
    if compression == "zstd":
        return ZstdBlocks(level)
    return _InOrder(bz2.BZ2Compressor(level) if compression == "bz2" else lzma.LZMACompressor(preset=level))


class _InOrder:
    """bz2 and xz: what comes out of ``add`` lags behind what went in."""

    def __init__(self, stream: bz2.BZ2Compressor | lzma.LZMACompressor) -> None:
        self._stream = stream

    def add(self, data: Buffer) -> bytes:
        return self._stream.compress(data)

    def finish(self) -> bytes:
        return self._stream.flush()


def decompress_block(compression: str, stored: bytes, size: int, *, first: bool) -> bytes:
    """Return the ``size`` bytes of one block, given the bytes that are stored for it.

    ``first`` says that the block opens the shard, where gzip has its header. Takes no more memory than ``size`` bytes
    and raises TarError when the block is not exactly that. A gzip block has no checksum of its own: compare its crc32.
    """
    if compression == "gzip":
        plain = inflate_block(stored, size, first=first)
    elif compression == "zstd":
        plain = decompress_frame(stored, size)
    else:
        raise OptionError(f"{compression} cannot be read from the middle", expected="gzip or zstd", found=compression)
    if len(plain) != size:
        found = "more" if len(plain) > size else len(plain)
        raise TarError("a compressed block has another size than its index says", expected=f"{size} bytes", found=found)
    return plain
