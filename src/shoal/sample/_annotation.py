"""Annotations to field types, keeping the Python classes that a schema has no place for."""

from __future__ import annotations

import collections.abc
import datetime as dt
import enum
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import numpy as np

from shoal import codec, schema
from shoal.errors import SchemaError
from shoal.schema import Array, Audio, FieldType, Image

__all__ = ["Node", "Records", "annotation_doc", "annotation_marks", "read_annotation"]


@dataclass(frozen=True, slots=True)
class Node:
    """A field type, the class behind it (of an Enum or a record), and the nodes of what it is made of."""

    type: FieldType
    cls: Any = None
    parts: tuple[Node, ...] = ()


Records = Callable[[type], schema.Schema | None]  # the schema of a class that is a record, None for one that is not

_LEAVES: dict[Any, FieldType] = {
    str: schema.StrType(),
    int: schema.IntType(),
    float: schema.FloatType(),
    bool: schema.BoolType(),
    bytes: schema.BytesType(),
    dt.datetime: schema.DateTimeType(),
    dt.date: schema.DateType(),
    dt.time: schema.TimeType(),
    Any: schema.AnyType(),
    object: schema.AnyType(),
    np.ndarray: Array(),
    Array: Array(),
    Image: Image(),
    Audio: Audio(),
    codec.Audio: Audio(),
}
_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence)
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_HINT = (
    "use str, int, float, bool, bytes, datetime, Enum, Literal, arrays, Optional, unions, list, tuple, dict, another "
    "packable class, Any, or Annotated with Array, Image or Audio"
)


def read_annotation(annotation: Any, records: Records) -> Node:
    """The node of an annotation.

    Raises:
        SchemaError: Nothing here stores values of this annotation.
    """
    if isinstance(annotation, Array | Image | Audio):
        return Node(annotation)
    if _is_plain(annotation) and annotation in _LEAVES:
        return Node(_LEAVES[annotation])
    origin = get_origin(annotation)
    if origin in _GENERICS:
        return _GENERICS[origin](annotation, records)
    if isinstance(annotation, type):
        return _read_class(annotation, records)
    if isinstance(annotation, TypeVar):
        return read_annotation(annotation.__bound__ or Any, records)
    inner = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    if inner is None:  # neither a NewType nor a `type X = ...`
        raise SchemaError("no field has this type", found=_shown(annotation), hint=_HINT)
    return read_annotation(inner, records)


def annotation_marks(annotation: Any) -> tuple[Any, ...]:
    """What stands beside the type in ``Annotated``."""
    return tuple(annotation.__metadata__) if get_origin(annotation) is Annotated else ()


def annotation_doc(annotation: Any) -> str:
    """The description in ``Annotated[..., Doc("...")]``, or in msgspec's or pydantic's own marks."""
    for mark in annotation_marks(annotation):
        text = getattr(mark, "documentation", None) or getattr(mark, "description", None)
        if isinstance(text, str):
            return text
    return ""


def _is_plain(annotation: Any) -> bool:
    return isinstance(annotation, type) or annotation is Any


def _shown(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _read_class(cls: type, records: Records) -> Node:
    if issubclass(cls, enum.Enum) and not issubclass(cls, enum.Flag):
        return Node(schema.EnumType(cls.__name__, tuple((member.name, member.value) for member in cls)), cls)
    if cls in _LISTS:
        return _list(list[Any], records)
    if cls in _MAPS:
        return _map(dict[str, Any], records)
    if cls is tuple:
        return _tuple(tuple[Any, ...], records)
    found = records(cls)
    if found is None:
        raise SchemaError("no field has this type", found=_shown(cls), hint=_HINT)
    return Node(schema.RecordType(found), cls)


def _annotated(annotation: Any, records: Records) -> Node:
    base = annotation.__origin__
    mark = next((mark for mark in annotation.__metadata__ if isinstance(mark, Array | Image | Audio)), None)
    if mark is None:
        return read_annotation(base, records)
    if isinstance(mark, Array):
        return _narrowed(read_annotation(base, records), mark)
    optional = type(None) in get_args(base)
    node = Node(mark)
    return Node(schema.OptionalType(mark), None, (node,)) if optional else node


def _narrowed(node: Node, mark: Array) -> Node:
    """The array that an annotation says, with what `Array` adds."""
    if isinstance(node.type, schema.OptionalType):
        part = _narrowed(node.parts[0], mark)
        return Node(schema.OptionalType(part.type), None, (part,))
    if not isinstance(node.type, Array):
        raise SchemaError("Array annotates arrays only", found=str(node.type))
    if mark.dtype and node.type.dtype and mark.dtype != node.type.dtype:
        raise SchemaError("an array has two dtypes", expected=node.type.dtype, found=mark.dtype)
    return Node(Array(mark.dtype or node.type.dtype, node.type.shape if mark.shape is None else mark.shape))


def _array(annotation: Any, records: Records) -> Node:
    shape, dtype = (*get_args(annotation), Any)[:2]
    scalar = (*get_args(dtype), None)[0]
    return Node(Array(None if isinstance(scalar, TypeVar) else scalar, _shape(shape)))


def _shape(annotation: Any) -> tuple[int | None, ...] | None:
    lengths = get_args(annotation)
    if get_origin(annotation) is not tuple or Ellipsis in lengths:
        return None
    return tuple(get_args(length)[0] if get_origin(length) is Literal else None for length in lengths)


def _union(annotation: Any, records: Records) -> Node:
    nodes = [None if part in (None, type(None)) else read_annotation(part, records) for part in get_args(annotation)]
    return union_node(nodes)


def union_node(nodes: list[Node | None]) -> Node:
    """The node of `schema.union_of`, its parts in the order of the options; None stands for None."""
    flat = [part for node in nodes for part in (_options(node) if node else [None])]
    whole = schema.union_of(part.type if part else None for part in flat)
    by_type = {part.type: part for part in flat if part}
    inner = whole.of if isinstance(whole, schema.OptionalType) else whole
    options = inner.options if isinstance(inner, schema.UnionType) else (inner,)
    parts = tuple(by_type.get(option, Node(option)) for option in options)
    node = Node(inner, None, parts) if isinstance(inner, schema.UnionType) else replace(parts[0])
    return Node(whole, None, (node,)) if isinstance(whole, schema.OptionalType) else node


def _options(node: Node) -> list[Node | None]:
    if isinstance(node.type, schema.OptionalType):
        return [*_options(node.parts[0]), None]
    return [*node.parts] if isinstance(node.type, schema.UnionType) else [node]


def _literal(annotation: Any, records: Records) -> Node:
    values = tuple(value for value in get_args(annotation) if value is not None)
    literal = Node(schema.LiteralType(values))
    return union_node([literal, None]) if None in get_args(annotation) else literal


def _list(annotation: Any, records: Records) -> Node:
    item = read_annotation(get_args(annotation)[0], records)
    return Node(schema.ListType(item.type), None, (item,))


def _tuple(annotation: Any, records: Records) -> Node:
    arguments = get_args(annotation)
    variadic = len(arguments) == 2 and arguments[1] is Ellipsis
    items = tuple(read_annotation(item, records) for item in arguments if item is not Ellipsis)
    return Node(schema.TupleType(tuple(item.type for item in items), variadic), None, items)


def _map(annotation: Any, records: Records) -> Node:
    keys, values = (read_annotation(part, records) for part in get_args(annotation))
    if not isinstance(keys.type, schema.StrType | schema.IntType):
        raise SchemaError("keys are text or whole numbers", expected="str or int", found=str(keys.type))
    return Node(schema.MapType(keys.type, values.type), None, (values,))


def _inner(annotation: Any, records: Records) -> Node:
    return read_annotation(get_args(annotation)[0], records)


_GENERICS: dict[Any, Callable[[Any, Records], Node]] = {
    Annotated: _annotated,
    np.ndarray: _array,
    typing.Union: _union,
    types.UnionType: _union,
    Literal: _literal,
    tuple: _tuple,
    typing.Final: _inner,
    **dict.fromkeys(_LISTS, _list),
    **dict.fromkeys(_MAPS, _map),
}
