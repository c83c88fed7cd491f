"""Scalar columns of JSON and MessagePack fields.

``.json`` gives a column for each scalar (``json.width``, nested ones dotted), and so does a typed sample's ``.msgpack``
(``msgpack.label``), whose arrays and bytes are passed over; ``.cls`` gives an integer, a short ``.txt`` its text. A
column holds one type. Where a shard mixes types, or a text is long, the column is left out and the index says why.

A column that is not in an index is one that no sample of the shard has. All else is recorded: columns left out, names
of lists and mappings, and rows that do not decode, so that a query tells "no value" from "not known".
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

from shoal.codec._documents import decode_json

from ._arrow_arrays import scalar_array

__all__ = [
    "LARGEST_SOURCE",
    "ColumnCollector",
    "PayloadReader",
    "extractor_for",
    "largest_source",
]

Buffer = bytes | memoryview
Extractor = Callable[[Buffer], Any]


LONGEST_TEXT = 512
LARGEST_SOURCE = 1 << 20
"""A larger member is data, not metadata; its columns are left out."""
MOST_COLUMNS = 256
_MAX_DEPTH = 4
_MAX_IGNORED_NAMES = 4096  # remembered although they give no column: a mapping from ids must not fill the memory
_MAX_UNREADABLE_ROWS = 64
_MAX_SHAPE_UPDATES = 16  # payloads that differ each time are decoded one by one
_MAX_PAYLOAD_NAMES = 1024
_FIRST_SHAPE_PAYLOADS = 4
_SCALAR_TYPES = {bool, int, float, str, NoneType}
_SHAPE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_UNREADABLE = (ValueError, msgspec.DecodeError, RecursionError)
_NO_VALUE = object()

_decode_payload = msgspec.msgpack.Decoder().decode
_split_payload = msgspec.msgpack.Decoder(dict[str, Raw]).decode


class PayloadColumn(NamedTuple):
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
    """Reads the scalars of one shard's payloads, column by column.

    The payloads of a shard mostly look alike. From the first ones the reader derives a shape: names, which of them are
    scalars, which are maps. It becomes a struct into which msgspec decodes the scalars, without decoding arrays, bytes
    and lists. A payload that does not fit the struct makes the reader extend the shape, so that the columns never
    depend on which payload came first.

    Examples:
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
        self._decoder: _ShapeDecoder | None = None
        self._shape_updates = 0

    def read(self, payloads: Sequence[Buffer]) -> list[PayloadColumn]:
        """The scalars of payloads. Raises msgspec.DecodeError where one is not MessagePack."""
        place = 0
        while self._shape_updates <= _MAX_SHAPE_UPDATES:
            if self._decoder is not None:
                try:
                    return self._decoder.read(payloads)
                except _UnknownShapeError as error:
                    place = error.place
            # From the one that is new and some after it: more each time, since each time costs a struct.
            self._update_shape(payloads[place : place + _FIRST_SHAPE_PAYLOADS * 4**self._shape_updates])
        return [PayloadColumn("", None, [_without_unnamed_maps(_decode_payload(payload)) for payload in payloads])]

    def _update_shape(self, payloads: Sequence[Buffer]) -> None:
        self._shape_updates += 1
        try:
            self._shape = functools.reduce(
                _merge_shapes, (_map_shape(_split_payload(payload), 1) for payload in payloads), self._shape
            )
        except msgspec.ValidationError:  # something else than a map with text for keys
            self._shape = _Shape("mixed")
        named = [("", self._shape), *_walk_shapes(self._shape, "")]
        self.maps.update(dict.fromkeys(name for name, shape in named if shape.kind == "map"))
        self.passed.update(dict.fromkeys(name for name, shape in named[1:] if shape.kind in ("passed", "mixed")))
        if self._shape.kind != "map" or len(named) > _MAX_PAYLOAD_NAMES:
            self._shape_updates = _MAX_SHAPE_UPDATES + 1
        else:
            self._decoder = _ShapeDecoder(self._shape)


class _UnknownShapeError(Exception):
    """The payload at ``place`` has another shape than those before it."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class _ShapeDecoder:
    """Decodes payloads of one shape."""

    def __init__(self, shape: _Shape) -> None:
        self._shape = shape
        self._decode = msgspec.msgpack.Decoder(_struct(shape)).decode

    def read(self, payloads: Sequence[Buffer]) -> list[PayloadColumn]:
        decode = self._decode
        found: list[Any] = []
        try:
            found += map(decode, payloads)
        except _SHAPE_ERRORS as error:
            raise _UnknownShapeError(len(found)) from error
        return list(_payload_columns(self._shape, found, None, ""))


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


def _payload_columns(shape: _Shape, found: list[Any], at: Sequence[int] | None, prefix: str) -> Iterator[PayloadColumn]:
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
            yield from _payload_columns(inner, values, places, f"{prefix}.{name}")
        elif inner.kind != "mixed" and not kinds - {UnsetType} <= _SCALAR_TYPES:
            at_fault = next(place for place, value in enumerate(values) if type(value) not in _SCALAR_TYPES)
            raise _UnknownShapeError(at_fault if places is None else places[at_fault])
        elif values:
            yield PayloadColumn(
                f"{prefix}.{name}",
                places,
                list(map(_without_unnamed_maps, values)) if inner.kind == "mixed" else values,
            )


def _without_unnamed_maps(value: Any) -> Any:
    """Replace maps whose keys are not strings by empty lists: their values have no names."""
    if type(value) is not dict:
        return value
    return (
        {name: _without_unnamed_maps(inner) for name, inner in value.items()}
        if all(type(name) is str for name in value)
        else []
    )


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
            return _map_shape(_split_payload(data), depth + 1) if depth < _MAX_DEPTH else _Shape("passed")
        except msgspec.ValidationError:  # its keys are not text
            return _Shape("passed")
    # Lists, bytes and extensions.
    passed = 0x90 <= first <= 0x9F or 0xC4 <= first <= 0xC9 or 0xD4 <= first <= 0xD8 or first in (0xDC, 0xDD)
    return _Shape("passed" if passed else "scalar")


def _merge_shapes(one: _Shape, two: _Shape) -> _Shape:
    kinds = {one.kind, two.kind}
    if kinds == {"map"}:
        return _Shape(
            "map", {**one.inner, **{name: _merge_inner(one, name, shape) for name, shape in two.inner.items()}}
        )
    if "mixed" in kinds or ("map" in kinds and kinds & {"scalar", "passed"}):
        return _Shape("mixed")
    if "map" in kinds:
        return one if one.kind == "map" else two
    return _Shape("passed" if "passed" in kinds else "scalar" if "scalar" in kinds else "null")


def _merge_inner(one: _Shape, name: str, shape: _Shape) -> _Shape:
    return _merge_shapes(one.inner[name], shape) if name in one.inner else shape


def _walk_shapes(shape: _Shape, prefix: str) -> Iterator[tuple[str, _Shape]]:
    for name, inner in shape.inner.items():
        yield f"{prefix}.{name}", inner
        yield from _walk_shapes(inner, f"{prefix}.{name}")


def extractor_for(field: str) -> Extractor | None:
    """What reads the scalars of a field's bytes; None for fields that have none."""
    extension = field.rpartition(".")[2].lower()
    return _EXTRACTORS.get(extension)


def largest_source(field: str) -> int:
    """The most bytes a member may have for its scalars to be read. Payloads may be large: most is passed over."""
    return 1 << 62 if extractor_for(field) is _decode_payload else LARGEST_SOURCE


def _text(data: Buffer) -> str:
    return str(data, "utf-8")


_decode_json = msgspec.json.Decoder().decode

_EXTRACTORS: dict[str, Extractor] = {
    **dict.fromkeys(("json", "jsn"), _decode_json),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), int),
    **dict.fromkeys(("txt", "text", "caption", "transcript"), _text),
    **dict.fromkeys(("msgpack", "mp", "msg"), _decode_payload),
}


class ColumnCollector:
    """Gathers scalars row by row and turns them into typed columns."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._field_of: dict[str, str] = {}
        """Of every column there ever was, dropped ones too."""
        self._nested: set[str] = set()
        """Names under which a list or a mapping was met."""
        self.dropped: dict[str, str] = {}
        self.unreadable: dict[str, list[int]] = {}
        """Rows whose member does not decode, by field."""
        self.complete = True
        """Whether every name that was met is a column, or is recorded as nested or dropped."""
        self._payloads: dict[str, PayloadReader] = {}

    def drop(self, name: str, reason: str) -> None:
        """Leave a column out, or every column of a field.

        Some of its values would be missing, so a query over it would be wrong without an error.
        """
        self.dropped[name] = reason
        for column in [at for at in self._values if name in (at, self._field_of[at])]:
            del self._values[column]

    def add_bytes(self, rows: list[int], field: str, members: Sequence[Buffer], extract: Extractor) -> None:
        """Add what the members hold, one a row; bytes that are not what the field's name says are not indexed."""
        if field in self.dropped:
            return
        if extract is _decode_payload:
            self._add_payloads(rows, field, members)
            return
        try:
            values = list(map(extract, members))
        except (*_UNREADABLE, TypeError):  # `int` takes no view, as of a large member
            values = [_decode_member(extract, data) for data in members]
            bad = [row for row, value in zip(rows, values, strict=True) if value is _NO_VALUE]
            if not self._note_unreadable(field, bad):
                return
            rows = [row for row, value in zip(rows, values, strict=True) if value is not _NO_VALUE]
            values = [value for value in values if value is not _NO_VALUE]
        if rows:
            self.add_values(rows, field, values)

    def _note_unreadable(self, field: str, rows: list[int]) -> bool:
        """Record rows whose member does not decode; False where they are so many that the field has no columns."""
        known = self.unreadable.setdefault(field, []) if rows else []
        known += rows
        if len(known) <= _MAX_UNREADABLE_ROWS:
            return True
        del self.unreadable[field]
        self.drop(field, f"over {_MAX_UNREADABLE_ROWS} members that do not decode")
        return False

    def _add_payloads(self, rows: list[int], field: str, payloads: Sequence[Buffer]) -> None:
        reader = self._payloads.setdefault(field, PayloadReader())
        try:
            parts = reader.read(payloads)
        except _UNREADABLE:
            sound = [_is_payload(data) for data in payloads]
            if not self._note_unreadable(field, [row for row, well in zip(rows, sound, strict=True) if not well]):
                return
            payloads = [data for data, well in zip(payloads, sound, strict=True) if well]
            rows = [row for row, well in zip(rows, sound, strict=True) if well]
            parts = reader.read(payloads) if payloads else []
        for name in reader.maps:
            self._note_nested(f"{field}{name}")
        for name in reader.passed:
            if f"{field}{name}" not in self.dropped:
                self.drop(f"{field}{name}", "not a scalar")
        for name, at, values in parts:
            self._add(
                rows if at is None else [rows[place] for place in at], f"{field}{name}", values, field, _MAX_DEPTH
            )

    def add_values(self, rows: list[int], field: str, values: list[Any]) -> None:
        """Add one value a row: a scalar, or a mapping whose scalars become columns."""
        self._add(rows, field, values, field, _MAX_DEPTH)

    def _add(self, rows: list[int], name: str, values: list[Any], field: str, depth: int) -> None:
        kinds = set(map(type, values))
        if kinds <= _SCALAR_TYPES:
            self._put_all(rows, name, values, field, str in kinds)
        elif kinds == {dict} and _same_keys(values):
            self._note_nested(name)
            for key in values[0] if depth else ():
                self._add(rows, f"{name}.{key}", [value[key] for value in values], field, depth - 1)
        else:
            for row, value in zip(rows, values, strict=True):
                self._add_one(row, name, value, field, depth)

    def _add_one(self, row: int, name: str, value: object, field: str, depth: int) -> None:
        if type(value) in _SCALAR_TYPES:
            self._put_all([row], name, [value], field, type(value) is str)
            return
        self._note_nested(name)
        if isinstance(value, dict) and depth:
            for key, inner in value.items():
                self._add_one(row, f"{name}.{key}", inner, field, depth - 1)

    def _note_nested(self, name: str) -> None:
        if len(self._nested) < _MAX_IGNORED_NAMES or name in self._nested:
            self._nested.add(name)
            return
        self.complete = False
        if name in self._values:
            self.drop(name, "mixed types")

    def _put_all(self, rows: list[int], name: str, values: list[Any], field: str, texts: bool) -> None:
        column = self._column(name, field)
        if column is None:
            return
        if texts and max(map(len, [value for value in values if type(value) is str])) > LONGEST_TEXT:
            self.drop(name, f"a text over {LONGEST_TEXT} characters")  # now, because long texts are much to keep
        elif len(column) == rows[0] and rows[-1] - rows[0] == len(rows) - 1:
            column.extend(values)
        else:
            for row, value in zip(rows, values, strict=True):
                self._put(row, name, column, value)

    def _put(self, row: int, name: str, column: list[Any], value: object) -> None:
        missing = row - len(column)
        if missing >= 0:
            column.extend([None] * missing)
            column.append(value)
        elif column[row] is None:
            column[row] = value  # an earlier row: grouping over the whole archive
        elif value is not None and name not in self.dropped:
            self.drop(name, "two values of one sample")  # as of {"a.b": 1, "a": {"b": 2}}

    def _column(self, name: str, field: str) -> list[Any] | None:
        column = self._values.get(name)
        if column is not None and self._field_of[name] == field:
            return column
        if column is not None:
            self.drop(name, f"both {self._field_of[name]} and {field} give it")
        if name in self._field_of or name in self.dropped:
            return None
        if len(self._field_of) >= MOST_COLUMNS:
            if len(self.dropped) < _MAX_IGNORED_NAMES:
                self.dropped[name] = f"over {MOST_COLUMNS} columns"
            else:
                self.complete = False
            return None
        if not self.complete:  # a list may have been met under this name
            return None
        self._field_of[name] = field
        return self._values.setdefault(name, [])

    def move_rows(self, rows: list[int]) -> None:
        """Move each row's values to the row that ``rows`` has for it."""
        for name, values in self._values.items():
            moved: list[Any] = [None] * (max(rows) + 1)
            for row, value in zip(rows, values, strict=False):
                if value is not None:
                    moved[row] = value
            self._values[name] = moved

    def finish(self, rows: int) -> dict[str, pa.Array]:
        """The columns, each as long as the shard, null where a sample has no value."""
        columns: dict[str, pa.Array] = {}
        for name, values in self._values.items():
            values.extend([None] * (rows - len(values)))
            array = "mixed types" if name in self._nested else _to_array(values)
            if isinstance(array, str):
                self.dropped[name] = array
            else:
                columns[name] = array
        return columns

    @property
    def nested(self) -> list[str]:
        """The names under which a list or a mapping was met."""
        return sorted(self._nested)


def _same_keys(mappings: list[dict[Any, Any]]) -> bool:
    first = mappings[0].keys()
    return all(mapping.keys() == first for mapping in mappings)


def _is_payload(data: Buffer) -> bool:
    try:
        _decode_payload(data)
    except _UNREADABLE:
        return False
    return True


def _decode_member(extract: Extractor, data: Buffer) -> Any:
    """What samples have as this field: of JSON also what only the codec takes, such as NaN."""
    try:
        return (decode_json if extract is _decode_json else extract)(bytes(data))
    except _UNREADABLE:
        return _NO_VALUE


def _to_array(values: list[Any]) -> pa.Array | str:
    """The values as one Arrow array, or the reason why there is none."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1 and kinds != {int, float}:  # Arrow would take True for 1.0
        return "mixed types"
    try:
        return scalar_array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return "values that Arrow cannot hold"
