"""The tasks of workers: which samples to read, map, and batch if that is known beforehand.

A task is one batch, or a chunk of samples if batches are made later. Each class here is one way to know the samples:
from the order (`NumberedTasks`), from the order before a filter (`PerSampleTasks`), from a sampler (`SamplerTasks`), or
by reading (`StreamTasks`). ``tasks`` lists them, epoch after epoch, cheaply; ``work`` runs one, in any thread.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from shoal._typing import IntArray
from shoal.errors import LoaderError, PositionError
from shoal.order._epoch_plan import EpochPlan, RankPositions, Split, plan_epoch
from shoal.order._orders import Order, line
from shoal.shard._stream import ErrorPolicy

from ._collate import BatchRowWriter, size_of
from ._cursor import PartitionCursors
from ._pipeline import PipelineLayout
from ._sample_stages import (
    ProcessPool,
    SampleErrors,
    apply_stages,
    collate_samples,
    map_batch,
    read_batch_of,
    read_samples,
)
from ._sampler_shares import SamplerShare
from ._sources import IndexedSource, StreamSource
from ._stages import Batch, Element, EpochEnd, FlatMap, PendingGroups, ResumePoint
from ._stats import Meter

__all__ = ["Chunk", "NumberedTasks", "PerSampleTasks", "SamplerTasks", "StreamTasks", "Task", "TaskContext"]

_PLANNED_SAMPLES = 2048
"""Samples taken from the order at a time: thousands take hardly longer than ten."""
_STREAM_GROUP_TIMEOUT_S = 0.01


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What all tasks of a run share."""

    layout: PipelineLayout
    meter: Meter
    errors: SampleErrors
    processes: ProcessPool
    seed: int


@dataclass(frozen=True, slots=True)
class Task:
    """Some steps of an epoch: one if a step is a batch."""

    plan: EpochPlan
    steps: range
    at: RankPositions
    numbers: IntArray
    """The samples at these positions."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some positions or sample numbers, or some values of a stream."""

    positions: IntArray
    values: tuple[Any, ...] | None = None
    epoch: int = 0
    repeats: int = 0
    """How many of the last samples only fill a step."""
    resume_points: tuple[ResumePoint, ...] = ()
    """Of what a sampler has drawn: where to resume after each step."""
    first: Sequence[Any] = ()
    """What a sampler drew first in this epoch."""


def _make_samples(
    context: TaskContext,
    source: IndexedSource,
    numbers: IntArray,
    epochs: IntArray,
    row_writer: BatchRowWriter | None = None,
) -> list[tuple[int, int, Any]]:
    """Read and map samples; return (index among ``numbers``, part, value)."""
    with context.meter.timed("fetch"):
        values = read_samples(source, numbers, epochs, context.errors)
    if not context.layout.per_sample:
        return [(index, 0, value) for index, value in values]
    with context.meter.timed("map"):
        return apply_stages(
            values,
            context.layout.per_sample,
            source,
            numbers,
            lambda index: (context.seed, int(epochs[index])),
            context.errors,
            context.processes,
            row_writer,
        )


def _make_batch(
    context: TaskContext, source: IndexedSource, step: Batch, numbers: IntArray, epochs: IntArray, position: int
) -> tuple[Any, int] | None:
    """Make a batch of samples and apply maps of batches; return it with its length, or None if no sample is left."""
    batch, count = _read_batch(context, source, step, numbers), len(numbers)
    if batch is None:
        row_writer = BatchRowWriter(len(numbers)) if step.collate is None else None
        samples = [value for _, _, value in _make_samples(context, source, numbers, epochs, row_writer)]
        count = len(samples)
        if not samples:  # all were skipped or filtered out
            return None
        with context.meter.timed("collate"):
            batch = collate_samples(samples, step, source, numbers)
    if context.layout.per_batch:
        seeds = (context.seed, int(epochs[0]), position)
        with context.meter.timed("map"):
            batch = map_batch(batch, context.layout.per_batch, seeds, source, numbers, context.processes)
    return batch, count


def _read_batch(context: TaskContext, source: IndexedSource, step: Batch, numbers: IntArray) -> Any | None:
    """Read a batch from the source, if no stage needs its samples."""
    if context.layout.per_sample or step.collate is not None or context.errors.skips:
        return None
    with context.meter.timed("fetch"):
        return read_batch_of(source, numbers, step.ragged)


def _has_equal_steps(plan: EpochPlan) -> bool:
    """Whether all ranks need as many elements, so that one whose samples are all skipped is replaced."""
    return plan.split.readers > 1 and plan.tail != "uneven"


def _complete_epoch(plan: EpochPlan) -> EpochPlan:
    """Return the plan of all of an epoch, wherever a run began in it."""
    return plan_epoch(plan.count, epoch=plan.epoch, batch_size=plan.batch_size, split=plan.split)


def _without_counting(context: TaskContext) -> TaskContext:
    """Return a context in which samples are skipped without being counted again."""
    return replace(context, errors=SampleErrors(ErrorPolicy("skip"), math.inf))


def _check_readable(values: list[Any]) -> list[Any]:
    if not values:
        raise _nothing_readable()
    return values


def _nothing_readable() -> LoaderError:
    return LoaderError("no sample of an epoch could be read, and every rank needs as many batches")


class NumberedTasks:
    """Batches, or samples, whose numbers are known before anything is read."""

    def __init__(
        self,
        context: TaskContext,
        source: IndexedSource,
        order: Order,
        first: EpochPlan,
        next_plan: Callable[[EpochPlan], EpochPlan],
        chunk: int,
    ) -> None:
        self._context = context
        self._source = source
        self._order = order
        self._first = first
        self._next_plan = next_plan
        self._chunk = 1 if context.layout.batch is not None else chunk

    def tasks(self) -> Iterator[Task | EpochEnd]:
        """Yield the tasks from the first plan on, without end."""
        plan = self._first
        while True:
            for steps, at, numbers in self._groups(plan):
                for step in steps[:: self._chunk]:
                    first = (step - steps.start) * plan.batch_size
                    own = slice(first, first + self._chunk * plan.batch_size)
                    positions = RankPositions(at.positions[own], at.epochs[own], at.repeats[own])
                    yield Task(plan, range(step, min(step + self._chunk, plan.steps)), positions, numbers[own])
            yield EpochEnd()
            plan = self._next_plan(plan)

    def _groups(self, plan: EpochPlan) -> Iterator[tuple[range, RankPositions, IntArray]]:
        """Yield the steps of a plan, as many at a time as have about 2048 samples, with positions and samples."""
        count = self._chunk * max(1, _PLANNED_SAMPLES // (self._chunk * plan.batch_size))
        for start in range(0, plan.steps, count):
            steps = range(start, min(start + count, plan.steps))
            at = plan.at(steps)
            yield steps, at, at.samples(self._order)

    def iter_samples(self) -> Iterator[tuple[int, IntArray]]:
        """Yield the samples of all tasks, some at a time with their epoch, without end."""
        plan = self._first
        while plan.steps:
            for _, _, numbers in self._groups(plan):
                yield plan.epoch, numbers
            plan = self._next_plan(plan)

    def work(self, task: Task) -> list[Element]:
        """Return one batch, or the samples of a chunk."""
        step, at = self._context.layout.batch, task.at
        if step is None:
            return self._single_elements(task, at, task.numbers)
        made = _make_batch(self._context, self._source, step, task.numbers, at.epochs, int(at.positions[0]))
        repeated = int(at.repeats.sum())
        if made is None:
            if not _has_equal_steps(task.plan):
                return []
            made = self._substitute_batch(task.plan, step)
            repeated = made[1]
        batch, count = made
        resume_point = ResumePoint(task.plan.epoch * task.plan.count + task.plan.consumed(task.steps.stop))
        return [Element(batch, count, resume_point, repeated=repeated, size=size_of(batch))]

    def _substitute_batch(self, plan: EpochPlan, step: Batch) -> tuple[Any, int]:
        """Make the first batch of this rank's epoch of which a sample can be read, for one of which none can."""
        epoch, context = _complete_epoch(plan), _without_counting(self._context)
        for at in map(epoch.at, range(epoch.steps)):
            numbers, first = at.samples(self._order), int(at.positions[0])
            made = _make_batch(context, self._source, step, numbers, at.epochs, first)
            if made is not None:
                return made
        raise _nothing_readable()

    def _substitute_samples(self, plan: EpochPlan, count: int) -> list[Any]:
        """Read the first samples of this rank's epoch that can be read, for ``count`` others."""
        epoch, context = _complete_epoch(plan), _without_counting(self._context)
        values: list[Any] = []
        for start in range(0, epoch.steps, self._chunk):
            at = epoch.at(range(start, min(start + self._chunk, epoch.steps)))
            samples = _make_samples(context, self._source, at.samples(self._order), at.epochs)
            values += [value for _, _, value in samples]
            if len(values) >= count:
                break
        return list(itertools.islice(itertools.cycle(_check_readable(values)), count))

    def _single_elements(self, task: Task, at: RankPositions, numbers: IntArray) -> list[Element]:
        base = task.plan.epoch * task.plan.count
        samples = _make_samples(self._context, self._source, numbers, at.epochs)
        values = [(index, value, int(at.repeats[index])) for index, _, value in samples]
        if len(values) < len(numbers) and _has_equal_steps(task.plan):
            missing = sorted(set(range(len(numbers))).difference(index for index, _, _ in values))
            others = self._substitute_samples(task.plan, len(missing))
            values += [(index, value, 1) for index, value in zip(missing, others, strict=True)]
            values.sort(key=itemgetter(0))
        return [
            Element(
                value,
                1,
                ResumePoint(base + task.plan.consumed(task.steps.start + index + 1)),
                repeated=repeated,
                size=size_of(value),
            )
            for index, value, repeated in values
        ]


class PerSampleTasks:
    """Samples of which a filter or a flat_map makes any number: each rank reads its own positions of an epoch."""

    def __init__(
        self,
        context: TaskContext,
        source: IndexedSource,
        order: Order,
        split: Split,
        partitions: PartitionCursors,
        epoch: int,
        chunk: int,
    ) -> None:
        self._context = context
        self._source = source
        self._order = order
        self._split = split
        self._partitions = partitions
        self._epoch = epoch
        self._chunk = chunk
        self._is_flat_mapped = any(isinstance(stage, FlatMap) for stage in context.layout.per_sample)

    def tasks(self) -> Iterator[Chunk | EpochEnd]:
        """Yield chunks of this rank's positions, from where each partition was left, without end."""
        length = self._order.length
        step = self._chunk * self._split.readers
        epoch, first = self._epoch, max(0, min(self._partitions.positions) - self._epoch * length)
        while True:
            # Align to a multiple of the step so that resumed epochs use the same chunks.
            for start in range(first // step * step, length, step):
                positions = self._own_positions(epoch * length, start, min(start + step, length))
                if len(positions):
                    yield Chunk(positions)
            yield EpochEnd()
            epoch, first = epoch + 1, 0

    def iter_samples(self) -> Iterator[tuple[int, IntArray]]:
        """Yield the samples of all chunks with their epoch, without end."""
        empty = 0
        for task in self.tasks():
            empty = empty + 1 if isinstance(task, EpochEnd) else 0
            if empty > 1:
                return
            if isinstance(task, Chunk):
                yield int(task.positions[0]) // max(self._order.length, 1), line(self._order, task.positions)

    def _own_positions(self, base: int, start: int, stop: int) -> IntArray:
        """Return this reader's positions of an epoch, without those that were delivered."""
        positions = base + np.arange(start + self._split.reader, stop, self._split.readers, dtype=np.int64)
        return positions[self._partitions.is_new(positions, self._order.length)]

    def work(self, task: Chunk) -> list[Element]:
        """Return the elements of a chunk, in order."""
        elements, length = self._read(task.positions), self._order.length
        return [element for element in elements if self._partitions.is_new_part(*element.key[:2], length)]

    def _read(self, positions: IntArray) -> list[Element]:
        numbers, epochs = line(self._order, positions), positions // max(self._order.length, 1)
        samples = _make_samples(self._context, self._source, numbers, epochs)
        return [
            _make_element(value, int(positions[index]), part, self._is_flat_mapped) for index, part, value in samples
        ]

    def read_pending(self) -> PendingGroups:
        """Read again the elements that a stage had buffered."""
        pending = self._partitions.pending
        positions = sorted({position for group in pending for position, _, _ in group})
        elements = self._read(np.array(positions, np.int64)) if positions else []
        # Their own positions are behind those of the state, which count.
        first = min(range(len(self._partitions.positions)), key=self._partitions.positions.__getitem__)
        resume_point = ResumePoint(self._partitions.positions[first], self._partitions.parts[first])
        known = {element.key[:2]: replace(element, resume_point=resume_point) for element in elements}
        groups = [[replace(known[key[:2]], key=key) for key in group if key[:2] in known] for group in pending]
        return [group for group in groups if group]


class SamplerTasks:
    """Batches, or samples, that a sampler of the user chooses."""

    def __init__(
        self,
        context: TaskContext,
        source: IndexedSource,
        shares: Callable[[int, ResumePoint | None], Iterable[SamplerShare]],
        epoch: int,
        start: ResumePoint | None,
        equal_steps: bool,
    ) -> None:
        self._context = context
        self._source = source
        self._shares = shares
        self._epoch = epoch
        self._start = start
        self._equal_steps = equal_steps
        """Whether an element whose samples are all skipped is replaced, since every rank needs as many."""

    def tasks(self) -> Iterator[Chunk | EpochEnd]:
        """Yield the sampler's batches, epoch after epoch; those delivered before are skipped without reading them."""
        for epoch in itertools.count(self._epoch):
            start = self._start if epoch == self._epoch else None
            for share in self._shares(epoch, start):
                batch, repeats = share.values, share.repeats
                if isinstance(batch[0], Iterable):  # a batch sampler's
                    (batch,) = batch
                    batch = list(batch)
                    repeats *= len(batch)
                numbers = self._check_numbers(np.asarray(batch, np.int64))
                yield Chunk(
                    numbers, epoch=epoch, repeats=repeats, resume_points=tuple(share.resume_points), first=share.first
                )
            yield EpochEnd()

    def _check_numbers(self, numbers: IntArray) -> IntArray:
        count = len(self._source)
        outside = numbers[(numbers < 0) | (numbers >= count)]
        if len(outside):
            problem = "a sampler names a sample that is not there"
            raise PositionError(problem, expected=f"0 to {count - 1}", found=outside[0])
        return numbers

    def work(self, task: Chunk) -> list[Element]:
        """Return one batch, or the samples of a group."""
        numbers, epochs = task.positions, np.full(len(task.positions), task.epoch)
        step = self._context.layout.batch
        if step is None:
            samples = _make_samples(self._context, self._source, numbers, epochs)
            first_repeat = len(numbers) - task.repeats
            values = [(index, value, int(index >= first_repeat)) for index, _, value in samples]
            if len(values) < len(numbers) and self._equal_steps:
                missing = sorted(set(range(len(numbers))).difference(index for index, _, _ in values))
                others = itertools.cycle(self._substitutes(task))
                values += [(index, next(others), 1) for index in missing]
                values.sort(key=itemgetter(0))
            return [
                Element(value, 1, task.resume_points[index], repeated=repeated, size=size_of(value))
                for index, value, repeated in values
            ]
        made = (
            _make_batch(self._context, self._source, step, numbers, epochs, int(numbers[0])) if len(numbers) else None
        )
        repeated = task.repeats
        if made is None:
            if not self._equal_steps or not len(numbers):
                return []
            made = self._substitute_batch(task, step)
            repeated = made[1]
        batch, count = made
        return [Element(batch, count, task.resume_points[0], repeated=repeated, size=size_of(batch))]

    def _first_numbers(self, task: Chunk) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the first samples that the sampler drew, as many at a time as the task has, with their epochs."""
        nested = [[number] if isinstance(number, int | np.integer) else number for number in task.first]
        drawn = np.array([number for numbers in nested for number in numbers], np.int64)
        for start in range(0, len(drawn), len(task.positions)):
            numbers = self._check_numbers(drawn[start : start + len(task.positions)])
            yield numbers, np.full(len(numbers), task.epoch)

    def _substitutes(self, task: Chunk) -> list[Any]:
        context = _without_counting(self._context)
        for numbers, epochs in self._first_numbers(task):
            values = [value for _, _, value in _make_samples(context, self._source, numbers, epochs)]
            if values:
                return values
        raise _nothing_readable()

    def _substitute_batch(self, task: Chunk, step: Batch) -> tuple[Any, int]:
        context = _without_counting(self._context)
        for numbers, epochs in self._first_numbers(task):
            made = _make_batch(context, self._source, step, numbers, epochs, int(numbers[0]))
            if made is not None:
                return made
        raise _nothing_readable()


def _take_available(values: Iterator[tuple[int, Any]], most: int) -> list[tuple[int, Any]]:
    """Take up to ``most`` values, or as many as arrive within 10 ms."""
    taken = list(itertools.islice(values, 1))
    begin = time.monotonic()
    while taken and len(taken) < most and time.monotonic() - begin < _STREAM_GROUP_TIMEOUT_S:
        more = list(itertools.islice(values, 1))
        if not more:
            break
        taken += more
    return taken


class StreamTasks:
    """Values of a stream, which are read in the caller's thread and mapped by workers."""

    def __init__(self, context: TaskContext, source: StreamSource, split: Split, chunk: int, epoch: int) -> None:
        self._context = context
        self._source = source
        self._split = split
        self._chunk = chunk
        self._epoch = epoch

    def tasks(self) -> Iterator[Chunk | EpochEnd]:
        """Yield the stream in chunks, once for every epoch; only once if it can be read only once."""
        for epoch in itertools.count(self._epoch):
            values = enumerate(self._source.of_epoch(epoch))
            while chunk := _take_available(values, self._chunk):
                own = [(number, value) for number, value in chunk if number % self._split.readers == self._split.reader]
                numbers = np.array([number for number, _ in own], np.int64)
                yield Chunk(numbers, tuple(value for _, value in own), epoch)
            yield EpochEnd()
            if self._source.once:
                return

    def work(self, task: Chunk) -> list[Element]:
        """Return the elements of a chunk, in order."""
        with self._context.meter.timed("map"):
            samples = apply_stages(
                list(enumerate(task.values or ())),
                self._context.layout.per_sample,
                self._source,
                task.positions,
                lambda _: (self._context.seed, task.epoch),
                self._context.errors,
                self._context.processes,
            )
        return [_make_element(value, int(task.positions[index]), part, False) for index, part, value in samples]


def _make_element(value: Any, position: int, part: int, is_flat_mapped: bool) -> Element:
    """Return an element that is resumed at the next position, or at the next part if a sample may have several."""
    resume_point = ResumePoint(position, part + 1) if is_flat_mapped else ResumePoint(position + 1)
    return Element(value, 1, resume_point, (position, part, 0), size=size_of(value))
