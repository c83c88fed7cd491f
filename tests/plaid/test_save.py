"""Saving by our function gives the files that PLAID's own gives, and hashes little."""

from __future__ import annotations

import hashlib

import numpy as np
import plaid.storage
import pytest
from tests.plaid import physics

import shoal.plaid

LARGE = 20_000
"""Numbers in an array that is large enough to be left out of PLAID's first pass."""
IDS = {"train": [0, 1, 2, 3], "test": [10, 11], "one": [20]}


def make_sample(number):
    """Fields of every kind: the same in all samples, in a split, in some of them, in none."""
    rng = np.random.default_rng(number)
    sample = physics.make_sample(number)
    if number == 3:  # several times
        sample.add_global("late", rng.random(LARGE), time=1.0)
    sample.add_global("varies", rng.random(LARGE, np.float32))
    sample.add_global("same", np.arange(LARGE))
    sample.add_global("same in a split", np.full(LARGE, number // 10, np.float32))
    sample.add_global("changes late", np.full(LARGE, number > 1, np.int32))
    sample.add_global("table", rng.random((3, LARGE)))
    sample.add_global("long text", "abc" * LARGE)
    if number % 2:
        sample.add_global("sometimes", np.ones(LARGE))
    if number < 2:
        sample.add_global("grows", np.zeros(1 if number == 0 else LARGE, np.float32))
    return sample


def wide(number):
    """A large field in each sample."""
    sample = physics.bare_sample()
    sample.add_global("varies", np.random.default_rng(number).random(LARGE))
    return sample


def files_of(folder):
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_the_files_are_those_that_plaid_saves(tmp_path, processes):
    pb_defs = {"problem": physics.problem()}
    options = {"infos": physics.infos(), "pb_defs": pb_defs, "num_proc": processes}
    plaid.storage.save_to_disk(tmp_path / "theirs", make_sample, IDS, backend="webdataset", **options)
    shoal.plaid.save_to_disk(tmp_path / "ours", make_sample, IDS, **options)
    assert files_of(tmp_path / "ours") == files_of(tmp_path / "theirs") != {}


def test_an_array_that_is_known_to_vary_is_not_hashed_again(tmp_path, monkeypatch):
    hashed = []
    monkeypatch.setattr("hashlib.sha256", lambda data, made=hashlib.sha256: hashed.append(len(data)) or made(data))
    ids = {"train": range(10)}
    shoal.plaid.save_to_disk(tmp_path / "ours", wide, ids, physics.infos())
    few = sum(size > LARGE for size in hashed)
    plaid.storage.save_to_disk(tmp_path / "theirs", wide, ids, physics.infos(), "webdataset")
    assert few <= 2
    assert sum(size > LARGE for size in hashed) - few >= 10


def test_the_samples_are_whole(tmp_path):
    shoal.plaid.save_to_disk(tmp_path / "saved", make_sample, IDS, physics.infos())
    datasets, converters = plaid.storage.init_from_disk(tmp_path / "saved")
    for place, number in enumerate(IDS["train"][:3]):  # PLAID cannot load the last one, which has no base later
        found = converters["train"].to_plaid(datasets["train"], place)
        expected = make_sample(number)
        for name in ("varies", "same", "changes late", "table"):
            assert np.array_equal(found.get_global(name), expected.get_global(name))


def test_other_backends_are_left_to_plaid(tmp_path):
    shoal.plaid.save_to_disk(tmp_path / "saved", make_sample, {"train": [0, 1]}, physics.infos(), "zarr")
    datasets, converters = plaid.storage.init_from_disk(tmp_path / "saved")
    found = converters["train"].to_plaid(datasets["train"], 1).get_global("varies")
    assert np.array_equal(found, make_sample(1).get_global("varies"))


def test_what_plaid_refuses_is_refused(tmp_path):
    with pytest.raises(TypeError, match="sliceable"):
        shoal.plaid.save_to_disk(tmp_path / "saved", make_sample, {"train": iter([1])})
    with pytest.raises(AssertionError, match="not among available"):
        shoal.plaid.save_to_disk(tmp_path / "saved", make_sample, {"train": [1]}, backend="tape")
