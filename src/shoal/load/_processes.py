"""``map(fn, workers="process")``: for functions that hold the GIL all the time."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from shoal.errors import OptionError

from ._rng import rng_for

__all__ = ["Processes", "Raised"]

Seeds = tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception, where a value would be."""

    error: Exception


class Processes:
    """Other processes that call functions, started when the first one is needed."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def map(self, function: Callable[..., Any], values: list[Any], seeds: list[Seeds]) -> list[Any]:
        """What the function gives for each value; ``Raised`` stands where it raised."""
        parts = max(1, min(self._count, len(values)))
        cut = [len(values) * at // parts for at in range(parts + 1)]
        pool = self._started(function)
        ranges = [slice(begin, end) for begin, end in itertools.pairwise(cut)]
        futures = [pool.submit(_call_all, function, values[at], seeds[at]) for at in ranges]
        return [result for future in futures for result in future.result()]

    def _started(self, function: Callable[..., Any]) -> ProcessPoolExecutor:
        import multiprocessing  # here, since few need it and `import shoal` is to be quick

        with self._lock:
            if self._pool is None:
                _check_picklable(function)
                # Never fork: threads of this process may hold locks, and object stores do not survive it.
                method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
                self._pool = ProcessPoolExecutor(self._count, multiprocessing.get_context(method))
            return self._pool

    def close(self) -> None:
        """End the processes, when they are done with what they have begun."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _check_picklable(function: Callable[..., Any]) -> None:
    try:
        pickle.dumps(function)
    except Exception as error:
        raise OptionError(
            "a function for other processes must be one that they can import",
            found=f"{function!r}: {error}",
            hint="define it at the top of a module, or use workers='thread'",
        ) from error


def _call_all(function: Callable[..., Any], values: list[Any], seeds: list[Seeds]) -> list[Any]:
    return [_call(function, value, seed) for value, seed in zip(values, seeds, strict=True)]


def _call(function: Callable[..., Any], value: Any, seed: Seeds) -> Any:
    try:
        if seed is None:
            return function(value)
        return function(value, rng=rng_for(*seed))
    except Exception as error:  # noqa: BLE001 - it goes back as a value, with the text of its traceback
        import traceback

        error.add_note("".join(traceback.format_exception(error)).rstrip())
        return Raised(error)
