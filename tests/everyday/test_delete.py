"""Samples are deleted and left out by what they are, not by their keys: keys often restart in each shard."""

from __future__ import annotations

import io
import pickle
import tarfile

import pytest
from tests.shard.segments import copy_as_segments

import shoal
from shoal.build import reshard
from shoal.errors import OptionError, SampleKeyError


def samples(names="ab", rows=3):
    for name in names:
        for row in range(rows):
            yield {"__key__": f"k{row}", "txt": f"{name}{row}", "cls": row}


def write(path, names="ab", **options):
    with shoal.ShardWriter(f"{path}/train-%06d.tar{options.pop('ending', '')}", max_samples=3, **options) as writer:
        for sample in samples(names):
            writer.write(sample)
    return path


def write_foreign(path):
    """Tars without an index or a manifest, as webdataset's own writer leaves them."""
    path.mkdir()
    for name in "ab":
        with tarfile.open(path / f"{name}.tar", "w") as tar:
            for row in range(3):
                for field, text in (("txt", f"{name}{row}"), ("cls", str(row))):
                    info = tarfile.TarInfo(f"k{row}.{field}")
                    info.size = len(text)
                    tar.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture(params=["manifest", "memory", "gzip", "foreign", "segments", "segments in memory"])
def root(request, tmp_path):
    if request.param.startswith("segments"):
        target = f"memory://everyday-delete-{tmp_path.name}/new" if "memory" in request.param else tmp_path / "data"
        copy_as_segments(str(write(tmp_path / "old")), str(target), shards_per_segment=1)
        return target
    if request.param == "memory":
        return write(f"memory://everyday-delete-{tmp_path.name}/data")
    if request.param == "foreign":
        return write_foreign(tmp_path / "data")
    return write(tmp_path / "data", ending=".gz" if request.param == "gzip" else "")


def texts(dataset):
    return sorted(sample["txt"] for sample in dataset)


ALL = ["a0", "a1", "a2", "b0", "b1", "b2"]


def without(*gone):
    return [text for text in ALL if text not in gone]


def test_deleting_a_view_deletes_the_samples_it_shows_and_no_others(root):
    ds = shoal.Dataset(root)
    left = ds.tombstone(ds.where("txt = 'a1'"))
    for dataset in (left, shoal.Dataset(root), pickle.loads(pickle.dumps(left))):
        assert texts(dataset) == without("a1")
        assert len(dataset) == 5
        assert dataset.where("cls = 1").keys() == ["k1"]
    assert [(stone.key, stone.row) for stone in left.tombstones] == [("k1", 1)]


@pytest.mark.parametrize(
    "choose, gone",
    [
        (lambda ds: ds.where("cls >= 1").where("txt like 'b%'"), ["b1", "b2"]),
        (lambda ds: ds.select([4, 0]), ["a0", "b1"]),
        (lambda ds: ds.shard(2, 1), ["b0", "b1", "b2"]),
        (lambda ds: ds.sort("txt", reverse=True).take(1), ["b2"]),
        (lambda ds: ds.where("cls = 1").exclude(ds.where("txt = 'a1'")), ["b1"]),
        (lambda ds: ds.where("cls > 5"), []),
    ],
    ids=["views-of-views", "select", "shard", "sort", "exclude", "none"],
)
def test_any_view_can_be_deleted(root, choose, gone):
    ds = shoal.Dataset(root)
    assert texts(ds.tombstone(choose(ds))) == texts(shoal.Dataset(root)) == without(*gone)


def test_the_view_may_be_of_another_opening_or_of_one_shard(root):
    shoal.Dataset(root).tombstone(shoal.Dataset(root).where("txt = 'b0'"))
    last = shoal.Dataset(root).shards[-1]
    ds = shoal.Dataset(root)
    assert texts(ds.tombstone(shoal.Dataset(last).where("cls = 1"))) == without("b0", "b1")


@pytest.mark.parametrize("root", ["manifest", "memory", "gzip", "foreign"], indirect=True)
def test_a_shard_that_is_opened_alone_can_be_deleted_from(root):
    ds = shoal.Dataset(root)
    ds.tombstone(ds.where("txt in ('b0', 'b1')"))
    last = ds.shards[-1]
    shoal.Dataset(last).tombstone(ds.where("txt = 'b2'"))
    assert texts(shoal.Dataset(root)) == without("b0", "b1", "b2")


def test_a_key_that_several_samples_have_is_refused_with_their_number(root):
    ds = shoal.Dataset(root)
    with pytest.raises(SampleKeyError, match=r"2 samples have the key 'k1'.*repeated='all'.*all 2"):
        ds.tombstone(["k1"])
    with pytest.raises(OptionError, match="repeated must be 'error' or 'all'"):
        ds.tombstone(["k1"], repeated="first")
    assert texts(shoal.Dataset(root)) == ALL
    assert texts(ds.where("txt like 'a%'").tombstone(["k1"])) == ["a0", "a2"]


def test_all_samples_of_a_key_can_be_deleted(root):
    assert texts(shoal.Dataset(root).tombstone(["k1", "k2"], repeated="all")) == ["a0", "b0"]
    assert texts(shoal.Dataset(root)) == ["a0", "b0"]


def test_restoring_brings_back_what_is_named(root):
    ds = shoal.Dataset(root)
    ds = ds.tombstone(ds.where("cls = 1")).tombstone(ds.where("txt = 'a0'"))
    with pytest.raises(SampleKeyError, match=r"2 deleted samples have the key 'k1'.*repeated='all'"):
        ds.restore(["k1"])
    second = [stone for stone in ds.tombstones if stone.key == "k1"][1:]
    assert texts(ds.restore(second)) == without("a0", "a1")
    assert texts(shoal.Dataset(root).restore(["k0"])) == without("a1")
    assert texts(shoal.Dataset(root).tombstone(ds.where("txt = 'b1'")).restore(["k1"], repeated="all")) == ALL
    assert texts(ds.tombstone(ds.where("txt = 'b2'")).restore()) == ALL


def test_leaving_out_a_view_leaves_out_its_samples_and_no_others(root):
    ds = shoal.Dataset(root)
    assert texts(ds.exclude(ds.where("txt = 'a1'"))) == without("a1")
    assert texts(ds.exclude(shoal.Dataset(root).where("txt = 'a1'"))) == without("a1")
    assert texts(ds.exclude(ds.where("txt = 'a1'")).refresh()) == without("a1")
    assert texts(ds.exclude(["k1"])) == without("a1", "b1")  # keys are keys


def test_a_dataset_elsewhere_is_left_out_by_its_keys(tmp_path):
    one, two = shoal.Dataset(write(tmp_path / "one", "ab")), shoal.Dataset(write(tmp_path / "two", "c"))
    assert texts(one.exclude(two.where("cls = 1"))) == without("a1", "b1")
    with pytest.raises(SampleKeyError, match="2 samples have the key"):
        one.tombstone(two.where("cls = 1"))


def test_a_filtered_dataset_is_not_taken_for_all_its_samples(root):
    ds = shoal.Dataset(root)
    for use in (ds.tombstone, ds.exclude):
        with pytest.raises(TypeError, match="materialize"):
            use(ds.filter(lambda sample: sample["txt"] == "a1"))
    assert texts(ds.tombstone(ds.filter(lambda sample: sample["txt"] == "a1").materialize())) == without("a1")


def test_deleted_samples_stay_away_after_append_and_reshard(tmp_path):
    root = write(tmp_path / "data")
    ds = shoal.Dataset(root)
    ds = ds.tombstone(ds.where("txt = 'a1'"))
    grown = ds.append([{"__key__": "new", "txt": "c0", "cls": 0}])
    assert texts(grown) == texts(shoal.Dataset(root)) == [*without("a1"), "c0"]
    assert texts(shoal.write_samples(iter(grown), tmp_path / "copy", max_samples=2)) == [*without("a1"), "c0"]
    for number, source in enumerate((str(root), grown)):
        reshard(source, str(tmp_path / f"again{number}"), max_samples=2)
        assert texts(shoal.Dataset(tmp_path / f"again{number}")) == [*without("a1"), "c0"]


def test_a_concatenation_deletes_from_the_dataset_that_has_the_sample(tmp_path):
    one, two = shoal.Dataset(write(tmp_path / "one", "ab")), shoal.Dataset(write(tmp_path / "two", "cd"))
    both = one.concat(two)
    assert texts(both.tombstone(both.where("txt = 'c1'"))) == [*ALL, "c0", "c2", "d0", "d1", "d2"]
    assert texts(shoal.Dataset(tmp_path / "one")) == ALL
    assert texts(shoal.Dataset(tmp_path / "two")) == ["c0", "c2", "d0", "d1", "d2"]


def test_a_split_is_deleted_from_alone(tmp_path):
    root = write(tmp_path / "data")
    with shoal.ShardWriter(f"{root}/val-%06d.tar") as writer:
        for sample in samples("v"):
            writer.write(sample)
    splits = shoal.load_dataset(root)
    left = splits["train"].tombstone(splits["train"].where("txt = 'b1'"))
    assert texts(left) == without("b1")
    assert texts(shoal.Dataset(root, split="validation")) == ["v0", "v1", "v2"]
    with pytest.raises(SampleKeyError):
        splits["train"].tombstone(splits["validation"])


def test_a_sample_outside_the_view_is_not_deleted(root):
    ds = shoal.Dataset(root)
    with pytest.raises(SampleKeyError, match="not in this view"):
        ds.where("txt like 'a%'").tombstone(ds.where("cls = 1"))
    assert texts(shoal.Dataset(root)) == ALL
