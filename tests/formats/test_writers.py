"""What is written in a format is read back, by us and by the library that owns it."""

from __future__ import annotations

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.dataset import NpzDataset
from shoal.errors import EncodeError, FormatError, ObjectExistsError, OptionError, WriteError
from shoal.formats import WRITABLE, formats, write_format
from shoal.store import store_for

FILES = {"hdf5": "a.h5", "tfrecord": "a.tfrecord", "parquet": "a.parquet", "arrow": "a.arrow"}
TEXTS = {"csv": "a.csv", "jsonl": "a.jsonl"}


def samples(count=12):
    for n in range(count):
        yield {
            "__key__": f"k{n:02d}",
            "__url__": "from elsewhere",
            "n": n,
            "x": np.arange(n, n + 3, dtype=np.float32),
            "text": f"é {n}",
            "raw": bytes([n, 0, 255]),
            "image.npy": np.full((2, 3), n, np.uint8),
            "json": {"a": [n, None], "b": "x"},
        }


def same(found, expected):
    """Whether a value came back; text may come back as bytes where a format does not tell them apart."""
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected or found == str(expected).encode(), (found, expected)


@pytest.mark.parametrize("where", ["path", "url"])
@pytest.mark.parametrize("name", FILES)
def test_files_round_trip(name, where, tmp_path):
    root = str(tmp_path) if where == "path" else f"memory://write/{name}"
    urls = write_format(f"{root}/{FILES[name]}", samples())
    assert urls == [f"{root}/{FILES[name]}"]
    dataset = shoal.Dataset(urls[0])
    assert len(dataset) == 12
    for expected, found in zip(samples(), dataset, strict=True):
        assert found["__key__"] == expected["__key__"]
        for field in ("n", "x", "text", "raw", "image.npy", "json"):
            same(found[field], expected[field])
    same(dataset.get("k07")["n"], 7)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_round_trip(name, tmp_path):
    kept = [{f: v for f, v in sample.items() if f in ("__key__", "n", "text")} for sample in samples()]
    write_format(tmp_path / TEXTS[name], kept)
    found = list(shoal.Dataset(tmp_path / TEXTS[name]))
    assert [{f: v for f, v in s.items() if f != "__url__"} for s in found] == kept
    with pytest.raises(EncodeError, match="field raw"):
        write_format(tmp_path / f"b-{TEXTS[name]}", samples())
    assert not (tmp_path / f"b-{TEXTS[name]}").exists()


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_files(tmp_path, compressed):
    kept = [{f: s[f] for f in ("__key__", "n", "x", "text")} for s in samples()]
    urls = write_format(tmp_path / "d", kept, format="npz", compressed=compressed)
    assert len(urls) == 12
    with np.load(tmp_path / "d" / "k03.npz") as theirs:
        np.testing.assert_array_equal(theirs["x"], kept[3]["x"])
    assert [str(s["text"]) for s in NpzDataset(tmp_path / "d")] == [s["text"] for s in kept]


def test_npz_rows(tmp_path):
    kept = [{f: s[f] for f in ("__key__", "n", "x", "text")} for s in samples()]
    write_format(tmp_path / "a-%02d.npz", kept, rows=True, max_samples=5)
    dataset = NpzDataset(tmp_path, rows=True)
    assert dataset.keys() == [s["__key__"] for s in kept]
    assert [s["n"] for s in dataset] == list(range(12))
    with pytest.raises(EncodeError, match="field raw"):
        write_format(tmp_path / "b.npz", ({"raw": s["raw"]} for s in samples()), rows=True)


def test_shards(tmp_path):
    urls = write_format(tmp_path / "out", samples(), format="webdataset", max_samples=5)
    assert len(urls) == 3
    dataset = shoal.Dataset(tmp_path / "out", sample_type=dict)
    for expected, found in zip(samples(), dataset, strict=True):
        assert found["__key__"] == expected["__key__"]
        assert (found["n.json"], found["text"], found["raw"]) == (expected["n"], expected["text"], expected["raw"])
        same(found["x.npy"], expected["x"])
        assert found["json"] == expected["json"]


def test_raw_files(tmp_path):
    write_format(tmp_path, [{"__key__": "a/b", "txt": "hello", "json": {"x": 1}, "missing": None}], format="raw")
    assert (tmp_path / "a" / "b.txt").read_text() == "hello"
    assert shoal.Dataset(tmp_path, format="raw").keys() == ["a/b.json", "a/b.txt"]


def test_an_image_folder(tmp_path):
    made = [{"__key__": f"cat/{n}", "image": b"\x89PNG" + bytes([n]), "class_name": "cat"} for n in range(2)]
    made += [{"__key__": "x", "jpg": b"\xff\xd8\xff", "cls": 7}]
    write_format(tmp_path, made, format="imagefolder")
    found = {s["__key__"]: s["image"] for s in shoal.Dataset(tmp_path)}
    assert found == {"cat/0": b"\x89PNG\0", "cat/1": b"\x89PNG\1", "7/x": b"\xff\xd8\xff"}
    for bad in ({"image": b"x"}, {"cls": 1}, {"image": np.zeros(3), "cls": 1}):
        with pytest.raises(WriteError):
            write_format(tmp_path / "bad", [bad], format="imagefolder")


def test_what_the_libraries_see(tmp_path):
    write_format(tmp_path / "a.parquet", samples(), row_group_size=5, compression="snappy")
    facts = pq.ParquetFile(tmp_path / "a.parquet")
    assert facts.metadata.num_row_groups == 3
    assert facts.read(columns=["n"]).to_pydict()["n"] == list(range(12))
    write_format(tmp_path / "a.h5", samples(), compression="gzip", keys=False)
    with h5py.File(tmp_path / "a.h5") as file:
        assert "__key__" not in file
        np.testing.assert_array_equal(file["x"][4], np.arange(4, 7, dtype=np.float32))
        assert file["x"].compression == "gzip"
        assert file["text"].asstr()[3] == "é 3"


@pytest.mark.parametrize("name", [*FILES, *TEXTS])
def test_several_files_and_no_samples(name, tmp_path):
    file = (FILES | TEXTS)[name].replace("a.", "a-%03d.")
    urls = write_format(tmp_path / file, ({"n": n} for n in range(7)), max_samples=3)
    assert len(urls) == 3
    assert [s["n"] for s in shoal.Dataset(tmp_path)] == list(range(7))
    empty = write_format(tmp_path / "none" / (FILES | TEXTS)[name], [])
    assert len(empty) == 1
    assert len(shoal.Dataset(empty[0])) == 0


@pytest.mark.parametrize("name", ["parquet", "hdf5", "csv", "npz"])
def test_a_later_sample_with_another_field(name, tmp_path):
    path = tmp_path / ("a.npz" if name == "npz" else (FILES | TEXTS)[name])
    options = {"rows": True} if name == "npz" else {}
    rows = [{"a": n} for n in range(1500)] + [{"a": 1, "b": 2}]
    with pytest.raises(WriteError, match="field"):
        write_format(path, rows, **options)
    assert not path.exists()


def test_what_is_there_stays(tmp_path):
    path = tmp_path / "a.jsonl"
    write_format(path, [{"a": 1}])
    with pytest.raises(ObjectExistsError):
        write_format(path, [{"a": 2}])
    assert shoal.Dataset(path)[0]["a"] == 1
    write_format(path, [{"a": 2}], overwrite=True)
    assert shoal.Dataset(path)[0]["a"] == 2


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(FormatError):
        write_format(tmp_path / "a", [], format="mds")
    with pytest.raises(FormatError):
        write_format(tmp_path / "a.unknown", [])
    with pytest.raises(OptionError):
        write_format(tmp_path / "a.jsonl", [], no_such_option=1)
    with pytest.raises(OptionError):
        write_format(tmp_path / "a.jsonl", [], max_samples=3)
    with pytest.raises(WriteError):
        write_format(tmp_path / "a.jsonl", [3])
    assert set(WRITABLE) < set(formats())


def test_a_failed_file_is_not_seen():
    def broken():
        yield {"a": 1}
        raise RuntimeError("the source broke")

    for file in (FILES | TEXTS).values():
        with pytest.raises(RuntimeError):
            write_format(f"memory://failed/{file}", broken())
    assert list(store_for("memory://failed").list("memory://failed")) == []
