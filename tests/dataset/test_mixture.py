"""Datasets mixed by weight."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import LoaderStateError, OptionError
from shoal.load import DataLoader

COUNTS = {"a": 40, "b": 10, "c": 25}


@pytest.fixture(scope="module")
def parts() -> list[shoal.Dataset[dict[str, Any]]]:
    for name, count in COUNTS.items():
        with shoal.ShardWriter(f"memory://test-mix/{name}/s-%06d.tar", max_samples=7) as writer:
            for number in range(count):
                writer.write({"__key__": f"{name}{number:03d}", "json": {"width": number}})
    return [shoal.Dataset(f"memory://test-mix/{name}") for name in COUNTS]


def keys(batches: Any) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


def of_each(found: list[str]) -> dict[str, int]:
    return dict(Counter(key[0] for key in found))


def test_without_weights_each_sample_comes_once_evenly_spread(parts: list[Any]) -> None:
    mixed = shoal.mix(parts)
    assert sorted(mixed.keys()) == sorted(key for part in parts for key in part.keys())  # noqa: SIM118 - not a dict
    for start in range(0, 75, 15):  # each fifth holds a fifth of every part, to within two
        counts = of_each(mixed.keys()[start : start + 15])
        assert all(abs(counts.get(name, 0) - COUNTS[name] / 5) <= 2 for name in COUNTS)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_keeps_the_proportions_and_repeats_what_is_small(parts: list[Any], shuffle: bool) -> None:
    loader = DataLoader(shoal.mix(parts, [2, 1, 1], length=80), batch_size=8, shuffle=shuffle, num_workers=0)
    epochs = [list(loader) for _ in range(3)]
    for epoch in epochs:
        assert of_each(keys(epoch)) == {"a": 40, "b": 20, "c": 20}
        assert all(abs(of_each(batch["__key__"]).get("a", 0) - 4) <= 1 for batch in epoch)
    from_b = [key for epoch in epochs for key in keys(epoch) if key[0] == "b"]
    assert all(len(set(from_b[start : start + 10])) == 10 for start in range(0, 60, 10))
    if shuffle:
        assert from_b[:10] != from_b[10:20]
    from_c = [key for epoch in epochs for key in keys(epoch) if key[0] == "c"]
    assert len(set(from_c[:25])) == 25  # goes on in the next epoch where it was


@settings(max_examples=20, deadline=None)
@given(st.data(), st.booleans())
def test_a_mixture_goes_on_exactly(parts: list[Any], data: st.DataObject, shuffle: bool) -> None:
    def made(rank: int, world: int) -> DataLoader:
        mixed = shoal.mix(parts, [5, 1, 2], length=60, seed=3, stages=[(70, [1, 1, 1])])
        return DataLoader(
            mixed,
            batch_size=6 // world,
            shuffle=shuffle,
            seed=2,
            rank=rank,
            world_size=world,
            num_workers=0,
            tail="carry",
        )

    alone = made(0, 1)
    expected = [key for _ in range(4) for key in keys(alone)]
    found: list[str] = []
    state: dict[str, Any] | None = None
    while len(found) < 150:
        world = data.draw(st.sampled_from([1, 2, 3]))
        ranks = [made(rank, world) for rank in range(world)]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(json.loads(json.dumps(state)))
        lines = [iter(rank) for rank in ranks]
        for _ in range(data.draw(st.integers(1, 8))):
            step = [next(line, None) for line in lines]
            if step[0] is None:
                break
            found += itertools.chain.from_iterable(zip(*(part["__key__"] for part in step if part), strict=True))
        state = ranks[0].state_dict()
    assert found == expected[: len(found)]


def test_weights_change_at_a_step_and_old_states_stay_good(parts: list[Any]) -> None:
    before = DataLoader(shoal.mix(parts, [1, 1, 0], length=60), batch_size=6, num_workers=0)
    line = iter(before)
    first = keys(itertools.islice(line, 5))
    state = before.state_dict()
    changed = shoal.mix(parts, [1, 1, 0], length=60, stages=[(30, [0, 0, 1])])
    after = DataLoader(changed, batch_size=6, num_workers=0)
    after.load_state_dict(state)
    assert of_each(keys(after)) == {"c": 30}
    assert of_each(first) == {"a": 15, "b": 15}
    other = DataLoader(shoal.mix(parts, [2, 1, 0], length=60), batch_size=6, num_workers=0)
    with pytest.raises(LoaderStateError, match="weights"):
        other.load_state_dict(state)


def test_the_method_is_the_function(parts: list[Any]) -> None:
    first, *others = parts
    assert first.mix(*others, weights=[1, 1, 2], length=20).keys() == shoal.mix(parts, [1, 1, 2], length=20).keys()


def test_views_of_a_mixture_are_plain_datasets(parts: list[Any]) -> None:
    mixed = shoal.mix([part.where("width < 5") for part in parts], [1, 1, 2], length=20)
    assert len(mixed) == 20
    assert of_each(mixed.keys()) == {"a": 5, "b": 5, "c": 10}
    chosen = mixed.select(range(4))
    assert keys(DataLoader(chosen, batch_size=2, num_workers=0)) == mixed.keys()[:4]
    mapped = mixed.map(lambda sample: sample["__key__"])
    assert list(mapped) == mixed.keys()
    found = [key for batch in DataLoader(mapped, batch_size=5, num_workers=0) for key in batch]
    assert found == mixed.keys()


@pytest.mark.parametrize("weights", [[1, 1], [1, -1, 1], [0, 0, 0], [1, "a", 1], {1: 3, 2: 1, 4: 1}])
def test_weights_that_do_not_fit_are_refused(parts: list[Any], weights: list[Any]) -> None:
    with pytest.raises(OptionError):
        shoal.mix(parts, weights)
    with pytest.raises(OptionError, match="nothing to mix"):
        shoal.mix([])
    with pytest.raises(OptionError, match=r"only datasets can be put together: .*found dict$"):
        shoal.mix(parts[0])


def test_weights_of_numpys_are_numbers(parts: list[Any]) -> None:
    mixed = shoal.mix(parts, np.array([1, 1, 2]), length=20, stages=[(8, np.array([1, 2, 1]))])
    assert mixed.keys() == shoal.mix(parts, [1, 1, 2], length=20, stages=[(8, [1, 2, 1])]).keys()
    state = DataLoader(mixed, num_workers=0).state_dict()
    assert json.loads(json.dumps(state)) == state
