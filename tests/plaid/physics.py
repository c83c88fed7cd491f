"""Small made-up physics: samples that PLAID stores, as functions that other processes find by name."""

from __future__ import annotations

import numpy as np
from plaid import Infos, ProblemDefinition, Sample
from plaid.storage import save_to_disk

import shoal.plaid  # noqa: F401 - registers the backend

NODES = 17
FIELD = "Base_2_2/Zone/VertexFields/pressure"
SPEED = "Base_2_2/Zone/VertexFields/speed"
GLOBAL = "Global/Mach"
IDS = {"train": [0, 1, 2, 3, 4], "test": [10, 11, 12]}


def bare_sample(time=0.0):
    """A sample that is the same each time: a grid and nothing on it."""
    sample = Sample()
    sample.init_base(2, 2, "Base_2_2", time=time)
    sample.init_zone(np.array([[NODES, NODES, 0]]), zone="Zone", base="Base_2_2", time=time)
    grid = np.linspace(0, 1, 2 * NODES, dtype=np.float32).reshape(NODES, 2)
    sample.set_nodes(grid, "Zone", "Base_2_2", time=time)
    return sample


def make_sample(number):
    """Every sample has other numbers; every third one has no pressure."""
    rng = np.random.default_rng(number)
    sample = bare_sample()
    sample.add_global("Mach", np.array([number / 8], np.float32))
    sample.add_global("name", f"run {number}")
    sample.add_global("steps", rng.integers(0, 100, 3))
    sample.add_field("speed", rng.random(NODES, np.float32))
    if number % 3:
        sample.add_field("pressure", rng.random(NODES))
    return sample


def infos():
    return Infos(owner="us", license="cc-by-4.0")


def problem():
    return ProblemDefinition(
        input_features=[GLOBAL], output_features=[SPEED], train_split={"train": "all"}, test_split={"test": [0, 2]}
    )


def saved(folder, constructor=make_sample, ids=None, backend="webdataset", **options):
    """A dataset as PLAID saves it."""
    save_to_disk(folder, constructor, IDS if ids is None else ids, infos=infos(), backend=backend, **options)
    return folder


def generated(shards_ids):
    """What PLAID calls a generator."""
    for ids in shards_ids:
        for number in ids:
            yield make_sample(number)


def same_values(found, expected):
    """Assert that two mappings from path to array are the same, types and shapes too."""
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        if value is None:
            assert found[path] is None, path
        else:
            assert found[path].dtype == value.dtype, path
            np.testing.assert_array_equal(found[path], value, err_msg=path)
