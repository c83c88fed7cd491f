"""A permutation as arithmetic: a Feistel network, and the hashes that key it.

A number below ``count`` is cut in two: a low half of ``r`` bits, and a high half below ``ceil(count / 2**r)``. The
halves take turns: one is moved by a hash of the other, the high one by adding (and wrapping), the low one by exclusive
or. Each turn can be undone, whatever the hash, so different numbers stay different (a Feistel network). The few results
at or above ``count``, about one in ``sqrt(count)``, are sent through again until they fall below it (cycle walking).

Each turn has a hashed key of its own. Six turns pass the statistics in ``tests/order/test_permute.py`` from some
thousand numbers on; below that the halves have too few bits and ten are taken, and below 64 numbers a permutation is
the stable sort of their hashes.

Halves fit 32 bits, so nearly all work is on 32-bit numbers, in place, in pieces that stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError

__all__ = ["MOST", "PIECE", "Int64", "draw_below", "fractions", "key_of", "permute", "unpermute"]

Keys: TypeAlias = "Sequence[UInt32 | np.uint32]"
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
UInt32 = npt.NDArray[np.uint32]
MOST = 1 << 62
"""No order is longer: halves have to fit 32 bits, and their sums too."""
SMALL, LARGE = 64, 4096
MANY_TURNS, TURNS = 10, 6
PIECE = 1 << 14
# Odd, with bits all over; found good as a pair by the test of statistics, as most pairs are.
_FACTOR_1, _FACTOR_2 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_FOLD = np.uint32(16)
_WORD = np.uint64(32)
# SplitMix64 (Steele, Lea and Flood, 2014): a step, and a finish that makes each bit depend on every bit given.
_STEP = 0x9E3779B97F4A7C15
_TURNS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST = 31
_MASK = (1 << 64) - 1
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def permute(positions: npt.ArrayLike, count: int | Int64, key: int | UInt64) -> Int64:
    """The number at each position of the permutation of ``[0, count)`` that ``key`` names.

    ``positions``, ``count`` and ``key`` broadcast: each position may be taken in a permutation of its own. Time and
    memory depend on how many positions are asked for, never on ``count``.

    Raises:
        OptionError: a count is not in ``[1, 2**62]``, or a position not in ``[0, count)``.

    Example:
        >>> permute(np.arange(10), 10, key_of(7)).tolist()
        [6, 5, 7, 1, 0, 8, 3, 4, 2, 9]
        >>> permute([900_000_000_000], 10**12, key_of(7)).shape
        (1,)
    """
    return _mapped(positions, count, key, backwards=False)


def unpermute(numbers: npt.ArrayLike, count: int | Int64, key: int | UInt64) -> Int64:
    """The position at which each number stands: ``unpermute(permute(p, n, k), n, k)`` is ``p``.

    Example:
        >>> unpermute(permute(np.arange(5), 100, 3), 100, 3).tolist()
        [0, 1, 2, 3, 4]
    """
    return _mapped(numbers, count, key, backwards=True)


def _mapped(values: npt.ArrayLike, count: int | Int64, key: int | UInt64, *, backwards: bool) -> Int64:
    given = np.asarray(values, np.int64)
    if not isinstance(count, int) or not isinstance(key, int):
        given, counts, keys = np.broadcast_arrays(given, np.asarray(count, np.int64), _key_array(key))
        return _each_its_own(given.ravel(), counts.ravel(), keys.ravel(), backwards).reshape(given.shape)
    _check(given, count)
    flat = given.ravel()
    if count < SMALL:
        return _table(count, key, backwards)[flat].reshape(given.shape)
    return _walked(flat, count, key, backwards).reshape(given.shape)


def _key_array(key: int | UInt64) -> UInt64:
    return np.array([key & 0xFFFFFFFFFFFFFFFF] if isinstance(key, int) else key, np.uint64)


def _check(values: Int64, counts: int | Int64) -> None:
    if not values.size:
        return
    if np.min(counts) < 1 or np.max(counts) > MOST:
        raise OptionError("a permutation cannot have this count", expected="1 to 2**62", found=_extremes(counts))
    if values.min() < 0 or (values >= counts).any():
        raise OptionError(
            "positions outside the permutation", expected=f"0 to {np.max(counts) - 1}", found=_extremes(values)
        )


def _extremes(values: int | Int64) -> str:
    least, most = int(np.min(values)), int(np.max(values))
    return str(least) if least == most else f"{least} to {most}"


def _each_its_own(values: Int64, counts: Int64, keys: UInt64, backwards: bool) -> Int64:
    """Positions in permutations of their own: nearly always of one kind, and often of one count."""
    _check(values, counts)
    if not len(values):
        return values.copy()
    least, most = int(counts.min()), int(counts.max())
    if _kind(least) == _kind(most):
        if least < SMALL:
            return _from_tables(values, counts, keys, backwards)
        return _walked(values, most if least == most else counts, keys, backwards)
    found = np.empty_like(values)
    kinds = np.searchsorted((SMALL, LARGE), counts, side="right")
    for kind in np.unique(kinds):
        own = kinds == kind
        found[own] = _each_its_own(values[own], counts[own], keys[own], backwards)
    return found


def _kind(count: int) -> int:
    return (count >= SMALL) + (count >= LARGE)


# ------------------------------------------------------------------------------------------------------- few numbers


def _table(count: int, key: int, backwards: bool) -> Int64:
    order = np.argsort(np.asarray(key_of(key, np.arange(count))), kind="stable")
    return np.argsort(order) if backwards else order


def _from_tables(values: Int64, counts: Int64, keys: UInt64, backwards: bool) -> Int64:
    """One row of sorted hashes for each permutation met, rather than for each position."""
    different, number = np.unique(keys, return_inverse=True)
    codes, row = np.unique(number * SMALL + counts, return_inverse=True)
    found = np.empty_like(values)
    numbers = np.arange(int(counts.max()))
    for start in range(0, len(codes), 4096):  # a bound on memory
        part = codes[start : start + 4096, None]
        hashes = np.asarray(key_of(different[part // SMALL], numbers[None, :]))
        order = np.lexsort((hashes, numbers[None, :] >= part % SMALL), axis=1)
        inside = slice(None) if len(codes) <= 4096 else (row >= start) & (row < start + len(part))
        tables = np.argsort(order, axis=1) if backwards else order
        found[inside] = tables[row[inside] - start, values[inside]]
    return found


# ------------------------------------------------------------------------------------------------------- the network


def _turn_keys(key: int | UInt64, count: int) -> Keys:
    """A key for each turn: as many hashes of 64 bits as needed, halved."""
    pairs = range((TURNS if count >= LARGE else MANY_TURNS) // 2)
    if isinstance(key, int):
        whole = [key_of(key, number) for number in pairs]
        return [np.uint32(half) for pair in whole for half in (pair >> 32, pair & 0xFFFFFFFF)]
    wide = [np.asarray(key_of(key, number), np.uint64) for number in pairs]
    return [half.astype(np.uint32) for pair in wide for half in (pair >> _WORD, pair)]


def _walked(values: Int64, count: int | Int64, key: int | UInt64, backwards: bool) -> Int64:
    found = np.empty_like(values)
    any_count = count if isinstance(count, int) else int(count[0]) if len(count) else LARGE
    keys = _turn_keys(key, any_count) if isinstance(key, int) else None
    for start in range(0, len(values), PIECE):
        part = slice(start, start + PIECE)
        counts = count if isinstance(count, int) else count[part]
        own = keys or _turn_keys(key if isinstance(key, int) else key[part], any_count)
        found[part] = _walk(_through(values[part], counts, own, backwards), counts, own, backwards)
    return found


def _walk(found: Int64, count: int | Int64, keys: Keys, backwards: bool) -> Int64:
    """Send what fell at or above its count through again, until nothing did."""
    outside = np.flatnonzero(found >= count)
    while len(outside):
        again = count if isinstance(count, int) else count[outside]
        own = [key[outside] if isinstance(key, np.ndarray) else key for key in keys]
        found[outside] = _through(found[outside], again, own, backwards)
        outside = outside[found[outside] >= again]
    return found


def _through(values: Int64, count: int | Int64, keys: Keys, backwards: bool) -> Int64:
    """One pass through the network, of numbers below ``high_count << low_bits``."""
    low_bits, high_count = _halves(count)
    high = np.right_shift(values, low_bits).astype(np.uint32)
    low = np.bitwise_and(values, (1 << low_bits) - 1).astype(np.uint32)
    unused_bits, size = np.asarray(32 - low_bits, np.uint32), np.asarray(high_count, np.uint32)
    turned, spare, wide = np.empty_like(low), np.empty_like(low), np.empty(len(low), np.uint64)
    for turn in range(len(keys) - 1, -1, -1) if backwards else range(len(keys)):
        if turn % 2:
            _hash_half(high, keys[turn], turned, spare)
            np.right_shift(turned, unused_bits, out=turned)
            low ^= turned
        else:
            _hash_half(low, keys[turn], turned, spare)
            np.multiply(turned, size, out=wide, dtype=np.uint64)
            np.right_shift(wide, _WORD, out=turned, casting="unsafe")
            _move(high, turned, size, spare, backwards)
    joined = high.astype(np.int64)
    joined <<= low_bits
    joined |= low
    return joined


def _halves(count: int | Int64) -> tuple[int | Int64, int | Int64]:
    """How many bits the low half has, and how many values the high half."""
    low_bits = (count - 1).bit_length() // 2 if isinstance(count, int) else _bit_length(count - 1) // 2
    return low_bits, -(-count // (1 << low_bits))


def _bit_length(values: Int64) -> Int64:
    """How many bits each number takes. A double may round a number up to a power of two; then it is one too many."""
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    bits -= (values >> np.maximum(bits - 1, 0) == 0) & (bits > 0)
    return bits


def _hash_half(half: UInt32, key: UInt32 | np.uint32, out: UInt32, spare: UInt32) -> None:
    """A hash whose upper bits are the good ones: the low half takes those, the high half a share by multiplication."""
    np.bitwise_xor(half, key, out=out)
    out *= _FACTOR_1
    np.right_shift(out, _FOLD, out=spare)
    out ^= spare
    out *= _FACTOR_2


def _move(high: UInt32, by: UInt32, size: UInt32, spare: UInt32, backwards: bool) -> None:
    """Add to the high half, or take from it, and wrap at ``size``.

    Numbers without a sign wrap at 2**32 by themselves, so of the sum and the sum less ``size`` the smaller is right.
    """
    if backwards:
        high -= by
        np.add(high, size, out=spare)
    else:
        high += by
        np.subtract(high, size, out=spare)
    np.minimum(high, spare, out=high)


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
