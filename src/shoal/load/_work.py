"""Threads that work ahead, and a line that gives their results in order.

What happens when:

- **success**: results come in the order of the units, whatever order they were finished in;
- **failure**: the exception is raised where its result would have come; the units after it stay good, so a caller who
  catches it may go on;
- **the caller stops** (break, an exception of its own, Ctrl-C, garbage collection): units not begun are dropped, those
  that run are left to end, then the threads end; nothing is delivered any more;
- **the interpreter exits**: the same, before its modules are torn down; threads are daemons, so that a function of the
  user's that never returns cannot keep the process alive.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from shoal.errors import LoaderTimeoutError

__all__ = ["Line", "Workers"]

U = TypeVar("U")
R = TypeVar("R")


class _Ticket:
    """One unit of work: waiting, running or done."""

    __slots__ = ("_done", "error", "is_queued", "result", "run")

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run: Callable[[], Any] | None = run
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_queued = False
        self._done = threading.Event()

    def work(self) -> None:
        """Do it, here and now."""
        run, self.run = self.run, None
        try:
            self.result = run() if run is not None else None
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self.error = error
        self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None) -> bool:
        return self._done.wait(timeout)


class Workers:
    """A number of threads that take work first come, first served; the number may change while they work."""

    def __init__(self, name: str = "shoal-load") -> None:
        self._name = name
        self._waiting: deque[_Ticket] = deque()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._wanted = 0
        self._made = 0

    @property
    def count(self) -> int:
        """How many threads there are to be."""
        return self._wanted

    def resize(self, count: int) -> None:
        """Have this many threads from now on; those too many end after the work they are at."""
        with self._changed:
            self._wanted = count
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for _ in range(count - len(self._threads)):
                self._made += 1
                thread = threading.Thread(target=_serve, args=(self, self._made), name=f"{self._name}-{self._made}")
                thread.daemon = True
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def add(self, ticket: _Ticket) -> None:
        """Put work at the end."""
        with self._changed:
            ticket.is_queued = True
            self._waiting.append(ticket)
            self._changed.notify()

    def take(self) -> _Ticket | None:
        """The next work for the thread that asks; None when it is to end."""
        me = threading.current_thread()
        with self._changed:
            while True:
                if len(self._threads) > self._wanted and me in self._threads:
                    self._threads.remove(me)
                    return None
                if self._waiting:
                    return self._waiting.popleft()
                self._changed.wait()

    def withdraw(self, ticket: _Ticket) -> bool:
        """Take back work that no thread has begun; False when one has."""
        with self._changed:
            if ticket.is_queued and ticket not in self._waiting:
                return False
            if ticket.is_queued:
                self._waiting.remove(ticket)
            ticket.is_queued = False
            return True

    def drop_waiting(self) -> None:
        """Forget all work that no thread has begun."""
        with self._changed:
            self._waiting.clear()

    def close(self, patience: float | None = None) -> None:
        """Drop what waits, let what runs end, and wait until every thread has ended, or for ``patience`` seconds."""
        threads = list(self._threads)
        self.drop_waiting()
        self.resize(0)
        for thread in threads:
            if thread is not threading.current_thread():  # a collector may run in one of them
                thread.join(patience)


def _serve(workers: Workers, number: int) -> None:
    del number
    while (ticket := workers.take()) is not None:
        ticket.work()
        del ticket  # a result is its consumer's alone: this thread must not keep it until the next one


class Line(Generic[U, R]):
    """Units worked on ahead of the one asked for, results in order.

    ``depth`` says, each time, how many units may be under way or ready; with no workers each is done when it is asked
    for. ``timeout`` bounds the wait for one result.
    """

    def __init__(
        self,
        units: Iterator[U],
        work: Callable[[U], R],
        workers: Workers,
        depth: Callable[[], int],
        timeout: float | None = None,
    ) -> None:
        self._units = units
        self._work = work
        self._workers = workers
        self._depth = depth
        self._timeout = timeout
        self._tickets: deque[_Ticket] = deque()
        self._ended = False
        self.waited = 0.0
        """Seconds that the last result was waited for."""

    def __iter__(self) -> Line[U, R]:
        return self

    def __next__(self) -> R:
        self._fill()
        if not self._tickets:
            raise StopIteration
        ticket = self._tickets[0]
        begun = time.perf_counter()
        self._wait(ticket)
        self.waited = time.perf_counter() - begun
        self._tickets.popleft()
        if ticket.error is not None:
            raise ticket.error
        result: R = ticket.result
        return result

    @property
    def ready(self) -> int:
        """Results that are there and not yet asked for."""
        return sum(ticket.is_done for ticket in self._tickets)

    def _fill(self) -> None:
        most = max(1, self._depth()) if self._workers.count else 1
        while len(self._tickets) < most and not self._ended:
            try:
                unit = next(self._units)
            except StopIteration:
                self._ended = True
                return
            ticket = _Ticket(lambda unit=unit: self._work(unit))  # type: ignore[misc]
            self._tickets.append(ticket)
            if self._workers.count:
                self._workers.add(ticket)

    def _wait(self, ticket: _Ticket) -> None:
        if ticket.is_done:
            return
        if not self._workers.count and self._workers.withdraw(ticket):
            ticket.work()
        elif not ticket.wait(self._timeout):
            raise LoaderTimeoutError(
                "no batch came in time",
                expected=f"one within {self._timeout} s",
                hint="raise `timeout`, or see `loader.stats()` for what takes so long",
            )
