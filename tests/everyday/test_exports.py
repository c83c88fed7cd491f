"""What is written in another format is what is read from it, or an error: never another value."""

from __future__ import annotations

import math

import numpy as np
import pytest

import shoal
from shoal.errors import EncodeError, WriteError
from shoal.formats import write_format

FIRST = 3000  # the kind of a field is decided by the first samples
PAIRS = {
    "a fraction among integers": (1, 1.5),
    "a large integer among fractions": (1.5, 2**53 + 1),
    "unsigned among signed": (2**63 - 1, 2**63),
    "a huge integer": (1, 2**70),
    "a number among flags": (True, 2),
    "text among numbers": (1, "x"),
    "a number among texts": ("x", 1),
    "bytes among texts": ("x", b"\xff"),
    "text among bytes": (b"\xff", "x"),
    "nothing among numbers": (1, None),
    "a number after nothing": (None, 1),
    "a list among numbers": (1, [1, 2]),
    "a number among lists": ([1, 2], 3),
    "another key": ({"a": 1}, {"b": 2}),
    "wider floats": (np.zeros(2, np.float32), np.array([0.1, 1e300])),
    "wider integers": (np.zeros(2, np.int8), np.array([300, 1])),
    "wider integers in rows": (np.zeros(2, np.int8), np.array([300])),
    "another shape": (np.zeros(2), np.zeros((2, 2))),
    "a mixed list": ([1, 2], [1, "x"]),
    "a ragged list": ([1, 2], [[1], [2, 3]]),
    "a document among arrays": (np.zeros((2, 2)), {"a": 1}),
    "not a number": (math.nan, math.inf),
    "not a number in a list": ([1.0], [math.nan, -math.inf]),
    "not a number in a document": ({"a": 1.0}, {"a": math.nan}),
}


def plain(value):
    """A value without NumPy: an array is a list, as in JSON."""
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return list(map(plain, value)) if isinstance(value, (list, tuple)) else value


def is_equal(one, two):
    one, two = plain(one), plain(two)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(is_equal, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(is_equal(one[name], two[name]) for name in one)
    return one == two or (one != one and two != two)


@pytest.mark.parametrize("ending", ["hdf5", "parquet", "arrow", "jsonl", "npz"])
@pytest.mark.parametrize("count", [1, FIRST])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_value_is_kept_or_refused(tmp_path, pair, count, ending):
    first, last = PAIRS[pair]
    count = min(count, 1) if ending == "npz" else count  # a file for each sample
    path = f"{tmp_path}/data.{ending}"
    try:
        write_format(path, ({"v": first if number < count else last} for number in range(count + 1)))
    except (EncodeError, WriteError):
        return
    dataset = shoal.Dataset(path)
    for position, value in ((0, first), (count, last)):
        sample = dataset[position]
        stored = [item for name, item in sample.items() if not name.startswith("__")]
        if value is None:
            assert not stored or stored[0] is None or set(sample) == {"__key__", "__url__"}
        elif ending == "npz" and isinstance(value, bytes):
            assert stored[0].tobytes() == value
        elif ending in ("parquet", "arrow") and isinstance(value, dict):
            assert is_equal({name: item for name, item in stored[0].items() if item is not None}, value)
        else:
            assert is_equal(stored[0], value), (sample, value)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv", "parquet", "arrow", "hdf5", "npz"])
def test_nan_and_infinities_survive(tmp_path, ending):
    path = f"{tmp_path}/data.{ending}"
    write_format(path, [{"n": math.nan, "m": -math.inf, "k": 1.5}])
    sample = shoal.Dataset(path)[0]
    assert math.isnan(sample["n"])
    assert (float(sample["m"]), float(sample["k"])) == (-math.inf, 1.5)
