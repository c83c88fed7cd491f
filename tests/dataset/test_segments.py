"""A dataset that is read through segments is the dataset that is read through the indexes of its shards."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.shard.samples import PAYLOADS
from tests.shard.segments import commit_splits, copy_as_segments

import shoal
from shoal.errors import (
    ChecksumError,
    ManifestError,
    ObjectChangedError,
    OptionError,
    QueryError,
    SampleKeyError,
    ShoalError,
    StaleIndexError,
)
from shoal.shard import KeyRule, verify_dataset
from shoal.shard._commit import collect_garbage, commit, load_generation
from shoal.shard._generation import encode_document
from shoal.shard._writing import WriteHead, Writing, finish_moves, stage_moves

_COUNTER = itertools.count()
CONDITIONS = ("json.n > 2", "json.n is null", "json.text = 'a' or json.n = 0", "txt like 'a%'", "a.cls in (1, 2)")
KEYS = st.integers(0, 40).map("{:04d}".format) | st.text("abcü", min_size=1, max_size=5) | st.just("k" * 80)
DOCUMENTS = st.fixed_dictionaries(
    {"n": st.integers(-9, 9) | st.none()}, optional={"text": st.text(max_size=3), "deep": st.just({"x": [1]})}
)
FIELDS: dict[str, Any] = {"bin": PAYLOADS, "txt": st.text(max_size=9), "json": DOCUMENTS, "a.cls": st.integers(0, 3)}


@dataclass(frozen=True, repr=False)
class Content:
    """What is written: samples by shard, of one split or two."""

    shards: Sequence[Sequence[dict[str, Any]]]
    second_split: int
    compression: str | None
    shards_per_segment: int
    deleted: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Content({str(self.shards)[:2000]}, {self.second_split}, {self.compression}, {self.deleted})"


@st.composite
def contents(draw: st.DrawFn) -> Content:
    names = FIELDS
    if draw(st.integers(0, 5)) == 0:  # as many fields as are indexed row by row
        names = {f"f{at}": st.binary(max_size=3) for at in range(300)}
    samples = st.dictionaries(st.sampled_from(list(names)), st.none(), min_size=1, max_size=6)
    shards = []
    for _ in range(draw(st.integers(1, 5))):
        rows = [
            {"__key__": draw(KEYS), **{name: draw(names[name]) for name in fields}}
            for fields in draw(st.lists(samples, min_size=1, max_size=8))
        ]
        if len(names) > len(FIELDS) and draw(st.booleans()):
            rows.append({"__key__": "wide", **dict.fromkeys(names, b"x")})
        shards.append(list({row["__key__"]: row for row in rows}.values()))  # in one shard, keys differ
    count = sum(map(len, shards))
    deleted = draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    return Content(
        shards,
        draw(st.integers(0, len(shards))),
        draw(st.sampled_from([None, None, "gzip", "zstd"])),
        draw(st.integers(1, 3)),
        tuple(sorted(deleted)),
    )


class Both:
    """The same dataset in both formats; in the old one without samples that are deleted, as a view."""

    def __init__(self, content: Content) -> None:
        root = f"memory://both/{next(_COUNTER)}"
        self.old_root, self.new_root = f"{root}/old", f"{root}/new"
        ending = {None: "tar", "gzip": "tar.gz", "zstd": "tar.zst"}[content.compression]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("shoal.shard._shard_file.BLOCK_BYTES", 4000)
            patched.setattr("shoal.shard._shard_file._COMPRESSED_BLOCK_BYTES", 4000)
            first_test = len(content.shards) - content.second_split
            for number, shard in enumerate(content.shards):
                split, append = ("train", number > 0) if number < first_test else ("test", number > first_test)
                path = f"{self.old_root}/{split}-%06d.{ending}"
                with shoal.ShardWriter(path, compression=content.compression, append=append) as writer:
                    for sample in shard:
                        writer.write(sample)
        copy_as_segments(
            self.old_root, self.new_root, shards_per_segment=content.shards_per_segment, deleted=content.deleted
        )
        self.whole = shoal.Dataset(self.old_root)
        self.live = np.setdiff1d(np.arange(len(self.whole)), np.array(content.deleted, np.int64))

    def pair(self, **options: Any) -> tuple[Any, Any]:
        return shoal.Dataset(self.old_root, **options).select(self.live), shoal.Dataset(self.new_root, **options)

    def plain(self, value: Any) -> Any:
        """Without the folder that the shards are in, and with arrays as lists."""
        if isinstance(value, dict):
            return {name: self.plain(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(each) for each in value]
        if isinstance(value, (pa.Table, pa.ChunkedArray, pa.Array)):
            return value.to_pylist()
        if isinstance(value, np.ndarray):
            return value.tolist()
        if not isinstance(value, (str, bytes, int, float, type(None))):
            return self.plain(list(value))
        return value.replace(self.new_root, self.old_root) if isinstance(value, str) else value

    def check(self, mine: Any, theirs: Any) -> None:
        assert self.plain(theirs) == self.plain(mine)


def present(batch: dict[str, Any]) -> dict[str, Any]:
    """Without fields that no sample of the batch has: which of those there are, depends on the format."""
    return {name: column for name, column in batch.items() if any(value is not None for value in column)}


@settings(deadline=None, max_examples=60)
@given(contents(), st.data())
def test_every_way_of_reading_gives_the_same(content, data):
    both = Both(content)
    old, new = both.pair(**data.draw(st.sampled_from([{}, {"decode": False}, {"verify": False}])))
    count = len(old)

    assert len(new) == count
    assert set(new.fields) == set(old.fields)
    assert set(new.column_names) == set(old.column_names)
    assert [both.plain(url) for url in new.shards] == list(old.shards)
    both.check(list(old), list(new))
    both.check(old.keys(), new.keys())
    for start, stop in data.draw(st.lists(st.tuples(st.integers(0, count), st.integers(0, count)), max_size=3)):
        both.check(old[start:stop], new[start:stop])
    indices = data.draw(st.lists(st.integers(-count, count - 1), max_size=12))
    both.check(old[indices], new[indices])
    for index in indices[:3]:
        both.check(old[index], new[index])
    for key in [*data.draw(st.lists(st.sampled_from(old.keys()), max_size=3)), "missing"]:
        both.check(outcome(old.get, key), outcome(new.get, key))
    names = data.draw(st.lists(st.sampled_from(old.fields), max_size=2, unique=True))
    both.check(list(old.select_columns(names)), list(new.select_columns(names)))
    for shuffle in (False, True):
        options = {"batch_size": 3, "shuffle": shuffle, "seed": 1, "num_workers": 0}
        batches = zip(shoal.DataLoader(old, **options), shoal.DataLoader(new, **options), strict=True)
        for mine, theirs in batches:
            both.check(present(mine), present(theirs))


def outcome(read: Any, *args: Any) -> Any:
    """What it returns, or the class of its error."""
    try:
        return read(*args)
    except ShoalError as error:
        return type(error).__name__


@settings(deadline=None, max_examples=60)
@given(contents())
def test_queries_give_the_same(content):
    both = Both(content)
    old, new = both.pair()
    for condition in CONDITIONS:
        both.check(outcome(keys_where, old, condition), outcome(keys_where, new, condition))
    for name in old.column_names:
        both.check(outcome(old.table, [name]), outcome(new.table, [name]))


def keys_where(dataset: Any, condition: str) -> list[str]:
    return dataset.where(condition).keys()


@settings(deadline=None, max_examples=25)
@given(contents())
def test_splits_are_read_by_themselves_and_one_after_the_other(content):
    both = Both(content)
    for split in ("train", "test"):
        both.check(outcome(samples_of, both.old_root, split), outcome(samples_of, both.new_root, split))
    whole = shoal.Dataset(both.new_root, tombstones=False)
    both.check(list(both.whole), list(whole))
    joined = shoal.Dataset(both.new_root).concat(whole)
    both.check([*(both.whole[int(row)] for row in both.live), *both.whole], list(joined))


def samples_of(root: str, split: str) -> list[Any]:
    return list(shoal.Dataset(root, split=split, tombstones=False))


@settings(deadline=None, max_examples=25)
@given(contents())
def test_verify_finds_nothing_wrong(content):
    both = Both(content)
    reports = list(verify_dataset(both.new_root))
    assert [report.problems for report in reports] == [()] * len(content.shards)
    assert [report.samples for report in reports] == list(map(len, content.shards))


@shoal.packable
class Item:
    values: NDArray
    label: int
    name: str


@pytest.mark.parametrize("size", [4, 5000])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"shuffle": True, "window": 8, "block_samples": 4}], ids=str
)
def test_typed_batches_are_the_same_in_every_epoch(tmp_path, size, options):
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    with shoal.ShardWriter(f"{old}/a-%06d.tar", max_samples=12) as writer:
        for number in range(50):
            values = np.full((size,), number, np.float32)
            writer.write(Item(values=values, label=number, name=f"n{number}"))
    copy_as_segments(old, new, deleted=[0, 13, 49])
    live = np.setdiff1d(np.arange(50), [0, 13, 49])
    mine, theirs = shoal.Dataset[Item](old).select(live), shoal.Dataset[Item](new)
    loaders = [shoal.DataLoader(each, batch_size=7, seed=5, num_workers=2, **options) for each in (mine, theirs)]
    for _ in range(3):
        for one, other in zip(*loaders, strict=True):
            assert list(one.label) == list(other.label)
            assert list(one.name) == list(other.name)
            assert np.array_equal(one.values, other.values)
    assert [item.label for item in theirs] == live.tolist()
    assert theirs.where("label > 40").keys() == mine.where("label > 40").keys()


def test_a_shuffled_epoch_in_memory_is_the_same(tmp_path):
    old, new = write_folder(tmp_path, count=40, deleted=[3])
    loaders = [
        shoal.DataLoader(dataset, batch_size=6, shuffle=True, seed=2)
        for dataset in (shoal.Dataset(old).select([*range(3), *range(4, 40)]), shoal.Dataset(new))
    ]
    for _ in range(3):
        batches = [[batch["__key__"] for batch in loader] for loader in loaders]
        assert batches[0] == batches[1]


# ------------------------------------------------------------------------------------------------------------- opening


def write_folder(tmp_path: Any, count: int = 12, **options: Any) -> tuple[str, str]:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    with shoal.ShardWriter(f"{old}/a-%06d.tar", max_samples=4, metadata={"by": "me"}) as writer:
        for number in range(count):
            writer.write({"__key__": f"k{number:03d}", "txt": f"text {number}", "cls": number})
    copy_as_segments(old, new, **options)
    return old, new


def write_other(folder: str, text: str) -> None:
    """Samples of the same sizes, with other texts."""
    with shoal.ShardWriter(f"{folder}/a-%06d.tar", max_samples=4) as writer:
        for number in range(12):
            writer.write({"__key__": f"k{number:03d}", "txt": f"{text} {number}", "cls": number})


@pytest.mark.parametrize("path", ["{}", "{}/", "{}/.shoal/manifest.json"])
def test_a_folder_with_a_generation_is_opened_by_its_manifest(tmp_path, path):
    _, new = write_folder(tmp_path, deleted=[1])
    dataset = shoal.Dataset(path.format(new))

    assert dataset[1]["txt"] == "text 2"
    assert dataset.metadata == {"by": "me"}
    assert len(shoal.Dataset(new, tombstones=False)) == 12
    assert shoal.load_dataset(new)["train"].keys() == dataset.keys()


def test_opening_reads_the_manifest_and_nothing_else(tmp_path):
    _, new = write_folder(tmp_path)
    for path in [*(tmp_path / "new").glob("*.tar"), *(tmp_path / "new" / ".shoal" / "index").glob("*/*")]:
        path.unlink()
    dataset = shoal.Dataset(new)

    assert len(dataset) == 12
    assert dataset.fields == ("txt", "cls")
    assert dataset.column_names == ("txt", "cls")


def test_where_and_keys_are_answered_without_a_tar(tmp_path):
    _, new = write_folder(tmp_path, deleted=[5])
    for path in (tmp_path / "new").glob("*.tar"):
        path.unlink()
    dataset = shoal.Dataset(new)

    assert dataset.where("cls > 3").keys() == [f"k{number:03d}" for number in (4, 6, 7, 8, 9, 10, 11)]
    assert dataset.position_of("k006") == 5
    with pytest.raises(SampleKeyError, match="k011"):
        dataset.get("k11")
    with pytest.raises(FileNotFoundError):
        dataset[0]


def test_a_manifest_that_is_damaged_or_newer_is_refused(tmp_path):
    _, new = write_folder(tmp_path)
    manifest = tmp_path / "new" / ".shoal" / "manifest.json"
    data = manifest.read_bytes()
    manifest.write_bytes(data[:200] + b"?" + data[201:])
    with pytest.raises(ManifestError, match="damaged"):
        len(shoal.Dataset(new))
    manifest.write_bytes(encode_document({"shoal": 3}))
    with pytest.raises(ManifestError, match=r"version 3 is newer.*Upgrade"):
        len(shoal.Dataset(new))


def test_a_generation_is_kept_while_it_is_open(tmp_path):
    _, new = write_folder(tmp_path)
    dataset = shoal.Dataset(new)
    assert dataset[0]["txt"] == "text 0"
    generation = dataset.source.generation
    for number in range(10):
        commit_splits(new, {}, metadata={"number": number})
    collect_garbage(new)

    assert f"{generation.id}.json" in os.listdir(f"{new}/.shoal/generations")
    assert dataset[5]["txt"] == "text 5"
    dataset.source.close()
    collect_garbage(new)
    assert f"{generation.id}.json" not in os.listdir(f"{new}/.shoal/generations")


def test_a_dataset_that_was_replaced_is_not_read_as_a_mix(tmp_path):
    _, new = write_folder(tmp_path)
    dataset = shoal.Dataset(new)
    assert len(dataset) == 12
    assert dataset[0]["txt"] == "text 0"
    write_other(str(tmp_path / "other"), "next")
    copy_as_segments(str(tmp_path / "other"), new, new_lineage=True)

    assert dataset[1]["txt"] == "text 1"  # its tar is open, and was moved away, not changed
    with pytest.raises(ObjectChangedError, match=r"replaced.*refresh"):
        dataset[5]
    with pytest.raises(ObjectChangedError, match=r"replaced.*refresh"):
        list(dataset)
    assert [sample["txt"] for sample in dataset.refresh()] == [f"next {number}" for number in range(12)]


def test_appended_samples_are_seen_by_refresh(tmp_path):
    _, new = write_folder(tmp_path)
    dataset = shoal.Dataset(new)
    before = dataset.keys()
    generation = load_generation(new)
    commit_splits(new, {"test": generation.splits["train"].segments, "train": ()})

    assert dataset.keys() == before
    assert [sample["__key__"] for sample in dataset] == before
    assert shoal.Dataset(new, split="test").keys() == before
    assert list(shoal.Dataset(new, split="train")) == []


def test_a_tar_that_changed_is_an_error(tmp_path):
    _, new = write_folder(tmp_path)
    tars = sorted((tmp_path / "new").glob("*.tar"))
    tars[0].write_bytes(tars[0].read_bytes() + bytes(512))
    data = tars[1].read_bytes()
    tars[1].write_bytes(b"x" + data[1:])
    at = tars[2].read_bytes().index(b"text 9")
    with open(tars[2], "r+b") as file:
        file.seek(at)
        file.write(b"text ?")
    dataset = shoal.Dataset(new)

    for index in (0, 5):
        with pytest.raises(StaleIndexError, match="changed after it was indexed"):
            dataset[index]
    with pytest.raises(ChecksumError, match="k009"):
        dataset[9]
    reports = list(verify_dataset(new))
    assert [report.ok for report in reports] == [False] * 3


def test_tars_that_wait_for_their_moves_are_read_where_they_are(tmp_path):
    _, new = write_folder(tmp_path)
    other = str(tmp_path / "other")
    write_other(other, "next")
    with Writing.begin(new, WriteHead("write", "a-%06d.tar", "train", staged=True)) as writing:
        staged = copy_tars(other, writing.staging)
        pending = stage_moves(writing, staged)
        scratch = f"{tmp_path}/scratch"
        generation = copy_as_segments(other, scratch)
        segments = os.path.join(scratch, ".shoal/index")
        shutil.copytree(segments, os.path.join(new, ".shoal/index"), dirs_exist_ok=True)
        commit(
            new,
            lambda parent, _: replace(parent, splits=generation.splits),
            new_lineage=True,
            writer=writing.id,
            pending=pending,
        )
        dataset = shoal.Dataset(new)
        assert dataset[0]["txt"] == "next 0"
        assert dataset[0]["__url__"] == f"{new}/a-000000.tar"
        finish_moves(new, load_generation(new), writing=writing)
        writing.discard()
    expected = [f"next {number}" for number in range(12)]
    assert [sample["txt"] for sample in dataset] == expected
    assert [sample["txt"] for sample in shoal.Dataset(new)] == expected


def copy_tars(source: str, target: str) -> list[str]:
    names = sorted(name for name in os.listdir(source) if name.endswith(".tar"))
    os.makedirs(target, exist_ok=True)
    for name in names:
        shutil.copy(f"{source}/{name}", f"{target}/{name}")
    return names


def test_another_key_rule_is_refused(tmp_path):
    _, new = write_folder(tmp_path)
    with pytest.raises(OptionError, match="key rule"):
        len(shoal.Dataset(new, rule=KeyRule(dot="last")))


def test_where_reads_only_segments_whose_bounds_may_match(tmp_path):
    _, new = write_folder(tmp_path, shards_per_segment=1, deleted=[9])
    first, *_ = load_generation(new).splits["train"].segments
    os.remove(f"{new}/.shoal/index/{first.id}/samples.parquet")
    dataset = shoal.Dataset(new)

    assert dataset.where("cls >= 8").keys() == ["k008", "k010", "k011"]
    assert dataset.select([10, 9, 0]).where("cls > 9 and txt like 'text%'").keys() == ["k011", "k010"]
    assert dataset.where("cls > 99").keys() == []
    with pytest.raises(FileNotFoundError):
        dataset.where("cls < 3")
    with pytest.raises(QueryError, match="cannot be compared"):
        dataset.where("cls > 'z'")
