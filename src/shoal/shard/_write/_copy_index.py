"""The index of a shard that was copied from others: rows of theirs, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.shard._index import MOST_COLUMNS, MOST_WIDE_FIELDS, Extents, IndexFacts, ShardIndex

__all__ = ["Run", "join_indexes"]

_NUMBERS = {"int64", "double", "null"}


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring samples ``[first, last)`` of one shard, which go to ``at`` in the new tar."""

    shard: int
    first: int
    last: int
    start: int
    stop: int
    at: int
    row: int
    """The number of its first sample in the new shard."""


_Picks = Sequence[tuple[ShardIndex, Run]]


def join_indexes(picks: _Picks) -> ShardIndex | None:
    """The rows of all runs as one index, offsets as they are in the new tar.

    None where they cannot be one: a key is there twice, or there are too many fields. What concerns the new tar as a
    whole is still to be filled in: its size, its first header, its blocks.
    """
    keys = pa.concat_arrays([index.keys.slice(run.first, run.last - run.first) for index, run in picks])
    if len(keys.unique()) < len(keys):
        return None
    fields = _joined_fields(picks)
    if len(fields) > MOST_WIDE_FIELDS:
        return None
    columns, dropped = _joined_columns(picks, fields)
    return ShardIndex(IndexFacts(0, 0, dropped=dropped), keys, fields, columns, None)


def _joined_fields(picks: _Picks) -> dict[str, Extents]:
    """Fields in the order in which they first appear in the new tar; those no sample has are gone."""
    counts = [run.last - run.first for _, run in picks]
    shifts = np.repeat(np.array([run.at - run.start for _, run in picks], np.int64), counts)
    names = dict.fromkeys(name for index, _ in picks for name in index.fields)
    found = {name: _joined_extents(name, picks, shifts) for name in names}
    present = {name: int(part.offset[part.offset > 0][0]) for name, part in found.items() if part.offset.any()}
    return {name: found[name] for name in sorted(present, key=present.__getitem__)}


def _joined_extents(name: str, picks: _Picks, shifts: npt.NDArray[np.int64]) -> Extents:
    parts = [_slice(index.fields.get(name), run) for index, run in picks]
    offsets = np.concatenate([part.offset for part in parts]).view(np.int64)
    moved = np.where(offsets > 0, offsets + shifts, 0).view(np.uint64)
    crcs = [part.crc for part in parts if part.crc is not None]
    complete = len(crcs) == len(parts)
    return Extents(moved, np.concatenate([part.size for part in parts]), np.concatenate(crcs) if complete else None)


def _slice(part: Extents | None, run: Run) -> Extents:
    """A run's rows of a field; one that the shard does not have is lacking in each sample."""
    if part is None:
        none = np.zeros(run.last - run.first, np.uint64)
        return Extents(none, none, none.astype(np.uint32))
    rows = slice(run.first, run.last)
    return Extents(part.offset[rows], part.size[rows], None if part.crc is None else part.crc[rows])


def _joined_columns(picks: _Picks, fields: Iterable[str]) -> tuple[dict[str, pa.Array], dict[str, str]]:
    """The columns of fields that are there still, and those that are not here and why."""
    indexes = list({id(index): index for index, _ in picks}.values())
    dropped: dict[str, str] = {}
    for index in indexes:
        dropped |= index.facts.dropped
    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for index in indexes for name in index.columns):
        if _belongs(name, dropped) or not _belongs(name, fields):
            continue
        kinds = {index.columns[name].type for index in indexes if name in index.columns}
        texts = {str(kind) for kind in kinds}
        if len(columns) >= MOST_COLUMNS:
            dropped[name] = f"over {MOST_COLUMNS} columns"
        elif len(texts - {"null"}) > 1 and not texts <= _NUMBERS:
            dropped[name] = "mixed types"
        else:
            columns[name] = _joined_column(name, picks, _common(kinds))
    return columns, dropped


def _belongs(column: str, fields: Iterable[str]) -> bool:
    """Whether a column is of one of these fields: called as it is, or after it."""
    return any(column == field or column.startswith(f"{field}.") for field in fields)


def _common(kinds: set[pa.DataType]) -> pa.DataType:
    """The type that holds all of these: numbers of both kinds are fractions."""
    by_name = {str(kind): kind for kind in kinds if str(kind) != "null"}
    return by_name.get("double") or next(iter(by_name.values()), pa.null())


def _joined_column(name: str, picks: _Picks, kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays([_rows_of(index.columns.get(name), run, kind) for index, run in picks])


def _rows_of(column: pa.Array | None, run: Run, kind: pa.DataType) -> pa.Array:
    if column is None:
        return pa.nulls(run.last - run.first, kind)
    part = column.slice(run.first, run.last - run.first)
    return part if part.type == kind else part.cast(kind)
