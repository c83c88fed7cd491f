"""A reader that goes in order finds samples compared with their checksums already; damage is told to it alone."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
import warnings

import numpy as np
import pytest
from tests.plaid import physics
from tests.plaid.physics import GLOBAL, SPEED

from shoal.errors import ChecksumError
from shoal.plaid import _arrays, _reader, init_datasetdict_from_disk
from shoal.shard import BLOCK


@pytest.fixture
def split(dataset_folder):
    return init_datasetdict_from_disk(dataset_folder)["train"]


@pytest.fixture
def compared(monkeypatch):
    """The names of the threads that compared something, in order."""
    names = []
    crc32 = _arrays.crc32

    def noted(data):
        if len(data) != BLOCK:  # the first header is compared as the shard is opened
            names.append(threading.current_thread().name)
        return crc32(data)

    monkeypatch.setattr(_arrays, "crc32", noted)
    return names


def settled(split):
    """Wait for the thread, which does one thing after the other. What was foreseen and nobody took yet."""
    _reader._helper().submit(int).result()
    return sorted(split._ahead._begun)


def read_in_order(split, numbers):
    """Samples of two features that all of them have."""
    return [split.read(number, [SPEED, GLOBAL]) for number in numbers]


def test_what_comes_next_is_compared_by_another_thread(split, compared):
    read_in_order(split, [0, 1])
    assert settled(split) == [2, 3, 4]
    assert len(compared) == 10
    assert sum(name.startswith("shoal-plaid") for name in compared) == 6
    assert not split._shards[2].check(0, [SPEED, GLOBAL])
    assert split._shards[2].check(0)


def test_a_second_reading_compares_nothing(split, compared):
    first = read_in_order(split, split.ids)
    settled(split)
    count = len(compared)
    for again, sample in zip(read_in_order(split, split.ids), first, strict=True):
        physics.same_values(again, sample)
    assert len(compared) == count >= 10
    assert not split._ahead._begun


@pytest.mark.parametrize("numbers", [[3, 0, 2], [4, 3, 2, 1, 0], [2, 2, 2]])
def test_a_reader_that_jumps_about_is_not_foreseen(split, numbers):
    for number in numbers:
        split[number]
        assert not split._ahead._begun


def test_of_features_that_nobody_asks_for_nothing_is_compared(split, compared):
    for number in (0, 1):
        split.read(number, [SPEED])
    assert settled(split) == [2, 3, 4]
    assert len(compared) == 5


def test_of_parts_nothing_is_compared(split, compared):
    for number in (0, 1, 2):
        assert len(split.read(number, [SPEED], {SPEED: slice(3)})[SPEED]) == 3
    assert not split._ahead._begun
    assert not compared


def test_damage_is_told_when_it_is_read(dataset_folder, tmp_path):
    folder = shutil.copytree(dataset_folder, tmp_path / "copy")
    speed = init_datasetdict_from_disk(folder)["train"][3][SPEED].tobytes()
    tar = folder / "data" / "train" / "shard-000003.tar"
    tar.write_bytes(tar.read_bytes().replace(speed, bytes(len(speed))))
    split = init_datasetdict_from_disk(folder)["train"]
    for number in (0, 1, 2):
        assert split[number]
        settled(split)
    for _ in range(2):
        with pytest.raises(ChecksumError, match=r"sample_000000003.*VertexFields/speed"):
            split[3]
    assert split[4]


def in_child(split, numbers, found):
    found.put([float(np.sum(split[number][SPEED])) for number in numbers])


def test_a_forked_process_goes_on_by_itself(split):
    split[0], split[1]
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    child = context.Process(target=in_child, args=(split, [2, 3, 4], found))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
        child.start()
    child.join(60)
    assert child.exitcode == 0
    assert found.get() == [float(np.sum(split[number][SPEED])) for number in (2, 3, 4)]
