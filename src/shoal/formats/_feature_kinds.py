"""Samples as ``tf.train.Example``: each field has one feature name and one kind, however long its values are.

The kind of a field follows from the first batch in which it has a value that is not an empty list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from shoal.codec._dispatch import encode
from shoal.codec._registry import codec_for
from shoal.errors import EncodeError

from ._member_values import Row, as_member, is_bytes, plain_value
from ._tf_example import encode_example

__all__ = ["ExampleEncoder"]

Kind = Literal["bytes", "int", "float", "codec", "npy", "json"]
"""The three kinds of features; and bytes by the codec of the field's name, as ``.npy`` or as ``.json``."""
_DTYPE_KINDS: dict[str, Kind] = {"i": "int", "u": "int", "b": "int", "f": "float", "S": "bytes", "U": "bytes"}
_EMPTY = {"int": np.empty(0, np.int64), "float": np.empty(0, np.float32), "bytes": np.empty(0, "S1")}


class ExampleEncoder:
    """Encodes the samples of all files that are written at once."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def encode(self, batch: Sequence[tuple[str, Row]]) -> list[bytes]:
        """Return an Example for each of these samples. Raises EncodeError for a value of another kind than before."""
        for name in dict.fromkeys(name for _, row in batch for name in row):
            if name not in self._kinds:
                values = (row[name] for _, row in batch if row.get(name) is not None)
                kinds: set[Kind] = {kind for value in values if (kind := _kind_of(name, value)) is not None}
                common = _common_kind(kinds)
                if common is not None:
                    self._kinds[name] = common
        return [self._example(key, row) for key, row in batch]

    def _example(self, key: str, row: Row) -> bytes:
        try:
            return encode_example(dict(self._feature(name, value) for name, value in row.items() if value is not None))
        except EncodeError as error:
            raise error.at(key=key) from error.__cause__

    def _feature(self, name: str, value: Any) -> tuple[str, Any]:
        kind = self._kinds.get(name)
        if kind is None or kind in _EMPTY:
            return name, self._plain(name, value, kind)
        feature = name if kind == "codec" else f"{name}.{kind}"
        if kind == "codec":
            stored, data = as_member(name, value)
        elif kind == "json" and not is_bytes(value):
            stored, data = feature, bytes(encode("json", plain_value(value)))
        else:
            stored, data = (feature, bytes(encode("npy", value))) if isinstance(value, np.ndarray) else ("", b"")
        if stored != feature:
            raise _other_kind(name, kind, value)
        return stored, data

    def _plain(self, name: str, value: Any, kind: Kind | None) -> Any:
        own = _kind_of(name, value)
        if own is None:
            return [] if kind is None else _EMPTY[kind]
        if own == "int" and kind == "float":
            return np.atleast_1d(np.asarray(value, np.float32))
        if own != kind:
            raise _other_kind(name, str(kind), value)
        return value


def _kind_of(name: str, value: Any) -> Kind | None:
    """The kind of one value; None for an empty list, which fits all."""
    if is_bytes(value) or isinstance(value, str):
        return "bytes"
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        return "int"
    if isinstance(value, (float, np.floating)):
        return "float"
    codec = codec_for(name)
    if codec is not None and codec.name != "integer" and as_member(name, value)[0] == name:
        return "codec"
    if isinstance(value, np.ndarray):
        return _DTYPE_KINDS.get(value.dtype.kind, "npy") if value.ndim < 2 else "npy"
    return _kind_of_list(value) if isinstance(value, (list, tuple)) else "json"


def _kind_of_list(value: Sequence[Any]) -> Kind | None:
    if not value:
        return None
    if all(isinstance(item, str) or is_bytes(item) for item in value):
        return "bytes"
    if all(isinstance(item, (bool, int, np.integer, np.bool_)) for item in value):
        return "int"
    numbers = (bool, int, float, np.number, np.bool_)
    return "float" if all(isinstance(item, numbers) for item in value) else "json"


def _common_kind(kinds: set[Kind]) -> Kind | None:
    """The kind that holds values of all these kinds; where there is none, one of them, and the others are refused."""
    for common, parts in _COMMON:
        if common in kinds and kinds <= parts:
            return common
    return min(kinds, default=None)


_COMMON: tuple[tuple[Kind, set[Kind]], ...] = (
    ("float", {"int", "float"}),
    ("codec", {"codec", "bytes", "int", "float"}),
    ("npy", {"npy", "int", "float"}),
    ("json", {"json", "int", "float", "bytes"}),
)


def _other_kind(name: str, kind: str, value: Any) -> EncodeError:
    return EncodeError(
        "a feature has one name and one kind",
        expected=kind,
        found=f"{type(value).__name__} {value!r:.80}",
        field=name,
        hint="convert the values to one type first, or write parquet",
    )
