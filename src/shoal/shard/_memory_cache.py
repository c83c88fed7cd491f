"""In-memory cache of complete shards, for random access without one read per sample.

In a shuffled epoch neighbours are read far apart, and for small samples a read call costs more than its bytes. So each
tar gets a place in memory, with the layout of its file, and its blocks stay there once they were read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from shoal._typing import IntArray
from shoal.codec._codec import Buffer
from shoal.store._fork import ForkSafeLock

from ._extents import Extents, open_extents, shard_extents
from ._open_shards import most_open
from ._read import BytesColumn, Fetched, columns_of, fetch
from ._read_plan import ONE_RANGE, plan_reads
from ._shard import Shard
from ._shard_rows import Blocks

if TYPE_CHECKING:
    from ._source import ShardSource

__all__ = ["ShardMemoryCache"]

BLOCKS_AT_ONCE = 8
"""Blocks that are read whole for one call: what it costs more than its own samples is bounded by it."""
_LARGE_BYTES = 8 << 10
"""Samples from this mean size on are kept from the second epoch on: to fill memory costs more than reading them once,
while of small samples a whole block costs less than a read for each."""
_MAX_FIELDS = 256
_EMPTY, _CLAIMED, _FULL, _DAMAGED = range(4)


class ShardMemoryCache:
    """The bytes of shards in memory, filled as samples are read. Thread-safe.

    A call reads what of its rows is not there: a few blocks as a whole, which then stay, the other rows by themselves.
    So the first call does not wait for everything, and after about an epoch, or two if samples are large, nothing is
    read any more. Memory is taken as it is filled. What was handed out may refer to it, and never changes.
    """

    def __init__(self, shards: Sequence[Shard], blocks: Sequence[Blocks], every: Extents) -> None:
        self._shards = shards
        self._blocks = blocks
        """Of each shard."""
        self._all = every
        """Of all rows."""
        self._bases = np.cumsum([0, *(int(one.offsets[-1]) for one in blocks)])
        # Private memory of the system's: nothing is taken before it is written to, and a slice of it is bytes.
        self._image = mmap.mmap(-1, max(1, int(self._bases[-1])), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._image)
        self._block_shards = np.repeat(np.arange(len(blocks)), list(map(len, blocks)))
        self._block_numbers = np.concatenate([np.arange(len(one)) for one in blocks])
        self._block_of = np.repeat(
            np.arange(len(self._block_shards)), np.concatenate([np.diff(one.rows) for one in blocks])
        )
        self._states = np.full(len(self._block_shards), _EMPTY, np.uint8)
        is_large = int(self._bases[-1]) >= _LARGE_BYTES * len(self._all)
        self._rows_left = len(self._all) if is_large else 0
        """Rows to be read before blocks are kept: of large samples those of one epoch."""
        self._is_full = False
        self._process = os.getpid()
        self._lock = ForkSafeLock()

    @classmethod
    def over(cls, source: ShardSource, most_bytes: int) -> ShardMemoryCache | None:
        """Return a cache of all shards; None if they take more memory, or do not all have the same fields in blocks."""
        if not source.shards or len(source.shards) > most_open():
            return None
        if (source.index.total_bytes or 0) > most_bytes:  # before any of them is opened
            return None
        shards, every_blocks, size = list[Shard](), list[Blocks](), 0
        for number in range(len(source.shards)):
            shard = source.shard(number)
            blocks, fields = shard.blocks, list(shard.presence)
            if not blocks or (size := size + int(blocks.offsets[-1])) > most_bytes:
                return None
            if len(fields) > _MAX_FIELDS or (shards and fields != list(shards[0].presence)):
                return None
            shards.append(shard)
            every_blocks.append(blocks)
        every = source.index.extents(np.arange(len(source)))
        return cls(shards, every_blocks, open_extents(every, dict(enumerate(shards))))

    @property
    def size(self) -> int:
        """Bytes that it takes when it is full."""
        return int(self._bases[-1])

    @property
    def stored_bytes(self) -> int:
        """Bytes of the store that fill it: less than `size` if shards are compressed."""
        return sum(int((one.offsets if one.stored is None else one.stored)[-1]) for one in self._blocks)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self._states)

    @property
    def full_share(self) -> float:
        """The share that was read already."""
        return float((self._states == _FULL).mean()) if len(self._states) else 1.0

    @property
    def is_full(self) -> bool:
        """Whether everything was read and verified."""
        self._is_full = self._is_full or bool((self._states == _FULL).all())
        return self._is_full

    def fetch(self, rows: IntArray, fields: Sequence[str] | None) -> tuple[Extents, Fetched]:
        """Return where these rows of the source are, which must exist, and their bytes, verified.

        Raises ChecksumError and TruncatedError.
        """
        extents = self._all.take(rows, fields)
        if self._rows_left > 0:
            self._rows_left -= len(rows)
            return extents, fetch(extents, plan_reads(extents))
        if not self._is_full:
            self._fill(rows, extents)
        return extents, self._at(extents)

    def column(self, field: str) -> BytesColumn | None:
        """Return a field of all rows; None if not everything was read yet."""
        if not self.is_full:
            return None
        extents = self._all.take(np.arange(len(self._all)), [field])
        return columns_of(extents, self._at(extents)).get(field)

    def _at(self, extents: Extents) -> Fetched:
        bases = np.zeros(1, np.int64) if extents.shard_numbers is None else -self._bases[extents.shard_numbers]
        return Fetched([cast(Buffer, self._image)], ONE_RANGE, bases, verified=True)

    def _fill(self, rows: IntArray, extents: Extents) -> None:
        """Read what of these rows is not in memory. Only bytes that were verified are written to it."""
        blocks = self._block_of[rows]
        missing = self._states[blocks] != _FULL
        if not missing.any():
            return
        for block in self._claimed(blocks[missing]):
            self._fill_block(block)
        missing = (self._states[blocks] != _FULL).nonzero()[0]
        if len(missing):
            alone = extents.take(missing)
            columns = columns_of(alone, fetch(alone, plan_reads(alone)))
            bases = 0 if alone.shard_numbers is None else self._bases[alone.shard_numbers]
            for column, starts in zip(columns.values(), alone.starts + bases, strict=True):
                for start, value in zip(starts.tolist(), column.views(), strict=True):
                    self._view[start : start + len(value)] = value

    def _claimed(self, blocks: IntArray) -> Iterator[int]:
        """Yield some blocks that no thread reads yet: those that most rows are in."""
        found, counts = np.unique(blocks, return_counts=True)
        with self._lock:
            if self._process != os.getpid():  # forked: the threads that claimed blocks are in the parent
                self._states[self._states == _CLAIMED], self._process = _EMPTY, os.getpid()
            empty = self._states[found] == _EMPTY
            chosen = found[empty][np.argsort(-counts[empty], kind="stable")]
            direct = self._shards[int(self._block_shards[found[0]])].data.scatters
            # Of a compressed shard, one sample costs as much as its block.
            chosen = chosen[:BLOCKS_AT_ONCE] if direct else chosen
            self._states[chosen] = _CLAIMED
        left = chosen.tolist()
        try:
            while left:
                yield left.pop()
        finally:
            self._states[left] = _EMPTY

    def _fill_block(self, block: int) -> None:
        owner, number = int(self._block_shards[block]), int(self._block_numbers[block])
        base, rows = int(self._bases[owner]), slice(*self._blocks[owner].rows[number : number + 2].tolist())
        state = _EMPTY
        try:
            extents = shard_extents(self._shards[owner], rows)
            plan = plan_reads(extents)
            fetched = fetch(extents, plan)
            # Rows of a damaged block are then read from the store, and the damaged one raises.
            state = _DAMAGED
            if fetched.verified or extents.crcs is None:
                for start, data in zip(plan.starts.tolist(), fetched.buffers, strict=True):
                    self._view[base + start : base + start + len(data)] = data
                state = _FULL
        finally:
            self._states[block] = state
