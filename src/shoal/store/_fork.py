"""Safety across ``os.fork``.

obstore hangs in a child forked from a process that used it, so such a child gets an error at its first use instead.
A lock that a thread of the parent held would never be released in the child: objects that a child may share have a
`ForkSafeLock`, and modules that hold locks or threads register a function that replaces them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from shoal.errors import StoreError

__all__ = ["ForkSafeLock", "enter_obstore", "register_after_fork"]

_used_obstore = False
"""Whether this process has called obstore."""
_parent_used_obstore = False
"""Whether a process from which this one was forked had called obstore."""
_RESETS: list[Callable[[], None]] = []


def enter_obstore(url: str) -> None:
    """Record that this process is about to call obstore. Raises StoreError in a child forked from one that did."""
    global _used_obstore  # noqa: PLW0603 - a fact about the process
    if _parent_used_obstore:
        raise StoreError(
            "object stores cannot be used in a process forked from one that used them",
            found=url,
            hint='start workers with multiprocessing.get_context("forkserver") or "spawn", '
            "or open the data only in the workers",
        )
    _used_obstore = True


def register_after_fork(reset: Callable[[], None]) -> None:
    """Call ``reset`` in every forked child, before anything else runs there."""
    _RESETS.append(reset)


class ForkSafeLock:
    """A reentrant lock that nobody holds in a forked child, where the threads of the parent do not exist.

    Examples:
        >>> lock = ForkSafeLock()
        >>> with lock, lock:
        ...     pass
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.renew()
        _LOCKS.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    global _parent_used_obstore  # noqa: PLW0603 - a fact about the process
    _parent_used_obstore = _parent_used_obstore or _used_obstore
    for lock in _LOCKS:
        lock.renew()
    for reset in _RESETS:
        reset()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
