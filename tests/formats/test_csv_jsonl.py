"""CSV and JSON Lines files that pandas wrote, and damage to them."""

from __future__ import annotations

import pandas as pd
import pytest

import shoal
from shoal.dataset import CsvDataset, JsonlDataset
from shoal.errors import DecodeError, OptionError


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
        from shoal.formats import _text_lines

        monkeypatch.setattr(_text_lines, "_CHUNK_BYTES", 5)
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
