"""A window of blocks as one run: what shuffled batches are gathered from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from shoal.shard import ShardSource, join_raw

from ._buffers import BufferPool
from ._typed import Learnt, PayloadRun
from ._walk import join_walked

__all__ = ["window_run"]

T = TypeVar("T")


def window_run(
    source: ShardSource, spans: Sequence[tuple[int, int, int]], field: str, learnt: Learnt[T], buffers: BufferPool
) -> PayloadRun[T]:
    """The samples of these spans (shard, first, after the last) in one buffer of the pool, one span after the other.

    Each block is looked through right after it was read, while it is still in the processor's cache. The buffer goes
    back to the pool with the last batch, or sample, that was made of it.
    """
    parts, walks = [], []
    for part in source.raw_spans(spans, field, lambda size: buffers.empty(size).data):
        run = PayloadRun(part, learnt)
        found = {name: run.field(name) for name in learnt.types}
        parts.append(part)
        walks.append({name: one for name, one in found.items() if one is not None})
    whole = join_raw(parts)
    if any(part.data is not parts[0].data for part in parts):
        return PayloadRun(whole, learnt)
    if isinstance(whole.data, memoryview):
        whole = replace(whole, data=whole.data.toreadonly())
    return PayloadRun(whole, learnt, walked=join_walked(walks))
