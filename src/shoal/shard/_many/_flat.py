"""Where the members of all samples of a source lie, for those who read here and there.

To look into many indexes for a sample or two of each takes longer than to read the samples. So what the indexes say is
copied once, as shards are met, into columns over all samples of the source.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.shard._index import LongExtents
from shoal.shard._one import Shard

__all__ = ["FlatIndex", "FlatPart"]

Int64 = npt.NDArray[np.int64]
_MOST_BYTES = 128 << 20
_EACH = 20
"""Bytes that a member takes."""


@dataclass(frozen=True, slots=True)
class FlatPart:
    """One field of all samples; what is said of shards that were not met yet means nothing."""

    offset: Int64
    """0 where a sample lacks the field."""
    size: Int64
    crc: npt.NDArray[np.uint32]


class FlatIndex:
    """The extents of shards that begin at ``starts``, filled as they are met. Threads may share it.

    Memory is taken for shards that were met. ``fields`` are those of the first of them.
    """

    def __init__(self, starts: Int64) -> None:
        self._starts = starts
        self._met: dict[int, str] = {}
        """By number, the version of the object whose index was copied."""
        self._unlike: set[int] = set()
        self._lock = threading.Lock()
        self.fields: dict[str, FlatPart] = {}

    def meet(self, numbers: Sequence[int], shards: Sequence[Shard]) -> bool:
        """Whether these shards are in it now: not those that are far, or packed, or have other fields than the rest."""
        met = self._met
        if all(met.get(number, "") == shard.version for number, shard in zip(numbers, shards, strict=True)):
            return True
        with self._lock:
            return all(self._fill(number, shard) for number, shard in zip(numbers, shards, strict=True))

    def _fill(self, number: int, shard: Shard) -> bool:
        if self._met.get(number, "") == shard.version:
            return True
        own = slice(int(self._starts[number]), int(self._starts[number + 1]))
        if number in self._unlike or len(shard) != own.stop - own.start or not self._fits(shard):
            self._unlike.add(number)
            return False
        for name, extents in shard.index.fields.items():
            part = self.fields[name]
            part.offset[own], part.size[own] = extents.offset, extents.size
            if extents.crc is not None:
                part.crc[own] = extents.crc
        self._met[number] = shard.version or ""
        return True

    def _fits(self, shard: Shard) -> bool:
        index = shard.index
        if not shard.version or not shard.is_near or index.blocks is None or isinstance(index.fields, LongExtents):
            return False
        if not self.fields and _EACH * len(index.fields) * int(self._starts[-1]) <= _MOST_BYTES:
            self.fields = {name: _empty(int(self._starts[-1])) for name in index.fields}
        known = not shard.verify or all(part.crc is not None for part in index.fields.values())
        return known and list(index.fields) == list(self.fields)


def _empty(count: int) -> FlatPart:
    return FlatPart(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint32))
