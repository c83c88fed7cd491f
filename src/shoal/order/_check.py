"""Settings are checked when a value is made, so that nothing later has to doubt them."""

from __future__ import annotations

import numpy as np

from shoal.errors import OptionError, PositionError
from shoal.order._hash import Int64
from shoal.order._permute import MOST

__all__ = ["as_positions", "check_count", "check_positions", "check_seed", "check_whole"]


def check_whole(name: str, value: object, least: int, most: int = MOST) -> None:
    """A whole number from ``least`` to ``most``; ``True`` and NumPy's integers are not taken for one."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        expected = f"a whole number from {least}" + ("" if most == MOST else f" to {most}")
        raise OptionError(f"{name} cannot be this", expected=expected, found=repr(value))


def check_count(value: object) -> None:
    """How many samples there are. None is allowed: a view may be empty, and has no positions to ask for."""
    check_whole("count", value, 0)


def check_seed(value: object) -> None:
    """Any whole number of 64 bits, with or without a sign."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 64:
        raise OptionError("seed cannot be this", expected="a whole number of 64 bits", found=repr(value))


def check_positions(positions: Int64, length: int) -> None:
    """Positions lie in ``[0, length)``."""
    if positions.size and (positions.min() < 0 or positions.max() >= length):
        found = f"{positions.min()} to {positions.max()}"
        raise PositionError("positions outside the epoch", expected=f"0 to {length - 1}", found=found)


def as_positions(positions: object) -> Int64:
    """Positions as an array of 64-bit numbers."""
    return np.asarray(positions, np.int64)
