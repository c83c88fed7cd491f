"""Which data can be read as which type: the rules of evolution for one value.

A rule is true when *every* value written under the one type is read as a value of the other. The page "Schemas" of the
documentation says the same in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from shoal.errors import SchemaMismatchError
from shoal.schema._dtype import dtype_family
from shoal.schema._schema import Field, Schema

from ._leaves import AnyType, BoolType, FloatType, IntType, StrType
from ._types import (
    Array,
    Audio,
    EnumType,
    FieldType,
    Image,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    RecordType,
    TupleType,
    UnionType,
)

__all__ = ["Problem", "check_readable", "reading_problems", "source_field", "type_problems"]

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

    Example:
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

    Example:
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
    place = f"{path}.{field.name}" if path else field.name
    source = source_field(written, field)
    if source is not None:
        yield from type_problems(source.type, field.type, place)
    elif field.required:
        yield Problem(place, "a field, or a default", "nothing")


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
        if not all(any(_fits(part, option) for option in wanted.options) for part in _parts(written)):
            yield Problem(path, str(wanted), str(written))
    else:
        yield from _plain_problems(written, wanted, path)


def _parts(of: FieldType) -> Iterable[FieldType]:
    """The values of a choice one by one, since each may find another option of a union; other types as they are."""
    return [LiteralType((value,)) for value in of.values] if isinstance(of, LiteralType | EnumType) else (of,)


def _fits(written: FieldType, wanted: FieldType) -> bool:
    return next(type_problems(written, wanted, ""), None) is None


def _plain_problems(written: FieldType, wanted: FieldType, path: str) -> Iterator[Problem]:
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
    # A name that stands twice asks for equal lengths, which only equal names or equal numbers promise.
    bound: dict[str, int | str | None] = {}
    for old, new in zip(written, wanted, strict=True):
        if isinstance(new, int) and old != new:
            return False
        if isinstance(new, str) and wanted.count(new) > 1 and (old is None or bound.setdefault(new, old) != old):
            return False
    return True
