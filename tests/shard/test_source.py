"""Reading by index and by key: any order, any fields, from any store, and never a wrong byte."""

from __future__ import annotations

import gc
import io
import os
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.shard.watched import watched_store

import shoal
from shoal.errors import (
    ChecksumError,
    DecodeError,
    DuplicateFieldError,
    HeaderError,
    ManifestError,
    PositionError,
    SampleKeyError,
    ShoalError,
    ShoalWarning,
    StaleIndexError,
    TarError,
    TruncatedError,
)
from shoal.shard import (
    ErrorLog,
    ErrorPolicy,
    KeyRule,
    ShardMemoryCache,
    ShardRef,
    ShardSource,
    ShardWriter,
    index_shard,
    load_index,
    locate_shards,
    open_shard,
)
from shoal.shard._shard_rows_table import KeyFinder
from shoal.store import LocalStore, store_for

SEEKABLE = [None, "gzip", "zstd"]
EVERY = [None, "gzip", "zstd", "bz2", "xz"]
ARCHIVE = KeyRule(group="archive")


@pytest.fixture
def watched():
    return watched_store()


def rows(count, *, size=300, fields=("bin", "json", "txt")):
    made = np.random.default_rng(count)
    kinds = {
        "bin": lambda n: made.bytes(size),
        "json": lambda n: f'{{"n":{n}}}'.encode(),
        "txt": lambda n: b"text %d" % n,
    }
    return [{"__key__": f"k{n:05d}", **{field: kinds[field](n) for field in fields}} for n in range(count)]


def write(root, samples, **options):
    with ShardWriter(f"{root}/s-%06d.tar", **options) as writer:
        for sample in samples:
            writer.write(sample)


def tar_of(members):
    """A tar that somebody else made."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def members_of(samples):
    return [(f"{row['__key__']}.{field}", data) for row in samples for field, data in row.items() if field != "__key__"]


def source_of(root, **options):
    return ShardSource(locate_shards(str(root)).shards, **options)


def plain(samples):
    return [{name: value for name, value in row.items() if name != "__url__"} for row in samples]


def streamed(source, fields=None, log=None):
    return plain([row for run in source.stream(fields, log=log) for row in run])


def chosen(samples, fields):
    return [{name: value for name, value in row.items() if name == "__key__" or name in fields} for row in samples]


# --------------------------------------------------------------------------------------------------------- any order


@pytest.mark.parametrize("compression", EVERY)
def test_rows_in_any_order_over_shards(tmp_path, compression):
    samples = rows(50)
    write(tmp_path, samples, max_samples=7, compression=compression)
    source = source_of(tmp_path)
    assert len(source) == 50
    for wanted in ([0], [49], [49, 0, 7, 6, 7, 7, 48], list(range(50)), list(range(49, -1, -1)), []):
        assert plain(source.read(np.array(wanted, np.int64))) == [samples[n] for n in wanted]
    assert streamed(source) == samples
    assert source.keys(np.array([3, 44, 3])) == ["k00003", "k00044", "k00003"]


@pytest.mark.parametrize("wanted", [[-1], [50], [0, 50], [2**40]])
def test_a_position_outside_is_an_error(tmp_path, wanted):
    write(tmp_path, rows(50), max_samples=7)
    source = source_of(tmp_path)
    with pytest.raises(PositionError, match="0 to 49"):
        source.read(np.array(wanted))
    with pytest.raises(PositionError):
        source.keys(np.array(wanted))


def test_by_key(tmp_path):
    write(tmp_path, rows(50), max_samples=7)
    source = source_of(tmp_path)
    assert [source.find(f"k{n:05d}") for n in (0, 6, 7, 49)] == [0, 6, 7, 49]
    with pytest.raises(SampleKeyError, match=r"did you mean.*k0003") as error:
        source.find("k0003x")
    assert isinstance(error.value, KeyError)


def test_a_sample_says_where_it_comes_from(tmp_path):
    write(tmp_path, rows(4), max_samples=2)
    assert [row["__url__"] for row in source_of(tmp_path).read(np.array([0, 3]))] == [
        f"{tmp_path}/s-000000.tar",
        f"{tmp_path}/s-000001.tar",
    ]


def open_files():
    gc.collect()  # what other tests left to the collector
    return psutil.Process().num_fds()


def test_hundreds_of_shards_need_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.shard._open_shards.most_open", lambda: 128)
    samples = rows(300, size=10)
    write(tmp_path, samples, max_samples=1)
    before = open_files()
    source = source_of(tmp_path)
    assert streamed(source) == samples
    assert open_files() - before < 140
    source.close()
    assert plain(source.read(np.array([299, 0]))) == [samples[299], samples[0]]
    source.close()
    assert open_files() <= before


@pytest.mark.parametrize("compression", [None, "zstd", "xz"])
def test_threads_share_a_source(tmp_path, compression):
    samples = rows(400, size=2000)
    write(tmp_path, samples, max_samples=90, compression=compression)
    source = source_of(tmp_path)

    def some(seed):
        order = random.Random(seed)
        for _ in range(25):
            wanted = [order.randrange(400) for _ in range(order.randrange(1, 20))]
            fields = order.choice([None, ["bin"], ["json", "txt"]])
            found = plain(source.read(np.array(wanted), fields))
            assert found == chosen([samples[n] for n in wanted], fields or samples[0])
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(some, range(16)))


# ------------------------------------------------------------------------------------------------- only what is wanted


def test_only_the_wanted_members_are_read(watched):
    samples = [
        {"__key__": f"{n:03d}", "jpg": bytes([n % 256]) * 40_000, "cls": b"%d" % n, "json": b'{"n": 1}'}
        for n in range(100)
    ]
    write("watched://d", samples)
    source = source_of("watched://d")
    source.shard(0)
    watched.ranges.clear()
    assert streamed(source, ["cls"]) == chosen(samples, ["cls"])
    assert watched.bytes_read < 100 * 2100  # the json lies behind the next header, and no jpg does
    watched.ranges.clear()
    assert plain(source.read(np.array([5, 70]), ["json"])) == chosen([samples[5], samples[70]], ["json"])
    assert watched.bytes_read == 2 * len(samples[0]["json"])
    watched.ranges.clear()
    assert source.keys(np.arange(100)) == [row["__key__"] for row in samples]
    assert plain(source.read(np.array([1, 2]), [])) == [{"__key__": "001"}, {"__key__": "002"}]
    assert watched.ranges == []


def test_a_whole_sample_is_one_range_and_a_block_is_one_range(watched):
    samples = rows(5000, size=1000)
    write("watched://d", samples)
    source = source_of("watched://d")
    source.shard(0)
    size = watched.info("watched://d/s-000000.tar").size
    watched.ranges.clear()
    assert plain(source.read(np.array([4000]))) == [samples[4000]]
    assert len(watched.ranges) == 1
    assert watched.bytes_read < 3500
    watched.ranges.clear()
    assert streamed(source) == samples
    assert len(watched.ranges) <= size // (1 << 20) + 1
    assert watched.bytes_read <= size


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_compressed_shard_is_entered_in_the_middle(watched, compression):
    samples = rows(3000, size=1000)
    write("watched://d", samples, compression=compression)
    source = source_of("watched://d")
    source.shard(0)
    size = watched.info("watched://d/s-000000.tar").size
    for wanted in (2999, 1500, 0):
        watched.ranges.clear()
        assert plain(source.read(np.array([wanted]))) == [samples[wanted]]
        assert 0 < watched.bytes_read < size / 5
    watched.ranges.clear()
    assert plain(source.read(np.array([0, 1]))) == samples[:2]
    assert watched.ranges == []  # the block is held


@pytest.mark.parametrize("compression", EVERY)
def test_an_empty_member_at_the_very_end(tmp_path, compression):
    samples = [{"__key__": f"{n}", "a": b"x" * n, "b": b""} for n in range(5)]
    write(tmp_path, samples, compression=compression)
    source = source_of(tmp_path)
    assert streamed(source) == samples
    assert streamed(source, ["b"]) == chosen(samples, ["b"])
    assert plain(source.read(np.array([4]), ["b"])) == [{"__key__": "4", "b": b""}]


# ------------------------------------------------------------------------------------------------ blocks and rows agree


fields = st.sampled_from(["a", "b.c", "json", "txt", "x.y.z"])
payloads = st.binary(max_size=40) | st.integers(0, 3000).map(lambda n: b"\xab" * n)
layouts = st.lists(st.dictionaries(fields, payloads, min_size=1), min_size=1, max_size=30)


def check_agrees(source, samples, seed):
    order = random.Random(seed)
    assert len(source) == len(samples)
    assert streamed(source) == samples
    some = [order.randrange(len(samples)) for _ in range(10)]
    assert plain(source.read(np.array(some))) == [samples[n] for n in some]
    names = sorted({field for row in samples for field in row} - {"__key__"})
    kept = order.sample(names, order.randrange(1, len(names) + 1))
    assert streamed(source, kept) == chosen(samples, kept)
    assert plain(source.read(np.array(some), kept)) == chosen([samples[n] for n in some], kept)


@settings(max_examples=60)
@given(layouts, st.sampled_from(SEEKABLE), st.integers(1, 30), st.booleans(), st.integers(0, 99))
def test_blocks_and_rows_agree_whatever_the_layout(layout, compression, most, verify, seed):
    samples = [{"__key__": f"k{n}", **row} for n, row in enumerate(layout)]
    root = f"memory://layout/{os.urandom(8).hex()}"
    write(root, samples, compression=compression, max_samples=most)
    check_agrees(source_of(root, verify=verify), samples, seed)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), fields, payloads), min_size=1, max_size=40, unique_by=lambda m: m[:2]
    ),
    st.integers(0, 99),
)
def test_interleaved_keys_with_the_archive_as_one_group(members, seed):
    url = f"memory://mixed/{os.urandom(8).hex()}.tar"
    store_for(url).write_all(url, tar_of([(f"{key}.{field}", data) for key, field, data in members]))
    expected = {}
    for key, field, data in members:
        expected.setdefault(key, {"__key__": key})[field] = data
    check_agrees(ShardSource([ShardRef(url)], rule=ARCHIVE), list(expected.values()), seed)


@settings(max_examples=40)
@given(layouts, st.integers(0, 99))
def test_a_foreign_tar_reads_the_same(layout, seed):
    samples = [{"__key__": f"k{n}", **row} for n, row in enumerate(layout)]
    url = f"memory://foreign/{os.urandom(8).hex()}.tar"
    store_for(url).write_all(url, tar_of(members_of(samples)))
    check_agrees(ShardSource([ShardRef(url)]), samples, seed)


@pytest.mark.parametrize("rule", [KeyRule(), ARCHIVE])
def test_more_than_256_fields(tmp_path, rule):
    made = random.Random(0)
    samples = [
        {
            "__key__": f"k{n}",
            **{f"f{made.randrange(400):03d}": bytes([n % 256]) * made.randrange(2000) for _ in range(9)},
        }
        for n in range(200)
    ]
    (tmp_path / "wide.tar").write_bytes(tar_of(members_of(samples)))
    check_agrees(ShardSource([ShardRef(str(tmp_path / "wide.tar"))], rule=rule), samples, 1)
    write(tmp_path / "ours", samples, compression="zstd")
    check_agrees(source_of(tmp_path / "ours"), samples, 2)


def test_the_index_of_a_scan_is_the_index_of_the_writer(tmp_path):
    write(tmp_path, rows(3000, size=1000))
    reader = store_for("").open(str(tmp_path / "s-000000.tar"))
    scanned, written = index_shard(reader), load_index(f"{tmp_path}/.shoal/index/s-000000.tar.arrow")
    reader.close()
    assert scanned.keys.equals(written.keys)
    assert list(scanned.fields) == list(written.fields)
    for name, part in written.fields.items():
        for facet in ("offset", "size", "crc"):
            assert np.array_equal(getattr(part, facet), getattr(scanned.fields[name], facet))
    assert {name: column.to_pylist() for name, column in written.columns.items()} == {
        name: column.to_pylist() for name, column in scanned.columns.items()
    }


# ---------------------------------------------------------------------------------------------------------- damage


def flip(path, at):
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0x40
    Path(path).write_bytes(data)


SMALL = [{"__key__": "k0", "a": b"x" * 40, "b": b""}, {"__key__": "k1", "a": b"y" * 700, "c": b"z" * 513}]


def reads_of(source, field):
    """The ways bytes come in, and whether they read the whole block; some read one field of two samples."""
    cached = source.with_memory(ShardMemoryCache.over(source, 1 << 20))
    yield True, lambda: streamed(source)
    yield True, lambda: source.read(np.array([0, 1]))
    yield False, lambda: source.read(np.array([1, 0]))
    yield False, lambda: source.read(np.array([0, 1]), [field])
    yield False, lambda: source.columns(np.array([1, 0]))[0]
    yield False, lambda: source.column(np.array([0, 1]), field)
    yield False, lambda: cached.read(np.array([1, 0]))
    yield False, lambda: cached.column(np.array([0, 1]), field)


def test_every_byte_of_every_member_is_checked(tmp_path):
    """A flip in data is an error that says where; one in a header or in padding is found where the block is read."""
    write(tmp_path, SMALL)
    path = tmp_path / "s-000000.tar"
    good = path.read_bytes()
    with tarfile.open(path) as tar:
        data = {at: member for member in tar for at in range(member.offset_data, member.offset_data + member.size)}
    for at in sorted({*range(512, len(good), 23), *data}):  # the first header has a test of its own, below
        store_for("").write_all(str(path), good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        source = source_of(path)
        member, end = data.get(at), int(source.shard(0).blocks.offsets[-1])
        for is_of_block, read in reads_of(source, "a" if member is None else member.name.partition(".")[2]):
            if member is None and (not is_of_block or at >= end):  # the end of the archive is in no block
                assert len(read()) == 2
                continue
            if member is None:
                with pytest.raises(ChecksumError, match="header or padding") as error:
                    read()
                assert (error.value.shard, error.value.offset) == (str(path), 0)
                continue
            with pytest.raises(ChecksumError) as error:
                read()
            found = error.value
            assert (found.shard, f"{found.key}.{found.field}", found.offset) == (
                str(path),
                member.name,
                member.offset_data,
            )
        source.close()


def test_without_verify_nothing_is_checked(tmp_path):
    write(tmp_path, SMALL)
    flip(tmp_path / "s-000000.tar", 520)
    assert streamed(source_of(tmp_path, verify=False)) != SMALL


def test_a_changed_first_header_is_a_stale_index(tmp_path):
    write(tmp_path, SMALL)
    flip(tmp_path / "s-000000.tar", 3)
    with pytest.raises(StaleIndexError, match=r"changed after it was indexed.*shoal index"):
        streamed(source_of(tmp_path))


@pytest.mark.parametrize("compression", EVERY)
def test_damage_in_a_compressed_shard_never_passes(tmp_path, compression):
    """What is given is right, whatever byte was flipped; what is not given is an error that names the shard."""
    samples = rows(40, size=200)
    write(tmp_path, samples, compression=compression)
    path = tmp_path / "s-000000.tar"
    good = path.read_bytes()
    for at in range(0, len(good), max(1, len(good) // 60)):
        store_for("").write_all(str(path), good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        source = source_of(tmp_path)
        try:
            assert streamed(source) == samples
        except (TarError, StaleIndexError) as error:
            assert error.shard == str(path)  # noqa: PT017 - either is right
        source.close()


def test_a_tar_that_was_replaced_makes_the_index_stale(tmp_path):
    write(tmp_path / "a", rows(5))
    write(tmp_path / "b", rows(60))
    os.replace(tmp_path / "b" / "s-000000.tar", tmp_path / "a" / "s-000000.tar")
    with pytest.raises(StaleIndexError, match="shoal index") as error:
        streamed(source_of(tmp_path / "a"))
    assert error.value.shard == str(tmp_path / "a" / "s-000000.tar")


def test_a_shard_that_was_replaced_together_with_its_index_is_noticed(tmp_path):
    """Somebody writes the dataset anew while we hold it open: rows would mean other samples."""
    write(tmp_path, rows(6), max_samples=3)
    source = source_of(tmp_path)
    assert len(source) == 6
    write(tmp_path, rows(8), max_samples=4, overwrite=True)
    with pytest.raises(ManifestError, match=r"another number of samples.*expected 3, found 4"):
        source.read(np.array([4]))


@pytest.mark.parametrize("compression", SEEKABLE)
def test_a_file_that_shrinks_while_open_is_truncated(tmp_path, compression):
    write(tmp_path, rows(3000, size=1000), compression=compression)
    path = tmp_path / "s-000000.tar"
    source = source_of(tmp_path)
    source.shard(0)
    cut = path.stat().st_size // 2
    os.truncate(path, cut)
    for read in (
        lambda: source.read(np.array([2999])),
        lambda: source.read(np.array([2998, 2999]), ["json"]),
        lambda: streamed(source),
    ):
        with pytest.raises(TruncatedError, match="ends before its index says") as error:
            read()
        assert error.value.shard == str(path)
        assert error.value.offset >= cut
    assert len(plain(source.read(np.array([0])))) == 1


@pytest.mark.parametrize("compression", SEEKABLE)
def test_a_truncated_file_is_noticed_before_anything_is_read(tmp_path, compression):
    write(tmp_path, rows(100), compression=compression)
    path = tmp_path / "s-000000.tar"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StaleIndexError):
        streamed(source_of(tmp_path))


@pytest.mark.parametrize("content", [b"hello, I am a text file\n" * 50, b"\x00" * 100, bytes(range(256)) * 4])
def test_what_is_no_tar_is_a_header_error(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(TarError) as error:
        streamed(ShardSource([ShardRef(str(tmp_path / "a.tar"))]))
    assert error.value.shard == str(tmp_path / "a.tar")


# ----------------------------------------------------------------------------------------------------- going on anyway


def lost(root, policy, fields=None, **options):
    log = ErrorLog(policy)
    return streamed(source_of(root, **options), fields, log), log


def test_skipping_loses_the_damaged_samples_only(tmp_path):
    samples = rows(40, size=1000)
    write(tmp_path, samples, max_samples=20)
    shard = open_shard(str(tmp_path / "s-000001.tar"))
    for row, field in ((3, "bin"), (4, "txt"), (17, "json")):
        flip(tmp_path / "s-000001.tar", int(shard.index.fields[field].offset[row]))
    shard.close()
    for fields in (None, ["bin", "json", "txt"]):
        found, log = lost(tmp_path, ErrorPolicy("skip"), fields)
        assert found == [row for n, row in enumerate(samples) if n not in (23, 24, 37)]
        assert (log.count, log.kinds) == (3, {"ChecksumError": 3})
        assert [(error.key, error.field) for error in log.errors] == [
            ("k00023", "bin"),
            ("k00024", "txt"),
            ("k00037", "json"),
        ]
    assert lost(tmp_path, ErrorPolicy("skip"), ["txt"])[1].count == 1  # other fields' damage is not looked at
    with pytest.raises(ChecksumError):
        lost(tmp_path, ErrorPolicy())


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_skipping_in_a_compressed_shard_loses_the_damaged_block_only(tmp_path, compression):
    samples = rows(1500, size=1000)
    write(tmp_path, samples, compression=compression)
    path = tmp_path / "s-000000.tar"
    flip(path, path.stat().st_size // 2)
    found, log = lost(tmp_path, ErrorPolicy("skip"))
    assert found == [row for row in samples if row["__key__"] in {kept["__key__"] for kept in found}]
    assert 0 < log.count == len(samples) - len(found) < 400
    assert {error.shard for error in log.errors} == {str(path)}
    assert all(error.key for error in log.errors)


def test_a_foreign_tar_with_damage_can_be_skipped_too(tmp_path):
    samples = rows(40)
    tar = bytearray(tar_of(members_of(samples)))
    with tarfile.open(fileobj=io.BytesIO(tar)) as found:
        header = next(member.offset for member in found if member.name == "k00020.json")
    tar[header + 5] ^= 0x40
    (tmp_path / "a.tar").write_bytes(tar)
    (tmp_path / "b.tar").write_bytes(tar_of(members_of(rows(3))))
    with pytest.raises(HeaderError, match="damaged") as error:
        streamed(source_of(tmp_path))
    assert (error.value.shard, error.value.offset) == (str(tmp_path / "a.tar"), header)
    found, log = lost(tmp_path, ErrorPolicy("skip"))
    assert found[-3:] == rows(3)
    kept = [row["__key__"] for row in found[:-3]]
    assert kept == [
        row["__key__"] for row in samples if row["__key__"] not in {"k00020", "k00021"} or row["__key__"] in kept
    ]
    assert "k00020" not in kept
    assert all(row in samples for row in found[:-3])
    assert log.count >= 1
    assert lost(tmp_path, ErrorPolicy("skip"), ["txt"])[0] == chosen(found, ["txt"])


def test_a_truncated_foreign_tar_can_be_skipped_too(tmp_path):
    samples = rows(40)
    tar = tar_of(members_of(samples))
    (tmp_path / "a.tar").write_bytes(tar[: len(tar) // 2 + 100])
    found, log = lost(tmp_path, ErrorPolicy("skip"))
    assert 10 < len(found) < 25
    assert found == samples[: len(found)]
    assert log.count == 1


def test_a_truncated_shard_of_ours_can_be_skipped_too(tmp_path):
    samples = rows(40)
    write(tmp_path, samples)
    path = tmp_path / "s-000000.tar"
    os.truncate(path, path.stat().st_size // 2 + 100)
    found, log = lost(tmp_path, ErrorPolicy("skip"))
    assert 10 < len(found) < 25
    assert found == samples[: len(found)]
    assert log.kinds["StaleIndexError"] == 1
    assert log.count == 2


def test_a_duplicate_member_can_be_skipped_too(tmp_path):
    (tmp_path / "a.tar").write_bytes(
        tar_of([("a.txt", b"1"), ("b.txt", b"2"), ("b.txt", b"3"), ("b.cls", b"0"), ("c.txt", b"4")])
    )
    with pytest.raises(TarError, match="twice"):
        streamed(source_of(tmp_path))
    found, log = lost(tmp_path, ErrorPolicy("skip"))
    assert found == [{"__key__": "a", "txt": b"1"}, {"__key__": "c", "txt": b"4"}]
    assert log.kinds == {"DuplicateFieldError": 1}


def test_budget_and_quarantine(tmp_path):
    samples = rows(40, size=1000)
    write(tmp_path / "d", samples)
    shard = open_shard(str(tmp_path / "d" / "s-000000.tar"))
    for row in (3, 9, 30):
        flip(tmp_path / "d" / "s-000000.tar", int(shard.index.fields["bin"].offset[row]))
    shard.close()
    assert lost(tmp_path / "d", ErrorPolicy("skip", budget=3))[1].count == 3
    with pytest.raises(ShoalError, match=r"too much is damaged.*at most 2 errors, found 3"):
        lost(tmp_path / "d", ErrorPolicy("skip", budget=2))
    notes = tmp_path / "notes.jsonl"
    lost(tmp_path / "d", ErrorPolicy("quarantine", quarantine=str(notes)))
    lines = notes.read_text().splitlines()
    assert len(lines) == 3
    assert all(
        f'"key":"k{n:05d}"' in line and '"field":"bin"' in line and '"offset":' in line
        for n, line in zip((3, 9, 30), lines, strict=True)
    )


# ---------------------------------------------------------------------------------------------------------- decoders


def test_a_value_that_cannot_be_decoded_says_which(tmp_path):
    def decode(data):
        if data == b"text 7":
            raise DecodeError("bad text")
        return data.decode()

    write(tmp_path / "few", rows(20))
    samples = rows(20)
    samples[3].update({f"f{n}": b"" for n in range(300)})
    write(tmp_path / "many", samples)
    for root in (tmp_path / "few", tmp_path / "many"):
        source = source_of(root)
        reads = [
            lambda source=source: list(source.stream(decoders={"txt": decode})),
            lambda source=source: source.read(np.array([5, 7]), None, {"txt": decode}),
            lambda source=source: source.read(np.array([5, 7]), ["txt"], {"txt": decode}),
        ]
        for read in reads:
            with pytest.raises(DecodeError, match="bad text") as error:
                read()
            assert (error.value.key, error.value.shard) == ("k00007", f"{root}/s-000000.tar")
        assert source.read(np.array([6]), ["txt"], {"txt": decode})[0]["txt"] == "text 6"


# ------------------------------------------------------------------------------------------------- indexes and caches


def test_a_foreign_tar_is_scanned_once(watched):
    watched.write_all("watched://f/a.tar", tar_of(members_of(rows(2000, size=1000))))
    size = watched.info("watched://f/a.tar").size
    first = ShardSource([ShardRef("watched://f/a.tar")])
    assert len(first) == 2000
    assert watched.bytes_read >= size - 10240
    watched.ranges.clear()
    again = ShardSource([ShardRef("watched://f/a.tar")])
    assert len(again) == 2000
    assert watched.bytes_read == 512
    assert again.find("k01999") == 1999
    watched.ranges.clear()
    assert (
        len(ShardSource([ShardRef("watched://f/a.tar")], rule=KeyRule(dot="last"))) == 2000
    )  # another rule, another index
    assert watched.bytes_read >= size - 10240


def test_a_foreign_tar_that_changed_is_scanned_again(tmp_path):
    path = tmp_path / "a.tar"
    for count in (5, 7, 7):
        store_for("").write_all(str(path), tar_of(members_of([{**row, "txt": os.urandom(6)} for row in rows(count)])))
        source = source_of(tmp_path)
        assert len(source) == count
        assert len(streamed(source)) == count


@pytest.mark.parametrize("damage", [b"", b"not arrow", b"ARROW1\0\0" + bytes(100)])
def test_a_cached_index_that_is_damaged_is_made_again(tmp_path, damage):
    (tmp_path / "a.tar").write_bytes(tar_of(members_of(rows(5))))
    assert len(source_of(tmp_path)) == 5
    cached = list(Path(os.environ["SHOAL_CACHE"]).rglob("*.arrow"))
    assert len(cached) == 1
    cached[0].write_bytes(damage)
    assert streamed(source_of(tmp_path)) == rows(5)


def test_a_cache_that_cannot_be_written_costs_time_and_a_warning_only(tmp_path, monkeypatch):
    (tmp_path / "a.tar").write_bytes(tar_of(members_of(rows(5))))
    (tmp_path / "file").write_bytes(b"in the way")
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        with pytest.warns(ShoalWarning, match="indexes cannot be kept in the cache.*SHOAL_CACHE"):
            assert len(source_of(tmp_path / "a.tar")) == 5


def test_an_index_that_was_removed_is_made_again(tmp_path):
    write(tmp_path, rows(9), max_samples=4)
    for path in (tmp_path / ".shoal" / "index").iterdir():
        path.unlink()
    assert streamed(source_of(tmp_path)) == rows(9)


def test_another_rule_than_the_writers_is_obeyed(tmp_path):
    samples = [{"__key__": "k", "a.txt": b"1", "b.txt": b"2"}]
    write(tmp_path, samples)
    rule = KeyRule(dot="last")
    assert streamed(source_of(tmp_path, rule=rule)) == [
        {"__key__": "k.a", "txt": b"1"},
        {"__key__": "k.b", "txt": b"2"},
    ]
    assert len(source_of(tmp_path, rule=rule)) == 2


def test_the_index_beside_a_shard_is_found_by_pattern_and_in_a_subfolder(watched):
    write("watched://d", rows(100))
    watched.ranges.clear()
    assert len(ShardSource([ShardRef("watched://d/s-000000.tar")])) == 100
    assert watched.bytes_read == 512


def test_metadata_columns_over_shards(tmp_path):
    samples = [
        {"__key__": f"{n}", "json": {"n": n, "half": n / 2} if n < 5 else {"n": n}, "cls": n % 3} for n in range(9)
    ]
    write(tmp_path, samples, max_samples=4)
    source = source_of(tmp_path)
    assert source.column_names() == ("json.n", "json.half", "cls")
    table = source.table(["__key__", "json.n", "json.half", "cls"])
    assert table.column("__key__").to_pylist() == [row["__key__"] for row in samples]
    assert table.column("json.n").to_pylist() == list(range(9))
    assert table.column("json.half").to_pylist() == [n / 2 if n < 5 else None for n in range(9)]


def test_a_column_that_no_shard_has_is_an_error(tmp_path):
    write(tmp_path, rows(3))
    with pytest.raises(KeyError, match=r"no such column.*json.n"):
        source_of(tmp_path).table(["json.nope"])


def test_a_column_of_other_types_in_other_shards_is_an_error_that_says_so(tmp_path):
    write(tmp_path, [{"__key__": f"{n}", "json": {"x": n if n < 2 else "text"}} for n in range(4)], max_samples=2)
    with pytest.raises(KeyError, match=r"json\.x.*different types.*int64.*string"):
        source_of(tmp_path).table(["json.x"])


def test_whole_numbers_and_fractions_are_numbers(tmp_path):
    write(tmp_path, [{"__key__": f"{n}", "json": {"x": n if n < 2 else n / 2}} for n in range(4)], max_samples=2)
    assert source_of(tmp_path).table(["json.x"]).column("json.x").to_pylist() == [0, 1, 1, 1.5]


@pytest.mark.parametrize("name", ["__key__", "__url__"])
def test_a_member_that_would_take_the_place_of_the_key_is_refused(tmp_path, name):
    (tmp_path / "a.tar").write_bytes(tar_of([("a.txt", b"1"), (f"a.{name}", b"mine now")]))
    with pytest.raises(DuplicateFieldError) as error:
        streamed(source_of(tmp_path))
    assert (error.value.key, error.value.field, error.value.shard) == ("a", name, str(tmp_path / "a.tar"))


def test_fields_are_those_of_all_shards(tmp_path):
    write(tmp_path, [{"__key__": f"{n}", ("a" if n < 3 else "b"): b""} for n in range(6)], max_samples=2)
    assert source_of(tmp_path).fields == ("a", "b")
    source = ShardSource(locate_shards(f"{tmp_path}/*.tar").shards)
    assert source.fields == ("a", "b")


def test_an_empty_dataset():
    source = ShardSource([])
    assert (len(source), source.fields, streamed(source), source.column_names()) == (0, (), [], ())
    assert source.read(np.array([], np.int64)) == []
    with pytest.raises(SampleKeyError):
        source.find("a")
    with pytest.raises(PositionError):
        source.read(np.array([0]))


@pytest.mark.parametrize("content", [bytes(512), bytes(1024)])
def test_an_empty_tar_is_an_empty_dataset(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content)
    assert streamed(source_of(tmp_path)) == []


def test_the_local_store_reads_the_same_as_memory(tmp_path):
    assert isinstance(store_for(str(tmp_path)), LocalStore)
    write(tmp_path, rows(20))
    write("memory://same", rows(20))
    assert streamed(source_of(tmp_path)) == streamed(source_of("memory://same"))


KEYS = st.text(st.sampled_from("ab1é"), min_size=1, max_size=3)


def write_keys(root, shards):
    for number, keys in enumerate(shards):
        with shoal.ShardWriter(f"{root}/part-{number}-%06d.tar", append=True) as writer:
            for key in keys:
                writer.write({"__key__": key, "txt": key})
    return shoal.Dataset(f"{root}/*.tar")


@given(st.lists(st.lists(KEYS, min_size=1, max_size=6, unique=True), min_size=1, max_size=4), KEYS)
@example([["a", "b"], ["1", "a"]], "a")
@example([["b", "a"], ["a", "b"]], "a")
@example([["a"], ["b"], ["1"]], "1")
def test_the_first_sample_with_a_key_is_found(tmp_path_factory, shards, wanted):
    dataset = write_keys(tmp_path_factory.mktemp("keys"), shards)
    keys = [key for shard in shards for key in shard]
    for key in [*keys, wanted]:
        if key in keys:
            assert dataset.source.find(key) == keys.index(key)
            assert dataset.get(key)["txt"] == key
        else:
            with pytest.raises(SampleKeyError):
                dataset.get(key)


def test_shards_that_cannot_have_a_key_are_not_opened_again(tmp_path):
    dataset = write_keys(tmp_path, [[f"{shard}{number}" for number in range(5)] for shard in range(4)])
    opened = []

    def shard_at(number):
        opened.append(number)
        return dataset.source.index.shard_rows(number)

    finder = KeyFinder(shard_at, dataset.source.starts.tolist())
    assert finder.find("99") is None
    opened.clear()
    assert finder.find("22") == 12
    assert set(opened) == {2}


@pytest.mark.parametrize(
    "asked, hint",
    [
        ("42", "did you mean '000042'?"),
        ("0000042", "did you mean '000042'?"),
        ("000042.jpg", "did you mean '000042'?"),
        ("./000042.seg.png", "did you mean '000042'?"),
        ("images/000042.jpg", "did you mean '000042'?"),
        ("000042 ", "did you mean '000042'?"),
        ("00004x", "did you mean '000049'"),
        ("zzz", "keys look like '000000'"),
    ],
)
def test_what_may_have_been_meant_is_told(tmp_path, asked, hint):
    dataset = write_keys(tmp_path, [[f"{number:06d}" for number in range(50)]])
    with pytest.raises(SampleKeyError) as caught:
        dataset.get(asked)
    assert hint in str(caught.value)


def test_keys_with_folders_may_be_meant_too(tmp_path):
    dataset = write_keys(tmp_path, [["cats/a", "dogs/b"]])
    with pytest.raises(SampleKeyError, match="did you mean 'cats/a'"):
        dataset.get("cats/a.jpg")


def test_a_dataset_without_samples_has_no_keys(tmp_path):
    source = ShardSource(locate_shards(write_keys(tmp_path, [["a"]]).shards[0]).shards[:0])
    with pytest.raises(SampleKeyError, match=r"no sample has this key: found 'a'$"):
        source.find("a")
