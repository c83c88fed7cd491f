"""A call that must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["refused"]


def refused(kind: type[Exception] | tuple[type[Exception], ...], act: Callable[..., Any], *args: Any) -> Exception:
    """The error that a call raises; no error, or another one, fails the test."""
    try:
        act(*args)
    except kind as error:
        return error
    raise AssertionError(f"{act} of {args} raised no {kind}")
