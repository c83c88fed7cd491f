"""litData as its own package wrote it (golden/README.md says how)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import shoal
from shoal.dataset import LitdataDataset

GOLDEN = Path(__file__).parent / "golden"


def test_litdata_as_its_package_wrote_it():
    dataset = LitdataDataset(GOLDEN / "litdata-dict")
    assert len(dataset) == 7
    for i, sample in enumerate(dataset):
        assert (sample["index"], sample["name"], sample["score"]) == (i, f"n{i}", i / 4)
        assert (sample["flag"], sample["raw"], sample["nest"]) == (
            i % 2 == 0,
            bytes([i] * i),
            {"a": i, "b": [i, i + 1]},
        )
        for field, expected in (
            ("vec", np.arange(i, dtype=np.float32)),
            ("grid", np.full((2, 3), i, np.int16)),
            ("t1", np.arange(i)),
            ("t2", np.full((2, 2), i, np.float32)),
        ):
            np.testing.assert_array_equal(sample[field], expected)
            assert sample[field].dtype == expected.dtype
    assert set(dataset.columns(["t1", "nest"])[3]) == {"__key__", "__url__", "t1", "nest"}
    assert dataset.columns(["nest"])[3]["nest"]["a"] == 3


def test_litdata_tuples_are_numbered():
    dataset = shoal.Dataset(GOLDEN / "litdata-tuple")
    assert [(sample["0"], sample["1"]) for sample in dataset] == [(f"text {i}", i) for i in range(7)]
