"""Classes made from schemas, for data whose class is not at hand."""

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
from shoal.sample._packable import packable
from shoal.schema import Field, FieldType, Schema, schema_to_json, wire_kinds

from ._annotations import keep_record, read_annotation, read_record
from ._converters import ConversionOptions, converter_of
from ._serializer import plan_of
from ._stored_values import ValueMismatch

__all__ = ["class_from_schema"]

_classes: dict[str, type[Any]] = {}
_lock = threading.RLock()  # one class for one schema, whoever asks first; nested records ask again


def class_from_schema(schema: Schema) -> type[Any]:
    r"""A packable class with this schema, equal in behaviour to the class the schema was made of.

    The same content gives the same class, in this process; another content gives another class, whatever its name.
    Samples of such classes can be pickled: they carry their schema.

    Raises:
        SchemaError: A field's name is not a Python name, or a default does not fit its field.

    Example:
        >>> from shoal.schema import Array, Field, Schema, StrType
        >>> made = class_from_schema(Schema("ImageSample", (Field("image", Array()), Field("label", StrType()))))
        >>> made(image=np.zeros(3), label="cat").packed[:7]
        b'\x82\xa5image'
    """
    content = json.dumps(schema_to_json(schema), sort_keys=True)
    with _lock:
        found = _classes.get(content)
        if found is None:
            found = _classes[content] = _generated(schema)
    return found


def _generated(of: Schema) -> type[Any]:
    annotations = {field.name: _annotation_of(field.type) for field in of.fields}
    namespace: dict[str, Any] = {"__doc__": of.description, "__module__": __name__, "__annotations__": annotations}
    for field in of.fields:
        if not field.name.isidentifier() or keyword.iskeyword(field.name):
            hint = "read the data as DictSample"
            raise SchemaError(
                "a field's name is not a Python name", found=repr(field.name), field=field.name, hint=hint
            )
        namespace[field.name] = _dataclass_field(field, annotations[field.name])
    aliases = {field.name: field.aliases for field in of.fields if field.aliases}
    made: type[Any] = packable(version=of.version, aliases=aliases, kw_only=_is_mixed(of))(type(of.name, (), namespace))
    type.__setattr__(made, "__reduce__", _reduce)
    # What the class itself cannot say: descriptions of fields, and that a default is computed by some other class.
    keep_record(made, replace(read_record(made), schema=of))
    return made


def _is_mixed(of: Schema) -> bool:
    """Whether a field without a default follows one with, which only keywords allow."""
    required = [_is_required(field) for field in of.fields]
    return required != sorted(required, reverse=True)


def _is_required(field: Field) -> bool:
    return field.default is None or field.default.json is None


def _reduce(sample: Any) -> tuple[Any, ...]:
    return _restored, (type(sample).__schema__, sample.packed)


def _restored(of: Schema, payload: bytes) -> Any:
    return class_from_schema(of).from_bytes(payload, writable=True)


def _dataclass_field(field: Field, annotation: Any) -> Any:
    if field.default is None or field.default.json is None:
        return dataclasses.field()
    convert = converter_of(read_annotation(annotation, _nested), plan_of, ConversionOptions(writable=True)).from_plain
    value = json.loads(field.default.json)

    def make() -> Any:
        return convert(_from_json(field.type, value))

    try:
        default = make()
    except (ValueMismatch, CodecError, ValueError, TypeError) as error:
        expected, found = str(field.type), field.default.json
        raise SchemaError("a default does not fit", expected=expected, found=found, field=field.name) from error
    plain = isinstance(default, str | int | float | bytes | None)
    # Anything else is made anew each time, so that no two samples share a list or an array.
    return dataclasses.field(default=default) if plain else dataclasses.field(default_factory=make)


def _nested(cls: type) -> Schema | None:
    return read_record(cls).schema


def _from_json(of: FieldType, value: Any) -> Any:
    """A default from JSON, in the plain form that converters take: bytes are base64 there, and keys are text."""
    match of:
        case schema.OptionalType():
            return None if value is None else _from_json(of.of, value)
        case schema.FloatType() if isinstance(value, str):
            return float(value)
        case schema.BytesType() | schema.Array() | schema.Image() | schema.Audio() if isinstance(value, str):
            return base64.b64decode(value, validate=True)
        case schema.ListType():
            return [_from_json(of.items, part) for part in value]
        case schema.TupleType():
            items = of.items * len(value) if of.variadic else of.items
            return [_from_json(item, part) for item, part in zip(items, value, strict=True)]
        case schema.MapType():
            key = int if isinstance(of.keys, schema.IntType) else str
            return {key(name): _from_json(of.values, part) for name, part in value.items()}
        case schema.RecordType():
            return {
                field.name: _from_json(field.type, value[field.name])
                for field in of.schema.fields
                if field.name in value
            }
        case schema.UnionType() if isinstance(value, str) and not any("str" in wire_kinds(o) for o in of.options):
            return base64.b64decode(value, validate=True)
    return value


def _annotation_of(of: FieldType) -> Any:
    return _ANNOTATIONS[type(of)](of)


def _enum(of: schema.EnumType) -> Any:
    try:
        return enum.Enum(of.name, list(of.members), module=__name__)
    except (ValueError, TypeError) as error:
        raise SchemaError("an Enum cannot be made", found=str(of)) from error


def _tuple(of: schema.TupleType) -> Any:
    items = (*map(_annotation_of, of.items), *((...,) if of.variadic else ()))
    return tuple.__class_getitem__(items)


_ANNOTATIONS: dict[type, Callable[[Any], Any]] = {
    schema.StrType: lambda of: str,
    schema.IntType: lambda of: int,
    schema.FloatType: lambda of: float,
    schema.BoolType: lambda of: bool,
    schema.BytesType: lambda of: bytes,
    schema.DateTimeType: lambda of: dt.datetime,
    schema.DateType: lambda of: dt.date,
    schema.TimeType: lambda of: dt.time,
    schema.AnyType: lambda of: Any,
    schema.LiteralType: lambda of: Literal[of.values],
    schema.EnumType: _enum,
    schema.Array: lambda of: Annotated[np.ndarray, of],
    schema.Image: lambda of: Annotated[np.ndarray, of],
    schema.Audio: lambda of: Annotated[codec.Audio, of],
    schema.OptionalType: lambda of: Union[_annotation_of(of.of), None],  # noqa: UP007 - the parts are values
    schema.UnionType: lambda of: Union[tuple(map(_annotation_of, of.options))],  # noqa: UP007
    schema.ListType: lambda of: list[_annotation_of(of.items)],  # type: ignore[misc]
    schema.TupleType: _tuple,
    schema.MapType: lambda of: dict[_annotation_of(of.keys), _annotation_of(of.values)],  # type: ignore[misc]
    schema.RecordType: lambda of: class_from_schema(of.schema),
}
