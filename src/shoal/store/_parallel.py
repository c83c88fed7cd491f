"""Several requests at once, on threads that all stores share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from ._fork import anew_in_child

__all__ = ["each_done", "run_all", "submit"]

_THREADS = 64
_T = TypeVar("_T")
_A = TypeVar("_A")

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_here = threading.local()


def submit(work: Callable[[], _T]) -> Future[_T]:
    """Run on another thread. Work must not itself wait for work that it submits: threads could run out.

    `run_all` is no such wait: on one of these threads it does everything itself.
    """
    global _pool  # noqa: PLW0603 - one for the process, made when first needed
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_THREADS, "shoal-store", _mark_thread)
        return _pool.submit(work)


def _mark_thread() -> None:
    _here.is_ours = True


def _renew() -> None:
    """The child has none of the threads."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


anew_in_child(_renew)


def run_all(works: Sequence[Callable[[], _T]]) -> list[_T]:
    """All results, in order; the first error cancels what has not begun."""
    if len(works) == 1 or getattr(_here, "is_ours", False):
        return [work() for work in works]
    futures = [submit(work) for work in works]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def each_done(work: Callable[[_A], _T], items: Iterable[_A], at_once: int) -> Iterator[tuple[_A, _T]]:
    """Each item with its result, as they are done, never more than ``at_once`` begun; an error ends it.

    The threads are its own, so that ``work`` may make parallel requests.
    """
    running: dict[Future[_T], _A] = {}
    with ThreadPoolExecutor(at_once, "shoal-store-each") as pool:
        try:
            for item in items:
                running[pool.submit(work, item)] = item
                if len(running) >= at_once:
                    yield from _finished(running)
            while running:
                yield from _finished(running)
        finally:
            for future in running:
                future.cancel()


def _finished(running: dict[Future[_T], _A]) -> Iterator[tuple[_A, _T]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        yield running.pop(future), future.result()
