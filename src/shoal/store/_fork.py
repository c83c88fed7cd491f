"""What must not cross a fork: obstore's runtime dies in the child, and a call there would wait for ever.

The process notes that it used obstore; a child forked after that is told so at its first use. Everything else here that
holds threads or locks says how to begin anew in a child.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from shoal.errors import StoreError

__all__ = ["anew_in_child", "enter_obstore"]

_used = False
"""This process has called obstore."""
_dead = False
"""The process this one was forked from had."""
_RENEWALS: list[Callable[[], None]] = []


def enter_obstore(url: str) -> None:
    """Note that this process is about to call obstore. Raises StoreError in a child forked from one that did."""
    global _used  # noqa: PLW0603 - a fact about the process
    if _dead:
        raise StoreError(
            "object stores cannot be used in a process forked from one that used them",
            found=url,
            hint='start workers with multiprocessing.get_context("forkserver") or "spawn", '
            "or open the data only in the workers",
        )
    _used = True


def anew_in_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` in every forked child, before anything else runs there."""
    _RENEWALS.append(renew)


def _begin_child() -> None:
    global _dead  # noqa: PLW0603 - a fact about the process
    _dead = _dead or _used
    for renew in _RENEWALS:
        renew()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_child)
