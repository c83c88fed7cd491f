"""The shards of a source that are open."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

from shoal.shard._index import KnownIndex
from shoal.shard._one import Shard

__all__ = ["OpenShards", "most_open"]

_LEAST_OPEN, _MOST_OPEN = 128, 1024
_MOST_KNOWN = 2048
"""Indexes that are remembered. Small ones are copies, of 64 KiB at most; large ones are the file itself, mapped."""


@functools.cache
def most_open() -> int:
    """Shards that a source keeps open: by the system's limit of open files, since a program may have many sources."""
    try:
        import resource
    except ImportError:
        return _LEAST_OPEN
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN if limit < 0 else max(_LEAST_OPEN, min(_MOST_OPEN, limit // 8))


class OpenShards:
    """Shards by number: ``open_one`` opens one when it is first needed, the least used close again.

    What was known of a shard is remembered when it closes, so that to open it again takes no reading, where it is
    still the same. Threads may share it.
    """

    def __init__(self, open_one: Callable[[int, KnownIndex | None], Shard]) -> None:
        self._open_one = open_one
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._opening: dict[int, threading.Lock] = {}
        self._alive: weakref.WeakValueDictionary[int, Shard] = weakref.WeakValueDictionary()
        """Those that are in use: who fetches ahead and who reads should speak of the same one."""
        self._known: OrderedDict[int, KnownIndex] = OrderedDict()
        self._counts: dict[int, int] = {}
        self._lock = threading.RLock()

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def __getitem__(self, number: int) -> Shard:
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
            found = self._alive.get(number)
            if found is not None:
                self._open[number] = found
                self._close_least_used()
                return found
            opening = self._opening.setdefault(number, threading.Lock())
        with opening:  # one a shard: who reads another one does not wait
            found = self._open.get(number)
            return self.keep(number, self._open_one(number, self._known.get(number))) if found is None else found

    def keep(self, number: int, shard: Shard) -> Shard:
        """Have one that somebody else opened."""
        with self._lock:
            self._open[number] = self._alive[number] = shard
            self._counts[number] = len(shard)
            self._opening.pop(number, None)
            if shard.known is not None:
                self._known[number] = shard.known
                self._known.move_to_end(number)
            self._close_least_used()
        return shard

    def count(self, number: int) -> int | None:
        """How many samples one holds that is, or was, open; None where it never was."""
        return self._counts.get(number)

    def _close_least_used(self) -> None:
        if len(self._open) > most_open():
            self._open.popitem(last=False)  # closed when its last reader lets go of it
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def close(self) -> None:
        """Give all files back."""
        with self._lock:
            for shard in self._open.values():
                shard.close()
            self._open.clear()
