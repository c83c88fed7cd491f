"""Memory for large batches, used again once nobody holds the batch.

A batch of pictures is tens of megabytes. Fresh memory of that size comes from the system page by page, each zeroed
first, which takes as long as filling it. So a buffer goes back to its pool when the last array over it is gone.
"""

from __future__ import annotations

import functools
import threading
import weakref

import numpy as np
import numpy.typing as npt

__all__ = ["BufferPool", "shared_buffers"]

UInt8 = npt.NDArray[np.uint8]

ALIGNMENT = 4096
KEPT_BYTES = 256 << 20
"""How much memory that nobody uses the shared pool keeps."""


class BufferPool:
    """Buffers that are lent as arrays and come back by themselves. Threads may share it.

    An array is lent until it and every view of it are gone: slices, reshapes, tensors and memoryviews over it all hold
    it. What is still held is never lent again. At most ``kept_bytes`` lie unused; what comes back over that is freed.

    Example:
        >>> pool = BufferPool(1 << 20)
        >>> first = pool.empty(1000)
        >>> row = first[:10]
        >>> place = first.ctypes.data
        >>> del first
        >>> pool.empty(1000).ctypes.data == place  # `row` still needs it
        False
        >>> del row
        >>> pool.unused_bytes > 0
        True
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._unused: list[UInt8] = []
        # A buffer may come back at any moment, also while this thread looks for one.
        self._lock = threading.RLock()

    @property
    def unused_bytes(self) -> int:
        """How many bytes wait to be lent."""
        return sum(len(buffer) for buffer in list(self._unused))

    def empty(self, size: int, offset: int = 0) -> UInt8:
        """``size`` bytes with anything in them, ``offset`` bytes after an address that is a multiple of a page's."""
        buffer = self._found(size + offset + ALIGNMENT)
        start = -buffer.ctypes.data % ALIGNMENT + offset
        # Views of views of an array hold the first array that does not own its memory: this one, since it is made over
        # a memoryview. So none outlives it.
        lent: UInt8 = np.frombuffer(buffer.data[start : start + size], np.uint8)
        weakref.finalize(lent, self._take_back, buffer).atexit = False
        return lent

    def _found(self, size: int) -> UInt8:
        with self._lock:
            for place in reversed(range(len(self._unused))):  # the last one used is the likeliest in a cache
                if size <= len(self._unused[place]) <= 2 * size:
                    return self._unused.pop(place)
        return np.empty(size, np.uint8)

    def _take_back(self, buffer: UInt8) -> None:
        with self._lock:
            self._unused.append(buffer)
            while self._unused and self.unused_bytes > self._kept_bytes:
                self._unused.pop(0)


@functools.cache
def shared_buffers() -> BufferPool:
    """The pool that all datasets of this process share, so that the second epoch finds the first one's buffers."""
    return BufferPool()
