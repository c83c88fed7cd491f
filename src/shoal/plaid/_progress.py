"""A bar on stderr, as PLAID's own backends show it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

__all__ = ["Bar", "progress"]


class Bar(Protocol):
    """What counts along."""

    def update(self, count: int) -> object: ...


class _Silent:
    def update(self, count: int) -> None:
        pass


@contextlib.contextmanager
def progress(split: str, total: int | None, verbose: bool) -> Iterator[Bar]:
    """A bar for one split, or none."""
    if not verbose:
        yield _Silent()
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    bar: Any
    with tqdm(total=total, desc=f"Writing {split} split") as bar:
        yield bar
