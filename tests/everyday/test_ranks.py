"""In a program of several ranks, whatever gives batches splits them, with equal steps; nothing else is split."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data as torch_data
from numpy.typing import NDArray
from torch import Generator

import shoal
import shoal.torch
from shoal.errors import LoaderStateError, OptionError
from shoal.order import DistributedSampler, ShufflingSampler

COUNT = 23


@shoal.packable
class Row:
    """A typed sample."""

    n: int
    x: NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 samples in shards of 5: plain in one folder, typed in another."""
    folder = tmp_path_factory.mktemp("ranks")
    with shoal.ShardWriter(folder / "plain" / "a-%06d.tar", max_samples=5) as writer:
        for number in range(COUNT):
            writer.write({"__key__": f"k{number:02d}", "cls": number})
    shoal.write_samples([Row(number, np.full(3, number, np.float32)) for number in range(COUNT)], folder / "typed")
    return folder


@pytest.fixture
def plain(folder: Path) -> shoal.Dataset[Any]:
    return shoal.Dataset(folder / "plain")


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], Any]], list[list[Any]]]:
    """Run a function as a launcher would on each rank; return what each has."""

    def run(world: int, function: Callable[[], Any]) -> list[list[Any]]:
        results = []
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))
            results.append(list(function()))
        monkeypatch.delenv("RANK")
        monkeypatch.delenv("WORLD_SIZE")
        return results

    return run


def labels(batch: Any) -> list[int]:
    values = batch if isinstance(batch, list) else batch["n" if isinstance(batch, shoal.SampleBatch) else "cls"]
    return [int(value["cls"] if isinstance(value, dict) else value) for value in values]


def numbers(ranks: list[list[Any]]) -> list[int]:
    return [number for rank in ranks for batch in rank for number in labels(batch)]


GIVE_BATCHES: dict[str, Callable[[Any], Any]] = {
    "ordered": lambda ds: ds.ordered(4),
    "shuffled": lambda ds: ds.shuffled(4, seed=1),
    "ordered view": lambda ds: ds.select(range(COUNT)).ordered(4),
    "formatted": lambda ds: ds.with_format("numpy").ordered(4),
    "mapped": lambda ds: ds.map(lambda sample: sample).ordered(4),
    "batched": lambda ds: ds.batched(4),
    "batched lists": lambda ds: ds.batched(4, None),
    "listed": lambda ds: ds.listed(4),
    "batched and mapped": lambda ds: ds.batched(4).map(lambda batch: batch),
    "batch": lambda ds: ds.batch(4),
    "loader": lambda ds: ds.loader(batch_size=4),
    "shuffle": lambda ds: ds.shuffle(seed=1).batch(4),
    "DataLoader": lambda ds: shoal.DataLoader(ds, batch_size=4, shuffle=True),
    "torch.DataLoader": lambda ds: shoal.torch.DataLoader(ds, batch_size=4, shuffle=True),
    "batches of a loader": lambda ds: shoal.DataLoader(ds.batched(4), batch_size=None),
    "sampler": lambda ds: shoal.DataLoader(ds, sampler=range(COUNT), batch_size=4),
    "seeded sampler": lambda ds: shoal.DataLoader(ds, sampler=ShufflingSampler(COUNT, seed=1), batch_size=4),
    "torch sampler": lambda ds: shoal.DataLoader(
        ds, sampler=torch_data.RandomSampler(range(COUNT), generator=Generator().manual_seed(3)), batch_size=4
    ),
    "batch_sampler": lambda ds: shoal.DataLoader(ds, batch_sampler=BATCHES),
    "single samples": lambda ds: shoal.DataLoader(ds, sampler=range(COUNT), batch_size=None).map(lambda one: [one]),
    "distributed sampler": lambda ds: shoal.DataLoader(ds, sampler=DistributedSampler(COUNT, seed=2), batch_size=4),
    "distributed batches": lambda ds: shoal.DataLoader(
        ds, batch_sampler=torch_data.BatchSampler(DistributedSampler(COUNT, seed=2), 4, drop_last=False)
    ),
}
BATCHES = [list(range(first, min(first + 4, COUNT))) for first in range(0, COUNT, 4)]


@pytest.mark.parametrize("name", GIVE_BATCHES)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_batches_are_split_with_equal_steps(plain: Any, on_ranks: Any, name: str, world: int) -> None:
    ranks = on_ranks(world, lambda: GIVE_BATCHES[name](plain))
    assert len({len(rank) for rank in ranks}) == 1
    counts = Counter(numbers(ranks))
    assert set(counts) == set(range(COUNT))
    repeated = counts.total() - COUNT  # only what fills the last step is repeated
    assert repeated < (world * 4 if "batch" in name or name == "listed" else world)


@pytest.mark.parametrize("name", ["ordered", "shuffled", "batched"])
def test_typed_batches_are_split(folder: Path, on_ranks: Any, name: str) -> None:
    dataset: Any = shoal.Dataset(folder / "typed", sample_type=Row)
    ranks = on_ranks(2, lambda: GIVE_BATCHES[name](dataset))
    assert all(isinstance(batch, shoal.SampleBatch) for rank in ranks for batch in rank)
    assert [len(rank) for rank in ranks] == [3, 3]
    assert set(numbers(ranks)) == set(range(COUNT))
    (alone,) = on_ranks(1, lambda: GIVE_BATCHES[name](dataset))
    if name != "batched":  # ranks take turns in the order that a single process has
        turns = [n for pair in zip(*(numbers([rank]) for rank in ranks), strict=True) for n in pair]
        assert turns[:COUNT] == numbers([alone])


NEVER_SPLIT: dict[str, Callable[[Any], Any]] = {
    "iteration": list,
    "ordered samples": lambda ds: ds.ordered(),
    "shuffled samples": lambda ds: ds.shuffled(seed=1),
    "indexing": lambda ds: [ds[number] for number in range(COUNT)],
    "a slice": lambda ds: ds[:],
    "to_arrow": lambda ds: ds.to_arrow().to_pylist(),
    "to_pandas": lambda ds: ds.to_pandas().to_dict("records"),
    "batches by position": lambda ds: ds.batched(1, None)[:],
    "unbatched": lambda ds: ds.batched(4).unbatched(),
    "map": lambda ds: ds.map(lambda sample: sample),
    "filter": lambda ds: ds.filter(lambda sample: True),
}


@pytest.mark.parametrize("name", NEVER_SPLIT)
def test_samples_are_never_split(plain: Any, on_ranks: Any, name: str) -> None:
    first, second = on_ranks(2, lambda: NEVER_SPLIT[name](plain))
    assert len(first) == len(second) == COUNT


@pytest.mark.parametrize("name", ["iteration", "to_arrow", "unbatched", "a slice", "shuffled samples"])
def test_typed_samples_are_never_split(folder: Path, on_ranks: Any, name: str) -> None:
    dataset: Any = shoal.Dataset(folder / "typed", sample_type=Row)
    first, second = on_ranks(2, lambda: NEVER_SPLIT[name](dataset))
    assert len(first) == len(second) == COUNT


@pytest.mark.parametrize("name", ["loader", "ordered", "batched", "sampler"])
def test_a_world_size_without_a_rank_is_an_error(plain: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(OptionError, match=r"RANK is not.*set RANK"):
        list(GIVE_BATCHES[name](plain))
    assert len(list(plain)) == COUNT
    assert len(list(shoal.DataLoader(plain, batch_size=4, rank=0, world_size=4))) == 2
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert len(list(GIVE_BATCHES[name](plain))) == 6


def test_a_shuffle_of_several_ranks_needs_a_seed(plain: Any, on_ranks: Any) -> None:
    with pytest.raises(OptionError, match="seed"):
        on_ranks(2, lambda: plain.shuffled(4))


def odd(sample: Any) -> bool:
    return bool(sample["cls"] % 3)


UNKNOWN_LENGTH: dict[str, Callable[[Any, Any], Any]] = {
    "filter": lambda ds, options: shoal.DataLoader(ds.filter(odd), batch_size=4, **options),
    "filter of a loader": lambda ds, options: shoal.DataLoader(ds, batch_size=None, **options).filter(odd).batch(4),
    "filter of batches": lambda ds, options: shoal.DataLoader(ds, batch_size=4, **options).filter(bool),
    "flat_map": lambda ds, options: (
        shoal.DataLoader(ds, batch_size=None, **options).flat_map(lambda s: [s, s]).batch(4)
    ),
    "take_while": lambda ds, options: shoal.DataLoader(ds, batch_size=4, **options).take_while(bool),
    "a stream": lambda ds, options: shoal.DataLoader((s for s in list(ds)), batch_size=4, **options),
    "filter of a sampler": lambda ds, options: shoal.DataLoader(
        ds.filter(odd), sampler=range(COUNT), batch_size=4, **options
    ),
}


@pytest.mark.parametrize("name", UNKNOWN_LENGTH)
def test_an_unknown_number_of_batches_is_an_error_that_says_what_to_do(plain: Any, on_ranks: Any, name: str) -> None:
    with pytest.raises(OptionError, match=r"steps_per_epoch=.*tail="):
        on_ranks(2, lambda: UNKNOWN_LENGTH[name](plain, {"num_workers": 0}))
    uneven = on_ranks(2, lambda: UNKNOWN_LENGTH[name](plain, {"num_workers": 0, "tail": "uneven"}))
    (alone,) = on_ranks(1, lambda: UNKNOWN_LENGTH[name](plain, {"num_workers": 0}))
    assert Counter(numbers(uneven)) == Counter(numbers([alone]))
    if name != "a stream":  # which cannot be read twice
        stepped = on_ranks(2, lambda: UNKNOWN_LENGTH[name](plain, {"num_workers": 0, "steps_per_epoch": 2}))
        assert [len(rank) for rank in stepped] == [2, 2]


@pytest.mark.parametrize("method", ["ordered", "batched"])
def test_batches_of_a_filtered_dataset_are_refused_on_ranks(plain: Any, on_ranks: Any, method: str) -> None:
    with pytest.raises(OptionError, match="materialize"):
        on_ranks(2, lambda: getattr(plain.filter(odd), method)(4))
    ranks = on_ranks(2, lambda: getattr(plain.filter(odd).materialize(), method)(4))
    assert set(numbers(ranks)) == {number for number in range(COUNT) if number % 3}


@pytest.mark.parametrize("tail, steps", [("pad", 3), ("drop", 3), ("uneven", 3)])
@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_sampler_ends_as_tail_says(plain: Any, on_ranks: Any, name: str, tail: str, steps: int) -> None:
    sampler: Any = range(COUNT) if name == "sampler" else BATCHES
    given = {name: sampler, **({"batch_size": 4} if name == "sampler" else {})}
    ranks = on_ranks(2, lambda: shoal.DataLoader(plain, tail=tail, num_workers=0, **given))
    found = numbers(ranks)
    assert [len(rank) for rank in ranks] == [steps, steps]
    if tail == "pad":
        assert set(found) == set(range(COUNT))
    elif name == "sampler":
        assert sorted(found) == list(range(COUNT if tail == "uneven" else COUNT - 1))


def test_the_length_is_that_of_the_rank(plain: Any, on_ranks: Any) -> None:
    for given in ({"sampler": range(COUNT), "batch_size": 4}, {"batch_sampler": BATCHES}):
        assert on_ranks(2, lambda given=given: [len(shoal.DataLoader(plain, **given))]) == [[3], [3]]


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("worlds", [(2, 1), (1, 2), (4, 2), (2, 2)])
def test_a_sampler_resumes_on_another_number_of_ranks(plain: Any, on_ranks: Any, name: str, worlds: Any) -> None:
    before, after = worlds

    def made() -> shoal.DataLoader:
        drawn: Any = ShufflingSampler(COUNT, seed=4) if name == "sampler" else BATCHES
        size = {"batch_size": 4 // after} if name == "sampler" else {}
        return shoal.DataLoader(plain, num_workers=0, tail="uneven", **{name: drawn}, **size)

    def first() -> Iterator[Any]:
        loader = made().with_options(batch_size=2) if name == "sampler" else made()
        yield from itertools.islice(loader, 1)
        states.append(json.loads(json.dumps(loader.state_dict())))

    states: list[Any] = []
    begun = on_ranks(before, first)
    assert all(state == states[0] for state in states)

    def rest() -> Any:
        loader = made()
        loader.load_state_dict(states[0])
        return loader

    assert sorted(numbers(begun) + numbers(on_ranks(after, rest))) == list(range(COUNT))


@pytest.mark.parametrize("filtered", [False, True])
def test_a_sampler_that_draws_something_else_is_refused(plain: Any, filtered: bool) -> None:
    def made(seed: int) -> shoal.DataLoader:
        dataset = plain.filter(odd) if filtered else plain
        sampler = torch_data.RandomSampler(range(COUNT), generator=Generator().manual_seed(seed))
        return shoal.DataLoader(dataset, sampler=sampler, batch_size=4, num_workers=0)

    loader = made(1)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    with pytest.warns(shoal.ShoalWarning) if filtered else _nothing():
        same, other = made(1), made(2)
        same.load_state_dict(state)
        other.load_state_dict(state)
    assert len(list(same)) == (3 if filtered else 5)
    with pytest.raises(LoaderStateError, match="the sampler draws other samples"):
        list(other)


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.filterwarnings("ignore:skipped:shoal.errors.ShoalWarning")
@pytest.mark.parametrize("batch_size", [1, None])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_skipped_samples_do_not_change_the_number_of_steps(
    plain: Any, on_ranks: Any, batch_size: int | None, sampled: bool, world: int
) -> None:
    def fail(sample: Any) -> Any:
        if sample["cls"] in (0, 4, 9, 22):
            raise ValueError(sample["cls"])
        return [sample["cls"]] if batch_size is None else sample

    options: Any = {"sampler": range(COUNT)} if sampled else {"shuffle": True}
    ranks = on_ranks(
        world,
        lambda: shoal.DataLoader(
            plain.map(fail), batch_size=batch_size, on_error="skip", error_budget=4, num_workers=0, **options
        ),
    )
    assert [len(rank) for rank in ranks] == [-(-COUNT // world)] * world
    assert set(numbers(ranks)) == set(range(COUNT)) - {0, 4, 9, 22}


@pytest.mark.parametrize("is_seeded", [True, False])
def test_workers_of_pytorch_share_what_a_sampler_draws(is_seeded: bool) -> None:
    generator = Generator().manual_seed(3) if is_seeded else None
    sampler = torch_data.RandomSampler(range(24), generator=generator)
    loader = shoal.DataLoader(range(24), sampler=sampler, batch_size=2)
    dataset = shoal.torch.TorchIterableDataset(loader)
    batches = torch_data.DataLoader(dataset, batch_size=None, num_workers=2)
    if is_seeded:
        assert sorted(number for batch in batches for number in batch.tolist()) == list(range(24))
    else:
        with pytest.raises(OptionError, match="draws another list in each of several workers"):
            list(batches)
