"""Keys for samples that have none: unique everywhere, and in the order they were made."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["unique_key"]

_lock = threading.Lock()
_last = 0


def unique_key() -> str:
    """A key that no other call gives, in this process or any other: a UUID of version 7 (RFC 9562).

    Keys sort by the time they were made; within one process, strictly. The other 62 bits come from the system's source
    of randomness at each call, so processes forked from one another do not repeat each other's.

    Example:
        >>> first, second = unique_key(), unique_key()
        >>> first < second, len(first), "." in first
        (True, 36, False)
    """
    global _last  # noqa: PLW0603 - the one thing that has to be remembered between calls
    with _lock:
        # In steps of 1/4096 ms: 48 bits of milliseconds, 12 bits of fraction.
        _last = max(_last + 1, time.time_ns() * 4096 // 1_000_000)
        stamp = _last
    chance = int.from_bytes(os.urandom(8), "big") >> 2 | 1 << 63  # 0b10, the variant, and 62 bits
    text = f"{stamp >> 12:012x}7{stamp & 0xFFF:03x}{chance:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
