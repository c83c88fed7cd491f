"""The tar in a shard, as far as it can be had: of a damaged compressed one, all that still decompresses."""

from __future__ import annotations

import io
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from shoal.errors import MissingExtraError, ShoalError, TarError
from shoal.shard import Blocks, ShardIndex, decompressed, reader_stream, sniff
from shoal.store import ObjectReader

from ._chains import BLOCK, TarReader

__all__ = ["Unpacked", "unpacked"]

_PART = 1 << 20
_STEP = 4096
"""What is inflated at a time: of a damaged block, all up to the damage comes out."""
_GZIP_HEAD = 10  # of a shard that shoal wrote: no name, no time


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A tar by position."""

    tar: TarReader
    size: int
    compression: str | None = None
    broken: bool = False
    """Whether the compressed stream could not be read to its end."""


@contextmanager
def unpacked(reader: ObjectReader, index: ShardIndex | None) -> Iterator[Unpacked]:
    """The tar of an open shard: the object itself, or a temporary file of what its stream gives.

    Where the index knows blocks that can be read alone, damage costs no other block: each stands at its place, and
    zeros stand where one is lost. Raises MissingExtraError when the shard is zstd and the extra is not installed.
    """
    compression: str | None = sniff(reader.read(0, BLOCK))
    if compression is None and index is not None:
        compression = index.facts.compression  # the very first bytes may be damaged
    if compression is None:
        yield Unpacked(reader, reader.info.size)
        return
    with tempfile.TemporaryFile() as file:
        blocks = None if index is None else index.blocks
        broken = _stream(reader, compression, file)
        if broken and blocks is not None and blocks.stored is not None:
            file.truncate(0)
            _each_block(reader, compression, blocks, file)
        yield Unpacked(_FileTar(file), file.seek(0, io.SEEK_END), compression, broken)


class _FileTar:
    """A file read by position, from several threads or one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        with self._lock:
            self._file.seek(start)
            return self._file.read(max(0, stop - start))


def _stream(reader: ObjectReader, compression: str, file: IO[bytes]) -> bool:
    """Write all that comes out in order; True when it breaks off."""
    stream = decompressed(reader_stream(reader), compression)
    try:
        while data := stream.read(_PART):
            file.write(data)
    except MissingExtraError:
        raise
    except TarError:
        return True
    return False


def _each_block(reader: ObjectReader, compression: str, blocks: Blocks, file: IO[bytes]) -> None:
    assert blocks.stored is not None  # noqa: S101 - asked before
    for number in range(len(blocks)):
        start, stop = (int(at) for at in blocks.stored[number : number + 2])
        offset, end = (int(at) for at in blocks.offsets[number : number + 2])
        stored = reader.read(start, stop)
        data = _inflated(stored, number == 0) if compression == "gzip" else _frame(stored, compression)
        file.seek(offset)
        file.write(data[: end - offset].ljust(end - offset, b"\0"))


def _inflated(stored: bytes, first: bool) -> bytes:
    """What comes out of one block of deflated data, up to where it is damaged."""
    stream, out = zlib.decompressobj(-zlib.MAX_WBITS), []
    stored = stored[_GZIP_HEAD:] if first else stored
    for at in range(0, len(stored), _STEP):
        try:
            out.append(stream.decompress(stored[at : at + _STEP]))
        except zlib.error:
            break
    return b"".join(out)


def _frame(stored: bytes, compression: str) -> bytes:
    stream, out = decompressed(io.BytesIO(stored), compression), []
    try:
        while data := stream.read(_PART):
            out.append(data)
    except ShoalError:
        pass
    return b"".join(out)
