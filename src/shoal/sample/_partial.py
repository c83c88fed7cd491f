"""Samples of which only some fields are decoded, for those who look at no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar, cast

import msgspec

from shoal.codec import Buffer
from shoal.sample._fields import mapped
from shoal.sample._plan import Plan
from shoal.sample._record import Record, read_record

__all__ = ["keeps_fields", "partial_mapper", "partial_unpacker"]

T = TypeVar("T")


def partial_unpacker(cls: type[T], fields: Iterable[str], *, writable: bool = False) -> Callable[[Buffer], T] | None:
    """The function that reads only these fields of a payload; the others are passed over, not decoded.

    What it gives is a sample of ``cls`` that has these attributes only, arrays as copies where ``writable``. None where
    that is no whole truth: the class computes something in ``__post_init__``, or is not a plain dataclass.

    Raises:
        FieldError: The class has no such field.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Full:
        ...     label: str
        ...     score: float
        >>> read = partial_unpacker(Full, ["label"])
        >>> sample = read(Full("cat", 0.5).packed)
        >>> sample.label, hasattr(sample, "score")
        ('cat', False)
    """
    plan = _partial_plan(cls, fields, writable)
    return None if plan is None else plan.unpack


def partial_mapper(cls: type[T], fields: Iterable[str]) -> Callable[[Mapping[str, Any]], T] | None:
    """As `partial_unpacker`, for plain samples that are read by field name.

    Raises:
        FieldError: The class has no such field.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Captioned:
        ...     txt: str
        ...     width: int
        >>> partial_mapper(Captioned, ["txt"])({"__key__": "001", "txt": "a cat"}).txt
        'a cat'
    """
    plan = _partial_plan(cls, fields)
    return None if plan is None else lambda sample: cast("T", mapped(plan, sample))


def _partial_plan(cls: type, fields: Iterable[str], writable: bool = False) -> Plan | None:
    """The plan of a class's samples that have these attributes only."""
    record = read_record(cls)
    names = {record.schema[name].name for name in fields}
    if not keeps_fields(cls) or not is_dataclass(cls) or cls.__dictoffset__ == 0:
        return None
    members = tuple(replace(member, keyword=member.name) for member in record.members if member.name in names)
    schema = replace(record.schema, fields=tuple(field for field in record.schema.fields if field.name in names))

    def make(**values: Any) -> Any:
        sample: Any = object.__new__(cls)
        sample.__dict__.update(values)
        return sample

    return Plan(Record(cls, members, schema), writable=writable, make=make)


def keeps_fields(cls: type) -> bool:
    """Whether a sample is what is stored and nothing else: its class computes, checks and changes nothing.

    Then one field can be had without the others, and without making a sample. A pydantic model is never so.

    Example:
        >>> from shoal.sample import packable
        >>> @packable
        ... class Loud:
        ...     label: str
        ...
        ...     def __post_init__(self):
        ...         self.label = self.label.upper()
        >>> keeps_fields(Loud)
        False
    """
    if hasattr(cls, "__post_init__"):
        return False
    if issubclass(cls, msgspec.Struct):
        return cls.__init__ is msgspec.Struct.__init__
    constructor = getattr(cls.__init__, "__code__", None)
    # What dataclasses write is compiled from text.
    return is_dataclass(cls) and constructor is not None and constructor.co_filename == "<string>"
