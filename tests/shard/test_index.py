"""An index that was damaged, or made to do harm: an error, the same samples, never the end of the process.

Arrow follows a text's offset wherever it leads, so the indexes are looked at in a process that may die of it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.scale import times

import shoal
from shoal.cli import main
from shoal.errors import ShardIndexError
from shoal.shard import _index as index_module
from shoal.shard import load_index, save_index
from shoal.shard._index import encode_index, parts_of
from shoal.shard._stored_rows import index_url

PROGRAM = """
import os, random, sys
import shoal
from shoal.errors import ShoalError
from shoal.shard import load_index
from shoal.shard import _index as index_module

root, index, checked = sys.argv[1], sys.argv[2], sys.argv[3] == "checked"
step, readings = map(int, sys.argv[4:])
if not checked:
    index_module._MAX_CHECKED_BYTES = index_module._MAX_COPIED_BYTES = -1  # as if it were large
whole = open(index, "rb").read()
draw = random.Random(7)

def look():
    found = load_index(index)
    texts = [found.keys.to_pylist(), found.find("k05"), found.key_list(2, 4)]
    return texts + [(name, column.to_pylist()) for name, column in found.columns.items()]

def read():
    dataset = shoal.Dataset(root, sample_type=dict)
    samples = [list(dataset), dataset[3:7], [dataset[number] for number in (5, 1)], dataset.get("k07")]
    return samples + [dataset.where("json.width > 3 and json.name = 'n5'").keys()]

def damaged(data, act, expected):
    with open(index + ".new", "wb") as file:
        file.write(data)
    os.replace(index + ".new", index)  # not in place: it is mapped
    try:
        found = act()
    except (ShoalError, UnicodeError) as error:
        assert not checked or not isinstance(error, UnicodeError), error
        return 1
    assert not checked or found == expected
    return 0

def flipped(at):
    return whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :]

seen, had = look(), read()
refused = sum(damaged(flipped(at), look, seen) for at in range(0, len(whole), step))
refused += sum(damaged(whole[:at], look, seen) for at in range(0, len(whole), 97))
refused += sum(damaged(flipped(draw.randrange(len(whole))), read, had) for _ in range(readings))
print(refused)
"""


@pytest.fixture
def root(tmp_path):
    with shoal.ShardWriter(tmp_path / "d" / "a-%06d.tar") as writer:
        for number in range(10):
            extra = {"json": {"width": number, "name": f"n{number}", "ok": number % 2 == 0, "x": number / 3}}
            writer.write({"__key__": f"k{number:02d}", "txt": f"caption {number}", "cls": number % 3, **extra})
    return str(tmp_path / "d")


@pytest.mark.parametrize("state", ["checked", "too large to be checked"])
def test_no_damage_of_an_index_ends_the_process_or_gives_other_samples(root, state):
    counts = [str(times(4, 1)), str(times(100, 6000))]
    command = [sys.executable, "-c", PROGRAM, root, index_url(root, "a-000000.tar"), state, *counts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 500


def put(path, data):
    """Another file under the name: the one that is there is mapped."""
    Path(path).unlink()
    Path(path).write_bytes(data)


def flip(path):
    data = bytearray(Path(path).read_bytes())
    data[data.rindex(b"caption 7")] ^= 1
    put(path, data)


def test_damage_of_a_large_index_is_found_by_verify_and_mended_by_repair(root, monkeypatch):
    monkeypatch.setattr(index_module, "_MAX_CHECKED_BYTES", -1)
    monkeypatch.setattr(index_module, "_MAX_COPIED_BYTES", -1)
    path = index_url(root, "a-000000.tar")
    flip(path)
    assert len(load_index(path)) == 10  # not noticed, and no harm done
    with pytest.raises(ShardIndexError, match="checksum"):
        load_index(path, whole=True)
    assert main(["verify", root]) == 1
    assert main(["repair", root]) == 0
    assert main(["verify", root, "--strict"]) == 0
    assert load_index(path, whole=True).columns["txt"].to_pylist()[7] == "caption 7"


def test_a_damaged_index_says_what_to_do_and_one_in_the_cache_is_made_again(root, tmp_path, monkeypatch):
    flip(index_url(root, "a-000000.tar"))
    with pytest.raises(ShardIndexError, match=r"damaged.*shoal index"):
        list(shoal.Dataset(root))
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    foreign = tmp_path / "alone.tar"
    shutil.copy(f"{root}/a-000000.tar", foreign)
    assert len(list(shoal.Dataset(foreign))) == 10
    (kept,) = (tmp_path / "cache").rglob("*.arrow")
    flip(kept)
    assert shoal.Dataset(foreign).where("txt = 'caption 7'").keys() == ["k07"]


def outside(index):
    """The index with a text that begins far behind its column, and a checksum that fits."""
    starts = np.frombuffer(index.keys.buffers()[1], np.int32).copy()
    starts[4] = 1 << 30
    keys = pa.Array.from_buffers(pa.string(), len(index), [None, pa.py_buffer(starts), index.keys.buffers()[2]])
    object.__setattr__(index, "keys", keys)
    return index


@pytest.mark.parametrize("most", [-1, 8 << 20])
def test_a_text_outside_its_column_is_refused_whatever_the_checksum_says(root, monkeypatch, most):
    monkeypatch.setattr(index_module, "_MAX_CHECKED_BYTES", most)
    monkeypatch.setattr(index_module, "_MAX_COPIED_BYTES", -1)
    monkeypatch.setattr(index_module, "_MAX_COPIED_BYTES", -1)
    path = index_url(root, "a-000000.tar")
    put(path, encode_index(outside(load_index(path))).to_pybytes())
    with pytest.raises(ShardIndexError, match=r"outside|[Oo]ffset"):
        load_index(path)


def test_an_index_of_before_checksums_is_read(root):
    path = index_url(root, "a-000000.tar")
    batch = pa.ipc.open_file(path).get_batch(0)
    metadata = {name: value for name, value in batch.schema.metadata.items() if name != b"shoal.crc"}
    assert len(metadata) == len(batch.schema.metadata) - 1
    old = batch.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, old.schema) as writer:
        writer.write_batch(old)
    put(path, sink.getvalue().to_pybytes())
    assert len(list(shoal.Dataset(root))) == 10


def test_parts_of_arrays_have_the_checksum_of_what_is_stored(root, tmp_path):
    index = load_index(index_url(root, "a-000000.tar"))
    doubled = pa.concat_arrays([index.keys, index.keys])
    object.__setattr__(index, "keys", doubled.slice(7, 10))
    object.__setattr__(index, "columns", {"half": pa.array([1, None] * 10).slice(3, 10)})
    save_index(index, str(tmp_path / "x.arrow"))
    back = load_index(str(tmp_path / "x.arrow"), whole=True)
    assert back.keys.to_pylist() == doubled.slice(7, 10).to_pylist()
    assert back.columns["half"].to_pylist() == [None, 1] * 5


def schema(role, *, field="a", kind=None, shard=b"1"):
    parts = [
        pa.field("key", pa.string(), False, {"role": "key"}),
        pa.field("a.offset", kind or pa.uint64(), False, {"role": role, "field": field}),
    ]
    return pa.schema(parts, metadata={b"shoal.facts": shard})


def test_shards_that_are_alike_are_looked_through_once():
    first = parts_of(schema("offset", shard=b"1"))
    assert parts_of(schema("offset", shard=b"2")) is first
    assert first.extents == {b"offset": {"a": 1}, b"size": {}, b"crc": {}}
    assert (first.columns, first.unlike) == ({}, (0,))


def test_the_same_names_may_be_something_else():
    for _ in range(2):
        assert parts_of(schema("offset")).extents[b"offset"] == {"a": 1}
        assert parts_of(schema("offset", field="b")).extents[b"offset"] == {"b": 1}
        assert parts_of(schema("column")).columns == {"a.offset": 1}
        assert parts_of(schema("column", kind=pa.string())).unlike == (0, 1)


def test_a_column_of_no_field_is_refused_each_time():
    nameless = pa.schema([pa.field("x", pa.uint64(), False, {"role": "offset"})])
    for _ in range(2):
        with pytest.raises(KeyError):
            parts_of(nameless)
