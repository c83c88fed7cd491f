"""Results are in order, threads are as many as set, and none is left, whatever ends the loop."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from itertools import chain, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import LoaderTimeoutError
from shoal.load import DataLoader, ThreadingOptions

OTHERS: set[threading.Thread] = set()
"""Threads of loaders that tests before, in this process, still hold."""


def loading() -> list[threading.Thread]:
    every = (thread for thread in threading.enumerate() if thread.name.startswith("shoal-load"))
    return [thread for thread in every if thread not in OTHERS]


def collected(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not is_so() and time.monotonic() < deadline:
        gc.collect()
    return is_so()


@pytest.fixture(autouse=True)
def _none_is_left():
    gc.collect()
    OTHERS.clear()
    OTHERS.update(loading())
    yield
    assert collected(lambda: not loading())


class Crowd:
    """Each call waits until so many others are in it too: nothing but that many threads at a time gets through."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.idents: set[int] = set()

    def __call__(self, value: int) -> int:
        self.barrier.wait(30)
        self.idents.add(threading.get_ident())
        return value


def run(code: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 60),
    workers=st.integers(0, 5),
    prefetch=st.integers(0, 7),
    batch=st.sampled_from([None, 1, 3]),
    most=st.sampled_from([None, 1, 2]),
)
def test_results_come_in_order_whatever_order_they_are_made_in(
    count: int, workers: int, prefetch: int, batch: int | None, most: int | None
) -> None:
    def uneven(value: int) -> int:
        return sum(range(3000 * (value % 3))) * 0 + value

    loader = DataLoader(range(count), batch_size=None, num_workers=workers, prefetch=prefetch, max_in_flight=most).map(
        uneven
    )
    found = list(loader) if batch is None else [one for many in loader.batch(batch).map(list) for one in many]
    assert found == list(range(count))
    loader.close()


def test_a_later_unit_that_is_done_first_waits_for_its_turn() -> None:
    second_is_done = threading.Event()

    def first_waits(batch: list[int]) -> list[int]:
        if batch == [0]:
            assert second_is_done.wait(30)
        if batch == [2]:
            second_is_done.set()
        return batch

    # The very first is made alone, since nobody knows yet how many such batches the memory budget allows.
    loader = DataLoader(range(-1, 4), batch_size=1, num_workers=3, prefetch=4).map(first_waits)
    assert list(loader) == [[-1], [0], [1], [2], [3]]
    loader.close()


def test_no_workers_means_the_callers_thread() -> None:
    seen: set[int] = set()

    def note(value: object) -> object:
        seen.add(threading.get_ident())
        return value

    loader = DataLoader(range(50), batch_size=None, num_workers=0).map(note).batch(4).map(note).filter(note)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
        assert not loading()
    assert len(list(iterator)) == 10
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("workers", [1, 3])
def test_a_given_number_of_workers_is_fixed(workers: int) -> None:
    crowd = Crowd(workers)
    loader = DataLoader(range(-1, 12 * workers), batch_size=1, num_workers=workers, prefetch=2 * workers)
    loader = loader.map(lambda batch: batch if batch == [-1] else [crowd(batch[0])])
    for _ in loader:
        assert len(loading()) == workers
    assert len(crowd.idents) == workers
    assert threading.get_ident() not in crowd.idents
    assert loader.stats().workers == workers
    crowd.barrier.abort()  # what waits there is of the next epoch
    loader.close()


@pytest.mark.parametrize(
    "options, expected",
    [
        (ThreadingOptions(private_threadpool_size=3), 3),
        (ThreadingOptions(private_threadpool_size=4, max_inter_op_parallelism=2), 2),
        (ThreadingOptions(private_threadpool_size=0), 0),
    ],
)
def test_threading_options_fix_the_threads_that_live(options: ThreadingOptions, expected: int) -> None:
    loader = DataLoader(range(100), batch_size=2).options(options)
    assert max(len(loading()) for _ in loader) == expected
    loader.close()


def test_threading_options_bound_what_autotune_may_try() -> None:
    loader = DataLoader(range(3000), batch_size=1).options(max_inter_op_parallelism=1)
    assert max(len(loading()) for _ in loader) == 1
    loader.close()


def test_options_change_single_settings_of_either_kind() -> None:
    loader = DataLoader(range(100), batch_size=2).options(ThreadingOptions(), num_workers=2, prefetch=3)
    assert (loader.settings.num_workers, loader.settings.prefetch) == (2, 3)
    assert max(len(loading()) for _ in loader) == 2
    loader.close()
    one = loader.options(private_threadpool_size=1)
    assert max(len(loading()) for _ in one) == 1
    one.close()


def started(**options: object) -> DataLoader:
    return DataLoader(range(10_000), **{"batch_size": 2, "num_workers": 2, "prefetch": 4, **options})


def test_break_ends_all_threads() -> None:
    loader = started()
    for _ in loader:
        assert loading()
        break
    assert not loading()
    assert next(iter(loader)) == [0, 1]


def test_an_exception_in_the_loop_ends_all_threads() -> None:
    def failing(loader: DataLoader) -> None:
        for _ in loader:
            raise ZeroDivisionError

    loader = started()
    with pytest.raises(ZeroDivisionError) as caught:
        failing(loader)
    del caught
    gc.collect()
    assert not loading()


def test_dropping_the_iterator_ends_all_threads() -> None:
    loader = started()
    iterator = iter(loader)
    next(iterator)
    assert loading()
    del iterator
    assert not loading()
    assert next(loader) == [0, 1]


def test_dropping_the_loader_ends_all_threads() -> None:
    loader = DataLoader(range(8), batch_size=2, num_workers=2)
    gone = weakref.ref(loader)
    assert len(list(loader)) == 4
    assert loading()  # they work on the next epoch
    del loader
    assert gone() is None
    assert not loading()


def test_a_loader_that_its_own_function_knows_is_collected() -> None:
    class Known:
        loader: DataLoader

        def __call__(self, batch: list[int]) -> tuple[int, list[int]]:
            return len(self.loader), batch

    function = Known()
    loader = function.loader = DataLoader(range(8), batch_size=2, num_workers=2).map(function)
    gone = weakref.ref(loader)
    assert len(list(loader)) == 4
    del loader, function
    assert collected(lambda: gone() is None)  # not while a thread is in the function


def test_close_stops_now_and_iterating_goes_on() -> None:
    loader = started()
    iterator = iter(loader)
    first = list(islice(iterator, 3))
    loader.close()
    assert not loading()
    assert first + list(iterator) == [list(pair) for pair in zip(range(0, 10_000, 2), range(1, 10_000, 2), strict=True)]
    with loader:
        next(loader)
        assert loading()
    assert not loading()


def test_close_after_the_last_batch_does_not_begin_the_next_epoch() -> None:
    loader = DataLoader(range(4), batch_size=2, num_workers=1, shuffle=True)
    iterator = iter(loader)
    found = [next(iterator), next(iterator)]
    loader.close()
    assert list(iterator) == []
    assert sorted(chain(*found)) == [0, 1, 2, 3]
    assert loader.epoch == 1


def test_a_function_that_does_not_return_holds_up_nothing() -> None:
    release = threading.Event()
    loader = DataLoader(range(100), batch_size=1, num_workers=2, timeout=0.2)
    loader = loader.map(lambda batch: release.wait(60) if batch == [3] else batch)
    begun = time.monotonic()
    with pytest.raises(LoaderTimeoutError, match=r"within 0.2 s"):
        list(loader)
    assert time.monotonic() - begun < 20
    release.set()
    assert collected(lambda: not loading())
    assert next(iter(loader)) == [0]


def test_two_iterations_at_once_are_independent() -> None:
    loader = DataLoader(range(12), batch_size=2, num_workers=2, shuffle=True, seed=3)
    alone = list(DataLoader(range(12), batch_size=2, num_workers=0, shuffle=True, seed=3))
    assert list(zip(loader, loader, strict=True)) == [(batch, batch) for batch in alone]
    loader.set_epoch(0)
    outer, inner = [], []
    for batch in loader:
        outer.append(batch)
        inner.append(list(loader))
    assert outer == alone
    assert all(sorted(chain(*found)) == list(range(12)) for found in inner)
    loader.close()


def test_state_dict_tells_of_the_newest_iteration() -> None:
    loader = DataLoader(range(12), batch_size=2, num_workers=0)
    old, new = iter(loader), iter(loader)
    list(islice(old, 4))
    list(islice(new, 1))
    next(old)
    again = DataLoader(range(12), batch_size=2, num_workers=0)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again)) == [2, 3]
    assert next(new) == [2, 3]


def test_loaders_nest() -> None:
    inner = DataLoader(range(10), batch_size=3, num_workers=1)
    outer = DataLoader(inner, batch_size=2, num_workers=2)
    assert list(outer) == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9]]]
    assert inner.epoch == 0
    assert next(iter(inner)) == [0, 1, 2]
    for _ in outer:
        break
    outer.close()
    inner.close()
    assert not loading()


def test_a_nested_loader_is_shared_out_once_and_shuffled_anew_each_epoch() -> None:
    inner = DataLoader(range(24), batch_size=2, shuffle=True, num_workers=0)
    ranks = [DataLoader(inner, batch_size=1, rank=rank, world_size=2, num_workers=0, tail="uneven") for rank in (0, 1)]
    epochs = [[[number for batch in rank for number in batch[0]] for rank in ranks] for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch[0] + epoch[1]) == list(range(24))
    assert epochs[0] != epochs[1]


def test_a_loader_is_pickled_with_its_place_and_without_its_threads() -> None:
    loader = DataLoader(range(20), batch_size=3, shuffle=True, seed=5, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    copied = pickle.loads(pickle.dumps(loader))
    assert list(copied) == list(iterator)
    loader.close()
    copied.close()


def test_a_thousand_starts_and_stops_leave_nothing_behind() -> None:
    import psutil

    me = psutil.Process()
    loader = DataLoader(range(64), batch_size=4, num_workers=2, prefetch=3).map(lambda batch: bytes(1000) * len(batch))

    def cycle(times: int) -> None:
        for turn in range(times):
            kept = DataLoader(range(64), batch_size=4, num_workers=1 + turn % 3) if turn % 4 == 0 else loader
            for _ in islice(kept, turn % 3):
                pass

    cycle(100)
    gc.collect()
    threads, files, memory = threading.active_count(), len(os.listdir("/proc/self/fd")), me.memory_info().rss
    cycle(1000)
    loader.close()
    gc.collect()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files
    assert me.memory_info().rss - memory < 8 << 20


def test_ctrl_c_arrives_in_the_loop_and_ends_all_threads() -> None:
    done = run(
        """
        import os, signal, sys, threading
        from shoal.load import DataLoader

        signal.signal(signal.SIGINT, signal.default_int_handler)
        never = threading.Event()

        def work(batch):
            if batch == [20]:
                os.kill(os.getpid(), signal.SIGINT)  # the caller waits for this very batch
                assert never.wait(0.5) is False
            return batch

        loader = DataLoader(range(100), batch_size=1, num_workers=2).map(work)
        seen = []
        try:
            for batch in loader:
                seen += batch
        except KeyboardInterrupt:
            left = [one for one in threading.enumerate() if one.name.startswith("shoal-load")]
            for one in left:  # at work when it was told to end
                one.join(60)
            print("interrupted", seen == list(range(len(seen))), sum(one.is_alive() for one in left))
            print(next(iter(loader)))
        """
    )
    assert done.stdout.splitlines() == ["interrupted True 0", "[0]"], done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("workers", ["2", "0"])
def test_ctrl_c_of_a_program_that_does_not_catch_it_ends_it(workers: str) -> None:
    code = """
        import signal, sys, time
        from shoal.load import DataLoader

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored

        def work(batch):
            if batch == [5]:
                print("waiting", flush=True)
                time.sleep(3600)
            return batch

        for batch in DataLoader(range(100), batch_size=1, num_workers=int(sys.argv[1])).map(work):
            pass
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), workers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert process.returncode in (1, 130, -signal.SIGINT)


@pytest.mark.parametrize("never", ["threading.Event().wait()", "[None for _ in iter(int, 1)]"])
def test_the_interpreter_exits_while_a_function_never_returns(never: str) -> None:
    begun = time.monotonic()
    done = run(
        f"""
        import threading
        from shoal.load import DataLoader

        def work(batch):
            if batch == [3]:
                {never}
            return batch

        loader = DataLoader(range(100), batch_size=1, num_workers=3, prefetch=6).map(work)
        iterator = iter(loader)
        print(next(iterator), next(iterator))
        """
    )
    assert done.stdout == "[0] [1]\n", done.stderr
    assert done.returncode == 0
    assert done.stderr == ""
    assert time.monotonic() - begun < 30


def test_a_loader_goes_on_in_a_forked_child() -> None:
    done = run(
        """
        import os, warnings
        from itertools import islice
        from shoal.load import DataLoader

        warnings.simplefilter("ignore")  # Python tells that forking with threads is not wise; it is done all the same
        loader = DataLoader(range(40), batch_size=2, num_workers=2, prefetch=4)
        iterator = iter(loader)
        first = list(islice(iterator, 3))
        child = os.fork()
        found = first + list(iterator)
        assert found == [[n, n + 1] for n in range(0, 40, 2)], found
        assert len(list(loader)) == 20
        assert loader.stats().batches > 0
        if child:
            _, status = os.waitpid(child, 0)
            print("child", status)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "child 0\n"


def test_threads_of_two_loaders_have_their_own_work() -> None:
    left, right = (DataLoader(range(40), batch_size=2, num_workers=1) for _ in range(2))
    for before, after in pairwise(zip(left, right, strict=True)):
        assert before[0] == before[1]
        assert after[0][0] == before[0][0] + 2
    left.close()
    right.close()
