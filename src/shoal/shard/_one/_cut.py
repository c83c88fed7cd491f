"""Members cut as they are read: some of their bytes straight to where they are wanted, the rest together.

One read takes a run of neighbouring members, and the system puts each piece where it belongs: the numbers of a large
array into its row of a batch, what stands around them into one small buffer. Nothing large is copied afterwards.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.shard._tar import crc32

from ._bytes import TarBytes

__all__ = ["Cuts", "Pieces", "read_cut"]

Int64 = npt.NDArray[np.int64]

_SKIPPED = 4096
"""Two members with less between them, a header mostly, are read in one go."""
_AT_ONCE = 384 << 10
"""Of members read in one go: little enough to be still in the processor's cache when their checksums are made."""
_LEAST_SHARE = 4 << 20
"""What a thread must have to read before it is worth starting it."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """How to cut a member: a gap that is kept, a part that is taken, a gap, a part, ..., and a gap at the end.

    Members of other sizes differ in one gap, ``varying``.
    """

    gaps: tuple[int, ...]
    taken: tuple[int, ...]
    varying: int

    @property
    def size(self) -> int:
        """Of a member that has these very gaps."""
        return sum(self.gaps) + sum(self.taken)

    def fit(self, sizes: Int64) -> bool:
        """Whether members of these sizes can be cut so."""
        return bool((sizes >= self.size - self.gaps[self.varying]).all())


@dataclass(frozen=True, slots=True)
class Pieces:
    """What was kept of each member, ``data[starts[i] : starts[i] + sizes[i]]``, and the checksums of whole members."""

    data: bytes
    starts: Int64
    sizes: Int64
    crcs: list[int]


def read_cut(
    data: TarBytes,
    offsets: Int64,
    sizes: Int64,
    cuts: Cuts,
    outs: Sequence[memoryview],
    places: Int64,
    *,
    checksums: bool,
    threads: int = 1,
) -> Pieces:
    """Read members that lie at these offsets, in any order: what is taken of member ``i`` fills row ``places[i]``.

    ``outs`` are the rows of each part that is taken, one after the other. Up to ``threads`` read at once, where there
    is enough for each; they are gone when this returns.
    """
    kept = sizes - sum(cuts.taken)
    starts = np.cumsum(kept) - kept
    scratch = bytearray(int(kept.sum()))
    members = _members(memoryview(scratch), starts.tolist(), sizes.tolist(), cuts, outs, places.tolist())
    own_share, *shares = _shares(len(members), min(threads, int(sizes.sum()) // _LEAST_SHARE))

    def fill(share: slice) -> list[int]:
        return _fill(data, offsets[share].tolist(), sizes[share].tolist(), members[share], checksums)

    if not shares:
        crcs = fill(own_share)
        return Pieces(bytes(scratch), starts, kept, crcs)
    with ThreadPoolExecutor(len(shares)) as others:
        futures = [others.submit(fill, share) for share in shares]
        crcs = fill(own_share)
        crcs += (crc for future in futures for crc in future.result())
    return Pieces(bytes(scratch), starts, kept, crcs)


def _shares(count: int, shares: int) -> list[slice]:
    edges = [count * share // max(shares, 1) for share in range(max(shares, 1) + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(edges)]


def _members(
    scratch: memoryview,
    starts: list[int],
    sizes: list[int],
    cuts: Cuts,
    outs: Sequence[memoryview],
    places: list[int],
) -> list[list[memoryview]]:
    """Where the bytes of each member go, piece by piece."""
    more = [size - cuts.size for size in sizes]
    pieces: list[list[memoryview]] = [[] for _ in sizes]
    ats = starts
    for number, gap in enumerate(cuts.gaps):
        stops = [at + gap + (extra if number == cuts.varying else 0) for at, extra in zip(ats, more, strict=True)]
        for own, at, stop in zip(pieces, ats, stops, strict=True):
            own.append(scratch[at:stop])
        ats = stops
        if number < len(outs):
            out, size = outs[number], cuts.taken[number]
            for own, place in zip(pieces, places, strict=True):
                own.append(out[place * size : (place + 1) * size])
    return pieces


def _fill(
    data: TarBytes, offsets: list[int], sizes: list[int], members: list[list[memoryview]], checksums: bool
) -> list[int]:
    """Read run by run. All that can be is worked out before: each read empties the processor's cache of everything."""
    crcs: list[int] = []
    for start, parts, own in list(_runs(offsets, sizes, members)):
        data.read_into(start, parts)
        if checksums:
            crcs += _crcs_of(own)
    return crcs


def _runs(
    offsets: list[int], sizes: list[int], members: list[list[memoryview]]
) -> Iterator[tuple[int, list[memoryview], list[list[memoryview]]]]:
    """Members that are read in one go: where they start, what to fill, and the pieces of each."""
    skipped = memoryview(bytearray(_SKIPPED))
    first, stop, parts = 0, 0, list[memoryview]()
    for number, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        if number and not (0 <= offset - stop <= _SKIPPED and stop - offsets[first] < _AT_ONCE):
            yield offsets[first], parts, members[first:number]
            first, parts = number, []
        elif number:
            parts.append(skipped[: offset - stop])
        parts += members[number]
        stop = offset + size
    if parts:
        yield offsets[first], parts, members[first:]


def _crcs_of(members: list[list[memoryview]]) -> list[int]:
    if len(members[0]) == 3:  # one part is taken, as is usual
        return [crc32(after, crc32(taken, crc32(before))) for before, taken, after in members]
    return [functools.reduce(_crc_on, pieces, 0) for pieces in members]


def _crc_on(crc: int, piece: memoryview) -> int:
    return crc32(piece, crc)
