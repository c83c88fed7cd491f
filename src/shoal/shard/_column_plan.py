"""Which metadata columns a segment can have: those that can be queried in all of its shards, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from shoal.errors import SchemaMismatchError

from ._layout import KEY_COLUMN, SHARD_COLUMN, UNREADABLE_COLUMN
from ._rows_file import NESTED_REASON, RowSource, RowsSummary

__all__ = ["ColumnPlan", "is_left_out", "plan_columns"]

_RESERVED_NAMES = (KEY_COLUMN, SHARD_COLUMN, UNREADABLE_COLUMN)


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """The metadata columns of all segments of one write."""

    types: dict[str, pa.DataType]
    left_out: dict[str, str]
    complete: bool
    has_unreadable: bool

    @property
    def schema(self) -> pa.Schema:
        """The schema of ``samples.parquet``."""
        names = [(KEY_COLUMN, pa.string()), (SHARD_COLUMN, pa.int64())]
        if self.has_unreadable:
            names.append((UNREADABLE_COLUMN, pa.list_(pa.string())))
        return pa.schema([*names, *self.types.items()])


def plan_columns(
    sources: Sequence[RowSource],
    summaries: Sequence[RowsSummary],
    expected: Mapping[str, pa.DataType],
    on_misfit: Literal["error", "omit"],
) -> ColumnPlan:
    """Return the columns that can be queried in all sources, and why others cannot."""
    left_out: dict[str, str] = {}
    kinds: dict[str, dict[pa.DataType, int]] = {}
    for number, summary in enumerate(summaries):
        for name, reason in summary.left_out.items():
            if left_out.get(name, NESTED_REASON) == NESTED_REASON:  # other reasons concern longer names, too
                left_out[name] = reason
        for name, kind in summary.columns.items():
            kinds.setdefault(name, {}).setdefault(_plain_type(kind), number)
    reasons = _missing_columns(sources, summaries, kinds)
    types: dict[str, pa.DataType] = {}
    for name, found in kinds.items():
        if name in reasons:
            continue
        known = _plain_type(expected.get(name, pa.null()))
        kind = _common_type([known, *found])
        if name in _RESERVED_NAMES:
            reasons[name] = "its name is reserved"
        elif kind is None or (not pa.types.is_null(known) and kind != known):
            reasons[name] = _type_conflict(sources, found, known)
        else:
            types[name] = kind if set(found) != {pa.null()} else pa.null()
    reasons |= _inexact_columns(sources, summaries, types)
    for name, reason in reasons.items():
        types.pop(name, None)
        if not is_left_out(left_out, name):
            left_out[name] = reason
    if on_misfit == "error":
        _refuse_misfits(expected, left_out, types)
    complete = all(summary.complete for summary in summaries)
    return ColumnPlan(types, left_out, complete, any(summary.unreadable for summary in summaries))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if pa.types.is_large_string(kind) else kind


def _common_type(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the plain type for values of all these; None if there is none."""
    others = {kind for kind in kinds if not pa.types.is_null(kind)}
    if others == {pa.int64(), pa.float64()}:
        return pa.float64()
    return None if len(others) > 1 else next(iter(others), pa.null())


def _missing_columns(
    sources: Sequence[RowSource], summaries: Sequence[RowsSummary], kinds: Mapping[str, Any]
) -> dict[str, str]:
    """Return columns that some source does not have although its samples may have such values, and why."""
    reasons: dict[str, str] = {}
    for source, summary in zip(sources, summaries, strict=True):
        if not summary.complete or summary.left_out:
            for name in kinds.keys() - summary.columns.keys() - reasons.keys():
                if is_left_out(summary.left_out, name):
                    reasons[name] = "it is left out in some shards"
                elif not summary.complete:
                    reasons[name] = f"the index of {_first_path(source)} has only some of its columns"
    return reasons


def is_left_out(left_out: Mapping[str, str], name: str) -> bool:
    """Whether a column is left out, by its own name or with all columns below another one."""
    if name in left_out:
        return True
    ends = [at for at, character in enumerate(name) if character == "."]
    return any(left_out.get(name[:end], NESTED_REASON) != NESTED_REASON for end in ends)


def _type_conflict(sources: Sequence[RowSource], found: Mapping[pa.DataType, int], known: pa.DataType) -> str:
    places = {} if pa.types.is_null(known) else {known: "the dataset"}
    for kind, number in found.items():
        if len(places) < 2 and not pa.types.is_null(kind) and kind not in places:
            places[kind] = _first_path(sources[number])
    return "it is " + " and ".join(f"{kind} in {place}" for kind, place in places.items())


def _inexact_columns(
    sources: Sequence[RowSource], summaries: Sequence[RowsSummary], types: Mapping[str, pa.DataType]
) -> dict[str, str]:
    """Return columns of doubles that have integers in some source which doubles cannot hold. Reads such sources."""
    reasons: dict[str, str] = {}
    for source, summary in zip(sources, summaries, strict=True):
        names = [
            name
            for name, kind in summary.columns.items()
            if types.get(name) == pa.float64() and _plain_type(kind) == pa.int64() and name not in reasons
        ]
        for batch in source.batches() if names else ():
            for name in names:
                try:
                    batch.columns.get(name, pa.nulls(0)).cast(pa.float64())
                except pa.ArrowInvalid:
                    reasons[name] = f"it is double, and an integer in {_first_path(source)} is too large for that"
    return reasons


def _refuse_misfits(
    expected: Mapping[str, pa.DataType], left_out: Mapping[str, str], types: Mapping[str, pa.DataType]
) -> None:
    """Raise SchemaMismatchError for a column of the dataset that would be left out."""
    for name, kind in expected.items():
        if name not in types and is_left_out(left_out, name):
            ends = [at for at, character in enumerate(name) if character == "."]
            reason = next(left_out[part] for part in [name, *(name[:end] for end in ends)] if part in left_out)
            raise SchemaMismatchError(
                f"Column {name!r} of the dataset cannot have the values of these samples",
                expected=_plain_type(kind),
                found=reason,
                field=name,
                hint='Pass on_misfit="omit" to leave the column out: then it cannot be queried any more',
            )


def _first_path(source: RowSource) -> str:
    """The path of the first shard of a source, for messages."""
    paths = (batch.shards["path"][0].as_py() for batch in source.batches() if len(batch.shards))
    return next(paths, "some shards")
