"""Functions by URL: get, put, list, copy, upload and download."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import ObjectChangedError, ObjectNotFoundError, OptionError, StoreError, UnsafeNameError

from ._base import CopyingStore, FolderStore, ObjectInfo, ObjectReader, SizedStore, Store
from ._concurrency import each_done
from ._options import shown
from ._pattern import expand_pattern
from ._registry import store_for
from ._snapshot import StoreSnapshot, current_snapshot
from ._url import base_name, join_url, relative_url, scheme_of

__all__ = [
    "Progress",
    "Transferred",
    "copy",
    "delete",
    "download",
    "exists",
    "folders",
    "get",
    "get_many",
    "list_objects",
    "open_sized",
    "prefetch_small_object",
    "put",
    "put_many",
    "stat",
    "upload",
]

_T = TypeVar("_T")
_MAX_REQUESTS = 32
_MAX_TRANSFERS = 8
_PIECE_BYTES = 16 << 20
Progress = Callable[["Transferred"], None]
"""Called with what has been done so far, after every few megabytes and every object; one call at a time."""


def get(url: str) -> bytes:
    """All bytes of an object; a large one comes in parallel parts. Raises ObjectNotFoundError.

    Examples:
        >>> _ = put("memory://verbs/a.txt", b"hello")
        >>> get("memory://verbs/a.txt")
        b'hello'
    """
    return store_for(url).read_all(url)


@contextmanager
def prefetch_small_object(url: str) -> Iterator[None]:
    """Read a small object of an object store on another thread, for reads of it inside the ``with`` block.

    Examples:
        >>> from shoal.store import store_for
        >>> _ = store_for("memory://early/a").write_all("memory://early/a", b"0123")
        >>> with prefetch_small_object("memory://early/a"):
        ...     store_for("memory://early/a").read_all("memory://early/a")
        b'0123'
    """
    snapshot = current_snapshot() or StoreSnapshot()
    snapshot.begin(url, get)
    with snapshot.active():
        yield


def open_sized(url: str, size: int) -> ObjectReader:
    """Open an object that never changes and whose size is known: object stores need no request for that.

    Raises ObjectChangedError, here or when it is read, if it has another size.

    Examples:
        >>> _ = put("memory://sized/a", b"0123")
        >>> open_sized("memory://sized/a", 4).read(1, 3)
        b'12'
    """
    store = store_for(url)
    if isinstance(store, SizedStore):
        return store.open_sized(url, size)
    reader = store.open(url)
    if reader.info.size != size:
        reader.close()
        problem = "the object has another size than it was written with"
        raise ObjectChangedError(problem, expected=f"{size} bytes", found=f"{reader.info.size} at {shown(url)}")
    return reader


def put(url: str, data: bytes | bytearray | memoryview) -> ObjectInfo:
    """Store an object, replacing what was there in one step.

    Examples:
        >>> put("memory://verbs/b.txt", b"hello").size
        5
    """
    return store_for(url).write_all(url, bytes(data))


def stat(url: str) -> ObjectInfo:
    """Size and version of an object, without reading it. Raises ObjectNotFoundError.

    Examples:
        >>> _ = put("memory://verbs/c.txt", b"hello")
        >>> stat("memory://verbs/c.txt").size
        5
    """
    return store_for(url).info(url)


def exists(url: str) -> bool:
    """Whether there is an object, or a folder with objects below it. Other failures are raised.

    Examples:
        >>> exists("memory://verbs/nothing.txt")
        False
    """
    store = store_for(url)
    try:
        store.info(url)
    except ObjectNotFoundError:
        return store.is_folder(url)
    except StoreError:
        if store.is_folder(url):  # a bucket is no object, but is there
            return True
        raise
    return True


def list_objects(url: str, depth: int | None = None) -> list[ObjectInfo]:
    """Every object below a folder, sorted by URL; an object's own URL lists itself.

    With ``depth`` 1 only those in the folder, with 2 one level more, and so on.

    Examples:
        >>> from shoal import store
        >>> _ = store.put("memory://listed/a/b.txt", b"")
        >>> [info.url for info in store.list("memory://listed")]
        ['memory://listed/a/b.txt']
    """
    store = store_for(url)
    found = [*store.list(url, depth)]
    if found or url.endswith("/") or store.is_folder(url):
        return found
    try:
        return [store.info(url)]
    except StoreError:
        return []


def folders(url: str, depth: int = 1) -> list[str]:
    """The folders ``depth`` levels below a folder, each with a slash at its end, sorted.

    They are what ``list(url, depth)`` stops at. A bucket has a folder where a name has a slash.

    Examples:
        >>> _ = put("memory://sorted/a.txt", b""), put("memory://sorted/b/c/d.txt", b"")
        >>> folders("memory://sorted"), folders("memory://sorted", 2)
        (['memory://sorted/b/'], ['memory://sorted/b/c/'])
    """
    if depth < 1:
        raise OptionError("folders lie below a folder", expected="a depth of at least 1", found=depth)
    store = store_for(url)
    found = store.folders(url, depth) if isinstance(store, FolderStore) else _folders_of(store.list(url), url, depth)
    return sorted(f"{folder}/" for folder in found)


def _folders_of(objects: Iterable[ObjectInfo], url: str, depth: int) -> set[str]:
    """Derive folders from the names of objects, for a store that lists only objects."""
    parts = [relative_url(info.url, url).split("/") for info in objects]
    return {join_url(url, *path[:depth]) for path in parts if len(path) > depth}


def delete(url: str, *, recursive: bool = False) -> int:
    """Remove an object, or with ``recursive`` everything below a folder; return how many there were.

    Raises ObjectNotFoundError when there was nothing: a wrong name should not look like work done.

    Examples:
        >>> _ = put("memory://gone/a/1", b""), put("memory://gone/a/2", b"")
        >>> delete("memory://gone/a", recursive=True)
        2
    """
    store = store_for(url)
    if not recursive:
        store.info(url)
        store.delete(url)
        return 1
    found = [info.url for info in list_objects(url)]
    if not found:
        raise ObjectNotFoundError("nothing lies there", found=shown(url))
    return sum(1 for _ in each_done(store.delete, found, _MAX_REQUESTS))


def get_many(urls: Iterable[str], *, at_once: int = _MAX_REQUESTS) -> list[bytes]:
    """All bytes of several objects, in the order of ``urls``.

    Examples:
        >>> _ = put_many([("memory://many/1", b"one"), ("memory://many/2", b"two")])
        >>> get_many(["memory://many/2", "memory://many/1"])
        [b'two', b'one']
    """
    wanted = list(enumerate(urls))
    done = each_done(lambda item: get(item[1]), wanted, _check_at_once(at_once))
    return _in_order((number, data) for (number, _), data in done)


def put_many(items: Iterable[tuple[str, bytes]], *, at_once: int = _MAX_REQUESTS) -> list[ObjectInfo]:
    """Store several objects, given as pairs of URL and bytes, which may come from a generator.

    Examples:
        >>> [info.size for info in put_many([("memory://many/3", b"three")])]
        [5]
    """
    done = each_done(lambda item: put(*item[1]), enumerate(items), _check_at_once(at_once))
    return _in_order((number, info) for (number, _), info in done)


def _check_at_once(at_once: int) -> int:
    if at_once < 1:
        raise OptionError("at_once is too small", expected="at least 1", found=at_once)
    return at_once


def _in_order(results: Iterable[tuple[int, _T]]) -> list[_T]:
    return [result for _, result in sorted(results, key=lambda pair: pair[0])]


@dataclass(frozen=True, slots=True)
class Transferred:
    """How far a transfer is, or what it was."""

    objects: int
    bytes: int
    objects_in_all: int
    bytes_in_all: int


def upload(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    target: str,
    *,
    progress: Progress | None = None,
    at_once: int = _MAX_TRANSFERS,
) -> Transferred:
    """Copy local files, folders and patterns of them below the URL ``target``.

    A folder's files keep their path below it; a file goes by its name. Raises ObjectNotFoundError if there is none.

    Examples:
        >>> import pathlib
        >>> pathlib.Path("photos").mkdir()
        >>> _ = pathlib.Path("photos/1.txt").write_text("one")
        >>> upload("photos", "memory://uploaded").objects
        1
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    found = [url for source in given for url in _expand(os.fspath(source))]
    for url in found:
        if scheme_of(url) != "file":
            raise OptionError(
                "only local files are uploaded", found=shown(url), hint="shoal.store.copy copies between stores"
            )
    return _transfer([pair for url in found for pair in _pairs(url, target, into=True)], progress, at_once)


def download(
    url: str, folder: str | os.PathLike[str], *, progress: Progress | None = None, at_once: int = _MAX_TRANSFERS
) -> Transferred:
    """Copy an object, everything below a folder, or what a pattern names, into a local folder.

    Examples:
        >>> _ = store_for("memory://d").write_all("memory://d/a/1.txt", b"one")
        >>> download("memory://d", "copy").bytes
        3
        >>> store_for("copy/a/1.txt").read_all("copy/a/1.txt")
        b'one'
    """
    target = os.fspath(folder)
    if scheme_of(target) != "file":
        raise OptionError(
            "only a local folder is downloaded to", found=shown(target), hint="shoal.store.copy copies between stores"
        )
    return _transfer([pair for each in _expand(url) for pair in _pairs(each, target, into=True)], progress, at_once)


def copy(source: str, target: str, *, progress: Progress | None = None, at_once: int = _MAX_TRANSFERS) -> Transferred:
    """Copy an object to the URL ``target``, or everything below a folder to below it.

    An object whose target ends with ``/`` keeps its name. Inside one bucket the bytes do not come here. Raises
    ObjectNotFoundError when there is nothing.

    Examples:
        >>> _ = store_for("memory://c").write_all("memory://c/a.txt", b"one")
        >>> copy("memory://c/a.txt", "memory://c/b.txt")
        Transferred(objects=1, bytes=3, objects_in_all=1, bytes_in_all=3)
    """
    return _transfer(_pairs(source, target, into=target.endswith("/")), progress, at_once)


def _expand(source: str) -> list[str]:
    return expand_pattern(source) if any(mark in source for mark in "*?[{") else [source]


def _pairs(source: str, target: str, *, into: bool) -> list[tuple[ObjectInfo, str]]:
    """Return the objects to copy, each with its target."""
    store = store_for(source)
    if not source.endswith("/") and not store.is_folder(source):
        return [(store.info(source), join_url(target, base_name(source.partition("?")[0])) if into else target)]
    found = [(info, relative_url(info.url, source)) for info in store.list(source)]
    if not found:
        raise ObjectNotFoundError("nothing lies there", found=shown(source))
    return [(info, join_url(target, _inside(path, info.url))) for info, path in found]


def _inside(path: str, url: str) -> str:
    """Return the path. Raises UnsafeNameError if it leads out of the target folder."""
    parts = path.replace("\\", "/").split("/")
    if ".." in parts or path.startswith("/") or (os.name == "nt" and ":" in parts[0]):
        raise UnsafeNameError("the name leads out of the folder", found=shown(url))
    return path


class _ProgressCounter:
    """Progress of a transfer. Thread-safe."""

    def __init__(self, pairs: list[tuple[ObjectInfo, str]], progress: Progress | None) -> None:
        self._lock = threading.Lock()
        self._objects = self._bytes = 0
        self._all = len(pairs), sum(info.size for info, _ in pairs)
        self._progress = progress

    def add(self, objects: int, size: int) -> None:
        with self._lock:
            self._objects += objects
            self._bytes += size
            if self._progress is not None:
                self._progress(self.now())

    def now(self) -> Transferred:
        return Transferred(self._objects, self._bytes, *self._all)


def _transfer(pairs: list[tuple[ObjectInfo, str]], progress: Progress | None, at_once: int) -> Transferred:
    count = _ProgressCounter(pairs, progress)
    for _ in each_done(lambda pair: _copy_one(*pair, count), pairs, _check_at_once(at_once)):
        pass
    return count.now()


def _copy_one(info: ObjectInfo, target: str, count: _ProgressCounter) -> None:
    source, store = store_for(info.url), store_for(target)
    if isinstance(source, CopyingStore) and source.can_copy(info.url, target):
        source.copy(info.url, target)
        count.add(1, info.size)
        return
    _stream(source, info, store, target, count)


def _stream(source: Store, info: ObjectInfo, store: Store, target: str, count: _ProgressCounter) -> None:
    writer = store.create(target)
    try:
        with closing(source.open(info.url)) as reader:
            for start in range(0, reader.info.size, _PIECE_BYTES):
                data = reader.read(start, min(start + _PIECE_BYTES, reader.info.size))
                writer.write(data)
                count.add(0, len(data))
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    count.add(1, 0)
