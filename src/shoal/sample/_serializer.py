"""The serializer: a `Plan` for each class, with the functions that pack and unpack its samples.

The code of these functions is generated for the class and compiled, as dataclasses do it, so that there is no loop over
fields for each sample.
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

from shoal.codec._codec import Buffer
from shoal.errors import CodecError, DecodeError, SchemaError, SchemaMismatchError, ShoalError
from shoal.schema._schema import Schema

from ._annotations import Member, Record, read_record
from ._converters import ConversionOptions, Converter, converter_of
from ._stored_values import MediaField, ValueMismatch, convert_at, describe_type, mismatch_error, strip_path

__all__ = ["UNREADABLE", "Plan", "is_lazy", "plan_of", "record_converter", "stored_value"]

_encode = msgspec.msgpack.Encoder().encode
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_FAILURES = (ValueMismatch, CodecError, OverflowError, UnicodeEncodeError, TypeError)
_TYPE_ERROR = re.compile(r"Expected (?P<expected>.+), got (?P<found>.+)")
_MISSING_ERROR = re.compile(r"Object missing required field `(?P<name>.+)`")
_PLAN_ATTRIBUTES = ("__shoal_plan__", "__shoal_writable_plan__")  # by ``writable``


class Plan:
    """How samples of one class are packed and unpacked.

    Attributes:
        schema: The schema of the class.
        wire: The msgspec Struct that payloads are decoded to.
        to_map: From a sample to the map that is written; checks the values and raises `ValueMismatch`.
        make: From values to a sample: the class, unless only some fields are read.
        build: From a decoded wire Struct to a sample.
    """

    def __init__(self, record: Record, writable: bool, make: Callable[..., Any] | None = None) -> None:
        self.cls = record.cls
        self.schema: Schema = record.schema
        self.members = record.members
        self.make: Callable[..., Any] = make or record.cls
        self.writable = writable
        self.converters = self._converters(thorough=False)
        self.wire = _wire_struct(record, self.converters)
        self.to_map: Callable[[Any], dict[str, Any]] = _compile_to_map(record, self.converters)
        self.build: Callable[[Any], Any] = _compile_build(record, self.converters, self.make)
        self.decode = msgspec.msgpack.Decoder(self.wire).decode

    def _converters(self, thorough: bool) -> tuple[Converter, ...]:
        return tuple(
            _converter(member, self.cls, ConversionOptions(self.writable, thorough=thorough)) for member in self.members
        )

    def pack(self, sample: Any) -> bytes:
        """Return the bytes of a sample; raise SchemaMismatchError if a value does not fit its field."""
        try:
            return _encode(self.to_map(sample))
        except _FAILURES as error:
            raise self._write_error(sample, error) from error

    def unpack(self, data: Buffer) -> Any:
        """Return the sample in a payload."""
        try:
            wire = self.decode(data)
        except msgspec.ValidationError as error:
            raise self._validation_error(error) from error
        except UNREADABLE as error:
            raise DecodeError("the sample is not MessagePack", found=error) from error
        try:
            return self.build(wire)
        except (ValueMismatch, CodecError) as error:
            raise self._read_error(wire, error) from error

    def from_mapping(self, data: Mapping[str, Any]) -> Any:
        """Return a sample of values, or their plain forms, by field name; raise `ValueMismatch` if one does not fit."""
        positional, keywords = [], {}
        for member, converter in zip(self.members, self.converters, strict=True):
            name = next((name for name in (member.name, *member.aliases) if name in data), None)
            if name is not None:
                value = convert_at(converter.from_plain, data[name], f".{member.name}")
            elif member.required:
                raise missing_field(member)
            else:
                value = member.default_value()
            if member.keyword is None:
                positional.append(value)
            else:
                keywords[member.keyword] = value
        return self.make(*positional, **keywords)

    def from_data(self, data: Mapping[str, Any]) -> Any:
        """Do as `from_mapping`, but raise the public errors."""
        try:
            return self.from_mapping(data)
        except ValueMismatch as mismatch:
            raise mismatch_error(mismatch, f"the data does not fit {self.schema.name}") from None
        except CodecError as error:
            raise strip_path(error) from None

    def _write_error(self, sample: Any, error: Exception) -> BaseException:
        """Return the error of a sample that cannot be packed, with the path of the value."""
        try:
            self.locate_write(sample)
        except ValueMismatch as mismatch:
            return mismatch_error(mismatch, f"a sample does not fit {self.schema.name}")
        return error  # of the class itself, such as a property that raises

    def _read_error(self, wire: Any, error: Exception) -> BaseException:
        """Return the error of decoded data that does not fit the class, with the path of the value."""
        try:
            self.locate_read(wire)
        except ValueMismatch as mismatch:
            return mismatch_error(mismatch, f"the data does not fit {self.schema.name}")
        except CodecError as codec_error:
            return strip_path(codec_error)
        return error

    def locate_write(self, sample: Any) -> None:
        """Check a sample field by field; raise the error of the first value that does not fit, with its path."""
        for member, converter in zip(self.members, self._converters(thorough=True), strict=True):
            convert_at(converter.to_wire, stored_value(sample, member.name), f".{member.name}")

    def locate_read(self, wire: Any) -> None:
        """Do as `locate_write` for data that msgspec has decoded."""
        for number, (member, converter) in enumerate(zip(self.members, self._converters(thorough=True), strict=True)):
            names = (member.name, *(_alias_field(number, alias_number) for alias_number in range(len(member.aliases))))
            value = _first_present(member, *(getattr(wire, name) for name in names))
            if converter.from_wire and value is not UNSET:
                convert_at(converter.from_wire, value, f".{member.name}")

    def _validation_error(self, error: msgspec.ValidationError) -> ShoalError:
        """Translate msgspec's error of data that does not fit."""
        text, _, location = str(error).partition(" - at ")
        path = location.removeprefix("key in ").strip("`").removeprefix("$").lstrip(".")
        problem = f"the data does not fit {self.schema.name}"
        if missing := _MISSING_ERROR.fullmatch(text):
            path = f"{path}.{missing['name']}".lstrip(".")
            return SchemaMismatchError(problem, expected="a value", found="nothing", field=path)
        if types := _TYPE_ERROR.fullmatch(text):
            expected, actual = types["expected"].replace("`", ""), types["found"].replace("`", "")
            return SchemaMismatchError(problem, expected=expected, found=actual, field=path or None)
        expected = str(self.schema[path].type) if path in self.schema else None
        return SchemaMismatchError(problem, expected=expected, found=text, field=path or None)


def plan_of(cls: type, writable: bool = False) -> Plan:
    """Return the plan of a class, made at first use and cached with it.

    Thread-safe: if two threads make it at the same time, both plans are equal.
    """
    plan: Plan | None = cls.__dict__.get(_PLAN_ATTRIBUTES[writable])
    if plan is None:
        plan = Plan(read_record(cls), writable)
        setattr(cls, _PLAN_ATTRIBUTES[writable], plan)
    return plan


def stored_value(sample: Any, name: str) -> Any:
    """Return the value of a field; of an image or audio the file, if the sample has one, without decoding it."""
    return sample.__dict__[name] if is_lazy(type(sample), name) else getattr(sample, name)


def is_lazy(cls: type, name: str) -> bool:
    """Whether the files of a field are decoded when the attribute is read."""
    return isinstance(next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None), MediaField)


def missing_field(member: Member) -> ValueMismatch:
    """Return the mismatch of a required field that the data lacks."""
    mismatch = ValueMismatch(str(member.node.type), "nothing")
    mismatch.steps.append(f".{member.name}")
    return mismatch


def _converter(member: Member, cls: type, options: ConversionOptions) -> Converter:
    try:
        return converter_of(member.node, replace(options, lazy=is_lazy(cls, member.name)), record_converter)
    except SchemaError as error:
        raise error.at(field=f"{cls.__name__}.{member.name}") from None


def record_converter(cls: type, options: ConversionOptions) -> Converter:
    """Return the converter of the samples of a class, by its plan."""
    plan = plan_of(cls, options.writable)

    def to_wire(value: Any) -> Any:
        if not isinstance(value, cls):
            raise ValueMismatch(cls.__name__, describe_type(value))
        if options.thorough:
            plan.locate_write(value)
        return plan.to_map(value)

    def from_wire(wire: Any) -> Any:
        plan.locate_read(wire)
        return plan.build(wire)

    def from_plain(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueMismatch(cls.__name__, describe_type(value))
        return plan.from_mapping(value)

    return Converter(plan.wire, to_wire, from_wire if options.thorough else plan.build, from_plain)


def _wire_struct(record: Record, converters: tuple[Converter, ...]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    former: dict[str, str] = {}
    for number, (member, converter) in enumerate(zip(record.members, converters, strict=True)):
        needed = member.required and not member.aliases
        fields.append((member.name, converter.wire) if needed else (member.name, converter.wire, UNSET))
        for alias_number, alias in enumerate(member.aliases):
            former[_alias_field(number, alias_number)] = alias
            fields.append((_alias_field(number, alias_number), converter.wire, UNSET))
    return msgspec.defstruct(f"{record.cls.__name__}Wire", fields, kw_only=True, rename=former or None)


def _alias_field(number: int, alias_number: int) -> str:
    return f"alias_{number}_{alias_number}_"


def _compile_to_map(record: Record, converters: tuple[Converter, ...]) -> Callable[[Any], dict[str, Any]]:
    scope: dict[str, Any] = {}
    entries = []
    for number, (member, converter) in enumerate(zip(record.members, converters, strict=True)):
        lazy = is_lazy(record.cls, member.name)
        value = f"sample.__dict__[{member.name!r}]" if lazy else f"sample.{_check_identifier(member.name)}"
        scope[f"convert_{number}"] = converter.to_wire
        entry = f"convert_{number}({value})"
        if converter.exact:
            scope[f"exact_{number}"] = converter.exact
            entry = f"value if (value := {value}).__class__ is exact_{number} else convert_{number}(value)"
        entries.append(f"{member.name!r}: {entry},")
    return _compile("to_map(sample)", f"{{{' '.join(entries)}}}", scope)


def _compile_build(record: Record, converters: tuple[Converter, ...], make: Callable[..., Any]) -> Callable[[Any], Any]:
    scope: dict[str, Any] = {"cls": make, "UNSET": UNSET, "first": _first_present}
    arguments = []
    for number, (member, converter) in enumerate(zip(record.members, converters, strict=True)):
        value = f"wire.{_check_identifier(member.name)}"
        if member.aliases:
            aliases = ", ".join(
                f"wire.{_alias_field(number, alias_number)}" for alias_number in range(len(member.aliases))
            )
            value = f"first(member_{number}, {value}, {aliases})"
            scope[f"member_{number}"] = member
        scope[f"convert_{number}"] = converter.from_wire
        call = f"convert_{number}({{}})" if converter.from_wire else "{}"
        if member.required:
            entry = call.format(value)
        else:
            scope[f"default_{number}"] = _make_default(member)
            entry = f"default_{number}() if (value := {value}) is UNSET else {call.format('value')}"
        arguments.append(f"{member.keyword}={entry}" if member.keyword else entry)
    return _compile("build(wire)", f"cls({', '.join(arguments)})", scope)


def _first_present(member: Member, *values: Any) -> Any:
    """Return the value of a field with former names: that of the first name in the data."""
    value = next((value for value in values if value is not UNSET), UNSET)
    if value is UNSET and member.required:
        raise missing_field(member)
    return value


def _make_default(member: Member) -> Callable[[], Any]:
    if member.factory is not None:
        return member.factory
    value = member.default
    # Pydantic copies defaults; dataclasses and msgspec do not allow mutable ones.
    return (lambda: copy.deepcopy(value)) if isinstance(value, list | dict | set) else (lambda: value)


def _check_identifier(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise SchemaError("a field's name is not a Python name", found=repr(name), field=name)
    return name


def _compile(signature: str, expression: str, scope: dict[str, Any]) -> Callable[[Any], Any]:
    exec(f"def {signature}:\n    return {expression}", scope)  # noqa: S102 - names are checked above, or quoted
    function: Callable[[Any], Any] = scope[signature.partition("(")[0]]
    return function
