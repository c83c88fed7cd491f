"""Rows files: the index of a shard comes back exactly; every changed byte is an error before Arrow parses anything."""

from __future__ import annotations

import itertools
import os
import uuid
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal._crc32 import crc32
from shoal.errors import ObjectNotFoundError, OptionError, ShardIndexError
from shoal.shard import KeyRule, _rows_file, load_index
from shoal.shard._manifest import record_of
from shoal.shard._metadata_columns import extractor_for
from shoal.shard._rows_file import (
    NESTED_REASON,
    SHARD_COLUMNS,
    RowsFile,
    batch_of,
    block_records,
    blocks_of_records,
    read_record,
    rows_of_batch,
    shard_digest,
    write_rows_file,
)
from shoal.shard._shard_rows import Blocks, FieldExtents, IndexMetadata, LongExtents, ShardRows, field_totals
from shoal.shard._stored_rows import index_url

NAMES = st.text(st.characters(codec="utf-8"), max_size=9)
WORDS = st.integers(0, (1 << 32) - 1)
SIZES = st.integers(0, 5000) | st.integers(0, (1 << 63) - 1)
COLUMN_TYPES = {
    pa.null(): st.none(),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): NAMES,
    pa.large_string(): NAMES,
}


def as_long(rows):
    """The same index with extents stored by row."""
    parts = list(rows.fields.items())
    places = [(row, code) for row in range(len(rows)) for code, (_, part) in enumerate(parts) if part.offset[row]]
    entry_rows, codes = (np.array([place[i] for place in places], np.int64) for i in range(2))
    known = all(part.crc is not None for _, part in parts)
    kinds = {"offset": np.uint64, "size": np.uint64, **({"crc": np.uint32} if known else {})}
    values = {
        name: np.array([getattr(parts[code][1], name)[row] for row, code in places], kind)
        for name, kind in kinds.items()
    }
    extents = LongExtents(
        len(rows), [name for name, _ in parts], entry_rows, codes, values["offset"], values["size"], values.get("crc")
    )
    return replace(rows, fields=extents)


@st.composite
def draw_blocks(draw, count):
    first, *steps = draw(st.lists(st.integers(0, 1 << 34), min_size=1, max_size=5))
    edges = (
        sorted(draw(st.lists(st.integers(0, count), min_size=len(steps) - 1, max_size=len(steps) - 1))) if steps else []
    )
    rows = [0, *edges, count] if steps else [0]
    offsets = np.cumsum([first, *steps])
    crcs = draw(st.lists(WORDS, min_size=len(steps), max_size=len(steps)))
    stored = np.cumsum([10, *(step // 3 for step in steps)]) if draw(st.booleans()) else None
    return Blocks(np.array(rows, np.int64), offsets, np.array(crcs, np.uint32), stored)


@st.composite
def draw_wide(draw, alike=False):
    """Rows of any shard; ``alike`` with one answer to whether checksums are known."""
    count = draw(st.integers(0, 12))

    def numbers(values, kind):
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), kind)

    names, known = draw(st.lists(NAMES, max_size=4, unique=True)), draw(st.booleans())
    fields = {}
    for name in names:
        offset, size = numbers(st.just(0) | SIZES, np.uint64), numbers(SIZES, np.uint64)
        crc = numbers(WORDS, np.uint32) if (known if alike else draw(st.booleans())) else None
        there = offset > 0
        fields[name] = FieldExtents(offset, size * there, None if crc is None else crc * there)
    columns = {}
    for name in draw(st.lists(NAMES | st.just("key"), max_size=6, unique=True)):
        kind = draw(st.sampled_from(list(COLUMN_TYPES)))
        values = draw(st.lists(st.none() | COLUMN_TYPES[kind], min_size=count + 2, max_size=count + 2))
        columns[name] = pa.array(values, kind).slice(1, count)
    keys = draw(st.lists(NAMES, min_size=count + 2, max_size=count + 2))
    reasons = st.dictionaries(NAMES, NAMES, max_size=3)
    facts = IndexMetadata(
        draw(st.integers(0, (1 << 63) - 1)),
        draw(WORDS),
        draw(st.sampled_from([KeyRule(), KeyRule(dot="last", group="archive", encoding="latin-1")])),
        draw(st.sampled_from([None, "gz", "zst"])),
        draw(st.dictionaries(NAMES, st.integers(1, 9), max_size=3)),
        draw(reasons),
        draw(st.lists(NAMES, max_size=3, unique=True)),
        draw(st.dictionaries(NAMES, st.lists(st.integers(0, 99), min_size=1, max_size=3), max_size=2)),
        draw(st.booleans()),
    )
    kind = draw(st.sampled_from([pa.string(), pa.large_string()]))
    blocks = draw(
        st.none()
        | (draw_blocks(count) if count else st.just(Blocks(np.array([0]), np.array([0]), np.empty(0, np.uint32))))
    )
    return ShardRows(facts, pa.array(keys, kind).slice(1, count), fields, columns, blocks)


ROWS = draw_wide() | draw_wide(alike=True).map(as_long)


def example(count=5):
    numbers = np.arange(1, count + 1, dtype=np.uint64)
    fields = {
        "jpg": FieldExtents(numbers * 512, numbers, numbers.astype(np.uint32)),
        "json": FieldExtents(numbers * 1024, numbers + 9, None),
    }
    columns = {"json.w": pa.array([None, *range(count - 1)]), "key": pa.array([f"t{i}" for i in range(count)])}
    blocks = Blocks(np.array([0, 2, count]), np.array([0, 1024, 4096]), np.array([7, 8], np.uint32))
    facts = IndexMetadata(9999, 77, dropped={"txt": "long"}, nested=["json"], unreadable={"json": [3, 4]})
    return ShardRows(facts, pa.array([f"key{i}" for i in range(count)]), fields, columns, blocks)


def write(rows, url=None, path="a/b.tar", **options):
    url = url or f"memory://{uuid.uuid4()}/a.rows"
    write_rows_file(url, record_of(path, rows), rows, **options)
    return url


def same_array(found, expected):
    return (found is None) == (expected is None) and (
        found is None or (found.dtype == expected.dtype and np.array_equal(found, expected))
    )


def assert_same(found, expected):
    """Every part of two indexes is equal, and is stored alike."""
    assert replace(found.facts, nested=list(found.facts.nested)) == replace(
        expected.facts, nested=list(expected.facts.nested)
    )
    assert found.keys.type == expected.keys.type
    assert found.keys.equals(expected.keys)
    assert list(found.columns) == list(expected.columns)
    for name, column in expected.columns.items():
        assert found.columns[name].type == column.type
        assert found.columns[name].equals(column)
    assert list(found.fields) == list(expected.fields)
    assert isinstance(found.fields, LongExtents) == isinstance(expected.fields, LongExtents)
    if isinstance(expected.fields, LongExtents):
        for name in ("entry_rows", "codes", "offset", "size", "crc"):
            assert same_array(getattr(found.fields, name), getattr(expected.fields, name)), name
    for name, part in expected.fields.items():
        for role in ("offset", "size", "crc"):
            assert same_array(getattr(found.fields[name], role), getattr(part, role)), (name, role)
    assert (found.blocks is None) == (expected.blocks is None)
    if expected.blocks is not None:
        for name in ("rows", "offsets", "crcs", "stored"):
            assert same_array(getattr(found.blocks, name), getattr(expected.blocks, name)), name


# -------------------------------------------------------------------------------------------------------- round trips


@given(ROWS)
def test_the_index_of_a_shard_comes_back_exactly(rows):
    url = write(rows)
    assert_same(RowsFile(url).rows(), rows)
    assert read_record(url) == RowsFile(url).record == record_of("a/b.tar", rows)


@given(ROWS)
def test_the_summary_is_that_of_the_rows(rows):
    summary = RowsFile(write(rows)).summary
    assert (summary.rows, summary.shards, summary.bytes) == (len(rows), 1, rows.facts.size)
    assert summary.fields == field_totals(rows)
    assert summary.columns == {name: column.type for name, column in rows.columns.items()}
    assert summary.left_out == {**dict.fromkeys(rows.facts.nested, NESTED_REASON), **rows.facts.dropped}
    assert summary.complete == rows.facts.complete
    assert summary.longest_key == max((len(key.encode()) for key in rows.keys.to_pylist()), default=0)
    assert summary.unreadable == {name: numbers[0] for name, numbers in rows.facts.unreadable.items()}


@given(ROWS)
def test_one_batch_has_all_rows(rows):
    url = f"memory://{uuid.uuid4()}/a.rows"
    write_rows_file(url, replace(record_of("x.tar", rows), sha256="ab"), rows)
    source = RowsFile(url)
    for _ in range(2):
        (batch,) = source.batches()
        expected = batch_of("x.tar", rows, sha256="ab")
        assert batch.shards.equals(expected.shards)
        assert batch.shards.schema == SHARD_COLUMNS
        batch.shards.validate(full=True)
        assert np.array_equal(batch.blocks, expected.blocks)
        assert batch.blocks.shape[1] == 8
        assert {name: numbers.tolist() for name, numbers in batch.unreadable.items()} == rows.facts.unreadable
        assert batch.keys.equals(rows.keys)
    (shard,) = batch.shards.to_pylist()
    assert shard == {
        "path": "x.tar",
        "samples": len(rows),
        "bytes": rows.facts.size,
        "blocks": 0 if rows.blocks is None else len(rows.blocks) + 1,
        "compression": rows.facts.compression,
        "head_crc32": rows.facts.head_crc,
        "sha256": "ab",
        "digest": shard_digest(rows),
    }


@given(ROWS)
def test_a_batch_of_one_shard_gives_its_rows_back(rows):
    source = RowsFile(write(rows))
    (batch,) = source.batches()
    summary = source.summary
    facts = replace(
        rows.facts, skipped={}, nested=[name for name in rows.facts.nested if name not in rows.facts.dropped]
    )
    assert_same(rows_of_batch(batch, rows.facts.rule, summary.left_out, summary.complete), replace(rows, facts=facts))


def test_a_batch_of_several_shards_is_not_one():
    batch = batch_of("a.tar", example())
    with pytest.raises(ValueError, match="values"):
        rows_of_batch(replace(batch, shards=pa.concat_tables([batch.shards] * 2)), KeyRule(), {}, complete=True)


def test_what_a_writer_indexes_comes_back(tmp_path):
    samples = [
        {"__key__": "a", "json": {"w": 1, "x": 1.5, "ok": True, "none": None, "in": {"s": "t"}}, "txt": "one"},
        {"__key__": "b", "json": {"w": None, "x": 2, "list": [1]}, "cls": 3},
        {"__key__": "c", "jpg": b"\xff\xd8", "txt": "z" * 600},
    ]
    for number, compression in enumerate([None, "gz", "zst", "xz"]):
        folder = str(tmp_path / str(number))
        with shoal.ShardWriter(f"{folder}/a-%06d.tar" + (f".{compression}" if compression else "")) as writer:
            for sample in samples:
                writer.write(sample)
        (path,) = [name for name in os.listdir(folder) if not name.startswith(".")]
        rows = load_index(index_url(folder, path))
        assert {str(column.type) for column in rows.columns.values()} >= {"int64", "double", "bool", "null", "string"}
        assert rows.facts.dropped
        assert rows.facts.nested
        assert (rows.blocks.stored is not None) == (compression in ("gz", "zst"))
        assert_same(RowsFile(write(rows, f"{folder}/.shoal/a.rows")).rows(), rows)


# ------------------------------------------------------------------------------------------------------------- blocks


def test_starts_and_sizes_beyond_32_bits_are_kept():
    starts = np.array([0, 6 << 32, (6 << 32) + 512, 1 << 50])
    blocks = Blocks(np.array([0, 1, 2, 3]), starts, np.array([1, 2, 3], np.uint32), starts // 2 + 1)
    records = block_records(blocks, first_row=1 << 20)
    assert records[:, 3].tolist() == [0xFFFFFFFF, 512, 0xFFFFFFFF, 0]
    assert records[:, 0].tolist() == [(1 << 20) + row for row in range(4)]
    found = blocks_of_records(records, 1 << 20)
    assert (found.rows.tolist(), found.offsets.tolist()) == ([0, 1, 2, 3], starts.tolist())
    assert found.stored.tolist() == (starts // 2 + 1).tolist()


def test_blocks_of_no_samples_are_not_unknown_blocks():
    none = Blocks(np.array([0]), np.array([512]), np.empty(0, np.uint32))
    assert blocks_of_records(block_records(none)).offsets.tolist() == [512]
    assert blocks_of_records(block_records(None)) is None


@pytest.mark.parametrize("row, word, value", [(0, 0, 1), (1, 0, 9), (1, 1, 9999), (1, 5, 1 << 31)])
def test_blocks_that_do_not_follow_each_other_are_refused(row, word, value):
    records = block_records(example().blocks)
    records[row, word] = value
    with pytest.raises(ValueError, match="follow each other"):
        blocks_of_records(records)


# ------------------------------------------------------------------------------------------------------------- digest


@given(draw_wide(alike=True), st.randoms(use_true_random=False))
def test_a_digest_does_not_depend_on_how_extents_are_stored(rows, draw):
    names = list(rows.fields)
    draw.shuffle(names)
    shuffled = replace(rows, fields={name: rows.fields[name] for name in names})
    moved = {
        name: replace(part, offset=np.where(part.offset, part.offset // 2 + 1, 0).astype(np.uint64))
        for name, part in rows.fields.items()
    }
    others = [shuffled, as_long(rows), as_long(shuffled), replace(rows, fields=moved)]
    others += [replace(rows, keys=rows.keys.cast(pa.large_string())), replace(rows, columns={}, blocks=None)]
    absent = FieldExtents(*(np.zeros(len(rows), kind) for kind in (np.uint64, np.uint64, np.uint32)))
    others.append(replace(rows, fields={**rows.fields, "": rows.fields.get("", absent)}))
    assert len(shard_digest(rows)) == 16
    assert {shard_digest(other) for other in others} == {shard_digest(rows)}


def test_a_digest_depends_on_keys_fields_sizes_checksums_and_the_order_of_rows():
    rows = example()
    jpg, json = rows.fields.values()

    def changed(part, name, row, value):
        values = getattr(part, name).copy()
        values[row] = value
        return replace(part, **{name: values})

    variants = [
        rows,
        replace(rows, keys=pa.array(["key", "0key1", "key2", "key3", "key4"])),
        replace(rows, fields={"jpeg": jpg, "json": json}),
        replace(rows, fields={"json": jpg, "jpg": json}),
        replace(rows, fields={"jpg": jpg}),
        replace(rows, fields={"jpg": jpg, "json": replace(json, crc=np.zeros(5, np.uint32))}),
        *(replace(rows, fields={"jpg": changed(jpg, "offset", row, 0), "json": json}) for row in range(5)),
        *(replace(rows, fields={"jpg": changed(jpg, "size", row, 99), "json": json}) for row in range(5)),
        *(replace(rows, fields={"jpg": changed(jpg, "crc", row, 99), "json": json}) for row in range(5)),
        replace(rows, fields={"jpg": changed(jpg, "size", 0, 1 << 32), "json": json}),
        replace(rows, keys=rows.keys.take(pa.array([1, 0, 2, 3, 4]))),
    ]
    assert len({shard_digest(variant) for variant in variants}) == len(variants)


def test_the_digest_of_a_shard_never_changes():
    assert shard_digest(example()).hex() == "ebb5d6420c451749d8e7963e6d7b271d"


# ------------------------------------------------------------------------------------------------------------- damage


@pytest.fixture
def no_parsing(monkeypatch):
    """Arrow must not be called."""

    def refuse(*_):
        raise AssertionError("Arrow parsed what was not verified")

    for name in ("open_stream", "read_schema", "read_record_batch"):
        monkeypatch.setattr(pa.ipc, name, refuse)


def is_refused(path, data):
    path.write_bytes(data)
    with pytest.raises(ShardIndexError) as caught:
        RowsFile(str(path)).rows()
    return caught.value.shard == str(path)


@pytest.mark.parametrize("form", [lambda rows: rows, as_long])
@pytest.mark.usefixtures("no_parsing")
def test_every_changed_byte_and_every_truncation_is_an_error_before_arrow_parses_anything(tmp_path, form):
    path = tmp_path / "a.rows"
    write(form(example()), str(path))
    data = path.read_bytes()
    for place, bit in zip(range(len(data)), itertools.cycle([1, 32, 4, 128, 2, 64, 16, 8]), strict=False):
        assert is_refused(path, data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        assert is_refused(path, data[:place])
    for bit in range(8):  # such as other spellings of a hexadecimal digit
        for place in range(40):
            assert is_refused(path, data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
    assert is_refused(path, data + b"\0")
    assert is_refused(path, data + data)
    assert is_refused(path, b"")


def test_a_damaged_head_gives_no_record_and_no_summary(tmp_path):
    path = tmp_path / "a.rows"
    write(example(), str(path))
    data = path.read_bytes()
    stop = data.index(b"\n", 40) + 1
    for place in range(stop):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ShardIndexError):
            read_record(str(path))
        path.write_bytes(data[:place])
        with pytest.raises(ShardIndexError):
            _ = RowsFile(str(path)).summary
    path.write_bytes(data[:stop])  # the streams are not looked at
    assert read_record(str(path)).path == "a/b.tar"


def with_head(data, **changes):
    """The file with another head, and checksums that fit."""
    length = int(data[11:19], 16)
    head = _rows_file.msgspec.json.decode(data[29 : 29 + length])
    head = _rows_file.msgspec.json.encode({**head, **changes})
    return b"shoal-rows %08x %08x\n" % (len(head), crc32(head)) + head + data[29 + length :]


@pytest.mark.parametrize(
    "changes, hint, match",
    [
        ({"version": 2}, "Upgrade shoal", "Version 2"),
        ({"version": 2, "facts": None, "new": 1}, "Upgrade shoal", "Version 2"),
        ({"version": 0}, "shoal index", "Version 0"),
        ({"version": "x"}, "shoal index", "not one that shoal wrote"),
        ({"facts": None}, "shoal index", "not one that shoal wrote"),
    ],
)
def test_another_version_is_refused_by_its_number(tmp_path, changes, hint, match):
    path = tmp_path / "a.rows"
    write(example(), str(path))
    path.write_bytes(with_head(path.read_bytes(), **changes))
    for read in (read_record, lambda url: RowsFile(url).rows()):
        with pytest.raises(ShardIndexError, match=match) as caught:
            read(str(path))
        assert hint in str(caught.value.hint)


@pytest.mark.parametrize("form", [lambda rows: rows, as_long])
@pytest.mark.parametrize(
    "change",
    [
        lambda head: {"record": {**head["record"], "samples": 6}},
        lambda head: {"record": {**head["record"], "fields": {"jpg": [5, 15]}}},
        lambda head: {"columns": {}},
        lambda head: {"streams": [head["streams"][0] + 8, head["streams"][1] - 8, head["streams"][2]]},
        lambda head: {"streams": [*head["streams"], 0]},
    ],
)
def test_a_head_that_does_not_fit_its_streams_is_refused(tmp_path, form, change):
    path = tmp_path / "a.rows"
    write(form(example()), str(path))
    data = path.read_bytes()
    head = _rows_file.msgspec.json.decode(data[29 : 29 + int(data[11:19], 16)])
    path.write_bytes(with_head(data, **change(head)))
    with pytest.raises(ShardIndexError, match="not one that shoal wrote"):
        RowsFile(str(path)).rows()


def test_a_file_that_is_replaced_after_its_head_was_read_is_an_error(tmp_path):
    url = write(example(), str(tmp_path / "a.rows"))
    source = RowsFile(url)
    assert source.summary.rows == 5
    write(example(), url)
    assert len(source.rows()) == 5  # the same again
    write(example(4), url)
    with pytest.raises(ShardIndexError, match="replaced"):
        list(source.batches())
    assert len(RowsFile(url).rows()) == 4


def test_a_file_that_does_not_exist_is_not_damage(tmp_path):
    source = RowsFile(str(tmp_path / "a.rows"))  # opens nothing
    for read in (source.rows, lambda: source.record, lambda: source.summary, lambda: list(source.batches())):
        with pytest.raises(ObjectNotFoundError):
            read()


# ------------------------------------------------------------------------------------------------------------ writing


def test_a_head_of_many_fields_is_read_completely(tmp_path):
    count = 3000
    numbers = np.arange(count)
    ones = np.ones(count, np.uint64)
    fields = LongExtents(3, [f"field{i}" for i in numbers], numbers // 1000, numbers, ones, ones, None)
    rows = ShardRows(IndexMetadata(1, 2), pa.array(["a", "b", "c"]), fields, {}, None)
    url = write(rows, str(tmp_path / "a.rows"))
    assert len(read_record(url).fields) == count
    assert_same(RowsFile(url).rows(), rows)


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("count", [10, 20_000])
def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch, count):
    url = write(example(), str(tmp_path / "a.rows"))
    before = (tmp_path / "a.rows").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(example(count), url)
    assert os.listdir(tmp_path) == ["a.rows"]
    assert (tmp_path / "a.rows").read_bytes() == before
    assert len(RowsFile(write(example(count), url)).rows()) == count


@pytest.mark.parametrize("durable", [False, True])
def test_only_a_durable_file_waits_for_the_disk(tmp_path, monkeypatch, durable):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write(example(), str(tmp_path / "a.rows"), durable=durable)
    assert bool(synced) == durable


@pytest.mark.parametrize("change", [{"samples": 4}, {"fields": {}}])
def test_the_record_of_another_shard_is_refused(tmp_path, change):
    rows = example()
    with pytest.raises(OptionError, match="record must be that of the rows"):
        write_rows_file(str(tmp_path / "a.rows"), replace(record_of("a.tar", rows), **change), rows)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["__key__", "__shard__", "__unreadable__"])
def test_no_metadata_column_has_a_name_that_segments_use(name):
    # A column is called like its field, or the field, a dot and more; names such as `__x.json.y` are possible.
    assert extractor_for(name) is None
