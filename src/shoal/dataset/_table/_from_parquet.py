"""Parquet files in, shards out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal import schema
from shoal.codec import codec_for, encode_npy
from shoal.dataset._growing._shard_names import is_numbered, shard_pattern
from shoal.errors import FieldError, OptionError, ShoalError, WriteError
from shoal.sample import DictSample, class_from_schema, is_record, pack, schema_of, unpack
from shoal.schema import FieldType, Schema, schema_to_json
from shoal.shard import ShardWriter

from ._arrow_columns import ABSENT
from ._batches import KEY, Layout
from ._parquet import Row, read_parquet

__all__ = ["shards_from_parquet"]

PathLike = str | os.PathLike[str]
Stored = Callable[[Row], Mapping[str, Any]]


def shards_from_parquet(
    path: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    sample_type: type[Any] | None,
    key: str | None,
    columns: Sequence[str] | Mapping[str, str] | None,
    max_samples: int | None,
    max_bytes: int | None,
    compression: str | None,
    overwrite: bool,
    batch_size: int,
) -> tuple[list[str], type[Any] | None]:
    """Write what Parquet files hold as shards. Returns their URLs, and the samples' type where they have one."""
    names = None if columns is None else [*columns, *([key] if key is not None and key not in columns else [])]
    layout, runs = read_parquet(path, names, batch_size)
    kind = sample_type
    if kind is None and layout.style == "typed" and layout.schema is not None and not isinstance(columns, Mapping):
        kind = class_from_schema(layout.schema)
    stored = _stored(layout, kind, columns if isinstance(columns, Mapping) else None)
    pattern = shard_pattern(os.fspath(output), max_samples, max_bytes)
    writer = ShardWriter(
        pattern,
        max_samples=max_samples or (10_000 if is_numbered(pattern) else 1 << 62),
        max_bytes=max_bytes or (1 << 30 if is_numbered(pattern) else 1 << 62),
        compression=compression,
        schema=schema_to_json(schema_of(kind)) if kind is not None else None,
        overwrite=overwrite,
    )
    with writer:
        for name, row in _keyed(runs, layout, key):
            writer.write((name, _written(name, row, stored)))
    return writer.urls, kind


def _keyed(runs: Iterator[list[Row]], layout: Layout, key: str | None) -> Iterator[tuple[str, Row]]:
    """Rows with their keys: a column's, or else their numbers."""
    column = key or (KEY if KEY in layout.columns else None)
    if column is not None and column not in layout.columns:
        raise FieldError("no such column", expected=" or ".join(layout.columns), found=column)
    number = 0
    for run in runs:
        for row in run:
            name = f"{number:09d}" if column is None else row[column]
            if name is None or name is ABSENT or isinstance(name, (bytes, list, dict, np.ndarray)):
                raise WriteError("a key is text", found=repr(name), field=column, hint=f"row {number}")
            yield str(name), row
            number += 1


def _written(key: str, row: Row, stored: Stored) -> Mapping[str, Any]:
    try:
        return stored({name: value for name, value in row.items() if value is not ABSENT})
    except ShoalError as error:
        raise error.at(key=key) from error.__cause__


def _stored(layout: Layout, kind: type[Any] | None, fields: Mapping[str, str] | None) -> Stored:
    """What makes of a row what is written."""
    if fields is not None:
        if kind is not None:
            raise OptionError("a typed sample is one field", expected="a list of columns", found="a mapping")
        return lambda row: {field: _member(row[name]) for name, field in fields.items() if row.get(name) is not None}
    if kind is not None:
        if not is_record(kind):
            raise OptionError("samples of this type cannot be made of rows", found=kind.__name__, hint="use @packable")
        of, foreign = schema_of(kind), layout.style == "foreign"
        return lambda row: {"msgpack": pack(unpack(kind, _encode(_arranged(row, of) if foreign else row)))}
    if layout.style == "dict":
        return lambda row: {name: _encoded(name, value) for name, value in row.items() if name != KEY}
    return lambda row: {"msgpack": DictSample({name: value for name, value in row.items() if name != KEY}).packed}


def _encoded(field: str, value: Any) -> Any:
    """A value as its writer takes it, who would take a text for JSON that is encoded already."""
    codec = codec_for(field) if type(value) is str else None
    return msgspec.json.encode(value) if codec is not None and codec.name == "json" else value


def _member(value: Any) -> Any:
    """A cell as a member: an image of a Hugging Face table is a struct of its bytes and its name."""
    if isinstance(value, dict) and set(value) == {"bytes", "path"} and isinstance(value["bytes"], bytes):
        return value["bytes"]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return encode_npy(value)
    raise TypeError(type(value).__name__)


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def _arranged(row: Row, of: Schema) -> Row:
    """A row of another writer's table, with arrays where the schema has them."""
    return {name: _as_arrays(value, of[name].type) if name in of else value for name, value in row.items()}


def _as_arrays(value: Any, hint: FieldType) -> Any:
    match hint:
        case _ if value is None:
            return None
        case schema.OptionalType(inner):
            return _as_arrays(value, inner)
        case schema.Array() if isinstance(value, list):
            return np.asarray(value, _dtype(hint))
        case schema.Image() | schema.Audio():
            return _member(value)
        case schema.ListType(inner) if isinstance(value, list):
            return [_as_arrays(item, inner) for item in value]
        case schema.RecordType(inner) if isinstance(value, dict):
            return _arranged(value, inner)
    return value


def _dtype(hint: schema.Array) -> Any:
    try:
        return np.dtype(hint.dtype) if hint.dtype else None
    except TypeError:  # a family of dtypes, such as "floating"
        return None
