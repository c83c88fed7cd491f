"""Read samples and apply `map`, `filter` and `flat_map` to each, on threads or in other processes.

Errors get notes with the stage, the function, the shard and the key; `SampleErrors` decides which samples are skipped.
"""

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

from shoal._typing import IntArray
from shoal.errors import ErrorBudgetExceeded, LoaderError, OptionError, ShoalError
from shoal.shard._stream import ErrorPolicy
from shoal.store._options import configure_all, configured

from ._collate import BatchRowWriter, collate, size_of
from ._columns import Ragged
from ._sources import IndexedSource, Located
from ._stages import Batch, Element, Filter, FlatMap, Map, PerSample, function_location, rng_for, takes_rng

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

__all__ = [
    "ProcessPool",
    "SampleErrors",
    "apply_stages",
    "apply_to_element",
    "collate_samples",
    "map_batch",
    "read_batch",
    "read_samples",
]

Seeds = tuple[int, ...] | None


class SampleErrors:
    """Whether samples that fail are skipped, and how many may be in each epoch. Thread-safe."""

    def __init__(self, policy: ErrorPolicy, limit: float) -> None:
        self.skips = policy.goes_on
        self._policy = policy
        self._limit = limit
        self._counts: dict[int, int] = {}
        self.first: str | None = None
        """The first error that was skipped."""
        self._texts: set[str] = set()
        self._lock = threading.Lock()
        self._local = threading.local()

    def handle(self, error: Exception, epoch: int) -> None:
        """Count an error, or raise it. Raises ErrorBudgetExceeded from it if there are too many."""
        if not self.skips:
            raise error
        self._local.count = getattr(self._local, "count", 0) + 1
        with self._lock:
            count = self._counts[epoch] = self._counts.get(epoch, 0) + 1
            text = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
            self.first = self.first or text
        self._write_quarantine(error, text)
        if count > self._limit:
            hint = f"the last one: {text}; error_budget allows more"
            raise ErrorBudgetExceeded(
                "too many samples failed", expected=f"at most {self._limit}", found=count, hint=hint
            ) from error

    def _write_quarantine(self, error: Exception, text: str) -> None:
        """Write an error down once: an epoch that is prefetched meets the same samples again."""
        if self._policy.on_error != "quarantine":
            return
        with self._lock:
            is_new = text not in self._texts
            self._texts.add(text)
        if is_new:
            self._policy.write_quarantine(error)

    def take_count(self) -> int:
        """Return how many samples this thread has skipped since the last call: counted when their task is delivered."""
        count, self._local.count = getattr(self._local, "count", 0), 0
        return count


def read_samples(
    source: IndexedSource, numbers: IntArray, epochs: IntArray, errors: SampleErrors
) -> list[tuple[int, Any]]:
    """Read samples, each with its index among ``numbers``; those that fail are left out, if they may be skipped."""
    try:
        return list(enumerate(source.read(numbers)))
    except Exception as error:  # noqa: BLE001 - raised again with the sample, unless skipped
        if not errors.skips:
            raise _find_failing_sample(error, source, numbers, "while reading") from None
    samples = []
    for index, number in enumerate(numbers):
        try:
            samples.append((index, source.read(numbers[index : index + 1])[0]))
        except Exception as error:  # noqa: BLE001 - counted, or raised again
            errors.handle(_add_location(error, source, int(number), "while reading"), int(epochs[index]))
    return samples


def read_batch(source: IndexedSource, numbers: IntArray, ragged: Ragged) -> Any | None:
    """Read a batch, if the source makes batches."""
    try:
        return source.read_batch(numbers, ragged)
    except Exception as error:  # noqa: BLE001 - the same error, with its location
        raise _find_failing_sample(error, source, numbers, "while reading") from None


def collate_samples(samples: list[Any], stage: Batch, source: Located, numbers: IntArray) -> Any:
    """Combine samples into a batch; an error gets the location of the first."""
    try:
        return collate(samples, stage.ragged) if stage.collate is None else stage.collate(samples)
    except Exception as error:  # noqa: BLE001 - the same error, with its location
        name = "collate" if stage.collate is None else f"collate({function_location(stage.collate)})"
        raise _add_location(error, source, int(numbers[0]), f"in {name}, batch from") from None


def _find_failing_sample(error: Exception, source: IndexedSource, numbers: IntArray, activity: str) -> Exception:
    """Return the error with a note about its sample, which is found by reading one by one if it has no key."""
    if isinstance(error, ShoalError) and error.key is not None:
        error.add_note(activity)
        return error
    for number in numbers.tolist():
        try:
            source.read(np.array([number]))
        except Exception as sample_error:  # noqa: BLE001 - raised by the caller
            return _add_location(sample_error, source, number, activity)
    return error


def _add_location(error: Exception, source: Located, number: int, activity: str) -> Exception:
    shard, key = source.locate(number)
    location = ", ".join(f"{name} {value}" for name, value in (("shard", shard), ("key", key)) if value is not None)
    error.add_note(f"{activity}{': ' + location if location else ''}, sample {number}")
    return error


def apply_stages(
    values: list[tuple[int, Any]],
    stages: tuple[PerSample, ...],
    source: Located,
    numbers: IntArray,
    seed_at: Callable[[int], tuple[int, int]],
    errors: SampleErrors,
    processes: ProcessPool,
    row_writer: BatchRowWriter | None = None,
) -> list[tuple[int, int, Any]]:
    """Apply all stages to pairs of an index among ``numbers`` and a value; return (index, part, value).

    ``seed_at`` returns the seed and the epoch of the sample at an index. ``row_writer`` gets the values of a last map.
    """
    items = [(index, 0, value) for index, value in values]
    random = 0
    for at, stage in enumerate(stages):
        random += takes_rng(stage.function)
        is_last = at == len(stages) - 1 and isinstance(stage, Map)
        call = _stage_function(
            stage, random, source, numbers, seed_at, errors, processes, row_writer if is_last else None
        )
        if isinstance(stage, Map):
            items = [(index, part, value) for index, part, value in call(items) if value is not _FAILED]
        elif isinstance(stage, Filter):
            items = [item for item, (_, _, keep) in zip(items, call(items), strict=True) if keep is True]
        else:
            items = _number_parts([(index, values) for index, _, values in call(items) if values is not _FAILED])
    return items


def _number_parts(lists: list[tuple[int, list[Any]]]) -> list[tuple[int, int, Any]]:
    """Number the values of each sample from 0."""
    counts: dict[int, int] = {}
    items = []
    for index, values in lists:
        for value in values:
            part = counts.get(index, 0)
            counts[index] = part + 1
            items.append((index, part, value))
    return items


class _Failed:
    """Replaces the value of a sample that failed and is skipped."""


_FAILED = _Failed()


def _stage_function(
    stage: PerSample,
    at: int,
    source: Located,
    numbers: IntArray,
    seed_at: Callable[[int], tuple[int, int]],
    errors: SampleErrors,
    processes: ProcessPool,
    row_writer: BatchRowWriter | None,
) -> Callable[[list[tuple[int, int, Any]]], list[tuple[int, int, Any]]]:
    """Return a function that applies a stage to (index, part, value)."""
    random = takes_rng(stage.function)

    def seeds(items: list[tuple[int, int, Any]]) -> list[Seeds]:
        if not random:
            return [None] * len(items)
        # With `at`, two stages have different random numbers for one sample.
        return [(*seed_at(index), int(numbers[index]), part, at) for index, part, _ in items]

    def failed(error: Exception, index: int) -> _Failed:
        errors.handle(_add_location(error, source, int(numbers[index]), _describe(stage)), seed_at(index)[1])
        return _FAILED

    def call(items: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
        results = _apply(stage, [value for _, _, value in items], seeds(items), processes, row_writer)
        return [
            (index, part, failed(result.error, index) if isinstance(result, FailedCall) else result)
            for (index, part, _), result in zip(items, results, strict=True)
        ]

    return call


def _describe(stage: PerSample) -> str:
    kind = {Map: "map", Filter: "filter", FlatMap: "flat_map"}[type(stage)]
    return f"in {kind}({function_location(stage.function)})"


def _apply(
    stage: PerSample,
    values: list[Any],
    seeds: list[Seeds],
    processes: ProcessPool,
    row_writer: BatchRowWriter | None = None,
) -> list[Any]:
    """Call the stage's function on each value; ``FailedCall`` replaces the result of a call that raised."""
    if isinstance(stage, Map) and stage.workers == "process" and values:
        try:
            return processes.map(stage.function, values, seeds)
        except Exception as error:
            error.add_note(_describe(stage))
            raise
    results = (_result(stage, value, seed) for value, seed in zip(values, seeds, strict=True))
    return list(results if row_writer is None else map(row_writer, results))


def _result(stage: PerSample, value: Any, seed: Seeds) -> Any:
    try:
        result = stage.function(value) if seed is None else stage.function(value, rng=rng_for(*seed))
        # Evaluated here, since an iterable or a truth value may raise, too.
        return list(result) if isinstance(stage, FlatMap) else bool(result) if isinstance(stage, Filter) else result
    except Exception as error:  # noqa: BLE001 - raised again with the sample, unless skipped
        return FailedCall(error)


def map_batch(
    batch: Any,
    stages: tuple[Map, ...],
    seeds: tuple[int, int, int],
    source: Located,
    numbers: IntArray,
    processes: ProcessPool,
) -> Any:
    """Apply functions to a batch; an error gets the location of its first sample."""
    for at, stage in enumerate(stages):
        seed = (*seeds, 1, at, 0) if takes_rng(stage.function) else None
        (batch,) = _apply(stage, [batch], [seed], processes)
        if isinstance(batch, FailedCall):
            first = int(numbers[0]) if len(numbers) else 0
            raise _add_location(batch.error, source, first, f"{_describe(stage)}, batch from") from None
    return batch


def apply_to_element(
    element: Element,
    stages: Sequence[PerSample],
    seeds: tuple[int, ...],
    epoch: int,
    errors: SampleErrors,
    processes: ProcessPool,
) -> list[Element]:
    """Apply stages to one element of the stream."""
    values: list[Any] = [element.value]
    for at, stage in enumerate(stages):
        random = takes_rng(stage.function)
        value_seeds = [(*seeds, part, at, 1) if random else None for part in range(len(values))]
        results = _apply(stage, values, value_seeds, processes)
        for result in results:
            if isinstance(result, FailedCall):
                result.error.add_note(_describe(stage))
                errors.handle(result.error, epoch)
        values = _next_values(stage, values, results)
    return [replace(element, value=value, size=size_of(value)) for value in values]


def _next_values(stage: PerSample, values: list[Any], results: list[Any]) -> list[Any]:
    succeeded = [
        (value, result) for value, result in zip(values, results, strict=True) if not isinstance(result, FailedCall)
    ]
    if isinstance(stage, Map):
        return [result for _, result in succeeded]
    if isinstance(stage, Filter):
        return [value for value, keep in succeeded if keep]
    return [value for _, values in succeeded for value in values]


@dataclass(frozen=True, slots=True)
class FailedCall:
    """Replaces the result of a call that raised."""

    error: Exception


class ProcessPool:
    """Processes for functions that hold the GIL, ``map(function, workers="process")``; started when first needed."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None
        self._checked: list[Callable[..., Any]] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    def map(self, function: Callable[..., Any], values: list[Any], seeds: list[Seeds]) -> list[Any]:
        """Call the function on each value; ``FailedCall`` replaces the result of a call that raised.

        Raises OptionError for a function that another process cannot import, and LoaderError if a process has died.
        """
        from concurrent.futures import CancelledError
        from concurrent.futures.process import BrokenProcessPool

        parts = max(1, min(self._count, len(values)))
        edges = [len(values) * at // parts for at in range(parts + 1)]
        pool = self._start(function)
        ranges = [slice(begin, end) for begin, end in itertools.pairwise(edges)]
        try:
            futures: list[Future[bytes]] = [pool.submit(_call_all, function, values[at], seeds[at]) for at in ranges]
            return [result for future in futures for result in pickle.loads(future.result())]  # noqa: S301 - from own processes
        except (BrokenProcessPool, CancelledError) as error:
            self._forget(pool)
            hint = "was it killed, for want of memory?"
            raise LoaderError("a process that maps samples has ended", found=str(error) or None, hint=hint) from error

    def _start(self, function: Callable[..., Any]) -> ProcessPoolExecutor:
        import multiprocessing  # here, since it is rarely needed and slows down `import shoal`
        from concurrent.futures import ProcessPoolExecutor

        with self._lock:
            if not any(function is checked for checked in self._checked):
                _check_picklable(function)
                self._checked.append(function)
            if self._pool is None:
                # Never fork: threads of this process may hold locks, and object stores do not work after a fork.
                method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
                context = multiprocessing.get_context(method)
                self._pool = ProcessPoolExecutor(
                    self._count, context, initializer=configure_all, initargs=(_picklable_settings(),)
                )
            return self._pool

    def _forget(self, pool: ProcessPoolExecutor) -> None:
        """Have the next call start other processes."""
        with self._lock:
            if self._pool is pool:
                self._pool = None

    def close(self, timeout_s: float | None = None) -> None:
        """End the processes when their calls have returned, or by force after ``timeout_s`` seconds."""
        if self._process != os.getpid():  # a forked child has no processes
            return
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        children = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=timeout_s is None, cancel_futures=True)
        if timeout_s is not None:
            _terminate(children, timeout_s)


def _picklable_settings() -> dict[str, dict[str, Any]]:
    """Return the options of stores for processes that read data, without values that cannot be pickled."""
    settings = configured()
    for options in settings.values():
        for name, value in list(options.items()):
            try:
                pickle.dumps(value)
            except Exception:  # noqa: BLE001 - a lambda, for one: the environment may have credentials
                del options[name]
    return settings


def _terminate(children: list[Any], timeout_s: float) -> None:
    """Wait for processes to end, then kill those that have not."""
    from multiprocessing.connection import wait

    until = time.monotonic() + timeout_s
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
    """Return all results pickled; a result that cannot be pickled is an error of its own sample only."""
    results = [_call(function, value, seed) for value, seed in zip(values, seeds, strict=True)]
    try:
        return pickle.dumps(results, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - each result is tried
        return pickle.dumps([_picklable_result(result) for result in results], pickle.HIGHEST_PROTOCOL)


def _call(function: Callable[..., Any], value: Any, seed: Seeds) -> Any:
    try:
        return function(value) if seed is None else function(value, rng=rng_for(*seed))
    except Exception as error:  # noqa: BLE001 - returned as a value, with the text of its traceback
        import traceback

        error.add_note("".join(traceback.format_exception(error)).rstrip())
        return FailedCall(_picklable_error(error))


def _picklable_result(result: Any) -> Any:
    try:
        pickle.dumps(result)
    except Exception as error:  # noqa: BLE001 - returned as a value
        return FailedCall(_picklable_error(error))
    return result


def _picklable_error(error: Exception) -> Exception:
    """Return the error, or a LoaderError with its text if it cannot be pickled."""
    with contextlib.suppress(Exception):  # pickling runs code of its class
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 - pickled on this line
            return error
    found = f"{type(error).__name__}: {error}"
    replacement = LoaderError("a function raised what cannot be sent between processes", found=found)
    for note in getattr(error, "__notes__", ()):
        replacement.add_note(note)
    return replacement
