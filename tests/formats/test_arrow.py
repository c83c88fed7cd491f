"""Parquet and Arrow files that pyarrow wrote, and damage to them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.formats.examples import equal

import shoal
from shoal.dataset import ArrowDataset, ParquetDataset
from shoal.errors import DecodeError, FieldError

TABLE = pa.table(
    {
        "n": list(range(30)),
        "x": pa.array([None if n % 7 == 0 else n / 2 for n in range(30)]),
        "name": [f"n{n}" for n in range(30)],
        "when": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=n) for n in range(30)],
        "list": [[float(k) for k in range(n % 4)] for n in range(30)],
        "nested": [{"a": [n], "b": None} for n in range(30)],
        "raw": [bytes([n]) for n in range(30)],
        "cat": pa.array([f"c{n % 3}" for n in range(30)]).dictionary_encode(),
    }
)


@pytest.fixture(params=["parquet", "arrow"])
def path(request, tmp_path):
    path = tmp_path / f"a.{request.param}"
    if request.param == "parquet":
        pq.write_table(TABLE, path, row_group_size=8)
    else:
        with pa.ipc.new_file(path, TABLE.schema) as writer:
            writer.write_table(TABLE, max_chunksize=8)
    return path


def test_as_pyarrow_reads_it(path):
    dataset = shoal.Dataset(path)
    for rows in (range(30), [29, 0, 8, 8, 7]):
        for row, sample in zip(rows, dataset[list(rows)], strict=True):
            theirs = TABLE.slice(row, 1).to_pylist()[0]
            equal(sample.pop("list"), np.array(theirs.pop("list"), np.float64))
            assert {name: v for name, v in sample.items() if not name.startswith("__")} == theirs


def test_where_and_columns(path):
    dataset = shoal.Dataset(path)
    assert set(dataset.column_names) == {"n", "x", "name", "when"}
    assert [sample["n"] for sample in dataset.where("n >= 27 or name = 'n3'")] == [3, 27, 28, 29]
    assert dataset.source.table(["name", "__key__"]).column("name").to_pylist()[4] == "n4"


def test_keys_by_column(path):
    kind = ParquetDataset if path.suffix == ".parquet" else ArrowDataset
    dataset = kind(path, key="name")
    assert dataset.get("n13")["n"] == 13
    assert dataset.keys()[:2] == ["n0", "n1"]
    with pytest.raises(FieldError):
        kind(path, key="no such column")[0]


def test_damage(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 40])
    with pytest.raises(DecodeError, match=path.name):
        shoal.Dataset(path)[0]


def test_typed_samples(path):
    @shoal.packable
    class Row:
        n: int
        name: str

    assert shoal.Dataset[Row](path)[3].name == "n3"
