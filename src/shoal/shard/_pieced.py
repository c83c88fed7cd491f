"""Samples out of pieces of a shard, as they come over the wire: nothing is joined but what lies across two pieces.

To join a block first would copy each byte once more, and the processor's time is what a fast wire leaves short.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.store import PulledReader

from ._crc import crc32
from ._index import Blocks, LongExtents
from ._rows import Sample, whole_rows
from ._shard import Shard

__all__ = ["pieced_rows"]

Int64 = npt.NDArray[np.int64]
Pieces = Sequence[tuple[int, bytes]]
_FAR = np.int64(1 << 62)


def pieced_rows(shard: Shard, reader: PulledReader, start: int, stop: int) -> list[Sample] | None:
    """All fields of samples ``[start, stop)``; None where they are no block, or its checksum is wrong.

    Raises the errors of the store.
    """
    index, blocks = shard.index, shard.index.blocks
    if blocks is None or index.facts.compression is not None or isinstance(index.fields, LongExtents):
        return None
    number = int(np.searchsorted(blocks.rows, start))
    if number == len(blocks) or blocks.rows[number] != start or blocks.rows[number + 1] != stop:
        return None
    pieces = reader.pieces(*(int(at) for at in blocks.offsets[number : number + 2]))
    if not pieces or (shard.verify and _crc(pieces, blocks, number) != blocks.crcs[number]):
        return None
    return _rows(shard, pieces, slice(start, stop))


def _crc(pieces: Pieces, blocks: Blocks, number: int) -> int:
    low, high = (int(at) for at in blocks.offsets[number : number + 2])
    return functools.reduce(lambda crc, part: crc32(part, crc), _between(pieces, low, high), 0)


def _between(pieces: Pieces, low: int, high: int) -> list[memoryview]:
    """The bytes ``[low, high)``, piece by piece."""
    return [
        memoryview(piece)[max(low - at, 0) : high - at] for at, piece in pieces if at < high and at + len(piece) > low
    ]


def _rows(shard: Shard, pieces: Pieces, rows: slice) -> list[Sample]:
    names, extents = list(shard.index.fields), list(shard.index.fields.values())
    offsets = [part.offset[rows].view(np.int64) for part in extents]
    sizes = [part.size[rows].view(np.int64) for part in extents]
    low = functools.reduce(np.minimum, [np.where(offset > 0, offset, _FAR) for offset in offsets])
    high = functools.reduce(np.maximum, [offset + size for offset, size in zip(offsets, sizes, strict=True)])
    buffers, bases = _buffers(pieces, low, high)
    starts = [np.where(offset > 0, offset - bases, -1) for offset in offsets]
    return whole_rows(buffers, shard.url, shard.index.key_list(rows.start, rows.stop), names, starts, sizes)


def _buffers(pieces: Pieces, low: Int64, high: Int64) -> tuple[list[bytes], Int64]:
    """For each sample the piece that it lies in, and where that begins; its own bytes where it lies across some."""
    begins = np.array([at for at, _ in pieces])
    first = np.searchsorted(begins, low, "right") - 1
    last = np.searchsorted(begins, np.maximum(high - 1, low), "right") - 1
    buffers, bases = [pieces[place][1] for place in first.tolist()], begins[first]
    for row in np.flatnonzero(first != last).tolist():
        own = pieces[int(first[row]) : int(last[row]) + 1]
        buffers[row] = b"".join(_between(own, int(low[row]), int(high[row])))
        bases[row] = low[row]
    return buffers, bases
