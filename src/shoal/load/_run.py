"""A pipeline at work: describe (`_spec`) -> build (here) -> run, an epoch at a time.

On **success** an epoch's elements come in order, and work for the next epoch begins before this one has ended. On
**failure** the exception comes where its element would have; what is after it can still be had. When the caller
**stops** (break, exception, Ctrl-C, garbage collection, exit) `close` drops what waits, lets what runs end, and ends
threads and processes; see `_work` for each of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

from ._apply import SampleErrors
from ._autotune import Tuner
from ._build import Built
from ._collate import size_of
from ._elements import Element, EpochEnd
from ._head import Chunk, ExactHead, LooseHead, SamplerHead, StreamHead, Tools, Unit
from ._line_steps import Held, applied_to_line, holds_back
from ._place import Place, following
from ._processes import Processes
from ._shares import Begin
from ._source import StreamSource
from ._spec import Laid
from ._stats import Meter
from ._steps import Filter, FlatMap, Map, Step
from ._work import Line, Workers

__all__ = ["Run", "start_run"]

Head = ExactHead | LooseHead | SamplerHead | StreamHead
_EXPECTED_BYTES = 1 << 20
"""What a unit is taken to hold before one has been seen."""


class Run:
    """Threads, processes and the line of work, from some place on; give it back with ``close``."""

    def __init__(self, laid: Laid, head: Head, tools: Tools, tuner: Tuner, timeout: float | None) -> None:
        self._laid = laid
        self._head = head
        self._tools = tools
        self._tuner = tuner
        self._timeout = timeout
        self._workers = Workers()
        self._mean_bytes = 0.0
        self._line: Line[Unit | Chunk | EpochEnd, list[Element] | EpochEnd] = Line(
            head.units(),
            cast("Callable[[Any], list[Element] | EpochEnd]", head.work),
            self._workers,
            self._depth,
            timeout,
        )
        self._first = True
        self.is_at_end = False
        """Whether the line stands where an epoch ended, not somewhere before: a step may leave the rest of one."""
        self._is_endless = laid.mode != "exact" and laid.options.steps_per_epoch is not None
        self._endless: Iterator[Element] | None = None

    @property
    def ready(self) -> int:
        """Units of work that are done and not yet asked for."""
        return self._line.ready

    @property
    def workers(self) -> int:
        """How many threads work now."""
        return self._workers.count

    def _depth(self) -> int:
        """How many units may be under way: what prefetch says, within the memory budget."""
        options = self._laid.options
        fits = int(options.memory_budget // (self._mean_bytes or _EXPECTED_BYTES))
        most = (
            self._tuner.prefetch if options.max_in_flight is None else min(self._tuner.prefetch, options.max_in_flight)
        )
        return max(1, min(most, fits))

    def tune(self) -> None:
        """Have as many threads as the tuner wants now."""
        if self._workers.count != self._tuner.workers:
            self._workers.resize(self._tuner.workers)

    def epoch(self, number: int) -> Iterator[Element]:
        """The elements of the epoch that comes next. ``number`` fixes what is random in it.

        With ``steps_per_epoch`` on a line of unknown length, one line goes on through all epochs.
        """
        self.tune()
        if not self._is_endless:
            return self._one_epoch(number)
        if self._endless is None:
            self._endless = self._one_epoch(number)
        return itertools.islice(self._endless, self._laid.options.steps_per_epoch)

    def _one_epoch(self, number: int) -> Iterator[Element]:
        held: Held = self._head.held() if self._first and isinstance(self._head, LooseHead) else []
        self._first = False
        elements: Iterator[Element] = self._until_end()
        steps = list(self._laid.rest)
        while steps:
            maps = list(itertools.takewhile(lambda step: isinstance(step, (Map, Filter, FlatMap)), steps))
            if maps:
                elements = self._mapped(elements, maps)
                del steps[: len(maps)]
                continue
            step = steps.pop(0)
            elements = applied_to_line(step, elements, number, held if holds_back(step) else [])
        return elements

    def _until_end(self) -> Iterator[Element]:
        self.is_at_end = self._is_endless
        for made in self._line:
            if isinstance(made, EpochEnd):
                if self._is_endless:
                    continue
                self.is_at_end = True
                return
            self._weigh(made)
            yield from made

    def _weigh(self, made: list[Element]) -> None:
        size = sum(element.size for element in made)
        self._mean_bytes = size if not self._mean_bytes else 0.9 * self._mean_bytes + 0.1 * size

    def _mapped(self, elements: Iterator[Element], steps: list[Step]) -> Iterator[Element]:
        """Elements changed on the worker threads, in order."""
        line: Line[Element, list[Element]] = Line(
            elements, lambda element: _through(element, steps, self._tools), self._workers, self._depth, self._timeout
        )
        return itertools.chain.from_iterable(line)

    def close(self, patience: float | None = None) -> None:
        """Stop, and wait until nothing of it runs any more, or for ``patience`` seconds."""
        self._workers.close(patience)
        self._tools.processes.close()


def _through(element: Element, steps: list[Step], tools: Tools) -> list[Element]:
    """One element of the line through steps that look at it alone."""
    values: list[Any] = [element.value]
    with tools.meter.timed("map"):
        for step in steps:
            if isinstance(step, Map):
                values = [step.function(value) for value in values]
            elif isinstance(step, Filter):
                values = [value for value in values if step.function(value)]
            elif isinstance(step, FlatMap):
                values = [one for value in values for one in step.function(value)]
    return [replace(element, value=value, size=size_of(value)) for value in values]


def start_run(built: Built, place: Place, meter: Meter, tuner: Tuner) -> Run:
    """Work from a place on."""
    options, laid = built.options, built.laid
    count = 0 if isinstance(laid.source, StreamSource) else len(laid.source)
    budget = options.error_budget if options.error_budget is not None else max(1, count // 100)
    errors = SampleErrors(options.on_error == "skip", budget, meter)
    tools = Tools(laid, meter, errors, Processes(), options.seed)
    return Run(laid, _head(built, place, tools), tools, tuner, built.spec.timeout)


def _head(built: Built, place: Place, tools: Tools) -> Head:
    laid = built.laid
    if isinstance(laid.source, StreamSource):
        return StreamHead(tools, laid.source, built.split, built.chunk, place.epoch)
    if built.order is None:
        return SamplerHead(tools, laid.source, built.groups, place.epoch, 0)
    if place.plan is not None:
        return ExactHead(tools, laid.source, built.order, place.plan, lambda plan: following(built, plan), built.chunk)
    begin = place.begin or Begin.at(0)
    # Not by the places alone: where all are used up, what a step holds back still belongs to the epoch before.
    endless = built.options.steps_per_epoch is not None
    epoch = min(begin.positions) // max(built.order.length, 1) if endless else place.epoch
    return LooseHead(tools, laid.source, built.order, built.split, begin, epoch, built.chunk)
