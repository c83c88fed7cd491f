"""Read classes: from the annotations of fields to field types, and from a class to its record and schema.

A `Node` keeps the Python classes (Enums and records) that a field type does not have.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import enum
import inspect
import math
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

import msgspec
import numpy as np

from shoal import codec, schema
from shoal.codec._arrays import encode_npy
from shoal.errors import SchemaError
from shoal.schema._schema import Default, Field, Schema
from shoal.schema._types import Array, Audio, FieldType, FloatType, Image, OptionalType

from ._stored_values import MediaField

__all__ = [
    "OPTIONS",
    "Member",
    "Node",
    "Options",
    "Record",
    "is_record",
    "keep_record",
    "read_annotation",
    "read_record",
    "schema_of",
]

SchemaLookup = Callable[[type], Schema | None]
"""From a class to its schema; None for a class that is no record."""
OPTIONS = "__packable_options__"
_RECORD_ATTRIBUTE = "__shoal_record__"
_PURE_FACTORIES = (list, dict, tuple, str, int, float, bool, bytes)


@dataclass(frozen=True, slots=True)
class Node:
    """A field type, its class (for an Enum or a record), and the nodes of its parts."""

    type: FieldType
    cls: Any = None
    parts: tuple[Node, ...] = ()


_LEAF_TYPES: dict[Any, FieldType] = {
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


def read_annotation(annotation: Any, records: SchemaLookup) -> Node:
    """Return the node of an annotation.

    Raises:
        SchemaError: Values of this annotation cannot be stored.
    """
    if isinstance(annotation, Array | Image | Audio):
        return Node(annotation)
    if _is_hashable_type(annotation) and annotation in _LEAF_TYPES:
        return Node(_LEAF_TYPES[annotation])
    origin = get_origin(annotation)
    if origin in _GENERICS:
        return _GENERICS[origin](annotation, records)
    if isinstance(annotation, type):
        return _read_class(annotation, records)
    if isinstance(annotation, TypeVar):
        return read_annotation(annotation.__bound__ or Any, records)
    inner = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    if inner is None:  # neither a NewType nor a `type X = ...`
        raise SchemaError("no field has this type", found=_format_annotation(annotation), hint=_HINT)
    return read_annotation(inner, records)


def _metadata(annotation: Any) -> tuple[Any, ...]:
    """Return the metadata of an ``Annotated`` type."""
    return tuple(annotation.__metadata__) if get_origin(annotation) is Annotated else ()


def _doc(annotation: Any) -> str:
    """Return the description in ``Annotated[..., Doc("...")]``, or in the metadata of msgspec or pydantic."""
    for item in _metadata(annotation):
        text = getattr(item, "documentation", None) or getattr(item, "description", None)
        if isinstance(text, str):
            return text
    return ""


def _is_hashable_type(annotation: Any) -> bool:
    return isinstance(annotation, type) or annotation is Any


def _format_annotation(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _read_class(cls: type, records: SchemaLookup) -> Node:
    if issubclass(cls, enum.Enum) and not issubclass(cls, enum.Flag):
        return Node(schema.EnumType(cls.__name__, tuple((member.name, member.value) for member in cls)), cls)
    if cls in _LISTS:
        return _read_list(list[Any], records)
    if cls in _MAPS:
        return _read_map(dict[str, Any], records)
    if cls is tuple:
        return _read_tuple(tuple[Any, ...], records)
    record_schema = records(cls)
    if record_schema is None:
        raise SchemaError("no field has this type", found=_format_annotation(cls), hint=_HINT)
    return Node(schema.RecordType(record_schema), cls)


def _read_annotated(annotation: Any, records: SchemaLookup) -> Node:
    base = annotation.__origin__
    declared = next(
        (declared for declared in annotation.__metadata__ if isinstance(declared, Array | Image | Audio)),
        None,
    )
    if declared is None:
        return read_annotation(base, records)
    if isinstance(declared, Array):
        return _narrow_array(read_annotation(base, records), declared)
    optional = type(None) in get_args(base)
    node = Node(declared)
    return Node(schema.OptionalType(declared), None, (node,)) if optional else node


def _narrow_array(node: Node, declared: Array) -> Node:
    """Return the node of an annotated array with the dtype and the shape of an `Array` in its metadata."""
    if isinstance(node.type, schema.OptionalType):
        part = _narrow_array(node.parts[0], declared)
        return Node(schema.OptionalType(part.type), None, (part,))
    if not isinstance(node.type, Array):
        raise SchemaError("Array annotates arrays only", found=str(node.type))
    if declared.dtype and node.type.dtype and declared.dtype != node.type.dtype:
        raise SchemaError("an array has two dtypes", expected=node.type.dtype, found=declared.dtype)
    return Node(
        Array(
            declared.dtype or node.type.dtype,
            node.type.shape if declared.shape is None else declared.shape,
        )
    )


def _read_array(annotation: Any, records: SchemaLookup) -> Node:
    shape, dtype = (*get_args(annotation), Any)[:2]
    scalar = (*get_args(dtype), None)[0]
    return Node(Array(None if isinstance(scalar, TypeVar) else scalar, _read_shape(shape)))


def _read_shape(annotation: Any) -> tuple[int | None, ...] | None:
    lengths = get_args(annotation)
    if get_origin(annotation) is not tuple or Ellipsis in lengths:
        return None
    return tuple(get_args(length)[0] if get_origin(length) is Literal else None for length in lengths)


def _read_union(annotation: Any, records: SchemaLookup) -> Node:
    nodes = [None if part in (None, type(None)) else read_annotation(part, records) for part in get_args(annotation)]
    return _union_node(nodes)


def _union_node(nodes: list[Node | None]) -> Node:
    """Return the node of `schema.union_of`, with parts in the order of the options; a None node means None."""
    flat = [part for node in nodes for part in (_union_options(node) if node else [None])]
    joined = schema.union_of(part.type if part else None for part in flat)
    by_type = {part.type: part for part in flat if part}
    inner = joined.of if isinstance(joined, schema.OptionalType) else joined
    options = inner.options if isinstance(inner, schema.UnionType) else (inner,)
    parts = tuple(by_type.get(option, Node(option)) for option in options)
    node = Node(inner, None, parts) if isinstance(inner, schema.UnionType) else replace(parts[0])
    return Node(joined, None, (node,)) if isinstance(joined, schema.OptionalType) else node


def _union_options(node: Node) -> list[Node | None]:
    if isinstance(node.type, schema.OptionalType):
        return [*_union_options(node.parts[0]), None]
    return [*node.parts] if isinstance(node.type, schema.UnionType) else [node]


def _read_literal(annotation: Any, records: SchemaLookup) -> Node:
    values = tuple(value for value in get_args(annotation) if value is not None)
    literal = Node(schema.LiteralType(values))
    return _union_node([literal, None]) if None in get_args(annotation) else literal


def _read_list(annotation: Any, records: SchemaLookup) -> Node:
    item = read_annotation(get_args(annotation)[0], records)
    return Node(schema.ListType(item.type), None, (item,))


def _read_tuple(annotation: Any, records: SchemaLookup) -> Node:
    arguments = get_args(annotation)
    variadic = len(arguments) == 2 and arguments[1] is Ellipsis
    items = tuple(read_annotation(item, records) for item in arguments if item is not Ellipsis)
    return Node(schema.TupleType(tuple(item.type for item in items), variadic), None, items)


def _read_map(annotation: Any, records: SchemaLookup) -> Node:
    keys, values = (read_annotation(part, records) for part in get_args(annotation))
    if not isinstance(keys.type, schema.StrType | schema.IntType):
        raise SchemaError("keys are text or whole numbers", expected="str or int", found=str(keys.type))
    return Node(schema.MapType(keys.type, values.type), None, (values,))


def _read_inner(annotation: Any, records: SchemaLookup) -> Node:
    return read_annotation(get_args(annotation)[0], records)


_GENERICS: dict[Any, Callable[[Any, SchemaLookup], Node]] = {
    Annotated: _read_annotated,
    np.ndarray: _read_array,
    typing.Union: _read_union,
    types.UnionType: _read_union,
    Literal: _read_literal,
    tuple: _read_tuple,
    typing.Final: _read_inner,
    **dict.fromkeys(_LISTS, _read_list),
    **dict.fromkeys(_MAPS, _read_map),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a class: its version, former names of its fields, and the names that annotations may use."""

    version: str = "1.0.0"
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a class: its node, its default, and how it is passed to the constructor."""

    name: str
    node: Node
    default: Any = MISSING
    factory: Callable[[], Any] | None = None
    keyword: str | None = None  # the constructor's keyword; None if it is positional
    aliases: tuple[str, ...] = ()
    doc: str = ""
    metadata: tuple[Any, ...] = ()

    @property
    def required(self) -> bool:
        return self.default is MISSING and self.factory is None

    def default_value(self) -> Any:
        """Return the value of the field if the data lacks it."""
        return self.factory() if self.factory else self.default


@dataclass(frozen=True, slots=True)
class Record:
    """A class, its fields in order, and its schema."""

    cls: type
    members: tuple[Member, ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class _ClassField:
    """A field as a dataclass, Struct or model defines it, before its annotation is read."""

    name: str
    default: Any = MISSING
    factory: Callable[[], Any] | None = None
    keyword: str | None = None
    aliases: tuple[str, ...] = ()
    doc: str = ""


def is_record(cls: type) -> bool:
    """Whether a class has fields: a dataclass, a msgspec Struct or a pydantic model."""
    return dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or _is_pydantic(cls)


def schema_of(cls: type) -> Schema:
    """Return the schema of a packable class, a dataclass, a msgspec Struct or a pydantic model.

    Raises:
        SchemaError: The class has no fields, a field has a type that cannot be stored, or the class contains itself.

    Examples:
        >>> import msgspec
        >>> class Point(msgspec.Struct):
        ...     x: float
        ...     y: float = 0.0
        >>> print(schema_of(Point))
        Point@1.0.0(x: float, y: float)
    """
    return read_record(cls).schema


def read_record(cls: type, within: tuple[type, ...] = ()) -> Record:
    """Return the record of a class, read once and cached with it."""
    record: Record | None = cls.__dict__.get(_RECORD_ATTRIBUTE)
    if record is None:
        if cls in within:
            raise SchemaError("a class that contains itself has no schema", found=cls.__qualname__)
        if not is_record(cls):
            raise SchemaError(
                "this class has no fields that can be stored", found=cls.__qualname__, hint="decorate it with @packable"
            )
        record = keep_record(cls, _read_fields(cls, (*within, cls)))
    return record


def keep_record(cls: type, record: Record) -> Record:
    """Cache the record of a class with the class, and make its image and audio fields decode when they are read."""
    if OPTIONS in cls.__dict__ and cls.__dictoffset__ and dataclasses.is_dataclass(cls):
        for member in record.members:
            media_type = member.node.type.of if isinstance(member.node.type, OptionalType) else member.node.type
            if isinstance(media_type, Image | Audio):
                setattr(cls, member.name, _media_field(cls, member, media_type))
    setattr(cls, _RECORD_ATTRIBUTE, record)
    return record


def _media_field(cls: type, member: Member, media_type: Image | Audio) -> MediaField:
    try:
        return MediaField(member.name, media_type, member.default)
    except SchemaError as error:
        raise error.at(field=f"{cls.__name__}.{member.name}") from None


def _read_fields(cls: type, within: tuple[type, ...]) -> Record:
    options = _merged_options(cls)
    hints = _type_hints(cls, options)

    def nested(inner: type) -> Schema | None:
        return read_record(inner, within).schema if is_record(inner) else None

    members = tuple(_make_member(info, hints[info.name], options, nested, cls) for info in _class_fields(cls))
    fields = tuple(Field(m.name, m.node.type, _member_default(m), m.aliases, m.doc) for m in members)
    unknown = sorted(set(options.aliases) - {member.name for member in members})
    if unknown:
        raise SchemaError("an alias is given for a field that is not there", found=", ".join(unknown))
    return Record(cls, members, Schema(cls.__name__, fields, options.version, _description(cls)))


def _merged_options(cls: type) -> Options:
    """Return the options of a class; former names are inherited, the version is not."""
    own: Options = cls.__dict__.get(OPTIONS, Options())
    inherited = [vars(base)[OPTIONS] for base in reversed(cls.__mro__[1:]) if OPTIONS in vars(base)]
    aliases = {name: former for options in (*inherited, own) for name, former in options.aliases.items()}
    return Options(
        own.version, aliases, ChainMap(*(cast("Any", options.names) for options in (own, *reversed(inherited))))
    )


def _type_hints(cls: type, options: Options) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:
        # A class in a function, or in code outside any module: use the names where it was decorated.
        names = ChainMap({cls.__name__: cls}, cast("Any", options.names))
    try:
        return typing.get_type_hints(cls, localns=names, include_extras=True)
    except NameError as error:
        raise SchemaError(
            "an annotation names what is not there", found=error.name, field=cls.__name__, hint="define it first"
        ) from error


def _make_member(
    info: _ClassField, hint: Any, options: Options, nested: Callable[[type], Schema | None], cls: type
) -> Member:
    try:
        node = read_annotation(hint, nested)
    except SchemaError as error:
        raise error.at(field=f"{cls.__name__}.{info.name}") from None
    aliases = tuple(dict.fromkeys((*options.aliases.get(info.name, ()), *info.aliases)))
    doc = info.doc or _doc(hint)
    return Member(info.name, node, info.default, info.factory, info.keyword, aliases, doc, _metadata(hint))


def _description(cls: type) -> str:
    text = cls.__doc__ or ""
    # The docstring that dataclasses generate adds nothing to the fields.
    return "" if text.startswith(f"{cls.__name__}(") else inspect.cleandoc(text)


def _class_fields(cls: type) -> Iterator[_ClassField]:
    if issubclass(cls, msgspec.Struct):
        return _struct_fields(cls)
    return _pydantic_fields(cls) if _is_pydantic(cls) else _dataclass_fields(cls)


def _dataclass_fields(cls: Any) -> Iterator[_ClassField]:
    for item in cls.__dataclass_fields__.values():
        if getattr(item, "_field_type", None) is dataclasses._FIELD_INITVAR:  # type: ignore[attr-defined] # noqa: SLF001
            raise SchemaError("an InitVar is not kept, so it cannot be stored", field=f"{cls.__name__}.{item.name}")
    for item in dataclasses.fields(cls):
        if item.init:  # fields that __post_init__ computes are computed again when read
            factory = None if item.default_factory is MISSING else item.default_factory
            doc = item.metadata.get("doc", "") or getattr(item, "doc", None) or ""
            yield _ClassField(item.name, item.default, factory, item.name if item.kw_only else None, doc=doc)


def _struct_fields(cls: type[msgspec.Struct]) -> Iterator[_ClassField]:
    for item in msgspec.structs.fields(cls):
        default = MISSING if item.default is msgspec.NODEFAULT else item.default
        factory = None if item.default_factory is msgspec.NODEFAULT else item.default_factory
        former = () if item.encode_name == item.name else (item.encode_name,)
        yield _ClassField(item.name, default, factory, item.name, former)


def _is_pydantic(cls: type) -> bool:
    return hasattr(cls, "model_fields") and hasattr(cls, "__pydantic_validator__")


def _pydantic_fields(cls: Any) -> Iterator[_ClassField]:
    for name, item in cls.model_fields.items():
        has_default = not item.is_required()
        factory = item.default_factory if has_default and item.default_factory else None
        default = item.default if has_default and factory is None else MISSING
        alias = item.validation_alias if isinstance(item.validation_alias, str) else item.alias
        by_name = alias is None or cls.model_config.get("populate_by_name")
        yield _ClassField(name, default, factory, name if by_name else alias, doc=item.description or "")


def _member_default(member: Member) -> Default | None:
    """Return the default for the schema; unknown for factories other than built-in ones, which may not be constant."""
    if member.required:
        return None
    if member.factory is not None and member.factory not in _PURE_FACTORIES:
        return Default(None)
    return _encode_default(member.default_value(), member.node)


def _encode_default(value: Any, node: Node) -> Default:
    """Return a default as JSON text; as unknown if JSON cannot hold it."""
    if not _is_finite(value):  # JSON has neither NaN nor infinity
        is_float = isinstance(node.type, FloatType) or node.type == OptionalType(FloatType())
        return Default(f'"{value}"' if is_float else None)
    try:
        return Default(msgspec.json.encode(value, enc_hook=_encode_numpy).decode())
    except (TypeError, ValueError, OverflowError):
        return Default(None)


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return all(map(_is_finite, parts))


def _encode_numpy(value: Any) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray):
        return encode_npy(value)
    raise TypeError(type(value))
