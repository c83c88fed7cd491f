"""Compatibility of schemas: which data can be read as which type, what changed, and the version that follows.

Data of one type can be read as another when *every* value of the one is a value of the other. The rules are also in the
documentation, on the page "Schemas".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shoal.errors import SchemaMismatchError

from ._schema import Field, Schema
from ._types import (
    AnyType,
    Array,
    Audio,
    BoolType,
    EnumType,
    FieldType,
    FloatType,
    Image,
    IntType,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    RecordType,
    StrType,
    TupleType,
    UnionType,
    dtype_family,
)
from ._version import bump_version

__all__ = ["Change", "Problem", "check_readable", "compare", "next_version", "reading_problems"]

ChangeKind = Literal["added", "removed", "renamed", "widened", "incompatible", "default", "aliases", "moved", "words"]
_PATCH_CHANGES = ("words", "moved", "default", "aliases")
_KIND_TYPES: dict[str, FieldType] = {"str": StrType(), "int": IntType(), "float": FloatType(), "bool": BoolType()}


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why data cannot be read: the path of the field, what the reader wants and what was written."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, found {self.found}"


def check_readable(written: Schema, wanted: Schema) -> None:
    """Refuse data of one schema where it cannot be read as another.

    Allowed: added fields with a default, removed fields, fields renamed with an alias, and types that were widened (int
    to float, ``T`` to ``T | None``, more options in a union, a Literal or an Enum, less said of an array).

    Raises:
        SchemaMismatchError: Some data could not be read; ``field`` is the first path, the hint has the others.

    Examples:
        >>> from shoal.schema import Field, FloatType, IntType, StrType
        >>> old = Schema("S", (Field("n", IntType()),))
        >>> check_readable(old, Schema("S", (Field("n", FloatType()),)))
        >>> check_readable(old, Schema("S", (Field("n", StrType()),)))
        Traceback (most recent call last):
        shoal.errors.SchemaMismatchError: data of S 1.0.0 cannot be read as S 1.0.0: expected str, found int (field n)
    """
    problems = reading_problems(written, wanted)
    if problems:
        first, *others = problems
        raise SchemaMismatchError(
            f"data of {written.name} {written.version} cannot be read as {wanted.name} {wanted.version}",
            expected=first.expected,
            found=first.found,
            field=first.path,
            hint=f"also {'; '.join(map(str, others))}" if others else None,
        )


def reading_problems(written: Schema, wanted: Schema, path: str = "") -> tuple[Problem, ...]:
    """Everything that keeps data of one schema from being read as another; empty where it can be.

    Examples:
        >>> from shoal.schema import Field, IntType, StrType
        >>> old, new = (
        ...     Schema("S", (Field("n", IntType()),)),
        ...     Schema("S", (Field("n", StrType()), Field("m", IntType()))),
        ... )
        >>> [str(problem) for problem in reading_problems(old, new)]
        ['n: expected str, found int', 'm: expected a field, or a default, found nothing']
    """
    return tuple(problem for field in wanted.fields for problem in _field_problems(written, field, path))


def source_field(written: Schema, field: Field) -> Field | None:
    """The field of the data that a field of the reader is read from: by name, else by its first alias there is."""
    return next((written[name] for name in (field.name, *field.aliases) if name in written), None)


def _field_problems(written: Schema, field: Field, path: str) -> Iterator[Problem]:
    field_path = _join(path, field.name)
    source = source_field(written, field)
    if source is not None:
        yield from type_problems(source.type, field.type, field_path)
    elif field.required:
        yield Problem(field_path, "a field, or a default", "nothing")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def type_problems(written: FieldType, wanted: FieldType, path: str) -> Iterator[Problem]:
    """What keeps values of one type from being read as another, by path."""
    if written == wanted or isinstance(wanted, AnyType):
        return
    if isinstance(written, OptionalType):
        if isinstance(wanted, OptionalType):
            yield from type_problems(written.of, wanted.of, path)
        else:
            yield Problem(path, str(wanted), str(written))
    elif isinstance(wanted, OptionalType):
        yield from type_problems(written, wanted.of, path)
    elif isinstance(written, UnionType):
        for option in written.options:
            yield from type_problems(option, wanted, path)
    elif isinstance(wanted, UnionType):
        if not all(any(_fits(part, option) for option in wanted.options) for part in _choices(written)):
            yield Problem(path, str(wanted), str(written))
    else:
        yield from _same_kind_problems(written, wanted, path)


def _choices(of: FieldType) -> Iterable[FieldType]:
    """Split a choice into its values, since each may fit another option of a union; other types stay as they are."""
    return [LiteralType((value,)) for value in of.values] if isinstance(of, LiteralType | EnumType) else (of,)


def _fits(written: FieldType, wanted: FieldType) -> bool:
    return next(type_problems(written, wanted, ""), None) is None


def _same_kind_problems(written: FieldType, wanted: FieldType, path: str) -> Iterator[Problem]:
    if isinstance(written, RecordType) and isinstance(wanted, RecordType):
        yield from reading_problems(written.schema, wanted.schema, path)
    elif isinstance(written, MapType) and isinstance(wanted, MapType) and written.keys == wanted.keys:
        yield from type_problems(written.values, wanted.values, f"{path}[]")
    elif isinstance(written, ListType | TupleType) and isinstance(wanted, ListType | TupleType):
        yield from _sequence_problems(written, wanted, path)
    elif not _leaf_fits(written, wanted):
        yield Problem(path, str(wanted), str(written))


def _sequence_problems(written: ListType | TupleType, wanted: ListType | TupleType, path: str) -> Iterator[Problem]:
    if isinstance(wanted, TupleType) and not wanted.variadic:
        if not isinstance(written, TupleType) or written.variadic or len(written.items) != len(wanted.items):
            yield Problem(path, str(wanted), str(written))
            return
        for number, (old, new) in enumerate(zip(written.items, wanted.items, strict=True)):
            yield from type_problems(old, new, f"{path}[{number}]")
        return
    item = wanted.items if isinstance(wanted, ListType) else wanted.items[0]
    for old in (written.items,) if isinstance(written, ListType) else written.items:
        yield from type_problems(old, item, f"{path}[]")


def _leaf_fits(written: FieldType, wanted: FieldType) -> bool:
    if isinstance(written, Array) and isinstance(wanted, Array):
        return _array_fits(written, wanted)
    if isinstance(written, LiteralType | EnumType):
        return _choice_fits(written, wanted)
    if isinstance(written, Image | Audio):
        return type(written) is type(wanted)  # the content says how it is decoded, not the format
    return isinstance(written, IntType) and isinstance(wanted, FloatType)


def _choice_fits(written: LiteralType | EnumType, wanted: FieldType) -> bool:
    if isinstance(wanted, LiteralType | EnumType):
        allowed = set(zip(wanted.kinds, wanted.values, strict=True))
        return allowed >= set(zip(written.kinds, written.values, strict=True))
    return all(_fits(_KIND_TYPES[kind], wanted) for kind in written.kinds)


def _array_fits(written: Array, wanted: Array) -> bool:
    return _dtype_fits(written.dtype, wanted.dtype) and _shape_fits(written.shape, wanted.shape)


def _dtype_fits(written: str | None, wanted: str | None) -> bool:
    if written == wanted or wanted is None:
        return True
    family = dtype_family(wanted)
    if written is None or family is None:
        return False
    return issubclass(dtype_family(written) or np.dtype(written).type, family)


def _shape_fits(written: tuple[int | str | None, ...] | None, wanted: tuple[int | str | None, ...] | None) -> bool:
    if written == wanted or wanted is None:
        return True
    if written is None or len(written) != len(wanted):
        return False
    # A name that is used twice needs equal lengths, which only equal names or equal numbers guarantee.
    bound: dict[str, int | str | None] = {}
    for old, new in zip(written, wanted, strict=True):
        if isinstance(new, int) and old != new:
            return False
        if isinstance(new, str) and wanted.count(new) > 1 and (old is None or bound.setdefault(new, old) != old):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: its kind, the path of the field, and both sides in words.

    Kinds: ``added`` and ``removed`` fields; ``renamed`` (``old`` is the former name); a type ``widened``, or
    ``incompatible``; another ``default`` or other ``aliases``; ``moved`` (another order); ``words`` (descriptions, or
    the schema's name). ``compatible`` says whether old data is still read.
    """

    kind: ChangeKind
    path: str
    old: str | None
    new: str | None
    compatible: bool = True

    def __str__(self) -> str:
        sides = " -> ".join(side for side in (self.old, self.new) if side is not None)
        return f"{self.kind} {self.path}: {sides}{'' if self.compatible else ' (old data cannot be read)'}"


def compare(old: Schema, new: Schema) -> tuple[Change, ...]:
    """What changed from one schema to the other, by path; empty where nothing did. The version does not count.

    Examples:
        >>> from shoal.schema import Default, FloatType, IntType, StrType
        >>> old = Schema("S", (Field("n", IntType()), Field("label", StrType())))
        >>> new = Schema("S", (Field("n", FloatType()), Field("split", StrType(), Default('"train"'))))
        >>> for change in compare(old, new):
        ...     print(change)
        widened n: int -> float
        added split: str
        removed label: str
    """
    return tuple(_schema_changes(old, new, ""))


def next_version(old: Schema, new: Schema) -> str:
    """The version that ``new`` should have after ``old``, by the weight of what changed.

    Major: data of the old one cannot be read as the new one. Minor: it can, but fields or types differ. Patch: only
    defaults, aliases, order or words differ. Nothing changed: the same version.

    Examples:
        >>> from shoal.schema import Default, IntType
        >>> old = Schema("S", (Field("n", IntType()),), version="1.4.2")
        >>> next_version(old, Schema("S", (*old.fields, Field("m", IntType(), Default("0")))))
        '1.5.0'
    """
    changes = compare(old, new)
    if not changes:
        return old.version
    if reading_problems(old, new):
        return bump_version(old.version, "major")
    return bump_version(old.version, "patch" if all(change.kind in _PATCH_CHANGES for change in changes) else "minor")


def _schema_changes(old: Schema, new: Schema, path: str) -> Iterator[Change]:
    if (old.name, old.description) != (new.name, new.description):
        yield Change("words", path or "$", _title(old), _title(new))
    used: set[str] = set()
    for field in new.fields:
        source = source_field(old, field)
        if source is not None:
            used.add(source.name)
        yield from _field_changes(source, field, _join(path, field.name))
    for field in old.fields:
        if field.name not in used:
            yield Change("removed", _join(path, field.name), str(field.type), None)
    if [name for name in old.names if name in new] != [name for name in new.names if name in old]:
        yield Change("moved", path or "$", ", ".join(old.names), ", ".join(new.names))


def _title(schema: Schema) -> str:
    return f"{schema.name}: {schema.description}" if schema.description else schema.name


def _field_changes(old: Field | None, new: Field, path: str) -> Iterator[Change]:
    if old is None:
        yield Change("added", path, None, str(new.type), compatible=not new.required)
        return
    if old.name != new.name:
        yield Change("renamed", path, old.name, new.name)
    yield from _type_changes(old, new, path)
    if old.default != new.default:
        yield Change("default", path, _format_default(old), _format_default(new))
    if old.aliases != new.aliases:
        yield Change("aliases", path, ", ".join(old.aliases), ", ".join(new.aliases))
    if old.doc != new.doc:
        yield Change("words", path, old.doc, new.doc)


def _type_changes(old: Field, new: Field, path: str) -> Iterator[Change]:
    if old.type == new.type:
        return
    if isinstance(old.type, RecordType) and isinstance(new.type, RecordType):
        yield from _schema_changes(old.type.schema, new.type.schema, path)
        return
    readable = _fits(old.type, new.type)
    yield Change("widened" if readable else "incompatible", path, str(old.type), str(new.type), compatible=readable)


def _format_default(field: Field) -> str:
    return "required" if field.default is None else field.default.json or "computed"
