"""Write one block while the next is made."""

from __future__ import annotations

import os

from shoal.errors import WriteError
from shoal.store import ObjectInfo, ObjectWriter

from ._beside import Beside, Started

__all__ = ["WriteBehind"]

_WORTH_A_THREAD = 1 << 20

Buffer = bytes | bytearray | memoryview


class WriteBehind:
    """An object being written: a block is on its way while the caller makes the next.

    One at a time is, so memory stays at two blocks. A block belongs to the writer from ``write`` on. What goes wrong
    with it is raised by the next call.
    """

    def __init__(self, sink: ObjectWriter) -> None:
        self._sink = sink
        self._process = os.getpid()
        self._beside = Beside()
        self._pending: Started[None] | None = None

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

    def _write_after(self, before: Started[None] | None, data: Buffer) -> None:
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
