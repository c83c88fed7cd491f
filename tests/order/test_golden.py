"""Sequences pinned for ever: a saved state must mean the same samples in every later version, on every machine.

A change that breaks one is a new order with a new name, never a new expectation: checkpoints rely on these.
"""

from __future__ import annotations

import numpy as np
import pytest

from shoal.order import (
    BlockShuffle,
    GlobalShuffle,
    Mix,
    Sequential,
    State,
    Weighted,
    WithReplacement,
    key_of,
    permute,
)

HUGE = 10**12


def test_keys():
    assert [key_of(), key_of(0), key_of(1, 2, 3), key_of(-1)] == [
        0,
        15187186396658532337,
        4029466726873740126,
        5387019882796461322,
    ]


@pytest.mark.parametrize(
    "positions, count, expected",
    [
        (range(12), 12, [5, 7, 11, 4, 1, 6, 8, 9, 2, 10, 3, 0]),
        (range(12), 100, [56, 87, 16, 76, 89, 0, 85, 69, 81, 75, 43, 53]),
        (range(8), 5000, [3614, 3956, 4789, 3920, 2405, 3359, 3021, 3635]),
        ([0, 1, 2, 9 * 10**11], HUGE, [910283646393, 615917433327, 11365190182, 934999497849]),
        ([0, 1, 2**61], 2**62, [4337215172760454245, 3075518349700848560, 2962357428438556019]),
    ],
)
def test_permutations(positions, count, expected):
    assert permute(positions, count, key_of(1)).tolist() == expected
    keys = np.full(len(expected), key_of(1), np.uint64)
    assert permute(positions, np.full(len(expected), count), keys).tolist() == expected


@pytest.mark.parametrize(
    "order, epoch, positions, expected",
    [
        (GlobalShuffle(1000, 7), 0, range(8), [978, 686, 68, 675, 319, 427, 104, 134]),
        (GlobalShuffle(1000, 7), 1, range(8), [250, 159, 51, 798, 446, 207, 961, 876]),
        (BlockShuffle(1000, 7, 10, 3, 6), 0, range(12), [705, 977, 587, 95, 764, 661, 498, 836, 580, 91, 766, 664]),
        (BlockShuffle(1000, 7, 10, 3, 6), 5, range(988, 1000), [583, 661, 338, 912, 44, 573, 856, 91, 92, 93, 94, 95]),
        (
            BlockShuffle(HUGE, 7, 1000, 8, 192),
            3,
            [0, 1, 2, 9 * 10**11, HUGE - 1],
            [537336803559, 287408649810, 418345855871, 369206112807, 687917836165],
        ),
        (WithReplacement(1000, 7, 50), 2, range(8), [64, 770, 918, 155, 597, 937, 874, 860]),
        (Weighted([1, 2, 3, 4], 7, 50), 2, range(12), [2, 3, 1, 0, 3, 3, 2, 2, 2, 2, 2, 3]),
    ],
)
def test_orders(order, epoch, positions, expected):
    assert order.samples(positions, epoch).tolist() == expected


@pytest.mark.parametrize(
    "order, expected",
    [
        (Sequential(5), "7e5d8456b3d26ef7"),
        (GlobalShuffle(1000, 7), "5d4fe2142202422e"),
        (BlockShuffle(1000, 7, 10, 3, 6), "88e88db773bfbd2b"),
        (WithReplacement(1000, 7, 50), "997610a95329bc18"),
        (Weighted([1, 2, 3, 4], 7, 50), "3efa6230ea1d8367"),
    ],
)
def test_fingerprints(order, expected):
    assert order.fingerprint() == expected


def test_mixtures():
    mix = Mix((10, 10, 10), (0.5, 0.3, 0.2), seed=7, stages=((10, (1, 1, 0)),))
    assert mix.at(range(16))[0].tolist() == [0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 1, 0, 1, 0, 1]
    assert mix.at(range(16))[1].tolist() == [0, 0, 1, 0, 2, 1, 3, 1, 4, 2, 5, 3, 6, 4, 7, 5]
    assert (mix.fingerprint(), mix.seed_of(1)) == ("8ce5f6067b3b82f1", 2651159418025566179)


def test_a_saved_state():
    saved = {
        "version": 1,
        "fingerprint": "5d4fe2142202422e",
        "settings": {"order": "global", "count": 1000, "seed": 7},
        "epoch": 2,
        "position": 640,
        "start": 0,
        "end": 1000,
        "global_batch": 64,
        "steps": 10,
    }
    state = State.from_dict(saved)
    assert state.to_dict() == saved
    plan = state.plan(1000, batch_size=64)
    assert plan.at(0).samples(GlobalShuffle(1000, 7))[:4].tolist() == [711, 699, 957, 387]
