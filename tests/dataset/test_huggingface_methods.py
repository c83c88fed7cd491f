"""Hugging Face's verbs: the same columns in a datasets.Dataset and in shards give the same values and errors."""

from __future__ import annotations

import builtins
import itertools
import json
import math
import subprocess
import sys

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import shoal
from shoal import Dataset, DatasetDict, ShardWriter
from shoal.errors import ColumnError, EncodeError, MissingExtraError, OptionError

pytestmark = pytest.mark.usefixtures("leaky_peer")

COUNT = 11
COLUMNS = {
    "txt": [f"text {n % 4}" for n in range(COUNT)],
    "cls": [n % 3 for n in range(COUNT)],
    "json": [{"width": n * 10, "ratio": n / 3} for n in range(COUNT)],
    "row.json": [[n, n + 1, n + 2] for n in range(COUNT)],
    "ragged.json": [list(range(n % 3)) for n in range(COUNT)],
    "score.json": [n / 7 for n in range(COUNT)],
    "flag.json": [n % 2 == 0 for n in range(COUNT)],
    "maybe.json": [None if n % 4 == 0 else n for n in range(COUNT)],
    "bin": [bytes([n, 0]) for n in range(COUNT)],
}


def write(root, columns):
    names = list(columns)
    with ShardWriter(root / "a-%06d.tar", max_samples=4) as writer:
        for at, values in enumerate(zip(*columns.values(), strict=True)):
            writer.write({"__key__": f"k{at:03d}", **dict(zip(names, values, strict=True))})
    return Dataset(root)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("verbs")
    write(root, COLUMNS)
    return root


@pytest.fixture
def ours(folder):
    return Dataset(folder).select_columns(list(COLUMNS))


@pytest.fixture(scope="module")
def theirs():
    return datasets.Dataset.from_dict(COLUMNS)


def same(one, two):
    if isinstance(two, (dict, datasets.formatting.formatting.LazyDict)):
        assert list(one) == list(two)
        return all(same(one[name], two[name]) for name in two)
    if isinstance(two, (list, tuple)):
        assert isinstance(one, (list, tuple))
        assert len(one) == len(two)
        return all(itertools.starmap(same, zip(one, two, strict=True)))
    if isinstance(two, np.ndarray):
        one = np.asarray(one)
        assert (one.dtype, one.shape) == (two.dtype, two.shape), (one, two)
        if two.dtype == object:
            return all(itertools.starmap(same, zip(one, two, strict=True)))
        return bool(np.array_equal(one, two, equal_nan=two.dtype.kind == "f"))
    if isinstance(two, torch.Tensor):
        assert isinstance(one, torch.Tensor)
        assert one.dtype == two.dtype
        return torch.allclose(one, two, equal_nan=True, rtol=0, atol=0)
    if isinstance(two, float) and math.isnan(two):
        return math.isnan(one)
    return bool(one == two)


# ------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.select_columns(["cls", "txt"]),
        lambda ds: ds.select_columns("cls"),
        lambda ds: ds.remove_columns(["json", "bin"]),
        lambda ds: ds.remove_columns("txt"),
        lambda ds: ds.rename_column("txt", "text"),
        lambda ds: ds.rename_columns({"txt": "text", "cls": "label"}),
        lambda ds: ds.rename_columns({"txt": "cls", "cls": "txt"}),
        lambda ds: ds.rename_columns({"txt": "text"}).select_columns(["text", "bin"]),
        lambda ds: ds.rename_columns({"txt": "text"}).remove_columns(["text"]).rename_column("cls", "txt"),
        lambda ds: ds.select([7, 2]).remove_columns("json").take(1),
        lambda ds: ds.skip(9),
        lambda ds: ds.take(4),
        lambda ds: ds.take(99),
    ],
)
def test_columns_and_parts(ours, theirs, change):
    mine, peer = change(ours), change(theirs)
    assert list(mine.fields) == peer.column_names
    assert mine.num_rows == len(mine) == peer.num_rows
    assert same(list(mine), list(peer))
    assert same(mine[0], peer[0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ds: ds.select_columns(["cls", "nope"]),
        lambda ds: ds.remove_columns("nope"),
        lambda ds: ds.rename_column("nope", "a"),
        lambda ds: ds.rename_column("txt", "cls"),
        lambda ds: ds.rename_column("txt", ""),
        lambda ds: ds.rename_columns({"nope": "a"}),
        lambda ds: ds.rename_columns({"txt": "a", "cls": "a"}),
        lambda ds: ds.rename_columns({"txt": ""}),
        lambda ds: ds.rename_column("txt", "text").select_columns("txt"),
        lambda ds: ds.with_format("numpy", columns=["nope"]),
        lambda ds: ds.with_transform(dict, columns=["nope"]),
        lambda ds: ds.sort("nope"),
        lambda ds: ds.sort(["txt", "nope"]),
        lambda ds: ds.unique("nope"),
        lambda ds: ds.train_test_split(0.5, stratify_by_column="nope"),
        lambda ds: ds.sort("cls", null_placement="middle"),
        lambda ds: ds.sort(["cls", "txt"], reverse=[True]),
        lambda ds: ds.with_format("nope"),
        lambda ds: ds.shard(3, 3),
        lambda ds: ds.shard(3, -1),
        lambda ds: ds.shard(0, 0),
    ],
)
def test_the_same_is_refused_at_once_and_with_a_value_error(ours, theirs, wrong):
    with pytest.raises(ValueError):
        wrong(theirs)
    with pytest.raises(ValueError) as error:
        wrong(ours)
    assert isinstance(error.value, shoal.ShoalError)


def test_a_new_name_that_is_there_already_is_refused(ours):
    with pytest.raises(ColumnError, match="one name"):
        ours.rename_columns({"txt": "cls"})  # datasets makes two columns of one name, and fails later


def test_after_a_map_columns_are_checked_as_they_are_read(ours):
    mapped = ours.map(lambda one: {"a": one["cls"], "b": 1})
    assert mapped.select_columns("a")[4] == {"a": 1}
    assert mapped.remove_columns("a")[4] == {"b": 1}
    assert mapped.rename_column("a", "c")[4] == {"c": 1, "b": 1}
    for wrong in (mapped.select_columns("cls"), mapped.remove_columns("cls"), mapped.rename_column("cls", "d")):
        with pytest.raises(ColumnError, match="cls"):
            wrong[0]
    assert mapped.sort("a", reverse=True)[0] == {"a": 2, "b": 1}
    assert mapped.unique("a") == [0, 1, 2]


def test_keys_are_columns_too(folder):
    ds = Dataset(folder)
    assert ds.select_columns(["__key__"])[3] == {"__key__": "k003"}
    assert set(ds.remove_columns(["__url__", "bin"])[0]) == {"__key__", *COLUMNS} - {"bin"}
    assert ds.rename_column("__key__", "id").select_columns("id")[1] == {"id": "k001"}
    assert ds.sort("__key__", reverse=True).take(2).unique("__key__") == ["k010", "k009"]
    assert ds.rename_column("__key__", "id").unique("id")[:2] == ["k000", "k001"]


def test_samples_without_a_field(tmp_path):
    with ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "txt": "x"})
        writer.write({"__key__": "b", "cls": 3})
    ds = Dataset(tmp_path / "a.tar")
    assert list(ds.select_columns(["cls"])) == [{}, {"cls": 3}]
    assert list(ds.rename_column("cls", "label").select_columns("label")) == [{}, {"label": 3}]
    assert ds.unique("cls") == [None, 3]
    assert ds.sort("cls").keys() == ["b", "a"]
    assert ds.sort("cls", null_placement="first").keys() == ["a", "b"]
    assert ds.select_columns(["cls"]).with_format("torch")[:2]["cls"][1] == 3


# ------------------------------------------------------------------------------------------------------ sort and unique


SORTS = [
    ("cls", False, "at_end"),
    ("txt", True, "last"),
    (["cls", "txt"], False, "at_end"),
    (["cls", "txt"], [True, False], "at_end"),
    (["txt", "cls"], True, "at_start"),
    ("maybe.json", False, "at_end"),
    ("maybe.json", True, "at_end"),
    ("maybe.json", False, "first"),
    (["cls", "maybe.json"], [False, True], "at_start"),
    ("score.json", True, "at_end"),
    ("bin", True, "at_end"),
    ("flag.json", False, "at_end"),
]


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # datasets' way to call pyarrow
@pytest.mark.parametrize("names, reverse, nulls", SORTS)
def test_sort(ours, theirs, names, reverse, nulls):
    mine = ours.sort(names, reverse=reverse, null_placement=nulls)
    peer = theirs.sort(names, reverse=reverse, null_placement=nulls)
    assert same(list(mine), list(peer))


numbers = st.one_of(st.none(), st.floats(allow_nan=True, width=32), st.integers(-3, 3).map(float))


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
@settings(max_examples=40)
@given(
    st.lists(st.tuples(numbers, st.one_of(st.none(), st.sampled_from("abc"))), min_size=1, max_size=20),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from(["at_start", "at_end"]),
)
def test_sort_of_anything(rows, reverse, nulls):
    peer = datasets.Dataset.from_dict({"a": [a for a, _ in rows], "b": [b for _, b in rows], "n": range(len(rows))})
    mine = Lines(rows)
    expected = peer.sort(["a", "b"], reverse=list(reverse), null_placement=nulls)["n"]
    assert [one["n"] for one in mine.dataset.sort(["a", "b"], reverse=list(reverse), null_placement=nulls)] == list(
        expected
    )


class Lines:
    """Rows as a dataset in memory, without the price of a file each time."""

    def __init__(self, rows):
        whole = shoal.write_samples(
            [{"__key__": str(n), "txt": str(n)} for n in range(len(rows))], f"memory://sorts/{next(_NAMES)}/a.tar"
        )
        self.dataset = whole.map(
            lambda one: {"a": rows[int(one["txt"])][0], "b": rows[int(one["txt"])][1], "n": int(one["txt"])}
        )


_NAMES = itertools.count()


@pytest.mark.parametrize("name", ["txt", "cls", "maybe.json", "score.json", "bin", "flag.json"])
def test_unique(ours, theirs, name):
    assert ours.unique(name) == theirs.unique(name)
    assert ours.select([5, 3, 3, 1]).unique(name) == theirs.select([5, 3, 3, 1]).unique(name)
    assert ours.with_format("torch").unique(name) == theirs.unique(name)


def test_unique_of_what_is_not_compared(ours, theirs):
    with pytest.raises(pa.ArrowNotImplementedError):
        theirs.unique("row.json")
    with pytest.raises(OptionError, match="not compared"):
        ours.unique("row.json")
    with pytest.raises(EncodeError, match="Arrow has no type"):
        ours.map_dict(txt=lambda _: object()).unique("txt")


def test_columns_of_the_index_are_sorted_without_opening_a_tar(tmp_path):
    ds = write(tmp_path, COLUMNS)
    assert len(ds) == COUNT
    _ = ds.column_names  # the indexes are read now
    for path in tmp_path.glob("*.tar"):
        path.write_bytes(bytes(path.stat().st_size))
    assert ds.unique("cls") == [0, 1, 2]
    assert ds.sort(["txt", "cls"], reverse=True).keys()[0] == "k007"
    assert ds.sort("json.width", reverse=True).keys()[:2] == ["k010", "k009"]
    assert ds.sort("ratio", reverse=True).keys()[:2] == ["k010", "k009"]
    assert ds.rename_columns({"cls": "label"}).remove_columns("txt").unique("label") == [0, 1, 2]
    assert ds.rename(label="cls", keep=False).sort("label").keys()[0] == "k000"
    assert ds.train_test_split(4, stratify_by_column="cls", seed=1).num_samples == {"train": 7, "test": 4}
    assert ds.unique("__key__") == [f"k{n:03d}" for n in range(COUNT)]


def test_what_samples_hold_is_what_counts(folder):
    raw = Dataset(folder, decode=False)
    assert raw.unique("cls") == [b"0", b"1", b"2"]  # not the numbers of the index
    assert Dataset(folder, decode={"cls": lambda data: -int(data)}).sort("cls").unique("cls") == [-2, -1, 0]
    assert Dataset(folder).map_dict(cls=lambda n: -n).unique("cls") == [0, -1, -2]
    with pytest.raises(ColumnError, match=r"several columns may be meant: expected a\.json\.x or b\.json\.x"):
        shoal.write_samples([{"a.json": {"x": 1}, "b.json": {"x": 2}}], "memory://sorts/two/a.tar").sort("x")


# --------------------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("contiguous", [True, False])
def test_shard(ours, theirs, contiguous):
    for shards in (1, 2, 3, 7, 11):
        for index in range(shards):
            mine, peer = (ds.shard(shards, index, contiguous=contiguous) for ds in (ours, theirs))
            assert same(list(mine), list(peer))


def test_more_shards_than_samples(ours, theirs):
    with pytest.raises(IndexError):
        theirs.shard(15, 14)
    assert [len(ours.shard(15, index)) for index in range(15)] == [1] * COUNT + [0] * 4


SIZES = [None, 0, 3, 8, 11, -1, 0.05, 0.25, 0.5, 0.99, 1.0, "0.5"]


@pytest.mark.parametrize("test_size", SIZES)
def test_sizes_of_a_split(ours, theirs, test_size):
    for train_size in SIZES:
        options = {"test_size": test_size, "train_size": train_size, "seed": 5}
        try:
            expected = theirs.train_test_split(**options)
        except (ValueError, TypeError):
            with pytest.raises(OptionError):
                ours.train_test_split(**options)
            continue
        found = ours.train_test_split(**options)
        assert isinstance(found, DatasetDict)
        assert list(found) == ["train", "test"]
        for name, part in expected.items():
            assert same(list(found[name]), list(part))  # the very same samples


def test_a_split_in_order_and_by_chance(ours, theirs):
    mine, peer = (ds.train_test_split(0.3, shuffle=False) for ds in (ours, theirs))
    assert all(same(list(mine[name]), list(peer[name])) for name in peer)
    drawn = ours.train_test_split(0.3)
    again = ours.train_test_split(0.3, seed=drawn["test"].seed)
    assert [list(drawn[name]) for name in drawn] == [list(again[name]) for name in again]
    rows = [part.rows.as_array().tolist() for part in drawn.values()]
    assert sorted(rows[0] + rows[1]) == list(range(COUNT))
    mine, peer = (ds.train_test_split(0.3, generator=np.random.default_rng(3)) for ds in (ours, theirs))
    assert same(list(mine["test"]), list(peer["test"]))
    empty = ours.select([]).train_test_split()
    assert empty.num_samples == {"train": 0, "test": 0}


@settings(max_examples=40)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.floats(0.1, 0.9), st.integers(0, 99))
def test_a_stratified_split(counts, size, seed):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    features = datasets.Features({"cls": datasets.ClassLabel(num_classes=len(counts))})
    peer = datasets.Dataset.from_dict({"cls": labels}, features=features)
    mine = shoal.write_samples([{"cls": label} for label in labels], f"memory://strata/{next(_NAMES)}/a.tar")
    try:
        expected = peer.train_test_split(size, seed=seed, stratify_by_column="cls")
    except ValueError:
        with pytest.raises(OptionError):
            mine.train_test_split(size, seed=seed, stratify_by_column="cls")
        return
    found = mine.train_test_split(size, seed=seed, stratify_by_column="cls")
    numbers = [found[name].rows.as_array().tolist() for name in found]
    assert len({*numbers[0], *numbers[1]}) == len(numbers[0]) + len(numbers[1])
    for name, part in expected.items():
        assert len(found[name]) == len(part)
        share = [np.bincount([one["cls"] for one in ds], minlength=len(counts)) for ds in (found[name], part)]
        assert np.abs(share[0] - share[1]).max() <= 1  # which of equal remainders is rounded up is chance in both


def test_what_cannot_be_stratified(ours):
    with pytest.raises(OptionError, match="shuffled"):
        ours.train_test_split(0.5, shuffle=False, stratify_by_column="cls")
    with pytest.raises(OptionError, match="occurs once"):
        ours.train_test_split(0.5, stratify_by_column="score.json")
    with pytest.raises(OptionError, match="too few places"):
        ours.train_test_split(2, stratify_by_column="cls")


# ------------------------------------------------------------------------------------------------------------- formats

TENSORS = ["txt", "cls", "json", "row.json", "ragged.json", "score.json", "flag.json"]


@pytest.mark.parametrize("kind", ["numpy", "np", "torch", "pt"])
@pytest.mark.parametrize("column", [*TENSORS, "maybe.json"])
def test_batches_of_tensors(ours, theirs, kind, column):
    mine, peer = (ds.select_columns(column).with_format(kind) for ds in (ours, theirs))
    assert same(mine[1:7], peer[1:7])
    assert same(mine[[4, 4, 1]], peer[[4, 4, 1]])
    assert same(list(mine.ordered(batch_size=4)), list(peer.iter(4)))
    assert same(list(mine.batched(4, partial=False)), list(peer.iter(4, drop_last_batch=True)))
    assert same(mine.batched(4)[2], peer[8:])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("column", TENSORS)
def test_rows_of_tensors(ours, theirs, kind, column):
    full = [n for n in range(COUNT) if COLUMNS[column][n] != []]  # of nothing, a row does not know the type
    mine, peer = (ds.select_columns(column).select(full).with_format(kind) for ds in (ours, theirs))
    assert same(mine[5], peer[5])
    assert same(list(mine), list(peer))


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_tables(ours, theirs, kind):
    mine, peer = (ds.with_format(kind) for ds in (ours, theirs))
    for item in (3, slice(2, 7), [5, 1], slice(0, 0)):
        found, expected = mine[item], peer[item]
        if kind == "pandas":
            pd.testing.assert_frame_equal(found, expected, check_dtype=item != slice(0, 0))
        else:
            assert isinstance(found, pa.Table)
            assert found.to_pydict() == expected.to_pydict()
            # Of what is not there, only a table of all rows knows the type.
            assert found.schema.types == expected.schema.types or item != slice(2, 7)
    tables = list(mine.ordered(batch_size=4))
    assert [len(table) for table in tables] == [4, 4, 3]


@pytest.mark.parametrize("kind", ["numpy", "torch", "arrow", "pandas", None])
@pytest.mark.parametrize("output_all_columns", [False, True])
def test_some_columns_formatted(ours, theirs, kind, output_all_columns):
    options = {"type": kind, "columns": ["cls", "score.json"], "output_all_columns": output_all_columns}
    if output_all_columns and kind in ("arrow", "pandas"):
        with pytest.raises(TypeError):
            theirs.with_format(**options)[0]
        with pytest.raises(TypeError):
            ours.with_format(**options)
        return
    mine, peer = (ds.remove_columns("maybe.json").with_format(**options) for ds in (ours, theirs))
    for item in (3, slice(2, 7)):
        if kind == "arrow":
            assert mine[item].equals(peer[item])
        elif kind == "pandas":
            pd.testing.assert_frame_equal(mine[item], peer[item])
        else:
            assert same(mine[item], peer[item])


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.with_format("torch").select([3, 1]),
        lambda ds: ds.with_format("torch").rename_columns({"cls": "label", "txt": "text"}),
        lambda ds: ds.with_format("torch", columns=["cls", "txt"]).rename_columns({"cls": "label"}),
        lambda ds: ds.with_format("torch", columns=["cls", "txt"]).remove_columns(["cls"]),
        lambda ds: ds.with_format("torch", columns=["cls", "txt"], output_all_columns=True).select_columns(
            ["cls", "flag.json"]
        ),
        lambda ds: ds.with_format("torch").sort("cls").shard(2, 1),
        lambda ds: ds.with_format("torch").with_format("numpy"),
        lambda ds: ds.with_format("torch", columns=["cls"]).with_format("numpy", columns=["score.json"]),
        lambda ds: ds.with_format("torch", columns=["cls"], dtype=torch.float64),
        lambda ds: ds.with_format("numpy", columns=["cls"], dtype=np.int8),
    ],
)
@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
def test_a_format_stays_over_other_verbs(ours, theirs, change):
    names = ["txt", "cls", "score.json", "flag.json"]
    mine, peer = (change(ds.select_columns(names)) for ds in (ours, theirs))
    assert same(mine[:5], peer[:5])
    assert same(mine[1], peer[1])


def test_a_format_is_taken_away(ours):
    assert ours.with_format("torch").with_format(None)[2:4] == ours[2:4]
    assert ours.with_format("torch").with_format("python")[2] == ours[2]


def test_verbs_after_a_format_get_what_it_gives(ours):
    doubled = ours.with_format("numpy", columns=["cls"]).map(lambda one: one["cls"] * 2)
    assert doubled[1:4] == [2, 4, 0]
    assert isinstance(doubled[1], np.int64)
    kept = ours.with_format("torch", columns=["cls"]).filter(lambda one: bool(one["cls"] == 2)).materialize()
    assert kept.to_tuple("cls")[:] == [(torch.tensor(2),)] * 3


def test_bytes_keep_their_zeros(ours, theirs):
    assert theirs.with_format("numpy")[:2]["bin"][1] == b"\x01"  # where an array of bytes loses them
    assert ours.with_format("numpy")[:2]["bin"].tolist() == [b"\0\0", b"\x01\0"]


def test_images_stay_eight_bits(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    ds = shoal.write_samples([{"png": pixels, "npy": np.float64([1, 2])}] * 2, tmp_path / "a.tar").select_columns(
        ["png", "npy"]
    )
    peer = datasets.Dataset.from_dict({"png": [Image.fromarray(pixels)] * 2, "npy": [[1.0, 2.0]] * 2})
    for kind in ("numpy", "torch"):
        assert same(ds.decode("pil").with_format(kind)[:2], peer.with_format(kind)[:2])
        assert same(ds.decode("pil").with_format(kind)[0], peer.with_format(kind)[0])
    assert ds.decode("rgb8").with_format("torch")[:2]["png"].shape == (2, 2, 4, 3)  # an array is as it is
    assert ds.decode("rgb8").with_format("torch")[0]["png"].dtype == torch.uint8


def test_arrays_become_lists_in_tables(tmp_path):
    ds = shoal.write_samples([{"npy": np.eye(2)}, {"npy": np.ones((1, 2))}], tmp_path / "a.tar").select_columns("npy")
    assert ds.with_format("arrow")[:2].to_pydict() == {"npy": [[[1, 0], [0, 1]], [[1, 1]]]}
    with pytest.raises(EncodeError, match="field npy"):
        ds.map_dict(npy=lambda _: object()).with_format("arrow")[0]


def test_a_format_of_a_stream(ours):
    odd = ours.select_columns("cls").filter(lambda one: one["cls"] == 1).with_format("torch")
    assert [batch["cls"].tolist() for batch in odd.ordered(batch_size=3)] == [[1, 1, 1], [1]]
    assert [batch["cls"].tolist() for batch in odd.ordered(batch_size=3, drop_last=True)] == [[1, 1, 1]]
    assert sorted(
        n for b in ours.with_format("torch").shuffled(batch_size=4, seed=1) for n in b["cls"].tolist()
    ) == sorted(COLUMNS["cls"])
    assert [row["cls"] for row in ours.with_format("torch").with_epoch(COUNT + 1)][-1] == torch.tensor(0)


OTHER_FRAMEWORKS = """
import json, warnings
warnings.simplefilter("ignore")
import datasets, numpy as np, shoal
columns = json.loads({columns!r})
ours = shoal.Dataset({folder!r}).select_columns(list(columns))
theirs = datasets.Dataset.from_dict(columns)

def same(one, two):
    if isinstance(two, dict):
        return list(one) == list(two) and all(same(one[k], two[k]) for k in two)
    if isinstance(two, list):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two))
    if hasattr(two, "to_list"):
        return type(one) is type(two) and one.dtype == two.dtype and one.to_list() == two.to_list()
    if hasattr(two, "shape"):
        return type(one) is type(two) and one.dtype == two.dtype and np.array_equal(np.asarray(one), np.asarray(two))
    return type(one) is type(two) and one == two

for kind in {kinds}:
    mine, peer = ours.with_format(kind), theirs.with_format(kind)
    wrong = [n for n in columns if not same(mine[1:7][n], peer[1:7][n]) or not same(mine[5][n], peer[5][n])]
    assert not wrong, (kind, wrong, [(mine[1:7][n], peer[1:7][n], mine[5][n], peer[5][n]) for n in wrong])
print("the same")
"""


@pytest.mark.parametrize("kinds", [["jax"], ["tensorflow", "tf"]], ids=lambda kinds: kinds[0])
def test_other_frameworks(folder, kinds):
    # datasets leaves numbers inside of dicts to TensorFlow, which makes them narrower than those outside.
    names = [name for name in TENSORS if name != "json" or kinds == ["jax"]]
    # In a process of its own: they start threads, warn as they are imported, and stay for ever.
    code = OTHER_FRAMEWORKS.format(
        columns=json.dumps({name: COLUMNS[name] for name in names}), folder=str(folder), kinds=kinds
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "the same\n", done.stderr


@pytest.mark.parametrize("kind, extra", [("torch", "torch"), ("jax", "jax"), ("tf", "tf"), ("pandas", "pandas")])
def test_a_missing_framework_is_named(ours, monkeypatch, kind, extra):
    package = {"tf": "tensorflow"}.get(kind, kind)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    imported = builtins.__import__

    def without(name, *args, **options):
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {name!r}")
        return imported(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=extra):
        ours.with_format(kind)


# ---------------------------------------------------------------------------------------------------------- transforms


def double(batch):
    return {"twice": [n * 2 for n in batch["cls"]], "size": [len(batch["cls"])] * len(batch["cls"])}


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.with_transform(double),
        lambda ds: ds.with_transform(double, columns=["cls"]),
        lambda ds: ds.with_transform(double, columns=["cls", "txt"], output_all_columns=True),
        lambda ds: ds.with_transform(double, columns="cls").select([5, 6, 7, 8, 9, 0]),
        lambda ds: ds.with_format("torch").with_transform(lambda batch: batch),
    ],
)
def test_with_transform(ours, theirs, change):
    mine, peer = change(ours), change(theirs)
    assert same(mine[3], peer[3])
    assert same(mine[1:5], peer[1:5])
    assert same(list(mine), list(peer))
    assert same(list(mine.ordered(batch_size=4)), list(peer.iter(4)))


def test_a_transform_gets_columns_of_python_values(ours, theirs):
    for ds in (ours, theirs):
        seen = []
        ds.select_columns(["txt", "cls"]).with_transform(lambda batch, seen=seen: seen.append(batch) or batch)[2:4]
        assert seen == [{"txt": ["text 2", "text 3"], "cls": [2, 0]}]


def test_a_transform_that_gives_no_dict(ours, theirs):
    for ds in (ours, theirs):
        assert ds.with_transform(lambda batch: len(batch["cls"]))[:3] == 3
        with pytest.raises(TypeError):
            ds.with_transform(lambda batch: 1)[0]
        with pytest.raises(TypeError):
            ds.with_transform(lambda batch: 1, columns=["cls"], output_all_columns=True)[:2]
    with pytest.raises(OptionError):
        ours.with_transform("double")


# ------------------------------------------------------------------------------------------------------- typed samples


@shoal.packable
class Point:
    at: NDArray[np.float32]
    label: str
    weight: float


@pytest.fixture
def points():
    rows = [Point(np.full(2, n, np.float32), f"p{n % 3}", -n / 2) for n in range(6)]
    return shoal.write_samples(rows, f"memory://verbs/{next(_NAMES)}/a.tar")


def test_typed_samples(points):
    assert points.select_columns(["label", "weight"])[4] == {"label": "p1", "weight": -2.0}
    assert list(points.remove_columns("at")[0]) == ["label", "weight"]
    assert points.rename_columns({"label": "name"}).select_columns("name")[1] == {"name": "p1"}
    assert [point.weight for point in points.sort("weight")] == [-2.5, -2.0, -1.5, -1.0, -0.5, 0.0]
    assert points.unique("label") == ["p0", "p1", "p2"]
    assert points.sort("weight").sample_type is points.sample_type
    parts = points.train_test_split(3, stratify_by_column="label", seed=0)
    assert parts["test"].sort("label")[0].label == "p0"
    assert points.with_format("torch")[1:3]["at"].tolist() == [[1, 1], [2, 2]]
    assert points.with_format("pandas", columns=["label", "weight"])[:2].to_dict("list") == {
        "label": ["p0", "p1"],
        "weight": [0.0, -0.5],
    }
    with pytest.raises(ColumnError, match="expected at or label or weight, found nope"):
        points.select_columns(["nope"])
    assert points.shard(2, 0)[0] == points[0]


# ---------------------------------------------------------------------------------------------------------- the options


@pytest.mark.parametrize("name", ["verify", "writable"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_yes_or_no(folder, name, value):
    with pytest.raises(OptionError, match=f"{name} is yes or no"):
        Dataset(folder, **{name: value})


def test_arrays_that_may_be_written_to(tmp_path, points):
    rows = [{"npy": np.arange(3), "npz": {"a": np.arange(2)}}]
    path = tmp_path / "a.tar"
    ds = shoal.write_samples(rows, path)
    with pytest.raises(ValueError, match="read-only"):
        ds[0]["npy"][0] = 9
    own = Dataset(path, writable=True)
    own[0]["npy"][0] = 9
    own[0]["npz"]["a"][0] = 9
    found = own[0]["npy"]
    found[0] = 9
    assert own[0]["npy"].tolist() == [0, 1, 2]
    for kind in (Point, shoal.DictSample):
        typed = Dataset(points.shards[0], sample_type=kind, writable=True)
        typed[1].at[0] = 7
        assert typed[1].at.tolist() == [1, 1]


# ---------------------------------------------------------------------------------------------- columns, in their order


def test_columns_after_other_verbs(folder, points):
    ds = Dataset(folder)
    assert set(ds.rename_columns({"txt": "text"}).columns(["text"])[1]) == {"__key__", "__url__", "text"}
    kept = ds.filter(lambda one: one["cls"] == 2).columns(["txt"])
    assert [one["txt"] for one in kept] == ["text 2", "text 1", "text 0"]  # the filter still sees what it looks at
    assert ds.map(lambda one: {"a": one["cls"]}).columns(["a"])[4] == {"a": 1}
    with pytest.raises(ColumnError):
        ds.rename_columns({"txt": "text"}).columns(["txt"])
    assert list(points.filter(lambda point: point.weight < -2).columns(["label"])) == [{"label": "p2"}]
