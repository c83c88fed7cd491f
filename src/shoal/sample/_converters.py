"""Converters between a field's value and its stored form, for each type of field.

Converters are built once per class. A value that does not fit raises `ValueMismatch`, which collects the path to the
value while it propagates, so values that fit cost nothing extra.
"""

from __future__ import annotations

import datetime as dt
import enum
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from shoal import schema
from shoal.codec._arrays import as_array, encode_npy
from shoal.codec._codec import Buffer
from shoal.errors import CodecError
from shoal.schema._types import FieldType, dtype_fits

from ._annotations import Node
from ._stored_values import (
    BYTES_TYPES,
    Encoded,
    ValueMismatch,
    array_or_bytes,
    array_reader,
    array_writer,
    convert_entries,
    convert_items,
    decode_array,
    describe_type,
    media_decoder,
    media_encoder,
)

__all__ = ["ConversionOptions", "Converter", "any_to_wire", "converter_of", "restore_arrays"]

Convert: TypeAlias = Callable[[Any], Any]
_TimeType = TypeVar("_TimeType", dt.datetime, dt.date, dt.time)


@dataclass(frozen=True, slots=True)
class Converter:
    """How values of one type are written and read.

    Attributes:
        wire: The type that msgspec decodes to; ``Any`` if msgspec has no type for the values.
        to_wire: From a value to what msgspec encodes; checks the value.
        from_wire: From what msgspec decoded to the value; None if they are the same.
        from_plain: From the value, or its plain form (as in JSON or untyped MessagePack), to the value.
        exact: The class whose instances need no conversion.
    """

    wire: Any
    to_wire: Convert
    from_wire: Convert | None
    from_plain: Convert
    exact: type | None = None


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """How to convert: copy arrays when reading, keep files undecoded, find the path of a mismatch within records."""

    writable: bool = False
    lazy: bool = False
    thorough: bool = False


def _refuse(value: Any, expected: str) -> typing.NoReturn:
    raise ValueMismatch(expected, describe_type(value))


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        _refuse(value, "str")
    text = str.__str__(value)  # a plain str, also of a subclass such as np.str_
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueMismatch("str that UTF-8 can hold", ascii(text[:40])) from None
    return text


def _to_int(value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        _refuse(value, "int")
    number = int(value)
    if not -(2**63) <= number < 2**64:
        raise ValueMismatch("int from -2**63 to 2**64 - 1", str(number))
    return number


def _to_float(value: Any) -> float:
    if not isinstance(value, float | int | np.floating | np.integer) or isinstance(value, bool):
        _refuse(value, "float")
    try:
        return float(value)
    except OverflowError:
        raise ValueMismatch("float", "an int too large for one") from None


def _to_bool(value: Any) -> bool:
    return bool(value) if isinstance(value, bool | np.bool_) else _refuse(value, "bool")


def _to_bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else _refuse(value, "bytes")


def _datetime_text(value: Any) -> str:
    if not isinstance(value, dt.datetime):
        _refuse(value, "datetime")
    offset = value.utcoffset()
    if offset is not None and offset % dt.timedelta(minutes=1):
        value = value.astimezone(dt.UTC)  # RFC 3339 has no seconds in offsets
    return str(value.isoformat())


def _date_text(value: Any) -> str:
    is_date = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    return str(value.isoformat()) if is_date else _refuse(value, "date")


def _time_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.time) else _refuse(value, "time")


def _time_parser(kind: type[_TimeType], to_text: Convert) -> Convert:
    def from_plain(value: Any) -> Any:
        if not isinstance(value, str):
            to_text(value)  # raises ValueMismatch for other types
            return value
        try:
            return kind.fromisoformat(value)
        except ValueError:
            raise ValueMismatch(f"{kind.__name__} in ISO 8601", repr(value[:40])) from None

    return from_plain


_SCALAR_CONVERTERS: dict[type, Converter] = {
    schema.StrType: Converter(str, _to_str, None, _to_str, str),
    schema.IntType: Converter(int, _to_int, None, _to_int, int),
    schema.FloatType: Converter(float, _to_float, None, _to_float, float),
    schema.BoolType: Converter(bool, _to_bool, None, _to_bool, bool),
    schema.BytesType: Converter(bytes, _to_bytes, None, _to_bytes, bytes),
    schema.DateTimeType: Converter(dt.datetime, _datetime_text, None, _time_parser(dt.datetime, _datetime_text)),
    schema.DateType: Converter(dt.date, _date_text, None, _time_parser(dt.date, _date_text)),
    schema.TimeType: Converter(dt.time, _time_text, None, _time_parser(dt.time, _time_text)),
}


def _literal_converter(literal: schema.LiteralType) -> Converter:
    allowed = {(type(value), value): value for value in literal.values}

    def check(value: Any) -> Any:
        try:
            return allowed[type(value), value]
        except (KeyError, TypeError):
            raise ValueMismatch(str(literal), repr(value)[:80]) from None

    is_native = set(literal.kinds) <= {"str", "int"}
    if not is_native:
        return _untyped_converter(check, check)
    return Converter(typing.Literal[literal.values], check, None, check)


def _untyped_converter(to_wire: Convert, from_plain: Convert) -> Converter:
    """Return a converter for values that msgspec has no type for; they are checked after decoding."""
    return Converter(Any, to_wire, from_plain, from_plain)


def _enum_converter(field_type: schema.EnumType, cls: type[enum.Enum]) -> Converter:
    members = {(type(member.value), member.value): member for member in cls}

    def to_wire(value: Any) -> Any:
        return value.value if isinstance(value, cls) else _refuse(value, str(field_type))

    def from_plain(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        try:
            return members[type(value), value]
        except (KeyError, TypeError):
            raise ValueMismatch(str(field_type), repr(value)[:80]) from None

    is_native = len(set(field_type.kinds)) == 1 and field_type.kinds[0] in ("str", "int")
    return Converter(cls, to_wire, None, from_plain) if is_native else _untyped_converter(to_wire, from_plain)


def _sequence_converter(node: Node, items: tuple[Converter, ...]) -> Converter:
    """Return the converter of a list, a tuple or a map, from those of its items."""
    field_type = node.type
    if isinstance(field_type, schema.MapType):
        return _map_converter(field_type, items[0])
    if isinstance(field_type, schema.TupleType) and not field_type.variadic:
        return _tuple_converter(field_type, items)
    (item,) = items
    container: Convert = tuple if isinstance(field_type, schema.TupleType) else list
    wire = tuple[item.wire, ...] if container is tuple else list[item.wire]  # type: ignore[name-defined]
    from_wire = _item_converter(item.from_wire, field_type, container) if item.from_wire else None
    return Converter(
        wire,
        _item_converter(item.to_wire, field_type, list),
        from_wire,
        _item_converter(item.from_plain, field_type, container),
    )


def _item_converter(convert: Convert, field_type: FieldType, container: Convert) -> Convert:
    def run(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            _refuse(value, str(field_type))
        return container(convert_items(convert, value))

    return run


def _tuple_converter(field_type: schema.TupleType, items: tuple[Converter, ...]) -> Converter:
    def convert_each(converts: list[Convert], container: Convert) -> Convert:
        def run(value: Any) -> Any:
            if not isinstance(value, list | tuple):
                _refuse(value, str(field_type))
            if len(value) != len(converts):
                raise ValueMismatch(f"{field_type} of {len(converts)} items", f"{len(value)} items")
            # One call per item, so that `convert_items` counts items for the path.
            return container(convert_items(lambda pair: pair[0](pair[1]), [*zip(converts, value, strict=True)]))

        return run

    wire = tuple[tuple(item.wire for item in items)] if items else tuple[()]  # type: ignore[misc]
    changed = any(item.from_wire for item in items)
    from_wire = convert_each([item.from_wire or _identity for item in items], tuple) if changed else None
    to_wire = convert_each([item.to_wire for item in items], list)
    return Converter(wire, to_wire, from_wire, convert_each([item.from_plain for item in items], tuple))


def _identity(value: Any) -> Any:
    return value


def _map_converter(field_type: schema.MapType, values: Converter) -> Converter:
    key = _to_str if isinstance(field_type.keys, schema.StrType) else _to_int

    def convert_values(convert: Convert) -> Convert:
        def run(value: Any) -> Any:
            if not isinstance(value, Mapping):
                _refuse(value, str(field_type))
            return convert_entries(key, convert, value)

        return run

    wire = dict.__class_getitem__((str if key is _to_str else int, values.wire))
    from_wire = convert_values(values.from_wire) if values.from_wire else None
    return Converter(wire, convert_values(values.to_wire), from_wire, convert_values(values.from_plain))


RecordConverter: TypeAlias = Callable[[type, ConversionOptions], Converter]
"""From a record's class to its converter. The serializer passes it, because records are read by its plans."""


def converter_of(node: Node, options: ConversionOptions, record_converter: RecordConverter) -> Converter:
    """Return the converter of a node."""
    field_type = node.type
    scalar = _SCALAR_CONVERTERS.get(type(field_type))
    if scalar is not None:
        return scalar
    match field_type:
        case schema.LiteralType():
            return _literal_converter(field_type)
        case schema.EnumType():
            return _enum_converter(field_type, node.cls)
        case schema.Array():
            return _array_converter(field_type, options.writable)
        case schema.Image() | schema.Audio():
            return _media_converter(field_type, options)
        case schema.AnyType():
            return Converter(Any, any_to_wire, restore_arrays, _identity)
        case schema.RecordType():
            return record_converter(node.cls, options)
    # A file in a list or a tuple has no attribute that could decode it when it is read.
    inner = options if isinstance(field_type, schema.OptionalType) else replace(options, lazy=False)
    parts = tuple(converter_of(part, inner, record_converter) for part in node.parts)
    if isinstance(field_type, schema.OptionalType):
        return _optional_converter(parts[0])
    return (
        _union_converter(field_type, parts)
        if isinstance(field_type, schema.UnionType)
        else _sequence_converter(node, parts)
    )


def _array_converter(field_type: schema.Array, writable: bool) -> Converter:
    check = _array_check(field_type)

    def to_bytes(value: Any) -> bytes:
        array = value if isinstance(value, np.ndarray) else _to_array(value, field_type)
        check(array)
        return _encode_array(array, field_type)

    def to_array(data: Buffer) -> Any:
        array = decode_array(data)
        check(array)
        return array

    read = array_reader(to_array)
    from_wire: Convert = (lambda data: np.array(read(data))) if writable else read

    def from_plain(value: Any) -> Any:
        if isinstance(value, BYTES_TYPES):
            return from_wire(memoryview(value))
        array = _to_array(value, field_type)
        check(array)
        return array

    return Converter(memoryview, array_writer(to_bytes), from_wire, from_plain)


def _encode_array(array: Any, field_type: schema.Array) -> bytes:
    try:
        return encode_npy(array)
    except CodecError as error:
        raise ValueMismatch(f"{field_type} that .npy can hold", str(array.dtype)) from error


def _to_array(value: Any, field_type: schema.Array) -> Any:
    if not (isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach") or hasattr(value, "__array__")):
        raise ValueMismatch(str(field_type), describe_type(value))
    return as_array(value)


def _array_check(field_type: schema.Array) -> Convert:
    """Return the function that raises ValueMismatch for arrays of another dtype or shape than declared."""
    fits, shape = dtype_fits(field_type.dtype), field_type.shape

    def check(array: Any) -> None:
        if not fits(array.dtype) or (shape is not None and not _shape_fits(array.shape, shape)):
            raise ValueMismatch(str(field_type), describe_type(array))

    return check if field_type != schema.Array() else _identity


def _shape_fits(shape: tuple[int, ...], declared: tuple[int | str | None, ...]) -> bool:
    """Whether lengths are those declared: ints are equal, and equal names have equal lengths."""
    by_name: dict[str, int] = {}
    return len(shape) == len(declared) and all(
        side is None or (by_name.setdefault(side, length) == length if isinstance(side, str) else side == length)
        for length, side in zip(shape, declared, strict=True)
    )


def _media_converter(field_type: schema.Image | schema.Audio, options: ConversionOptions) -> Converter:
    decode = media_decoder(field_type)

    def keep(data: Buffer) -> Encoded:
        return Encoded(data, options.writable)

    def from_plain(value: Any) -> Any:
        return (keep(value) if options.lazy else decode(value)) if isinstance(value, BYTES_TYPES) else value

    return Converter(memoryview, media_encoder(field_type), keep if options.lazy else decode, from_plain)


def _optional_converter(inner: Converter) -> Converter:
    def optional(convert: Convert) -> Convert:
        return lambda value: None if value is None else convert(value)

    wire = Any if inner.wire is Any else typing.Union[inner.wire, None]  # noqa: UP007 - the parts are values
    from_wire = optional(inner.from_wire) if inner.from_wire else None
    return Converter(wire, optional(inner.to_wire), from_wire, optional(inner.from_plain), inner.exact)


def _union_converter(field_type: schema.UnionType, options: tuple[Converter, ...]) -> Converter:
    # Float after int, because the float converter takes ints too.
    order = sorted(range(len(options)), key=lambda number: isinstance(field_type.options[number], schema.FloatType))

    def try_each(converts: list[Convert]) -> Convert:
        def run(value: Any) -> Any:
            inner = None
            for convert in converts:
                try:
                    return convert(value)
                except ValueMismatch as mismatch:
                    inner = mismatch if mismatch.steps else inner
            if inner:  # the right type of container, with a mismatch inside
                raise inner
            raise ValueMismatch(str(field_type), describe_type(value))

        return run

    to_wire = try_each([options[number].to_wire for number in order])
    from_plain = try_each([options[number].from_plain for number in order])
    text_like = [option for option in field_type.options if {"str", "bytes"} & {*schema.wire_kinds(option)}]
    is_native = len(text_like) < 2 and all(option.from_wire is None and option.wire is not Any for option in options)
    if not is_native:
        return Converter(Any, to_wire, from_plain, from_plain)
    return Converter(typing.Union[tuple(option.wire for option in options)], to_wire, None, from_plain)  # noqa: UP007


def any_to_wire(value: Any) -> Any:
    """Convert a value of type ``Any`` for MessagePack: arrays become ``.npy``, Enums their values, records maps."""
    kind = value.__class__
    if kind in (str, float, bool, bytes) or value is None:
        return value
    if isinstance(value, dict):
        return convert_entries(_any_key_to_wire, any_to_wire, value)
    if isinstance(value, list | tuple):
        return convert_items(any_to_wire, value)
    if isinstance(value, np.ndarray):
        return _encode_array(value, schema.Array())
    if isinstance(value, np.generic):
        return any_to_wire(value.item())
    if isinstance(value, enum.Enum):
        return any_to_wire(value.value)
    return _any_scalar_to_wire(value)


_SCALAR_TO_WIRE: tuple[tuple[Any, Convert], ...] = (
    (str, _to_str),
    (int, _to_int),
    (float, _to_float),
    (BYTES_TYPES, _to_bytes),
    (dt.datetime, _datetime_text),
    (dt.date, _date_text),
    (dt.time, _time_text),
)


def _any_scalar_to_wire(value: Any) -> Any:
    for kind, to_wire in _SCALAR_TO_WIRE:
        if isinstance(value, kind):
            return to_wire(value)
    if isinstance(value, msgspec.msgpack.Ext):  # written by other writers, and passed on unchanged
        return value
    packed = getattr(value, "packed", None)
    if isinstance(packed, bytes):  # an instance of a packable class
        return msgspec.Raw(packed)
    raise ValueMismatch("what MessagePack holds, or an array", describe_type(value))


def _any_key_to_wire(key: Any) -> Any:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return any_to_wire(key.value if isinstance(key, enum.Enum) else key)
    raise ValueMismatch("str or int as a key", describe_type(key))


def restore_arrays(value: Any) -> Any:
    """Decode the arrays in untyped data: bytes that are ``.npy`` or compact arrays become arrays."""
    if isinstance(value, BYTES_TYPES):
        return array_or_bytes(value)
    if isinstance(value, list):
        return [restore_arrays(part) for part in value]
    return {key: restore_arrays(part) for key, part in value.items()} if isinstance(value, dict) else value
