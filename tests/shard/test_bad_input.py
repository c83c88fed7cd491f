"""Damaged and hostile archives: the right error with its place, or a gap that is counted; never a silent end."""

from __future__ import annotations

import bisect
import io
import tarfile
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shard.archives import (
    BLOCK,
    DEFAULT,
    END,
    FEEDS,
    BytesReader,
    archives,
    base_256,
    by_tarfile,
    data_of,
    end_of_members,
    gnu_long,
    gnu_sparse,
    header,
    oracle_members,
    pax_header,
    pax_member,
    pax_record,
    pax_sparse,
    plain,
    reader_feed,
    scanned,
    scanned_members,
    thirty_members,
    with_data,
)

from shoal.errors import HeaderError, StoreError, TarError, TruncatedError, UnsupportedMemberError
from shoal.shard._index_build import build_index
from shoal.shard._member_names import KeyRule
from shoal.shard._shard_rows import IndexMetadata
from shoal.shard._tar_scan import Chunk, ReaderFeed, ScanOptions, StreamFeed, scan
from shoal.store import LocalStore

EXABYTES = 10 * 10**18
A = plain("a.txt", b"1")
Z = plain("z.txt", b"26")
LONG_NAME = "long-" * 25 + "{:02d}"


def _index(archive: bytes, rule: KeyRule = KeyRule()):  # noqa: B008 - a frozen value
    return build_index(reader_feed(archive), IndexMetadata(len(archive), 0, rule), "memory://test.tar")


def _until_error(archive, feed=None, options=DEFAULT):
    """The members given before the error, and the error."""
    members, found = [], None
    try:
        for chunk in scan(feed or reader_feed(archive), options):
            spans = zip(chunk.names, chunk.offsets.tolist(), chunk.sizes.tolist(), strict=True)
            members += [(name, archive[offset : offset + size]) for name, offset, size in spans]
    except TarError as error:
        found = error
    return members, found


# ----------------------------------------------------------------------------------------------------------- truncation


class _Cuts:
    """What every cut of one archive must give."""

    def __init__(self, members, archive):
        self.members, self.archive = members, archive
        (whole,) = scanned(archive).chunks
        self.starts = [*whole.starts.tolist(), end_of_members(archive)]
        assert whole.names == [name for name, _ in members]

    def check(self, cut):
        archive, last = self.archive[:cut], self.starts[-1]
        found = scanned(archive, go_on=True)
        complete = bisect.bisect_right(self.starts, cut) - 1
        assert found.members == self.members[:complete]
        assert len(found.errors) == len(found.gaps)
        if cut >= last + BLOCK:
            assert not found.errors
        else:
            (error,) = found.errors
            assert isinstance(error, TruncatedError)
            assert error.offset == self.starts[complete]


def test_every_truncation_of_thirty_members_is_noticed():
    members, archive = thirty_members()
    cuts = _Cuts(members, archive)
    for cut in range(len(archive) + 1):
        cuts.check(cut)


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_every_truncation_around_long_names_is_noticed(tar_format):
    members, archive = thirty_members(tar_format, LONG_NAME)
    assert len(archive) > 30 * 3 * BLOCK
    cuts = _Cuts(members, archive)
    for cut in range(len(archive) + 1):
        if cut % BLOCK in (0, 1, 17, 511) or cut < 6 * BLOCK:
            cuts.check(cut)


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("chunk_bytes", [512, 4096, 1 << 20])
def test_truncation_raises_whatever_the_feed_and_the_chunks(feed, chunk_bytes):
    members, archive = thirty_members(tarfile.PAX_FORMAT, LONG_NAME)
    cuts = _Cuts(members, archive)
    for cut in range(100, len(archive), 1300):
        if cut < cuts.starts[-1] and cut not in cuts.starts:
            found, error = _until_error(archive[:cut], FEEDS[feed](archive[:cut]), ScanOptions(chunk_bytes=chunk_bytes))
            complete = bisect.bisect_right(cuts.starts, cut) - 1
            assert isinstance(error, TruncatedError)
            assert error.offset == cuts.starts[complete]
            assert found == members[:complete]


def test_an_index_of_a_truncated_tar_names_the_shard():
    _, archive = thirty_members()
    with pytest.raises(TruncatedError) as caught:
        _index(archive[:5000])
    assert caught.value.shard == "memory://test.tar"
    assert "memory://test.tar" in str(caught.value)
    assert caught.value.offset == 4608


@pytest.mark.parametrize("feed", FEEDS)
def test_a_large_member_that_is_cut_is_an_error_though_its_bytes_were_not_asked_for(feed):
    archive = A + plain("b.bin", data_of(200_000))
    for cut in (len(A) + BLOCK, len(A) + 100_000, len(archive) - 1):
        _, error = _until_error(archive, FEEDS[feed](archive[:cut]), ScanOptions(chunk_bytes=4096, large_bytes=1000))
        assert isinstance(error, TruncatedError)
    _, error = _until_error(archive, FEEDS[feed](archive), ScanOptions(large_bytes=1000))
    assert isinstance(error, TruncatedError)
    assert "end marker" in str(error)


class _Shrinking(BytesReader):
    """A file of which the tail is gone after the first read."""

    def read(self, start, stop):
        data = super().read(start, stop)
        self.data = self.data[:SHRUNK]
        return data


SHRUNK = 12_345


@pytest.mark.parametrize("large_bytes", [None, 1000])
@pytest.mark.parametrize("size", [0, 600, 5000, 20_000])
def test_a_file_that_shrinks_while_it_is_read_is_an_error(large_bytes, size):
    archive = b"".join(plain(f"{number}.bin", data_of(size)) for number in range(60)) + END
    _, error = _until_error(
        archive, ReaderFeed(_Shrinking(archive)), ScanOptions(chunk_bytes=4096, large_bytes=large_bytes)
    )
    assert isinstance(error, TruncatedError)


def test_a_file_that_shrinks_to_a_member_boundary_is_an_error():
    archive = A * 30
    assert SHRUNK // len(A) * len(A) == 12 * 1024
    _, error = _until_error(
        archive, ReaderFeed(BytesReader(archive[: 12 * 1024], size=len(archive))), ScanOptions(chunk_bytes=2048)
    )
    assert isinstance(error, TruncatedError)
    assert "shorter" in str(error)


def test_indexing_a_large_member_of_a_file_that_shrinks_is_an_error(monkeypatch):
    monkeypatch.setattr("shoal.shard._index_build._LARGE_BYTES", 10_000)
    archive = plain("a.bin", data_of(5 << 20)) + END
    reader = BytesReader(archive[: 3 << 20], size=len(archive))
    with pytest.raises(TruncatedError):
        build_index(ReaderFeed(reader), IndexMetadata(len(archive), 0), "memory://test.tar")


# ------------------------------------------------------------------------------------------------------------ bit flips


def _ignorable(block: bytes, at: int, flipped: int) -> bool:
    """Whether the byte may change without changing what the header says: blanks around the checksum."""
    return (148 <= at < 154 and block[at] == 0x30 and flipped == 0x20) or at == 155 or (at == 154 and flipped == 0x20)


def test_every_bit_flip_in_every_header_of_thirty_members_is_noticed():
    members, archive = thirty_members()
    (whole,) = scanned(archive).chunks
    survived, stops = 0, [*whole.starts.tolist()[2:], end_of_members(archive), end_of_members(archive)]
    for start, stop in zip(whole.starts.tolist(), stops, strict=True):
        # What stands before the flipped header was read before it; a neighbour behind shows that the chain is sound.
        tail = archive[start:stop] + END
        expected, _ = _until_error(tail)
        assert expected
        mutable = bytearray(tail)
        for bit in range(8 * BLOCK):
            mutable[bit >> 3] ^= 1 << (bit & 7)
            found, error = _until_error(bytes(mutable))
            flipped = mutable[bit >> 3]
            mutable[bit >> 3] ^= 1 << (bit & 7)
            if error is None:
                assert _ignorable(tail, bit >> 3, flipped)
                assert found == expected
                survived += 1
            else:
                assert error.offset == 0
                assert found == []
    assert 0 < survived <= 30 * 16
    assert len(members) == 30


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_after_a_bit_flip_only_true_members_are_given(tar_format):
    """A damaged long-name header must not leave its member behind under half a name."""
    members, archive = thirty_members(tar_format, "0{:02d}" if tar_format == tarfile.USTAR_FORMAT else LONG_NAME)
    (whole,) = scanned(archive).chunks
    starts, offsets = whole.starts.tolist(), whole.offsets.tolist()
    true = set(members)
    for start, offset in zip(starts[::4], offsets[::4], strict=True):
        for head in range(start, offset, 2 * BLOCK):
            for at in range(head, head + BLOCK, 3):
                damaged = bytearray(archive)
                damaged[at] ^= 1 << (at * 5 & 7)
                found = scanned(bytes(damaged), go_on=True)
                assert set(found.members) <= true
                assert len(found.members) >= len(members) - 1
                assert len(found.gaps) == len(found.errors) == (len(found.members) < len(members))


@pytest.mark.parametrize("chunk_bytes", [512, 4096, 1 << 20])
@pytest.mark.parametrize("feed", FEEDS)
def test_the_scan_goes_on_behind_a_damaged_header(feed, chunk_bytes):
    broken = bytearray(plain("b.txt", data_of(3000)))
    broken[10] ^= 1
    archive = A + bytes(broken) + Z + END
    found = scanned(archive, FEEDS[feed](archive), ScanOptions(chunk_bytes=chunk_bytes), go_on=True)
    assert [name for name, _ in found.members] == ["a.txt", "z.txt"]
    (gap,) = found.gaps
    assert (gap.start, gap.stop) == (len(A), len(A) + len(broken))
    assert found.errors == [gap.error]
    assert gap.error.offset == gap.start


def test_on_damage_may_raise():
    def refuse(error):
        raise error

    with pytest.raises(HeaderError):
        list(scan(reader_feed(b"x" * 2048), on_damage=refuse))


@settings(max_examples=500)
@given(archives(max_size=6), st.integers(0, 1 << 20), st.integers(0, 255), st.sampled_from([512, 4096, 1 << 20]))
def test_any_damaged_byte_gives_members_errors_and_gaps_that_tile(archive, at, value, chunk_bytes):
    """``scanned`` checks the tiling; whatever the damage is, nothing else than a TarError may come out."""
    damaged = bytearray(archive)
    damaged[at % len(damaged)] = value
    damaged = bytes(damaged)
    options = ScanOptions(chunk_bytes=chunk_bytes)
    found = scanned(damaged, reader_feed(damaged), options, go_on=True)
    assert len(found.errors) == len(found.gaps)
    _, error = _until_error(damaged, options=options)
    assert (error is None) == (not found.errors)
    streamed = scanned(damaged, StreamFeed(io.BytesIO(damaged)), options, go_on=True)
    assert streamed.members == found.members
    assert streamed.skipped == found.skipped


# --------------------------------------------------------------------------------------------------------- absurd sizes


@pytest.mark.parametrize(
    "giant",
    [
        header(b"g.bin", base_256(EXABYTES)),
        header(b"g.bin", b"77777777777\0"),
        header(b"g.bin", base_256(2**88 - 1)),
        pax_header({b"size": b"%d" % EXABYTES}) + header(b"g.bin"),
        pax_header({b"size": b"99999999999999999999"}) + header(b"g.bin"),
        header(b"g", base_256(EXABYTES), b"Z"),
    ],
    ids=["base-256", "octal", "88 bits", "PAX", "PAX 20 digits", "unknown kind"],
)
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("large_bytes", [None, 1000])
def test_absurd_sizes_take_no_memory(giant, feed, large_bytes):
    archive = A + giant + data_of(100_000)
    tracemalloc.start()
    found, error = _until_error(archive, FEEDS[feed](archive), ScanOptions(large_bytes=large_bytes))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [("a.txt", b"1")]
    assert isinstance(error, (TruncatedError, HeaderError))
    assert error.offset == len(A)
    assert peak < 8 << 20


class _Endless(io.RawIOBase):
    """A stream that never ends: ``head`` once, then ``tail`` over and over."""

    def __init__(self, head, tail):
        self.head, self.tail, self.given = head, tail, 0

    def read(self, size=-1):
        if self.head:
            part, self.head = self.head[:size], self.head[size:]
        else:
            part = (self.tail * (size // len(self.tail) + 1))[:size]
        self.given += len(part)
        return part


@pytest.mark.parametrize(
    "head, tail",
    [
        (header(b"g.bin", base_256(EXABYTES)), bytes(BLOCK)),
        (pax_header({b"size": b"%d" % EXABYTES}) + header(b"g.bin"), bytes(BLOCK)),
        (header(b"././@PaxHeader", base_256(EXABYTES), b"x"), b"x" * BLOCK),
        (header(b"././@LongLink", 8**11 - 1, b"L"), b"x" * BLOCK),
        (b"", pax_header({b"comment": b"and again"})),
        (b"", gnu_long(b"n" * 2000)),
    ],
    ids=["base-256", "PAX", "PAX header", "long name", "PAX headers without end", "long names without end"],
)
@pytest.mark.parametrize("large_bytes", [None, 1000])
def test_an_endless_stream_that_declares_absurd_sizes_takes_little_memory(head, tail, large_bytes):
    stream = _Endless(A + head, tail)
    tracemalloc.start()
    found, error = _until_error(A, StreamFeed(stream), ScanOptions(large_bytes=large_bytes))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [("a.txt", b"1")]
    assert isinstance(error, HeaderError)
    assert error.offset >= len(A)
    assert stream.given < 16 << 20
    assert peak < 24 << 20


@pytest.mark.parametrize("digits", [21, 5000, 100_000])
def test_a_pax_size_of_very_many_digits_is_an_error(digits):
    _, error = _until_error(A + pax_header({b"size": b"9" * digits}) + plain("b.txt", b"2") + END)
    assert isinstance(error, HeaderError)


@pytest.mark.parametrize("value", [b"", b"-5", b"5.0", b"five", b" 5", b"0x5"])
def test_a_pax_size_that_is_no_number_is_an_error(value):
    _, error = _until_error(A + pax_header({b"size": value}) + plain("b.txt", b"2") + END)
    assert isinstance(error, HeaderError)
    assert "PAX size" in str(error)


def test_a_member_may_be_as_large_as_the_file_says():
    """The limit is for streams, whose own size cannot contradict a header."""
    archive = plain("b.bin", data_of(5000)) + END
    assert len(scanned_members(archive, options=ScanOptions(most_member_bytes=1000))) == 1
    _, error = _until_error(
        archive, StreamFeed(io.BytesIO(archive * 1000)), ScanOptions(most_member_bytes=1000, chunk_bytes=512)
    )
    assert isinstance(error, HeaderError)
    assert "allowed" in str(error)


@pytest.mark.parametrize("chunk_bytes", [512, 1 << 20, 1 << 23])
def test_what_is_too_long_does_not_depend_on_the_chunks(chunk_bytes):
    archive = A + pax_header({b"path": b"p" * (3 << 19)}) + plain("b.txt") + END
    found, error = _until_error(archive, options=ScanOptions(chunk_bytes=chunk_bytes))
    assert found == [("a.txt", b"1")]
    assert isinstance(error, HeaderError)
    assert "too long" in str(error)


# ---------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    ["../a.txt", "/etc/passwd.txt", "a/../../b.txt", "..", "~/.x.txt", "a" * 10_000 + ".txt", "d/" * 5000 + "a.txt"],
)
def test_names_are_text_and_nothing_else(name):
    archive = pax_member(name, b"1") + END
    assert scanned_members(archive) == [(name, b"1")] == oracle_members(archive)
    assert scanned_members(gnu_long(name.encode()) + plain("x", b"1") + END) == [(name, b"1")]


def test_a_nul_ends_a_name_except_in_pax():
    archive = plain(b"a.txt\0hidden", b"1") + pax_member("b\0c.txt", b"2") + gnu_long(b"d\0e") + plain("x", b"3") + END
    assert (
        [name for name, _ in scanned_members(archive)]
        == ["a.txt", "b\0c.txt", "d"]
        == [name for name, _ in oracle_members(archive)]
    )


_NOT_UTF8 = {
    "plain": plain(b"caf\xe9.txt", b"2"),
    "prefix": plain(b"b.txt", b"2", prefix=b"caf\xe9"),
    "PAX": pax_header({b"path": b"caf\xe9.txt"}) + plain("x", b"2"),
    "GNU": gnu_long(b"caf\xe9" * 50) + plain("x", b"2"),
    "old": plain(b"caf\xe9.txt", b"2", kind=b"\0", magic=b""),
    "global": pax_header({b"path": b"caf\xe9.txt"}, b"g") + plain("x", b"2") + pax_header({b"path": b"z.txt"}, b"g"),
}


@pytest.mark.parametrize("kind", _NOT_UTF8)
@pytest.mark.parametrize("large_bytes", [None, 1])
@pytest.mark.parametrize("chunk_bytes", [512, 1 << 20])
def test_a_name_that_is_not_utf8_is_one_error_with_the_way_out(kind, large_bytes, chunk_bytes):
    folder = header(b"folder/", 0, b"5")
    archive = A + folder + A + _NOT_UTF8[kind] + folder + Z + Z + END
    options = ScanOptions(large_bytes=large_bytes, chunk_bytes=chunk_bytes)
    found, error = _until_error(archive, options=options)
    assert [name for name, _ in found] == ["a.txt", "a.txt"]
    assert isinstance(error, HeaderError)
    assert "KeyRule(encoding='latin-1')" in str(error)
    assert "utf-8" in str(error)
    assert 2 * len(A) + BLOCK <= error.offset < len(archive) - len(Z) * 2
    going = scanned(archive, options=options, go_on=True)
    assert [name for name, _ in going.members] == ["a.txt", "a.txt", "z.txt", "z.txt"]
    assert len(going.gaps) == len(going.errors) == 1
    assert going.skipped == {"folder": 2}


@pytest.mark.parametrize("kind", _NOT_UTF8)
def test_another_encoding_reads_them(kind):
    archive = _NOT_UTF8[kind] + Z + END
    assert scanned_members(archive, options=ScanOptions(encoding="latin-1")) == oracle_members(archive, "latin-1")


def test_an_index_reads_names_by_the_encoding_of_its_rule():
    with pytest.raises(HeaderError, match="latin-1"):
        _index(plain(b"caf\xe9.txt", b"2") + END)
    assert _index(plain(b"caf\xe9.txt", b"2") + END, KeyRule(encoding="latin-1")).keys.to_pylist() == ["caf\u00e9"]


# --------------------------------------------------------------------------------------------------------- not a tar


@pytest.mark.parametrize(
    "data",
    [
        b"hello world\n" * 100,
        b"{}" * 300,
        bytes(range(256)) * 4,
        b"PK\x03\x04" + bytes(2000),
        b"x" * 512,
        b"\x1f\x8b" + bytes(600),
    ],
    ids=["text", "json", "bytes", "zip", "one block", "gzip"],
)
@pytest.mark.parametrize("feed", FEEDS)
def test_another_file_is_not_a_tar(data, feed):
    found, error = _until_error(data, FEEDS[feed](data))
    assert found == []
    assert isinstance(error, HeaderError)
    assert "not a tar" in str(error)
    assert error.offset == 0


@pytest.mark.parametrize("length", [1, 100, 511])
@pytest.mark.parametrize("feed", FEEDS)
def test_a_file_shorter_than_a_header_is_an_error(length, feed):
    found, error = _until_error(b"", FEEDS[feed](b"h" * length))
    assert found == []
    assert isinstance(error, TarError)
    assert error.offset == 0


def test_zeros_and_then_something_is_an_error():
    _, error = _until_error(END + b"x" * 512)
    assert isinstance(error, HeaderError)


def test_a_folder_in_place_of_a_tar_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="folder"):
        LocalStore().open(str(tmp_path))


@pytest.mark.parametrize("zeros", [2, 3, 20, 5000])
@pytest.mark.parametrize("feed", FEEDS)
def test_two_tars_in_one_file_are_an_error_and_not_half_of_the_data(zeros, feed):
    archive = A + bytes(zeros * BLOCK) + Z + END
    found, error = _until_error(archive, FEEDS[feed](archive))
    assert found == [("a.txt", b"1")]
    assert isinstance(error, HeaderError)
    assert "--concatenate" in str(error)
    assert error.offset == len(A)
    going = scanned(archive, FEEDS[feed](archive), go_on=True)
    assert [name for name, _ in going.members] == ["a.txt", "z.txt"]
    assert [(gap.start, gap.stop) for gap in going.gaps] == [(len(A), len(A) + zeros * BLOCK)]


@pytest.mark.parametrize("trailer", [b"x", bytes(511) + b"x", bytes(3 << 20) + b"x"])
def test_bytes_behind_the_end_are_an_error(trailer):
    _, error = _until_error(A + END + trailer)
    assert isinstance(error, HeaderError)


def test_a_stream_that_would_block_is_not_an_end():
    class NotYet:
        def __init__(self):
            self.parts = [A, None]

        def read(self, size):
            return self.parts.pop(0)

    with pytest.raises(StoreError, match="blocking"):
        list(scan(StreamFeed(NotYet())))


# ------------------------------------------------------------------------------------------------------ sparse and PAX

_SPARSE = {
    "GNU": gnu_sparse(b"b.bin", data_of(1500)),
    "GNU with tables": gnu_sparse(b"b.bin", data_of(1500), more=3),
    "GNU long name": gnu_long(b"b" * 200) + gnu_sparse(b"b.bin", data_of(1500)),
    "PAX 1.0": pax_sparse(b"b.bin", data_of(1500)),
    "PAX 0.1": pax_header({b"GNU.sparse.map": b"0,5", b"GNU.sparse.size": b"100"}) + plain("b.bin", b"12345"),
    "PAX 0.0": pax_header(pax_record(b"GNU.sparse.size", b"100") + pax_record(b"GNU.sparse.offset", b"0"))
    + plain("b.bin", b"12345"),
    "PAX over a large one": pax_sparse(b"b.bin", data_of(100_000)),
}


@pytest.mark.parametrize("kind", _SPARSE)
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 20])
def test_sparse_members_are_refused_and_never_given_as_they_are_stored(kind, feed, chunk_bytes):
    archive = A + _SPARSE[kind] + Z + END
    options = ScanOptions(chunk_bytes=chunk_bytes)
    found, error = _until_error(archive, FEEDS[feed](archive), options)
    assert found == [("a.txt", b"1")]
    assert isinstance(error, UnsupportedMemberError)
    assert "--no-sparse" in str(error)
    assert len(A) <= error.offset < len(A) + 4 * BLOCK
    going = scanned(archive, FEEDS[feed](archive), options, go_on=True)
    assert [name for name, _ in going.members] == ["a.txt", "z.txt"]
    assert [(gap.start, gap.stop) for gap in going.gaps] == [(len(A), len(archive) - len(Z) - len(END))]


def test_sparse_members_of_the_real_tar_look_like_ours():
    """The oracle takes the handmade headers for sparse members too."""
    for kind in ("GNU", "GNU with tables", "PAX 1.0"):
        with tarfile.open(fileobj=io.BytesIO(A + _SPARSE[kind] + Z + END), mode="r:") as tar:
            assert [member.issparse() for member in tar] == [False, True, False]


@pytest.mark.parametrize("content", [b"garbage", b"99999 path=a\n", b"12 path=abc", b"9" * 600])
@pytest.mark.parametrize("kind", [b"x", b"g"])
def test_malformed_pax_records_are_an_error_and_their_member_is_not_given(content, kind):
    bad = with_data(header(b"././@PaxHeader", len(content), kind), content)
    member = plain("cut-name", b"2") if kind == b"x" else b""
    archive = A + bad + member + Z + END
    found, error = _until_error(archive)
    assert found == [("a.txt", b"1")]
    assert isinstance(error, HeaderError)
    assert "PAX" in str(error)
    assert error.offset >= len(A) + BLOCK
    going = scanned(archive, go_on=True)
    assert [name for name, _ in going.members] == ["a.txt", "z.txt"]


@pytest.mark.parametrize(
    "head", [pax_header({b"path": b"b"}), gnu_long(b"b" * 200), gnu_long(b"b" * 200, b"K"), pax_header(b"")]
)
def test_a_header_without_its_member_is_truncation(head):
    for end in (END, b""):
        found, error = _until_error(A + head + end)
        assert found == [("a.txt", b"1")]
        assert isinstance(error, TruncatedError)


def test_skipped_members_are_counted_once_though_read_twice():
    archive = b"".join(header(b"folder/", 0, b"5") + plain("a.txt", data_of(700)) for _ in range(20)) + END
    for chunk_bytes in (512, 1024, 1536, 4096, 1 << 20):
        skipped = Counter()
        parts = list(scan(reader_feed(archive), ScanOptions(chunk_bytes=chunk_bytes), skipped=skipped))
        assert all(isinstance(part, Chunk) for part in parts)
        assert skipped == {"folder": 20}


def test_a_scan_may_start_at_any_header():
    _, archive = thirty_members()
    (whole,) = scanned(archive).chunks
    for start, name in zip(whole.starts.tolist(), whole.names, strict=True):
        (chunk,) = scan(reader_feed(archive), start=start)
        assert chunk.base == start
        assert chunk.names[0] == name


def test_the_archive_of_these_tests_is_an_ordinary_one():
    members, archive = thirty_members()
    assert members == oracle_members(archive)
    assert len(members) == 30
    assert archive == by_tarfile(members)[: len(archive)]
