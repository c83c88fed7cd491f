"""JSON Lines and CSV files are counted and read the same, plain or compressed, wherever they are."""

from __future__ import annotations

import builtins
import bz2
import gzip
import itertools
import json
import lzma
import os
import subprocess
import sys

import pytest
import zstandard
from tests.store.conftest import _own_options, http, s3, s3_endpoint  # noqa: F401 - fixtures

import shoal
from shoal.dataset import CsvDataset, JsonlDataset
from shoal.errors import DecodeError, MissingExtraError, ShoalWarning, TruncatedError
from shoal.formats import detect, write_format
from shoal.store import put

COUNT = 3000


def zstd(data):
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstd, ".bz2": bz2.compress, ".xz": lzma.compress}
COMPRESSED = [ending for ending in PACK if ending]


def members(data, pack, count=5):
    """Several members, streams or frames, as C4 and Dolma have them; they do not end where lines do."""
    step = len(data) // count + 1
    return b"".join(pack(data[start : start + step]) for start in range(0, len(data), step))


def rows(count=COUNT):
    return [{"n": n, "text": f"line {n} é " + "x" * (n * n % 97)} for n in range(count)]


def json_line(row):
    return json.dumps(row, ensure_ascii=False).encode()


def csv_line(row):
    quoted = row["text"].replace("line", 'li"" , \nne')
    return f'{row["n"]},"{quoted}"'.encode()


LAYOUTS = {
    "lines": lambda lines: b"\n".join(lines) + b"\n",
    "no final line end": b"\n".join,
    "CRLF": lambda lines: b"\r\n".join(lines) + b"\r\n",
    "blank lines and a mark": lambda lines: b"\xef\xbb\xbf" + b"\n\n\r\n".join(lines) + b"\n\r\n\n",
}


def jsonl(layout="lines", count=COUNT):
    return LAYOUTS[layout]([json_line(row) for row in rows(count)])


def csv(layout="lines", count=COUNT):
    return LAYOUTS[layout]([b"n,text", *(csv_line(row) for row in rows(count))])


def plain(sample):
    """A sample of either format, as `rows` has it."""
    return {"n": sample["n"], "text": sample["text"].replace('li" , \nne', "line")}


def check(dataset, count=COUNT):
    """Count, order, position, key and loader agree with what was written."""
    expected = rows(count)
    assert [plain(sample) for sample in dataset] == expected
    assert len(dataset) == count
    picks = [0, count - 1, *range(7, count, 617)]
    assert [plain(dataset[n]) for n in picks] == [expected[n] for n in picks]
    assert [plain(sample) for sample in dataset.select(picks)] == [expected[n] for n in picks]
    assert plain(dataset.get(f"{count - 1:09d}")) == expected[-1]
    loader = shoal.DataLoader(dataset, batch_size=None, shuffle=True, seed=3)
    assert sorted((plain(sample) for sample in loader), key=lambda row: row["n"]) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("kind, text", [("jsonl", jsonl), ("csv", csv)])
def test_files(tmp_path, kind, text, ending, layout):
    path = tmp_path / f"a.{kind}{ending}"
    path.write_bytes(members(text(layout), PACK[ending]))
    check(shoal.Dataset(path))
    check({"jsonl": JsonlDataset, "csv": CsvDataset}[kind](path))


@pytest.mark.parametrize("name", ["a.json{}", "a.ndjson{}", "c4-train.00000-of-01024.json{}", "A.JSONL{}"])
@pytest.mark.parametrize("ending", PACK)
def test_names(tmp_path, name, ending):
    path = tmp_path / name.format(ending)
    path.write_bytes(PACK[ending](jsonl(count=20)))
    check(shoal.Dataset(path), 20)
    check(shoal.load_dataset(str(path), split="train"), 20)


@pytest.mark.parametrize("ending", PACK)
def test_a_name_that_says_nothing(tmp_path, ending):
    path = tmp_path / "download"
    path.write_bytes(PACK[ending](jsonl(count=20)))
    check(shoal.Dataset(path), 20)
    path.write_bytes(PACK[ending](b'{"a": 1}\n'))
    if not ending:  # one document is no file of lines
        with pytest.raises(shoal.errors.FormatError):
            detect(path)


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tabs(tmp_path, name):
    (tmp_path / name).write_bytes((gzip.compress if name.endswith("gz") else bytes)(b"a\tb\n1\tx, y\n"))
    for path in (tmp_path, tmp_path / name, [tmp_path / name], f"{tmp_path}/*"):
        assert [(sample["a"], sample["b"]) for sample in shoal.Dataset(path)] == [(1, "x, y")]


class TestFolders:
    @pytest.fixture
    def folder(self, tmp_path):
        for part in range(3):
            lines = [json_line(row) for row in rows(30)[part * 10 : part * 10 + 10]]
            name = f"c4-train.{part:05d}-of-00003.json.gz"
            (tmp_path / "c4").mkdir(exist_ok=True)
            (tmp_path / "c4" / name).write_bytes(gzip.compress(b"\n".join(lines)))
        (tmp_path / "c4" / "c4-validation.00000-of-00001.json.gz").write_bytes(gzip.compress(jsonl(count=5)))
        (tmp_path / "c4" / "info.json").write_text('{"name": "c4"}\n{"name": "c4"}\n')
        return tmp_path / "c4"

    def test_are_the_files_in_them(self, folder):
        assert len(shoal.Dataset(folder)) == 35
        check(shoal.Dataset(folder, split="train"), 30)
        check(shoal.Dataset(f"{folder}/c4-train.*.json.gz"), 30)
        splits = shoal.load_dataset(str(folder))
        assert splits.num_samples == {"train": 30, "validation": 5}
        check(splits["train"], 30)
        assert shoal.load_dataset(str(folder), split="validation")[4]["n"] == 4

    def test_can_be_built_and_converted(self, folder, tmp_path):
        shoal.build_shards(f"{folder}/c4-train*", tmp_path / "tars", lambda row: {"json": row}, workers=1)
        assert [sample["json"]["n"] for sample in shoal.Dataset(tmp_path / "tars")] == list(range(30))
        for source, target in [("c4-train.*", "a.parquet"), ("c4-train.*", "a.jsonl.gz"), ("c4-train.*", "a.csv.zst")]:
            command = [sys.executable, "-m", "shoal", "convert", f"{folder}/{source}", str(tmp_path / target)]
            subprocess.run(command, check=True, capture_output=True)
            assert [sample["n"] for sample in shoal.Dataset(tmp_path / target)] == list(range(30))
        assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).count(b"\n") == 30


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_what_is_written_has_the_compression_of_its_name(tmp_path, name, ending):
    paths = [tmp_path / "1" / f"{name}{ending}", tmp_path / "2" / f"{name}{ending}"]
    for path in paths:
        write_format(path, ({"__key__": str(n), **row} for n, row in enumerate(rows(50))))
        assert [sample["text"] for sample in shoal.Dataset(path)] == [row["text"] for row in rows(50)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_on_other_stores(s3, http, ending):  # noqa: F811 - fixtures
    data = members(jsonl(), PACK[ending])
    put(f"{s3}/part/a.jsonl{ending}", data)
    http.objects["/a.jsonl" + ending] = data
    memory = f"memory://text{ending}/a.jsonl{ending}"
    put(memory, data)
    for url in (f"{s3}/part/a.jsonl{ending}", f"{s3}/part", f"{s3}/part/*", f"{http.url}/a.jsonl{ending}", memory):
        check(shoal.Dataset(url))


def unpacked():
    """Bytes of the disk cache, but for offsets."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(os.environ["SHOAL_CACHE"]) for name in names]
    return sum(os.path.getsize(path) for path in found if "offsets" not in path)


def test_only_access_by_position_unpacks(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl()))
    dataset = shoal.Dataset(path)
    assert sum(1 for _ in dataset) == len(dataset) == COUNT
    assert dataset.fields == ("n", "text")
    assert unpacked() == 0
    assert dataset[5]["n"] == 5
    assert unpacked() == len(jsonl())


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    for count in (10, 20):
        path.write_bytes(gzip.compress(jsonl(count=count)))
        check(shoal.Dataset(path), count)


@pytest.mark.parametrize("ending", COMPRESSED)
def test_damage_is_an_error(tmp_path, ending):
    data = members(jsonl(), PACK[ending])
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(data[:-20])
    for read in (list, len, lambda dataset: dataset[0]):
        with pytest.raises(TruncatedError, match="cut short"):
            read(shoal.Dataset(path))
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes(200) + data[middle + 200 :])
    with pytest.raises((DecodeError, TruncatedError), match=r"a\.jsonl"):
        list(shoal.Dataset(path))
    with pytest.warns(ShoalWarning, match="passed over 1 damaged"):
        kept = [sample["n"] for sample in shoal.Dataset(path, on_error="skip")]
    assert kept == list(range(len(kept)))


@pytest.mark.parametrize("ending", PACK)
def test_a_bad_line_is_named_and_skipped(tmp_path, ending):
    lines = [json_line(row) for row in rows(3000)]
    lines[1500] = b'{"n": '
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK[ending](b"\n".join(lines)))
    with pytest.raises(DecodeError, match="line 1501"):
        list(shoal.Dataset(path))
    with pytest.raises(DecodeError, match="line 1501"):
        shoal.Dataset(path)[1500]
    with pytest.warns(ShoalWarning, match="line 1501"):
        kept = [sample["n"] for sample in shoal.Dataset(path, on_error="skip")]
    assert kept == [n for n in range(3000) if n != 1500]


@pytest.mark.parametrize("text", ['[{"a": 1}]', '{\n  "a": 1\n}\n'])
def test_a_document_of_another_kind_says_what_is_needed(tmp_path, text):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(DecodeError, match="one object on each line"):
        list(shoal.Dataset(path))


def test_zstd_without_its_package_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd(jsonl(count=3)))
    load = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "zstandard":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "zstandard")
    monkeypatch.setattr(builtins, "__import__", without)
    for read in (len, list):
        with pytest.raises(MissingExtraError, match=r"shoal\[zstd\]"):
            read(shoal.Dataset(path))


def test_no_name_is_read_as_text_that_is_not():
    names = [f"a.tar{ending}" for ending in PACK]
    assert {shoal.formats.detect_name(name) for name in itertools.chain(names, ["a.tgz"])} == {"webdataset"}


@pytest.mark.parametrize("ending", COMPRESSED)
@pytest.mark.parametrize("text", ["jsonl", "csv"])
def test_a_compressed_file_of_0_bytes_is_an_error(tmp_path, text, ending):
    (tmp_path / f"a.{text}{ending}").write_bytes(b"")
    for read in (len, list, lambda dataset: dataset.keys()):
        with pytest.raises(TruncatedError, match=r"0 bytes.*Download"):
            read(shoal.Dataset(tmp_path))
    (tmp_path / f"a.{text}{ending}").write_bytes(PACK[ending](b""))
    assert list(shoal.Dataset(tmp_path)) == []


CSV_FILES = {
    "text": (["zip,n\n10001,1\n", "zip,n\n00501,2\n"], "zip"),
    "text first": (["zip,n\n00501,2\n", "zip,n\n10001,1\n"], "zip"),
    "flags": (["n,ok\n1,true\n", "n,ok\n1,1\n"], "ok"),
}


@pytest.mark.parametrize("case", CSV_FILES)
def test_a_csv_column_has_one_type_in_all_files(tmp_path, case):
    texts, name = CSV_FILES[case]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.csv").write_text(text)
    for read in (list, lambda ds: ds[1], lambda ds: ds[[1, 0]], lambda ds: list(shoal.DataLoader(ds, batch_size=2))):
        with pytest.raises(DecodeError, match=rf"another type.*1\.csv, field {name}.*types="):
            read(CsvDataset(tmp_path))
    for kind in ("str", str):
        values = [sample[name] for sample in CsvDataset(tmp_path, types={name: kind})]
        assert values == [text.split("\n")[1].split(",")[text.split("\n")[0].split(",").index(name)] for text in texts]


def test_csv_columns_that_differ_harmlessly(tmp_path):
    for number, text in enumerate(["n,m,k\n1,,x\n2,,\n", "m,n\n3,1.5\n", "n,m,k\n,,y\n"]):
        (tmp_path / f"{number}.csv").write_text(text)
    samples = list(CsvDataset(tmp_path))
    assert [sample["n"] for sample in samples] == [1, 2, 1.5, None]
    assert [sample["m"] for sample in samples] == [None, None, 3, None]
    assert [sample.get("k") for sample in samples] == ["x", "", None, "y"]
