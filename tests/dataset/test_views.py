"""Views: any composition of them is what the same does to a list, and says what it is."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal import Dataset, ShardWriter, ShoalWarning
from shoal.dataset import F, concat
from shoal.dataset._splits import hash_texts
from shoal.errors import (
    FieldError,
    ManifestError,
    OptionError,
    QueryError,
    SampleKeyError,
    SchemaMismatchError,
)

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


# ------------------------------------------------------------------------------------- any composition is a list's own


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
    st.tuples(st.just("exclude"), st.lists(st.integers(0, COUNT), max_size=20)),
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


@settings(max_examples=40)
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


# --------------------------------------------------------------------------------------------------------------- splits


@given(st.lists(st.text(max_size=30), max_size=40), st.integers(-(2**70), 2**70))
def test_the_hash_is_the_one_that_is_documented(texts, seed):
    assert hash_texts(pa.array(texts, pa.string()), seed).tolist() == [fnv(text, seed & (2**64 - 1)) for text in texts]


def test_the_hash_is_the_same_for_ever():
    found = hash_texts(pa.array(["", "a", "000000000", "patient/ä"])).tolist()
    assert found == [17665956581633026203, 198367012849983736, 3213189891820501358, 9131719843360911770]


def test_splits_are_disjoint_and_cover_everything(ds):
    splits = ds.split(train=0.7, val=0.2, test=0.1)
    assert list(splits) == ["train", "val", "test"]
    assert sorted(itertools.chain(*(part.keys() for part in splits.values()))) == ds.keys()


def test_a_split_has_its_share_and_seeds_differ():
    texts = pa.array([f"sample-{n}" for n in range(100_000)])
    for seed in range(3):
        share = (hash_texts(texts, seed) < np.uint64(2**64 // 10)).mean()
        assert abs(share - 0.1) < 0.005  # five deviations
    same = (hash_texts(texts, 0) < np.uint64(2**63)) == (hash_texts(texts, 1) < np.uint64(2**63))
    assert abs(same.mean() - 0.5) < 0.01


def test_a_sample_stays_in_its_split_when_the_dataset_grows(tmp_path):
    write(tmp_path, map(sample, range(20)))
    before = Dataset(tmp_path).split(train=0.5, val=0.5)
    grown = Dataset(tmp_path).append(map(sample, range(20, 50)))
    after = grown.split(train=0.5, val=0.5)
    assert set(before["train"].keys()) <= set(after["train"].keys())
    assert set(before["val"].keys()) <= set(after["val"].keys())
    assert before["train"].refresh().keys() == after["train"].keys()  # and a split can be taken on


@pytest.mark.parametrize("by", ["patient", "json.patient", F.patient, F["json.patient"]])
def test_a_group_is_never_divided(ds, by):
    splits = ds.split({"train": 0.5, "val": 0.5}, by=by)
    groups = [set(part.table(["json.patient"])["json.patient"].to_pylist()) for part in splits.values()]
    assert all(groups)
    assert not groups[0] & groups[1]


def test_a_function_of_the_key_decides(ds):
    splits = ds.split(a=0.5, b=0.5, by=lambda key: key[-1])
    one, two = splits["a"].keys(), splits["b"].keys()
    assert {key[-1] for key in one}.isdisjoint({key[-1] for key in two})
    assert pickle.loads(pickle.dumps(splits["a"])).keys() == splits["a"].keys()


def test_a_whole_number_is_one_group_however_a_shard_holds_it(tmp_path):
    write(tmp_path, [{"__key__": f"{n}", "json": {"group": n}} for n in range(40)], "a")
    write(tmp_path, [{"__key__": f"f{n}", "json": {"group": n + 0.5 * (n == 0)}} for n in range(40)], "b")
    ds = Dataset(tmp_path)
    assert ds.table(["json.group"]).schema.field(0).type == pa.float64()
    both, alone = (
        ds.split(a=0.5, b=0.5, by="group"),
        Dataset(tmp_path / "a-{000000..000005}.tar").split(a=0.5, b=0.5, by="group"),
    )
    shown = both["a"].keys()
    assert [key for key in shown if key[0] != "f"] == alone["a"].keys()


def test_no_tar_is_opened_for_a_split(tmp_path):
    write(tmp_path, map(sample, range(20)))
    ds = Dataset(tmp_path)
    len(ds.where("true"))  # indexes are open now
    for tar in tmp_path.glob("*.tar"):
        tar.write_bytes(b"")
    assert sum(ds.split(train=0.9, val=0.1, by="patient").num_samples.values()) == 20


@pytest.mark.parametrize(
    "weights,match",
    [
        ({}, "needs weights"),
        ({"train": 0.5}, "sum of 1, found 0.5"),
        ({"train": 0.8, "val": 0.3}, "found 1.1"),
        ({"train": -0.5, "val": 1.5}, "from 0 to 1"),
        ({"train": float("nan"), "val": 1}, "from 0 to 1"),
        ({"train": "0.9", "val": 0.1}, "from 0 to 1"),
        ({"train": True}, "from 0 to 1"),
        ([0.9, 0.1], "splits have names"),
    ],
)
def test_weights_that_are_no_shares(ds, weights, match):
    with pytest.raises(OptionError, match=match):
        ds.split(weights)


def test_weights_may_be_rounded(ds):
    assert sum(ds.split(a=1 / 3, b=1 / 3, c=1 / 3).num_samples.values()) == COUNT
    assert sum(ds.split(a=0.1, b=0.2, c=0.7, d=0.0).num_samples.values()) == COUNT
    assert ds.split(a=1, b=0).num_samples == {"a": COUNT, "b": 0}


def test_what_cannot_decide_a_split(ds, tmp_path):
    with pytest.raises(QueryError, match="patent"):
        ds.split(a=1.0, by="patent")
    with pytest.raises(QueryError, match="no column"):
        ds.split(a=1.0, by=F.width > 10)
    with pytest.raises(OptionError, match="column or a function"):
        ds.split(a=1.0, by=3)
    with pytest.raises(OptionError, match="no group for a key"):
        ds.split(a=1.0, by=lambda key: None)
    with pytest.raises(OptionError, match="seed"):
        ds.split(a=1.0, seed="7")
    write(tmp_path, [{"__key__": "a", "json": {"group": 1}}, {"__key__": "b", "json": {}}])
    with pytest.raises(OptionError, match=r"1 of 2 samples without; leave them out: where\('group is not null'\)"):
        Dataset(tmp_path).split(a=1.0, by="group")


# -------------------------------------------------------------------------------------------------------------- exclude


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


# --------------------------------------------------------------------------------------------------------------- concat


@shoal.packable
class Point:
    x: float
    name: str


@shoal.packable
class Elsewhere:
    x: float
    name: int


@pytest.fixture
def points(tmp_path):
    one = shoal.write_samples([Point(float(n), f"p{n}") for n in range(30)], tmp_path / "one-%03d.tar", max_samples=8)
    two = shoal.write_samples([Point(float(n), f"q{n}") for n in range(9)], tmp_path / "two" / "b.tar")
    return one, two


def test_alike_shards_become_one_source_and_stay_quick(points):
    one, two = points
    both = one.select(range(5, 12)).concat(two, one)
    assert isinstance(both.source, shoal.shard.ShardSource)
    assert len(both.source.shards) == len(one.shards) + 1  # each once
    names = [f"p{n}" for n in range(5, 12)] + [f"q{n}" for n in range(9)] + [f"p{n}" for n in range(30)]
    batches = list(both.ordered(batch_size=7))
    assert all(isinstance(batch, shoal.SampleBatch) for batch in batches)
    assert [name for batch in batches for name in batch.name] == names
    assert sorted(name for batch in both.shuffled(batch_size=7, seed=3) for name in batch.name) == sorted(names)
    assert [point.name for point in both] == names
    assert pickle.loads(pickle.dumps(both))[20].name == names[20]


def test_types_from_the_manifest_are_one_type_where_their_schemas_are(points):
    one, two = (Dataset(os.path.dirname(each.shards[0])) for each in points)
    both = one.concat(two)
    assert len(both) == 39
    assert both[30].name == "q0"
    assert isinstance(both.source, shoal.shard.ShardSource)


def test_different_types_are_refused_by_name(points, tmp_path):
    other = shoal.write_samples([Elsewhere(1.0, 2)], tmp_path / "three" / "c.tar")
    with pytest.raises(SchemaMismatchError, match=r"expected Point.*found Elsewhere.*as_type\(Point\)"):
        points[0].concat(other)
    with pytest.raises(SchemaMismatchError, match="expected dict"):
        points[0].columns(["msgpack"]).concat(points[1])


def test_datasets_read_in_different_ways(folder, other):
    raw, decoded = Dataset(folder, decode=False), Dataset(other)
    both = decoded.select([3, 1]).concat(raw, decoded)
    assert not isinstance(both.source, shoal.shard.ShardSource)
    assert len(both) == 2 + COUNT + 25
    assert both[0]["txt"] == "text 3"
    assert both[2]["txt"] == b"text 0"
    assert [found["__key__"] for found in both] == both.keys() == ["o003", "o001", *raw.keys(), *decoded.keys()]
    assert bare(both.get("o001")) == sample(1, "o")
    assert [found["__key__"] for found in both[[61, 0, 2, 62]]] == [both.keys()[n] for n in (61, 0, 2, 62)]
    assert both.where("width = 30").keys() == ["o003", "k003", "o003"]
    narrow = both.columns(["cls"])
    assert narrow[0].keys() == narrow[5].keys() == {"__key__", "__url__", "cls"}
    assert all(found.keys() == {"__key__", "__url__", "cls"} for found in narrow)
    again = pickle.loads(pickle.dumps(both.where("width >= 200")))
    assert again.keys() == both.where("width >= 200").keys()
    assert again.fingerprint == both.where("width >= 200").fingerprint
    with pytest.raises(FieldError, match="no such column"):
        both.table(["nothing"])
    with pytest.raises(SampleKeyError):
        both.get("nobody")


def double(found):
    return {**found, "cls": found["cls"] * 2}


def test_functions_come_with_their_dataset(folder, other):
    both = Dataset(folder).map(double).concat(Dataset(other))
    assert [found["cls"] for found in both.select([4, COUNT + 4])] == [8, 4]
    assert [found["cls"] for found in both.map(double).select([4, COUNT + 4])] == [16, 8]
    assert [found["cls"] for found in pickle.loads(pickle.dumps(both))][4] == 8
    alike = Dataset(folder).map(double).concat(Dataset(other).map(double))
    assert isinstance(alike.source, shoal.shard.ShardSource)
    assert [found["cls"] for found in alike.select([4, COUNT + 4])] == [8, 8]


def test_a_filtered_dataset_can_be_read_through(folder, other):
    both = Dataset(folder).filter(lambda found: found["cls"] == 1).concat(Dataset(other))
    assert next(iter(both.columns(["cls"])))["cls"] == 1
    assert len(list(both)) == COUNT // 5 + 25
    with pytest.raises(TypeError, match="materialize"):
        len(both)


def test_the_function(folder, other):
    assert len(concat([Dataset(folder), Dataset(other)])) == COUNT + 25
    assert concat(iter([Dataset(folder)])).keys() == Dataset(folder).keys()
    for wrong in ([], [1], [Dataset(folder), "other"]):
        with pytest.raises(OptionError, match="put together"):
            concat(wrong)


def test_memory_of_a_typed_view_is_bounded_and_in_order(points):
    one, _ = points
    view = one.exclude(["000000003"])
    assert [name for batch in view.ordered(batch_size=4) for name in batch.name] == [
        f"p{n}" for n in range(30) if n != 3
    ]


# --------------------------------------------------------------------------------------------------------------- repr


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


# --------------------------------------------------------------------------------------------------------- fingerprints


def scaled(factor):
    return lambda found: found["cls"] * factor


def test_equal_openings_have_equal_fingerprints(folder, tmp_path):
    one = Dataset(folder)
    assert one.fingerprint == Dataset(str(folder)).fingerprint == Dataset(folder / "*.tar").fingerprint
    assert len(one.fingerprint) == 16
    assert int(one.fingerprint, 16) >= 0
    copy = tmp_path / "copy"
    copy.mkdir()
    for tar in folder.glob("*.tar"):
        (copy / tar.name).write_bytes(tar.read_bytes())
    assert Dataset(copy).fingerprint == one.fingerprint  # where it lies does not matter
    assert one.select(range(COUNT)).fingerprint == one.fingerprint
    assert one.map(scaled(2)).fingerprint == one.map(scaled(2)).fingerprint
    assert one.where("width > 50").fingerprint == one.select(range(6, COUNT)).fingerprint


def test_whatever_changes_samples_or_order_changes_the_fingerprint(folder, other, tmp_path):
    ds = Dataset(folder)
    write(tmp_path, map(sample, range(COUNT)), max_samples=8)
    found = [
        ds,
        Dataset(other),
        Dataset(tmp_path),
        Dataset(folder, decode=False),
        Dataset(folder, rule=shoal.KeyRule(dot="last")),
        ds.select(range(5)),
        ds.select(range(4, -1, -1)),
        ds.columns(["cls"]),
        ds.columns(["cls", "json"]),
        ds.map(double),
        ds.filter(double),
        ds.map(scaled(2)),
        ds.map(scaled(3)),
        ds.map(lambda found: found["cls"] + 1),
        ds.map(lambda found: found["cls"] + 2),
        ds.map(functools.partial(max, 1)),
        ds.map(functools.partial(max, 2)),
        ds.map(double).map(double),
        ds.concat(ds),
        ds.concat(Dataset(other)),
        Dataset(other).concat(ds),
        ds.map(double).concat(ds),
        ds.exclude(["k001"]),
    ]
    prints = [each.fingerprint for each in found]
    assert len(set(prints)) == len(prints)


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @functools.cached_property
    def twice(self):
        return self.factor * 2

    def __call__(self, found):
        return found["cls"] * self.twice

    def method(self, found):
        return found["cls"] * self.factor


@shoal.lens
def as_point(found: Point) -> Elsewhere:
    return Elsewhere(found.x, len(found.name))


def test_what_functions_hold_counts_and_what_they_keep_to_be_quick_does_not(ds, points):
    one, two, used = Scale(2), Scale(3), Scale(2)
    assert used.twice == 4
    made = [ds.map(one), ds.map(two), ds.map(one.method), ds.map(two.method), ds.map(np.sin), ds.map(len)]
    assert len({each.fingerprint for each in made}) == len(made)
    assert ds.map(used).fingerprint == ds.map(one).fingerprint
    shared = (1.5, "a")
    equal = tuple(iter(shared))
    assert equal is not shared
    twins = [ds.map(functools.partial(min, *pair)) for pair in ((shared, shared), (shared, equal))]
    assert twins[0].fingerprint == twins[1].fingerprint
    small, large = ds.select([0]), ds.select([1])
    assert ds.map(lambda found: small).fingerprint != ds.map(lambda found: large).fingerprint
    looped = [ds]
    looped.append(looped)
    assert ds.map(functools.partial(max, looped)).fingerprint
    seen = points[0].as_type(Elsewhere)
    assert seen.fingerprint == points[0].as_type(Elsewhere).fingerprint != points[0].fingerprint
    assert seen[3].name == 2
    assert seen.fingerprint == points[0].as_type(Elsewhere).fingerprint


def test_a_fingerprint_is_the_same_in_another_process(folder):
    code = (
        "import sys, shoal\n"
        "def keep(found, limit=3, names=frozenset({'a', 'b', 'c'})):\n    return found['cls'] < limit\n"
        f"ds = shoal.Dataset({str(folder)!r}).where('width > 100').filter(keep)\n"
        "print(ds.fingerprint)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_no_tar_is_read_for_a_fingerprint(tmp_path):
    write(tmp_path, map(sample, range(20)))
    expected = Dataset(tmp_path).fingerprint
    for tar in tmp_path.glob("*.tar"):
        tar.unlink()
    assert Dataset(tmp_path).fingerprint == expected


# ------------------------------------------------------------------------------------------------------- rough edges


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
        with pytest.raises(QueryError, match=r"not in the index.*json.size: mixed types.*filter"):
            ds.where(f"{name} = 1")
    with pytest.raises(QueryError, match=r"json.size: mixed types"):
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
