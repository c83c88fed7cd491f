"""Views: any composition of them gives the same as on a list, and its repr names the methods."""

import functools
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal
from shoal import Dataset, ShardWriter, ShoalWarning
from shoal.dataset import F
from shoal.errors import (
    ManifestError,
    OptionError,
    QueryError,
)
from shoal.shard import _row_view
from shoal.shard._row_view import RowView

COUNT = 60


def sample(n, name="k"):
    return {"__key__": f"{name}{n:03d}", "json": {"width": n * 10, "patient": n // 7}, "cls": n % 5, "txt": f"text {n}"}


def write(root, samples, name="train", **options):
    with ShardWriter(f"{root}/{name}-%06d.tar", **{"max_samples": 7, **options}) as writer:
        for each in samples:
            writer.write(each)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("views"), map(sample, range(COUNT)))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write(tmp_path_factory.mktemp("others"), (sample(n, "o") for n in range(25)))


@pytest.fixture
def ds(folder):
    return Dataset(folder)


def keys(samples):
    return [found["__key__"] for found in samples]


def bare(found):
    return {name: value for name, value in found.items() if name != "__url__"}


def fnv(text, seed=0):
    """The hash, as the page that describes it says, a letter at a time."""
    most = (1 << 64) - 1

    def mix(word):
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & most
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & most
        return word ^ (word >> 31)

    word = 0xCBF29CE484222325 ^ mix(seed & most)
    for letter in text.encode():
        word = ((word ^ letter) * 0x100000001B3) & most
    return mix(word)


def is_in_train(found, weight, seed):
    return fnv(found["__key__"], seed) / 2**64 < weight


numbers = st.integers(0, 1000)


operations = st.one_of(
    st.tuples(st.just("select"), st.lists(st.integers(0, 10_000), max_size=40)),
    st.tuples(st.just("where"), st.sampled_from(["width >= {}", "width < {}", "cls != 2 or width > {}"]), numbers),
    st.tuples(st.just("slice"), st.slices(COUNT)),
    st.tuples(st.just("shard"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("exclude"), st.lists(st.integers(0, COUNT), max_size=20)),
    st.tuples(st.just("exclude samples"), numbers),
    st.tuples(st.just("concat"), st.integers(0, 2)),
    st.tuples(st.just("split"), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 3)),
    st.tuples(st.just("pickle")),
    st.tuples(st.just("refresh")),
)


def applied(operation, view, model, start):
    """One operation, done to the view and to the list."""
    match operation:
        case "select", positions:
            chosen = [at % len(model) for at in positions] if model else []
            return view.select(chosen), [model[at] for at in chosen]
        case "slice", cut:
            chosen = range(*cut.indices(len(model)))
            return view.select(chosen), [model[at] for at in chosen]
        case "shard", count, contiguous:
            chosen = np.array_split(range(len(model)), count)[0] if contiguous else range(0, len(model), count)
            return view.shard(count, 0, contiguous=contiguous), [model[at] for at in chosen]
        case "exclude samples", number:
            gone = view.where(f"width < {number}")
            return view.exclude(gone), [found for found in model if found["json"]["width"] >= number]
        case "where", text, number:
            tests = {
                "width >= {}": lambda found: found["json"]["width"] >= number,
                "width < {}": lambda found: found["json"]["width"] < number,
                "cls != 2 or width > {}": lambda found: found["cls"] != 2 or found["json"]["width"] > number,
            }
            return view.where(text.format(number)), [found for found in model if tests[text](found)]
        case "exclude", some:
            gone = {f"k{n:03d}" for n in some}
            return view.exclude(gone), [found for found in model if found["__key__"] not in gone]
        case "concat", which:
            others = [start, (view, model), start]
            added, more = others[which]
            return (view.concat(added), model + more) if which < 2 else (added.concat(view, added), more + model + more)
        case "split", weight, seed:
            part = view.split(train=weight, rest=1 - weight, seed=seed)["train"]
            return part, [found for found in model if is_in_train(found, weight, seed)]
        case ("pickle",):
            return pickle.loads(pickle.dumps(view)), model
        case _:
            return view.refresh(), model


@pytest.fixture(params=["arrays", "runs and bitmaps"])
def forms(request):
    """Views of few samples in the forms that views of few and of many have."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "arrays":
            patch.setattr(_row_view, "_MAX_ARRAY_BYTES", 0)
            patch.setattr(_row_view, "_CHUNK_ROWS", 16)
        yield


@pytest.mark.usefixtures("forms")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(operations, max_size=6), data=st.data())
def test_any_composition_of_views_is_the_same_done_to_a_list(folder, other, plan, data):
    start = (Dataset(other), [sample(n, "o") for n in range(25)])
    view, model = Dataset(folder), [sample(n) for n in range(COUNT)]
    for operation in plan:
        view, model = applied(operation, view, model, start)
    assert len(view) == len(model)
    assert view.keys() == keys(model)
    assert [bare(found) for found in view] == model
    assert [bare(found) for found in view[:]] == model
    assert view.table(["json.width"])["json.width"].to_pylist() == [found["json"]["width"] for found in model]
    assert [n for batch in view.ordered(batch_size=4) for n in batch["cls"]] == [found["cls"] for found in model]
    shuffled = [key for batch in view.shuffled(batch_size=4, seed=1) for key in batch["__key__"]]
    assert sorted(shuffled) == sorted(keys(model))
    if model:
        wanted = data.draw(st.sampled_from(model))
        assert bare(view.get(wanted["__key__"])) == wanted
        assert wanted["__key__"] in view
        assert bare(view[-1]) == model[-1]
    assert "nobody" not in view
    assert view.fingerprint == pickle.loads(pickle.dumps(view)).fingerprint


def test_no_array_of_rows_is_made_where_runs_will_do(tmp_path, monkeypatch):
    Dataset(write(tmp_path, map(sample, range(2000)), max_samples=500)).tombstone(["k133"])
    monkeypatch.setattr(_row_view, "_MAX_ARRAY_BYTES", 0)
    monkeypatch.setattr(RowView, "as_array", lambda view: pytest.fail("all rows are expanded"))
    make = RowView.from_rows
    monkeypatch.setattr(RowView, "from_rows", lambda rows: make(rows) if len(rows) < 2 else pytest.fail("an array"))
    ds = Dataset(tmp_path)
    views = {
        "deleted": (ds, 1999),
        "where": (ds.where("width >= 1000"), 1899),
        "slice": (ds.skip(5).take(400), 400),
        "select": (ds.select(range(3, 500)), 497),
        "shard": (ds.shard(3, 1), 666),
        "train": (ds.train_test_split(0.5, shuffle=False)["train"], 999),
        "concat": (ds.concat(ds), 3998),
    }
    for name, (view, count) in views.items():
        assert (len(view), view.rows.nbytes < 200) == (count, True), name
        assert len(view.fingerprint) == 16
        assert len(list(view)) == len(view.table(["cls"])) == count, name
        assert view.position_of(view[-1]["__key__"]) in (count - 1, count // 2 - 1)
        assert len(pickle.loads(pickle.dumps(view))) == count


@pytest.mark.parametrize(
    "make",
    [list, set, tuple, frozenset, iter, np.array, pa.array, lambda names: pa.chunked_array([names])],
)
def test_exclude_takes_keys_in_any_form(ds, make):
    every = ds.keys()
    assert ds.exclude(make(["k001", "k059", "nobody"])).keys() == [key for key in every if key not in ("k001", "k059")]


def test_exclude_another_datasets_keys(ds):
    assert ds.exclude(ds.where("width >= 50")).keys() == [f"k{n:03d}" for n in range(5)]
    assert ds.exclude([]).keys() == ds.keys()


@pytest.mark.parametrize("wrong", ["k001", b"k001", 5, None, [1], ["k001", None], pa.array([1, 2])])
def test_what_are_no_keys(ds, wrong):
    with pytest.raises(OptionError, match="keys are"):
        ds.exclude(wrong)


def double(found):
    return {**found, "cls": found["cls"] * 2}


def test_a_repr_says_what_it_is_and_opens_nothing(tmp_path):
    nowhere = Dataset(tmp_path / "nowhere").map(double).filter(bool)
    assert repr(nowhere) == f"Dataset({str(tmp_path / 'nowhere')!r}, map(double), filter(bool))"


def test_reprs_of_views(ds, folder):
    path = repr(str(folder))
    assert (
        repr(ds.where(F.width >= 512).map(double))
        == f"Dataset({path}, 8 of 60 samples, where(width >= 512), map(double))"
    )
    assert (
        repr(ds.exclude(["k001"]).select([1, 2])) == f"Dataset({path}, 2 of 60 samples, exclude(1 keys), select(...))"
    )
    assert repr(ds.columns(["cls"])) == f"Dataset({path}, columns(['cls']))"
    assert "split(train=0.9, val=0.1)['val']" in repr(ds.split(train=0.9, val=0.1)["val"])
    assert repr(ds.concat(ds.select([0]))).startswith(f"Dataset(concat(Dataset({path}), Dataset({path}, 1 of 60")
    assert repr(ds.map(functools.partial(double))) == f"Dataset({path}, map(double))"


def test_a_view_that_was_sent_elsewhere_is_refused_when_its_dataset_has_changed(tmp_path):
    write(tmp_path, map(sample, range(20)))
    write(tmp_path, (sample(n, "v") for n in range(9)), "val")
    sent = pickle.dumps(Dataset(tmp_path).select([25]))
    assert pickle.loads(sent).keys() == ["v005"]
    Dataset(tmp_path, split="train").append(map(sample, range(20, 30)))
    with pytest.raises(ManifestError, match="has changed since this view"):
        pickle.loads(sent).keys()


def test_a_damaged_dataset_can_be_listed(tmp_path):
    source = tmp_path / "whole.tar"
    write(tmp_path / "data", map(sample, range(20)), max_samples=100)
    (tar,) = (tmp_path / "data").glob("*.tar")
    source.write_bytes(tar.read_bytes()[:20_000])
    ds = Dataset(source, on_error="skip")
    with pytest.warns(ShoalWarning, match="passed over"):
        found = list(ds)
    assert 0 < len(found) < 20
    with pytest.raises(TypeError, match="has no length before it is read"):
        len(ds)
    loader = ds.map(lambda sample: sample["cls"]).loader(batch_size=4)
    with pytest.warns(ShoalWarning, match="passed over"):
        assert [label for batch in loader for label in batch] == [sample["cls"] for sample in found]
    with pytest.raises(TypeError, match="a damaged dataset can only be read from its start"):
        len(loader)


def test_a_home_is_a_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    for path in (
        f"~/{folder.name}",
        Path("~") / folder.name,
        [f"~/{folder.name}/train-000000.tar"],
        f"~/{folder.name}/*.tar",
    ):
        assert Dataset(path)[0]["__url__"] == str(folder / "train-000000.tar")


def test_a_column_that_was_left_out_says_why(tmp_path):
    write(
        tmp_path, [{"__key__": "a", "json": {"size": 1, "deep": {"x": 1}}}, {"__key__": "b", "json": {"size": "big"}}]
    )
    ds = Dataset(tmp_path)
    for name in ("size", "json.size"):
        with pytest.raises(QueryError, match=r"json.size is not in the index: mixed types.*filter"):
            ds.where(f"{name} = 1")
    with pytest.raises(QueryError, match=r"json.size is not in the index: mixed types"):
        ds.split(a=1.0, by="size")
    with pytest.raises(QueryError, match="no column"):
        ds.where("nothing = 1")


def test_a_foreign_tar_with_a_key_twice(tmp_path):
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            for key in ("same", f"own{number}"):
                data = json.dumps({"n": number}).encode()
                member = tarfile.TarInfo(f"{key}.json")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    ds = Dataset(tmp_path)
    assert ds.select([2, 3]).get("same")["json"] == {"n": 1}
    assert "same" not in ds.select([1, 3])
    assert ds.where("n = 1").keys() == ["same", "own1"]


def doubled(sample):
    return {"cls": 2 * sample["cls"]}


@pytest.mark.parametrize("told", [{"num_parallel_calls": "auto"}, {"num_parallel_calls": 2}, {"workers": "thread"}])
def test_a_map_that_is_told_where_it_runs_is_a_loader_of_the_same(ds, told):
    loader = ds.map(doubled, **told)
    assert isinstance(loader, shoal.DataLoader)
    assert list(loader) == list(ds.map(doubled))
    assert [len(batch["cls"]) for batch in loader.batch(25, drop_last=True).prefetch("auto")] == [25, 25]


def test_a_map_in_processes_is_said_on_the_dataset_too(ds):
    assert list(ds.select([3]).map(json.dumps, workers="process")) == [json.dumps(ds[3])]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ds: ds.map(5),
        lambda ds: ds.filter(None),
        lambda ds: ds.map(doubled, "many"),
        lambda ds: ds.map(doubled, workers="fork"),
        lambda ds: ds.as_type(shoal.Lens.identity(dict)),
        lambda ds: ds.ordered(batch_size=2, ragged="padded"),
        lambda ds: ds.shuffled(batch_size=2, ragged="padded"),
        lambda ds: ds.with_options(batch=3),
    ],
)
def test_what_a_verb_cannot_take_is_refused_at_once(ds, wrong):
    with pytest.raises(OptionError):
        wrong(ds)


def test_batches_are_taken_apart_and_options_make_a_loader(ds):
    assert [sample["__key__"] for sample in ds.batched(7).unbatch()] == ds.keys()
    assert len(ds.with_options(batch_size=7, drop_last=True)) == COUNT // 7
