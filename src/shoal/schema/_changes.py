"""What changed between two versions of a schema, and what the next version is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shoal.schema._reading import reading_problems, source_field, type_problems
from shoal.schema._schema import Field, Schema
from shoal.schema._types import RecordType
from shoal.schema._version import bumped

__all__ = ["Change", "compare", "next_version"]

ChangeKind = Literal["added", "removed", "renamed", "widened", "incompatible", "default", "aliases", "moved", "words"]
_PATCHES = ("words", "moved", "default", "aliases")


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

    Example:
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

    Example:
        >>> from shoal.schema import Default, IntType
        >>> old = Schema("S", (Field("n", IntType()),), version="1.4.2")
        >>> next_version(old, Schema("S", (*old.fields, Field("m", IntType(), Default("0")))))
        '1.5.0'
    """
    changes = compare(old, new)
    if not changes:
        return old.version
    if reading_problems(old, new):
        return bumped(old.version, "major")
    return bumped(old.version, "patch" if all(change.kind in _PATCHES for change in changes) else "minor")


def _named(schema: Schema) -> str:
    return f"{schema.name}: {schema.description}" if schema.description else schema.name


def _schema_changes(old: Schema, new: Schema, path: str) -> Iterator[Change]:
    if (old.name, old.description) != (new.name, new.description):
        yield Change("words", path or "$", _named(old), _named(new))
    used: set[str] = set()
    for field in new.fields:
        source = source_field(old, field)
        if source is not None:
            used.add(source.name)
        yield from _field_changes(source, field, f"{path}.{field.name}" if path else field.name)
    for field in old.fields:
        if field.name not in used:
            yield Change("removed", f"{path}.{field.name}" if path else field.name, str(field.type), None)
    kept = [name for name in old.names if name in new]
    if kept != [name for name in new.names if name in old]:
        yield Change("moved", path or "$", ", ".join(old.names), ", ".join(new.names))


def _field_changes(old: Field | None, new: Field, path: str) -> Iterator[Change]:
    if old is None:
        yield Change("added", path, None, str(new.type), compatible=not new.required)
        return
    if old.name != new.name:
        yield Change("renamed", path, old.name, new.name)
    yield from _type_changes(old, new, path)
    if old.default != new.default:
        yield Change("default", path, _shown(old), _shown(new))
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
    readable = next(type_problems(old.type, new.type, path), None) is None
    yield Change("widened" if readable else "incompatible", path, str(old.type), str(new.type), compatible=readable)


def _shown(field: Field) -> str:
    return "required" if field.default is None else field.default.json or "computed"
