"""Buffers of the pool are reused, but never while anything refers to them."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from shoal.load import BufferPool, shared_buffers

SIZE = 1 << 16

HOLDERS = {
    "itself": lambda lent: lent,
    "a slice": lambda lent: lent[5:50],
    "one row": lambda lent: lent.reshape(-1, 64)[3],
    "another type": lambda lent: lent.view(np.float32),
    "a slice of a slice of another type": lambda lent: lent.view(np.int16)[10:].reshape(-1, 2)[4:9].T,
    "a memoryview": lambda lent: memoryview(lent)[4:100],
    "an array over a memoryview": lambda lent: np.frombuffer(memoryview(lent)[8:], np.uint32),
    "a strided view": lambda lent: np.lib.stride_tricks.as_strided(lent, (16, 8), (8, 1)),
    "a broadcast view": lambda lent: np.broadcast_to(lent[:16], (4, 16)),
    "a read-only view": lambda lent: np.require(lent[:100], requirements="C"),
    "a subclass": lambda lent: lent.view(np.recarray),
    "a tensor": lambda lent: torch.from_numpy(lent[:64]),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_still_looked_at_is_never_lent_again(holder):
    pool = BufferPool(64 << 20)
    lent = pool.empty(SIZE)
    lent[:] = 7
    place = lent.ctypes.data
    held = HOLDERS[holder](lent)
    before = bytes(memoryview(np.ascontiguousarray(np.asarray(held))).cast("B"))
    del lent
    gc.collect()
    others = [pool.empty(SIZE) for _ in range(4)]
    for other in others:
        other[:] = 9
    assert bytes(memoryview(np.ascontiguousarray(np.asarray(held))).cast("B")) == before
    del held, others
    gc.collect()
    assert place in [
        pool.empty(SIZE).ctypes.data,
        *(array.ctypes.data for array in [pool.empty(SIZE) for _ in range(6)]),
    ]


def test_no_more_is_kept_unused_than_was_said():
    pool = BufferPool(3 * SIZE)
    lent = [pool.empty(SIZE) for _ in range(10)]
    assert pool.unused_bytes == 0
    lent.clear()
    assert 0 < pool.unused_bytes <= 3 * SIZE
    small = BufferPool(0)
    small.empty(SIZE)
    assert small.unused_bytes == 0


def test_what_came_back_last_is_lent_first():
    pool = BufferPool(64 << 20)
    lent = [pool.empty(SIZE) for _ in range(3)]
    places = [one.ctypes.data for one in lent]
    for number in (2, 0, 1):
        lent[number] = None
    assert [pool.empty(SIZE).ctypes.data for _ in range(3)] == [places[1]] * 3


def test_a_buffer_starts_where_it_was_asked_to_and_a_much_larger_one_is_left():
    pool = BufferPool(64 << 20)
    for offset in (0, 12, 60):
        assert pool.empty(SIZE, offset).ctypes.data % 4096 == offset
    large = pool.empty(SIZE * 100)
    place = large.ctypes.data
    del large
    assert pool.empty(10).ctypes.data != place
    assert pool.empty(SIZE * 100).ctypes.data == place
    assert pool.empty(100).flags.writeable


def test_threads_that_share_a_pool_do_not_share_buffers():
    pool, wrong = BufferPool(64 << 20), []

    def work(mark: int) -> None:
        held: list[np.ndarray] = []
        for _ in range(300):
            lent = pool.empty(SIZE)
            lent[:] = mark
            held = [*held[-2:], lent[::64]]
            wrong.extend(mark for rows in held if not (rows == mark).all())

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_shared_pool_is_one():
    assert shared_buffers() is shared_buffers()
