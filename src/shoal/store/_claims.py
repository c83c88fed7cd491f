"""Who fetches which cells of a cached object: one thread of one process of the machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable

from ._disk import CachedObject
from ._fork import anew_in_child

__all__ = ["Claims", "is_claimed"]

_lock = threading.Lock()
_HERE: set[tuple[str, int]] = set()
"""What threads of this process are fetching: files tell it of other processes only."""


def _renew() -> None:
    """The child has none of the threads."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()
    _HERE.clear()


anew_in_child(_renew)


class Claims:
    """Cells that this thread fetches: those of ``cells``, from the first on, that nobody else does.

    With ``force`` all of them, whoever else does.
    """

    def __init__(self, copy: CachedObject, cells: Iterable[int], *, force: bool = False) -> None:
        self._copy = copy
        self.cells: list[int] = []
        self._left: set[int] = set()
        for cell in cells:
            if self._take(cell):
                self._left.add(cell)
            elif not force:
                break
            self.cells.append(cell)

    def _take(self, cell: int) -> bool:
        with _lock:
            if (self._copy.folder, cell) in _HERE:
                return False
            _HERE.add((self._copy.folder, cell))
        try:
            taken = self._copy.claim(cell)
        except OSError:  # nothing can be claimed: everybody fetches for itself
            taken = True
        if not taken:
            with _lock:
                _HERE.discard((self._copy.folder, cell))
        return taken

    def give(self, cell: int) -> None:
        """It is there, or will not be."""
        if cell in self._left:
            self._left.discard(cell)
            with contextlib.suppress(OSError):
                self._copy.unclaim(cell)
            with _lock:
                _HERE.discard((self._copy.folder, cell))

    def close(self) -> None:
        """Let go of those that are left."""
        for cell in list(self._left):
            self.give(cell)


def is_claimed(copy: CachedObject, cell: int) -> bool:
    """Whether another thread or process is fetching a cell."""
    with _lock:
        if (copy.folder, cell) in _HERE:
            return True
    try:
        return copy.is_claimed(cell)
    except OSError:
        return False
