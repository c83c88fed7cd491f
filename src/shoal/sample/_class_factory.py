"""Make packable classes from schemas, for data whose class is not imported."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import keyword
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, Union

import numpy as np

from shoal import codec, schema
from shoal.errors import CodecError, SchemaError
from shoal.schema._json_schema import schema_to_json
from shoal.schema._schema import Field, Schema
from shoal.schema._types import FieldType, wire_kinds

from ._annotations import keep_record, read_annotation, read_record
from ._converters import ConversionOptions, converter_of
from ._packable import packable
from ._serializer import record_converter
from ._stored_values import ValueMismatch

__all__ = ["class_from_schema"]

_classes: dict[str, type[Any]] = {}
_lock = threading.RLock()  # reentrant, because nested records make their classes too


def class_from_schema(schema: Schema) -> type[Any]:
    r"""Return a packable class with this schema, which behaves as the class that the schema was made from.

    Equal schemas give the same class in this process. Samples of such classes can be pickled; their schema is pickled
    with them.

    Raises:
        SchemaError: A field's name is not a Python identifier, or a default does not fit its field.

    Examples:
        >>> from shoal.schema import Array, Field, Schema, StrType
        >>> cls = class_from_schema(Schema("ImageSample", (Field("image", Array()), Field("label", StrType()))))
        >>> cls(image=np.zeros(3), label="cat").packed[:7]
        b'\x82\xa5image'
    """
    content = json.dumps(schema_to_json(schema), sort_keys=True)
    with _lock:
        cls = _classes.get(content)
        if cls is None:
            cls = _classes[content] = _make_class(schema)
    return cls


def _make_class(schema: Schema) -> type[Any]:
    annotations = {field.name: _annotation_for(field.type) for field in schema.fields}
    namespace: dict[str, Any] = {"__doc__": schema.description, "__module__": __name__, "__annotations__": annotations}
    for field in schema.fields:
        if not field.name.isidentifier() or keyword.iskeyword(field.name):
            hint = "read the data as DictSample"
            raise SchemaError(
                "a field's name is not a Python name", found=repr(field.name), field=field.name, hint=hint
            )
        namespace[field.name] = _dataclass_field(field, annotations[field.name])
    aliases = {field.name: field.aliases for field in schema.fields if field.aliases}
    required = [field.default is None or field.default.json is None for field in schema.fields]
    # A field without a default may follow one with a default only if both are keywords.
    kw_only = required != sorted(required, reverse=True)
    decorate = packable(version=schema.version, aliases=aliases, kw_only=kw_only)
    cls: type[Any] = decorate(type(schema.name, (), namespace))
    type.__setattr__(cls, "__reduce__", _reduce_sample)
    # The schema has what the class lacks: descriptions of fields, and defaults that are computed by another class.
    keep_record(cls, replace(read_record(cls), schema=schema))
    return cls


def _reduce_sample(sample: Any) -> tuple[Any, ...]:
    return _restore_sample, (type(sample).__schema__, sample.packed)


def _restore_sample(schema: Schema, payload: bytes) -> Any:
    return class_from_schema(schema).from_bytes(payload, writable=True)


def _dataclass_field(field: Field, annotation: Any) -> Any:
    if field.default is None or field.default.json is None:
        return dataclasses.field()
    node = read_annotation(annotation, lambda cls: read_record(cls).schema)
    convert = converter_of(node, ConversionOptions(writable=True), record_converter).from_plain
    text = field.default.json
    value = json.loads(text)

    def make_default() -> Any:
        return convert(_from_json(field.type, value))

    try:
        default = make_default()
    except (ValueMismatch, CodecError, ValueError, TypeError) as error:
        raise SchemaError("a default does not fit", expected=str(field.type), found=text, field=field.name) from error
    # A mutable default is made for each sample, so that samples do not share a list or an array.
    immutable = isinstance(default, str | int | float | bytes | None)
    return dataclasses.field(default=default) if immutable else dataclasses.field(default_factory=make_default)


def _from_json(field_type: FieldType, value: Any) -> Any:
    """Convert a default from JSON, where bytes are base64 and keys are str, to the plain form that converters take."""
    match field_type:
        case schema.OptionalType():
            return None if value is None else _from_json(field_type.of, value)
        case schema.FloatType() if isinstance(value, str):
            return float(value)
        case schema.BytesType() | schema.Array() | schema.Image() | schema.Audio() if isinstance(value, str):
            return base64.b64decode(value, validate=True)
        case schema.ListType():
            return [_from_json(field_type.items, part) for part in value]
        case schema.TupleType():
            items = field_type.items * len(value) if field_type.variadic else field_type.items
            return [_from_json(item, part) for item, part in zip(items, value, strict=True)]
        case schema.MapType():
            key = int if isinstance(field_type.keys, schema.IntType) else str
            return {key(name): _from_json(field_type.values, part) for name, part in value.items()}
        case schema.RecordType():
            return {
                field.name: _from_json(field.type, value[field.name])
                for field in field_type.schema.fields
                if field.name in value
            }
        case schema.UnionType() if isinstance(value, str):
            has_str = any("str" in wire_kinds(option) for option in field_type.options)
            return value if has_str else base64.b64decode(value, validate=True)
    return value


def _annotation_for(field_type: FieldType) -> Any:
    return _ANNOTATIONS[type(field_type)](field_type)


def _make_enum(field_type: schema.EnumType) -> Any:
    try:
        return enum.Enum(field_type.name, list(field_type.members), module=__name__)
    except (ValueError, TypeError) as error:
        raise SchemaError("an Enum cannot be made", found=str(field_type)) from error


def _tuple_annotation(field_type: schema.TupleType) -> Any:
    items = (*map(_annotation_for, field_type.items), *((...,) if field_type.variadic else ()))
    return tuple.__class_getitem__(items)


_ANNOTATIONS: dict[type, Callable[[Any], Any]] = {
    schema.StrType: lambda t: str,
    schema.IntType: lambda t: int,
    schema.FloatType: lambda t: float,
    schema.BoolType: lambda t: bool,
    schema.BytesType: lambda t: bytes,
    schema.DateTimeType: lambda t: dt.datetime,
    schema.DateType: lambda t: dt.date,
    schema.TimeType: lambda t: dt.time,
    schema.AnyType: lambda t: Any,
    schema.LiteralType: lambda t: Literal[t.values],
    schema.EnumType: _make_enum,
    schema.Array: lambda t: Annotated[np.ndarray, t],
    schema.Image: lambda t: Annotated[np.ndarray, t],
    schema.Audio: lambda t: Annotated[codec.Audio, t],
    schema.OptionalType: lambda t: Union[_annotation_for(t.of), None],  # noqa: UP007 - the parts are values
    schema.UnionType: lambda t: Union[tuple(map(_annotation_for, t.options))],  # noqa: UP007
    schema.ListType: lambda t: list[_annotation_for(t.items)],  # type: ignore[misc]
    schema.TupleType: _tuple_annotation,
    schema.MapType: lambda t: dict[_annotation_for(t.keys), _annotation_for(t.values)],  # type: ignore[misc]
    schema.RecordType: lambda t: class_from_schema(t.schema),
}
