"""What comes next is compared with its checksums by another thread, while the caller uses what it has.

Comparing an array takes about as long as adding it up, so a first reading of a dataset would take twice as long as a
later one. A reader that goes through a split in order can be foreseen. One that jumps about compares for itself.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Check", "LookAhead"]

Check = Callable[[int, Sequence[str] | None], object]
"""Compares the sample at a position, these features of it or all, with its checksums."""

_AHEAD = 2
"""Samples foreseen: while one is compared, the next one waits, so that the thread does not rest between them."""
_at_work = threading.Lock()
"""Held while something is compared: a process forked meanwhile would find what is being opened locked for ever."""


class LookAhead:
    """Foresees what is read of a split. Threads may share it."""

    def __init__(self, check: Check, count: int) -> None:
        self._check = check
        self._count = count
        self._expected = -1
        self._begun: dict[int, Future[None]] = {}
        self._process = os.getpid()

    def take(self, position: int) -> bool:
        """The caller reads the sample now, and compares what is not compared yet. Whether it was foreseen.

        Nobody waits: the thread goes on at the other end of the sample, and they meet. What it finds wrong it keeps to
        itself, for the reader finds it too, and can say where.
        """
        future = self._begun.pop(position, None)
        if future is not None and self._process == os.getpid():
            future.cancel()
        return future is not None

    def note(self, position: int, paths: Sequence[str] | None, *, is_new: bool) -> None:
        """A sample was read, one that had to be compared if ``is_new``: begin with the next ones, if it was next."""
        in_order, self._expected = position == self._expected, position + 1
        if not in_order or self._process != os.getpid():
            self._begun.clear()
            self._process = os.getpid()
        elif is_new:
            for later in range(position + 1, min(position + 1 + _AHEAD, self._count)):
                if later not in self._begun:
                    self._begun[later] = _helper().submit(_checked, self._check, later, paths)


def _checked(check: Check, position: int, paths: Sequence[str] | None) -> None:
    with _at_work:
        check(position, paths)


@functools.cache
def _helper() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "shoal-plaid")


def _begin_child() -> None:
    """The thread is not in a forked process; another one is started there when it is needed."""
    _helper.cache_clear()
    _at_work.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_at_work.acquire, after_in_parent=_at_work.release, after_in_child=_begin_child)
