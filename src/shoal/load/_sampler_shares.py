"""What one rank reads of a sampler, or of a batch sampler.

A sampler is a drawn list. All ranks draw the same one and split it by position, as they split an order: a step of all
ranks together is ``readers * batch_size`` consecutive numbers. Ranks cannot compare their lists, so a random sampler
needs the same seed on all of them. A checksum of the list so far is part of the state, and a sampler that draws another
list on resuming is refused.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import LoaderStateError
from shoal.order._epoch_plan import Split, Tail, plan_epoch

from ._stages import ResumePoint

__all__ = ["SamplerShare", "check_drawn", "sampler_shares", "splits_itself"]

_SPLITTERS = (("num_replicas", "rank"), ("num_processes", "process_index"))
"""Attributes of samplers that split over ranks themselves: PyTorch's, shoal's and most others; Accelerate's."""


@dataclass(frozen=True, slots=True)
class SamplerShare:
    """What one rank takes at a time: one step if steps are batches, else several."""

    values: list[Any]
    """Sample numbers, or lists of them."""
    repeats: int
    """How many of the values are repeats, which only fill the last step."""
    resume_points: list[ResumePoint]
    """Where to resume after each step."""
    first: list[Any]
    """What was drawn first in the epoch."""


def splits_itself(sampler: object) -> bool:
    """Whether a sampler, or the one in a batch sampler, gives each rank its own share already.

    Examples:
        >>> from shoal.order._samplers import DistributedSampler
        >>> splits_itself(DistributedSampler(10, num_replicas=2, rank=0)), splits_itself(range(10))
        (True, False)
    """
    return any(
        all(isinstance(getattr(each, name, None), int) for name in names)
        for each in (sampler, getattr(sampler, "sampler", None), getattr(sampler, "batch_sampler", None))
        for names in _SPLITTERS
    )


def sampler_shares(
    drawn: Iterable[Any],
    count: int,
    *,
    batch_size: int,
    split: Split,
    tail: Tail,
    drop_last: bool,
    start: ResumePoint | None = None,
) -> Iterator[SamplerShare]:
    """Yield the shares of one rank, ``count`` values at a time, from ``start`` on.

    Raises LoaderStateError if the list up to ``start`` is not the one that was drawn when the state was saved.

    Examples:
        >>> shares = sampler_shares(range(7), 2, batch_size=2, split=Split(1, 2), tail="pad", drop_last=False)
        >>> [(share.values, share.repeats) for share in shares]
        [([1, 3], 0), ([5, 0], 1)]
    """
    values, block_size = iter(drawn), count * split.readers
    first, position, checksum = _skip(values, block_size, start)
    step = batch_size * split.readers
    while block := list(itertools.islice(values, block_size)):
        first += block[: block_size - len(first)]
        if len(block) == block_size:
            own, repeats = block[split.reader :: split.readers], 0
            ends = list(range(position + step, position + block_size + 1, step))
        else:  # the epoch's last one, which is filled or cut so that every rank has as much
            plan = plan_epoch(
                position + len(block),
                start=position,
                batch_size=batch_size,
                split=split,
                tail=tail,
                drop_last=drop_last,
            )
            at = plan.at(range(plan.steps))
            own = [block[one - position] if one >= position else first[one] for one in at.positions.tolist()]
            repeats, ends = int(at.repeats.sum()), [plan.consumed(one + 1) for one in range(plan.steps)]
        points = []
        consumed = position
        for end in ends:
            checksum = zlib.crc32(_encode(block[consumed - position : end - position]), checksum)
            points.append(ResumePoint(end, drawn=f"{checksum:08x}"))
            consumed = end
        if points:
            yield SamplerShare(own, repeats, points, first)
        position += len(block)


def _skip(values: Iterator[Any], block_size: int, start: ResumePoint | None) -> tuple[list[Any], int, int]:
    """Draw the values before ``start``; return the first ones, the position and the checksum."""
    first: list[Any] = []
    position, checksum = 0, 0
    while start is not None and position < start.position:
        block = list(itertools.islice(values, min(block_size, start.position - position)))
        if not block:
            break
        first += block[: block_size - len(first)]
        position, checksum = position + len(block), zlib.crc32(_encode(block), checksum)
    if start is not None:
        check_drawn(f"{checksum:08x}", start.drawn)
    return first, position, checksum


def check_drawn(drawn: str, saved: str) -> None:
    """Raise LoaderStateError if a sampler has drawn another list than when the state was saved."""
    if saved and drawn != saved:
        raise LoaderStateError(
            "the sampler draws other samples than it did when the state was saved",
            hint="give it the same seed or generator, or a set_epoch method, and resume on the rank that saved the "
            "state if the sampler splits over ranks itself",
        )


def _encode(values: list[Any]) -> bytes:
    """Return sample numbers, or lists of them, as bytes."""
    if values and isinstance(values[0], Iterable):
        return b"".join(_encode([len(batch), *batch]) for batch in map(list, values))
    return np.asarray(values, np.int64).tobytes()
