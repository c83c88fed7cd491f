"""``keys.rec``: every row of a key is found, whatever the keys are, and in one or two pages."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ShardIndexError
from shoal.shard import _records
from shoal.shard._key_table import KEY_WORDS, KeyTable, hash_key, hash_keys, key_records
from shoal.shard._records import OpenFiles, RecordFile, RecordWriter
from shoal.store import put, store_for

HASHES = st.integers(0, (1 << 32) - 1)


def write(folder, segment, hashes):
    writer = RecordWriter(f"{folder}/{segment}", segment, "keys.rec", KEY_WORDS)
    writer.write(key_records([np.array(part, np.uint64) for part in hashes]))
    file = writer.close()
    count = sum(map(len, hashes))
    return RecordFile(f"{folder}/{segment}/keys.rec", f"{segment}/keys.rec", file.size if file else 0, count)


def memory_folder():
    return f"memory://{uuid.uuid4()}"


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=70)), st.integers(0, 3), st.booleans())
def test_a_key_has_the_same_hash_alone_and_among_others(keys, offset, large):
    array = pa.array([*["x"] * offset, *keys], pa.large_string() if large else pa.string()).slice(offset)

    assert hash_keys(array).tolist() == [hash_key(key) for key in keys]


def test_hashes_are_those_of_every_version():
    keys = ["", "a", "000000001", "train/000123", "Schön", "a\0b"]
    expected = [4113176041, 46185919, 2883994046, 817931236, 3318039689, 3946367032]

    assert [hash_key(key) for key in keys] == expected


def test_hashes_of_numbered_keys_are_uniform():
    hashes = hash_keys(pa.array([f"{number:09d}" for number in range(1 << 16)]))
    counts = np.bincount((hashes >> np.uint64(24)).astype(np.int64), minlength=256)

    assert len(np.unique(hashes)) > (1 << 16) - 10
    assert counts.min() > 150  # 256 each on average, with a standard deviation of 16
    assert counts.max() < 360


@given(
    st.lists(st.lists(st.lists(HASHES | st.sampled_from([0, 5, (1 << 32) - 1]), max_size=40), max_size=3), max_size=3),
    st.lists(HASHES, max_size=5),
)
def test_every_row_of_a_hash_is_found_in_order(segments, others):
    folder = memory_folder()
    table = KeyTable([write(folder, f"s{number}", parts) for number, parts in enumerate(segments)], OpenFiles())
    for number, parts in enumerate(segments):
        hashes = [each for part in parts for each in part]
        for each in {*hashes, *others, 0, 6, (1 << 32) - 1}:
            assert table.find(number, each) == [row for row, other in enumerate(hashes) if other == each]


@pytest.mark.parametrize("count", [1, 510, 511, 512, 40_000])
@pytest.mark.parametrize("kind", ["uniform", "equal", "low", "high", "steps"])
def test_hashes_that_are_not_uniform_are_found_too(count, kind):
    rows = np.arange(count, dtype=np.uint64)
    hashes = {
        "uniform": hash_keys(pa.array([str(row) for row in range(count)])),
        "equal": np.full(count, 7, np.uint64),
        "low": rows,
        "high": np.uint64((1 << 32) - 1) - rows,
        "steps": (rows // np.uint64(600)) << np.uint64(20),
    }[kind]
    table = KeyTable([write(memory_folder(), "s", [hashes])], OpenFiles())

    for each in dict.fromkeys(hashes[:: max(count // 50, 1)].tolist()):
        assert table.find(0, each) == np.flatnonzero(hashes == each).tolist()
        assert table.find(0, each ^ 0x5A5A5A) == np.flatnonzero(hashes == each ^ 0x5A5A5A).tolist()
    assert table.find(0, int(hashes.max()) - 1) == np.flatnonzero(hashes == int(hashes.max()) - 1).tolist()


def test_a_key_is_found_in_one_or_two_pages(monkeypatch):
    monkeypatch.setattr(_records, "_MAX_LOADED_BYTES", 0)
    count = 300_000
    keys = [f"{row:09d}" for row in range(count)]
    table = KeyTable([write(memory_folder(), "s", [hash_keys(pa.array(keys))])], OpenFiles())
    for row in range(0, count, 1000):
        assert row in table.find(0, hash_key(keys[row]))

    assert table.records.pages_read < 1.7 * 300


def test_a_damaged_page_is_an_error():
    file = write(memory_folder(), "s", [np.arange(2000)])
    data = store_for(file.url).read_all(file.url)
    put(file.url, data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])

    with pytest.raises(ShardIndexError, match=r"page 1 of s/keys\.rec"):
        KeyTable([file], OpenFiles()).find(0, 600)
