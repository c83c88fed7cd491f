"""Where the fields lie in many payloads at once: MessagePack walked with NumPy, all samples a step at a time.

Payloads of one class have the same keys in the same order; what differs is how long texts and byte strings are. So one
payload says which keys to expect, and each step checks a key in all of them and moves all past its value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.sample import field_spans

__all__ = ["Walked", "all_equal", "copy_rows", "gather", "walk"]

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


@dataclass(frozen=True, slots=True)
class Walked:
    """One field in many payloads: where its content starts, how long it is, and its MessagePack code."""

    starts: Int64
    sizes: Int64
    codes: npt.NDArray[np.uint8]


def gather(data: bytes, starts: Int64, size: int) -> npt.NDArray[np.void]:
    """``size`` bytes from each start, one item each: a memory copy a sample, and nothing else."""
    windows = np.ndarray((max(len(data) - size + 1, 0),), np.dtype((np.void, size)), data, 0, (1,))
    return windows[starts]


_LARGE = 4096


def copy_rows(data: bytes, starts: Int64, out: npt.NDArray[np.uint8]) -> None:
    """Fill each row of ``out`` with the bytes from its start on."""
    size = out.shape[1]
    if size < _LARGE:
        out[:] = gather(data, starts, size).view(np.uint8).reshape(out.shape)
        return
    view = np.frombuffer(data, np.uint8)
    for row, start in zip(out, starts.tolist(), strict=True):  # one copy a row; a gather would copy twice
        row[:] = view[start : start + size]


def walk(data: bytes, starts: Int64, sizes: Int64) -> dict[str, Walked] | None:
    """Where each field lies in each payload; None when the payloads are not alike enough to be walked together."""
    first = data[starts[0] : starts[0] + sizes[0]]
    names = list(field_spans(first))
    try:
        return _steps(data, starts, sizes, names)
    except IndexError:  # a payload that ends too soon; reading it alone says which
        return None


def _steps(data: bytes, starts: Int64, sizes: Int64, names: list[str]) -> dict[str, Walked] | None:
    view = np.frombuffer(data, np.uint8)
    head = _map_header(len(names))
    if not all_equal(data, starts, head):
        return None
    at, found = starts + len(head), {}
    for name in names:
        key = _key(name)
        if not all_equal(data, at, key):
            return None
        step = _value(view, at + len(key))
        if step is None:
            return None
        found[name] = step
        at = step.starts + step.sizes
    return found if bool((at == starts + sizes).all()) else None


def all_equal(data: bytes, at: Int64, expected: bytes) -> bool:
    """Whether ``expected`` stands at each of these places."""
    return gather(data, at, len(expected)).tobytes() == expected * len(at)


def _value(view: npt.NDArray[np.uint8], at: Int64) -> Walked | None:
    codes = view[at]
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


def _big_endian(view: npt.NDArray[np.uint8], at: Int64, width: int) -> Int64:
    value = np.zeros(len(at), np.int64)
    for step in range(width):
        value = (value << 8) | view[at + step]
    return value


def _map_header(count: int) -> bytes:
    return bytes([0x80 | count]) if count < 16 else b"\xde" + count.to_bytes(2, "big")


def _key(name: str) -> bytes:
    text = name.encode()
    return bytes([0xA0 | len(text)]) + text if len(text) < 32 else b"\xd9" + bytes([len(text)]) + text
