"""Recover the intact samples of a damaged tar.

Members are found as runs, in which each is followed by a valid header. A run begins at the start of the archive, or at
any 512 bytes, aligned or not, that are a header with a valid checksum: bytes may have been lost or inserted.

With an index that has checksums, a member is intact when the bytes at its place, or after a header with its name, have
its size and crc32. Without checksums only headers can be checked: samples whose headers are valid and follow each other
are saved, and those next to damage are left out.
"""

from __future__ import annotations

import io
import re
import tarfile
import tempfile
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Literal, Protocol

import numpy as np

from shoal._typing import IntArray
from shoal.errors import MissingExtraError, ShoalError, TarError
from shoal.shard._compression import decompressed, reader_stream, sniff
from shoal.shard._member_names import KeyRule, split_name
from shoal.shard._shard_rows import Blocks, ShardRows, members_of
from shoal.shard._tar_scan import Chunk, ScanOptions, UnreadableRange, scan
from shoal.store._base import ObjectReader

from ._findings import LostSample

__all__ = [
    "IntactMember",
    "MemberRun",
    "Salvage",
    "SavedSample",
    "TarReader",
    "UnpackedTar",
    "first_member_run",
    "has_checksums",
    "open_tar",
    "salvage_by_checksums",
    "salvage_by_structure",
]

RunEnd = Literal["marker", "cut", "damage"]
Proof = Literal["checksums", "structure"]
"""How a saved sample was checked: by the checksum of each member, or only by its headers."""
_BLOCK = 512
_READ_BYTES = 1 << 20
_BUFFER_BYTES = 4 << 20
_LARGE_BYTES = 8 << 20
_INFLATE_BYTES = 4096
"""Bytes that are inflated at a time: of a damaged block, all up to the damage is recovered."""
_GZIP_HEADER_BYTES = 10
"""Of a shard that shoal wrote: it has no name and no time."""
_MAGIC = re.compile(rb"ustar[\0 ]")
_MAGIC_OFFSET = 257
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_DOUBTED_NEIGHBOURS = 2
"""How many samples on either side of damage are not saved where there are no checksums."""


class TarReader(Protocol):
    """Reads byte ranges of a tar; returns fewer bytes only at its end."""

    def read(self, start: int, stop: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class UnpackedTar:
    """A tar, decompressed where the shard is compressed."""

    tar: TarReader
    size: int
    compression: str | None = None
    broken: bool = False
    """Whether the compressed stream could not be read to its end."""


@contextmanager
def open_tar(reader: ObjectReader, index: ShardRows | None) -> Iterator[UnpackedTar]:
    """Open the tar of a shard: the object itself, or a temporary file with the decompressed bytes.

    Where the index has blocks that can be decompressed alone, damage affects no other block: each is written at its
    offset, and what is lost is zeros. Raises MissingExtraError when the shard is zstd and the extra is not installed.
    """
    compression: str | None = sniff(reader.read(0, _BLOCK))
    if compression is None and index is not None:
        compression = index.facts.compression  # the very first bytes may be damaged
    if compression is None:
        yield UnpackedTar(reader, reader.info.size)
        return
    with tempfile.TemporaryFile() as file:
        blocks = None if index is None else index.blocks
        broken = _write_stream(reader, compression, file)
        if broken and blocks is not None and blocks.stored is not None:
            file.truncate(0)
            _write_blocks(reader, compression, blocks, file)
        yield UnpackedTar(_TarFile(file), file.seek(0, io.SEEK_END), compression, broken)


class _TarFile:
    """A file as a `TarReader`. Thread-safe."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        with self._lock:
            self._file.seek(start)
            return self._file.read(max(0, stop - start))


def _write_stream(reader: ObjectReader, compression: str, file: IO[bytes]) -> bool:
    """Write what can be decompressed in order; True when the stream is broken."""
    stream = decompressed(reader_stream(reader), compression)
    try:
        while data := stream.read(_READ_BYTES):
            file.write(data)
    except MissingExtraError:
        raise
    except TarError:
        return True
    return False


def _write_blocks(reader: ObjectReader, compression: str, blocks: Blocks, file: IO[bytes]) -> None:
    assert blocks.stored is not None  # noqa: S101 - checked by the caller
    for number in range(len(blocks)):
        start, stop = (int(at) for at in blocks.stored[number : number + 2])
        offset, end = (int(at) for at in blocks.offsets[number : number + 2])
        stored = reader.read(start, stop)
        data = _inflate_block(stored, number == 0) if compression == "gzip" else _decompress_frame(stored, compression)
        file.seek(offset)
        file.write(data[: end - offset].ljust(end - offset, b"\0"))


def _inflate_block(stored: bytes, first: bool) -> bytes:
    """Inflate one block, up to where it is damaged."""
    stream, out = zlib.decompressobj(-zlib.MAX_WBITS), []
    stored = stored[_GZIP_HEADER_BYTES:] if first else stored
    for at in range(0, len(stored), _INFLATE_BYTES):
        try:
            out.append(stream.decompress(stored[at : at + _INFLATE_BYTES]))
        except zlib.error:
            break
    return b"".join(out)


def _decompress_frame(stored: bytes, compression: str) -> bytes:
    stream, out = decompressed(io.BytesIO(stored), compression), []
    try:
        while data := stream.read(_READ_BYTES):
            out.append(data)
    except ShoalError:
        pass
    return b"".join(out)


@dataclass(frozen=True, slots=True)
class MemberRun:
    """Members that follow each other without a break."""

    names: list[str]
    starts: IntArray
    """Offset of each member's first header."""
    offsets: IntArray
    sizes: IntArray
    start: int
    stop: int
    """Offset at which the next header was expected."""
    end: RunEnd
    """How the run ended: at an end marker with only zeros after it, at the end of the bytes, or at damage."""
    next_name: str | None = None
    """The name in the header at ``stop``, where that is one and only its data is cut off."""
    odd: dict[int, str] = field(default_factory=dict)
    """Members whose PAX or GNU header may be another member's: their number, and the name in their own header."""

    def __len__(self) -> int:
        return len(self.names)


class _PaddedTar:
    """A tar with a block of zeros after it: a member that only lacks padding is still intact."""

    def __init__(self, tar: TarReader, size: int) -> None:
        self._tar = tar
        self._stop = size
        self.size: int | None = size + _BLOCK

    def at(self, position: int, length: int) -> bytes:
        data = self._tar.read(position, min(position + length, self._stop)) if position < self._stop else b""
        stop = min(position + length, self._stop + _BLOCK)
        return data + bytes(max(0, stop - max(position, self._stop)))


def first_member_run(tar: TarReader, size: int, encoding: str) -> MemberRun:
    """Return the run of members at the start of the archive."""
    return _follow_run(tar, size, 0, encoding, set())


def find_member_runs(tar: TarReader, size: int, encoding: str) -> list[MemberRun]:
    """Return every run of members in the order of their starts, including runs inside a member's data (a tar in a tar).

    Each member is in one run only: a run that comes to a member of an earlier one ends there.
    """
    known: set[int] = set()
    runs = [_follow_run(tar, size, 0, encoding, known)]
    own = _own_headers(runs[0])
    for position in _find_headers(tar, size):
        if position not in known and position not in own:
            run = _follow_run(tar, size, position, encoding, known)
            own |= _own_headers(run)
            if len(run):
                runs.append(run)
    return runs


def _own_headers(run: MemberRun) -> set[int]:
    """Return the offsets of members' own headers that come after a PAX or GNU header."""
    return set((run.offsets[run.offsets - run.starts > _BLOCK] - _BLOCK).tolist())


def _find_headers(tar: TarReader, size: int) -> Iterator[int]:
    """Yield every offset of a valid header."""
    for base in range(0, size, _BUFFER_BYTES):
        data = tar.read(base, min(base + _BUFFER_BYTES + _BLOCK, size))
        for match in _MAGIC.finditer(data):
            at = match.start() - _MAGIC_OFFSET
            if 0 <= at < _BUFFER_BYTES and _parse_header(data[at : at + _BLOCK]) is not None:
                yield base + at


def _parse_header(block: bytes) -> tarfile.TarInfo | None:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError:
        return None


def _follow_run(tar: TarReader, size: int, start: int, encoding: str, known: set[int]) -> MemberRun:
    """Return the run that begins at ``start``, up to the first member in ``known``; add its members to ``known``."""
    builder = _MemberRunBuilder(start, known)
    options = ScanOptions(chunk_bytes=1 << 20, large_bytes=_LARGE_BYTES, encoding=encoding)
    parts = scan(_PaddedTar(tar, size), options, start=start)
    try:
        builder.end = "damage" if not all(map(builder.add, parts)) else "cut" if builder.stop >= size else "marker"
    except TarError:
        builder.end = "damage"
    builder.drop_truncated_member(size)
    cut, name = _is_cut_at(tar, size, builder.stop) if builder.end == "damage" else (False, None)
    starts, offsets, sizes = (np.array(column, np.int64) for column in (builder.starts, builder.offsets, builder.sizes))
    return MemberRun(
        builder.names, starts, offsets, sizes, start, builder.stop, "cut" if cut else builder.end, name, builder.odd
    )


class _MemberRunBuilder:
    """Collects the members of a run."""

    def __init__(self, start: int, known: set[int]) -> None:
        self.names: list[str] = []
        self.starts: list[int] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.stop = start
        self.end: RunEnd = "damage"
        self.odd: dict[int, str] = {}
        self._known = known

    def add(self, part: Chunk | UnreadableRange) -> bool:
        """Add the next members; False when one of them is known."""
        if isinstance(part, UnreadableRange):
            return False
        starts = part.starts.tolist()
        count = next((number for number, at in enumerate(starts) if at in self._known), len(starts))
        for at in np.flatnonzero(part.offsets[:count] - part.starts[:count] > _BLOCK).tolist() if part.data else ():
            self._check_headers(part, at)
        self.names += part.names[:count]
        self.starts += starts[:count]
        self.offsets += part.offsets[:count].tolist()
        self.sizes += part.sizes[:count].tolist()
        self._known.update(starts[:count])
        self.stop = part.stop if count == len(starts) else starts[count]
        return count == len(starts)

    def _check_headers(self, part: Chunk, at: int) -> None:
        """Note a member whose extended header may be another's, as after a loss of bytes."""
        start, stop = int(part.starts[at]) - part.base, int(part.offsets[at]) - part.base
        own = _parse_header(part.data[stop - _BLOCK : stop])
        if own is None:
            return
        if not _is_short_for(own.name, part.names[at]) or _pax_headers(part.data, start, stop - _BLOCK) > 1:
            self.odd[len(self.names) + at] = own.name

    def drop_truncated_member(self, size: int) -> None:
        """Leave out a last member that lacks more than padding."""
        if self.offsets and self.offsets[-1] + self.sizes[-1] > size:
            self.stop = self.starts[-1]
            self.end = "damage"
            for column in (self.names, self.starts, self.offsets, self.sizes):
                column.pop()


def _is_short_for(short: str, name: str) -> bool:
    """Whether a header's own name may stand for a longer one: truncated, or with ``?`` for other characters."""
    return len(short) <= len(name) and all(
        one == other or one in "?\ufffd" or not one.isascii() for one, other in zip(short, name, strict=False)
    )


def _pax_headers(data: bytes, start: int, stop: int) -> int:
    """Count the PAX headers of one member."""
    count = 0
    while start < stop and (head := _parse_header(data[start : start + _BLOCK])) is not None:
        count += head.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
        start += _BLOCK + -(-head.size // _BLOCK) * _BLOCK
    return count


def _is_cut_at(tar: TarReader, size: int, stop: int) -> tuple[bool, str | None]:
    """Return whether the bytes end inside the entry at ``stop``, and the name of its member where that is legible."""
    extended = False
    while (head := _parse_header(tar.read(stop, stop + _BLOCK))) is not None:
        behind = stop + _BLOCK + -(-head.size // _BLOCK) * _BLOCK
        if head.type not in _EXTENDED:
            cut = stop + _BLOCK + head.size > size
            return cut, head.name if cut and head.isreg() and not (extended and _may_be_short(head.name)) else None
        extended, stop = True, behind
    return size < stop + _BLOCK, None


def _may_be_short(name: str) -> bool:
    """Whether the name in a header may stand for a longer one, or one with other characters."""
    return len(name.encode()) >= 100 or "?" in name or not name.isascii()


@dataclass(frozen=True, slots=True)
class IntactMember:
    """An intact member: its bytes are ``[offset, offset + size)`` of the tar."""

    name: str
    field: str
    offset: int
    size: int
    crc: int | None = None
    """Of its bytes, where it is known."""


@dataclass(frozen=True, slots=True)
class SavedSample:
    """A sample of which every member is intact."""

    key: str
    members: tuple[IntactMember, ...]


@dataclass(frozen=True, slots=True)
class Salvage:
    """The samples that can be recovered from a shard, and those that cannot."""

    saved: tuple[SavedSample, ...]
    lost: tuple[LostSample, ...]
    proof: Proof
    moved: int = 0
    """How many members were found elsewhere than the index says."""


def has_checksums(index: ShardRows) -> bool:
    """Whether the index has a checksum for every member; imported ones have not."""
    return all(extents.crc is not None for extents in index.fields.values())


@dataclass(frozen=True, slots=True)
class _IndexedMember:
    """A member as the index has it."""

    row: int
    field: str
    offset: int
    size: int
    crc: int


def salvage_by_checksums(tar: TarReader, size: int, index: ShardRows) -> Salvage:
    """Return every sample whose members are intact by their crc32, and why the others are lost."""
    members = sorted(_indexed_members(index), key=lambda each: each.offset)
    in_place = _are_intact(tar, members)
    runs = find_member_runs(tar, size, index.facts.rule.encoding)
    keys = index.key_list(0, len(index))
    named_members = _members_by_name(runs, index.facts.rule)
    intact: dict[int, list[tuple[int, IntactMember]]] = defaultdict(list)
    damaged: dict[int, _IndexedMember] = {}
    moved = 0
    for member, is_in_place in zip(members, in_place, strict=True):
        named = named_members.get((keys[member.row], member.field), [])
        found = _take_in_place(member, keys[member.row], named) if is_in_place else _find_moved(tar, member, named)
        moved += found is not None and not is_in_place
        if found is None:
            damaged.setdefault(member.row, member)
        else:
            intact[member.row].append((member.offset, found))
    saved = [
        SavedSample(key, tuple(member for _, member in sorted(intact[row], key=lambda pair: pair[0])))
        for row, key in enumerate(keys)
        if row not in damaged and row in intact
    ]
    lost = [_lost_sample(keys[row], damaged[row], size) for row in sorted(damaged)]
    return Salvage(tuple(saved), tuple(lost), "checksums", moved)


def _indexed_members(index: ShardRows) -> Iterator[_IndexedMember]:
    for name, extents in index.fields.items():
        rows = np.flatnonzero(extents.offset)
        assert extents.crc is not None  # noqa: S101 - checked by the caller
        columns = (rows.tolist(), *(column[rows].tolist() for column in (extents.offset, extents.size, extents.crc)))
        for row, offset, size, crc in zip(*columns, strict=True):
            yield _IndexedMember(row, name, offset, size, crc)


def _are_intact(tar: TarReader, members: Sequence[_IndexedMember]) -> list[bool]:
    """Return for each member, in the order of their offsets, whether its bytes are those that were indexed."""
    base, buffer, answers = 0, memoryview(b""), []
    for member in members:
        start, stop = member.offset, member.offset + member.size
        if member.size > _BUFFER_BYTES:
            answers.append(_range_crc(tar, start, member.size) == member.crc)
            continue
        if not (base <= start and stop <= base + len(buffer)):
            base, buffer = start, memoryview(tar.read(start, start + _BUFFER_BYTES))
        data = buffer[start - base : stop - base]
        answers.append(len(data) == member.size and zlib.crc32(data) == member.crc)
    return answers


def _range_crc(tar: TarReader, start: int, size: int) -> int | None:
    """Return the crc32 of a byte range; None where it is cut off."""
    crc, at, stop = 0, start, start + size
    while at < stop:
        data = tar.read(at, min(at + _BUFFER_BYTES, stop))
        if not data:
            return None
        crc, at = zlib.crc32(data, crc), at + len(data)
    return crc


_NamedMembers = dict[tuple[str, str], list[IntactMember]]


def _members_by_name(runs: Sequence[MemberRun], rule: KeyRule) -> _NamedMembers:
    """Return the members that headers name, by key and field."""
    named: _NamedMembers = defaultdict(list)
    for run in runs:
        for name, offset, size in zip(run.names, run.offsets.tolist(), run.sizes.tolist(), strict=True):
            pair = split_name(name, rule)
            if pair is not None:
                named[pair].append(IntactMember(name, pair[1], offset, size))
        for number, name in run.odd.items():
            pair = split_name(name, rule)
            if pair is not None:
                named[pair].append(IntactMember(name, pair[1], int(run.offsets[number]), int(run.sizes[number])))
    return named


def _take_in_place(member: _IndexedMember, key: str, named: Sequence[IntactMember]) -> IntactMember:
    """Return the member at its indexed place, with the name in its header where that is legible."""
    names = (each.name for each in named if (each.offset, each.size) == (member.offset, member.size))
    name = next(names, f"{key}.{member.field}")
    return IntactMember(name, member.field, member.offset, member.size, member.crc)


def _find_moved(tar: TarReader, member: _IndexedMember, named: Sequence[IntactMember]) -> IntactMember | None:
    """Return the member after a header with its name; None where its bytes are nowhere."""
    for each in named:
        if each.size == member.size and _range_crc(tar, each.offset, each.size) == member.crc:
            return replace(each, crc=member.crc)
    return None


def _lost_sample(key: str, member: _IndexedMember, size: int) -> LostSample:
    is_cut = member.offset + member.size > size
    reason = "cut off" if is_cut else "its bytes are not those that were indexed"
    return LostSample(key, f"field {member.field}: {reason}", member.offset)


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring members with one key, and why they may not be intact."""

    key: str
    members: tuple[IntactMember, ...]
    doubt: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(sorted(member.field for member in self.members))


def salvage_by_structure(tar: TarReader, size: int, rule: KeyRule, index: ShardRows | None = None) -> Salvage:
    """Return every sample whose headers are in order; an ``index`` without checksums must agree where given.

    Left out are:

    - the two samples on either side of a break: a header there may have come from elsewhere, with its name or its size;
    - of a tar that was cut, the last sample, unless the next one's header or its own fields show that it is complete;
    - samples whose key comes back, or that have a field twice: headers were exchanged, or a member is another's;
    - samples with headers inside their data that are not those of a tar in the tar, when something is broken elsewhere:
      blocks may have been exchanged;
    - runs after a break that end before the archive does and look like none of the samples before it: a tar in a tar.
    """
    runs = find_member_runs(tar, size, rule.encoding)
    outer, inner = _split_runs(runs)
    run_groups = [_doubt_near_breaks(_group_members(run, rule), run, number, rule) for number, run in enumerate(outer)]
    is_damaged = len(outer) > 1 or outer[0].end != "marker"
    if is_damaged:
        stray = _stray_headers(tar, inner, runs)
        run_groups = [_doubt_headers_inside(groups, stray) for groups in run_groups]
    run_groups = _doubt_unlike_runs(run_groups, outer)
    groups = [_doubt_repeated_fields(group) for groups in run_groups for group in groups]
    groups = _doubt_repeated_keys(groups) if rule.group == "neighbours" else _merge_spread_groups(groups, is_damaged)
    if index is not None:
        groups = _doubt_unlike_index(groups, index)
    saved = tuple(SavedSample(group.key, group.members) for group in groups if group.doubt is None)
    lost = tuple(LostSample(group.key, group.doubt, group.members[0].offset) for group in groups if group.doubt)
    return Salvage(saved, (*lost, *_lost_without_headers(groups, index)), "structure")


def _split_runs(runs: Sequence[MemberRun]) -> tuple[list[MemberRun], list[MemberRun]]:
    """Split runs into those that follow each other and those inside the data of members."""
    outer, inner = [runs[0]], list[MemberRun]()
    for run in runs[1:]:
        if run.start >= outer[-1].stop and outer[-1].end != "cut":  # else it is in the data of the member that is cut
            outer.append(run)
        else:
            inner.append(run)
    return outer, inner


def _stray_headers(tar: TarReader, inner: Sequence[MemberRun], runs: Sequence[MemberRun]) -> list[int]:
    """Return the offsets of headers inside data that are not those of a tar in the tar, which would fill its member."""
    data_starts = {int(offset) for run in runs for offset in run.offsets}
    return [
        run.start for run in inner if run.start not in data_starts or tar.read(run.stop, run.stop + _BLOCK).strip(b"\0")
    ]


def _group_members(run: MemberRun, rule: KeyRule) -> list[_Group]:
    groups: list[_Group] = []
    members = zip(run.names, run.offsets.tolist(), run.sizes.tolist(), strict=True)
    for number, (name, offset, size) in enumerate(members):
        pair = split_name(name, rule)
        if pair is None:
            continue
        if not groups or groups[-1].key != pair[0]:
            groups.append(_Group(pair[0], ()))
        doubt = groups[-1].doubt or ("its name may be another member's" if number in run.odd else None)
        groups[-1] = _Group(pair[0], (*groups[-1].members, IntactMember(name, pair[1], offset, size)), doubt)
    return groups


def _doubt_near_breaks(groups: list[_Group], run: MemberRun, number: int, rule: KeyRule) -> list[_Group]:
    """Doubt the samples next to where the run begins or ends, unless the archive does there."""
    for at in [at for at, group in enumerate(groups) if group.doubt]:  # bytes are missing inside its headers
        groups = _doubt_slice(
            groups, slice(max(0, at - _DOUBTED_NEIGHBOURS), at + _DOUBTED_NEIGHBOURS + 1), "damage stands near it"
        )
    if number:
        groups = _doubt_slice(groups, slice(0, _DOUBTED_NEIGHBOURS), "damage stands before it")
    if run.end == "damage":
        return _doubt_slice(groups, slice(max(0, len(groups) - _DOUBTED_NEIGHBOURS), None), "damage stands behind it")
    if run.end == "cut" and groups and not _is_last_complete(groups, run, rule):
        return _doubt_slice(groups, slice(-1, None), "the archive is cut off here")
    return groups


def _is_last_complete(groups: list[_Group], run: MemberRun, rule: KeyRule) -> bool:
    """Whether the last sample before a cut seems to have all of its members."""
    if run.next_name is not None:
        following = split_name(run.next_name, rule)
        return following is not None and following[0] != groups[-1].key
    return groups[-1].fields in {group.fields for group in groups[:-1]}


def _doubt_slice(groups: list[_Group], part: slice, why: str) -> list[_Group]:
    chosen = set(range(len(groups))[part])
    return [replace(group, doubt=group.doubt or why) if at in chosen else group for at, group in enumerate(groups)]


def _doubt_headers_inside(groups: list[_Group], inner: Iterable[int]) -> list[_Group]:
    places = np.sort(np.fromiter(inner, np.int64))
    return [
        replace(group, doubt=group.doubt or "its data holds a header of another member")
        if any(
            np.searchsorted(places, member.offset) < np.searchsorted(places, member.offset + member.size)
            for member in group.members
        )
        else group
        for group in groups
    ]


def _doubt_unlike_runs(run_groups: list[list[_Group]], runs: Sequence[MemberRun]) -> list[list[_Group]]:
    """Doubt runs behind a break that do not reach the archive's end and look like no sample that must be real."""
    real = {
        group.fields
        for number, (groups, run) in enumerate(zip(run_groups, runs, strict=True))
        if number == 0 or run.end != "damage"
        for group in groups
    }
    return [
        groups
        if number == 0 or run.end != "damage"
        else [
            group
            if group.fields in real
            else replace(group, doubt=group.doubt or "it looks like no other sample, and may be a part of one")
            for group in groups
        ]
        for number, (groups, run) in enumerate(zip(run_groups, runs, strict=True))
    ]


def _doubt_repeated_fields(group: _Group) -> _Group:
    if len(set(group.fields)) == len(group.fields):
        return group
    return replace(group, doubt=group.doubt or "it has the same field twice")


def _doubt_repeated_keys(groups: list[_Group]) -> list[_Group]:
    often = {key for key, count in Counter(group.key for group in groups).items() if count > 1}
    return [
        replace(group, doubt=group.doubt or "its key comes back after other keys") if group.key in often else group
        for group in groups
    ]


def _merge_spread_groups(groups: list[_Group], is_damaged: bool) -> list[_Group]:
    """Merge members over the whole archive: after damage, any sample may have lost one."""
    merged: dict[str, _Group] = {}
    for group in groups:
        before = merged.get(group.key)
        members = group.members if before is None else (*before.members, *group.members)
        doubt = "a member of it may be lost: its members are spread over the archive" if is_damaged else None
        merged[group.key] = _doubt_repeated_fields(_Group(group.key, members, doubt))
    return list(merged.values())


def _doubt_unlike_index(groups: list[_Group], index: ShardRows) -> list[_Group]:
    """Doubt samples whose keys, fields, offsets or sizes are not those of the index."""
    known = {
        (key, frozenset((member.field, member.offset, member.size) for member in members_of(index, row)))
        for row, key in enumerate(index.key_list(0, len(index)))
    }
    return [
        group
        if (group.key, frozenset((member.field, member.offset, member.size) for member in group.members)) in known
        else replace(group, doubt=group.doubt or "the index knows it otherwise")
        for group in groups
    ]


def _lost_without_headers(groups: list[_Group], index: ShardRows | None) -> tuple[LostSample, ...]:
    if index is None:
        return ()
    present = {group.key for group in groups}
    return tuple(
        LostSample(key, "its headers are gone", members_of(index, row)[0].offset)
        for row, key in enumerate(index.key_list(0, len(index)))
        if key not in present
    )
