"""The index that is meant where none is named."""

from __future__ import annotations

from ._index import LocalIndex

__all__ = ["default_index", "set_default_index"]

_CHOSEN: list[LocalIndex] = []


def default_index() -> LocalIndex:
    """The index that ``load_dataset("@local/name")`` asks: the one that was set, else ``LocalIndex()``.

    Example:
        >>> from shoal.local import LocalIndex, default_index, set_default_index
        >>> set_default_index(LocalIndex("memory://"))
        >>> default_index()
        <LocalIndex memory://>
        >>> set_default_index(None)
    """
    return _CHOSEN[0] if _CHOSEN else LocalIndex()


def set_default_index(index: LocalIndex | None) -> None:
    """Let `default_index` of this process be this one; None for the usual one again."""
    _CHOSEN[:] = [] if index is None else [index]
