"""The Parquet files of the index answer the queries of other programs as the dataset answers them."""

from __future__ import annotations

import duckdb
import pandas as pd
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from tests.shard.segments import write_as_segments

import shoal
from shoal.errors import FormatError, OptionError

pc = pyarrow.compute


def sample(number, **more):
    return {"__key__": f"k{number:03d}", "json": {"width": number % 5, **more}}


@pytest.fixture
def ds(tmp_path):
    """With several segments, of which the last has one more column, and deleted samples in most of them."""
    splits = {"train": map(sample, range(40)), "val": map(sample, range(40, 44))}
    root = write_as_segments(str(tmp_path), splits)
    shoal.Dataset(root, split="train").append(sample(number, kind="new") for number in range(44, 48))
    return shoal.Dataset(root).tombstone([f"k{number:03d}" for number in (0, 3, 20, 39, 41, 47)])


def test_duckdb_counts_what_the_dataset_counts(ds):
    deleted = ds.deleted_index_rows()
    for split, files in ds.index_files().items():
        assert len(files) >= (2 if split == "train" else 1)
        query = """
            SELECT "json.width" AS width, count(*) AS samples, min(__key__) AS first
            FROM read_parquet($files, filename=true, file_row_number=true, union_by_name=true)
            ANTI JOIN deleted USING (filename, file_row_number)
            GROUP BY width ORDER BY width
        """
        connection = duckdb.connect()
        connection.register("deleted", deleted)
        found = connection.execute(query, {"files": files}).fetchall()
        own = shoal.Dataset(ds.source.index.locations[0], split=split)
        views = [own.where(f"width = {width}") for width in range(5)]
        expected = [(width, len(view), min(view.keys())) for width, view in enumerate(views) if len(view)]
        assert found == expected


def test_pandas_has_the_live_rows(ds):
    deleted, frames = ds.deleted_index_rows(), []
    for file in ds.index_files()["train"]:
        gone = deleted.filter(pc.field("filename") == file)["file_row_number"].to_pylist()
        frames.append(pd.read_parquet(file).drop(index=gone))
    frame = pd.concat(frames, ignore_index=True)
    train = shoal.Dataset(ds.source.index.locations[0], split="train")
    assert frame["__key__"].tolist() == train.keys()
    assert frame[frame["json.kind"] == "new"]["__key__"].tolist() == train.where("kind = 'new'").keys()


def test_files_of_shards_are_beside_those_of_samples(ds):
    samples, shards = ds.index_files(), ds.index_files("shards")
    names = []
    for split, files in shards.items():
        assert [file.rpartition("/")[0] for file in files] == [file.rpartition("/")[0] for file in samples[split]]
        for rows, tars in zip(samples[split], files, strict=True):
            paths = pq.read_table(tars)["path"].to_pylist()
            names += [paths[number] for number in pq.read_table(rows)["__shard__"].to_pylist()]
    urls = [
        sample["__url__"].rpartition("/")[2] for sample in shoal.Dataset(ds.source.index.locations[0], tombstones=False)
    ]
    assert names == urls


def test_only_the_files_of_the_generation_that_is_open_are_named(ds):
    files, deleted = ds.index_files(), ds.deleted_index_rows()
    grown = shoal.Dataset(ds.source.index.locations[0], split="val").append([sample(60)])
    assert ds.index_files() == files
    assert ds.deleted_index_rows() == deleted
    assert grown.index_files() != {"val": files["val"]}
    assert grown.restore().deleted_index_rows().num_rows == 0


def test_what_has_no_index_files(ds, tmp_path):
    with pytest.raises(OptionError, match="not to a view"):
        ds.where("width > 2").index_files()
    with pytest.raises(OptionError, match="kind must be 'samples' or 'shards', got 'all'"):
        ds.index_files("all")
    with shoal.ShardWriter(f"{tmp_path}/old/a-%06d.tar") as writer:
        writer.write(sample(0))
    with pytest.raises(FormatError, match="in segments"):
        shoal.Dataset(tmp_path / "old" / "a-000000.tar").index_files()
