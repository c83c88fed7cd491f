"""Converters between a value and its stored form, one for each type."""

from __future__ import annotations

import datetime as dt
import enum
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from shoal import schema
from shoal.codec import Buffer, as_array, encode_npy
from shoal.errors import CodecError
from shoal.schema import FieldType, dtype_fits

from ._annotations import Node
from ._stored_values import (
    Encoded,
    ValueMismatch,
    array_or_bytes,
    array_reader,
    array_writer,
    decode_array,
    decode_media,
    each,
    found_type,
    keyed,
    media_to_wire,
)

__all__ = ["ConversionOptions", "Converter", "any_to_wire", "converter_of", "revive"]

Convert: TypeAlias = Callable[[Any], Any]
_Moment = TypeVar("_Moment", dt.datetime, dt.date, dt.time)


# ----------------------------------------------------------------------------------------------------------- converters


# They are built once per class. A value that does not fit raises `ValueMismatch`, which collects its path on the way up; no
# path is kept while all is well.
@dataclass(frozen=True, slots=True)
class Converter:
    """How values of one type travel.

    Attributes:
        wire: The type that msgspec decodes to; ``Any`` where msgspec cannot tell.
        to_wire: A value, checked, to what msgspec encodes.
        from_wire: What msgspec decoded to the value; None where it is the value.
        from_plain: The value, or its plain form (as in JSON or untyped MessagePack), to the value.
        exact: Values of exactly this class need no conversion.
    """

    wire: Any
    to_wire: Convert
    from_wire: Convert | None
    from_plain: Convert
    exact: type | None = None


def leaf_converter(of: FieldType) -> Converter | None:
    """The converter of a type without parts, where it is a plain one."""
    return _LEAVES.get(type(of))


def _refuse(value: Any, expected: str) -> typing.NoReturn:
    raise ValueMismatch(expected, found_type(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        _refuse(value, "str")
    text = str.__str__(value)  # of a subclass such as np.str_, the plain text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueMismatch("str that UTF-8 can hold", ascii(text[:40])) from None
    return text


def _integer(value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        _refuse(value, "int")
    number = int(value)
    if not -(2**63) <= number < 2**64:
        raise ValueMismatch("int from -2**63 to 2**64 - 1", str(number))
    return number


def _float(value: Any) -> float:
    if not isinstance(value, float | int | np.floating | np.integer) or isinstance(value, bool):
        _refuse(value, "float")
    try:
        return float(value)
    except OverflowError:
        raise ValueMismatch("float", "an int too large for one") from None


def _boolean(value: Any) -> bool:
    return bool(value) if isinstance(value, bool | np.bool_) else _refuse(value, "bool")


def _bytes(value: Any) -> bytes:
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


def _moment(kind: type[_Moment], to_text: Convert) -> Convert:
    def from_plain(value: Any) -> Any:
        if not isinstance(value, str):
            to_text(value)  # refuses what is not of the kind
            return value
        try:
            return kind.fromisoformat(value)
        except ValueError:
            raise ValueMismatch(f"{kind.__name__} in ISO 8601", repr(value[:40])) from None

    return from_plain


_LEAVES: dict[type, Converter] = {
    schema.StrType: Converter(str, _text, None, _text, str),
    schema.IntType: Converter(int, _integer, None, _integer, int),
    schema.FloatType: Converter(float, _float, None, _float, float),
    schema.BoolType: Converter(bool, _boolean, None, _boolean, bool),
    schema.BytesType: Converter(bytes, _bytes, None, _bytes, bytes),
    schema.DateTimeType: Converter(dt.datetime, _datetime_text, None, _moment(dt.datetime, _datetime_text)),
    schema.DateType: Converter(dt.date, _date_text, None, _moment(dt.date, _date_text)),
    schema.TimeType: Converter(dt.time, _time_text, None, _moment(dt.time, _time_text)),
}


def choice_converter(node: Node) -> Converter:
    """The converter of a Literal or an Enum."""
    of = node.type
    assert isinstance(of, schema.LiteralType | schema.EnumType)  # noqa: S101 - for the checkers
    if isinstance(of, schema.LiteralType):
        check = _one_of(of)
        native = set(of.kinds) <= {"str", "int"}
        return Converter(typing.Literal[of.values], check, None, check) if native else _by_any(check, check)
    return _enum_converter(of, node.cls)


def _by_any(to_wire: Convert, from_plain: Convert) -> Converter:
    """A converter for what msgspec has no type for: it decodes whatever is there, and we look at it."""
    return Converter(Any, to_wire, from_plain, from_plain)


def _one_of(of: schema.LiteralType) -> Convert:
    allowed = {(type(value), value): value for value in of.values}

    def check(value: Any) -> Any:
        try:
            return allowed[type(value), value]
        except (KeyError, TypeError):
            raise ValueMismatch(str(of), repr(value)[:80]) from None

    return check


def _enum_converter(of: schema.EnumType, cls: type[enum.Enum]) -> Converter:
    members = {(type(member.value), member.value): member for member in cls}

    def to_wire(value: Any) -> Any:
        return value.value if isinstance(value, cls) else _refuse(value, str(of))

    def from_plain(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        try:
            return members[type(value), value]
        except (KeyError, TypeError):
            raise ValueMismatch(str(of), repr(value)[:80]) from None

    native = len(set(of.kinds)) == 1 and of.kinds[0] in ("str", "int")
    return Converter(cls, to_wire, None, from_plain) if native else _by_any(to_wire, from_plain)


def sequence_converter(node: Node, items: tuple[Converter, ...]) -> Converter:
    """The converter of a list, a tuple or a map, from those of its items."""
    of = node.type
    if isinstance(of, schema.MapType):
        return _map_converter(of, items[0])
    if isinstance(of, schema.TupleType) and not of.variadic:
        return _tuple_converter(of, items)
    (item,) = items
    back: Convert = tuple if isinstance(of, schema.TupleType) else list
    wire = tuple[item.wire, ...] if back is tuple else list[item.wire]  # type: ignore[name-defined]
    from_wire = _mapped(item.from_wire, of, back) if item.from_wire else None
    return Converter(wire, _mapped(item.to_wire, of, list), from_wire, _mapped(item.from_plain, of, back))


def _mapped(convert: Convert, of: FieldType, back: Convert) -> Convert:
    def run(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            _refuse(value, str(of))
        return back(each(convert, value))

    return run


def _tuple_converter(of: schema.TupleType, items: tuple[Converter, ...]) -> Converter:
    def mapped(converts: list[Convert], back: Convert) -> Convert:
        def run(value: Any) -> Any:
            if not isinstance(value, list | tuple):
                _refuse(value, str(of))
            if len(value) != len(converts):
                raise ValueMismatch(f"{of} of {len(converts)} items", f"{len(value)} items")
            # One call an item, so that `each` counts them for the path.
            return back(each(lambda pair: pair[0](pair[1]), [*zip(converts, value, strict=True)]))

        return run

    wire = tuple[tuple(item.wire for item in items)] if items else tuple[()]  # type: ignore[misc]
    changed = any(item.from_wire for item in items)
    from_wire = mapped([item.from_wire or _same for item in items], tuple) if changed else None
    to_wire = mapped([item.to_wire for item in items], list)
    return Converter(wire, to_wire, from_wire, mapped([item.from_plain for item in items], tuple))


def _same(value: Any) -> Any:
    return value


def _map_converter(of: schema.MapType, values: Converter) -> Converter:
    key = _text if isinstance(of.keys, schema.StrType) else _integer

    def mapped(convert: Convert) -> Convert:
        def run(value: Any) -> Any:
            if not isinstance(value, Mapping):
                _refuse(value, str(of))
            return keyed(key, convert, value)

        return run

    wire = dict.__class_getitem__((str if key is _text else int, values.wire))
    from_wire = mapped(values.from_wire) if values.from_wire else None
    return Converter(wire, mapped(values.to_wire), from_wire, mapped(values.from_plain))


# -------------------------------------------------------------------------------------------- the converter of any node


_BYTES = (bytes, bytearray, memoryview)


class RecordPlan(Protocol):
    """What a converter needs to know of a nested record's class."""

    @property
    def wire(self) -> Any: ...
    @property
    def to_map(self) -> Convert: ...
    @property
    def build(self) -> Convert: ...
    def from_mapping(self, data: Mapping[str, Any]) -> Any: ...
    def locate_write(self, sample: Any) -> None: ...
    def locate_read(self, wire: Any) -> None: ...


class Plans(Protocol):
    """Where nested records' plans come from."""

    def __call__(self, cls: type, writable: bool) -> RecordPlan: ...


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """How to convert: copy arrays as they are read; keep files undecoded; look into records for what does not fit."""

    writable: bool = False
    lazy: bool = False
    thorough: bool = False


def converter_of(node: Node, plans: Plans, manner: ConversionOptions) -> Converter:
    """The converter of a node."""
    of = node.type
    leaf = leaf_converter(of)
    if leaf is not None:
        return leaf
    match of:
        case schema.LiteralType() | schema.EnumType():
            return choice_converter(node)
        case schema.Array():
            return _array_converter(of, manner.writable)
        case schema.Image() | schema.Audio():
            return _media_converter(of, manner)
        case schema.AnyType():
            return Converter(Any, any_to_wire, revive, _same)
        case schema.RecordType():
            return _record_converter(node.cls, plans(node.cls, manner.writable), manner.thorough)
    # A file in a list or a tuple has no attribute of its own that could decode it when it is read.
    inner = manner if isinstance(of, schema.OptionalType) else replace(manner, lazy=False)
    parts = tuple(converter_of(part, plans, inner) for part in node.parts)
    if isinstance(of, schema.OptionalType):
        return _optional_converter(parts[0])
    return _union_converter(of, parts) if isinstance(of, schema.UnionType) else sequence_converter(node, parts)


def _array_converter(of: schema.Array, writable: bool) -> Converter:
    check = array_check(of)

    def to_bytes(value: Any) -> bytes:
        array = value if isinstance(value, np.ndarray) else _as_array(value, of)
        check(array)
        return _npy(array, of)

    def to_array(data: Buffer) -> Any:
        array = decode_array(data)
        check(array)
        return array

    read = array_reader(to_array)
    from_wire: Convert = (lambda data: np.array(read(data))) if writable else read

    def from_plain(value: Any) -> Any:
        if isinstance(value, _BYTES):
            return from_wire(memoryview(value))
        array = _as_array(value, of)
        check(array)
        return array

    return Converter(memoryview, array_writer(to_bytes), from_wire, from_plain)


def _npy(array: Any, of: schema.Array) -> bytes:
    try:
        return encode_npy(array)
    except CodecError as error:
        raise ValueMismatch(f"{of} that .npy can hold", str(array.dtype)) from error


def _as_array(value: Any, of: schema.Array) -> Any:
    if not (isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach") or hasattr(value, "__array__")):
        raise ValueMismatch(str(of), found_type(value))
    return as_array(value)


def array_check(of: schema.Array) -> Convert:
    """The function that refuses arrays of another dtype or shape than is declared."""
    fits, shape = dtype_fits(of.dtype), of.shape

    def check(array: Any) -> None:
        if not fits(array.dtype) or (shape is not None and not shape_fits(array.shape, shape)):
            raise ValueMismatch(str(of), found_type(array))

    return check if of != schema.Array() else _same


def shape_fits(found: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> bool:
    """Whether lengths are those declared: numbers are equal, equal names stand for equal lengths."""
    named: dict[str, int] = {}
    return len(found) == len(wanted) and all(
        want is None or (named.setdefault(want, length) == length if isinstance(want, str) else want == length)
        for length, want in zip(found, wanted, strict=True)
    )


def _media_converter(of: schema.Image | schema.Audio, manner: ConversionOptions) -> Converter:
    decode = decode_media(of)

    def keep(data: Buffer) -> Encoded:
        return Encoded(data, manner.writable)

    def from_plain(value: Any) -> Any:
        return (keep(value) if manner.lazy else decode(value)) if isinstance(value, _BYTES) else value

    return Converter(memoryview, media_to_wire(of), keep if manner.lazy else decode, from_plain)


def _record_converter(cls: type, plan: RecordPlan, thorough: bool) -> Converter:
    def to_wire(value: Any) -> Any:
        if not isinstance(value, cls):
            raise ValueMismatch(cls.__name__, found_type(value))
        if thorough:
            plan.locate_write(value)
        return plan.to_map(value)

    def from_wire(wire: Any) -> Any:
        plan.locate_read(wire)
        return plan.build(wire)

    def from_plain(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueMismatch(cls.__name__, found_type(value))
        return plan.from_mapping(value)

    return Converter(plan.wire, to_wire, from_wire if thorough else plan.build, from_plain)


def _optional_converter(inner: Converter) -> Converter:
    def optional(convert: Convert) -> Convert:
        return lambda value: None if value is None else convert(value)

    wire = Any if inner.wire is Any else typing.Union[inner.wire, None]  # noqa: UP007 - the parts are values
    from_wire = optional(inner.from_wire) if inner.from_wire else None
    return Converter(wire, optional(inner.to_wire), from_wire, optional(inner.from_plain), inner.exact)


def _union_converter(of: schema.UnionType, options: tuple[Converter, ...]) -> Converter:
    # A float takes whole numbers too, so it comes after int.
    order = sorted(range(len(options)), key=lambda number: isinstance(of.options[number], schema.FloatType))

    def first(converts: list[Convert]) -> Convert:
        def run(value: Any) -> Any:
            inner = None
            for convert in converts:
                try:
                    return convert(value)
                except ValueMismatch as misfit:
                    inner = misfit if misfit.steps else inner
            if inner:  # the right kind of container, with something wrong inside
                raise inner
            raise ValueMismatch(str(of), found_type(value))

        return run

    to_wire = first([options[number].to_wire for number in order])
    from_plain = first([options[number].from_plain for number in order])
    text_like = [option for option in of.options if {"str", "bytes"} & {*schema.wire_kinds(option)}]
    native = len(text_like) < 2 and all(option.from_wire is None and option.wire is not Any for option in options)
    if not native:
        return Converter(Any, to_wire, from_plain, from_plain)
    return Converter(typing.Union[tuple(option.wire for option in options)], to_wire, None, from_plain)  # noqa: UP007


def any_to_wire(value: Any) -> Any:
    """Whatever a field of type ``Any`` holds, as MessagePack: arrays as ``.npy``, Enums by value, records as maps."""
    kind = value.__class__
    if kind in (str, float, bool, bytes) or value is None:
        return value
    if isinstance(value, dict):
        return keyed(_any_key, any_to_wire, value)
    if isinstance(value, list | tuple):
        return each(any_to_wire, value)
    if isinstance(value, np.ndarray):
        return _npy(value, schema.Array())
    if isinstance(value, np.generic):
        return any_to_wire(value.item())
    if isinstance(value, enum.Enum):
        return any_to_wire(value.value)
    return _any_leaf(value)


_ANY_LEAVES: tuple[tuple[Any, schema.FieldType], ...] = (
    (str, schema.StrType()),
    (int, schema.IntType()),
    (float, schema.FloatType()),
    (_BYTES, schema.BytesType()),
    (dt.datetime, schema.DateTimeType()),
    (dt.date, schema.DateType()),
    (dt.time, schema.TimeType()),
)


def _any_leaf(value: Any) -> Any:
    for kind, of in _ANY_LEAVES:
        leaf = leaf_converter(of)
        if isinstance(value, kind) and leaf:
            return leaf.to_wire(value)
    if isinstance(value, msgspec.msgpack.Ext):  # as other writers may use, and we give back untouched
        return value
    packed = getattr(value, "packed", None)
    if isinstance(packed, bytes):  # a packable in a field that does not say so
        return msgspec.Raw(packed)
    raise ValueMismatch("what MessagePack holds, or an array", found_type(value))


def _any_key(key: Any) -> Any:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return any_to_wire(key.value if isinstance(key, enum.Enum) else key)
    raise ValueMismatch("str or int as a key", found_type(key))


def revive(value: Any) -> Any:
    """Untyped data with the arrays in it decoded: bytes that are ``.npy`` or compact arrays become arrays."""
    if isinstance(value, _BYTES):
        return array_or_bytes(value)
    if isinstance(value, list):
        return [revive(part) for part in value]
    return {key: revive(part) for key, part in value.items()} if isinstance(value, dict) else value
