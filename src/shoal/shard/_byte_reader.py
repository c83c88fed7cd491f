"""Read bytes of a tar by offset, from a plain or a compressed object, also scattered into several buffers."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal._typing import IntArray
from shoal.errors import TarError, TruncatedError
from shoal.store._base import ObjectReader, ScatterReader
from shoal.store._fork import ForkSafeLock

from ._compression import decompress_block
from ._shard_rows import Blocks

__all__ = ["CompressedBytes", "PlainBytes", "ScatterSpec", "TarBytes", "keep_freed_memory"]

_MAX_CACHED_BLOCKS = 8
_MALLOC_LIMIT_BYTES = 31 << 20  # freed allocations raise glibc's limits up to 32 MiB


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
            raise _truncated_error(self._reader, start, stop, len(data))
        return data

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        found = self._reader.read_many(starts, stops)
        if sum(map(len, found)) != sum(stops) - sum(starts):
            for start, stop, data in zip(starts, stops, found, strict=True):
                if len(data) != stop - start:
                    raise _truncated_error(self._reader, start, stop, len(data))
        return found

    @property
    def scatters(self) -> bool:
        return self._scatter is not None

    def read_into(self, start: int, parts: Sequence[memoryview]) -> None:
        if self._scatter is None:
            _spread(self.read(start, start + sum(map(len, parts))), parts)
        elif missing := self._scatter.read_into(start, parts):
            size = sum(map(len, parts))
            raise _truncated_error(self._reader, start, start + size, size - missing)

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
        self._lock = ForkSafeLock()

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
            if len(self._held) > _MAX_CACHED_BLOCKS:
                self._held.popitem(last=False)
        return data

    def _decompress(self, number: int) -> bytes:
        blocks = self._blocks
        assert blocks.stored is not None  # noqa: S101 - made only for blocks that have it
        start, stop = (int(at) for at in blocks.stored[number : number + 2])
        stored = self._reader.read(start, stop)
        if len(stored) != stop - start:
            raise _truncated_error(self._reader, start, stop, len(stored))
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


def _truncated_error(reader: ObjectReader, start: int, stop: int, got: int) -> TruncatedError:
    return TruncatedError(
        "the shard ends before its index says",
        expected=f"bytes {start} to {stop}",
        found=f"{got} of them",
        shard=reader.info.url,
        offset=start + got,
        hint="was it cut or replaced? run `shoal verify`",
    )


@dataclass(frozen=True, slots=True)
class ScatterSpec:
    """How to cut a member: a gap that is kept, a part that is taken, a gap, a part, ..., and a gap at the end.

    Members of other sizes differ in one gap, ``varying``.
    """

    gaps: tuple[int, ...]
    taken: tuple[int, ...]
    varying: int

    @property
    def size(self) -> int:
        """Of a member that has these very gaps."""
        return sum(self.gaps) + sum(self.taken)

    def fit(self, sizes: IntArray) -> bool:
        """Whether members of these sizes can be cut so."""
        return bool((sizes >= self.size - self.gaps[self.varying]).all())

    def pieces(
        self, scratch: memoryview, starts: list[int], sizes: list[int], outs: Sequence[memoryview]
    ) -> list[list[memoryview]]:
        """Return where the bytes of members of these sizes go, piece by piece.

        What is kept of member ``i`` goes to ``scratch`` from ``starts[i]`` on, what is taken to row ``i`` of ``outs``.
        """
        more = [size - self.size for size in sizes]
        pieces: list[list[memoryview]] = [[] for _ in sizes]
        for number, gap in enumerate(self.gaps):
            stops = [
                at + gap + (extra if number == self.varying else 0) for at, extra in zip(starts, more, strict=True)
            ]
            for own, at, stop in zip(pieces, starts, stops, strict=True):
                own.append(scratch[at:stop])
            starts = stops
            if number < len(outs):
                out, size = outs[number], self.taken[number]
                for row, own in enumerate(pieces):
                    own.append(out[row * size : (row + 1) * size])
        return pieces


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of freed memory for the next blocks instead of returning it to the system.

    Readers and writers allocate and free megabytes for every block. By default glibc returns such memory at once, and
    the next block faults every page in again: reading 20 KB samples at random took three times as long. Freeing one
    large allocation raises glibc's limits for the life of the process. Other allocators are not affected.
    """
    bytes(_MALLOC_LIMIT_BYTES)  # calloc: the pages are reserved, never touched, and freed at once
