"""Numbers from numbers: each key, draw and rotation of an order is a hash of its seed, its epoch and its purpose."""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

__all__ = ["Int64", "UInt32", "UInt64", "draw_below", "fractions", "key_of"]

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
UInt32 = npt.NDArray[np.uint32]

# SplitMix64 (Steele, Lea and Flood, 2014): a step, and a finish that makes each bit depend on every bit given.
_STEP = 0x9E3779B97F4A7C15
_TURNS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST = 31
_MASK = (1 << 64) - 1
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def _finished(value: int) -> int:
    for shift, factor in _TURNS:
        value = ((value ^ (value >> shift)) * factor) & _MASK
    return value ^ (value >> _LAST)


def _finish(values: UInt64) -> UInt64:
    """The same for an array, in place."""
    spare = np.empty_like(values)
    for shift, factor in _TURNS:
        np.right_shift(values, np.uint64(shift), out=spare)
        values ^= spare
        values *= np.uint64(factor)
    np.right_shift(values, np.uint64(_LAST), out=spare)
    values ^= spare
    return values


@overload
def key_of(*parts: int) -> int: ...
@overload
def key_of(*parts: int | Int64 | UInt64) -> int | UInt64: ...
def key_of(*parts: int | Int64 | UInt64) -> int | UInt64:
    """One 64-bit key from several numbers; their order matters. Arrays give an array of keys, elementwise.

    Example:
        >>> key_of(1, 2) == key_of(2, 1)
        False
        >>> key_of(7, np.arange(3))[2] == key_of(7, 2)
        np.True_
    """
    key: int | UInt64 = (len(parts) * _STEP) & _MASK
    for part in parts:
        if isinstance(part, int | np.integer) and isinstance(key, int):
            key = _finished((key * _STEP + int(part) + _STEP) & _MASK)
        else:
            key = _finish(_as_array(key) * np.uint64(_STEP) + _as_array(part) + np.uint64(_STEP))
    return key


def _as_array(part: int | Int64 | UInt64) -> UInt64:
    # One dimension at least: NumPy takes the wrapping of a lone number for a mistake, that of an array for what it is.
    if isinstance(part, int | np.integer):
        return np.array([int(part) & _MASK], np.uint64)
    return np.atleast_1d(part).astype(np.uint64)


def draw_below(count: int, key: int, numbers: Int64) -> Int64:
    """For each of ``numbers`` a draw from ``[0, count)``, each value as likely as any other.

    The draw is the upper half of the 128-bit product of a 64-bit hash and ``count``, so no value gains by a remainder.
    """
    hashes = np.asarray(key_of(key, numbers), np.uint64)
    high, low = hashes >> _HALF, hashes & _LOW
    count_high, count_low = np.uint64(count >> 32), np.uint64(count & 0xFFFFFFFF)
    across, back = high * count_low, low * count_high
    carry = ((across & _LOW) + (back & _LOW) + ((low * count_low) >> _HALF)) >> _HALF
    drawn: UInt64 = high * count_high + (across >> _HALF) + (back >> _HALF) + carry
    return drawn.astype(np.int64)


def fractions(key: int, numbers: Int64) -> npt.NDArray[np.float64]:
    """For each of ``numbers`` a draw from ``[0, 1)``, with all 53 bits a float has."""
    hashes = np.asarray(key_of(key, numbers), np.uint64)
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
