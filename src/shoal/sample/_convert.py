"""Converters: for one field type, how a value is checked and becomes what msgspec writes, and how it comes back.

They are built once per class. A value that does not fit raises `Misfit`, which collects its path on the way up; no path
is kept while all is well.
"""

from __future__ import annotations

import datetime as dt
import enum
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from shoal import schema
from shoal.sample._annotation import Node
from shoal.sample._misfit import Misfit, each, found_type, keyed
from shoal.schema import FieldType

__all__ = ["Convert", "Converter", "choice_converter", "leaf_converter", "sequence_converter"]

Convert: TypeAlias = Callable[[Any], Any]


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
    raise Misfit(expected, found_type(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        _refuse(value, "str")
    text = str.__str__(value)  # of a subclass such as np.str_, the plain text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misfit("str that UTF-8 can hold", ascii(text[:40])) from None
    return text


def _integer(value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        _refuse(value, "int")
    number = int(value)
    if not -(2**63) <= number < 2**64:
        raise Misfit("int from -2**63 to 2**64 - 1", str(number))
    return number


def _float(value: Any) -> float:
    if not isinstance(value, float | int | np.floating | np.integer) or isinstance(value, bool):
        _refuse(value, "float")
    try:
        return float(value)
    except OverflowError:
        raise Misfit("float", "an int too large for one") from None


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


_Moment = TypeVar("_Moment", dt.datetime, dt.date, dt.time)


def _moment(kind: type[_Moment], to_text: Convert) -> Convert:
    def from_plain(value: Any) -> Any:
        if not isinstance(value, str):
            to_text(value)  # refuses what is not of the kind
            return value
        try:
            return kind.fromisoformat(value)
        except ValueError:
            raise Misfit(f"{kind.__name__} in ISO 8601", repr(value[:40])) from None

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
            raise Misfit(str(of), repr(value)[:80]) from None

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
            raise Misfit(str(of), repr(value)[:80]) from None

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
                raise Misfit(f"{of} of {len(converts)} items", f"{len(value)} items")
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
