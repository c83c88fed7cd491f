"""Limits on requests in flight, and the thread pool that all stores share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from ._fork import register_after_fork

__all__ = ["ConcurrencyLimit", "acquire_all", "each_done", "run_all", "submit"]

_T = TypeVar("_T")
_A = TypeVar("_A")
_MAX_THREADS = 64
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_thread_state = threading.local()


class ConcurrencyLimit:
    """Fair semaphore with weights: waiters are served in order, so large requests are not starved."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._taken = 0
        self._shared = 0
        self.limit = limit

    @contextmanager
    def hold(self, count: int = 1) -> Iterator[None]:
        """Hold ``count`` slots; all slots if there are fewer."""
        count = min(count, self.limit)
        self._take(count)
        try:
            yield
        finally:
            self._give_back(count)

    def take_share(self, most: int) -> int:
        """Reserve up to ``most`` slots for a long stream and return how many, which may be 0.

        All streams together get at most half of the slots, so short requests always have some, and waiting for a share
        cannot be a deadlock.
        """
        with self._lock:
            count = min(most, self.limit // 2 - self._shared)
            if count <= 0:
                return 0
            self._shared += count
        self._take(count)
        return count

    def give_back_share(self, count: int) -> None:
        """Return the slots that `take_share` reserved."""
        with self._lock:
            self._shared -= count
        self._give_back(count)

    def _take(self, count: int) -> None:
        with self._lock:
            if not self._waiting and self._taken + count <= self.limit:
                self._taken += count
                return
            turn = threading.Event()
            self._waiting.append((count, turn))
        try:
            turn.wait()  # every holder is a request with a timeout
        except BaseException:
            self._withdraw(count, turn)
            raise

    def _withdraw(self, count: int, turn: threading.Event) -> None:
        """Leave the queue after Ctrl-C, or give back slots that were just granted."""
        with self._lock:
            if not turn.is_set():
                self._waiting.remove((count, turn))
                return
        self._give_back(count)

    def _give_back(self, count: int) -> None:
        with self._lock:
            self._taken -= count
            while self._waiting and self._taken + self._waiting[0][0] <= self.limit:
                wanted, turn = self._waiting.popleft()
                self._taken += wanted
                turn.set()


@contextmanager
def acquire_all(limits: Sequence[ConcurrencyLimit], count: int = 1) -> Iterator[None]:
    """Hold slots of every limit. Acquired in the given order, which must be the same for all callers."""
    with ExitStack() as stack:
        for limit in limits:
            stack.enter_context(limit.hold(count))
        yield


def submit(work: Callable[[], _T]) -> Future[_T]:
    """Run ``work`` on the shared thread pool. It must not wait for work that it submits: threads could run out.

    `run_all` is safe: on a thread of the pool it runs everything inline.
    """
    global _pool  # noqa: PLW0603 - one for the process, made when first needed
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_MAX_THREADS, "shoal-store", _mark_thread)
        return _pool.submit(work)


def _mark_thread() -> None:
    _thread_state.is_pool_thread = True


def _reset_after_fork() -> None:
    """Drop the pool: the child has none of its threads."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


register_after_fork(_reset_after_fork)


def run_all(works: Sequence[Callable[[], _T]]) -> list[_T]:
    """Run all in parallel and return the results in order; the first error cancels those that have not started."""
    if len(works) == 1 or getattr(_thread_state, "is_pool_thread", False):
        return [work() for work in works]
    futures = [submit(work) for work in works]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def each_done(work: Callable[[_A], _T], items: Iterable[_A], at_once: int) -> Iterator[tuple[_A, _T]]:
    """Yield each item with its result as it finishes, with at most ``at_once`` running; an error ends the iteration.

    It has threads of its own, so ``work`` may call `run_all`.
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
