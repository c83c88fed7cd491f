"""`.npz` files that NumPy wrote, and damage to them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.formats.examples import equal

import shoal
from shoal.dataset import NpzDataset
from shoal.errors import DecodeError, ShoalWarning, UnsafeCodecError

ARRAYS = {
    "a": np.arange(12).reshape(4, 3),
    "f": np.asfortranarray(np.ones((4, 5))),
    "s": np.array(["x", "yy", "z", ""]),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_as_numpy_reads_it(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS, one=np.float32(3))
    sample = NpzDataset(tmp_path)[0]
    with np.load(tmp_path / "a.npz") as theirs:
        assert set(theirs) == set(sample) - {"__key__", "__url__"}
        for name in theirs:
            equal(sample[name], theirs[name])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_as_numpy_reads_them(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    dataset = NpzDataset(tmp_path / "a.npz", rows=True, key="s")
    assert dataset.keys() == ["x", "yy", "z", ""]
    for row, sample in enumerate(dataset):
        equal(sample["a"], ARRAYS["a"][row])
        equal(sample["f"], ARRAYS["f"][row])


def test_far_rows_of_a_large_file(tmp_path):
    big = np.arange(4_000_000, dtype=np.float64).reshape(4000, 1000)
    np.savez(tmp_path / "a.npz", big=big, n=np.arange(4000))
    for sample, row in zip(NpzDataset(tmp_path, rows=True)[[3999, 0, 7]], (3999, 0, 7), strict=True):
        equal(sample["big"], big[row])
        assert sample["n"] == row


def test_arrays_that_are_not_equally_long(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(3), b=np.zeros(4))
    with pytest.raises(DecodeError, match="a: 3, b: 4"):
        len(NpzDataset(tmp_path, rows=True))
    assert len(NpzDataset(tmp_path)) == 1


@pytest.mark.parametrize("rows", [False, True])
def test_what_is_no_npz(tmp_path, rows):
    (tmp_path / "a.npz").write_bytes(b"this is no zip")
    with pytest.raises(DecodeError, match=r"a\.npz"):
        NpzDataset(tmp_path, rows=rows)[0]
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).random(500))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[200:260] = bytes(60)
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DecodeError):
        NpzDataset(tmp_path, rows=rows)[0]


@pytest.mark.parametrize("rows", [False, True])
def test_objects_are_refused(tmp_path, rows):
    np.savez(tmp_path / "a.npz", x=np.array([{}, []], object))
    with pytest.raises(UnsafeCodecError):
        NpzDataset(tmp_path, rows=rows)[0]


def test_a_bad_file_may_be_passed_over(tmp_path):
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", n=number)
    (tmp_path / "1.npz").write_bytes(b"no")
    with pytest.warns(ShoalWarning):
        assert [int(s["n"]) for s in shoal.Dataset(tmp_path, on_error="skip", fields=["n"])] == [0, 2]
