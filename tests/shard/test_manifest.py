"""The manifest: small, readable, and never believed further than the dataset's own folder."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import FieldError, ManifestError, ObjectNotFoundError
from shoal.schema import Default, Field, IntType, Schema, schema_to_json
from shoal.shard import (
    KeyRule,
    Manifest,
    ShardRecord,
    ShardWriter,
    load_manifest,
    locate_shards,
    manifest_url,
    save_manifest,
    split_of,
)
from shoal.shard._manifest import decode_manifest, encode_manifest, joined_schema, merge_shards

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
    assert save_manifest(manifest, str(tmp_path)) == manifest_url(str(tmp_path)) == f"{tmp_path}/.shoal/manifest.json"
    assert load_manifest(str(tmp_path)) == manifest


# --------------------------------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize(
    "path, split",
    [
        ("train-000001.tar", "train"),
        ("shard-000000.tar", "train"),
        ("val-1.tar", "validation"),
        ("valid_1.tar", "validation"),
        ("validation.tar", "validation"),
        ("dev-0.tar", "validation"),
        ("test/a.tar", "test"),
        ("testing-0.tar", "test"),
        ("EVAL-0.tar", "test"),
        ("train/test-0.tar", "test"),
        ("contest-0.tar", "train"),
        ("value-0.tar", "train"),
        ("devices-0.tar", "train"),
        ("latest-0.tar", "train"),
        ("imagenet1k-val-07.tar", "validation"),
        ("val2017.tar", "validation"),
    ],
)
def test_the_split_a_name_stands_for(path, split):
    assert split_of(path) == split


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


# --------------------------------------------------------------------------------------------------------------- locate


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train-%06d.tar", 3), ("val-%06d.tar", 2)):
        with ShardWriter(tmp_path / name, max_samples=1) as writer:
            for number in range(count):
                writer.write({"__key__": f"{number}", "txt": name})
    return tmp_path


def found(path, split=None):
    return [ref.url.rpartition("/")[2] for ref in locate_shards(path, split).shards]


EVERY = ["train-000000.tar", "train-000001.tar", "train-000002.tar", "val-000000.tar", "val-000001.tar"]


def test_a_folder_is_what_its_manifest_says(folder):
    (folder / "stray.tar").write_bytes(b"")
    assert found(folder) == found(str(folder)) == found(f"{folder}/") == EVERY
    assert found(manifest_url(str(folder))) == EVERY
    located = locate_shards(folder)
    assert [ref.samples for ref in located.shards] == [1] * 5
    assert located.manifest == load_manifest(str(folder))
    assert located.root == str(folder)


@pytest.mark.parametrize("split, names", [("train", EVERY[:3]), ("validation", EVERY[3:])])
def test_a_split_by_manifest_and_by_names(folder, split, names):
    assert found(folder, split) == names
    assert found(f"{folder}/*.tar", split) == names
    assert found([f"{folder}/{name}" for name in EVERY], split) == names


def test_a_split_that_is_not_there_names_those_that_are(folder):
    for path in (folder, f"{folder}/*.tar"):
        with pytest.raises(FieldError, match=r"no such split.*train or validation.*holdout"):
            locate_shards(path, "holdout")


def test_a_split_of_an_empty_dataset(tmp_path):
    save_manifest(Manifest({}), str(tmp_path))
    with pytest.raises(FieldError, match="it is empty"):
        locate_shards(tmp_path, "train")


def test_a_folder_without_a_manifest_is_every_tar_below_it(tmp_path):
    for name in ("b.tar", "a/x.tar.gz", "a/y.TGZ", ".hidden/no.tar", "a/.no.tar", "a/readme.txt", "z.tar.zst"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [ref.url.removeprefix(f"{tmp_path}/") for ref in locate_shards(tmp_path).shards] == [
        "a/x.tar.gz",
        "a/y.TGZ",
        "b.tar",
        "z.tar.zst",
    ]


def test_a_folder_with_nothing_in_it_says_so(tmp_path):
    with pytest.raises(ObjectNotFoundError, match=r"no tar shards.*shoal pack"):
        locate_shards(tmp_path)


@pytest.mark.parametrize(
    "pattern",
    [
        "{root}/train-{{000000..000002}}.tar::{root}/val-{{000000..000001}}.tar",
        "{root}/{{train,val}}-*.tar",
        "{root}/*-00000?.tar",
    ],
)
def test_patterns(folder, pattern):
    assert found(pattern.format(root=folder)) == EVERY


def test_a_list_keeps_its_order(folder):
    assert found([f"{folder}/val-*.tar", folder / "train-000001.tar"]) == [*EVERY[3:], EVERY[1]]


def test_a_pattern_that_matches_nothing_says_so(folder):
    with pytest.raises(ObjectNotFoundError, match="matches no file"):
        locate_shards(f"{folder}/nothing-*.tar")


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
