"""When two samples are equal: the same types, arrays alike to the last byte, NaN equal to itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["same"]


def same(one: Any, two: Any) -> bool:
    """Whether two values are equal, arrays and what holds arrays included.

    Arrays are equal when dtype, shape and bytes are. Numbers, text and the rest are equal as Python says, but for NaN,
    which is equal to itself.

    Example:
        >>> same({"x": np.array([1.0, np.nan])}, {"x": np.array([1.0, np.nan])})
        True
        >>> same(np.zeros(3), np.zeros(3, np.float32))
        False
    """
    if one is two:
        return True
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return isinstance(one, np.ndarray) and isinstance(two, np.ndarray) and _same_array(one, two)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        alike = isinstance(one, tuple) == isinstance(two, tuple) and len(one) == len(two)
        return alike and all(map(same, one, two))
    if isinstance(one, Mapping) and isinstance(two, Mapping) and type(one) is type(two):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, float) and isinstance(two, float) and one != one:  # noqa: PLR0124 - that is NaN
        return two != two  # noqa: PLR0124
    return bool(one == two)


def _same_array(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
