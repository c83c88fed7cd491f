"""One background thread, used to read the next block of a tar and to write the last one while the caller works.

It runs one call of which the caller holds the result: there is no order, no budget and no queue to keep, so this is no
`PrefetchQueue`. What a writer writes behind itself is not read ahead at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.errors import WriteError
from shoal.store._base import ObjectInfo, ObjectWriter

__all__ = ["MIN_THREAD_BYTES", "BackgroundThread", "PendingCall", "WriteBehindBuffer"]

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
MIN_THREAD_BYTES = 1 << 20
"""Smaller reads and writes are faster without a thread."""


@dataclass(frozen=True, slots=True)
class PendingCall(Generic[T]):
    """A call that is under way, in the process that started it."""

    future: Future[T]
    process: int

    @property
    def is_here(self) -> bool:
        """False in a process forked since: the thread does not exist there, so it must not be waited for."""
        return self.process == os.getpid()


class BackgroundThread:
    """One thread for calls that wait for the system and release the interpreter meanwhile.

    The thread starts with the first call and ends when this is closed or garbage collected.

    Examples:
        >>> thread = BackgroundThread()
        >>> thread.start(bytes.upper, b"abc").future.result()
        b'ABC'
        >>> thread.close()
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def start(self, call: Callable[..., T], *arguments: object) -> PendingCall[T]:
        """Call ``call`` on the thread; it has begun when this returns."""
        begun = threading.Lock()
        begun.acquire()
        future = self._own_pool().submit(_signal_and_call, begun, call, *arguments)
        # The thread needs the interpreter once to begin. Without waiting here it would get it only after the switch
        # interval, milliseconds later, when the caller already waits for the result.
        begun.acquire()
        return PendingCall(future, self._process)

    def _own_pool(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():
            self._pool, self._process = ThreadPoolExecutor(1, thread_name_prefix="shoal-beside"), os.getpid()
        return self._pool

    def close(self) -> None:
        """Wait for calls that were started, and end the thread."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            pool.shutdown()


def _signal_and_call(begun: threading.Lock, call: Callable[..., T], *arguments: object) -> T:
    begun.release()
    return call(*arguments)


class WriteBehindBuffer:
    """Writes a block of an object in the background while the caller prepares the next.

    At most one block is being written, so memory stays at two blocks. A block must not be changed after ``write``. An
    error while writing it is raised by the next call.
    """

    def __init__(self, sink: ObjectWriter) -> None:
        self._sink = sink
        self._process = os.getpid()
        self._thread = BackgroundThread()
        self._pending: PendingCall[None] | None = None

    def write(self, data: Buffer) -> None:
        """Write a block."""
        if len(data) < MIN_THREAD_BYTES:
            self._wait()
            self._sink.write(data)
            return
        self._check_process()
        before = self._pending
        # The thread waits for the block before it: waiting here, and then again until this one begins, took longer.
        self._pending = self._thread.start(self._write_after, before, data)
        if before is not None:
            before.future.result()

    def _write_after(self, before: PendingCall[None] | None, data: Buffer) -> None:
        if before is not None:
            before.future.result()  # nothing may be written after a block that failed
        self._sink.write(data)

    def _check_process(self) -> None:
        if self._process != os.getpid():  # forked since: both would write into one file
            raise WriteError("a shard is finished by the process that began it", hint="open a writer in each process")

    def _wait(self) -> None:
        self._check_process()
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.future.result()

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        """Publish the object under its name, once all of it is written."""
        self._wait()
        self._thread.close()
        return self._sink.commit(durable=durable)

    def abort(self) -> None:
        """Leave nothing behind; in a forked child, where it is the parent's, do nothing."""
        if self._process != os.getpid():
            return
        self._thread.close()  # first, so that nothing is written after the end
        self._pending = None
        self._sink.abort()
