"""The shuffle by blocks: lanes and windows, how many lanes there are, and how well it mixes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.order.strategies import block_shuffles

from shoal.order import (
    BlockShuffle,
    GlobalShuffle,
    Sequential,
    choose_lanes,
    mixing_quality,
    overfetch,
    shuffle_order,
)


@given(block_shuffles(), st.integers(0, 3))
def test_a_lane_reads_a_window_of_blocks_at_a_time(order, epoch):
    """What bounds memory: a body block is in one window of one lane, so never more than lanes * window are in use."""
    lanes, lane_blocks = order.lane_count, order.count // order.block_samples // order.lane_count
    lane = order.lane(np.arange(order.count))
    assert (lane[lane >= 0] == np.arange(order.count)[lane >= 0] % lanes).all()
    assert (lane < 0).sum() < lanes
    tail_blocks = lanes + 1
    for number in range(lanes):
        at = np.flatnonzero(lane == number)
        blocks = order.blocks(at, epoch)
        span = [(found := np.flatnonzero(blocks == block)).max() - found.min() for block in np.unique(blocks)]
        longest = order.window * order.block_samples + (
            order.block_samples * tail_blocks if lane_blocks else order.count
        )
        assert max(span, default=0) <= longest
    if lane_blocks:  # a full block of the body is read by one lane
        owners = {}
        for block, number in zip(order.blocks(np.arange(order.count), epoch).tolist(), lane.tolist(), strict=True):
            owners.setdefault(block, set()).add(number)
        assert sum(len(own) == 1 for own in owners.values()) >= lane_blocks * lanes


def test_lanes_come_to_new_windows_in_turn():
    """So reads are spread out: no stretch of positions needs many more new blocks than another."""
    order = BlockShuffle(4_000_000, seed=7, block_samples=50, window=8, lanes=192)
    _, first_met = np.unique(order.blocks(np.arange(2_000_000)), return_index=True)
    stretch = 192 * 50  # one block of each lane
    new = np.bincount(first_met // stretch)[1:-8]
    assert abs(new - 192).max() < 40
    assert np.bincount(first_met // stretch)[0] < 192 * 8 * 0.7  # and the first one does not need all windows whole


def test_a_rank_reads_its_own_blocks_only_when_it_divides_the_lanes():
    order = BlockShuffle(100_000, seed=5, block_samples=97, window=4, lanes=48)
    for world_size in (1, 2, 8, 48, 5, 7, 64, 3):
        reads = sum(len(np.unique(order.blocks(np.arange(rank, 100_000, world_size)))) for rank in range(world_size))
        factor = overfetch(order.lane_count, world_size)
        assert factor - 0.5 < reads / (100_000 / 97) < factor * 1.35


def test_samples_of_a_block_part_even_in_the_smallest_window():
    order = BlockShuffle(10_000, seed=1, block_samples=50, window=1, lanes=1)
    found = order.samples(np.arange(10_000))
    assert (np.diff(found) == 1).mean() < 0.05


@given(st.integers(1, 10**6), st.integers(0, 99))
def test_one_block_a_sample_and_one_lane_need_no_more_than_64_bits(count, seed):
    order = BlockShuffle(2**62 - count, seed, block_samples=1, window=8, lanes=1)
    found = order.samples(np.arange(order.count - 50, order.count))
    assert ((found >= 0) & (found < order.count)).all()


@given(
    st.integers(0, 10**7),
    st.integers(1, 500),
    st.integers(1, 1 << 21),
    st.integers(1, 16),
    st.sampled_from([192, 720, 7]),
)
def test_lanes_are_halved_until_they_fit(count, block_samples, block_bytes, window, lanes):
    found = choose_lanes(count, block_samples, block_bytes, window, lanes)

    def fits(number):
        return number * 4 <= count // block_samples and number * window * block_bytes <= 256 << 20

    assert found == 1 or fits(found)
    halvings = [lanes >> times for times in range(lanes.bit_length())]
    assert found in halvings
    assert not any(fits(number) for number in halvings[: halvings.index(found)])


def test_what_fits_the_window_is_shuffled_whole():
    assert shuffle_order(1000, 1, mean_bytes=1000) == GlobalShuffle(1000, 1)
    assert shuffle_order(1000, 1, block_samples=10, window=100, window_bytes=1, mean_bytes=10) == GlobalShuffle(1000, 1)
    found = shuffle_order(1000, 1, block_samples=10, window=2, window_bytes=1000, mean_bytes=10)
    assert found == BlockShuffle(1000, 1, block_samples=10, window=2, lanes=3)


def test_a_block_in_bytes_is_divided_once():
    found = shuffle_order(10**9, 1, block_bytes=1 << 20, mean_bytes=20_000)
    assert (found.block_samples, found.lanes) == (52, 48)
    assert shuffle_order(10**9, 1, block_bytes=1000, mean_bytes=20_000).block_samples == 1


def test_quality_is_nothing_in_order_and_one_at_random():
    count, shard = 200_000, 2000
    assert mixing_quality(Sequential(count), shard) < 0.1
    assert abs(mixing_quality(GlobalShuffle(count, 1), shard) - 1) < 0.01
    shuffled = np.random.default_rng(0).permutation(count)
    assert abs(mixing_quality(shuffled, shard) - 1) < 0.01
    assert abs(mixing_quality(shuffled, np.arange(shard, count + 1, shard)) - 1) < 0.01
    assert abs(mixing_quality(shuffled, lambda samples: samples // shard) - 1) < 0.01


def test_quality_grows_with_the_window():
    count, shard = 200_000, 2000
    found = [
        mixing_quality(BlockShuffle(count, 1, block_samples=500, window=window, lanes=1), shard)
        for window in (1, 4, 16, 64)
    ]
    assert found == sorted(found)
    assert found[0] < 0.5 < 0.95 < found[-1]


def test_quality_of_a_huge_order_is_as_cheap():
    order = BlockShuffle(10**12, 1, block_samples=100, window=4, lanes=192)
    assert abs(mixing_quality(order, 10_000, pairs=4096) - 1) < 0.05
