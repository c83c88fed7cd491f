"""Tars for tests: made by ``tarfile`` where it can, by hand where it cannot, and as hypothesis strategies.

``tarfile`` is the oracle: ``oracle_members`` is what it reads, ``scanned_members`` what shoal reads.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from shoal.errors import TarError
from shoal.shard._tar_scan import Chunk, Feed, ReaderFeed, ScanOptions, StreamFeed, UnreadableRange, scan
from shoal.store import ObjectInfo

BLOCK = 512
END = bytes(2 * BLOCK)
DEFAULT = ScanOptions()

Members = list[tuple[str, bytes]]

# -------------------------------------------------------------------------------------------------------------- reading


@dataclass
class BytesReader:
    """An open object whose bytes are at hand; ``size`` may lie, as that of a file that shrinks does."""

    data: bytes
    size: int | None = None
    url: str = "memory://test.tar"

    @property
    def info(self) -> ObjectInfo:
        return ObjectInfo(self.url, len(self.data) if self.size is None else self.size, "1")

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]

    def read_many(self, starts: list[int], stops: list[int]) -> list[bytes]:
        return [self.data[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def close(self) -> None:
        pass


@dataclass
class ShortStream:
    """A pipe that gives as few bytes as it likes: ``lengths`` in turn, over and over."""

    data: bytes
    lengths: tuple[int, ...] = (1, 511, 7, 1024, 3000)
    at: int = 0
    turns: itertools.cycle = field(init=False)

    def __post_init__(self) -> None:
        self.turns = itertools.cycle(self.lengths)

    def read(self, size: int) -> bytes:
        part = self.data[self.at : self.at + min(size, next(self.turns))]
        self.at += len(part)
        return part


def reader_feed(data: bytes) -> ReaderFeed:
    return ReaderFeed(BytesReader(data))


def stream_feed(data: bytes) -> StreamFeed:
    return StreamFeed(io.BytesIO(data))


def short_feed(data: bytes) -> StreamFeed:
    return StreamFeed(ShortStream(data))


FEEDS: dict[str, Callable[[bytes], Feed]] = {"reader": reader_feed, "stream": stream_feed, "short": short_feed}


@dataclass
class Scanned:
    """All that a scan gave. Making one checks what every chunk promises."""

    members: Members
    chunks: list[Chunk]
    gaps: list[UnreadableRange]
    errors: list[TarError]
    skipped: Counter[str]


def scanned(
    archive: bytes, feed: Feed | None = None, options: ScanOptions = DEFAULT, *, go_on: bool = False
) -> Scanned:
    """Scan ``archive`` through ``feed`` and check that chunks and gaps tile it; ``go_on`` survives damage."""
    found = Scanned([], [], [], [], Counter())
    position = 0
    for part in scan(
        feed or reader_feed(archive), options, skipped=found.skipped, on_damage=found.errors.append if go_on else None
    ):
        if isinstance(part, UnreadableRange):
            assert part.start == position
            assert part.stop >= part.start
            found.gaps.append(part)
            position = part.stop
        else:
            assert part.base == position
            check_chunk(part, archive)
            found.members += chunk_members(part, archive)
            found.chunks.append(part)
            position = part.stop
    return found


def check_chunk(chunk: Chunk, archive: bytes) -> None:
    """Positions are in order, inside the chunk, and its bytes are the archive's."""
    stops = chunk.offsets + (chunk.sizes + BLOCK - 1) // BLOCK * BLOCK
    assert chunk.stop > chunk.base
    assert len(chunk.names) == len(chunk.starts) == len(chunk.offsets) == len(chunk.sizes)
    assert (chunk.starts[:1] >= chunk.base).all()
    assert (chunk.starts + BLOCK <= chunk.offsets).all()
    assert (chunk.starts[1:] >= stops[:-1]).all()
    assert (stops[-1:] <= chunk.stop).all()
    if chunk.data:
        assert archive[chunk.base : chunk.base + len(chunk.data)] == chunk.data
        assert len(chunk.data) >= chunk.stop - chunk.base
    else:
        assert len(chunk.names) == 1


def chunk_members(chunk: Chunk, archive: bytes) -> Members:
    spans = zip(chunk.names, chunk.offsets.tolist(), chunk.sizes.tolist(), strict=True)
    return [(name, archive[offset : offset + size]) for name, offset, size in spans]


def scanned_members(archive: bytes, feed: Feed | None = None, options: ScanOptions = DEFAULT) -> Members:
    return scanned(archive, feed, options).members


def oracle_members(archive: bytes, encoding: str = "utf-8") -> Members:
    """What the standard library reads: regular members only, as every reader of samples takes them."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding=encoding) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar if member.isreg()]


# -------------------------------------------------------------------------------------------------------------- writing


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def octal(number: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, number)


def base_256(number: int, width: int = 12) -> bytes:
    return b"\x80" + number.to_bytes(width - 1, "big")


def checksummed(block: bytes, *, signed: bool = False) -> bytes:
    """``block`` with the checksum that fits it."""
    blank = block[:148] + b" " * 8 + block[156:]
    total = sum(byte - 256 if signed and byte > 127 else byte for byte in blank)
    return block[:148] + b"%06o\0 " % total + block[156:]


def header(
    name: bytes = b"a.txt",
    size: int | bytes = 0,
    kind: bytes = b"0",
    *,
    prefix: bytes = b"",
    magic: bytes = b"ustar\x0000",
    link: bytes = b"",
    mtime: int = 0,
) -> bytes:
    """One header by hand; ``size`` may be the raw bytes of its field."""
    number = size if isinstance(size, bytes) else octal(size, 12) if size < 8**11 else base_256(size)
    block = b"".join(
        (
            name.ljust(100, b"\0"),
            octal(0o644, 8) + octal(0, 8) + octal(0, 8),
            number.ljust(12, b"\0"),
            octal(mtime, 12) + b" " * 8 + kind,
            link.ljust(100, b"\0"),
            magic.ljust(8, b"\0"),
            bytes(80),
            prefix.ljust(167, b"\0"),
        )
    )
    assert len(block) == BLOCK
    return checksummed(block)


def with_data(head: bytes, data: bytes) -> bytes:
    return head + data + padding(len(data))


def plain(name: bytes | str, data: bytes = b"", kind: bytes = b"0", **fields: bytes) -> bytes:
    """A member with one header."""
    raw = name.encode() if isinstance(name, str) else name
    return with_data(header(raw, len(data), kind, **fields), data)


def pax_record(keyword: bytes, value: bytes) -> bytes:
    body = b" " + keyword + b"=" + value + b"\n"
    length = next(n for n in itertools.count(len(body)) if n == len(body) + len(str(n)))
    return b"%d%b" % (length, body)


def pax_header(records: dict[bytes, bytes] | bytes, kind: bytes = b"x") -> bytes:
    content = records if isinstance(records, bytes) else b"".join(itertools.starmap(pax_record, records.items()))
    return with_data(header(b"././@PaxHeader", len(content), kind), content)


def gnu_long(text: bytes, kind: bytes = b"L") -> bytes:
    return with_data(header(b"././@LongLink", len(text) + 1, kind, magic=b"ustar  \0"), text + b"\0")


def pax_member(name: str, data: bytes, **extra: bytes) -> bytes:
    """As webdataset writes by default: a PAX header before each member."""
    records = {b"path": name.encode(), **{key.encode(): value for key, value in extra.items()}}
    return pax_header(records) + plain(name.encode("ascii", "replace")[:100], data)


def by_tarfile(
    members: Iterable[tuple[str, bytes]], tar_format: int = tarfile.USTAR_FORMAT, **options: object
) -> bytes:
    """An archive as the standard library writes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format, **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def thirty_members(tar_format: int = tarfile.USTAR_FORMAT, name: str = "{:04d}") -> tuple[Members, bytes]:
    """Ten samples of three fields, the archive of the truncation and bit-flip tests; it ends with two zero blocks."""
    members = []
    for number in range(10):
        key = name.format(number)
        members += [
            (f"{key}.cls", b"%d" % number),
            (f"{key}.jpg", bytes([number + 128]) * (320 + 40 * number)),
            (f"{key}.txt", b""),
        ]
    archive = by_tarfile(members, tar_format)
    return members, archive[: end_of_members(archive)] + END


def end_of_members(archive: bytes) -> int:
    """Where the end marker stands: behind the last block that holds anything."""
    return (len(archive.rstrip(b"\0")) + BLOCK - 1) // BLOCK * BLOCK


def gnu_sparse(name: bytes, data: bytes, *, more: int = 0) -> bytes:
    """A sparse member as GNU tar writes it: a map in the header, ``more`` blocks of it behind."""
    block = bytearray(header(name, len(data), b"S", magic=b"ustar  \0"))
    block[386:410] = octal(0, 12) + octal(len(data), 12)
    block[482] = bool(more)
    block[483:495] = octal(1 << 20, 12)
    tables = b"".join(bytes(504) + bytes([at < more - 1]) + bytes(7) for at in range(more))
    return checksummed(bytes(block)) + tables + data + padding(len(data))


def pax_sparse(name: bytes, data: bytes) -> bytes:
    """A sparse member in PAX, version 1.0: the map stands before the data."""
    content = b"1\n0\n%d\n".ljust(BLOCK, b"\0") % len(data) + data
    records = {
        b"GNU.sparse.major": b"1",
        b"GNU.sparse.minor": b"0",
        b"GNU.sparse.name": name,
        b"GNU.sparse.realsize": b"1048576",
    }
    return pax_header(records) + plain(b"GNUSparseFile.0/" + name, content)


# ----------------------------------------------------------------------------------------------------------- strategies

# Where padding, blocks and chunks end.
SIZES = st.sampled_from([0, 1, 5, 100, 511, 512, 513, 1023, 1024, 1025, 2047, 3072, 4095, 4096, 4097, 9000])

_LETTERS = "abcXYZ019._- /é漢"
_STEMS = st.sampled_from(
    [
        "a",
        "b",
        "0001",
        "d/a",
        "d.x/a",
        "./a",
        "d/",
        "__meta__",
        "__x__/y",
        "__index__",
        "",
        ".",
        "..",
        "é",
        "漢字",
        "a b",
        "a\nb",
    ]
)
_FIELDS = st.sampled_from(["txt", "jpg", "TXT", "seg.jpg", "", ".b", "json", "__key__x", "c\n", "t ", "ünï"])
_ODD_NAMES = st.one_of(
    st.builds("{}.{}".format, _STEMS, _FIELDS),
    st.text(_LETTERS, min_size=1, max_size=12),
    st.builds(
        lambda part, times, tail: "/".join([part] * times) + tail,
        st.sampled_from(["dir", "x" * 49, "y" * 99]),
        st.integers(1, 6),
        st.sampled_from([".a", "/b.c"]),
    ),
)
# A regular member whose name ends in a slash is read as one thing here, another there; nobody writes it.
NAMES = _ODD_NAMES.map(lambda name: name.rstrip("/") or "a").filter(lambda name: not name.endswith("/"))


def short_name(name: str) -> bytes:
    """The part of a name that fits the header, whole characters only, and not a folder's."""
    return name.encode()[:100].decode("utf-8", "ignore").rstrip("/").encode() or b"a"


def data_of(size: int) -> bytes:
    """``size`` bytes, no two blocks of them alike."""
    return b"".join(b"%08d" % at for at in range((size + 7) // 8))[:size]


def _tarfile_member(tar_format: int) -> Callable[[str, int], bytes]:
    def build(name: str, size: int) -> bytes:
        info = tarfile.TarInfo(name)
        info.size = size
        info.mtime = 0 if size % 2 else 1.5  # a float, as webdataset writes, makes a PAX header
        if tar_format == tarfile.GNU_FORMAT:
            info.mtime = 0
        return with_data(info.tobuf(tar_format, "utf-8"), data_of(size))

    return build


def _prefixed(name: str, size: int) -> bytes:
    raw = short_name(name)
    return with_data(header(raw, size, prefix=b"some/folder.x"), data_of(size))


def _oldest(name: str, size: int) -> bytes:
    """Before ustar: no magic, and a NUL for the kind."""
    return with_data(header(short_name(name), size, b"\0", magic=b""), data_of(size))


def _in_base_256(name: str, size: int) -> bytes:
    return with_data(header(short_name(name), base_256(size)), data_of(size))


def _loosely(name: str, size: int) -> bytes:
    """Octal numbers need neither zeros in front nor a full field."""
    return with_data(header(short_name(name), b"%o " % size), data_of(size))


def _signed(name: str, size: int) -> bytes:
    """Some old writers summed signed bytes."""
    return with_data(checksummed(header(short_name(name), size), signed=True), data_of(size))


def _contiguous(name: str, size: int) -> bytes:
    return plain(short_name(name), data_of(size), b"7")


def _pax_size(name: str, size: int) -> bytes:
    head = pax_header({b"path": name.encode(), b"size": b"%d" % size})
    return head + with_data(header(b"short", 0), data_of(size))


def _pax_solaris(name: str, size: int) -> bytes:
    return pax_header({b"path": name.encode()}, b"X") + plain(b"short", data_of(size))


def _pax_twice(name: str, size: int) -> bytes:
    """Two headers that both name the member."""
    return pax_header({b"path": name.encode()}) + pax_header({b"path": b"other"}) + plain(b"short", data_of(size))


def _long_and_pax(name: str, size: int) -> bytes:
    raw = name.encode()
    both = (
        gnu_long(raw) + pax_header({b"path": b"other"}) if size % 2 else pax_header({b"path": raw}) + gnu_long(b"other")
    )
    return both + plain(b"short", data_of(size))


def _pax_empty(name: str, size: int) -> bytes:
    return pax_header(b"") + plain(short_name(name), data_of(size))


def _long_link_before_file(name: str, size: int) -> bytes:
    return gnu_long(b"target" * 30, b"K") + gnu_long(name.encode()) + plain(b"short", data_of(size))


_REGULAR = [
    *map(_tarfile_member, (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)),
    lambda name, size: plain(short_name(name), data_of(size)),
    lambda name, size: plain(short_name(name), data_of(size)),
    _prefixed,
    _oldest,
    _in_base_256,
    _loosely,
    _signed,
    _contiguous,
    _pax_size,
    _pax_solaris,
    _pax_twice,
    _long_and_pax,
    _pax_empty,
    _long_link_before_file,
]

_OTHERS = [
    header(b"folder/", 0, b"5"),
    header(b"folder/", 0, b"\0", magic=b""),
    header(b"folder.with/size/", 700, b"5"),  # a folder has no data, whatever its size field says
    header(b"link.txt", 0, b"2", link=b"a.txt"),
    header(b"hard.txt", 900, b"1", link=b"a.txt"),
    header(b"fifo.txt", 0, b"6"),
    header(b"device.txt", 0, b"3"),
    header(b"device.txt", 0, b"4"),
    plain(b"volume", b"", b"V"),
    plain(b"unknown.txt", b"u" * 600, b"Z"),
    gnu_long(b"long/" * 40) + header(b"long/", 0, b"5"),
    gnu_long(b"link/" * 40, b"K") + gnu_long(b"name/" * 40) + header(b"x", 0, b"2"),
    pax_header({b"path": b"folder/" * 30, b"mtime": b"1.5"}) + header(b"folder/", 0, b"5"),
    pax_header({b"comment": b"says nothing"}, b"g") + plain(b"last.txt", b"1"),  # tarfile wants a member behind it
]

_regular = st.builds(lambda make, name, size: make(name, size), st.sampled_from(_REGULAR), NAMES, SIZES)
_entry = st.one_of(_regular, _regular, _regular, st.sampled_from(_OTHERS))
_endings = st.sampled_from([END, END, bytes(BLOCK), END + bytes(10240)])


@st.composite
def archives(draw: st.DrawFn, max_size: int = 8) -> bytes:
    """A sound archive with members of every kind a tar may have, and any of the ends that are one."""
    entries = draw(st.lists(_entry, max_size=max_size))
    if draw(st.integers(0, 19)) == 0:  # a name for all: rare, and it hides every other name
        entries.insert(len(entries) // 2, pax_header({b"path": b"global/name.txt"}, b"g") + plain(b"last.txt", b"1"))
    return b"".join(entries) + draw(_endings)


def plain_archives(
    names: st.SearchStrategy[str] = NAMES, sizes: st.SearchStrategy[int] = SIZES, max_size: int = 12
) -> st.SearchStrategy[bytes]:
    """Archives that webdataset writes: regular members, one header each where the name allows."""
    return st.lists(st.tuples(names, sizes), max_size=max_size).map(
        lambda members: by_tarfile([(name, data_of(size)) for name, size in members], tarfile.PAX_FORMAT)
    )


CHUNK_BYTES = st.sampled_from([512, 1024, 4096, 1 << 16])
