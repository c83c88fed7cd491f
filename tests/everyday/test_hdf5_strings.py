"""Strings of HDF5 files keep their type: bytes stay bytes, text stays text."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.formats import write_format

WORDS = ["cat", "", "long word", "x"]
ACCENTS = ["chat", "", "é ü", "日本"]
COLUMNS = {
    "fixed bytes": (np.array([w.encode() for w in WORDS], "S10"), None, [w.encode() for w in WORDS]),
    "bytes of any length": ([w.encode() for w in WORDS], h5py.string_dtype("ascii"), [w.encode() for w in WORDS]),
    "bytes that are no text": (
        np.array([b"\xff\xfe", b"\x80a", b"a", b""], "S2"),
        None,
        [b"\xff\xfe", b"\x80a", b"a", b""],
    ),
    "text of any length": (ACCENTS, h5py.string_dtype(), ACCENTS),
    "fixed text": (np.array([w.encode() for w in ACCENTS], h5py.string_dtype("utf-8", 12)), None, ACCENTS),
    "opaque": (np.array([b"ab", b"cd", b"\0e", b"f\0"], "V2"), None, [b"ab", b"cd", b"\0e", b"f\0"]),
    "rows of bytes": (np.array([[b"a", b"bc"]] * 4, "S2"), None, [[b"a", b"bc"]] * 4),
    "rows of text": ([["a", "é"]] * 4, h5py.string_dtype(), [["a", "é"]] * 4),
}


@pytest.mark.parametrize("chunks", [None, (2,)])
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("field", ["value", "id", "cls"])
def test_columns(tmp_path, column, chunks, field):
    data, dtype, expected = COLUMNS[column]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = np.asarray(data, dtype=object if isinstance(data, list) else None)
        shape = None if chunks is None else (*chunks, *array.shape[1:])
        file.create_dataset(field, data=array, dtype=dtype, chunks=shape)
        file.attrs["note"] = np.bytes_(b"attributes are no samples")
    dataset = shoal.Dataset(tmp_path / "a.h5")
    assert [sample[field] for sample in dataset] == expected
    assert [dataset[n][field] for n in range(4)] == expected
    assert [sample[field] for sample in dataset.select([3, 0])] == [expected[3], expected[0]]
    assert {type(sample[field]) for sample in dataset} == {type(value) for value in expected}


def test_byte_strings_are_decoded_by_the_name_of_their_field(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["txt"], file["json"] = np.array([b"hello"], "S5"), np.array([b"[1]"], "S3")
    sample = shoal.Dataset(tmp_path / "a.h5")[0]
    assert (sample["txt"], sample["json"]) == ("hello", [1])
    raw = shoal.Dataset(tmp_path / "a.h5", decode=False)[0]
    assert (raw["txt"], raw["json"]) == (b"hello", b"[1]")


@given(
    st.lists(
        st.tuples(st.binary(max_size=20), st.text(st.characters(exclude_characters="\0", codec="utf-8"))), min_size=1
    )
)
def test_what_is_written_comes_back(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("hdf5") / "a.h5"
    write_format(path, [{"__key__": str(n), "raw": raw, "name": name} for n, (raw, name) in enumerate(values)])
    assert [(sample["raw"], sample["name"]) for sample in shoal.Dataset(path)] == values
