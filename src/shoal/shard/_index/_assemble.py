"""Members as columns -> a ShardIndex: the step that scanning and writing share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import DuplicateFieldError

from ._arrow import text_array
from ._columns import ColumnCollector
from ._index import Blocks, Extents, IndexFacts, LongExtents, ShardIndex

__all__ = ["MOST_WIDE_FIELDS", "MemberColumns", "assemble", "joined", "refuse_duplicates"]

MOST_WIDE_FIELDS = 256
"""Beyond this many distinct fields a column each would be mostly zeros: the long layout takes over."""

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MemberColumns:
    """Every member that belongs to a sample, in the archive's order."""

    rows: Int64
    fields: Int64
    offsets: Int64
    sizes: Int64
    crcs: npt.NDArray[np.uint32]


def joined(parts: Sequence[MemberColumns]) -> MemberColumns:
    """Runs of members as one."""

    def join(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0, np.int64)

    return MemberColumns(join("rows"), join("fields"), join("offsets"), join("sizes"), join("crcs"))


def assemble(
    facts: IndexFacts,
    keys: list[str],
    names: list[str],
    members: MemberColumns,
    columns: ColumnCollector,
    blocks: Blocks | None,
    url: str | None = None,
) -> ShardIndex:
    """Build the index. ``names`` are the fields by code. Raises DuplicateFieldError when a sample has one twice."""
    refuse_duplicates(keys, names, members, url)
    fields = _wide(len(keys), names, members) if len(names) <= MOST_WIDE_FIELDS else _long(len(keys), names, members)
    return ShardIndex(facts, text_array(keys), fields, columns.finish(len(keys)), blocks)


def refuse_duplicates(keys: list[str], names: list[str], members: MemberColumns, url: str | None) -> None:
    """Raise DuplicateFieldError when a sample has one field twice."""
    slots = members.rows * len(names) + members.fields
    if not (np.diff(slots) <= 0).any():  # the usual case: fields in one order, samples one after the other
        return
    if not (np.diff(np.sort(slots)) == 0).any():
        return
    order = np.argsort(slots, kind="stable")
    second = int(order[1:][np.diff(slots[order]) == 0].min())
    raise DuplicateFieldError(
        "a sample has the same field twice",
        shard=url,
        key=keys[members.rows[second]],
        field=names[members.fields[second]],
        offset=int(members.offsets[second]) - 512,
        hint="fields are compared in lower case; KeyRule(case='keep') tells them apart",
    )


def _wide(rows: int, names: list[str], members: MemberColumns) -> Mapping[str, Extents]:
    found: dict[str, Extents] = {}
    for code, name in enumerate(names):
        at = np.flatnonzero(members.fields == code)
        found[name] = Extents(
            _spread(rows, members.rows[at], members.offsets[at], np.uint64),
            _spread(rows, members.rows[at], members.sizes[at], np.uint64),
            _spread(rows, members.rows[at], members.crcs[at], np.uint32),
        )
    return found


def _spread(length: int, rows: Int64, values: npt.NDArray[Any], kind: type) -> npt.NDArray[Any]:
    column: npt.NDArray[Any] = np.zeros(length, kind)
    column[rows] = values
    return column


def _long(rows: int, names: list[str], members: MemberColumns) -> LongExtents:
    order = np.argsort(members.rows, kind="stable")
    return LongExtents(
        rows,
        names,
        members.rows[order],
        members.fields[order],
        members.offsets[order].astype(np.uint64),
        members.sizes[order].astype(np.uint64),
        members.crcs[order],
    )
