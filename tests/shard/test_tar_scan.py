"""The scanner reads what ``tarfile`` reads, from any feed, in chunks of any size."""

from __future__ import annotations

import io
import tarfile
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shard.archives import (
    BLOCK,
    CHUNK_BYTES,
    END,
    FEEDS,
    ShortStream,
    archives,
    by_tarfile,
    data_of,
    gnu_long,
    header,
    oracle_members,
    pax_header,
    pax_member,
    plain,
    reader_feed,
    scanned,
    scanned_members,
    stream_feed,
)

from shoal.errors import TruncatedError
from shoal.shard._tar_scan import ScanOptions, StreamFeed, scan


@settings(max_examples=2200)
@given(archives(max_size=6))
def test_a_file_gives_the_members_that_tarfile_gives(archive):
    assert scanned_members(archive) == oracle_members(archive)


@settings(max_examples=2200)
@given(archives(max_size=6), CHUNK_BYTES)
def test_the_members_do_not_depend_on_the_chunks(archive, chunk_bytes):
    assert scanned_members(archive, options=ScanOptions(chunk_bytes=chunk_bytes)) == oracle_members(archive)


@settings(max_examples=2000)
@given(archives(max_size=6), CHUNK_BYTES, st.lists(st.integers(1, 1500), min_size=1, max_size=3).map(tuple))
def test_a_stream_of_short_reads_gives_the_same_members(archive, chunk_bytes, lengths):
    feed = StreamFeed(ShortStream(archive, lengths))
    assert scanned_members(archive, feed, ScanOptions(chunk_bytes=chunk_bytes)) == oracle_members(archive)


@settings(max_examples=500)
@given(archives(max_size=6), CHUNK_BYTES, st.sampled_from([1, 512, 1000, 4096]), st.sampled_from(sorted(FEEDS)))
def test_large_members_come_alone_and_without_their_bytes(archive, chunk_bytes, large_bytes, feed):
    found = scanned(archive, FEEDS[feed](archive), ScanOptions(chunk_bytes=chunk_bytes, large_bytes=large_bytes))
    assert found.members == oracle_members(archive)
    for chunk in found.chunks:
        large = (chunk.sizes >= large_bytes).tolist()
        assert large == [True] if not chunk.data else not any(large)


@settings(max_examples=300)
@given(archives(max_size=6), CHUNK_BYTES)
def test_a_second_scan_counts_the_same_skipped_members(archive, chunk_bytes):
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        others = sum(not member.isreg() for member in tar)
    found = scanned(archive, options=ScanOptions(chunk_bytes=chunk_bytes))
    assert sum(found.skipped.values()) == others


def test_skipped_members_are_counted_by_kind():
    kinds = {
        b"1": "hard link",
        b"2": "symbolic link",
        b"3": "device",
        b"5": "folder",
        b"6": "fifo",
        b"Z": "unknown kind 'Z'",
    }
    archive = b"".join(header(b"x", 0, kind) for kind in kinds) + END
    assert scanned(archive).skipped == dict.fromkeys(kinds.values(), 1)


def test_starts_are_those_of_the_first_header_of_each_member():
    first = gnu_long(b"n" * 200) + plain(b"n", b"1")
    second = gnu_long(b"k" * 200, b"K") + plain(b"b.txt", b"2")
    third = pax_header(b"") + plain(b"c.txt", b"3")
    archive = first + second + third + END
    (chunk,) = scanned(archive).chunks
    assert chunk.starts.tolist() == [0, len(first), len(first) + len(second)]


@pytest.mark.parametrize("end", [pax_header({b"comment": b"x"}, b"g") + END, END])
@pytest.mark.parametrize("feed", FEEDS)
def test_an_archive_without_members_has_none(end, feed):
    assert scanned_members(end, FEEDS[feed](end)) == []


@pytest.mark.parametrize("feed", FEEDS)
def test_no_bytes_at_all_are_a_truncated_archive(feed):
    with pytest.raises(TruncatedError, match="0 bytes"):
        scanned_members(b"", FEEDS[feed](b""))


def test_a_global_header_may_stand_last():
    archive = plain("a.txt", b"1") + pax_header({b"comment": b"as git archive writes"}, b"g") + END
    assert scanned_members(archive) == [("a.txt", b"1")]


def test_a_global_path_holds_across_chunks_until_another_comes():
    named = pax_header({b"path": b"all.txt"}, b"g")
    archive = plain("a.txt", b"1") + named + b"".join(plain("b.txt", data_of(size)) for size in (600, 0, 1200)) + END
    for chunk_bytes in (512, 1024, 1 << 20):
        found = scanned_members(archive, options=ScanOptions(chunk_bytes=chunk_bytes))
        assert [name for name, _ in found] == ["a.txt", "all.txt", "all.txt", "all.txt"]


@pytest.mark.parametrize("end", [b"", plain("b.txt", b"2") + b""])
def test_no_end_marker_gives_every_member_and_an_error(end):
    archive = plain("a.txt", b"1") + end
    with pytest.raises(TruncatedError, match="without an end marker") as caught:
        scanned_members(archive)
    assert caught.value.offset == len(archive)
    found = scanned(archive, go_on=True)
    assert len(found.members) == len(archive) // 1024
    assert [(gap.start, gap.stop) for gap in found.gaps] == [(len(archive), len(archive))]


@pytest.mark.parametrize("end", [END, bytes(BLOCK), bytes(BLOCK + 100), END + bytes(10240), END + bytes(3 << 20)])
def test_an_end_marker_ends_the_archive(end):
    assert scanned_members(plain("a.txt", b"1") + end) == [("a.txt", b"1")]


def test_webdataset_and_gnu_and_ustar_all_read_alike():
    members = [(f"{number:03d}.{field}", data_of(number * 40)) for number in range(60) for field in ("cls", "jpg")]
    for tar_format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert scanned_members(by_tarfile(members, tar_format)) == members
    assert scanned_members(b"".join(pax_member(name, data, mtime=b"1.5") for name, data in members) + END) == members


def test_a_tar_in_a_tar_is_one_member():
    inner = by_tarfile([("inner.txt", b"i" * 700), ("more.txt", b"")])
    members = [("a.tar", inner), ("b.txt", b"2"), ("c.tar", inner)]
    for chunk_bytes in (512, 1024, 1 << 20):
        assert scanned_members(by_tarfile(members), options=ScanOptions(chunk_bytes=chunk_bytes)) == members


def test_prefixes_are_for_ustar_only():
    """GNU tar keeps times where ustar has the prefix (`tar --incremental --format=gnu`)."""
    times = b"15010101010\x0015010101010\x00"
    archive = plain("a.txt", b"1", magic=b"ustar  \0", prefix=times) + END
    assert scanned_members(archive) == [("a.txt", b"1")]


def test_names_in_another_encoding():
    members = [("caf\u00e9.txt", b"1"), ("plain.txt", b"2")]
    archive = by_tarfile(members, encoding="latin-1")
    assert scanned_members(archive, options=ScanOptions(encoding="latin-1")) == members


def test_pax_names_are_utf8_whatever_the_encoding_of_the_others():
    archive = (
        plain("caf\u00e9.a".encode("latin-1"))
        + pax_member("caf\u00e9.b", b"")
        + pax_header({b"path": b"\xe9.c"})
        + plain("x")
        + END
    )
    expected = oracle_members(archive, "latin-1")
    assert [name for name, _ in expected] == ["caf\u00e9.a", "caf\u00e9.b", "\u00e9.c"]
    assert scanned_members(archive, options=ScanOptions(encoding="latin-1")) == expected


def test_long_archives_take_the_memory_of_a_chunk():
    member = plain("a.txt", bytes(100_000))
    archive = member * 300 + END
    tracemalloc.start()
    for _ in scan(stream_feed(archive), ScanOptions(chunk_bytes=1 << 20)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_large_member_takes_no_memory():
    archive = plain("a.bin", bytes(40 << 20)) + plain("b.txt", b"2") + END
    tracemalloc.start()
    names = [name for chunk in scan(stream_feed(archive), ScanOptions(large_bytes=1 << 20)) for name in chunk.names]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert names == ["a.bin", "b.txt"]
    assert peak < 16 << 20


def test_feeds_give_any_range_forward():
    data = data_of(10_000)
    for make in FEEDS.values():
        feed = make(data)
        for start, length in (
            (0, 10),
            (0, 100),
            (50, 1000),
            (3000, 0),
            (3000, 1),
            (9990, 100),
            (10_000, 5),
            (20_000, 5),
        ):
            assert feed.at(start, length) == data[start : start + length]


def test_a_stream_never_gives_other_bytes_than_those_asked_for():
    feed = stream_feed(data_of(10_000))
    feed.at(5000, 10)
    with pytest.raises(ValueError, match="back"):
        feed.at(4000, 10)


def test_the_scan_of_a_reader_asks_for_each_byte_about_once():
    archive = by_tarfile([(f"{number:04d}.bin", data_of(3000)) for number in range(500)])
    asked = []
    feed = reader_feed(archive)
    read = feed.at
    feed.at = lambda position, length: asked.append(min(length, len(archive) - position)) or read(position, length)
    assert sum(len(chunk.names) for chunk in scan(feed, ScanOptions(chunk_bytes=1 << 17))) == 500
    assert sum(asked) < 1.1 * len(archive)
