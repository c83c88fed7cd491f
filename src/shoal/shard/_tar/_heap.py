"""Keep memory that reading and writing free.

A reader allocates and frees megabytes for every block. glibc gives such memory back to the system at once, and the
next block then faults every page in again: reading 20 KB samples at random took three times as long. Its limits for
giving back grow when a large allocation is freed, so one that is never touched settles it for the life of the
process: up to 64 MiB of freed memory stay at hand. Other allocators pay no attention.
"""

from __future__ import annotations

import functools

__all__ = ["keep_freed_memory"]

_LARGEST_LIMIT = 31 << 20  # glibc lets freed allocations raise its limits up to 32 MiB


@functools.cache
def keep_freed_memory() -> None:
    """Raise the limits, once."""
    bytes(_LARGEST_LIMIT)  # calloc: the pages are reserved, never touched, and given back here
