"""`EpochRun` runs a pipeline on threads, epoch after epoch; `RunRegistry` ends the runs of a loader.

On **success** an epoch's elements are returned in order, and tasks of the next epoch begin before this one has ended.
On **failure** the exception is raised in place of its element. When the caller **stops** (break, exception, Ctrl-C,
garbage collection, exit) `close` drops tasks that have not begun, lets running ones finish, and ends threads and
processes; see `shoal.store._prefetch_queue` for details.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

from shoal.errors import LoaderError, ShoalWarning
from shoal.order._block_shuffle import BlockShuffle
from shoal.order._orders import Sequential
from shoal.shard._shuffle_window import ReadSchedule
from shoal.shard._stream import error_limit
from shoal.store._prefetch_queue import PrefetchQueue, Workers

from ._autotune import Tuner
from ._cursor import Cursor, PartitionCursors, next_plan
from ._pipeline import BoundPipeline
from ._sample_stages import ProcessPool, SampleErrors, apply_to_element
from ._sampler_shares import check_drawn
from ._sources import PrefetchedSource, StreamSource, SupportsMemoryCache, SupportsPrefetch
from ._stages import Element, EpochEnd, PendingGroups, PerSample, TaskResult
from ._stats import Meter
from ._stream_stages import apply_to_stream, buffers_elements
from ._tasks import Chunk, NumberedTasks, PerSampleTasks, SamplerTasks, StreamTasks, Task, TaskContext

__all__ = ["EpochRun", "RunRegistry"]

AnyTasks = NumberedTasks | PerSampleTasks | SamplerTasks | StreamTasks
_MAX_EMPTY_EPOCHS = 1000
"""Epochs in a row that a stage which buffers samples, such as packing, may need for an element."""
_CLOSE_TIMEOUT_S = 5.0
"""When the caller stops, running functions are waited for this long."""
_EXIT_TIMEOUT_S = 2.0


class EpochRun:
    """A pipeline running from some position on: its threads, processes and queues. End it with ``close``."""

    def __init__(self, pipeline: BoundPipeline, cursor: Cursor, meter: Meter, tuner: Tuner) -> None:
        options = pipeline.options
        self.pipeline = pipeline
        self._errors = _sample_errors(pipeline)
        self.processes = ProcessPool(None if options.num_workers == "auto" else options.num_workers)
        """The processes that map samples."""
        self._meter = meter
        self._tuner = tuner
        context = TaskContext(pipeline, meter, self._errors, self.processes)
        self._tasks = tasks = _make_tasks(pipeline, cursor, context)
        self._skip = cursor.replayed
        """Elements of the first epoch that an earlier run delivered."""
        self._drawn = cursor.sampled.drawn if cursor.sampled is not None and cursor.replayed else ""
        """Checksum of what a sampler had drawn for the last of them."""
        self.workers = Workers()
        self.prefetched = _prefetch(pipeline, tasks)
        """Remote samples that are being prefetched, if any."""
        # There is one more queue for each sequence of per-element stages in ``rest``.
        are_per_sample = [isinstance(stage, PerSample) for stage in pipeline.rest]
        queues = 1 + sum(is_per_sample for is_per_sample, _ in itertools.groupby(are_per_sample))
        self._budget = max(1, options.memory_budget // queues)
        """Bytes for each queue."""
        self._iterator = cast("Generator[Task | Chunk | EpochEnd, None, None]", tasks.tasks())
        self._queue: PrefetchQueue[Task | Chunk | EpochEnd, TaskResult | EpochEnd] = PrefetchQueue(
            self._iterator,
            self._work,
            self.workers,
            self._depth,
            pipeline.spec.timeout,
            budget=self._budget,
            size_of=_size_of_result,
            is_lazy=isinstance(tasks, StreamTasks),
        )
        self._skipped = 0
        """Samples that were skipped in what was delivered since `report_skipped`."""
        self._first = True
        self.is_at_end = False
        """Whether all of an epoch was taken from the queue: a stage may leave the rest of one."""
        self._stream: Iterator[Element] | None = None
        """With ``steps_per_epoch``, the elements of all epochs."""
        self._empty_epochs = 0
        """Epochs of the data since the last element."""

    @property
    def ready(self) -> int:
        """Results that are ready and not yet requested."""
        return self._queue.ready

    def _depth(self) -> int:
        """How many tasks may be in progress or ready."""
        limit = self.pipeline.options.max_in_flight
        return self._tuner.prefetch if limit is None else min(self._tuner.prefetch, limit)

    def _work(self, task: Task | Chunk | EpochEnd) -> TaskResult | EpochEnd:
        if isinstance(task, EpochEnd):
            return task
        errors = self._errors
        if errors.skips:
            errors.take_count()  # of a task that failed
        made = cast("Callable[[Any], list[Element]]", self._tasks.work)(task)
        return TaskResult(made, errors.take_count() if errors.skips else 0)

    def report_skipped(self) -> None:
        """Warn of the samples that were skipped since the last call: nothing is skipped silently."""
        count, self._skipped = self._skipped, 0
        if count:
            samples = f"{count} sample{'s' if count > 1 else ''}"
            warnings.warn(f"skipped {samples}; the first: {self._errors.first}", ShoalWarning, stacklevel=4)

    def _count_skipped(self, count: int) -> None:
        self._meter.count_skipped(count)
        self._skipped += count

    def tune(self) -> None:
        """Change the number of threads to the tuner's."""
        if self.workers.count != self._tuner.workers:
            self.workers.resize(self._tuner.workers)

    def epoch(self, number: int, done: int = 0) -> Iterator[Element]:
        """Return the elements of the next epoch, after the first ``done``. ``number`` determines random numbers.

        With ``steps_per_epoch`` and elements of unknown number, one stream goes on through all epochs.
        """
        skip, self._skip = self._skip, 0
        steps = self.pipeline.stream_steps
        if steps is None:
            elements = self._one_epoch(number)
            return self._after(elements, skip) if skip else elements
        if self._stream is None:
            self._stream = self._after(self._one_epoch(0), skip)
        return self._count_elements(itertools.islice(self._stream, max(0, steps - done)))

    def _after(self, elements: Iterator[Element], skip: int) -> Iterator[Element]:
        """Return the elements after the first ``skip``, which are made again."""
        last = None
        for element in itertools.islice(elements, skip):
            last = element
        if last is not None:
            check_drawn(last.resume_point.drawn, self._drawn)
        yield from elements

    def _count_elements(self, elements: Iterator[Element]) -> Iterator[Element]:
        for element in elements:
            self._empty_epochs = 0
            yield element

    def _one_epoch(self, number: int) -> Iterator[Element]:
        pending: PendingGroups = (
            self._tasks.read_pending() if self._first and isinstance(self._tasks, PerSampleTasks) else []
        )
        self._first = False
        elements: Iterator[Element] = self._until_end()
        stages = list(self.pipeline.rest)
        while stages:
            maps = list(itertools.takewhile(lambda stage: isinstance(stage, PerSample), stages))
            if maps:
                elements = self._map_elements(elements, cast("list[PerSample]", maps), number, len(stages))
                del stages[: len(maps)]
                continue
            stage = stages.pop(0)
            buffered = pending if buffers_elements(stage) else []
            elements = apply_to_stream(stage, elements, number, buffered, self.pipeline.is_seekable)
        return elements

    def _until_end(self) -> Iterator[Element]:
        endless, empty = self.pipeline.stream_steps is not None, 0
        self.is_at_end = endless
        for made in self._queue:
            if isinstance(made, TaskResult):
                if made.skipped:
                    self._count_skipped(made.skipped)
                empty = 0 if made.elements else empty
                yield from made.elements
            elif not endless:
                self.is_at_end = True
                return
            elif empty > 1 or self._empty_epochs > _MAX_EMPTY_EPOCHS:  # the first may have begun in the middle
                hint = "is there data, and does a filter leave any of it?"
                raise LoaderError("a whole epoch gave nothing, and steps_per_epoch asks for more", hint=hint)
            else:
                empty, self._empty_epochs = empty + 1, self._empty_epochs + 1

    def _map_elements(
        self, elements: Iterator[Element], stages: list[PerSample], epoch: int, at: int
    ) -> Iterator[Element]:
        """Apply stages to elements on the worker threads, in order. ``at`` identifies the stages in the pipeline."""
        seeds = _seeds(self.pipeline, epoch, at)

        def work(task: tuple[int, Element]) -> TaskResult:
            number, element = task
            self._errors.take_count()
            with self._meter.timed("map"):
                errors, processes = self._errors, self.processes
                made = apply_to_element(element, stages, seeds(number, element), epoch, errors, processes)
            return TaskResult(made, self._errors.take_count())

        queue: PrefetchQueue[tuple[int, Element], TaskResult] = PrefetchQueue(
            enumerate(elements),
            work,
            self.workers,
            self._depth,
            self.pipeline.spec.timeout,
            budget=self._budget,
            size_of=_size_of_result,
            is_lazy=True,  # the stages before run in the caller's thread
        )
        for made in queue:
            if made.skipped:
                self._count_skipped(made.skipped)
            yield from made.elements

    def close(self, timeout_s: float | None = None) -> None:
        """Stop, and wait until nothing runs any more, or for about ``timeout_s`` seconds."""
        close(self.workers, self.processes, timeout_s, self.prefetched)
        with contextlib.suppress(ValueError):  # it is running, in another thread than the garbage collector's
            self._iterator.close()
        if isinstance(self.pipeline.source, StreamSource) and self.pipeline.source.close is not None:
            self.pipeline.source.close()


def _size_of_result(made: TaskResult | EpochEnd) -> int:
    return sum(element.size for element in made.elements) if isinstance(made, TaskResult) else 0


def close(
    workers: Workers, processes: ProcessPool, timeout_s: float | None, prefetched: PrefetchedSource | None = None
) -> None:
    """End the threads and processes of a run, and prefetching."""
    if prefetched is not None:
        prefetched.close()
    workers.close(timeout_s)
    processes.close(timeout_s)


def _seeds(pipeline: BoundPipeline, epoch: int, at: int) -> Callable[[int, Element], tuple[int, ...]]:
    """Return the seeds of an element: from its resume point if runs may begin anywhere, else from its number."""
    seed, reader = pipeline.options.seed, pipeline.split.reader
    if not pipeline.is_seekable:
        return lambda number, _: (seed, epoch, number, at, reader)

    def of_resume_point(number: int, element: Element) -> tuple[int, ...]:
        del number
        resume_point = element.resume_point
        return (seed, 0, resume_point.position, resume_point.part, sum(map(len, resume_point.pending)), at, reader)

    return of_resume_point


def _sample_errors(pipeline: BoundPipeline) -> SampleErrors:
    policy, source = pipeline.errors, pipeline.source
    if not policy.goes_on:
        return SampleErrors(policy, 0)
    return SampleErrors(policy, error_limit(policy.budget, None if isinstance(source, StreamSource) else len(source)))


def _prefetch(pipeline: BoundPipeline, tasks: AnyTasks) -> PrefetchedSource | None:
    """Start prefetching, if the data is remote and its order is known."""
    source, order = pipeline.source, pipeline.order
    if isinstance(source, StreamSource) or not isinstance(source, SupportsPrefetch):
        return None
    if not isinstance(tasks, (NumberedTasks, PerSampleTasks)):  # a sampler's order is not known beforehand
        return None
    block, spread = None, 0
    if isinstance(order, BlockShuffle):
        block = order.block_samples
        spread = order.window * block * order.lane_count // pipeline.split.readers
    elif not isinstance(order, Sequential):  # any sample may be next
        spread = pipeline.length
    schedule = ReadSchedule(tasks.iter_samples(), len(source), block, spread, pipeline.options.memory_budget // 2)
    return source.foresee_order(schedule)


def _make_tasks(pipeline: BoundPipeline, cursor: Cursor, context: TaskContext) -> AnyTasks:
    source, order = pipeline.source, pipeline.order
    # A stream that is cut into epochs of ``steps_per_epoch`` elements is replayed from its beginning.
    first = cursor.epoch if pipeline.stream_steps is None else 0
    if isinstance(source, StreamSource):
        return StreamTasks(context, source, pipeline.split, pipeline.chunk, first)
    if order is None:
        return SamplerTasks(
            context,
            source,
            pipeline.shares,
            first,
            cursor.sampled if pipeline.skips_groups else None,
            pipeline.split.readers > 1 and pipeline.options.tail != "uneven",
        )
    if cursor.plan is not None:
        return NumberedTasks(context, source, order, cursor.plan, functools.partial(next_plan, pipeline))
    partitions = cursor.partitions or PartitionCursors.at(0)
    # The epoch does not follow from positions alone: if all were read, buffered samples are still of the epoch before.
    endless = pipeline.stream_steps is not None
    epoch = min(partitions.positions) // max(order.length, 1) if endless else cursor.epoch
    return PerSampleTasks(context, source, order, pipeline.split, partitions, epoch, pipeline.chunk)


class RunRegistry:
    """The runs of ``owner``; all of them end when the owner, or the interpreter, does."""

    def __init__(self, owner: object, meter: Meter, tuner: Tuner) -> None:
        self._owner = weakref.ref(owner)
        self._meter = meter
        self._tuner = tuner
        self._live: dict[EpochRun, weakref.finalize[..., Any]] = {}
        self._idle: tuple[EpochRun, Cursor] | None = None
        """A run at the beginning of an epoch that was not started yet, and its position."""
        self._process = os.getpid()

    @property
    def ready(self) -> int:
        """Results that are ready and not yet requested."""
        return sum(run.ready for run in self._live)

    def at(self, pipeline: BoundPipeline, cursor: Cursor) -> EpochRun:
        """Return a run at a position: the one that was kept after the last epoch, or a new one."""
        idle, self._idle = self._idle, None
        if idle is not None:
            run, start = idle
            if run.workers.is_usable and run.pipeline is pipeline and start.is_at(cursor):
                return run
            self.end(run)
        return self.start(pipeline, cursor)

    def start(self, pipeline: BoundPipeline, cursor: Cursor) -> EpochRun:
        """Start a new run at a position."""
        self.check_process()
        if isinstance(pipeline.source, SupportsMemoryCache) and pipeline.keeps_data:
            pipeline.source.hold(pipeline.options.memory_budget // 2)
        run = EpochRun(pipeline, cursor, self._meter, self._tuner)
        owner = self._owner()
        # Not the run: it refers to the functions of the pipeline, and one of them may refer to the owner.
        self._live[run] = weakref.finalize(owner, close, run.workers, run.processes, _EXIT_TIMEOUT_S, run.prefetched)
        return run

    def keep(self, run: EpochRun, cursor: Cursor) -> None:
        """Keep a run that has reached the end of an epoch, for the next one; end any other."""
        if self._idle is None and run.is_at_end and run.workers.is_usable:
            self._idle = run, cursor
        else:
            self.end(run)

    def end(self, run: EpochRun, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """End a run."""
        finalizer = self._live.pop(run, None)
        if finalizer is not None:
            finalizer.detach()
        run.close(timeout_s)

    def close(self) -> None:
        """End all runs."""
        self.check_process()
        self._idle = None
        for run in list(self._live):
            self.end(run)

    def check_process(self) -> None:
        """Forget all runs after a fork: threads of the parent do not exist here, and their locks are never released."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._meter.after_fork()
        for finalizer in self._live.values():
            finalizer.detach()
        self._live.clear()
        self._idle = None
