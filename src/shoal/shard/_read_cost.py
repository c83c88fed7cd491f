"""Estimate the requests and bytes that reading some samples would take, from the index alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal._typing import IntArray

from ._index import Blocks, LongExtents
from ._memory_cache import BLOCKS_AT_ONCE
from ._random_access import is_few
from ._read_plan import plan_reads, whole_spans
from ._shard import Shard
from ._source import ShardSource

__all__ = ["ReadCost", "estimate_cached_reads", "estimate_reads"]

Ranges = tuple[IntArray, IntArray]


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Ranges that are asked for and the bytes in them; ``wanted`` are the bytes of the fields alone."""

    requests: int = 0
    bytes: int = 0
    wanted: int = 0

    def __add__(self, other: ReadCost) -> ReadCost:
        return ReadCost(self.requests + other.requests, self.bytes + other.bytes, self.wanted + other.wanted)


def estimate_reads(
    source: ShardSource, rows: IntArray, fields: Sequence[str] | None = None, *, raw: str | None = None
) -> ReadCost:
    """What ``source.read(rows, fields)`` asks of the store, or ``source.raw_rows(rows, raw)``, in one call.

    Indexes of the shards are opened, tars are not read. Of a compressed shard each block that is touched counts once,
    though the last few are held from call to call.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/foresee/a-%06d.tar") as writer:
        ...     for number in range(10):
        ...         writer.write({"__key__": f"k{number}", "bin": bytes(100), "txt": "x"})
        >>> estimate_reads(shoal.Dataset("memory://doc/foresee").source, np.array([2, 7]))
        ReadCost(requests=2, bytes=2050, wanted=202)
    """
    numbers = np.searchsorted(source.starts, rows, "right") - 1
    total, which = ReadCost(), np.unique(numbers).tolist()
    few = is_few(rows, len(which)) and all(source.shard(number).is_near for number in which)
    for number in which:
        own = rows[numbers == number] - source.starts[number]
        wanted = [raw] if raw is not None else source.wanted_fields(number, fields)
        total += _of_shard(source.shard(number), own, wanted, joined=raw is not None, few=few)
    return total


def estimate_cached_reads(
    source: ShardSource, batches: Iterable[IntArray], fields: Sequence[str]
) -> tuple[ReadCost, int]:
    """What a `ShardMemoryCache` over the source asks of the store for one batch after the other, and how large it gets.

    By one thread; several may each read a sample of a block that the other is about to have.
    """
    blocks = _HeldBlocks(source)
    requests = size = 0
    for rows in batches:
        filled, alone = blocks.fill(rows)
        requests, size = requests + len(filled) + len(alone), size + int(blocks.sizes[filled].sum())
        size += _alone_bytes(source, alone, fields)
        if blocks.full.all():
            break
    return ReadCost(requests, size), blocks.held_bytes


class _HeldBlocks:
    """Which blocks of a source's shards are in memory."""

    def __init__(self, source: ShardSource) -> None:
        every = [source.shard(number) for number in range(len(source.shards))]
        blocks = [(shard.index.blocks, start) for shard, start in zip(every, source.starts.tolist(), strict=False)]
        known = [(one, start) for one, start in blocks if one is not None]
        self._rows = np.concatenate([one.rows[:-1] + start for one, start in known])
        self.sizes = np.concatenate([np.diff(one.offsets if one.stored is None else one.stored) for one, _ in known])
        self.full = np.zeros(len(self._rows), bool)
        self.held_bytes = sum(int(one.offsets[-1]) for one, _ in known)
        self._most = BLOCKS_AT_ONCE if every[0].scatters else len(self._rows)

    def fill(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The blocks that are read for these samples, those with most of them first, and the samples read alone."""
        blocks = np.searchsorted(self._rows, rows, "right") - 1
        found, counts = np.unique(blocks[~self.full[blocks]], return_counts=True)
        chosen = found[np.argsort(-counts, kind="stable")][: self._most]
        self.full[chosen] = True
        return chosen, rows[~self.full[blocks]]


def _alone_bytes(source: ShardSource, rows: IntArray, fields: Sequence[str]) -> int:
    """Each from its first wanted field to its last."""
    numbers, size = np.searchsorted(source.starts, rows, "right") - 1, 0
    for number in np.unique(numbers).tolist():
        extents, own = source.shard(number).index.fields, rows[numbers == number] - source.starts[number]
        offsets = [extents[name].offset[own].astype(np.int64) for name in fields]
        sizes = [extents[name].size[own].astype(np.int64) for name in fields]
        starts, stops = _ranges(offsets, sizes, whole=True, alone=False)
        size += int((stops - starts).sum())
    return size


def _of_shard(shard: Shard, rows: IntArray, fields: Sequence[str] | None, *, joined: bool, few: bool) -> ReadCost:
    index = shard.index
    names = [name for name in index.fields if fields is None or name in fields]
    if not names or not len(rows):
        return ReadCost()
    offsets = [index.fields[name].offset[rows].astype(np.int64) for name in names]
    sizes = [index.fields[name].size[rows].astype(np.int64) for name in names]
    whole = index.blocks is not None and len(names) == len(index.fields) and not joined
    wanted = sum(int(size.sum()) for size in sizes)
    if whole and (runs := shard.runs(rows)) is not None:
        return ReadCost(len(runs), sum(run.stop - run.start for run in runs), wanted)
    alone = len(rows) == 1 or isinstance(index.fields, LongExtents)
    starts, stops = _ranges(offsets, sizes, whole=whole, alone=few if joined else alone)
    if index.facts.compression is not None and index.blocks is not None and index.blocks.stored is not None:
        return _compressed(index.blocks, index.blocks.stored, starts, stops, wanted)
    return ReadCost(len(starts), int((stops - starts).sum()), wanted)


def _ranges(offsets: list[IntArray], sizes: list[IntArray], *, whole: bool, alone: bool) -> Ranges:
    """As `Shard` reads: whole samples each in one go, fields of one sample alone each, else near members together."""
    if whole:
        low, high = whole_spans(offsets, sizes)
        return low[high > 0], high[high > 0]
    every, size = np.concatenate(offsets), np.concatenate(sizes)
    if alone:
        return every[every > 0], (every + size)[every > 0]
    plan = plan_reads(every, size)
    return plan.starts, plan.stops


def _compressed(blocks: Blocks, stored: IntArray, starts: IntArray, stops: IntArray, wanted: int) -> ReadCost:
    first = np.searchsorted(blocks.offsets, starts, "right") - 1
    last = np.searchsorted(blocks.offsets, np.maximum(stops - 1, starts), "right") - 1
    touched = np.unique(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]))
    return ReadCost(len(touched), int((stored[touched + 1] - stored[touched]).sum()), wanted)
