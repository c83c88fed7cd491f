"""zstd, through the `zstandard` package: frames written whole, read block by block."""

from __future__ import annotations

from collections.abc import Generator
from types import ModuleType
from typing import TYPE_CHECKING

from shoal.errors import MissingExtraError, TarError

if TYPE_CHECKING:
    import zstandard

__all__ = ["ZSTD_MAGIC", "ZstdBlocks", "ZstdFrame", "decompress_frame", "is_skippable", "zstd_error"]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_RLE = 1
_PIECES_AT_ONCE = 16  # a header and a body a block, 128 KiB at most out of each body: 1 MiB


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
        for _ in range(_PIECES_AT_ONCE):
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
        yield 1 if kind == _RLE else size
    if descriptor & 0b100:  # a checksum follows
        yield 4


def _header_size(descriptor: int) -> int:
    """How long a frame's header is, magic included; its descriptor tells."""
    single = bool(descriptor & 0b10_0000)
    content_size = (int(single), 2, 4, 8)[descriptor >> 6]
    dictionary = (0, 1, 2, 4)[descriptor & 0b11]
    return 5 + (not single) + dictionary + content_size
