"""Samples as Arrow record batches of one schema.

The first samples decide the columns. A later sample that does not fit raises `SchemaWidenedError`, and the batches are
built again with a wider schema.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from shoal.errors import FieldError, SchemaMismatchError, ShoalError, WriteError
from shoal.load._collate import SampleBatch
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._dict_sample import DictSample
from shoal.sample._packable import pack
from shoal.schema._json_schema import schema_from_json, schema_to_json
from shoal.schema._schema import Schema
from shoal.schema._types import Array, BoolType, BytesType, FloatType, IntType, OptionalType, StrType

from ._arrow_types import (
    ABSENT,
    MSGPACK,
    Column,
    column_of,
    form_document,
    form_from_document,
    form_of_type,
    merge_columns,
    payload_converter,
    to_arrow,
)

__all__ = [
    "KEY",
    "Keyed",
    "Layout",
    "Part",
    "SchemaWidenedError",
    "batches_of",
    "can_gather",
    "gathered_parts",
    "layout_of_schema",
    "row_parts",
    "with_widest_layout",
]

KEY = "__key__"
_METADATA = b"shoal.table"
_MAX_BATCH_BYTES = 64 << 20
_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)

Keyed: TypeAlias = tuple[str, Any]
Values = dict[str, list[Any]]
Style = Literal["typed", "packed", "dict", "foreign"]
"""Samples of a class, `DictSample`, dicts of fields; or a table that was not written here."""


@dataclass(frozen=True)
class Layout:
    """What kind of samples a table holds, and its columns."""

    style: Style
    schema: Schema | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)

    def arrow_schema(self) -> pa.Schema:
        """The table's schema, which also says how to get the samples back."""
        document = {
            "version": 1,
            "style": self.style,
            "schema": None if self.schema is None else schema_to_json(self.schema),
            "columns": {name: [form_document(one.form), one.nulls] for name, one in self.columns.items()},
        }
        fields = [pa.field(name, column.form.type) for name, column in self.columns.items()]
        return pa.schema(fields, metadata={_METADATA: msgspec.json.encode(document)})


class SchemaWidenedError(Exception):
    """A batch does not fit the columns of earlier ones; ``layout`` fits both. Caught by `with_widest_layout`."""

    def __init__(self, layout: Layout, column: str) -> None:
        super().__init__(column)
        self.layout = layout
        self.column = column


def layout_of_schema(schema: pa.Schema) -> Layout:
    """The layout of a table. A table of another writer has one too: of its columns as they are."""
    written = (schema.metadata or {}).get(_METADATA)
    try:
        if written is not None:
            return _read_layout(msgspec.json.decode(written), schema)
    except (ValueError, KeyError, TypeError, ShoalError):
        pass  # the metadata does not fit the columns: the table was changed after it was written
    return Layout("foreign", None, {part.name: Column(form_of_type(part.type), "none") for part in schema})


def _read_layout(document: Any, schema: pa.Schema) -> Layout:
    of = None if document["schema"] is None else schema_from_json(document["schema"])
    columns = {
        name: Column(form_from_document(form, schema.field(name).type), nulls)
        for name, (form, nulls) in document["columns"].items()
        if name in schema.names
    }
    if list(columns) != schema.names:
        raise ValueError("other columns")
    return Layout(document["style"], of, columns)


def _style_of(sample: Any) -> tuple[Style, Schema | None]:
    if is_record(type(sample)):
        return "typed", schema_of(type(sample))
    if isinstance(sample, DictSample):
        return "packed", None
    if isinstance(sample, Mapping):
        return "dict", None
    raise WriteError(
        "these samples are no rows of a table", expected="typed samples or dicts", found=type(sample).__name__
    )


def _values(rows: Sequence[Keyed], schema: Schema | None) -> Values:
    """The values of samples, column by column."""
    samples = [sample for _, sample in rows]
    keys = {KEY: [key for key, _ in rows]}
    if schema is not None:
        return {**keys, **_typed_values(samples, schema)}
    names = dict.fromkeys(name for sample in samples for name in sample if not name.startswith("__"))
    return {**keys, **{name: [sample.get(name, ABSENT) for sample in samples] for name in names}}


def _typed_values(samples: list[Any], schema: Schema) -> Values:
    kind = type(samples[0])
    for sample in samples:
        if type(sample) is not kind:
            raise SchemaMismatchError(
                "samples of one table are of one type", expected=kind.__name__, found=type(sample).__name__
            )
    stored = [msgspec.msgpack.decode(pack(sample)) for sample in samples]
    values = {}
    for one in schema.fields:
        convert = payload_converter(one.type)
        values[one.name] = [row[one.name] if convert is None else convert(row[one.name]) for row in stored]
    return values


def _select_columns(values: Values, columns: Sequence[str] | None) -> Values:
    if columns is None:
        return values
    return {name: values[name] if name in values else [ABSENT] * len(values[KEY]) for name in columns}


def _widen_layout(layout: Layout, values: Values) -> Layout:
    """The layout with room for these values."""
    types = {} if layout.schema is None else {one.name: one.type for one in layout.schema.fields}
    found = {name: column_of(column, types.get(name)) for name, column in values.items()}
    absent = Column(column_of([]).form, "absent")
    names = [*layout.columns, *(name for name in found if name not in layout.columns)]
    first = not layout.columns
    columns = {
        name: found[name] if first else merge_columns(layout.columns.get(name, absent), found.get(name, absent))
        for name in names
    }
    return Layout(layout.style, layout.schema, columns)


def _batch(layout: Layout, values: Values, rows: int) -> pa.RecordBatch:
    arrays = []
    for name, column in layout.columns.items():
        try:
            arrays.append(to_arrow(column, values.get(name) or [ABSENT] * rows))
        except _UNFIT as error:
            if column.form == MSGPACK:
                raise WriteError("a value cannot be put in a table", found=error, field=name) from error
            columns = {**layout.columns, name: Column(MSGPACK, column.nulls)}
            raise SchemaWidenedError(replace(layout, columns=columns), name) from error
    return pa.RecordBatch.from_arrays(arrays, schema=layout.arrow_schema())


@dataclass(frozen=True)
class Part:
    """Some samples in a row, as columns of values."""

    style: Style
    schema: Schema | None
    values: Values

    def __len__(self) -> int:
        return len(self.values[KEY])


def row_parts(rows: Iterable[Keyed], size: int) -> Iterator[Part]:
    """Samples, at most ``size`` at a time, and no more than fit a bounded memory."""
    held: list[Keyed] = []
    weight = 0
    for row in rows:
        held.append(row)
        weight += _sample_bytes(row[1])
        if len(held) == size or weight >= _MAX_BATCH_BYTES:
            yield _part(held)
            held, weight = [], 0
    if held:
        yield _part(held)


def _part(rows: list[Keyed]) -> Part:
    style, schema = _style_of(rows[0][1])
    return Part(style, schema, _values(rows, schema))


def _sample_bytes(sample: Any) -> int:
    """About how much memory a sample takes: what is large in it."""
    values = sample.values() if isinstance(sample, Mapping) else getattr(sample, "__dict__", {}).values()
    weight = 64
    for value in values:
        kind = type(value)
        if kind is np.ndarray:
            weight += value.nbytes
        elif kind is bytes or kind is str:
            weight += len(value)
        elif kind is not int and kind is not float:
            weight += sys.getsizeof(value)
    return weight


def gathered_parts(
    batches: Callable[[int], Iterable[SampleBatch[Any]]],
    schema: Schema,
    columns: Sequence[str] | None,
    size: int,
    mean_bytes: float,
) -> Iterator[Part]:
    """Samples whose fields are gathered from their payloads; fields that are not asked for are not looked at."""
    rows = max(1, min(size, int(_MAX_BATCH_BYTES / max(mean_bytes, 1))))
    names = [name for name in schema.names if columns is None or name in columns]
    for batch in batches(rows):
        yield Part("typed", schema, {KEY: batch.keys, **{name: _split_column(batch.column(name)) for name in names}})


def _split_column(column: Any) -> list[Any]:
    """One value per sample. Scalars stay 0-d arrays, since NumPy's numbers lose the byte order of their dtype."""
    if isinstance(column, np.ndarray) and column.ndim == 1:
        return [column[at : at + 1].reshape(()) for at in range(len(column))]
    return list(column)


def can_gather(schema: Schema) -> bool:
    """Whether the values of batches are those that tables hold: no times, choices or parts, which have two forms."""
    kinds = (one.type.of if isinstance(one.type, OptionalType) else one.type for one in schema.fields)
    return all(isinstance(kind, StrType | IntType | FloatType | BoolType | BytesType | Array) for kind in kinds)


def batches_of(
    parts: Iterable[Part], columns: Sequence[str] | None, known: Layout | None = None
) -> Iterator[pa.RecordBatch]:
    """Samples as batches, all of one schema.

    Raises:
        SchemaWidenedError: A sample does not fit the columns of earlier ones, or ``known``.
        FieldError: ``columns`` names one that no sample of the first part has.
    """
    layout = known
    for part in parts:
        if layout is None:
            layout = _first_layout(part, columns)
        if (layout.style, layout.schema) != (part.style, part.schema):
            raise SchemaMismatchError(
                "samples of one table are of one type", expected=_type_name(layout), found=_type_name(part)
            )
        values = _select_columns(part.values, columns)
        wider = _widen_layout(layout, values)
        if wider.columns != layout.columns:
            changed = [name for name, column in wider.columns.items() if layout.columns.get(name) != column]
            raise SchemaWidenedError(wider, changed[0])
        yield _batch(layout, values, len(part))


def _type_name(of: Layout | Part) -> str:
    return of.style if of.schema is None else of.schema.name


def _first_layout(part: Part, columns: Sequence[str] | None) -> Layout:
    known = part.values if part.schema is None else [KEY, *part.schema.names]
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise FieldError("no such field", expected=" or ".join(known), found=unknown[0])
    return _widen_layout(Layout(part.style, part.schema), _select_columns(part.values, columns))


def with_widest_layout(make: Callable[[Layout | None], Any]) -> Any:
    """Call ``make`` again with a wider layout until all samples fit it, and return its result."""
    layout: Layout | None = None
    while True:
        try:
            return make(layout)
        except SchemaWidenedError as widened:  # each time one column gets wider, which ends at MessagePack
            layout = widened.layout
