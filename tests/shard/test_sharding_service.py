"""ShardingService: one call from labelled samples to shards, an index and a dataset."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from glob import glob
from pathlib import Path

import datasets
import numpy as np
import pytest
import webdataset
from tests.shard.written import read_written

from shoal import Dataset, ShardingService, load_shards
from shoal.errors import EncodeError, ManifestError, ObjectExistsError, OptionError, WriteError
from shoal.store import store_for

pytestmark = pytest.mark.usefixtures("commits")
only_manifest = pytest.mark.parametrize("commits", ["manifest"], indirect=True)


def labelled(count, start=0):
    return [
        {
            "image.jpg": b"\xff\xd8" + bytes([n % 256]) * 40,
            "label.txt": f"label {n}",
            "metadata": {"source": "web", "n": n},
        }
        for n in range(start, start + count)
    ]


def webdataset_reads(paths):
    found = webdataset.WebDataset(paths, shardshuffle=False, empty_check=False)
    return [{name: value for name, value in row.items() if name not in ("__url__", "__local_path__")} for row in found]


def datasets_reads(paths):
    return list(datasets.load_dataset("webdataset", data_files={"train": list(paths)}, split="train", streaming=True))


# ----------------------------------------------------------------------------------------------------- the seven notes


def test_1_labelled_samples_with_metadata(tmp_path):
    service = ShardingService(tmp_path)
    service.create_shards_from_data(labelled(3), metadata={"dataset": "pets", "split": "train"})
    rows = list(load_shards(tmp_path))
    assert [(row["__key__"], row["label.txt"], row["json"]) for row in rows] == [
        (f"{n:09d}", f"label {n}", {"source": "web", "n": n}) for n in range(3)
    ]


def test_2_a_thousand_samples_a_shard_unless_told_otherwise(tmp_path):
    assert ShardingService(tmp_path).shard_size == 1000
    paths = ShardingService(tmp_path / "a").create_shards_from_data({"txt": "x"} for _ in range(2001))
    assert paths == [f"{tmp_path}/a/shard-{n:06d}.tar" for n in range(3)]
    assert [record.samples for record in read_written(str(tmp_path / "a")).shards] == [1000, 1000, 1]
    assert len(ShardingService(tmp_path / "b", shard_size=7).create_shards_from_data(labelled(20))) == 3


def test_3_tars_with_json_members(tmp_path):
    (path,) = ShardingService(tmp_path).create_shards_from_data(labelled(2), metadata={"dataset": "pets"})
    with tarfile.open(path) as tar:
        members = [f"{n:09d}.{field}" for n in range(2) for field in ("image.jpg", "label.txt", "json")]
        assert tar.getnames() == [*members, "__meta__"]
        assert json.load(tar.extractfile("000000001.json")) == {"source": "web", "n": 1}
        assert json.load(tar.extractfile("__meta__")) == {"dataset": "pets"}


@only_manifest
def test_4_an_index_of_all_shards(tmp_path):
    service = ShardingService(tmp_path, shard_size=2, hashed=True)
    paths = service.create_shards_from_data(labelled(5), metadata={"dataset": "pets", "split": "train"})
    assert service.index_path == f"{tmp_path}/.shoal/manifest.json"
    index = json.loads(Path(service.index_path).read_text())
    assert index["metadata"] == {"dataset": "pets", "split": "train"}
    assert index["totals"]["samples"] == 5
    assert index["totals"]["shards"] == 3
    assert index["totals"]["bytes"] == sum(Path(path).stat().st_size for path in paths)
    shards = index["splits"]["train"]
    assert [shard["path"] for shard in shards] == [Path(path).name for path in paths]
    assert [(shard["samples"], shard["first_key"], shard["last_key"]) for shard in shards] == [
        (2, "000000000", "000000001"), (2, "000000002", "000000003"), (1, "000000004", "000000004"),
    ]  # fmt: skip
    assert all(len(shard["sha256"]) == 64 for shard in shards)
    assert shards[0]["fields"] == {"image.jpg": [2, 84], "label.txt": [2, 14], "json": [2, 44]}
    assert index["totals"]["fields"]["label.txt"] == [5, 35]


@pytest.mark.parametrize("compression", [None, "gzip", "bz2", "xz", "zstd"])
def test_5_compression(tmp_path, compression):
    paths = ShardingService(tmp_path, 10, compression).create_shards_from_data(labelled(25))
    assert all(path.endswith(".tar") for path in paths)  # readers go by content, and the seed's glob works
    assert [row["label.txt"] for row in load_shards(tmp_path)] == [f"label {n}" for n in range(25)]
    assert load_shards(tmp_path)[24]["json"]["n"] == 24
    plain = ShardingService(tmp_path / "plain", 10).create_shards_from_data(labelled(25))
    assert (Path(paths[0]).stat().st_size < Path(plain[0]).stat().st_size) is (compression is not None)


def test_6_straight_to_a_store(commits):
    folder = f"memory://bucket/pets/{commits}"
    service = ShardingService(folder, shard_size=2)
    paths = service.create_shards_from_data(labelled(3), metadata={"dataset": "pets"})
    assert paths == [f"{folder}/shard-000000.tar", f"{folder}/shard-000001.tar"]
    assert store_for(service.index_path).info(service.index_path).size > 100
    assert read_written(folder).samples == 3
    assert [row["label.txt"] for row in load_shards(folder)] == ["label 0", "label 1", "label 2"]


def test_7_utilities_for_loading(tmp_path):
    ShardingService(tmp_path, 4).create_shards_from_data(labelled(10), metadata={"split": "holdout"})
    ds = load_shards(tmp_path, split="holdout")
    assert isinstance(ds, Dataset)
    assert len(ds) == 10
    assert ds.metadata == {"split": "holdout"}
    assert [row["json"]["n"] for row in ds.where("n >= 8")] == [8, 9]
    assert [row["label.txt"] for row in load_shards(tmp_path, decode=False)[:2]] == [b"label 0", b"label 1"]


# -------------------------------------------------------------------------------------------------------- what goes in


def test_samples_of_every_kind(tmp_path):
    class Packable:
        def __init__(self, n):
            self.n = n

        @property
        def as_wds(self):
            return {"__key__": f"p{self.n}", "msgpack": b"\x01"}

    rows = [
        ("pair", {"txt": "a"}),
        {"__key__": "own", "txt": "b"},
        Packable(1),
        {"txt": "c"},
        ("with", {"txt": "d", "metadata": {"x": 1}}),
    ]
    ShardingService(tmp_path).create_shards_from_data(rows)
    found = list(load_shards(tmp_path))
    assert [row["__key__"] for row in found] == ["pair", "own", "p1", "000000003", "with"]
    assert found[4]["json"] == {"x": 1}
    assert found[2]["msgpack"] == 1


def test_metadata_and_json_at_once_is_refused_with_the_key(tmp_path):
    with pytest.raises(WriteError, match="both metadata and json") as error:
        ShardingService(tmp_path).create_shards_from_data([{"__key__": "k", "json": {}, "metadata": {}}])
    assert error.value.key == "k"


def test_values_are_encoded_by_their_field(tmp_path):
    ShardingService(tmp_path).create_shards_from_data(
        [{"a.npy": np.arange(3), "cls": 4, "b.json": [1], "metadata": {"x": None}}]
    )
    row = load_shards(tmp_path)[0]
    assert (row["a.npy"].tolist(), row["cls"], row["b.json"], row["json"]) == ([0, 1, 2], 4, [1], {"x": None})


def test_a_bad_sample_names_itself_and_leaves_no_dataset(tmp_path):
    with pytest.raises(EncodeError) as error:
        ShardingService(tmp_path).create_shards_from_data([*labelled(2), {"__key__": "bad", "metadata": object()}])
    assert (error.value.key, error.value.field) == ("bad", "json")
    assert read_written(str(tmp_path)) is None


def test_nothing_at_all(tmp_path):
    assert ShardingService(tmp_path).create_shards_from_data([]) == []
    assert len(load_shards(tmp_path)) == 0


STREAMED = """
import resource, sys
from shoal import ShardingService
from shoal.shard import _writer

def rows(count):
    return ({"__key__": f"{n:06d}", "bin": b"x" * 200} for n in range(count))

_writer._COMMITS = {"manifest": _writer.JournaledWrite, "segments": _writer.DatasetWrite}[sys.argv[2]]
service = ShardingService(sys.argv[1], shard_size=5000)
service.create_shards_from_data(rows(10_000))  # what is loaded once, and two shards' worth of bookkeeping
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
service.create_shards_from_data(rows(100_000), overwrite=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_generator_is_streamed_in_bounded_memory(tmp_path, commits):
    done = subprocess.run(
        [sys.executable, "-c", STREAMED, str(tmp_path), commits], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 10 << 10  # in KiB; the samples are 20 MB, in tars of 100 MB
    assert len(load_shards(tmp_path)) == 100_000


def test_a_second_call_says_that_something_is_there(tmp_path):
    service = ShardingService(tmp_path, shard_size=2)
    service.create_shards_from_data(labelled(5))
    with pytest.raises(ObjectExistsError, match="overwrite=True"):
        service.create_shards_from_data(labelled(1))
    assert len(service.create_shards_from_data(labelled(3, start=50), overwrite=True)) == 2
    assert [row["json"]["n"] for row in load_shards(tmp_path)] == [50, 51, 52]
    assert len(list(tmp_path.glob("*.tar"))) == 2


def test_an_interrupted_call_is_gone_on_with(tmp_path):
    def broken():
        yield from labelled(5)
        raise ConnectionError("the labelling service is away")

    service = ShardingService(tmp_path, shard_size=2)
    with pytest.raises(ConnectionError):
        service.create_shards_from_data(broken())
    with pytest.raises(ManifestError, match="not finished"):
        len(load_shards(tmp_path))
    before = {path.name: path.stat().st_ino for path in tmp_path.glob("*.tar")}
    assert len(before) == 2
    service.create_shards_from_data(labelled(7), resume=True)
    assert [row["json"]["n"] for row in load_shards(tmp_path)] == list(range(7))
    assert {name: (tmp_path / name).stat().st_ino for name in before} == before


@pytest.mark.parametrize(
    "option", [{"shard_size": 0}, {"compression": "rar"}, {"max_bytes": 0}, {"compression": "gzip", "level": 99}]
)
def test_wrong_options_are_refused_at_once(tmp_path, option):
    with pytest.raises(OptionError):
        ShardingService(tmp_path / "x", **option)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("split", ["", None, 5])
def test_a_split_that_is_no_name_is_none(tmp_path, split):
    ShardingService(tmp_path).create_shards_from_data(labelled(1), metadata={"split": split})
    assert list(read_written(str(tmp_path)).splits) == ["train"]


# --------------------------------------------------------------------------------------------------------- who reads it


def test_the_meta_member_is_no_sample_for_anyone(tmp_path, leaky_peer):
    paths = ShardingService(tmp_path, shard_size=2).create_shards_from_data(
        [{"__key__": f"k{n}", "label.txt": f"label {n}", "n.cls": n} for n in range(5)],
        metadata={"dataset": "pets", "split": "train"},
    )
    assert webdataset_reads(paths) == [
        {"__key__": f"k{n}", "label.txt": f"label {n}".encode(), "n.cls": str(n).encode()} for n in range(5)
    ]
    found = datasets_reads(paths)
    assert [(row["__key__"], row["label.txt"], row["n.cls"]) for row in found] == [
        (f"k{n}", f"label {n}", n) for n in range(5)
    ]
    assert all("meta" not in name for row in found for name in row)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_wids_on_request(tmp_path, compression):
    ShardingService(tmp_path, 2, compression, wids=True).create_shards_from_data(labelled(5))
    document = json.loads((tmp_path / ".shoal" / "wids.json").read_text())
    assert document["wids_version"] == 1
    assert [shard["nsamples"] for shard in document["shardlist"]] == [2, 2, 1]
    for shard in document["shardlist"]:
        assert (tmp_path / ".shoal" / shard["url"]).stat().st_size == shard["filesize"]


def test_no_wids_unless_asked_for(tmp_path):
    ShardingService(tmp_path).create_shards_from_data(labelled(1))
    assert not (tmp_path / ".shoal" / "wids.json").exists()


def test_the_folder_holds_nothing_a_hub_would_take_for_data(tmp_path):
    ShardingService(tmp_path, 2, wids=True).create_shards_from_data(labelled(5))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".shoal",
        "shard-000000.tar",
        "shard-000001.tar",
        "shard-000002.tar",
    ]
    assert sorted(glob(f"{tmp_path}/shard-*.tar")) == sorted(str(path) for path in tmp_path.glob("*.tar"))
