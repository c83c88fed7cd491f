"""Autotune on a simulated clock: the setting it chooses for machines with a given rate per setting."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shoal.load._autotune import Tuner


class Machine:
    """Runs a tuner against rates: ``rate(workers, now)`` batches a second, all of it waited for."""

    def __init__(
        self, rate: Callable[[int, float], float], *, most: int = 2, noise: float = 0.0, seed: int = 0
    ) -> None:
        self.now = 0.0
        self._rate, self._noise, self._random = rate, noise, random.Random(seed)
        self.tuner = Tuner(None, None, most, clock=lambda: self.now)

    def run(self, seconds: float, waits: float = 1.0) -> int:
        """Deliver batches for so long; the number of threads at the end."""
        end = self.now + seconds
        while self.now < end:
            spread = 1 + self._noise * (2 * self._random.random() - 1)
            took = spread / self._rate(self.tuner.workers, self.now)
            self.now += took
            self.tuner.record_batch(took * waits)
        return self.tuner.workers


RAW = {0: 2000.0, 1: 1500.0, 2: 1450.0}
DECODE = {0: 50.0, 1: 55.0, 2: 100.0}


@pytest.mark.parametrize("rates, best", [(RAW, 0), (DECODE, 2), ({0: 90.0, 1: 100.0, 2: 70.0}, 1)])
def test_it_settles_on_the_best(rates: dict[int, float], best: int) -> None:
    machine = Machine(lambda workers, _: rates[workers])
    assert machine.run(10) == best


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_move_it(seed: int) -> None:
    machine = Machine(lambda workers, _: RAW[workers], noise=0.5, seed=seed)
    assert machine.run(10) == 0
    tried = {one.workers for one in machine.tuner.tried[-30:]}
    assert machine.run(60) == 0
    assert tried == {one.workers for one in machine.tuner.tried} == {0}


@pytest.mark.parametrize("turn", range(1, 12))
def test_a_first_epoch_that_is_slower_does_not_count_against_those_tried_in_it(turn: int) -> None:
    """Everything runs three times as fast after a while, in the middle of the search."""
    machine = Machine(lambda workers, now: RAW[workers] * (1 if now < turn * 0.11 else 3))
    assert machine.run(10) == 0


def test_it_searches_again_when_things_changed() -> None:
    machine = Machine(lambda workers, now: DECODE[workers] if now < 20 else RAW[workers])
    assert machine.run(20) == 2
    assert machine.run(20) == 0


def test_a_caller_that_does_not_wait_is_left_alone() -> None:
    machine = Machine(lambda workers, _: DECODE[workers])
    assert machine.run(20, waits=0.01) == 2
    assert {one.workers for one in machine.tuner.tried} == {2}


def test_it_begins_with_all_of_few_cores_and_half_of_many() -> None:
    assert [Tuner(None, None, most).workers for most in (1, 2, 4, 8, 16)] == [1, 2, 4, 4, 8]


def test_a_search_where_all_cores_decode_costs_little() -> None:
    """Three seconds on two cores have at least nine tenths of the batches that two threads would have given."""
    machine = Machine(lambda workers, _: DECODE[workers])
    delivered = 0
    while machine.now < 3:
        machine.run(1 / 200)
        delivered += 1
    assert delivered >= 0.9 * 3 * DECODE[2]


@pytest.mark.parametrize("best", [1, 2, 4, 6, 8, 12, 16])
def test_with_many_cores_it_comes_near_the_best(best: int) -> None:
    """Rates that rise up to ``best`` threads and fall after it."""

    def rate(workers: int, _: float) -> float:
        used = max(workers, 0.9)
        return 50.0 * (used if used <= best else best * (best / used) ** 0.5)

    machine = Machine(rate, most=16)
    found = machine.run(30)
    assert rate(found, 0) >= 0.7 * rate(best, 0)


@pytest.mark.parametrize("length", [1, 2, 5, 30])
@pytest.mark.parametrize("away", [0.0, 5.0])
def test_epochs_shorter_than_a_span_are_enough(length: int, away: float) -> None:
    """A caller that is away between epochs, for a while or for no time at all, changes nothing."""
    machine = Machine(lambda workers, _: RAW[workers])
    for _ in range(3000 // length):
        for _ in range(length + 1):  # the first batch of an epoch does not count
            machine.now += 1 / RAW[machine.tuner.workers]
            machine.tuner.record_batch(1 / RAW[machine.tuner.workers])
        machine.now += away
        machine.tuner.resume()
    assert machine.tuner.workers == 0
    assert {one.workers for one in machine.tuner.tried} == {0, 1, 2}
    assert all(one.rate == pytest.approx(RAW[one.workers], rel=0.01) for one in machine.tuner.tried)


def test_fixed_settings_stay() -> None:
    tuner = Tuner(3, 5)
    for _ in range(1000):
        tuner.record_batch(1.0)
    assert (tuner.workers, tuner.prefetch) == (3, 5)


def test_slow_batches_are_not_waited_for_long() -> None:
    """At two batches a second for each thread, all sixteen are at work within twenty seconds."""
    machine = Machine(lambda workers, _: 2.0 * max(workers, 1), most=16)
    machine.run(20)
    assert machine.tuner.workers == 16
