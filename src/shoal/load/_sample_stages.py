"""Stages on one sample: map, filter and flat_map, on threads or in processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.errors import ErrorBudgetExceeded, LoaderError, OptionError, ShoalError
from shoal.store import configure_all, configured

from ._collate import BatchRowWriter, collate, size_of
from ._columns import Ragged
from ._sources import IndexedSource, Located
from ._stages import Batch, Element, Filter, FlatMap, Map, PerSample, name_of, rng_for, takes_rng

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

__all__ = [
    "Processes",
    "SampleErrors",
    "apply_steps",
    "collated",
    "gathered",
    "mapped_batch",
    "read_samples",
    "through",
]

Int64 = npt.NDArray[np.int64]
Seeds = tuple[int, ...] | None


# ------------------------------------------ the steps that are done to one sample after the other, in a worker's thread


class SampleErrors:
    """Whether a sample that failed is passed over, and how many may be, in each epoch."""

    def __init__(self, skip: bool, budget: int) -> None:
        self.skips = skip
        self._budget = budget
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._here = threading.local()

    def handle(self, error: Exception, epoch: int) -> None:
        """Count it, or raise it. Raises ErrorBudgetExceeded from it when it is one too many."""
        if not self.skips:
            raise error
        self._here.count = getattr(self._here, "count", 0) + 1
        with self._lock:
            count = self._counts[epoch] = self._counts.get(epoch, 0) + 1
        if count > self._budget:
            expected, last = f"at most {self._budget}", "; ".join([str(error), *getattr(error, "__notes__", ())])
            raise ErrorBudgetExceeded(
                "too many samples failed", expected=expected, found=count, hint=f"the last one: {last}"
            ) from error

    def taken(self) -> int:
        """How many this thread has passed over since it was last asked: counted when their unit is delivered."""
        count, self._here.count = getattr(self._here, "count", 0), 0
        return count


def read_samples(source: IndexedSource, numbers: Int64, epochs: Int64, errors: SampleErrors) -> list[tuple[int, Any]]:
    """The samples with these numbers, each with its place among them; without those that failed, if they may."""
    try:
        return list(enumerate(source.read(numbers)))
    except Exception as error:  # noqa: BLE001 - told with its place, and raised again unless skipped
        if not errors.skips:
            raise _told(error, source, numbers, "while reading") from None
    found = []
    for place, number in enumerate(numbers):
        one = numbers[place : place + 1]
        try:
            found.append((place, source.read(one)[0]))
        except Exception as error:  # noqa: BLE001 - counted, or raised again
            errors.handle(_placed(error, source, int(number), "while reading"), int(epochs[place]))
    return found


def gathered(source: IndexedSource, numbers: Int64, ragged: Ragged) -> Any | None:
    """A batch that the source makes as a whole, if it does."""
    try:
        return source.read_batch(numbers, ragged)
    except Exception as error:  # noqa: BLE001 - the same error, told with its place
        raise _told(error, source, numbers, "while reading") from None


def collated(samples: list[Any], step: Batch, source: Located, numbers: Int64) -> Any:
    """One batch of samples; an error is told with where they are."""
    try:
        return collate(samples, step.ragged) if step.collate is None else step.collate(samples)
    except Exception as error:  # noqa: BLE001 - the same error, told with its place
        name = "collate" if step.collate is None else f"collate({name_of(step.collate)})"
        raise _placed(error, source, int(numbers[0]), f"in {name}, batch from") from None


def _told(error: Exception, source: IndexedSource, numbers: Int64, stage: str) -> Exception:
    """The error with the sample it is about: its own word where it has one, else found by asking one by one."""
    if isinstance(error, ShoalError) and error.key is not None:
        error.add_note(stage)
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
    error.add_note(f"{stage}{': ' + where if where else ''}, sample {number}")
    return error


def apply_steps(
    values: list[tuple[int, Any]],
    steps: tuple[PerSample, ...],
    source: Located,
    numbers: Int64,
    seed_of: Callable[[int], tuple[int, int]],
    errors: SampleErrors,
    processes: Processes,
    placing: BatchRowWriter | None = None,
) -> list[tuple[int, int, Any]]:
    """(place, value) through all steps, in the order written, as (place, part, value).

    ``seed_of`` gives the seed and the epoch of the sample at a place. ``placing`` gets what a last map gives.
    """
    found = [(place, 0, value) for place, value in values]
    random = 0
    for at, step in enumerate(steps):
        random += takes_rng(step.function)
        is_last = at == len(steps) - 1 and isinstance(step, Map)
        call = _caller(step, random, source, numbers, seed_of, errors, processes, placing if is_last else None)
        if isinstance(step, Map):
            found = [(place, part, value) for place, part, value in call(found) if value is not _FAILED]
        elif isinstance(step, Filter):
            kept = call(found)
            found = [item for item, (_, _, keep) in zip(found, kept, strict=True) if keep is True]
        else:
            found = _numbered([(place, many) for place, _, many in call(found) if many is not _FAILED])
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
    at: int,
    source: Located,
    numbers: Int64,
    seed_of: Callable[[int], tuple[int, int]],
    errors: SampleErrors,
    processes: Processes,
    placing: BatchRowWriter | None,
) -> Callable[[list[tuple[int, int, Any]]], list[tuple[int, int, Any]]]:
    """A function that calls the step's function on each value, keeping its place."""
    random = takes_rng(step.function)

    def seeds(items: list[tuple[int, int, Any]]) -> list[Seeds]:
        if not random:
            return [None] * len(items)
        # `at`, so that two steps do not draw the same numbers for one sample.
        return [(*seed_of(place), int(numbers[place]), part, at) for place, part, _ in items]

    def failed(error: Exception, place: int) -> _Failed:
        errors.handle(_placed(error, source, int(numbers[place]), _stage(step)), seed_of(place)[1])
        return _FAILED

    def call(items: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
        results = _called(step, [value for _, _, value in items], seeds(items), processes, placing)
        return [
            (place, part, failed(result.error, place) if isinstance(result, Raised) else result)
            for (place, part, _), result in zip(items, results, strict=True)
        ]

    return call


def _stage(step: PerSample) -> str:
    kind = {Map: "map", Filter: "filter", FlatMap: "flat_map"}[type(step)]
    return f"in {kind}({name_of(step.function)})"


def _called(
    step: PerSample, values: list[Any], seeds: list[Seeds], processes: Processes, placing: BatchRowWriter | None = None
) -> list[Any]:
    """The function's results; ``Raised`` stands where there is none."""
    if isinstance(step, Map) and step.workers == "process" and values:
        try:
            return processes.map(step.function, values, seeds)
        except Exception as error:
            error.add_note(_stage(step))
            raise
    results = (_result(step, value, seed) for value, seed in zip(values, seeds, strict=True))
    return list(results if placing is None else map(placing, results))


def _result(step: PerSample, value: Any, seed: Seeds) -> Any:
    try:
        result = step.function(value) if seed is None else step.function(value, rng=rng_for(*seed))
        # Here, since what it gives may fail only when it is looked at.
        return list(result) if isinstance(step, FlatMap) else bool(result) if isinstance(step, Filter) else result
    except Exception as error:  # noqa: BLE001 - told with its place, and raised again unless skipped
        return Raised(error)


def mapped_batch(
    batch: Any,
    steps: tuple[Map, ...],
    seeds: tuple[int, int, int],
    source: Located,
    numbers: Int64,
    processes: Processes,
) -> Any:
    """A batch through functions of batches; an error is told with where its samples are."""
    for at, step in enumerate(steps):
        seed = (*seeds, 1, at, 0) if takes_rng(step.function) else None
        (batch,) = _called(step, [batch], [seed], processes)
        if isinstance(batch, Raised):
            first = int(numbers[0]) if len(numbers) else 0
            raise _placed(batch.error, source, first, f"{_stage(step)}, batch from") from None
    return batch


def through(
    element: Element,
    steps: Sequence[PerSample],
    seeds: tuple[int, ...],
    epoch: int,
    errors: SampleErrors,
    processes: Processes,
) -> list[Element]:
    """One element of the line through steps that look at it alone."""
    values: list[Any] = [element.value]
    for at, step in enumerate(steps):
        random = takes_rng(step.function)
        given = [(*seeds, part, at, 1) if random else None for part in range(len(values))]
        results = _called(step, values, given, processes)
        for result in results:
            if isinstance(result, Raised):
                result.error.add_note(_stage(step))
                errors.handle(result.error, epoch)
        values = _next_values(step, values, results)
    return [replace(element, value=value, size=size_of(value)) for value in values]


def _next_values(step: PerSample, values: list[Any], results: list[Any]) -> list[Any]:
    good = [(value, result) for value, result in zip(values, results, strict=True) if not isinstance(result, Raised)]
    if isinstance(step, Map):
        return [result for _, result in good]
    if isinstance(step, Filter):
        return [value for value, keep in good if keep]
    return [one for _, many in good for one in many]


# --------------------------------------------- map(fn, workers="process"): for functions that hold the GIL all the time


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception, where a value would be."""

    error: Exception


class Processes:
    """Other processes that call functions, started when the first one is needed."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None
        self._checked: list[Callable[..., Any]] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    def map(self, function: Callable[..., Any], values: list[Any], seeds: list[Seeds]) -> list[Any]:
        """What the function gives for each value; ``Raised`` stands where it raised.

        Raises OptionError for a function that another process cannot get, and LoaderError when a process has died.
        """
        from concurrent.futures import CancelledError
        from concurrent.futures.process import BrokenProcessPool

        parts = max(1, min(self._count, len(values)))
        cut = [len(values) * at // parts for at in range(parts + 1)]
        pool = self._started(function)
        ranges = [slice(begin, end) for begin, end in itertools.pairwise(cut)]
        try:
            futures: list[Future[bytes]] = [pool.submit(_call_all, function, values[at], seeds[at]) for at in ranges]
            return [result for future in futures for result in pickle.loads(future.result())]  # noqa: S301 - our own
        except (BrokenProcessPool, CancelledError) as error:
            self._forget(pool)
            hint = "was it killed, for want of memory?"
            raise LoaderError("a process that maps samples has ended", found=str(error) or None, hint=hint) from error

    def _started(self, function: Callable[..., Any]) -> ProcessPoolExecutor:
        import multiprocessing  # here, since few need it and `import shoal` is to be quick
        from concurrent.futures import ProcessPoolExecutor

        with self._lock:
            if not any(function is checked for checked in self._checked):
                _check_picklable(function)
                self._checked.append(function)
            if self._pool is None:
                # Never fork: threads of this process may hold locks, and object stores do not survive it.
                method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
                context = multiprocessing.get_context(method)
                self._pool = ProcessPoolExecutor(
                    self._count, context, initializer=configure_all, initargs=(_sendable_settings(),)
                )
            return self._pool

    def _forget(self, pool: ProcessPoolExecutor) -> None:
        """The next call starts other processes."""
        with self._lock:
            if self._pool is pool:
                self._pool = None

    def close(self, patience: float | None = None) -> None:
        """End the processes when they are done with what they have begun, or by force after ``patience`` seconds."""
        if self._process != os.getpid():  # a forked child has none
            return
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        children = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=patience is None, cancel_futures=True)
        if patience is not None:
            _end(children, patience)


def _sendable_settings() -> dict[str, dict[str, Any]]:
    """How stores are reached, for processes that read themselves; without providers that cannot be sent to them."""
    settings = configured()
    for options in settings.values():
        for name, value in list(options.items()):
            try:
                pickle.dumps(value)
            except Exception:  # noqa: BLE001 - a lambda, or anything else: the environment may still tell
                del options[name]
    return settings


def _end(children: list[Any], patience: float) -> None:
    """Wait for processes to end, then make them."""
    from multiprocessing.connection import wait

    until = time.monotonic() + patience
    running = {child.sentinel: child for child in children}
    while running and (left := until - time.monotonic()) > 0:
        for sentinel in wait(list(running), left):
            running.pop(sentinel, None)
    for child in running.values():
        child.kill()
    for child in children:
        child.join(1.0)


def _check_picklable(function: Callable[..., Any]) -> None:
    try:
        pickle.dumps(function)
    except Exception as error:
        raise OptionError(
            "a function for other processes must be one that they can import",
            found=f"{function!r}: {error}",
            hint="define it at the top of a module, or use workers='thread'",
        ) from error


def _call_all(function: Callable[..., Any], values: list[Any], seeds: list[Seeds]) -> bytes:
    """All results in one string, made here: what cannot be sent is its own sample's error and nobody else's."""
    results = [_call(function, value, seed) for value, seed in zip(values, seeds, strict=True)]
    try:
        return pickle.dumps(results, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - found out one by one
        return pickle.dumps([_sent(result) for result in results], pickle.HIGHEST_PROTOCOL)


def _call(function: Callable[..., Any], value: Any, seed: Seeds) -> Any:
    try:
        return function(value) if seed is None else function(value, rng=rng_for(*seed))
    except Exception as error:  # noqa: BLE001 - it goes back as a value, with the text of its traceback
        import traceback

        error.add_note("".join(traceback.format_exception(error)).rstrip())
        return Raised(_sendable(error))


def _sent(result: Any) -> Any:
    try:
        pickle.dumps(result)
    except Exception as error:  # noqa: BLE001 - it goes back as a value
        return Raised(_sendable(error))
    return result


def _sendable(error: Exception) -> Exception:
    """The error, or one that tells of it where it does not survive being sent."""
    with contextlib.suppress(Exception):  # classes may do anything when they are copied
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 - made on this line
            return error
    found = f"{type(error).__name__}: {error}"
    told = LoaderError("a function raised what cannot be sent between processes", found=found)
    for note in getattr(error, "__notes__", ()):
        told.add_note(note)
    return told
