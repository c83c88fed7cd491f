"""Work on far shards that is done before it is asked for: a few requests at once, in order, in bounded memory.

Nothing here waits but who reads: work is begun whenever some was taken or done, on the threads that all stores share.
Who asks for work that nobody has begun does it itself, so that no thread can be waited for in vain.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Protocol

from shoal.errors import ShoalError
from shoal.store import submit

__all__ = ["AT_ONCE", "Ahead", "Task"]

AT_ONCE = 4
MOST_BYTES = 112 << 20
"""Three large requests and a half: when half of the first was used the fourth begins, and waits while others come."""


class Task(Protocol):
    """Some bytes to be fetched, and perhaps made into something."""

    @property
    def name(self) -> Hashable: ...

    size: int
    """Bytes it takes until it is let go of."""

    def begin(self) -> None:
        """It is about to be run: called in order, and quick."""
        ...

    def run(self) -> None:
        """Do it, unless another thread has begun to. Raises nothing."""
        ...

    def drop(self) -> None:
        """Let go of all it has; what still comes is not wanted."""
        ...


class Ahead:
    """Runs the tasks of ``coming``, in its order, at most ``at_once`` at a time and ``most_bytes`` held.

    ``coming`` is asked on another thread, one call at a time, and may itself make requests: to open the next shard. It
    gives None when there is nothing for now; then it is asked again when something was let go of, or by `go_on`.
    What it raises ends it silently, since who reads the same comes upon the same. ``release`` lets go of what was
    used; ``close`` of everything.
    """

    def __init__(self, coming: Iterator[Task | None], *, most_bytes: int = MOST_BYTES, at_once: int = AT_ONCE) -> None:
        self._coming = coming
        self._most_bytes = most_bytes
        self.at_once = at_once
        """May be changed at any time."""
        self._lock = threading.Lock()
        self._told = threading.Condition(self._lock)
        self._waiting: deque[Task] = deque()
        self._held: dict[Hashable, Task] = {}
        self._bytes = 0
        self._running = 0
        self._asking = self._ended = self._closed = self._paused = False
        self._process = os.getpid()
        self.most_held = 0
        """The most bytes that were held at a time."""

    @property
    def is_usable(self) -> bool:
        """Not in a forked child: it has none of the threads, and locks may be held by one of them."""
        return self._process == os.getpid()

    def go_on(self) -> None:
        """Begin whatever may be begun now."""
        if not self.is_usable:
            return
        self._paused = False
        self._continue()

    def _continue(self) -> None:
        self._start(self._begun())

    def _start(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            submit(functools.partial(self._run, task))

    def _begun(self) -> list[Task]:
        """Tasks that were begun just now, and are to be run."""
        begun: list[Task] = []
        with self._lock:
            if self._closed:
                return []
            while self._waiting and self._running < self.at_once and self._fits(self._waiting[0]):
                task = self._waiting.popleft()
                if task.name not in self._held:  # or it was hurried
                    begun.append(self._begin(task))
                    self._running += 1
            ask = not (self._asking or self._ended or self._paused) and len(self._waiting) < self.at_once
            self._asking = self._asking or ask
        if ask:
            submit(self._ask)
        return begun

    def _fits(self, task: Task) -> bool:
        return not self._bytes or self._bytes + task.size <= self._most_bytes

    def _begin(self, task: Task) -> Task:
        self._held[task.name] = task
        self._bytes += task.size
        self.most_held = max(self.most_held, self._bytes)
        task.begin()
        return task

    def _ask(self) -> None:
        """Have a few more tasks."""
        found: list[Task] = []
        ended = True
        try:
            while len(found) < self.at_once and not self._closed and not self._paused:
                task = next(self._coming)
                self._paused = task is None
                found += [] if task is None else [task]
            ended = False
        except (StopIteration, ShoalError):
            pass
        finally:
            with self._lock:
                self._asking, self._ended = False, ended
                self._waiting += found
                self._told.notify_all()
        self._continue()

    def _run(self, task: Task) -> None:
        """This task and then the next: the same thread, because each has its own memory for what it makes."""
        begun = [task]
        while begun:
            try:
                if not self._closed:
                    begun[0].run()
            finally:
                with self._lock:
                    self._running -= 1
            begun = self._begun()
            self._start(begun[1:])

    def hurry(self, tasks: Iterable[Task]) -> None:
        """Begin these now, whatever else is under way, if they may still be held."""
        if not self.is_usable:
            return
        begun: list[Task] = []
        with self._lock:
            for task in tasks:
                if task.name not in self._held and self._fits(task) and not self._closed:
                    begun.append(self._begin(task))
                    self._running += 1
        self._start(begun)

    def is_held(self, name: Hashable) -> bool:
        """Whether the task of this name has begun and was not let go of."""
        return name in self._held

    def take(self, name: Hashable, is_before: Callable[[Hashable], bool]) -> Task | None:
        """The task of this name, begun if it was not; None where there is none, or it was let go of.

        Waits while more tasks are asked for. Those before it, which nobody has taken, are passed over.
        """
        if not self.is_usable:
            return None
        with self._lock:
            while name not in self._held:
                while self._waiting and is_before(self._waiting[0].name):
                    self._waiting.popleft()
                if self._waiting:
                    return self._hurried() if self._waiting[0].name == name else None
                if self._closed or (self._ended and not self._asking):
                    return None
                if not self._asking:
                    self._asking = True
                    submit(self._ask)
                self._told.wait()  # for a thread that makes requests, each with a timeout
            return self._held[name]

    def _hurried(self) -> Task:
        """The first that waits, begun whatever is under way."""
        task = self._begin(self._waiting.popleft())
        self._running += 1
        self._start([task])
        return task

    def shrink(self, name: Hashable, size: int) -> None:
        """Of a task that is held, so many bytes were used, and are not held any more."""
        with self._lock:
            task = self._held.get(name)
            if task is None:
                return
            task.size -= size
            self._bytes -= size
        self._continue()

    def release(self, is_over: Callable[[Hashable], bool]) -> None:
        """Let go of all whose names are over."""
        if not self.is_usable:
            return
        with self._lock:
            gone = [self._held.pop(name) for name in [name for name in self._held if is_over(name)]]
            self._bytes -= sum(task.size for task in gone)
        for task in gone:
            task.drop()
        self.go_on()

    def close(self) -> None:
        """Let go of everything. What is on its way is dropped as it comes."""
        if not self.is_usable:
            return
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._told.notify_all()
        self.release(lambda _: True)
