"""The local disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from shoal.errors import ObjectExistsError, ObjectNotFoundError, StoreError

from ._base import ObjectInfo, ObjectReader, ObjectWriter
from ._url import local_path

__all__ = ["LocalStore"]

# One pread moves at most 2 GiB on Linux, whatever is asked.
_MOST_AT_ONCE = 1 << 30


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """The one place where the operating system's errors become ours."""
    try:
        yield
    except StoreError:
        raise
    except FileNotFoundError as error:
        raise ObjectNotFoundError("no such file", found=url, hint="check the path") from error
    except FileExistsError as error:
        raise ObjectExistsError("the file exists already", found=url) from error
    except OSError as error:
        raise StoreError(error.strerror or str(error), found=url) from error


class LocalReader:
    """A file read by ``pread``, so that threads share one descriptor without a lock."""

    def __init__(self, url: str, descriptor: int) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.info = ObjectInfo(url, status.st_size, str(status.st_mtime_ns))

    def read(self, start: int, stop: int) -> bytes:
        length = stop - start
        data = os.pread(self._descriptor, min(length, _MOST_AT_ONCE), start)
        if len(data) == length or not data:
            return data
        return self._read_on(data, start, stop)

    def _read_on(self, first: bytes, start: int, stop: int) -> bytes:
        """A signal, or a range over the limit of one call, cut the read short."""
        parts = [first]
        at = start + len(first)
        while at < stop and (part := os.pread(self._descriptor, min(stop - at, _MOST_AT_ONCE), at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class LocalWriter:
    """A temporary file in the target's folder, renamed into place on commit."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = local_path(url)
        self._temporary = ""
        self._file: BinaryIO | None = None

    def _open(self) -> BinaryIO:
        if self._file is None:
            folder = os.path.dirname(self._path) or "."
            os.makedirs(folder, exist_ok=True)
            # A name that no glob for shards matches, and that says what it is if a crash leaves it behind.
            descriptor, self._temporary = tempfile.mkstemp(prefix=f".{os.path.basename(self._path)}.", suffix=".partial", dir=folder)
            os.fchmod(descriptor, 0o666 & ~_umask())
            self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115 - closed by commit or abort
        return self._file

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with _translated(self._url):
            file = self._file or self._open()
            written = file.write(data)
            while written < len(data):
                written += file.write(memoryview(data)[written:])

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        with _translated(self._url):
            file = self._open()
            if durable:
                os.fsync(file.fileno())
            file.close()
            os.replace(self._temporary, self._path)
            if durable:
                _sync_folder(os.path.dirname(self._path) or ".")
            return _info(self._url)

    def abort(self) -> None:
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
            self._file = None


class LocalStore:
    """Files, by plain path or ``file://`` URL."""

    def info(self, url: str) -> ObjectInfo:
        with _translated(url):
            return _info(url)

    def open(self, url: str) -> ObjectReader:
        with _translated(url):
            descriptor = os.open(local_path(url), os.O_RDONLY | getattr(os, "O_BINARY", 0))
        return LocalReader(url, descriptor)

    def create(self, url: str) -> ObjectWriter:
        return LocalWriter(url)

    def list(self, url: str) -> Iterator[ObjectInfo]:
        root = local_path(url)
        found: list[str] = []
        for folder, folders, names in os.walk(root):
            folders.sort()
            found.extend(os.path.join(folder, name) for name in names)
        for path in sorted(found):
            with contextlib.suppress(ObjectNotFoundError):  # removed while we looked
                yield self.info(f"{url.rstrip('/')}/{os.path.relpath(path, root)}" if url != "." else os.path.relpath(path, root))

    def read_all(self, url: str) -> bytes:
        with _translated(url), open(local_path(url), "rb") as file:
            return file.read()

    def write_all(self, url: str, data: bytes) -> ObjectInfo:
        writer = LocalWriter(url)
        try:
            writer.write(data)
            return writer.commit()
        except BaseException:
            writer.abort()
            raise

    def append(self, url: str, data: bytes) -> None:
        with _translated(url):
            path = local_path(url)
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

    def delete(self, url: str) -> None:
        with _translated(url), contextlib.suppress(FileNotFoundError):
            os.unlink(local_path(url))

    def is_folder(self, url: str) -> bool:
        return os.path.isdir(local_path(url))


def _info(url: str) -> ObjectInfo:
    status = os.stat(local_path(url))
    return ObjectInfo(url, status.st_size, str(status.st_mtime_ns))


def _sync_folder(folder: str) -> None:
    """Make the rename itself survive a power cut, where the platform lets a folder be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
