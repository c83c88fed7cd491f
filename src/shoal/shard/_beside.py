"""Reading or writing a block beside other work, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["Beside"]

T = TypeVar("T")


class Beside:
    """One thread, for calls that wait for the system and so leave the interpreter to others.

    There is no thread before the first call, and none once this is closed or nobody holds it any more.

    Example:
        >>> beside = Beside()
        >>> beside.start(bytes.upper, b"abc").result()
        b'ABC'
        >>> beside.close()
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def start(self, call: Callable[..., T], *arguments: object) -> Future[T]:
        """Have this called; it is under way when this returns."""
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="shoal-beside")
        begun = threading.Lock()
        begun.acquire()
        started = self._pool.submit(_begin, begun, call, *arguments)
        # To begin, the thread needs the interpreter once, and gets it when the caller rests: by itself only after
        # milliseconds, when the caller would long have waited for what it asked for.
        begun.acquire()
        return started

    def close(self) -> None:
        """Wait until what was started is through."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def _begin(begun: threading.Lock, call: Callable[..., T], *arguments: object) -> T:
    begun.release()
    return call(*arguments)
