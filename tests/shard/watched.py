"""Objects under ``watched://`` that remember which of their bytes were read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.store import MemoryStore, ObjectReader, register_store


class WatchedStore(MemoryStore):
    """The ranges that were asked of it. With ``scatters``, its readers fill several buffers, as those of files do."""

    def __init__(self, *, scatters: bool = False) -> None:
        super().__init__()
        self.ranges: list[tuple[str, int, int]] = []
        self.scatters = scatters

    def open(self, url: str) -> Any:
        return (ScatteringReader if self.scatters else WatchedReader)(self, super().open(url))

    @property
    def bytes_read(self) -> int:
        return sum(stop - start for _, start, stop in self.ranges)


class WatchedReader:
    def __init__(self, store: WatchedStore, inner: ObjectReader) -> None:
        self.store = store
        self.inner = inner
        self.info = inner.info

    def read(self, start: int, stop: int) -> bytes:
        self.store.ranges.append((self.info.url, start, min(stop, self.info.size)))
        return self.inner.read(start, stop)

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def close(self) -> None:
        self.inner.close()


class ScatteringReader(WatchedReader):
    def read_into(self, start: int, parts: Sequence[memoryview]) -> int:
        missing = sum(map(len, parts))
        data = self.read(start, start + missing)
        for part in parts:
            size = min(len(part), len(data))
            part[:size], data = data[:size], data[size:]
            missing -= size
        return missing


def watched_store(*, scatters: bool = False) -> WatchedStore:
    """A new one, which takes the place of the one before."""
    store = WatchedStore(scatters=scatters)
    register_store("watched", store)
    return store
