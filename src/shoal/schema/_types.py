"""The types a field may have, as frozen values.

The types that users write in annotations have short names: `Array`, `Image`, `Audio`. All others come from the plain
Python annotation (``str``, ``list[int]``, ...) and end in ``Type``. Error messages show a type as ``str(type)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shoal.errors import SchemaError

if TYPE_CHECKING:
    from ._schema import Schema

__all__ = [
    "AnyType",
    "Array",
    "Audio",
    "BoolType",
    "BytesType",
    "DateTimeType",
    "DateType",
    "EnumType",
    "FieldType",
    "FloatType",
    "Image",
    "IntType",
    "ListType",
    "LiteralType",
    "MapType",
    "OptionalType",
    "RecordType",
    "StrType",
    "TimeType",
    "TupleType",
    "UnionType",
    "dtype_family",
    "dtype_fits",
    "dtype_name",
    "union_of",
    "wire_kinds",
]

Scalar: TypeAlias = str | int | float | bool
Shape: TypeAlias = tuple[int | str | None, ...]
# Types without a size or unit, and NumPy's abstract types: any type of the family fits.
_FAMILIES: dict[str, Any] = {
    "number": np.number,
    "integer": np.integer,
    "signedinteger": np.signedinteger,
    "unsignedinteger": np.unsignedinteger,
    "inexact": np.inexact,
    "floating": np.floating,
    "complexfloating": np.complexfloating,
    "flexible": np.flexible,
    "character": np.character,
    "str": np.str_,
    "bytes": np.bytes_,
    "void": np.void,
    "datetime64": np.datetime64,
    "timedelta64": np.timedelta64,
}
_FAMILY_NAMES = {family: name for name, family in _FAMILIES.items()}


@dataclass(frozen=True, slots=True)
class StrType:
    """Text."""

    def __str__(self) -> str:
        return "str"


@dataclass(frozen=True, slots=True)
class IntType:
    """A whole number from -2**63 to 2**64 - 1, which is what MessagePack holds."""

    def __str__(self) -> str:
        return "int"


@dataclass(frozen=True, slots=True)
class FloatType:
    """A number of 64 bits."""

    def __str__(self) -> str:
        return "float"


@dataclass(frozen=True, slots=True)
class BoolType:
    """True or false."""

    def __str__(self) -> str:
        return "bool"


@dataclass(frozen=True, slots=True)
class BytesType:
    """Bytes, as they are."""

    def __str__(self) -> str:
        return "bytes"


@dataclass(frozen=True, slots=True)
class DateTimeType:
    """A date with a time, with or without an offset from UTC."""

    def __str__(self) -> str:
        return "datetime"


@dataclass(frozen=True, slots=True)
class DateType:
    """A day."""

    def __str__(self) -> str:
        return "date"


@dataclass(frozen=True, slots=True)
class TimeType:
    """A time of day."""

    def __str__(self) -> str:
        return "time"


@dataclass(frozen=True, slots=True)
class AnyType:
    """Whatever MessagePack holds, and arrays; nothing is checked."""

    def __str__(self) -> str:
        return "Any"


@dataclass(frozen=True, slots=True)
class LiteralType:
    """One of a few values, as ``typing.Literal``."""

    values: tuple[Scalar, ...]
    # 1, True and 1.0 are equal in Python, but not on the wire: the kinds make such types differ.
    kinds: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", _value_kinds(self.values, "Literal"))

    def __str__(self) -> str:
        return f"Literal[{', '.join(map(repr, self.values))}]"


@dataclass(frozen=True, slots=True)
class EnumType:
    """One of the named values of an ``Enum``; the value is what is stored."""

    name: str
    members: tuple[tuple[str, Scalar], ...]
    kinds: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", _value_kinds(self.values, self.name))

    @property
    def values(self) -> tuple[Scalar, ...]:
        """What is stored for each member."""
        return tuple(value for _, value in self.members)

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(repr, self.values))}]"


def _value_kinds(values: tuple[Scalar, ...], name: str) -> tuple[str, ...]:
    if not values:
        raise SchemaError("there are no values to choose from", found=name)
    for value in values:
        if type(value) not in (str, int, float, bool):
            raise SchemaError(
                f"a value of {name} cannot be stored", expected="str, int, float or bool", found=repr(value)
            )
    return tuple(type(value).__name__ for value in values)


@dataclass(frozen=True, slots=True)
class Array:
    """An array, with what is known of its dtype and shape.

    Written in annotations: ``Annotated[np.ndarray, Array("float32", ("time", 3))]``, or with the dtype where NumPy has
    it, ``Annotated[NDArray[np.float32], Array(shape=(None, 3))]``.

    Args:
        dtype: A NumPy type or its name, or a family of them such as ``"floating"``; None for any.
        shape: One entry a dimension: a length, None for any length, or a name; equal names within one array stand for
            equal lengths. None for any shape.

    Raises:
        SchemaError: There is no such dtype, or it holds Python objects, or the shape is not one.

    Examples:
        >>> print(Array("float32", ("time", 3)))
        array[float32, (time, 3)]
    """

    dtype: str | None = None
    shape: Shape | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(map(_check_length, self.shape)))

    def __str__(self) -> str:
        if self.shape is None:
            return f"array[{self.dtype}]" if self.dtype else "array"
        lengths = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"array[{self.dtype or 'any'}, ({lengths})]"


def _check_length(length: object) -> int | str | None:
    if length is None or (isinstance(length, str) and length) or (type(length) is int and length >= 0):
        return length
    raise SchemaError("this is not a dimension of an array", expected="a length, a name or None", found=repr(length))


@dataclass(frozen=True, slots=True)
class Image:
    """An image, stored as a file of one format, given as pixels: H x W x channels, uint8.

    Written in annotations: ``Annotated[NDArray[np.uint8], Image("jpg")]``.

    Examples:
        >>> print(Image("jpg"))
        image[jpg]
    """

    format: str = "png"

    def __post_init__(self) -> None:
        _check_format(self.format)

    def __str__(self) -> str:
        return f"image[{self.format}]"


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound, stored as a file of one format, given as ``shoal.codec.Audio(samples, sample_rate)``.

    Written in annotations: ``Annotated[tuple[NDArray[np.float32], int], Audio("flac")]``.

    Examples:
        >>> print(Audio("wav"))
        audio[wav]
    """

    format: str = "flac"

    def __post_init__(self) -> None:
        _check_format(self.format)

    def __str__(self) -> str:
        return f"audio[{self.format}]"


def _check_format(name: object) -> None:
    if not (isinstance(name, str) and name.isalnum() and name == name.lower()):
        raise SchemaError("this is not a file format", expected="an extension such as jpg", found=repr(name))


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value or None."""

    of: FieldType

    def __post_init__(self) -> None:
        if isinstance(self.of, OptionalType | AnyType):
            raise SchemaError("this is optional already", found=str(self.of))

    def __str__(self) -> str:
        return f"{self.of} | None"


@dataclass(frozen=True, slots=True)
class UnionType:
    """A value of one of several types, which must be stored in different ways, so that reading can tell them apart."""

    options: tuple[FieldType, ...]

    def __post_init__(self) -> None:
        seen: dict[str, FieldType] = {}
        if len(self.options) < 2:
            raise SchemaError("a union has two or more options", found=len(self.options))
        for option in self.options:
            if isinstance(option, OptionalType | UnionType):
                raise SchemaError("a union is flat", found=str(option), hint="use union_of")
            for kind in wire_kinds(option):
                if kind in seen or (seen and isinstance(option, AnyType)) or "any" in seen:
                    other = seen.get(kind) or next(iter(seen.values()))
                    raise SchemaError(
                        "two options of a union look the same when stored",
                        expected="options that are stored as different kinds",
                        found=f"{other} and {option}, both stored as {kind}",
                    )
            seen.update(dict.fromkeys(wire_kinds(option), option))

    def __str__(self) -> str:
        return " | ".join(map(str, self.options))


@dataclass(frozen=True, slots=True)
class ListType:
    """Any number of values of one type."""

    items: FieldType

    def __str__(self) -> str:
        return f"list[{self.items}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """A fixed number of values, each of its own type; or, ``variadic``, any number of one type."""

    items: tuple[FieldType, ...]
    variadic: bool = False

    def __post_init__(self) -> None:
        if self.variadic and len(self.items) != 1:
            raise SchemaError("a tuple of any length has one type of item", found=len(self.items))

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.items)) or '()'}{', ...' if self.variadic else ''}]"


@dataclass(frozen=True, slots=True)
class MapType:
    """Keys, all text or all whole numbers, each with a value."""

    keys: StrType | IntType
    values: FieldType

    def __str__(self) -> str:
        return f"dict[{self.keys}, {self.values}]"


@dataclass(frozen=True, slots=True)
class RecordType:
    """A sample within a sample."""

    schema: Schema

    def __str__(self) -> str:
        return self.schema.name


FieldType: TypeAlias = (
    StrType
    | IntType
    | FloatType
    | BoolType
    | BytesType
    | DateTimeType
    | DateType
    | TimeType
    | AnyType
    | LiteralType
    | EnumType
    | Array
    | Image
    | Audio
    | OptionalType
    | UnionType
    | ListType
    | TupleType
    | MapType
    | RecordType
)

_WIRE_KINDS: dict[type, tuple[str, ...]] = {
    StrType: ("str",),
    IntType: ("int",),
    FloatType: ("float",),
    BoolType: ("bool",),
    BytesType: ("bytes",),
    DateTimeType: ("str",),
    DateType: ("str",),
    TimeType: ("str",),
    AnyType: ("any",),
    Array: ("bytes",),
    Image: ("bytes",),
    Audio: ("bytes",),
    ListType: ("list",),
    TupleType: ("list",),
    MapType: ("map",),
    RecordType: ("map",),
}


def wire_kinds(of: FieldType) -> tuple[str, ...]:
    """The kinds of MessagePack values that a type is stored as, apart from nil."""
    if isinstance(of, LiteralType | EnumType):
        return tuple(dict.fromkeys(of.kinds))
    if isinstance(of, OptionalType):
        return wire_kinds(of.of)
    if isinstance(of, UnionType):
        return tuple(kind for option in of.options for kind in wire_kinds(option))
    return _WIRE_KINDS[type(of)]


def union_of(options: Iterable[FieldType | None]) -> FieldType:
    """The flat union of several types, where None stands for ``None``: literals merged, one option unwrapped.

    Raises:
        SchemaError: Two options are stored in the same way, or nothing but None is left.

    Examples:
        >>> print(union_of([IntType(), None, StrType()]))
        int | str | None
    """
    flat = list(_flatten(options))
    literals = [option for option in flat if isinstance(option, LiteralType)]
    choices = {(type(value), value): value for option in literals for value in option.values}
    merged = LiteralType(tuple(choices.values())) if choices else None
    distinct = dict.fromkeys(merged if isinstance(option, LiteralType) else option for option in flat)
    named = [option for option in distinct if option is not None]
    if not named:
        raise SchemaError("there is nothing but None in this union")
    union = UnionType(tuple(named)) if len(named) > 1 else named[0]
    return OptionalType(union) if None in flat and not isinstance(union, AnyType) else union


def _flatten(options: Iterable[FieldType | None]) -> Iterator[FieldType | None]:
    for option in options:
        if isinstance(option, OptionalType):
            yield from _flatten((option.of, None))
        elif isinstance(option, UnionType):
            yield from option.options
        else:
            yield option


def dtype_name(dtype: object) -> str | None:
    """The one name of a dtype, however it was given; None for none.

    Raises:
        SchemaError: NumPy knows no such type, or it holds Python objects.

    Examples:
        >>> dtype_name(np.float32), dtype_name("<f4"), dtype_name(">f4"), dtype_name(np.floating)
        ('float32', 'float32', '>f4', 'floating')
    """
    if dtype is None or dtype is Any or dtype is np.generic:
        return None
    if isinstance(dtype, str) and dtype in _FAMILIES:
        return dtype
    if isinstance(dtype, type) and dtype in _FAMILY_NAMES:
        return _FAMILY_NAMES[dtype]
    return _exact_name(dtype)


def _exact_name(dtype: object) -> str:
    try:
        exact: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError) as error:
        raise SchemaError("this is not the type of an array", expected="a NumPy dtype", found=repr(dtype)) from error
    if exact.hasobject or exact.fields:
        expected = "numbers, text, bytes or times; np.void for structures"
        raise SchemaError("an array of this type has no schema", expected=expected, found=str(exact))
    return exact.name if exact.kind in "biufc" and exact.isnative else exact.str


@lru_cache(maxsize=1024)
def dtype_fits(name: str | None) -> Callable[[np.dtype[Any]], bool]:
    """Whether an array's dtype is the named one, or of the named family.

    Examples:
        >>> dtype_fits("floating")(np.dtype("float16")), dtype_fits("float32")(np.dtype("float64"))
        (True, False)
    """
    if name is None:
        return lambda dtype: True
    if name in _FAMILIES:
        family = _FAMILIES[name]
        return lambda dtype: issubclass(dtype.type, family)
    return np.dtype(name).__eq__


def dtype_family(name: str) -> type[np.generic] | None:
    """The NumPy class that a family's name stands for, or None for the name of one type."""
    family: type[np.generic] | None = _FAMILIES.get(name)
    return family
