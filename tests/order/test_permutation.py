"""permute: a bijection for every count and key, undone by its inverse, and by every statistic as good as chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import OptionError
from shoal.order import key_of, permute, unpermute

COUNTS = st.one_of(st.integers(1, 70), st.integers(1, 9000))
KEYS = st.integers(0, 2**64 - 1)
HUGE = st.integers(1, 2**62)


@given(COUNTS, KEYS)
def test_each_number_stands_once(count, key):
    found = permute(np.arange(count), count, key)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(count))


@pytest.mark.parametrize("count", [*range(1, 70), 127, 128, 129, 255, 256, 257, 4095, 4096, 4097, 65_537, 1 << 20])
def test_each_number_stands_once_around_every_edge(count):
    assert np.array_equal(np.sort(permute(np.arange(count), count, key_of(count))), np.arange(count))


@given(HUGE, KEYS, st.data())
def test_the_inverse_undoes_it_at_any_size(count, key, data):
    positions = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=20)), np.int64)
    found = permute(positions, count, key)
    assert ((found >= 0) & (found < count)).all()
    assert np.array_equal(unpermute(found, count, key), positions)


@given(st.lists(st.tuples(st.one_of(COUNTS, HUGE), KEYS), min_size=1, max_size=30), st.integers(0, 2**62))
def test_many_permutations_at_once_are_each_alone(drawn, number):
    counts = np.array([count for count, _ in drawn])
    keys = np.array([key for _, key in drawn], np.uint64)
    positions = number % counts
    alone = [int(permute([p], c, k)[0]) for p, (c, k) in zip(positions.tolist(), drawn, strict=True)]
    assert permute(positions, counts, keys).tolist() == alone
    assert unpermute(alone, counts, keys).tolist() == positions.tolist()


def test_shapes_broadcast():
    found = permute(np.arange(100)[None, :], 100, np.array([[1], [2]], np.uint64))
    assert found.shape == (2, 100)
    assert found[1].tolist() == permute(np.arange(100), 100, 2).tolist()
    assert permute([], 10, 1).shape == (0,)
    assert permute(np.arange(4).reshape(2, 2), 4, 1).shape == (2, 2)


def test_pieces_do_not_show():
    positions = np.arange(40_000)
    assert permute(positions, 10**9, 5)[20_000:].tolist() == permute(positions[20_000:], 10**9, 5).tolist()


@given(st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=4), st.integers(0, 2**63 - 1))
def test_a_key_of_arrays_is_the_key_of_each(parts, last):
    found = key_of(*parts, np.array([last, 0]))
    assert [int(key) for key in found] == [key_of(*parts, last), key_of(*parts, 0)]
    assert key_of(np.int64(last)) == key_of(last)


@pytest.mark.parametrize(
    "positions, count, found",
    [([0], 0, "0"), ([0], 2**62 + 1, str(2**62 + 1)), ([10], 10, "10"), ([-1], 10, "-1"), ([0, 12], 10, "0 to 12")],
)
def test_what_is_outside_is_refused(positions, count, found):
    with pytest.raises(OptionError) as caught:
        permute(positions, count, 1)
    assert caught.value.found == found
    with pytest.raises(OptionError):
        permute(positions, np.array([count]), 1)


# -------------------------------------------------------------------------------------------------------- statistics
#
# Each test adds up (seen - expected)**2 / expected over the cells of a table and says how many standard deviations the
# sum is from where chance would have it. The keys are fixed, so a result is always the same; five is far out for a few
# hundred such sums, and what broke earlier networks was 10 to 800.

FAR_OUT = 5.0


def deviations(table: np.ndarray, expected: float, free: int) -> float:
    return float((((table - expected) ** 2 / expected).sum() - free) / np.sqrt(2 * free))


def many(count: int, permutations: int, positions: tuple[int, ...] | None = None) -> np.ndarray:
    """One row for each of so many permutations: what stands at some positions, or at all."""
    keys = np.asarray(key_of(0, 1, np.arange(permutations)))
    return permute(np.arange(count) if positions is None else np.array(positions), count, keys[:, None])


@pytest.mark.parametrize("count", [2, 3, 7, 30, 63, 64, 65, 100, 128, 129, 200, 257])
def test_every_number_is_as_likely_at_every_position(count):
    found = many(count, 10_000)
    table = np.stack([np.bincount(found[:, at], minlength=count) for at in range(count)])
    assert abs(deviations(table, 10_000 / count, (count - 1) ** 2)) < FAR_OUT


@pytest.mark.parametrize("count", [30, 63, 64, 65, 96, 128, 129, 200, 256, 257, 500, 513, 1024, 3000, 4095, 4096, 4097])
def test_numbers_a_few_positions_apart_are_unrelated(count):
    found = many(count, max(300, 1_000_000 // count))
    half = 1 << ((count - 1).bit_length() // 2)  # apart by this, two positions differ in one half of the network only
    for apart in (1, 2, half // 2, half, 2 * half):
        apart_by = (found[:, apart:] - found[:, :-apart]) % count
        table = np.bincount(apart_by.ravel(), minlength=count)[1:]
        assert abs(deviations(table, apart_by.size / (count - 1), count - 2)) < FAR_OUT, apart


@pytest.mark.parametrize("count", [20, 64, 100])
@pytest.mark.parametrize("pair", [(0, 1), (0, 8), (3, 19)])
def test_two_positions_take_every_pair_as_often(count, pair):
    found = many(count, 100_000, pair)
    table = np.bincount(found[:, 0] * count + found[:, 1], minlength=count**2).reshape(count, count)
    off = table[~np.eye(count, dtype=bool)]
    assert abs(deviations(off, 100_000 / (count * (count - 1)), count * (count - 1) - 1)) < FAR_OUT


@pytest.mark.parametrize("count", [5000, 100_003, 1 << 20, 3_000_007, 10**9, 10**12, 2**52 + 3, 2**62])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_long_run_of_a_large_permutation_looks_random(count, seed):
    size, bins = min(count, 1 << 18), 32
    start = 0 if count <= size else (count - size) // (1 + seed)
    found = permute(np.arange(start, start + size), count, key_of(seed, 7))
    binned = (found.astype(np.float64) / count * bins).astype(np.int64).clip(0, bins - 1)
    by_position = np.arange(size) * bins // size
    tables = [np.bincount(by_position * bins + binned, minlength=bins**2)]
    tables += [np.bincount(binned[:-lag] * bins + binned[lag:], minlength=bins**2) for lag in (1, 2, 16, 64, 1024)]
    tables.append(np.bincount(found[:-1] % bins * bins + found[1:] % bins, minlength=bins**2))
    # A permutation spreads more evenly than draws would, so far below is no fault; far above is.
    assert max(deviations(table, table.sum() / bins**2, bins**2 - 1) for table in tables) < FAR_OUT
    rises = int((found[1:] > found[:-1]).sum())
    assert abs(rises - (size - 1) / 2) / np.sqrt((size + 1) / 12) < FAR_OUT
