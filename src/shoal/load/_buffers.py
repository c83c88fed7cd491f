"""`BufferPool`: memory for large batches, reused once no array refers to it.

A batch of images is tens of megabytes. The system provides new memory of that size page by page and zeroes each page
first, which takes as long as filling it. So a buffer returns to its pool when the last array over it is gone.
"""

from __future__ import annotations

import functools
import weakref

import numpy as np

from shoal._typing import UInt8Array
from shoal.store._fork import ForkSafeLock

__all__ = ["BufferPool", "shared_buffers"]


_ALIGNMENT = 4096
_MAX_UNUSED_BYTES = 256 << 20
"""Unused memory that the shared pool keeps."""


class BufferPool:
    """Buffers lent as arrays, which return when the array is gone. Thread-safe.

    An array is lent until it and every view of it are gone: slices, reshapes, tensors and memoryviews refer to it. A
    buffer in use is never lent again. At most ``kept_bytes`` are kept unused; a buffer beyond that is freed.

    Examples:
        >>> pool = BufferPool(1 << 20)
        >>> first = pool.empty(1000)
        >>> row = first[:10]
        >>> address = first.ctypes.data
        >>> del first
        >>> pool.empty(1000).ctypes.data == address  # `row` still uses it
        False
        >>> del row
        >>> pool.unused_bytes > 0
        True
    """

    def __init__(self, kept_bytes: int = _MAX_UNUSED_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._unused: list[UInt8Array] = []
        # A buffer may return at any moment, also while this thread looks for one.
        self._lock = ForkSafeLock()

    @property
    def unused_bytes(self) -> int:
        """Bytes that are not lent."""
        return sum(len(buffer) for buffer in list(self._unused))

    def empty(self, size: int, offset: int = 0) -> UInt8Array:
        """Return ``size`` uninitialized bytes, at ``offset`` after the start of a page."""
        buffer = self._take(size + offset + _ALIGNMENT)
        start = -buffer.ctypes.data % _ALIGNMENT + offset
        # Views of views of an array refer to the first array that does not own its memory: this one, since it is made
        # over a memoryview. So none outlives it.
        lent: UInt8Array = np.frombuffer(buffer.data[start : start + size], np.uint8)
        weakref.finalize(lent, self._take_back, buffer).atexit = False
        return lent

    def _take(self, size: int) -> UInt8Array:
        with self._lock:
            for index in reversed(range(len(self._unused))):  # the last one used is most likely in the CPU cache
                if size <= len(self._unused[index]) <= 2 * size:
                    return self._unused.pop(index)
        return np.empty(size, np.uint8)

    def _take_back(self, buffer: UInt8Array) -> None:
        with self._lock:
            self._unused.append(buffer)
            while self._unused and self.unused_bytes > self._kept_bytes:
                self._unused.pop(0)


@functools.cache
def shared_buffers() -> BufferPool:
    """Return the pool that all datasets of this process share, so that later epochs reuse its buffers."""
    return BufferPool()
