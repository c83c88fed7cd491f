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
        self._settle()
        if len(data) < _WORTH_A_THREAD:
            self._sink.write(data)
        else:
            self._pending = self._beside.start(self._sink.write, data)

    def _settle(self) -> None:
        if self._process != os.getpid():  # forked since: both would write into one file
            raise WriteError("a shard is finished by the process that began it", hint="open a writer in each process")
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
