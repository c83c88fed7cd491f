"""Scalar columns of JSON and MessagePack fields.

``.json`` gives a column for each scalar (``json.width``, nested ones dotted), and so does a typed sample's ``.msgpack``
(``msgpack.label``), whose arrays and bytes are passed over; ``.cls`` gives an integer, a short ``.txt`` its text. A
column holds one type. Where a shard mixes types, or a text is long, the column is left out and the index says why.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

__all__ = [
    "LARGEST_SOURCE",
    "ColumnCollector",
    "PayloadReader",
    "as_arrow",
    "as_numpy",
    "extractor_for",
    "largest_source",
    "scalar_array",
    "text_array",
    "text_edges",
]

Buffer = bytes | memoryview
Extractor = Callable[[Buffer], Any]


# ---------------------------------------------------------------- the scalars of MessagePack payloads, column by column


# The payloads of a shard mostly look alike. What the first ones hold is learned: names, which of them are scalars,
# which are maps. From that a struct is made into which msgspec decodes the scalars, and passes over arrays, bytes and
# lists. A payload that holds anything else is refused by the struct, and the reader learns again; so the columns never
# depend on what came first.

_MOST_LESSONS = 16  # data that differs each time is no record: it is decoded as it comes
_MOST_PAYLOAD_NAMES = 1024
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
        if self._shape.kind != "map" or len(named) > _MOST_PAYLOAD_NAMES:
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


# ----------------------------------------------------------------------------------------------------- metadata columns


LONGEST_TEXT = 512
LARGEST_SOURCE = 1 << 20
"""A larger member is data, not metadata; its columns are left out."""
MOST_COLUMNS = 256
_DEEPEST = 4
_MOST_IGNORED_NAMES = (
    4096  # remembered though they give no column: a mapping from ids to things must not fill the memory
)
_SCALAR_KINDS = {bool, int, float, str, type(None)}
_UNREADABLE = (ValueError, msgspec.DecodeError, RecursionError)


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
_decode_payload = msgspec.msgpack.Decoder().decode

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
        self._payloads: dict[str, PayloadReader] = {}

    def drop(self, name: str, reason: str) -> None:
        """Leave a column out, or every column of a field.

        Part of its values would be missing, and a query would be wrong without a word.
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
            values = [_or_none(extract, data) for data in members]
        self.add_values(rows, field, values)

    def _add_payloads(self, rows: list[int], field: str, payloads: Sequence[Buffer]) -> None:
        reader = self._payloads.setdefault(field, PayloadReader())
        try:
            parts = reader.read(payloads)
        except _UNREADABLE:
            sound = [place for place, data in enumerate(payloads) if _is_payload(data)]
            rows, payloads = [rows[place] for place in sound], [payloads[place] for place in sound]
            parts = reader.read(payloads) if payloads else []
        for name in reader.maps:
            self._note_nested(f"{field}{name}")
        for name in reader.passed:
            if f"{field}{name}" not in self.dropped:
                self.drop(f"{field}{name}", "not a scalar")
        for name, at, values in parts:
            self._add(rows if at is None else [rows[place] for place in at], f"{field}{name}", values, field, _DEEPEST)

    def add_values(self, rows: list[int], field: str, values: list[Any]) -> None:
        """Add one value a row: a scalar, or a mapping whose scalars become columns."""
        self._add(rows, field, values, field, _DEEPEST)

    def _add(self, rows: list[int], name: str, values: list[Any], field: str, depth: int) -> None:
        kinds = set(map(type, values))
        if kinds <= _SCALAR_KINDS:
            self._put_all(rows, name, values, field, str in kinds)
        elif kinds == {dict} and _same_keys(values):
            self._note_nested(name)
            for key in values[0] if depth else ():
                self._add(rows, f"{name}.{key}", [value[key] for value in values], field, depth - 1)
        else:
            for row, value in zip(rows, values, strict=True):
                self._add_one(row, name, value, field, depth)

    def _add_one(self, row: int, name: str, value: object, field: str, depth: int) -> None:
        if type(value) in _SCALAR_KINDS:
            self._put_all([row], name, [value], field, type(value) is str)
            return
        self._note_nested(name)
        if isinstance(value, dict) and depth:
            for key, inner in value.items():
                self._add_one(row, f"{name}.{key}", inner, field, depth - 1)

    def _note_nested(self, name: str) -> None:
        if len(self._nested) < _MOST_IGNORED_NAMES:
            self._nested.add(name)

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
            if len(self.dropped) < _MOST_IGNORED_NAMES:
                self.dropped[name] = f"over {MOST_COLUMNS} columns"
            return None
        self._field_of[name] = field
        return self._values.setdefault(name, [])

    def finish(self, rows: int) -> dict[str, pa.Array]:
        """The columns, each as long as the shard, null where a sample has no value."""
        columns: dict[str, pa.Array] = {}
        for name, values in self._values.items():
            values.extend([None] * (rows - len(values)))
            array = "mixed types" if name in self._nested else _typed(values)
            if isinstance(array, str):
                self.dropped[name] = array
            else:
                columns[name] = array
        return columns


def _same_keys(mappings: list[dict[Any, Any]]) -> bool:
    first = mappings[0].keys()
    return all(mapping.keys() == first for mapping in mappings)


def _is_payload(data: Buffer) -> bool:
    try:
        _decode_payload(data)
    except _UNREADABLE:
        return False
    return True


def _or_none(extract: Extractor, data: Buffer) -> Any:
    try:
        return extract(bytes(data))
    except _UNREADABLE:
        return None


def _typed(values: list[Any]) -> pa.Array | str:
    """The values as one Arrow array, or the reason why there is none."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) > 1 and kinds != {int, float}:  # Arrow would take True for 1.0
        return "mixed types"
    try:
        return scalar_array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return "values that Arrow cannot hold"


# -------------------------------------- python and NumPy values as Arrow arrays and back, without pa.array and to_numpy


# Both of those import pandas where it is installed, to see whether they were given a Series: a quarter of a second, and
# tens of megabytes, before the first sample.

_ARROW = {np.dtype(kind): getattr(pa, kind)() for kind in ("int64", "uint64", "uint32", "float64")}
_NUMPY = {arrow: numpy for numpy, arrow in _ARROW.items()}


def as_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers over the same memory.

    Example:
        >>> as_arrow(np.array([2, 3])).to_pylist()
        [2, 3]
    """
    whole = np.ascontiguousarray(values)
    return pa.Array.from_buffers(_ARROW[whole.dtype], len(whole), [None, pa.py_buffer(whole)])


def as_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Numbers without nulls, over the same memory.

    Example:
        >>> as_numpy(pa.array([2, 3])).tolist()
        [2, 3]
    """
    kind = _NUMPY[array.type]
    return np.frombuffer(array.buffers()[1] or b"", kind, len(array), array.offset * kind.itemsize)


def text_array(texts: list[str], valid: pa.Buffer | None = None) -> pa.Array:
    """Texts as one array. Raises UnicodeEncodeError where one is not Unicode.

    Example:
        >>> text_array(["shoal", "Schön"]).to_pylist()
        ['shoal', 'Schön']
    """
    whole = "".join(texts)
    data = whole.encode()
    sizes = map(len, texts) if len(data) == len(whole) else (len(text.encode()) for text in texts)
    is_small = len(data) <= np.iinfo(np.int32).max
    kind, width = (pa.string(), np.int32) if is_small else (pa.large_string(), np.int64)
    offsets = np.fromiter(accumulate(sizes, initial=0), width, len(texts) + 1)
    return pa.Array.from_buffers(kind, len(texts), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def text_edges(array: pa.Array) -> tuple[npt.NDArray[np.signedinteger[Any]], memoryview]:
    """Where each text begins, and the last ends, in the bytes of all of them: quicker than Arrow for a text or two.

    Example:
        >>> edges, data = text_edges(text_array(["shoal", "Schön"]))
        >>> edges.tolist(), str(data[5:11], "utf-8")
        ([0, 5, 11], 'Schön')
    """
    _, edges, data = array.buffers()
    width = np.dtype(np.int32 if array.type == pa.string() else np.int64)
    count = len(array) + 1 if edges is not None and edges.size else 0
    found = np.frombuffer(edges or b"", width, count, array.offset * width.itemsize if count else 0)
    return found, memoryview(data if data is not None else b"")


def scalar_array(values: list[Any]) -> pa.Array:
    """Scalars of one kind, or None, as one typed array; what is stranger is left to Arrow, which may refuse it.

    Raises OverflowError for an integer beyond 64 bits, UnicodeEncodeError, and what Arrow raises.

    Example:
        >>> scalar_array([1, None, 3]).to_pylist()
        [1, None, 3]
    """
    kinds = set(map(type, values))
    others = kinds - {type(None)}
    if not others:
        return pa.nulls(len(values))
    if len(others) != 1 or not others <= _SIMPLE.keys():
        return pa.array(values)
    kind = others.pop()
    valid = _bits([value is not None for value in values]) if type(None) in kinds else None
    return _SIMPLE[kind](values if valid is None else [kind() if value is None else value for value in values], valid)


def _bits(flags: list[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))


def _integers(values: list[int], valid: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [valid, pa.py_buffer(np.array(values, np.int64))])


def _floats(values: list[float], valid: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.float64(), len(values), [valid, pa.py_buffer(np.array(values, np.float64))])


def _flags(values: list[bool], valid: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [valid, _bits(values)])


_SIMPLE: dict[type, Callable[[list[Any], pa.Buffer | None], pa.Array]] = {
    int: _integers,
    float: _floats,
    bool: _flags,
    str: text_array,
}
