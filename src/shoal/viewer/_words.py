"""Sizes, counts and numbers, as people read them."""

from __future__ import annotations

import math

__all__ = ["show_bytes", "show_count", "show_number"]


def show_bytes(size: float) -> str:
    """A size.

    Example:
        >>> show_bytes(512), show_bytes(20_480), show_bytes(3_000_000_000)
        ('512 B', '20.5 kB', '3.0 GB')
    """
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 1000 or unit == "TB":
            return f"{size:,.1f} {unit}"
    raise AssertionError


def show_count(number: int, word: str) -> str:
    """A number of things.

    Example:
        >>> show_count(1, "shard"), show_count(2000, "sample")
        ('1 shard', '2,000 samples')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def show_number(value: float) -> str:
    """A number in a few digits.

    Example:
        >>> show_number(1234567), show_number(0.1234567), show_number(3.0), show_number(float("nan"))
        ('1,234,567', '0.1235', '3', 'nan')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"
