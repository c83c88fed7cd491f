"""Reading or writing a block beside other work, in a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Beside", "Started"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Started(Generic[T]):
    """A call that is under way, in the process that started it."""

    future: Future[T]
    process: int

    @property
    def is_here(self) -> bool:
        """False in a process forked meanwhile: the thread did not come along, and nobody should wait for it."""
        return self.process == os.getpid()


class Beside:
    """One thread, for calls that wait for the system and so leave the interpreter to others.

    There is no thread before the first call, and none once this is closed or nobody holds it any more.

    Example:
        >>> beside = Beside()
        >>> beside.start(bytes.upper, b"abc").future.result()
        b'ABC'
        >>> beside.close()
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def start(self, call: Callable[..., T], *arguments: object) -> Started[T]:
        """Have this called; it is under way when this returns."""
        begun = threading.Lock()
        begun.acquire()
        future = self._own_pool().submit(_begin, begun, call, *arguments)
        # To begin, the thread needs the interpreter once, and gets it when the caller rests: by itself only after
        # milliseconds, when the caller would long have waited for what it asked for.
        begun.acquire()
        return Started(future, self._process)

    def _own_pool(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():
            self._pool, self._process = ThreadPoolExecutor(1, thread_name_prefix="shoal-beside"), os.getpid()
        return self._pool

    def close(self) -> None:
        """Wait until what was started is through."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            pool.shutdown()


def _begin(begun: threading.Lock, call: Callable[..., T], *arguments: object) -> T:
    begun.release()
    return call(*arguments)
