"""`Workers`, threads that run tasks, and `PrefetchQueue`, which returns their results in order.

What happens on:

- **success**: results are returned in the order of the tasks, in whatever order they finish;
- **failure**: the exception is raised in place of its result; later results stay valid, so a caller that catches it may
  continue;
- **the caller stops** (break, an exception, Ctrl-C, garbage collection): tasks that have not begun are dropped, those
  that run are left to finish, then the threads end, and nothing is delivered any more. A function that does not return
  is waited for a few seconds; its thread ends when it returns;
- **interpreter exit**: the same, before modules are torn down; threads are daemons, so that a function of the user that
  never returns cannot keep the process alive;
- **fork**: threads do not exist in the child, and its locks may never be released; there this object is forgotten, and
  new work begins.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from shoal.errors import LoaderError, LoaderTimeoutError

__all__ = ["PrefetchQueue", "Workers"]

_SLOW_TASK_S = 0.001
"""If the next task took longer than this to arrive, tasks come from a slow stream."""
_SIGNAL_CHECK_S = 1.0
"""A thread that waits for a result wakes this often, so that a Ctrl-C is never lost."""
T = TypeVar("T")
R = TypeVar("R")


class _QueuedTask:
    """A task in the queue: waiting, running or done."""

    __slots__ = ("_done", "_size_of", "error", "result", "run", "size")

    def __init__(self, run: Callable[[], Any], size_of: Callable[[Any], int]) -> None:
        self.run: Callable[[], Any] | None = run
        self._size_of = size_of
        self.result: Any = None
        self.size = 0
        """Bytes of the result, once the task is done."""
        self.error: BaseException | None = None
        self._done = threading.Event()

    def work(self) -> None:
        """Run the task in this thread."""
        run, self.run = self.run, None
        try:
            if run is not None:
                self.result = run()
                self.size = self._size_of(self.result)
        except StopIteration as error:
            self.error = _stopped()
            self.error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - raised again in place of the result
            self.error = error
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """End the task with this error, without running it."""
        self.run, self.error = None, error
        self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until the task is done; False after ``timeout`` seconds."""
        # In steps: a signal that arrives just before a thread sleeps is handled when it wakes.
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self._done.wait(min(_SIGNAL_CHECK_S, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                return False
        return True


def _stopped() -> RuntimeError:
    """Return the error for a StopIteration: raised again, that would end the caller's loop silently."""
    return RuntimeError("a function of the pipeline raised StopIteration")


class Workers:
    """Threads that run tasks in the order in which they were added; their number may change at any time."""

    def __init__(self, name: str = "shoal-load") -> None:
        self._name = name
        self._waiting: deque[_QueuedTask] = deque()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self.count = 0
        """Number of threads, once those that are ending have ended."""
        self._started = 0
        self._process = os.getpid()
        self.is_closed = False

    @property
    def is_usable(self) -> bool:
        """Whether tasks can be added: not after ``close``, and not in a forked child."""
        return not self.is_closed and self._process == os.getpid()

    def resize(self, count: int) -> None:
        """Change the number of threads; surplus threads end after the task that they run."""
        with self._changed:
            self.count = count
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for _ in range(count - len(self._threads)):
                self._started += 1
                thread = threading.Thread(target=_run_tasks, args=(self,), name=f"{self._name}-{self._started}")
                thread.daemon = True
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def add(self, queued: _QueuedTask) -> None:
        """Append a task."""
        with self._changed:
            self._waiting.append(queued)
            self._changed.notify()

    def take(self) -> _QueuedTask | None:
        """Wait for the next task of the calling thread; None if the thread is to end."""
        me = threading.current_thread()
        with self._changed:
            while True:
                if len(self._threads) > self.count and me in self._threads:
                    self._threads.remove(me)
                    return None
                if self._waiting:
                    return self._waiting.popleft()
                self._changed.wait()

    def withdraw(self, queued: _QueuedTask) -> bool:
        """Remove a task that no thread has begun; False if one has."""
        with self._changed:
            if queued not in self._waiting:
                return False
            self._waiting.remove(queued)
            return True

    def close(self, timeout_s: float | None = None) -> None:
        """Drop waiting tasks, and wait until every thread has ended, or for ``timeout_s`` seconds."""
        self.is_closed = True
        if self._process != os.getpid():
            return
        threads = list(self._threads)
        with self._changed:
            for queued in self._waiting:  # so that no caller waits for it
                queued.fail(LoaderError("the loader was closed while a batch was waited for"))
            self._waiting.clear()
        self.resize(0)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in threads:
            if thread is not threading.current_thread():  # the garbage collector may run in one of them
                thread.join(None if until is None else max(0.0, until - time.monotonic()))


def _run_tasks(workers: Workers) -> None:
    while (queued := workers.take()) is not None:
        queued.work()
        del queued  # this thread must not keep the result alive until its next task


class PrefetchQueue(Generic[T, R]):
    """Bounded queue that runs tasks ahead of the consumer and returns their results in order.

    ``depth`` returns how many tasks may be in progress or ready besides the one just returned. ``budget`` limits their
    bytes: ``size_of`` measures a result, and one that is not ready counts as much as recent large ones. With no workers
    nothing is queued: each task runs when its result is requested. If getting a task may block, ``is_lazy``, tasks are
    only taken when a result is requested. ``timeout`` limits the wait for one result, in seconds.
    """

    def __init__(
        self,
        tasks: Iterator[T],
        work: Callable[[T], R],
        workers: Workers,
        depth: Callable[[], int],
        timeout: float | None = None,
        *,
        budget: int | None = None,
        size_of: Callable[[R], int] = lambda _: 0,
        is_lazy: bool = False,
    ) -> None:
        self._tasks = tasks
        self._work = work
        self._workers = workers
        self._depth = depth
        self._timeout = timeout
        self._budget = budget
        self._size_of = size_of
        self._is_lazy = is_lazy
        self._expected_size: float | None = None
        """Bytes assumed for a result that is not ready; None before the first one."""
        self._queue: deque[_QueuedTask] = deque()
        self._is_exhausted = False
        self._task_wait_s = 0.0
        """Seconds that the last task took to arrive."""

    def __iter__(self) -> PrefetchQueue[T, R]:
        return self

    def __next__(self) -> R:
        if not self._workers.count and not self._queue:
            task = next(self._tasks)
            try:
                return self._work(task)
            except StopIteration as stopped:
                raise _stopped() from stopped
        if self._workers.count:
            self._fill(max(1, self._depth()))
        if not self._queue:
            raise StopIteration
        queued = self._queue[0]
        self._wait(queued)
        if queued.size:
            self._expected_size = max(float(queued.size), 0.9 * (self._expected_size or 0.0) + 0.1 * queued.size)
        self._queue.popleft()
        if not self._is_lazy:
            self.fill()
        if queued.error is None:
            result: R = queued.result
            return result
        error = queued.error
        try:
            raise error
        finally:
            del error, queued  # its traceback refers to this frame, which would refer to it

    @property
    def ready(self) -> int:
        """Results that are ready and not yet requested."""
        return sum(queued.is_done for queued in self._queue)

    def _fits(self) -> bool:
        """Whether one more task fits the budget: one always does, and only one before the first result."""
        if not self._queue or self._budget is None:
            return True
        expected = self._queue[0].size if self._expected_size is None else self._expected_size
        if not expected:
            return False
        size = sum(queued.size if queued.is_done else expected for queued in self._queue)
        return size + expected <= self._budget

    def _would_delay(self) -> bool:
        """Whether waiting for another task would delay a result that is ready."""
        return self._task_wait_s > _SLOW_TASK_S and bool(self._queue) and self._queue[0].is_done

    def fill(self) -> None:
        """Begin what may be begun. A result that is asked for does this, too."""
        if self._workers.count:
            self._fill(self._depth())

    def _fill(self, depth: int) -> None:
        while len(self._queue) < depth and not self._is_exhausted and self._fits() and not self._would_delay():
            begin = time.perf_counter()
            try:
                task = next(self._tasks)
                self._task_wait_s = time.perf_counter() - begin
            except StopIteration:
                self._is_exhausted = True
                return
            except Exception as error:  # noqa: BLE001 - raised in place of the task's result
                self._is_exhausted = True
                queued = _QueuedTask(lambda: None, lambda _: 0)
                queued.fail(error)
                self._queue.append(queued)
                return
            queued = _QueuedTask(functools.partial(self._work, task), self._size_of)
            self._queue.append(queued)
            self._workers.add(queued)

    def _wait(self, queued: _QueuedTask) -> None:
        if queued.is_done:
            return
        if not self._workers.count and self._workers.withdraw(queued):
            queued.work()
        elif not queued.wait(self._timeout):
            raise LoaderTimeoutError(
                "no batch came in time",
                expected=f"one within {self._timeout} s",
                hint="raise `timeout`, or see `loader.stats()` for what takes so long",
            )
