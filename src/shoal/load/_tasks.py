"""The tasks of workers: which samples to read, map, and batch if that is known beforehand.

A task is one batch, or a chunk of samples if batches are made later. Each class here is one way to know the samples:
from the order (`NumberedTasks`), from the order before a filter (`PerSampleTasks`), from a sampler (`SamplerTasks`), or
by reading (`StreamTasks`). ``tasks`` lists them, epoch after epoch, cheaply; ``work`` runs one, in any thread.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import LoaderError, PositionError
from shoal.order._epoch_plan import EpochPlan, RankPositions, Split, plan_epoch
from shoal.order._orders import Order, line
from shoal.shard._stream import ErrorPolicy

from ._collate import BatchRowWriter, size_of
from ._cursor import PartitionCursors
from ._pipeline import BoundPipeline
from ._sample_stages import (
    ProcessPool,
    SampleErrors,
    apply_stages,
    collate_samples,
    map_batch,
    read_batch,
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

    pipeline: BoundPipeline
    meter: Meter
    errors: SampleErrors
    processes: ProcessPool


_Samples = tuple[IntArray, IntArray, int]
"""Sample numbers, their epochs, and the position of the first."""


@dataclass(frozen=True, slots=True)
class Task:
    """Samples whose numbers are known: those of one step if a step is a batch, else of several steps."""

    numbers: IntArray
    epochs: IntArray
    repeats: npt.NDArray[np.bool_]
    """Which samples only fill a step."""
    position: int
    """Of the first sample; it determines random numbers of the batch."""
    resume_points: Sequence[ResumePoint]
    """Where to resume after each step."""
    substitutes: Callable[[], Iterator[_Samples]] | None
    """The first samples of the epoch, some at a time, to take in place of those that are skipped; None if ranks may
    have different numbers of elements."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some positions, or some values of a stream with their numbers."""

    positions: IntArray
    values: tuple[Any, ...] = ()
    epoch: int = 0


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
    if not context.pipeline.per_sample:
        return [(index, 0, value) for index, value in values]
    with context.meter.timed("map"):
        return apply_stages(
            values,
            context.pipeline.per_sample,
            source,
            numbers,
            lambda index: (context.pipeline.options.seed, int(epochs[index])),
            context.errors,
            context.processes,
            row_writer,
        )


def _make_batch(
    context: TaskContext, source: IndexedSource, step: Batch, numbers: IntArray, epochs: IntArray, position: int
) -> tuple[Any, int] | None:
    """Make a batch of samples and apply maps of batches; return it with its length, or None if no sample is left."""
    batch, count = None, len(numbers)
    if context.pipeline.reads_batches:
        with context.meter.timed("fetch"):
            batch = read_batch(source, numbers, step.ragged)
    if batch is None:
        row_writer = BatchRowWriter(len(numbers)) if step.collate is None else None
        samples = [value for _, _, value in _make_samples(context, source, numbers, epochs, row_writer)]
        count = len(samples)
        if not samples:  # all were skipped or filtered out
            return None
        with context.meter.timed("collate"):
            batch = collate_samples(samples, step, source, numbers)
    if context.pipeline.per_batch:
        seeds = (context.pipeline.options.seed, int(epochs[0]), position)
        with context.meter.timed("map"):
            batch = map_batch(batch, context.pipeline.per_batch, seeds, source, numbers, context.processes)
    return batch, count


class _KnownSamples:
    """Batches, or samples, whose numbers are known before they are read."""

    def __init__(self, context: TaskContext, source: IndexedSource) -> None:
        self._context = context
        self._source = source

    def work(self, task: Task) -> list[Element]:
        """Return one batch, or the samples of several steps."""
        step = self._context.pipeline.batch
        if step is None:
            return self._single_elements(task)
        if not len(task.numbers):
            return []
        made = _make_batch(self._context, self._source, step, task.numbers, task.epochs, task.position)
        repeated = int(task.repeats.sum())
        if made is None:
            if task.substitutes is None:
                return []
            made = self._substitute_batch(task.substitutes(), step)
            repeated = made[1]
        batch, count = made
        return [Element(batch, count, task.resume_points[0], repeated=repeated, size=size_of(batch))]

    def _single_elements(self, task: Task) -> list[Element]:
        samples = _make_samples(self._context, self._source, task.numbers, task.epochs)
        values = [(index, value, int(task.repeats[index])) for index, _, value in samples]
        if len(values) < len(task.numbers) and task.substitutes is not None:
            missing = sorted(set(range(len(task.numbers))).difference(index for index, _, _ in values))
            others = self._substitute_samples(task.substitutes(), len(missing))
            values += [(index, value, 1) for index, value in zip(missing, others, strict=True)]
            values.sort(key=itemgetter(0))
        return [
            Element(value, 1, task.resume_points[index], repeated=repeated, size=size_of(value))
            for index, value, repeated in values
        ]

    def _substitute_batch(self, first: Iterator[_Samples], step: Batch) -> tuple[Any, int]:
        """Make the first batch of which a sample can be read, for one of which none can."""
        context = _without_counting(self._context)
        for numbers, epochs, position in first:
            made = _make_batch(context, self._source, step, numbers, epochs, position)
            if made is not None:
                return made
        raise _nothing_readable()

    def _substitute_samples(self, first: Iterator[_Samples], count: int) -> list[Any]:
        """Read the first samples that can be read, for ``count`` others."""
        context = _without_counting(self._context)
        values: list[Any] = []
        for numbers, epochs, _ in first:
            values += [value for _, _, value in _make_samples(context, self._source, numbers, epochs)]
            if len(values) >= count:
                break
        if not values:
            raise _nothing_readable()
        return list(itertools.islice(itertools.cycle(values), count))


def _without_counting(context: TaskContext) -> TaskContext:
    """Return a context in which samples are skipped without being counted again."""
    return replace(context, errors=SampleErrors(ErrorPolicy("skip"), math.inf))


def _nothing_readable() -> LoaderError:
    return LoaderError("no sample of an epoch could be read, and every rank needs as many batches")


class NumberedTasks(_KnownSamples):
    """Batches, or samples, that an order gives."""

    def __init__(
        self,
        context: TaskContext,
        source: IndexedSource,
        order: Order,
        first: EpochPlan,
        next_plan: Callable[[EpochPlan], EpochPlan],
    ) -> None:
        super().__init__(context, source)
        self._order = order
        self._first = first
        self._next_plan = next_plan
        self._chunk = 1 if context.pipeline.batch is not None else context.pipeline.chunk

    def tasks(self) -> Iterator[Task | EpochEnd]:
        """Yield the tasks from the first plan on, without end."""
        plan = self._first
        while True:
            substitutes = None
            if plan.split.readers > 1 and plan.tail != "uneven":
                substitutes = functools.partial(self._first_samples, plan)
            base = plan.epoch * plan.count
            for steps, at, numbers in self._groups(plan):
                for step in steps[:: self._chunk]:
                    first = (step - steps.start) * plan.batch_size
                    own = slice(first, first + self._chunk * plan.batch_size)
                    done = range(step + 1, min(step + self._chunk, plan.steps) + 1)
                    yield Task(
                        numbers[own],
                        at.epochs[own],
                        at.repeats[own],
                        int(at.positions[first]),
                        [ResumePoint(base + plan.consumed(count)) for count in done],
                        substitutes,
                    )
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

    def _first_samples(self, plan: EpochPlan) -> Iterator[_Samples]:
        """Yield the samples of this rank's epoch from its beginning, wherever the plan begins."""
        epoch = plan_epoch(plan.count, epoch=plan.epoch, batch_size=plan.batch_size, split=plan.split)
        for start in range(0, epoch.steps, self._chunk):
            at = epoch.at(range(start, min(start + self._chunk, epoch.steps)))
            yield at.samples(self._order), at.epochs, int(at.positions[0])


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
        self._is_flat_mapped = any(isinstance(stage, FlatMap) for stage in context.pipeline.per_sample)

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


class SamplerTasks(_KnownSamples):
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
        super().__init__(context, source)
        self._shares = shares
        self._epoch = epoch
        self._start = start
        self._equal_steps = equal_steps
        """Whether an element whose samples are all skipped is replaced, since every rank needs as many."""

    def tasks(self) -> Iterator[Task | EpochEnd]:
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
                count = len(numbers)
                yield Task(
                    numbers,
                    np.full(count, epoch),
                    np.arange(count) >= count - repeats,
                    int(numbers[0]) if count else 0,
                    share.resume_points,
                    functools.partial(self._first_samples, share.first, epoch, count) if self._equal_steps else None,
                )
            yield EpochEnd()

    def _check_numbers(self, numbers: IntArray) -> IntArray:
        count = len(self._source)
        outside = numbers[(numbers < 0) | (numbers >= count)]
        if len(outside):
            problem = "a sampler names a sample that is not there"
            raise PositionError(problem, expected=f"0 to {count - 1}", found=outside[0])
        return numbers

    def _first_samples(self, drawn: Sequence[Any], epoch: int, count: int) -> Iterator[_Samples]:
        """Yield the first samples that the sampler drew, ``count`` at a time, with their epochs."""
        nested = [[number] if isinstance(number, int | np.integer) else number for number in drawn]
        first = np.array([number for numbers in nested for number in numbers], np.int64)
        for start in range(0, len(first), count):
            numbers = self._check_numbers(first[start : start + count])
            yield numbers, np.full(len(numbers), epoch), int(numbers[0])


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
                list(enumerate(task.values)),
                self._context.pipeline.per_sample,
                self._source,
                task.positions,
                lambda _: (self._context.pipeline.options.seed, task.epoch),
                self._context.errors,
                self._context.processes,
            )
        return [_make_element(value, int(task.positions[index]), part, False) for index, part, value in samples]


def _make_element(value: Any, position: int, part: int, is_flat_mapped: bool) -> Element:
    """Return an element that is resumed at the next position, or at the next part if a sample may have several."""
    resume_point = ResumePoint(position, part + 1) if is_flat_mapped else ResumePoint(position + 1)
    return Element(value, 1, resume_point, (position, part, 0), size=size_of(value))
