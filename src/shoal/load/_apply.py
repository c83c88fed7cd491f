"""The steps that are done to one sample after the other, in a worker's thread, and what happens when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import ErrorBudgetExceeded, ShoalError

from ._processes import Processes, Raised
from ._rng import rng_for
from ._source import Located, Numbered
from ._stats import Meter
from ._steps import Filter, FlatMap, Map, PerSample, name_of, takes_rng

__all__ = ["SampleErrors", "apply_steps", "mapped_batch", "read_samples"]

Int64 = npt.NDArray[np.int64]


class SampleErrors:
    """Whether a sample that failed is passed over, and how many may be."""

    def __init__(self, skip: bool, budget: int, meter: Meter) -> None:
        self.skips = skip
        self._budget = budget
        self._meter = meter
        self._count = 0
        self._lock = threading.Lock()
        self.last: str | None = None
        """What was said about the last one."""

    def handle(self, error: Exception) -> None:
        """Count it, or raise it. Raises ErrorBudgetExceeded from it when it is one too many."""
        if not self.skips:
            raise error
        with self._lock:
            self._count += 1
            self.last = "; ".join([str(error), *getattr(error, "__notes__", ())])
        self._meter.count("skipped", 1)
        if self._count > self._budget:
            expected = f"at most {self._budget}"
            raise ErrorBudgetExceeded("too many samples failed", expected=expected, found=self._count) from error


def read_samples(source: Numbered, numbers: Int64, errors: SampleErrors) -> list[tuple[int, Any]]:
    """The samples with these numbers, each with its place among them; without those that failed, if they may."""
    try:
        return list(enumerate(source.read(numbers)))
    except Exception as error:  # noqa: BLE001 - told with its place, and raised again unless skipped
        if not errors.skips:
            raise _told(error, source, numbers, "reading") from None
    found = []
    for place, number in enumerate(numbers):
        one = numbers[place : place + 1]
        try:
            found.append((place, source.read(one)[0]))
        except Exception as error:  # noqa: BLE001 - counted, or raised again
            errors.handle(_placed(error, source, int(number), "reading"))
    return found


def _told(error: Exception, source: Numbered, numbers: Int64, stage: str) -> Exception:
    """The error with the sample it is about: its own word where it has one, else found by asking one by one."""
    if isinstance(error, ShoalError) and error.key is not None:
        error.add_note(f"while {stage}")
        return error
    for number in numbers.tolist():
        try:
            source.read(np.array([number]))
        except Exception as found:  # noqa: BLE001 - this is the one
            return _placed(found, source, number, stage)
    return error


def _placed(error: Exception, source: Located, number: int, stage: str) -> Exception:
    shard, key = source.locate(number)
    where = ", ".join(f"{word} {value}" for word, value in (("shard", shard), ("key", key)) if value is not None)
    error.add_note(f"while {stage}{': ' + where if where else ''}, sample {number}")
    return error


def apply_steps(
    values: list[tuple[int, Any]],
    steps: tuple[PerSample, ...],
    source: Located,
    numbers: Int64,
    seed_of: Callable[[int], tuple[int, int]],
    errors: SampleErrors,
    processes: Processes,
) -> list[tuple[int, int, Any]]:
    """(place, value) through all steps, in the order written, as (place, part, value).

    ``seed_of`` gives the seed and the epoch of the sample at a place.
    """
    found = [(place, 0, value) for place, value in values]
    for step in steps:
        call = _caller(step, source, numbers, seed_of, errors, processes)
        if isinstance(step, Map):
            found = [(place, part, value) for place, part, value in call(found) if value is not _FAILED]
        elif isinstance(step, Filter):
            kept = call(found)
            found = [item for item, (_, _, keep) in zip(found, kept, strict=True) if keep is not _FAILED and bool(keep)]
        else:
            found = _numbered([(place, list(many)) for place, _, many in call(found) if many is not _FAILED])
    return found


def _numbered(found: list[tuple[int, list[Any]]]) -> list[tuple[int, int, Any]]:
    """What came of each sample, counted from 0 again for each."""
    counts: dict[int, int] = {}
    out = []
    for place, many in found:
        for value in many:
            part = counts.get(place, 0)
            counts[place] = part + 1
            out.append((place, part, value))
    return out


class _Failed:
    """Stands where a value would, when there is none because of an error that was passed over."""


_FAILED = _Failed()


def _caller(
    step: PerSample,
    source: Located,
    numbers: Int64,
    seed_of: Callable[[int], tuple[int, int]],
    errors: SampleErrors,
    processes: Processes,
) -> Callable[[list[tuple[int, int, Any]]], list[tuple[int, int, Any]]]:
    """A function that calls the step's function on each value, keeping its place."""
    function, random = step.function, takes_rng(step.function)
    kind = {Map: "map", Filter: "filter", FlatMap: "flat_map"}[type(step)]

    def one(place: int, part: int, value: Any) -> Any:
        if not random:
            return function(value)
        seed, epoch = seed_of(place)
        return function(value, rng=rng_for(seed, epoch, int(numbers[place]), part))

    def failed(error: Exception, place: int) -> _Failed:
        errors.handle(_placed(error, source, int(numbers[place]), f"in {kind}({name_of(function)})"))
        return _FAILED

    def call(items: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
        if isinstance(step, Map) and step.workers == "process":
            rngs = [(*seed_of(place), int(numbers[place]), part) if random else None for place, part, _ in items]
            results = processes.map(function, [value for _, _, value in items], rngs)
            checked = [
                failed(value.error, place) if isinstance(value, Raised) else value
                for (place, _, _), value in zip(items, results, strict=True)
            ]
            return [(place, part, value) for (place, part, _), value in zip(items, checked, strict=True)]
        out = []
        for place, part, value in items:
            try:
                result = one(place, part, value)
            except Exception as error:  # noqa: BLE001 - told with its place, and raised again unless skipped
                result = failed(error, place)
            out.append((place, part, result))
        return out

    return call


def mapped_batch(
    batch: Any, steps: tuple[Map, ...], seeds: tuple[int, int, int], source: Numbered, numbers: Int64
) -> Any:
    """A batch through functions of batches; an error is told with where its samples are."""
    for step in steps:
        try:
            batch = step.function(batch, rng=rng_for(*seeds, 1)) if takes_rng(step.function) else step.function(batch)
        except Exception as error:  # noqa: BLE001 - the same error, told with its place
            first = int(numbers[0]) if len(numbers) else 0
            raise _placed(error, source, first, f"in map({name_of(step.function)}), batch from") from None
    return batch
