"""Wrong options are named; ranks of launchers; steps_per_epoch; prefetching; statistics."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import LoaderError, OptionError, ShoalWarning
from shoal.load import DataLoader, LoaderOptions, LoaderStats, ThreadingOptions
from shoal.order import State

pytestmark = pytest.mark.filterwarnings("ignore:this pipeline goes on by replaying")

BAD_OPTIONS: dict[str, list[Any]] = {
    "batch_size": [0, -1, 1.5, "4", True],
    "drop_last": [1, None, "yes"],
    "shuffle": [1, None],
    "seed": [-1, None, 0.5, 1 << 64],
    "num_workers": [-1, "many", None, 1.0],
    "prefetch": [-1, "all", None],
    "auto_tune": [0],
    "window": [0, "big"],
    "block_samples": [0],
    "lanes": [0, None],
    "tail": ["cut", None],
    "replication": [0],
    "steps_per_epoch": [0, -3],
    "memory_budget": [0, None, "1G"],
    "max_in_flight": [0],
    "on_error": ["ignore", True],
    "error_budget": [-1, 1.5],
    "quarantine": [3],
    "ragged": ["cut"],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in BAD_OPTIONS.items() for value in values])
def test_a_bad_option_is_named_wherever_it_is_given(name: str, value: Any) -> None:
    for give in (
        lambda: LoaderOptions(**{name: value}),
        lambda: DataLoader(range(4), **{name: value}),
        lambda: DataLoader(range(4)).with_options(**{name: value}),
        lambda: DataLoader(range(4)).options(**{name: value}),
    ):
        with pytest.raises(OptionError, match=name) as caught:
            give()
        assert repr(value) in str(caught.value)


def test_numbers_of_numpys_are_numbers() -> None:
    three: Any = np.int64(3)
    options = LoaderOptions(batch_size=three, seed=three, num_workers=three, prefetch=three, rank=three, world_size=4)
    assert options == LoaderOptions(batch_size=3, seed=3, num_workers=3, prefetch=3, rank=3, world_size=4)
    loader = DataLoader(range(48), options).options(ThreadingOptions(private_threadpool_size=three)).take(three)
    assert [len(batch) for batch in loader] == [3, 3, 3]
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()


def test_every_option_is_checked() -> None:
    assert set(BAD_OPTIONS) | {"rank", "world_size"} == set(LoaderOptions.__dataclass_fields__)


line = DataLoader(range(4), batch_size=None)


@pytest.mark.parametrize(
    "told, give",
    [
        ("rank and world_size", lambda: LoaderOptions(rank=0)),
        ("rank", lambda: LoaderOptions(rank=-1, world_size=2)),
        ("rank.*0 to 1", lambda: LoaderOptions(rank=2, world_size=2)),
        ("no such option.*found batchsize", lambda: DataLoader(range(4), batchsize=3)),
        ("no such option.*found worker", lambda: line.options(worker=3)),
        ("expected LoaderOptions", lambda: DataLoader(range(4), {"batch_size": 3})),
        ("ThreadingOptions or LoaderOptions", lambda: line.options({"num_workers": 3})),
        ("private_threadpool_size", lambda: ThreadingOptions(private_threadpool_size=-1)),
        ("max_inter_op_parallelism", lambda: ThreadingOptions(max_inter_op_parallelism=0)),
        ("max_intra_op_parallelism", lambda: line.options(max_intra_op_parallelism="2")),
        ("timeout", lambda: DataLoader(range(4), timeout=-1)),
        ("timeout", lambda: DataLoader(range(4), timeout="1")),
        ("collate_fn", lambda: DataLoader(range(4), collate_fn=3)),
        ("map", lambda: line.map(3)),
        ("workers", lambda: line.map(str, workers="fibre")),
        ("num_parallel_calls", lambda: line.map(str, -1)),
        ("filter", lambda: line.filter(None)),
        ("flat_map", lambda: line.flat_map([])),
        ("interleave", lambda: line.interleave(3)),
        ("cycle_length", lambda: line.interleave(list, 0)),
        ("block_length", lambda: line.interleave(list, 1, 0)),
        ("batch_size", lambda: line.batch(0)),
        ("drop_last", lambda: line.batch(2, 1)),
        ("ragged", lambda: line.batch(2, ragged="cut")),
        ("collate_fn", lambda: line.batch(2, collate_fn=3)),
        ("batch_size", lambda: line.padded_batch(True)),
        ("boundaries", lambda: line.bucket([3, 2], 2, len)),
        ("one batch size for each bucket", lambda: line.bucket([3], [2], len)),
        ("batch_sizes", lambda: line.bucket([3], 0, len)),
        ("length_of", lambda: line.bucket([3], 2, 3)),
        ("length", lambda: line.pack(0, "tokens")),
        ("how", lambda: line.pack(8, "tokens", "best_fit")),
        ("field", lambda: line.pack(8, 3)),
        ("open_rows", lambda: line.pack(8, "tokens", open_rows=0)),
        ("size", lambda: line.window(0)),
        ("shift", lambda: line.window(2, 0)),
        ("drop_last", lambda: line.window(2, drop_last="no")),
        ("buffer_size", lambda: line.shuffle(0)),
        ("seed", lambda: line.shuffle(10, -1)),
        ("count", lambda: line.take(-1)),
        ("count", lambda: line.skip(-1)),
        ("take_while", lambda: line.take_while(3)),
        ("start", lambda: line.enumerate("0")),
        ("count", lambda: line.repeat(0)),
        ("prefetch", lambda: line.prefetch(-1)),
        ("epoch", lambda: line.set_epoch(-1)),
        ("batch size", lambda: line.set_batch_size(3)),
        ("batch_size", lambda: DataLoader(range(4)).set_batch_size(0)),
        ("Dataset", lambda: len(DataLoader("train.tar"))),
        ("Dataset", lambda: len(DataLoader(Path("train.tar")))),
        ("a dataset, a sequence or an iterable", lambda: len(DataLoader(5))),
        ("buffer", lambda: list(DataLoader(iter([1]), shuffle=True))),
    ],
)
def test_a_bad_argument_is_told_before_anything_is_read(told: str, give: Callable[[], Any]) -> None:
    with pytest.raises(OptionError, match=told):
        give()


def test_what_is_no_line_of_tokens_is_not_packed() -> None:
    with pytest.raises(OptionError, match=r"no line of tokens.*str under 'txt'"):
        list(DataLoader([{"txt": "a"}], batch_size=None).pack(8, "txt"))


@pytest.mark.parametrize(
    "rank, world",
    [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_launchers_tell_rank_and_world(monkeypatch: pytest.MonkeyPatch, rank: str, world: str) -> None:
    monkeypatch.setenv(world, "3")
    found = []
    for number in range(3):
        monkeypatch.setenv(rank, str(number))
        loader = DataLoader(range(12), batch_size=2, num_workers=0)
        assert (loader.split.rank, loader.split.world_size) == (number, 3)
        found.append(list(loader))
    assert found == [[[0, 3], [6, 9]], [[1, 4], [7, 10]], [[2, 5], [8, 11]]]
    given_ones = DataLoader(range(12), batch_size=2, num_workers=0, rank=0, world_size=1)
    assert len(list(given_ones)) == 6
    monkeypatch.setenv(rank, "3")
    with pytest.raises(OptionError, match=f"{rank} and {world}"):
        len(DataLoader(range(12)))


def test_torchrun_comes_before_the_scheduler_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")):
        monkeypatch.setenv(name, value)
    assert (DataLoader(range(9)).split.rank, DataLoader(range(9)).split.world_size) == (5, 8)


@pytest.mark.parametrize("chain", ["batch", "filter", "stream"])
def test_replicated_ranks_see_the_same(chain: str) -> None:
    def made(rank: int) -> list[Any]:
        data: Any = iter(range(24)) if chain == "stream" else range(24)
        tail = "pad" if chain == "batch" else "uneven"
        loader = DataLoader(data, batch_size=None, num_workers=0, rank=rank, world_size=4, replication=2, tail=tail)
        loader = loader.with_options(shuffle=chain != "stream")
        return list((loader.filter(lambda value: value % 2) if chain == "filter" else loader).batch(3))

    ranks = [made(rank) for rank in range(4)]
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    every = sorted(itertools.chain(*ranks[0], *ranks[2]))
    assert every == [value for value in range(24) if value % 2 or chain != "filter"]


CHAINS: dict[str, Callable[[DataLoader], DataLoader]] = {
    "samples": lambda loader: loader,
    "filter": lambda loader: loader.filter(lambda value: value % 3),
    "filter, batch": lambda loader: loader.filter(lambda value: value % 3).batch(2),
    "flat_map": lambda loader: loader.flat_map(lambda value: [value] * (value % 3)),
    "batch, filter": lambda loader: loader.batch(3).filter(lambda batch: sum(batch) % 2),
    "unbatch": lambda loader: loader.batch(3).unbatch(),
    "window": lambda loader: loader.window(3, 2),
    "bucket": lambda loader: loader.bucket([3, 6], 2, lambda value: value % 9, ragged="list"),
    "buffer": lambda loader: loader.flat_map(lambda value: [value]).shuffle(5, 1),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("source", ["numbers", "line"])
@settings(max_examples=15, deadline=None)
@given(steps=st.integers(1, 9), left=st.integers(0, 30), workers=st.sampled_from([0, 0, 1]))
def test_epochs_of_so_many_steps_cut_one_line_and_resume(
    name: str, source: str, steps: int, left: int, workers: int
) -> None:
    def made(**options: Any) -> DataLoader:
        data: Any = range(17) if source == "numbers" else lambda: iter(range(17))
        shuffle = source == "numbers"
        return CHAINS[name](DataLoader(data, batch_size=None, shuffle=shuffle, num_workers=workers, **options))

    endless = list(itertools.islice(made().repeat(60), 45))
    loader = made(steps_per_epoch=steps)
    if name != "samples":
        assert len(loader) == steps
    if name in ("samples", "filter", "flat_map", "unbatch", "batch, filter") or source == "line":
        # Nothing is held back at an epoch's end in these, so that one line through epochs is the epochs in a row.
        by_epoch = [list(itertools.islice(loader, 99)) for _ in range(-(-45 // steps))]
        if name not in ("window", "filter, batch", "bucket", "buffer", "batch, filter"):
            assert list(itertools.chain(*by_epoch))[:45] == endless
        assert all(len(epoch) == steps for epoch in by_epoch)
    loader.close()
    first = made(steps_per_epoch=steps)
    whole = made(steps_per_epoch=steps)
    expected = [element for _ in range(left // steps + 2) for element in whole]
    found: list[Any] = []
    while len(found) < left:
        found += itertools.islice(first, left - len(found))
    again = made(steps_per_epoch=steps)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert again.epoch == left // steps
    found += list(again)
    assert len(found) % steps == 0
    found += list(again)
    assert found == expected[: len(found)]
    for one in (first, whole, again):
        one.close()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), st.integers(0, 3))
def test_ranks_with_a_filter_and_steps_resume_between_and_in_epochs(
    world: int, steps: int, epochs: int, more: int
) -> None:
    more = min(more, steps)

    def made(rank: int) -> DataLoader:
        loader = DataLoader(
            range(40), batch_size=None, num_workers=0, rank=rank, world_size=world, steps_per_epoch=steps, shuffle=True
        )
        return loader.filter(lambda value: value % 3).batch(2)

    ranks = [made(rank) for rank in range(world)]
    for loader in ranks:
        for _ in range(epochs):
            assert len(list(loader)) == steps
        list(itertools.islice(loader, more))
    state = State.merge([State.from_dict(loader.state_dict()) for loader in ranks]).to_dict()
    for rank in range(world):
        again = made(rank)
        again.load_state_dict(json.loads(json.dumps(state)))
        plain = made(rank)
        expected = [batch for _ in range(epochs + 2) for batch in plain]
        done = steps * epochs + more
        found = list(again)
        assert found == expected[done : done + (steps - more or steps)]


@pytest.mark.parametrize("chain", ["filter", "unbatch", "empty"])
def test_steps_of_nothing_are_an_error_and_not_a_hang(chain: str) -> None:
    loader = DataLoader([] if chain == "empty" else range(9), batch_size=None, num_workers=0, steps_per_epoch=3)
    loader = loader.batch(2).unbatch().filter(lambda _: False) if chain == "unbatch" else loader.filter(lambda _: False)
    with pytest.raises(LoaderError, match="a whole epoch gave nothing"):
        list(loader)


def test_a_broken_off_epoch_of_steps_begins_anew_where_it_began() -> None:
    loader = DataLoader(range(40), batch_size=None, num_workers=0, steps_per_epoch=5).filter(lambda value: value % 2)
    assert list(loader) == [1, 3, 5, 7, 9]
    assert list(itertools.islice(loader, 2)) == [11, 13]
    assert list(loader) == [11, 13, 15, 17, 19]


def test_set_epoch_is_about_the_next_iteration() -> None:
    loader = DataLoader(range(20), batch_size=None, shuffle=True, num_workers=0)
    epochs = [list(loader) for _ in range(4)]
    loader.set_epoch(1)
    iterator = iter(loader)
    first = list(itertools.islice(iterator, 5))
    loader.set_epoch(3)
    assert first + list(iterator) == epochs[1]
    assert loader.epoch == 3
    assert list(loader) == epochs[3]
    assert loader.epoch == 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("filtered", [False, True])
def test_the_batch_size_changes_from_the_next_batch_on(workers: int, filtered: bool) -> None:
    data = DataLoader(range(24), batch_size=None).filter(lambda _: True) if filtered else range(24)
    loader = DataLoader(data, batch_size=2, num_workers=workers)
    sizes = []
    for batch in loader:
        sizes.append(len(batch))
        if len(sizes) == 3:
            loader.set_batch_size(7)
    assert sizes == [2, 2, 2, 7, 7, 4]
    assert [len(batch) for batch in loader] == [7, 7, 7, 3]
    iterator = iter(loader)
    list(itertools.islice(iterator, 4))
    loader.set_batch_size(12)
    assert list(iterator) == []
    assert [len(batch) for batch in loader] == [12, 12]
    loader.close()


def test_with_options_changes_the_batch_of_a_collate_function_too() -> None:
    loader = DataLoader(range(6), batch_size=2, collate_fn=tuple, num_workers=0)
    assert list(loader) == [(0, 1), (2, 3), (4, 5)]
    assert loader.settings.batch_size == 2
    assert list(loader.with_options(batch_size=4)) == [(0, 1, 2, 3), (4, 5)]
    loader.set_batch_size(3)
    assert list(loader) == [(0, 1, 2), (3, 4, 5)]


class Counting:
    """Tells which samples were read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read = 0
        self.more = threading.Condition()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> int:
        with self.more:
            self.read += 1
            self.more.notify_all()
        return at

    def has_read(self, count: int) -> bool:
        with self.more:
            return self.more.wait_for(lambda: self.read >= count, 30)


def test_work_for_the_next_epoch_begins_before_this_one_ends() -> None:
    data = Counting(20)
    loader = DataLoader(data, batch_size=2, num_workers=1, prefetch=4)
    iterator = iter(loader)
    list(itertools.islice(iterator, 9))
    assert data.has_read(20 + 2 * 2)  # four are under way: the last batch, the epoch's end, two of the next epoch
    assert [len(batch) for batch in iterator] == [2]
    before = data.read
    second = iter(loader)
    next(second)
    assert data.read - before <= 2 * 4
    assert data.has_read(before + 2)
    loader.close()


@pytest.mark.parametrize("prefetch, most", [(1, None), (5, None), (5, 2)])
def test_prefetch_is_how_far_work_goes_ahead(prefetch: int, most: int | None) -> None:
    data = Counting(1000)
    ahead = min(prefetch, most or prefetch)
    with DataLoader(data, batch_size=1, num_workers=2, prefetch=prefetch, max_in_flight=most) as loader:
        iterator = iter(loader)
        list(itertools.islice(iterator, 10))
        assert data.has_read(9 + ahead)
        assert data.read <= 10 + ahead


def test_no_workers_read_nothing_ahead() -> None:
    data = Counting(100)
    iterator = iter(DataLoader(data, batch_size=2, num_workers=0, prefetch=8))
    for taken in range(1, 5):
        next(iterator)
        assert data.read == 2 * taken


@pytest.mark.parametrize("workers", [0, 2])
def test_of_a_slow_feed_a_sample_is_given_soon_after_it_came(workers: int) -> None:
    came: list[int] = []

    def feed() -> Iterator[int]:
        for number in range(60):
            until = time.monotonic() + 0.012
            while time.monotonic() < until:
                pass
            came.append(number)
            yield number

    for number in DataLoader(feed, batch_size=None, num_workers=workers, prefetch=4).map(lambda value: value):
        assert len(came) <= number + 6  # not a chunk of 32 for each of the four that are made ahead


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chain", ["batches", "filter"])
def test_stats_count_what_was_delivered(workers: int, chain: str) -> None:
    data = [np.zeros(100, np.uint8) for _ in range(50)]
    loader = DataLoader(data, batch_size=None, num_workers=workers)
    loader = (loader.filter(lambda _: True) if chain == "filter" else loader).batch(8)
    told: list[LoaderStats] = []
    loader.on_batch(told.append)
    assert len(list(loader)) == 7
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.bytes, stats.epoch) == (7, 50, 5000, 1)
    assert [one.batches for one in told] == list(range(1, 8))
    assert stats.first_batch is not None
    assert stats.wait > 0
    assert 0 <= stats.wait_share <= 1
    assert json.loads(json.dumps(stats.to_dict()))["bound_by"] == stats.bound_by
    assert "50 samples in 7 batches" in str(stats)
    loader.close()


def busy(units: int) -> None:
    """Work that takes some time, on any machine."""
    sum(range(20_000 * units))


@pytest.mark.parametrize("kind", ["read", "map", "collate", "consumer"])
def test_stats_say_what_the_loader_is_bound_by(kind: str) -> None:
    class Data:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, at: int) -> int:
            busy(10 if kind == "read" else 0)
            return at

    def mapped(value: int) -> int:
        busy(10 if kind == "map" else 0)
        return value

    def collated(values: list[int]) -> list[int]:
        busy(40 if kind == "collate" else 0)
        return values

    loader = DataLoader(Data(), batch_size=None, num_workers=0).map(mapped).batch(4, collate_fn=collated)
    for _ in loader:
        busy(400 if kind == "consumer" else 0)
    stats = loader.stats()
    assert stats.bound_by.startswith(f"{kind}-bound, ")
    assert (stats.wait_share < 0.05) == (kind == "consumer")


def test_repeated_samples_are_counted() -> None:
    loaders = [DataLoader(range(10), batch_size=2, rank=rank, world_size=4, num_workers=0) for rank in range(4)]
    for loader in loaders:
        list(loader)
    assert sum(loader.stats().repeated for loader in loaders) == 2


def test_a_fixed_setting_is_never_tuned() -> None:
    loader = DataLoader(range(5000), batch_size=1, num_workers=2, prefetch=3)
    seen = {(loader.stats().workers, loader.stats().prefetch) for _ in loader}
    assert seen == {(2, 3)}
    loader.close()
    plain = DataLoader(range(5000), batch_size=1, auto_tune=False)
    assert len({(plain.stats().workers, plain.stats().prefetch) for _ in plain}) == 1
    plain.close()


def test_untuned_workers_stay_within_their_bound() -> None:
    with DataLoader(range(9), auto_tune=False).options(max_inter_op_parallelism=1) as loader:
        assert len(list(loader)) == 1
        assert (loader.stats().workers, loader.stats().prefetch) == (1, 2)


def lines() -> Iterator[int]:
    yield from range(5)


def test_data_may_be_a_function_that_begins_it_anew() -> None:
    loader = DataLoader(lines, batch_size=2, num_workers=0)
    assert list(loader) == list(loader) == [[0, 1], [2, 3], [4]]


def test_what_can_be_read_once_says_so_when_it_is_read_again() -> None:
    loader = DataLoader(lines(), batch_size=2)
    assert list(loader) == [[0, 1], [2, 3], [4]]
    with pytest.warns(ShoalWarning, match="generator can be read once.*give the function"):
        assert list(loader) == []
    assert list(DataLoader(iter([]), batch_size=2)) == []
