"""What copying needs of many shards at once: little of each is kept, and few of them are open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.shard._index import MOST_WIDE_FIELDS, LongExtents, ShardIndex
from shoal.shard._many import ShardSource
from shoal.shard._one import PlainBytes, Shard
from shoal.shard._tar import BLOCK, WEBDATASET_RULE
from shoal.store import store_for

__all__ = ["HeldShard", "HeldShards", "can_copy", "hold_shard", "sample_spans"]

Int64 = npt.NDArray[np.int64]
_MOST_OPEN = 64


def sample_spans(index: ShardIndex) -> tuple[Int64, Int64]:
    """Where each sample's bytes start and stop in the tar, headers and padding included."""
    if not len(index):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    last = np.zeros(len(index), np.int64)
    for part in index.fields.values():
        np.maximum(last, part.offset.view(np.int64) + part.size.view(np.int64), out=last)
    stops = -(-last // BLOCK) * BLOCK
    return np.concatenate(([0], stops[:-1])), stops


def can_copy(index: ShardIndex) -> bool:
    """Whether samples of the shard can be copied as bytes: each a run of neighbours, nothing else between them."""
    return (
        index.blocks is not None
        and not index.facts.skipped
        and index.facts.rule == WEBDATASET_RULE
        and not isinstance(index.fields, LongExtents)
        and len(index.fields) <= MOST_WIDE_FIELDS
    )


@dataclass(frozen=True, slots=True)
class HeldShard:
    """What copying needs of a shard that is not open: its index, and where its samples are."""

    url: str
    index: ShardIndex
    starts: Int64
    stops: Int64
    copies: bool
    """Whether samples can be copied from it as bytes."""

    @property
    def sizes(self) -> Int64:
        """The bytes of a tar that each sample takes."""
        return self.stops - self.starts


def hold_shard(source: ShardSource, number: int) -> HeldShard:
    """What copying needs of a shard of a source. To hold many costs little memory, and saves opening them again."""
    shard = source.shard(number)
    starts, stops = sample_spans(shard.index)
    return HeldShard(shard.url, shard.index, starts, stops, can_copy(shard.index) and not _is_global(shard))


def _is_global(shard: Shard) -> bool:
    """Whether the archive begins with a header that speaks of all members: it has no place in the middle of another."""
    head = bytearray(BLOCK)
    if len(shard.index):
        shard.read_into(0, [memoryview(head)])
    return head[156:157] == b"g"


class HeldShards:
    """The shards that are copied from: all of those that were met are held, the last few are open."""

    def __init__(self, source: ShardSource, hold: Callable[[int], HeldShard] | None = None) -> None:
        self.source = source
        self._hold = hold
        self._held: dict[int, HeldShard] = {}
        self._open: OrderedDict[int, Shard] = OrderedDict()

    def held(self, number: int) -> HeldShard:
        """What is kept of a shard."""
        found = self._held.get(number)
        if found is None:
            found = hold_shard(self.source, number) if self._hold is None else self._hold(number)
            self._held[number] = found
        return found

    def open(self, number: int) -> Shard:
        """An open shard: only the file is opened, since its index is held."""
        held = self.held(number)
        if held.index.facts.compression is not None:
            return self.source.shard(number)
        found = self._open.get(number)
        if found is None:
            data = PlainBytes(store_for(held.url).open(held.url))
            found = self._open[number] = Shard(held.url, held.index, data, verify=self.source.verify)
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return found

    def close(self) -> None:
        """Give all files back."""
        for shard in self._open.values():
            shard.close()
        self._open.clear()
