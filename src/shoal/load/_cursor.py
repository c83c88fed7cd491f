"""Where a loader stands: an epoch, how much of it was delivered, and from where it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.load._steps import Element, Mark
from shoal.order import EpochPlan, State, plan_epoch

from ._build import Built
from ._shares import Begin, begin_from, begin_of_one, shares_after

__all__ = ["Place", "following", "place_after", "place_from", "place_of_epoch", "replaying", "restarted", "resumed"]


@dataclass(frozen=True, slots=True)
class Place:
    """One of ``plan`` and ``begin`` says where work starts; ``mark`` and ``count`` what was delivered since."""

    epoch: int
    plan: EpochPlan | None = None
    begin: Begin | None = None
    mark: Mark | None = None
    count: int = 0
    """Elements delivered in this epoch."""
    replayed: int = 0
    """Elements to pass over before the first is delivered: those of an earlier run of this epoch."""

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of the epoch was delivered."""
        return self.count == 0

    def after(self, element: Element) -> Place:
        """One element further."""
        return replace(self, mark=element.mark, count=self.count + 1)

    def is_at(self, other: Place) -> bool:
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

    def to_dict(self, built: Built) -> dict[str, Any]:
        """As plain values, ready for JSON."""
        if self.plan is not None and built.laid.is_marked:
            return self._exact_state(built, self.plan).to_dict()
        settings = built.settings_at(self.epoch * built.length)
        if self.begin is not None and built.laid.is_marked:
            mark = self.mark or Mark(min(self.begin.positions), pending=self.begin.pending)
            shares = shares_after(self.begin, mark, built.split)
            return State(settings, self.epoch, steps=self.count, shares=shares).to_dict()
        return State(settings, self.epoch, steps=self.count).to_dict()

    def _exact_state(self, built: Built, plan: EpochPlan) -> State:
        position = plan.start if self.mark is None else self.mark.position - plan.epoch * plan.count
        settings = built.settings_at(plan.epoch * plan.count + position)
        return State(settings, plan.epoch, position, plan.epoch_start, plan.end, plan.global_batch, self.count)


def place_of_epoch(built: Built, epoch: int) -> Place:
    """The beginning of an epoch."""
    if built.line_steps is not None and not built.laid.is_marked:
        # Where it begins on the line is only found by going there.
        return replace(_start(built, 0), epoch=epoch, replayed=epoch * built.line_steps)
    return _start(built, epoch)


def _start(built: Built, epoch: int) -> Place:
    if built.laid.mode == "exact":
        return Place(epoch, plan=_plan_of(built, epoch))
    if built.laid.mode == "loose":
        return Place(epoch, begin=Begin.at(epoch * built.length))
    return Place(epoch)


def _plan_of(built: Built, epoch: int) -> EpochPlan:
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


def _steps_plan(built: Built, place: int, steps: int) -> EpochPlan:
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


def following(built: Built, plan: EpochPlan) -> EpochPlan:
    """The plan after a plan."""
    steps = built.plan_steps
    return plan.next_epoch() if steps is None else _steps_plan(built, plan.epoch * plan.count + plan.end, steps)


def place_after(built: Built, place: Place) -> Place:
    """The beginning of the epoch after this one."""
    if built.line_steps is not None:
        if not built.laid.is_marked:
            return place_of_epoch(built, place.epoch + 1)
        return Place(place.epoch + 1, begin=_own_begin(built, place))
    if place.plan is not None:
        return Place(place.epoch + 1, plan=following(built, place.plan))
    return place_of_epoch(built, place.epoch + 1)


def _own_begin(built: Built, place: Place) -> Begin:
    """Where this reader's own share goes on after what was delivered."""
    begin = place.begin or Begin.at(place.epoch * built.length)
    if place.mark is None:
        return begin
    return begin_of_one(shares_after(begin, place.mark, built.split))


def restarted(built: Built, place: Place) -> Place:
    """The beginning of this epoch: where it began for this run, which a carried batch may have moved."""
    if built.line_steps is not None and built.laid.is_marked:
        return Place(place.epoch, begin=place.begin)  # after a loaded state, where that was
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
    return Place(place.epoch, plan=plan)


def resumed(before: Built, built: Built, place: Place) -> Place | None:
    """The same place for new work, in this process, also under another batch size; None when its epoch is over."""
    if not built.laid.is_marked:
        start = place_of_epoch(built, place.epoch)
        return replace(start, count=place.count, replayed=start.replayed + place.count)
    if built.laid.mode == "loose":
        return Place(place.epoch, begin=_own_begin(built, place), count=place.count)
    state = State.from_dict(place.to_dict(before))
    if place.count and state.end is not None and state.position >= state.end:
        return None
    return replace(_exact_place(built, state, place.count), epoch=place.epoch, count=place.count)


def place_from(built: Built, document: Mapping[str, Any]) -> Place:
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
        return Place(epoch, begin=begin, count=count)
    place = place_of_epoch(built, epoch)
    return replace(place, count=count, replayed=place.replayed + count)


def replaying(built: Built, place: Place) -> str:
    """What it costs to go on from a place that was only found by its number."""
    return (
        f"this pipeline goes on by replaying: {place.replayed:,} elements are made again and passed over, since "
        f"{built.laid.why_replayed}"
    )


def _exact_place(built: Built, state: State, count: int) -> Place:
    steps = built.plan_steps
    if steps is not None:
        position = state.epoch * built.length + state.position
        whole = state.global_batch or built.split.readers * built.batch_size
        epoch = max(0, position // whole - count) // steps  # of so many steps each, if batches were always as large
        if count >= steps:
            return Place(epoch + 1, plan=_steps_plan(built, position, steps))
        return Place(epoch, plan=_steps_plan(built, position, steps - count), count=count)
    plan = state.plan(
        built.length, batch_size=built.batch_size, split=built.split, tail=built.options.tail, drop_last=built.drop_last
    )
    fresh = plan.start == plan.epoch_start
    return Place(plan.epoch, plan=plan, count=0 if fresh else count)
