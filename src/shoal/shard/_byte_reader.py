"""The tar's bytes by position, whether the object is the tar itself or a compressed one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shoal.errors import TarError, TruncatedError
from shoal.shard._compress import decompress_block
from shoal.shard._index import Blocks
from shoal.store import ObjectReader, ScatterReader

__all__ = ["CompressedBytes", "PlainBytes", "TarBytes"]

_HELD_BLOCKS = 8


class TarBytes(Protocol):
    """Ranges of a tar, in the tar's own positions. Safe to use from several threads."""

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes ``[start, stop)``. Raises TruncatedError when the object ends before."""
        ...

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        """Several ranges, in order."""
        ...

    @property
    def scatters(self) -> bool:
        """Whether `read_into` puts bytes where they belong without a copy in between."""
        ...

    def read_into(self, start: int, parts: Sequence[memoryview]) -> None:
        """Fill these parts, one after the other, with the bytes from ``start`` on. Raises TruncatedError."""
        ...

    def over(self, reader: ObjectReader) -> TarBytes:
        """The same bytes, from another reader of the same object."""
        ...

    def close(self) -> None: ...


class PlainBytes:
    """An object that is the tar."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._scatter = reader if isinstance(reader, ScatterReader) else None

    def read(self, start: int, stop: int) -> bytes:
        data = self._reader.read(start, stop)
        if len(data) != stop - start:
            raise _short(self._reader, start, stop, len(data))
        return data

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        found = self._reader.read_many(starts, stops)
        if sum(map(len, found)) != sum(stops) - sum(starts):
            for start, stop, data in zip(starts, stops, found, strict=True):
                if len(data) != stop - start:
                    raise _short(self._reader, start, stop, len(data))
        return found

    @property
    def scatters(self) -> bool:
        return self._scatter is not None

    def read_into(self, start: int, parts: Sequence[memoryview]) -> None:
        if self._scatter is None:
            _spread(self.read(start, start + sum(map(len, parts))), parts)
        elif missing := self._scatter.read_into(start, parts):
            size = sum(map(len, parts))
            raise _short(self._reader, start, start + size, size - missing)

    def over(self, reader: ObjectReader) -> TarBytes:
        return PlainBytes(reader)

    def close(self) -> None:
        self._reader.close()


class CompressedBytes:
    """An object of blocks that can each be decompressed alone. The last few are held: neighbours often follow."""

    def __init__(self, reader: ObjectReader, compression: str, blocks: Blocks) -> None:
        self._reader = reader
        self._compression = compression
        self._blocks = blocks
        self._held: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        if start == stop:  # an empty member may stand where the last block ends
            return b""
        offsets = self._blocks.offsets
        first, last = (int(np.searchsorted(offsets, at, "right")) - 1 for at in (start, stop - 1))
        parts = [self._block(number) for number in range(first, last + 1)]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        base = int(offsets[first])
        return data if start == base and stop - base == len(data) else data[start - base : stop - base]

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    @property
    def scatters(self) -> bool:
        return False

    def read_into(self, start: int, parts: Sequence[memoryview]) -> None:
        _spread(self.read(start, start + sum(map(len, parts))), parts)

    def _block(self, number: int) -> bytes:
        with self._lock:
            if number in self._held:
                self._held.move_to_end(number)
                return self._held[number]
        data = self._decompress(number)
        with self._lock:
            self._held[number] = data
            if len(self._held) > _HELD_BLOCKS:
                self._held.popitem(last=False)
        return data

    def _decompress(self, number: int) -> bytes:
        blocks = self._blocks
        assert blocks.stored is not None  # noqa: S101 - made only for blocks that have it
        start, stop = (int(at) for at in blocks.stored[number : number + 2])
        stored = self._reader.read(start, stop)
        if len(stored) != stop - start:
            raise _short(self._reader, start, stop, len(stored))
        size = int(blocks.offsets[number + 1] - blocks.offsets[number])
        try:
            return decompress_block(self._compression, stored, size, first=number == 0)
        except TarError as error:
            error.offset = start
            raise error.at(shard=self._reader.info.url) from error.__cause__

    def over(self, reader: ObjectReader) -> TarBytes:
        return CompressedBytes(reader, self._compression, self._blocks)

    def close(self) -> None:
        self._held.clear()
        self._reader.close()


def _spread(data: bytes, parts: Sequence[memoryview]) -> None:
    view, at = memoryview(data), 0
    for part in parts:
        part[:] = view[at : at + len(part)]
        at += len(part)


def _short(reader: ObjectReader, start: int, stop: int, got: int) -> TruncatedError:
    return TruncatedError(
        "the shard ends before its index says",
        expected=f"bytes {start} to {stop}",
        found=f"{got} of them",
        shard=reader.info.url,
        offset=start + got,
        hint="was it cut or replaced? run `shoal verify`",
    )
