"""``sampler=`` and ``batch_sampler=``: shoal's, PyTorch's and any iterable; epochs, lengths and resuming."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.utils.data as torch_data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from shoal.errors import OptionError, PositionError
from shoal.load import DataLoader
from shoal.order import DistributedSampler, SequentialSampler, ShufflingSampler, WeightedSampler

COUNT = 23
DATA = [10 * number for number in range(COUNT)]

SAMPLERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [5, 3, 3, 22, 0],
    "range": lambda: range(4, 20, 3),
    "shoal sequential": lambda: SequentialSampler(COUNT),
    "shoal shuffling": lambda: ShufflingSampler(COUNT, seed=2),
    "shoal window": lambda: ShufflingSampler(COUNT, seed=2, window=8, block_samples=2),
    "shoal distributed": lambda: DistributedSampler(COUNT, num_replicas=3, rank=1, seed=2),
    "shoal weighted": lambda: WeightedSampler(range(COUNT), 17, seed=2),
    "torch sequential": lambda: torch_data.SequentialSampler(DATA),
    "torch random": lambda: torch_data.RandomSampler(DATA, generator=Generator().manual_seed(3)),
    "torch distributed": lambda: torch_data.DistributedSampler(DATA, num_replicas=3, rank=1, seed=2),
    "torch weighted": lambda: torch_data.WeightedRandomSampler([1.0] * COUNT, 17, generator=Generator().manual_seed(3)),
    "torch subset": lambda: torch_data.SubsetRandomSampler(range(3, 20), generator=Generator().manual_seed(3)),
}
WITH_EPOCHS = [name for name in SAMPLERS if not name.startswith("torch ") or name == "torch distributed"]


def epoch_of(sampler: Any, epoch: int) -> list[int]:
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    return [10 * number for number in sampler]


def cut(values: list[int], size: int, drop: bool) -> list[list[int]]:
    made = [values[at : at + size] for at in range(0, len(values), size)]
    return [one for one in made if len(one) == size or not drop]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_samples_come_as_the_sampler_says(name: str, workers: int, drop_last: bool) -> None:
    alone = SAMPLERS[name]()
    loader = DataLoader(DATA, sampler=SAMPLERS[name](), batch_size=4, drop_last=drop_last, num_workers=workers)
    for epoch in range(3):
        expected = cut(epoch_of(alone, epoch), 4, drop_last)
        assert len(loader) == len(expected)
        assert list(loader) == expected
    loader.close()


@pytest.mark.parametrize("name", SAMPLERS)
def test_without_batches_samples_come_one_by_one(name: str) -> None:
    loader = DataLoader(DATA, sampler=SAMPLERS[name](), batch_size=None, num_workers=0)
    expected = epoch_of(SAMPLERS[name](), 0)
    assert len(loader) == len(expected)
    assert list(loader) == expected


@pytest.mark.parametrize("name", WITH_EPOCHS)
@settings(max_examples=8, deadline=None)
@given(left=st.integers(0, 12), epoch=st.integers(0, 2), batch=st.sampled_from([None, 1, 4]))
def test_a_sampler_is_gone_on_with_without_reading_what_was_delivered(
    name: str, left: int, epoch: int, batch: int | None
) -> None:
    read: list[int] = []

    def made() -> DataLoader:
        loader = DataLoader(DATA, sampler=SAMPLERS[name](), batch_size=None, num_workers=0)
        loader = loader.map(lambda value: read.append(value) or value)
        return loader if batch is None else loader.batch(batch)

    whole = made()
    whole.set_epoch(epoch)
    expected = list(whole)
    loader = made()
    loader.set_epoch(epoch)
    iterator = iter(loader)
    first = list(itertools.islice(iterator, min(left, len(expected))))
    state = json.loads(json.dumps(loader.state_dict()))
    again = made()
    again.load_state_dict(state)
    read.clear()
    rest = list(again)
    assert first + rest == expected
    assert len(read) == len(rest if batch is None else list(itertools.chain(*rest)))


class Groups:
    """A batch sampler that knows epochs."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        shift = self.epochs[-1]
        return iter([[shift, 1], [2], [3, 4, 5 + shift]])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_makes_the_batches_and_hears_of_epochs(workers: int) -> None:
    groups = Groups()
    loader = DataLoader(DATA, batch_sampler=groups, num_workers=workers)
    assert len(loader) == 3
    for epoch in range(3):
        assert list(loader) == [[10 * epoch, 10], [20], [30, 40, 50 + 10 * epoch]]
    loader.close()
    assert groups.epochs[:3] == [0, 1, 2]
    loader.set_epoch(7)
    assert list(loader)[0] == [70, 10]  # noqa: RUF015 - the whole epoch
    assert 7 in groups.epochs
    loader.close()


def test_a_batch_sampler_of_pytorch_passes_the_epoch_on() -> None:
    def sampler() -> Any:
        return torch_data.DistributedSampler(DATA, num_replicas=2, rank=0, seed=1)

    groups = torch_data.BatchSampler(sampler(), 5, drop_last=True)
    loader = DataLoader(DATA, batch_sampler=groups, num_workers=0)
    for epoch in range(2):
        assert len(loader) == 2
        assert list(loader) == cut(epoch_of(sampler(), epoch), 5, drop=True)
    iterator = iter(loader)
    first = next(iterator)
    again = DataLoader(DATA, batch_sampler=torch_data.BatchSampler(sampler(), 5, drop_last=True), num_workers=0)
    again.load_state_dict(loader.state_dict())
    assert [first, *again] == cut(epoch_of(sampler(), 2), 5, drop=True)


def test_a_sampler_after_a_filter_and_with_steps() -> None:
    line = DataLoader(DATA, sampler=[5, 6, 7, 8, 9], batch_size=None, num_workers=0).filter(lambda v: v % 20)
    assert list(line.batch(2)) == [[50, 70], [90]]
    stepped = line.options(steps_per_epoch=2)
    assert [list(stepped), list(stepped)] == [[50, 70], [90, 50]]


def test_a_shuffle_after_a_sampler_goes_through_a_buffer() -> None:
    line = DataLoader(range(100), sampler=range(50), batch_size=None, num_workers=0).shuffle(20, seed=1)
    found = list(line)
    assert sorted(found) == list(range(50))
    assert found != list(range(50))


def test_what_does_not_go_together_is_refused() -> None:
    for options, told in [
        ({"sampler": [1], "batch_sampler": [[1]]}, "sampler or batch_sampler"),
        ({"sampler": [1], "shuffle": True}, "shuffle=False"),
        ({"batch_sampler": [[1]], "drop_last": True}, "drop_last=True"),
        ({"batch_sampler": [[1]], "batch_size": None}, "batch_size=None"),
        ({"sampler": 5}, "an iterable"),
    ]:
        with pytest.raises(OptionError, match=told):
            DataLoader(DATA, **options)
    with pytest.raises(OptionError, match="a sampler needs samples with positions"):
        list(DataLoader(iter(DATA), sampler=[1]))


def test_a_sampler_of_unknown_length_has_none() -> None:
    loader = DataLoader(DATA, sampler=(number for number in (3, 1)), num_workers=0)
    with pytest.raises(TypeError):
        len(loader)
    assert list(loader) == [[30, 10]]


@pytest.mark.parametrize("told", [{"sampler": [3, COUNT]}, {"batch_sampler": [[0], [-1]]}])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_is_not_there_is_told_with_those_that_are(told: dict[str, Any], workers: int) -> None:
    with pytest.raises(PositionError, match=f"expected 0 to {COUNT - 1}, found"):
        list(DataLoader(DATA, num_workers=workers, **told))
