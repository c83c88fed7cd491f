"""`where` keeps the samples that a filter over decoded samples keeps, or names the column that it cannot ask about."""

from __future__ import annotations

import functools
import io
import json
import math
import tarfile
import threading
import uuid
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shoal
from shoal.build import reshard
from shoal.dataset import F
from shoal.errors import QueryError, ShoalError
from shoal.formats import write_format

BIG = 2**53 + 1


def write(path, *shards, ending=""):
    """A tar for each list of samples."""
    for number, samples in enumerate(shards):
        with shoal.ShardWriter(f"{path}/{number}.tar{ending}", root=str(path), append=number > 0) as writer:
            for row, sample in enumerate(samples):
                writer.write({"__key__": f"{number}-{row}", **sample})
    return path


def documents(path, *shards, **options):
    return shoal.Dataset(write(path, *([{"json": each} for each in shard] for shard in shards), **options))


def foreign(path, *shards):
    path.mkdir()
    for number, samples in enumerate(shards):
        with tarfile.open(path / f"{number}.tar", "w") as tar:
            for row, sample in enumerate(samples):
                for field, data in sample.items():
                    info = tarfile.TarInfo(f"{number}-{row}.{field}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return shoal.Dataset(path)


# The values of a column, against a filter over samples

MISSING = object()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([BIG, -BIG, 2**63 - 1, 2**63, 2**64, 10**30]),
    st.sampled_from([0.5, 1.0, -0.0, 1e300, math.nan, math.inf, -math.inf, float(BIG)]),
    st.sampled_from(["", "x", "1", "1.0", "true", "null", "2024-01-31", "Ünï \U0001f41f", "nan", "y" * 600]),
)
VALUES = SCALARS | st.lists(SCALARS, max_size=1) | st.dictionaries(st.sampled_from(["b", "c"]), SCALARS, max_size=1)
KINDS = st.sampled_from(["any", "integers", "numbers", "texts", "flags"])
ONE_KIND = {
    "any": VALUES,
    "integers": st.none() | st.integers(-3, 3) | st.sampled_from([BIG, 2**63 - 1]),
    "numbers": st.none() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -0.0, math.nan, math.inf, -math.inf]),
    "texts": st.none() | st.sampled_from(["", "x", "1", "true", "2024-01-31", "Ünï \U0001f41f"]),
    "flags": st.none() | st.booleans(),
}


@st.composite
def shards_of_documents(draw):
    kind = draw(KINDS)
    values = st.just(MISSING) | ONE_KIND[kind]
    shards = draw(st.lists(st.lists(values, min_size=1, max_size=4), min_size=1, max_size=3))
    return [[{} if value is MISSING else {"a": value} for value in shard] for shard in shards]


def matches(operator, left, right):
    """SQL's comparison: null is never true, NaN equals itself and is above all other numbers."""
    if left is None:
        return False
    if isinstance(left, float) or isinstance(right, float):
        left, right = ((1, 0.0) if math.isnan(x) else (0, float(x)) for x in (left, right))
    return {"=": left == right, "<": left < right, ">=": left >= right}[operator]


def same_family(left, right):
    kinds = [str if isinstance(x, str) else bool if isinstance(x, bool) else float for x in (left, right)]
    return kinds[0] is kinds[1]


def is_refused_rightly(values, operator, constant):
    """Whether a column of these values is one that no condition, or not this one, can be about."""
    present = [value for value in values if value is not None]
    has_floats = any(isinstance(value, float) for value in present)
    return (
        not present
        or any(isinstance(value, (list, dict)) for value in present)
        or not all(same_family(value, present[0]) for value in present)
        or any(isinstance(value, str) and len(value) > 512 for value in present)
        or any(isinstance(value, int) and abs(value) >= (2**53 if has_floats else 2**63) for value in present)
        or (operator != "is null" and not same_family(present[0], constant))
    )


@settings(max_examples=250)
@given(
    shards_of_documents(),
    st.sampled_from(["=", "<", ">=", "is null"]),
    st.sampled_from([0, 1, -3, BIG, 0.5, "x", "1", "2024-01-31", True]),
    st.sampled_from(["json", "msgpack"]),
)
@example([[{"a": math.nan}, {"a": None}]], "is null", 0, "json")
@example([[{"a": 1}], [{"a": [1]}]], "is null", 0, "json")
@example([[{"a": 1}], [{"a": {"b": 1}}]], "is null", 0, "msgpack")
@example([[{"a": BIG}], [{"a": 0.5}]], "=", BIG, "json")
@example([[{"a": True}], [{"a": 1}]], "=", 1, "json")
@example([[{"a": "y" * 600}], [{"a": "x"}]], "=", "x", "json")
def test_where_is_a_filter_over_samples_or_an_error(shards, operator, constant, field):
    path = f"memory://everyday-{uuid.uuid4().hex}"
    encode = json.dumps if field == "json" else msgspec.msgpack.encode
    try:
        stored = [[{field: encode(each) if field == "msgpack" else each} for each in shard] for shard in shards]
    except OverflowError:  # MessagePack has integers of 64 bits
        return
    dataset = shoal.Dataset(write(path, *stored), sample_type=dict)
    values = {sample["__key__"]: sample[field].get("a") for sample in dataset}
    column = F[f"{field}.a"]
    conditions = {
        "=": column == constant,
        "<": column < constant,
        ">=": column >= constant,
        "is null": column.is_null(),
    }
    try:
        kept, problem = dataset.where(conditions[operator]).keys(), None
    except ShoalError as error:
        kept, problem = [], str(error)
    if problem is not None:
        assert is_refused_rightly(values.values(), operator, constant), problem
        assert f"{field}.a" in problem or "no column" in problem or "no indexed columns" in problem
        return
    if operator == "is null":
        expected = [key for key, value in values.items() if value is None]
    else:
        # A column that has floats is one of floats.
        if any(isinstance(value, float) for value in values.values()):
            values = {key: float(value) if value is not None else None for key, value in values.items()}
        expected = [key for key, value in values.items() if matches(operator, value, constant)]
    assert kept == expected


# What a column is in one shard and is not in another

CLASHES = {
    "list": ({"a": 1}, {"a": [1]}),
    "mapping": ({"a": 1}, {"a": {"b": 1}}),
    "text": ({"a": 1}, {"a": "1"}),
    "boolean": ({"a": 1}, {"a": True}),
    "long text": ({"a": "x"}, {"a": "x" * 600}),
    "large integer": ({"a": 1}, {"a": 2**70}),
    "inexact": ({"a": 0.5}, {"a": BIG}),
    "large document": ({"a": 1}, {"a": 2, "pad": ["x" * (1 << 20)]}),
    "many columns": ({"zz": 1, "a": 1}, {**{f"c{n:03d}": n for n in range(300)}, "a": 2}),
    "very many names": ({"zz": 1, "a": 1}, {**{f"c{n:05d}": [n] for n in range(5000)}, "a": 2}),
}


@pytest.mark.parametrize("clash", CLASHES)
@pytest.mark.parametrize("how", ["shards", "one shard", "gzip", "foreign", "resharded", "concat"])
def test_a_column_that_some_shard_cannot_answer_is_named(tmp_path, clash, how):
    one, two = CLASHES[clash]
    if how == "foreign":
        ds = foreign(tmp_path / "d", *([{"json": json.dumps(each).encode()}] for each in (one, two)))
    elif how == "one shard":
        ds = documents(tmp_path / "d", [two, one])
    elif how == "concat":
        ds = documents(tmp_path / "one", [one]).concat(documents(tmp_path / "two", [two]))
    else:
        ds = documents(tmp_path / "d", [one], [two], ending=".gz" if how == "gzip" else "")
    if how == "resharded":
        reshard(str(tmp_path / "d"), str(tmp_path / "again"), max_samples=10)
        ds = shoal.Dataset(tmp_path / "again")
    for condition in ("json.a is null", "a is not null", "json.a = 1", F["json.a"] < 2):
        with pytest.raises(QueryError, match=r"json\.a|'a'"):
            ds.where(condition)
    with pytest.raises(ShoalError, match=r"json\.a|'a'"):
        ds.table(["json.a"])
    assert len(ds.where("__key__ = '0-0'")) == (2 if how == "concat" else 1)


def test_a_name_that_no_sample_of_a_shard_has_is_null_there(tmp_path):
    ds = documents(tmp_path / "d", [{"a": 1, "deep": {"x": 1}}, {}], [{"b": [1], "deep": {}}], [{"a": None}])
    assert ds.where("a is null").keys() == ["0-1", "1-0", "2-0"]
    assert ds.where("x is null").keys() == ["0-1", "1-0", "2-0"]
    assert ds.column("a").to_pylist() == [1, None, None, None]
    reshard(str(tmp_path / "d"), str(tmp_path / "again"), max_samples=10)
    assert shoal.Dataset(tmp_path / "again").where("a is null").keys() == ["0-1", "1-0", "2-0"]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_numbers_that_json_does_not_have(tmp_path, text):
    bodies = [b'{"a": %s, "b": 1}' % text.encode(), b'{"a": 1.5, "b": 2}', b'\xef\xbb\xbf{"a": null, "b": 3}']
    for ds in (
        foreign(tmp_path / "one", [{"json": body} for body in bodies]),
        foreign(tmp_path / "three", *([{"json": body}] for body in bodies)),
    ):
        values = [sample["json"]["a"] for sample in ds]
        assert repr(ds.column("a").to_pylist()) == repr(values)
        assert len(ds.where("a is null")) == 1
        assert len(ds.where("b >= 1")) == 3


def test_a_member_that_does_not_decode_is_an_error_and_not_null(tmp_path):
    bodies = [{"json": b'{"a": 1}', "cls": b"1"}, {"json": b'{"a": ', "cls": b"two"}, {"json": b"{}", "cls": b"3"}]
    ds = foreign(tmp_path / "d", bodies)
    for condition in ("a is null", "json.a = 1", "cls > 0"):
        with pytest.raises(QueryError, match=r"does not decode .*key 0-1"):
            ds.where(condition)
    path = tmp_path / "d"
    for lenient in (shoal.Dataset(path, on_error="skip"), shoal.Dataset(path, on_decode_error="keep")):
        assert lenient.where("cls > 0").keys() == ["0-0", "0-2"]
    bad = foreign(tmp_path / "bad", [{"cls": b"cat"}] * 100)
    with pytest.raises(QueryError, match=r"'cls'.*do not decode"):
        bad.where("cls = 1")


# Which datasets can be asked at all

ROWS = [{"name": "a", "size": 1}, {"name": "b", "size": 2}]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tfrecord", "npz", "hdf5", "raw"])
def test_a_format_without_columns_says_so(tmp_path, kind):
    if kind == "raw":
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "x.txt").write_text("hello")
        ds = shoal.Dataset(tmp_path / "d", format="raw")
    elif kind == "npz":
        (tmp_path / "d").mkdir()
        np.savez(tmp_path / "d" / "x.npz", size=np.array(1))
        ds = shoal.Dataset(tmp_path / "d", format="npz")
    elif kind == "csv":
        (tmp_path / "d.csv").write_text("name,size\na,1\nb,2\n")
        ds = shoal.Dataset(tmp_path / "d.csv")
    elif kind == "hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "d.h5", "w") as file:
            file["size"] = [1, 2]
        ds = shoal.Dataset(tmp_path / "d.h5")
    else:
        write_format(f"{tmp_path}/d.{kind}", ROWS)
        ds = shoal.Dataset(tmp_path / f"d.{kind}")
    for condition in ("size = 1", 'size = "1"', F.size == 1, "name = 'a'"):
        with pytest.raises(QueryError, match=r"(?s)this format has no indexed columns.*filter"):
            ds.where(condition)
    assert len(ds.where("__key__ is not null")) == len(ds)
    with pytest.raises(ShoalError, match="no indexed columns"):
        ds.table(["size"])


def test_a_dataset_of_tars_without_columns_says_so(tmp_path):
    ds = shoal.Dataset(write(tmp_path / "d", [{"bin": b"x"}]))
    with pytest.raises(QueryError, match="the dataset has no indexed columns"):
        ds.where("size = 1")


def test_a_field_that_is_not_indexed_says_so(tmp_path):
    ds = shoal.Dataset(write(tmp_path / "d", [{"bin": b"x", "npy": np.zeros(2), "json": {"n": 1}}]))
    for name in ("bin", "npy"):
        for condition in (f"{name} is null", f"{name} = 'x'", F[name].is_null(), f"n = 1 and {name} = 2"):
            with pytest.raises(QueryError, match=f"'{name}': the values of this field are not in the index.*filter"):
                ds.where(condition)
    with pytest.raises(QueryError, match="no column size"):
        ds.where("size = 1")


def test_a_part_that_cannot_be_asked_is_not_null(tmp_path):
    tars = documents(tmp_path / "tars", [{"size": 1}])
    rows = documents(tmp_path / "others", [{"other": 1}])
    write_format(f"{tmp_path}/d.jsonl", [{"json": {"size": 2}}])
    lines = shoal.Dataset(tmp_path / "d.jsonl").as_type(dict)
    assert tars.concat(rows).where("size is null").keys() == ["0-0"]
    both = shoal.dataset.concat([tars.map(dict), lines.map(dict)])
    with pytest.raises(QueryError, match=r"json\.size.*this format has no indexed columns"):
        both.where("size is null")
    joined = tars.join(rows.select_columns(["__key__", "json"]), suffix="_right")
    assert joined.where("size = 1 and other = 1").keys() == ["0-0"]


def test_parquet_files_that_differ(tmp_path):
    def ds(*tables):
        for number, table in enumerate(tables):
            pq.write_table(table, tmp_path / f"{number}.parquet")
        return shoal.Dataset(sorted(map(str, tmp_path.glob("*.parquet"))))

    one = pa.table({"a": [1, 2], "b": ["x", "y"]})
    assert len(ds(one, pa.table({"b": ["z"]})).where("a is null")) == 1
    assert len(ds(one, pa.table({"b": ["z"], "a": [0.5]})).where("a < 2")) == 2
    for other in (pa.table({"a": ["1"]}), pa.table({"a": [[1]]})):
        with pytest.raises(QueryError, match="'a'"):
            ds(one, other).where("a is null")
    with pytest.raises(QueryError, match=r"'a'.*exact"):
        ds(pa.table({"a": [BIG]}), pa.table({"a": [0.5]})).where("a > 1")


# Views

VIEWS = {
    "select": lambda ds: ds.select([3, 0, 2]),
    "take": lambda ds: ds.take(3),
    "skip": lambda ds: ds.skip(2),
    "shard": lambda ds: ds.shard(2, 1, contiguous=False),
    "sort": lambda ds: ds.sort("n", reverse=True),
    "where": lambda ds: ds.where("n > 0"),
    "exclude": lambda ds: ds.exclude(["0-1"]),
    "filter": lambda ds: ds.filter(lambda sample: sample["json"]["n"] != 1),
    "deleted": lambda ds: ds.tombstone(["1-0"]),
    "compose": lambda ds: ds.where("n < 3").select([2, 1]).exclude(["0-1"]),
    "columns": lambda ds: ds.columns(["json"]),
    "map": lambda ds: ds.map(lambda sample: {**sample, "json": {"n": sample["json"]["n"]}}),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "condition, meaning", [("n >= 1", lambda n: n >= 1), ("n = 2 or n = 0", lambda n: n in (0, 2))]
)
def test_views_of_views(tmp_path, view, condition, meaning):
    ds = documents(tmp_path, [{"n": 0}, {"n": 1}], [{"n": 2}, {"n": 3}])
    seen = VIEWS[view](ds)
    samples = list(seen)
    assert [sample["json"] for sample in seen.where(condition)] == [
        sample["json"] for sample in samples if meaning(sample["json"]["n"])
    ]


def test_a_split_is_asked_alone(tmp_path):
    root = tmp_path / "d"
    for split in ("train", "val"):
        with shoal.ShardWriter(f"{root}/{split}-%06d.tar") as writer:
            for number in range(3):
                writer.write({"__key__": f"{split}{number}", "json": {"n": number} if split == "train" else {"n": [1]}})
    splits = shoal.load_dataset(root)
    assert splits["train"].where("n > 0").keys() == ["train1", "train2"]
    with pytest.raises(QueryError, match=r"'n'|json\.n"):
        splits["validation"].where("n > 0")
    with pytest.raises(QueryError, match=r"json\.n"):
        shoal.Dataset(root).where("n > 0")


def test_a_name_that_means_another_column_now_is_refused(tmp_path):
    ds = shoal.Dataset(write(tmp_path, [{"txt": "one", "caption": "uno", "json": {"n": 1}}]))
    swapped = ds.rename_columns({"txt": "caption", "caption": "txt"})
    assert swapped[0]["txt"] == "uno"
    for condition in ("txt = 'one'", "caption = 'one'"):
        with pytest.raises(QueryError, match=r"renamed.*before"):
            swapped.where(condition)
    assert len(swapped.where("n = 1")) == len(ds.rename_column("txt", "text").where("n = 1")) == 1
    assert ds.where("txt = 'one'").rename_columns({"txt": "caption", "caption": "txt"})[0]["caption"] == "one"


def test_shards_over_http(tmp_path):
    write(tmp_path, [{"json": {"n": 1}}, {"json": {"n": math.nan}}], [{"json": {"n": 3}}], [{"json": {"m": [3]}}])

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            ds = shoal.Dataset(f"http://127.0.0.1:{server.server_port}/.shoal/manifest.json")
            assert ds.where("n < 2").keys() == ["0-0"]
            assert ds.where("n is null").keys() == ["2-0"]
            with pytest.raises(QueryError, match=r"json\.m"):
                ds.where("json.m = 3")
        finally:
            server.shutdown()
            thread.join()
