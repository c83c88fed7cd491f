"""Each sample is delivered once, in one order, on any number of ranks, and resumed anywhere."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import LoaderStateError
from shoal.load import DataLoader
from shoal.order import State

Make = Callable[..., DataLoader]

geometry = st.fixed_dictionaries(
    {
        "count": st.integers(0, 120),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 5),
        "window": st.sampled_from([None, 1, 7, 30]),
        "block_samples": st.sampled_from([None, 1, 3, 8]),
        "lanes": st.sampled_from([1, 2, 6]),
    }
)


def loader_of(shape: dict[str, Any], **options: Any) -> DataLoader:
    chosen = {name: value for name, value in shape.items() if name != "count"}
    return DataLoader(range(shape["count"]), **{"num_workers": 0, **chosen, **options})


def flat(batches: Any) -> list[int]:
    return [sample for batch in batches for sample in batch]


def in_turn(ranks: list[list[list[int]]]) -> list[int]:
    """What all ranks together deliver, in the global order: of each step, the ranks' samples in turn."""
    found: list[int] = []
    for step in itertools.zip_longest(*ranks, fillvalue=()):
        for samples in itertools.zip_longest(*step):
            found += [sample for sample in samples if sample is not None]
    return found


@settings(max_examples=80, deadline=None)
@given(geometry, st.integers(1, 9), st.integers(1, 5), st.integers(0, 2))
def test_every_world_size_gives_the_same_order_once(shape: dict[str, Any], batch: int, world: int, epoch: int) -> None:
    alone = loader_of(shape, batch_size=None)
    alone.set_epoch(epoch)
    order = list(alone)
    assert sorted(order) == list(range(shape["count"]))
    ranks = []
    for rank in range(world):
        one = loader_of(shape, batch_size=batch, rank=rank, world_size=world, tail="uneven")
        one.set_epoch(epoch)
        ranks.append(list(one))
        assert len(one) == len(ranks[-1]) or one.epoch == epoch + 1
    assert in_turn(ranks) == order


@settings(max_examples=80, deadline=None)
@given(geometry, st.integers(1, 9), st.integers(1, 5), st.sampled_from(["pad", "drop", "carry"]), st.booleans())
def test_ranks_have_equal_steps(shape: dict[str, Any], batch: int, world: int, tail: str, drop_last: bool) -> None:
    ranks = [
        loader_of(shape, batch_size=batch, rank=rank, world_size=world, tail=tail, drop_last=drop_last)
        for rank in range(world)
    ]
    seen: list[int] = []
    for _ in range(3):
        lengths = [len(rank) for rank in ranks]
        epochs = [list(rank) for rank in ranks]
        assert [len(epoch) for epoch in epochs] == lengths
        if world > 1 or tail == "carry":
            assert len(set(lengths)) == 1
            assert len({tuple(len(one) for one in epoch) for epoch in epochs}) == 1
        found = [sample for epoch in epochs for sample in flat(epoch)]
        seen += found
        if tail == "drop" or (drop_last and world == 1 and tail == "pad"):
            assert len(set(found)) == len(found)
        if tail == "pad" and not (drop_last and world == 1):
            assert set(found) == set(range(shape["count"]))
    if tail == "carry" and shape["count"]:
        counts = np.bincount(seen, minlength=shape["count"])
        assert counts.max() - counts.min() <= 1  # each once an epoch, and the line was cut in the middle of one


@settings(max_examples=60, deadline=None)
@given(st.data(), geometry, st.sampled_from(["pad", "drop", "carry", "uneven"]))
def test_stopping_anywhere_on_any_number_of_ranks_changes_nothing(
    data: st.DataObject, shape: dict[str, Any], tail: str
) -> None:
    """One global batch, cut for 1, 2, 3 or 6 ranks in turn; the state passes through JSON each time."""
    whole = 6
    total = loader_of(shape, batch_size=whole, rank=0, world_size=1, tail="carry" if tail == "carry" else "uneven")
    state: dict[str, Any] | None = None
    found: list[list[int]] = []
    epochs = 0
    for _ in range(10):
        world = data.draw(st.sampled_from([1, 2, 3, 6]), "ranks")
        workers = data.draw(st.sampled_from([0, 0, 0, 1]), "workers")
        ranks = [
            loader_of(
                shape,
                batch_size=whole // world,
                rank=rank,
                world_size=world,
                tail=tail,
                num_workers=workers,
                prefetch=3,
            )
            for rank in range(world)
        ]
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(json.loads(json.dumps(state)))
        lines = [iter(rank) for rank in ranks]
        for _ in range(data.draw(st.integers(0, 6), "steps")):
            step = [next(line, None) for line in lines]
            if all(part is None for part in step):
                epochs += 1
                break
            found.append(in_turn([[part or []] for part in step]))
        states = [rank.state_dict() for rank in ranks]
        if tail != "uneven":  # there a rank that has ended does not know that others took one more step
            assert all(one == states[0] for one in states)
        state = max(states, key=lambda one: (one["epoch"], one["position"]))
        for rank in ranks:
            rank.close()
        if epochs >= 2:
            break
    if tail in ("carry", "uneven"):
        expected = [list(batch) for _ in range(epochs + 12) for batch in total]
        assert found == expected[: len(found)]
    else:
        ordered = flat(found)
        again = loader_of(shape, batch_size=whole, rank=0, world_size=1, tail="uneven", drop_last=tail == "drop")
        first = flat(again)
        assert ordered[: len(first)] == first[: len(ordered)]


STAGES: dict[str, Callable[[DataLoader], DataLoader]] = {
    "filter": lambda line: line.filter(lambda value: value % 3 != 1).batch(4),
    "filter, map": lambda line: line.filter(lambda value: value % 3).map(lambda value: value * 10).batch(3),
    "flat_map": lambda line: line.flat_map(lambda value: [value] * (value % 4)).batch(3),
    "flat_map, flat_map": lambda line: line.flat_map(lambda v: [v, v + 1]).flat_map(lambda v: [v] * (v % 3)).batch(2),
    "bucket": lambda line: line.bucket([3, 6], [2, 3, 4], lambda value: value % 9, ragged="list"),
    "shuffle after flat_map": lambda line: line.flat_map(lambda value: [value] * 2).shuffle(7, seed=3).batch(3),
    "first fit": lambda line: line.map(tokens).pack(16, "tokens", open_rows=3).batch(2),
    "concat": lambda line: line.map(tokens).pack(16, "tokens", "concat").batch(2),
    "filter, pack": lambda line: line.filter(lambda value: value % 2).map(tokens).pack(16, "tokens").map(summed),
    "batch of batches": lambda line: line.batch(3).batch(2),
    "filter after batch": lambda line: line.batch(3).filter(lambda batch: sum(batch) % 2),
    "unbatch": lambda line: line.batch(5).unbatch().batch(3),
    "window": lambda line: line.window(4, 2).take(9),
    "take and skip": lambda line: line.skip(3).take(40).enumerate().batch(4),
    "take while": lambda line: line.take_while(lambda value: value != 60).batch(4),
    "interleave": lambda line: line.interleave(lambda value: range(value % 5), 3, 2).batch(4),
    "rng": lambda line: line.map(noisy).batch(4),
    "map a batch": lambda line: line.batch(4).map(lambda batch: [value + 1 for value in batch]),
}


def tokens(value: int) -> dict[str, Any]:
    return {"tokens": np.full(1 + value % 11, value, np.int32)}


def summed(row: dict[str, Any]) -> list[int]:
    return [int(row["tokens"].sum()), int(row["segment_ids"].max())]


def noisy(value: int, rng: np.random.Generator) -> float:
    return value + round(float(rng.random()), 9)


def plain(element: Any) -> Any:
    if isinstance(element, dict):
        return {name: plain(value) for name, value in element.items()}
    if isinstance(element, np.ndarray):
        return element.tolist()
    return [plain(one) for one in element] if isinstance(element, (list, tuple)) else element


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.filterwarnings("ignore:this pipeline goes on by replaying")
@settings(max_examples=15, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from([0, 0, 2]), st.sampled_from([1, 4]), st.integers(1, 12)), min_size=1, max_size=4
    ),
    shuffle=st.booleans(),
)
def test_a_pipeline_stopped_anywhere_goes_on_exactly(
    name: str, turns: list[tuple[int, int, int]], shuffle: bool
) -> None:
    """Each turn has its own workers and prefetch, and is left after some elements."""

    def made(workers: int = 0, ahead: int = 1) -> DataLoader:
        line = DataLoader(range(83), batch_size=None, num_workers=workers, prefetch=ahead, shuffle=shuffle, seed=4)
        return STAGES[name](line)

    whole = made()
    expected = [plain(element) for _ in range(2) for element in whole]
    found: list[Any] = []
    state: dict[str, Any] | None = None
    for workers, ahead, steps in itertools.islice(itertools.cycle(turns), 300):
        loader = made(workers, ahead)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        found += [plain(element) for element in itertools.islice(iter(loader), steps)]
        state = loader.state_dict()
        loader.close()
        if len(found) >= len(expected):
            break
    assert found[: len(expected)] == expected


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(["filter", "flat_map", "first fit", "bucket", "concat"]), st.booleans())
def test_after_a_filter_ranks_may_change_and_nothing_is_lost(data: st.DataObject, name: str, shuffle: bool) -> None:
    def made(rank: int, world: int) -> DataLoader:
        options: Any = {"rank": rank, "world_size": world, "tail": "uneven"}
        return STAGES[name](DataLoader(range(40), batch_size=None, num_workers=0, shuffle=shuffle, seed=4, **options))

    expected = values(list(made(0, 1)))
    found: list[int] = []
    state: dict[str, Any] | None = None
    for turn in range(4):
        world = data.draw(st.integers(1, 4), "ranks")
        ranks = [made(rank, world) for rank in range(world)]
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(json.loads(json.dumps(state)))
        for rank in ranks:
            steps = 1000 if turn == 3 else data.draw(st.integers(0, 4), "steps")
            found += values(list(itertools.islice(iter(rank), steps)))
        state = State.merge([State.from_dict(rank.state_dict()) for rank in ranks]).to_dict()
        if state["epoch"]:
            break
    assert sorted(found) == sorted(expected)


def values(elements: Any) -> list[int]:
    """Every sample, or token, that is in there."""
    if isinstance(elements, dict):
        kept = elements["segment_ids"] > 0
        return [int(token) for token in np.asarray(elements["tokens"])[kept]]
    if isinstance(elements, (list, tuple)):
        return [value for element in elements for value in values(element)]
    return [int(elements)]


def test_two_seeds_differ_and_one_seed_does_not() -> None:
    first, again, other = (
        flat(DataLoader(range(10_000), batch_size=100, shuffle=True, seed=seed, num_workers=0)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other) == list(range(10_000))


def test_every_epoch_has_its_own_order() -> None:
    loader = DataLoader(range(1000), batch_size=10, shuffle=True, num_workers=0)
    first, second = flat(loader), flat(loader)
    assert first != second
    loader.set_epoch(0)
    assert flat(loader) == first


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_steps_per_epoch_cut_one_endless_line(count: int, batch: int, world: int, steps: int) -> None:
    alone = DataLoader(range(count), batch_size=None, shuffle=True, num_workers=0).repeat(40)
    line = list(alone)
    ranks = [
        DataLoader(
            range(count),
            batch_size=batch,
            shuffle=True,
            rank=rank,
            world_size=world,
            steps_per_epoch=steps,
            num_workers=0,
        )
        for rank in range(world)
    ]
    found: list[int] = []
    for _ in range(3):
        epochs = [list(rank) for rank in ranks]
        assert [len(epoch) for epoch in epochs] == [steps] * world
        found += in_turn(epochs)
    assert found[: len(line)] == line[: len(found)]


def test_a_state_of_other_data_is_refused_with_what_differs() -> None:
    state = DataLoader(range(10), shuffle=True, seed=1).state_dict()
    with pytest.raises(LoaderStateError, match="seed is 2 here but 1"):
        DataLoader(range(10), shuffle=True, seed=2).load_state_dict(state)
    with pytest.raises(LoaderStateError, match="count is 11 here but 10"):
        DataLoader(range(11), shuffle=True, seed=1).load_state_dict(state)


def test_batch_size_changes_in_mid_epoch_and_on_resume() -> None:
    plain_order = flat(DataLoader(range(100), batch_size=10, shuffle=True, num_workers=0))
    loader = DataLoader(range(100), batch_size=10, shuffle=True, num_workers=2)
    found, sizes = [], []
    for batch in loader:
        found += batch
        sizes.append(len(batch))
        if len(sizes) == 3:
            loader.set_batch_size(20)
    assert found == plain_order
    assert sizes == [10, 10, 10, 20, 20, 20, 10]
    state = DataLoader(range(100), batch_size=10, shuffle=True, num_workers=0)
    line = iter(state)
    first = flat(itertools.islice(line, 4))
    larger = DataLoader(range(100), batch_size=30, shuffle=True, num_workers=0)
    larger.load_state_dict(state.state_dict())
    assert first + flat(larger) == plain_order
