"""A compressed object as the stream of bytes it stands for, in bounded memory."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import OptionError, StoreError, TarError, TruncatedError
from shoal.shard._tar import SupportsRead
from shoal.store import ObjectReader, read_forward

from ._gzip import GZIP_ERROR, GzipMember
from ._zstd import ZstdFrame, zstd_error

__all__ = ["decompressed", "reader_stream"]

_RANGE = 8 << 20
_INPUT = 256 << 10
_OUTPUT = 1 << 20
# What `xz -9` needs is 65 MiB; a header may declare 4 GiB. (zstd has such a bound built in: 128 MiB.)
_XZ_MEMORY = 256 << 20


def decompressed(stream: SupportsRead, compression: str) -> SupportsRead:
    """The bytes that ``stream`` holds compressed, through to the end of its last member, stream or frame.

    ``read`` returns at most what was asked, empty bytes only at the end. It raises TruncatedError where the compressed
    bytes end too early and TarError where they are damaged, or where anything but zeros follows; ``offset`` counts in
    the compressed object. A stream that is not ready (it gives None) is a StoreError. Takes a few MiB, however much a
    few bytes stand for.

    Example:
        >>> import io
        >>> decompressed(io.BytesIO(bz2.compress(b"one ") + bz2.compress(b"two")), "bz2").read(4)
        b'one '
    """
    return _Decompressed(stream, compression, _format(compression))


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
        stop = min(self._next + _RANGE, info.size)
        data = self._reader.read(self._next, stop)
        if self._next + len(data) < stop:
            found = f"the end at {self._next + len(data)}"
            raise TruncatedError(
                "the object shrank while it was read", expected=f"{info.size} bytes", found=found, shard=info.url
            )
        self._next = stop
        return data


class _Member(Protocol):
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
    begin: Callable[[], _Member]
    errors: tuple[type[Exception], ...]
    """What a member raises on damage."""


def _format(compression: str) -> _Format:
    if compression == "gzip":
        return _Format(GzipMember, (GZIP_ERROR,))
    if compression == "bz2":
        return _Format(bz2.BZ2Decompressor, (OSError, ValueError))
    if compression == "xz":
        return _Format(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY), (lzma.LZMAError,))
    if compression == "zstd":
        return _Format(ZstdFrame, (zstd_error(),))
    raise OptionError("no such compression", expected="one of gzip, bz2, xz, zstd", found=compression)


class _Decompressed:
    """Member after member of one compressed stream."""

    def __init__(self, stream: SupportsRead, compression: str, layout: _Format) -> None:
        self._stream = stream
        self._compression = compression
        self._format = layout
        self._member: _Member | None = layout.begin()
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

    def _decompress(self, member: _Member) -> bytes:
        data, self._input = self._input, b""
        try:
            plain = member.decompress(data, _OUTPUT)
        except self._format.errors as error:
            problem = f"the {self._compression} data is damaged"
            raise TarError(problem, found=error, offset=self._start) from error
        self._member = member
        if member.eof:
            self._keep(member.unused_data)
            self._member = None
        return plain

    def _next_member(self) -> _Member | None:
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
        data = self._stream.read(_INPUT)
        if data is None:
            problem = "the stream has nothing to read yet"
            raise StoreError(problem, expected="a blocking stream", found="a non-blocking one")
        self._input = data
        self._start, self._stop = self._stop, self._stop + len(self._input)
        return bool(self._input)
