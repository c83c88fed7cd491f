"""Orders: each sample once an epoch whatever the geometry, another order each epoch and seed, any position at once."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.order.strategies import block_shuffles

from shoal.errors import OptionError, PositionError
from shoal.order import (
    BlockShuffle,
    GlobalShuffle,
    Order,
    Sequential,
    Weighted,
    WithReplacement,
    choose_lanes,
    line,
    mixing_quality,
    order_from_json,
    overfetch,
    samples_of,
    shuffle_order,
)

WHOLE = st.one_of(
    block_shuffles(),
    st.builds(GlobalShuffle, st.integers(0, 3000), st.integers(-5, 1000)),
    st.builds(Sequential, st.integers(0, 3000)),
)


@given(WHOLE, st.integers(0, 5))
def test_each_epoch_holds_each_sample_once(order, epoch):
    found = order.samples(np.arange(order.length), epoch)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(order.count))


@given(WHOLE, st.integers(0, 3), st.randoms(use_true_random=False))
def test_positions_are_independent_of_each_other(order, epoch, random):
    everything = order.samples(np.arange(order.length), epoch)
    some = [random.randrange(order.length) for _ in range(20)] if order.length else []
    assert order.samples(some, epoch).tolist() == [int(everything[at]) for at in some]


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: GlobalShuffle(10_000, seed),
        lambda seed: BlockShuffle(10_000, seed, block_samples=50, window=4, lanes=12),
        lambda seed: WithReplacement(10_000, seed),
        lambda seed: Weighted(np.ones(10_000), seed),
    ],
)
def test_a_seed_fixes_the_order_and_another_changes_it(make):
    """As seed 004 asks: 10,000 objects; two runs with one seed agree, with two seeds they do not."""
    first, again, other = (make(seed).samples(np.arange(10_000)) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert (first == other).mean() < 0.01
    assert (first == make(1).samples(np.arange(10_000), epoch=1)).mean() < 0.01


@given(WHOLE.filter(lambda order: order.count > 0), st.integers(0, 3))
def test_the_line_is_epoch_after_epoch(order, first):
    places = np.arange(first * order.length, (first + 2) * order.length)
    expected = [*order.samples(range(order.length), first), *order.samples(range(order.length), first + 1)]
    assert line(order, places).tolist() == expected


def test_the_line_has_no_position_below_zero_and_none_at_all_without_samples():
    for order, at in ((Sequential(3), -1), (Sequential(0), 0)):
        with pytest.raises(PositionError):
            line(order, [at])
    assert line(Sequential(0), []).tolist() == samples_of(Sequential(0), [], []).tolist() == []


@pytest.mark.parametrize("order", [GlobalShuffle(10**12, 3), BlockShuffle(10**12, 3, 1000, 8, 192), Sequential(10**12)])
def test_position_nine_hundred_billion_costs_what_the_first_does(order):
    at = np.arange(9 * 10**11, 9 * 10**11 + 256)
    order.samples(at, 3)
    tracemalloc.start()
    found = order.samples(at, 3)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(found.tolist())) == 256
    assert most < 200_000
    assert order.samples([10**12 - 1]).shape == (1,)


def test_draws_are_even():
    drawn = np.bincount(WithReplacement(100, seed=1, draws=10**6).samples(np.arange(10**6)), minlength=100)
    assert ((drawn - 10**4) ** 2 / 10**4).sum() < 99 + 5 * np.sqrt(2 * 99)
    far = WithReplacement(2**61 + 12_345, seed=1, draws=1000).samples(np.arange(1000)) / (2**61)
    assert 0.45 < far.mean() < 0.55


def test_weighted_draws_follow_the_weights():
    weights = np.array([0.0, 1, 2, 3, 0, 4, 0])
    drawn = np.bincount(Weighted(weights, seed=1, draws=10**5).samples(np.arange(10**5)), minlength=7)
    expected = weights / 10 * 10**5
    assert (drawn[weights == 0] == 0).all()
    some = weights > 0
    assert ((drawn[some] - expected[some]) ** 2 / expected[some]).sum() < 3 + 5 * np.sqrt(6)


def test_weights_are_a_copy_and_tell_orders_apart():
    weights = np.array([1.0, 2.0])
    order = Weighted(weights, seed=1)
    weights[0] = 100
    assert order == Weighted([1.0, 2.0], seed=1)
    assert hash(order) == hash(Weighted([1.0, 2.0], seed=1))
    assert order != Weighted([1.0, 2.5], seed=1)
    with pytest.raises(ValueError, match="read-only"):
        order.weights[0] = 3


def test_draws_fix_the_length_of_an_epoch():
    assert (WithReplacement(10, 1).length, WithReplacement(10, 1, 3).length) == (10, 3)
    assert (Weighted([1, 1], 1).length, Weighted([1, 1], 1, 30).length) == (2, 30)
    with pytest.raises(PositionError):
        WithReplacement(10, 1, 3).samples([3])


@given(WHOLE)
def test_an_order_survives_json(order):
    assert isinstance(order, Order)
    back = order_from_json(json.loads(json.dumps(order.to_json())))
    assert back.fingerprint() == order.fingerprint()
    assert back.samples(np.arange(order.length)).tolist() == order.samples(np.arange(order.length)).tolist()


def test_fingerprints_tell_settings_apart():
    orders = [
        Sequential(100),
        Sequential(101),
        GlobalShuffle(100, 0),
        GlobalShuffle(100, 1),
        *(BlockShuffle(1000, *settings) for settings in ((0, 5, 2, 4), (1, 5, 2, 4), (0, 6, 2, 4), (0, 5, 3, 4))),
        WithReplacement(100, 0),
        WithReplacement(100, 0, 99),
        Weighted(np.ones(100), 0),
    ]
    assert len({order.fingerprint() for order in orders}) == len(orders)


@pytest.mark.parametrize("document", [{}, {"order": "nothing"}, {"order": "global"}, {"order": "global", "what": 1}])
def test_other_documents_make_no_order(document):
    with pytest.raises(OptionError):
        order_from_json(document)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sequential(-1),
        lambda: Sequential(2.0),
        lambda: GlobalShuffle(True),
        lambda: GlobalShuffle(2**62 + 1),
        lambda: GlobalShuffle(10, seed=2**64),
        lambda: GlobalShuffle(10, seed="a"),
        lambda: BlockShuffle(10, block_samples=0),
        lambda: BlockShuffle(10, window=0),
        lambda: BlockShuffle(10, lanes=0),
        lambda: WithReplacement(0),
        lambda: WithReplacement(10, draws=0),
        lambda: Weighted([]),
        lambda: Weighted([[1.0]]),
        lambda: Weighted(["a"]),
        lambda: Weighted([1.0, -1.0]),
        lambda: Weighted([0.0]),
        lambda: Weighted([float("nan")]),
        lambda: Weighted([1.0], draws=0),
        lambda: choose_lanes(10, 0, 1, 1),
        lambda: choose_lanes(10, 1, 1, 1, lanes=0),
        lambda: shuffle_order(10, block_samples=1, block_bytes=1),
        lambda: shuffle_order(10, mean_bytes=0.0),
        lambda: shuffle_order(10, block_bytes=0),
        lambda: overfetch(0, 1),
        lambda: mixing_quality([1], 1),
        lambda: mixing_quality([1, 2], 100),
        lambda: mixing_quality(Sequential(10), 5, reach=0),
    ],
)
def test_bad_settings_say_what_was_expected_and_found(make):
    with pytest.raises(OptionError) as caught:
        make()
    assert caught.value.expected is not None
    assert caught.value.found is not None


@pytest.mark.parametrize("order", [Sequential(10), GlobalShuffle(10), BlockShuffle(10), WithReplacement(10)])
@pytest.mark.parametrize("at", [-1, 10])
def test_positions_outside_an_epoch_are_refused(order, at):
    with pytest.raises(PositionError, match="expected 0 to 9"):
        order.samples([0, at])
