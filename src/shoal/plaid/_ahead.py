"""What comes next is compared with its checksums by another thread, while the caller uses what it has.

Comparing an array, and having its pages mapped, takes about as long as adding it up, so a first reading of a dataset
would take twice as long as a later one. A reader that goes through a split in order can be foreseen. One that jumps
about compares for itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from shoal.errors import ShoalError

__all__ = ["CheckOf", "LookAhead"]

CheckOf = Callable[[int, Sequence[str] | None], Callable[[], object]]
"""Gives what compares the sample at a position, these features of it or all, with its checksums.

It opens what is to be opened: that is Python's work, at which threads only take turns, and a process that is forked
while another thread opens something would find it locked for ever.
"""

_AHEAD = 4
"""Samples foreseen: one that the thread is at, one that a reader who comes too early takes on, and what is next."""


@dataclass(frozen=True, slots=True)
class _Begun:
    check: Callable[[], object]
    future: Future[object]

    def help(self) -> None:
        """Do it in this thread, unless the other one has begun."""
        if self.future.cancel():
            with contextlib.suppress(ShoalError):  # told to whoever reads it
                self.check()


class LookAhead:
    """Foresees what is read of a split. Threads may share it."""

    def __init__(self, check_of: CheckOf, count: int) -> None:
        self._check_of = check_of
        self._count = count
        self._expected = -1
        self._begun: dict[int, _Begun] = {}
        self._process = os.getpid()

    def take(self, position: int) -> bool:
        """The caller reads the sample now, and compares what is not compared yet. Whether it was foreseen.

        What the thread is at, it finishes, and meanwhile the next sample is compared here. What it finds wrong it keeps
        to itself, for the reader finds it too.
        """
        begun = self._begun.pop(position, None)
        if begun is not None and self._process == os.getpid() and not begun.future.cancel():
            if not begun.future.done() and (later := self._begun.get(position + 1)) is not None:
                later.help()
            begun.future.exception()
        return begun is not None

    def note(self, position: int, paths: Sequence[str] | None, *, is_new: bool) -> None:
        """A sample was read, one that had to be compared if ``is_new``: begin with the next ones, if it was next."""
        in_order, self._expected = position == self._expected, position + 1
        if not in_order or self._process != os.getpid():
            self._begun.clear()
            self._process = os.getpid()
        elif is_new:
            for later in range(position + 1, min(position + 1 + _AHEAD, self._count)):
                if later not in self._begun:
                    self._begin(later, paths)

    def _begin(self, position: int, paths: Sequence[str] | None) -> None:
        try:
            check = self._check_of(position, paths)
        except ShoalError:  # told to whoever reads it
            return
        self._begun[position] = _Begun(check, _helper().submit(check))


@functools.cache
def _helper() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "shoal-plaid")


def _begin_child() -> None:
    """The thread is not in a forked process; another one is started there when it is needed."""
    _helper.cache_clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_child)
