"""How long decoding took, thread by thread: loaders tell it from reading, and so say what they wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["clocked", "decoding_seconds"]


class _Clock(threading.local):
    seconds = 0.0


_clock = _Clock()


def decoding_seconds() -> float:
    """Seconds that this thread has spent decoding pictures, sound and films since it began.

    Text, numbers and arrays are not counted: they take about as long as looking at the clock.

    Example:
        >>> decoding_seconds() >= 0.0
        True
    """
    return _clock.seconds


def clocked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, its time counted as decoding."""

    def run(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            _clock.seconds += time.perf_counter() - begun

    return run
