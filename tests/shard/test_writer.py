"""ShardWriter: the same samples give the same bytes, and nothing that is not whole is ever seen."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shard.written import contents, files, index_of, read_written

from shoal.errors import (
    EncodeError,
    ManifestError,
    ObjectExistsError,
    OptionError,
    PatternError,
    SchemaMismatchError,
    StoreError,
    UnsafeCodecError,
    UnsafeNameError,
    WriteError,
)
from shoal.sample import packable
from shoal.shard import (
    ReaderFeed,
    SampleStream,
    ShardSource,
    ShardWriter,
    WriteOptions,
    index_shard,
    locate_shards,
    split_name,
)
from shoal.shard._commit import read_optional
from shoal.store import LocalStore, register_store, store_for

pytestmark = pytest.mark.usefixtures("commits")
only_manifest = pytest.mark.parametrize("commits", ["manifest"], indirect=True)
only_segments = pytest.mark.parametrize("commits", ["segments"], indirect=True)

UNPACK = {
    None: bytes,
    "gzip": gzip.decompress,
    "bz2": bz2.decompress,
    "xz": lzma.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read(),
}
EVERY = list(UNPACK)
PARTS = ("offset", "size", "crc")

GOLDEN_SAMPLES = [
    {"__key__": "a", "txt": "one", "json": {"n": 1}, "bin": b"\x00\x01"},
    {"__key__": "b/c", "cls": 7, "seg.png": b"", "txt": "zwei \u00e4"},
    {"__key__": "d" * 120, "txt": "a name that needs PAX"},
]
GOLDEN_SHA256 = "b3925f69cbe87b237bbb020fcbbbecd640578d48fb3ce96e32e52d8bdd454e1c"


def samples(count, *, size=100, start=0):
    return [
        {
            "__key__": f"k{number:05d}",
            "bin": bytes([number % 256]) * size,
            "txt": f"text {number}",
            "json": {"n": number},
        }
        for number in range(start, start + count)
    ]


def write(folder, rows, name="s-%06d.tar", **options):
    with ShardWriter(f"{folder}/{name}", **options) as writer:
        for row in rows:
            writer.write(row)
    return writer


def broken(rows, error=None):
    """An iterable that fails after these rows."""
    yield from rows
    raise RuntimeError("stop") if error is None else error


def tars(folder):
    return sorted(name for name in files(folder) if name.endswith(".tar") and not name.startswith("."))


def read_all(folder, **options):
    located = locate_shards(str(folder), **options)
    source = ShardSource(located.shards if located.table is None else located.table)
    try:
        return [row for run in source.stream() for row in run]
    finally:
        source.close()


def plain(rows):
    """Without what reading adds."""
    return [{name: value for name, value in row.items() if name != "__url__"} for row in rows]


def encoded(row):
    kinds = {
        dict: lambda value: json.dumps(value, separators=(",", ":")).encode(),
        str: str.encode,
        int: lambda v: str(v).encode(),
    }
    return {name: kinds.get(type(value), bytes)(value) if name != "__key__" else value for name, value in row.items()}


# -------------------------------------------------------------------------------------------------------- determinism


@pytest.mark.parametrize("compression", EVERY)
def test_the_same_samples_give_the_same_bytes(tmp_path, compression):
    for run in ("one", "two"):
        write(tmp_path / run, samples(40), max_samples=7, compression=compression, metadata={"b": 1, "a": [2]})
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(tars(tmp_path / "one")) == 6


@pytest.mark.parametrize("compression", EVERY)
def test_a_shard_has_the_bytes_it_always_had(tmp_path, compression):
    """What a compressor makes of them may change with its version; the tar never does."""
    write(tmp_path, GOLDEN_SAMPLES, compression=compression)
    tar = UNPACK[compression]((tmp_path / "s-000000.tar").read_bytes())
    assert hashlib.sha256(tar).hexdigest() == GOLDEN_SHA256


def test_headers_are_ustar_with_fixed_facts_and_pax_only_where_a_name_needs_it(tmp_path):
    rows = [
        {"__key__": "a", "txt": "x"},
        {"__key__": "d/" * 60 + "b", "txt": "fits the prefix"},
        {"__key__": "c" * 97, "txt": "101 bytes"},
    ]
    write(tmp_path, rows)
    data = (tmp_path / "s-000000.tar").read_bytes()
    assert len(data) % 10240 == 0
    assert data[257:263] == b"ustar\0"
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
    facts = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode, m.type) for m in members}
    assert facts == {(0, 0, 0, "bigdata", "bigdata", 0o444, b"0")}
    assert [list(m.pax_headers) for m in members] == [[], [], ["path"]]


def test_mtime_may_be_chosen(tmp_path):
    write(tmp_path, samples(1), mtime=1234567890)
    with tarfile.open(tmp_path / "s-000000.tar") as tar:
        assert {member.mtime for member in tar} == {1234567890}


def test_fields_keep_the_order_given_or_are_sorted(tmp_path):
    row = {"__key__": "a", "txt": "1", "bin": b"2", "json": {}}
    write(tmp_path / "given", [row])
    write(tmp_path / "sorted", [row], field_order="sorted")
    names = {}
    for order in ("given", "sorted"):
        with tarfile.open(tmp_path / order / "s-000000.tar") as tar:
            names[order] = tar.getnames()
    assert names == {"given": ["a.txt", "a.bin", "a.json"], "sorted": ["a.bin", "a.json", "a.txt"]}


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "b.c", "bin", "x-y"]), st.binary(max_size=1500), min_size=1),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(EVERY),
    st.integers(1, 5),
)
def test_whatever_is_written_is_what_tarfile_and_shoal_read(tmp_path_factory, rows, compression, most):
    folder = tmp_path_factory.mktemp("any")
    rows = [{"__key__": f"{number}", **row} for number, row in enumerate(rows)]
    write(folder, rows, compression=compression, max_samples=most)
    assert plain(read_all(folder)) == rows
    found = []
    for name in tars(folder):
        with tarfile.open(fileobj=io.BytesIO(UNPACK[compression]((folder / name).read_bytes()))) as tar:
            found += [(member.name, tar.extractfile(member).read()) for member in tar]
    assert found == [
        (f"{row['__key__']}.{field}", data) for row in rows for field, data in row.items() if field != "__key__"
    ]


# ----------------------------------------------------------------------------------------------------- where shards end


@pytest.mark.parametrize(
    "pattern, names",
    [
        ("s-%06d.tar", ["s-000000.tar", "s-000001.tar"]),
        ("s-{:03d}.tar", ["s-000.tar", "s-001.tar"]),
        ("%d.tar", ["0.tar", "1.tar"]),
    ],
)
def test_shards_are_numbered(tmp_path, pattern, names):
    writer = write(tmp_path, samples(4), pattern, max_samples=2)
    assert tars(tmp_path) == names
    assert writer.urls == [f"{tmp_path}/{name}" for name in names]


def test_max_samples_counts_samples(tmp_path):
    writer = write(tmp_path, samples(11), max_samples=5)
    assert [record.samples for record in writer.shards] == [5, 5, 1]


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 5000])
def test_no_shard_of_several_samples_is_over_max_bytes(tmp_path, size):
    most = 30_000
    writer = write(
        tmp_path,
        [{"__key__": f"{n:03d}", "a": bytes(size), "b": b"x"} for n in range(60)],
        max_bytes=most,
        metadata={"about": "x" * 3000},
    )
    for record in writer.shards:
        with tarfile.open(tmp_path / record.path) as tar:
            end = max(member.offset_data + -(-member.size // 512) * 512 for member in tar)
        assert end <= most
    assert all(record.samples > 1 for record in writer.shards[:-1])
    assert sum(record.samples for record in writer.shards) == 60


def test_long_names_count_too(tmp_path):
    rows = [{"__key__": f"{n:03d}" + "k" * 900, "a": b""} for n in range(20)]
    writer = write(tmp_path, rows, max_bytes=10_000)
    for record in writer.shards:
        with tarfile.open(tmp_path / record.path) as tar:
            assert max(member.offset_data for member in tar) <= 10_000


def test_a_sample_larger_than_max_bytes_has_a_shard_of_its_own(tmp_path):
    rows = [{"__key__": "a", "bin": b"1"}, {"__key__": "b", "bin": bytes(50_000)}, {"__key__": "c", "bin": b"3"}]
    writer = write(tmp_path, rows, max_bytes=10_000)
    assert [record.samples for record in writer.shards] == [1, 1, 1]
    assert plain(read_all(tmp_path)) == rows


def test_a_pattern_without_a_number_holds_one_shard(tmp_path):
    write(tmp_path / "one", samples(3), "only.tar")
    assert tars(tmp_path / "one") == ["only.tar"]
    with pytest.raises(PatternError, match="has no number"):
        write(tmp_path / "two", samples(3), "only.tar", max_samples=2)
    assert read_written(str(tmp_path / "two")) is None


def test_a_bad_pattern_is_refused_before_anything_is_touched(tmp_path):
    with pytest.raises(PatternError, match="one number"):
        ShardWriter(tmp_path / "x" / "%d-%d.tar")
    assert not (tmp_path / "x").exists()


def test_shards_are_read_in_the_order_they_were_written(tmp_path):
    """Names without leading zeros sort otherwise as text."""
    rows = samples(25)
    write(tmp_path, rows, "%d.tar", max_samples=2)
    assert [row["__key__"] for row in read_all(tmp_path)] == [row["__key__"] for row in rows]


def test_nothing_written_is_no_shard_and_an_empty_dataset(tmp_path):
    writer = write(tmp_path, [], metadata={"about": "nothing"})
    assert writer.shards == []
    assert list(contents(tmp_path)) == [".shoal/manifest.json"]
    assert read_all(tmp_path) == []
    assert read_written(str(tmp_path)).metadata == {"about": "nothing"}


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"max_samples": 0}, "holds something"),
        ({"max_bytes": 0}, "holds something"),
        ({"compression": "rar"}, "no such compression.*gzip"),
        ({"field_order": "random"}, "no such field_order"),
        ({"mtime": 1.5}, "whole number"),
        ({"mtime": -1}, "whole number"),
        ({"compression": "gzip", "level": 77}, "level"),
        ({"level": 3}, "level"),
    ],
)
def test_wrong_options_are_refused_at_once(tmp_path, options, problem):
    with pytest.raises(OptionError, match=problem):
        ShardWriter(tmp_path / "x" / "s-%06d.tar", **options)
    assert not (tmp_path / "x").exists()


def test_constructing_a_writer_touches_nothing(tmp_path):
    ShardWriter(tmp_path / "x" / "s-%06d.tar")
    assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------------------------------------ samples, good and bad


def test_a_sample_is_a_mapping_a_pair_or_a_packable(tmp_path):
    class Packable:
        as_wds = {"__key__": "p", "txt": b"packed"}  # noqa: RUF012

    write(tmp_path, [{"__key__": "m", "txt": "mapping"}, ("pair", {"txt": "pair"}), Packable(), {"txt": "numbered"}])
    assert [(row["__key__"], row["txt"]) for row in read_all(tmp_path)] == [
        ("m", b"mapping"), ("pair", b"pair"), ("p", b"packed"), ("000000003", b"numbered"),
    ]  # fmt: skip


def test_the_key_of_a_pair_wins_and_double_underscores_are_not_fields(tmp_path):
    write(tmp_path, [("yes", {"__key__": "no", "__url__": "x", "__local_path__": "y", "txt": "t"})])
    assert plain(read_all(tmp_path)) == [{"__key__": "yes", "txt": b"t"}]


@pytest.mark.parametrize(
    "sample",
    [
        1,
        "text",
        b"bytes",
        None,
        ["a", {}],
        ("a", {}, 3),
        ("a", "b"),
        object(),
        (1, {"txt": "a"}),
        {"__key__": 5, "txt": "a"},
        {"__key__": b"a", "txt": "a"},
    ],
)
def test_what_is_no_sample_is_refused_and_the_writer_goes_on(tmp_path, sample):
    with ShardWriter(tmp_path / "s-%06d.tar") as writer:
        writer.write({"__key__": "before", "txt": "1"})
        with pytest.raises(WriteError):
            writer.write(sample)
        writer.write({"__key__": "after", "txt": "2"})
    assert [row["__key__"] for row in read_all(tmp_path)] == ["before", "after"]


UNSAFE_KEYS = [
    "",
    "a/",
    "a.b",
    ".a",
    "d/.a",
    "d/a.b",
    "/a",
    "../a",
    "d/../a",
    "a/..",
    "..",
    "__meta__",
    "__m__/a",
    "__a",
    "d/__a",
    "a\0b",
    "a\nb",
    "a\x7f",
    "\ud800",
    "a\tb",
    "a/\x01/b",
    "a//b",
]


@pytest.mark.parametrize("key", UNSAFE_KEYS)
def test_a_key_no_reader_would_give_back_is_refused_with_the_reason(tmp_path, key):
    with ShardWriter(tmp_path / "s-%06d.tar") as writer:
        writer.write({"__key__": "before", "txt": "1"})
        with pytest.raises(UnsafeNameError, match=r"a key (must|would)") as error:
            writer.write({"__key__": key, "txt": "1"})
        assert repr(key) in str(error.value)
        writer.write({"__key__": "after", "txt": "2"})
    assert [row["__key__"] for row in read_all(tmp_path)] == ["before", "after"]


@pytest.mark.parametrize(
    "field", ["", ".a", "a.", ".", "a/b", "JPG", "a.Txt", "a\0", "a\nb", "\ud800", 5, None, b"txt"]
)
def test_a_field_no_reader_would_give_back_is_refused_with_the_reason(tmp_path, field):
    with ShardWriter(tmp_path / "s-%06d.tar") as writer:
        writer.write({"__key__": "before", "txt": "1"})
        with pytest.raises(UnsafeNameError, match="a field must") as error:
            writer.write({"__key__": "bad", "txt": "1", field: b"2"})
        assert error.value.key == "bad"
        writer.write({"__key__": "after", "txt": "2"})
    assert [row["__key__"] for row in read_all(tmp_path)] == ["before", "after"]


@settings(max_examples=300)
@given(
    st.text(min_size=1, max_size=12) | st.text(st.sampled_from("ab./_ -~\u00e9"), min_size=1, max_size=8),
    st.text(st.sampled_from("ab._ -\u00e9~"), min_size=1, max_size=6),
)
def test_a_name_is_refused_or_read_back(key, field):
    memory = f"memory://names/{os.urandom(8).hex()}"
    try:
        write(memory, [{"__key__": key, field: b"value"}])
    except UnsafeNameError:
        return
    except WriteError:
        assert field.startswith("__")
        return
    assert plain(read_all(memory)) == [{"__key__": key, field: b"value"}]
    assert split_name(f"{key}.{field}") == (key, field)


def test_a_sample_without_fields_is_refused(tmp_path):
    with ShardWriter(tmp_path / "s-%06d.tar") as writer:
        for empty in ({}, {"__key__": "a"}, ("a", {})):
            with pytest.raises(WriteError, match="at least one field"):
                writer.write(empty)
    assert tars(tmp_path) == []


def test_a_key_twice_in_one_shard_is_refused(tmp_path):
    with ShardWriter(tmp_path / "s-%06d.tar", max_samples=2) as writer:
        writer.write({"__key__": "a", "txt": "1"})
        with pytest.raises(WriteError, match="in this shard already") as error:
            writer.write({"__key__": "a", "json": {}})
        assert error.value.key == "a"
        writer.write({"__key__": "b", "txt": "2"})
        writer.write({"__key__": "a", "txt": "in another shard readers tell them apart"})
    assert [row["__key__"] for row in read_all(tmp_path)] == ["a", "b", "a"]


@pytest.mark.parametrize(
    "field, value",
    [
        ("json", object()),
        ("txt", 5),
        ("cls", 1.5),
        ("npy", "no array"),
        ("jpg", 3),
        ("bin", 3),
        ("bin", None),
        ("msgpack", object()),
    ],
)
def test_a_value_that_cannot_be_written_names_key_and_field_and_leaves_nothing(tmp_path, field, value):
    with ShardWriter(tmp_path / "s-%06d.tar") as writer:
        writer.write({"__key__": "before", "txt": "1"})
        with pytest.raises(EncodeError) as error:
            writer.write({"__key__": "bad", "first.bin": b"not to be written", field: value})
        assert (error.value.key, error.value.field) == ("bad", field)
        writer.write({"__key__": "bad", "txt": "the key is still free"})
    with tarfile.open(tmp_path / "s-000000.tar") as tar:
        assert tar.getnames() == ["before.txt", "bad.txt"]


def test_pickle_only_when_asked(tmp_path):
    with ShardWriter(tmp_path / "no" / "s-%06d.tar") as writer, pytest.raises(UnsafeCodecError) as error:
        writer.write({"__key__": "a", "pkl": {1, 2}})
    assert (error.value.key, error.value.field) == ("a", "pkl")
    write(tmp_path / "yes", [{"__key__": "a", "pkl": {1, 2}}], allow_pickle=True)
    assert len(read_all(tmp_path / "yes")) == 1


def test_bytes_of_every_kind_are_written_as_they_are(tmp_path):
    class Sub(bytes):
        __slots__ = ()

    raw = b"\x00\xff raw"
    kinds = {
        "bin": raw,
        "a.bin": bytearray(raw),
        "b.bin": memoryview(raw),
        "c.bin": Sub(raw),
        "d.bin": memoryview(raw + raw)[: len(raw)],
        "jpg": raw,
        "json": raw,
    }
    write(tmp_path, [{"__key__": "k", **kinds}])
    assert plain(read_all(tmp_path)) == [{"__key__": "k", **dict.fromkeys(kinds, raw)}]


def test_a_buffer_that_is_filled_again_after_the_call_does_not_change_what_was_written(tmp_path):
    buffer, array = bytearray(b"first"), np.zeros(4, np.uint8)
    with ShardWriter(tmp_path / "s-%06d.tar") as writer:
        writer.write({"__key__": "a", "bin": buffer, "npy": array})
        buffer[:] = b"other"
        array[:] = 9
    row = read_all(tmp_path)[0]
    assert row["bin"] == b"first"
    assert np.load(io.BytesIO(row["npy"])).tolist() == [0, 0, 0, 0]


# ------------------------------------------------------------------------------------------------- whole or not at all


def test_leaving_by_an_exception_leaves_finished_shards_only(tmp_path):
    with pytest.raises(RuntimeError, match="stop"):
        write(tmp_path, broken(samples(5)), max_samples=2)
    assert tars(tmp_path) == ["s-000000.tar", "s-000001.tar"]
    assert not [name for name in files(tmp_path) if name.endswith(".partial")]
    assert read_written(str(tmp_path)) is None


def test_a_folder_whose_writer_did_not_finish_is_not_taken_for_a_dataset(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, broken(samples(5), KeyboardInterrupt()), max_samples=2)
    with pytest.raises(ManifestError, match=r"not finished.*resume=True"):
        locate_shards(str(tmp_path))
    assert len(locate_shards(f"{tmp_path}/*.tar").shards) == 2  # by name they can be had


def test_a_writer_at_work_is_not_taken_for_a_dataset_either(tmp_path):
    with ShardWriter(tmp_path / "s-%06d.tar", max_samples=2) as writer:
        for row in samples(5):
            writer.write(row)
        with pytest.raises(ManifestError, match="not finished"):
            locate_shards(str(tmp_path))
    assert len(read_all(tmp_path)) == 5


def test_a_writer_opens_at_the_first_write_and_closes_once(tmp_path):
    writer = ShardWriter(tmp_path / "s-%06d.tar")
    writer.write({"__key__": "a", "txt": "1"})
    writer.close()
    writer.close()
    assert len(read_all(tmp_path)) == 1
    with pytest.raises(WriteError, match="closed"):
        writer.write({"__key__": "b", "txt": "1"})


def test_an_aborted_writer_is_closed(tmp_path):
    writer = ShardWriter(tmp_path / "s-%06d.tar")
    writer.write({"__key__": "a", "txt": "1"})
    writer.abort()
    with pytest.raises(WriteError, match="closed"):
        writer.write({"__key__": "b", "txt": "1"})
    assert tars(tmp_path) == []
    assert not [name for name in files(tmp_path) if name.endswith(".partial")]


def test_a_dataset_that_is_there_is_not_touched(tmp_path):
    write(tmp_path, samples(5), max_samples=2)
    before = files(tmp_path)
    with pytest.raises(ObjectExistsError, match="overwrite=True"):
        write(tmp_path, samples(1))
    assert files(tmp_path) == before


def test_a_dataset_without_a_manifest_is_not_touched_either(tmp_path):
    """Shards of webdataset's writer, say, under the name this one would take."""
    with tarfile.open(tmp_path / "s-000000.tar", "w"):
        pass
    before = files(tmp_path)
    with pytest.raises(ObjectExistsError, match="overwrite=True"):
        write(tmp_path, samples(1))
    assert files(tmp_path) == before


@pytest.mark.parametrize("pattern", ["v2%04d.tar", "2024-%06d.tar", "a1b2-{:02d}.tar"])
def test_digits_in_the_pattern_hide_no_dataset(tmp_path, pattern):
    write(tmp_path, samples(5), pattern, max_samples=2)
    before = files(tmp_path)
    with pytest.raises(ObjectExistsError):
        write(tmp_path, samples(1), pattern)
    assert files(tmp_path) == before


def test_overwriting_gives_exactly_the_new_dataset(tmp_path):
    write(tmp_path / "a", samples(9), max_samples=2, metadata={"old": 1})
    write(tmp_path / "a", samples(5, start=100), max_samples=2, metadata={"new": 2}, overwrite=True)
    write(tmp_path / "b", samples(5, start=100), max_samples=2, metadata={"new": 2})
    left, right = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert {name: data for name, data in left.items() if name != ".shoal/manifest.json"} == {
        name: data for name, data in right.items() if name != ".shoal/manifest.json"
    }
    assert [row["__key__"] for row in read_all(tmp_path / "a")] == [row["__key__"] for row in samples(5, start=100)]


def test_overwriting_a_dataset_without_a_manifest_removes_what_is_left_of_it(tmp_path):
    for number in range(3):
        with tarfile.open(tmp_path / f"s-{number:06d}.tar", "w"):
            pass
    write(tmp_path, samples(2), overwrite=True)
    assert tars(tmp_path) == ["s-000000.tar"]
    assert len(read_all(tmp_path)) == 2


def test_the_old_dataset_stays_until_the_new_one_is_whole(tmp_path):
    write(tmp_path, samples(6), max_samples=2)
    before = {
        name: data
        for name, data in files(tmp_path).items()
        if name.endswith((".tar", ".arrow", ".rec", ".parquet", "manifest.json"))
    }
    with ShardWriter(tmp_path / "s-%06d.tar", max_samples=2, overwrite=True) as writer:
        for row in samples(5, start=50):
            writer.write(row)
            now = files(tmp_path)
            assert {name: now[name] for name in before} == before
            assert [row["__key__"] for row in read_all(tmp_path)] == [f"k{n:05d}" for n in range(6)]
    assert [row["__key__"] for row in read_all(tmp_path)] == [f"k{n:05d}" for n in range(50, 55)]


def test_an_exception_while_overwriting_keeps_the_old_dataset(tmp_path):
    write(tmp_path, samples(6), max_samples=2)
    with pytest.raises(RuntimeError, match="stop"):
        write(tmp_path, broken(samples(5, start=50)), max_samples=2, overwrite=True)
    assert plain(read_all(tmp_path)) == [encoded(row) for row in samples(6)]


def test_overwriting_with_nothing_gives_an_empty_dataset(tmp_path):
    write(tmp_path, samples(6), max_samples=2)
    write(tmp_path, [], overwrite=True)
    assert tars(tmp_path) == []
    assert read_all(tmp_path) == []


def test_two_patterns_in_one_folder_are_two_splits_of_one_dataset(tmp_path):
    write(tmp_path, samples(5), "train-%06d.tar", max_samples=2, metadata={"by": "me"})
    write(tmp_path, samples(3, start=90), "val-%06d.tar", max_samples=2)
    manifest = read_written(str(tmp_path))
    assert {name: [record.samples for record in records] for name, records in manifest.splits.items()} == {
        "train": [2, 2, 1],
        "validation": [2, 1],
    }
    assert manifest.metadata == {"by": "me"}
    assert [row["__key__"] for row in read_all(tmp_path, split="validation")] == ["k00090", "k00091", "k00092"]
    assert len(read_all(tmp_path)) == 8


def test_two_writers_open_at_once_do_not_lose_each_others_shards(tmp_path):
    with ShardWriter(tmp_path / "train-%06d.tar") as train, ShardWriter(tmp_path / "val-%06d.tar") as val:
        for number, row in enumerate(samples(10)):
            (val if number % 5 == 0 else train).write(row)
    manifest = read_written(str(tmp_path))
    assert {name: sum(record.samples for record in records) for name, records in manifest.splits.items()} == {
        "train": 8,
        "validation": 2,
    }


def test_overwriting_one_split_leaves_the_other_alone(tmp_path):
    write(tmp_path, samples(5), "train-%06d.tar", max_samples=2)
    write(tmp_path, samples(3, start=90), "val-%06d.tar", max_samples=2)
    write(tmp_path, samples(1, start=70), "train-%06d.tar", overwrite=True)
    assert [row["__key__"] for row in read_all(tmp_path)] == ["k00070", "k00090", "k00091", "k00092"]
    assert tars(tmp_path) == ["train-000000.tar", "val-000000.tar", "val-000001.tar"]


def test_a_named_split_wins_over_the_name(tmp_path):
    write(tmp_path, samples(1), "train-%06d.tar", split="dev set")
    assert list(read_written(str(tmp_path)).splits) == ["dev set"]


# ------------------------------------------------------------------------------------------------------------- resuming


def interrupt(folder, rows, count, **options):
    """Write ``count`` of the rows and die."""
    with pytest.raises(RuntimeError, match="stop"):
        write(folder, broken(rows[:count]), **options)


def marks(folder):
    return {name: (os.stat(folder / name).st_ino, os.stat(folder / name).st_mtime_ns) for name in tars(folder)}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 9, 10])
def test_a_rerun_goes_on_after_the_finished_shards(tmp_path, count):
    rows, options = samples(10), {"max_samples": 3, "metadata": {"m": 1}}
    interrupt(tmp_path / "a", rows, count, **options)
    finished = marks(tmp_path / "a")
    writer = write(tmp_path / "a", rows, resume=True, **options)
    write(tmp_path / "b", rows, **options)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert {name: mark for name, mark in marks(tmp_path / "a").items() if name in finished} == finished
    assert len(finished) == max(0, count - 1) // 3
    assert writer.samples == 10


def test_numbered_keys_go_on_too(tmp_path):
    rows = [{"txt": f"{number}"} for number in range(7)]
    interrupt(tmp_path / "a", rows, 5, max_samples=2)
    write(tmp_path / "a", rows, max_samples=2, resume=True)
    write(tmp_path / "b", rows, max_samples=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_resuming_may_be_interrupted_again(tmp_path):
    rows = samples(12)
    for count in (4, 7, 9):
        interrupt(tmp_path / "a", rows, count, max_samples=2, **({"resume": True} if count > 4 else {}))
    write(tmp_path / "a", rows, max_samples=2, resume=True)
    write(tmp_path / "b", rows, max_samples=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_resuming_nothing_is_a_plain_write(tmp_path):
    write(tmp_path / "a", samples(4), resume=True)
    write(tmp_path / "b", samples(4))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize(
    "change",
    [
        {"max_samples": 4},
        {"compression": "gzip"},
        {"metadata": {"x": 1}},
        {"split": "val"},
        {"mtime": 5},
        {"field_order": "sorted"},
    ],
)
def test_a_run_that_was_asked_something_else_is_not_gone_on_with(tmp_path, change):
    interrupt(tmp_path, samples(5), 4, max_samples=2)
    before = files(tmp_path)
    with pytest.raises(WriteError, match="asked something else"):
        write(tmp_path, samples(5), **{"max_samples": 2, "resume": True, **change})
    assert files(tmp_path) == before


@pytest.mark.parametrize("rows", [samples(9, start=1), list(reversed(samples(9))), [*samples(3), *samples(6, start=4)]])
def test_other_samples_are_noticed(tmp_path, rows):
    interrupt(tmp_path, samples(9), 8, max_samples=3)
    with pytest.raises(WriteError, match=r"not those of the interrupted run.*expected key") as error:
        write(tmp_path, rows, max_samples=3, resume=True)
    assert error.value.shard is not None
    assert read_written(str(tmp_path)) is None


def test_fewer_samples_are_noticed(tmp_path):
    interrupt(tmp_path, samples(9), 8, max_samples=3)
    with pytest.raises(WriteError, match="ended before"):
        write(tmp_path, samples(5), max_samples=3, resume=True)
    assert read_written(str(tmp_path)) is None


def test_a_finished_shard_that_was_removed_meanwhile_is_written_again(tmp_path):
    rows = samples(9)
    interrupt(tmp_path / "a", rows, 8, max_samples=2)
    (tmp_path / "a" / "s-000001.tar").unlink()
    write(tmp_path / "a", rows, max_samples=2, resume=True)
    write(tmp_path / "b", rows, max_samples=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_starting_over_leaves_nothing_of_the_interrupted_run(tmp_path):
    interrupt(tmp_path / "a", samples(9), 8, max_samples=1)
    write(tmp_path / "a", samples(2), max_samples=1)
    write(tmp_path / "b", samples(2), max_samples=1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_what_another_writer_has_finished_is_left_alone(tmp_path):
    interrupt(tmp_path, samples(5), 4, max_samples=2)  # of s-%06d.tar
    own = {name: data for name, data in files(tmp_path).items() if re.search(r"journal|writing/|s-0000", name)}
    assert len(own) > 1
    with pytest.raises(ObjectExistsError, match="being written"):
        write(tmp_path, samples(2), "other-%06d.tar")
    write(tmp_path, samples(2), "other-%06d.tar", append=True)
    assert {name: data for name, data in files(tmp_path).items() if name in own} == own
    write(tmp_path, samples(5), max_samples=2, resume=True)
    assert read_written(str(tmp_path)).samples == 7


@only_manifest
@pytest.mark.parametrize("text", [b"garbage\n", b"{}\n", b'{"pattern": 5, "options": {}}\n', b"[1]\n\xff\n"])
def test_a_journal_that_cannot_be_read_says_so(tmp_path, text):
    interrupt(tmp_path, samples(5), 4, max_samples=2)
    (journal,) = (tmp_path / ".shoal").glob("journal-*")
    journal.write_bytes(text)
    with pytest.raises(WriteError, match="journal"):
        write(tmp_path, samples(5), max_samples=2, resume=True)
    write(tmp_path, samples(5), max_samples=2)
    assert len(read_all(tmp_path)) == 5


@only_manifest
def test_a_line_that_was_being_written_does_not_count(tmp_path):
    rows = samples(9)
    interrupt(tmp_path / "a", rows, 8, max_samples=2)
    (journal,) = (tmp_path / "a" / ".shoal").glob("journal-*")
    journal.write_bytes(journal.read_bytes()[:-20])
    write(tmp_path / "a", rows, max_samples=2, resume=True)
    write(tmp_path / "b", rows, max_samples=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@only_segments
def test_shards_after_a_damaged_rows_file_are_written_again(tmp_path):
    rows = samples(9)
    interrupt(tmp_path / "a", rows, 8, max_samples=2)
    (damaged,) = (tmp_path / "a").glob(".shoal/writing/*/rows-00000001")
    damaged.write_bytes(damaged.read_bytes()[:50])
    write(tmp_path / "a", rows, max_samples=2, resume=True)
    write(tmp_path / "b", rows, max_samples=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_resuming_an_overwrite(tmp_path):
    write(tmp_path / "a", samples(4), max_samples=2)
    interrupt(tmp_path / "a", samples(9, start=30), 8, max_samples=2, overwrite=True)
    assert [row["__key__"] for row in read_all(tmp_path / "a")] == [row["__key__"] for row in samples(4)]
    write(tmp_path / "a", samples(9, start=30), max_samples=2, overwrite=True, resume=True)
    write(tmp_path / "b", samples(9, start=30), max_samples=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


# --------------------------------------------------------------------------------------------------- a store that fails


class FullDisk(LocalStore):
    """The local disk under ``full://``, without room after so many bytes."""

    def __init__(self, room):
        self.room = room

    def _path(self, url):
        return url.removeprefix("full://")

    def create(self, url):
        writer = super().create(self._path(url))
        return writer if url.endswith(".json") else FullWriter(self, writer)  # there is room for small documents

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name in {"info", "open", "list", "read_all", "append", "delete", "is_folder", "write_all"}:
            return lambda url, *rest, **options: found(url.removeprefix("full://"), *rest, **options)
        return found

    def update(self, url, change):
        """Another writer may be ``change`` itself, which is how shoal finds out what a store can do."""
        while True:
            before = read_optional(url)
            data = change(before)
            if read_optional(url) == before:
                self.write_all(url, data)
                return


class FullWriter:
    def __init__(self, disk, inner):
        self.disk, self.inner = disk, inner

    def write(self, data):
        self.disk.room -= len(data)
        if self.disk.room < 0:
            raise StoreError(os.strerror(errno.ENOSPC))
        self.inner.write(data)

    def commit(self, *, durable=False):
        if self.disk.room < 0:
            raise StoreError(os.strerror(errno.ENOSPC))
        return self.inner.commit(durable=durable)

    def abort(self):
        self.inner.abort()


@pytest.mark.parametrize("room", [0, 2_000_000, 4_800_000, 10_000_000, 16_000_000])
def test_a_disk_that_is_full_leaves_no_half_shard_even_if_the_caller_goes_on(tmp_path, room):
    register_store("full", FullDisk(room))
    rows = samples(100, size=240_000)  # 24 MB: what is gathered before it is written, several times over
    writer, errors = ShardWriter(f"full://{tmp_path}/s-%06d.tar", max_bytes=8_000_000), []
    for row in rows:
        try:
            writer.write(row)
        except (StoreError, WriteError) as error:  # a caller who takes any error for one bad sample
            errors.append(str(error))
    assert "No space" in errors[0]
    assert all("closed" in error for error in errors[1:])
    with pytest.raises(WriteError, match="not finished"):
        writer.close()
    assert not [name for name in files(tmp_path) if name.endswith(".partial")]
    assert read_written(str(tmp_path)) is None
    for name in tars(tmp_path):
        with tarfile.open(tmp_path / name) as tar:
            assert len(tar.getmembers()) % 3 == 0
    write(tmp_path, rows, max_bytes=8_000_000, resume=True)
    assert plain(read_all(tmp_path)) == [encoded(row) for row in rows]


@pytest.mark.parametrize("room", [3_100_000, 3_680_000])
def test_a_disk_that_is_full_at_the_end_leaves_no_manifest(tmp_path, room):
    register_store("full", FullDisk(room))
    with pytest.raises(StoreError, match="No space"):
        write(f"full://{tmp_path}", samples(60, size=60_000), max_bytes=2_000_000)
    assert not [name for name in files(tmp_path) if name.endswith(".partial")]
    assert read_written(str(tmp_path)) is None


# --------------------------------------------------------------------------------------------- what is known at the end


def test_records_say_what_the_shards_hold(tmp_path):
    writer = write(tmp_path, samples(5), max_samples=2, hashed=True, compression="gzip")
    for number, record in enumerate(writer.shards):
        data = (tmp_path / record.path).read_bytes()
        rows = [encoded(row) for row in samples(5)[number * 2 : number * 2 + 2]]
        assert (record.bytes, record.sha256, record.compression) == (
            len(data),
            hashlib.sha256(data).hexdigest(),
            "gzip",
        )
        assert (record.samples, record.first_key, record.last_key) == (
            len(rows),
            rows[0]["__key__"],
            rows[-1]["__key__"],
        )
        assert record.fields == {
            name: (len(rows), sum(len(row[name]) for row in rows)) for name in ("bin", "txt", "json")
        }


def test_metadata_is_in_the_manifest_and_in_each_shard_but_no_sample(tmp_path):
    metadata = {"name": "pets", "numbers": [1, 2.5, None], "nested": {"a": True}}
    write(tmp_path, samples(4), max_samples=2, metadata=metadata)
    for name in tars(tmp_path):
        with tarfile.open(tmp_path / name) as tar:
            assert tar.getnames()[-1] == "__meta__"
            assert json.load(tar.extractfile("__meta__")) == metadata
    assert read_written(str(tmp_path)).metadata == metadata
    assert [row["__key__"] for row in read_all(tmp_path)] == [row["__key__"] for row in samples(4)]
    reader = store_for("").open(str(tmp_path / "s-000000.tar"))
    assert [row["__key__"] for row in SampleStream(ReaderFeed(reader), "x")] == ["k00000", "k00001"]


def test_metadata_that_is_not_json_is_refused_at_once(tmp_path):
    with pytest.raises(ManifestError, match="must be JSON"):
        ShardWriter(tmp_path / "x" / "s-%06d.tar", metadata={"a": object()})
    assert not (tmp_path / "x").exists()


def test_options_are_values():
    assert WriteOptions(max_samples=3) == WriteOptions(max_samples=3)
    assert re.search("max_samples=3", repr(WriteOptions(max_samples=3)))


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_the_index_of_a_large_shard_is_what_a_scan_finds(tmp_path, compression):
    rng = np.random.default_rng(5)
    rows = [  # 14 MB: blocks and what is gathered at once end anywhere, long names and missing fields among them
        {
            "__key__": f"{'long/' * (40 if number % 97 == 3 else 0)}{number:06d}",
            **({} if number % 5 == 4 else {"bin": rng.bytes(int(rng.integers(0, 60_000)))}),
            "json": {"n": number, "even": number % 2 == 0},
        }
        for number in range(600)
    ]
    writer = write(tmp_path, rows, compression=compression, metadata={"a": 1})
    (path,) = (str(tmp_path / record.path) for record in writer.shards)
    tar = UNPACK[compression](Path(path).read_bytes())
    (tmp_path / "plain.tar").write_bytes(tar)
    reader = store_for(path).open(str(tmp_path / "plain.tar"))
    scanned, written = index_shard(reader), index_of(tmp_path, writer.shards[0].path)
    reader.close()
    assert written.keys.equals(scanned.keys)
    for name, extents in scanned.fields.items():
        assert all((getattr(written.fields[name], part) == getattr(extents, part)).all() for part in PARTS)
    assert {name: column.to_pylist() for name, column in written.columns.items()} == {
        name: column.to_pylist() for name, column in scanned.columns.items()
    }
    assert written.blocks.offsets[-1] == scanned.blocks.offsets[-1]
    assert [
        zlib.crc32(tar[start:stop]) for start, stop in itertools.pairwise(written.blocks.offsets.tolist())
    ] == written.blocks.crcs.tolist()
    assert len(written.blocks) > 3
    assert plain(read_all(tmp_path)) == [encoded(row) for row in rows]


@pytest.mark.parametrize("compression", EVERY)
def test_durable_writes_the_same(tmp_path, compression):
    write(tmp_path / "a", samples(5), compression=compression, durable=True)
    write(tmp_path / "b", samples(5), compression=compression)
    assert (tmp_path / "a" / "s-000000.tar").read_bytes() == (tmp_path / "b" / "s-000000.tar").read_bytes()


def test_a_missing_last_newline_of_a_key_rule_is_no_way_in(tmp_path):
    """`re.match(...$)` would let a trailing newline through."""
    with ShardWriter(tmp_path / "s-%06d.tar") as writer, pytest.raises(UnsafeNameError):
        writer.write({"__key__": "plain\n", "txt": "1"})


@packable
class Number:
    n: int


@dataclass
class Named:
    name: str


def test_typed_samples_are_numbered_so_that_they_give_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        with ShardWriter(tmp_path / folder / "x.tar") as writer:
            writer.write(Number(1))
            writer.write(("key", Number(2)))
    assert (tmp_path / "a" / "x.tar").read_bytes() == (tmp_path / "b" / "x.tar").read_bytes()
    with tarfile.open(tmp_path / "a" / "x.tar") as tar:
        assert tar.getnames() == ["000000000.msgpack", "key.msgpack"]


@pytest.mark.parametrize(
    "samples, expected",
    [
        ([Number(1), Number(2)], "Number"),
        ([Named("a")], "Named"),
        ([Number(1), Named("a")], None),
        ([Number(1), {"txt": "a"}], None),
        ([{"txt": "a"}], None),
    ],
)
def test_samples_that_are_all_of_one_type_give_the_manifest_its_schema(tmp_path, samples, expected):
    with ShardWriter(tmp_path / "x.tar") as writer:
        for sample in samples:
            writer.write(sample)
    schema = read_written(str(tmp_path)).schema
    assert (schema and schema["title"]) == expected


def test_a_typed_sample_that_does_not_fit_is_told_with_its_number(tmp_path):
    with ShardWriter(tmp_path / "x.tar") as writer:
        writer.write(Number(1))
        with pytest.raises(SchemaMismatchError, match=r"expected int, found str.*key 000000001, field n"):
            writer.write(Number("2"))


@pytest.mark.parametrize("ending, kind", [("tar.gz", "gzip"), ("tgz", "gzip"), ("tar.xz", "xz"), ("TAR.ZST", "zstd")])
def test_a_name_says_how_a_shard_is_compressed(tmp_path, ending, kind):
    with ShardWriter(tmp_path / f"x-%d.{ending}") as writer:
        writer.write({"__key__": "a", "txt": "x"})
    assert read_written(str(tmp_path)).shards[0].compression == kind
    stored = (tmp_path / f"x-0.{ending}").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(UNPACK[kind](stored))) as tar:
        assert tar.getnames() == ["a.txt"]
    with pytest.raises(OptionError, match="the name says another compression"):
        ShardWriter(tmp_path / f"x-%d.{ending}", compression="bz2")


@pytest.mark.parametrize("name", ["out", "out/", "v1.2/out/", "v1.2/out"])
def test_a_name_that_says_nothing_of_shards_is_a_folder_for_them(tmp_path, name):
    for split, expected in ((None, "shard-000000.tar"), ("val", "val-000000.tar")):
        with ShardWriter(f"{tmp_path}/{name}", split=split) as writer:
            writer.write({"__key__": "a", "txt": "x"})
        assert [record.path for record in writer.shards] == [expected]
    assert sorted(path.name for path in (tmp_path / name).glob("*.tar")) == ["shard-000000.tar", "val-000000.tar"]
    assert (tmp_path / name / ".shoal" / "manifest.json").exists()
