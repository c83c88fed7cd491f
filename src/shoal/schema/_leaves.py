"""The types without parts and without parameters."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "AnyType",
    "BoolType",
    "BytesType",
    "DateTimeType",
    "DateType",
    "FloatType",
    "IntType",
    "StrType",
    "TimeType",
]


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
