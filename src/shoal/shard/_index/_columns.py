"""Metadata columns: the scalars of a sample's small fields, so that a query never opens a tar.

``.json`` gives a column for each scalar (``json.width``, nested ones dotted), and so does a typed sample's ``.msgpack``
(``msgpack.label``), whose arrays and bytes are passed over; ``.cls`` gives an integer, a short ``.txt`` its text. A
column holds one type. Where a shard mixes types, or a text is long, the column is left out and the index says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from ._arrow import scalar_array
from ._payload_columns import Buffer, PayloadReader

__all__ = ["LARGEST_SOURCE", "ColumnCollector", "extractor_for", "largest_source"]

LONGEST_TEXT = 512
LARGEST_SOURCE = 1 << 20
"""A larger member is data, not metadata; its columns are left out."""
MOST_COLUMNS = 256
_DEEPEST = 4
_MOST_NAMES = 4096  # remembered though they give no column: a mapping from ids to things must not fill the memory
_SCALAR_KINDS = {bool, int, float, str, type(None)}
_UNREADABLE = (ValueError, msgspec.DecodeError, RecursionError)

Extractor = Callable[[Buffer], Any]


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
        if len(self._nested) < _MOST_NAMES:
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
            if len(self.dropped) < _MOST_NAMES:
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
