"""The interfaces of stores, of the objects they open, and of what some stores can do beyond that.

A new store is a class with the methods of `Store`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

__all__ = [
    "CopyingStore",
    "FolderStore",
    "ObjectInfo",
    "ObjectReader",
    "ObjectWriter",
    "RemoteObjectReader",
    "RemoteReader",
    "ScatterReader",
    "SizedStore",
    "Store",
    "UpdatingStore",
]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """URL, size and version of a stored object."""

    url: str
    size: int
    version: str
    """A string that changes whenever the bytes may have changed: an ETag, or a modification time in nanoseconds."""
    modified: float | None = field(default=None, compare=False)
    """When it was last written, in seconds since 1970, where the store says so: local files, listed objects."""


class ObjectReader(Protocol):
    """An open object, read by ranges from any thread."""

    @property
    def info(self) -> ObjectInfo: ...

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``, fewer only where the object ends."""
        ...

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        """Return several ranges, in order; a store may fetch them in parallel."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ScatterReader(Protocol):
    """An open object that can also read into buffers. Optional."""

    def read_into(self, start: int, parts: Sequence[memoryview]) -> int:
        """Fill the buffers ``parts``, one after the other, from ``start`` on; return how many bytes were missing."""
        ...


@runtime_checkable
class RemoteReader(Protocol):
    """An open object that needs requests to another machine, so that prefetching pays. Optional."""

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        """Yield the bytes ``[start, stop)`` in pieces, as they arrive: one request, unless the connection breaks.

        Fewer bytes only where the object ends. Closing the generator ends the request.
        """
        ...


class RemoteObjectReader(RemoteReader, ObjectReader, Protocol):
    """An open object that is both."""


class ObjectWriter(Protocol):
    """An object being written: invisible before ``commit``, and removed by ``abort``."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        """Make the object visible; ``durable`` waits until it would survive a power cut."""
        ...

    def abort(self) -> None: ...


class Store(Protocol):
    """Objects by URL. Every method takes a complete URL of the store's scheme."""

    def info(self, url: str) -> ObjectInfo:
        """Return size and version of an object. Raises ObjectNotFoundError."""
        ...

    def open(self, url: str) -> ObjectReader: ...

    def create(self, url: str) -> ObjectWriter: ...

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        """Yield every object below the folder ``url``, sorted by URL; with ``depth`` 1 only those directly in it."""
        ...

    def read_all(self, url: str) -> bytes: ...

    def write_all(self, url: str, data: bytes) -> ObjectInfo:
        """Replace the object atomically."""
        ...

    def append(self, url: str, data: bytes) -> None:
        """Add to the end of an object, for journals. The bytes survive if the process is killed, not a power cut.

        A journal that loses its last lines costs repeated work; waiting for the disk after every line costs more.
        """
        ...

    def delete(self, url: str) -> None:
        """Remove the object; a missing object is no error."""
        ...

    def move(self, url: str, target: str) -> None:
        """Rename an object, replacing the target; other processes may see both names, or neither, for a short time."""
        ...

    def is_folder(self, url: str) -> bool:
        """Whether there are objects below ``url``."""
        ...


@runtime_checkable
class CopyingStore(Protocol):
    """A store that copies objects on the server. Optional."""

    def can_copy(self, url: str, target: str) -> bool:
        """Whether `copy` can copy this object."""
        ...

    def copy(self, url: str, target: str) -> None:
        """Copy one object. Raises ObjectNotFoundError."""
        ...


@runtime_checkable
class SizedStore(Protocol):
    """A store that opens an object of known size without a request. Optional."""

    def open_sized(self, url: str, size: int) -> ObjectReader:
        """Open an object; reading raises ObjectChangedError if it has another size."""
        ...


@runtime_checkable
class FolderStore(Protocol):
    """A store that lists folders without listing the objects below them. Optional."""

    def folders(self, url: str, depth: int) -> Sequence[str]:
        """Return the folders exactly ``depth`` levels below ``url``, without a slash at the end, in any order."""
        ...


@runtime_checkable
class UpdatingStore(Protocol):
    """A store that replaces an object only if nobody else has changed it. Optional."""

    def update(self, url: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace an object by the result of ``change``, which gets the current bytes, or None if there is no object.

        ``change`` is called again if another process was faster; an error it raises leaves the object unchanged. Raises
        StoreError after too many attempts.
        """
        ...
