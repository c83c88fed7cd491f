"""Everyday verbs by URL: of an object, of many, of all below a folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from shoal.errors import ObjectNotFoundError, OptionError, StoreError

from ._base import FolderStore, ObjectInfo
from ._options import shown
from ._parallel import each_done
from ._route import store_for
from ._url import join_url, relative_url

__all__ = ["delete", "exists", "folders", "get", "get_many", "list_objects", "put", "put_many", "stat"]

_AT_ONCE = 32
_T = TypeVar("_T")


def get(url: str) -> bytes:
    """All bytes of an object; a large one comes in parallel parts. Raises ObjectNotFoundError.

    Example:
        >>> _ = put("memory://verbs/a.txt", b"hello")
        >>> get("memory://verbs/a.txt")
        b'hello'
    """
    return store_for(url).read_all(url)


def put(url: str, data: bytes | bytearray | memoryview) -> ObjectInfo:
    """Store an object, replacing what was there in one step.

    Example:
        >>> put("memory://verbs/b.txt", b"hello").size
        5
    """
    return store_for(url).write_all(url, bytes(data))


def stat(url: str) -> ObjectInfo:
    """Size and version of an object, without reading it. Raises ObjectNotFoundError.

    Example:
        >>> _ = put("memory://verbs/c.txt", b"hello")
        >>> stat("memory://verbs/c.txt").size
        5
    """
    return store_for(url).info(url)


def exists(url: str) -> bool:
    """Whether there is an object, or a folder with objects below it. Other failures are raised.

    Example:
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

    Example:
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

    Example:
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
    """Where the store only lists objects: what their names begin with."""
    parts = [relative_url(info.url, url).split("/") for info in objects]
    return {join_url(url, *path[:depth]) for path in parts if len(path) > depth}


def delete(url: str, *, recursive: bool = False) -> int:
    """Remove an object, or with ``recursive`` everything below a folder; return how many there were.

    Raises ObjectNotFoundError when there was nothing: a wrong name should not look like work done.

    Example:
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
    return sum(1 for _ in each_done(store.delete, found, _AT_ONCE))


def get_many(urls: Iterable[str], *, at_once: int = _AT_ONCE) -> list[bytes]:
    """All bytes of several objects, in the order of ``urls``.

    Example:
        >>> _ = put_many([("memory://many/1", b"one"), ("memory://many/2", b"two")])
        >>> get_many(["memory://many/2", "memory://many/1"])
        [b'two', b'one']
    """
    wanted = list(enumerate(urls))
    done = each_done(lambda item: get(item[1]), wanted, _checked(at_once))
    return _in_order((number, data) for (number, _), data in done)


def put_many(items: Iterable[tuple[str, bytes]], *, at_once: int = _AT_ONCE) -> list[ObjectInfo]:
    """Store several objects, given as pairs of URL and bytes, which may come from a generator.

    Example:
        >>> [info.size for info in put_many([("memory://many/3", b"three")])]
        [5]
    """
    done = each_done(lambda item: put(*item[1]), enumerate(items), _checked(at_once))
    return _in_order((number, info) for (number, _), info in done)


def _checked(at_once: int) -> int:
    if at_once < 1:
        raise OptionError("at_once is too small", expected="at least 1", found=at_once)
    return at_once


def _in_order(results: Iterable[tuple[int, _T]]) -> list[_T]:
    return [result for _, result in sorted(results, key=lambda pair: pair[0])]
