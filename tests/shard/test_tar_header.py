"""Headers: what is read is what ``tarfile`` reads, what is written is what ``tarfile`` writes."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.shard.archives import (
    BLOCK,
    END,
    NAMES,
    archives,
    base_256,
    checksummed,
    data_of,
    header,
    pax_record,
    plain,
    scanned_members,
    short_name,
)

from shoal.errors import HeaderError, TruncatedError, WriteError
from shoal.shard._tar_header import (
    _plain_headers,
    build_header,
    lay_out,
    member_bytes,
    padded,
    parse_header,
    parse_headers,
    parse_pax,
)

_RAW_NAMES = st.binary(min_size=1, max_size=100).filter(lambda name: name[0] != 0)
_KINDS = st.sampled_from([b"0", b"7", b"5", b"2", b"x", b"g", b"L", b"S", b"\0", b"Z"])


def _table_of(data: bytes) -> dict[int, tuple[bytes, int, int]]:
    table = parse_headers(data)
    names = [table.names(slice(at, at + 1))[0] for at in range(len(table.rows))]
    return dict(
        zip(table.rows.tolist(), zip(names, table.sizes.tolist(), table.kinds.tolist(), strict=True), strict=True)
    )


# -------------------------------------------------------------------------------------------------------------- reading


@settings(max_examples=1200)
@given(archives())
def test_all_headers_at_once_are_the_headers_one_by_one(archive):
    for row, (name, size, kind) in _table_of(archive).items():
        one = parse_header(archive[row * BLOCK : (row + 1) * BLOCK], row * BLOCK)
        assert (one.name, one.size, one.kind) == (name, size, kind)


@settings(max_examples=300)
@given(_RAW_NAMES, st.integers(0, 8**11 - 1), _KINDS, st.binary(max_size=155))
@example(b"n" * 100, 0, b"0", b"p" * 155)
@example(b"a\0b", 0, b"0", b"p\0q")
def test_every_plain_header_is_in_the_table(name, size, kind, prefix):
    block = header(name, size, kind, prefix=prefix)
    one = parse_header(block, 0)
    expected = {} if kind == b"\0" else {0: (one.name, one.size, one.kind)}
    assert _table_of(block) == expected


@settings(max_examples=300)
@given(st.binary(min_size=BLOCK, max_size=BLOCK), st.booleans())
def test_the_table_never_holds_what_one_header_would_refuse(noise, summed):
    block = noise[:257] + b"ustar\x0000" + noise[265:]
    block = checksummed(block) if summed else block
    if _table_of(block):
        parse_header(block, 0)


@settings(max_examples=300)
@given(_RAW_NAMES, st.integers(0, 2**60), st.sampled_from([b"", b"ab/cd"]), st.sampled_from([b"ustar\x0000", b""]))
def test_a_header_is_read_as_tarfile_reads_it(name, size, prefix, magic):
    block = header(name, size, prefix=prefix, magic=magic)
    info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    found = parse_header(block, 0)
    assert (found.name.decode("utf-8", "surrogateescape"), found.size) == (info.name, info.size)


@pytest.mark.parametrize(
    "field, size",
    [
        (b"00000000005\0", 5),
        (b"00000000005 ", 5),
        (b"000000000005", 5),
        (b"          5\0", 5),
        (b"5\0          ", 5),
        (b"5           ", 5),
        (bytes(12), 0),
        (b" " * 12, 0),
        (b"\0garbage    ", 0),
        (b"77777777777\0", 8**11 - 1),
        (b"777777777777", 8**12 - 1),
        (base_256(5), 5),
        (base_256(2**63), 2**63),
        (base_256(2**88 - 1), 2**88 - 1),
    ],
)
def test_every_way_to_write_a_size(field, size):
    block = header(size=field)
    assert parse_header(block, 0).size == size == tarfile.TarInfo.frombuf(block, "utf-8", "strict").size


@pytest.mark.parametrize(
    "field",
    [b"0000000000x\0", b"00000 00005\0", b"-0000000005\0", b"0x5\0", b"0o5\0", b"1_0\0", b"8\0", b"\x81" + bytes(11)],
)
def test_a_size_that_is_no_number_is_an_error(field):
    with pytest.raises(HeaderError, match="octal") as caught:
        parse_header(header(size=field.ljust(12, b"\0")), 1024)
    assert caught.value.offset == 1024


def test_a_negative_size_is_an_error():
    with pytest.raises(HeaderError, match="negative"):
        parse_header(header(size=b"\xff" * 12), 0)


def test_signed_and_unsigned_checksums_are_both_taken():
    block = header("é".encode() * 20)
    for signed in (True, False):
        assert parse_header(checksummed(block, signed=signed), 0).name == "é".encode() * 20


@pytest.mark.parametrize("wrong", [b"000000\0 ", b"\0" * 8, b" " * 8, b"zzzzzz\0 ", b"\xff" * 8])
def test_a_wrong_checksum_is_an_error(wrong):
    block = header()
    with pytest.raises(HeaderError, match="damaged") as caught:
        parse_header(block[:148] + wrong + block[156:], 512)
    assert caught.value.offset == 512
    assert _table_of(block[:148] + wrong + block[156:]) == {}


@pytest.mark.parametrize("end", [b"\0 ", b"\0x", b" \0", b"  ", b" x", b"x "])
def test_the_end_of_a_checksum_is_read_alike_by_both(end):
    block = header()
    block = block[:154] + end + block[156:]
    try:
        parse_header(block, 0)
    except HeaderError:
        assert _table_of(block) == {}
    else:
        assert _table_of(block) == {0: (b"a.txt", 0, ord("0"))}


def test_a_short_header_is_truncated():
    with pytest.raises(TruncatedError) as caught:
        parse_header(header()[:511], 2048)
    assert caught.value.offset == 2048


@pytest.mark.parametrize("length", [0, 1, 511, 513, 1535])
def test_a_table_takes_whole_blocks_only(length):
    assert len(parse_headers((header() * 3)[:length]).rows) == length // BLOCK


def test_runs_follow_the_chain_and_not_the_look():
    """A header inside data is a candidate, and never part of a run."""
    data = (
        plain("a.tar", header(b"inner.txt") * 2)
        + plain("b.txt", b"1")
        + header(b"c.txt")
        + bytes(BLOCK)
        + header(b"d.txt")
    )
    table = parse_headers(data)
    assert table.rows.tolist() == [0, 1, 2, 3, 5, 7]
    assert table.names(table.run(0)) == [b"a.tar"]
    assert table.names(table.run(3)) == [b"b.txt", b"c.txt"]
    assert table.names(table.run(7)) == [b"d.txt"]
    assert table.names(table.run(4)) == []
    assert table.names(table.run(99)) == []


@settings(max_examples=300)
@given(st.dictionaries(st.text("abcLIBARCHIVE.xattr", min_size=1), st.binary(max_size=120), max_size=6))
def test_pax_records_come_back(records):
    content = b"".join(pax_record(keyword.encode(), value) for keyword, value in records.items())
    assert parse_pax(content, 0) == records
    assert parse_pax(content + b"\0" * 50, 0) == records


@pytest.mark.parametrize(
    "content",
    [
        b"garbage",
        b"0 path=a\n",
        b"3 path=a\n",
        b"-9 path=a\n",
        b"99 path=a\n",
        b"10 path=abc",
        b"9 path:a\n",
        b"path=a\n",
        b" path=a\n",
        b"5 =a\n",
        b"11 path=abc",
        b"9" * 5000 + b" path=a\n",
        pax_record(b"a", b"b") + b"x",
        pax_record(b"a", b"b")[:-1],
    ],
)
def test_pax_records_that_do_not_fit_are_an_error(content):
    with pytest.raises(HeaderError, match="PAX") as caught:
        parse_pax(content, 512)
    assert caught.value.offset >= 512


# -------------------------------------------------------------------------------------------------------------- writing


def _tarfile_header(name: str, size: int, mtime: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode, info.uname, info.gname = size, mtime, 0o444, "bigdata", "bigdata"
    return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")


def _without_devices(block: bytes) -> bytes:
    """The device numbers of a plain file may be zeros or blank, and the checksum follows them."""
    return checksummed(block[:329] + bytes(16) + block[345:])


_FITTING = st.one_of(
    NAMES.map(lambda name: short_name(name).decode()),
    st.sampled_from(["d" * 150 + "/" + "f" * 100, "d/" * 70 + "a.txt", "x/" + "y" * 100]),
)


@settings(max_examples=400)
@given(_FITTING, st.integers(0, 8**11 - 1), st.integers(0, 8**11 - 1))
@example("n" * 100, 8**11 - 1, 0)
def test_a_written_header_is_byte_for_byte_what_tarfile_writes(name, size, mtime):
    ours = build_header(name.encode(), size, mtime)
    assert len(ours) == BLOCK
    assert _without_devices(ours) == _without_devices(_tarfile_header(name, size, mtime))


@settings(max_examples=400)
@given(
    st.one_of(NAMES, st.text("ab/é", min_size=80, max_size=400)).filter(lambda name: not name.endswith("/")),
    st.integers(0, 3000),
)
def test_a_written_member_is_read_back(name, size):
    archive = build_header(name.encode(), size) + data_of(padded(size)) + END
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8") as tar:
        assert [(member.name, member.size, member.isreg()) for member in tar] == [(name, size, True)]
    assert scanned_members(archive) == [(name, data_of(padded(size))[:size])]


@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 10**12, 10**19])
@pytest.mark.parametrize("name", ["a.bin", "n" * 300])
def test_sizes_over_8_gib_and_long_names_take_a_pax_header(name, size):
    block = build_header(name.encode(), size)
    with tarfile.open(fileobj=io.BytesIO(block + END), mode="r:", encoding="utf-8") as tar:
        member = tar.next()
    assert (member.name, member.size) == (name, size)
    assert (len(block) == BLOCK) == (size < 8**11 and len(name) <= 100)


@pytest.mark.parametrize("length", [*range(80, 120), *range(980, 1010), 10_000])
def test_pax_lengths_count_their_own_digits(length):
    name = "é" * (length // 2) + "a" * (length % 2)
    with tarfile.open(fileobj=io.BytesIO(build_header(name.encode(), 0) + END), mode="r:", encoding="utf-8") as tar:
        assert tar.getnames() == [name]


@pytest.mark.parametrize("mtime", [-1, 8**11, 10**20])
def test_a_time_that_does_not_fit_is_refused(mtime):
    with pytest.raises(WriteError, match="time"):
        build_header(b"a.txt", 1, mtime)


def test_written_headers_are_plain_ones():
    data = b"".join(build_header(b"%03d.txt" % number, 0, 7) for number in range(100))
    table = parse_headers(data)
    assert table.names(table.run(0)) == [b"%03d.txt" % number for number in range(100)]
    assert not table.sizes.any()
    assert set(np.unique(table.kinds)) == {ord("0")}


LONG_NAMES = st.text(st.sampled_from("ab/é."), min_size=1, max_size=160).map(lambda text: f"{text}.bin".encode())
CONTENTS = st.integers(0, 3 * BLOCK).map(lambda size: (b"data" * (size // 4 + 1))[:size])


def one_by_one(members, mtime):
    parts, offsets = [], []
    for name, data in members:
        parts.append(build_header(name, len(data), mtime))
        offsets.append(sum(map(len, parts)))
        parts += [data, bytes(padded(len(data)) - len(data))]
    return b"".join(parts), offsets


@given(st.lists(st.tuples(LONG_NAMES, CONTENTS), min_size=1, max_size=20), st.integers(0, 8**11 - 1))
def test_many_at_once_are_each_as_built_alone(members, mtime):
    names, contents = [name for name, _ in members], [data for _, data in members]
    data, offsets = lay_out(names, contents, np.array([len(data) for data in contents]), mtime)
    assert (bytes(data), offsets.tolist()) == one_by_one(members, mtime)
    assert len(data) == sum(member_bytes(name, len(content)) for name, content in members)


@pytest.mark.parametrize("length", [96, 99, 100, 101, 104, 105, 256])
def test_names_around_what_a_header_holds(length):
    members = [(b"n" * length, b"x"), (b"short", b"y" * 512), (b"m" * length, b"")]
    data, offsets = lay_out([name for name, _ in members], [data for _, data in members], np.array([1, 512, 0]), 7)
    assert (bytes(data), offsets.tolist()) == one_by_one(members, 7)


@given(st.lists(st.integers(0, 8**11 - 1), min_size=1, max_size=9), st.integers(0, 8**11 - 1))
def test_headers_of_any_size_are_as_built_alone(sizes, mtime):
    names = [b"a.bin" * (at + 1) for at in range(len(sizes))]
    made = _plain_headers(names, np.array(sizes), mtime)
    assert [row.tobytes() for row in made] == list(map(build_header, names, sizes, [mtime] * len(sizes)))
