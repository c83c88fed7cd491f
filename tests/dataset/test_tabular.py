"""Datasets as tables: samples come back from Arrow and Parquet; SQL, where and describe agree with the samples."""

import dataclasses
import datetime as dt
import enum
import itertools
import json
import subprocess
import sys
import tracemalloc
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from tests.dataset.test_query import CONDITIONS as CONDITIONS_OF_ANY_KIND
from tests.dataset.test_query import tables
from tests.sample.strategies import samples, schemas
from tests.shard.watched import watched_store

import shoal
from shoal.dataset import Summary, from_parquet
from shoal.dataset._arrow_types import form_of, merge_forms
from shoal.dataset._query import sql_of
from shoal.dataset._query_executor import run_where
from shoal.dataset._tabular import rewrite_query, run_condition, short_names
from shoal.errors import (
    FieldError,
    FormatError,
    MissingExtraError,
    ObjectNotFoundError,
    OptionError,
    QueryError,
    SchemaMismatchError,
    ShoalWarning,
    WriteError,
)
from shoal.sample import class_from_schema, same
from shoal.schema import Array, Image

COUNTER = itertools.count()


def fresh():
    return f"memory://tables/{next(COUNTER)}"


class Kind(enum.Enum):
    CAT = "cat"
    DOG = "dog"


@shoal.packable
class Box:
    corner: tuple[int, int]
    mask: NDArray[np.bool_] | None = None


@shoal.packable
class Rich:
    image: Annotated[NDArray[np.uint8], Array(shape=(2, 3))]
    vector: NDArray[np.float32]
    kind: Kind
    seen: dt.datetime
    boxes: list[Box]
    scores: dict[str, float]
    note: str | None = None
    extra: Any = None


@shoal.packable
class Photo:
    picture: Annotated[NDArray[np.uint8], Image("png")]
    label: str


def rich(number, length=4):
    return Rich(
        np.full((2, 3), number, np.uint8),
        np.arange(length, dtype=np.float32),
        Kind.CAT if number % 2 else Kind.DOG,
        dt.datetime(2024, 1, 1, 12, number, 5, 250),  # noqa: DTZ001 - without a zone, on purpose
        [Box((number, 1)), Box((0, 0), np.array([[True, False]]))],
        {"a": number / 3},
        None if number % 3 else f"note {number}",
        {"deep": [number, "x"]},
    )


def plain(root, count, make, **options):
    with shoal.ShardWriter(f"{root}/data-%06d.tar", **options) as writer:
        for number in range(count):
            writer.write(make(number))
    return shoal.Dataset(root)


@settings(max_examples=60)
@given(st.data())
def test_typed_samples_of_any_schema_come_back_from_parquet(data):
    cls = class_from_schema(data.draw(schemas()))
    given_samples = data.draw(st.lists(samples(cls), min_size=1, max_size=5))
    dataset = shoal.write_samples(given_samples, fresh())
    path = f"{fresh()}/table.parquet"
    assert dataset.to_parquet(path, row_group_size=2) == len(given_samples)
    typed = from_parquet(path, fresh(), sample_type=cls, batch_size=2)
    assert list(typed) == given_samples
    assert typed.keys() == dataset.keys()
    generated = from_parquet(path, fresh())
    assert generated.schema == dataset.schema
    assert [same_fields(one, two) for one, two in zip(generated, given_samples, strict=True)] == [True] * len(
        given_samples
    )


@shoal.packable
class Nested:
    single: NDArray[np.float32]
    several: list[NDArray[Any]]
    named: dict[str, NDArray[np.float64]]
    pair: tuple[NDArray[np.float16], str]
    box: Box | None = None


@pytest.mark.parametrize("quiet", [True, False])
def test_every_bit_of_a_nan_comes_back_from_parquet(quiet):
    half = np.array([0x7E01 if quiet else 0x7D01, 0xFE00], np.uint16).view(np.float16)
    single = np.array([0x7FC10000 if quiet else 0x7F810000, 0xFF800001], np.uint32).view(np.float32)
    double = np.array([0x7FF8000000000001 if quiet else 0x7FF0000000000001], np.uint64).view(np.float64)
    given_samples = [
        Nested(single[:size], [single[:1].reshape(()), single], {"a": double, "b": double[:0]}, (half, "x"), box)
        for size, box in ((1, None), (2, Box((1, 2), np.array([[True]]))), (0, Box((0, 0))))
    ]
    path = f"{fresh()}/table.parquet"
    shoal.write_samples(given_samples, fresh()).to_parquet(path, row_group_size=2)
    back = list(from_parquet(path, fresh(), sample_type=Nested, batch_size=1))
    assert back == given_samples  # arrays are compared by their bytes


@shoal.packable
class Visit:
    seen: dt.datetime
    times: list[dt.datetime]
    by_name: dict[str, dt.datetime]


@pytest.mark.parametrize(
    "moment",
    [
        dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(minutes=1))),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.timezone(-dt.timedelta(minutes=1))),
    ],
)
def test_times_that_utc_cannot_express_come_back_from_parquet(moment):
    """In UTC these are in the years 0 and 10,000, which pyarrow stores and cannot read."""
    samples = [Visit(moment, [moment], {"a": moment}), Visit(dt.datetime(2024, 1, 1, tzinfo=dt.UTC), [], {})]
    path = f"{fresh()}/table.parquet"
    shoal.write_samples(samples, fresh()).to_parquet(path, row_group_size=1)
    assert list(from_parquet(path, fresh(), sample_type=Visit)) == samples


def same_fields(one, two):
    """Whether samples of two classes with one schema hold the same: by what would be stored."""
    again = type(two).from_bytes(one.packed)
    return again == two


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé\n", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


ARRAYS = hnp.arrays(
    st.sampled_from(["u1", "f4", "f2", "?", ">i4", "c8"]),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=2),
)


FIELDS = {
    "json": JSON.map(msgspec.json.encode),
    "cls": st.integers(-5, 10),
    "txt": st.text("ab", max_size=3),
    "bin": st.binary(max_size=4),
    "npy": ARRAYS,
    "npz": st.fixed_dictionaries({"x": ARRAYS, "y": ARRAYS}),
}


@settings(max_examples=80)
@given(st.lists(st.fixed_dictionaries({"txt": FIELDS.pop("txt")}, optional=FIELDS), min_size=1, max_size=6))
def test_plain_samples_come_back_from_parquet(given_samples):
    root = fresh()
    dataset = plain(root, len(given_samples), lambda n: {"__key__": f"k{n}", **given_samples[n]})
    path = f"{root}/table.parquet"
    dataset.to_parquet(path, row_group_size=2)
    again = shoal.Dataset.from_parquet(path, f"{root}/again")
    for one, two in zip(dataset, again, strict=True):
        mine, theirs = ({name: value for name, value in sample.items() if name != "__url__"} for sample in (one, two))
        assert same(mine, theirs)


@settings(max_examples=60)
@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), JSON | ARRAYS | st.binary(max_size=3), min_size=1),
        min_size=1,
        max_size=5,
    )
)
def test_dict_samples_come_back_from_parquet(rows):
    rows = [{name: value for name, value in row.items() if fits_msgpack(value)} for row in rows]
    dataset = shoal.write_samples([shoal.DictSample(row) for row in rows], fresh())
    path = f"{fresh()}/table.parquet"
    dataset.to_parquet(path, row_group_size=1)
    again = from_parquet(path, fresh())
    assert again.sample_type is shoal.DictSample
    assert list(again) == list(dataset)


def fits_msgpack(value):
    if isinstance(value, dict):
        return all(map(fits_msgpack, value.values()))
    if isinstance(value, list):
        return all(map(fits_msgpack, value))
    return type(value) is not int or -(2**63) <= value < 2**64


VALUES = st.none() | JSON | ARRAYS | st.binary(max_size=3)


@given(st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=4))
def test_merging_forms_is_symmetric_and_never_narrows(one, two, three):
    first, second, third = map(form_of, (one, two, three))
    both = merge_forms(first, second)
    assert merge_forms(both, first) == both == merge_forms(both, second)
    assert merge_forms(second, first) == both or {name for name, _ in first.inner} == {name for name, _ in second.inner}
    assert merge_forms(both, merge_forms(both, third)) == merge_forms(both, third)


def test_typed_columns_have_the_types_of_the_schema():
    table = shoal.write_samples([rich(n) for n in range(5)], fresh()).to_arrow(batch_size=2)
    kinds = {part.name: str(part.type) for part in table.schema}
    assert kinds["image"] == "extension<arrow.fixed_shape_tensor[value_type=uint8, shape=[2,3]]>"
    assert kinds["vector"] == "extension<arrow.fixed_shape_tensor[value_type=float, shape=[4]]>"
    assert kinds["seen"] == "timestamp[us]"
    assert kinds["kind"] == kinds["note"] == "string"
    assert kinds["scores"].startswith("map<string, double")
    assert table["kind"].to_pylist() == ["dog", "cat", "dog", "cat", "dog"]
    assert table["image"].combine_chunks().to_numpy_ndarray()[3].tolist() == [[3, 3, 3], [3, 3, 3]]
    assert table["boxes"].to_pylist()[2][0]["corner"] == {"0": 2, "1": 1}


def test_arrays_of_different_shapes_have_their_shapes_beside_them():
    table = shoal.write_samples([rich(n, length=n) for n in range(4)], fresh()).to_arrow(["vector"], batch_size=1)
    assert table["vector"].to_pylist() == [{"data": [float(i) for i in range(n)], "shape": [n]} for n in range(4)]


def test_a_stream_of_batches_tells_when_a_sample_does_not_fit():
    dataset = shoal.write_samples([rich(n, length=4 + n // 2) for n in range(4)], fresh())
    batches = dataset.to_batches(batch_size=2)
    assert next(batches).num_rows == 2
    with pytest.raises(WriteError, match="does not fit the columns") as caught:
        next(batches)
    assert caught.value.field == "vector"
    assert dataset.to_arrow(batch_size=2).num_rows == 4


def test_json_of_one_shape_is_a_struct_and_other_json_is_text():
    uniform = plain(fresh(), 3, lambda n: {"json": {"w": n, "tags": ["a"]}, "cls": n}).to_arrow()
    assert str(uniform.schema.field("json").type) == "struct<w: int64, tags: list<item: string>>"
    assert uniform.schema.field("cls").type == pa.int64()
    mixed = plain(fresh(), 3, lambda n: {"json": {"w": n} if n else [1]}).to_arrow(batch_size=1)
    assert mixed["json"].to_pylist() == ["[1]", '{"w":1}', '{"w":2}']


def test_images_are_the_bytes_of_their_files():
    photos = [Photo(np.full((3, 2, 3), n, np.uint8), "x") for n in range(2)]
    dataset = shoal.write_samples(photos, fresh())
    cells = dataset.to_arrow()["picture"].to_pylist()
    assert all(cell.startswith(b"\x89PNG") for cell in cells)
    path = f"{fresh()}/t.parquet"
    dataset.to_parquet(path)
    assert list(from_parquet(path, fresh(), sample_type=Photo)) == photos


def test_columns_choose_and_read_nothing_else():
    store = watched_store()
    dataset = plain("watched://t", 3, lambda n: {"__key__": f"k{n}", "cls": n, "bin": b"x" * 20_000, "txt": f"t{n}"})
    dataset.source.shard(0)
    store.ranges.clear()
    table = dataset.to_arrow(["txt", "__key__"])
    assert table.to_pydict() == {"txt": ["t0", "t1", "t2"], "__key__": ["k0", "k1", "k2"]}
    assert [stop - start for _, start, stop in store.ranges] == [2, 2, 2]
    with pytest.raises(FieldError, match="no such field"):
        dataset.to_arrow(["nothing"])
    with pytest.raises(FieldError, match="no such field"):
        shoal.write_samples([rich(1)], fresh()).to_arrow(["nothing"])
    with pytest.raises(OptionError, match="list of names"):
        dataset.to_arrow("txt")
    with pytest.raises(FieldError, match="no such field"):
        shoal.write_samples([rich(1)], fresh()).to_pandas(["nothing"])
    with pytest.raises(OptionError, match="at least one row"):
        dataset.to_arrow(batch_size=0)


def test_views_stages_and_keys_stay_together():
    dataset = plain(fresh(), 10, lambda n: {"__key__": f"k{n}", "cls": n})
    odd = dataset.filter(lambda sample: sample["cls"] % 2).map(lambda sample: {"cls": sample["cls"] * 10})
    assert odd.to_arrow().to_pylist() == [{"__key__": f"k{n}", "cls": n * 10} for n in range(1, 10, 2)]
    assert dataset.select([7, 2]).to_arrow()["__key__"].to_pylist() == ["k7", "k2"]
    assert dataset.where("cls > 7").to_pandas()["cls"].tolist() == [8, 9]
    with pytest.raises(WriteError, match="no rows of a table"):
        dataset.map(lambda sample: sample["cls"]).to_arrow()


def test_no_samples_are_a_table_without_rows(tmp_path):
    dataset = shoal.write_samples([rich(n) for n in range(2)], tmp_path / "data").select([])
    assert dataset.to_arrow().num_rows == 0
    assert dataset.to_arrow().column_names == ["__key__", *Rich.__schema__.names]
    assert dataset.to_parquet(tmp_path / "empty.parquet") == 0
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0
    assert len(dataset.to_pandas()) == 0


def test_pandas_has_the_values_of_the_samples():
    given_samples = [rich(n) for n in range(4)]
    dataset = shoal.write_samples(given_samples, fresh())
    frame = dataset.to_pandas(limit=3)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == ["__key__", *Rich.__schema__.names]
    assert [same(cell, sample.vector) for cell, sample in zip(frame.vector, given_samples, strict=False)] == [True] * 3
    assert frame.kind.tolist() == [sample.kind for sample in given_samples[:3]]
    assert dataset.to_pandas(["note"]).note.isna().tolist() == [sample.note is None for sample in given_samples]


def test_damage_that_is_passed_over_is_counted_once(tmp_path):
    plain(str(tmp_path), 6, lambda n: {"json": {"a": n} if n < 4 else [n]})
    tar = tmp_path / "data-000000.tar"
    data = bytearray(tar.read_bytes())
    data[data.index(b'{"a":2}') + 1] ^= 255
    tar.write_bytes(data)
    dataset = shoal.Dataset(tmp_path, on_error="skip")
    with pytest.warns(ShoalWarning, match="passed over 1 damaged"):
        table = dataset.to_arrow(batch_size=2)
    assert table["json"].to_pylist() == ['{"a":0}', '{"a":1}', '{"a":3}', "[4]", "[5]"]
    assert dataset.errors.count == 1


def test_a_parquet_file_is_whole_or_not_there(tmp_path):
    dataset = plain(str(tmp_path / "data"), 20, lambda n: {"cls": n})
    path = tmp_path / "table.parquet"
    broken = dataset.map(lambda sample: sample if sample["cls"] < 15 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        broken.to_parquet(path, row_group_size=4)
    assert [one.name for one in tmp_path.iterdir()] == ["data"]
    dataset.to_parquet(path, row_group_size=4, compression=None)
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups == 5
    assert metadata.row_group(0).column(0).compression == "UNCOMPRESSED"


def test_a_large_dataset_is_written_in_a_bounded_memory(tmp_path):
    root = str(tmp_path / "data")
    noise = np.random.default_rng(0).integers(0, 255, (4, 1 << 20), np.uint8)
    dataset = plain(root, 160, lambda n: {"bin": noise[n % 4].tobytes() + bytes([n])})
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    most = 0
    for batch in dataset.to_batches(batch_size=10_000):
        most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])
        assert batch.num_rows <= 65
    tracemalloc.stop()
    assert most < 400 << 20  # a batch as samples and as Arrow, and not the 160 MiB three times over


def test_rows_of_another_writer(tmp_path):
    table = pa.table(
        {
            "name": ["a", "b"],
            "vector": [[1.0, 2.0], [3.0, 4.0]],
            "when": pa.array([dt.datetime(2020, 1, 1), None], pa.timestamp("ns")),  # noqa: DTZ001
            "price": pa.array(["1.50", "2"]).cast(pa.decimal128(10, 2)),
            "kind": pa.array(["x", "y"]).dictionary_encode(),
            "image": [{"bytes": b"\xff\xd8", "path": "a.jpg"}, {"bytes": b"\xff\xd9", "path": None}],
        }
    )
    pq.write_table(table.slice(0, 1), tmp_path / "p-0.parquet")
    pq.write_table(table.slice(1), tmp_path / "p-1.parquet")
    dataset = from_parquet(tmp_path / "p-*.parquet", tmp_path / "out", key="name", max_samples=1)
    assert len(dataset.shards) == 2
    assert dataset.keys() == ["a", "b"]
    sample = dataset[0]
    assert (sample.vector, sample.when, sample.price, sample.kind) == ([1.0, 2.0], "2020-01-01T00:00:00", "1.50", "x")
    assert dataset[1].when is None
    assert dataset.where("kind = 'y'").keys() == ["b"]
    members = from_parquet(tmp_path, tmp_path / "members", key="name", columns={"image": "jpg", "name": "txt"})
    assert [(sample["jpg"], sample["txt"]) for sample in members] == [(b"\xff\xd8", "a"), (b"\xff\xd9", "b")]


@shoal.packable
class Point:
    vector: NDArray[np.float32]
    name: str
    score: float = 0.5


def test_gathered_batches_and_samples_make_the_same_table():
    points = [Point(np.arange(3 + n // 4, dtype=np.float32), f"p{n}", n / 2) for n in range(9)]
    dataset = shoal.write_samples(points, fresh(), max_samples=4)
    for view in (dataset, dataset.select([7, 0, 3]), dataset.where("score > 1")):
        by_sample = view.map(lambda point: point)
        assert by_sample.raw_source is None
        assert view.raw_source is not None
        assert view.to_arrow(batch_size=2).equals(by_sample.to_arrow(batch_size=2))
        assert view.to_arrow(["name"]).equals(by_sample.to_arrow(["name"]))
    with pytest.raises(FieldError, match="no such field"):
        dataset.to_arrow(["nothing"])
    with pytest.raises(SchemaMismatchError, match="of one type"):
        dataset.map(lambda point: point if point.score < 2 else rich(1)).to_arrow(batch_size=4)


def test_rows_of_another_writer_as_a_type(tmp_path):
    pq.write_table(pa.table({"vector": [[1, 2], [3, 4]], "name": ["a", "b"]}), tmp_path / "p.parquet")
    dataset = from_parquet(tmp_path / "p.parquet", tmp_path / "out", sample_type=Point)
    assert list(dataset) == [Point(np.array([n, n + 1], np.float32), name) for n, name in ((1, "a"), (3, "b"))]
    assert shoal.Dataset(tmp_path / "out").schema == Point.__schema__
    pq.write_table(pa.table({"vector": [[1, 2]], "name": [7]}), tmp_path / "bad.parquet")
    with pytest.raises(SchemaMismatchError) as caught:
        from_parquet(tmp_path / "bad.parquet", tmp_path / "never", sample_type=Point)
    assert (caught.value.field, caught.value.key) == ("name", "000000000")


def test_what_is_no_parquet_is_refused(tmp_path):
    pq.write_table(pa.table({"a": [1], "k": [None]}), tmp_path / "one.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "two.parquet")
    (tmp_path / "text.parquet").write_text("no table")
    out = tmp_path / "out"
    with pytest.raises(FormatError, match="not a Parquet file"):
        from_parquet(tmp_path / "text.parquet", out)
    with pytest.raises(FormatError, match="not of one table"):
        from_parquet([tmp_path / "one.parquet", tmp_path / "two.parquet"], out)
    with pytest.raises(ObjectNotFoundError):
        from_parquet(tmp_path / "none.parquet", out)
    with pytest.raises(FieldError, match="no such column"):
        from_parquet(tmp_path / "one.parquet", out, columns=["c"])
    with pytest.raises(WriteError, match="a key is text"):
        from_parquet(tmp_path / "one.parquet", out, key="k")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.txt").write_text("")
    with pytest.raises(FormatError, match="no Parquet files"):
        from_parquet(tmp_path / "folder", out)


def test_a_renamed_column_makes_a_table_of_another_writer(tmp_path):
    shoal.write_samples([rich(1)], tmp_path / "data").to_parquet(tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    table = table.rename_columns({name: {"note": "remark"}.get(name, name) for name in table.column_names})
    pq.write_table(table, tmp_path / "other.parquet")
    sample = from_parquet(tmp_path / "other.parquet", tmp_path / "out")[0]
    assert isinstance(sample, shoal.DictSample)
    assert sample.remark is None
    assert sample.image.tolist() == [[1, 1, 1], [1, 1, 1]]


def people():
    return plain(
        fresh(),
        12,
        lambda n: {"__key__": f"k{n:02d}", "json": {"width": n * 10, "name": "ab"[n % 2], "key": n}, "cls": n % 3},
        max_samples=5,
    )


def test_sql_is_about_the_samples_in_view():
    dataset = people()
    found = dataset.sql("select key, width from ds where width > 80 order by width desc limit 2")
    assert found.to_pylist() == [{"key": "k11", "width": 110}, {"key": "k10", "width": 100}]
    view = dataset.where("cls = 1").select([3, 0])
    assert view.sql("select * from ds").column_names == ["key", "width", "name", "json.key", "cls"]
    assert view.sql("select key from ds").column("key").to_pylist() == ["k10", "k01"]
    assert view.sql('select sum(json.width) as s, max("json.key") as m from ds').to_pylist() == [{"s": 110, "m": 10}]
    assert view.sql("select 'json.width' as text, __key__ from ds limit 1 -- json.width").to_pylist() == [
        {"text": "json.width", "key": "k10"}
    ]


def test_a_query_that_cannot_run_is_a_query_error(tmp_path):
    dataset = people()
    for query in ("select nothing from ds", "selec 1", "", "select * from 'file.csv'"):
        with pytest.raises(QueryError, match=r"cannot run|no table"):
            dataset.sql(query)
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with pytest.raises(QueryError):
        dataset.sql(f"select * from read_csv('{secret}')")
    with pytest.raises(QueryError, match="not a condition"):
        dataset.where_sql("width + 1")
    with pytest.raises(TypeError, match="filtered"):
        dataset.filter(bool).sql("select 1")


def test_sql_leaves_out_columns_that_an_index_lacks():
    root = fresh()
    dataset = plain(root, 4, lambda n: {"json": {"a": n if n != 3 else "x", "b": n}}, max_samples=2)
    assert dataset.sql("select sum(b) as s from ds").to_pylist() == [{"s": 6}]
    with pytest.raises(QueryError, match='"a" not found'):
        dataset.sql("select a from ds")


CONDITIONS = [
    "width >= 40",
    "width > 40 and name = 'a' or cls = 2",
    "json.width between 20 and 60",
    "name in ('a', 'c') and not cls = 0",
    "name like 'b%' or width is null",
    "__key__ >= 'k05'",
    "score > 0.5",
    "score = score",
    "not score < 1",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_where_and_where_sql_keep_the_same_samples(condition):
    scores = [0.5, None, float("nan"), 1.5, float("inf"), -0.0]
    root = fresh()

    @shoal.packable
    class Scored:
        score: float | None
        width: int
        name: str
        cls: int

    shoal.write_samples([Scored(scores[n % 6], n * 10, "abc"[n % 3], n % 4) for n in range(24)], root, max_samples=7)
    for dataset in (shoal.Dataset(root), shoal.Dataset(root).select(range(20, 3, -1))):
        text = condition.replace("json.", "msgpack.").replace("'k05'", "'000000005'")
        expected = dataset.where(text).keys()
        assert dataset.where_sql(text).keys() == expected
        assert dataset.sql(f"select key from ds where {text}").column(0).to_pylist() == expected
    assert (
        shoal.Dataset(root).where_sql(shoal.F.width >= 200).keys() == shoal.Dataset(root).where("width >= 200").keys()
    )


@settings(max_examples=60)
@given(CONDITIONS_OF_ANY_KIND, tables())
def test_the_two_engines_keep_the_same_rows(node, table):
    assert run_condition(sql_of(node), table).tolist() == run_where(node, table).tolist()


def test_where_sql_is_a_view_of_a_view():
    dataset = people()
    assert dataset.where_sql("width % 20 = 10").where_sql("regexp_matches(key, '[19]$')").keys() == [
        "k01",
        "k09",
        "k11",
    ]
    assert "where_sql" in repr(dataset.where_sql("width > 1"))


def test_names_in_sql():
    names = short_names(["json.a", "meta.json.a", "json.b", "cls", "json.CLS", "json.key"])
    assert names["json.b"] == "b"
    assert {name for name, short in names.items() if short == name} == {
        "json.a",
        "meta.json.a",
        "cls",
        "json.CLS",
        "json.key",
    }
    query = """select ds.json.b, "json.b", 'json.b', $$json.b$$, t.json.b /* json.b */ from ds t -- json.b"""
    assert (
        rewrite_query(query, names)
        == """select "b", "b", 'json.b', $$json.b$$, t.json.b /* json.b */ from ds t -- json.b"""
    )


@pytest.mark.parametrize("package, call", [("duckdb", "ds.sql('select 1')"), ("pandas", "ds.to_pandas()")])
def test_a_missing_package_names_its_extra(package, call, tmp_path):
    shoal.write_samples([Point(np.zeros(1, np.float32), "x")], tmp_path / "data")
    opened = f"import shoal; ds = shoal.Dataset({str(tmp_path / 'data')!r})"
    program = f"import sys; sys.modules[{package!r}] = None; {opened}; {call}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert MissingExtraError.__name__ in done.stderr
    assert f"shoal[{'sql' if package == 'duckdb' else 'pandas'}]" in done.stderr


def test_parquet_is_opened_as_it_is_where_no_shards_are_wanted(tmp_path):
    pq.write_table(pa.table({"text": ["one", "two"], "class": [0, 1]}), tmp_path / "a.parquet")
    ds = shoal.Dataset.from_parquet(tmp_path / "a.parquet")
    assert (ds[1]["text"], len(ds.where("class = 0"))) == ("two", 1)
    assert set(from_parquet(tmp_path / "a.parquet", columns=["text"])[0]) == {"__key__", "__url__", "text"}
    with pytest.raises(OptionError, match="an output to write them to"):
        from_parquet(tmp_path / "a.parquet", key="text")


@shoal.packable
class Swapped:
    number: Annotated[NDArray[Any], Array(">f4")]


def test_arrays_without_axes_keep_the_order_of_their_bytes(tmp_path):
    written = [Swapped(np.array(1.5, ">f4")), Swapped(np.array(2.5, ">f4"))]
    shoal.write_samples(written, tmp_path / "a.tar").to_parquet(tmp_path / "a.parquet")
    assert list(from_parquet(tmp_path / "a.parquet", tmp_path / "b" / "b.tar", sample_type=Swapped)) == written


def written(root, samples, **options):
    with shoal.ShardWriter(f"{root}/data-%06d.tar", **options) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"k{number}", **sample})
    return shoal.Dataset(root)


def some(count):
    return [
        {"json": {"width": n, "name": "ab"[n % 2]}, "bin": b"x" * n, **({"txt": "t"} if n % 3 == 0 else {})}
        for n in range(count)
    ]


def test_fields_and_columns_of_the_whole(tmp_path):
    found = written(tmp_path, some(10), max_samples=4).describe()
    assert (found.samples, found.shards) == (10, 3)
    fields = {one.name: one for one in found.fields}
    assert (fields["bin"].samples, fields["bin"].bytes, fields["bin"].type) == (10, 45, "bytes")
    assert (fields["txt"].samples, fields["txt"].mean_bytes, fields["txt"].type) == (4, 1.0, "text")
    columns = {one.name: one for one in found.columns}
    width = columns["json.width"]
    assert (width.type, width.min, width.max, width.mean, width.distinct, width.nulls) == ("int64", 0, 9, 4.5, 10, 0)
    assert columns["json.name"].top == (("a", 5), ("b", 5))
    assert columns["txt"].nulls == 6
    assert found.bytes == sum(one.bytes for one in found.fields)


def test_only_the_samples_in_view_count(tmp_path):
    dataset = written(tmp_path, some(10), max_samples=4)
    found = dataset.where("name = 'b'").select([4, 0]).describe()  # 9 and 1
    assert (found.samples, found.shards) == (2, 2)
    assert {one.name: one.bytes for one in found.fields}["bin"] == 10
    assert {one.name: one.top for one in found.columns}["json.name"] == (("b", 2),)
    with pytest.raises(TypeError, match="filtered"):
        dataset.filter(bool).describe()


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["x", "y", None]), st.binary(max_size=9)), min_size=1),
    st.data(),
)
def test_it_counts_as_a_loop_does(rows, data):
    root = f"memory://describe/{next(COUNTER)}"
    dataset = written(root, [{"cls": n, "json": {"s": s}, "bin": b} for n, s, b in rows], max_samples=3)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), unique=True, min_size=1))
    found = dataset.select(chosen).describe()
    kept = [rows[at] for at in chosen]
    assert found.samples == len(kept)
    assert next(one for one in found.fields if one.name == "bin").bytes == sum(len(b) for _, _, b in kept)
    columns = {one.name: one for one in found.columns}
    numbers = [n for n, _, _ in kept]
    assert (columns["cls"].min, columns["cls"].max) == (min(numbers), max(numbers))
    assert columns["cls"].mean == pytest.approx(sum(numbers) / len(numbers))
    texts = [s for _, s, _ in kept if s is not None]
    assert columns["json.s"].nulls == len(kept) - len(texts)
    assert dict(columns["json.s"].top) == {text: texts.count(text) for text in set(texts)}


def test_a_description_is_a_value_that_reads_well(tmp_path):
    @shoal.packable
    class Typed:
        image: NDArray[np.uint8]
        label: str
        ok: bool

    dataset = shoal.write_samples(
        [Typed(np.zeros(9, np.uint8), f"a long label of number {n}", n > 1) for n in range(3)], tmp_path
    )
    found = dataset.describe()
    text = str(found)
    assert text.splitlines()[0].startswith("3 samples in 1 shard, ")
    assert "Typed@1.0.0(image: array[uint8], label: str, ok: bool)" in text
    assert "true" in text.lower()
    assert "a long label of num…" in text
    again = json.loads(json.dumps(found.to_dict()))
    assert again["columns"][1]["top"] == [[False, 2], [True, 1]]
    assert again["fields"][0]["mean_bytes"] == found.fields[0].mean_bytes
    assert found == dataset.describe()
    assert isinstance(found, Summary)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.samples = 5


def test_columns_that_an_index_lacks_are_named(tmp_path):
    samples = [{"json": {"a": n if n != 3 else "x", "b": n}} for n in range(4)]
    found = written(tmp_path, samples, max_samples=2).describe()
    assert [one.name for one in found.columns] == ["json.b"]
    assert [name for name, _ in found.left_out] == ["json.a"]
    assert found.to_dict()["left_out"]["json.a"]


def test_nothing_in_view_and_columns_of_nulls(tmp_path):
    dataset = written(tmp_path, [{"json": {"a": None, "b": 1.5}} for _ in range(3)])
    columns = {one.name: one for one in dataset.describe().columns}
    assert (columns["json.a"].nulls, columns["json.a"].distinct, columns["json.a"].top) == (3, 0, ())
    empty = dataset.select([]).describe()
    assert (empty.samples, empty.shards, empty.bytes) == (0, 0, 0)
    assert "0 samples in 0 shards" in str(empty)
