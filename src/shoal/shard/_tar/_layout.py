"""Members as a tar's bytes: a run of them at once, headers put in as columns."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ._header import BLOCK, MOST_PLAIN_NAME, MOST_PLAIN_SIZE, build_header, padded

__all__ = ["lay_out", "member_bytes"]

UInt8 = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]

_GAPS = [bytes(-size % BLOCK + BLOCK) for size in range(BLOCK)]  # behind data of any size: its padding, and a header
_NAME, _SIZE, _CHECKSUM = slice(0, MOST_PLAIN_NAME), slice(124, 135), slice(148, 154)
_SIZE_SHIFTS = np.arange(30, -1, -3)
_CHECKSUM_SHIFTS = np.arange(15, -1, -3)


def member_bytes(name: bytes, size: int) -> int:
    """How many bytes of a tar a member takes, with its headers and padding."""
    return len(build_header(name, size)) + padded(size)


def lay_out(names: Sequence[bytes], contents: Sequence[bytes], sizes: Int64, mtime: int) -> tuple[bytearray, Int64]:
    """The members one after the other, each with the header that ``build_header`` gives it; and where their data is.

    Example:
        >>> data, offsets = lay_out([b"a.txt"], [b"hello"], np.array([5]), 0)
        >>> bytes(data) == build_header(b"a.txt", 5) + b"hello" + bytes(507), offsets.tolist()
        (True, [512])
    """
    odd = {at: build_header(names[at], int(sizes[at]), mtime) for at in _odd(names, sizes)}
    leads = np.full(len(sizes), BLOCK)
    gaps = [bytes(BLOCK), *map(_GAPS.__getitem__, (sizes % BLOCK).tolist())]
    for at, head in odd.items():
        leads[at] = len(head)
        gaps[at] += bytes(len(head) - BLOCK)
    gaps[-1] = gaps[-1][BLOCK:]
    parts = [b""] * (2 * len(gaps) - 1)
    parts[::2], parts[1::2] = gaps, contents
    data = bytearray().join(parts)
    offsets = np.cumsum(leads) + np.cumsum(padded_sizes := -(-sizes // BLOCK) * BLOCK) - padded_sizes
    np.frombuffer(data, np.uint8).reshape(-1, BLOCK)[offsets // BLOCK - 1] = _plain_headers(names, sizes, mtime)
    for at, head in odd.items():
        data[offsets[at] - len(head) : offsets[at]] = head
    return data, offsets


def _odd(names: Sequence[bytes], sizes: Int64) -> list[int]:
    """The members that do not fit a header of the plain form."""
    if max(map(len, names)) <= MOST_PLAIN_NAME and sizes.max() <= MOST_PLAIN_SIZE:
        return []
    return [at for at, name in enumerate(names) if len(name) > MOST_PLAIN_NAME or sizes[at] > MOST_PLAIN_SIZE]


def _plain_headers(names: Sequence[bytes], sizes: Int64, mtime: int) -> UInt8:
    """A header of one block for each member: nearly all of it is the same for all."""
    common, total = _common(mtime)
    headers = np.empty((len(names), BLOCK), np.uint8)
    headers[:] = common
    texts = np.array(names, f"S{MOST_PLAIN_NAME}").view(np.uint8).reshape(-1, MOST_PLAIN_NAME)
    digits = _octal_digits(sizes, _SIZE_SHIFTS)
    totals = texts.sum(axis=1, dtype=np.uint32) + digits.sum(axis=1, dtype=np.uint32) + total
    headers[:, _NAME] = texts
    headers[:, _SIZE] = digits
    headers[:, _CHECKSUM] = _octal_digits(totals, _CHECKSUM_SHIFTS)
    return headers


@functools.lru_cache(maxsize=8)
def _common(mtime: int) -> tuple[UInt8, int]:
    """What all headers of one time share, and what it adds to their checksums."""
    header = build_header(b"", 0, mtime)
    total = sum(header) - sum(header[148:156]) - sum(header[_SIZE]) + 8 * ord(" ")
    return np.frombuffer(header, np.uint8), total


def _octal_digits(numbers: npt.NDArray[np.integer], shifts: Int64) -> UInt8:
    return ((numbers[:, None] >> shifts) & 7).astype(np.uint8) + np.uint8(ord("0"))
