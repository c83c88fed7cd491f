"""What was read against the checksums of the index. Each names the member that is damaged."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.codec import Buffer
from shoal.shard._index import ShardIndex
from shoal.shard._tar import crc32

from ._members import damaged
from ._raw import RawField
from ._rows import Sample

__all__ = ["check_block", "check_raw", "check_samples"]

Int64 = npt.NDArray[np.int64]


def check_samples(url: str, index: ShardIndex, samples: list[Sample], name: str, rows: Int64 | slice) -> None:
    """One field of samples that are these rows. Raises ChecksumError."""
    part = index.fields[name]
    if part.crc is None:
        return
    expected = part.crc[rows].tolist()
    try:
        if list(map(crc32, map(operator.itemgetter(name), samples))) == expected:
            return
    except KeyError:  # not every sample has the field
        pass
    offsets = part.offset[rows].tolist()
    for sample, wanted, offset in zip(samples, expected, offsets, strict=True):
        data: Any = sample.get(name)
        if data is not None and (found := crc32(data)) != wanted:
            raise damaged(url, sample["__key__"], name, offset, wanted, found)


def check_raw(url: str, index: ShardIndex, found: RawField, name: str, rows: Int64) -> None:
    """The bytes of one field of these rows. Raises ChecksumError."""
    part = index.fields[name]
    if part.crc is None:
        return
    view, ends = memoryview(found.data), (found.starts + found.sizes).tolist()
    crcs = [crc32(view[start:end]) if start >= 0 else 0 for start, end in zip(found.starts.tolist(), ends, strict=True)]
    for row, crc, expected in zip(rows.tolist(), crcs, part.crc[rows].tolist(), strict=True):
        if crc != expected:
            raise damaged(url, index.keys[row].as_py(), name, int(part.offset[row]), expected, crc)


def check_block(url: str, index: ShardIndex, data: Buffer, base: int, rows: range) -> None:
    """The members of a block whose own checksum is wrong. When all of them are right, only headers or padding differ.

    Raises ChecksumError.
    """
    view = memoryview(data)
    for name, part in index.fields.items():
        if part.crc is None:
            continue
        for row in rows:
            start, size = int(part.offset[row]), int(part.size[row])
            found = crc32(view[start - base : start - base + size])
            if start and found != int(part.crc[row]):
                raise damaged(url, index.keys[row].as_py(), name, start, int(part.crc[row]), found)
