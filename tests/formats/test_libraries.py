"""Files that the real libraries wrote, and damage to them."""

from __future__ import annotations

import datetime as dt
import io

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import shoal
from shoal.dataset import (
    ArrowDataset,
    CsvDataset,
    Hdf5Dataset,
    ImageFolderDataset,
    JsonlDataset,
    NpzDataset,
    ParquetDataset,
    RawDataset,
)
from shoal.errors import DecodeError, FieldError, FormatError, OptionError, ShoalWarning, UnsafeCodecError
from shoal.store import store_for


def equal(found, expected):
    np.testing.assert_array_equal(found, expected)
    assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)


ARRAYS = {
    "a": np.arange(12).reshape(4, 3),
    "f": np.asfortranarray(np.ones((4, 5))),
    "s": np.array(["x", "yy", "z", ""]),
}


class TestNpz:
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_as_numpy_reads_it(self, tmp_path, save):
        save(tmp_path / "a.npz", **ARRAYS, one=np.float32(3))
        sample = NpzDataset(tmp_path)[0]
        with np.load(tmp_path / "a.npz") as theirs:
            assert set(theirs) == set(sample) - {"__key__", "__url__"}
            for name in theirs:
                equal(sample[name], theirs[name])

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_rows_as_numpy_reads_them(self, tmp_path, save):
        save(tmp_path / "a.npz", **ARRAYS)
        dataset = NpzDataset(tmp_path / "a.npz", rows=True, key="s")
        assert dataset.keys() == ["x", "yy", "z", ""]
        for row, sample in enumerate(dataset):
            equal(sample["a"], ARRAYS["a"][row])
            equal(sample["f"], ARRAYS["f"][row])

    def test_far_rows_of_a_large_file(self, tmp_path):
        big = np.arange(4_000_000, dtype=np.float64).reshape(4000, 1000)
        np.savez(tmp_path / "a.npz", big=big, n=np.arange(4000))
        for sample, row in zip(NpzDataset(tmp_path, rows=True)[[3999, 0, 7]], (3999, 0, 7), strict=True):
            equal(sample["big"], big[row])
            assert sample["n"] == row

    def test_arrays_that_are_not_equally_long(self, tmp_path):
        np.savez(tmp_path / "a.npz", a=np.zeros(3), b=np.zeros(4))
        with pytest.raises(DecodeError, match="a: 3, b: 4"):
            len(NpzDataset(tmp_path, rows=True))
        assert len(NpzDataset(tmp_path)) == 1

    @pytest.mark.parametrize("rows", [False, True])
    def test_what_is_no_npz(self, tmp_path, rows):
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
    def test_objects_are_refused(self, tmp_path, rows):
        np.savez(tmp_path / "a.npz", x=np.array([{}, []], object))
        with pytest.raises(UnsafeCodecError):
            NpzDataset(tmp_path, rows=rows)[0]

    def test_a_bad_file_may_be_passed_over(self, tmp_path):
        for number in range(3):
            np.savez(tmp_path / f"{number}.npz", n=number)
        (tmp_path / "1.npz").write_bytes(b"no")
        with pytest.warns(ShoalWarning):
            assert [int(s["n"]) for s in shoal.Dataset(tmp_path, on_error="skip", fields=["n"])] == [0, 2]


class TestHdf5:
    @pytest.fixture
    def path(self, tmp_path):
        rng = np.random.default_rng(0)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            group = file.create_group("train")
            group["plain"] = rng.random((50, 4), np.float32)
            group.create_dataset("chunked", data=rng.integers(0, 9, (50, 3, 2)), chunks=(7, 3, 2), compression="gzip")
            group["big_endian"] = np.arange(50, dtype=">i4")
            group["text"] = [f"t{n}" for n in range(50)]
            group.create_dataset("fixed_text", data=np.array([f"f{n}".encode() for n in range(50)]))
            group["truth"] = np.arange(50) % 2 == 0
            ragged = group.create_dataset("ragged", (50,), h5py.vlen_dtype(np.int32))
            raw = group.create_dataset("raw", (50,), h5py.vlen_dtype(np.uint8))
            for n in range(50):
                ragged[n], raw[n] = np.arange(n), np.frombuffer(bytes([n]) * n, np.uint8)
            file["other"] = np.zeros(3)
        return tmp_path / "a.h5"

    def test_as_h5py_reads_it(self, path):
        dataset = Hdf5Dataset(path, group="train")
        with h5py.File(path) as file:
            theirs = file["train"]
            for rows in (range(50), [49, 3, 3, 20]):
                for row, sample in zip(rows, dataset[list(rows)], strict=True):
                    for name in ("plain", "chunked", "ragged"):
                        equal(sample[name], theirs[name][row])
                    assert sample["big_endian"] == row
                    assert sample["truth"] is (row % 2 == 0)
                    assert (sample["text"], sample["fixed_text"], sample["raw"]) == (
                        f"t{row}",
                        f"f{row}",
                        bytes([row]) * row,
                    )

    def test_datasets_that_are_not_equally_long(self, path):
        with pytest.raises(DecodeError, match="other: 3"):
            len(shoal.Dataset(path))
        with pytest.raises(FieldError):
            len(Hdf5Dataset(path, group="no such group"))

    def test_what_is_no_hdf5(self, path):
        data = path.read_bytes()
        path.write_bytes(b"no" + data[2:])
        with pytest.raises(DecodeError, match=r"a\.h5"):
            len(shoal.Dataset(path))
        path.write_bytes(data[: len(data) // 3])
        with pytest.raises(DecodeError):
            Hdf5Dataset(path, group="train")[40]

    def test_far_rows_of_a_large_dataset(self, tmp_path):
        big = np.arange(4_000_000, dtype=np.float64).reshape(4000, 1000)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = big
        for sample, row in zip(shoal.Dataset(tmp_path / "a.h5")[[3999, 0, 7]], (3999, 0, 7), strict=True):
            equal(sample["x"], big[row])


class TestTables:
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
    def path(self, request, tmp_path):
        path = tmp_path / f"a.{request.param}"
        if request.param == "parquet":
            pq.write_table(self.TABLE, path, row_group_size=8)
        else:
            with pa.ipc.new_file(path, self.TABLE.schema) as writer:
                writer.write_table(self.TABLE, max_chunksize=8)
        return path

    def test_as_pyarrow_reads_it(self, path):
        dataset = shoal.Dataset(path)
        for rows in (range(30), [29, 0, 8, 8, 7]):
            for row, sample in zip(rows, dataset[list(rows)], strict=True):
                theirs = self.TABLE.slice(row, 1).to_pylist()[0]
                equal(sample.pop("list"), np.array(theirs.pop("list"), np.float64))
                assert {name: v for name, v in sample.items() if not name.startswith("__")} == theirs

    def test_where_and_columns(self, path):
        dataset = shoal.Dataset(path)
        assert set(dataset.column_names) == {"n", "x", "name", "when"}
        assert [sample["n"] for sample in dataset.where("n >= 27 or name = 'n3'")] == [3, 27, 28, 29]
        assert dataset.source.table(["name", "__key__"]).column("name").to_pylist()[4] == "n4"

    def test_keys_by_column(self, path):
        kind = ParquetDataset if path.suffix == ".parquet" else ArrowDataset
        dataset = kind(path, key="name")
        assert dataset.get("n13")["n"] == 13
        assert dataset.keys()[:2] == ["n0", "n1"]
        with pytest.raises(FieldError):
            kind(path, key="no such column")[0]

    def test_damage(self, path):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - 40])
        with pytest.raises(DecodeError, match=path.name):
            shoal.Dataset(path)[0]

    def test_typed_samples(self, path):
        @shoal.packable
        class Row:
            n: int
            name: str

        assert shoal.Dataset[Row](path)[3].name == "n3"


class TestCsv:
    FRAME = pd.DataFrame(
        {
            "n": range(40),
            "half": [n / 2 for n in range(40)],
            "truth": [n % 2 == 0 for n in range(40)],
            "text": [f'quote " comma , line\n{n}' if n % 3 else "" for n in range(40)],
            "zip": [f"{n:05d}" for n in range(40)],
            "gap": [None if n % 5 == 0 else n for n in range(40)],
        }
    ).astype({"gap": "Int64"})

    @pytest.mark.parametrize("separator, ending", [(",", "csv"), ("\t", "tsv")])
    def test_as_pandas_wrote_it(self, tmp_path, separator, ending):
        path = tmp_path / f"a.{ending}"
        self.FRAME.to_csv(path, sep=separator, index=False)
        dataset = shoal.Dataset(path)
        for n, sample in enumerate(dataset):
            expected = self.FRAME.iloc[n]
            assert (sample["n"], sample["half"], sample["truth"]) == (n, n / 2, n % 2 == 0)
            assert (sample["text"], sample["zip"]) == (expected["text"], f"{n:05d}")
            assert sample["gap"] == (None if n % 5 == 0 else n)
        assert len(dataset) == 40

    def test_windows_lines_marks_and_empty_lines(self, tmp_path):
        (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n1,"x\r\ny"\r\n\r\n2,z')
        assert [(s["a"], s["b"]) for s in shoal.Dataset(tmp_path / "a.csv")] == [(1, "x\r\ny"), (2, "z")]

    def test_types_may_be_said(self, tmp_path):
        (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
        assert CsvDataset(tmp_path / "a.csv", types={"a": "str"})[1]["a"] == "3"
        assert CsvDataset(tmp_path / "a.csv", header=False)[0]["1"] == "b"
        with pytest.raises(OptionError):
            CsvDataset(tmp_path / "a.csv", types={"a": "date"})[0]
        with pytest.raises(OptionError):
            CsvDataset(tmp_path / "a.csv", delimiter="--")[0]

    def test_a_cell_that_does_not_fit(self, tmp_path):
        (tmp_path / "a.csv").write_text("a\n" + "1\n" * 1000 + "x\n")
        dataset = shoal.Dataset(tmp_path / "a.csv")
        assert dataset[999]["a"] == 1
        with pytest.raises(DecodeError, match=r"field a.*types="):
            dataset[1000]

    @pytest.mark.parametrize(
        "text, position", [(b"a,b\n1,2\n3\n", 1), (b'a,b\n1,"x" y\n', 0), (b"a,b\n1,\xff\n", 0), (b"a,a\n1,2\n", 0)]
    )
    def test_damage(self, tmp_path, text, position):
        (tmp_path / "a.csv").write_bytes(text)
        with pytest.raises(DecodeError, match=r"a\.csv"):
            shoal.Dataset(tmp_path / "a.csv")[position]

    def test_an_empty_file(self, tmp_path):
        (tmp_path / "a.csv").write_bytes(b"")
        assert list(shoal.Dataset(tmp_path / "a.csv")) == []

    def test_chunks_that_cut_a_quote(self, tmp_path, monkeypatch):
        from shoal.formats import _csv_jsonl

        monkeypatch.setattr(_csv_jsonl, "_CHUNK", 5)
        path = tmp_path / "a.csv"
        self.FRAME.to_csv(path, index=False)
        assert [sample["n"] for sample in shoal.Dataset(path)] == list(range(40))


class TestJsonl:
    def test_as_pandas_wrote_it(self, tmp_path):
        frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "line\nend", "é"], "c": [[1], [], [2, 3]]})
        frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
        dataset = shoal.Dataset(tmp_path / "a.jsonl")
        assert [(s["a"], s["b"], s["c"]) for s in dataset] == list(frame.itertuples(index=False, name=None))

    def test_empty_lines_and_marks(self, tmp_path):
        (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2, "b": null}\n')
        assert [s["a"] for s in shoal.Dataset(tmp_path / "a.jsonl")] == [1, 2]
        assert JsonlDataset(tmp_path / "a.jsonl", key="a").keys() == ["1", "2"]

    @pytest.mark.parametrize("line", ['{"a": ', "[1]", "nonsense"])
    def test_a_line_that_is_no_object(self, tmp_path, line):
        (tmp_path / "a.jsonl").write_text('{"a": 1}\n' + '{"a": 1}\n' * 1500 + line + "\n")
        dataset = shoal.Dataset(tmp_path / "a.jsonl")
        assert dataset[0]["a"] == 1
        with pytest.raises(DecodeError, match="line 1502"):
            dataset[1501]


class TestObjects:
    def test_images_are_decoded_as_told(self, tmp_path):
        for name, level in (("cat", 10), ("dog", 200)):
            (tmp_path / name).mkdir()
            Image.new("RGB", (5, 4), (level,) * 3).save(tmp_path / name / "a.png")
        samples = list(shoal.Dataset(tmp_path, decode="rgb8"))
        assert [(s["class_name"], int(s["image"][0, 0, 0]), s["image"].shape) for s in samples] == [
            ("cat", 10, (4, 5, 3)),
            ("dog", 200, (4, 5, 3)),
        ]

    def test_an_image_without_a_class(self, tmp_path):
        Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
        with pytest.raises(FormatError, match="class"):
            ImageFolderDataset(tmp_path)[0]

    def test_raw_bytes_stay_bytes(self, tmp_path):
        (tmp_path / "a.json").write_text('{"x": 1}')
        (tmp_path / "b").write_bytes(b"\0\1")
        (tmp_path / ".hidden").write_bytes(b"")
        dataset = RawDataset(tmp_path)
        assert dataset.keys() == ["a.json", "b"]
        assert dataset[0]["json"] == {"x": 1}
        assert dataset[1]["bin"] == b"\0\1"
        assert [s["data"] for s in RawDataset(tmp_path, field="data", decode=False)] == [b'{"x": 1}', b"\0\1"]

    def test_several_objects_are_fetched_at_once(self):
        from shoal.store import MemoryStore, register_store

        store = MemoryStore()
        register_store("slow", store)
        for number in range(40):
            data = io.BytesIO()
            np.savez(data, n=number)
            store_for("slow://x").write_all(f"slow://bucket/{number:02d}.npz", data.getvalue())
        assert [int(sample["n"]) for sample in NpzDataset("slow://bucket")] == list(range(40))


def test_tars_win_over_what_lies_beside_them(tmp_path):
    with shoal.ShardWriter(tmp_path / "a-%06d.tar") as writer:
        writer.write({"txt": "x"})
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("a\n1\n")
    assert shoal.Dataset(tmp_path)[0]["txt"] == "x"
    (tmp_path / ".shoal" / "manifest.json").unlink()
    assert shoal.Dataset([tmp_path / "a-000000.tar"])[0]["txt"] == "x"


def test_splits_by_name(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        (tmp_path / f"{split}-0.jsonl").write_text('{"a": 1}\n' * count)
    assert len(shoal.Dataset(tmp_path)) == 5
    assert len(shoal.Dataset(tmp_path, split="test")) == 2
    with pytest.raises(FieldError, match="train"):
        len(shoal.Dataset(tmp_path, split="validation"))
