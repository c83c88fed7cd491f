"""How far each share of the line has come, where ranks go at different speeds: after a filter, or while packing.

The places of an epoch are dealt to readers in turn: place ``p`` is of share ``p mod n``. Each reader's share has a
place before which all is used up. When the number of readers changes, the shares of old are read on from where each
was left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import LoaderStateError
from shoal.load._steps import Mark
from shoal.order import Pending, Share, Split

__all__ = ["Begin", "begin_from", "begin_of_one", "shares_after"]

Int64 = npt.NDArray[np.int64]
_MOST = 1 << 14


@dataclass(frozen=True, slots=True)
class Begin:
    """Where to go on, for each of ``len(positions)`` shares."""

    positions: tuple[int, ...]
    parts: tuple[int, ...]
    pending: tuple[tuple[Pending, ...], ...] = ()

    @classmethod
    def at(cls, position: int) -> Begin:
        """The same place for all."""
        return cls((position,), (0,))

    def is_new(self, places: Int64, length: int) -> npt.NDArray[np.bool_]:
        """Which places have something left."""
        share = (places % max(length, 1)) % len(self.positions)
        return places >= np.asarray(self.positions, np.int64)[share]

    def is_new_part(self, position: int, part: int, length: int) -> bool:
        """Whether this part of what came of a sample is still to come."""
        share = position % max(length, 1) % len(self.positions)
        return position != self.positions[share] or part >= self.parts[share]


def begin_from(shares: Sequence[Share], split: Split, length: int) -> Begin:
    """Where one reader goes on, from the shares of all. Raises LoaderStateError when some are missing."""
    size = math.lcm(*(share.of for share in shares))
    if size > _MOST:
        raise LoaderStateError("the number of ranks changed too often in one epoch", found=f"{size} shares")
    positions, parts = [-1] * size, [0] * size
    for share in shares:
        for index in range(share.index, size, share.of):
            positions[index], parts[index] = share.position, share.part
    if -1 in positions:
        missing = positions.index(-1)
        hint = "gather the state of every rank: State.merge(states)"
        raise LoaderStateError("the state of a rank is missing", expected=f"share {missing} of {size}", hint=hint)
    groups = [
        tuple(key for key in group if key[0] % max(length, 1) % split.readers == split.reader)
        for share in shares
        for group in share.pending
    ]
    return Begin(tuple(positions), tuple(parts), tuple(group for group in groups if group))


def begin_of_one(shares: Sequence[Share]) -> Begin:
    """Where one reader goes on, from its own shares: those of others are not its business."""
    size = math.lcm(*(share.of for share in shares))
    last = max((share.position, share.part) for share in shares)
    places = [last] * size
    for share in shares:
        for index in range(share.index, size, share.of):
            places[index] = share.position, share.part
    positions, parts = zip(*places, strict=True)
    return Begin(positions, parts, tuple(group for share in shares for group in share.pending))


def shares_after(begin: Begin, mark: Mark, split: Split) -> tuple[Share, ...]:
    """The shares of one reader after it has come to ``mark``."""
    size, here = math.lcm(len(begin.positions), split.readers), (mark.position, mark.part)
    mine = range(split.reader, size, split.readers)
    begun = [(begin.positions[at % len(begin.positions)], begin.parts[at % len(begin.positions)]) for at in mine]
    if all(place <= here for place in begun):
        return (Share(split.reader, split.readers, *here, mark.pending),)
    # Some of it was further already, when another number of ranks shared the line.
    places = [max(place, here) for place in begun]
    first, *rest = zip(mine, places, strict=True)
    return (
        Share(first[0], size, *first[1], mark.pending),
        *(Share(index, size, *place) for index, place in rest),
    )
