"""Plain values: what JSON, msgpack and CBOR can hold, and how other values become plain."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["has_non_finite", "is_plain", "to_plain"]

_SCALARS = frozenset((str, int, float, bool, type(None), bytes))


def is_plain(value: Any) -> bool:
    """Whether a value has nothing but dicts, lists and scalars in it, so that its order is its own.

    Sets have the order of their hashes, which differ from one process to the next.
    """
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        value = value.values()
    elif kind is not list and kind is not tuple:
        return False
    # The first test is one loop in C, which is all that long lists of numbers need.
    return _SCALARS.issuperset(map(type, value)) or all(map(is_plain, value))


def has_non_finite(value: Any) -> bool:
    """Whether a plain value holds a NaN or an infinity anywhere."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(has_non_finite, value.values()))
    return isinstance(value, list | tuple) and any(map(has_non_finite, value))


def to_plain(value: Any) -> Any:
    """Give numbers and lists for NumPy scalars and arrays, and for tensors; refuse the rest with TypeError."""
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(f"a value of type {type(value).__name__} has no plain form")
    return to_list()
