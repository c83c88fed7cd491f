"""A field of TFRecord files has one feature name and one kind, however long its lists are; TensorFlow agrees."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.dataset import TFRecordDataset
from shoal.errors import EncodeError
from shoal.formats import write_format

# What TensorFlow's own parser reads: all records of a file at once, each feature with one type.
PEER = """
import json, sys, tensorflow as tf
dtypes = {"ints": tf.int64, "floats": tf.float32, "blobs": tf.string, "texts": tf.string}
def plain(value):
    return value.hex() if isinstance(value, bytes) else [plain(v) for v in value] if isinstance(value, list) else value
read = []
for path in json.load(open(sys.argv[1])):
    records = [record.numpy() for record in tf.data.TFRecordDataset(path, "GZIP" if path.endswith(".gz") else "")]
    parsed = tf.io.parse_example(records, {name: tf.io.RaggedFeature(dtype) for name, dtype in dtypes.items()})
    names = sorted({name for record in records for name in tf.train.Example.FromString(record).features.feature})
    read.append({"names": names, **{name: plain(parsed[name].to_list()) for name in dtypes}})
json.dump(read, open(sys.argv[1] + ".read", "w"))
"""
FLOATS = st.floats(width=32, allow_nan=False)
INTS = st.integers(-(2**63), 2**63 - 1)
ROW = st.fixed_dictionaries(
    {
        "ints": st.none()
        | st.lists(INTS, max_size=3)
        | st.lists(INTS, max_size=3).map(lambda v: np.array(v, np.int64)),
        "floats": st.none()
        | st.lists(FLOATS, max_size=3)
        | st.lists(FLOATS, max_size=3).map(lambda v: np.array(v, "f4")),
        "blobs": st.none() | st.binary(max_size=5) | st.lists(st.binary(max_size=5), max_size=3),
        "texts": st.none() | st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=3),
    }
)


def values(row):
    """The lists of a row as both readers have them: a single value is a list of one."""
    lists = {name: [value] if isinstance(value, (str, bytes)) else value for name, value in row.items()}
    numbers = {name: [] if lists[name] is None else np.asarray(lists[name]).tolist() for name in ("ints", "floats")}
    text = {name: [v.encode() if isinstance(v, str) else v for v in lists[name] or ()] for name in ("blobs", "texts")}
    return numbers | text


def test_round_trips_through_shoal_and_tensorflow(tmp_path):
    cases = {}

    @given(st.lists(ROW, min_size=1, max_size=6))
    def write(rows):
        path = tmp_path / f"{len(cases)}.tfrecord{'.gz' if len(cases) % 2 else ''}"
        write_format(path, rows, keys=False)
        cases[str(path)] = [values(row) for row in rows]
        for found, expected in zip(TFRecordDataset(path, lists=True), cases[str(path)], strict=True):
            assert {name: list(found.get(name, ())) for name in expected} == expected

    write()
    (tmp_path / "paths").write_text(json.dumps(list(cases)))
    subprocess.run([sys.executable, "-c", PEER, str(tmp_path / "paths")], check=True, capture_output=True, timeout=240)
    theirs = json.loads((tmp_path / "paths.read").read_text())
    for expected, read in zip(cases.values(), theirs, strict=True):
        assert set(read["names"]) <= {"ints", "floats", "blobs", "texts"}
        for name in ("ints", "floats"):
            assert read[name] == [row[name] for row in expected]
        for name in ("blobs", "texts"):
            assert read[name] == [[value.hex() for value in row[name]] for row in expected]


@pytest.mark.parametrize(
    "column, name",
    [
        ([[1, 2], [7], [], None], "ids"),
        ([[], [7], [1, 2]], "ids"),
        ([np.array([1.5]), np.array([]), np.array([1.5, 2])], "ids"),
        ([[1], [0.5, 2]], "ids"),
        ([1, 0.5, None], "ids"),
        ([["a"], ["b", "c"], "d"], "ids"),
        ([np.array(["a", "b"]), np.array(["c"])], "ids"),
        ([[[1, 2], [3]], [], [1], ["x"], 5], "ids.json"),
        ([{"a": 1}, {}, []], "ids.json"),
        ([np.zeros((2, 2)), np.zeros(3), np.zeros((1, 1))], "ids.npy"),
    ],
)
def test_one_name_for_all_lengths(tmp_path, column, name):
    for order in (column, column[::-1]):
        write_format(tmp_path / "a.tfrecord", [{"ids": value} for value in order], overwrite=True)
        names = {feature for sample in shoal.Dataset(tmp_path / "a.tfrecord") for feature in sample}
        assert names == {"__key__", "__url__", name}


@pytest.mark.parametrize(
    "column", [["a", 1], [[1], ["a"]], [b"x", {"a": 1}], [np.zeros((2, 2)), "a"], [[1, 2], [[1]], b""]]
)
def test_two_kinds_are_an_error_that_names_the_field(tmp_path, column):
    with pytest.raises(EncodeError, match=r"(?s)one name and one kind.*field ids"):
        write_format(tmp_path / "a.tfrecord", [{"ids": value} for value in column])
    assert not (tmp_path / "a.tfrecord").exists()
    # What the first file decided holds for the next ones.
    with pytest.raises(EncodeError, match=r"(?s)one name and one kind.*field ids"):
        write_format(tmp_path / "b-%06d.tfrecord", [{"ids": value} for value in column], max_samples=1)


@pytest.mark.parametrize("field", ["id", "cls", "class", "index", "count"])
@pytest.mark.parametrize("ending", ["tfrecord", "parquet", "arrow"])
def test_text_may_be_called_like_a_number(tmp_path, field, ending):
    path = tmp_path / f"a.{ending}"
    words = [b"cat", b"007", "dög".encode()]
    write_format(path, [{"__key__": f"k{n}", field: word} for n, word in enumerate(words)])
    dataset = shoal.Dataset(path)
    assert [sample[field] for sample in dataset] == words
    assert [dataset[n][field] for n in range(3)] == words
    assert [sample[field] for sample in shoal.DataLoader(dataset, batch_size=None)] == words
    assert [list(batch[field]) for batch in shoal.DataLoader(dataset, batch_size=3)] == [words]
    assert [sample[field] for sample in dataset.concat(dataset)] == words * 2
    asked = shoal.Dataset(path, decode={field: lambda data: bytes(data).upper()})
    assert asked[0][field] == b"CAT"


@pytest.mark.parametrize("field", ["id", "cls"])
def test_numbers_and_texts_of_such_names_come_back(tmp_path, field):
    write_format(tmp_path / "n.tfrecord", [{field: n} for n in range(3)])
    assert [sample[field] for sample in shoal.Dataset(tmp_path / "n.tfrecord")] == [0, 1, 2]
    write_format(tmp_path / "t.tfrecord", [{field: "cat"}, {field: "7"}])
    assert [sample[field] for sample in shoal.Dataset(tmp_path / "t.tfrecord")] == [b"cat", b"7"]
    with shoal.ShardWriter(tmp_path / "tars" / "a-%06d.tar") as writer:  # in a tar, a number is its digits
        writer.write({"__key__": "a", field: 7})
    assert shoal.Dataset(tmp_path / "tars")[0][field] == 7


def test_json_is_json_whatever_the_value(tmp_path):
    documents = [{"a": 1}, [1, 2], [], 3, [1.5], {}]
    write_format(tmp_path / "a.tfrecord", [{"meta.json": document} for document in documents])
    assert [sample["meta.json"] for sample in shoal.Dataset(tmp_path / "a.tfrecord")] == documents


def test_the_files_of_one_export_agree(tmp_path):
    column = [[1.5, 2], [], [1], [3], [], [0.25]]
    write_format(tmp_path / "a-%06d.tfrecord", [{"x": value} for value in column], max_samples=2)
    samples = list(TFRecordDataset(tmp_path, lists=["x"]))
    assert [list(sample["x"]) for sample in samples] == column
    assert {sample["x"].dtype for sample in samples} == {np.dtype("f4")}
