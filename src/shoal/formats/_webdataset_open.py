"""Open what a user calls an archive: a path, a URL, a pipe, standard input, or any object with ``read``."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from shoal.errors import ObjectNotFoundError, OptionError, ShoalError, StoreError
from shoal.shard import (
    Feed,
    ReaderFeed,
    StreamFeed,
    SupportsRead,
    decompressed,
    is_dataset_folder,
    locate_shards,
    reader_stream,
    sniff,
)
from shoal.store import expand_pattern, local_path, scheme_of, store_for

__all__ = ["Archive", "ArchiveSource", "archive_name", "held_sources", "is_stream", "open_archive", "resolve_sources"]

ArchiveSource = str | os.PathLike[str] | SupportsRead
STDIN = "-"
_HEAD = 512
_MARKS = "{*?[:"


@dataclass(frozen=True, slots=True)
class Archive:
    """An open archive: the tar's bytes, unpacked, and what is known of them."""

    feed: Feed
    close: Callable[[], None]
    size: int | None = None
    """Of the stored object, where it is known."""
    stream: UnbrokenStream | None = None

    @property
    def failure(self) -> ShoalError | None:
        """Why the bytes ended, where that was not their end."""
        return None if self.stream is None else self.stream.failure


class UnbrokenStream:
    """A stream that fails only after all its bytes were taken, so that the samples in them are not lost.

    From the failure on ``read`` gives no bytes, and ``failure`` says what happened.
    """

    def __init__(self, stream: SupportsRead) -> None:
        self.failure: ShoalError | None = None
        self._stream = stream

    def read(self, size: int, /) -> bytes | None:
        if self.failure is not None:
            return b""
        try:
            return self._stream.read(size)
        except OptionError:
            raise
        except ShoalError as error:
            self.failure = error
        except OSError as error:
            self.failure = StoreError(error.strerror or str(error), hint="the stream failed while it was read")
            self.failure.__cause__ = error
        return b""


class UnbrokenFeed(StreamFeed):
    """The bytes of an `UnbrokenStream`; where they end because it failed, that is raised."""

    def __init__(self, stream: UnbrokenStream) -> None:
        super().__init__(stream)
        self._unbroken = stream

    def at(self, position: int, length: int) -> bytes:
        data = super().at(position, length)
        if not data and self._unbroken.failure is not None:
            raise self._unbroken.failure
        return data


class _BinaryStream:
    """The caller's object with ``read``, checked, and with what was read to see its kind put back in front."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._head = b""

    def peek(self, size: int) -> bytes:
        while len(self._head) < size and (part := self._stream_read(size - len(self._head))):
            self._head += part
        return self._head

    def read(self, size: int, /) -> bytes | None:
        if self._head:
            part, self._head = self._head[:size], self._head[size:]
            return part
        return self._stream_read(size)

    def _stream_read(self, size: int) -> bytes | None:
        part = self._stream.read(size)
        if isinstance(part, str):
            raise OptionError("the stream gives text", expected="bytes", found="str", hint="open the file with 'rb'")
        return None if part is None else bytes(part)  # None: nothing to read yet, which the feed refuses


def is_stream(source: object) -> bool:
    """Whether a source is read from where it stands, and cannot be opened again."""
    return source == STDIN or hasattr(source, "read")


def archive_name(source: ArchiveSource) -> str:
    """How messages call a source."""
    if isinstance(source, (str, os.PathLike)):
        return "<stdin>" if source == STDIN else os.fspath(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<stream>"


def held_sources(paths: ArchiveSource | Iterable[ArchiveSource]) -> ArchiveSource | tuple[ArchiveSource, ...]:
    """What a user names, to be opened later: a list may change, or run out, before then.

    Raises OptionError for what names no archive.
    """
    several: Any = paths
    if isinstance(several, (str, os.PathLike)) or hasattr(several, "read"):
        return _checked(several)
    return tuple(map(_checked, several)) if isinstance(several, Iterable) else _checked(several)


def _checked(source: Any) -> ArchiveSource:
    if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "read"):
        expected = "a path, a URL, '-', or an object with read"
        raise OptionError("this names no archive", expected=expected, found=type(source).__name__)
    return cast("ArchiveSource", source)


def resolve_sources(paths: ArchiveSource | tuple[ArchiveSource, ...]) -> tuple[ArchiveSource, ...]:
    """Every archive that is meant, in order: a path, URL, pattern or folder, a stream, or several of these."""
    if isinstance(paths, (str, os.PathLike)):
        return _resolve_path(os.fspath(paths))
    if isinstance(paths, tuple):
        return tuple(source for item in paths for source in _resolve_item(item))
    return (paths,)


def _resolve_path(path: str) -> tuple[ArchiveSource, ...]:
    if path != STDIN and is_dataset_folder(path):
        return tuple(ref.url for ref in locate_shards(path).shards)
    return _resolve_item(path)


def _resolve_item(item: ArchiveSource) -> tuple[ArchiveSource, ...]:
    """One of several. A file that is there is meant itself, even where its name could be a pattern."""
    if not isinstance(item, (str, os.PathLike)):
        return (item,)
    path = os.fspath(item)
    if path == STDIN or not any(mark in path for mark in _MARKS) or _is_there(path):
        return (path,)
    return tuple(expand_pattern(path))


def _is_there(path: str) -> bool:
    try:
        store_for(path).info(path)
    except (ObjectNotFoundError, StoreError):
        return False
    return True


def open_archive(source: ArchiveSource) -> Archive:
    """Open a source, and unpack it as it is read where it is compressed, which its first bytes tell.

    Raises ObjectNotFoundError, StoreError, or OptionError for a stream of text. What the caller opened stays open.
    """
    if isinstance(source, (str, os.PathLike)):
        return _open_path(os.fspath(source))
    return _open_stream(source, _nothing)


def _open_path(path: str) -> Archive:
    if path == STDIN:
        return _open_stream(sys.stdin.buffer, _nothing)
    if _is_pipe(path):
        file = open(local_path(path), "rb", buffering=0)  # noqa: SIM115 - closed with the archive
        return _closed_on_error(file.close, lambda: _open_stream(file, file.close))
    reader = store_for(path).open(path)

    def opened() -> Archive:
        compression = sniff(reader.read(0, _HEAD))
        if compression is None:
            return Archive(ReaderFeed(reader), reader.close, reader.info.size)
        stream = UnbrokenStream(decompressed(reader_stream(reader), compression))
        return Archive(UnbrokenFeed(stream), reader.close, reader.info.size, stream)

    return _closed_on_error(reader.close, opened)


def _open_stream(stream: Any, close: Callable[[], None]) -> Archive:
    binary = _BinaryStream(stream)
    compression = sniff(binary.peek(_HEAD))
    unbroken = UnbrokenStream(binary if compression is None else decompressed(binary, compression))
    return Archive(UnbrokenFeed(unbroken), close, None, unbroken)


def _is_pipe(path: str) -> bool:
    """Whether a path names something that cannot be read from any position, as ``/dev/stdin`` and named pipes do."""
    if scheme_of(path) != "file":
        return False
    try:
        mode = os.stat(local_path(path)).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode))


def _closed_on_error(close: Callable[[], None], opened: Callable[[], Archive]) -> Archive:
    try:
        return opened()
    except BaseException:
        close()
        raise


def _nothing() -> None:
    """What the caller opened, the caller closes."""
