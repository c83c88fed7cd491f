"""A dictionary of this process, for tests, examples and notebooks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

from shoal.errors import ObjectNotFoundError

from ._base import ObjectInfo, ObjectReader, ObjectWriter

__all__ = ["MemoryStore"]


class MemoryReader:
    """The bytes as they were when the object was opened."""

    def __init__(self, info: ObjectInfo, data: bytes) -> None:
        self.info = info
        self._data = data

    def read(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]

    def close(self) -> None:
        self._data = b""


class MemoryWriter:
    """Collects parts; the object appears on commit."""

    def __init__(self, store: MemoryStore, url: str) -> None:
        self._store = store
        self._url = url
        self._parts: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._parts.append(bytes(data))

    def commit(self, *, durable: bool = False) -> ObjectInfo:  # noqa: ARG002 - memory has no disk to wait for
        return self._store.write_all(self._url, b"".join(self._parts))

    def abort(self) -> None:
        self._parts.clear()


class MemoryStore:
    """Objects under ``memory://...``, gone with the process."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._versions = itertools.count(1)
        self._lock = threading.Lock()

    def info(self, url: str) -> ObjectInfo:
        data, version = self._get(url)
        return ObjectInfo(url, len(data), version)

    def open(self, url: str) -> ObjectReader:
        data, version = self._get(url)
        return MemoryReader(ObjectInfo(url, len(data), version), data)

    def create(self, url: str) -> ObjectWriter:
        return MemoryWriter(self, url)

    def list(self, url: str) -> Iterator[ObjectInfo]:
        folder = url.rstrip("/") + "/"
        yield from (self.info(name) for name in sorted(self._objects) if name.startswith(folder))

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

    def delete(self, url: str) -> None:
        with self._lock:
            self._objects.pop(url, None)

    def is_folder(self, url: str) -> bool:
        folder = url.rstrip("/") + "/"
        return any(name.startswith(folder) for name in self._objects)

    def _get(self, url: str) -> tuple[bytes, str]:
        try:
            return self._objects[url]
        except KeyError:
            raise ObjectNotFoundError("no such object", found=url) from None
