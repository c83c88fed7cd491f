"""Batches as plain containers, and every n-th batch of a loader, without a framework."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.adapt import every_nth, map_arrays, map_leaves


class Pair(NamedTuple):
    left: object
    right: object


@dataclasses.dataclass
class Point:
    at: np.ndarray
    name: str


class Word(msgspec.Struct):
    tokens: list[int]
    text: str


@pytest.mark.parametrize(
    "values, kind",
    [
        ([1, 2], "int64"),
        ([1.5, 2], "float64"),
        ([2**53 + 1, 0.5], None),
        ([2**63, 1], None),
        ([2**63, -1], None),
        ([-(2**63), 2**63 - 1], "int64"),
        ([True, False], "bool"),
        ([np.float64(1.0), np.float64(2.0)], "float64"),
        ([np.uint8(1)], "uint8"),
        (["a"], None),
        ([1, "a"], None),
        ([2**70], None),
        ([], None),
        ([1, None], None),
    ],
)
def test_a_list_of_numbers_is_an_array_and_no_other_list_is(values, kind):
    made = map_arrays(values, lambda array: array.dtype.name)
    assert made == (values if kind is None else kind)


def test_containers_stay_and_what_is_no_number_stays():
    batch = {"pair": Pair(np.zeros(2), [b"a", "b"]), "text": np.array(["a"]), "when": np.zeros(1, "M8[s]"), "one": 3}
    made = map_arrays(batch, np.shape)
    assert made["pair"] == Pair((2,), [b"a", "b"])
    assert made["text"] is batch["text"]
    assert made["when"] is batch["when"]
    assert made["one"] == 3


def test_samples_with_fields_are_dicts():
    assert map_arrays(Point(np.zeros(3), "a"), np.shape) == {"at": (3,), "name": "a"}
    assert map_arrays([Word([1, 2], "b")], np.shape) == [{"tokens": (2,), "text": "b"}]
    batch = shoal.SampleBatch.of([Point(np.zeros(3), "a"), Point(np.ones(3), "b")])
    assert map_arrays(batch, np.shape) == {"at": (2, 3), "name": ["a", "b"]}


def test_leaves_are_changed_wherever_they_are():
    assert map_leaves({"a": Pair(1, (2, [3]))}, lambda number: number + 1) == {"a": Pair(2, (3, [4]))}


def interleaved(shares: list[list[object]]) -> list[object]:
    """As PyTorch's loader puts its workers' batches together."""
    turns = itertools.chain.from_iterable(itertools.zip_longest(*shares))
    return [batch for batch in turns if batch is not None]


@settings(max_examples=60)
@given(
    count=st.integers(1, 60),
    batch_size=st.one_of(st.none(), st.integers(1, 9)),
    workers=st.integers(1, 5),
    world=st.integers(1, 3),
    tail=st.sampled_from(["pad", "carry", "drop", "uneven"]),
    epochs=st.integers(1, 3),
    taken=st.integers(0, 4),
)
def test_shares_put_together_are_the_whole(count, batch_size, workers, world, tail, epochs, taken):
    def loader() -> shoal.DataLoader:
        options = {"shuffle": True, "seed": 3, "num_workers": 0, "rank": world - 1, "world_size": world, "tail": tail}
        return shoal.DataLoader(range(count), batch_size=batch_size, **options).repeat(epochs)

    whole = loader()
    batches = iter(whole)
    for _ in range(taken):
        next(batches, None)
    state = whole.state_dict()
    again = loader()
    again.load_state_dict(state)
    expected = list(again)
    shares = []
    for worker in range(workers):
        one = loader()
        one.load_state_dict(state)
        shares.append(list(every_nth(one, worker, workers)))
        assert one.state_dict()["epoch"] == again.state_dict()["epoch"]
    assert interleaved(shares) == expected


@pytest.mark.parametrize("change", [lambda loader: loader.filter(bool), lambda loader: loader.batch(2).take(3)])
def test_shares_of_what_is_found_while_reading_are_the_whole_too(change):
    def loader() -> shoal.DataLoader:
        return change(shoal.DataLoader(range(20), batch_size=None, num_workers=0))

    assert interleaved([list(every_nth(loader(), worker, 3)) for worker in range(3)]) == list(loader())


def test_batches_between_are_not_made():
    made = []

    def note(batch):
        made.append(tuple(batch))
        return batch

    loader = shoal.DataLoader(range(12), batch_size=2, num_workers=0).map(note)
    assert list(every_nth(loader, 1, 3)) == [[2, 3], [8, 9]]
    assert set(made) == {(2, 3), (8, 9)}


def test_what_is_random_in_a_batch_does_not_depend_on_the_share():
    def jitter(batch, rng):
        return [number + rng.random() for number in batch]

    def loader() -> shoal.DataLoader:
        return shoal.DataLoader(range(12), batch_size=2, num_workers=0, shuffle=True).map(jitter)

    assert interleaved([list(every_nth(loader(), worker, 2)) for worker in range(2)]) == list(loader())
