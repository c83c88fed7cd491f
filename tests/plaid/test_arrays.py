"""Arrays are views of what was read for their sample, in one read, and verified by each."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from plaid import Sample
from tests.plaid import physics
from tests.plaid.physics import FIELD, SPEED

from shoal.errors import ChecksumError, ObjectNotFoundError, StaleIndexError
from shoal.plaid import init_datasetdict_from_disk

NODES = 9_000
SMALL = {"train": list(range(64))}  # 32 shards of two samples, which share a block


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
def copied(large_folder, tmp_path):
    """The dataset where it may be damaged."""
    return shutil.copytree(large_folder, tmp_path / "copy")


def opened(folder):
    return init_datasetdict_from_disk(folder)["train"]


def tar_of(folder, number):
    return folder / "data" / "train" / f"shard-{number:06d}.tar"


def changed(folder, number, change):
    """Change the tar of one sample, in place."""
    data = bytearray(tar_of(folder, number).read_bytes())
    change(data)
    tar_of(folder, number).write_bytes(data)


def flipped(value, at=7):
    """Flip a bit of these bytes, wherever they are."""

    def change(data):
        data[data.index(value) + at] ^= 1

    return change


def buffers(sample):
    """What the arrays of a sample are views of."""
    bases = [value.base for value in sample.values() if value is not None]
    return list({id(base): base for base in bases}.values())


@pytest.mark.parametrize("ids", [physics.IDS, SMALL])
def test_the_arrays_of_a_sample_are_views_of_one_read(tmp_path, ids):
    split = opened(physics.saved(tmp_path / "dataset", ids=ids))
    for sample in [split[1], split.read(1, [SPEED, FIELD]), *split]:
        (data,) = buffers(sample)
        assert type(data) is bytes
        assert not any(value.flags.writeable for value in sample.values() if value is not None)


def test_a_feature_is_read_without_the_others(large_folder):
    for path in (SPEED, FIELD):
        (data,) = buffers(opened(large_folder).read(1, [path]))
        assert 8 * NODES < len(data) < 8 * NODES + 1000


def test_arrays_stay_when_their_file_is_cut(copied):
    sample, expected = opened(copied)[1], opened(copied)[1]
    os.truncate(tar_of(copied, 1), 0)
    physics.same_values(sample, expected)


def test_damage_is_named_whenever_it_is_read(copied):
    split = opened(copied)
    changed(copied, 2, flipped(split[2][FIELD].tobytes()))  # a sample that was read before
    for reader in (split, opened(copied)):
        for _ in range(2):
            with pytest.raises(ChecksumError, match=r"sample_000000002.*VertexFields/pressure"):
                reader[2]
        assert reader.read(2, [SPEED])[SPEED].shape == (NODES,)
        assert reader[3]


def test_damage_is_named_by_who_reads_in_order(copied):
    changed(copied, 3, flipped(opened(copied)[3][SPEED].tobytes()))
    samples = iter(opened(copied))
    assert all(next(samples) for _ in range(3))
    with pytest.raises(ChecksumError, match=r"sample_000000003.*VertexFields/speed"):
        next(samples)


def test_a_header_that_changed_is_found_with_the_whole_sample_and_harms_no_array(copied):
    """It is the block's checksum that is wrong then, and no array's."""
    expected = opened(copied)[2]
    changed(copied, 2, flipped(b"sample_000000002.0001", 265))  # the owner's name
    with pytest.raises(ChecksumError, match="header or padding"):
        opened(copied)[2]
    part = opened(copied).read(2, [SPEED], {SPEED: None})
    np.testing.assert_array_equal(part[SPEED], expected[SPEED])


def test_of_a_part_only_its_bytes_are_read(copied):
    speed = opened(copied)[2][SPEED]
    changed(copied, 2, flipped(speed.tobytes()))
    part = opened(copied).read(2, [SPEED], {SPEED: slice(100, 200)})
    np.testing.assert_array_equal(part[SPEED], speed[100:200])
    with pytest.raises(ChecksumError):
        opened(copied).read(2, [SPEED], {SPEED: None})


def test_a_shard_that_is_gone_is_told_to_who_reads_it(copied):
    tar_of(copied, 3).unlink()
    split = opened(copied)
    for number in (0, 1, 2):
        assert split[number]
    with pytest.raises(ObjectNotFoundError, match=r"shard-000003\.tar"):
        split[3]
    assert split[4]


def test_an_empty_file_in_place_of_a_shard_is_refused(copied):
    changed(copied, 1, bytearray.clear)
    with pytest.raises(StaleIndexError, match=r"shard-000001\.tar"):
        opened(copied)[1]
