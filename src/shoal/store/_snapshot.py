"""Snapshot of listings and small objects taken while a dataset is opened, to avoid repeated requests."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar

from ._concurrency import submit
from ._url import OBJECT_STORES, scheme_of

__all__ = ["StoreSnapshot", "current_snapshot"]

_MAX_BYTES = 8 << 20


class StoreSnapshot:
    """Cache of listings and small objects of object stores.

    While it is active, it answers repeated requests, so one open sees one state. It can be active again later, from any
    thread. ``beside`` maps a folder to the small object that is usually read next: it is read while the folder is
    listed.

    Examples:
        >>> from shoal.store import store_for
        >>> with StoreSnapshot().active():
        ...     store_for("memory://snapshot").is_folder("memory://snapshot")
        False
    """

    def __init__(self, beside: Callable[[str], str] | None = None) -> None:
        self._beside = beside
        self._begun: dict[str, Future[bytes]] = {}
        self._process = os.getpid()
        self._bytes = 0
        self.folders: dict[str, bool] = {}
        self.objects: dict[str, bytes | None] = {}
        """Bytes of small objects; None for one that does not exist."""
        self._listed: list[tuple[str, set[str], str | None]] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Remember the answers to requests of this thread, and answer repeated ones from memory."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def begin(self, url: str, read: Callable[[str], bytes]) -> None:
        """Start reading a small object of an object store on another thread, unless it is known or was begun."""
        if scheme_of(url) in OBJECT_STORES and url not in self.objects and url not in self._begun:
            self._begun[url] = submit(functools.partial(read, url))

    def prefetch_sidecar(self, folder: str, read: Callable[[str], bytes]) -> None:
        """Begin to read the object that ``beside`` names; a folder name with a dot is more likely an object's."""
        if self._beside is not None and "." not in folder.rpartition("/")[2]:
            self.begin(self._beside(folder), read)

    def begun(self, url: str) -> Future[bytes] | None:
        """Return the future of a read that has started, once; None if there is none or it has not started yet.

        Waiting for it ends: it runs on a thread of this process, as a request with a timeout.
        """
        found = self._begun.pop(url, None)
        return None if found is None or self._process != os.getpid() or found.cancel() else found

    def note_object(self, url: str, data: bytes | None) -> None:
        """Remember an object, unless it is large."""
        if self._bytes + len(data or b"") <= _MAX_BYTES:
            self._bytes += len(data or b"")
            self.objects[url] = data

    def note_list(self, folder: str, urls: list[str], *, whole: bool) -> None:
        """Remember the objects below a folder; unless it is the ``whole`` listing, only up to the last of these."""
        if whole or urls == sorted(urls):
            self._listed.append((folder, set(urls), None if whole else urls[-1]))

    def is_missing(self, url: str) -> bool:
        """Whether the object is known not to exist."""
        if url in self.objects:
            return self.objects[url] is None
        return any(
            url.startswith(f"{folder}/") and url not in urls and (last is None or url < last)
            for folder, urls, last in self._listed
        )


_current: ContextVar[StoreSnapshot | None] = ContextVar("snapshot", default=None)


def current_snapshot() -> StoreSnapshot | None:
    """Return the snapshot that is active in this thread, or None."""
    return _current.get()
