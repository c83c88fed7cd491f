"""Errors name stage, function, shard and key; samples are skipped within a budget; no error is lost."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import ErrorBudgetExceeded, LoaderError, LoaderTimeoutError, OptionError, ShoalError
from shoal.load import DataLoader, LoaderOptions

WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(scope="module")
def functions() -> Iterator[Any]:
    """The module of functions, under a name by which other processes find it too."""
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder if before is None else os.pathsep.join([folder, before])
    spec = importlib.util.find_spec("process_functions")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["process_functions"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(folder)
    del sys.modules["process_functions"]
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def dataset(tmp_path: Path) -> shoal.Dataset[Any]:
    """Twelve samples in three shards."""
    with shoal.ShardWriter(str(tmp_path / "train-%06d.tar"), max_samples=4) as writer:
        for number in range(12):
            writer.write({"__key__": f"k{number:02d}", "cls": number, "npy": np.full(100, number, np.int32)})
    return shoal.Dataset(str(tmp_path))


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


class Planned(Exception):  # noqa: N818 - a name in a test
    pass


def line_of(function: Any) -> str:
    return f"{Path(__file__).name}:{function.__code__.co_firstlineno}"


@WORKERS
@pytest.mark.parametrize("verb", ["map", "filter", "flat_map"])
def test_an_error_of_a_function_is_told_with_where_it_happened(
    dataset: shoal.Dataset[Any], verb: str, workers: int
) -> None:
    def failing(sample: dict[str, Any]) -> list[int]:
        if sample["cls"] == 6:
            raise Planned("six")
        return [1]

    loader = getattr(DataLoader(dataset, batch_size=None, num_workers=workers), verb)(failing).batch(3)
    with pytest.raises(Planned) as caught:
        list(loader)
    assert str(caught.value) == "six"
    told = notes_of(caught.value)
    assert f"in {verb}(" in told
    assert line_of(failing) in told
    assert "train-000001.tar" in told
    assert "key k06" in told
    assert "failing" in "".join(entry.name for entry in caught.traceback)


@WORKERS
def test_an_error_in_what_a_flat_map_gives_is_its_error(dataset: shoal.Dataset[Any], workers: int) -> None:
    def parts(sample: dict[str, Any]) -> Iterator[int]:
        yield sample["cls"]
        if sample["cls"] == 5:
            raise Planned("five")

    loader = DataLoader(dataset, batch_size=None, num_workers=workers).flat_map(parts)
    with pytest.raises(Planned) as caught:
        list(loader)
    assert "key k05" in notes_of(caught.value)


@WORKERS
def test_an_error_of_a_batch_function_is_told_with_its_first_sample(dataset: shoal.Dataset[Any], workers: int) -> None:
    def failing(batch: Any) -> Any:
        if 5 in batch["cls"]:
            raise Planned("five")
        return batch

    with pytest.raises(Planned) as caught:
        list(DataLoader(dataset, batch_size=4, num_workers=workers).map(failing))
    told = notes_of(caught.value)
    assert "in map(" in told
    assert line_of(failing) in told
    assert "batch from: shard" in told
    assert "key k04" in told


@WORKERS
@pytest.mark.parametrize("filtered", [False, True])
def test_an_error_of_a_collate_function_names_it(dataset: shoal.Dataset[Any], workers: int, filtered: bool) -> None:
    def failing(samples: list[Any]) -> Any:
        raise Planned(len(samples))

    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    loader = loader.filter(lambda _: True) if filtered else loader
    with pytest.raises(Planned, match="4") as caught:
        list(loader.batch(4, collate_fn=failing))
    told = notes_of(caught.value)
    assert "in collate(" in told
    assert line_of(failing) in told
    if not filtered:
        assert "key k00" in told


@WORKERS
@pytest.mark.parametrize("verb", ["map", "filter", "flat_map", "take_while", "interleave", "bucket"])
def test_an_error_after_a_batch_names_the_function(verb: str, workers: int) -> None:
    def failing(batch: Any) -> Any:
        raise Planned(len(batch))

    loader = DataLoader(range(20), num_workers=workers).batch(4).filter(lambda _: True)
    made = loader.bucket([3], 2, failing) if verb == "bucket" else getattr(loader, verb)(failing)
    with pytest.raises(Planned) as caught:
        list(made)
    assert f"in {verb}(" in notes_of(caught.value)
    assert line_of(failing) in notes_of(caught.value)


@WORKERS
def test_what_came_before_an_error_is_delivered_before_it(workers: int) -> None:
    def failing(value: int) -> int:
        if value == 25:
            raise Planned
        return value

    found: list[list[int]] = []
    loader = DataLoader(range(60), batch_size=None, num_workers=workers, prefetch=6).map(failing).batch(5)
    with pytest.raises(Planned):
        found.extend(loader)
    assert found == [list(range(first, first + 5)) for first in range(0, 25, 5)]


@WORKERS
def test_a_line_that_fails_gives_all_it_had(workers: int) -> None:
    def line() -> Iterator[int]:
        yield from range(100)
        raise Planned("the feed broke")

    found: list[list[int]] = []
    with pytest.raises(Planned):
        found.extend(DataLoader(line, batch_size=4, num_workers=workers, prefetch=5))
    assert found == [list(range(first, first + 4)) for first in range(0, 96, 4)]


@WORKERS
@pytest.mark.parametrize("where", ["map", "filter", "after a batch", "take_while", "read"])
def test_a_stray_stop_iteration_does_not_pass_for_the_end(where: str, workers: int) -> None:
    def stops(value: Any) -> Any:
        return next(iter(()))

    class Data(list[int]):
        def __getitem__(self, at: Any) -> Any:
            return next(iter(()))

    line = DataLoader(Data(range(9)) if where == "read" else range(9), batch_size=None, num_workers=workers)
    made = {
        "map": lambda: line.map(stops),
        "filter": lambda: line.filter(stops),
        "after a batch": lambda: line.filter(bool).batch(2).map(stops),
        "take_while": lambda: line.take_while(stops),
        "read": lambda: line,
    }[where]()
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(made)


@WORKERS
def test_after_an_error_a_new_iteration_is_as_good_as_any(workers: int) -> None:
    broken = True

    def failing(value: int) -> int:
        if value == 7 and broken:
            raise Planned
        return value

    loader = DataLoader(range(12), batch_size=None, num_workers=workers).map(failing).batch(2)
    for _ in range(3):
        with pytest.raises(Planned):
            list(loader)
    state = loader.state_dict()
    broken = False
    again = DataLoader(range(12), batch_size=None, num_workers=workers).map(failing).batch(2)
    again.load_state_dict(state)
    assert list(again) == [[6, 7], [8, 9], [10, 11]]
    assert list(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    loader.close()
    again.close()


def test_a_listener_that_fails_stops_the_loop() -> None:
    loader = DataLoader(range(12), batch_size=2, num_workers=0)
    loader.on_batch(lambda stats: 1 // (3 - stats.batches))
    with pytest.raises(ZeroDivisionError):
        list(loader)


@pytest.mark.filterwarnings("ignore:skipped:shoal.errors.ShoalWarning")
@WORKERS
@pytest.mark.parametrize("verb", ["map", "filter", "flat_map"])
def test_samples_that_fail_are_skipped_and_counted(verb: str, workers: int) -> None:
    def failing(value: int) -> Any:
        if value % 10 == 3:
            raise Planned
        return {"map": value, "filter": True, "flat_map": [value]}[verb]

    loader = DataLoader(range(50), batch_size=None, num_workers=workers, on_error="skip", error_budget=5)
    loader = getattr(loader, verb)(failing).batch(7)
    for epoch in (1, 2, 3):  # the budget is an epoch's
        assert sorted(value for batch in loader for value in batch) == [n for n in range(50) if n % 10 != 3]
        assert loader.stats().skipped == 5 * epoch
        assert loader.stats().samples == 45 * epoch
    loader.close()


@WORKERS
def test_one_more_than_the_budget_is_an_error(workers: int) -> None:
    def failing(value: int) -> int:
        if value % 10 == 3:
            raise Planned("three")
        return value

    loader = DataLoader(range(50), batch_size=None, num_workers=workers, on_error="skip", error_budget=4)
    with pytest.raises(ErrorBudgetExceeded, match=r"expected at most 4, found 5.*three.*in map") as caught:
        list(loader.map(failing))
    assert isinstance(caught.value.__cause__, Planned)
    every = DataLoader(range(200), batch_size=None, num_workers=workers, on_error="skip").map(failing)
    with pytest.raises(ErrorBudgetExceeded, match=r"at most 2"):  # a hundredth
        list(every)


@pytest.mark.filterwarnings("ignore:skipped:shoal.errors.ShoalWarning")
@WORKERS
def test_a_batch_of_which_nothing_is_left_is_left_out(workers: int) -> None:
    def failing(value: int) -> int:
        if value in (4, 5):
            raise Planned
        return value

    loader = DataLoader(range(8), batch_size=None, num_workers=workers, on_error="skip", error_budget=2)
    assert list(loader.map(failing).batch(2)) == [[0, 1], [2, 3], [6, 7]]


@pytest.mark.filterwarnings("ignore:skipped:shoal.errors.ShoalWarning")
@WORKERS
def test_damaged_bytes_are_told_and_can_be_skipped(dataset: shoal.Dataset[Any], tmp_path: Path, workers: int) -> None:
    shard = tmp_path / "train-000001.tar"
    data = bytearray(shard.read_bytes())
    at = data.index(b"\x93NUMPY", data.index(b"k06.npy"))
    data[at : at + 6] = b"broken"
    stamp = shard.stat()
    shard.write_bytes(bytes(data))
    os.utime(shard, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    damaged = shoal.Dataset(str(tmp_path))
    with pytest.raises(ShoalError) as caught:
        list(DataLoader(damaged, batch_size=2, num_workers=workers))
    told = f"{caught.value}\n{notes_of(caught.value)}"
    assert "k06" in told
    assert "train-000001.tar" in told
    assert "while reading" in told
    loader = DataLoader(damaged, batch_size=2, num_workers=workers, on_error="skip")
    found = [label for batch in loader for label in batch["cls"]]
    assert found == [number for number in range(12) if number != 6]
    assert loader.stats().skipped == 1
    loader.close()


@pytest.mark.filterwarnings("ignore:skipped:shoal.errors.ShoalWarning")
def test_other_processes_map_and_their_errors_are_told(dataset: shoal.Dataset[Any], functions: Any) -> None:
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    good = loader.map(functions.number_of, workers="process").batch(5)
    assert list(good) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    good.close()
    with pytest.raises(LookupError) as caught:
        list(loader.map(functions.fails_at_seven, workers="process"))
    assert str(caught.value) == "seven"
    told = notes_of(caught.value)
    assert "in map(fails_at_seven at process_functions.py:" in told
    assert "train-000001.tar" in told
    assert "key k07" in told
    assert "Traceback" in told
    skipping = DataLoader(dataset, batch_size=None, num_workers=2, on_error="skip")
    assert len(list(skipping.map(functions.fails_at_seven, workers="process"))) == 11


def test_processes_are_others_and_batches_are_mapped_in_them_too(functions: Any) -> None:
    line = DataLoader(range(8), batch_size=None, num_workers=1)
    with line.map(functions.pid, workers="process") as loader:
        assert os.getpid() not in {process for _, process in loader}
    with line.batch(2).map(functions.pid, workers="process") as loader:
        assert os.getpid() not in {process for _, process in loader}
    with line.filter(lambda _: True).batch(2).map(functions.doubled, workers="process") as loader:
        assert list(loader) == [[0, 2], [4, 6], [8, 10], [12, 14]]
    with line.map(functions.noisy, workers="process") as loader:
        assert list(loader) == list(line.map(functions.noisy))


def test_what_cannot_be_sent_is_told_clearly(functions: Any) -> None:
    line = DataLoader(range(8), batch_size=None, num_workers=1)
    with pytest.raises(OptionError, match=r"must be one that they can import.*lambda.*workers='thread'"):
        list(line.map(lambda value: value, workers="process"))
    with pytest.raises(OptionError, match=r"must be one that they can import"):
        list(line.map(functions.pid, workers="process").map(lambda value: value, workers="process"))
    with pytest.raises(LoaderError, match=r"Odd: 1 and 2") as caught:
        list(line.map(functions.raises_odd, workers="process"))
    assert "key 3" in notes_of(caught.value)
    with pytest.raises(TypeError, match="pickle") as wrong:
        list(line.map(functions.gives_a_lock, workers="process"))
    assert "key 3" in notes_of(wrong.value)


def test_a_process_that_dies_is_an_error_and_not_a_hang(functions: Any) -> None:
    loader = DataLoader(range(8), batch_size=None, num_workers=1).map(functions.dies, workers="process")
    with pytest.raises(LoaderError, match="a process that maps samples has ended") as caught:
        list(loader)
    assert "in map(dies at" in notes_of(caught.value)
    gc.collect()


def test_a_batch_that_does_not_come_in_time_is_an_error() -> None:
    release = threading.Event()
    loader = DataLoader(range(10), LoaderOptions(batch_size=1, num_workers=1), timeout=0.1).map(
        lambda batch: release.wait(60) if batch == [4] else batch
    )
    found = []
    with pytest.raises(LoaderTimeoutError, match=r"no batch came in time: expected one within 0.1 s") as caught:
        found.extend(loader)
    assert isinstance(caught.value, TimeoutError)
    release.set()
    loader.close()
