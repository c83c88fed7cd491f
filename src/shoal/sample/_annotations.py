"""From the annotations of a class to schema types."""

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
from shoal.codec import encode_npy
from shoal.errors import SchemaError
from shoal.schema import Array, Audio, Default, Field, FieldType, FloatType, Image, OptionalType, Schema

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

Records = Callable[[type], schema.Schema | None]  # the schema of a class that is a record, None for one that is not


# -------------------------------- annotations to field types, keeping the Python classes that a schema has no place for


@dataclass(frozen=True, slots=True)
class Node:
    """A field type, the class behind it (of an Enum or a record), and the nodes of what it is made of."""

    type: FieldType
    cls: Any = None
    parts: tuple[Node, ...] = ()


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


# --------------------------------------------------------------------------------------------------- classes as records


OPTIONS = "__packable_options__"
_KEPT = "__shoal_record__"


@dataclass(frozen=True, slots=True)
class Options:
    """What was said at the class: its version, former names of its fields, and where its annotations find names."""

    version: str = "1.0.0"
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a class: its node, its default, and how the constructor takes it."""

    name: str
    node: Node
    default: Any = MISSING
    factory: Callable[[], Any] | None = None
    keyword: str | None = None  # the constructor's keyword; None where it is taken by position
    aliases: tuple[str, ...] = ()
    doc: str = ""
    marks: tuple[Any, ...] = ()

    @property
    def required(self) -> bool:
        return self.default is MISSING and self.factory is None

    def default_value(self) -> Any:
        """The value of a field that the data lacks."""
        return self.factory() if self.factory else self.default


@dataclass(frozen=True, slots=True)
class Record:
    """A class, its fields in order, and the schema they make."""

    cls: type
    members: tuple[Member, ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class _Raw:
    """A field as its class describes it."""

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
    """The schema of a packable class, a dataclass, a msgspec Struct or a pydantic model.

    Raises:
        SchemaError: The class has no fields, a field has a type that is not stored, or the class contains itself.

    Example:
        >>> import msgspec
        >>> class Point(msgspec.Struct):
        ...     x: float
        ...     y: float = 0.0
        >>> print(schema_of(Point))
        Point@1.0.0(x: float, y: float)
    """
    return read_record(cls).schema


def read_record(cls: type, within: tuple[type, ...] = ()) -> Record:
    """The record of a class, read once and kept with it."""
    found: Record | None = cls.__dict__.get(_KEPT)
    if found is None:
        if cls in within:
            raise SchemaError("a class that contains itself has no schema", found=cls.__qualname__)
        if not is_record(cls):
            raise SchemaError(
                "this class has no fields that can be stored", found=cls.__qualname__, hint="decorate it with @packable"
            )
        found = keep_record(cls, _read(cls, (*within, cls)))
    return found


def keep_record(cls: type, record: Record) -> Record:
    """Remember what a class is, with the class itself; its images and sounds are decoded when they are looked at."""
    if OPTIONS in cls.__dict__ and cls.__dictoffset__ and dataclasses.is_dataclass(cls):
        for member in record.members:
            of = member.node.type.of if isinstance(member.node.type, OptionalType) else member.node.type
            if isinstance(of, Image | Audio):
                setattr(cls, member.name, _media_field(cls, member, of))
    setattr(cls, _KEPT, record)
    return record


def _media_field(cls: type, member: Member, of: Image | Audio) -> MediaField:
    try:
        return MediaField(member.name, of, member.default)
    except SchemaError as error:
        raise error.at(field=f"{cls.__name__}.{member.name}") from None


def _read(cls: type, within: tuple[type, ...]) -> Record:
    options = options_of(cls)
    hints = _hints(cls, options)

    def nested(inner: type) -> Schema | None:
        return read_record(inner, within).schema if is_record(inner) else None

    members = tuple(_member(raw, hints[raw.name], options, nested, cls) for raw in _raw_fields(cls))
    fields = tuple(Field(m.name, m.node.type, _default(m), m.aliases, m.doc) for m in members)
    unknown = sorted(set(options.aliases) - {member.name for member in members})
    if unknown:
        raise SchemaError("an alias is given for a field that is not there", found=", ".join(unknown))
    return Record(cls, members, Schema(cls.__name__, fields, options.version, _description(cls)))


def options_of(cls: type) -> Options:
    """The options of a class; former names are inherited, the version is not."""
    own: Options = cls.__dict__.get(OPTIONS, Options())
    inherited = [vars(base)[OPTIONS] for base in reversed(cls.__mro__[1:]) if OPTIONS in vars(base)]
    aliases = {name: former for options in (*inherited, own) for name, former in options.aliases.items()}
    return Options(own.version, aliases, ChainMap(*(cast("Any", one.names) for one in (own, *reversed(inherited)))))


def _hints(cls: type, options: Options) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:
        # A class inside a function, or in code that is no module: its names are where it was decorated.
        names = ChainMap({cls.__name__: cls}, cast("Any", options.names))
    try:
        return typing.get_type_hints(cls, localns=names, include_extras=True)
    except NameError as error:
        raise SchemaError(
            "an annotation names what is not there", found=error.name, field=cls.__name__, hint="define it first"
        ) from error


def _member(raw: _Raw, hint: Any, options: Options, nested: Callable[[type], Schema | None], cls: type) -> Member:
    try:
        node = read_annotation(hint, nested)
    except SchemaError as error:
        raise error.at(field=f"{cls.__name__}.{raw.name}") from None
    aliases = tuple(dict.fromkeys((*options.aliases.get(raw.name, ()), *raw.aliases)))
    doc = raw.doc or annotation_doc(hint)
    return Member(raw.name, node, raw.default, raw.factory, raw.keyword, aliases, doc, annotation_marks(hint))


def _description(cls: type) -> str:
    text = cls.__doc__ or ""
    # What dataclasses write where there is no docstring says nothing that the fields do not.
    return "" if text.startswith(f"{cls.__name__}(") else inspect.cleandoc(text)


def _raw_fields(cls: type) -> Iterator[_Raw]:
    if issubclass(cls, msgspec.Struct):
        return _struct_fields(cls)
    return _pydantic_fields(cls) if _is_pydantic(cls) else _dataclass_fields(cls)


def _dataclass_fields(cls: Any) -> Iterator[_Raw]:
    for one in cls.__dataclass_fields__.values():
        if getattr(one, "_field_type", None) is dataclasses._FIELD_INITVAR:  # type: ignore[attr-defined] # noqa: SLF001
            raise SchemaError("an InitVar is not kept, so it cannot be stored", field=f"{cls.__name__}.{one.name}")
    for one in dataclasses.fields(cls):
        if one.init:  # what __post_init__ computes is computed again on reading
            factory = None if one.default_factory is MISSING else one.default_factory
            doc = one.metadata.get("doc", "") or getattr(one, "doc", None) or ""
            yield _Raw(one.name, one.default, factory, one.name if one.kw_only else None, doc=doc)


def _struct_fields(cls: type[msgspec.Struct]) -> Iterator[_Raw]:
    for one in msgspec.structs.fields(cls):
        default = MISSING if one.default is msgspec.NODEFAULT else one.default
        factory = None if one.default_factory is msgspec.NODEFAULT else one.default_factory
        former = () if one.encode_name == one.name else (one.encode_name,)
        yield _Raw(one.name, default, factory, one.name, former)


def _is_pydantic(cls: type) -> bool:
    return hasattr(cls, "model_fields") and hasattr(cls, "__pydantic_validator__")


def _pydantic_fields(cls: Any) -> Iterator[_Raw]:
    for name, one in cls.model_fields.items():
        given = not one.is_required()
        factory = one.default_factory if given and one.default_factory else None
        default = one.default if given and factory is None else MISSING
        alias = one.validation_alias if isinstance(one.validation_alias, str) else one.alias
        by_name = alias is None or cls.model_config.get("populate_by_name")
        yield _Raw(name, default, factory, name if by_name else alias, doc=one.description or "")


_KNOWN_FACTORIES = (list, dict, tuple, str, int, float, bool, bytes)


def _default(member: Member) -> Default | None:
    """The default as the schema keeps it. Factories that compute are not run: each run may give another value."""
    if member.required:
        return None
    if member.factory is not None and member.factory not in _KNOWN_FACTORIES:
        return Default(None)
    return default_of(member.default_value(), member.node)


def default_of(value: Any, node: Node) -> Default:
    """A default's value as JSON text; unknown where JSON cannot hold it."""
    if not _is_finite(value):  # JSON has no word for these
        plain = isinstance(node.type, FloatType) or node.type == OptionalType(FloatType())
        return Default(f'"{value}"' if plain else None)
    try:
        return Default(msgspec.json.encode(value, enc_hook=_plain).decode())
    except (TypeError, ValueError, OverflowError):
        return Default(None)


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return all(map(_is_finite, parts))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray):
        return encode_npy(value)
    raise TypeError(type(value))
