"""Metadata columns: the scalars of a sample's small fields, so that a query never opens a tar.

``.json`` gives a column for each scalar (``json.width``, nested ones dotted), ``.cls`` an integer, a short ``.txt`` its text.
A column holds one type. Where a shard mixes types, or a text is long, the column is left out and the index says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

__all__ = ["LARGEST_SOURCE", "ColumnCollector", "extractor_for"]

LONGEST_TEXT = 512
LARGEST_SOURCE = 1 << 20
"""A larger member is data, not metadata; its columns are left out."""
MOST_COLUMNS = 256
_DEEPEST = 4
_SCALAR_KINDS = {bool, int, float, str, type(None)}

Extractor = Callable[[bytes], Any]


def extractor_for(field: str) -> Extractor | None:
    """What reads the scalars of a field's bytes; None for fields that have none."""
    extension = field.rpartition(".")[2].lower()
    return _EXTRACTORS.get(extension)


def _integer(data: bytes) -> int:
    return int(data)


def _text(data: bytes) -> str:
    return str(data, "utf-8")


_decode_json = msgspec.json.Decoder().decode

_EXTRACTORS: dict[str, Extractor] = {
    **dict.fromkeys(("json", "jsn"), _decode_json),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _integer),
    **dict.fromkeys(("txt", "text", "caption", "transcript"), _text),
}


class ColumnCollector:
    """Gathers scalars row by row and turns them into typed columns."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self.dropped: dict[str, str] = {}

    def drop(self, name: str, reason: str) -> None:
        """Leave a column out: part of its values would be missing, and a query would be wrong without a word."""
        self.dropped[name] = reason

    def add_bytes(self, rows: list[int], field: str, members: list[bytes], extract: Extractor) -> None:
        """Add what the members hold, one a row; bytes that are not what the field's name says are simply not indexed."""
        try:
            values = [extract(data) for data in members]
        except (ValueError, msgspec.DecodeError):
            values = [_or_none(extract, data) for data in members]
        self.add_values(rows, field, values)

    def add_values(self, rows: list[int], field: str, values: list[Any]) -> None:
        """Add one value a row: a scalar, or a mapping whose scalars become columns."""
        kinds = set(map(type, values))
        if kinds == {dict} and _same_keys(values):
            for name in values[0]:
                self.add_values(rows, f"{field}.{name}", [value[name] for value in values])
        elif kinds <= _SCALAR_KINDS:
            self._put_all(rows, field, values)
        else:
            for row, value in zip(rows, values, strict=True):
                self._add_value(row, field, value, _DEEPEST)

    def _add_value(self, row: int, name: str, value: object, depth: int) -> None:
        kind = type(value)
        if kind in _SCALAR_KINDS:
            self._put(row, name, value)
        elif kind is dict and depth:
            for key, inner in value.items():  # type: ignore[attr-defined]
                self._add_value(row, f"{name}.{key}", inner, depth - 1)

    def _put_all(self, rows: list[int], name: str, values: list[Any]) -> None:
        column = self._column(name)
        if column is not None and len(column) == rows[0] and rows[-1] - rows[0] == len(rows) - 1 and len(rows) == len(values):
            column.extend(values)
            return
        for row, value in zip(rows, values, strict=True):
            self._put(row, name, value)

    def _put(self, row: int, name: str, value: object) -> None:
        column = self._column(name)
        if column is None:
            return
        missing = row - len(column)
        if missing < 0:
            column[row] = value  # met again for an earlier row: grouping over the whole archive
        else:
            column.extend([None] * missing)
            column.append(value)

    def _column(self, name: str) -> list[Any] | None:
        column = self._values.get(name)
        if column is not None:
            return column
        if len(self._values) >= MOST_COLUMNS:
            self.dropped.setdefault(name, f"over {MOST_COLUMNS} columns")
            return None
        return self._values.setdefault(name, [])

    def finish(self, rows: int) -> dict[str, pa.Array]:
        """The columns, each as long as the shard, null where a sample has no value."""
        columns: dict[str, pa.Array] = {}
        for name, values in self._values.items():
            if name in self.dropped:
                continue
            values.extend([None] * (rows - len(values)))
            array = _typed(values)
            if isinstance(array, str):
                self.dropped[name] = array
            else:
                columns[name] = array
        return columns


def _same_keys(mappings: list[dict[Any, Any]]) -> bool:
    first = mappings[0].keys()
    return all(mapping.keys() == first for mapping in mappings)


def _or_none(extract: Extractor, data: bytes) -> Any:
    try:
        return extract(data)
    except (ValueError, msgspec.DecodeError):
        return None


def _typed(values: list[Any]) -> pa.Array | str:
    """The values as one Arrow array, or the reason why there is none."""
    kinds = set(map(type, values)) - {type(None)}
    if bool in kinds and len(kinds) > 1:  # Arrow would take True for 1.0
        return "mixed types"
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return "mixed types"
    if pa.types.is_string(array.type) and max((len(v) for v in values if v is not None), default=0) > LONGEST_TEXT:
        return f"a text over {LONGEST_TEXT} characters"
    return array
