"""``map(fn, workers="process")``: for functions that hold the GIL all the time."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.errors import LoaderError, OptionError
from shoal.store import configure_all, configured

from ._rng import rng_for

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

__all__ = ["Processes", "Raised", "Seeds"]

Seeds = tuple[int, ...] | None


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
