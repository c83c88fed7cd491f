"""Samples of which only some fields are decoded, for those who look at no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from shoal.codec import Buffer
from shoal.sample._plan import Plan
from shoal.sample._record import Record, read_record

__all__ = ["partial_unpacker"]

T = TypeVar("T")


def partial_unpacker(cls: type[T], fields: Iterable[str]) -> Callable[[Buffer], T] | None:
    """The function that reads only these fields of a payload; the others are passed over, not decoded.

    What it gives is a sample of ``cls`` that has these attributes only. None where that is no whole truth: the class
    computes something in ``__post_init__``, or is not a plain dataclass.

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
    record = read_record(cls)
    names = {record.schema[name].name for name in fields}
    if not _is_plain(cls):
        return None
    members = tuple(replace(member, keyword=member.name) for member in record.members if member.name in names)
    schema = replace(record.schema, fields=tuple(field for field in record.schema.fields if field.name in names))

    def make(**values: Any) -> T:
        sample = object.__new__(cls)
        sample.__dict__.update(values)
        return sample

    read: Callable[[Buffer], T] = Plan(Record(cls, members, schema), writable=False, make=make).unpack
    return read


def _is_plain(cls: type) -> bool:
    """Whether a sample is its fields and nothing else: no constructor or slots of its own, nothing computed."""
    constructor = getattr(cls.__dict__.get("__init__"), "__code__", None)
    generated = constructor is not None and constructor.co_filename == "<string>"
    return is_dataclass(cls) and generated and not hasattr(cls, "__post_init__") and cls.__dictoffset__ != 0
