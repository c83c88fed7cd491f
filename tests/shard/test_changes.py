"""Changes of a dataset: against plain lists, in races, and in processes that die.

This file is also the program that runs in the children that race or die.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shard.test_segment import Row, RowList, Shard, expected_members
from tests.store.servers import BUCKET, seaweed
from tests.store.settings import keys as s3_keys
from tests.store.settings import own_settings

from shoal.errors import (
    FieldError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    PositionError,
    SchemaMismatchError,
    WriteError,
)
from shoal.shard import _new_segments, _segment
from shoal.shard._changes import (
    add_tars,
    append_rows,
    change_metadata,
    delete_rows,
    finish,
    replace_splits,
    restore_rows,
)
from shoal.shard._commit import collect_garbage, is_committed, kept_generations, load_generation, load_kept_generation
from shoal.shard._generation import NO_GENERATION, Generation, locate
from shoal.shard._manifest import ShardRecord
from shoal.shard._member_names import KeyRule
from shoal.shard._new_segments import column_types, shard_paths
from shoal.shard._records import OpenFiles
from shoal.shard._rows_file import RowBatch, RowsFile, RowsSummary
from shoal.shard._shard_rows import IndexMetadata, ShardRows
from shoal.shard._split_table import SegmentRows, SplitTable
from shoal.shard._writing import WriteHead, Writing, staged_url
from shoal.store import configure
from shoal.store._operations import list_objects
from shoal.store._registry import store_for

TYPES = {"x": pa.int64(), "y": pa.string(), "z": pa.float64()}


# ---------------------------------------------------------------------------------------------------------- the model


@dataclass
class Model:
    """What a dataset should be: for each split its rows, and which of them are deleted."""

    splits: dict[str, list[Row]] = field(default_factory=dict)
    deleted: dict[str, set[int]] = field(default_factory=dict)
    paths: dict[str, list[str]] = field(default_factory=dict)

    def add(self, split: str, shards: Sequence[Shard]) -> None:
        if shards:
            self.splits.setdefault(split, []).extend(row for shard in shards for row in shard.rows)
            self.deleted.setdefault(split, set())
            self.paths.setdefault(split, []).extend(shard.path for shard in shards)

    def replace(self, split: str, shards: Sequence[Shard]) -> None:
        if split in self.splits:  # it keeps its place
            self.splits[split], self.deleted[split], self.paths[split] = [], set(), []
        self.add(split, shards)
        if not shards and split in self.splits:
            del self.splits[split], self.deleted[split], self.paths[split]


def check(root: str, model: Model) -> Generation:
    """Compare the newest generation with the model."""
    generation = load_generation(root) or NO_GENERATION
    assert list(generation.splits) == list(model.splits)
    for split, rows in model.splits.items():
        segments = generation.splits[split].segments
        table = SplitTable(root, segments, OpenFiles())
        every = np.arange(len(rows))
        assert len(table) == len(rows)
        assert table.shards()["path"].to_pylist() == model.paths[split] == shard_paths(root, segments)
        assert table.keys(every) == [row.key for row in rows]
        members = [expected_members(row) for row in rows]
        for number, own in enumerate(members):
            found = {name: extent for name, *extent in table.row_members(number).members}
            assert found == {name: list(extent) for name, extent in own.items()}
        columns = table.columns(list(TYPES)).to_pylist()
        assert columns == [{name: row.values.get(name) for name in TYPES} for row in rows]
        assert table.deleted().as_array().tolist() == sorted(model.deleted[split])
        assert all(kind == TYPES[name] for name, kind in table.column_types().items() if kind != pa.null())
        for row in (0, len(rows) - 1) if rows else ():
            assert table.first(rows[row].key) == next(n for n, each in enumerate(rows) if each.key == rows[row].key)
        for one, next_one in itertools.pairwise(segments):
            assert one.layout == next_one.layout
    return generation


COUNTER = itertools.count()


def shard(count: int, names: Sequence[str] = ("x", "y", "z"), prefix: str = "s") -> Shard:
    """A shard whose rows differ from all others; rows have a rare field here and there."""
    number = next(COUNTER)
    rows = []
    for at in range(count):
        seed = number * 1000 + at
        members = {"jpg": (512 + 1024 * at, seed % 97, seed + 1)}
        if seed % 3 == 0:
            members["rare"] = (1024 + 1024 * at, 5, seed + 2)
        values = {"x": seed, "y": f"t{seed % 7}", "z": seed / 2}
        rows.append(Row(f"{seed:09d}", members, {name: values[name] for name in names}))
    return Shard(f"{prefix}-{number:06d}.tar", rows, [0, len(rows)] if number % 2 else [])


def rows_of(*shards: Shard, names: Sequence[str] = ("x", "y", "z")) -> RowList:
    return RowList(shards, batch_rows=3, types={name: TYPES[name] for name in names})


def memory_root() -> str:
    return f"memory://{uuid.uuid4()}"


def put_tar(root: str, path: str, tag: str = "") -> None:
    store_for(root).write_all(locate(root, path), f"{tag}:{path}".encode())


def index_objects(root: str) -> set[str]:
    return {info.url.removeprefix(f"{root}/") for info in list_objects(f"{root}/.shoal/index")} - {".shoal/index/lock"}


def tars(root: str) -> set[str]:
    paths = {info.url.removeprefix(f"{root}/") for info in list_objects(root)}
    return {path for path in paths if not path.startswith(".shoal/")}


def named_objects(root: str) -> set[str]:
    return {path for each in kept_generations(root) for path in load_kept_generation(root, each).files()}


# ------------------------------------------------------------------------------------------------- any order of changes

SPLITS = st.sampled_from(["train", "val", "test"])
NAMES = st.sampled_from([("x", "y", "z"), ("x",), (), ("y", "z")])
SIZES = st.lists(st.integers(0, 9), max_size=3)
PICKS = st.lists(st.integers(0, 99), max_size=8)
CHANGES = st.one_of(
    st.tuples(st.just("append"), SPLITS, SIZES, NAMES),
    st.tuples(st.just("append"), SPLITS, SIZES, NAMES),
    st.tuples(st.just("delete"), SPLITS, PICKS, st.none()),
    st.tuples(st.just("restore"), SPLITS, PICKS, st.none()),
    st.tuples(st.just("replace"), st.lists(SPLITS, min_size=1, max_size=2, unique=True), SIZES, NAMES),
)


@settings(deadline=None)
@given(st.lists(CHANGES, max_size=14), st.sampled_from([7, 40, 1 << 22]))
def test_changes_in_any_order_are_those_of_lists(changes, max_rows):
    root, model, generation = memory_root(), Model(), NO_GENERATION
    with ExitStack() as stack:
        for module in (_segment, _new_segments):
            stack.enter_context(mock.patch.object(module, "MAX_SEGMENT_ROWS", max_rows))
        for kind, where, detail, names in changes:
            before = generation
            apply(root, model, generation, kind, where, detail, names)
            generation = check(root, model)
            if kind == "replace":
                assert generation.lineage not in ("", before.lineage)
            elif before.id:
                assert generation.lineage == before.lineage
    assert tars(root) == {path for paths in model.paths.values() for path in paths}
    assert not generation.pending
    assert not list(list_objects(f"{root}/.shoal/writing"))
    if generation.id:
        assert index_objects(root) - named_objects(root) <= old_objects(root)


def old_objects(root: str) -> set[str]:
    """Files of generations that are not among the last 8, but young."""
    ids = [info.url.rpartition("/")[2].removesuffix(".json") for info in list_objects(f"{root}/.shoal/generations")]
    return {path for each in ids for path in load_kept_generation(root, each).files()}


def apply(root, model, generation, kind, where, detail, names):
    if kind == "append":
        shards = [shard(count, names) for count in detail]
        for each in shards:
            put_tar(root, each.path)
        append_rows(root, {where: [rows_of(*shards, names=names)]})
        model.add(where, shards)
    elif kind == "replace":
        shards = {split: [shard(count, names, split) for count in detail] for split in where}
        replace_all(root, shards, names)
        for split, own in shards.items():
            model.replace(split, own)
    elif model.splits.get(where):
        rows = sorted({pick % len(model.splits[where]) for pick in detail})
        change = delete_rows if kind == "delete" else restore_rows
        result = change(root, {where: np.array(rows[::-1], np.int64)}, lineage=generation.lineage)
        own = model.deleted[where]
        changed = set(rows) - own if kind == "delete" else own & set(rows)
        own ^= changed
        assert {split: found.tolist() for split, found in result.rows.items()} == (
            {where: sorted(changed)} if changed else {}
        )
        assert (result.generation == generation) == (not changed)


def staged(root: str, pattern: str = "new-%06d.tar", **options: Any) -> Writing:
    return Writing.begin(root, WriteHead("overwrite", pattern, staged=True), **options)


def replace_all(root, shards: Mapping[str, Sequence[Shard]], names=("x", "y", "z"), **options) -> Generation:
    with staged(root) as writing:
        for each in itertools.chain.from_iterable(shards.values()):
            put_tar(writing.staging, each.path)
        sources = {split: [rows_of(*own, names=names)] for split, own in shards.items()}
        options = {"before": load_generation(root) or NO_GENERATION, **options}
        return replace_splits(root, sources, writing, **options)


# --------------------------------------------------------------------------------------------------------------- fold


def sizes(root: str, split: str = "train") -> list[int]:
    generation = load_generation(root)
    assert generation is not None
    return [segment.rows for segment in generation.splits[split].segments]


def test_many_appends_leave_few_segments():
    root, shards = memory_root(), []
    for _ in range(300):
        shards.append(shard(2, ["x"]))
        append_rows(root, {"train": [rows_of(shards[-1], names=["x"])]})

    assert sum(sizes(root)) == 600
    assert len(sizes(root)) <= 6
    generation = load_generation(root)
    assert generation is not None
    table = SplitTable(root, generation.splits["train"].segments, OpenFiles())
    assert table.columns(["x"])["x"].to_pylist() == [row.values["x"] for each in shards for row in each.rows]


def test_the_last_segments_are_merged_while_they_are_small():
    root = memory_root()
    counts = [([40], 40), ([40, 10], 10), ([40, 10, 3], 3), ([40, 18], 5), ([40, 18, 9], 9), ([81], 14)]
    for after, count in counts:
        append_rows(root, {"train": [rows_of(shard(count))]})
        assert sizes(root) == after


def test_shards_without_rows_do_not_make_many_segments():
    root = memory_root()
    for _ in range(20):
        append_rows(root, {"train": [rows_of(shard(0))]})
    assert len(sizes(root)) <= 5


def test_rows_of_merged_segments_stay_deleted():
    root, model = memory_root(), Model()
    for count in (9, 4, 4):
        own = shard(count)
        model.add("train", [own])
        generation = append_rows(root, {"train": [rows_of(own)]})
        rows = np.array([len(model.splits["train"]) - 1, 0])
        delete_rows(root, {"train": rows}, lineage=generation.lineage)
        model.deleted["train"] |= set(rows.tolist())
        check(root, model)
    assert len(sizes(root)) == 1


# --------------------------------------------------------------------------------------------------------- column types


def misfit(value: Any, kind: pa.DataType) -> RowList:
    each = shard(2, [])
    return RowList([replace(each, rows=[replace(row, values={"x": value}) for row in each.rows])], types={"x": kind})


def test_what_does_not_fit_the_type_of_its_column_is_refused():
    root = memory_root()
    before = append_rows(root, {"train": [rows_of(shard(5))]})
    with pytest.raises(SchemaMismatchError, match=r"Column 'x' .*int64 in the dataset and string in s-"):
        append_rows(root, {"train": [misfit("text", pa.string())]})
    with pytest.raises(SchemaMismatchError, match="int64 in the dataset and double"):
        append_rows(root, {"val": [misfit(0.5, pa.float64())]})  # another split is of the same dataset
    assert load_generation(root) == before
    assert index_objects(root) == set(before.files())

    append_rows(root, {"train": [misfit("text", pa.string())]}, on_misfit="omit")
    generation = load_generation(root)
    assert generation is not None
    table = SplitTable(root, generation.splits["train"].segments, OpenFiles())
    assert "x" in table.left_out()
    with pytest.raises(FieldError, match="Cannot query column 'x'"):
        table.columns(["x"])
    generation = append_rows(root, {"train": [rows_of(shard(9))]})  # what was left out before does not matter to others
    assert column_types(generation)["x"] == pa.int64()


def test_segments_are_not_merged_if_a_column_were_lost(root):
    def add(*sources):
        append_rows(root, {"train": list(sources)}, on_misfit="omit")
        generation = load_generation(root)
        return [(segment.rows, segment.columns.get("x")) for segment in generation.segments]

    assert add(misfit(1, pa.int64())) == [(2, "int64")]
    assert add(misfit("t", pa.string())) == [(2, "int64"), (2, None)]
    assert add(rows_of(shard(2, []), names=[])) == [(2, "int64"), (4, None)]  # it has no such column
    assert add(rows_of(shard(9), shard(9))) == [(2, "int64"), (4, None), (18, "int64")]
    with mock.patch.object(_new_segments, "_MAX_APART", 2):
        assert add(misfit("t", pa.string())) == [(2, "int64"), (4, None), (18, "int64"), (2, None)]
        assert add(rows_of(shard(9))) == [(2, "int64"), (4, None), (29, None)]


def test_integers_fit_a_column_of_doubles():
    root = memory_root()
    append_rows(root, {"train": [misfit(0.5, pa.float64())], "val": [misfit(None, pa.null())]})
    append_rows(root, {"train": [misfit(3, pa.int64())], "val": [misfit(4, pa.int64())]})
    generation = load_generation(root)
    assert generation is not None
    for split, values in (("train", [0.5, 0.5, 3, 3]), ("val", [None, None, 4, 4])):
        table = SplitTable(root, generation.splits[split].segments, OpenFiles())
        assert table.column_types()["x"] == pa.float64()
        assert table.columns(["x"])["x"].to_pylist() == values


def test_new_splits_of_one_write_have_one_type_for_a_column():
    root = memory_root()
    generation = append_rows(root, {"train": [misfit(1, pa.int64())], "val": [misfit(0.5, pa.float64())]})
    assert {segment.columns["x"] for segment in generation.segments} == {"double"}
    generation = append_rows(memory_root(), {"a": [misfit(1, pa.int64())], "b": [misfit("t", pa.string())]})
    assert [segment.columns.get("x") for segment in generation.segments] == ["int64", None]
    assert list(next(reversed(list(generation.segments))).left_out) == ["x"]


# ------------------------------------------------------------------------------------------------- schema and metadata

SCHEMA = {"name": "Image"}


def test_metadata_is_joined_and_splits_without_shards_are_not_listed():
    root = memory_root()
    append_rows(root, {"train": [rows_of(shard(1))], "none": []}, metadata={"a": 1, "b": 2}, schema=SCHEMA)
    generation = append_rows(root, {}, metadata={"b": 3}, schema=SCHEMA)
    assert (list(generation.splits), generation.metadata) == (["train"], {"a": 1, "b": 3})
    assert generation.schema == SCHEMA
    assert append_rows(root, {}, schema=SCHEMA) == generation  # nothing is to change
    assert append_rows(root, {"val": [rows_of(shard(1))]}).schema is None  # other samples: read each by its name


def test_metadata_and_schema_are_changed_alone():
    root = memory_root()
    with pytest.raises(ObjectNotFoundError, match="Dataset not found"):
        change_metadata(root, {"a": 1})
    first = append_rows(root, {"train": [rows_of(shard(1))]}, metadata={"a": 1, "b": 2})
    second = change_metadata(root, {"a": None, "c": 3})
    assert (second.metadata, second.splits, second.lineage) == ({"b": 2, "c": 3}, first.splits, first.lineage)
    assert change_metadata(root, {"c": 3}) == second
    assert change_metadata(root, schema=SCHEMA).schema == SCHEMA
    assert change_metadata(root, {"d": 1}).schema == SCHEMA
    assert change_metadata(root, schema=None).schema is None


def test_metadata_must_be_json(root):
    with pytest.raises(WriteError, match="must be JSON"):
        append_rows(root, {"train": [rows_of(shard(1))]}, metadata={"a": object()})
    assert not list(list_objects(root))


def test_a_dataset_has_one_key_rule():
    root, rule = memory_root(), KeyRule(group="archive")
    append_rows(root, {"train": [rows_of(shard(1))]}, rule=rule)
    assert append_rows(root, {"train": [rows_of(shard(1))]}).rule == rule
    with pytest.raises(OptionError, match="key rule of the dataset"):
        append_rows(root, {"train": [rows_of(shard(1))]}, rule=KeyRule())


# ------------------------------------------------------------------------------------------------------ delete, restore


def test_rows_that_are_not_there_cannot_be_deleted():
    root = memory_root()
    generation = append_rows(root, {"train": [rows_of(shard(3))]})
    with pytest.raises(FieldError, match="Split 'val' not found; available: 'train'"):
        delete_rows(root, {"val": np.array([0])}, lineage=generation.lineage)
    for row in (3, -1):
        with pytest.raises(PositionError, match=f"Index {row} is out of range for a split of 3 samples"):
            delete_rows(root, {"train": np.array([0, row])}, lineage=generation.lineage)
    assert index_objects(root) == set(generation.files())


def test_rows_of_another_lineage_are_not_deleted():
    root = memory_root()
    generation = append_rows(root, {"train": [rows_of(shard(3))]})
    replace_all(root, {"train": [shard(3)]})
    for change in (delete_rows, restore_rows):
        with pytest.raises(ObjectChangedError, match=r"The dataset was replaced.*Call refresh\(\)"):
            change(root, {"train": np.array([0])}, lineage=generation.lineage)


# ----------------------------------------------------------------------------------------------------------- lost races


@dataclass(frozen=True)
class Racing:
    """A source that lets somebody else commit while it is read for the first time."""

    rows: RowList
    others: list[Callable[[], object]]

    @property
    def summary(self) -> RowsSummary:
        return self.rows.summary

    def batches(self) -> Iterator[RowBatch]:
        if self.others:
            self.others.pop(0)()
        return self.rows.batches()


@pytest.fixture(params=["disk", "memory"])
def root(request, tmp_path):
    return str(tmp_path / "data") if request.param == "disk" else memory_root()


def test_an_append_that_lost_a_race_lists_its_rows_once(root):
    model, first, ours, *theirs = Model(), shard(4), shard(5), shard(3), shard(2), shard(6)
    append_rows(root, {"train": [rows_of(first)]})
    others = [lambda each=each: append_rows(root, {"train": [rows_of(each)]}) for each in theirs]
    generation = append_rows(root, {"train": [Racing(rows_of(ours), others)]})

    assert sizes(root)[-1] == 5  # unfolded
    model.add("train", [first, *theirs[: len(theirs) - len(others)], ours])
    check(root, model)
    assert index_objects(root) == named_objects(root)
    assert generation.splits["train"].rows == len(model.splits["train"])


def test_a_lost_race_of_first_writes_takes_the_layout_and_types_of_the_winner(root):
    ours, theirs = shard(5, ["x"]), shard(3, ["x"])
    ours_rows = RowList(
        [replace(ours, rows=[replace(row, key=row.key * 5) for row in ours.rows])], types={"x": pa.int64()}
    )
    theirs_rows = RowList(
        [replace(theirs, rows=[replace(row, values={"x": 0.5}) for row in theirs.rows])], types={"x": pa.float64()}
    )
    generation = append_rows(
        root, {"train": [Racing(ours_rows, [lambda: append_rows(root, {"train": [theirs_rows]})])]}
    )

    table = SplitTable(root, generation.splits["train"].segments, OpenFiles())
    assert table.keys(np.arange(8)) == [row.key for each in (theirs_rows, ours_rows) for row in each.rows]
    assert table.columns(["x"])["x"].to_pylist() == [0.5] * 3 + [float(row.values["x"]) for row in ours.rows]
    assert len({segment.layout for segment in generation.segments}) == 1
    assert index_objects(root) == named_objects(root)


def test_a_misfit_that_a_lost_race_reveals_leaves_no_files(root):
    others = [lambda: append_rows(root, {"train": [misfit("text", pa.string())]})]
    with pytest.raises(SchemaMismatchError, match="string in the dataset and int64"):
        append_rows(root, {"train": [Racing(rows_of(shard(3)), others)]})
    assert index_objects(root) == named_objects(root)


def test_rows_that_are_deleted_while_their_segment_is_merged_stay_deleted(root):
    model, first, second = Model(), shard(4), shard(5)
    lineage = append_rows(root, {"train": [rows_of(first)]}).lineage
    others = [lambda: delete_rows(root, {"train": np.array([1])}, lineage=lineage)]
    append_rows(root, {"train": [Racing(rows_of(second), others)]})
    model.add("train", [first, second])
    model.deleted["train"] = {1}
    check(root, model)
    assert index_objects(root) == named_objects(root)


def test_rows_that_an_append_moves_meanwhile_are_deleted(root, monkeypatch):
    model, first, second = Model(), shard(4), shard(5)
    lineage = append_rows(root, {"train": [rows_of(first)]}).lineage
    others = [lambda: append_rows(root, {"train": [rows_of(second)]})]
    write_deleted = _new_segments.write_deleted

    def racing(*args):
        if others:
            others.pop()()
        return write_deleted(*args)

    monkeypatch.setattr(_new_segments, "write_deleted", racing)
    result = delete_rows(root, {"train": np.array([3, 0])}, lineage=lineage)
    model.add("train", [first, second])
    model.deleted["train"] = {0, 3}
    assert result.rows["train"].tolist() == [0, 3]
    assert len(check(root, model).splits["train"].segments) == 1
    assert index_objects(root) == named_objects(root)


def test_a_delete_that_lost_to_a_replacement_is_refused(root, monkeypatch):
    lineage = append_rows(root, {"train": [rows_of(shard(4))]}).lineage
    others = [lambda: replace_all(root, {"train": [shard(4)]})]
    write_deleted = _new_segments.write_deleted

    def racing(*args):
        if others:
            others.pop()()
        return write_deleted(*args)

    monkeypatch.setattr(_new_segments, "write_deleted", racing)
    with pytest.raises(ObjectChangedError, match="The dataset was replaced"):
        delete_rows(root, {"train": np.array([3, 0])}, lineage=lineage)
    assert index_objects(root) == named_objects(root)


def test_threads_that_change_one_split_lose_nothing():
    root, errors = memory_root(), []
    lineage = append_rows(root, {"train": [rows_of(shard(50))]}).lineage
    own = {name: [Shard(f"{name}{i}", [Row(f"{name}-{i}-{n}") for n in range(3)]) for i in range(15)] for name in "ab"}

    def write(name):
        try:
            for number, each in enumerate(own[name]):
                append_rows(root, {"train": [RowList([each])]})
                rows = np.array([2 * number + (name == "b")])
                assert delete_rows(root, {"train": rows}, lineage=lineage).rows["train"].tolist() == rows.tolist()
        except BaseException as error:  # noqa: BLE001 - the test must see it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    check_each_once(root, {name: [row.key for each in shards for row in each.rows] for name, shards in own.items()}, 50)
    generation = load_generation(root)
    assert generation is not None
    assert sum(segment.rows - segment.live_rows for segment in generation.segments) == 30


def check_each_once(root: str, keys: Mapping[str, list[str]], before: int = 0) -> None:
    """The keys of each writer are there once, in their order."""
    generation = load_generation(root)
    assert generation is not None
    table = SplitTable(root, generation.splits["train"].segments, OpenFiles())
    found = table.keys(np.arange(before, len(table)))
    for name, own in keys.items():
        assert [key for key in found if key.startswith(name)] == own
    assert len(found) == sum(map(len, keys.values()))


def run_child(*arguments: object) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    command = [sys.executable, "-W", "error", __file__, *map(str, arguments)]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})


def end_child(child: subprocess.Popen[str]) -> None:
    error = child.communicate()[1]
    assert (child.returncode, error) == (0, "")


def test_processes_that_append_and_delete_lose_nothing(tmp_path):
    root = str(tmp_path)
    append_rows(root, {"train": [rows_of(shard(100))]})
    for child in [run_child("race", root, name) for name in "ab"]:
        end_child(child)
    keys = {name: [f"{name}-{i:03d}" for i in range(25)] for name in "ab"}
    check_each_once(root, keys, 100)
    generation = load_generation(root)
    assert generation is not None
    assert next(generation.segments).deleted.records == 50
    collect_garbage(root)
    assert index_objects(root) == named_objects(root)


def race(root: str, name: str, endpoint: str | None = None) -> None:
    if endpoint is not None:
        reach(endpoint)
    generation = load_generation(root)
    for number in range(25):
        append_rows(root, {"train": [RowList([Shard(f"{name}{number}", [Row(f"{name}-{number:03d}")])])]})
        delete_rows(root, {"train": np.array([2 * number + (name == "b")])}, lineage=generation.lineage)


@pytest.fixture(scope="module")
def endpoint():
    with seaweed() as found:
        yield found


def reach(endpoint: str) -> None:
    configure(f"s3://{BUCKET}", endpoint=endpoint, region="us-east-1", credential_provider=s3_keys, timeout=30)


def test_processes_that_change_a_dataset_in_an_object_store_lose_nothing(endpoint, monkeypatch, tmp_path):
    own_settings(monkeypatch, tmp_path)
    reach(endpoint)
    root = f"s3://{BUCKET}/changes"
    write_old(root)
    append_rows(root, {"train": [rows_of(shard(100))]})
    for child in [run_child("race", root, name, endpoint) for name in "ab"]:
        end_child(child)
    check_each_once(root, {name: [f"{name}-{i:03d}" for i in range(25)] for name in "ab"}, 109)
    generation = load_generation(root)
    assert sum(segment.rows - segment.live_rows for segment in generation.segments) == 50

    write(root, "overwrite")
    assert read_keys(root) == keys_of(NEW)
    assert tars(root) == {each.path for each in NEW}
    assert not list(list_objects(f"{root}/.shoal/writing"))


# ------------------------------------------------------------------------------------------------------- writes of tars


def fixed(prefix: str, *counts: int) -> list[Shard]:
    return [
        Shard(
            f"{prefix}-{number:06d}.tar", [Row(f"{prefix}{number}{at}", {"jpg": (512, 7, at + 1)}) for at in range(n)]
        )
        for number, n in enumerate(counts)
    ]


NEW = fixed("new", 2, 2, 1)
OLD = [*fixed("old", 3, 2), replace(fixed("mixed", 4)[0], path=NEW[0].path)]
"""Both have a tar of one name."""


def shard_rows(each: Shard) -> tuple[ShardRecord, ShardRows]:
    (batch,) = RowList([each]).batches()
    rows = ShardRows(IndexMetadata(10_000, 7), batch.keys, batch.fields, batch.columns, None)
    return ShardRecord(each.path, len(rows), 10_000, fields=RowList([each]).summary.fields), rows


def write(root: str, kind: str, split: str = "train", shards: Sequence[Shard] = NEW, **options: Any) -> Generation:
    """Write tars, or go on with it: replace the split, or add them to the dataset under their final names."""
    head = WriteHead(kind, "new-%06d.tar", split, staged=kind == "overwrite")
    with Writing.resume(root, head) as writing:
        folder, finished = writing.staging if head.staged else root, len(writing.finished())
        for each in shards[finished:]:
            if not head.staged:
                writing.reserve(each.path)
            put_tar(folder, each.path, "new")
            writing.add(*shard_rows(each))
        sources = {split: [RowsFile(writing.rows_url(number)) for number in range(len(shards))]}
        if head.staged:
            return replace_splits(root, sources, writing, before=load_generation(root) or NO_GENERATION, **options)
        return add_tars(root, sources, writing, **options)


def write_old(root: str, shards: Sequence[Shard] = OLD) -> Generation:
    for each in shards:
        put_tar(root, each.path, "old")
    return append_rows(root, {"train": [RowList(shards)]})


def keys_of(shards: Sequence[Shard]) -> list[str]:
    return [row.key for each in shards for row in each.rows]


def read_keys(root: str, split: str = "train") -> list[str]:
    """The keys of a split; the tars of all splits must be those that the generation means."""
    generation = load_generation(root)
    if generation is None or split not in generation.splits:
        return []
    table = SplitTable(root, generation.splits[split].segments, OpenFiles())
    keys = table.keys(np.arange(len(table)))
    for number in range(table.shard_count):
        path = table.shard_path(number)
        url = staged_url(root, generation, path) or locate(root, path)
        first = keys[table.shard_starts()[number]]
        tag = "new" if first in keys_of(NEW) else "old"
        assert store_for(url).read_all(url) == f"{tag}:{path}".encode()
    return keys


def test_tars_are_added_once(root):
    first = write(root, "write")
    assert read_keys(root) == keys_of(NEW)
    assert (first.metadata, is_committed(root, first, first.writer or "")) == ({}, True)
    assert not list(list_objects(f"{root}/.shoal/writing"))
    with pytest.raises(ObjectExistsError, match="Split 'train' was written by another writer in the meantime"):
        write(root, "write")
    assert load_generation(root) == first


def test_a_write_that_only_appends_joins_its_split(root):
    write_old(root, OLD[:2])
    generation = write(root, "append", schema=SCHEMA, metadata={"a": 1})
    assert read_keys(root) == keys_of(OLD[:2]) + keys_of(NEW)
    assert (generation.metadata, generation.schema) == ({"a": 1}, None)


def test_a_fresh_split_must_have_samples_that_the_schema_reads(root):
    append_rows(root, {"train": [rows_of(shard(1))]}, schema=SCHEMA)
    with pytest.raises(SchemaMismatchError, match=r"do not fit the schema of the dataset.*Choose another folder"):
        write(root, "write", "val")
    assert list(load_generation(root).splits) == ["train"]


def test_a_write_is_committed_once_if_it_is_called_again(root):
    head = WriteHead("append", "new-%06d.tar", "train")
    with Writing.begin(root, head) as writing:
        writing.add(*shard_rows(NEW[0]))
        sources = {"train": [RowsFile(writing.rows_url(0))]}
        append_rows(root, sources, writer=writing.id)
        add_tars(root, sources, writing)
    generation = load_generation(root)
    assert generation is not None
    assert generation.splits["train"].rows == 2


# -------------------------------------------------------------------------------------------------------------- replace


def test_staged_tars_take_the_places_of_others(root):
    before = write_old(root)
    append_rows(root, {"val": [rows_of(shard(2))]}, metadata={"a": 1})
    generation = write(
        root, "overwrite", metadata={"b": 2}, removed=["old-000099.tar"], deleted={"train": np.array([4, 1])}
    )
    assert read_keys(root) == keys_of(NEW)
    assert list(generation.splits) == ["train", "val"]
    assert generation.metadata == {"a": 1, "b": 2}
    assert generation.lineage not in (before.lineage, "")
    assert tars(root) == {each.path for each in NEW}
    table = SplitTable(root, generation.splits["train"].segments, OpenFiles())
    assert table.deleted().as_array().tolist() == [1, 4]


def test_tars_of_any_name_are_moved(tmp_path):
    for root in (str(tmp_path / "a"), f"file://{tmp_path}/b c", memory_root()):
        own = [replace(each, path=f"{path}.tar") for each, path in zip(NEW, ["a b/ü%41", "#1?", "x"], strict=True)]
        write(root, "overwrite", shards=own)
        assert read_keys(root) == keys_of(own)
        assert len(tars(root)) == 3
        write(root, "overwrite", shards=fixed("other", 1))
        assert len(tars(root)) == 1


def test_tars_that_nobody_names_are_removed_if_that_is_asked(root):
    put_tar(root, "stray.tar")
    write(root, "overwrite", removed=["stray.tar", NEW[0].path])
    assert tars(root) == {each.path for each in NEW}


def test_a_split_that_stays_has_no_shards_whose_tars_are_replaced(root):
    model, other = Model(), [shard(3, prefix="val"), replace(shard(2), path=NEW[1].path), shard(4, prefix="val")]
    for each in other:
        put_tar(root, each.path)
    lineage = append_rows(
        root, {"val": [rows_of(*other)], "test": [rows_of(replace(shard(2), path=NEW[0].path))]}
    ).lineage
    delete_rows(root, {"val": np.array([0, 4, 6])}, lineage=lineage)
    write(root, "overwrite")

    generation = load_generation(root)
    assert generation is not None
    assert list(generation.splits) == ["val", "train"]
    model.add("val", [other[0], other[2]])
    model.add("train", NEW)
    model.deleted["val"] = {0, 4}
    check(root, model)
    assert index_objects(root) == named_objects(root)


@pytest.mark.parametrize("kind", ["append", "delete"])
def test_a_split_that_changed_since_it_was_read_is_not_replaced(root, kind):
    before = write_old(root, OLD[:2])
    if kind == "append":
        append_rows(root, {"train": [rows_of(shard(2))]})
    else:
        delete_rows(root, {"train": np.array([0])}, lineage=before.lineage)
    now, files = load_generation(root), index_objects(root)
    with pytest.raises(ObjectExistsError, match="Split 'train' was written by another writer"):
        replace_all(root, {"train": [shard(2)]}, before=before)
    assert load_generation(root) == now
    assert index_objects(root) == files
    replace_all(root, {"val": [shard(2)]}, before=before)  # other splits may change


def test_a_split_that_changes_while_it_is_replaced_is_not(root):
    write_old(root, OLD[:2])
    own = shard(3)
    others = [lambda: append_rows(root, {"train": [rows_of(shard(2))]})]
    with staged(root) as writing:
        put_tar(writing.staging, own.path)
        sources = {"train": [Racing(rows_of(own), others)]}
        with pytest.raises(ObjectExistsError, match="Split 'train' was written by another writer"):
            replace_splits(root, sources, writing, before=load_generation(root) or NO_GENERATION)
        writing.discard()
    assert sum(sizes(root)) == 7
    assert index_objects(root) == named_objects(root)


def test_other_splits_may_grow_while_one_is_replaced(root):
    write_old(root, OLD[:2])
    own, theirs = shard(3), RowList([shard(2, [])], types={})
    others = [lambda: append_rows(root, {"val": [theirs]}), lambda: append_rows(root, {"val": [misfit(1, pa.int64())]})]
    with staged(root) as writing:
        put_tar(writing.staging, own.path)
        sources = {"train": [Racing(rows_of(own), others)]}
        replace_splits(root, sources, writing, before=load_generation(root) or NO_GENERATION)
    assert sizes(root) == [3]
    assert sum(sizes(root, "val")) == 2 + 2 * (not others)
    assert tars(root) == {own.path}
    assert index_objects(root) == named_objects(root)


def test_a_repair_keeps_the_rows_of_good_shards(root):
    """One shard of a split is written again; the rows of others are read back, and their tars stay."""
    model = Model()
    before = write_old(root)
    table = SplitTable(root, before.splits["train"].segments, OpenFiles())
    repaired = replace(fixed("fix", 2)[0], path=OLD[1].path)
    with staged(root) as writing:
        put_tar(writing.staging, repaired.path, "new")
        sources = [SegmentRows(table, 0, range(1)), RowList([repaired]), SegmentRows(table, 0, range(2, 3))]
        replace_splits(root, {"train": sources}, writing, before=before, deleted={"train": np.array([0])})
    model.add("train", [OLD[0], repaired, OLD[2]])
    model.deleted["train"] = {0}
    check(root, model)
    for path, tag in [(OLD[0].path, "old"), (OLD[1].path, "new"), (OLD[2].path, "old")]:
        assert store_for(root).read_all(f"{root}/{path}") == f"{tag}:{path}".encode()


# -------------------------------------------------------------------------------------------------------- sudden deaths


def actions(kind: str) -> Callable[[str], object]:
    """A change of a dataset that consists of OLD; the second time it changes nothing, or goes on."""
    if kind == "rows":
        return lambda root: append_rows(root, {"train": [RowList(NEW[1:])]}, writer="0123456789abcdef")
    if kind == "delete":
        return lambda root: delete_rows(root, {"train": np.array([1, 5])}, lineage=load_generation(root).lineage)
    return lambda root: write(
        root, kind, "val" if kind == "write" else "train", NEW[1:] if kind != "overwrite" else NEW
    )


def state(root: str) -> tuple[list[str], list[str], int]:
    generation = load_generation(root)
    assert generation is not None
    deleted = sum(segment.rows - segment.live_rows for segment in generation.segments)
    return read_keys(root), read_keys(root, "val"), deleted


STATES = {
    "rows": (keys_of([*OLD, *NEW[1:]]), [], 0),
    "delete": (keys_of(OLD), [], 2),
    "append": (keys_of([*OLD, *NEW[1:]]), [], 0),
    "write": (keys_of(OLD), keys_of(NEW[1:]), 0),
    "overwrite": (keys_of(NEW), [], 0),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_death_at_any_step_leaves_the_old_dataset_or_the_new_one(tmp_path, kind):
    before = str(tmp_path / "before")
    write_old(before, OLD[:2])
    write_old(before, OLD[2:])
    for each in NEW[1:] if kind == "rows" else ():
        put_tar(before, each.path, "new")
    old, new = state(before), STATES[kind]
    end_child(run_child("die", tmp_path / "runs", before, kind))
    roots = sorted((tmp_path / "runs").iterdir(), key=lambda path: int(path.name))
    assert len(roots) > 15

    states = []
    for number, path in enumerate(roots):
        root = str(path)
        states.append(state(root))
        assert states[-1] in (old, new)
        if number % 2:  # anybody's next write finishes the moves
            change_metadata(root, {"next": number})
            assert load_generation(root).pending == ()
            assert state(root) == states[-1]
        if states[-1] == old:
            actions(kind)(root)
        finish(root)
        collect_garbage(root)
        assert state(root) == new
        assert everything(root) == expected_files(root)
    assert states == sorted(states, key=lambda each: each == new)  # old up to some step, new from it on
    assert states[0] == old
    assert states[-1] == new


def everything(root: str) -> set[str]:
    return {str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file()}


def expected_files(root: str) -> set[str]:
    generation = load_generation(root)
    paths = {path for entry in generation.splits.values() for path in shard_paths(root, entry.segments)}
    documents = {f".shoal/generations/{each}.json" for each in kept_generations(root)}
    return {*paths, *documents, *named_objects(root), ".shoal/manifest.json", ".shoal/lock", ".shoal/index/lock"}


def die(base: str, before: str, kind: str) -> None:
    """Make a change again and again, and end the process one file operation later each time, until it is complete."""
    os.makedirs(base)
    shutil.copytree(before, f"{base}-warm")
    actions(kind)(f"{base}-warm")  # what is loaded when it is first used is loaded once
    for number in itertools.count(1):
        root = os.path.join(base, str(number))
        shutil.copytree(before, root)
        child = os.fork()
        if child == 0:
            count_down(root, number)
            actions(kind)(root)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 9:
            assert status == 0, status
            return


def count_down(root: str, number: int) -> None:
    """End this process just before its n-th change of a file below the root."""
    left = [number]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        is_write = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (is_write or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")) and str(args[0]).startswith(root):
            left[0] -= 1
            if not left[0]:
                os._exit(9)

    sys.addaudithook(hook)


def main(kind: str, *arguments: str) -> None:
    {"race": race, "die": die}[kind](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
