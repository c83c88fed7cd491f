"""What a manifest says of a shard, told from the shard's index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.shard._index import LongExtents, ShardIndex

from ._manifest import ShardRecord

__all__ = ["Member", "field_totals", "members_of", "record_of"]


@dataclass(frozen=True, slots=True)
class Member:
    """One field of one sample, and where its bytes lie in the (unpacked) tar."""

    field: str
    offset: int
    size: int


def members_of(index: ShardIndex, row: int) -> list[Member]:
    """The members of one sample, in the archive's order."""
    fields = index.fields
    if isinstance(fields, LongExtents):
        span = fields.span(row, row + 1)
        columns = (fields.codes[span].tolist(), fields.offset[span].tolist(), fields.size[span].tolist())
        found = [Member(fields.names[code], offset, size) for code, offset, size in zip(*columns, strict=True)]
    else:
        parts = ((name, int(part.offset[row]), int(part.size[row])) for name, part in fields.items())
        found = [Member(name, offset, size) for name, offset, size in parts if offset]
    return sorted(found, key=lambda member: member.offset)


def field_totals(index: ShardIndex) -> dict[str, tuple[int, int]]:
    """For each field, how many samples have it and its bytes in all."""
    fields = index.fields
    if isinstance(fields, LongExtents):
        counts = np.bincount(fields.codes, minlength=len(fields.names)).tolist()
        sizes = np.zeros(len(fields.names), np.int64)
        np.add.at(sizes, fields.codes, fields.size.astype(np.int64))
        return dict(zip(fields.names, zip(counts, sizes.tolist(), strict=True), strict=True))
    return {name: (int((part.offset > 0).sum()), int(part.size.sum())) for name, part in fields.items()}


def record_of(path: str, index: ShardIndex) -> ShardRecord:
    """The record of the shard ``path``, relative to the dataset's root."""
    first, last = (index.keys[at].as_py() for at in (0, -1)) if len(index) else (None, None)
    facts = index.facts
    return ShardRecord(path, len(index), facts.size, first, last, facts.compression, None, field_totals(index))
