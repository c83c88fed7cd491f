"""HDF5 files that h5py wrote, and damage to them."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from tests.formats.examples import equal

import shoal
from shoal.dataset import Hdf5Dataset
from shoal.errors import DecodeError, FieldError


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("train")
        group["plain"] = rng.random((50, 4), np.float32)
        group.create_dataset("chunked", data=rng.integers(0, 9, (50, 3, 2)), chunks=(7, 3, 2), compression="gzip")
        group["big_endian"] = np.arange(50, dtype=">i4")
        group["text"] = [f"t{n}" for n in range(50)]
        group.create_dataset("fixed", data=np.array([f"f{n}".encode() for n in range(50)]))
        group["truth"] = np.arange(50) % 2 == 0
        ragged = group.create_dataset("ragged", (50,), h5py.vlen_dtype(np.int32))
        raw = group.create_dataset("raw", (50,), h5py.vlen_dtype(np.uint8))
        for n in range(50):
            ragged[n], raw[n] = np.arange(n), np.frombuffer(bytes([n]) * n, np.uint8)
        file["other"] = np.zeros(3)
    return tmp_path / "a.h5"


def test_as_h5py_reads_it(path):
    dataset = Hdf5Dataset(path, group="train")
    with h5py.File(path) as file:
        theirs = file["train"]
        for rows in (range(50), [49, 3, 3, 20]):
            for row, sample in zip(rows, dataset[list(rows)], strict=True):
                for name in ("plain", "chunked", "ragged"):
                    equal(sample[name], theirs[name][row])
                assert sample["big_endian"] == row
                assert sample["truth"] is (row % 2 == 0)
                assert (sample["text"], sample["fixed"], sample["raw"]) == (
                    f"t{row}",
                    f"f{row}".encode(),
                    bytes([row]) * row,
                )


def test_datasets_that_are_not_equally_long(path):
    with pytest.raises(DecodeError, match="other: 3"):
        len(shoal.Dataset(path))
    with pytest.raises(FieldError):
        len(Hdf5Dataset(path, group="no such group"))


def test_what_is_no_hdf5(path):
    data = path.read_bytes()
    path.write_bytes(b"no" + data[2:])
    with pytest.raises(DecodeError, match=r"a\.h5"):
        len(shoal.Dataset(path))
    path.write_bytes(data[: len(data) // 3])
    with pytest.raises(DecodeError):
        Hdf5Dataset(path, group="train")[40]


def test_far_rows_of_a_large_dataset(tmp_path):
    big = np.arange(4_000_000, dtype=np.float64).reshape(4000, 1000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = big
    for sample, row in zip(shoal.Dataset(tmp_path / "a.h5")[[3999, 0, 7]], (3999, 0, 7), strict=True):
        equal(sample["x"], big[row])
