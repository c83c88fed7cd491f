"""Where the fields lie in many payloads at once: MessagePack walked with NumPy, all samples a step at a time.

Payloads of one class have the same keys in the same order; what differs is how long texts and byte strings are. So one
payload says what to expect, and each step checks a key in all of them and moves all past its value. Where the value's
first bytes are the same in all of them too, as an array's header mostly is, one comparison does for key and header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.codec import Buffer
from shoal.errors import DecodeError
from shoal.sample import ArraySpan, Span, array_span, field_spans

__all__ = ["Step", "Walk", "Walked", "all_equal", "copy_rows", "gather", "join_walked", "steps_of", "walk"]

Int64 = npt.NDArray[np.int64]

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

_LARGE = 4096
_NOTHING_ELIDED: Mapping[str, int] = {}


class Step(NamedTuple):
    """One field of the payload that the others are compared with."""

    name: str
    key: bytes
    """The key as it stands in the payload; before the first one, the map's header too."""
    kind: str
    header: bytes
    """The value's own header, with its length."""
    head: bytes
    """What stands where the content starts: an array's header; nothing where the field is no array."""
    array: ArraySpan | None
    size: int
    """Of the content."""
    repeats: bool
    """Whether its header is likely to be the same in all payloads."""


class Walked(NamedTuple):
    """One field in many payloads: where its content starts, how long it is, and its MessagePack code."""

    starts: Int64
    sizes: Int64
    codes: npt.NDArray[np.uint8]
    head: bytes = b""
    """What is known to stand where every content starts, all of them being of one size."""


def gather(data: Buffer, starts: Int64, size: int) -> npt.NDArray[np.void]:
    """``size`` bytes from each start, one item each: a memory copy a sample, and nothing else."""
    windows = np.ndarray((max(len(data) - size + 1, 0),), np.dtype((np.void, size)), data, 0, (1,))
    return windows[starts]


def copy_rows(data: Buffer, starts: Int64, out: npt.NDArray[np.uint8]) -> None:
    """Fill each row of ``out`` with the bytes from its start on."""
    size = out.shape[1]
    if size < _LARGE:
        out[:] = gather(data, starts, size).view(np.uint8).reshape(out.shape)
        return
    view = np.frombuffer(data, np.uint8)
    for row, start in zip(out, starts.tolist(), strict=True):  # one copy a row; a gather would copy twice
        row[:] = view[start : start + size]


def all_equal(data: Buffer, at: Int64, expected: bytes) -> bool:
    """Whether ``expected`` stands at each of these places."""
    return gather(data, at, len(expected)).tobytes() == expected * len(at)


def steps_of(payload: Buffer) -> tuple[Step, ...]:
    """What a payload holds, field by field. Raises DecodeError when it is not a map."""
    at, steps = 0, []
    for name, span in field_spans(payload).items():
        key, header = bytes(payload[at : span.start]), bytes(payload[span.start : span.content])
        size = span.stop - span.content
        repeats = span.kind == "bytes" or (span.kind, size) == ("float", 8)
        steps.append(Step(name, key, span.kind, header, *_array_in(payload, span), size, repeats))
        at = span.stop
    return tuple(steps)


def _array_in(payload: Buffer, span: Span) -> tuple[bytes, ArraySpan | None]:
    try:
        array = array_span(payload, span)
    except DecodeError:
        return b"", None
    return bytes(payload[span.content : array.offset]), array


class Walk:
    """Where the fields of many payloads lie, found as they are asked for, each past the ones before it.

    ``elided`` says for some fields how many of their bytes were put elsewhere, the last ones: the next key stands
    where they would have begun.
    """

    def __init__(
        self,
        data: Buffer,
        starts: Int64,
        sizes: Int64,
        steps: Sequence[Step],
        elided: Mapping[str, int] = _NOTHING_ELIDED,
    ) -> None:
        self._data = data
        self._view = np.frombuffer(data, np.uint8)
        self._stops = starts + sizes
        self._steps = steps
        self._elided = elided
        # How many steps were taken, what they found and where they led: one value, so that threads may share a walk.
        self._state: tuple[int, Mapping[str, Walked], Int64 | None] = (0, {}, starts)

    def field(self, name: str) -> Walked | None:
        """Where a field lies; None when not all payloads are alike up to it, or have none of this name."""
        while name not in self._state[1] and self._step():
            pass
        return self._state[1].get(name)

    def fields(self) -> Mapping[str, Walked]:
        """All fields, up to where payloads are no longer alike."""
        while self._step():
            pass
        return self._state[1]

    @property
    def ended(self) -> bool:
        """Whether the walk found every field and came to the end of every payload."""
        done, _, at = self._state
        return done == len(self._steps) and at is not None and bool((at == self._stops).all())

    def _step(self) -> bool:
        done, found, at = self._state
        if at is None or done == len(self._steps):
            return False
        name = self._steps[done].name
        one = self._next(at, self._steps[done])
        left_out = self._elided.get(name, 0)
        after = None if one is None else one.starts + (one.sizes - left_out if left_out else one.sizes)
        if one is None or after is None or bool((after > self._stops).any()):
            self._state = (done, found, None)
            return False
        self._state = (done + 1, {**found, name: one}, after)
        return True

    def _next(self, at: Int64, step: Step) -> Walked | None:
        one = _alike(self._data, at, step) if step.repeats else None
        if one is not None or step.name in self._elided:
            return one
        try:
            return _value(self._view, at + len(step.key)) if all_equal(self._data, at, step.key) else None
        except IndexError:  # a payload that ends too soon; reading it alone says which
            return None


def walk(data: Buffer, starts: Int64, sizes: Int64, steps: Sequence[Step]) -> Mapping[str, Walked] | None:
    """Where each field lies in each payload; None when one is not like the payload that ``steps`` are of."""
    whole = Walk(data, starts, sizes, steps)
    found = whole.fields()
    return found if whole.ended else None


def _alike(data: Buffer, at: Int64, step: Step) -> Walked | None:
    """Key and header in one comparison, for values that mostly have the same one."""
    try:
        if not all_equal(data, at, step.key + step.header + step.head):
            return None
    except IndexError:  # the last payload is shorter; its key may be right all the same
        return None
    count = len(at)
    sizes, codes = np.full(count, step.size, np.int64), np.full(count, step.header[0], np.uint8)
    return Walked(at + (len(step.key) + len(step.header)), sizes, codes, step.head)


def _value(view: npt.NDArray[np.uint8], at: Int64) -> Walked | None:
    codes = view[at]
    if bool(((codes & 0xE0) == 0xA0).all()):  # short texts
        return Walked(at + 1, (codes & 0x1F).astype(np.int64), codes)
    headers = _HEADER[codes]
    if not headers.all():
        return None
    lengths = _LENGTH[codes]
    sizes = _FIXED[codes]
    for width in (1, 2, 4):
        rows = np.flatnonzero(lengths == width)
        if len(rows):
            sizes[rows] = _big_endian(view, at[rows] + 1, width)
    return Walked(at + headers, sizes, codes)


def join_walked(parts: Sequence[Mapping[str, Walked]]) -> Mapping[str, Walked]:
    """Several walks over one buffer as one: of the fields that all of them found."""
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: _joined([part[name] for part in parts]) for name in names}


def _joined(parts: Sequence[Walked]) -> Walked:
    heads = {(part.head, int(part.sizes[0])) for part in parts}
    return Walked(
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.codes for part in parts]),
        parts[0].head if len(heads) == 1 else b"",
    )


def _big_endian(view: npt.NDArray[np.uint8], at: Int64, width: int) -> Int64:
    value = np.zeros(len(at), np.int64)
    for step in range(width):
        value = (value << 8) | view[at + step]
    return value
