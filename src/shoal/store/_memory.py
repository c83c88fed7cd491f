"""The store in memory, for tests, examples and notebooks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from shoal.errors import ObjectNotFoundError, StoreError

from ._base import ObjectInfo, ObjectReader, ObjectWriter
from ._fork import ForkSafeLock

__all__ = ["MemoryStore"]


class MemoryReader:
    """The bytes as they were when the object was opened."""

    def __init__(self, info: ObjectInfo, data: bytes) -> None:
        self.info = info
        self._data: bytes | None = data

    def read(self, start: int, stop: int) -> bytes:
        return self._open_data()[start:stop]

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        data = self._open_data()
        return [data[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def _open_data(self) -> bytes:
        if self._data is None:  # no bytes would look like the end of the object
            raise StoreError("the object is closed", found=self.info.url)
        return self._data

    def close(self) -> None:
        self._data = None


class MemoryWriter:
    """Collects parts; the object appears on commit."""

    def __init__(self, store: MemoryStore, url: str) -> None:
        self._store = store
        self._url = url
        self._parts: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._parts.append(bytes(data))

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        return self._store.write_all(self._url, b"".join(self._parts))

    def abort(self) -> None:
        self._parts.clear()


class MemoryStore:
    """Objects under ``memory://...``, gone with the process."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._versions = itertools.count(1)
        self._lock = ForkSafeLock()

    def info(self, url: str) -> ObjectInfo:
        data, version = self._get(url)
        return ObjectInfo(url, len(data), version)

    def open(self, url: str) -> ObjectReader:
        data, version = self._get(url)
        return MemoryReader(ObjectInfo(url, len(data), version), data)

    def create(self, url: str) -> ObjectWriter:
        return MemoryWriter(self, url)

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        folder = _folder(url)
        with self._lock:
            found = [(name, *held) for name, held in self._objects.items() if name.startswith(folder)]
        for name, data, version in sorted(found):
            if depth is None or name.count("/", len(folder)) < depth:
                yield ObjectInfo(name, len(data), version)

    def read_all(self, url: str) -> bytes:
        return self._get(url)[0]

    def write_all(self, url: str, data: bytes) -> ObjectInfo:
        with self._lock:
            self._objects[url] = (bytes(data), str(next(self._versions)))
        return self.info(url)

    def append(self, url: str, data: bytes) -> None:
        with self._lock:
            before = self._objects.get(url, (b"", ""))[0]
            self._objects[url] = (before + data, str(next(self._versions)))

    def update(self, url: str, change: Callable[[bytes | None], bytes]) -> None:
        while True:  # repeated only if another thread has finished its update
            held = self._objects.get(url)
            data = bytes(change(None if held is None else held[0]))
            with self._lock:
                if self._objects.get(url) is held:
                    self._objects[url] = (data, str(next(self._versions)))
                    return

    def delete(self, url: str) -> None:
        with self._lock:
            self._objects.pop(url, None)

    def move(self, url: str, target: str) -> None:
        data, _ = self._get(url)
        with self._lock:
            self._objects.pop(url, None)
            self._objects[target] = (data, str(next(self._versions)))

    def is_folder(self, url: str) -> bool:
        folder = _folder(url)
        with self._lock:
            return any(name.startswith(folder) for name in self._objects)

    def _get(self, url: str) -> tuple[bytes, str]:
        try:
            return self._objects[url]
        except KeyError:
            raise ObjectNotFoundError("no such object", found=url) from None


def _folder(url: str) -> str:
    """Return the prefix of all objects below ``url``."""
    return url if url.endswith("://") else url.rstrip("/") + "/"
