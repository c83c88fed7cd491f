"""Splits, tails and resuming: who gets what, on any number of ranks, stopped anywhere, any number of times."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import OptionError, PositionError
from shoal.order import (
    BlockShuffle,
    GlobalShuffle,
    Split,
    State,
    epoch_end,
    plan_epoch,
    rank_positions,
    samples_of,
    steps_per_epoch,
)

TAILS = ("pad", "carry", "drop", "uneven")


WORLDS = st.integers(1, 9)


BATCHES = st.integers(1, 9)


def plans(count, world_size, batch_size, tail, drop_last=False, **rest):
    """The plan of every rank."""
    return [
        plan_epoch(count, batch_size=batch_size, split=Split(rank, world_size), tail=tail, drop_last=drop_last, **rest)
        for rank in range(world_size)
    ]


def consumed(ranks, steps):
    """What the first steps of all ranks take, put back in the global order, without what was only filled in."""
    pieces = [rank.at(range(min(steps, rank.steps))) for rank in ranks]
    taken = sorted(
        (turn, rank, epoch, position)
        for rank, piece in enumerate(pieces)
        for turn, (epoch, position, repeat) in enumerate(
            zip(piece.epochs.tolist(), piece.positions.tolist(), piece.repeats.tolist(), strict=True)
        )
        if not repeat
    )
    return [(epoch, position) for _, _, epoch, position in taken]


def everything(ranks):
    return consumed(ranks, max(rank.steps for rank in ranks))


@given(st.integers(0, 200), WORLDS, BATCHES, st.booleans())
def test_uneven_gives_each_sample_once(count, world_size, batch_size, drop_last):
    ranks = plans(count, world_size, batch_size, "uneven", drop_last)
    taken = everything(ranks)
    assert len(set(taken)) == len(taken)
    if drop_last:
        assert all(len(rank.at(step)) == batch_size for rank in ranks for step in range(rank.steps))
        assert count - len(taken) < world_size * batch_size
    else:
        assert taken == [(0, position) for position in range(count)]


@given(st.integers(0, 200), WORLDS, BATCHES, st.booleans(), st.sampled_from(["pad", "drop", "carry"]))
def test_the_others_give_equal_steps_of_equal_size(count, world_size, batch_size, drop_last, tail):
    ranks = plans(count, world_size, batch_size, tail, drop_last)
    sizes = [[len(rank.at(step)) for step in range(rank.steps)] for rank in ranks]
    assert all(one == sizes[0] for one in sizes)
    assert all(size == batch_size for size in sizes[0][:-1])
    if drop_last or tail == "carry":
        assert set(sizes[0]) <= {batch_size}


@given(st.integers(0, 200), WORLDS, BATCHES, st.booleans())
def test_pad_gives_each_sample_once_and_marks_what_it_repeats(count, world_size, batch_size, drop_last):
    ranks = plans(count, world_size, batch_size, "pad", drop_last)
    taken = everything(ranks)
    unit = world_size * batch_size if drop_last else world_size
    filled = sum(int(rank.at(range(rank.steps)).repeats.sum()) for rank in ranks)
    if world_size == 1:
        assert filled == 0
        assert len(taken) == (count // batch_size * batch_size if drop_last else count)
    else:
        assert taken == [(0, position) for position in range(count)]
        assert filled == -count % unit
    for rank in ranks:
        given_out = rank.at(range(rank.steps))
        assert ((given_out.positions >= 0) & (given_out.positions < max(count, 1))).all()


@given(st.integers(0, 200), WORLDS, BATCHES, st.booleans())
def test_drop_gives_each_sample_at_most_once_and_leaves_out_little(count, world_size, batch_size, drop_last):
    ranks = plans(count, world_size, batch_size, "drop", drop_last)
    unit = world_size * batch_size if drop_last else world_size
    assert everything(ranks) == [(0, position) for position in range(count // unit * unit)]
    assert not any(rank.at(range(rank.steps)).repeats.any() for rank in ranks)


@given(st.integers(1, 100), WORLDS, BATCHES, st.integers(1, 5))
def test_carry_gives_each_sample_once_across_epochs(count, world_size, batch_size, epochs):
    ranks, taken, lengths = plans(count, world_size, batch_size, "carry"), [], []
    for _ in range(epochs):
        taken += everything(ranks)
        lengths.append(ranks[0].steps)
        ranks = [rank.next_epoch() for rank in ranks]
    assert taken == [divmod(place, count) for place in range(len(taken))]
    assert len(taken) % (world_size * batch_size) == 0
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 300), WORLDS, BATCHES, st.sampled_from(TAILS), st.booleans())
def test_ends_and_steps_say_what_plans_do(count, world_size, batch_size, tail, drop_last):
    ranks = plans(count, world_size, batch_size, tail, drop_last)
    end = epoch_end(count, 0, world_size, batch_size, tail, drop_last)
    given_out = sum(rank.rank_samples for rank in ranks)
    assert given_out == end if not (tail == "uneven" and drop_last) else given_out <= end
    for rank in ranks:
        assert rank.steps == steps_per_epoch(
            count, batch_size, world_size, rank=rank.split.rank, tail=tail, drop_last=drop_last
        )
        assert len(rank.at(range(rank.steps))) == rank.rank_samples


@given(st.integers(1, 200), st.integers(1, 4), st.integers(1, 4), BATCHES)
def test_replicas_see_the_same_data(count, shares, replication, batch_size):
    world_size = shares * replication
    every = [
        plan_epoch(count, batch_size=batch_size, split=Split(rank, world_size, replication)).at(range(1))
        for rank in range(world_size)
    ]
    alone = [plan.at(range(1)) for plan in plans(count, shares, batch_size, "pad")]
    for rank, found in enumerate(every):
        assert found.positions.tolist() == alone[rank // replication].positions.tolist()


@given(st.integers(1, 300), WORLDS, BATCHES, st.sampled_from(TAILS))
def test_several_steps_at_once_are_the_steps_one_by_one(count, world_size, batch_size, tail):
    for plan in plans(count, world_size, batch_size, tail):
        together = rank_positions(range(plan.steps), plan)
        one_by_one = [plan.at(step) for step in range(plan.steps)]
        for name in ("positions", "epochs", "repeats"):
            parts = [getattr(one, name) for one in one_by_one]
            assert getattr(together, name).tolist() == [value for part in parts for value in part.tolist()]


@st.composite
def worlds_of_one_global_batch(draw):
    global_batch = draw(st.sampled_from([1, 4, 6, 12, 24]))
    divisors = [size for size in range(1, global_batch + 1) if global_batch % size == 0]
    return global_batch, draw(st.lists(st.sampled_from(divisors), min_size=2, max_size=6))


ORDERS = st.one_of(
    st.builds(GlobalShuffle, st.integers(1, 200), st.integers(0, 99)),
    st.builds(
        BlockShuffle, st.integers(1, 200), st.integers(0, 99), st.integers(1, 9), st.integers(1, 3), st.integers(1, 12)
    ),
)


def samples(order, places):
    return samples_of(order, [position for _, position in places], [epoch for epoch, _ in places]).tolist()


@given(ORDERS, worlds_of_one_global_batch(), st.sampled_from(TAILS), st.integers(0, 400), st.data())
def test_a_run_stopped_anywhere_on_changing_worlds_is_the_run_that_never_stopped(order, worlds, tail, total, data):
    global_batch, sizes = worlds
    uninterrupted, ranks = [], plans(order.length, sizes[0], global_batch // sizes[0], tail)
    while len(uninterrupted) < total and ranks[0].end > ranks[0].start:
        uninterrupted += everything(ranks)
        ranks = [rank.next_epoch() for rank in ranks]

    taken, state, turn = [], None, 0
    while len(taken) < len(uninterrupted):
        # Each epoch is begun by the first world, since that is what fixes its end, then goes on on others.
        size = sizes[0] if state is None or state.position >= (state.end or 0) else sizes[turn % len(sizes)]
        turn += 1
        if state is None:
            ranks = plans(order.length, size, global_batch // size, tail)
        else:
            state = State.from_dict(json.loads(json.dumps(state.to_dict())))
            state.check_fingerprint(order.to_json())
            ranks = [
                state.plan(order.length, batch_size=global_batch // size, split=Split(rank, size), tail=tail)
                for rank in range(size)
            ]
        if tail != "uneven":
            assert len({rank.steps for rank in ranks}) == 1
        steps = data.draw(st.integers(0 if turn < 20 else 1, max(rank.steps for rank in ranks)))
        taken += consumed(ranks, steps)
        states = {json.dumps(State.after(rank, steps, order.to_json()).to_dict()) for rank in ranks}
        assert len(states) == 1  # one state is every rank's
        state = State.from_dict(json.loads(states.pop()))
    assert taken == uninterrupted


@given(ORDERS, st.lists(st.tuples(WORLDS, BATCHES, st.integers(0, 5)), min_size=1, max_size=8))
def test_another_global_batch_keeps_the_order(order, worlds):
    """The tail is cut anew, the order is not: what was consumed is a beginning of it, each sample once."""
    taken, state = [], State(order.to_json())
    for world_size, batch_size, steps in worlds:
        if state.end is not None and state.position >= state.end:
            break
        ranks = [
            state.plan(order.length, batch_size=batch_size, split=Split(rank, world_size), tail="uneven")
            for rank in range(world_size)
        ]
        taken += consumed(ranks, steps)
        state = State.after(ranks[0], steps, order.to_json())
    assert taken == [(0, position) for position in range(len(taken))]


@given(ORDERS)
def test_the_global_order_is_the_same_for_every_world_size(order):
    expected = samples(order, [(0, position) for position in range(order.length)])
    for world_size, batch_size in ((1, 7), (2, 3), (3, 1), (5, 4), (8, 2)):
        assert samples(order, everything(plans(order.length, world_size, batch_size, "pad"))) == expected
        assert samples(order, everything(plans(order.length, world_size, batch_size, "uneven"))) == expected


def test_planning_far_out_in_a_huge_epoch_is_arithmetic():
    plan = plan_epoch(10**12, start=9 * 10**11, batch_size=32, split=Split(3, 64))
    assert plan.steps == 10**11 // (32 * 64)
    assert plan.at(plan.steps - 1).positions[-1] < 10**12
    assert plan.at(5).positions[0] == 9 * 10**11 + 5 * 32 * 64 + 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: Split(-1, 1),
        lambda: Split(1, 1),
        lambda: Split(0, 0),
        lambda: Split(0, 4, 3),
        lambda: Split(0, 4, 0),
        lambda: plan_epoch(-1),
        lambda: plan_epoch(10, batch_size=0),
        lambda: plan_epoch(10, start=-1),
        lambda: plan_epoch(10, epoch=-1),
        lambda: plan_epoch(10, tail="wrap"),
        lambda: plan_epoch(10, start=5, end=4),
        lambda: steps_per_epoch(10, 1, tail="wrap"),
        lambda: epoch_end(10, 0, 0, 1),
    ],
)
def test_bad_settings_say_what_was_expected_and_found(make):
    with pytest.raises(OptionError) as caught:
        make()
    assert caught.value.expected is not None
    assert caught.value.found is not None


@pytest.mark.parametrize("steps", [-1, 5, range(6), range(2, 1), range(0, 4, 2), range(-1, 2)])
def test_steps_outside_the_epoch_are_refused(steps):
    plan = plan_epoch(10, batch_size=2)
    if isinstance(steps, range) and not steps:
        assert len(plan.at(steps)) == 0
    else:
        with pytest.raises(PositionError):
            plan.at(steps)


def test_another_rank_of_the_same_epoch():
    plan = plan_epoch(10, batch_size=2, split=Split(0, 2))
    assert plan.for_rank(1) == plan_epoch(10, batch_size=2, split=Split(1, 2))


def test_carrying_on_within_one_batch_crosses_many_epochs():
    """Three samples, ten a step: one step is three epochs and a bit."""
    plan = plan_epoch(3, batch_size=10, tail="carry")
    starts = []
    for _ in range(3):
        starts.append((plan.epoch, plan.start))
        assert Counter(plan.at(0).positions.tolist()).total() == 10
        plan = plan.next_epoch()
    assert starts == [(0, 0), (3, 1), (6, 2)]
    assert all(later[0] > earlier[0] for earlier, later in pairwise(starts))
    assert np.unique(plan.at(0).repeats).tolist() == [False]
