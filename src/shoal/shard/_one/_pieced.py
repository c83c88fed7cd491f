"""Samples out of pieces of a shard, as they come over the wire: nothing is joined but what lies across two pieces.

To join a block first would copy each byte once more, and the processor's time is what a fast wire leaves short.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.shard._index import Blocks, Edges, LongExtents, ShardIndex, edges_from
from shoal.shard._tar import crc32
from shoal.store import PulledReader

from ._rows import Sample, edged_rows
from ._shard import Shard

__all__ = ["PiecedBlocks"]

Int64 = npt.NDArray[np.int64]
Pieces = Sequence[tuple[int, bytes]]
_FAR = np.int64(1 << 62)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where members lie, and the first and the last byte of each sample's."""

    edges: Edges
    first: Int64
    last: Int64


class PiecedBlocks:
    """Reads blocks of a shard one after the other, all fields of them."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        index = shard.index
        is_usual = index.facts.compression is None and not isinstance(index.fields, LongExtents)
        self._blocks = index.blocks if is_usual else None
        self._names = list(index.fields)
        self._places: _Places | None = None

    @functools.cached_property
    def _sparse(self) -> tuple[bool, ...]:
        return tuple(not is_everywhere for is_everywhere in self._shard.presence.values())

    def read(self, reader: PulledReader, start: int, stop: int) -> list[Sample] | None:
        """Samples ``[start, stop)``; None where they are no block, or its checksum is wrong.

        Raises the errors of the store.
        """
        blocks = self._blocks
        if blocks is None:
            return None
        number = int(np.searchsorted(blocks.rows, start))
        if number == len(blocks) or blocks.rows[number] != start or blocks.rows[number + 1] != stop:
            return None
        pieces = reader.pieces(*(int(at) for at in blocks.offsets[number : number + 2]))
        if not pieces or (self._shard.verify and _crc(pieces, blocks, number) != blocks.crcs[number]):
            return None
        return self._rows(pieces, start, stop)

    def _rows(self, pieces: Pieces, start: int, stop: int) -> list[Sample]:
        places = self._places
        if places is None or not places.edges.hold(start, stop):
            places = self._places = _places_from(self._shard.index, start, stop)  # of two threads, each has its own
        rows = slice(start - places.edges.first, stop - places.edges.first)
        buffers, bases = _buffers(pieces, places.first[rows], places.last[rows])
        edges = (places.edges.lines[:, rows] - bases).tolist()
        keys = self._shard.index.key_list(start, stop)
        return edged_rows(buffers, self._shard.url, keys, self._names, edges, self._sparse)


def _places_from(index: ShardIndex, start: int, stop: int) -> _Places:
    edges = edges_from(index, start, stop)
    starts, stops = edges.lines[::2], edges.lines[1::2]
    first = np.where(starts < 0, _FAR, starts).min(axis=0, initial=_FAR)
    return _Places(edges, first, np.maximum(stops.max(axis=0, initial=0) - 1, first))


def _crc(pieces: Pieces, blocks: Blocks, number: int) -> int:
    low, high = (int(at) for at in blocks.offsets[number : number + 2])
    return functools.reduce(lambda crc, part: crc32(part, crc), _between(pieces, low, high), 0)


def _between(pieces: Pieces, low: int, high: int) -> list[memoryview]:
    """The bytes ``[low, high)``, piece by piece."""
    return [
        memoryview(piece)[max(low - at, 0) : high - at] for at, piece in pieces if at < high and at + len(piece) > low
    ]


def _buffers(pieces: Pieces, first: Int64, last: Int64) -> tuple[list[bytes], Int64]:
    """For each sample the piece that it lies in, and where that begins; its own bytes where it lies across some."""
    begins = np.array([at for at, _ in pieces])
    begin, end = begins.searchsorted(first, "right") - 1, begins.searchsorted(last, "right") - 1
    buffers, bases = [pieces[place][1] for place in begin.tolist()], begins[begin]
    for row in np.flatnonzero(begin != end).tolist():
        own = pieces[int(begin[row]) : int(end[row]) + 1]
        buffers[row] = b"".join(_between(own, int(first[row]), int(last[row]) + 1))
        bases[row] = first[row]
    return buffers, bases
