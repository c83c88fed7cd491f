"""Samples and columns read from any layout, through any source, are what ``tarfile`` reads; damage is always found."""

from __future__ import annotations

import gc
import io
import itertools
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.shard.samples import Opened, datasets, reads

import shoal
from shoal._crc32 import crc32
from shoal.errors import ChecksumError, DecodeError, FieldError, TruncatedError
from shoal.shard import BytesColumn, ShardMemoryCache, ShardSource
from shoal.shard._compression import BlockCompressor
from shoal.shard._index import encode_index, load_index
from shoal.shard._read import columns_of, fetch, samples_of
from shoal.shard._read_plan import plan_reads
from shoal.shard._shard_rows import KnownIndex
from shoal.shard._shard_rows_table import ExtentTable

# ------------------------------------------------------------------------------------------------- the same as tarfile


def expected_of(opened, read):
    """What ``tarfile`` reads of the chosen rows and fields."""
    every = opened.by_tarfile()
    kept = [every[row] for row in read.rows.tolist()]
    return [
        {name: row[name] for name in row if read.fields is None or name.startswith("__") or name in read.fields}
        for row in kept
    ]


def check_columns(extents, columns, expected):
    """Whether columns hold the samples: with negative starts where a sample lacks the field."""
    assert extents.keys() == [row["__key__"] for row in expected]
    assert extents.urls() == [row["__url__"] for row in expected]
    present = {name for row in expected for name in row if not name.startswith("__")}
    assert present <= columns.keys()
    for name, column in columns.items():
        assert column == [row.get(name, b"") for row in expected]
        assert (column.starts >= 0).tolist() == [name in row for row in expected]


@settings(max_examples=150)
@given(reads(), st.booleans(), st.booleans())
def test_any_rows_and_fields_of_any_layout(read, scatters, verify):
    with Opened(read.dataset, scatters=scatters, verify=verify) as opened:
        expected = expected_of(opened, read)
        source = opened.source()
        for _ in range(2):  # the second time the table of extents is there
            assert source.read(read.rows, read.fields) == expected
            check_columns(*source.columns(read.rows, read.fields), expected)
        for row, one in zip(read.rows[:3], expected, strict=False):
            assert source.read(np.array([row]), read.fields) == [one]


@settings(max_examples=100)
@given(reads(), st.integers(-1, 8192), st.integers(1, 1 << 16))
def test_any_gap_and_size_limits(read, gap, most):
    with Opened(read.dataset) as opened:
        expected, source = expected_of(opened, read), opened.source()
        extents = source.extents(read.rows, read.fields)
        plan = plan_reads(extents, max_gap=gap, max_bytes=most)
        fetched = fetch(extents, plan)
        assert samples_of(extents, fetched) == expected
        check_columns(extents, columns_of(extents, fetched), expected)
        buffer = memoryview(bytearray(plan.size))
        check_columns(extents, columns_of(extents, fetch(extents, plan, buffer), buffer), expected)


@settings(max_examples=60)
@given(reads(kept_in_memory=True), st.integers(1, 3))
def test_the_memory_cache_gives_the_same(read, calls):
    with Opened(read.dataset, scatters=True) as opened:
        expected, source = expected_of(opened, read), opened.cached()
        for _ in range(calls):
            assert source.read(read.rows, read.fields) == expected
            check_columns(*source.columns(read.rows, read.fields), expected)


@settings(max_examples=60)
@given(datasets())
def test_streams_give_the_same(dataset):
    with Opened(dataset) as opened:
        expected, source = opened.by_tarfile(), opened.source()
        assert [row for run in source.stream() for row in run] == expected
        (name, *_) = dataset.rows[0]
        if all(name in source.shard(at).index.fields for at in range(len(opened.urls))):
            found = [value for column in source.stream_column(name) for value in column]
            assert found == [row.get(name, b"") for row in expected]


def test_a_field_that_no_shard_has(tmp_path):
    with shoal.ShardWriter(tmp_path / "x.tar") as writer:
        for number in range(20):
            writer.write({"__key__": f"k{number}", "txt": f"{number}"})
    source = opened_at(tmp_path)
    assert source.read(np.array([3, 1]), ["none"])[0].keys() == {"__key__", "__url__"}
    assert source.columns(np.array([3, 1]), ["none"])[1] == {}
    with pytest.raises(FieldError, match="expected txt, found none"):
        source.column(np.array([3, 1]), "none")


# ------------------------------------------------------------------------------------------------------------- damage


def opened_at(path):
    source = shoal.Dataset(str(path), decode=False).source
    assert isinstance(source, ShardSource)
    return source


def write(path, compression):
    """A shard of several blocks; the 10 fields are of 0 to 18 bytes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shoal.shard._shard_file.BLOCK_BYTES", 12_000)
        patched.setattr("shoal.shard._shard_file._COMPRESSED_BLOCK_BYTES", 12_000)
        with shoal.ShardWriter(path, compression=compression) as writer:
            for number in range(4):
                fields = {f"f{at}": bytes([16 * number + at]) * (2 * at) for at in range(10)}
                writer.write({"__key__": f"k{number}", **fields})


def ways(source):
    """Each way to read all samples, by name; of each, all fields or one."""
    memory = ShardMemoryCache.over(source, 1 << 30)
    assert memory is not None
    cached = source.with_memory(memory)
    every, mixed = np.arange(4), np.array([3, 1, 0, 2, 2, 1, 3, 0, 0])
    for rows in (every, mixed, mixed[:4]):
        for reader in (source, cached, cached):
            yield lambda fields, reader=reader, rows=rows: reader.read(rows, fields)
            yield lambda fields, reader=reader, rows=rows: reader.columns(rows, fields)
    yield lambda fields: [source.read(np.array([row]), fields) for row in range(4)]
    yield lambda fields: list(source.stream(fields))


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_every_flipped_byte_is_detected_by_every_source(tmp_path, compression):
    """Damage that was compressed with the rest, so that only the checksums can tell."""
    ending = {None: "tar", "gzip": "tar.gz", "zstd": "tar.zst"}[compression]
    url, sidecar = str(tmp_path / f"x.{ending}"), tmp_path / ".shoal" / "index" / f"x.{ending}.arrow"
    write(tmp_path / f"x.{ending}", compression)
    index = load_index(str(sidecar), whole=True)
    sound = opened_at(url)
    good = sound.shard(0).data.read(0, int(index.blocks.offsets[-1]))
    sound.close()
    with tarfile.open(fileobj=io.BytesIO(good + bytes(1024))) as tar:
        members = [member for member in tar if member.size and not member.name.startswith("__")]
    assert len(index.blocks) > 1
    assert len(members) == 36
    for member, at in [(each, at) for each in members for at in range(each.size)]:
        damaged = bytearray(good)
        damaged[member.offset_data + at] ^= 1 << (at % 8)
        rewrite(Path(url), sidecar, index, bytes(damaged), compression)
        source = opened_at(url)
        key, _, field = member.name.partition(".")
        for read in ways(source):
            for fields in (None, [field], [field, "f0"]):
                with pytest.raises(ChecksumError) as caught:
                    read(fields)
                found = caught.value
                assert (found.shard, found.key, found.field, found.offset) == (url, key, field, member.offset_data)
            read(["f0"])  # what is not asked for is not compared
        source.close()


def rewrite(path, sidecar, index, tar, compression):
    """Store a tar in place of another one of the same layout, with the same checksums."""
    if compression is None:
        path.write_bytes(tar + path.read_bytes()[len(tar) :])
        return
    compressor, stored, places = BlockCompressor(compression), b"", [0]
    for start, stop in zip(index.blocks.offsets[:-1].tolist(), index.blocks.offsets[1:].tolist(), strict=True):
        stored += compressor.add(tar[start:stop])
        places.append(len(stored))
    stored += compressor.finish()
    path.write_bytes(stored)
    facts = replace(index.facts, size=len(stored), head_crc=crc32(stored[:512]))
    blocks = replace(index.blocks, stored=np.array(places))
    sidecar.write_bytes(encode_index(replace(index, facts=facts, blocks=blocks)))


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_a_shard_that_was_cut_short_is_an_error_that_names_it(tmp_path, compression):
    ending = {None: "tar", "gzip": "tar.gz", "zstd": "tar.zst"}[compression]
    path = tmp_path / f"x.{ending}"
    write(path, compression)
    source = opened_at(path)
    source.shard(0)
    with path.open("r+b") as file:
        file.truncate(600)
    for rows in (np.array([3, 2]), np.array([2, 3]), np.array([3])):
        for read in (source.read, source.columns):
            with pytest.raises(TruncatedError) as caught:
                read(rows)
            assert caught.value.shard == str(path)


# -------------------------------------------------------------------------------------- small batches of many shards

SHARDS, EACH = 12, 40


def value(number):
    return bytes([number % 251]) * (1 + number * 97 % 9000)


def written(folder, lacking=-1, **options):
    with shoal.ShardWriter(str(folder / "x-%03d.tar"), max_samples=EACH, **options) as writer:
        for number in range(SHARDS * EACH):
            fields = {"txt": "other"} if number == lacking else {"bin": value(number), "txt": "other"}
            writer.write({"__key__": f"k{number}", **fields})
    return opened_at(folder)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return written(tmp_path_factory.mktemp("few") / "data")


@given(rows=st.lists(st.integers(0, SHARDS * EACH - 1), min_size=1, max_size=60))
def test_any_rows_of_many_local_shards(many, rows):
    numbers = np.array(rows, np.int64)
    assert many.column(numbers, "bin") == list(map(value, rows))
    extents, _ = many.columns(numbers, ["bin"])
    assert extents.keys() == [f"k{row}" for row in rows]
    assert extents.take(np.array([len(rows) - 1])).keys() == [f"k{rows[-1]}"]
    assert [extents.url(at) for at in range(len(rows))] == [many.shards[row // EACH].url for row in rows]
    assert many.read(numbers) == [
        {"__key__": f"k{row}", "__url__": many.shards[row // EACH].url, "bin": value(row), "txt": b"other"}
        for row in rows
    ]


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damage_is_told_of_its_sample(tmp_path, damage, count):
    source = written(tmp_path / "data")
    offset = int(source.shard(3).index.fields["bin"].offset[17])
    tar = tmp_path / "data" / "x-003.tar"
    data = bytearray(tar.read_bytes())
    data[offset] ^= 1
    with tar.open("r+b") as file:  # the same file, which is open
        file.write(data)
        if damage == "cut":
            file.truncate(offset)
    wrong = ChecksumError if damage == "flip" else TruncatedError
    others = np.arange(200, 200 + count - 2)
    rows = np.concatenate([[1, 3 * EACH + 17], others])
    for read in (lambda: source.column(rows, "bin"), lambda: source.read(rows)):
        with pytest.raises(wrong) as caught:
            read()
        if isinstance(caught.value, ChecksumError):
            assert (caught.value.key, caught.value.field, caught.value.offset) == (f"k{3 * EACH + 17}", "bin", offset)
    assert len(source.column(others, "bin")) == len(source.read(others)) == count - 2


@pytest.mark.parametrize("rows", [[1, 200, 100], [1, 200, *range(100, 120)]], ids=["few", "many"])
def test_a_value_that_cannot_be_decoded_is_named(many, rows):
    def decode(data):
        if data == value(200):
            raise DecodeError("no")
        return data[:1]

    assert [sample["bin"] for sample in many.read(np.array([1, 100]), None, {"bin": decode})] == [b"\x01", b"d"]
    with pytest.raises(DecodeError) as caught:
        many.read(np.array(rows), None, {"bin": decode})
    assert (caught.value.key, caught.value.shard) == ("k200", many.shards[200 // EACH].url)


def test_a_shard_written_anew_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.shard._open_shards.most_open", lambda: 1)
    source = written(tmp_path / "data")
    rows = np.array([1, 3 * EACH + 5, 200])
    many = np.concatenate([rows, np.arange(20)])
    assert ["bin" in sample for sample in source.read(rows)] == [True] * 3
    assert ["bin" in sample for sample in source.read(many)] == [True] * 23
    written(tmp_path / "again", lacking=3 * EACH + 5)
    for name in ("x-003.tar", ".shoal/index/x-003.tar.arrow"):
        (tmp_path / "again" / name).replace(tmp_path / "data" / name)
    assert ["bin" in sample for sample in source.read(rows)] == [True, False, True]
    assert ["bin" in sample for sample in source.read(many)] == [True, False, *[True] * 21]
    assert (source.column(many, "bin").starts < 0).tolist() == [False, True, *[False] * 21]


def test_indexes_that_were_copied_are_let_go_of(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.shard._open_shards.most_open", lambda: 1)
    monkeypatch.setattr("shoal.shard._open_shards._MAX_KNOWN_INDEXES", 1)
    source = written(tmp_path / "data")
    rows = np.arange(0, SHARDS * EACH, 7)
    assert source.column(rows, "bin") == list(map(value, rows.tolist()))
    own = {shard.url for shard in source.shards}
    gc.collect()
    held = [one for one in gc.get_objects() if type(one) is KnownIndex and one.info.url in own]
    assert len(held) <= 2
    assert [sample["bin"] for sample in source.read(rows)] == list(map(value, rows.tolist()))


def test_a_shard_of_another_length_than_was_counted_is_not_copied(many):
    rows, numbers = np.array([1, 200]), np.array([0, 200 // EACH])
    shards = {number: many.index.shard_rows(number) for number in numbers.tolist()}
    assert ExtentTable(many.starts).extents(rows, numbers, shards) is not None
    one_fewer = many.starts - np.arange(SHARDS + 1)
    assert ExtentTable(one_fewer).extents(rows, numbers, shards) is None


# ---------------------------------------------------------------------------------------------------- columns of bytes


@st.composite
def columns(draw):
    """A column, and the list that it equals: items that overlap, are empty, missing, in order or not."""
    data = draw(st.binary(max_size=60))
    edges = st.tuples(st.integers(0, len(data)), st.integers(0, len(data))).map(sorted)
    places = draw(st.lists(edges | st.just([-1, -1]), max_size=12))
    if draw(st.booleans()):  # one after the other
        cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
        places = list(itertools.pairwise(cuts))
    starts, stops = (np.array([place[edge] for place in places], np.int64) for edge in (0, 1))
    return BytesColumn(data, starts, stops - starts), [data[a:b] if a >= 0 else b"" for a, b in places]


@given(columns(), st.slices(12), st.data())
def test_a_column_of_bytes_is_like_a_list_of_bytes(made, part, data):
    column, items = made
    assert len(column) == len(items)
    assert list(column) == items
    assert [type(item) for item in column] == [bytes] * len(items)
    assert [column[at] for at in range(-len(items), len(items))] == items * 2
    assert list(map(bytes, column.views())) == items
    assert column[part] == items[part]
    assert isinstance(column[part], BytesColumn)
    assert list(reversed(column)) == items[::-1]
    for at in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            column[at]
    for item in [*items, b"\0\1\2 none"]:
        assert (item in column, column.count(item)) == (item in items, items.count(item))
    if items:
        rows = data.draw(st.lists(st.integers(0, len(items) - 1), max_size=20))
        assert column.take(np.array(rows, np.int64)) == [items[row] for row in rows]


@given(columns(), columns())
def test_columns_compare_as_lists_do(one, other):
    (column, items), (second, more) = one, other
    assert (column == second) == (items == more)
    assert (column != second) == (items != more)
    assert column == items
    assert items == column
    assert column == tuple(items)
    assert column != [*items, b""]
    assert (column == items[:-1]) == (not items)
    assert column != b"".join(items)
    with pytest.raises(TypeError):
        hash(column)


@given(columns())
def test_columns_have_the_bytes_one_after_the_other(made):
    column, items = made
    assert bytes(column.buffer) == b"".join(items)
    assert column.offsets.tolist() == [sum(map(len, items[:at])) for at in range(len(items) + 1)]
    assert column.nbytes == sum(map(len, items))
    array = column.to_arrow()
    array.validate(full=True)
    assert (array.type, array.to_pylist()) == (pa.large_binary(), items)


@given(columns(), st.slices(12))
def test_a_pickled_column_has_its_own_bytes_only(made, part):
    column, items = made
    for one, expected in ((column, items), (column[part], items[part])):
        copy = pickle.loads(pickle.dumps(one))
        assert type(copy) is BytesColumn
        assert copy == expected
        assert bytes(copy.data) == b"".join(expected)


def test_a_batch_of_undecoded_fields_has_such_columns(many):
    dataset = shoal.Dataset([shard.url for shard in many.shards], decode=False)
    with shoal.DataLoader(dataset, batch_size=50, shuffle=True, num_workers=0) as loader:
        batch = next(iter(loader))
    numbers = [int(key[1:]) for key in batch["__key__"]]
    assert type(batch["bin"]) is BytesColumn
    assert batch["bin"] == list(map(value, numbers))
    assert batch["bin"].to_arrow().to_pylist() == list(map(value, numbers))
