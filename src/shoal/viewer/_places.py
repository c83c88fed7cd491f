"""Where a value lies (sample, field, a way into it), and reading what lies there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from shoal.codec import decode, decode_spec
from shoal.dataset import Dataset
from shoal.errors import DecodeError, FieldError, LensNotFoundError, ShoalError
from shoal.sample import DictSample, Lens, default_network, is_record, schema_of

from ._kinds import kind_of
from ._opened import Opened, Record

__all__ = [
    "MOST_READ",
    "Failure",
    "Place",
    "Values",
    "as_mapping",
    "lens_named",
    "lenses_of",
    "typed_sample",
    "value_at",
]

MOST_READ = 64 << 20
"""A field that is larger is not taken whole into memory; it can still be played in parts, and downloaded."""
_SPEC = decode_spec(True, max_bytes=256 << 20)
_PACKED = ("msgpack", "mp", "msg")
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """Stands where a value would, had it been readable."""

    error: ShoalError


@dataclass(frozen=True, slots=True)
class Place:
    """A value: a field of a sample, or something inside it."""

    number: int
    field: str
    at: tuple[str, ...] = ()
    lens: str | None = None
    """Through which lens the sample is seen: None as it is stored, "" as its own type."""
    version: str = ""
    """Changes when the bytes do, so that a browser may keep what it has."""

    def inside(self, name: str) -> Place:
        """The value of this name inside."""
        return replace(self, at=(*self.at, name))

    def url(self, verb: str, **more: str | int) -> str:
        """Where a browser finds it, as ``picture``, ``bytes`` or ``peek``.

        Example:
            >>> Place(7, "a b.npz", ("x",), version="c0ffee").url("picture", width=320)
            '/picture/7?field=a%20b.npz&at=x&v=c0ffee&width=320'
        """
        pairs = [("field", self.field), *(("at", part) for part in self.at)]
        pairs += [("lens", self.lens)] if self.lens is not None else []
        pairs += [("v", self.version)] if self.version else []
        pairs += [(name, str(value)) for name, value in more.items()]
        return f"/{verb}/{self.number}?{urlencode(pairs, quote_via=quote, errors='replace')}"


def place_of(record: Record, field: str) -> Place:
    """A stored field of a sample."""
    crc = record.crc_of(field)
    return Place(record.number, field, version="" if crc is None else f"{crc:08x}")


def decoded(field: str, data: bytes) -> Any:
    """The value of a stored field; media, text and pickles stay bytes. Raises CodecError."""
    if kind_of(field) not in ("value", "array"):
        return data
    if field.lower().rpartition(".")[2] in _PACKED:
        try:
            return DictSample.from_bytes(data)
        except DecodeError:  # any other MessagePack than a map
            return decode(field, data, _SPEC)
    return decode(field, data, _SPEC)


def value_at(opened: Opened, place: Place) -> Any:
    """The value at a place: bytes for media and text. Raises ShoalError."""
    if place.lens is not None:
        sample = typed_sample(opened.dataset, place.number)
        value: Any = sample if not place.lens else lens_named(opened, place.lens).get(sample)
        return _walked(value, (place.field, *place.at))
    return _walked(stored_value(opened, place.number, place.field), place.at)


def stored_value(opened: Opened, number: int, field: str) -> Any:
    """One field of one sample, read whole and compared with its checksum. Raises ShoalError."""
    if opened.shards is None:
        return _walked(typed_sample(opened.dataset, number), (field,))
    record = opened.records(np.array([number]))[0]
    size = next((member.size for member in record.members if member.field == field), None)
    if size is None:
        raise FieldError("the sample has no such field", found=field, key=record.key)
    if size > MOST_READ:
        raise DecodeError(
            "the field is too large to be shown", expected=f"at most {MOST_READ} bytes", found=size, hint="download it"
        )
    data = opened.shards.read(np.array([number]), [field])[0][field]
    return decoded(field, bytes(data))


def _walked(value: Any, way: Sequence[str]) -> Any:
    for name in way:
        try:
            value = value[int(name)] if isinstance(value, list | tuple) else as_mapping(value)[name]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise FieldError("there is no such value", found=name) from error
    return value


def as_mapping(value: Any) -> Mapping[str, Any]:
    """A sample, or a value with parts, by the names of its parts.

    Example:
        >>> as_mapping({"__key__": "k", "txt": "hi"}), as_mapping(3)
        ({'txt': 'hi'}, {'value': 3})
    """
    if isinstance(value, DictSample):
        return value
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items() if name not in ("__key__", "__url__")}
    if is_record(type(value)):
        return {name: getattr(value, name) for name in schema_of(type(value)).names}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"value": value}


def typed_sample(dataset: Dataset[Any], number: int) -> Any:
    """The sample with this number in the source, as the dataset's own type."""
    position = number if dataset.is_whole else int(np.searchsorted(dataset.numbers, number))
    return dataset.samples_at(np.array([position]))[0]


def lenses_of(opened: Opened) -> tuple[Lens[Any, Any], ...]:
    """The lenses through which the samples can be seen: those that were given, and those that are registered."""
    kind = opened.dataset.sample_type
    known = (*opened.looked.lenses, *default_network().lenses())
    fitting = (lens for lens in known if lens.source_type in kind.__mro__)
    return tuple({lens.name: lens for lens in fitting}.values())


def lens_named(opened: Opened, name: str) -> Lens[Any, Any]:
    """One of them. Raises LensNotFoundError."""
    lenses = {lens.name: lens for lens in lenses_of(opened)}
    if name not in lenses:
        raise LensNotFoundError("no such lens", expected=" or ".join(lenses) or "one given by --lens", found=name)
    return lenses[name]
