"""`where` asks what samples are when they are read, whichever version of their class wrote them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime

import pytest

import shoal
from shoal.build import merge
from shoal.errors import QueryError, ShoalError


@shoal.packable
class V1:
    category: str
    n: int


@shoal.packable(aliases={"label": "category"})
class V2:
    label: str
    n: float
    q: float = 0.1
    note: str | None = None
    mood: str | None = "calm"


@shoal.packable
class Place:
    x: int
    unit: str = "m"


@shoal.packable
class OldPlace:
    x: int


@shoal.packable
class OldTrip:
    at: OldPlace


@shoal.packable
class Trip:
    at: Place


BIG = 2**53 + 1
OLD = [V1("cat", 1), V1("dog", BIG)]
NEW = [V2("cat", 1.5, 0.1, "x", None), V2("eel", 3.0, 0.9, None, "wild")]


def both(tmp_path, old=OLD, new=NEW, kind=V2, **options):
    shoal.write_samples(old, tmp_path / "d" / "old-%06d.tar")
    shoal.write_samples(new, tmp_path / "d" / "new-%06d.tar", append=True)
    return shoal.Dataset(sorted(map(str, (tmp_path / "d").glob("*.tar")), reverse=True), sample_type=kind, **options)


CONDITIONS = [
    ("q = 0.1", lambda s: s.q == 0.1),
    ("q is null", lambda s: s.q is None),
    ("q > 0.5 or n = 1", lambda s: s.q > 0.5 or s.n == 1),
    ("label = 'cat'", lambda s: s.label == "cat"),
    ("msgpack.label in ('dog', 'eel')", lambda s: s.label in ("dog", "eel")),
    ("label is null", lambda s: s.label is None),
    ("note is null", lambda s: s.note is None),
    ("note = 'x'", lambda s: s.note == "x"),
    ("mood = 'calm'", lambda s: s.mood == "calm"),
    ("mood is null", lambda s: s.mood is None),
    ("mood is not null and q = 0.1", lambda s: s.mood is not None and s.q == 0.1),
    (f"n = {BIG - 1}e0", lambda s: s.n == float(BIG)),
    ("n < 2", lambda s: s.n < 2),
]


@pytest.fixture
def evolved(tmp_path):
    return both(tmp_path)


@pytest.mark.parametrize("condition, meaning", CONDITIONS, ids=[text for text, _ in CONDITIONS])
def test_a_condition_is_about_samples_as_they_are_read(evolved, condition, meaning):
    samples = list(evolved)
    assert list(evolved.where(condition)) == [sample for sample in samples if meaning(sample)]
    last = evolved.select([3, 1])
    assert list(last.where(condition)) == [sample for sample in (samples[3], samples[1]) if meaning(sample)]


def test_columns_are_the_attributes(evolved):
    samples = list(evolved)
    for name in ("label", "n", "q", "note", "mood"):
        assert evolved.column(name).to_pylist() == [getattr(sample, name) for sample in samples], name
        assert f"msgpack.{name}" in evolved.column_names
    assert "msgpack.category" not in evolved.column_names
    table = evolved.table()
    assert table.column_names == list(evolved.column_names)
    assert table["msgpack.label"].to_pylist() == [sample.label for sample in samples]
    assert evolved.select([3, 0]).table(["msgpack.q", "__key__"]).column("msgpack.q").to_pylist() == [0.9, 0.1]
    assert evolved.unique("q") == [0.1, 0.9]
    assert [sample.q for sample in evolved.sort("q", reverse=True)] == [0.9, 0.1, 0.1, 0.1]
    assert {column.name: column.nulls for column in evolved.describe().columns}["msgpack.q"] == 0


def test_sql_asks_the_same_columns(evolved):
    pytest.importorskip("duckdb")
    assert evolved.sql("select label, q from ds order by q, label").to_pylist() == sorted(
        ({"label": sample.label, "q": sample.q} for sample in evolved), key=lambda row: (row["q"], row["label"])
    )
    assert len(evolved.where_sql("q = 0.1")) == 3


def test_a_former_name_is_refused_with_the_new_one(evolved):
    with pytest.raises(QueryError, match=r"'category': it is a former name of .msgpack.label"):
        evolved.where("category = 'cat'")


def test_a_field_that_the_class_dropped_is_still_known_where_it_is_stored(tmp_path):
    @shoal.packable
    class Short:
        n: int

    ds = both(tmp_path, OLD, [Short(7)], Short)
    assert [sample.n for sample in ds] == [1, BIG, 7]
    assert [sample.n for sample in ds.where("category = 'dog'")] == [BIG]
    assert [sample.n for sample in ds.where("category is null")] == [7]
    assert [sample.n for sample in ds.where(f"n >= {BIG}")] == [BIG]


def test_defaults_within_a_sample_of_a_sample(tmp_path):
    ds = both(tmp_path, [OldTrip(OldPlace(1))], [Trip(Place(2, "km")), Trip(Place(3))], Trip)
    assert [sample.at.x for sample in ds.where("unit = 'm'")] == [1, 3]
    assert [sample.at.x for sample in ds.where("msgpack.at.unit = 'km'")] == [2]
    assert ds.where("unit is null").keys() == []


def test_a_default_that_is_made_by_a_function(tmp_path):
    @shoal.packable
    class Made:
        n: int
        text: str = field(default_factory=lambda: "made")

    ds = both(tmp_path, OLD, [Made(7, "given")], Made)
    assert [sample.n for sample in ds.where("text = 'made'")] == [1, BIG]
    assert ds.where("text is null").keys() == []


@pytest.mark.parametrize(
    "kind, default", [(date, date(2024, 1, 31)), (datetime, datetime(2024, 1, 31, tzinfo=UTC)), (int | str, 3)]
)
def test_a_default_that_is_no_plain_scalar_is_no_null(tmp_path, kind, default):
    Dated = shoal.packable(make_dataclass("Dated", [("n", int), ("when", kind, default)]))  # noqa: N806 - a class
    other = "x" if kind == int | str else default
    ds = both(tmp_path, OLD, [Dated(7, other)], Dated)
    assert [sample.when for sample in ds] == [default, default, other]
    with contextlib.suppress(QueryError):
        assert ds.where("when is null").keys() == []
    assert [sample.n for sample in ds.where("n = 7")] == [7]


def test_one_dataset_of_several_versions_put_together(tmp_path):
    for name, samples in (("old", OLD), ("new", NEW)):
        shoal.write_samples(samples, tmp_path / name)
    parts = [shoal.Dataset(tmp_path / name, sample_type=V2) for name in ("old", "new")]
    joined = parts[0].concat(parts[1])
    assert [sample.q for sample in joined.where("q = 0.1")] == [0.1, 0.1, 0.1]
    assert [sample.label for sample in joined.where("label = 'cat'")] == ["cat", "cat"]


def test_shards_cut_anew_hold_both_versions(tmp_path):
    both(tmp_path, kind=V2)
    paths = [str(path) for path in sorted((tmp_path / "d").glob("*.tar"), reverse=True)]
    merge(paths, str(tmp_path / "one"), keys="number")
    ds = shoal.Dataset(tmp_path / "one", sample_type=V2)
    samples = list(ds)
    assert len(samples) == 4
    for condition, meaning in CONDITIONS:
        if condition.split()[0] == "n" or "or n" in condition:  # a float is not equal to the integer beside it
            with pytest.raises(QueryError, match="'n'"):
                ds.where(condition)
        else:
            assert list(ds.where(condition)) == [sample for sample in samples if meaning(sample)], condition


# Classes over plain fields


@dataclass
class Plain:
    txt: str
    q: float = 0.1
    cls: int = -1


def write_plain(path):
    with shoal.ShardWriter(f"{path}/a-%06d.tar", max_samples=1) as writer:
        writer.write({"__key__": "a", "txt": "one", "json": {"width": 3}})
        writer.write({"__key__": "b", "txt": "two", "json": {"width": 4, "q": 0.1}, "cls": 5})
        writer.write({"__key__": "c", "txt": "three", "json": {"q": 0.9, "width": None}})
    return path


PLAIN = [
    ("q = 0.1", lambda s: s.q == 0.1),
    ("q is null", lambda s: s.q is None),
    ("cls = -1", lambda s: s.cls == -1),
    ("cls = 5 and q < 0.5", lambda s: s.cls == 5 and s.q < 0.5),
    ("txt like 't%'", lambda s: s.txt.startswith("t")),
]


@pytest.mark.parametrize("condition, meaning", PLAIN, ids=[text for text, _ in PLAIN])
def test_defaults_of_a_class_over_plain_fields(tmp_path, condition, meaning):
    ds = shoal.Dataset(write_plain(tmp_path / "d"), sample_type=Plain)
    samples = list(ds)
    assert list(ds.where(condition)) == [sample for sample in samples if meaning(sample)]


def test_the_stored_entry_keeps_its_whole_name(tmp_path):
    ds = shoal.Dataset(write_plain(tmp_path / "d"), sample_type=Plain)
    assert ds.where("json.q is null").keys() == ["a"]
    assert ds.where("width = 4").keys() == ["b"]


@shoal.packable(aliases={"size": "width"})
class Sized:
    txt: str
    size: int | None = 7


def test_former_names_in_plain_fields(tmp_path):
    ds = shoal.Dataset(write_plain(tmp_path / "d"), sample_type=Sized)
    samples = list(ds)
    assert [sample.size for sample in samples] == [3, 4, None]
    for condition, meaning in (("size >= 3", lambda s: (s.size or 0) >= 3), ("size is null", lambda s: s.size is None)):
        assert list(ds.where(condition)) == [sample for sample in samples if meaning(sample)]


def test_a_lens_is_a_view_and_conditions_stay_about_what_is_stored(tmp_path):
    @shoal.packable
    class Loud:
        label: str

    @shoal.lens
    def loud(sample: V2) -> Loud:
        return Loud(sample.label.upper())

    ds = both(tmp_path).as_type(Loud, lens=loud)
    assert [sample.label for sample in ds.where("q = 0.1 and label = 'cat'")] == ["CAT", "CAT"]


def test_a_column_of_another_type_in_another_version_is_named(tmp_path):
    @shoal.packable
    class Text:
        n: str

    ds = both(tmp_path, OLD, [Text("seven")], dict)
    with pytest.raises(ShoalError, match=r"msgpack\.n.*different types"):
        ds.where("n = 'seven'")


def test_a_mixed_type_in_json_is_named(tmp_path):
    with shoal.ShardWriter(f"{tmp_path}/a-%06d.tar", max_samples=1) as writer:
        writer.write({"__key__": "a", "json": {"n": 1}})
        writer.write({"__key__": "b", "json": json.dumps({"n": "1"})})
    with pytest.raises(QueryError, match=r"json\.n.*different types.*int64.*string"):
        shoal.Dataset(tmp_path).where("n is null")
