"""Plans: for one class, the functions that pack and unpack its samples, made once from its fields.

The code of a plan is written for the class and compiled, as dataclasses do it: no loop over fields runs per sample.
"""

from __future__ import annotations

import copy
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET

from shoal.codec import Buffer
from shoal.errors import CodecError, DecodeError, SchemaError, SchemaMismatchError, ShoalError
from shoal.schema import Schema

from ._annotations import Member, Record, read_record
from ._converters import ConversionOptions, Converter, converter_of
from ._stored_values import MediaField, ValueMismatch, mismatch, placed, rooted

__all__ = ["UNREADABLE", "Plan", "is_lazy", "plan_of", "stored"]

_encode = msgspec.msgpack.Encoder().encode
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_FAILURES = (ValueMismatch, CodecError, OverflowError, UnicodeEncodeError, TypeError)
_EXPECTED = re.compile(r"Expected (?P<expected>.+), got (?P<found>.+)")
_MISSING = re.compile(r"Object missing required field `(?P<name>.+)`")


class Plan:
    """How samples of one class become bytes, and bytes samples.

    Attributes:
        schema: What the class is.
        wire: The msgspec Struct that payloads are decoded to.
        to_map: A sample to the map that is written, checked; raises `ValueMismatch`.
        make: Values to a sample: the class, unless only some fields are read.
        build: A decoded wire Struct to a sample.
    """

    def __init__(self, record: Record, writable: bool, make: Callable[..., Any] | None = None) -> None:
        self.cls = record.cls
        self.schema: Schema = record.schema
        self.members = record.members
        self.make: Callable[..., Any] = make or record.cls
        self.writable = writable
        self.converters = self._converters(thorough=False)
        self.wire = _wire_struct(record, self.converters)
        self.to_map: Callable[[Any], dict[str, Any]] = _to_map(record, self.converters)
        self.build: Callable[[Any], Any] = _build(record, self.converters, self.make)
        self.decode = msgspec.msgpack.Decoder(self.wire).decode

    def _converters(self, thorough: bool) -> tuple[Converter, ...]:
        return tuple(
            _converter(member, self.cls, ConversionOptions(self.writable, thorough=thorough)) for member in self.members
        )

    def pack(self, sample: Any) -> bytes:
        """The bytes of a sample; raises SchemaMismatchError where it does not fit its class."""
        try:
            return _encode(self.to_map(sample))
        except _FAILURES as error:
            raise self._unfit(sample, error) from error

    def unpack(self, data: Buffer) -> Any:
        """The sample in a payload."""
        try:
            wire = self.decode(data)
        except msgspec.ValidationError as error:
            raise self._invalid(error) from error
        except UNREADABLE as error:
            raise DecodeError("the sample is not MessagePack", found=error) from error
        try:
            return self.build(wire)
        except (ValueMismatch, CodecError) as error:
            raise self._unread(wire, error) from error

    def from_mapping(self, data: Mapping[str, Any]) -> Any:
        """A sample from values, or their plain forms, by field name; raises `ValueMismatch`."""
        positional, keywords = [], {}
        for member, converter in zip(self.members, self.converters, strict=True):
            name = next((name for name in (member.name, *member.aliases) if name in data), None)
            if name is not None:
                value = placed(converter.from_plain, data[name], f".{member.name}")
            elif member.required:
                raise missing(member)
            else:
                value = member.default_value()
            if member.keyword is None:
                positional.append(value)
            else:
                keywords[member.keyword] = value
        return self.make(*positional, **keywords)

    def from_data(self, data: Mapping[str, Any]) -> Any:
        """As `from_mapping`, with the error that users see."""
        try:
            return self.from_mapping(data)
        except ValueMismatch as misfit:
            raise mismatch(misfit, f"the data does not fit {self.schema.name}") from None
        except CodecError as error:
            raise rooted(error) from None

    def _unfit(self, sample: Any, error: Exception) -> BaseException:
        """The error of a sample that cannot be packed: its fields one by one, until one does not fit."""
        try:
            self.locate_write(sample)
        except ValueMismatch as misfit:
            return mismatch(misfit, f"a sample does not fit {self.schema.name}")
        return error  # the class's own: a property that fails, say

    def _unread(self, wire: Any, error: Exception) -> BaseException:
        """The error of data that was decoded, but is not what the class says."""
        try:
            self.locate_read(wire)
        except ValueMismatch as misfit:
            return mismatch(misfit, f"the data does not fit {self.schema.name}")
        except CodecError as found:
            return rooted(found)
        return error

    def locate_write(self, sample: Any) -> None:
        """Check a sample field by field, so that what does not fit is raised with its path."""
        for member, converter in zip(self.members, self._converters(thorough=True), strict=True):
            placed(converter.to_wire, stored(sample, member.name), f".{member.name}")

    def locate_read(self, wire: Any) -> None:
        """As `locate_write`, for data that msgspec has decoded."""
        for number, (member, converter) in enumerate(zip(self.members, self._converters(thorough=True), strict=True)):
            names = (member.name, *(_alias(number, place) for place in range(len(member.aliases))))
            value = _first(member, *(getattr(wire, name) for name in names))
            if converter.from_wire and value is not UNSET:
                placed(converter.from_wire, value, f".{member.name}")

    def _invalid(self, error: msgspec.ValidationError) -> ShoalError:
        """What msgspec says of data that does not fit, in our words."""
        text, _, place = str(error).partition(" - at ")
        path = place.removeprefix("key in ").strip("`").removeprefix("$").lstrip(".")
        lost, told = _MISSING.fullmatch(text), _EXPECTED.fullmatch(text)
        problem = f"the data does not fit {self.schema.name}"
        if lost:
            path = f"{path}.{lost['name']}".lstrip(".")
            return SchemaMismatchError(problem, expected="a value", found="nothing", field=path)
        if told:
            expected, found = (told[side].replace("`", "") for side in ("expected", "found"))
            return SchemaMismatchError(problem, expected=expected, found=found, field=path or None)
        expected = str(self.schema[path].type) if path in self.schema else None
        return SchemaMismatchError(problem, expected=expected, found=text, field=path or None)


_KEPT = ("__shoal_plan__", "__shoal_writable_plan__")


def plan_of(cls: type, writable: bool = False) -> Plan:
    """The plan of a class, made at first use and kept with it. Two threads may both make it; they make the same."""
    found: Plan | None = cls.__dict__.get(_KEPT[writable])
    if found is None:
        found = Plan(read_record(cls), writable)
        setattr(cls, _KEPT[writable], found)
    return found


def stored(sample: Any, name: str) -> Any:
    """What a sample holds under a name; of images and sounds the bytes, where those are what it has."""
    return sample.__dict__[name] if is_lazy(type(sample), name) else getattr(sample, name)


def is_lazy(cls: type, name: str) -> bool:
    """Whether a field's files are decoded when the attribute is read."""
    return isinstance(next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None), MediaField)


def missing(member: Member) -> ValueMismatch:
    """The misfit of a field that must be there and is not."""
    misfit = ValueMismatch(str(member.node.type), "nothing")
    misfit.steps.append(f".{member.name}")
    return misfit


def _converter(member: Member, cls: type, manner: ConversionOptions) -> Converter:
    try:
        return converter_of(member.node, plan_of, replace(manner, lazy=is_lazy(cls, member.name)))
    except SchemaError as error:
        raise error.at(field=f"{cls.__name__}.{member.name}") from None


def _wire_struct(record: Record, converters: tuple[Converter, ...]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    former: dict[str, str] = {}
    for number, (member, converter) in enumerate(zip(record.members, converters, strict=True)):
        needed = member.required and not member.aliases
        fields.append((member.name, converter.wire) if needed else (member.name, converter.wire, UNSET))
        for place, alias in enumerate(member.aliases):
            former[_alias(number, place)] = alias
            fields.append((_alias(number, place), converter.wire, UNSET))
    return msgspec.defstruct(f"{record.cls.__name__}Wire", fields, kw_only=True, rename=former or None)


def _alias(number: int, place: int) -> str:
    return f"alias_{number}_{place}_"


def _to_map(record: Record, converters: tuple[Converter, ...]) -> Callable[[Any], dict[str, Any]]:
    scope: dict[str, Any] = {}
    entries = []
    for number, (member, converter) in enumerate(zip(record.members, converters, strict=True)):
        lazy = is_lazy(record.cls, member.name)
        value = f"sample.__dict__[{member.name!r}]" if lazy else f"sample.{_checked(member.name)}"
        scope[f"convert_{number}"] = converter.to_wire
        entry = f"convert_{number}({value})"
        if converter.exact:
            scope[f"exact_{number}"] = converter.exact
            entry = f"value if (value := {value}).__class__ is exact_{number} else convert_{number}(value)"
        entries.append(f"{member.name!r}: {entry},")
    return _compiled("to_map(sample)", f"{{{' '.join(entries)}}}", scope)


def _build(record: Record, converters: tuple[Converter, ...], make: Callable[..., Any]) -> Callable[[Any], Any]:
    scope: dict[str, Any] = {"cls": make, "UNSET": UNSET, "first": _first}
    arguments = []
    for number, (member, converter) in enumerate(zip(record.members, converters, strict=True)):
        value = f"wire.{_checked(member.name)}"
        if member.aliases:
            aliases = ", ".join(f"wire.{_alias(number, place)}" for place in range(len(member.aliases)))
            value = f"first(member_{number}, {value}, {aliases})"
            scope[f"member_{number}"] = member
        scope[f"convert_{number}"] = converter.from_wire
        found = f"convert_{number}({{}})" if converter.from_wire else "{}"
        if member.required:
            entry = found.format(value)
        else:
            scope[f"default_{number}"] = _default_maker(member)
            entry = f"default_{number}() if (value := {value}) is UNSET else {found.format('value')}"
        arguments.append(f"{member.keyword}={entry}" if member.keyword else entry)
    return _compiled("build(wire)", f"cls({', '.join(f'{argument}' for argument in arguments)})", scope)


def _first(member: Member, *values: Any) -> Any:
    """The value of a field that has former names: the first that the data has."""
    value = next((value for value in values if value is not UNSET), UNSET)
    if value is UNSET and member.required:
        raise missing(member)
    return value


def _default_maker(member: Member) -> Callable[[], Any]:
    if member.factory is not None:
        return member.factory
    value = member.default
    # Pydantic copies its defaults; the others allow only those that cannot change.
    return (lambda: copy.deepcopy(value)) if isinstance(value, list | dict | set) else (lambda: value)


def _checked(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise SchemaError("a field's name is not a Python name", found=repr(name), field=name)
    return name


def _compiled(signature: str, expression: str, scope: dict[str, Any]) -> Callable[[Any], Any]:
    exec(f"def {signature}:\n    return {expression}", scope)  # noqa: S102 - names are checked above, or quoted
    made: Callable[[Any], Any] = scope[signature.partition("(")[0]]
    return made
