"""In-memory cache of complete shards, for random access without one read per sample.

In a shuffled epoch neighbours are read far apart, and for small samples a read call costs more than its bytes. So each
tar gets a place in memory, laid out as in its file, and its blocks stay there once they were read.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import PositionError

from ._arrow_arrays import as_arrow
from ._index import LongExtents, damaged
from ._open_shards import most_open
from ._shard import RawField, Shard
from ._source import ShardSource

__all__ = ["ShardMemoryCache"]


BLOCKS_AT_ONCE = 4
"""Blocks that are read whole for one call: what it costs more than its own samples is bounded by it."""
_EMPTY, _CLAIMED, _FULL, _DAMAGED = range(4)


@dataclass(frozen=True, slots=True)
class _Part:
    """One field of all samples: where it lies in memory, and its checksums."""

    starts: IntArray
    """Negative where a sample lacks it."""
    sizes: IntArray
    crcs: npt.NDArray[np.uint32] | None
    lying: pa.Array | None
    """As Arrow sees the memory: at 2 i the field of sample i, between two of them what lies there. None if some lack
    it."""


class ShardMemoryCache:
    """The bytes of a source's shards in memory, filled as samples are asked for. Threads may share it.

    A call reads what of its samples is not there: a few blocks as wholes, which then stay, the others by themselves.
    So the first call does not wait for all of it, and after about an epoch nothing is read any more. Whatever is read
    is verified as the source says. Memory is taken as it is filled.

    Examples:
        >>> import numpy as np, shoal
        >>> from shoal.shard import ShardMemoryCache
        >>> with shoal.ShardWriter("memory://doc/resident/train-%06d.tar") as writer:
        ...     for number in range(10):
        ...         writer.write({"__key__": f"k{number}", "cls": number})
        >>> resident = ShardMemoryCache.over(shoal.Dataset("memory://doc/resident").source, most_bytes=1 << 20)
        >>> resident.columns(np.array([7, 2]), ["cls"])["cls"]
        [b'7', b'2']
    """

    def __init__(self, shards: Sequence[Shard], *, verify: bool) -> None:
        self._shards = shards
        self._verify = verify
        self._bases = np.cumsum([0, *map(_tar_size, shards)])
        # Private memory of the system's: nothing is taken before it is written to, and a slice of it is bytes.
        self._image = mmap.mmap(-1, max(1, int(self._bases[-1])), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._image)
        self._keys = pa.concat_arrays([shard.index.keys for shard in shards])
        self._urls = tuple(shard.url for shard in shards)
        self._shard_of = np.repeat(np.arange(len(shards)), list(map(len, shards)))
        self._place_blocks()
        self._is_full = False
        self._parts: dict[str, _Part] = {}
        self._lock = threading.Lock()

    @classmethod
    def over(cls, source: ShardSource, most_bytes: int) -> ShardMemoryCache | None:
        """All shards of a source; None where they take more memory, or do not all have the same fields in blocks."""
        if not source.shards or len(source.shards) > most_open():
            return None
        if sum(ref.size or 0 for ref in source.shards) > most_bytes:  # before any of them is opened
            return None
        shards: list[Shard] = []
        taken = 0
        for number in range(len(source.shards)):
            shard = source.shard(number)
            if not _is_alike(shard, shards) or (taken := taken + _tar_size(shard)) > most_bytes:
                return None
            shards.append(shard)
        return cls(shards, verify=source.verify)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of every shard."""
        return tuple(self._shards[0].index.fields)

    @property
    def full_share(self) -> float:
        """How much of it was read already."""
        return float((self._states == _FULL).mean()) if len(self._states) else 1.0

    @property
    def is_full(self) -> bool:
        """Whether all of it was read, and found to be whole."""
        self._is_full = self._is_full or bool((self._states == _FULL).all())
        return self._is_full

    def wanted(self, source: ShardSource, fields: Sequence[str] | None) -> tuple[str, ...] | None:
        """Which fields ``source``, over the same shards, reads of a sample, if every sample has them; else None."""
        chosen = source.wanted_fields(0, fields)
        names = tuple(name for name in self.fields if chosen is None or name in chosen)
        alike = all(shard.presence == self._shards[0].presence for shard in self._shards)
        return names if alike and all(self._shards[0].presence[name] for name in names) else None

    def columns(self, rows: IntArray, names: Sequence[str]) -> dict[str, list[bytes]]:
        """These fields of these samples. Every sample has to have them.

        Raises ChecksumError, TruncatedError and PositionError.
        """
        self._fetch(rows, names)
        image, found = self._image, {}
        for name in names:
            part = self._part(name)
            starts = part.starts[rows]
            stops = (starts + part.sizes[rows]).tolist()
            found[name] = [image[start:stop] for start, stop in zip(starts.tolist(), stops, strict=True)]
        return found

    def keys(self, rows: IntArray) -> list[str]:
        """The keys of these samples."""
        keys: list[str] = self._keys.take(as_arrow(rows)).to_pylist()
        return keys

    def urls(self, rows: IntArray) -> list[str]:
        """The shard of each of these samples."""
        return list(map(self._urls.__getitem__, self._shard_of[rows].tolist()))

    def raw_rows(self, rows: IntArray, field: str) -> RawField | None:
        """One field of these samples, copied into one buffer in this order; None where a sample lacks it.

        Raises ChecksumError, TruncatedError and PositionError.
        """
        part = self._part(field)
        if part.lying is None:
            return None
        self._fetch(rows, [field])
        taken = part.lying.take(as_arrow(2 * rows))  # without the interpreter's lock
        _, offsets, data = taken.buffers()
        starts = np.frombuffer(offsets, np.int64, len(rows)) if len(rows) else np.empty(0, np.int64)
        keys = self._keys.take(as_arrow(rows))
        view = memoryview(data or b"").cast("B")  # an Arrow buffer counts its bytes from -128
        return RawField(view, starts, part.sizes[rows], keys, self._urls, self._shard_of[rows])

    def raw(self, field: str) -> RawField | None:
        """One field of all samples, where it lies; None where a sample lacks it, or not all was read yet."""
        part = self._part(field)
        if part.lying is None or not self.is_full:
            return None
        return RawField(self._view, part.starts, part.sizes, self._keys, self._urls, self._shard_of)

    def _place_blocks(self) -> None:
        blocks = [blocks for shard in self._shards if (blocks := shard.index.blocks) is not None]
        counts = [len(one) for one in blocks]
        self._block_shards = np.repeat(np.arange(len(blocks)), counts)
        self._block_starts = np.concatenate(
            [one.offsets[:-1] + base for one, base in zip(blocks, self._bases, strict=False)]
        )
        self._block_stops = np.concatenate(
            [one.offsets[1:] + base for one, base in zip(blocks, self._bases, strict=False)]
        )
        self._block_crcs = np.concatenate([one.crcs for one in blocks])
        self._block_of = np.repeat(np.arange(sum(counts)), np.concatenate([np.diff(one.rows) for one in blocks]))
        self._states = np.full(sum(counts), _EMPTY, np.uint8)

    def _part(self, name: str) -> _Part:
        if name not in self._parts:
            self._parts[name] = self._new_part(name)
        return self._parts[name]

    def _new_part(self, name: str) -> _Part:
        extents = [shard.index.fields[name] for shard in self._shards]
        offsets = [part.offset.astype(np.int64) for part in extents]
        placed = [np.where(one > 0, one + base, -1) for one, base in zip(offsets, self._bases, strict=False)]
        starts, sizes = np.concatenate(placed), np.concatenate([part.size.astype(np.int64) for part in extents])
        crcs = [part.crc for part in extents if part.crc is not None]
        whole = np.concatenate(crcs) if len(crcs) == len(extents) else None
        return _Part(starts, sizes, whole, _lying(self._image, starts, sizes))

    def _fetch(self, rows: IntArray, names: Sequence[str]) -> None:
        """Have these fields of these samples in memory."""
        self.check(rows)
        if self._is_full:
            return
        blocks = self._block_of[rows]
        missing = self._states[blocks] != _FULL
        if not missing.any():
            return
        for block in self._claimed(blocks[missing]):
            self._fill(block)
        missing = self._states[blocks] != _FULL
        if missing.any():
            self._fetch_alone(rows[missing], names)

    def check(self, rows: IntArray) -> None:
        """Raise PositionError where one of these samples is not there."""
        outside = rows.view(np.uint64) >= len(self._keys)  # as such, negative ones are very large
        if outside.any():
            expected = f"0 to {len(self._keys) - 1}"
            raise PositionError("no sample at this position", expected=expected, found=int(rows[outside][0]))

    def _claimed(self, blocks: IntArray) -> Iterator[int]:
        """Some blocks that nobody reads yet: those that most samples are in."""
        found, counts = np.unique(blocks, return_counts=True)
        with self._lock:
            empty = self._states[found] == _EMPTY
            chosen = found[empty][np.argsort(-counts[empty], kind="stable")]
            direct = self._shards[int(self._block_shards[found[0]])].scatters
            # Of a compressed shard, one sample costs as much as its block.
            chosen = chosen[:BLOCKS_AT_ONCE] if direct else chosen
            self._states[chosen] = _CLAIMED
        left = chosen.tolist()
        try:
            while left:
                yield left.pop()
        finally:
            self._states[left] = _EMPTY

    def _fill(self, block: int) -> None:
        shard, start, stop = (int(part[block]) for part in (self._block_shards, self._block_starts, self._block_stops))
        state = _EMPTY
        try:
            part = self._view[start:stop]
            self._shards[shard].read_into(start - int(self._bases[shard]), [part])
            # Its samples are then read alone, and whichever is damaged says so.
            state = _FULL if not self._verify or crc32(part) == self._block_crcs[block] else _DAMAGED
        finally:
            self._states[block] = state

    def _fetch_alone(self, rows: IntArray, names: Sequence[str]) -> None:
        """Read samples by themselves: from the first wanted field of each to the last."""
        parts = [self._part(name) for name in names]
        starts = np.min([np.where(part.starts[rows] < 0, self._bases[-1], part.starts[rows]) for part in parts], axis=0)
        stops = np.max([part.starts[rows] + part.sizes[rows] for part in parts], axis=0)
        shards = self._shard_of[rows]
        bases, view = self._bases[shards].tolist(), self._view
        for shard, base, start, stop in zip(shards.tolist(), bases, starts.tolist(), stops.tolist(), strict=True):
            if stop > start:
                self._shards[shard].read_into(start - base, [view[start:stop]])
        if self._verify:
            for name, part in zip(names, parts, strict=True):
                self._check(rows, name, part)

    def _check(self, rows: IntArray, name: str, part: _Part) -> None:
        if part.crcs is None:
            return
        view, starts, stops = self._view, part.starts[rows], part.starts[rows] + part.sizes[rows]
        for row, start, stop, expected in zip(
            rows.tolist(), starts.tolist(), stops.tolist(), part.crcs[rows].tolist(), strict=True
        ):
            if start >= 0 and (found := crc32(view[start:stop])) != expected:
                shard = int(self._shard_of[row])
                key = self._keys[row].as_py()
                raise damaged(self._urls[shard], key, name, start - int(self._bases[shard]), expected, found)


def _tar_size(shard: Shard) -> int:
    blocks = shard.index.blocks
    return 0 if blocks is None or not len(blocks) else int(blocks.offsets[-1])


def _is_alike(shard: Shard, others: Sequence[Shard]) -> bool:
    """Whether it has blocks, and the fields of the others."""
    index = shard.index
    if index.blocks is None or not len(index.blocks) or isinstance(index.fields, LongExtents):
        return False
    return not others or list(index.fields) == list(others[0].index.fields)


def _lying(image: mmap.mmap, starts: IntArray, sizes: IntArray) -> pa.Array | None:
    """A field of all samples over the memory, with what lies between: Arrow's offsets must rise."""
    if not len(starts) or bool((starts < 0).any()):
        return None
    offsets = np.empty(2 * len(starts) + 1, np.int64)
    offsets[:-1:2] = starts
    np.add(starts, sizes, out=offsets[1::2])
    offsets[-1] = offsets[-2]
    if bool((offsets[1:] < offsets[:-1]).any()):
        return None
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(image)]
    return pa.Array.from_buffers(pa.large_binary(), 2 * len(starts), buffers)
