"""Where a loader stands: epoch, position and progress of each rank, to resume from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import LoaderStateError
from shoal.order import EpochPlan, PartitionState, PendingElement, Split, State, plan_epoch

from ._pipeline import BoundPipeline
from ._stages import Element, ElementPosition

__all__ = [
    "Cursor",
    "PartitionCursors",
    "following",
    "place_after",
    "place_from",
    "place_of_epoch",
    "replaying",
    "restarted",
    "resumed",
]

Int64 = npt.NDArray[np.int64]
_MOST = 1 << 14


@dataclass(frozen=True, slots=True)
class Cursor:
    """One of ``plan`` and ``begin`` says where work starts; ``mark`` and ``count`` what was delivered since."""

    epoch: int
    plan: EpochPlan | None = None
    begin: PartitionCursors | None = None
    mark: ElementPosition | None = None
    count: int = 0
    """Elements delivered in this epoch."""
    replayed: int = 0
    """Elements to pass over before the first is delivered: those of an earlier run of this epoch."""

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of the epoch was delivered."""
        return self.count == 0

    def after(self, element: Element) -> Cursor:
        """One element further."""
        return replace(self, mark=element.mark, count=self.count + 1)

    def is_at(self, other: Cursor) -> bool:
        """Whether work for this place serves the other."""
        mine, its = (
            (self.epoch, self.plan, self.begin, self.replayed),
            (
                other.epoch,
                other.plan,
                other.begin,
                other.replayed,
            ),
        )
        return mine == its and self.is_fresh and other.is_fresh

    def to_dict(self, built: BoundPipeline) -> dict[str, Any]:
        """As plain values, ready for JSON."""
        if self.plan is not None and built.laid.is_marked:
            return self._exact_state(built, self.plan).to_dict()
        settings = built.settings_at(self.epoch * built.length)
        if self.begin is not None and built.laid.is_marked:
            mark = self.mark or ElementPosition(min(self.begin.positions), pending=self.begin.pending)
            shares = shares_after(self.begin, mark, built.split)
            return State(settings, self.epoch, steps=self.count, shares=shares).to_dict()
        return State(settings, self.epoch, steps=self.count).to_dict()

    def _exact_state(self, built: BoundPipeline, plan: EpochPlan) -> State:
        position = plan.start if self.mark is None else self.mark.position - plan.epoch * plan.count
        settings = built.settings_at(plan.epoch * plan.count + position)
        return State(settings, plan.epoch, position, plan.epoch_start, plan.end, plan.global_batch, self.count)


def place_of_epoch(built: BoundPipeline, epoch: int) -> Cursor:
    """The beginning of an epoch."""
    if built.line_steps is not None and not built.laid.is_marked:
        # Where it begins on the line is only found by going there.
        return replace(_start(built, 0), epoch=epoch, replayed=epoch * built.line_steps)
    return _start(built, epoch)


def _start(built: BoundPipeline, epoch: int) -> Cursor:
    if built.laid.mode == "exact":
        return Cursor(epoch, plan=_plan_of(built, epoch))
    if built.laid.mode == "loose":
        return Cursor(epoch, begin=PartitionCursors.at(epoch * built.length))
    return Cursor(epoch)


def _plan_of(built: BoundPipeline, epoch: int) -> EpochPlan:
    """The plan of an epoch of a run that began with epoch 0: under ``carry`` the epochs before shift it."""
    assert built.order is not None  # noqa: S101 - exact pipelines have one
    count, whole = max(built.order.length, 1), built.split.readers * built.batch_size
    if built.plan_steps is not None:
        return _steps_plan(built, epoch * built.plan_steps * whole, built.plan_steps)
    start = -(-epoch * count // whole) * whole if built.options.tail == "carry" and epoch else epoch * count
    data_epoch, position = divmod(start, count)
    return plan_epoch(
        built.order.length,
        epoch=data_epoch,
        start=position,
        batch_size=built.batch_size,
        split=built.split,
        tail=built.options.tail,
        drop_last=built.drop_last,
    )


def _steps_plan(built: BoundPipeline, place: int, steps: int) -> EpochPlan:
    """So many steps from a place on the infinite line."""
    assert built.order is not None  # noqa: S101 - exact pipelines have one
    epoch, start = divmod(place, max(built.order.length, 1))
    end = start + steps * built.split.readers * built.batch_size
    return plan_epoch(
        built.order.length,
        epoch=epoch,
        start=start,
        end=end,
        batch_size=built.batch_size,
        split=built.split,
        tail="carry",
    )


def following(built: BoundPipeline, plan: EpochPlan) -> EpochPlan:
    """The plan after a plan."""
    steps = built.plan_steps
    return plan.next_epoch() if steps is None else _steps_plan(built, plan.epoch * plan.count + plan.end, steps)


def place_after(built: BoundPipeline, place: Cursor) -> Cursor:
    """The beginning of the epoch after this one."""
    if built.line_steps is not None:
        if not built.laid.is_marked:
            return place_of_epoch(built, place.epoch + 1)
        return Cursor(place.epoch + 1, begin=_own_begin(built, place))
    if place.plan is not None:
        return Cursor(place.epoch + 1, plan=following(built, place.plan))
    return place_of_epoch(built, place.epoch + 1)


def _own_begin(built: BoundPipeline, place: Cursor) -> PartitionCursors:
    """Where this reader's own share goes on after what was delivered."""
    begin = place.begin or PartitionCursors.at(place.epoch * built.length)
    if place.mark is None:
        return begin
    return begin_of_one(shares_after(begin, place.mark, built.split))


def restarted(built: BoundPipeline, place: Cursor) -> Cursor:
    """The beginning of this epoch: where it began for this run, which a carried batch may have moved."""
    if built.line_steps is not None and built.laid.is_marked:
        return Cursor(place.epoch, begin=place.begin)  # after a loaded state, where that was
    if place.plan is None or built.options.steps_per_epoch is not None:
        return place_of_epoch(built, place.epoch)
    start = place.plan.epoch_start
    plan = plan_epoch(
        place.plan.count,
        epoch=place.plan.epoch,
        start=start,
        batch_size=built.batch_size,
        split=built.split,
        tail=built.options.tail,
        drop_last=built.drop_last,
    )
    return Cursor(place.epoch, plan=plan)


def resumed(before: BoundPipeline, built: BoundPipeline, place: Cursor) -> Cursor | None:
    """The same place for new work, in this process, also under another batch size; None when its epoch is over."""
    if not built.laid.is_marked:
        start = place_of_epoch(built, place.epoch)
        return replace(start, count=place.count, replayed=start.replayed + place.count)
    if built.laid.mode == "loose":
        return Cursor(place.epoch, begin=_own_begin(built, place), count=place.count)
    state = State.from_dict(place.to_dict(before))
    if place.count and state.end is not None and state.position >= state.end:
        return None
    return replace(_exact_place(built, state, place.count), epoch=place.epoch, count=place.count)


def place_from(built: BoundPipeline, document: Mapping[str, Any]) -> Cursor:
    """Where a state was taken. Raises LoaderStateError when it is not of this data, order and pipeline."""
    state = State.from_dict(document)
    state.check_fingerprint(built.settings_at(state.epoch * built.length + state.position))
    count = state.steps
    if built.laid.is_marked and built.laid.mode == "exact":
        return _exact_place(built, state, count)
    over = built.line_steps is not None and count >= built.line_steps  # taken after an epoch's last element
    epoch, count = (state.epoch + 1, 0) if over else (state.epoch, count)
    if built.laid.is_marked:
        begin = begin_from(state.shares, built.split, built.length)
        return Cursor(epoch, begin=begin, count=count)
    place = place_of_epoch(built, epoch)
    return replace(place, count=count, replayed=place.replayed + count)


def replaying(built: BoundPipeline, place: Cursor) -> str:
    """What it costs to go on from a place that was only found by its number."""
    return (
        f"this pipeline goes on by replaying: {place.replayed:,} elements are made again and passed over, since "
        f"{built.laid.why_replayed}"
    )


def _exact_place(built: BoundPipeline, state: State, count: int) -> Cursor:
    steps = built.plan_steps
    if steps is not None:
        position = state.epoch * built.length + state.position
        whole = state.global_batch or built.split.readers * built.batch_size
        epoch = max(0, position // whole - count) // steps  # of so many steps each, if batches were always as large
        if count >= steps:
            return Cursor(epoch + 1, plan=_steps_plan(built, position, steps))
        return Cursor(epoch, plan=_steps_plan(built, position, steps - count), count=count)
    plan = state.plan(
        built.length, batch_size=built.batch_size, split=built.split, tail=built.options.tail, drop_last=built.drop_last
    )
    fresh = plan.start == plan.epoch_start
    return Cursor(plan.epoch, plan=plan, count=0 if fresh else count)


# The places of an epoch are dealt to readers in turn: place ``p`` is of share ``p mod n``. Each reader's share has a
# place before which all is used up. When the number of readers changes, the shares of old are read on from where each
# was left.
@dataclass(frozen=True, slots=True)
class PartitionCursors:
    """Where to go on, for each of ``len(positions)`` shares."""

    positions: tuple[int, ...]
    parts: tuple[int, ...]
    pending: tuple[tuple[PendingElement, ...], ...] = ()

    @classmethod
    def at(cls, position: int) -> PartitionCursors:
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


def begin_from(shares: Sequence[PartitionState], split: Split, length: int) -> PartitionCursors:
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
    return PartitionCursors(tuple(positions), tuple(parts), tuple(group for group in groups if group))


def begin_of_one(shares: Sequence[PartitionState]) -> PartitionCursors:
    """Where one reader goes on, from its own shares: those of others are not its business."""
    size = math.lcm(*(share.of for share in shares))
    last = max((share.position, share.part) for share in shares)
    places = [last] * size
    for share in shares:
        for index in range(share.index, size, share.of):
            places[index] = share.position, share.part
    positions, parts = zip(*places, strict=True)
    return PartitionCursors(positions, parts, tuple(group for share in shares for group in share.pending))


def shares_after(begin: PartitionCursors, mark: ElementPosition, split: Split) -> tuple[PartitionState, ...]:
    """The shares of one reader after it has come to ``mark``."""
    size, here = math.lcm(len(begin.positions), split.readers), (mark.position, mark.part)
    mine = range(split.reader, size, split.readers)
    begun = [(begin.positions[at % len(begin.positions)], begin.parts[at % len(begin.positions)]) for at in mine]
    if all(place <= here for place in begun):
        return (PartitionState(split.reader, split.readers, *here, mark.pending),)
    # Some of it was further already, when another number of ranks shared the line.
    places = [max(place, here) for place in begun]
    first, *rest = zip(mine, places, strict=True)
    return (
        PartitionState(first[0], size, *first[1], mark.pending),
        *(PartitionState(index, size, *place) for index, place in rest),
    )
