"""What is compared with which checksum before an array is given out: no more than is needed, and in few calls."""

from __future__ import annotations

import functools
import shutil
import threading

import numpy as np
import pytest
from plaid import Sample
from tests.plaid import physics
from tests.plaid.physics import FIELD, SPEED

from shoal.errors import ChecksumError, ObjectNotFoundError, StaleIndexError
from shoal.plaid import _arrays, init_datasetdict_from_disk
from shoal.plaid._reader import ChecksumPrefetch
from shoal.shard import BLOCK

NODES = 9_000
MANY_SMALL = {"train": list(range(64))}  # 32 runs of two: samples that share a block


def make_large(number):
    rng = np.random.default_rng(number)
    sample = Sample()
    sample.init_base(2, 2, "Base_2_2")
    sample.init_zone(np.array([[NODES, NODES, 0]]), zone="Zone", base="Base_2_2")
    for name in ("speed", "pressure"):
        sample.add_field(name, rng.random(NODES))
    return sample


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory):
    return physics.saved(tmp_path_factory.mktemp("large") / "dataset", make_large)


@pytest.fixture
def compared(monkeypatch):
    """How many bytes were compared by each call."""
    sizes = []
    crc32 = _arrays.crc32

    def noted(data):
        if len(data) != BLOCK:  # the first header is compared as the shard is opened
            sizes.append(len(data))
        return crc32(data)

    monkeypatch.setattr(_arrays, "crc32", noted)
    return sizes


def opened(folder):
    return init_datasetdict_from_disk(folder)["train"]


def changed(folder, number, change):
    """The tar of one sample, with the bytes that ``change`` makes of it."""
    tar = folder / "data" / "train" / f"shard-{number:06d}.tar"
    data = bytearray(tar.read_bytes())
    change(data)
    tar.write_bytes(data)


@pytest.fixture
def copied(large_folder, tmp_path):
    """The dataset where it may be damaged."""
    return shutil.copytree(large_folder, tmp_path / "copy")


def test_a_large_sample_is_compared_in_one_call(large_folder, compared):
    split = opened(large_folder)
    split[1]
    assert len(compared) == 1
    assert compared[0] > 2 * 8 * NODES
    split[1], split.read(1, [SPEED])
    assert len(compared) == 1


def test_of_one_feature_only_its_array_is_compared(large_folder, compared):
    for path in (SPEED, FIELD):
        opened(large_folder).read(1, [path])
    assert len(compared) == 2
    assert sum(compared) < 2 * 8 * NODES + 1000


def test_of_small_samples_that_share_a_block_only_what_is_read_is_compared(tmp_path, compared):
    split = opened(physics.saved(tmp_path / "dataset", ids=MANY_SMALL))
    blocks = split._shards[0]._index.blocks
    assert (len(split._shards[0].numbers), len(blocks)) == (2, 1)
    sample = split[1]
    assert len(compared) == sum(value is not None for value in sample.values())


def test_damage_in_a_large_sample_is_named(copied):
    pressure = opened(copied)[2][FIELD].tobytes()

    def change(data):
        data[data.index(pressure) + 7] ^= 1

    changed(copied, 2, change)
    split = opened(copied)
    for _ in range(2):
        with pytest.raises(ChecksumError, match=r"sample_000000002.*VertexFields/pressure"):
            split[2]
    assert split.read(2, [SPEED])[SPEED].shape == (NODES,)
    assert split[3]


def test_a_header_that_changed_harms_no_array(copied, compared):
    """It is the block's checksum that is wrong then, and no array's."""
    expected = opened(copied)[2]

    def change(data):
        at = data.index(b"sample_000000002.0001")
        data[at + 265] ^= 1  # the owner's name

    changed(copied, 2, change)
    split = opened(copied)
    compared.clear()
    physics.same_values(split[2], expected)
    assert len(compared) == 1 + sum(value is not None for value in expected.values())
    split[2]
    assert len(compared) == 1 + sum(value is not None for value in expected.values())


def opened_of(split):
    return [number for number, shard in enumerate(split._shards) if shard.is_open]


def test_shards_are_opened_when_one_is_needed_and_for_a_reader_in_order_some_together(tmp_path):
    ids = {"train": list(range(12))}
    split = opened(physics.saved(tmp_path / "dataset", ids=ids))
    split[11], split[3], split[0]
    assert opened_of(split) == [0, 3, 11]
    split[1]  # after 0, so that 2 to 5 are prefetched
    assert opened_of(split) == [0, 1, 2, 3, 4, 5, 11]
    split[2]
    assert opened_of(split) == [*range(10), 11]


def test_a_shard_that_is_gone_is_told_to_who_reads_it(copied):
    (copied / "data" / "train" / "shard-000003.tar").unlink()
    split = opened(copied)
    for number in (0, 1, 2):  # in order, so that the next ones are prefetched
        assert split[number]
    with pytest.raises(ObjectNotFoundError, match=r"shard-000003\.tar"):
        split[3]
    assert split[4]


def test_an_empty_file_in_place_of_a_shard_is_refused(copied):
    changed(copied, 1, bytearray.clear)
    with pytest.raises(StaleIndexError, match=r"shard-000001\.tar"):
        opened(copied)[1]


class FakeChecks:
    """Checks that the test lets go on, and in which thread each was made."""

    def __init__(self, broken=()):
        self.broken = broken
        self.started, self.go_on = threading.Event(), threading.Event()
        self.made = {}

    def check_of(self, position, paths):
        return functools.partial(self.check, position)

    def check(self, position):
        is_helper = threading.current_thread() is not threading.main_thread()
        if is_helper:
            self.started.set()
            assert self.go_on.wait(60)
        else:
            self.go_on.set()
        self.made[position] = is_helper
        if position in self.broken:
            raise ChecksumError("it is damaged")


@pytest.mark.parametrize("broken", [(), (2, 3)])
def test_who_comes_too_early_compares_the_next_one_meanwhile(broken):
    checks = FakeChecks(broken)
    ahead = ChecksumPrefetch(checks.check_of, 4)
    for position in (0, 1):
        ahead.note(position, None, is_new=True)
    assert checks.started.wait(60)
    assert ahead.take(2)  # waits for the thread, which goes on when the reader has begun with the next
    assert checks.made == {3: False, 2: True}
    assert ahead.take(3)
    assert not ahead.take(4)
    assert checks.made == {3: False, 2: True}


def test_what_the_thread_has_not_pending_is_left_to_the_reader():
    checks = FakeChecks()
    ahead = ChecksumPrefetch(checks.check_of, 10)
    for position in (0, 1):
        ahead.note(position, None, is_new=True)
    assert checks.started.wait(60)
    assert ahead.take(3)
    checks.go_on.set()
    assert ahead.take(2)
    assert 3 not in checks.made
