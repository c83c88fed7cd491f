"""What a store was asked while one thing is opened: many look at the same few names, and each look is a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Glance", "glance_now"]

_MOST_BYTES = 8 << 20


class Glance:
    """Inside `looking`, object stores answer again what they answered before, about folders and small objects.

    So whatever is opened inside is seen as it was at one moment. It may be looked with again later, from any thread.

    Example:
        >>> from shoal.store import store_for
        >>> with Glance().looking():
        ...     store_for("memory://glance").is_folder("memory://glance")
        False
    """

    def __init__(self) -> None:
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


_NOW: ContextVar[Glance | None] = ContextVar("glance", default=None)


def glance_now() -> Glance | None:
    """The one that is entered; None where every question is asked."""
    return _NOW.get()
