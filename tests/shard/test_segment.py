"""Segments, read back by a decoder of their own: plain `struct`, `zlib` and pyarrow."""

from __future__ import annotations

import io
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import SchemaMismatchError, WriteError
from shoal.shard import _segment
from shoal.shard._arrow_arrays import text_array
from shoal.shard._key_table import hash_key
from shoal.shard._layout import RecordLayout, Segment
from shoal.shard._rows_file import NESTED_REASON, SHARD_COLUMNS, RowBatch, RowsSummary
from shoal.shard._segment import choose_layout, drop_segments, write_deleted, write_segments
from shoal.shard._shard_rows import FieldExtents, LongExtents
from shoal.store._operations import list_objects
from shoal.store._registry import store_for

Extent = tuple[int, int, int | None]


# --------------------------------------------------------------------------------------------------- rows to be written


@dataclass(frozen=True)
class Row:
    key: str
    members: Mapping[str, Extent] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shard:
    path: str
    rows: Sequence[Row]
    blocks: Sequence[int] = ()
    """The first row of each block, and the end."""


@dataclass(frozen=True)
class RowList:
    """A `RowSource` of shards in batches of so many rows; 0 is one batch."""

    shards: Sequence[Shard]
    batch_rows: int = 0
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True
    long: bool = False

    @property
    def rows(self) -> list[Row]:
        return [row for shard in self.shards for row in shard.rows]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.members))

    @property
    def summary(self) -> RowsSummary:
        rows = self.rows
        fields = {name: [row.members[name] for row in rows if name in row.members] for name in self.names}
        bad = [(name, number) for number, row in enumerate(rows) for name in row.unreadable]
        return RowsSummary(
            len(rows),
            len(self.shards),
            sum(map(shard_bytes, self.shards)),
            {name: (len(extents), sum(extent[1] for extent in extents)) for name, extents in fields.items()},
            dict(self.types),
            dict(self.left_out),
            self.complete,
            max((len(row.key.encode()) for row in rows), default=0),
            dict(reversed(bad)),
        )

    def batches(self) -> Iterator[RowBatch]:
        rows, firsts, row = self.rows, [], 0
        for shard in self.shards:
            firsts.append(row)
            row += len(shard.rows)
        step = self.batch_rows or max(len(rows), 1)
        for start in range(0, max(len(rows), 1), step):
            is_last = start + step >= len(rows)
            own = [(first, s) for first, s in zip(firsts, self.shards, strict=True) if start <= first]
            own = [(first, shard) for first, shard in own if is_last or first < start + step]
            yield self.batch(rows[start : start + step], [(first - start, shard) for first, shard in own])

    def batch(self, rows: Sequence[Row], shards: Sequence[tuple[int, Shard]]) -> RowBatch:
        listed = [
            [shard.path for _, shard in shards],
            [len(shard.rows) for _, shard in shards],
            [shard_bytes(shard) for _, shard in shards],
            [len(shard.blocks) for _, shard in shards],
            [None for _ in shards],
            [len(shard.path) for _ in shards for shard in [_[1]]],
            [None for _ in shards],
            [shard.path.encode().ljust(16)[:16] for _, shard in shards],
        ]
        arrays = [pa.array(values, kind) for values, kind in zip(listed, SHARD_COLUMNS.types, strict=True)]
        blocks = [[first + row, *([len(shard.path)] * 7)] for first, shard in shards for row in shard.blocks]
        columns = {name: pa.array([row.values.get(name) for row in rows], kind) for name, kind in self.types.items()}
        unreadable: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            for name in row.unreadable:
                unreadable.setdefault(name, []).append(number)
        return RowBatch(
            pa.Table.from_arrays(arrays, schema=SHARD_COLUMNS),
            text_array([row.key for row in rows]),
            (self.long_extents if self.long else self.wide_extents)(rows),
            columns,
            {name: np.array(numbers, np.int64) for name, numbers in unreadable.items()},
            np.array(blocks, np.uint32).reshape(-1, 8),
        )

    def wide_extents(self, rows: Sequence[Row]) -> dict[str, FieldExtents]:
        return {
            name: extents_of([row.members.get(name, (0, 0, 0)) for row in rows])
            for name in self.names
            if any(name in row.members for row in rows)
        }

    def long_extents(self, rows: Sequence[Row]) -> LongExtents:
        names = self.names
        entries = [
            (at, names.index(name), extent) for at, row in enumerate(rows) for name, extent in row.members.items()
        ]
        part = extents_of([extent for *_, extent in entries])
        at, codes = (np.array([entry[i] for entry in entries], np.int64) for i in range(2))
        return LongExtents(len(rows), names, at, codes, part.offset, part.size, part.crc)


def extents_of(extents: Sequence[Extent]) -> FieldExtents:
    offset, size = (np.array([extent[i] for extent in extents], np.uint64) for i in range(2))
    crcs = [extent[2] for extent in extents]
    return FieldExtents(offset, size, None if None in crcs else np.array(crcs, np.uint32))


def shard_bytes(shard: Shard) -> int:
    return 1000 * len(shard.path)


def plain_shard(path: str, count: int, **values: Any) -> Shard:
    return Shard(path, [Row(f"{path}-{i}", {"jpg": (512 + 1024 * i, 7, i + 1)}, values) for i in range(count)])


def memory_root() -> str:
    return f"memory://{uuid.uuid4()}"


# ------------------------------------------------------------------------------------------------------------- decoder


def read_file(root: str, segment: Segment, name: str) -> bytes:
    file = segment.file(name)
    if not file.size:
        return b""
    url = f"{root}/.shoal/index/{segment.id}/{name}"
    data = store_for(url).read_all(url)
    assert len(data) == file.size
    return data


def read_records(root: str, segment: Segment, name: str, words: int) -> list[tuple[int, ...]]:
    size = 4096
    while size - 4 < 4 * words:
        size *= 2
    per_page, count = (size - 4) // (4 * words), segment.file(name).records
    data, records = read_file(root, segment, name), []
    seed = zlib.crc32(f"{segment.id}/{name}".encode())
    assert len(data) == -(-count // per_page) * size
    for number, start in enumerate(range(0, len(data), size)):
        page = data[start : start + size]
        assert struct.unpack_from("<I", page, size - 4) == (zlib.crc32(page[:-4], (seed + number) & 0xFFFFFFFF),)
        records += [struct.unpack_from(f"<{words}I", page, 4 * words * slot) for slot in range(per_page)]
    return records[:count]


def read_table(root: str, segment: Segment, name: str) -> list[dict[str, Any]]:
    data = read_file(root, segment, name)
    return pq.read_table(io.BytesIO(data)).to_pylist() if data else []


def read_members(root: str, segment: Segment) -> list[tuple[str, dict[str, Extent]]]:
    """Key and members of every row, as `_layout` describes the records."""
    layout = segment.layout
    names = b"".join(struct.pack("<16I", *record) for record in read_records(root, segment, "names.rec", 16))
    rare = read_records(root, segment, "rare.rec", 10)
    used = 0
    rows = []
    for row, record in enumerate(read_records(root, segment, "extents.rec", layout.words)):
        members: dict[str, Extent] = {}
        for line, name in enumerate(layout.fields):
            offset, size, crc = record[layout.extent_word(line) : layout.extent_word(line) + 3]
            if offset:
                members[name] = 512 * offset, size, crc if crc or not size else None
            else:
                assert (size, crc) == (0, 0)
        number = record[layout.rare_word]
        if number:
            assert number == used + 1
            count = rare[number - 1][1] + 1
            for left, entry in enumerate(reversed(rare[number - 1 : number - 1 + count])):
                assert entry[:2] == (row, left)
            for _, _, first, size, *words, crc, known in rare[number - 1 : number - 1 + count]:
                low_offset, high_offset, low_size, high_size = words
                name = names[64 * first : 64 * first + size].decode()
                assert name not in members
                members[name] = low_offset | high_offset << 32, low_size | high_size << 32, crc if known else None
            used += count
        key = struct.pack(f"<{layout.rare_word}I", *record[: layout.rare_word])
        if record[0]:
            text = key.rstrip(b"\0")
            assert text
            assert b"\0" not in text
        else:
            text = names[64 * record[1] : 64 * record[1] + record[2]]
            assert not any(key[12:])
            assert len(text) > layout.key_bytes or not text or b"\0" in text
        rows.append((text.decode(), members))
    assert used == len(rare)
    return rows


def expected_members(row: Row) -> dict[str, Extent]:
    """Of an empty member, a crc32 that is not known is 0."""
    return {name: (at, size, 0 if crc is None and not size else crc) for name, (at, size, crc) in row.members.items()}


# ---------------------------------------------------------------------------------------------------------- properties

KEYS = st.text(max_size=12) | st.text("ab\0", max_size=80) | st.integers(0, 99).map("{:09d}".format)
OFFSETS = st.integers(1, 99).map(lambda n: 512 * n) | st.sampled_from([7, 1 << 41, (1 << 41) - 512, (1 << 63) - 1])
SIZES = st.integers(0, 9) | st.sampled_from([(1 << 32) - 1, 1 << 32, 1 << 50])
KNOWN_CRCS = st.sampled_from([0, 1, (1 << 32) - 1])
FIELDS = st.sampled_from(["jpg", "json", "a.b", "", "ü" * 40, "cls"])
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "none": (pa.null(), st.none()),
    "int": (pa.int64(), st.none() | st.integers(-99, 99)),
    "double": (pa.float64(), st.none() | st.floats(-9, 9)),
    "text": (pa.string(), st.none() | st.text(max_size=3)),
    "large text": (pa.large_string(), st.none() | st.text(max_size=3)),
    "bool": (pa.bool_(), st.none() | st.booleans()),
}


@st.composite
def row_lists(draw, number):
    crcs = draw(st.sampled_from([KNOWN_CRCS, st.none()]))
    members = st.dictionaries(FIELDS, st.tuples(OFFSETS, SIZES, crcs), max_size=4)
    kinds = draw(st.dictionaries(st.sampled_from(["x", "y", "z"]), st.sampled_from(list(VALUES))))
    values = st.fixed_dictionaries({name: VALUES[kind][1] for name, kind in kinds.items()})
    bad = st.sampled_from([(), (), (), ("json",), ("json", "cls")])
    rows = st.lists(st.builds(Row, KEYS, members, values, bad), max_size=8)
    shards = []
    for place, own in enumerate(draw(st.lists(rows, max_size=4))):
        blocks = [*range(0, len(own), 2), len(own)] if draw(st.booleans()) else []
        shards.append(Shard(f"{number}/{'x' * place}.tar", own, blocks))
    types = {name: VALUES[kind][0] for name, kind in kinds.items()}
    return RowList(shards, draw(st.integers(0, 5)), types, long=draw(st.booleans()))


@st.composite
def several_row_lists(draw):
    return [draw(row_lists(number)) for number in range(draw(st.integers(0, 4)))]


@settings(deadline=None)
@given(several_row_lists(), st.integers(1, 20), st.sampled_from([300, 8 << 20]))
def test_segments_have_all_rows_in_order(sources, max_rows, flush_bytes):
    root = memory_root()
    with (
        mock.patch.object(_segment, "MAX_SEGMENT_ROWS", max_rows),
        mock.patch.object(_segment, "_FLUSH_BYTES", flush_bytes),
    ):
        segments = write_segments(root, sources)
    shards = [(shard, source) for source in sources for shard in source.shards]

    assert sum(segment.shards for segment in segments) == len(shards)
    for segment in segments:
        own, shards = shards[: segment.shards], shards[segment.shards :]
        check_segment(root, segment, own, max_rows)
        if shards:  # a segment ends only where the next shard does not fit
            assert segment.rows + len(shards[0][0].rows) > max_rows
    assert not {url.url for url in list_objects(root)} - {f"{root}/{path}" for s in segments for path in s.paths()}


def check_segment(root: str, segment: Segment, shards: Sequence[tuple[Shard, RowList]], max_rows: int) -> None:
    rows = [(number, row) for number, (shard, _) in enumerate(shards) for row in shard.rows]
    assert segment.rows == len(rows)
    assert segment.rows <= max_rows or sum(bool(shard.rows) for shard, _ in shards) == 1
    assert segment.bytes == sum(shard_bytes(shard) for shard, _ in shards)

    members = read_members(root, segment)
    assert members == [(row.key, expected_members(row)) for _, row in rows]
    totals: dict[str, list[int]] = {}
    for _, row in rows:
        for name, (_, size, _) in row.members.items():
            totals.setdefault(name, []).append(size)
    assert segment.fields == {name: (len(sizes), sum(sizes)) for name, sizes in totals.items()}

    listed = read_table(root, segment, "shards.parquet")
    assert [(s["path"], s["samples"], s["blocks"]) for s in listed] == [
        (shard.path, len(shard.rows), len(shard.blocks)) for shard, _ in shards
    ]
    firsts = [sum(len(shard.rows) for shard, _ in shards[:number]) for number in range(len(shards))]
    blocks = [
        (first + row, *[len(shard.path)] * 7)
        for first, (shard, _) in zip(firsts, shards, strict=True)
        for row in shard.blocks
    ]
    assert read_records(root, segment, "blocks.rec", 8) == blocks

    samples = read_table(root, segment, "samples.parquet")
    assert [(sample.pop("__key__"), sample.pop("__shard__")) for sample in samples] == [
        (row.key, number) for number, row in rows
    ]
    unreadable = [sample.pop("__unreadable__", None) for sample in samples]
    assert unreadable == [list(row.unreadable) or None for _, row in rows]
    bad = [(name, number) for number, (_, row) in enumerate(rows) for name in row.unreadable]
    assert segment.unreadable == dict(reversed(bad))
    assert [set(sample) for sample in samples] == [set(segment.columns)] * len(rows)
    assert samples == [{name: row.values.get(name) for name in segment.columns} for _, row in rows]

    keys = [high << 32 | low for low, high in read_records(root, segment, "keys.rec", 2)]
    assert keys == sorted(hash_key(row.key) << 32 | number for number, (_, row) in enumerate(rows))


@settings(deadline=None)
@given(several_row_lists())
def test_a_column_has_one_type_or_is_left_out(sources):
    found: dict[str, set[str]] = {}
    for source in sources:
        for name, kind in source.types.items():
            found.setdefault(name, set()).add(str(kind).removeprefix("large_"))
    for segment in write_segments(memory_root(), sources):
        for name, kinds in found.items():
            known = kinds - {"null"} or {"null"}
            known = {"double"} if known == {"double", "int64"} else known
            assert segment.columns.get(name) == (None if len(known) > 1 else next(iter(known)))
            assert (name in segment.left_out) == (len(known) > 1)


# -------------------------------------------------------------------------------------------------------------- layout


def test_a_layout_has_fields_of_half_of_the_rows_and_room_for_the_longest_key():
    a = RowList([Shard("a", [Row("k" * 13, {"x": (512, 1, 1), "y": (512, 1, 1)}), Row("k", {"": (512, 1, 1)})])])
    b = RowList([Shard("b", [Row("k", {"z": (512, 1, 1), "x": (512, 1, 1)}), Row("k", {"z": (512, 1, 1)})])])

    assert choose_layout([a.summary, b.summary]) == RecordLayout(("x", "z"), 16)
    assert choose_layout([a.summary]) == RecordLayout(("x", "y"), 16)  # a field without a name is not listed
    assert choose_layout([]) == RecordLayout((), 12)
    assert choose_layout([replace(a.summary, longest_key=1000)]).key_bytes == 64


def test_the_layout_of_a_split_is_kept():
    root, layout = memory_root(), RecordLayout(("cls", "png"), 12)
    (segment,) = write_segments(root, [RowList([plain_shard("a", 3)])], layout)

    assert segment.layout == layout
    assert read_members(root, segment)[2] == ("a-2", {"jpg": (2560, 7, 3)})
    assert segment.fields == {"jpg": (3, 21)}


def test_very_many_fields_take_little_memory():
    rows = [Row(f"{i}", {f"f{n}": (512 * (n + 1), n, n) for n in range(1, 1001, 1 + i % 2)}) for i in range(100)]
    source = RowList([Shard("a", rows)], long=True)
    root, sizes = memory_root(), []
    zeros = np.zeros

    def watched(shape, *args, **kwargs):
        sizes.append(int(np.prod(shape)))
        return zeros(shape, *args, **kwargs)

    with mock.patch.object(_segment, "_FLUSH_BYTES", 1 << 17), mock.patch.object(_segment.np, "zeros", watched):
        (segment,) = write_segments(root, [source])

    assert len(segment.layout.fields) == 1000
    assert max(sizes) * 4 <= 1 << 18  # all records at once would be 1.2 MB
    assert read_members(root, segment) == [(row.key, expected_members(row)) for row in rows]


def test_names_of_rare_fields_are_written_once():
    shard = Shard("a", [Row(f"{i}", {"jpg": (512, 1, 1), f"r{i % 3}": (1024, 2, 3)}) for i in range(100)])
    root = memory_root()
    (segment,) = write_segments(root, [RowList([shard], batch_rows=7)])

    assert segment.file("names.rec").records == 3
    assert segment.file("rare.rec").records == 100
    assert read_members(root, segment) == [(row.key, row.members) for row in shard.rows]


def test_sources_without_shards_make_no_segment(tmp_path):
    assert write_segments(str(tmp_path), []) == ()
    assert write_segments(str(tmp_path), [RowList([])]) == ()
    assert list(tmp_path.rglob("*")) == []


def test_a_shard_without_samples_is_listed():
    root = memory_root()
    (segment,) = write_segments(root, [RowList([plain_shard("a", 0), plain_shard("b", 2), plain_shard("c", 0)])])

    assert [shard["path"] for shard in read_table(root, segment, "shards.parquet")] == ["a", "b", "c"]
    assert [row["__shard__"] for row in read_table(root, segment, "samples.parquet")] == [1, 1]


@pytest.mark.parametrize("flush_bytes, shards", [(1000, [2] * 5), (8 << 20, [4, 4, 2])])
def test_a_segment_ends_before_a_file_is_too_large(flush_bytes, shards):
    """With two shards, names.rec has 25,600 bytes; with five, extents.rec would have 40,960."""
    sources = [RowList([plain_shard(f"{'k' * 70}{i}", 100)]) for i in range(10)]
    root = memory_root()
    with (
        mock.patch.object(_segment, "MAX_FILE_BYTES", 1 << 15),
        mock.patch.object(_segment, "_FLUSH_BYTES", flush_bytes),
    ):
        segments = write_segments(root, sources)

    assert [segment.shards for segment in segments] == shards
    assert [key for segment in segments for key, _ in read_members(root, segment)] == [
        row.key for source in sources for row in source.rows
    ]


# ------------------------------------------------------------------------------------------------------------- columns


def write_columns(*sources: RowList, **options: Any) -> Segment:
    (segment,) = write_segments(memory_root(), sources, **options)
    return segment


def with_column(path: str, value: Any, kind: pa.DataType | None, name: str = "json.x", **options: Any) -> RowList:
    types = {} if kind is None else {name: kind}
    return RowList([plain_shard(path, 2, **{name: value})], types=types, **options)


def test_bounds_are_those_of_all_values():
    segment = write_columns(with_column("a", 3, pa.int64()), with_column("b", -7, pa.int64()))

    assert segment.columns == {"json.x": "int64"}
    assert segment.bounds == {"json.x": (-7, 3)}


def test_types_that_differ_are_left_out_with_the_shards():
    segment = write_columns(with_column("a", 3, pa.int64()), with_column("b.tar", "t", pa.string()))

    assert segment.columns == {}
    assert segment.left_out == {"json.x": "it is int64 in a and string in b.tar"}


def test_integers_become_doubles_only_where_that_is_exact():
    double = with_column("a", 0.5, pa.float64())

    assert write_columns(double, with_column("b", 1 << 50, pa.int64())).bounds == {"json.x": (0.5, float(1 << 50))}
    segment = write_columns(double, with_column("b", (1 << 53) + 1, pa.int64()))
    assert segment.left_out == {"json.x": "it is double, and an integer in b is too large for that"}


def test_a_column_that_a_shard_left_out_is_left_out():
    good = with_column("a", 3, pa.int64())

    assert write_columns(good, with_column("b", 0, None, left_out={"json.x": "mixed types"})).left_out == {
        "json.x": "mixed types"
    }
    segment = write_columns(good, with_column("b", 0, None, left_out={"json": "damaged", "json.x": NESTED_REASON}))
    assert (segment.columns, segment.left_out) == ({}, {"json": "damaged", "json.x": NESTED_REASON})
    segment = write_columns(good, with_column("b", 0, None, left_out={"json": NESTED_REASON, "jso": "damaged"}))
    assert segment.columns == {"json.x": "int64"}  # nested is only the name itself


def test_another_reason_replaces_that_a_name_is_nested():
    nested, dropped = ({"json": reason} for reason in (NESTED_REASON, "damaged"))
    for reasons in ([nested, dropped], [dropped, nested]):
        segment = write_columns(*(with_column(f"{i}", 0, None, left_out=one) for i, one in enumerate(reasons)))
        assert segment.left_out == dropped


def test_a_column_that_a_shard_has_is_not_left_out_with_longer_names():
    source = with_column("a", 3, pa.int64(), left_out={"json": "two values"})

    assert write_columns(source).columns == {"json.x": "int64"}


def test_a_column_that_an_incomplete_index_lacks_is_left_out():
    good = with_column("a", 3, pa.int64())
    segment = write_columns(good, with_column("b.tar", 0, None, complete=False))

    assert (segment.columns, segment.complete) == ({}, False)
    assert segment.left_out == {"json.x": "the index of b.tar has only some of its columns"}
    assert write_columns(good, with_column("b", 0, None)).complete
    assert write_columns(replace(good, complete=False)).columns == {"json.x": "int64"}


def test_the_types_of_the_dataset_count():
    known = {"json.x": pa.float64(), "other": pa.int64()}

    assert write_columns(with_column("a", 3, pa.int64()), column_types=known).columns == {"json.x": "double"}
    assert write_columns(with_column("a", None, pa.null()), column_types=known).columns == {"json.x": "null"}
    assert write_columns(with_column("a", "t", pa.string()), column_types={"json.x": pa.null()}).columns == {
        "json.x": "string"
    }
    segment = write_columns(with_column("a", "t", pa.string()), column_types=known)
    assert segment.left_out == {"json.x": "it is double in the dataset and string in a"}
    segment = write_columns(with_column("a", 0.5, pa.float64()), column_types={"json.x": pa.int64()})
    assert segment.left_out == {"json.x": "it is int64 in the dataset and double in a"}


@pytest.mark.parametrize(
    "source",
    [
        with_column("a", "t", pa.string()),
        with_column("a", (1 << 53) + 1, pa.int64()),
        with_column("a", 0, None, left_out={"json.x": "mixed types"}),
        with_column("a", 0, None, left_out={"json": "damaged"}),
    ],
)
def test_a_misfit_is_refused(source):
    root = memory_root()
    with pytest.raises(SchemaMismatchError, match=r"Column 'json\.x' .*omit") as caught:
        write_segments(root, [source], column_types={"json.x": pa.float64()}, on_misfit="error")

    assert (caught.value.field, str(caught.value.expected)) == ("json.x", "double")
    assert not list(list_objects(root))
    write_columns(source, column_types={"txt": pa.float64()}, on_misfit="error")  # the dataset lacks the column


def test_reserved_names_are_left_out():
    segment = write_columns(with_column("a", 3, pa.int64(), "__key__"))

    assert segment.left_out == {"__key__": "its name is reserved"}


# ---------------------------------------------------------------------------------------------------- files and errors


def test_segments_are_dropped(tmp_path):
    sources = [RowList([plain_shard(f"{i}", 3)]) for i in range(3)]
    with mock.patch.object(_segment, "MAX_SEGMENT_ROWS", 3):
        segments = write_segments(str(tmp_path), sources)
    deleted = write_deleted(str(tmp_path), segments[0], np.array([2, 0, 2]))
    segments = (replace(segments[0], deleted=deleted), *segments[1:])
    index = tmp_path / ".shoal" / "index"

    assert {path.name for path in index.iterdir()} == {segment.id for segment in segments}
    assert {str(path.relative_to(tmp_path)) for path in index.glob("*/*")} == {
        path for segment in segments for path in segment.paths()
    }
    drop_segments(str(tmp_path), segments)
    assert list(index.iterdir()) == []


def test_deleted_rows_are_sorted_records():
    root = memory_root()
    (segment,) = write_segments(root, [RowList([plain_shard("a", 5)])])
    file = write_deleted(root, segment, np.array([4, 1, 4]))

    assert write_deleted(root, segment, np.empty(0, np.int64)) is None
    assert file is not None
    assert read_records(root, replace(segment, files=(file,)), file.name, 1) == [(1,), (4,)]


@dataclass(frozen=True)
class FailingRows:
    """A source that breaks off after its first batches."""

    rows: RowList
    summary: RowsSummary

    def batches(self) -> Iterator[RowBatch]:
        yield from self.rows.batches()
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_local", [True, False])
def test_an_error_leaves_no_files(tmp_path, is_local):
    root = str(tmp_path) if is_local else memory_root()
    rows = RowList([plain_shard(f"{i}", 3) for i in range(5)])
    with mock.patch.object(_segment, "MAX_SEGMENT_ROWS", 4), pytest.raises(KeyboardInterrupt):
        write_segments(root, [FailingRows(rows, rows.summary)])

    assert not list(list_objects(root))
    assert not list((tmp_path / ".shoal" / "index").glob("*")) if is_local else True


@pytest.mark.parametrize("count, match", [(2, "1 after the last row"), (4, "1 too few")])
def test_rows_and_shards_must_agree(count, match):
    shard = plain_shard("a", 3)
    (batch,) = RowList([shard]).batches()
    shards = batch.shards.set_column(1, SHARD_COLUMNS.field(1), pa.array([count], pa.int64()))

    class Lying:
        summary = RowList([shard]).summary

        def batches(self) -> Iterator[RowBatch]:
            yield replace(batch, shards=shards)

    with pytest.raises(WriteError, match=match):
        write_segments(memory_root(), [Lying()])
