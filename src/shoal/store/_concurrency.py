"""The limit of requests in flight, and the thread pool that stores share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from ._base import anew_in_child

__all__ = ["ConcurrencyLimit", "each_done", "hold_all", "run_all", "submit"]

_T = TypeVar("_T")
_A = TypeVar("_A")
_THREADS = 64
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_here = threading.local()


class ConcurrencyLimit:
    """A bound on what goes on at once; who waits longest goes first, so large takers are not starved by small ones."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._taken = 0
        self._shared = 0
        self.limit = limit

    @contextmanager
    def hold(self, count: int = 1) -> Iterator[None]:
        """Wait for ``count`` places and keep them; more than there are is all of them."""
        count = min(count, self.limit)
        self._take(count)
        try:
            yield
        finally:
            self._give_back(count)

    def take_share(self, most: int) -> int:
        """Take up to ``most`` places for long, and return how many: all shares together are at most half of the places.

        So there are always places for short requests, and a share waits only for such: nobody waits in a circle. When
        half of them are taken there is none to be had.
        """
        with self._lock:
            count = min(most, self.limit // 2 - self._shared)
            if count <= 0:
                return 0
            self._shared += count
        self._take(count)
        return count

    def give_back_share(self, count: int) -> None:
        """Return the places that `take_share` gave."""
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
        """Ctrl-C while waiting: the place in the queue, or the places just given, must not be lost."""
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
def hold_all(gates: Sequence[ConcurrencyLimit], count: int = 1) -> Iterator[None]:
    """Hold places at each gate, taken in the order given: it must be the same order for everybody."""
    with ExitStack() as stack:
        for gate in gates:
            stack.enter_context(gate.hold(count))
        yield


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
