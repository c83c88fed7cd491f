"""Every kind of source that build_shards takes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.build.built import keys, make_folder, numbers, samples, tree

import shoal
from shoal.build import LocalEngine
from shoal.formats import write_format

TWO = LocalEngine(2, "fork")


def folder(tmp_path):
    return make_folder(tmp_path / "in"), None


def glob(tmp_path):
    return str(make_folder(tmp_path / "in") / "*.png"), None


def files(tmp_path):
    return sorted(map(str, make_folder(tmp_path / "in").glob("*"))), None


def table(name):
    def make(tmp_path):
        path = tmp_path / f"table.{name}"
        write_format(path, [{"__key__": f"{n:09d}", "n": n, "words": f"row {n}"} for n in range(20)], max_samples=None)
        return path, None

    make.__name__ = name
    return make


def hugging_face(tmp_path):
    import datasets

    return datasets.Dataset.from_dict({"n": list(range(20)), "words": [f"row {n}" for n in range(20)]}), None


def dataset(tmp_path):
    shoal.write_samples(numbers(20), str(tmp_path / "shards"))
    return shoal.Dataset(tmp_path / "shards").map(picky_cls).select(range(5, 15)), 10


def picky_cls(sample):
    return {**sample, "cls": sample["cls"] + 100}


def shards(tmp_path):
    shoal.write_samples(numbers(20), str(tmp_path / "shards"))
    return tmp_path / "shards", None


def sequence(tmp_path):
    return numbers(20), None


def several(tmp_path):
    return [make_folder(tmp_path / "in", 10), table("csv")(tmp_path)[0], numbers(5)], 35


SOURCES = [
    folder,
    glob,
    files,
    table("csv"),
    table("jsonl"),
    table("parquet"),
    table("arrow"),
    table("tfrecord"),
    hugging_face,
    dataset,
    shards,
    sequence,
    several,
]


@pytest.mark.usefixtures("leaky_peer")
@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_every_source_is_built_from(tmp_path, make):
    source, count = make(tmp_path)
    report = shoal.build_shards(source, tmp_path / "one", max_samples=6, workers=1, keys="number")
    shoal.build_shards(source, tmp_path / "two", max_samples=6, engine=LocalEngine(2, "fork"), keys="number")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert report.samples == len(samples(tmp_path / "one")) == (count or 20)
    assert keys(tmp_path / "one") == [f"{number:09d}" for number in range(count or 20)]


@pytest.mark.usefixtures("leaky_peer")
def test_values_of_a_table_get_names_that_say_their_type(tmp_path):
    source, _ = hugging_face(tmp_path)
    shoal.build_shards(source, tmp_path / "out", workers=1)
    assert samples(tmp_path / "out")[3] == {"__key__": "000000003", "n.json": 3, "words.txt": "row 3"}


def test_paths_in_a_table_are_fetched(tmp_path):
    make_folder(tmp_path / "files", 5)
    rows = [{"photo": f"files/{n:03d}.png", "label": n} for n in range(5)] + [{"photo": "files/gone.png", "label": 5}]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    report = shoal.build_shards(tmp_path / "table.parquet", tmp_path / "out", fetch="photo", engine=TWO, error_budget=1)
    found = samples(tmp_path / "out")
    assert [sample["png"] for sample in found] == [bytes([n]) * (n + 1) for n in range(5)]
    assert found[2]["label.json"] == 2
    assert [(failure.item, failure.key) for failure in report.failures] == [(5, "000000005")]
    assert "no such file" in report.failures[0].reason
    named = shoal.build_shards(
        tmp_path / "table.parquet", tmp_path / "named", fetch={"photo": "image.bin"}, error_budget=0.2, workers=1
    )
    assert "image.bin" in named.shards[0].fields


def test_a_remote_folder_is_built_from_and_to(tmp_path):
    for number in range(10):
        shoal.store.put(f"memory://there/in/a/{number}.txt", f"{number}".encode())
    shoal.build_shards("memory://there/in", "memory://there/out", max_samples=4, workers=1)
    found = shoal.Dataset("memory://there/out")
    assert [sample["txt"] for sample in found] == [f"{number}" for number in range(10)]
    assert found.keys()[0] == "a/0"
