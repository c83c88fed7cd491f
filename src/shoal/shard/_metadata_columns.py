"""The scalars of MessagePack payloads, column by column, read without decoding the arrays beside them.

The payloads of a shard mostly look alike. What the first ones hold is learned: names, which of them are scalars, which
are maps. From that a struct is made into which msgspec decodes the scalars, and passes over arrays, bytes and lists.
A payload that holds anything else is refused by the struct, and the reader learns again; so the columns never depend
on what came first.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

__all__ = ["Part", "PayloadReader"]

Buffer = bytes | memoryview

_DEEPEST = 4
_MOST_LESSONS = 16  # data that differs each time is no record: it is decoded as it comes
_MOST_NAMES = 1024
_FIRST_LESSON = 4
_SCALARS = {bool, int, float, str, NoneType}
_BAD = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

_whole = msgspec.msgpack.Decoder().decode
_split = msgspec.msgpack.Decoder(dict[str, Raw]).decode


class Part(NamedTuple):
    """Values of one name, of all payloads or, with ``at``, of those at these places."""

    name: str
    """What to add to the field's name: ``.label``; nothing for the payload itself."""
    at: Sequence[int] | None
    values: list[Any]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What was seen under one name so far."""

    kind: str
    """``null``, ``scalar``, ``passed`` (not a scalar: never decoded), ``map``, or ``mixed`` (decoded as it comes)."""
    inner: dict[str, _Shape] = field(default_factory=dict)


class PayloadReader:
    """Reads one shard's payloads, many at a time.

    Example:
        >>> import msgspec
        >>> reader = PayloadReader()
        >>> payloads = [msgspec.msgpack.encode({"label": "cat", "image": bytes(1000), "at": {"x": n}}) for n in (1, 2)]
        >>> [(part.name, part.values) for part in reader.read(payloads)]
        [('.label', ['cat', 'cat']), ('.at.x', [1, 2])]
        >>> list(reader.passed), list(reader.maps)
        (['.image'], ['', '.at'])
    """

    def __init__(self) -> None:
        self.passed: dict[str, None] = {}
        """Names under which something was that is no scalar, in the order met."""
        self.maps: dict[str, None] = {}
        """Names under which a map was."""
        self._shape = _Shape("map")
        self._columns: _Columns | None = None
        self._lessons = 0

    def read(self, payloads: Sequence[Buffer]) -> list[Part]:
        """The scalars of payloads. Raises msgspec.DecodeError where one is not MessagePack."""
        place = 0
        while self._lessons <= _MOST_LESSONS:
            if self._columns is not None:
                try:
                    return self._columns.read(payloads)
                except _Strange as strange:
                    place = strange.place
            # From the one that is new and some after it: more each time, since each time costs a struct.
            self._learn(payloads[place : place + _FIRST_LESSON * 4**self._lessons])
        return [Part("", None, [_cleared(_whole(payload)) for payload in payloads])]

    def _learn(self, payloads: Sequence[Buffer]) -> None:
        self._lessons += 1
        try:
            self._shape = functools.reduce(
                _merged, (_map_shape(_split(payload), 1) for payload in payloads), self._shape
            )
        except msgspec.ValidationError:  # something else than a map with text for keys
            self._shape = _Shape("mixed")
        named = [("", self._shape), *_named(self._shape, "")]
        self.maps.update(dict.fromkeys(name for name, shape in named if shape.kind == "map"))
        self.passed.update(dict.fromkeys(name for name, shape in named[1:] if shape.kind in ("passed", "mixed")))
        if self._shape.kind != "map" or len(named) > _MOST_NAMES:
            self._lessons = _MOST_LESSONS + 1
        else:
            self._columns = _Columns(self._shape)


class _Strange(Exception):  # noqa: N818 - it is no error, and nobody sees it
    """The payload at a place is not what was learned."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class _Columns:
    """The decoder of one shape."""

    def __init__(self, shape: _Shape) -> None:
        self._shape = shape
        self._decode = msgspec.msgpack.Decoder(_struct(shape)).decode

    def read(self, payloads: Sequence[Buffer]) -> list[Part]:
        decode = self._decode
        found: list[Any] = []
        try:
            found += map(decode, payloads)
        except _BAD as error:
            raise _Strange(len(found)) from error
        return list(_parts(self._shape, found, None, ""))


def _struct(shape: _Shape) -> Any:
    """The type that takes exactly this shape."""
    kinds = {"passed": Raw, "null": Any, "scalar": Any, "mixed": Any}
    if shape.kind != "map":
        return kinds[shape.kind]
    fields = [
        (f"f{number}", _struct(inner) | None if inner.kind == "map" else _struct(inner), UNSET)
        for number, inner in enumerate(shape.inner.values())
    ]
    names = {f"f{number}": name for number, name in enumerate(shape.inner)}
    return msgspec.defstruct("Scalars", fields, rename=names, forbid_unknown_fields=True, gc=False)


_getters: Callable[[int], Callable[[Any], Any]] = functools.cache(lambda number: operator.attrgetter(f"f{number}"))


def _parts(shape: _Shape, found: list[Any], at: Sequence[int] | None, prefix: str) -> Iterator[Part]:
    for number, (name, inner) in enumerate(shape.inner.items()):
        if inner.kind == "passed":
            continue
        values, places = list(map(_getters(number), found)), at
        absent = {UnsetType, NoneType} if inner.kind == "map" else {UnsetType}
        kinds = set(map(type, values))
        if kinds & absent:
            kept = [place for place, value in enumerate(values) if type(value) not in absent]
            places = kept if at is None else [at[place] for place in kept]
            values = [values[place] for place in kept]
        if inner.kind == "map":
            yield from _parts(inner, values, places, f"{prefix}.{name}")
        elif inner.kind != "mixed" and not kinds - {UnsetType} <= _SCALARS:
            at_fault = next(place for place, value in enumerate(values) if type(value) not in _SCALARS)
            raise _Strange(at_fault if places is None else places[at_fault])
        elif values:
            yield Part(f"{prefix}.{name}", places, list(map(_cleared, values)) if inner.kind == "mixed" else values)


def _cleared(value: Any) -> Any:
    """A value without the maps whose keys are not text: those have no names, so they are lists of a kind."""
    if type(value) is not dict:
        return value
    return {name: _cleared(inner) for name, inner in value.items()} if all(type(name) is str for name in value) else []


# ------------------------------------------------------------------------------------------------------------ learning


def _map_shape(raw: dict[str, Raw], depth: int) -> _Shape:
    if not all(map(_is_plain_name, raw)):
        return _Shape("mixed")
    return _Shape("map", {name: _shape_of(value, depth) for name, value in raw.items()})


def _is_plain_name(name: str) -> bool:
    """Whether msgspec lets a struct's field have this name."""
    return name.isprintable() and not {'"', "\\"} & set(name)


def _shape_of(value: Raw, depth: int) -> _Shape:
    """What a value is, by its first byte; maps are looked into."""
    data = memoryview(value)
    first = data[0]
    if first == 0xC0:
        return _Shape("null")
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        try:
            return _map_shape(_split(data), depth + 1) if depth < _DEEPEST else _Shape("passed")
        except msgspec.ValidationError:  # its keys are not text
            return _Shape("passed")
    # Lists, bytes and extensions.
    passed = 0x90 <= first <= 0x9F or 0xC4 <= first <= 0xC9 or 0xD4 <= first <= 0xD8 or first in (0xDC, 0xDD)
    return _Shape("passed" if passed else "scalar")


def _merged(one: _Shape, two: _Shape) -> _Shape:
    kinds = {one.kind, two.kind}
    if kinds == {"map"}:
        return _Shape("map", {**one.inner, **{name: _joined(one, name, shape) for name, shape in two.inner.items()}})
    if "mixed" in kinds or ("map" in kinds and kinds & {"scalar", "passed"}):
        return _Shape("mixed")
    if "map" in kinds:
        return one if one.kind == "map" else two
    return _Shape("passed" if "passed" in kinds else "scalar" if "scalar" in kinds else "null")


def _joined(one: _Shape, name: str, shape: _Shape) -> _Shape:
    return _merged(one.inner[name], shape) if name in one.inner else shape


def _named(shape: _Shape, prefix: str) -> Iterator[tuple[str, _Shape]]:
    for name, inner in shape.inner.items():
        yield f"{prefix}.{name}", inner
        yield from _named(inner, f"{prefix}.{name}")
