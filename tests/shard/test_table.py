"""What every table promises, and that all of them say the same of the same shards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shard.segments import copy_as_segments

import shoal
from shoal.errors import PositionError, SampleKeyError
from shoal.shard import open_shard
from shoal.shard._segment_table import SegmentTable, open_generation
from shoal.shard._table import RowExtents, Table

SHARDS = [7, 1, 12, 3, 9]


@functools.cache
def roots() -> tuple[str, str]:
    """The same samples in both formats: fields missing, fields of few samples, long keys, one key twice."""
    old, new = "memory://table/old", "memory://table/new"
    number = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shoal.shard._shard_file.BLOCK_BYTES", 6000)
        for shard, count in enumerate(SHARDS):
            with shoal.ShardWriter(f"{old}/x-%06d.tar", append=shard > 0) as writer:
                for _ in range(count):
                    writer.write(sample(number))
                    number += 1
    copy_as_segments(old, new, shards_per_segment=2, deleted=[2, 9, 31])
    return old, new


def sample(number: int) -> dict[str, Any]:
    key = "twice" if number in (6, 25) else f"k{number:04d}{'long' * 20 if number % 5 == 4 else ''}"
    fields: dict[str, Any] = {"__key__": key, "bin": bytes([number]) * (97 * number), "json": {"n": number}}
    if number % 3:
        fields["txt"] = f"text {number}"
    if number % 11 == 0:
        fields["rare.txt"] = "here"
    return fields


def old_table() -> Table:
    source: Any = shoal.Dataset(roots()[0]).source
    table: Table = source.index
    return table


def new_table() -> Table:
    opened = open_generation(roots()[1])
    assert opened is not None
    return opened.table()


def joined_table() -> Table:
    """The table in two parts: shards are those of two datasets."""
    halves = []
    for name, shards in (("first", SHARDS[:2]), ("second", SHARDS[2:])):
        halves.append(part_of(name, sum(SHARDS[:2]) if name == "second" else 0, tuple(shards)))
    return SegmentTable.concatenate(halves)


@functools.cache
def part_of(name: str, first: int, shards: tuple[int, ...]) -> SegmentTable:
    old, new = f"memory://table/{name}-old", f"memory://table/{name}-new"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shoal.shard._shard_file.BLOCK_BYTES", 6000)
        for shard, count in enumerate(shards):
            with shoal.ShardWriter(f"{old}/x-%06d.tar", append=shard > 0) as writer:
                for number in range(first, first + count):
                    writer.write(sample(number))
            first += count
    copy_as_segments(old, new, shards_per_segment=2)
    opened = open_generation(new)
    assert opened is not None
    return opened.table()


def shard_table() -> Table:
    """Of one shard: the third."""
    return open_shard(old_table().shards[2].url).table


@dataclass(frozen=True)
class Case:
    make: Callable[[], Table]
    first: int = 0
    count: int = sum(SHARDS)

    @property
    def samples(self) -> list[dict[str, Any]]:
        return [sample(number) for number in range(self.first, self.first + self.count)]


CASES = {
    "old": Case(old_table),
    "segments": Case(new_table),
    "joined": Case(joined_table),
    "one shard": Case(shard_table, sum(SHARDS[:2]), SHARDS[2]),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def fields_of(row: dict[str, Any], fields: list[str] | None = None) -> set[str]:
    return {name for name in row if not name.startswith("__") and (fields is None or name in fields)}


def check_extents(table: Table, found: RowExtents, samples: list[dict[str, Any]], fields: list[str] | None) -> None:
    assert found.row_keys.to_list() == [row["__key__"] for row in samples]
    assert [found.row_keys.get(at) for at in range(len(samples))] == found.row_keys.to_list()
    for at, row in enumerate(samples):
        lines = {name for line, name in enumerate(found.fields) if found.starts[line, at] >= 0}
        assert lines == fields_of(row, fields)
    for line, name in enumerate(found.fields):
        is_missing = found.starts[line] < 0
        assert found.sparse[line] or not is_missing.any()
        assert found.crcs is not None
        assert ((found.stops[line] < 0) == is_missing).all()
        assert (found.crcs[line] >= 0).all()
        assert not found.crcs[line][is_missing].any()
        if name == "bin":
            assert (found.stops[line] - found.starts[line]).tolist() == [len(row["bin"]) for row in samples]
    if fields is None or fields_of(dict.fromkeys(table.fields, 1), fields) == set(table.fields):
        assert found.is_complete


ROWS = st.lists(st.integers(0, sum(SHARDS) - 1), max_size=20)
SOME_FIELDS = st.none() | st.lists(st.sampled_from(["bin", "json", "txt", "rare.txt", "none"]), unique=True)


@pytest.mark.parametrize("name", ["old", "segments", "joined"])
@settings(deadline=None)
@given(st.lists(st.tuples(ROWS | st.tuples(st.integers(0, 31), st.integers(0, 31)), SOME_FIELDS), max_size=6))
def test_extents_and_keys_are_those_of_the_samples(name, asks):
    table, samples = CASES[name].make(), CASES[name].samples
    for rows, fields in asks:
        if isinstance(rows, tuple):
            own: Any = slice(min(rows), max(rows))
            numbers = list(range(own.start, own.stop))
        else:
            own, numbers = np.array(rows, np.int64), rows
        found = table.extents(own, fields)
        check_extents(table, found, [samples[number] for number in numbers], fields)
        shards = [table.locate(number)[0] for number in numbers]
        assert set(shards) <= set(found.numbers)
        if found.shard_numbers is not None:
            assert found.shard_numbers.tolist() == shards
        assert found.row_numbers().tolist() == [table.locate(number)[1] for number in numbers]
        assert table.keys(np.array(numbers, np.int64)) == found.row_keys.to_list()


def test_slices_that_follow_each_other_give_what_each_gives_alone(case):
    table, samples = case.make(), case.samples
    starts = table.starts.tolist()
    for start in range(0, case.count, 2):
        for stop in range(start, min(start + 3, case.count) + 1):
            found = table.extents(slice(start, stop))
            check_extents(table, found, samples[start:stop], None)
            if start < stop:
                assert isinstance(found.rows, slice) == (stop <= starts[table.locate(start)[0] + 1])


def test_rows_are_where_shards_say(case):
    table = case.make()
    counts = SHARDS if case.count == sum(SHARDS) else [case.count]
    assert (len(table), table.known_length, len(table.shards)) == (case.count, case.count, len(counts))
    assert table.starts.tolist() == np.cumsum([0, *counts]).tolist()
    every = np.arange(case.count)
    assert table.numbers(every).tolist() == np.repeat(np.arange(len(counts)), counts).tolist()
    assert [ref.samples for ref in table.shards] == counts
    for row in (-1, case.count):
        for ask in (table.locate, table.row_members, table.key):
            with pytest.raises(PositionError):
                ask(row)
        with pytest.raises(PositionError):
            table.keys(np.array([row]))


def test_members_of_one_row_are_those_of_many(case):
    table, samples = case.make(), case.samples
    for row, expected in enumerate(samples):
        one, many = table.row_members(row), table.extents(np.array([row]))
        assert (one.shard, one.row) == table.locate(row)
        assert one.key == table.key(row) == expected["__key__"]
        crcs = many.crcs
        assert crcs is not None
        lines = [line for line in range(len(many.fields)) if many.starts[line, 0] >= 0]
        assert set(one.members) == {
            (
                many.fields[line],
                int(many.starts[line, 0]),
                int(many.stops[line, 0] - many.starts[line, 0]),
                int(crcs[line, 0]),
            )
            for line in lines
        }
        offsets = [member.offset for member in table.members(row)]
        assert offsets == sorted(offsets)


def test_keys_are_found_first_of_equal_ones(case):
    table, samples = case.make(), case.samples
    keys = [row["__key__"] for row in samples]
    for key in set(keys):
        assert table.find(key) == keys.index(key)
    with pytest.raises(SampleKeyError, match=r"did you mean 'k00(08|12)'"):
        table.find(" k0008" if case.first == 0 and case.count > 9 else " k0012")


def test_totals_and_columns(case):
    table, samples = case.make(), case.samples
    totals = {name: 0 for row in samples for name in fields_of(row)}
    for name in (name for row in samples for name in fields_of(row)):
        totals[name] += 1
    assert {name: count for name, (count, _) in table.field_totals().items()} == totals
    rows = np.arange(0, case.count, 2)
    some = {name: count for name, (count, _) in table.field_totals(rows).items() if count}
    assert some == {
        name: sum(name in row for row in samples[::2]) for name in totals if any(name in row for row in samples[::2])
    }
    assert set(table.column_names()) == {"json.n", "txt", "rare.txt"} & {*table.column_types()}
    found = table.columns(["json.n", "__key__", "nothing"])
    assert found["json.n"].to_pylist() == [row["json"]["n"] for row in samples]
    assert found["__key__"].to_pylist() == [row["__key__"] for row in samples]
    assert found["nothing"].null_count == case.count
    assert table.columns(["json.n"], as_float=True)["json.n"].type == pa.float64()
    assert [table.values(row)["json.n"] for row in range(case.count)] == [row["json"]["n"] for row in samples]
    assert table.unanswerable("nothing") is None
    for number in range(len(table.shards)):
        start, stop = table.starts[number : number + 2].tolist()
        assert table.shard_keys(number).to_pylist() == [row["__key__"] for row in samples[start:stop]]


def test_shards_are_the_same_in_every_format():
    old, new, joined = old_table(), new_table(), joined_table()
    for table in (new, joined):
        assert table.total_bytes == sum(map(old.shard_bytes, range(len(SHARDS))))
        for number in range(len(SHARDS)):
            assert table.shard_bytes(number) == old.shard_bytes(number)
            assert table.shard_version(number) == old.shard_version(number)
            mine, theirs = old.blocks(number), table.blocks(number)
            assert mine is not None
            assert theirs is not None
            for part in ("rows", "offsets", "crcs"):
                assert getattr(mine, part).tolist() == getattr(theirs, part).tolist()
            assert table.record(number, "x").fields == old.record(number, "x").fields
            assert table.shard_rows(number).keys == old.shard_rows(number).keys
            assert {name for name, has in old.presence(number).items() if not has} <= set(table.fields_of(number))


def test_deleted_rows_are_a_view():
    table = new_table()
    assert table.deleted().as_array().tolist() == [2, 9, 31]
    assert len(table.live()) == sum(SHARDS) - 3
    doubled = SegmentTable.concatenate([table, table])  # type: ignore[list-item]
    assert doubled.deleted().as_array().tolist() == [2, 9, 31, 34, 41, 63]
    assert len(doubled.live()) == 2 * sum(SHARDS) - 6


def test_a_table_without_rows():
    table = SegmentTable([])
    assert (len(table), list(table.shards), table.fields, table.column_names()) == (0, [], (), ())
    assert table.starts.tolist() == [0]
    with pytest.raises(SampleKeyError):
        table.find("k")
