"""Shards into other shards: the bytes of samples stay, and what comes out is what a writer would have written."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.build.built import contents

import shoal
from shoal.build import LocalEngine, merge, reshard
from shoal.errors import ChecksumError, ErrorBudgetExceeded, OptionError, SchemaMismatchError, ShoalError
from shoal.schema import schema_to_json
from shoal.shard import ShardSource, can_copy, copy_samples, load_manifest, locate_shards, open_shard, verify_dataset
from shoal.shard._index import encode_index

TWO = LocalEngine(2, "fork")


def sample(number, seed=0):
    rng = np.random.default_rng([seed, number])
    made = {"__key__": f"k{number:05d}", "bin": rng.bytes(int(rng.integers(0, 3000))), "json": {"n": number}}
    return {**made, "txt": "some"} if number % 3 == 0 else made


def write(root, numbers, per_shard=7, **options):
    with shoal.ShardWriter(f"{root}/train-%06d.tar", max_samples=per_shard, max_bytes=1 << 40, **options) as writer:
        for number in numbers:
            writer.write(sample(number))
    return root


def source_of(root):
    return ShardSource(locate_shards(str(root)).shards)


@settings(max_examples=25)
@given(data=st.data())
def test_what_is_copied_is_what_a_writer_would_write(tmp_path_factory, data):
    tmp_path = tmp_path_factory.mktemp("copy")
    count = data.draw(st.integers(1, 60))
    whole = write(tmp_path / "in", range(count), data.draw(st.integers(1, 30)))
    chosen = data.draw(
        st.one_of(
            st.lists(st.integers(0, count - 1), unique=True, min_size=1),
            st.integers(0, count - 1).map(lambda first: list(range(first, count))),
        )
    )
    expected = write(tmp_path / "expected", chosen, 1000)
    written = copy_samples(str(tmp_path / "out.tar"), source_of(whole), np.array(chosen))
    assert (tmp_path / "out.tar").read_bytes() == (expected / "train-000000.tar").read_bytes()
    index = (expected / ".shoal" / "index" / "train-000000.tar.arrow").read_bytes()
    assert encode_index(written.index).to_pybytes() == index


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_are_cut_anew(tmp_path, workers):
    write(tmp_path / "in", range(100))
    report = reshard(
        tmp_path / "in", tmp_path / "out", max_samples=25, max_bytes=1 << 40, engine=LocalEngine(workers, "fork")
    )
    assert report.samples == 100
    assert all(found.ok for found in verify_dataset(str(tmp_path / "out")))
    found = [(s["__key__"], s["bin"], s["json"]) for s in shoal.Dataset(tmp_path / "out")]
    assert found == [(s["__key__"], s["bin"], s["json"]) for s in map(sample, range(100))]
    ends = np.cumsum([shard.samples for shard in report.shards]).tolist()
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        write(tmp_path / str(number), range(start, end), 1000)
        same = tmp_path / str(number) / "train-000000.tar"
        assert (tmp_path / "out" / f"train-{number:06d}.tar").read_bytes() == same.read_bytes()


def test_a_shuffle_is_a_permutation_and_a_rerun_of_it_the_same(tmp_path):
    write(tmp_path / "in", range(60))
    for name in "ab":
        reshard(
            tmp_path / "in",
            tmp_path / name,
            shuffle=True,
            seed=5,
            max_samples=20,
            engine=LocalEngine(1 + (name == "b"), "fork"),
        )
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    keys = shoal.Dataset(tmp_path / "a").keys()
    assert keys != sorted(keys)
    assert sorted(keys) == [f"k{number:05d}" for number in range(60)]


def test_splits_metadata_and_schema_stay(tmp_path):
    for split, first in (("train", 0), ("test", 20)):
        with shoal.ShardWriter(
            tmp_path / "in" / f"{split}-%06d.tar", max_samples=3, metadata={"by": "me"}, schema={"x": 1}
        ) as writer:
            for number in range(first, first + 10):
                writer.write(sample(number))
    report = reshard(tmp_path / "in", tmp_path / "out", workers=1)
    assert [(shard.path, shard.samples) for shard in report.shards] == [
        ("train-000000.tar", 10),
        ("test-000000.tar", 10),
    ]
    manifest = load_manifest(str(tmp_path / "out"))
    assert (manifest.metadata, manifest.schema) == ({"by": "me"}, {"x": 1})
    only = reshard(tmp_path / "in", tmp_path / "only", split="test", workers=1)
    assert {split: len(records) for split, records in only.splits.items()} == {"test": 1}
    drawn = reshard(tmp_path / "in", tmp_path / "drawn", splits={"a": 0.5, "b": 0.5}, workers=1)
    assert {split: sum(r.samples for r in records) for split, records in drawn.splits.items()} == {"a": 10, "b": 10}


def test_a_view_is_what_is_written(tmp_path):
    write(tmp_path / "in", range(30))
    shoal.Dataset(tmp_path / "in").tombstone(["k00003"])
    reshard(tmp_path / "in", tmp_path / "out", workers=1)
    assert len(shoal.Dataset(tmp_path / "out")) == 29
    reshard(tmp_path / "in", tmp_path / "some", where="n >= 20", workers=1)
    assert shoal.Dataset(tmp_path / "some").keys() == [f"k{number:05d}" for number in range(20, 30)]
    reshard(shoal.Dataset(tmp_path / "in").select([5, 1]), tmp_path / "two", workers=1)
    assert shoal.Dataset(tmp_path / "two").keys() == ["k00006", "k00001"]


@pytest.mark.usefixtures("leaky_peer")
def test_foreign_archives_are_copied_as_they_are(tmp_path):
    """webdataset's own headers have times with fractions, so each member has a header of a second kind before it."""
    for part in range(3):
        with webdataset.TarWriter(str(tmp_path / f"x-{part}.tar"), mtime=None) as writer:
            for number in range(part * 5, part * 5 + 5):
                writer.write(sample(number))
    reshard(str(tmp_path / "x-{0..2}.tar"), tmp_path / "out", workers=1, max_samples=8)
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as archive:
        names = {member.name: member.mtime for member in archive}
    assert names["k00000.bin"] % 1 != 0
    assert [s["json"]["n"] for s in shoal.Dataset(tmp_path / "out")] == list(range(15))
    urls = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    found = [s["__key__"] for s in webdataset.WebDataset(urls, shardshuffle=False)]
    assert found == [f"k{number:05d}" for number in range(15)]


def test_archives_with_other_members_are_written_again(tmp_path):
    (tmp_path / "a").mkdir()
    with tarfile.open(tmp_path / "a" / "x.tar", "w") as archive:
        for number in range(4):
            folder = tarfile.TarInfo(f"f{number}")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            info = tarfile.TarInfo(f"f{number}/a.txt")
            archive.addfile(info)
    assert not can_copy(open_shard(str(tmp_path / "a" / "x.tar")).index)
    reshard(tmp_path / "a", tmp_path / "out", workers=1)
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as archive:
        assert archive.getnames() == [f"f{number}/a.txt" for number in range(4)]


@pytest.mark.parametrize("given, wanted", [("gzip", None), (None, "gzip"), ("zstd", "zstd")])
def test_compression_comes_and_goes(tmp_path, given, wanted):
    write(tmp_path / "in", range(40), compression=given)
    reshard(tmp_path / "in", tmp_path / "out", max_samples=15, compression=wanted, workers=1)
    assert [s["bin"] for s in shoal.Dataset(tmp_path / "out")] == [sample(number)["bin"] for number in range(40)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("where", ["data", "header"])
def test_damage_is_found_and_not_copied(tmp_path, shuffle, where):
    write(tmp_path / "in", range(20), 20)
    path = tmp_path / "in" / "train-000000.tar"
    data = bytearray(path.read_bytes())
    index = open_shard(str(path)).index
    at = int(index.fields["bin"].offset[10])
    data[at + 5 if where == "data" else at - 512 + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises((ChecksumError, ShoalError)):
        reshard(tmp_path / "in", tmp_path / "out", shuffle=shuffle, max_samples=15, workers=1)
    assert not (tmp_path / "out" / ".shoal" / "manifest.json").exists()


def test_duplicates_are_left_out(tmp_path):
    write(tmp_path / "in", range(10))
    with shoal.ShardWriter(tmp_path / "in" / "more-%06d.tar", append=True) as writer:
        for number in range(5):
            writer.write({**sample(number), "__key__": f"again{number}"})
    assert reshard(tmp_path / "in", tmp_path / "out", dedupe=True, engine=TWO).duplicates == 5


@pytest.mark.parametrize("keys", ["keep", "prefix", "number"])
def test_datasets_are_merged_split_by_split(tmp_path, keys):
    write(tmp_path / "one", range(10))
    write(tmp_path / "two", range(100, 110))
    with shoal.ShardWriter(tmp_path / "two" / "test-%06d.tar") as writer:
        writer.write({"__key__": "last", "txt": "x"})
    report = merge([tmp_path / "one", tmp_path / "two"], tmp_path / "out", keys=keys, max_samples=8, engine=TWO)
    assert {split: sum(r.samples for r in records) for split, records in report.splits.items()} == {
        "train": 20,
        "test": 1,
    }
    found = shoal.Dataset(tmp_path / "out", split="train")
    assert [s["json"]["n"] for s in found] == [*range(10), *range(100, 110)]
    assert found.keys()[0] == {"keep": "k00000", "prefix": "one/k00000", "number": "000000000"}[keys]


def test_equal_keys_are_not_merged_into_one_shard(tmp_path):
    write(tmp_path / "one", range(3))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(ErrorBudgetExceeded, match="key is in this shard already"):
        merge([tmp_path / "one", tmp_path / "two"], tmp_path / "out", workers=1)
    merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both", keys="prefix", workers=1)
    assert shoal.Dataset(tmp_path / "both").keys() == [f"{name}/k0000{n}" for name in ("one", "two") for n in range(3)]


def test_a_list_is_merged_not_a_path(tmp_path):
    with pytest.raises(OptionError):
        merge(str(tmp_path), tmp_path / "out")
    with pytest.raises(OptionError):
        merge([], tmp_path / "out")


PROGRAM = """
import resource, sys
from shoal.build import reshard
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
reshard(sys.argv[1], sys.argv[2] + "/warm", workers=1, sample=1)
before = peak()
reshard(sys.argv[1], sys.argv[2] + "/out", workers=1, shuffle=sys.argv[3] == "True", max_bytes=1 << 40)
print(peak() - before)
"""


@pytest.mark.parametrize("shuffle", [False, True])
def test_memory_does_not_grow_with_the_data(tmp_path, shuffle):
    with shoal.ShardWriter(tmp_path / "in" / "train-%06d.tar", max_samples=20) as writer:
        for number in range(200):
            writer.write({"__key__": f"{number}", "bin": bytes(1_000_000)})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "in"), str(tmp_path), str(shuffle)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert float(done.stdout) < 60


@shoal.packable
class Early:
    a: int


@shoal.packable
class Late:
    a: int
    b: int = 0


@shoal.packable
class Other:
    c: str


@pytest.mark.parametrize("second", [Other("x"), {"__key__": "k", "txt": "x"}])
def test_samples_of_another_type_do_not_join_a_dataset(tmp_path, second):
    for name, one in (("train", Early(1)), ("test", second)):
        with shoal.ShardWriter(tmp_path / name / f"{name}-%06d.tar") as writer:
            writer.write(one)
    reshard(tmp_path / "train", tmp_path / "out", workers=1)
    with pytest.raises(SchemaMismatchError, match="do not fit"):
        reshard(tmp_path / "test", tmp_path / "out", workers=1)
    assert shoal.Dataset[Early](tmp_path / "out")[0] == Early(1)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        (Early(1), Early(2), Early),
        (Early(1), Late(2), Late),
        (Late(1), Early(2), Early),  # both read both: the later one
        ({"__key__": "k", "txt": "x"}, Early(1), None),
    ],
)
def test_beside_what_stays_the_schema_is_the_one_that_reads_both(tmp_path, first, second, expected):
    for name, one in (("train", first), ("test", second)):
        with shoal.ShardWriter(tmp_path / name / f"{name}-%06d.tar") as writer:
            writer.write(one)
        reshard(tmp_path / name, tmp_path / "out" / f"{name}-%06d.tar", workers=1)
        with shoal.ShardWriter(tmp_path / "written" / f"{name}-%06d.tar") as writer:
            writer.write(one)
    schema = load_manifest(str(tmp_path / "out")).schema
    assert schema == (None if expected is None else schema_to_json(expected.__schema__))
    assert schema == load_manifest(str(tmp_path / "written")).schema  # as a writer has it
