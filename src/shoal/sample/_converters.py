"""The converter of any node: arrays, images, records, optional values, unions, and what they are made of."""

from __future__ import annotations

import datetime as dt
import enum
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import numpy as np

from shoal import schema
from shoal.codec import Buffer
from shoal.codec._arrays import as_array, encode_npy
from shoal.errors import CodecError
from shoal.sample._annotation import Node
from shoal.sample._convert import Convert, Converter, choice_converter, leaf_converter, sequence_converter
from shoal.sample._media import Encoded, decode_media, media_to_wire
from shoal.sample._misfit import Misfit, each, found_type, keyed
from shoal.schema import dtype_fits

from ._array import array_or_bytes, array_reader, array_writer, decode_array

__all__ = ["Manner", "RecordPlan", "any_to_wire", "converter_of", "revive"]

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
class Manner:
    """How to convert: copy arrays as they are read; keep files undecoded; look into records for what does not fit."""

    writable: bool = False
    lazy: bool = False
    thorough: bool = False


def converter_of(node: Node, plans: Plans, manner: Manner) -> Converter:
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


def _same(value: Any) -> Any:
    return value


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
        raise Misfit(f"{of} that .npy can hold", str(array.dtype)) from error


def _as_array(value: Any, of: schema.Array) -> Any:
    if not (isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach") or hasattr(value, "__array__")):
        raise Misfit(str(of), found_type(value))
    return as_array(value)


def array_check(of: schema.Array) -> Convert:
    """The function that refuses arrays of another dtype or shape than is declared."""
    fits, shape = dtype_fits(of.dtype), of.shape

    def check(array: Any) -> None:
        if not fits(array.dtype) or (shape is not None and not shape_fits(array.shape, shape)):
            raise Misfit(str(of), found_type(array))

    return check if of != schema.Array() else _same


def shape_fits(found: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> bool:
    """Whether lengths are those declared: numbers are equal, equal names stand for equal lengths."""
    named: dict[str, int] = {}
    return len(found) == len(wanted) and all(
        want is None or (named.setdefault(want, length) == length if isinstance(want, str) else want == length)
        for length, want in zip(found, wanted, strict=True)
    )


def _media_converter(of: schema.Image | schema.Audio, manner: Manner) -> Converter:
    decode = decode_media(of)

    def keep(data: Buffer) -> Encoded:
        return Encoded(data, manner.writable)

    def from_plain(value: Any) -> Any:
        return (keep(value) if manner.lazy else decode(value)) if isinstance(value, _BYTES) else value

    return Converter(memoryview, media_to_wire(of), keep if manner.lazy else decode, from_plain)


def _record_converter(cls: type, plan: RecordPlan, thorough: bool) -> Converter:
    def to_wire(value: Any) -> Any:
        if not isinstance(value, cls):
            raise Misfit(cls.__name__, found_type(value))
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
            raise Misfit(cls.__name__, found_type(value))
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
                except Misfit as misfit:
                    inner = misfit if misfit.steps else inner
            if inner:  # the right kind of container, with something wrong inside
                raise inner
            raise Misfit(str(of), found_type(value))

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
    raise Misfit("what MessagePack holds, or an array", found_type(value))


def _any_key(key: Any) -> Any:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return any_to_wire(key.value if isinstance(key, enum.Enum) else key)
    raise Misfit("str or int as a key", found_type(key))


def revive(value: Any) -> Any:
    """Untyped data with the arrays in it decoded: bytes that are ``.npy`` or compact arrays become arrays."""
    if isinstance(value, _BYTES):
        return array_or_bytes(value)
    if isinstance(value, list):
        return [revive(part) for part in value]
    return {key: revive(part) for key, part in value.items()} if isinstance(value, dict) else value
