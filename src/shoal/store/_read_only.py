"""Base class and reader for stores whose objects are known by name, kept elsewhere and never written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal.errors import StoreError

from ._base import ObjectInfo, ObjectReader, ObjectWriter

__all__ = ["ReadOnlyStore", "RenamedReader"]


class RenamedReader:
    """A reader of one object under the URL and version of another."""

    def __init__(self, reader: ObjectReader, info: ObjectInfo) -> None:
        self.info = info
        self._reader = reader
        self.read = reader.read
        self.read_many = reader.read_many
        self.close = reader.close


class ReadOnlyStore:
    """Base class of read-only stores; a subclass defines ``urls``, ``info``, ``open`` and ``read_all``.

    Writing raises a StoreError with the ``problem`` and the ``hint``.
    """

    def __init__(self, problem: str, hint: str) -> None:
        self._problem = problem
        self._hint = hint

    def urls(self) -> Iterable[str]:
        """The URLs of all objects."""
        return ()

    def info(self, url: str) -> ObjectInfo:
        """Raise StoreError; subclasses override this."""
        raise self._refused(url)

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        """Every object below the folder ``url``, sorted by URL."""
        folder = url.rstrip("/") + "/"
        for name in sorted(name for name in self.urls() if name.startswith(folder)):
            if depth is None or name.count("/", len(folder)) < depth:
                yield self.info(name)

    def is_folder(self, url: str) -> bool:
        """Whether an object is below it."""
        return any(name.startswith(url.rstrip("/") + "/") for name in self.urls())

    def create(self, url: str) -> ObjectWriter:
        """Refuse."""
        raise self._refused(url)

    def write_all(self, url: str, data: bytes) -> ObjectInfo:
        """Refuse."""
        raise self._refused(url)

    def append(self, url: str, data: bytes) -> None:
        """Refuse."""
        raise self._refused(url)

    def delete(self, url: str) -> None:
        """Refuse."""
        raise self._refused(url)

    def move(self, url: str, target: str) -> None:
        """Refuse."""
        raise self._refused(url)

    def _refused(self, url: str) -> StoreError:
        return StoreError(self._problem, found=url, hint=self._hint)
