"""``keys.rec``: the hash of every key of a segment with its row, sorted, so that a key is found in one or two pages.

A record is one number of 64 bits: the upper 32 bits of the key's hash above the row. The hashes are uniform, so the
place of a key follows from its hash, and only the end of the search has to look around. Equal hashes are told apart by
the key itself, which the caller compares.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shoal._typing import UInt32Array, UInt64Array

from ._arrow_arrays import text_edges
from ._records import OpenFiles, RecordFile, RecordTable

__all__ = ["KEY_WORDS", "KeyTable", "hash_key", "hash_keys", "key_records"]

KEY_WORDS = 2
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_MAX_GUESSES = 4
"""So many times the place of a hash is computed; after that, which only crafted keys need, the range is halved."""


def hash_key(key: str) -> int:
    """Return the upper 32 bits of the hash of a key: FNV-1a of its UTF-8 bytes, mixed by splitmix64.

    Examples:
        >>> hash_key("000000001") == int(hash_keys(pa.array(["000000001"]))[0])
        True
    """
    value = _FNV_OFFSET
    for byte in key.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return (value ^ (value >> 31)) >> 32


def hash_keys(keys: pa.Array) -> UInt64Array:
    """Return `hash_key` of many keys, with one NumPy operation for all that have a byte at a position."""
    edges, text = text_edges(keys)
    data, starts, sizes = np.frombuffer(text, np.uint8), edges[:-1].astype(np.int64), np.diff(edges)
    order = np.argsort(-sizes, kind="stable")  # longest first: keys that still have a byte are the first ones
    starts, hashes = starts[order], np.full(len(keys), _FNV_OFFSET, np.uint64)
    counts = np.searchsorted(-sizes[order], -np.arange(int(sizes.max(initial=0))), "left")
    for position, count in enumerate(counts.tolist()):
        hashes[:count] = (hashes[:count] ^ data[starts[:count] + position]) * np.uint64(_FNV_PRIME)
    hashes[order] = hashes.copy()
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(_MIX_1)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(_MIX_2)
    mixed: UInt64Array = (hashes ^ (hashes >> np.uint64(31))) >> np.uint64(32)
    return mixed


def key_records(hashes: Sequence[UInt64Array]) -> UInt32Array:
    """Return the records of ``keys.rec`` for the hashes of all rows of a segment, given in parts."""
    values = np.concatenate([np.empty(0, np.uint64), *hashes]) << np.uint64(32)
    values |= np.arange(len(values), dtype=np.uint64)
    values.sort()
    return values.astype("<u8", copy=False).view("<u4").reshape(-1, KEY_WORDS)


class KeyTable:
    """The ``keys.rec`` of the segments of a split. Thread-safe."""

    def __init__(self, files: Sequence[RecordFile], open_files: OpenFiles) -> None:
        self.records = RecordTable(files, KEY_WORDS, open_files)

    def find(self, segment: int, key_hash: int) -> list[int]:
        """Return the rows of a segment whose keys have this hash, in ascending order."""
        target = key_hash << 32
        page, values = self._first_page(segment, target)
        rows: list[int] = []
        while values is not None:
            start = bisect.bisect_left(values, target)
            stop = bisect.bisect_left(values, target + (1 << 32), start)
            rows += [value & 0xFFFFFFFF for value in values[start:stop]]
            page += 1
            is_last = stop < len(values) or page == self._page_count(segment)
            values = None if is_last else self._values(segment, page)
        return rows

    def _first_page(self, segment: int, target: int) -> tuple[int, Any]:
        """Return the first page whose last number is not below the target, and its numbers; None if there is none."""
        low, high = 0, self._page_count(segment) - 1
        low_value, high_value = 0, 1 << 64
        found: tuple[int, Any] = -1, None
        guesses = 0
        while low <= high:
            guesses += 1
            share = (target - low_value) / (high_value - low_value) if guesses <= _MAX_GUESSES else 0.5
            middle = min(low + int(share * (high + 1 - low)), high)
            values = self._values(segment, middle)
            if values[-1] < target:
                low, low_value = middle + 1, values[-1]
                continue
            found = middle, values
            if values[0] <= target:
                break
            high, high_value = middle - 1, max(values[0], low_value + 1)
        return found

    def _page_count(self, segment: int) -> int:
        return -(-int(self.records.counts[segment]) // self.records.per_page)

    def _values(self, segment: int, page: int) -> Any:
        """Return the numbers of a page as a sequence of integers."""
        per_page = self.records.per_page
        count = min(per_page, int(self.records.counts[segment]) - page * per_page)
        return self.records.read_page(segment, page)[: 8 * count].cast("Q")
