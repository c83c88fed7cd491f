"""The interfaces of stores, read-only stores, and safety across forks."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shoal.errors import StoreError

__all__ = [
    "CopyingStore",
    "FolderStore",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "ReadOnlyStore",
    "RemoteReader",
    "RenamedReader",
    "ScatterReader",
    "Store",
    "UpdatingStore",
    "anew_in_child",
    "enter_obstore",
]

_used = False
"""This process has called obstore."""
_dead = False
"""The process this one was forked from had."""
_RENEWALS: list[Callable[[], None]] = []


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known of a stored object without reading it."""

    url: str
    size: int
    version: str
    """Changes whenever the bytes may have: an ETag, or a modification time in nanoseconds."""


class ObjectReader(Protocol):
    """An open object, read by ranges from any thread."""

    @property
    def info(self) -> ObjectInfo: ...

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``, fewer only where the object ends."""
        ...

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        """Return several ranges, in order: one call, so that a store may fetch them at once."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ScatterReader(Protocol):
    """An open object that can also put its bytes where the caller wants them. Not every store's can."""

    def read_into(self, start: int, parts: Sequence[memoryview]) -> int:
        """Fill these parts, one after the other, from ``start`` on; return how many bytes were missing for that."""
        ...


@runtime_checkable
class RemoteReader(Protocol):
    """An open object that is far away: its bytes are worth asking for before they are needed. Not every store's is."""

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        """The bytes ``[start, stop)`` in pieces, as they come: one request, but for what breaks on the way.

        Fewer only where the object ends. Closing it ends the request.
        """
        ...


class ObjectWriter(Protocol):
    """An object being written: nobody sees it before ``commit``, nothing is left after ``abort``."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        """Show the object under its name; ``durable`` waits until it would survive a power cut."""
        ...

    def abort(self) -> None: ...


class Store(Protocol):
    """Bytes by URL. Every method takes a whole URL of the store's scheme."""

    def info(self, url: str) -> ObjectInfo:
        """Raise ObjectNotFoundError when nothing is there."""
        ...

    def open(self, url: str) -> ObjectReader: ...

    def create(self, url: str) -> ObjectWriter: ...

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        """Every object below the folder ``url``, sorted by URL; with ``depth`` 1 only those in it, 2 one level more."""
        ...

    def read_all(self, url: str) -> bytes: ...

    def write_all(self, url: str, data: bytes) -> ObjectInfo:
        """Replace the object in one step."""
        ...

    def append(self, url: str, data: bytes) -> None:
        """Add to the end, for journals: it is there though the process be killed next, if not after a power cut.

        A journal that lost its last lines costs work that is done again; to wait for the disk at every line, behind all
        that waits to be written, costs more.
        """
        ...

    def delete(self, url: str) -> None:
        """Remove the object; nothing there is no error."""
        ...

    def move(self, url: str, target: str) -> None:
        """Give an object another name, replacing what was there; nobody sees it under both or under none for long."""
        ...

    def is_folder(self, url: str) -> bool:
        """Whether other objects lie below ``url``."""
        ...


@runtime_checkable
class CopyingStore(Protocol):
    """A store that copies objects without their bytes coming here. Not every store does."""

    def can_copy(self, url: str, target: str) -> bool:
        """Whether `copy` can do this one."""
        ...

    def copy(self, url: str, target: str) -> None:
        """Copy one object. Raises ObjectNotFoundError."""
        ...


@runtime_checkable
class FolderStore(Protocol):
    """A store that names its folders without looking at all that is below them. Not every store does."""

    def folders(self, url: str, depth: int) -> Sequence[str]:
        """The folders exactly ``depth`` levels below ``url``, without a slash at the end, in any order."""
        ...


@runtime_checkable
class UpdatingStore(Protocol):
    """A store that replaces an object on condition that nobody else did so meanwhile. Not every store does."""

    def update(self, url: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace an object by what ``change`` makes of it, None where there is none; again if others come between.

        ``change`` may so be called several times; what it raises leaves the object as it is. Raises StoreError when
        others never leave it alone.
        """
        ...


class RenamedReader:
    """A reader of one object under the URL and version of another."""

    def __init__(self, reader: ObjectReader, info: ObjectInfo) -> None:
        self.info = info
        self._reader = reader
        self.read = reader.read
        self.read_many = reader.read_many
        self.close = reader.close


class ReadOnlyStore:
    """What stores share whose objects are known by name and never written; a subclass has ``urls`` and ``info``.

    Writing raises a StoreError with the ``problem`` and the ``hint``.
    """

    def __init__(self, problem: str, hint: str) -> None:
        self._problem = problem
        self._hint = hint

    def urls(self) -> Iterable[str]:
        """The URLs of all objects."""
        return ()

    def info(self, url: str) -> ObjectInfo:
        """Raise, as nothing is here: a subclass knows better."""
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


# The process notes that it used obstore; a child forked after that is told so at its first use. Everything else here
# that holds threads or locks says how to begin anew in a child.
def enter_obstore(url: str) -> None:
    """Note that this process is about to call obstore. Raises StoreError in a child forked from one that did."""
    global _used  # noqa: PLW0603 - a fact about the process
    if _dead:
        raise StoreError(
            "object stores cannot be used in a process forked from one that used them",
            found=url,
            hint='start workers with multiprocessing.get_context("forkserver") or "spawn", '
            "or open the data only in the workers",
        )
    _used = True


def anew_in_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` in every forked child, before anything else runs there."""
    _RENEWALS.append(renew)


def _begin_child() -> None:
    global _dead  # noqa: PLW0603 - a fact about the process
    _dead = _dead or _used
    for renew in _RENEWALS:
        renew()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_child)
