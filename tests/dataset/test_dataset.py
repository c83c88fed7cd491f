"""Dataset: what a user asks, end to end."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal import Dataset, KeyRule, ShardWriter, ShoalWarning, load_shards
from shoal.codec import decode_spec
from shoal.dataset._decoding import LazyDecoders
from shoal.dataset._query import F
from shoal.errors import (
    ChecksumError,
    DecodeError,
    ErrorBudgetExceeded,
    FieldError,
    FormatError,
    ManifestError,
    ObjectNotFoundError,
    OptionError,
    PositionError,
    QueryError,
    SampleKeyError,
    TarError,
)
from shoal.shard import open_shard

COUNT = 23


def sample(n):
    return {
        "__key__": f"k{n:03d}",
        "txt": f"text {n}",
        "json": {"width": n * 10, "kind": "cat" if n % 2 else "dog", "deep": {"score": n / 4}},
        "cls": n % 5,
        "npy": np.arange(n, dtype=np.int32),
        "jpg": b"\xff\xd8" + bytes([n]) * 50,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("dataset")
    with ShardWriter(root / "train-%06d.tar", max_samples=6, metadata={"name": "pets"}) as writer:
        for n in range(COUNT):
            writer.write(sample(n))
    with ShardWriter(root / "val-%06d.tar", max_samples=6) as writer:
        for n in range(100, 104):
            writer.write(sample(n))
    return root


@pytest.fixture
def ds(folder):
    return Dataset(folder, split="train")


def same(found, n):
    expected = sample(n)
    array = found["npy"]
    assert array.dtype == np.int32
    assert array.tolist() == expected["npy"].tolist()
    return {**found, "npy": 0, "__url__": 0} == {**expected, "npy": 0, "__url__": 0}


def keys(samples):
    return [found["__key__"] for found in samples]


def k(*numbers):
    return [f"k{n:03d}" for n in numbers]


# ------------------------------------------------------------------------------------------------------------ positions


def test_every_position_from_both_ends(ds):
    assert len(ds) == COUNT
    for n in range(COUNT):
        assert same(ds[n], n)
        assert same(ds[n - COUNT], n)
        assert same(ds[np.int64(n)], n)


@pytest.mark.parametrize("position", [COUNT, -COUNT - 1, 10**12, [0, COUNT], np.array([-COUNT - 1])])
def test_a_position_outside(ds, position):
    with pytest.raises(PositionError, match=f"-{COUNT} to {COUNT - 1}") as error:
        ds[position]
    assert isinstance(error.value, IndexError)


def test_a_function_with_an_rng_needs_a_loader(ds):
    drawn = ds.map(lambda sample, rng: rng.random())
    with pytest.raises(OptionError, match=r"takes an rng.*\.loader"):
        drawn[0]
    assert len(next(iter(drawn.loader(batch_size=2)))) == 2


def test_an_empty_view_has_no_positions(ds):
    with pytest.raises(PositionError, match="none: it is empty, found 0"):
        ds.select([])[0]


@pytest.mark.parametrize(
    "cut",
    [
        slice(None),
        slice(3, 9),
        slice(-4, None),
        slice(None, None, -1),
        slice(20, 2, -5),
        slice(5, 5),
        slice(100, 200),
        slice(0, 10**9, 7),
    ],
)
def test_slices(ds, cut):
    assert keys(ds[cut]) == k(*range(COUNT)[cut])


@pytest.mark.parametrize(
    "wanted", [[], [4], [22, 0, 22, -1], (1, 2), range(3, 6), np.array([5, 1], np.uint8), np.array([], np.int64)]
)
def test_lists_and_arrays(ds, wanted):
    assert keys(ds[wanted]) == k(*[range(COUNT)[int(n)] for n in wanted])


def test_masks(ds):
    mask = np.arange(COUNT) % 7 == 3
    assert keys(ds[mask]) == keys(ds[mask.tolist()]) == k(3, 10, 17)
    with pytest.raises(OptionError, match=f"expected {COUNT}, found 5"):
        ds[np.ones(5, bool)]


@pytest.mark.parametrize(
    "wrong", [1.5, [1.5], None, {"a": 1}, [[0, 1], [2, 3]], np.zeros((COUNT, 1), bool), b"k001", ["k001"]]
)
def test_what_is_no_position(ds, wrong):
    with pytest.raises(OptionError, match=r"positions are|a mask"):
        ds[wrong]


def test_keys(ds):
    assert same(ds["k007"], 7)
    assert same(ds.get("k022"), 22)
    assert "k000" in ds
    assert "k100" not in ds  # it is in the other split
    assert 5 not in ds
    assert ds.keys() == k(*range(COUNT))
    with pytest.raises(SampleKeyError, match="did you mean 'k007'"):
        ds["k0077"]
    with pytest.raises(SampleKeyError, match="keys look like 'k000'"):
        ds["cat.jpg"]
    with pytest.raises(KeyError):
        ds.get("")


def test_in_order_and_again(ds):
    for _ in range(2):
        found = list(ds)
        assert len(found) == COUNT
        assert all(same(row, n) for n, row in enumerate(found))
    assert keys(ds.head(3)) == k(0, 1, 2)
    assert keys(ds.head(999)) == k(*range(COUNT))


def test_two_walks_at_once(ds):
    assert [(a["__key__"], b["__key__"]) for a, b in zip(ds, ds, strict=True)] == [(key, key) for key in ds.keys()]  # noqa: SIM118


# ---------------------------------------------------------------------------------------------------------------- views


def test_select(ds):
    view = ds.select([9, 3, 3, -1])
    assert len(view) == 4
    assert keys(view) == view.keys() == k(9, 3, 3, 22)
    assert keys(view[1:3]) == k(3, 3)
    assert same(view[-1], 22)
    assert same(view["k009"], 9)
    assert "k000" not in view
    with pytest.raises(SampleKeyError, match="not in this view"):
        view["k000"]
    assert keys(view.select([3, 0])) == k(22, 9)
    assert len(ds) == COUNT
    assert keys(ds.select([])) == []
    assert keys(ds.select(np.arange(COUNT) > 20)) == k(21, 22)


def test_a_long_view_is_read_in_parts(tmp_path):
    with ShardWriter(tmp_path / "%d.tar", max_samples=100) as writer:
        for n in range(1000):
            writer.write({"__key__": f"{n}", "txt": str(n)})
    order = np.random.default_rng(0).permutation(1000)
    assert [int(row["txt"]) for row in Dataset(tmp_path).select(order)] == order.tolist()


def test_columns(ds):
    view = ds.columns(["txt", "cls"])
    assert view.fields == ("txt", "cls")
    assert {name: value for name, value in view[7].items() if name != "__url__"} == {
        "__key__": "k007",
        "txt": "text 7",
        "cls": 2,
    }
    assert [set(row) for row in view] == [{"__key__", "__url__", "txt", "cls"}] * COUNT
    assert set(Dataset(ds.shards[0], fields=["cls"])[0]) == {"__key__", "__url__", "cls"}
    with pytest.raises(FieldError, match=r"no such field.*txt or json.*png"):
        ds.columns(["txt", "png"])


def test_a_field_that_only_a_later_shard_has_is_a_field(tmp_path):
    with ShardWriter(tmp_path / "%d.tar", max_samples=2) as writer:
        for n in range(4):
            writer.write({"__key__": f"{n}", ("a" if n < 2 else "b"): b"1"})
    ds = Dataset(tmp_path)
    assert ds.fields == ("a", "b")
    assert [row.get("b") for row in ds.columns(["b"])] == [None, None, b"1", b"1"]


# ---------------------------------------------------------------------------------------------------------------- where


@pytest.mark.parametrize(
    "query, wanted",
    [
        ("json.width >= 200", [20, 21, 22]),
        ("width >= 200 and kind = 'cat'", [21]),
        ("kind = 'dog' and cls = 2", [2, 12, 22]),
        ("json.deep.score < 1", [0, 1, 2, 3]),
        ("txt = 'text 11'", [11]),
        ("__key__ = 'k004'", [4]),
        ("width > 100000", []),
        ("not (width >= 10)", [0]),
    ],
)
def test_where(ds, query, wanted):
    view = ds.where(query)
    assert len(view) == len(wanted)
    assert keys(view) == k(*wanted)
    assert all(same(row, n) for row, n in zip(view, wanted, strict=True))


def test_where_with_python_operators(ds):
    assert keys(ds.where((F.width >= 200) & (F.kind == "cat"))) == k(21)
    assert keys(ds.where(F["json.deep.score"] < 1)) == k(0, 1, 2, 3)


def test_where_on_a_view_on_a_view(ds):
    view = ds.select([22, 3, 5, 8]).where("kind = 'cat'")
    assert keys(view) == k(3, 5)
    assert keys(ds.where("width >= 100").where("kind = 'dog'").columns(["txt"])) == k(*range(10, COUNT, 2))
    assert view.table(["json.width"]).column(0).to_pylist() == [30, 50]


def test_where_opens_no_tar(folder, tmp_path):
    for path in folder.glob("*.tar"):
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data[:512] + bytes(len(data) - 512))  # only the first header is left
    os.symlink(folder / ".shoal", tmp_path / ".shoal")
    assert len(Dataset(tmp_path).where("width >= 200")) == 7


def test_a_query_that_cannot_be(ds):
    for query in ("width >", "nope = 1", "width = 'text'", ""):
        with pytest.raises(QueryError):
            ds.where(query)


def test_a_table(ds):
    assert set(ds.column_names) == {"txt", "json.width", "json.kind", "json.deep.score", "cls"}
    assert ds.table(["cls"]).column("cls").to_pylist() == [n % 5 for n in range(COUNT)]
    assert ds.table().num_rows == COUNT
    with pytest.raises(FieldError, match="no such column"):
        ds.table(["nope"])


# ---------------------------------------------------------------------------------------------------- what a path names


def test_splits(folder):
    assert [len(Dataset(folder, split=split)) for split in (None, "train", "validation")] == [COUNT + 4, COUNT, 4]
    assert len(load_shards(folder)) == COUNT + 4
    assert keys(load_shards(str(folder), split="validation")) == k(100, 101, 102, 103)
    with pytest.raises(FieldError, match="train or validation"):
        len(load_shards(folder, "test"))


def test_ways_to_name_the_same(folder):
    names = sorted(str(path) for path in folder.glob("train-*.tar"))
    for path in (
        f"{folder}/train-*.tar",
        f"{folder}/train-{{000000..000003}}.tar",
        names,
        [f"{folder}/train-00000[0-1].tar", *names[2:]],
        "::".join(names),
        tuple(names),
    ):
        ds = Dataset(path)
        assert ds.keys() == k(*range(COUNT))
        assert ds.shards == tuple(names)
    assert Dataset(f"{folder}/.shoal/manifest.json", split="train").keys() == k(*range(COUNT))
    assert Dataset(folder / "train-000001.tar").keys() == k(*range(6, 12))
    assert Dataset(f"file://{folder}", split="train").keys() == k(*range(COUNT))


def test_a_list_that_runs_out_is_kept(folder):
    ds = Dataset(path for path in [folder / "train-000000.tar"])
    assert len(list(ds)) == len(list(ds)) == 6


def test_a_folder_without_a_manifest(folder, tmp_path):
    for path in folder.glob("*.tar"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ds = Dataset(tmp_path)
    assert len(ds) == COUNT + 4
    assert keys(Dataset(tmp_path, split="validation")) == k(100, 101, 102, 103)
    assert keys(ds.where("width >= 1000")) == k(100, 101, 102, 103)
    assert ds.metadata == {}


def test_metadata_and_repr(ds, folder):
    assert ds.metadata == {"name": "pets"}
    assert repr(ds) == f"Dataset({str(folder)!r})"
    assert repr(Dataset(["a", "b"])) == "Dataset(['a', 'b'])"


def test_opening_is_lazy(tmp_path):
    ds = Dataset(tmp_path / "nothing-*.tar")
    with pytest.raises(ObjectNotFoundError):
        len(ds)


@pytest.mark.parametrize("path", ["nothing.tar", "nowhere/", "no-{0..3}.tar", "*.tar"])
def test_nothing_there(tmp_path, path):
    with pytest.raises(FileNotFoundError):
        len(Dataset(f"{tmp_path}/{path}"))


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises((FormatError, ObjectNotFoundError)):
        len(Dataset(tmp_path))
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(FormatError, match="known format"):
        len(Dataset(tmp_path))
    with pytest.raises(FormatError):
        len(Dataset(tmp_path / "notes.md"))


def test_an_empty_dataset(tmp_path):
    with ShardWriter(tmp_path / "s-%06d.tar"):
        pass
    ds = Dataset(tmp_path)
    assert (len(ds), list(ds), ds.fields, ds.keys(), ds.shards, ds[:]) == (0, [], (), [], (), [])
    with pytest.raises(PositionError):
        ds[0]
    with pytest.raises(FieldError, match="no such split"):
        len(Dataset(tmp_path, split="train"))


def test_a_dataset_that_was_not_finished_says_so(tmp_path):
    writer = ShardWriter(tmp_path / "s-%06d.tar", max_samples=1)
    for n in range(3):
        writer.write(sample(n))
    writer.abort()
    with pytest.raises(ManifestError, match="not finished"):
        len(Dataset(tmp_path))


def test_memory_and_the_front_door():
    with shoal.ShardWriter("memory://front/train-%06d.tar") as writer:
        writer.write({"__key__": "a", "txt": "hello"})
    assert shoal.load_shards("memory://front")[0]["txt"] == "hello"
    assert set(shoal.__all__) <= set(dir(shoal))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        shoal.nope  # noqa: B018


def test_a_rule_is_obeyed_with_and_without_an_index(folder, tmp_path):
    (tmp_path / "train-000000.tar").write_bytes((folder / "train-000000.tar").read_bytes())
    rule = KeyRule(case="keep", group="archive")
    for path in (folder / "train-000000.tar", tmp_path):
        assert keys(Dataset(path, rule=rule)) == k(*range(6))
    with ShardWriter(tmp_path / "d" / "s-%06d.tar") as writer:
        writer.write({"__key__": "a", "left.txt": "1", "right.txt": "2"})
    assert [(row["__key__"], row["txt"]) for row in Dataset(tmp_path / "d", rule=KeyRule(dot="last"))] == [
        ("a.left", "1"),
        ("a.right", "2"),
    ]


# ------------------------------------------------------------------------------------------------------------- decoding


def test_decode_false_gives_bytes(folder):
    row = Dataset(folder, decode=False)[7]
    assert {name: type(value) for name, value in row.items() if name not in ("__key__", "__url__")} == dict.fromkeys(
        ("txt", "json", "cls", "npy", "jpg"), bytes
    )
    assert json.loads(row["json"])["width"] == 70
    assert [type(row["cls"]) for row in Dataset(folder, decode=False)[:3]] == [bytes] * 3


def test_a_value_that_cannot_be_decoded(tmp_path):
    with ShardWriter(tmp_path / "s-%06d.tar") as writer:
        for n in range(5):
            writer.write({"__key__": f"k{n}", "json": b"{" if n == 3 else b"{}"})
    ds = Dataset(tmp_path)
    assert ds[2]["json"] == {}
    for read in (lambda: list(ds), lambda: ds[3], lambda: ds[1:], lambda: ds["k3"], lambda: list(ds.select([0, 3]))):
        with pytest.raises(DecodeError) as error:
            read()
        assert (error.value.key, error.value.field, error.value.shard) == ("k3", "json", f"{tmp_path}/s-000000.tar")
    kept = list(Dataset(tmp_path, on_decode_error="keep"))
    assert [row["json"] for row in kept] == [{}, {}, {}, b"{", {}]
    with pytest.warns(ShoalWarning, match="1 DecodeError"):
        assert keys(Dataset(tmp_path, on_error="skip")) == ["k0", "k1", "k2", "k4"]


@pytest.fixture
def restless():
    """Threads that take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_decoders_are_the_same_for_every_thread(restless):
    with ThreadPoolExecutor(4) as pool:
        for _ in range(100):
            decoders, gate = LazyDecoders(decode_spec(True)), threading.Barrier(4)
            assert all(
                pool.map(lambda _, decoders=decoders, gate=gate: gate.wait() >= 0 and "json" in decoders, range(4))
            )


# --------------------------------------------------------------------------------------------------------------- damage


@pytest.fixture
def damaged(folder, tmp_path):
    """Samples 3 and 14 have a flipped bit in their text."""
    for path in folder.glob("train-*.tar"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    os.symlink(folder / ".shoal", tmp_path / ".shoal")
    for n in (3, 14):
        path = tmp_path / f"train-{n // 6:06d}.tar"
        shard = open_shard(str(folder / path.name))
        data = bytearray(path.read_bytes())
        data[int(shard.index.fields["txt"].offset[n % 6])] ^= 1
        path.write_bytes(data)
        shard.close()
    return tmp_path


GOOD = [n for n in range(COUNT) if n not in (3, 14)]


def test_damage_is_an_error_with_its_place(damaged):
    ds = Dataset(damaged, split="train")
    for read in (
        lambda: list(ds),
        lambda: ds[3],
        lambda: ds[2:5],
        lambda: ds["k003"],
        lambda: list(ds.select([1, 3])),
        lambda: list(ds.where("width = 30")),
    ):
        with pytest.raises(ChecksumError) as error:
            read()
        assert (error.value.key, error.value.field) == ("k003", "txt")
        assert error.value.offset
    assert same(ds[4], 4)
    assert len(list(ds.columns(["json"]))) == COUNT  # the damage is in another field
    assert len(list(Dataset(damaged, split="train", verify=False))) == COUNT


@pytest.mark.parametrize(
    "view",
    [
        lambda ds: ds,
        lambda ds: ds.where("width >= 0"),
        lambda ds: ds.select(range(COUNT)),
        lambda ds: ds.columns(["txt", "cls"]),
    ],
)
def test_skipping_says_what_it_skipped(damaged, view):
    ds = view(Dataset(damaged, split="train", on_error="skip", error_budget=2))
    with pytest.warns(ShoalWarning, match=r"passed over 2 damaged places.*2 ChecksumError"):
        assert keys(ds) == k(*GOOD)
    assert (ds.errors.count, [error.key for error in ds.errors.errors]) == (2, k(3, 14))


def test_a_walk_that_is_left_early_says_what_it_skipped(damaged):
    walk = iter(Dataset(damaged, split="train", on_error="skip"))
    assert [next(walk)["__key__"] for _ in range(4)] == k(0, 1, 2, 4)
    with pytest.warns(ShoalWarning, match="passed over 1 damaged"):
        walk.close()


def test_one_sample_asked_for_is_never_skipped(damaged):
    with pytest.raises(ChecksumError):
        Dataset(damaged, split="train", on_error="skip")[3]


def test_a_budget(damaged):
    with pytest.warns(ShoalWarning):
        assert len(list(Dataset(damaged, split="train", on_error="skip", error_budget=2))) == len(GOOD)
    with pytest.raises(ErrorBudgetExceeded, match="at most 1 errors, found 2"):
        list(Dataset(damaged, split="train", on_error="skip", error_budget=1))


def test_quarantine_writes_it_down(damaged, tmp_path):
    notes = tmp_path / "notes.jsonl"
    with pytest.warns(ShoalWarning):
        list(Dataset(damaged, split="train", on_error="quarantine", error_budget=2, quarantine=str(notes)))
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [(line["error"], line["key"], line["field"]) for line in lines] == [
        ("ChecksumError", "k003", "txt"),
        ("ChecksumError", "k014", "txt"),
    ]
    with pytest.warns(ShoalWarning):
        list(Dataset(damaged, split="train", on_error="quarantine", error_budget=2))
    assert len(Path(os.environ["SHOAL_CACHE"], "quarantine.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("option", [{"on_error": "ignore"}, {"error_budget": -1}, {"on_decode_error": "skip"}])
def test_wrong_options(tmp_path, option):
    with pytest.raises(OptionError):
        Dataset(tmp_path, **option)


def test_a_foreign_tar_cut_short(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for n in range(10):
            member = tarfile.TarInfo(f"{n}.txt")
            member.size = 700
            tar.addfile(member, io.BytesIO(b"x" * 700))
    (tmp_path / "a.tar").write_bytes(out.getvalue()[: 1536 * 6 + 600])
    with pytest.raises(TarError, match="ends inside"):
        len(Dataset(tmp_path))
    with pytest.warns(ShoalWarning, match="1 TruncatedError"):
        assert keys(Dataset(tmp_path, on_error="skip")) == [
            "0",
            "1",
            "2",
            "3",
            "4",
        ]  # the sixth may go on where it was cut


def test_a_dataset_can_be_pickled_and_opens_its_own_files(tmp_path):
    import multiprocessing
    import pickle

    with ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        for number in range(6):
            writer.write({"txt": str(number), "json": {"n": number}})
    view = Dataset(tmp_path, decode="rgb8").where("n >= 2").select([0, 2])
    assert [sample["txt"] for sample in view] == ["2", "4"]
    again = pickle.loads(pickle.dumps(view))
    assert [sample["txt"] for sample in again] == ["2", "4"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(view.__getitem__, [0, 1]) == [view[0], view[1]]


@pytest.mark.parametrize("names", ["txt", ["txt", "txtt"]])
def test_fields_that_are_not_there_are_refused(tmp_path, names):
    with ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        writer.write({"txt": "x"})
    with pytest.raises((FieldError, OptionError), match=r"no such field|a list of names"):
        Dataset(tmp_path, fields=names)[0]
    with pytest.raises((FieldError, OptionError), match=r"no such field|a list of names"):
        Dataset(tmp_path).columns(names)


def test_what_is_no_position_no_key_and_no_path_says_so(tmp_path):
    import torch

    with ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        writer.write({"txt": "x"})
    dataset = Dataset(tmp_path)
    assert dataset[torch.tensor(0)] == dataset[np.array(0)] == dataset[0]
    with pytest.raises(SampleKeyError, match="a key is text"):
        dataset.get(3)
    with pytest.raises(OptionError, match="names no dataset"):
        Dataset(3)


def test_batches_of_plain_samples_are_ragged_as_asked():
    with shoal.ShardWriter("memory://test-ragged/a-%06d.tar", overwrite=True) as writer:
        for number in range(3):
            writer.write({"__key__": f"k{number}", "npy": np.arange(number + 1)})
    dataset = shoal.Dataset("memory://test-ragged")
    (padded,) = dataset.ordered(batch_size=3, ragged="pad")
    assert padded["npy"].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2]]
    (listed,) = dataset.ordered(batch_size=3)
    assert [array.tolist() for array in listed["npy"]] == [[0], [0, 1], [0, 1, 2]]
    with pytest.raises(shoal.ShoalError, match="do not stack"):
        next(dataset.ordered(batch_size=3, ragged="error"))
