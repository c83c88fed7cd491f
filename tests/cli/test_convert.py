"""``shoal convert``: samples from any format into any other."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from tests.formats.examples import COUNT, EXAMPLES

import shoal
from shoal.formats import write_format

TARGETS = {"hdf5": "a.h5", "tfrecord": "a.tfrecord", "parquet": "a.parquet", "arrow": "a.arrow", "webdataset": "shards"}


@pytest.mark.parametrize("example", [e for e in EXAMPLES if not e.reading], ids=repr)
def test_every_format_becomes_shards(run, example, tmp_path):
    root = example.make(tmp_path / "data")
    done = run("convert", root, tmp_path / "out", "--from", example.name, "--max-samples", 10, "--json")
    assert done.code == 0, done.err
    assert done.json["samples"] == COUNT
    assert len(done.json["files"]) == 3
    shards = shoal.Dataset(tmp_path / "out", sample_type=dict)
    field = next(name for name in shards.fields if name.partition(".")[0] == example.one)
    values = [np.asarray(sample[field]).item() for sample in shards]
    assert [int(value) for value in values] == list(range(COUNT))


@pytest.mark.parametrize("first, second", list(itertools.permutations(TARGETS, 2)))
def test_from_each_to_each(run, first, second, tmp_path):
    made = [{"__key__": f"k{n}", "json": {"n": n}, "x.npy": np.arange(3) + n, "raw": bytes([n])} for n in range(6)]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    source = tmp_path / "one" / TARGETS[first]
    write_format(source, made, format=first)
    done = run("convert", source, tmp_path / "two" / TARGETS[second])
    assert done.code == 0, done.err
    assert f"6 samples in 1 file of {second}" in done.out
    found = shoal.Dataset(tmp_path / "two" / TARGETS[second], sample_type=dict)
    assert found.keys() == [f"k{n}" for n in range(6)]
    for n, sample in enumerate(found):
        assert (sample["json"], sample["raw"]) == ({"n": n}, bytes([n]))
        np.testing.assert_array_equal(sample["x.npy"], np.arange(3) + n)


def test_some_fields_and_some_samples(run, tmp_path):
    write_format(tmp_path / "a.parquet", [{"n": n, "s": str(n), "raw": b"x"} for n in range(9)])
    done = run("convert", tmp_path / "a.parquet", tmp_path / "b.jsonl", "--fields", "n,s", "--where", "n > 6")
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert lines == [{"__key__": f"{n:09d}", "n": n, "s": str(n)} for n in (7, 8)]


def test_a_cut_run_goes_on(run, tmp_path, monkeypatch):
    write_format(tmp_path / "a.jsonl", [{"n": n} for n in range(10)])
    original = shoal.ShardWriter.write

    def dies(self, sample):
        if self.samples == 7:
            raise KeyboardInterrupt
        original(self, sample)

    monkeypatch.setattr(shoal.ShardWriter, "write", dies)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        raise SystemExit(run("convert", tmp_path / "a.jsonl", tmp_path / "out", "--max-samples", 3).code)
    monkeypatch.setattr(shoal.ShardWriter, "write", original)
    finished = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    assert len(finished) == 2
    done = run("convert", tmp_path / "a.jsonl", tmp_path / "out", "--max-samples", 3, "--resume")
    assert done.code == 0, done.err
    for name, written in finished.items():
        assert (tmp_path / "out" / name).stat().st_mtime_ns == written
    assert [s["n.json"] for s in shoal.Dataset(tmp_path / "out", sample_type=dict)] == list(range(10))


def test_what_is_there_stays_unless_told(run, tmp_path):
    write_format(tmp_path / "a.jsonl", [{"n": 1}])
    write_format(tmp_path / "b.parquet", [{"n": 2}])
    done = run("convert", tmp_path / "a.jsonl", tmp_path / "b.parquet")
    assert done.code == 1
    assert "--overwrite" in done.err
    assert run("convert", tmp_path / "a.jsonl", tmp_path / "b.parquet", "--overwrite").code == 0
    assert shoal.Dataset(tmp_path / "b.parquet")[0]["n"] == 1


@pytest.mark.parametrize(
    "args, word",
    [
        (["a.jsonl", "b.parquet", "--to", "mds"], "mds"),
        (["a.jsonl", "b.parquet", "--from", "nothing"], "nothing"),
        (["a.jsonl", "b.parquet", "--resume"], "webdataset"),
        (["a.jsonl", "a.jsonl"], "another DST"),
        (["missing.jsonl", "b.parquet"], "missing"),
        (["a.jsonl", "b.unknown"], "b.unknown"),
        (["a.jsonl", "b.unknown"], "say it with --to"),
    ],
)
def test_misuse(run, args, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_format("a.jsonl", [{"n": 1}])
    done = run("convert", *args)
    assert done.code in (1, 2)
    assert word in done.err
