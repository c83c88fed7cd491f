"""Splits: by hash and by size, the grammar of ``split=``, and DatasetDict."""

import itertools
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pytest
from datasets import ReadInstruction
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal import Dataset, DatasetDict, ShardWriter, load_dataset
from shoal.dataset import F
from shoal.dataset._splits import SplitPart, hash_strings, parse_split, split_range
from shoal.errors import (
    FieldError,
    OptionError,
    QueryError,
)
from shoal.shard import find_split

COUNTS = {"train": 7, "val": 3, "test": 5}


SPLITS = {"train": 7, "validation": 3, "test": 5}


def fill(root, names=COUNTS):
    """One shard a name, its samples called after it."""
    for name, count in names.items():
        with ShardWriter(f"{root}/{name}-%06d.tar", max_samples=4) as writer:
            for number in range(count):
                writer.write({"__key__": f"{name}{number}", "txt": f"{name} {number}", "json": {"width": number}})


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "pets")
    return tmp_path / "pets"


@pytest.fixture
def bare(folder):
    """The same without what shoal keeps beside the tars."""
    shutil.rmtree(folder / ".shoal")
    return folder


def keys(path, split):
    return load_dataset(path, split=split).keys()


def test_with_a_split_it_is_a_dataset(folder, bare):
    assert type(load_dataset(folder, split="train")) is Dataset
    assert type(load_dataset(f"{folder}/test-*.tar")) is DatasetDict


@pytest.mark.parametrize(
    "word, split", [("val", "validation"), ("dev", "validation"), ("Training", "train"), ("eval", "test")]
)
def test_other_words_for_a_split(folder, word, split):
    assert keys(folder, word) == keys(folder, split)
    assert keys(folder, f"{word}[:2]") == keys(folder, split)[:2]


@pytest.mark.parametrize("split", ["holdout", "holdout[:3]", "train+holdout", "", "train["])
def test_a_split_that_is_not_there_names_those_that_are(folder, split):
    with pytest.raises((FieldError, OptionError)) as caught:
        load_dataset(folder, split=split)
    if "holdout" in split:
        assert "expected train or validation or test, found holdout" in str(caught.value)
    assert load_dataset(f"{folder}/test-*.tar", split="test").keys() == keys(folder, "test")
    with pytest.raises(FieldError, match="expected test, found train"):
        load_dataset(f"{folder}/test-*.tar", split="train")


def test_a_word_that_could_mean_two_splits_means_neither(folder):
    with pytest.raises(FieldError, match="val or dev"):
        find_split("validation", ["val", "dev"])
    assert find_split("val", ["val", "dev"]) == "val"


PARTS = ["train[:2]", "train[-2:]", "train[2:4]", "train[50%:]", "test[:100]", "validation[:0]", "train[5:2]"]


SUMS = ["train+test", "test+train", "train+train", "train[:2]+test[-1:]+train[2:3]", "all", "train + validation + test"]


@pytest.mark.parametrize("split", [*PARTS, *SUMS])
@pytest.mark.parametrize("manifest", [True, False])
def test_slices_and_sums(folder, split, manifest):
    if not manifest:
        shutil.rmtree(folder / ".shoal")
    whole = {name: keys(folder, name) for name in SPLITS}
    expected = []
    for part in ("train+validation+test" if split == "all" else split.replace(" ", "")).split("+"):
        name, _, rest = part.partition("[")
        start, _, stop = rest.rstrip("]").partition(":")
        start = "4" if start == "50%" else start  # 3.5 is rounded to 4
        expected += whole[name][int(start) if start else None : int(stop) if stop else None]
    found = keys(folder, split)
    assert sorted(found) == sorted(expected)
    assert split == "all" or found == expected


def test_a_sum_of_a_manifests_splits_keeps_its_metadata(tmp_path):
    for name in ("train", "test"):
        with ShardWriter(tmp_path / f"{name}-%06d.tar", metadata={"name": "pets"}) as writer:
            writer.write({"__key__": name, "txt": "x"})
    assert load_dataset(tmp_path, split="test+train").metadata == {"name": "pets"}
    assert keys(tmp_path, "test+train") == ["test", "train"]


BOUNDS = st.none() | st.integers(-100, 100)


@given(BOUNDS, BOUNDS, st.booleans(), st.booleans(), st.integers(0, 1000))
def test_slices_are_what_hugging_face_takes_them_for(start, stop, percent, drop, length):
    mark = "%" if percent else ""
    sides = ["" if bound is None else f"{bound}{mark}" for bound in (start, stop)]
    drop = drop and percent and any(sides) and length >= 100
    spec = f"train[{sides[0]}:{sides[1]}]{'(pct1_dropremainder)' if drop else ''}"
    rounding = {"rounding": "pct1_dropremainder"} if drop else {}
    peer = ReadInstruction("train", from_=start, to=stop, unit="%" if percent and any(sides) else "abs", **rounding)
    [expected] = peer.to_absolute({"train": length})
    [part] = parse_split(spec, ["train"])
    rows = split_range(part, length)
    assert list(rows) == list(range(expected.from_, expected.to))


@pytest.mark.parametrize(
    "spec",
    [
        "train[:101%]",
        "train[:10%:2]",
        "train[10%:20]",
        "train[3]",
        "[:3]",
        "train[a:b]",
        "+",
        "train+",
        "train[1:2](closest)",
    ],
)
def test_a_split_that_cannot_be_read(spec):
    with pytest.raises((OptionError, FieldError), match=r"split|slice|percent"):
        parse_split(spec, ["train"])


def test_too_few_samples_to_drop_a_remainder():
    with pytest.raises(OptionError, match="100 samples or more, found 99"):
        split_range(SplitPart("train", 0, 10, percent=True, drop_remainder=True), 99)


def test_a_split_with_marks_in_its_name():
    assert parse_split("a+b[:3]", ["a+b[:3]"]) == (SplitPart("a+b[:3]"),)
    assert parse_split("all", ["all", "train"]) == (SplitPart("all"),)


def test_a_missing_split_is_a_key_error_that_names_those_present(folder):
    splits = load_dataset(folder)
    with pytest.raises(KeyError, match="expected train or validation or test, found holdout"):
        splits["holdout"]
    with pytest.raises(FieldError, match="it is empty"):
        DatasetDict()["train"]
    assert splits.get("holdout") is None
    assert "train" in splits


def test_the_verbs_of_the_only_split(folder):
    one = load_dataset(f"{folder}/test-*.tar")
    assert one.only is one["test"]
    assert [found["__key__"] for found in one.head(2)] == ["test0", "test1"]
    assert one.select([4, 0]).keys() == ["test4", "test0"]
    assert one.where("width >= 3").keys() == ["test3", "test4"]
    assert [found["__key__"] for found in one.ordered()] == one["test"].keys()
    assert [len(batch["__key__"]) for batch in one.ordered(batch_size=3)] == [3, 2]
    assert sorted(found["__key__"] for found in one.shuffled(seed=1)) == one["test"].keys()
    assert one["test"].seed == 1


def test_as_type_of_the_only_split(folder):
    @shoal.packable
    class Note:
        txt: str

    @shoal.packable
    class Loud:
        text: str

    @shoal.lens
    def shout(src: Note) -> Loud:
        return Loud(src.txt.upper())

    one = load_dataset(f"{folder}/test-*.tar", sample_type=Note)
    assert one.as_type(Loud)[0] == Loud("TEST 0")


@pytest.mark.parametrize(
    "verb",
    [
        lambda splits: splits.ordered(),
        lambda splits: splits.shuffled(),
        lambda splits: splits.as_type(dict),
        lambda splits: splits.head(),
        lambda splits: splits.select([0]),
        lambda splits: splits.where("width > 1"),
    ],
)
def test_with_several_splits_a_verb_names_them(folder, verb):
    with pytest.raises(OptionError, match=r"one split.*train, validation, test.*choose one"):
        verb(load_dataset(folder))
    with pytest.raises(OptionError, match="found none"):
        verb(DatasetDict())


def test_each_applies_a_verb_to_all(folder):
    wide = load_dataset(folder).each(lambda ds: ds.where("width >= 2"))
    assert type(wide) is DatasetDict
    assert wide.num_samples == {"train": 5, "validation": 1, "test": 3}


def test_a_repr_opens_nothing(tmp_path):
    kept = {name: Dataset(tmp_path / f"{name}.tar") for name in ("train", "validation")}
    lines = repr(DatasetDict(kept, sample_type=shoal.DictSample)).splitlines()
    assert lines[0] == "DatasetDict[DictSample]"
    assert [line.split()[0] for line in lines[1:]] == ["train", "validation"]
    assert len({line.index("Dataset(") for line in lines[1:]}) == 1
    assert repr(DatasetDict()) == "DatasetDict without splits"


COUNT = 60


def sample(n, name="k"):
    return {"__key__": f"{name}{n:03d}", "json": {"width": n * 10, "patient": n // 7}, "cls": n % 5, "txt": f"text {n}"}


def write(root, samples, name="train", **options):
    with ShardWriter(f"{root}/{name}-%06d.tar", **{"max_samples": 7, **options}) as writer:
        for each in samples:
            writer.write(each)
    return root


@pytest.fixture(scope="module")
def numbered_folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("views"), map(sample, range(COUNT)))


@pytest.fixture
def ds(numbered_folder):
    return Dataset(numbered_folder)


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


@given(st.lists(st.text(max_size=30), max_size=40), st.integers(-(2**70), 2**70))
def test_the_hash_is_the_one_that_is_documented(texts, seed):
    assert hash_strings(pa.array(texts, pa.string()), seed).tolist() == [
        fnv(text, seed & (2**64 - 1)) for text in texts
    ]


def test_the_hash_is_the_same_for_ever():
    found = hash_strings(pa.array(["", "a", "000000000", "patient/ä"])).tolist()
    assert found == [17665956581633026203, 198367012849983736, 3213189891820501358, 9131719843360911770]


def test_splits_are_disjoint_and_cover_everything(ds):
    splits = ds.split(train=0.7, val=0.2, test=0.1)
    assert list(splits) == ["train", "val", "test"]
    assert sorted(itertools.chain(*(part.keys() for part in splits.values()))) == ds.keys()


def test_a_split_has_its_share_and_seeds_differ():
    texts = pa.array([f"sample-{n}" for n in range(100_000)])
    for seed in range(3):
        share = (hash_strings(texts, seed) < np.uint64(2**64 // 10)).mean()
        assert abs(share - 0.1) < 0.005  # five deviations
    same = (hash_strings(texts, 0) < np.uint64(2**63)) == (hash_strings(texts, 1) < np.uint64(2**63))
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
    write(tmp_path, [{"__key__": f"f{n}", "json": {"group": n + 0.5 * (n == 0)}} for n in range(40)], "b", append=True)
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
