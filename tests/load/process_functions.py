"""Functions that tests send to other processes, which can only import them. Not a test module."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np


class Odd(Exception):  # noqa: N818 - a name in a test
    """An error that does not survive a copy: its constructor wants more than its message."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def fails_at_seven(sample: dict[str, Any]) -> int:
    if sample["cls"] == 7:
        raise LookupError("seven")
    return int(sample["cls"])


def raises_odd(value: int) -> int:
    if value == 3:
        raise Odd(1, 2)
    return value


def gives_a_lock(value: int) -> Any:
    return threading.Lock() if value == 3 else value


def dies(value: int) -> int:
    if value == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def doubled(values: list[int]) -> list[int]:
    return [2 * value for value in values]


def pid(value: int) -> tuple[int, int]:
    return value, os.getpid()


def noisy(value: int, rng: np.random.Generator) -> float:
    return value + round(float(rng.random()), 9)
