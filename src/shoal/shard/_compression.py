"""Compressed shards: written block by block, read as a stream or from any block on.

A **gzip** shard is one member: raw deflate with a full flush at each block's end, after which nothing refers back, so
that inflating can start there. One member, because `tarfile`'s stream mode, and so webdataset, silently stops after the
first of several. A **zstd** shard has one frame per block, each with its size and checksum. **bz2** and **xz** are
written and read in order; for random access they are unpacked once into the cache, as are compressed tars of other
writers.

The same blocks at the same level give the same bytes: no time, no name, no threads. The bytes also depend on the
library that compresses, and so on its version. For gzip that is isal at levels 1 and 2 (2 is the default: smaller than
zlib's level 1 at several times its speed), zlib at levels 3 to 9, and zlib at every level where isal has no wheel.
isal's level 3 is left out on purpose: its bytes differ between x86 processors with and without AVX2 or AVX-512; those
of levels 1 and 2 do not, from SSE4.2 on.
"""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import json
import lzma
import os
import shutil
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol, cast, get_args

from shoal._crc32 import crc32
from shoal.errors import (
    MissingExtraError,
    ObjectNotFoundError,
    OptionError,
    ShoalError,
    StoreError,
    TarError,
    TruncatedError,
)
from shoal.store._base import ObjectReader, ObjectWriter
from shoal.store._cache import cache_dir, count_added, mark_used
from shoal.store._local import LocalStore
from shoal.store._options import options_for
from shoal.store._readers import read_forward
from shoal.store._url import local_path, scheme_of

from ._tar_scan import SupportsRead

try:
    from isal import isal_zlib as _isal
except ImportError:  # platforms without a wheel
    import zlib as _isal  # type: ignore[no-redef]


if TYPE_CHECKING:
    import zstandard

__all__ = [
    "COMPRESSIONS",
    "BlockCompressor",
    "Compression",
    "check_compression",
    "decompress_block",
    "decompressed",
    "fitting_compression",
    "open_unpacked",
    "reader_stream",
    "sniff",
    "unpacked_cache",
]

Compression = Literal["gzip", "bz2", "xz", "zstd"]
Buffer = bytes | bytearray | memoryview


COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)

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

    Examples:
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

    Examples:
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

    Examples:
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
    return _UnseekableBlocks(bz2.BZ2Compressor(level) if compression == "bz2" else lzma.LZMACompressor(preset=level))


class _UnseekableBlocks:
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


GZIP_MAGIC = b"\x1f\x8b\x08"  # with the method: there is only deflate
GZIP_ERROR = cast("type[Exception]", _isal.error)
"""What `GzipMember` raises on damage. (isal's types say this is an exception; it is a class of them.)"""

# No flags, no time, no extra flags, system unknown: what isal and zlib write here differs, this does not.
_HEADER = GZIP_MAGIC + bytes.fromhex("00 00000000 00 ff")
_GZIP, _RAW = 31, -15  # zlib's names for the two framings
_FAST_LEVELS = range(1, 3)


class GzipBlocks:
    """One gzip member with a full flush at the end of each block."""

    def __init__(self, level: int) -> None:
        library = _isal if level in _FAST_LEVELS else zlib
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
        plain: bytes = _isal.decompressobj(_GZIP if first else _RAW).decompress(stored, size + 1)
    except GZIP_ERROR as error:
        raise TarError("a compressed block is damaged", expected="deflated data", found=error) from error
    return plain


class GzipMember:
    """Decompress one gzip member, as `bz2.BZ2Decompressor` does one stream; checksum and length are verified."""

    def __init__(self) -> None:
        self._stream = _isal.decompressobj(_GZIP)
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


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_RLE_BLOCK = 1
_MAX_PIECES = 16  # a header and a body a block, 128 KiB at most out of each body: 1 MiB


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(
            "zstd needs the package zstandard", found=error, hint="pip install 'shoal[zstd]'"
        ) from error
    return zstandard


def zstd_error() -> type[Exception]:
    """What `zstandard`, and `ZstdFrame`, raise on damage. Raises MissingExtraError where the package is missing."""
    kind: type[Exception] = _zstandard().ZstdError
    return kind


def is_skippable(head: bytes) -> bool:
    """Whether a frame is one that carries no data: pzstd starts with such, seekable zstd ends with one."""
    return head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50


class ZstdBlocks:
    """One frame a block, each with its size and a checksum."""

    def __init__(self, level: int) -> None:
        compressor: zstandard.ZstdCompressor = _zstandard().ZstdCompressor(level=level, write_checksum=True)
        self._compressor = compressor

    def add(self, data: bytes | bytearray | memoryview) -> bytes:
        return self._compressor.compress(data)

    def finish(self) -> bytes:
        return b""


def decompress_frame(stored: bytes, size: int) -> bytes:
    """The contents of one frame that says it holds ``size`` bytes; TarError when it says another size or is damaged."""
    library = _zstandard()
    try:
        declared = library.get_frame_parameters(stored).content_size
        if declared != size:  # before anything is allocated
            raise TarError(
                "a compressed block has another size than its index says", expected=f"{size} bytes", found=declared
            )
        plain: bytes = library.ZstdDecompressor().decompress(stored)
    except library.ZstdError as error:
        raise TarError("a compressed block is damaged", expected="one zstd frame", found=error) from error
    return plain


class ZstdFrame:
    """Decompress one frame, as `bz2.BZ2Decompressor` does one stream.

    `zstandard` puts no bound on what one call returns, and a few bytes may stand for gigabytes; nor does it say where a
    cut frame should have ended. So the frame's blocks (RFC 8878, 3.1.1) are counted here and given to it a few at a
    time: each holds 128 KiB at most, and the last one is marked.
    """

    def __init__(self) -> None:
        library = _zstandard()
        self._decoder: zstandard.ZstdDecompressionObj = library.ZstdDecompressor().decompressobj()
        self._error: type[Exception] = library.ZstdError
        self._layout = _pieces()
        self._wanted = next(self._layout)
        self._held = b""
        self.eof = False
        self.needs_input = True
        self.unused_data = b""

    def decompress(self, data: bytes, _most: int) -> bytes:
        held = self._held + data
        at = self._pass_pieces(held)
        plain = self._decoder.decompress(held[:at]) if at else b""
        self._held = held[at:]
        self.needs_input = len(self._held) < self._wanted
        if self.eof:
            self._check_end()
        return plain

    def _pass_pieces(self, held: bytes) -> int:
        """Where the whole pieces in ``held`` end, as many as may be decompressed at once."""
        at = 0
        for _ in range(_MAX_PIECES):
            start, stop = at, at + self._wanted
            if stop > len(held):
                break
            at = stop
            try:
                self._wanted = self._layout.send(held[start : min(stop, start + 32)])
            except StopIteration:
                self.eof = True
                break
        return at

    def _check_end(self) -> None:
        if not self._decoder.eof:
            raise self._error("the frame goes on after its last block")
        self.unused_data, self._held = self._held, b""


def _pieces() -> Generator[int, bytes, None]:
    """A frame as its pieces: yields how long the next one is, is sent how it begins."""
    head = yield 5
    if is_skippable(head):
        size = int.from_bytes(head[4:] + (yield 3), "little")
        while size:
            yield (part := min(size, 1 << 17))
            size -= part
        return
    descriptor = head[4]
    yield _header_size(descriptor) - 5
    last = False
    while not last:
        mark = int.from_bytes((yield 3), "little")
        last, kind, size = bool(mark & 1), mark >> 1 & 3, mark >> 3
        yield 1 if kind == _RLE_BLOCK else size
    if descriptor & 0b100:  # a checksum follows
        yield 4


def _header_size(descriptor: int) -> int:
    """How long a frame's header is, magic included; its descriptor tells."""
    single = bool(descriptor & 0b10_0000)
    content_size = (int(single), 2, 4, 8)[descriptor >> 6]
    dictionary = (0, 1, 2, 4)[descriptor & 0b11]
    return 5 + (not single) + dictionary + content_size


_READ_BYTES = 8 << 20
_INPUT_BYTES = 256 << 10
_OUTPUT_BYTES = 1 << 20
# What `xz -9` needs is 65 MiB; a header may declare 4 GiB. (zstd has such a bound built in: 128 MiB.)
_XZ_MEMORY_BYTES = 256 << 20


def decompressed(stream: SupportsRead, compression: str) -> SupportsRead:
    """The bytes that ``stream`` holds compressed, through to the end of its last member, stream or frame.

    ``read`` returns at most what was asked, empty bytes only at the end. It raises TruncatedError where the compressed
    bytes end too early and TarError where they are damaged, or where anything but zeros follows; ``offset`` counts in
    the compressed object. A stream that is not ready (it gives None) is a StoreError. Takes a few MiB, however much a
    few bytes stand for.

    Examples:
        >>> import io
        >>> decompressed(io.BytesIO(bz2.compress(b"one ") + bz2.compress(b"two")), "bz2").read(4)
        b'one '
    """
    return _DecompressedStream(stream, compression, _format(compression))


def reader_stream(reader: ObjectReader) -> SupportsRead:
    """An open object read from its start to its end, in ranges of 8 MiB.

    Raises TruncatedError when the object has become shorter than it was when it was opened.
    """
    return _ReaderStream(reader)


class _ReaderStream:
    def __init__(self, reader: ObjectReader) -> None:
        self._reader = read_forward(reader)
        self._held = memoryview(b"")
        self._next = 0

    def read(self, size: int, /) -> bytes:
        if not self._held:
            self._held = memoryview(self._range())
        part, self._held = self._held[:size], self._held[size:]
        return bytes(part)

    def _range(self) -> bytes:
        info = self._reader.info
        stop = min(self._next + _READ_BYTES, info.size)
        data = self._reader.read(self._next, stop)
        if self._next + len(data) < stop:
            found = f"the end at {self._next + len(data)}"
            raise TruncatedError(
                "the object shrank while it was read", expected=f"{info.size} bytes", found=found, shard=info.url
            )
        self._next = stop
        return data


class _Decompressor(Protocol):
    """One gzip member, bz2 or xz stream, or zstd frame, as the standard library's decompressors have it."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Format:
    begin: Callable[[], _Decompressor]
    errors: tuple[type[Exception], ...]
    """What a member raises on damage."""


def _format(compression: str) -> _Format:
    if compression == "gzip":
        return _Format(GzipMember, (GZIP_ERROR,))
    if compression == "bz2":
        return _Format(bz2.BZ2Decompressor, (OSError, ValueError))
    if compression == "xz":
        return _Format(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES), (lzma.LZMAError,))
    if compression == "zstd":
        return _Format(ZstdFrame, (zstd_error(),))
    raise OptionError("no such compression", expected="one of gzip, bz2, xz, zstd", found=compression)


class _DecompressedStream:
    """Member after member of one compressed stream."""

    def __init__(self, stream: SupportsRead, compression: str, layout: _Format) -> None:
        self._stream = stream
        self._compression = compression
        self._format = layout
        self._member: _Decompressor | None = layout.begin()
        self._input = b""
        self._start = 0  # where the input stands in the compressed stream
        self._stop = 0  # and where it ends
        self._held = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        if size <= 0:
            raise OptionError("a compressed stream is read in bounded parts", expected="a size above 0", found=size)
        if not self._held:
            self._held = memoryview(self._more())
        part, self._held = self._held[:size], self._held[size:]
        return bytes(part)

    def _more(self) -> bytes:
        """The next bytes, about a MiB at most; none at the end."""
        plain = b""
        while not plain and (member := self._member or self._next_member()):
            if member.needs_input and not self._input and not self._fetch():
                raise TruncatedError(
                    f"the {self._compression} data is cut short",
                    expected="more bytes",
                    found="the end",
                    offset=self._stop,
                )
            plain = self._decompress(member)
        return plain

    def _decompress(self, member: _Decompressor) -> bytes:
        data, self._input = self._input, b""
        try:
            plain = member.decompress(data, _OUTPUT_BYTES)
        except self._format.errors as error:
            problem = f"the {self._compression} data is damaged"
            raise TarError(problem, found=error, offset=self._start) from error
        self._member = member
        if member.eof:
            self._keep(member.unused_data)
            self._member = None
        return plain

    def _next_member(self) -> _Decompressor | None:
        """Pass zeros over; what comes after them begins another member, and must be one."""
        self._keep(self._input.lstrip(b"\0"))
        while not self._input:
            if not self._fetch():
                return None
            self._keep(self._input.lstrip(b"\0"))
        return self._format.begin()

    def _keep(self, rest: bytes) -> None:
        self._input = rest
        self._start = self._stop - len(rest)

    def _fetch(self) -> bool:
        data = self._stream.read(_INPUT_BYTES)
        if data is None:
            problem = "the stream has nothing to read yet"
            raise StoreError(problem, expected="a blocking stream", found="a non-blocking one")
        self._input = data
        self._start, self._stop = self._stop, self._stop + len(self._input)
        return bool(self._input)


_COPY_BYTES = 1 << 20
_MAX_EXPANSION = 200
_MIN_UNPACKED_LIMIT_BYTES = 64 << 20
_CACHE_KEY_BYTES = 64
_MAX_OPEN_TRIES = 3
_OTHER_DISK_HINT = "set SHOAL_CACHE to a folder on another disk"


def unpacked_cache(reader: ObjectReader, compression: str, cache_dir: str, *, most_bytes: int | None = None) -> str:
    """Return the path of what ``reader`` holds compressed, unpacked into ``cache_dir`` unless it is there.

    The copy appears whole or not at all, and is found again as long as the object's URL, size and version stay.
    Raises TarError when the data is damaged, cut, or unpacks to more than ``most_bytes`` (else 200 times its own size,
    64 MiB at least), and StoreError when the disk has no room for it.
    """
    path = os.path.join(cache_dir, "unpacked", f"{_cache_key(reader)}.tar")
    if os.path.exists(path):
        mark_used(path)
        return path
    try:
        size = _unpack(reader, compression, path, most_bytes)
    except ShoalError as error:
        error.at(shard=reader.info.url)
        raise
    count_added(path, size, options_for(reader.info.url).cache_bytes)
    return path


def open_unpacked(reader: ObjectReader, compression: str) -> ObjectReader:
    """Open what ``reader`` holds compressed, unpacked into the cache. Raises what `unpacked_cache` raises."""
    limit = options_for(reader.info.url).cache_bytes
    for _ in range(_MAX_OPEN_TRIES):
        path = unpacked_cache(reader, compression, cache_dir())
        try:
            opened = LocalStore().open(path)
        except ObjectNotFoundError:  # another process made room just now
            continue
        if opened.info.size > limit:
            with contextlib.suppress(OSError):  # gone from the disk once it is closed
                os.unlink(path)
        return opened
    hint = "raise cache_bytes with shoal.store.configure"
    raise StoreError("the cache is too small for all that is being unpacked", found=reader.info.url, hint=hint)


def _cache_key(reader: ObjectReader) -> str:
    """URL, size and version, and the first and last bytes: a modification time or a memory store's count may repeat."""
    info = reader.info
    url = os.path.abspath(local_path(info.url)) if scheme_of(info.url) == "file" else info.url
    ends = reader.read(0, min(_CACHE_KEY_BYTES, info.size)) + reader.read(
        max(0, info.size - _CACHE_KEY_BYTES), info.size
    )
    return hashlib.sha256(json.dumps([url, info.size, info.version, ends.hex()]).encode()).hexdigest()


def _unpack(reader: ObjectReader, compression: str, path: str, most_bytes: int | None) -> int:
    """Write the file; return its size."""
    stream = decompressed(reader_stream(reader), compression)
    writer = LocalStore().create(path)
    try:
        most = _max_unpacked_bytes(reader.info.size) if most_bytes is None else most_bytes
        _copy_bounded(stream, writer, most, _free_bytes(os.path.dirname(path)))
        # A power cut must not leave an incomplete copy that looks complete.
        return writer.commit(durable=True).size
    except BaseException:
        writer.abort()
        raise


def _max_unpacked_bytes(stored: int) -> int:
    return max(_MAX_EXPANSION * stored, _MIN_UNPACKED_LIMIT_BYTES)


def _free_bytes(folder: str) -> int:
    try:
        os.makedirs(folder, exist_ok=True)
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise StoreError(error.strerror or str(error), found=folder, hint=_OTHER_DISK_HINT) from error


def _copy_bounded(stream: SupportsRead, writer: ObjectWriter, most: int, room: int) -> None:
    copied = 0
    while part := stream.read(_COPY_BYTES):
        copied += len(part)
        if copied > most:
            hint = "if it is not a bomb, decompress it first"
            raise TarError(
                "the compressed data unpacks to too much", expected=f"at most {most} bytes", found="more", hint=hint
            )
        if copied > room:
            raise StoreError(
                "the cache has no room to unpack a compressed file",
                expected=f"over {room} bytes",
                found=f"{room} free",
                hint=_OTHER_DISK_HINT,
            )
        writer.write(part)
