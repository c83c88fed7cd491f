"""Permutations of any length, computed per position by a Feistel network, and the hash functions that key them.

A number below ``count`` is split in two: a low half of ``r`` bits, and a high half below ``ceil(count / 2**r)``. Each
round changes one half by a hash of the other: the high one by adding (and wrapping), the low one by exclusive or. It
can be undone, whatever the hash, so different numbers stay different (a Feistel network). The few results at
or above ``count``, about one in ``sqrt(count)``, are sent through again until they fall below it (cycle walking).

Each round has a hashed key of its own. Six rounds pass the statistics in ``tests/order/test_permutation.py`` from a few
thousand numbers on. Below that the halves have too few bits and ten rounds are used, and below 64 numbers a permutation
is the stable sort of their hashes.

Halves fit 32 bits, so nearly all work is on 32-bit numbers, in place, in chunks that stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray, UInt32Array, UInt64Array
from shoal.errors import OptionError

__all__ = ["CHUNK_SIZE", "MAX_COUNT", "draw_below", "draw_fractions", "key_of", "permute", "unpermute"]

Keys: TypeAlias = "Sequence[UInt32Array | np.uint32]"
MAX_COUNT = 1 << 62
"""No order is longer: halves have to fit 32 bits, and their sums too."""
CHUNK_SIZE = 1 << 14
_MIN_NETWORK_COUNT, _MIN_FAST_COUNT = 64, 4096
"""Fewer numbers than the first are permuted by a table, fewer than the second with more rounds."""
_SLOW_ROUNDS, _FAST_ROUNDS = 10, 6
# Odd, with bits all over; good as a pair by the test of statistics, as most pairs are.
_FACTOR_1, _FACTOR_2 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_FOLD = np.uint32(16)
_HALF_BITS = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
# SplitMix64 (Steele, Lea and Flood, 2014): an increment, and a finish that makes each bit depend on every input bit.
_INCREMENT = 0x9E3779B97F4A7C15
_FINISH_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_FINISH_SHIFT = 31
_MASK = (1 << 64) - 1


def permute(positions: npt.ArrayLike, count: int | IntArray, key: int | UInt64Array) -> IntArray:
    """The number at each position of the permutation of ``[0, count)`` that ``key`` names.

    ``positions``, ``count`` and ``key`` broadcast: each position may be taken in a permutation of its own. Time and
    memory depend on how many positions are asked for, never on ``count``.

    Raises:
        OptionError: a count is not in ``[1, 2**62]``, or a position not in ``[0, count)``.

    Examples:
        >>> permute(np.arange(10), 10, key_of(7)).tolist()
        [6, 5, 7, 1, 0, 8, 3, 4, 2, 9]
        >>> permute([900_000_000_000], 10**12, key_of(7)).shape
        (1,)
    """
    return _map_values(positions, count, key, backwards=False)


def unpermute(numbers: npt.ArrayLike, count: int | IntArray, key: int | UInt64Array) -> IntArray:
    """The position at which each number stands: ``unpermute(permute(p, n, k), n, k)`` is ``p``.

    Examples:
        >>> unpermute(permute(np.arange(5), 100, 3), 100, 3).tolist()
        [0, 1, 2, 3, 4]
    """
    return _map_values(numbers, count, key, backwards=True)


def _map_values(values: npt.ArrayLike, count: int | IntArray, key: int | UInt64Array, *, backwards: bool) -> IntArray:
    given = np.asarray(values, np.int64)
    if not isinstance(count, int) or not isinstance(key, int):
        given, counts, keys = np.broadcast_arrays(given, np.asarray(count, np.int64), _to_key_array(key))
        return _map_each(given.ravel(), counts.ravel(), keys.ravel(), backwards).reshape(given.shape)
    _check_values(given, count)
    flat = given.ravel()
    if count < _MIN_NETWORK_COUNT:
        return _table(count, key, backwards)[flat].reshape(given.shape)
    return _map_by_network(flat, count, key, backwards).reshape(given.shape)


def _to_key_array(key: int | UInt64Array) -> UInt64Array:
    return np.array([key & _MASK] if isinstance(key, int) else key, np.uint64)


def _check_values(values: IntArray, counts: int | IntArray) -> None:
    if not values.size:
        return
    if np.min(counts) < 1 or np.max(counts) > MAX_COUNT:
        raise OptionError("a permutation cannot have this count", expected="1 to 2**62", found=_extremes(counts))
    if values.min() < 0 or (values >= counts).any():
        raise OptionError(
            "positions outside the permutation", expected=f"0 to {np.max(counts) - 1}", found=_extremes(values)
        )


def _extremes(values: int | IntArray) -> str:
    least, most = int(np.min(values)), int(np.max(values))
    return str(least) if least == most else f"{least} to {most}"


def _map_each(values: IntArray, counts: IntArray, keys: UInt64Array, backwards: bool) -> IntArray:
    """Map positions that have a permutation each: nearly always all by one method, and often of one count."""
    _check_values(values, counts)
    if not len(values):
        return values.copy()
    least, most = int(counts.min()), int(counts.max())
    methods = np.searchsorted((_MIN_NETWORK_COUNT, _MIN_FAST_COUNT), (least, most), side="right")
    if methods[0] == methods[1]:
        if least < _MIN_NETWORK_COUNT:
            return _map_by_tables(values, counts, keys, backwards)
        return _map_by_network(values, most if least == most else counts, keys, backwards)
    result = np.empty_like(values)
    methods = np.searchsorted((_MIN_NETWORK_COUNT, _MIN_FAST_COUNT), counts, side="right")
    for method in np.unique(methods):
        own = methods == method
        result[own] = _map_each(values[own], counts[own], keys[own], backwards)
    return result


def _table(count: int, key: int, backwards: bool) -> IntArray:
    order = np.argsort(np.asarray(key_of(key, np.arange(count))), kind="stable")
    return np.argsort(order) if backwards else order


def _map_by_tables(values: IntArray, counts: IntArray, keys: UInt64Array, backwards: bool) -> IntArray:
    """Map positions of small permutations, with one row of sorted hashes per permutation rather than per position."""
    different, number = np.unique(keys, return_inverse=True)
    codes, row = np.unique(number * _MIN_NETWORK_COUNT + counts, return_inverse=True)
    found = np.empty_like(values)
    numbers = np.arange(int(counts.max()))
    for start in range(0, len(codes), 4096):  # limits memory
        part = codes[start : start + 4096, None]
        hashes = np.asarray(key_of(different[part // _MIN_NETWORK_COUNT], numbers[None, :]))
        order = np.lexsort((hashes, numbers[None, :] >= part % _MIN_NETWORK_COUNT), axis=1)
        inside = slice(None) if len(codes) <= 4096 else (row >= start) & (row < start + len(part))
        tables = np.argsort(order, axis=1) if backwards else order
        found[inside] = tables[row[inside] - start, values[inside]]
    return found


def _round_keys(key: int | UInt64Array, count: int) -> Keys:
    """Return a 32-bit key for each round: as many 64-bit hashes as needed, halved."""
    pairs = range((_FAST_ROUNDS if count >= _MIN_FAST_COUNT else _SLOW_ROUNDS) // 2)
    if isinstance(key, int):
        whole = [key_of(key, number) for number in pairs]
        return [np.uint32(half) for pair in whole for half in (pair >> 32, pair & 0xFFFFFFFF)]
    wide = [np.asarray(key_of(key, number), np.uint64) for number in pairs]
    return [half.astype(np.uint32) for pair in wide for half in (pair >> _HALF_BITS, pair)]


def _map_by_network(values: IntArray, count: int | IntArray, key: int | UInt64Array, backwards: bool) -> IntArray:
    found = np.empty_like(values)
    any_count = count if isinstance(count, int) else int(count[0]) if len(count) else _MIN_FAST_COUNT
    keys = _round_keys(key, any_count) if isinstance(key, int) else None
    for start in range(0, len(values), CHUNK_SIZE):
        part = slice(start, start + CHUNK_SIZE)
        counts = count if isinstance(count, int) else count[part]
        own = keys or _round_keys(key if isinstance(key, int) else key[part], any_count)
        found[part] = _cycle_walk(_pass_network(values[part], counts, own, backwards), counts, own, backwards)
    return found


def _cycle_walk(found: IntArray, count: int | IntArray, keys: Keys, backwards: bool) -> IntArray:
    """Send results at or above their count through the network again, until there are none."""
    outside = np.flatnonzero(found >= count)
    while len(outside):
        again = count if isinstance(count, int) else count[outside]
        own = [key[outside] if isinstance(key, np.ndarray) else key for key in keys]
        found[outside] = _pass_network(found[outside], again, own, backwards)
        outside = outside[found[outside] >= again]
    return found


def _pass_network(values: IntArray, count: int | IntArray, keys: Keys, backwards: bool) -> IntArray:
    """One pass through the network, of numbers below ``high_count << low_bits``."""
    low_bits = (count - 1).bit_length() // 2 if isinstance(count, int) else _bit_length(count - 1) // 2
    high_count = -(-count // (1 << low_bits))
    high = np.right_shift(values, low_bits).astype(np.uint32)
    low = np.bitwise_and(values, (1 << low_bits) - 1).astype(np.uint32)
    unused_bits, size = np.asarray(32 - low_bits, np.uint32), np.asarray(high_count, np.uint32)
    hashed, spare, wide = np.empty_like(low), np.empty_like(low), np.empty(len(low), np.uint64)
    for round_number in range(len(keys) - 1, -1, -1) if backwards else range(len(keys)):
        changes_low = round_number % 2
        np.bitwise_xor(high if changes_low else low, keys[round_number], out=hashed)
        hashed *= _FACTOR_1
        np.right_shift(hashed, _FOLD, out=spare)
        hashed ^= spare
        hashed *= _FACTOR_2
        # Of the hash the upper bits are the good ones: the low half takes those, the high half scales it.
        if changes_low:
            np.right_shift(hashed, unused_bits, out=hashed)
            low ^= hashed
            continue
        np.multiply(hashed, size, out=wide, dtype=np.uint64)
        np.right_shift(wide, _HALF_BITS, out=hashed, casting="unsafe")
        # Unsigned numbers wrap at 2**32, so of the sum and the sum less `size` the smaller is the one to take.
        if backwards:
            high -= hashed
            np.add(high, size, out=spare)
        else:
            high += hashed
            np.subtract(high, size, out=spare)
        np.minimum(high, spare, out=high)
    joined = high.astype(np.int64)
    joined <<= low_bits
    joined |= low
    return joined


def _bit_length(values: IntArray) -> IntArray:
    """How many bits each number takes. A double may round a number up to a power of two; then it is one too many."""
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    bits -= (values >> np.maximum(bits - 1, 0) == 0) & (bits > 0)
    return bits


@overload
def key_of(*parts: int) -> int: ...
@overload
def key_of(*parts: int | IntArray | UInt64Array) -> int | UInt64Array: ...
def key_of(*parts: int | IntArray | UInt64Array) -> int | UInt64Array:
    """One 64-bit key from several numbers; their order matters. Arrays give an array of keys, elementwise.

    Examples:
        >>> key_of(1, 2) == key_of(2, 1)
        False
        >>> key_of(7, np.arange(3))[2] == key_of(7, 2)
        np.True_
    """
    key: int | UInt64Array = (len(parts) * _INCREMENT) & _MASK
    for part in parts:
        if isinstance(part, int | np.integer) and isinstance(key, int):
            key = (key * _INCREMENT + int(part) + _INCREMENT) & _MASK
            for shift, factor in _FINISH_ROUNDS:
                key = ((key ^ (key >> shift)) * factor) & _MASK
            key ^= key >> _FINISH_SHIFT
        else:
            key = _finish_array(_to_uint64(key) * np.uint64(_INCREMENT) + _to_uint64(part) + np.uint64(_INCREMENT))
    return key


def _finish_array(values: UInt64Array) -> UInt64Array:
    """The last part of SplitMix64, for an array of keys, in place."""
    spare = np.empty_like(values)
    for shift, factor in _FINISH_ROUNDS:
        np.right_shift(values, np.uint64(shift), out=spare)
        values ^= spare
        values *= np.uint64(factor)
    np.right_shift(values, np.uint64(_FINISH_SHIFT), out=spare)
    values ^= spare
    return values


def _to_uint64(part: int | IntArray | UInt64Array) -> UInt64Array:
    # At least one dimension: NumPy warns when a scalar overflows, but not when an array does.
    if isinstance(part, int | np.integer):
        return np.array([int(part) & _MASK], np.uint64)
    return np.atleast_1d(part).astype(np.uint64)


def draw_below(count: int, key: int, numbers: IntArray) -> IntArray:
    """For each of ``numbers`` a draw from ``[0, count)``, each value as likely as any other.

    The draw is the upper half of the 128-bit product of a 64-bit hash and ``count``, so no value gains by a remainder.
    """
    hashes = np.asarray(key_of(key, numbers), np.uint64)
    high, low = hashes >> _HALF_BITS, hashes & _LOW_HALF
    count_high, count_low = np.uint64(count >> 32), np.uint64(count & 0xFFFFFFFF)
    across, back = high * count_low, low * count_high
    carry = ((across & _LOW_HALF) + (back & _LOW_HALF) + ((low * count_low) >> _HALF_BITS)) >> _HALF_BITS
    drawn: UInt64Array = high * count_high + (across >> _HALF_BITS) + (back >> _HALF_BITS) + carry
    return drawn.astype(np.int64)


def draw_fractions(key: int, numbers: IntArray) -> npt.NDArray[np.float64]:
    """For each of ``numbers`` a draw from ``[0, 1)``, with all 53 bits a float has."""
    hashes = np.asarray(key_of(key, numbers), np.uint64)
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
