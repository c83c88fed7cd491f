"""Find the fields of many MessagePack payloads at once with NumPy, one field of all payloads at a time.

Payloads of one class have the same keys in the same order; only the lengths of strings and bytes differ. So one payload
serves as a template. For each of its fields the key is compared in all payloads, and all positions move past the value.
Where the value's first bytes are the same too, as an array's header mostly is, one comparison covers key and header.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.codec._codec import Buffer
from shoal.errors import DecodeError
from shoal.sample._payload_layout import array_span, field_spans

__all__ = [
    "ArrayLayout",
    "FieldLocations",
    "PayloadScan",
    "TemplateField",
    "all_equal",
    "copy_rows",
    "gather",
    "join_locations",
    "read_template",
]


# For each first byte of a MessagePack value: how many bytes its header takes, how many of them are a length, and how
# many bytes follow whatever the length. Arrays, maps and extensions are not walked: 0 in the first table.
_HEADER = np.zeros(256, np.int64)
_LENGTH = np.zeros(256, np.int64)
_FIXED = np.zeros(256, np.int64)
_HEADER[0x00:0x80] = _HEADER[0xE0:0x100] = _HEADER[[0xC0, 0xC2, 0xC3]] = 1
_HEADER[0xA0:0xC0] = 1
_FIXED[0xA0:0xC0] = np.arange(32)
for _code, _size in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4)):
    _HEADER[_code], _LENGTH[_code] = 1 + _size, _size
for _code, _size in (
    (0xCA, 4),
    (0xCB, 8),
    (0xCC, 1),
    (0xCD, 2),
    (0xCE, 4),
    (0xCF, 8),
    (0xD0, 1),
    (0xD1, 2),
    (0xD2, 4),
    (0xD3, 8),
):
    _HEADER[_code], _FIXED[_code] = 1, _size

_MIN_ROW_COPY_BYTES = 4096
_NOTHING_ELIDED: Mapping[str, int] = {}


class ArrayLayout(NamedTuple):
    """How an array is stored as the content of a field."""

    head: bytes
    """The bytes before its numbers."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    is_plain: bool
    """Whether its numbers can be taken as they are: it has some, in C order."""


class TemplateField(NamedTuple):
    """One field of the payload that others are compared with."""

    name: str
    key: bytes
    """The key as stored; for the first field, preceded by the map's header."""
    kind: str
    header: bytes
    """The value's own header, with its length."""
    array: ArrayLayout | None
    """None if the field is no array."""
    size: int
    """Bytes of the content."""
    repeats: bool
    """Whether the header is likely to be the same in all payloads."""


class FieldLocations(NamedTuple):
    """Where one field is in many payloads: start and size of its content, and its MessagePack code."""

    starts: IntArray
    sizes: IntArray
    codes: npt.NDArray[np.uint8]
    array: ArrayLayout | None = None
    """How all of them are stored, if they are known to be arrays that are stored alike."""


def gather(data: Buffer, starts: IntArray, size: int) -> npt.NDArray[np.void]:
    """Return ``size`` bytes from each start, one item each, with one memory copy per sample."""
    windows = np.ndarray((max(len(data) - size + 1, 0),), np.dtype((np.void, size)), data, 0, (1,))
    return windows[starts]


def copy_rows(data: Buffer, starts: IntArray, out: npt.NDArray[np.uint8]) -> None:
    """Fill each row of ``out`` with the bytes from its start."""
    size = out.shape[1]
    if size < _MIN_ROW_COPY_BYTES:
        out[:] = gather(data, starts, size).view(np.uint8).reshape(out.shape)
        return
    view = np.frombuffer(data, np.uint8)
    for row, start in zip(out, starts.tolist(), strict=True):  # one copy per row; `gather` would copy twice
        row[:] = view[start : start + size]


def all_equal(data: Buffer, at: IntArray, expected: bytes) -> bool:
    """Whether the bytes at each of these offsets are ``expected``; not if ``data`` ends before."""
    try:
        return gather(data, at, len(expected)).tobytes() == expected * len(at)
    except IndexError:
        return False


def read_template(payload: Buffer) -> tuple[TemplateField, ...]:
    """Return the fields of a payload. Raises DecodeError if it is not a map."""
    at, fields = 0, []
    for name, span in field_spans(payload).items():
        key, header = bytes(payload[at : span.start]), bytes(payload[span.start : span.content])
        size = span.stop - span.content
        repeats = span.kind == "bytes" or (span.kind, size) == ("float", 8)
        array = None
        if span.kind == "bytes":
            with contextlib.suppress(DecodeError):  # bytes that are no array
                found = array_span(payload, span)
                head, is_plain = bytes(payload[span.content : found.offset]), found.order == "C" and found.nbytes > 0
                array = ArrayLayout(head, found.dtype, found.shape, found.nbytes, is_plain)
        fields.append(TemplateField(name, key, span.kind, header, array, size, repeats))
        at = span.stop
    return tuple(fields)


class PayloadScan:
    """Locations of the fields of many payloads, found when they are first needed, in order. Thread-safe.

    ``elided`` has, for some fields, how many of their last bytes are stored elsewhere: the next key follows directly.
    """

    def __init__(
        self,
        data: Buffer,
        starts: IntArray,
        sizes: IntArray,
        template: Sequence[TemplateField],
        elided: Mapping[str, int] = _NOTHING_ELIDED,
    ) -> None:
        self._data = data
        self._view = np.frombuffer(data, np.uint8)
        self._stops = starts + sizes
        self._template = template
        self._elided = elided
        # Number of fields done, their locations, and the next offsets: one value, so that threads may share a scan.
        self._state: tuple[int, Mapping[str, FieldLocations], IntArray | None] = (0, {}, starts)

    def field(self, name: str) -> FieldLocations | None:
        """Return where a field is; None if payloads differ before it, or have no such field."""
        while name not in self._state[1] and self._advance():
            pass
        return self._state[1].get(name)

    def all_fields(self) -> Mapping[str, FieldLocations] | None:
        """Return where each field is; None if a payload differs from the template, or does not end with it."""
        while self._advance():
            pass
        done, fields, at = self._state
        is_complete = done == len(self._template) and at is not None and bool((at == self._stops).all())
        return fields if is_complete else None

    def _advance(self) -> bool:
        done, fields, at = self._state
        if at is None or done == len(self._template):
            return False
        name = self._template[done].name
        locations = self._locate(at, self._template[done])
        elided = self._elided.get(name, 0)
        after = (
            None if locations is None else locations.starts + (locations.sizes - elided if elided else locations.sizes)
        )
        if locations is None or after is None or bool((after > self._stops).any()):
            self._state = (done, fields, None)
            return False
        self._state = (done + 1, {**fields, name: locations}, after)
        return True

    def _locate(self, at: IntArray, field: TemplateField) -> FieldLocations | None:
        # Values that mostly have the same header are compared with key and header at once.
        head = b"" if field.array is None else field.array.head
        if field.repeats and all_equal(self._data, at, field.key + field.header + head):
            sizes, codes = np.full(len(at), field.size, np.int64), np.full(len(at), field.header[0], np.uint8)
            return FieldLocations(at + (len(field.key) + len(field.header)), sizes, codes, field.array)
        if field.name in self._elided or not all_equal(self._data, at, field.key):
            return None
        try:
            return _locate_values(self._view, at + len(field.key))
        except IndexError:  # a payload that ends too soon; reading it alone says which
            return None


def _locate_values(view: npt.NDArray[np.uint8], at: IntArray) -> FieldLocations | None:
    codes = view[at]
    if bool(((codes & 0xE0) == 0xA0).all()):  # short strings
        return FieldLocations(at + 1, (codes & 0x1F).astype(np.int64), codes)
    headers = _HEADER[codes]
    if not headers.all():
        return None
    lengths = _LENGTH[codes]
    sizes = _FIXED[codes]
    for width in (1, 2, 4):
        rows = np.flatnonzero(lengths == width)
        if len(rows):
            sizes[rows] = _big_endian(view, at[rows] + 1, width)
    return FieldLocations(at + headers, sizes, codes)


def join_locations(parts: Sequence[Mapping[str, FieldLocations]]) -> Mapping[str, FieldLocations]:
    """Join locations in one buffer, for the fields that all parts have."""
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: _concatenate([part[name] for part in parts]) for name in names}


def _concatenate(parts: Sequence[FieldLocations]) -> FieldLocations:
    return FieldLocations(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.codes for part in parts]),
        parts[0].array if len({part.array for part in parts}) == 1 else None,
    )


def _big_endian(view: npt.NDArray[np.uint8], at: IntArray, width: int) -> IntArray:
    value = np.zeros(len(at), np.int64)
    for offset in range(width):
        value = (value << 8) | view[at + offset]
    return value
