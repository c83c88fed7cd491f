"""Record files: what was written is read by row, in any order; every changed byte is an error with file and page."""

from __future__ import annotations

import os
import random
import threading
import uuid
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scale import times

from shoal.errors import ObjectChangedError, ObjectNotFoundError, ShardIndexError
from shoal.shard import _records
from shoal.shard._records import OpenFiles, RecordFile, RecordTable, RecordWriter, page_size
from shoal.store import put, store_for


def write(folder, segment, records, parts=1, name="x.rec"):
    writer = RecordWriter(f"{folder}/{segment}", segment, name, records.shape[1])
    for part in np.array_split(records, parts):
        writer.write(part)
    file = writer.close()
    return RecordFile(f"{folder}/{segment}/{name}", f"{segment}/{name}", file.size if file else 0, len(records))


def draw_records(count, words, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 32, (count, words), np.uint32)


def memory_folder():
    return f"memory://{uuid.uuid4()}"


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    st.integers(1, 40) | st.integers(1000, 3000),
    st.integers(1, 5),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rows_of_several_files_are_read_in_any_order(counts, words, parts, load, draw):
    counts = [count if words < 50 else count % 9 for count in counts]
    folder, expected = memory_folder(), [draw_records(count, words, count) for count in counts]
    files = [write(folder, f"s{number}", records, parts) for number, records in enumerate(expected)]
    table = RecordTable(files, words, OpenFiles())
    places = [(segment, row) for segment, count in enumerate(counts) for row in range(count)]
    chosen = draw.choices(places, k=50) if places else []
    if load and places:
        every = np.array(places)
        table.read(every[:, 0].copy(), every[:, 1].copy())

    segments, rows = (np.array([place[i] for place in chosen], np.int64) for i in range(2))
    assert np.array_equal(
        table.read(segments, rows), np.array([expected[s][r] for s, r in chosen], np.uint32).reshape(-1, words)
    )
    for segment, row in chosen[:5]:
        assert bytes(table.read_one(segment, row)) == expected[segment][row].tobytes()
        assert np.array_equal(table.read_range(segment, row // 2, row + 1), expected[segment][row // 2 : row + 1])


def test_a_page_is_whole_records_zeros_and_a_crc32():
    folder, records = memory_folder(), draw_records(700, 6)
    file = write(folder, "s", records)
    data = store_for(file.url).read_all(file.url)

    assert len(data) == file.size == 5 * 4096  # 170 records of 24 bytes in a page
    for page in range(5):
        words = np.frombuffer(data[page * 4096 : (page + 1) * 4096], "<u4")
        part = records[page * 170 : (page + 1) * 170]
        assert np.array_equal(words[: part.size], part.reshape(-1))
        assert not words[part.size : -1].any()
        assert words[-1] == zlib.crc32(words[:-1].tobytes(), (zlib.crc32(b"s/x.rec") + page) & 0xFFFFFFFF)


@pytest.mark.parametrize("words, size", [(1, 4096), (1023, 4096), (1024, 8192), (2047, 8192), (2048, 16384)])
def test_a_page_is_as_large_as_one_record_needs(words, size):
    assert page_size(words) == size


def test_a_file_without_records_is_not_written(tmp_path):
    file = write(str(tmp_path), "s", np.empty((0, 3), np.uint32))

    assert list(tmp_path.iterdir()) == []
    table = RecordTable([file], 3, OpenFiles())
    assert table.read(np.empty(0, np.int64), np.empty(0, np.int64)).shape == (0, 3)


@pytest.mark.parametrize("rows", [[5], [-1], [0, 1 << 40]])
def test_a_row_that_is_not_there_is_an_error(rows):
    folder = memory_folder()
    table = RecordTable([write(folder, "s", draw_records(5, 3))], 3, OpenFiles())

    with pytest.raises(ShardIndexError, match=r"s/x\.rec"):
        table.read(np.zeros(len(rows), np.int64), np.array(rows))
    with pytest.raises(ShardIndexError, match=r"s/x\.rec"):
        table.read_one(0, rows[-1])
    with pytest.raises(ShardIndexError, match=r"s/x\.rec"):
        table.read_range(0, 0, rows[-1] + 1 if rows[-1] > 0 else 6)


def test_every_changed_byte_is_an_error_that_names_file_and_page():
    folder, records = memory_folder(), draw_records(1000, 9)
    file = write(folder, "s", records)
    data, draw = store_for(file.url).read_all(file.url), random.Random(7)
    for _ in range(times(400, 5000)):
        at = draw.randrange(len(data))
        put(file.url, data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
        table, page = RecordTable([file], 9, OpenFiles()), at // 4096
        row = min(page * 113, 999)
        for act in (
            lambda table=table, row=row: table.read(np.array([0]), np.array([row])),
            lambda table=table, row=row: table.read_one(0, row),
            lambda table=table: table.read_range(0, 0, 1000),
        ):
            with pytest.raises(ShardIndexError, match=rf"page {page} of s/x\.rec") as caught:
                act()
            assert caught.value.shard == file.url
            assert caught.value.offset == page * 4096


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 8191, 8193, 12288])
def test_a_file_of_another_length_is_an_error(tmp_path, size):
    file = write(str(tmp_path), "s", draw_records(200, 9))
    os.truncate(file.url, size)

    with pytest.raises(ObjectChangedError, match="8192"):
        RecordTable([file], 9, OpenFiles()).read(np.array([0]), np.array([0]))


def test_a_file_that_is_truncated_while_it_is_open_is_an_error(tmp_path):
    file = write(str(tmp_path), "s", draw_records(20_000, 9))
    table = RecordTable([file], 9, OpenFiles())
    table.read_one(0, 0)
    os.truncate(file.url, 5 * 4096 + 100)

    with pytest.raises(ShardIndexError, match="page 5 of"):
        table.read(np.zeros(3, np.int64), np.array([0, 5 * 113, 6 * 113]))
    with pytest.raises(ShardIndexError, match="page 6 of"):
        table.read_one(0, 6 * 113)


def test_a_page_of_another_file_or_place_is_an_error(tmp_path):
    one, two = (write(str(tmp_path), segment, draw_records(200, 9)) for segment in ("one", "two"))
    assert Path(one.url).read_bytes() != Path(two.url).read_bytes()
    data = Path(one.url).read_bytes()
    for other in (Path(two.url).read_bytes(), data[4096:] + data[:4096]):
        Path(one.url).write_bytes(other)
        with pytest.raises(ShardIndexError, match=r"page 0 of one/x\.rec"):
            RecordTable([one], 9, OpenFiles()).read_one(0, 0)


def test_a_file_that_is_gone_is_an_error(tmp_path):
    file = write(str(tmp_path), "s", draw_records(200, 9))
    os.unlink(file.url)
    with pytest.raises(ObjectNotFoundError):
        RecordTable([file], 9, OpenFiles()).read_one(0, 0)


def test_a_size_that_does_not_fit_the_records_is_an_error():
    with pytest.raises(ShardIndexError, match=r"s/x\.rec"):
        RecordTable([RecordFile("memory://a", "s/x.rec", 4096, 1000)], 9, OpenFiles())


def test_files_are_loaded_once_a_sixteenth_of_the_pages_was_read(tmp_path):
    file = write(str(tmp_path), "s", draw_records(113 * 64, 9))
    table, data = RecordTable([file], 9, OpenFiles()), Path(file.url).read_bytes()
    every = [(np.array([0]), np.array([page * 113])) for page in range(64)]
    for place in every[:3]:
        table.read(*place)
    Path(file.url).write_bytes(bytes(len(data)))
    with pytest.raises(ShardIndexError):
        table.read(*every[50])
    Path(file.url).write_bytes(data)
    table.read(*every[0])
    Path(file.url).write_bytes(bytes(len(data)))

    records = [table.read(*place) for place in every]  # from memory
    assert np.array_equal(np.concatenate(records), draw_records(113 * 64, 9)[::113])
    assert bytes(table.read_one(0, 113)) == records[1].tobytes()


def test_files_are_not_loaded_when_they_are_large(tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "_MAX_LOADED_BYTES", 4096)
    file = write(str(tmp_path), "s", draw_records(300, 9))
    table = RecordTable([file], 9, OpenFiles())
    for row in range(0, 300, 50):
        table.read(np.array([0]), np.array([row]))
    Path(file.url).write_bytes(bytes(file.size))

    with pytest.raises(ShardIndexError):
        table.read(np.array([0]), np.array([0]))


def test_few_files_are_open_and_threads_keep_what_they_read(tmp_path):
    files = [write(str(tmp_path), f"s{number}", draw_records(5, 3, number)) for number in range(12)]
    open_files = OpenFiles(4)
    table, errors = RecordTable(files, 3, open_files), []

    def look(seed):
        draw = random.Random(seed)
        try:
            for _ in range(300):
                number = draw.randrange(12)
                assert bytes(table.read_one(number, 2)) == draw_records(5, 3, number)[2].tobytes()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(open_files._readers) <= 5
