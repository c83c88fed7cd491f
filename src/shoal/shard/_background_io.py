"""Read-ahead and write-behind threads, crc32, and a setting of malloc."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.errors import WriteError
from shoal.store import ObjectInfo, ObjectWriter

try:
    from isal.isal_zlib import crc32
except ImportError:  # platforms without a wheel
    from zlib import crc32


__all__ = ["BackgroundThread", "PendingCall", "WriteBehindBuffer", "crc32", "keep_freed_memory"]

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
_WORTH_A_THREAD = 1 << 20
_LARGEST_LIMIT = 31 << 20  # glibc lets freed allocations raise its limits up to 32 MiB


@dataclass(frozen=True, slots=True)
class PendingCall(Generic[T]):
    """A call that is under way, in the process that started it."""

    future: Future[T]
    process: int

    @property
    def is_here(self) -> bool:
        """False in a process forked meanwhile: the thread did not come along, and nobody should wait for it."""
        return self.process == os.getpid()


class BackgroundThread:
    """One thread, for calls that wait for the system and so leave the interpreter to others.

    There is no thread before the first call, and none once this is closed or nobody holds it any more.

    Example:
        >>> beside = BackgroundThread()
        >>> beside.start(bytes.upper, b"abc").future.result()
        b'ABC'
        >>> beside.close()
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def start(self, call: Callable[..., T], *arguments: object) -> PendingCall[T]:
        """Have this called; it is under way when this returns."""
        begun = threading.Lock()
        begun.acquire()
        future = self._own_pool().submit(_begin, begun, call, *arguments)
        # To begin, the thread needs the interpreter once, and gets it when the caller rests: by itself only after
        # milliseconds, when the caller would long have waited for what it asked for.
        begun.acquire()
        return PendingCall(future, self._process)

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


class WriteBehindBuffer:
    """An object being written: a block is on its way while the caller makes the next.

    One at a time is, so memory stays at two blocks. A block belongs to the writer from ``write`` on. What goes wrong
    with it is raised by the next call.
    """

    def __init__(self, sink: ObjectWriter) -> None:
        self._sink = sink
        self._process = os.getpid()
        self._beside = BackgroundThread()
        self._pending: PendingCall[None] | None = None

    def write(self, data: Buffer) -> None:
        """Take a block."""
        if len(data) < _WORTH_A_THREAD:
            self._settle()
            self._sink.write(data)
            return
        self._check_process()
        before = self._pending
        # It begins when the one before is through: to rest until that is so, and then until this began, took longer.
        self._pending = self._beside.start(self._write_after, before, data)
        if before is not None:
            before.future.result()

    def _write_after(self, before: PendingCall[None] | None, data: Buffer) -> None:
        if before is not None:
            before.future.result()  # behind a block that is not there nothing may be written
        self._sink.write(data)

    def _check_process(self) -> None:
        if self._process != os.getpid():  # forked since: both would write into one file
            raise WriteError("a shard is finished by the process that began it", hint="open a writer in each process")

    def _settle(self) -> None:
        self._check_process()
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.future.result()

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        """Show the object under its name, once all of it is written."""
        self._settle()
        self._beside.close()
        return self._sink.commit(durable=durable)

    def abort(self) -> None:
        """Leave nothing behind; in a forked child, where it is the parent's, do nothing."""
        if self._process != os.getpid():
            return
        self._beside.close()  # first, so that nothing is written after the end
        self._pending = None
        self._sink.abort()


# A reader allocates and frees megabytes for every block. glibc gives such memory back to the system at once, and the
# next block then faults every page in again: reading 20 KB samples at random took three times as long. Its limits for
# giving back grow when a large allocation is freed, so one that is never touched settles it for the life of the
# process: up to 64 MiB of freed memory stay at hand. Other allocators pay no attention.
@functools.cache
def keep_freed_memory() -> None:
    """Raise the limits, once."""
    bytes(_LARGEST_LIMIT)  # calloc: the pages are reserved, never touched, and given back here
