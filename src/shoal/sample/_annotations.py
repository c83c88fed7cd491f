"""Classes as records: which fields a dataclass, a msgspec Struct or a pydantic model has, as one kind of value."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, cast

import msgspec
import numpy as np

from shoal.codec._arrays import encode_npy
from shoal.errors import SchemaError
from shoal.sample._annotation import Node, annotation_doc, annotation_marks, read_annotation
from shoal.sample._media import MediaField
from shoal.schema import Audio, Default, Field, FloatType, Image, OptionalType, Schema

__all__ = [
    "OPTIONS",
    "Member",
    "Options",
    "Record",
    "is_record",
    "keep_record",
    "options_of",
    "read_record",
    "schema_of",
]

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
