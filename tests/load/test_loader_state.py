"""States are small and readable; a killed run resumes; random numbers belong to samples."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import LoaderStateError, ShoalWarning
from shoal.load import DataLoader
from shoal.order import State


def test_a_state_is_about_300_bytes_of_json() -> None:
    loader = DataLoader(range(10**12), batch_size=512, shuffle=True, seed=12345, num_workers=0, rank=3, world_size=64)
    loader.set_epoch(7)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 350
    filtered = DataLoader(range(10**6), batch_size=None, shuffle=True, num_workers=0).filter(lambda v: v % 2).batch(9)
    next(iter(filtered))
    assert len(json.dumps(filtered.state_dict())) < 400


def test_a_state_counts_what_was_delivered_and_not_what_was_made() -> None:
    loader = DataLoader(range(100), batch_size=5, num_workers=2, prefetch=6)
    iterator = iter(loader)
    positions = [loader.state_dict()["position"]]
    for _ in range(4):
        next(iterator)
        positions.append(loader.state_dict()["position"])
    assert positions == [0, 5, 10, 15, 20]
    loader.close()


def test_taking_a_state_changes_nothing() -> None:
    loader = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=0)
    plain = list(DataLoader(range(30), batch_size=4, shuffle=True, num_workers=0))
    found = []
    for batch in loader:
        state = loader.state_dict()
        assert state == loader.state_dict()
        found.append(batch)
    assert found == plain


def test_a_state_survives_being_loaded_before_anything_is_delivered() -> None:
    first = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=0)
    list(itertools.islice(first, 3))
    state = first.state_dict()
    for _ in range(3):
        again = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=0)
        again.load_state_dict(state)
        assert again.state_dict()["position"] == state["position"]
        state = again.state_dict()
    whole = list(DataLoader(range(30), batch_size=4, shuffle=True, num_workers=0))
    assert list(again) == whole[3:]


@pytest.mark.parametrize("state", [{}, None, [], {"version": 9}, {"settings": {}, "version": 1}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(LoaderStateError):
        DataLoader(range(5)).load_state_dict(state)


def test_a_state_of_another_pipeline_is_refused() -> None:
    state = DataLoader(range(9), batch_size=None).window(3).state_dict()
    for other in (
        DataLoader(range(9), batch_size=None).window(4),
        DataLoader(range(9), batch_size=None),
        DataLoader(range(9), batch_size=None).window(3).take(2),
    ):
        with pytest.raises(LoaderStateError, match="stages"):
            other.load_state_dict(state)


REPLAYED: dict[str, tuple[Callable[[], DataLoader], str]] = {
    "line": (lambda: DataLoader(lambda: iter(range(40)), batch_size=4, num_workers=0), "read from its start"),
    "unbatch": (lambda: DataLoader(range(40), batch_size=4, num_workers=0).unbatch(), "unbatch has no place"),
    "window": (lambda: DataLoader(range(40), batch_size=None, num_workers=0).window(3, 1), "window has no place"),
    "filter after a sampler": (
        lambda: DataLoader(range(40), batch_size=None, sampler=range(40), num_workers=0).filter(lambda v: v % 2),
        "a sampler says what comes",
    ),
}


@pytest.mark.parametrize("name", REPLAYED)
def test_going_on_by_replaying_is_told_with_what_it_costs(name: str) -> None:
    make, why = REPLAYED[name]
    loader = make()
    first = list(itertools.islice(loader, 5))
    again = make()
    with pytest.warns(ShoalWarning, match=rf"^this pipeline goes on by replaying: 5 elements .*{why}"):
        again.load_state_dict(loader.state_dict())
    assert first + list(again) == list(make())


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(range(40), batch_size=4, shuffle=True, num_workers=0),
        lambda: DataLoader(range(40), batch_size=None, num_workers=0).filter(lambda v: v % 2).batch(3),
        lambda: DataLoader(range(40), batch_size=4, sampler=range(40), num_workers=0),
        lambda: DataLoader(range(40), batch_size=4, num_workers=0).filter(sum).map(list),
    ],
)
def test_what_goes_on_without_replaying_does_not_warn(make: Callable[[], DataLoader]) -> None:
    loader = make()
    first = list(itertools.islice(loader, 3))
    again = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict(loader.state_dict())
    assert first + list(again) == list(make())


def test_the_start_of_a_line_is_gone_on_with_at_no_cost() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(lambda: iter(range(5)), batch_size=2, num_workers=0)
        loader.load_state_dict(loader.state_dict())
    assert list(loader) == [[0, 1], [2, 3], [4]]


def test_only_what_is_left_is_read_again() -> None:
    read: list[int] = []

    def made() -> DataLoader:
        line = DataLoader(range(1000), batch_size=None, shuffle=True, num_workers=0)
        return line.map(lambda value: read.append(value) or value).batch(10)

    loader = made()
    list(itertools.islice(loader, 90))
    again = made()
    again.load_state_dict(loader.state_dict())
    read.clear()
    assert len(list(again)) == 10
    assert len(read) == 100


def test_a_killed_run_goes_on_from_its_last_state_and_loses_nothing(tmp_path: Path) -> None:
    with shoal.ShardWriter(str(tmp_path / "train-%06d.tar"), max_samples=100) as writer:
        for number in range(1000):
            writer.write({"__key__": f"k{number:04d}", "cls": number})
    code = """
        import json, os, signal, sys
        import shoal
        from shoal.load import DataLoader

        folder, dies_after = sys.argv[1], int(sys.argv[2])
        state, log = os.path.join(folder, "state.json"), os.path.join(folder, "log.txt")
        loader = DataLoader(shoal.Dataset(folder), batch_size=None, shuffle=True, seed=5, num_workers=2, prefetch=4)
        loader = loader.filter(lambda sample: sample["cls"] % 7).map(lambda sample: sample["cls"]).batch(8)
        if os.path.exists(state):
            with open(state) as file:
                saved = json.load(file)
            loader.load_state_dict(saved["loader"])
            os.truncate(log, saved["logged"])
        with open(log, "a") as out:
            for number, batch in enumerate(loader):
                out.write(json.dumps(batch) + "\\n")
                out.flush()
                if number % 3 == 2:  # not after every step, as nobody does
                    with open(state + ".new", "w") as file:
                        json.dump({"loader": loader.state_dict(), "logged": out.tell()}, file)
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(state + ".new", state)
                if number == dies_after:
                    os.kill(os.getpid(), signal.SIGKILL)
        print("ended")
    """
    ended = False
    for dies_after in (10, 4, 29, 1000):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path), str(dies_after)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        ended = done.stdout == "ended\n"
        assert ended or done.returncode == -signal.SIGKILL, done.stderr
    assert ended
    found = [json.loads(line) for line in (tmp_path / "log.txt").read_text().splitlines()]
    loader = DataLoader(shoal.Dataset(str(tmp_path)), batch_size=None, shuffle=True, seed=5, num_workers=0)
    expected = list(loader.filter(lambda s: s["cls"] % 7).map(lambda s: s["cls"]).batch(8))
    assert found == expected
    assert sorted(itertools.chain(*found)) == [number for number in range(1000) if number % 7]
    assert os.path.exists(tmp_path / "state.json")


def noisy(value: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return value, float(rng.random())


def made(workers: int = 0, chain: str = "samples", count: int = 40, **options: Any) -> DataLoader:
    loader = DataLoader(range(count), batch_size=None, num_workers=workers, prefetch=3, seed=9, **options)
    return {
        "samples": lambda: loader.map(noisy),
        "filter": lambda: loader.filter(lambda value, rng: rng.random() < 0.5),
        "flat_map": lambda: loader.flat_map(lambda value, rng: [value] * int(rng.integers(3))).map(noisy),
        "batches": lambda: loader.batch(3, collate_fn=tuple).map(noisy),
        "after a filter": lambda: loader.filter(lambda v: v % 3).batch(3, collate_fn=tuple).map(noisy),
        "after a bucket": lambda: loader.bucket([5], 2, lambda v: v % 9, collate_fn=tuple).map(noisy),
    }[chain]()


CHAINS = ["samples", "filter", "flat_map", "batches", "after a filter", "after a bucket"]


@pytest.mark.parametrize("chain", CHAINS)
def test_random_numbers_are_those_of_the_sample_in_its_epoch(chain: str) -> None:
    loader = made(0, chain)
    first, second = list(loader), list(loader)
    assert list(made(0, chain)) == first
    threaded = made(2, chain)
    assert [list(threaded), list(threaded)] == [first, second]
    threaded.close()
    assert first != second
    other = DataLoader(range(40), batch_size=None, num_workers=0, seed=10).map(noisy)
    assert list(other) != list(made(0))


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=10, deadline=None)
@given(left=st.integers(0, 30), shuffle=st.booleans())
def test_random_numbers_resume_exactly(chain: str, left: int, shuffle: bool) -> None:
    whole = made(0, chain, shuffle=shuffle)
    expected = list(whole) + list(whole)
    loader = made(0, chain, shuffle=shuffle)
    first: list[Any] = list(itertools.islice(loader, left))
    again = made(0, chain, shuffle=shuffle)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    found = first + list(again)
    assert found == expected[: len(found)]


def test_random_numbers_do_not_depend_on_order_or_ranks() -> None:
    plain = dict(made())
    assert dict(made(shuffle=True)) == plain
    ranks = [pair for rank in range(3) for pair in made(rank=rank, world_size=3, tail="uneven")]
    assert dict(ranks) == plain


def test_each_function_and_each_sample_has_its_own_random_numbers() -> None:
    drawn: Iterator[Any] = iter(made(count=500).map(lambda pair, rng: (*pair, float(rng.random()))))
    found = np.array([numbers[1:] for numbers in drawn])
    assert len(np.unique(found)) == found.size
    assert abs(np.corrcoef(found.T)[0, 1]) < 0.2
    batches = [number for _, number in made(chain="batches", count=500)]
    assert len(set(batches)) == len(batches)


def test_functions_without_rng_are_called_without_one() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, value: int) -> int:
            return value + 1

    assert list(DataLoader(range(3), batch_size=None, num_workers=0).map(Unhashable()).map(str)) == ["1", "2", "3"]


def test_another_process_gives_the_same_samples_and_numbers() -> None:
    code = """
        import json
        from shoal.load import DataLoader

        def noisy(value, rng):
            return [value, float(rng.random())]

        loader = DataLoader(range(60), batch_size=4, shuffle=True, seed=9, num_workers=3, window=20, block_samples=3)
        loader = loader.map(noisy)
        print(json.dumps([batch for _ in range(2) for batch in loader]))
    """

    def with_noise(batch: list[int], rng: np.random.Generator) -> list[Any]:
        return [batch, float(rng.random())]

    loader = DataLoader(range(60), batch_size=4, shuffle=True, seed=9, num_workers=0, window=20, block_samples=3)
    loader = loader.map(with_noise)
    expected = [batch for _ in range(2) for batch in loader]
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        assert json.loads(done.stdout) == expected


HOLDING: dict[str, Callable[[DataLoader], DataLoader]] = {
    "bucket": lambda line: line.bucket([3, 6], [2, 3, 4], lambda value: value % 9, ragged="list"),
    "buffer": lambda line: line.flat_map(lambda value: [value]).shuffle(7, 1).batch(2),
    "first fit": lambda line: line.map(tokens).pack(16, "tokens", open_rows=3).map(samples_in),
    "concat": lambda line: line.map(tokens).pack(16, "tokens", "concat").map(samples_in),
}


def tokens(value: int) -> dict[str, Any]:
    return {"tokens": np.full(1 + value % 11, value, np.int32)}


def samples_in(row: dict[str, Any]) -> list[int]:
    assert len(row["tokens"]) == 16
    return [int(token) for token in row["tokens"][row["segment_ids"] > 0]]


@pytest.mark.parametrize("name", HOLDING)
@pytest.mark.parametrize(
    "turns", [[[2], [0, 2], [1], [99]], [[1, 2], [3, 0, 1], [1], [0], [2, 2], [99]], [[2, 2, 2], [1], [1, 1], [99]]]
)
def test_what_ranks_held_back_is_not_lost_when_they_change(name: str, turns: list[list[int]]) -> None:
    """Each turn has as many ranks as numbers, and each rank takes so many steps of it."""

    def made(rank: int, world: int) -> DataLoader:
        options: dict[str, Any] = {"rank": rank, "world_size": world, "tail": "uneven"}
        return HOLDING[name](DataLoader(range(80), batch_size=None, num_workers=0, seed=4, **options))

    expected = sorted(value for element in made(0, 1) for value in element)
    found: list[int] = []
    state: dict[str, Any] | None = None
    for steps in turns:
        ranks = [made(rank, len(steps)) for rank in range(len(steps))]
        for loader, count in zip(ranks, steps, strict=True):
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            found += [value for element in itertools.islice(loader, count) for value in element]
        state = State.merge([State.from_dict(loader.state_dict()) for loader in ranks]).to_dict()
    assert sorted(found) == expected
