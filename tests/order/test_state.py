"""The state of a run: JSON, merging the states of ranks, and states that are refused."""

from __future__ import annotations

import json

import pytest

from shoal.errors import LoaderStateError
from shoal.order import (
    BlockShuffle,
    GlobalShuffle,
    PartitionState,
    Sequential,
    State,
    fingerprint_of,
)

ORDER = BlockShuffle(1_000_000_000, seed=7, block_samples=50, window=4, lanes=192)


STATE = State(ORDER.to_json(), epoch=3, position=123_456_000, end=1_000_000_000, global_batch=2048)


def test_a_state_is_small_and_names_its_seed():
    assert len(json.dumps(STATE.to_dict(), separators=(",", ":"))) < 250
    assert STATE.seed == 7
    assert STATE.fingerprint == ORDER.fingerprint() == fingerprint_of(ORDER.to_json())
    assert State(Sequential(3).to_json()).seed is None


def test_shares_survive_json():
    state = State(
        ORDER.to_json(), shares=(PartitionState(3, 5, 10, 1, (((5, 0, 0), (6, 1, 2)),)), PartitionState(4, 5, 9))
    )
    assert State.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_merging_gathers_shares():
    parts = [
        State(ORDER.to_json(), 1, 64, shares=(PartitionState(lane, 3, 8, 0, (((lane, 0, 0),),)),)) for lane in (2, 0, 1)
    ]
    merged = State.merge(parts)
    assert [one.index for one in merged.shares] == [0, 1, 2]
    assert State.merge([merged, *parts]) == merged
    assert (merged.epoch, merged.position) == (1, 64)


@pytest.mark.parametrize(
    "states, what",
    [
        ([], "no state to merge"),
        ([State({}, 1), State({}, 2)], "differ in epoch"),
        ([State({}, 0, 1), State({}, 0, 2)], "differ in position"),
        ([State({"seed": 1}), State({"seed": 2})], "differ in settings"),
        (
            [State({}, shares=(PartitionState(0, 2, 1),)), State({}, shares=(PartitionState(0, 2, 2),))],
            "share 0 stands at two places",
        ),
    ],
)
def test_states_of_different_places_do_not_merge(states, what):
    with pytest.raises(LoaderStateError, match=what):
        State.merge(states)


def test_a_state_of_another_order_says_what_differs():
    other = BlockShuffle(1_000_000_000, seed=8, block_samples=50, window=2, lanes=192)
    message = "seed is 8 here but 7 in the state; window is 2 here but 4 in the state"
    with pytest.raises(LoaderStateError, match=message):
        STATE.check_fingerprint(other.to_json())
    with pytest.raises(LoaderStateError, match="order is global here"):
        STATE.check_fingerprint(GlobalShuffle(1_000_000_000, seed=7).to_json())
    with pytest.raises(LoaderStateError, match=f"fingerprint is {other.fingerprint()} here"):
        STATE.check_fingerprint(other.fingerprint())
    STATE.check_fingerprint(ORDER.to_json())
    STATE.check_fingerprint(ORDER.fingerprint())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"settings": None},
        {"fingerprint": "0"},
        {"epoch": -1},
        {"position": 1.5},
        {"position": "a"},
        {"end": -1},
        {"shares": [[1]]},
        {"shares": 3},
        {"steps": -1},
    ],
)
def test_a_state_that_was_changed_is_refused(change):
    with pytest.raises(LoaderStateError):
        State.from_dict({**STATE.to_dict(), **change})


def test_what_is_no_state_is_refused():
    for document in (None, [], {}, "state"):
        with pytest.raises(LoaderStateError):
            State.from_dict(document)
