"""The part of a pipeline that workers do: which samples, read, mapped, and batched where that is known beforehand.

A unit of work is one batch, or a chunk of samples where batches are made later. ``units`` names them one after the
other, epoch after epoch, cheaply; ``work`` does one, in any thread.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import PositionError
from shoal.order import EpochPlan, Order, RankPositions, Split, line

from ._collate import BatchRowWriter, size_of
from ._cursor import PartitionCursors
from ._pipeline import PipelineLayout
from ._sample_stages import Processes, SampleErrors, apply_steps, collated, gathered, mapped_batch, read_samples
from ._sources import IndexedSource, StreamSource
from ._stages import Batch, Element, ElementPosition, EpochEnd, FlatMap, Held
from ._stats import Meter

__all__ = ["Chunk", "ExactHead", "LooseHead", "SamplerHead", "StreamHead", "Task", "TaskContext"]

Int64 = npt.NDArray[np.int64]
_NAMED = 8192
"""Samples named at a time: an order takes hardly longer for thousands than for ten."""
_FORESEEN = 2048
"""The same where somebody fetches what is named."""
Made = list[Element] | EpochEnd
_MOMENT = 0.01
"""Seconds."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What all work needs."""

    laid: PipelineLayout
    meter: Meter
    errors: SampleErrors
    processes: Processes
    seed: int


@dataclass(frozen=True, slots=True)
class Task:
    """Some steps of an epoch: one where a step is a batch."""

    plan: EpochPlan
    steps: range


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some places on the line, or some values that were taken from a stream."""

    positions: Int64
    values: tuple[Any, ...] | None = None
    epoch: int = 0


def _samples(
    tools: TaskContext, source: IndexedSource, numbers: Int64, epochs: Int64, placing: BatchRowWriter | None = None
) -> list[tuple[int, int, Any]]:
    """What comes of these samples, each with its place among them and its part."""
    with tools.meter.timed("fetch"):
        values = read_samples(source, numbers, epochs, tools.errors)
    if not tools.laid.per_sample:
        return [(place, 0, value) for place, value in values]
    with tools.meter.timed("map"):
        return apply_steps(
            values,
            tools.laid.per_sample,
            source,
            numbers,
            lambda place: (tools.seed, int(epochs[place])),
            tools.errors,
            tools.processes,
            placing,
        )


def _batch(
    tools: TaskContext, source: IndexedSource, step: Batch, numbers: Int64, epochs: Int64, place: int
) -> tuple[Any, int] | None:
    """One batch of these samples, through all that is done to batches, and how many are in it; None if none is left."""
    batch, count = _gathered(tools, source, step, numbers), len(numbers)
    if batch is None:
        placing = BatchRowWriter(len(numbers)) if step.collate is None else None
        samples = [value for _, _, value in _samples(tools, source, numbers, epochs, placing)]
        count = len(samples)
        if not samples:  # all were passed over
            return None
        with tools.meter.timed("collate"):
            batch = collated(samples, step, source, numbers)
    if tools.laid.per_batch:
        seeds = (tools.seed, int(epochs[0]), place)
        with tools.meter.timed("map"):
            batch = mapped_batch(batch, tools.laid.per_batch, seeds, source, numbers, tools.processes)
    return batch, count


def _gathered(tools: TaskContext, source: IndexedSource, step: Batch, numbers: Int64) -> Any | None:
    """A batch made as a whole, where nobody wants to see its samples before."""
    if tools.laid.per_sample or step.collate is not None or tools.errors.skips:
        return None
    with tools.meter.timed("fetch"):
        return gathered(source, numbers, step.ragged)


def _steps_named(plan: EpochPlan, samples: int) -> int:
    return max(1, samples // plan.batch_size)


def _named(order: Order, plan: EpochPlan, group: int, samples: int = _NAMED) -> tuple[RankPositions, Int64]:
    """The positions and samples of some steps: of so many samples, from as many groups on."""
    count = _steps_named(plan, samples)
    at = plan.at(range(group * count, min((group + 1) * count, plan.steps)))
    return at, at.samples(order)


class ExactHead:
    """Batches, or samples, whose numbers are known before anything is read."""

    def __init__(
        self,
        tools: TaskContext,
        source: IndexedSource,
        order: Order,
        first: EpochPlan,
        following: Callable[[EpochPlan], EpochPlan],
        chunk: int,
    ) -> None:
        self._tools = tools
        self._source = source
        self._order = order
        self._first = first
        self._following = following
        self._chunk = 1 if tools.laid.batch is not None else chunk
        self._named = functools.lru_cache(maxsize=4)(functools.partial(_named, order))

    def units(self) -> Iterator[Task | EpochEnd]:
        """From the first plan on, without end."""
        plan = self._first
        while True:
            for step in range(0, plan.steps, self._chunk):
                yield Task(plan, range(step, min(step + self._chunk, plan.steps)))
            following = self._following(plan)
            yield EpochEnd(plan.epoch, ElementPosition(following.epoch * plan.count + following.start))
            plan = following

    def coming(self) -> Iterator[tuple[int, Int64]]:
        """The samples of all units, in order, without end, each few with their epoch."""
        plan = self._first
        while plan.steps:
            for group in range(-(-plan.steps // _steps_named(plan, _FORESEEN))):
                yield plan.epoch, _named(self._order, plan, group, _FORESEEN)[1]
            plan = self._following(plan)

    def work(self, unit: Task | EpochEnd) -> Made:
        """One batch, or the samples of a chunk."""
        if isinstance(unit, EpochEnd):
            return unit
        if self._tools.laid.batch is None:
            at = unit.plan.at(unit.steps)
            return self._one_by_one(unit, at, at.samples(self._order))
        at, numbers = self._of_step(unit)
        made = _batch(self._tools, self._source, self._tools.laid.batch, numbers, at.epochs, int(at.positions[0]))
        if made is None:
            return []
        mark = ElementPosition(unit.plan.epoch * unit.plan.count + unit.plan.consumed(unit.steps.stop))
        return [Element(made[0], made[1], mark, repeated=int(at.repeats.sum()), size=size_of(made[0]))]

    def _of_step(self, unit: Task) -> tuple[RankPositions, Int64]:
        group, step = divmod(unit.steps.start, _steps_named(unit.plan, _NAMED))
        at, numbers = self._named(unit.plan, group)
        own = slice(step * unit.plan.batch_size, (step + 1) * unit.plan.batch_size)
        return RankPositions(at.positions[own], at.epochs[own], at.repeats[own]), numbers[own]

    def _one_by_one(self, unit: Task, at: RankPositions, numbers: Int64) -> list[Element]:
        base = unit.plan.epoch * unit.plan.count
        return [
            Element(
                value,
                1,
                ElementPosition(base + unit.plan.consumed(unit.steps.start + place + 1)),
                repeated=int(at.repeats[place]),
                size=size_of(value),
            )
            for place, _, value in _samples(self._tools, self._source, numbers, at.epochs)
        ]


class LooseHead:
    """Samples of which a filter or a flat_map makes any number: each rank goes through its own places on the line."""

    def __init__(
        self,
        tools: TaskContext,
        source: IndexedSource,
        order: Order,
        split: Split,
        begin: PartitionCursors,
        epoch: int,
        chunk: int,
    ) -> None:
        self._tools = tools
        self._source = source
        self._order = order
        self._split = split
        self._begin = begin
        self._epoch = epoch
        self._chunk = chunk
        self._whole = not any(isinstance(step, FlatMap) for step in tools.laid.per_sample)

    def units(self) -> Iterator[Chunk | EpochEnd]:
        """Chunks of this rank's places, from where each share of the line was left, without end."""
        length = self._order.length
        run = self._chunk * self._split.readers
        epoch, first = self._epoch, max(0, min(self._begin.positions) - self._epoch * length)
        while True:
            # From a multiple of the run on, so that chunks are the same ones wherever an epoch was gone on with.
            for start in range(first // run * run, length, run):
                places = self._places(epoch * length, start, min(start + run, length))
                if len(places):
                    yield Chunk(places)
            yield EpochEnd(epoch, ElementPosition((epoch + 1) * length))
            epoch, first = epoch + 1, 0

    def coming(self) -> Iterator[tuple[int, Int64]]:
        """The samples of all chunks, in order, without end, each few with their epoch."""
        empty = 0
        for unit in self.units():
            empty = empty + 1 if isinstance(unit, EpochEnd) else 0
            if empty > 1:
                return
            if isinstance(unit, Chunk):
                yield int(unit.positions[0]) // max(self._order.length, 1), line(self._order, unit.positions)

    def _places(self, base: int, start: int, stop: int) -> Int64:
        """This reader's places of an epoch from ``start`` on that have something left."""
        mine = np.arange(start + self._split.reader, stop, self._split.readers, dtype=np.int64)
        return (base + mine)[self._begin.is_new(base + mine, self._order.length)]

    def work(self, unit: Chunk | EpochEnd) -> Made:
        """All that comes of a chunk's samples, in order."""
        if isinstance(unit, EpochEnd):
            return unit
        found = self._read(unit.positions)
        length = self._order.length
        return [element for element in found if self._begin.is_new_part(*element.key[:2], length)]

    def _read(self, positions: Int64) -> list[Element]:
        numbers, epochs = line(self._order, positions), positions // max(self._order.length, 1)
        found = _samples(self._tools, self._source, numbers, epochs)
        return [_element(value, int(positions[place]), part, self._whole) for place, part, value in found]

    def held(self) -> Held:
        """What a step held back when it was left, read again."""
        pending = self._begin.pending
        wanted = sorted({position for group in pending for position, _, _ in group})
        read = self._read(np.array(wanted, np.int64)) if wanted else []
        # Where they were read is past: what is used up is what the state says.
        first = min(range(len(self._begin.positions)), key=self._begin.positions.__getitem__)
        mark = ElementPosition(self._begin.positions[first], self._begin.parts[first])
        known = {element.key[:2]: replace(element, mark=mark) for element in read}
        groups = [[replace(known[key[:2]], key=key) for key in group if key[:2] in known] for group in pending]
        return [group for group in groups if group]


class SamplerHead:
    """Batches, or samples, that a sampler of the user's names."""

    def __init__(
        self,
        tools: TaskContext,
        source: IndexedSource,
        groups: Callable[[int, int], Iterable[list[int]]],
        epoch: int,
        skipped: int,
    ) -> None:
        self._tools = tools
        self._source = source
        self._groups = groups
        self._epoch = epoch
        self._skipped = skipped

    def units(self) -> Iterator[Chunk | EpochEnd]:
        """What the sampler gives, epoch after epoch; what was delivered already is passed over without reading it."""
        for epoch in itertools.count(self._epoch):
            skipped = self._skipped if epoch == self._epoch else 0
            for group in self._groups(epoch, skipped):
                yield Chunk(self._within(np.asarray(group, np.int64)), epoch=epoch)
            yield EpochEnd(epoch, ElementPosition(0))

    def _within(self, numbers: Int64) -> Int64:
        count = len(self._source)
        outside = numbers[(numbers < 0) | (numbers >= count)]
        if len(outside):
            problem = "a sampler names a sample that is not there"
            raise PositionError(problem, expected=f"0 to {count - 1}", found=outside[0])
        return numbers

    def work(self, unit: Chunk | EpochEnd) -> Made:
        """One batch, or the samples of a group."""
        if isinstance(unit, EpochEnd):
            return unit
        numbers, epochs = unit.positions, np.full(len(unit.positions), unit.epoch)
        step = self._tools.laid.batch
        if step is None:
            found = _samples(self._tools, self._source, numbers, epochs)
            return [Element(value, 1, ElementPosition(0), size=size_of(value)) for _, _, value in found]
        made = _batch(self._tools, self._source, step, numbers, epochs, int(numbers[0])) if len(numbers) else None
        return [] if made is None else [Element(made[0], made[1], ElementPosition(0), size=size_of(made[0]))]


def _some(values: Iterator[tuple[int, Any]], most: int) -> list[tuple[int, Any]]:
    """So many values, or those that come in a moment: of a slow feed nobody waits for a whole chunk."""
    found = list(itertools.islice(values, 1))
    begun = time.monotonic()
    while found and len(found) < most and time.monotonic() - begun < _MOMENT:
        more = list(itertools.islice(values, 1))
        if not more:
            break
        found += more
    return found


class StreamHead:
    """Values of a line that has no numbers: taken in the caller's thread, mapped by workers."""

    def __init__(self, tools: TaskContext, source: StreamSource, split: Split, chunk: int, epoch: int) -> None:
        self._tools = tools
        self._source = source
        self._split = split
        self._chunk = chunk
        self._epoch = epoch

    def units(self) -> Iterator[Chunk | EpochEnd]:
        """The line in chunks, again for every epoch; once, when it can be read only once."""
        for epoch in itertools.count(self._epoch):
            values = enumerate(self._source.of_epoch(epoch))
            while chunk := _some(values, self._chunk):
                mine = [
                    (number, value) for number, value in chunk if number % self._split.readers == self._split.reader
                ]
                numbers = np.array([number for number, _ in mine], np.int64)
                yield Chunk(numbers, tuple(value for _, value in mine), epoch)
            yield EpochEnd(epoch, ElementPosition(0))
            if self._source.once:
                return

    def work(self, unit: Chunk | EpochEnd) -> Made:
        """What comes of a chunk's values, in order."""
        if isinstance(unit, EpochEnd):
            return unit
        with self._tools.meter.timed("map"):
            found = apply_steps(
                list(enumerate(unit.values or ())),
                self._tools.laid.per_sample,
                self._source,
                unit.positions,
                lambda _: (self._tools.seed, unit.epoch),
                self._tools.errors,
                self._tools.processes,
            )
        return [_element(value, int(unit.positions[place]), part, whole=True) for place, part, value in found]


def _element(value: Any, position: int, part: int, whole: bool) -> Element:
    """One that is gone on after by the next place, or by the next part where a sample may have several."""
    mark = ElementPosition(position + 1) if whole else ElementPosition(position, part + 1)
    return Element(value, 1, mark, (position, part, 0), size=size_of(value))
