"""Run a pipeline, one epoch at a time.

On **success** an epoch's elements come in order, and work for the next epoch begins before this one has ended. On
**failure** the exception comes where its element would have. When the caller **stops** (break, exception, Ctrl-C,
garbage collection, exit) `close` drops what waits, lets what runs end, and ends threads and processes; see `_workers`
for each of these.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

from shoal.errors import LoaderError
from shoal.order import BlockShuffle, Sequential
from shoal.shard import ReadSchedule

from ._autotune import Tuner
from ._cursor import Cursor, PartitionCursors, following
from ._pipeline import BoundPipeline
from ._sample_stages import Processes, SampleErrors, through
from ._sources import PrefetchedSource, StreamSource, SupportsMemoryCache, SupportsPrefetch
from ._stages import Element, EpochEnd, Held, PerSample, TaskResult
from ._stats import Meter
from ._stream_stages import applied_to_line, holds_back
from ._tasks import Chunk, ExactHead, LooseHead, SamplerHead, StreamHead, Task, TaskContext
from ._workers import PrefetchQueue, Workers

__all__ = ["Run", "Runs"]

Head = ExactHead | LooseHead | SamplerHead | StreamHead
_BARREN = 1000
"""Epochs that may go by until a step which holds samples back, packing for one, has enough for an element."""
_PATIENCE = 5.0
"""Seconds that a function which was begun has to end when the caller stops; after that it is left to itself."""
_PATIENCE_AT_EXIT = 2.0


class Run:
    """Threads, processes and the line of work, from some place on; give it back with ``close``."""

    def __init__(self, built: BoundPipeline, head: Head, tools: TaskContext, tuner: Tuner, passed: int) -> None:
        self.built = built
        self._laid = built.laid
        self._head = head
        self._tools = tools
        self._tuner = tuner
        self._passed = passed
        """Elements of the first epoch that were delivered by an earlier run."""
        self.workers = Workers()
        self.foreseen = _foreseen(built, head)
        """What fetches far samples ahead."""
        self._units = cast("Generator[Task | Chunk | EpochEnd, None, None]", head.units())
        self._line: PrefetchQueue[Task | Chunk | EpochEnd, TaskResult | EpochEnd] = PrefetchQueue(
            self._units,
            self._worked,
            self.workers,
            self._depth,
            built.spec.timeout,
            budget=self._budget,
            size_of=lambda made: made.size if isinstance(made, TaskResult) else 0,
            is_patient=isinstance(head, StreamHead),
        )
        self._first = True
        self.is_at_end = False
        """Whether the line stands where an epoch ended, not somewhere before: a step may leave the rest of one."""
        self._endless: Iterator[Element] | None = None
        self._barren = 0
        """Epochs of the data that have gone by without an element."""

    @property
    def processes(self) -> Processes:
        """Those that map samples."""
        return self._tools.processes

    @property
    def is_usable(self) -> bool:
        """Whether it can go on: not after ``close``, and not in a forked child."""
        return self.workers.is_usable

    @property
    def ready(self) -> int:
        """Units of work that are done and not yet asked for."""
        return self._line.ready

    @property
    def _budget(self) -> int:
        """Bytes for each line of work: there is one more for each run of steps after a batch."""
        rest = [isinstance(step, PerSample) for step in self._laid.rest]
        lines = 1 + sum(here and not before for before, here in itertools.pairwise([False, *rest]))
        return max(1, self._laid.options.memory_budget // lines)

    def _depth(self) -> int:
        """How many units may be under way: what prefetch says."""
        most = self._laid.options.max_in_flight
        return self._tuner.prefetch if most is None else min(self._tuner.prefetch, most)

    def _worked(self, unit: Task | Chunk | EpochEnd) -> TaskResult | EpochEnd:
        self._tools.errors.taken()
        made = cast("Callable[[Any], list[Element] | EpochEnd]", self._head.work)(unit)
        return made if isinstance(made, EpochEnd) else TaskResult(made, self._tools.errors.taken())

    def tune(self) -> None:
        """Have as many threads as the tuner wants now."""
        if self.is_usable and self.workers.count != self._tuner.workers:
            self.workers.resize(self._tuner.workers)

    def epoch(self, number: int, done: int = 0) -> Iterator[Element]:
        """The elements of the epoch that comes next, after ``done`` of them. ``number`` fixes what is random in it.

        With ``steps_per_epoch`` on a line of unknown length, one line goes on through all epochs.
        """
        self.tune()
        passed, self._passed = self._passed, 0
        steps = self.built.line_steps
        if steps is None:
            return itertools.islice(self._one_epoch(number), passed, None)
        if self._endless is None:
            self._endless = itertools.islice(self._one_epoch(0), passed, None)
        return self._noted(itertools.islice(self._endless, max(0, steps - done)))

    def _noted(self, elements: Iterator[Element]) -> Iterator[Element]:
        for element in elements:
            self._barren = 0
            yield element

    def _one_epoch(self, number: int) -> Iterator[Element]:
        held: Held = self._head.held() if self._first and isinstance(self._head, LooseHead) else []
        self._first = False
        elements: Iterator[Element] = self._until_end()
        steps = list(self._laid.rest)
        while steps:
            maps = list(itertools.takewhile(lambda step: isinstance(step, PerSample), steps))
            if maps:
                elements = self._mapped(elements, cast("list[PerSample]", maps), number, len(steps))
                del steps[: len(maps)]
                continue
            step = steps.pop(0)
            known = self._laid.is_marked
            elements = applied_to_line(step, elements, number, held if holds_back(step) else [], known)
        return elements

    def _until_end(self) -> Iterator[Element]:
        endless, empty = self.built.line_steps is not None, 0
        self.is_at_end = endless
        for made in self._line:
            if isinstance(made, TaskResult):
                self._tools.meter.count("skipped", made.skipped)
                empty = 0 if made.elements else empty
                yield from made.elements
            elif not endless:
                self.is_at_end = True
                return
            elif empty > 1 or self._barren > _BARREN:  # the first may have begun in its middle
                hint = "is there data, and does a filter leave any of it?"
                raise LoaderError("a whole epoch gave nothing, and steps_per_epoch asks for more", hint=hint)
            else:
                empty, self._barren = empty + 1, self._barren + 1

    def _mapped(self, elements: Iterator[Element], steps: list[PerSample], epoch: int, at: int) -> Iterator[Element]:
        """Elements changed on the worker threads, in order. ``at`` tells these steps from others of the pipeline."""
        seeds = _seeds(self.built, self._tools.seed, epoch, at)

        def work(unit: tuple[int, Element]) -> TaskResult:
            number, element = unit
            self._tools.errors.taken()
            with self._tools.meter.timed("map"):
                errors, processes = self._tools.errors, self._tools.processes
                made = through(element, steps, seeds(number, element), epoch, errors, processes)
            return TaskResult(made, self._tools.errors.taken())

        line: PrefetchQueue[tuple[int, Element], TaskResult] = PrefetchQueue(
            enumerate(elements),
            work,
            self.workers,
            self._depth,
            self.built.spec.timeout,
            budget=self._budget,
            size_of=lambda made: made.size,
            is_patient=True,  # the line before this one is asked in the caller's thread
        )
        for made in line:
            self._tools.meter.count("skipped", made.skipped)
            yield from made.elements

    def close(self, patience: float | None = None) -> None:
        """Stop, and wait until nothing of it runs any more, or for about ``patience`` seconds."""
        close(self.workers, self.processes, patience, self.foreseen)
        with contextlib.suppress(ValueError):  # it runs, in another thread than the collector's
            self._units.close()
        if isinstance(self._laid.source, StreamSource) and self._laid.source.close is not None:
            self._laid.source.close()


def close(
    workers: Workers, processes: Processes, patience: float | None, foreseen: PrefetchedSource | None = None
) -> None:
    """End the threads and the processes of a run, and what it fetches ahead."""
    if foreseen is not None:
        foreseen.close()
    workers.close(patience)
    processes.close(patience)


def _seeds(built: BoundPipeline, seed: int, epoch: int, at: int) -> Callable[[int, Element], tuple[int, ...]]:
    """What an element's random numbers come from: its mark where runs begin anywhere, else its number in the epoch."""
    reader = built.split.reader
    if not built.laid.is_marked:
        return lambda number, _: (seed, epoch, number, at, reader)

    def of_mark(number: int, element: Element) -> tuple[int, ...]:
        del number
        mark = element.mark
        return (seed, 0, mark.position, mark.part, sum(map(len, mark.pending)), at, reader)

    return of_mark


def start_run(built: BoundPipeline, place: Cursor, meter: Meter, tuner: Tuner) -> Run:
    """Work from a place on."""
    options, laid = built.options, built.laid
    if isinstance(laid.source, SupportsMemoryCache) and built.keeps_data:
        laid.source.hold(options.memory_budget // 2)
    count = 0 if isinstance(laid.source, StreamSource) else len(laid.source)
    budget = options.error_budget if options.error_budget is not None else max(1, count // 100)
    errors = SampleErrors(options.on_error == "skip", budget)
    asked = options.num_workers
    tools = TaskContext(laid, meter, errors, Processes(None if asked == "auto" else asked), options.seed)
    passed = 0 if built.skips_groups else place.replayed
    return Run(built, _head(built, place, tools), tools, tuner, passed)


def _foreseen(built: BoundPipeline, head: Head) -> PrefetchedSource | None:
    """Have the data fetched ahead where it is far and its order is known."""
    source, order = built.laid.source, built.order
    if isinstance(source, StreamSource) or not isinstance(source, SupportsPrefetch):
        return None
    if not isinstance(head, (ExactHead, LooseHead)):  # nobody knows what a sampler will say
        return None
    block, spread = None, 0
    if isinstance(order, BlockShuffle):
        block = order.block_samples
        spread = order.window * block * order.lane_count // built.split.readers
    elif not isinstance(order, Sequential):  # any sample may come next: what fits is kept
        spread = built.length
    told = ReadSchedule(head.coming(), len(source), block, spread, built.options.memory_budget // 2)
    return source.foresee_order(told)


def _head(built: BoundPipeline, place: Cursor, tools: TaskContext) -> Head:
    laid = built.laid
    # A line that is cut into epochs of so many elements is passed over from its very beginning, where it must be.
    first = place.epoch if built.line_steps is None else 0
    if isinstance(laid.source, StreamSource):
        return StreamHead(tools, laid.source, built.split, built.chunk, first)
    if built.order is None:
        return SamplerHead(tools, laid.source, built.groups, first, place.replayed if built.skips_groups else 0)
    if place.plan is not None:
        return ExactHead(tools, laid.source, built.order, place.plan, lambda plan: following(built, plan), built.chunk)
    begin = place.begin or PartitionCursors.at(0)
    # Not by the places alone: where all are used up, what a step holds back still belongs to the epoch before.
    endless = built.line_steps is not None
    epoch = min(begin.positions) // max(built.order.length, 1) if endless else place.epoch
    return LooseHead(tools, laid.source, built.order, built.split, begin, epoch, built.chunk)


class Runs:
    """Work that is under way for ``owner``; all of it ends when the owner, or the interpreter, does."""

    def __init__(self, owner: object, meter: Meter, tuner: Tuner) -> None:
        self._owner = weakref.ref(owner)
        self._meter = meter
        self._tuner = tuner
        self._live: dict[Run, weakref.finalize[..., Any]] = {}
        self._idle: tuple[Run, Cursor] | None = None
        """Work that stands at the beginning of an epoch which nobody has begun yet."""
        self._process = os.getpid()

    @property
    def ready(self) -> int:
        """Units of work that are done and not yet asked for."""
        return sum(run.ready for run in self._live)

    def at(self, built: BoundPipeline, place: Cursor) -> Run:
        """Work that stands at this place: the one that goes on from the last epoch, or a new one."""
        idle, self._idle = self._idle, None
        if idle is not None:
            run, stands = idle
            if run.is_usable and run.built is built and stands.is_at(place):
                return run
            self.end(run)
        return self.start(built, place)

    def start(self, built: BoundPipeline, place: Cursor) -> Run:
        """New work from a place on."""
        self.check_process()
        run = start_run(built, place, self._meter, self._tuner)
        owner = self._owner()
        # Not the run: it knows the functions of the pipeline, and one of them may know the owner.
        self._live[run] = weakref.finalize(owner, close, run.workers, run.processes, _PATIENCE_AT_EXIT, run.foreseen)
        return run

    def keep(self, run: Run, place: Cursor) -> None:
        """Keep work that stands where an epoch begins, if it does; else end it."""
        if self._idle is None and run.is_at_end and run.is_usable:
            self._idle = run, place
        else:
            self.end(run)

    def end(self, run: Run, patience: float = _PATIENCE) -> None:
        """End work, and what it began."""
        finalizer = self._live.pop(run, None)
        if finalizer is not None:
            finalizer.detach()
        run.close(patience)

    def close(self) -> None:
        """End all."""
        self.check_process()
        self._idle = None
        for run in list(self._live):
            self.end(run)

    def check_process(self) -> None:
        """After a fork nothing of the parent's is of use here: not its threads, nor what they held."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._meter.after_fork()
        for finalizer in self._live.values():
            finalizer.detach()
        self._live.clear()
        self._idle = None
