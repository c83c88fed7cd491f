"""`Cursor`, the position of a loader: epoch and progress of each rank, to save and resume.

An indexed source is read in one of two ways. If a step of the epoch is a batch, the position is an `EpochPlan` of this
package's ``order``. If a filter or its like comes first, positions of an epoch are dealt to readers in turn: position
``p`` belongs to partition ``p mod n``, and `PartitionCursors` has the first position of each partition that was not
delivered. When the number of readers changes, the old partitions are read on from where each was left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import LoaderStateError
from shoal.order._epoch_plan import EpochPlan, Split, plan_epoch
from shoal.order._state import PartitionState, PendingElement, State

from ._pipeline import BoundPipeline
from ._stages import Element, ResumePoint

__all__ = [
    "Cursor",
    "PartitionCursors",
    "cursor_after",
    "cursor_at_epoch",
    "cursor_from_state",
    "next_plan",
    "rebind_cursor",
    "replay_warning",
    "restart_epoch",
]

_MAX_PARTITIONS = 1 << 14


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of a loader.

    Either ``plan`` or ``partitions`` is set and says where to start; ``resume_point`` and ``count`` say what was
    delivered since. Both are None for streams and samplers.
    """

    epoch: int
    plan: EpochPlan | None = None
    partitions: PartitionCursors | None = None
    resume_point: ResumePoint | None = None
    count: int = 0
    """Elements delivered in this epoch."""
    replayed: int = 0
    """Elements to skip before the first is delivered: those of an earlier run of this epoch."""
    sampled: ResumePoint | None = None
    """Where a sampler goes on; what it draws before is not read."""

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of the epoch was delivered yet."""
        return self.count == 0

    def after(self, element: Element) -> Cursor:
        """Return the position after one more element."""
        return replace(self, resume_point=element.resume_point, count=self.count + 1)

    def is_at(self, other: Cursor) -> bool:
        """Whether a run that starts at one of the two positions serves the other."""
        own, others = ((each.epoch, each.plan, each.partitions, each.replayed, each.sampled) for each in (self, other))
        return own == others and self.is_fresh and other.is_fresh

    def to_dict(self, pipeline: BoundPipeline) -> dict[str, Any]:
        """Return the state as plain values, ready for JSON."""
        if self.plan is not None and pipeline.is_seekable:
            return self._plan_state(pipeline, self.plan).to_dict()
        settings = pipeline.settings_at(self.epoch * pipeline.length)
        if self.partitions is not None and pipeline.is_seekable:
            resume_point = self.resume_point or ResumePoint(
                min(self.partitions.positions), pending=self.partitions.pending
            )
            partitions = partitions_after(self.partitions, resume_point, pipeline.split)
            return State(settings, self.epoch, steps=self.count, shares=partitions).to_dict()
        point = self.resume_point or self.sampled
        if pipeline.mode == "sampler" and point is not None:
            return State(settings, self.epoch, point.position, steps=self.count, drawn=point.drawn).to_dict()
        return State(settings, self.epoch, steps=self.count).to_dict()

    def _plan_state(self, pipeline: BoundPipeline, plan: EpochPlan) -> State:
        position = plan.start if self.resume_point is None else self.resume_point.position - plan.epoch * plan.count
        settings = pipeline.settings_at(plan.epoch * plan.count + position)
        return State(settings, plan.epoch, position, plan.epoch_start, plan.end, plan.global_batch, self.count)


def cursor_at_epoch(pipeline: BoundPipeline, epoch: int) -> Cursor:
    """Return the beginning of an epoch."""
    start, replayed = epoch, 0
    if pipeline.stream_steps is not None and not pipeline.is_seekable:
        # Where it begins in the stream is only found by reading up to there.
        start, replayed = 0, epoch * pipeline.stream_steps
    plan = _plan_at_epoch(pipeline, start) if pipeline.mode == "exact" else None
    partitions = PartitionCursors.at(start * pipeline.length) if pipeline.mode == "loose" else None
    return Cursor(epoch, plan, partitions, replayed=replayed)


def _plan_at_epoch(pipeline: BoundPipeline, epoch: int) -> EpochPlan:
    """Return the plan of an epoch in a run that began with epoch 0: with ``tail="carry"``, epochs before shift it."""
    assert pipeline.order is not None  # noqa: S101 - exact pipelines have one
    count, global_batch = max(pipeline.order.length, 1), pipeline.split.readers * pipeline.batch_size
    if pipeline.plan_steps is not None:
        return _plan_of_steps(pipeline, epoch * pipeline.plan_steps * global_batch, pipeline.plan_steps)
    carries = pipeline.options.tail == "carry" and epoch
    start = -(-epoch * count // global_batch) * global_batch if carries else epoch * count
    data_epoch, position = divmod(start, count)
    return plan_epoch(
        pipeline.order.length,
        epoch=data_epoch,
        start=position,
        batch_size=pipeline.batch_size,
        split=pipeline.split,
        tail=pipeline.options.tail,
        drop_last=pipeline.drop_last,
    )


def _plan_of_steps(pipeline: BoundPipeline, position: int, steps: int) -> EpochPlan:
    """Return a plan of ``steps`` steps from a position, counted through all epochs."""
    assert pipeline.order is not None  # noqa: S101 - exact pipelines have one
    epoch, start = divmod(position, max(pipeline.order.length, 1))
    end = start + steps * pipeline.split.readers * pipeline.batch_size
    return plan_epoch(
        pipeline.order.length,
        epoch=epoch,
        start=start,
        end=end,
        batch_size=pipeline.batch_size,
        split=pipeline.split,
        tail="carry",
    )


def next_plan(pipeline: BoundPipeline, plan: EpochPlan) -> EpochPlan:
    """Return the plan of the next epoch."""
    steps = pipeline.plan_steps
    return plan.next_epoch() if steps is None else _plan_of_steps(pipeline, plan.epoch * plan.count + plan.end, steps)


def cursor_after(pipeline: BoundPipeline, cursor: Cursor) -> Cursor:
    """Return the beginning of the epoch after this one."""
    if pipeline.stream_steps is not None:
        if not pipeline.is_seekable:
            return cursor_at_epoch(pipeline, cursor.epoch + 1)
        return Cursor(cursor.epoch + 1, partitions=_remaining_partitions(pipeline, cursor))
    if cursor.plan is not None:
        return Cursor(cursor.epoch + 1, plan=next_plan(pipeline, cursor.plan))
    return cursor_at_epoch(pipeline, cursor.epoch + 1)


def _remaining_partitions(pipeline: BoundPipeline, cursor: Cursor) -> PartitionCursors:
    """Return where this reader's own partitions continue."""
    partitions = cursor.partitions or PartitionCursors.at(cursor.epoch * pipeline.length)
    if cursor.resume_point is None:
        return partitions
    return join_own_partitions(partitions_after(partitions, cursor.resume_point, pipeline.split))


def restart_epoch(pipeline: BoundPipeline, cursor: Cursor) -> Cursor:
    """Return the beginning of this epoch, which a carried batch may have moved."""
    if pipeline.stream_steps is not None and pipeline.is_seekable:
        return Cursor(cursor.epoch, partitions=cursor.partitions)  # after a loaded state, its position
    if cursor.plan is None or pipeline.options.steps_per_epoch is not None:
        return cursor_at_epoch(pipeline, cursor.epoch)
    start = cursor.plan.epoch_start
    plan = plan_epoch(
        cursor.plan.count,
        epoch=cursor.plan.epoch,
        start=start,
        batch_size=pipeline.batch_size,
        split=pipeline.split,
        tail=pipeline.options.tail,
        drop_last=pipeline.drop_last,
    )
    return Cursor(cursor.epoch, plan=plan)


def rebind_cursor(before: BoundPipeline, pipeline: BoundPipeline, cursor: Cursor) -> Cursor | None:
    """Return the same position for another pipeline, such as another batch size; None if the epoch is over."""
    if not pipeline.is_seekable:
        start = cursor_at_epoch(pipeline, cursor.epoch)
        if pipeline.skips_groups:
            return replace(start, count=cursor.count, sampled=cursor.resume_point or cursor.sampled)
        return replace(start, count=cursor.count, replayed=start.replayed + cursor.count)
    if pipeline.mode == "loose":
        return Cursor(cursor.epoch, partitions=_remaining_partitions(pipeline, cursor), count=cursor.count)
    state = State.from_dict(cursor.to_dict(before))
    if cursor.count and state.end is not None and state.position >= state.end:
        return None
    return replace(_cursor_of_plan(pipeline, state, cursor.count), epoch=cursor.epoch, count=cursor.count)


def cursor_from_state(pipeline: BoundPipeline, document: Mapping[str, Any]) -> Cursor:
    """Return the position of a state. Raises LoaderStateError if it is of other data, order or pipeline."""
    state = State.from_dict(document)
    state.check_fingerprint(pipeline.settings_at(state.epoch * pipeline.length + state.position))
    count = state.steps
    if pipeline.is_seekable and pipeline.mode == "exact":
        return _cursor_of_plan(pipeline, state, count)
    is_over = pipeline.stream_steps is not None and count >= pipeline.stream_steps  # saved after the last element
    epoch, count = (state.epoch + 1, 0) if is_over else (state.epoch, count)
    if pipeline.is_seekable:
        partitions = merge_partitions(state.shares, pipeline.split, pipeline.length)
        return Cursor(epoch, partitions=partitions, count=count)
    cursor = cursor_at_epoch(pipeline, epoch)
    drawn = ResumePoint(state.position, drawn=state.drawn) if state.drawn else None
    if pipeline.skips_groups:
        return replace(cursor, count=count, sampled=drawn)
    return replace(cursor, count=count, replayed=cursor.replayed + count, sampled=drawn)


def replay_warning(pipeline: BoundPipeline, cursor: Cursor) -> str:
    """Return the warning for a position that is only found by replaying."""
    return (
        f"this pipeline goes on by replaying: {cursor.replayed:,} elements are made again and passed over, since "
        f"{pipeline.replay_reason}"
    )


def _cursor_of_plan(pipeline: BoundPipeline, state: State, count: int) -> Cursor:
    steps = pipeline.plan_steps
    if steps is not None:
        position = state.epoch * pipeline.length + state.position
        global_batch = state.global_batch or pipeline.split.readers * pipeline.batch_size
        epoch = max(0, position // global_batch - count) // steps  # assuming that batches always had this size
        if count >= steps:
            return Cursor(epoch + 1, plan=_plan_of_steps(pipeline, position, steps))
        return Cursor(epoch, plan=_plan_of_steps(pipeline, position, steps - count), count=count)
    plan = state.plan(
        pipeline.length,
        batch_size=pipeline.batch_size,
        split=pipeline.split,
        tail=pipeline.options.tail,
        drop_last=pipeline.drop_last,
    )
    is_fresh = plan.start == plan.epoch_start
    return Cursor(plan.epoch, plan=plan, count=0 if is_fresh else count)


@dataclass(frozen=True, slots=True)
class PartitionCursors:
    """Where to continue, for each of ``len(positions)`` partitions."""

    positions: tuple[int, ...]
    parts: tuple[int, ...]
    pending: tuple[tuple[PendingElement, ...], ...] = ()

    @classmethod
    def at(cls, position: int) -> PartitionCursors:
        """Return the same position for all partitions."""
        return cls((position,), (0,))

    def is_new(self, positions: IntArray, length: int) -> npt.NDArray[np.bool_]:
        """Whether each position has elements that were not delivered."""
        partition = (positions % max(length, 1)) % len(self.positions)
        return positions >= np.asarray(self.positions, np.int64)[partition]

    def is_new_part(self, position: int, part: int, length: int) -> bool:
        """Whether an element of a sample was not delivered."""
        partition = position % max(length, 1) % len(self.positions)
        return position != self.positions[partition] or part >= self.parts[partition]


def merge_partitions(states: Sequence[PartitionState], split: Split, length: int) -> PartitionCursors:
    """Return where one reader continues, from the partitions of all. Raises LoaderStateError if some are missing."""
    size = math.lcm(*(state.of for state in states))
    if size > _MAX_PARTITIONS:
        raise LoaderStateError("the number of ranks changed too often in one epoch", found=f"{size} shares")
    positions, parts = [-1] * size, [0] * size
    for state in states:
        for index in range(state.index, size, state.of):
            positions[index], parts[index] = state.position, state.part
    if -1 in positions:
        missing = positions.index(-1)
        hint = "gather the state of every rank: State.merge(states)"
        raise LoaderStateError("the state of a rank is missing", expected=f"share {missing} of {size}", hint=hint)
    groups = [
        tuple(key for key in group if key[0] % max(length, 1) % split.readers == split.reader)
        for state in states
        for group in state.pending
    ]
    return PartitionCursors(tuple(positions), tuple(parts), tuple(group for group in groups if group))


def join_own_partitions(states: Sequence[PartitionState]) -> PartitionCursors:
    """Return where one reader continues, from its own partitions only."""
    size = math.lcm(*(state.of for state in states))
    last = max((state.position, state.part) for state in states)
    cursors = [last] * size
    for state in states:
        for index in range(state.index, size, state.of):
            cursors[index] = state.position, state.part
    positions, parts = zip(*cursors, strict=True)
    return PartitionCursors(positions, parts, tuple(group for state in states for group in state.pending))


def partitions_after(
    partitions: PartitionCursors, resume_point: ResumePoint, split: Split
) -> tuple[PartitionState, ...]:
    """Return the state of one reader's partitions when it has reached ``resume_point``."""
    count, here = len(partitions.positions), (resume_point.position, resume_point.part)
    size = math.lcm(count, split.readers)
    own = range(split.reader, size, split.readers)
    starts = [(partitions.positions[index % count], partitions.parts[index % count]) for index in own]
    if all(start <= here for start in starts):
        return (PartitionState(split.reader, split.readers, *here, resume_point.pending),)
    # Some partitions were further already, when another number of ranks shared the data.
    first, *rest = [(index, max(start, here)) for index, start in zip(own, starts, strict=True)]
    return (
        PartitionState(first[0], size, *first[1], resume_point.pending),
        *(PartitionState(index, size, *position) for index, position in rest),
    )
