"""Mix: quotas for every prefix and run; sources gone through in order, across stages; far out; refused settings."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import OptionError, PositionError
from shoal.order import Mix

WEIGHT = st.one_of(st.integers(0, 9), st.integers(1, 10**6), st.floats(0, 100).filter(lambda w: w == 0 or w > 1e-3))
WEIGHTS = st.lists(WEIGHT, min_size=1, max_size=8).filter(lambda weights: sum(weights) > 0).map(tuple)


def mix_of(weights, **rest):
    return Mix((1000,) * len(weights), weights, **rest)


def off_quota(mix, length):
    """For each source, by how much the first n positions miss its quota, for every n."""
    sources, _ = mix.at(np.arange(length))
    parts = mix.to_json()["weights"]
    shares = np.array([part / sum(parts) for part in parts])
    chosen = sources[None, :] == np.arange(len(parts))[:, None]
    counted = np.concatenate([np.zeros((len(parts), 1)), np.cumsum(chosen, axis=1)], axis=1)
    return counted - shares[:, None] * np.arange(length + 1)


@given(WEIGHTS)
@example((3, 2, 1))
@example((99393, 256, 2, 65536, 524288, 9, 512))
def test_every_prefix_and_every_run_keep_their_quota(weights):
    mix = mix_of(weights)
    off = off_quota(mix, 1000)
    assert np.abs(off).max() <= mix.deviation + 1e-9
    assert (off.max(axis=1) - off.min(axis=1)).max() <= 2 * mix.deviation + 1e-9  # the worst run, from any to any
    assert mix.deviation <= (1 if len(weights) <= 4 else 1.5)


@given(st.tuples(WEIGHT, WEIGHT).filter(lambda weights: sum(weights) > 0))
def test_two_sources_keep_every_run_within_one_sample(weights):
    off = off_quota(mix_of(weights), 1000)
    assert (off.max(axis=1) - off.min(axis=1)).max() < 1


@given(WEIGHTS, st.integers(1, 40))
def test_a_whole_period_is_exact(weights, rounds):
    small = tuple(round(weight) % 10 for weight in weights)
    if not sum(small):
        return
    mix = mix_of(small)
    period = sum(mix.to_json()["weights"])
    assert mix.counts_before(rounds * period) == tuple(rounds * part for part in mix.to_json()["weights"])


@given(WEIGHTS, st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5)), max_size=3), st.integers(0, 700))
def test_each_source_is_gone_through_in_order_across_stages(weights, changes, position):
    stages, start = [], 0
    for after, turn in changes:
        start += after
        stages.append((start, weights[turn % len(weights) :] + weights[: turn % len(weights)]))
    mix = mix_of(weights, stages=tuple(stages))
    sources, places = mix.at(np.arange(1000))
    for source in range(len(weights)):
        own = places[sources == source]
        assert own.tolist() == list(range(len(own)))
    assert mix.counts_before(position) == tuple(np.bincount(sources[:position], minlength=len(weights)).tolist())
    assert mix.at([position])[0][0] == sources[position]  # any position alone is what it is among the others
    assert mix.at([position])[1][0] == places[position]


def test_a_later_stage_does_not_change_what_came_before():
    before, after = mix_of((1, 1)), mix_of((1, 1), stages=((500, (9, 1)),))
    assert after.at(np.arange(500))[0].tolist() == before.at(np.arange(500))[0].tolist()
    assert np.bincount(after.at(np.arange(500, 1500))[0]).tolist() == [900, 100]
    assert after.fingerprint() != before.fingerprint()


def test_far_out_is_as_near_and_as_exact():
    mix = Mix((10, 10, 10), (0.1, 0.2, 0.7))
    assert mix.counts_before(9 * 10**11) == (9 * 10**10, 18 * 10**10, 63 * 10**10)
    sources, places = mix.at(np.arange(9 * 10**11, 9 * 10**11 + 1000))
    assert np.bincount(sources).tolist() == [100, 200, 700]
    assert places[sources == 2][0] == 63 * 10**10


def test_weights_are_the_numbers_that_were_written():
    assert mix_of((0.1, 0.2)).to_json()["weights"] == [1, 2]
    alike = [(2, 4), (1, 2), (Fraction(1, 3), Fraction(2, 3))]
    assert len({mix_of(weights).fingerprint() for weights in alike}) == 1
    rough = mix_of((1 / 3, 2 / 3, 1e-9)).to_json()["weights"]  # too fine for whole numbers of 31 bits: the nearest
    assert sum(rough) <= 2**31
    assert abs(rough[0] / sum(rough) - 1 / 3) < 1e-9
    assert rough[2] == 2


def test_a_weight_of_zero_takes_nothing():
    mix = Mix((5, 0, 5), (1, 0, 1))
    assert set(mix.at(np.arange(100))[0].tolist()) == {0, 2}
    assert mix.count == 10


def test_many_sources_keep_a_bound_too():
    rng = np.random.default_rng(0)
    mix = mix_of(tuple(int(weight) for weight in rng.integers(1, 1000, 60)))
    assert np.abs(off_quota(mix, 3000)).max() <= mix.deviation < 2


def test_sources_get_seeds_of_their_own():
    mix = mix_of((1, 1, 1), seed=5)
    seeds = [mix.seed_of(source) for source in range(3)]
    assert len(set(seeds)) == 3
    assert seeds == [mix_of((1, 1, 1), seed=5).seed_of(source) for source in range(3)]
    assert mix_of((1, 1, 1), seed=6).seed_of(0) != seeds[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mix((), ()),
        lambda: Mix((1, 1), (1,)),
        lambda: Mix((1,), (0,)),
        lambda: Mix((1,), (-1,)),
        lambda: Mix((1,), (float("inf"),)),
        lambda: Mix((1,), (float("nan"),)),
        lambda: Mix((1,), ("a",)),
        lambda: Mix((1,), (True,)),
        lambda: Mix((0, 1), (1, 1)),
        lambda: Mix((-1,), (1,)),
        lambda: Mix((1,), (1,), seed=0.5),
        lambda: Mix((1,), (1,), stages=((0, (1,)),)),
        lambda: Mix((1,), (1,), stages=((5, (1,)), (5, (1,)))),
        lambda: Mix((1,), (1,), stages=((5, (1, 1)),)),
        lambda: Mix((1,), (1,)).counts_before(-1),
    ],
)
def test_bad_settings_say_what_was_expected_and_found(make):
    with pytest.raises(OptionError) as caught:
        make()
    assert caught.value.expected is not None
    assert caught.value.found is not None


def test_there_is_nothing_before_the_first_position():
    with pytest.raises(PositionError):
        mix_of((1, 1)).at([-1])
