"""The manifest: small, readable, confined to the dataset's own folder, and safe with concurrent writers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scale import times

from shoal.errors import ManifestError, StoreError, StoreTimeoutError
from shoal.schema import Default, Field, IntType, Schema, schema_to_json
from shoal.shard import (
    KeyRule,
    Manifest,
    ShardRecord,
    ShardWriter,
    _manifest,
    load_manifest,
    locate_shards,
    manifest_url,
    merge_shards,
    verify_dataset,
)
from shoal.shard._journal import commit
from shoal.shard._manifest import decode_manifest, encode_manifest, joined_schema, lock_manifest, update_manifest

names = st.text(st.sampled_from("abc-0123456789"), min_size=1, max_size=8)
counts = st.integers(0, 2**40)
records = st.builds(
    ShardRecord,
    names,
    counts,
    counts,
    st.none() | st.text(),
    st.none() | st.text(),
    st.sampled_from([None, "gzip", "zstd"]),
    st.none() | st.just("ab" * 32),
    st.dictionaries(names, st.tuples(counts, counts), max_size=3),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
manifests = st.builds(
    Manifest,
    st.dictionaries(names, st.lists(records, min_size=1, max_size=4).map(tuple), max_size=3),
    st.dictionaries(st.text(), json_values, max_size=3),
    st.none() | st.dictionaries(st.text(), json_values, max_size=2),
    st.sampled_from([KeyRule(), KeyRule(dot="last", case="keep")]),
)


def record(path, samples=1, **facts):
    return ShardRecord(path, samples, 10240, **facts)


@given(manifests)
def test_a_manifest_survives_json(manifest):
    assert decode_manifest(encode_manifest(manifest), "x") == manifest


@given(manifests)
def test_totals_are_sums(manifest):
    totals = json.loads(encode_manifest(manifest))["totals"]
    every = [found for part in manifest.splits.values() for found in part]
    assert (totals["samples"], totals["bytes"], totals["shards"]) == (manifest.samples, manifest.bytes, len(every))
    assert manifest.samples == sum(found.samples for found in every)
    assert totals["fields"] == {
        name: [sum(found.fields.get(name, (0, 0))[part] for found in every) for part in (0, 1)]
        for found in every
        for name in found.fields
    }


def test_a_shard_takes_little_room(tmp_path):
    """All of it is read to open a dataset, and there may be many thousands."""
    with ShardWriter(tmp_path / "train-%06d.tar", max_samples=1) as writer:
        for number in range(200):
            writer.write({"__key__": f"{number:09d}", "jpg": b"x", "json": {}, "cls": 1})
    size = len((tmp_path / ".shoal" / "manifest.json").read_bytes())
    assert size / 200 < 400


NO_MANIFESTS = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"5",
    b"\xff\xfe",
    b'{"shoal": 1}',
    b'{"shoal": 1, "splits"',
    b'{"shoal": 1, "splits": []}',
    b'{"shoal": "x", "splits": {}}',
    b'{"shoal": 1, "splits": {"a": [{"path": 1}]}}',
    b'{"shoal": 1, "splits": {}, "metadata": [1]}',
    b'{"shoal": 1, "splits": {}, "rule": {"dot": "middle"}}',
]


@pytest.mark.parametrize("text", NO_MANIFESTS)
def test_what_is_no_manifest_says_so(tmp_path, text):
    (tmp_path / ".shoal").mkdir()
    (tmp_path / ".shoal" / "manifest.json").write_bytes(text)
    with pytest.raises(ManifestError, match="not a manifest") as error:
        load_manifest(str(tmp_path))
    assert error.value.shard == manifest_url(str(tmp_path))


def test_a_manifest_of_a_newer_shoal_says_so():
    with pytest.raises(ManifestError, match=r"newer shoal.*upgrade"):
        decode_manifest(b'{"shoal": 99, "splits": {"new": "layout"}}', "x")


UNSAFE = ["/etc/passwd", "../a.tar", "a/../../b.tar", "..", "", "\\\\host\\share\\a.tar", "..\\a.tar"]


@pytest.mark.parametrize("path", UNSAFE)
def test_a_manifest_cannot_lead_out_of_its_folder(path):
    with pytest.raises(ManifestError, match="out of the dataset"):
        decode_manifest(encode_manifest(Manifest({"train": (record(path),)})), "x")


@pytest.mark.parametrize("part", ["paths", "removed"])
@pytest.mark.parametrize("path", UNSAFE)
def test_opening_a_dataset_never_touches_files_outside_it(tmp_path, part, path):
    """A commit record says what to move and remove, and anyone may have written it into a folder we are given."""
    precious = tmp_path / "a.tar"
    precious.write_bytes(b"mine")
    root = tmp_path / "downloaded"
    (root / ".shoal").mkdir(parents=True)
    text = {"manifest": encode_manifest(Manifest({})).decode(), "paths": [], "removed": [], part: [path]}
    (root / ".shoal" / "commit.json").write_text(json.dumps(text))
    with pytest.raises(ManifestError, match="out of the dataset"):
        locate_shards(str(root))
    assert precious.read_bytes() == b"mine"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"paths": 3}'])
def test_a_commit_record_that_cannot_be_read_says_so(tmp_path, text):
    (tmp_path / ".shoal").mkdir()
    (tmp_path / ".shoal" / "commit.json").write_text(text)
    with pytest.raises(ManifestError, match="commit record"):
        locate_shards(str(tmp_path))


def test_no_manifest_is_none(tmp_path):
    assert load_manifest(str(tmp_path)) is None
    assert load_manifest("memory://nothing/here") is None


def test_saved_where_it_is_looked_for(tmp_path):
    manifest = Manifest({"train": (record("a.tar"),)}, {"x": 1})
    assert manifest_url(str(tmp_path)) == f"{tmp_path}/.shoal/manifest.json"
    assert commit(str(tmp_path), lambda before: manifest) == manifest
    assert load_manifest(str(tmp_path)) == manifest


def test_merging_replaces_a_shard_wherever_it_was():
    before = Manifest({"train": (record("a.tar"), record("b.tar")), "test": (record("c.tar"),)}, {"m": 1})
    after = merge_shards(before, "test", [record("a.tar", 5)])
    assert {name: [(r.path, r.samples) for r in part] for name, part in after.splits.items()} == {
        "train": [("b.tar", 1)],
        "test": [("a.tar", 5), ("c.tar", 1)],
    }
    assert after.metadata == {"m": 1}


def test_a_split_that_loses_its_last_shard_goes():
    after = merge_shards(Manifest({"train": (record("a.tar"),)}), "test", [record("a.tar")])
    assert list(after.splits) == ["test"]


def test_numbers_in_names_count_as_numbers():
    merged = merge_shards(Manifest({}), "train", [record(f"a{n}-v2.tar") for n in (10, 9, 100, 2)])
    assert [r.path for r in merged.shards] == ["a2-v2.tar", "a9-v2.tar", "a10-v2.tar", "a100-v2.tar"]


def typed(*fields):
    return schema_to_json(Schema("S", tuple(Field(name, IntType(), default) for name, default in fields)))


ONE = typed(("a", None))
MORE = typed(("a", None), ("b", Default("0")))
OTHER = typed(("c", None))


@pytest.mark.parametrize(
    "before, added, expected",
    [
        (ONE, ONE, ONE),
        (ONE, MORE, MORE),
        (OTHER, ONE, None),
        (None, ONE, None),
        (ONE, None, ONE),
        ({"no": "schema"}, ONE, None),
    ],
)
def test_of_two_schemas_the_one_that_reads_both_stays(before, added, expected):
    packed = record("b.tar", fields={"msgpack": (1, 10)})
    manifest = Manifest({"train": (record("a.tar"),)}, schema=before)
    assert joined_schema(manifest, added, [packed]) == expected
    assert joined_schema(Manifest({}, schema=before), added, [packed]) == added


def test_plain_samples_beside_typed_ones_have_no_schema_in_common():
    manifest = Manifest({"train": (record("a.tar"),)}, schema=ONE)
    assert joined_schema(manifest, None, [record("b.tar", fields={"txt": (1, 10)})]) is None


PROGRAM = """
import sys
from shoal.shard import ShardWriter

name = sys.argv[1]
for line in sys.stdin:  # a folder: write shards there, say so, and end when told to
    root, overwrite = line.split()
    writer = ShardWriter(f"{root}/{name}-%06d.tar", max_samples=1, overwrite=overwrite == "yes")
    for number in range(2):
        writer.write({"__key__": f"{name}{number}", "txt": name})
    print("ready", flush=True)
    sys.stdin.readline()
    writer.close()
    print("done", flush=True)
"""
DYING = """
import sys
from shoal.shard._manifest import lock_manifest

with lock_manifest(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def children(*names):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for name in names
    ]
    try:
        yield started
    finally:
        for process in started:
            process.stdin.close()
            process.stdout.close()
            process.wait(60)


def tell(processes, text):
    for process in processes:
        process.stdin.write(f"{text}\n")
        process.stdin.flush()


def hear(processes):
    return [process.stdout.readline().strip() for process in processes]


@pytest.mark.parametrize("overwrite", ["no", "yes"])
def test_two_processes_that_close_at_once_are_both_in_the_manifest(tmp_path, overwrite):
    with children("train", "val") as both:
        for number in range(times(40, 400)):
            root = tmp_path / f"{number:03d}"
            if overwrite == "yes":  # what is replaced goes through staging
                for name in ("train", "val"):
                    with ShardWriter(f"{root}/{name}-%06d.tar", max_samples=1) as writer:
                        for key in range(3):
                            writer.write({"__key__": f"old{key}", "txt": "old"})
            tell(both, f"{root} {overwrite}")
            assert hear(both) == ["ready", "ready"]
            tell(both, "close")
            assert hear(both) == ["done", "done"]
            paths = sorted(shard.path for shard in load_manifest(str(root)).shards)
            assert paths == ["train-000000.tar", "train-000001.tar", "val-000000.tar", "val-000001.tar"]
            assert sorted(path.name for path in root.glob("*.tar")) == paths
            left = {path.name for path in (root / ".shoal").rglob("*") if path.is_file()} - {"manifest.json"}
            assert left == {f"{path}.arrow" for path in paths}
    assert all(report.ok for report in verify_dataset(root))


def shard_record(name: str) -> ShardRecord:
    return ShardRecord(f"{name}.tar", 1, 1536, name, name)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_no_change_of_a_thread_is_lost(tmp_path, place):
    root = str(tmp_path) if place == "local" else f"memory://{uuid.uuid4()}"
    together = threading.Barrier(4)

    def add(name):
        together.wait(60)
        for number in range(10):
            made = shard_record(f"{name}-{number}")
            update_manifest(root, lambda before, made=made: merge_shards(before, "train", [made]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, "abcd"))
    assert len(load_manifest(root).shards) == 40


def test_what_a_change_raises_leaves_the_manifest_and_releases_the_lock(tmp_path):
    root = str(tmp_path)
    first = update_manifest(root, lambda before: merge_shards(before, "train", [shard_record("a")]))

    def fail(before: Manifest) -> Manifest:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        update_manifest(root, fail)
    assert load_manifest(root) == first
    assert update_manifest(root, lambda before: before) == first


def test_who_dies_in_the_middle_holds_nobody_up(tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-c", DYING, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with started as process:
        assert process.stdout.readline() == "in\n"
        process.kill()
        process.wait(60)
    update_manifest(str(tmp_path), lambda before: merge_shards(before, "train", [shard_record("a")]))
    assert len(load_manifest(str(tmp_path)).shards) == 1


def test_half_written_documents_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".shoal").mkdir()
    names = {".manifest.json.0123456789abcdef.partial", ".commit.json.0123456789abcdef.partial", ".notes.partial"}
    for name in names:
        (tmp_path / ".shoal" / name).touch()
    update_manifest(str(tmp_path), lambda before: before)
    assert {path.name for path in (tmp_path / ".shoal").iterdir()} == {"manifest.json", ".notes.partial"}


def test_nobody_waits_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(_manifest, "_LOCK_TIMEOUT_S", 0.02)
    with lock_manifest(str(tmp_path)), pytest.raises(StoreTimeoutError, match="does not come to an end"):
        update_manifest(str(tmp_path), lambda before: before)
    assert update_manifest(str(tmp_path), lambda before: before) == Manifest({})


def test_where_no_folder_can_be_made_the_store_says_so(tmp_path):
    (tmp_path / ".shoal").write_text("a file")
    with pytest.raises(StoreError, match=r"\.shoal"):
        update_manifest(str(tmp_path), lambda before: before)
