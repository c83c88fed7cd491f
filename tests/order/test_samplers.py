"""Samplers: what PyTorch's promise, in PyTorch's own loader, and resumable besides."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from shoal.errors import LoaderStateError, OptionError
from shoal.order import DistributedSampler, SequentialSampler, ShufflingSampler, WeightedSampler


class Numbers(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return number


MAKERS = {
    "sequential": lambda: SequentialSampler(100),
    "shuffling": lambda: ShufflingSampler(100, seed=3),
    "windowed": lambda: ShufflingSampler(100, seed=3, window=20, block_samples=5),
    "distributed": lambda: DistributedSampler(100, num_replicas=3, rank=1, seed=3),
    "dropping": lambda: DistributedSampler(100, num_replicas=3, rank=1, seed=3, drop_last=True),
    "weighted": lambda: WeightedSampler(np.arange(100), 50, seed=3),
    "weighted, once": lambda: WeightedSampler(np.arange(100), 50, replacement=False, seed=3),
}


@pytest.fixture(params=list(MAKERS), ids=list(MAKERS))
def make(request):
    return MAKERS[request.param]


def test_torch_takes_it(make):
    sampler = make()
    loader = DataLoader(Numbers(100), batch_size=8, sampler=sampler)
    batches = list(loader)
    assert len(loader) == len(batches) == -(-len(sampler) // 8)
    assert torch.cat(batches).tolist() == list(make())


def test_torch_takes_it_with_workers():
    loader = DataLoader(Numbers(50), batch_size=5, sampler=ShufflingSampler(50, seed=1), num_workers=1)
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(50))


def test_len_is_how_many_come(make):
    sampler = make()
    assert len(sampler) == len(list(sampler)) == len(list(sampler))


@pytest.mark.parametrize("stop", [0, 1, 7, 30])
def test_a_state_goes_on_where_it_was_taken(make, stop):
    whole = make()
    expected = [*whole, *whole]
    first = make()
    taken = list(itertools.islice(iter(first), stop))
    state = json.loads(json.dumps(first.state_dict()))
    second = make()
    second.load_state_dict(state)
    assert [*taken, *second, *second] == expected


def test_a_state_taken_between_epochs_starts_the_next(make):
    whole = make()
    expected = [*whole, *whole][len(whole) :]
    first = make()
    list(first)
    second = make()
    second.load_state_dict(first.state_dict())
    assert list(second) == expected


def test_iterating_again_starts_the_epoch_again(make):
    sampler = make()
    whole = list(make())
    for _ in range(2):
        assert list(itertools.islice(iter(sampler), 5)) == whole[:5]
    assert list(sampler) == whole


def test_epochs_can_be_set(make):
    sampler, other = make(), make()
    first, second = list(sampler), list(sampler)
    other.set_epoch(1)
    assert list(other) == second
    other.set_epoch(0)
    assert other.epoch == 0
    assert list(other) == first
    with pytest.raises(OptionError):
        sampler.set_epoch(-1)


def test_setting_the_epoch_that_is_being_read_keeps_the_place():
    """Trainers call set_epoch after loading a checkpoint."""
    sampler = ShufflingSampler(100, seed=3)
    iterator = iter(sampler)
    taken = [next(iterator) for _ in range(10)]
    state = sampler.state_dict()
    other = ShufflingSampler(100, seed=3)
    other.load_state_dict(state)
    other.set_epoch(0)
    assert taken + list(other) == list(ShufflingSampler(100, seed=3))


def test_every_epoch_is_another_order():
    sampler = ShufflingSampler(10_000, seed=1)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(10_000))
    assert first == list(ShufflingSampler(10_000, seed=1))
    assert first != list(ShufflingSampler(10_000, seed=2))


@pytest.mark.parametrize("count, world_size", [(10, 4), (12, 4), (3, 8), (100, 7)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shares_are_as_large_as_pytorchs_and_unshuffled_the_same(count, world_size, drop_last):
    for rank in range(world_size):
        theirs = torch.utils.data.DistributedSampler(
            Numbers(count), num_replicas=world_size, rank=rank, shuffle=False, drop_last=drop_last
        )
        ours = DistributedSampler(
            Numbers(count), num_replicas=world_size, rank=rank, shuffle=False, drop_last=drop_last
        )
        assert len(ours) == len(theirs)
        assert list(ours) == list(theirs)


@given(st.integers(1, 200), st.integers(1, 8), st.integers(1, 8), st.integers(0, 30))
def test_a_share_goes_on_on_another_number_of_ranks(count, before, after, steps):
    ranks = [DistributedSampler(count, num_replicas=before, rank=rank, seed=1) for rank in range(before)]
    steps = min(steps, len(ranks[0]) - 1)  # the last step may repeat samples; the tail is then cut anew
    taken = [number for rank in ranks for number in itertools.islice(iter(rank), steps)]
    states = [rank.state_dict() for rank in ranks]
    later = [DistributedSampler(count, num_replicas=after, rank=rank, seed=1) for rank in range(after)]
    for sampler in later:
        sampler.load_state_dict(states[0])
    rest = [number for sampler in later for number in sampler]
    assert all(state == states[0] for state in states) or steps == 0
    assert set(taken) | set(rest) == set(range(count))
    assert not set(taken) & set(rest) or len(rest) > count - len(taken)
    assert len(rest) - (count - len(taken)) < after


def test_without_replacement_each_is_drawn_once_and_the_heavy_first():
    weights = np.array([1.0] * 900 + [50.0] * 100)
    sampler = WeightedSampler(weights, 200, replacement=False, seed=1)
    drawn = list(sampler)
    assert len(set(drawn)) == 200
    assert sum(number >= 900 for number in drawn[:50]) > 30
    assert drawn != list(sampler)


def test_without_replacement_first_draws_follow_the_weights():
    weights = [1.0, 2.0, 3.0, 4.0]
    sampler = WeightedSampler(weights, 1, replacement=False, seed=1)
    drawn = np.bincount([next(iter(sampler)) for epoch in range(4000) if sampler.set_epoch(epoch) is None], minlength=4)
    expected = np.array(weights) * 400
    assert ((drawn - expected) ** 2 / expected).sum() < 3 + 5 * np.sqrt(6)


def test_a_state_of_another_sampler_is_refused():
    state = ShufflingSampler(100, seed=3).state_dict()
    with pytest.raises(LoaderStateError, match="seed is 4 here but 3 in the state"):
        ShufflingSampler(100, seed=4).load_state_dict(state)
    with pytest.raises(LoaderStateError, match="replacement"):
        MAKERS["weighted"]().load_state_dict(MAKERS["weighted, once"]().state_dict())


@pytest.mark.parametrize(
    "bad",
    [
        lambda: ShufflingSampler(-1),
        lambda: ShufflingSampler(10, window=0),
        lambda: DistributedSampler(10, num_replicas=2, rank=2),
        lambda: WeightedSampler([1.0], 0),
        lambda: WeightedSampler([1.0, 0.0], 2, replacement=False),
        lambda: WeightedSampler([-1.0], 2),
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(OptionError):
        bad()


def test_a_launcher_tells_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(DistributedSampler(9, shuffle=False)) == [1, 4, 7]
    assert list(DistributedSampler(9, num_replicas=2, rank=0, shuffle=False)) == [0, 2, 4, 6, 8]
    with pytest.raises(OptionError, match="go together"):
        DistributedSampler(9, rank=0)
    monkeypatch.delenv("RANK")
    with pytest.raises(OptionError, match="RANK is not"):
        DistributedSampler(4, shuffle=False)
    monkeypatch.delenv("WORLD_SIZE")
    assert list(DistributedSampler(4, shuffle=False)) == [0, 1, 2, 3]
