"""What a store was asked while one thing is opened: many look at the same few names, and each look is a request."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar

from ._concurrency import submit
from ._registry import store_for
from ._url import OBJECT_STORES, scheme_of

__all__ = ["StoreSnapshot", "glance_now", "prefetch_small_object"]

_MOST_BYTES = 8 << 20


class StoreSnapshot:
    """Inside `looking`, object stores answer again what they answered before, about folders and small objects.

    So whatever is opened inside is seen as it was at one moment. It may be looked with again later, from any thread.
    ``beside`` names the small object that is mostly asked for after a folder: it is read while the folder is listed.

    Example:
        >>> from shoal.store import store_for
        >>> with StoreSnapshot().looking():
        ...     store_for("memory://glance").is_folder("memory://glance")
        False
    """

    def __init__(self, beside: Callable[[str], str] | None = None) -> None:
        self._beside = beside
        self._begun: dict[str, Future[bytes]] = {}
        self._process = os.getpid()
        self._bytes = 0
        self.folders: dict[str, bool] = {}
        self.objects: dict[str, bytes | None] = {}
        """What is in small objects; None for one that is not there."""
        self._listed: list[tuple[str, set[str], str | None]] = []

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Have what is asked in this thread remembered, and answered from memory."""
        token = _NOW.set(self)
        try:
            yield
        finally:
            _NOW.reset(token)

    def begin(self, url: str) -> None:
        """Have a small object of an object store read on another thread, for whoever asks for it inside."""
        if scheme_of(url) in OBJECT_STORES and url not in self.objects and url not in self._begun:
            self._begun[url] = submit(functools.partial(store_for(url).read_all, url))

    def begin_beside(self, folder: str) -> None:
        """Begin to read what is mostly asked for after this folder; a name with a dot is more likely an object's."""
        if self._beside is not None and "." not in folder.rpartition("/")[2]:
            self.begin(self._beside(folder))

    def begun(self, url: str) -> Future[bytes] | None:
        """The reading that was begun, once; None where none was, or no thread has come to it yet.

        It can be waited for: it goes on in a thread of this process, as a request with a timeout.
        """
        found = self._begun.pop(url, None)
        return None if found is None or self._process != os.getpid() or found.cancel() else found

    def note_object(self, url: str, data: bytes | None) -> None:
        """Remember an object, unless it is large."""
        if self._bytes + len(data or b"") <= _MOST_BYTES:
            self._bytes += len(data or b"")
            self.objects[url] = data

    def note_list(self, folder: str, urls: list[str], *, whole: bool) -> None:
        """Remember what lies below a folder; where it is not the ``whole`` of it, up to the last of these."""
        if whole or urls == sorted(urls):
            self._listed.append((folder, set(urls), None if whole else urls[-1]))

    def is_missing(self, url: str) -> bool:
        """Whether it is known that nothing is there."""
        if url in self.objects:
            return self.objects[url] is None
        return any(
            url.startswith(f"{folder}/") and url not in urls and (last is None or url < last)
            for folder, urls, last in self._listed
        )


_NOW: ContextVar[StoreSnapshot | None] = ContextVar("glance", default=None)


def glance_now() -> StoreSnapshot | None:
    """The one that is entered; None where every question is asked."""
    return _NOW.get()


@contextmanager
def prefetch_small_object(url: str) -> Iterator[None]:
    """Read a small object of an object store on another thread, for whoever asks for it inside.

    Example:
        >>> from shoal.store import store_for
        >>> _ = store_for("memory://early/a").write_all("memory://early/a", b"0123")
        >>> with prefetch_small_object("memory://early/a"):
        ...     store_for("memory://early/a").read_all("memory://early/a")
        b'0123'
    """
    glance = glance_now() or StoreSnapshot()
    glance.begin(url)
    with glance.looking():
        yield
