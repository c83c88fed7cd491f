"""`DictSample`: MessagePack data without a class, whose fields are decoded when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import msgspec

from shoal.codec._codec import Buffer
from shoal.errors import DecodeError, FieldError

from ._converters import any_to_wire, restore_arrays
from ._packable import same, unique_key
from ._serializer import UNREADABLE
from ._stored_values import ValueMismatch, convert_entries, mismatch_error

__all__ = ["DictSample"]

_decode_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_decode_value = msgspec.msgpack.Decoder().decode
_decode_view = msgspec.msgpack.Decoder(memoryview).decode
_encode = msgspec.msgpack.Encoder().encode
_BIN = frozenset(b"\xc4\xc5\xc6")


class DictSample(Mapping[str, Any]):
    """A sample without a class, with fields as attributes and as items.

    Fields are decoded when they are first read. Bytes that are exactly an array, as ``.npy`` or in atdata's compact
    form, become read-only arrays; other bytes stay bytes. A field with the name of a method is only an item.

    Raises:
        FieldError: The field does not exist (as an item).
        AttributeError: The field does not exist (as an attribute).
        DecodeError: A field is not MessagePack.

    Examples:
        >>> sample = DictSample(label="cat", score=0.5)
        >>> sample.label, sample["score"], "image" in sample, list(sample)
        ('cat', 0.5, False, ['label', 'score'])
        >>> DictSample.from_bytes(sample.packed) == sample
        True
    """

    __slots__ = ("_data",)

    def __init__(self, _data: Mapping[str, Any] | None = None, **fields: Any) -> None:
        object.__setattr__(self, "_data", {**(_data or {}), **fields})

    _data: dict[str, Any]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return a sample of these fields."""
        return cls(data)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Self:
        """Return the sample in a payload.

        Raises:
            DecodeError: The payload is not one MessagePack map with str keys.
        """
        try:
            return cls(_decode_fields(data))
        except UNREADABLE as error:
            raise DecodeError("the sample is not a MessagePack map", found=error) from error

    @property
    def packed(self) -> bytes:
        """The bytes of this sample, arrays as ``.npy``; fields that were not read are unchanged.

        Raises:
            SchemaMismatchError: A value cannot be stored; ``field`` is its path.
        """
        try:
            return _encode(convert_entries(_check_name, _to_wire, self._data))
        except ValueMismatch as mismatch:
            raise mismatch_error(mismatch, "a sample cannot be stored") from None

    @property
    def as_wds(self) -> dict[str, Any]:
        """``{"__key__": ..., "msgpack": ...}`` with a new, unique key at each access."""
        return {"__key__": unique_key(), "msgpack": self.packed}

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, decoded."""
        return {name: self[name] for name in self._data}

    def __getitem__(self, name: str) -> Any:
        try:
            value = self._data[name]
        except KeyError:
            raise FieldError("no such field", expected=", ".join(self._data), found=name, field=name) from None
        if type(value) is msgspec.Raw:
            value = self._data[name] = _decode_field(value, name)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._data:
            raise AttributeError(f"the sample has no field {name!r}", name=name, obj=self)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a DictSample does not change; make another from to_dict()", name=name, obj=self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DictSample):
            return NotImplemented
        return same(self.to_dict(), other.to_dict())

    __hash__ = None  # type: ignore[assignment]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._data})

    def __repr__(self) -> str:
        return f"DictSample({', '.join(f'{name}={self[name]!r}' for name in self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.to_dict(),)


def _check_name(name: Any) -> str:
    if isinstance(name, str):
        return name
    raise ValueMismatch("str as a field's name", type(name).__name__)


def _to_wire(value: Any) -> Any:
    return value if type(value) is msgspec.Raw else any_to_wire(value)


def _decode_field(raw: msgspec.Raw, name: str) -> Any:
    data = memoryview(raw)
    try:
        # Bytes are decoded to a view, so that an array in them is not copied.
        return restore_arrays(_decode_view(data) if data[0] in _BIN else _decode_value(data))
    except UNREADABLE as error:
        raise DecodeError("the field is not MessagePack", found=error, field=name) from error
