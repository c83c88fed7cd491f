"""Parquet files of a segment: what was written is read back, and a changed byte never reaches Arrow."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import threading
import uuid
import zlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scale import times
from tests.shard.watched import watched_store

from shoal.errors import ObjectChangedError, ObjectNotFoundError, ShardIndexError, StoreError
from shoal.shard import _parquet_files
from shoal.shard._layout import IndexFile
from shoal.shard._parquet_files import ROW_GROUP_ROWS, ParquetFile, ParquetFileWriter
from shoal.shard._records import OpenFiles
from shoal.store import put, store_for
from shoal.store._local import LocalWriter

NAME = "samples.parquet"


@contextlib.contextmanager
def sizes(rows=100, chunk=256, small=0):
    """Small row groups and chunks, so that small files have many; ``small``: a file that is read in one request."""
    names = {"ROW_GROUP_ROWS": rows, "_CHUNK_BYTES": chunk, "_SMALL_FILE_BYTES": small, "_MIN_WRITE_BYTES": 4 * chunk}
    with mock.patch.multiple(_parquet_files, **names):
        yield


def memory_folder():
    return f"memory://{uuid.uuid4()}"


def write(folder, table, batch=1 << 20, name=NAME):
    writer = ParquetFileWriter(folder, name, table.schema)
    for part in table.to_batches(batch):
        writer.write(part)
    return writer.close()


def open_file(folder, file, open_files=None):
    return ParquetFile(f"{folder}/{file.name}", file, open_files or OpenFiles())


def draw_table(count, seed=0):
    draw = random.Random(seed)
    langs = [draw.choice(["en", "de", None]) for _ in range(count)]
    unreadable = [draw.choice([None, ["json", "cls"]]) for _ in range(count)]
    return pa.table(
        {
            "__key__": pa.array([f"{number:06d}-{draw.randrange(10)}" for number in range(count)], pa.string()),
            "__shard__": pa.array([number // 30 for number in range(count)], pa.int64()),
            "json": pa.array([draw.random() < 0.5 for _ in range(count)], pa.bool_()),
            "json.width": pa.array([draw.randrange(-4000, 4000) for _ in range(count)], pa.int64()),
            "json.width.more": pa.array([draw.random() for _ in range(count)], pa.float64()),
            "json.lang": pa.array(langs, pa.string()),
            "json.nothing": pa.nulls(count),
            "digest": pa.array([draw.randbytes(16) for _ in range(count)], pa.binary(16)),
            "__unreadable__": pa.array(unreadable, pa.list_(pa.string())),
            "txt": pa.array(["a picture of " + "x" * draw.randrange(80) for _ in range(count)], pa.string()),
        }
    )


def change(url, alter):
    data = store_for(url).read_all(url)
    put(url, alter(data))


def flip(at, bit=1):
    return lambda data: data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


# -------------------------------------------------------------------------------------------------------- round trips


@given(
    st.integers(1, 700),
    st.sampled_from([1, 7, 100, 1000]),
    st.sampled_from([0, 1 << 20]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_what_was_written_is_read(count, batch, small, remote, draw):
    table, folder = draw_table(count), memory_folder()
    with sizes(small=small), mock.patch.object(_parquet_files, "is_remote", return_value=remote):
        written = write(folder, table, batch)
        file = open_file(folder, written)

        assert file.schema == table.schema
        assert file.num_row_groups == len(file.row_group_rows) == -(-count // 100)
        assert file.row_group_rows[:-1] == [100] * (file.num_row_groups - 1)
        assert sum(file.row_group_rows) == file.records == written.records == count
        assert file.read(table.schema.names).equals(table)
        assert file.schema.metadata is file.read(["txt"]).schema.metadata is None
        columns = draw.choices(table.schema.names, k=3)
        assert file.read(columns).equals(table.select(columns))
        groups = draw.choices(range(file.num_row_groups), k=2)
        assert file.read(columns, groups).equals(
            pa.concat_tables(table.select(columns).slice(100 * group, 100) for group in groups)
        )
        assert file.read(columns, []).equals(table.select(columns).slice(0, 0))
        start, stop = sorted(draw.choices(range(count + 1), k=2))
        assert file.read_rows(columns, start, stop).equals(table.select(columns).slice(start, stop - start))


@pytest.mark.parametrize("batch", [1000, 65_536, 1 << 20])
def test_row_groups_have_65536_rows_and_others_can_read_the_file(tmp_path, batch):
    count = 2 * ROW_GROUP_ROWS + 5
    table = pa.table({"__key__": [f"{number:09d}" for number in range(count)], "__shard__": range(count)})
    file = write(str(tmp_path), table.append_column("cls", [[number % 3 for number in range(count)]]), batch)
    path = tmp_path / NAME
    metadata = pq.read_metadata(path)

    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert path.stat().st_size == file.size
    rows = [metadata.row_group(group).num_rows for group in range(3)]
    assert rows == open_file(str(tmp_path), file).row_group_rows == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, 5]
    key, shard, label = (metadata.row_group(1).column(column) for column in range(3))
    assert "DELTA_BYTE_ARRAY" in key.encodings
    assert "DELTA_BINARY_PACKED" in shard.encodings
    assert label.has_dictionary_page
    assert {column.compression for column in (key, shard, label)} == {"ZSTD"}
    assert (shard.statistics.min, shard.statistics.max) == (ROW_GROUP_ROWS, 2 * ROW_GROUP_ROWS - 1)
    assert pq.read_table(path).select(table.schema.names).equals(table)
    data = path.read_bytes()
    assert zlib.crc32(data[file.footer_start :]) == file.footer_crc32
    words = b"".join(
        zlib.crc32(data[at : min(at + 65536, file.footer_start)]).to_bytes(4, "little")
        for at in range(0, file.footer_start, 65536)
    )
    assert metadata.metadata[b"shoal.crc32"] == words.hex().encode()


@pytest.mark.parametrize("folder", [None, "memory://parquet-none"])
def test_a_file_without_rows_is_not_written(tmp_path, folder):
    folder = folder or str(tmp_path)
    assert write(folder, draw_table(0)) is None
    writer = ParquetFileWriter(folder, NAME, draw_table(0).schema)
    writer.write(draw_table(0))
    assert writer.close() is None
    assert not store_for(folder).is_folder(folder) or list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [0, 5, 250])
def test_an_aborted_file_is_gone(tmp_path, count):
    with sizes():
        writer = ParquetFileWriter(str(tmp_path), NAME, draw_table(count).schema)
        writer.write(draw_table(count))
        writer.abort()
        del writer

    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_store_is_raised_and_the_file_can_be_aborted(tmp_path):
    with sizes():
        writer = ParquetFileWriter(str(tmp_path), NAME, draw_table(0).schema)
        full = mock.patch.object(LocalWriter, "write", side_effect=StoreError("the disk is full"))
        with full, pytest.raises(StoreError, match="the disk is full"):
            writer.write(draw_table(450))
        writer.abort()
        del writer
        gc.collect()

    assert list(tmp_path.iterdir()) == []


def test_rows_of_another_schema_are_refused():
    writer = ParquetFileWriter(memory_folder(), NAME, draw_table(0).schema)
    with pytest.raises(ValueError, match="schema of the file"):
        writer.write(draw_table(1).drop_columns(["txt"]))
    writer.abort()


def test_a_writer_knows_its_rows_and_bytes():
    folder = memory_folder()
    with sizes():
        writer = ParquetFileWriter(folder, NAME, draw_table(0).schema)
        for _ in range(20):
            writer.write(draw_table(90))
        assert writer.count == 1800
        assert writer.size > 10_000
        file = writer.close()

    assert writer.size == file.size == len(store_for(folder).read_all(f"{folder}/{NAME}"))


def test_strings_are_read_as_dictionaries():
    folder, table = memory_folder(), draw_table(250)
    with sizes():
        file = open_file(folder, write(folder, table))
        names = ["json.lang", "json.width"]
        read = file.read(names, as_dictionary=["json.lang", "json.width", "txt"])

    assert read.schema.types == [pa.dictionary(pa.int32(), pa.string()), pa.int64()]
    assert read.cast(table.select(names).schema).equals(table.select(names))


# ------------------------------------------------------------------------------------------------------------- bounds


def write_bounds(values, kind):
    folder, table = memory_folder(), pa.table({"x": pa.array(values, kind)})
    with sizes(rows=2):
        writer = ParquetFileWriter(folder, NAME, table.schema)
        writer.write(table)
        file = open_file(folder, writer.close())
        assert file.read(["x"]).schema == table.schema
        return writer.bounds.get("x"), file.bounds("x"), file.null_counts("x")


NAN = math.nan


@pytest.mark.parametrize(
    "values, kind, bounds, groups, nulls",
    [
        ([3, 1, None, 7], "int64", (1, 7), [(1, 3), (7, 7)], [0, 1]),
        ([3, 1, None, None], "int64", (1, 3), [(1, 3), None], [0, 2]),
        ([None, None], "int64", None, [None], [2]),
        ([False, None], "bool", (False, False), [(False, False)], [1]),
        ([2.5, NAN, -1.0], "float64", (-1.0, 2.5), [(2.5, 2.5), (-1.0, -1.0)], [0, 0]),
        ([2.5, 1.5, NAN, NAN], "float64", None, [(1.5, 2.5), None], [0, 0]),
        ([math.inf, 1.0], "float64", None, [(1.0, math.inf)], [0]),
        (["b", "a", "ü"], "string", ("a", "ü"), [("a", "b"), ("ü", "ü")], [0, 0]),
        (["b", "x" * 65], "string", None, [("b", "x" * 65)], [0]),
        (["b", "x" * 64], "string", ("b", "x" * 64), [("b", "x" * 64)], [0]),
        ([(1 << 64) - 1, 0], "uint64", (0, (1 << 64) - 1), [(0, (1 << 64) - 1)], [0]),
        ([1, 2], "timestamp[us]", None, [None], [0]),
        ([1, 2], "duration[s]", None, [None], [0]),
        ([b"a"], "binary", None, [None], [0]),
        ([None], "null", None, [None], [None]),
        ([["a", None], None], pa.list_(pa.string()), None, [None], [None]),
    ],
)
def test_bounds_are_smallest_and_largest_values(values, kind, bounds, groups, nulls):
    assert write_bounds(values, kind) == (bounds, groups, nulls)


@given(st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=9))
def test_bounds_contain_every_value(values):
    bounds, groups, nulls = write_bounds(values, "int64")
    known = [value for value in values if value is not None]

    assert bounds == ((min(known), max(known)) if known else None)
    for group, pair in enumerate(groups):
        part = [value for value in values[2 * group : 2 * group + 2] if value is not None]
        assert pair == ((min(part), max(part)) if part else None)
        assert nulls[group] == len(values[2 * group : 2 * group + 2]) - len(part)


# ------------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("small", [0, 1 << 20])
def test_every_changed_byte_is_an_error(small, remote):
    folder, table, draw = memory_folder(), draw_table(450), random.Random(3)
    with sizes(small=small), mock.patch.object(_parquet_files, "is_remote", return_value=remote):
        file = write(folder, table)
        url = f"{folder}/{NAME}"
        data = store_for(url).read_all(url)
        for number in range(times(150, 3000)):
            at, length = draw.randrange(len(data)), draw.choice([1, 1, 4, 300])
            at = at if number % 3 else draw.randrange(file.footer_start, len(data))
            part = bytes(byte ^ draw.randrange(1, 256) for byte in data[at : at + length])
            put(url, data[:at] + part + data[at + length :])
            with pytest.raises(ShardIndexError, match="does not match its checksum") as caught:
                open_file(folder, file).read(table.schema.names)
            assert caught.value.shard == url
            assert (
                caught.value.offset == (at // 256 * 256 if at < file.footer_start else file.footer_start) or length > 1
            )


def test_a_changed_byte_is_an_error_or_the_same_answer():
    folder, table, draw = memory_folder(), draw_table(450), random.Random(4)
    with sizes():
        file = write(folder, table)
        url = f"{folder}/{NAME}"
        data = store_for(url).read_all(url)
        outcomes = set()
        for _ in range(times(300, 3000)):
            put(url, flip(draw.randrange(len(data)), 1 << draw.randrange(8))(data))
            columns, start = draw.sample(table.schema.names, 2), draw.randrange(400)
            try:
                read = open_file(folder, file).read_rows(columns, start, start + 20)
                assert read.equals(table.select(columns).slice(start, 20))
                outcomes.add("same")
            except ShardIndexError:
                outcomes.add("error")

    assert outcomes == {"same", "error"}


def test_chunks_of_other_places_are_errors():
    folder, other, draw = memory_folder(), memory_folder(), random.Random(5)
    with sizes():
        table = draw_table(450)
        file = write(folder, table)
        write(other, draw_table(450, seed=1))
        url = f"{folder}/{NAME}"
        data = store_for(url).read_all(url)
        alien = store_for(other).read_all(f"{other}/{NAME}").ljust(len(data), b"\0")[: len(data)]
        whole = file.footer_start // 256
        for number in range(times(100, 1000)):
            one, two = draw.sample(range(whole), 2)
            source = alien if number % 2 else data
            put(url, data[: 256 * one] + source[256 * two : 256 * two + 256] + data[256 * one + 256 :])
            with pytest.raises(ShardIndexError, match=rf"chunk {one} of samples\.parquet"):
                open_file(folder, file).read(table.schema.names)
        put(url, alien)
        with pytest.raises(ShardIndexError, match="footer"):
            open_file(folder, file).read(["txt"])


def test_a_file_of_another_length_is_an_error(tmp_path):
    file = write(str(tmp_path), draw_table(50))
    for size in (0, 1, file.footer_start, file.size - 1, file.size + 1):
        os.truncate(tmp_path / NAME, size)
        with pytest.raises(ObjectChangedError):
            open_file(str(tmp_path), file).read(["txt"])
    os.unlink(tmp_path / NAME)
    with pytest.raises(ObjectNotFoundError):
        open_file(str(tmp_path), file).read(["txt"])


def test_a_file_that_is_truncated_while_it_is_open_is_an_error(tmp_path):
    with sizes():
        file = write(str(tmp_path), draw_table(450))
        opened = [open_file(str(tmp_path), file, OpenFiles()) for _ in range(3)]
        assert len(opened[0].schema) == len(opened[1].schema)
        opened[2]._reader()
        os.truncate(tmp_path / NAME, 1000)
        for one in opened:
            with pytest.raises(ShardIndexError, match="does not match its checksum"):
                one.read(["txt"])


def sign_again(folder, file, data, old_footer):
    """Return a manifest entry to which these bytes fit; the checksums in the footer must have as many digits."""
    start = file.footer_start
    sums = b"".join(zlib.crc32(data[at : min(at + 256, start)]).to_bytes(4, "little") for at in range(0, start, 256))
    checksums = pq.read_metadata(pa.BufferReader(old_footer)).metadata[b"shoal.crc32"]
    footer = data[start:].replace(checksums, sums.hex().encode())
    put(f"{folder}/{NAME}", data[:start] + footer)
    return replace(file, footer_crc32=zlib.crc32(footer))


def test_verified_bytes_that_arrow_cannot_read_are_an_error():
    folder, table = memory_folder(), draw_table(450)
    with sizes():
        file = write(folder, table)
        data = store_for(folder).read_all(f"{folder}/{NAME}")
        footer = data[file.footer_start :]
        file = sign_again(folder, file, b"\xff" * file.footer_start + footer, footer)
        with pytest.raises(ShardIndexError, match="cannot be read") as caught:
            open_file(folder, file).read(["txt", "json"])

    assert caught.value.shard == f"{folder}/{NAME}"


@pytest.mark.parametrize(
    "change",
    [
        {"records": 449},
        {"records": 451},
        {"footer_start": None},
        {"footer_start": 0},
        {"footer_start": 1 << 40},
        {"footer_start": 300},
        {"footer_crc32": 7},
        {"footer_crc32": None},
    ],
)
def test_a_manifest_that_does_not_fit_the_file_is_an_error(change):
    folder = memory_folder()
    with sizes():
        file = replace(write(folder, draw_table(450)), **change)
        with pytest.raises(ShardIndexError, match=r"samples\.parquet|footer"):
            open_file(folder, file).read(["txt"])


def test_a_column_that_reaches_into_the_footer_is_an_error():
    folder = memory_folder()
    with sizes():
        file = write(folder, draw_table(450))
        data = store_for(folder).read_all(f"{folder}/{NAME}")
        start = file.footer_start - 1
        file = replace(file, footer_start=start, footer_crc32=zlib.crc32(data[start:]))
        with pytest.raises(ShardIndexError, match="outside of its data"):
            open_file(folder, file).read(["txt"])


def test_a_file_of_another_writer_is_an_error(tmp_path):
    path = tmp_path / NAME
    pq.write_table(draw_table(50), path)
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    file = IndexFile(NAME, len(data), 50, start, zlib.crc32(data[start:]))

    with pytest.raises(ShardIndexError, match="cannot be read"):
        open_file(str(tmp_path), file).read(["txt"])


def test_columns_and_rows_that_are_not_there_are_errors():
    folder = memory_folder()
    with sizes():
        file = open_file(folder, write(folder, draw_table(250)))
        for act in (file.bounds, file.null_counts, lambda name: file.read([name])):
            with pytest.raises(ShardIndexError, match="column of the manifest"):
                act("json.height")
        for start, stop in ((-1, 5), (0, 251), (5, 4)):
            with pytest.raises(ShardIndexError, match=f"rows {start} to {stop} of 250"):
                file.read_rows(["txt"], start, stop)
        for group in (-1, 3):
            with pytest.raises(ShardIndexError, match="of 250"):
                file.read(["txt"], [group])


# ----------------------------------------------------------------------------------------------- requests and threads


def watched_file(count=450):
    store = watched_store()
    file = write("watched://a", draw_table(count))
    return store, open_file("watched://a", file), file


def test_opening_reads_nothing_and_the_footer_is_read_once():
    with sizes():
        store, opened, file = watched_file()
        assert opened.records == 450
        assert opened.num_row_groups == 5
        assert store.ranges == []
        assert opened.schema == draw_table(0).schema
        opened.bounds("txt")
        assert store.ranges == [("watched://a/samples.parquet", file.footer_start, file.size)]
        store.ranges.clear()
        opened.read(["json.width"], [2])
        assert all(stop <= file.footer_start for _, _, stop in store.ranges)
        assert store.bytes_read < 2000


def test_a_small_file_is_one_request():
    with sizes(small=1 << 20):
        store, opened, file = watched_file()
        opened.read(["txt", "json"])
        opened.read_rows(["json.width"], 20, 300)

    assert store.ranges == [("watched://a/samples.parquet", 0, file.size)]


def test_remote_columns_are_requested_together():
    with sizes(), mock.patch.object(_parquet_files, "is_remote", return_value=True):
        _, opened, _ = watched_file()
        assert len(opened.schema) == 10
        reader = opened._reader()
        with mock.patch.object(reader, "read_many", wraps=reader.read_many) as read_many:
            read = opened.read(["txt", "json.width"], [0, 3])

    assert len(read) == 200
    assert len(read_many.call_args_list) == 1
    assert len(read_many.call_args.args[0]) == 4


def test_threads_share_a_file_and_few_are_open(tmp_path):
    open_files, errors = OpenFiles(3), []
    with sizes():
        tables = [draw_table(450, seed) for seed in range(8)]
        files = [write(str(tmp_path), table, name=f"{number}.parquet") for number, table in enumerate(tables)]
        opened = [open_file(str(tmp_path), file, open_files) for file in files]

        def look(seed):
            draw = random.Random(seed)
            try:
                for _ in range(40):
                    number, start = draw.randrange(8), draw.randrange(400)
                    columns = draw.sample(tables[0].schema.names, 3)
                    expected = tables[number].select(columns).slice(start, 30)
                    assert opened[number].read_rows(columns, start, start + 30).equals(expected)
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert errors == []
    descriptors = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert sum(".parquet" in target for target in descriptors) <= 4
