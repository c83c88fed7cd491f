"""Threads that work ahead, and a line that gives their results in order.

What happens when:

- **success**: results come in the order of the units, whatever order they were finished in;
- **failure**: the exception is raised where its result would have come; the units after it stay good, so a caller who
  catches it may go on;
- **the caller stops** (break, an exception of its own, Ctrl-C, garbage collection): units not begun are dropped, those
  that run are left to end, then the threads end; nothing is delivered any more. A function that does not return is
  waited for a few seconds and then left: its thread ends with it;
- **the interpreter exits**: the same, before its modules are torn down; threads are daemons, so that a function of the
  user's that never returns cannot keep the process alive;
- **the process forks**: threads do not live in the child, and its locks may be held by nobody; there this object is
  only forgotten, and new work begins.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from shoal.errors import LoaderError, LoaderTimeoutError

__all__ = ["PrefetchQueue", "Workers"]

_SLOW = 0.001
"""Seconds that a unit takes to come which comes from a slow feed."""
U = TypeVar("U")
R = TypeVar("R")


class _Ticket:
    """One unit of work: waiting, running or done."""

    __slots__ = ("_done", "_size_of", "error", "is_queued", "result", "run", "size")

    def __init__(self, run: Callable[[], Any], size_of: Callable[[Any], int]) -> None:
        self.run: Callable[[], Any] | None = run
        self._size_of = size_of
        self.result: Any = None
        self.size = 0
        """Bytes of the result, when it is there."""
        self.error: BaseException | None = None
        self.is_queued = False
        self._done = threading.Event()

    def work(self) -> None:
        """Do it, here and now."""
        run, self.run = self.run, None
        try:
            if run is not None:
                self.result = run()
                self.size = self._size_of(self.result)
        except StopIteration as error:  # raised again as it is, it would end the caller's loop as if all were done
            self.error = RuntimeError("a function of the pipeline raised StopIteration")
            self.error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self.error = error
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Have it end with this error, undone."""
        self.run, self.error = None, error
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
        self._process = os.getpid()
        self.is_closed = False

    @property
    def is_usable(self) -> bool:
        """Whether there is still somebody to work: not after ``close``, and not in a forked child."""
        return not self.is_closed and self._process == os.getpid()

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

    def close(self, patience: float | None = None) -> None:
        """Drop what waits, let what runs end, and wait until every thread has ended, or for ``patience`` seconds."""
        self.is_closed = True
        if self._process != os.getpid():
            return
        threads = list(self._threads)
        with self._changed:
            for ticket in self._waiting:  # so that nobody waits for it
                ticket.fail(LoaderError("the loader was closed while a batch was waited for"))
            self._waiting.clear()
        self.resize(0)
        until = None if patience is None else time.monotonic() + patience
        for thread in threads:
            if thread is not threading.current_thread():  # a collector may run in one of them
                thread.join(None if until is None else max(0.0, until - time.monotonic()))


def _serve(workers: Workers, number: int) -> None:
    del number
    while (ticket := workers.take()) is not None:
        ticket.work()
        del ticket  # a result is its consumer's alone: this thread must not keep it until the next one


class PrefetchQueue(Generic[U, R]):
    """Units worked on ahead of the one asked for, results in order.

    ``depth`` says, each time, how many units may be under way or ready beside the one given out, and ``budget`` how
    many bytes: of results that are there by ``size_of``, of others as many as the largest of late had. With no workers
    each is done when it is asked for. Where the units themselves may be waited for, ``is_patient``, they are only asked
    for when a result is wanted. ``timeout`` bounds the wait for one result.
    """

    def __init__(
        self,
        units: Iterator[U],
        work: Callable[[U], R],
        workers: Workers,
        depth: Callable[[], int],
        timeout: float | None = None,
        *,
        budget: int | None = None,
        size_of: Callable[[R], int] = lambda _: 0,
        is_patient: bool = False,
    ) -> None:
        self._units = units
        self._work = work
        self._workers = workers
        self._depth = depth
        self._timeout = timeout
        self._budget = budget
        self._size_of = size_of
        self._is_patient = is_patient
        self._expected: float | None = None
        """Bytes that a result is taken to have before it is there; None while none was seen."""
        self._tickets: deque[_Ticket] = deque()
        self._ended = False
        self._unit_took = 0.0
        self.waited = 0.0
        """Seconds that the last result was waited for."""

    def __iter__(self) -> PrefetchQueue[U, R]:
        return self

    def __next__(self) -> R:
        self._fill(max(1, self._depth()))
        if not self._tickets:
            raise StopIteration
        ticket = self._tickets[0]
        begun = time.perf_counter()
        self._wait(ticket)
        self.waited = time.perf_counter() - begun
        self._weigh(ticket)
        self._tickets.popleft()
        if not self._is_patient and self._workers.count:
            self._fill(self._depth())
        if ticket.error is None:
            result: R = ticket.result
            return result
        error = ticket.error
        try:
            raise error
        finally:
            del error, ticket  # its traceback has this frame, and the frame would have it

    @property
    def ready(self) -> int:
        """Results that are there and not yet asked for."""
        return sum(ticket.is_done for ticket in self._tickets)

    def _weigh(self, ticket: _Ticket) -> None:
        """Learn how large results are."""
        if ticket.size:
            self._expected = max(float(ticket.size), 0.9 * (self._expected or 0.0) + 0.1 * ticket.size)

    def _fits(self) -> bool:
        """Whether one more result may be made: one always may, and only one until a first one was seen."""
        if not self._tickets or self._budget is None:
            return True
        if self._expected is None:
            return False
        held = sum(ticket.size if ticket.is_done else self._expected for ticket in self._tickets)
        return held + self._expected <= self._budget

    def _is_held_up(self) -> bool:
        """Whether to wait for another unit would keep back a result that is there."""
        return self._unit_took > _SLOW and bool(self._tickets) and self._tickets[0].is_done

    def _fill(self, most: int) -> None:
        most = most if self._workers.count else 1
        while len(self._tickets) < most and not self._ended and self._fits() and not self._is_held_up():
            begun = time.perf_counter()
            try:
                unit = next(self._units)
                self._unit_took = time.perf_counter() - begun
            except StopIteration:
                self._ended = True
                return
            except Exception as error:  # noqa: BLE001 - raised where its unit would have come
                self._ended = True
                self._tickets.append(_failed(error))
                return
            ticket = _Ticket(lambda unit=unit: self._work(unit), self._size_of)  # type: ignore[misc]
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


def _failed(error: BaseException) -> _Ticket:
    ticket = _Ticket(lambda: None, lambda _: 0)
    ticket.fail(error)
    return ticket
