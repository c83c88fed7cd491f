"""The store of local files."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from typing import BinaryIO
from urllib.parse import quote

from shoal.errors import ObjectExistsError, ObjectNotFoundError, StoreError

from ._base import ObjectInfo, ObjectReader, ObjectWriter
from ._url import join_url, local_path

__all__ = ["LocalStore"]

# One pread returns at most 2 GiB on Linux.
_MAX_READ_BYTES = 1 << 30
_MAX_PARTS = 1024  # IOV_MAX of Linux and macOS
# When one call fills an aligned mebibyte of a file, Linux looks for as much contiguous free memory, and compacting
# memory for that took longer than writing. Calls of half that size took a quarter longer.
_LARGE_PAGE_BYTES = 1 << 20
_PAGE_BYTES = 4096


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    """Translate errors of the operating system."""
    try:
        yield
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise _translate(error, url) from error


def _translate(error: OSError | ValueError, url: str) -> StoreError:
    if isinstance(error, NotADirectoryError):
        return ObjectNotFoundError("a part of the path is a file, not a folder", found=url, hint="check the path")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError("no such file", found=url, hint="check the path")
    if isinstance(error, FileExistsError):
        return ObjectExistsError("the file exists already", found=url)
    return StoreError(getattr(error, "strerror", None) or str(error), found=url)  # ValueError: a NUL in the path


class LocalReader:
    """A file read by ``pread``, so that threads share one descriptor without a lock."""

    def __init__(self, url: str, descriptor: int) -> None:
        self._descriptor = descriptor
        self.info = _info_of(url, os.fstat(descriptor))

    def read(self, start: int, stop: int) -> bytes:
        length = min(stop, self.info.size) - start  # no room is made for bytes that cannot come
        if length <= 0:
            return b""
        try:
            data = os.pread(self._descriptor, min(length, _MAX_READ_BYTES), start)
            return data if len(data) == length or not data else self._read_on(data, start, start + length)
        except OSError as error:
            raise _translate(error, self.info.url) from error

    def read_many(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        pread, descriptor = os.pread, self._descriptor
        with contextlib.suppress(
            OSError, OverflowError, MemoryError
        ):  # `read` says what is wrong, or takes it in parts
            found = [pread(descriptor, stop - start, start) for start, stop in zip(starts, stops, strict=True)]
            if sum(map(len, found)) == sum(stops) - sum(starts):
                return found
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def read_into(self, start: int, parts: Sequence[memoryview]) -> int:
        size = sum(map(len, parts))
        try:
            if len(parts) <= _MAX_PARTS and os.preadv(self._descriptor, parts, start) == size:
                return 0
            done = 0
            for at in range(0, len(parts), _MAX_PARTS):
                few = parts[at : at + _MAX_PARTS]
                got = self._fill(start + done, few)
                done += got
                if got < sum(map(len, few)):
                    break
        except OSError as error:
            raise _translate(error, self.info.url) from error
        return size - done

    def _fill(self, start: int, parts: Sequence[memoryview]) -> int:
        size = sum(map(len, parts))
        done = got = os.preadv(self._descriptor, parts, start)
        while got and done < size:  # a signal, or a range over the limit of one call, cut the read short
            got = os.preadv(self._descriptor, _after(parts, done), start + done)
            done += got
        return done

    def _read_on(self, first: bytes, start: int, stop: int) -> bytes:
        """A signal, or a range over the limit of one call, cut the read short."""
        parts = [first]
        at = start + len(first)
        while at < stop and (part := os.pread(self._descriptor, min(stop - at, _MAX_READ_BYTES), at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def _after(parts: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is still to be filled after the first ``done`` bytes."""
    left = []
    for part in parts:
        left.append(part[min(done, len(part)) :])
        done -= min(done, len(part))
    return left


class LocalWriter:
    """A temporary file in the target's folder, renamed into place on commit."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = local_path(url)
        self._temporary = ""
        self._size = 0
        self._file: BinaryIO | None = None

    def _open(self) -> BinaryIO:
        if self._file is None:
            folder = os.path.dirname(self._path) or "."
            os.makedirs(folder, exist_ok=True)
            # Not matched by shard globs; recognisable as a temporary file after a crash.
            name = f".{os.path.basename(self._path)}.{secrets.token_hex(8)}.partial"
            self._temporary = os.path.join(folder, name)
            self._file = open(self._temporary, "xb", buffering=0)  # noqa: SIM115 - closed by commit or abort
        return self._file

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        with _translated(self._url):
            _write_pieces(self._file or self._open(), view, self._size)
        self._size += len(view)

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        with _translated(self._url):
            file = self._open()
            if durable:
                os.fsync(file.fileno())
            file.close()
            os.replace(self._temporary, self._path)
            if durable:
                _sync_folder(os.path.dirname(self._path) or ".")
            return _info_of(self._url, os.stat(self._path))

    def abort(self) -> None:
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
            self._file = None


def _write_pieces(file: BinaryIO, data: memoryview, position: int) -> None:
    while data:
        most = -position % _LARGE_PAGE_BYTES + _LARGE_PAGE_BYTES - _PAGE_BYTES
        written = file.write(data[:most])
        data, position = data[written:], position + written


class LocalStore:
    """Files, by plain path or ``file://`` URL."""

    def info(self, url: str) -> ObjectInfo:
        with _translated(url):
            return _info_of(url, os.stat(local_path(url)))

    def open(self, url: str) -> ObjectReader:
        with _translated(url):
            descriptor = os.open(local_path(url), os.O_RDONLY | getattr(os, "O_BINARY", 0))
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):  # POSIX opens folders too, and fails only at the first read
                os.close(descriptor)
                raise StoreError("this is a folder", expected="a file", found=url)
        return LocalReader(url, descriptor)

    def create(self, url: str) -> ObjectWriter:
        return LocalWriter(url)

    def list(self, url: str, depth: int | None = None) -> Iterator[ObjectInfo]:
        root = local_path(url)
        found: list[str] = []
        for folder, folders, names in os.walk(root):
            below = os.path.relpath(folder, root)
            if depth is not None and below.count(os.sep) + (folder != root) >= depth - 1:
                folders.clear()  # os.walk goes into those that are left
            prefix = "" if below == os.curdir else below + os.sep
            found.extend(_url_below(url, prefix + name) for name in names if not _is_partial(name))
        for below in sorted(found):
            with contextlib.suppress(ObjectNotFoundError):  # removed while we looked
                yield self.info(below)

    def folders(self, url: str, depth: int) -> Sequence[str]:
        found = [""]
        for _ in range(depth):
            found = [
                os.path.join(below, name)
                for below in found
                for name in _folders_in(os.path.join(local_path(url), below))
            ]
        return [_url_below(url, below) for below in found]

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
            with open(path, "ab", buffering=0) as file:
                _write_pieces(file, memoryview(data), 0)  # a few lines: where they land makes no difference

    def delete(self, url: str) -> None:
        with _translated(url), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(local_path(url))

    def move(self, url: str, target: str) -> None:
        with _translated(url):
            os.makedirs(os.path.dirname(local_path(target)) or ".", exist_ok=True)
            os.replace(local_path(url), local_path(target))

    def is_folder(self, url: str) -> bool:
        return os.path.isdir(local_path(url))


def _info_of(url: str, status: os.stat_result) -> ObjectInfo:
    # Two files may replace each other within one tick of the clock, but not as one inode.
    version = f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"
    return ObjectInfo(url, status.st_size, version, status.st_mtime)


def _is_partial(name: str) -> bool:
    """Whether a file is one that is being written, or that a crash left behind."""
    return name.startswith(".") and name.endswith(".partial")


def _folders_in(folder: str) -> list[str]:
    """The names of its folders; none where it is no folder, or one that may not be read: as ``os.walk`` has it."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir()]
    return []


def _url_below(url: str, path: str) -> str:
    if url == ".":
        return path
    return join_url(url, quote(path) if "://" in url else path)


def _sync_folder(folder: str) -> None:
    """Make the rename itself survive a power cut, where the platform lets a folder be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
