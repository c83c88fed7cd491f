"""Metadata columns of a dataset: those of the index, and of typed samples what their class makes of them.

A class may name a field anew (``aliases``) and give a default to one that older data lacks. Its columns then have the
values that the samples have: those of the index, under the newest name; the default where a sample has no value; and
where neither is clear from the index, what is read from the samples.
"""

# ruff: noqa: SLF001 - reads private attributes of the dataset, of which it is a part

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from shoal._typing import IntArray
from shoal.sample._annotations import is_record, schema_of
from shoal.schema._schema import Default, Schema
from shoal.schema._types import (
    BoolType,
    EnumType,
    FieldType,
    FloatType,
    IntType,
    LiteralType,
    OptionalType,
    RecordType,
    StrType,
)
from shoal.shard._arrow_arrays import as_floats
from shoal.shard._row_view import RowView
from shoal.shard._segment_table import SegmentTable
from shoal.shard._source import ShardSource
from shoal.shard._table import column_error, join_columns

from ._column_stages import columns_of_sample
from ._decoding import PAYLOAD
from ._description import FinalSource, HasColumns
from ._query import Expression, columns_of
from ._query_executor import may_be_true, run_where

if TYPE_CHECKING:
    from ._base import DatasetBase

__all__ = ["former_names", "matching_rows", "metadata_names", "metadata_table"]

pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them
_SCALARS = (StrType, IntType, FloatType, BoolType, LiteralType, EnumType)
_NO_DEFAULT = Default("null")


@dataclass(frozen=True, slots=True)
class _ClassColumn:
    """A scalar of the samples' class, and where it is stored."""

    name: str
    """What the column is called, as in the newest data."""
    path: tuple[str, ...]
    """The attributes that lead to the value."""
    stored: tuple[str, ...]
    """The columns it may be stored in, the newest name first."""
    type: FieldType
    optional: bool
    """Whether None is a value of its own, which is no reason for the default."""
    default: Default | None
    """None where a sample must have the value."""
    is_filled: bool
    """Whether a sample may have another value than its first column: by a default or a former name."""
    is_packed: bool = True
    """Whether samples are stored whole, not as plain fields."""


def metadata_names(dataset: DatasetBase[Any]) -> tuple[str, ...]:
    """The metadata columns: those that are stored, former names left out, then those that only the class has."""
    source = dataset.source
    if not isinstance(source, HasColumns):
        return ()
    stored, columns = source.column_names(), _class_columns(dataset)
    newest = _newest_names(columns)
    names = [newest.get(name, name) for name in stored]
    return tuple(dict.fromkeys([*names, *(name for name in columns if columns[name].is_filled)]))


def former_names(dataset: DatasetBase[Any]) -> dict[str, str]:
    """The columns under which older data has a field of the class, each with its name now."""
    return _newest_names(_class_columns(dataset))


def _newest_names(columns: Mapping[str, _ClassColumn]) -> dict[str, str]:
    """Of samples that are stored whole: in plain fields, an entry of a JSON field is a column of its own."""
    pairs = [(name, column.name) for column in columns.values() for name in column.stored if column.is_packed]
    return {name: newest for name, newest in pairs if name != newest}


def metadata_table(dataset: DatasetBase[Any], names: Sequence[str]) -> pa.Table:
    """Metadata columns of the samples in view; null where a sample has no such value.

    Raises FieldError for a column that cannot be known of all of them. A name that is no column is one of nulls.
    """
    rows = dataset._rows
    columns = _class_columns(dataset)
    plain = _stored_table(dataset, [name for name in names if name not in columns])
    found = {name: plain.column(name) for name in plain.column_names}
    for name in names:
        if name in columns:
            found[name] = _class_values(dataset, columns[name])
        elif rows is not None:
            found[name] = rows.pick(found[name])
    return pa.table([found[name] for name in names], names=list(names))


def matching_rows(dataset: DatasetBase[Any], condition: Expression) -> RowView | None:
    """The rows of the source in which a condition is true, by the statistics of its index and the columns it needs.

    None where it has to be asked otherwise. Names are exact. Raises FieldError and QueryError.
    """
    source, names = dataset.source, sorted(columns_of(condition))
    table = source.index if isinstance(source, ShardSource) else None
    if not isinstance(table, SegmentTable) or not names or _class_columns(dataset).keys() & set(names):
        return None
    types = table.common_types(names)
    if types is None:
        return None
    run_where(condition, pa.table([pa.array([], kind) for kind in types], names=names))  # which refuses wrong types
    parts = table.scan(names, partial(may_be_true, condition), strict=not _is_lenient(dataset))
    return RowView.concat([RowView.from_mask(run_where(condition, part), first) for first, part in parts])


def _is_lenient(dataset: DatasetBase[Any]) -> bool:
    """Whether members that do not decode have no value."""
    return dataset.errors.goes_on or dataset._description.spec.on_decode_error == "keep"


def _stored_table(dataset: DatasetBase[Any], names: Sequence[str], *, as_float: bool = False) -> pa.Table:
    """Columns of the index, one row for each sample of the source; integers ``as_float`` as a class reads them."""
    names, source = list(dict.fromkeys(names)), dataset.source
    if isinstance(source, ShardSource):
        return source.metadata(names, strict=not _is_lenient(dataset), as_float=as_float)
    table = source.metadata(names) if isinstance(source, HasColumns) else source.table(names)
    if not as_float:
        return table
    return pa.table([as_floats(values) for values in table.columns], names=names)


def _class_columns(dataset: DatasetBase[Any]) -> dict[str, _ClassColumn]:
    """The scalars of the class that stored samples are read as."""
    source = dataset.source
    if isinstance(source, FinalSource) or not isinstance(source, HasColumns):
        return {}
    reading = dataset._reading
    if not is_record(reading.sample_type):
        return {}
    if reading.packed:
        known = set(source.column_names())
        leaves = _leaves(schema_of(reading.sample_type), (PAYLOAD,), (), filled=False)
        # Dates and the like have columns only where their stored form is a scalar.
        return {
            column.name: column
            for column in leaves
            if isinstance(column.type, _SCALARS) or (column.is_filled and known.intersection(column.stored))
        }
    fields = {field.name: field for field in schema_of(reading.sample_type).fields}
    leaves = _leaves(schema_of(reading.sample_type), ("",), (), filled=False)
    return {
        column.path[0]: _plain_column(column, source.fields, source.column_names())
        for column in leaves
        if len(column.path) == 1
        and isinstance(column.type, _SCALARS)
        and _is_filled(fields[column.path[0]].default, fields[column.path[0]].aliases)
    }


def _plain_column(column: _ClassColumn, fields: Sequence[str], columns: Sequence[str]) -> _ClassColumn:
    """A member of a class that is read from plain fields: one of that name, or an entry of a JSON field."""
    name = column.path[0]
    documents = [field for field in fields if field.rpartition(".")[2].lower() in ("json", "jsn")]
    # Any other field that the name may mean has to be read.
    odd = (field.startswith(f"{name}.") or field.endswith(f".{name}") for field in fields)
    known = not any(odd) and (name not in fields or name in columns)
    stored = (name, *(f"{field}.{name}" for field in documents)) if known and len(documents) < 2 else ()
    return _ClassColumn(
        name, column.path, stored, column.type, optional=True, default=Default(None), is_filled=True, is_packed=False
    )


def _leaves(
    schema: Schema, prefixes: tuple[str, ...], path: tuple[str, ...], *, filled: bool
) -> Iterator[_ClassColumn]:
    for field in schema.fields:
        names = (field.name, *field.aliases)
        stored = tuple(f"{prefix}.{name}".removeprefix(".") for prefix in prefixes for name in names)
        optional = isinstance(field.type, OptionalType)
        kind = field.type.of if isinstance(field.type, OptionalType) else field.type
        is_filled = filled or _is_filled(field.default, field.aliases)
        own = (*path, field.name)
        if isinstance(kind, RecordType):
            yield from _leaves(kind.schema, stored, own, filled=is_filled)
        else:
            default = field.default if field.default is None or isinstance(kind, _SCALARS) else Default(None)
            yield _ClassColumn(stored[0], own, stored, kind, optional, default, is_filled)


def _is_filled(default: Default | None, aliases: Sequence[str]) -> bool:
    return bool(aliases) or (default is not None and default != _NO_DEFAULT)


def _class_values(dataset: DatasetBase[Any], column: _ClassColumn) -> pa.ChunkedArray:
    """The values that samples in view have."""
    rows, stored = dataset._rows, _stored_table(dataset, column.stored, as_float=isinstance(column.type, FloatType))
    values = _first_of(column.name, stored.columns, len(dataset.source))
    unknown = _unknown(dataset, column, stored) if column.is_filled else None
    if rows is not None:
        values = rows.pick(values)
        unknown = None if unknown is None else rows.pick(pa.chunked_array([unknown])).to_numpy()
    if unknown is None:
        return values
    absent = values.is_null().to_numpy() & ~unknown
    if column.default is not None and column.default.is_known:
        values = _with_default(column, values, absent)
    elif column.default is not None:
        unknown |= absent
    return _with_read(dataset, column, values, np.flatnonzero(unknown)) if unknown.any() else values


def _first_of(name: str, parts: Sequence[pa.ChunkedArray], length: int) -> pa.ChunkedArray:
    """For each sample the first value that is not null."""
    if len(parts) < 2:
        return parts[0] if parts else pa.chunked_array([pa.nulls(length)])
    whole = join_columns(name, parts, [""] * len(parts))  # of one type, as `coalesce` needs them
    first: pa.ChunkedArray = pc.coalesce(*(whole.slice(at * length, length) for at in range(len(parts))))
    return first


def _unknown(dataset: DatasetBase[Any], column: _ClassColumn, stored: pa.Table) -> Any:
    """Samples of which the index does not tell whether they have None or no value, where that makes a difference."""
    source = dataset.source
    there = {name: stored.column(name).is_valid().to_numpy() for name in stored.column_names}
    unknown: Any = ~np.logical_or.reduce([np.zeros(len(source), np.bool_), *there.values()])
    if len(column.path) > 1 or not isinstance(source, ShardSource):
        return unknown
    if not column.optional:
        return np.zeros(len(source), np.bool_)
    for number in range(len(source.shards)):
        rows = slice(*source.starts[number : number + 2])
        names = [name for name in there if name in source.index.columns_of(number)]
        if not names or column.default in (None, _NO_DEFAULT):  # without a column, no sample of a shard has None
            unknown[rows] = False
        if len(names) > 1:  # None under a newer name hides a value under an older one
            unknown[rows] |= ~there[names[0]][rows]
    return unknown


def _with_default(column: _ClassColumn, values: pa.ChunkedArray, absent: Any) -> pa.ChunkedArray:
    default = json.loads(column.default.json) if column.default and column.default.json else None
    if default is None or not absent.any():
        return values
    filling = _as_type(pa.array([default]), column.type)
    return _with_values(column, values, absent, filling.take(pa.array(np.zeros(np.count_nonzero(absent), np.int64))))


def _with_values(column: _ClassColumn, values: pa.ChunkedArray, mask: Any, others: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values, and where the mask is true the others, in their order."""
    whole = join_columns(column.name, [values, others], ["the index", "the samples"])
    places = np.arange(len(values))
    places[mask] = len(values) + np.arange(len(others))
    return whole.take(pa.array(places))


def _with_read(
    dataset: DatasetBase[Any], column: _ClassColumn, values: pa.ChunkedArray, positions: IntArray
) -> pa.ChunkedArray:
    """The values with those of samples that have to be read: one field of each."""
    mask = np.zeros(len(values), np.bool_)
    mask[positions] = True
    return _with_values(column, values, mask, _read(dataset, column, positions))


def _read(dataset: DatasetBase[Any], column: _ClassColumn, positions: IntArray) -> pa.ChunkedArray:
    view: Any = dataset.stored
    name = column.path[0]
    only = view._view(rows=dataset.rows.take(positions)).select_columns(name)
    values = [_attribute(columns_of_sample(sample).get(name), column.path[1:]) for sample in only]
    if len(values) != len(positions):
        raise column_error(column.name, f"{len(positions) - len(values):,} samples cannot be read")
    try:
        return _as_type(pa.array(values), column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise column_error(column.name, f"its values have no one type ({error})") from error


def _attribute(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = None if value is None else value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value.value if isinstance(value, Enum) else value


def _as_type(values: pa.Array, kind: FieldType) -> pa.ChunkedArray:
    """Values as a class has them."""
    whole = pa.chunked_array([values])
    return as_floats(whole) if isinstance(kind, FloatType) else whole
