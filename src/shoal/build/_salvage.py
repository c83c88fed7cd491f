"""Recover the intact samples of a damaged tar.

A run begins at the archive's start, or at any block, aligned or not, whose checksum says that it is a header: bytes may
have been lost or put in between. It goes on for as long as each member is followed by a sound header.
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
import numpy.typing as npt

from shoal.errors import MissingExtraError, ShoalError, TarError
from shoal.shard import (
    Blocks,
    Chunk,
    KeyRule,
    ScanOptions,
    ShardIndex,
    UnreadableRange,
    decompressed,
    members_of,
    reader_stream,
    scan,
    sniff,
    split_name,
)
from shoal.store import ObjectReader

from ._findings import LostSample

__all__ = [
    "Piece",
    "Salvage",
    "SavedSample",
    "TarReader",
    "Unpacked",
    "first_chain",
    "has_checksums",
    "salvage_by_checksums",
    "salvage_by_structure",
    "unpacked",
]

Int64 = npt.NDArray[np.int64]
ChainEnd = Literal["marker", "cut", "damage"]
Proof = Literal["checksums", "structure"]
"""What says that a saved sample is right: the checksum of each member, or only that its headers are in order."""


# ------------------------------------------------------------------------------------ find the members of a damaged tar


BLOCK = 512
_WINDOW = 4 << 20
_MAGIC = re.compile(rb"ustar[\0 ]")
_MAGIC_AT = 257
_LARGE = 8 << 20


class TarReader(Protocol):
    """A tar's bytes by position; fewer than asked for only where it ends."""

    def read(self, start: int, stop: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class MemberRun:
    """Members that follow each other without a break."""

    names: list[str]
    starts: Int64
    """Where each member's first header stands."""
    offsets: Int64
    sizes: Int64
    start: int
    stop: int
    """Where the next header was expected."""
    end: ChainEnd
    """How it ended: at an end marker with only zeros behind it, at the end of the bytes, or at damage."""
    next_name: str | None = None
    """The name in the header at ``stop``, where that is one and only its data is cut off."""
    odd: dict[int, str] = field(default_factory=dict)
    """Members whose PAX or GNU header may be that of another: their number, and the name in their own header."""

    def __len__(self) -> int:
        return len(self.names)


class _Padded:
    """The bytes with zeros behind them: a member whose padding alone is cut off is still whole."""

    def __init__(self, tar: TarReader, size: int) -> None:
        self._tar = tar
        self._stop = size
        self.size: int | None = size + BLOCK

    def at(self, position: int, length: int) -> bytes:
        data = self._tar.read(position, min(position + length, self._stop)) if position < self._stop else b""
        stop = min(position + length, self._stop + BLOCK)
        return data + bytes(max(0, stop - max(position, self._stop)))


def first_chain(tar: TarReader, size: int, encoding: str) -> MemberRun:
    """The run of members at the archive's start."""
    return _follow(tar, size, 0, encoding, set())


def find_chains(tar: TarReader, size: int, encoding: str) -> list[MemberRun]:
    """Every run of members, in the order of their starts. Runs inside a member's data (a tar in a tar) are among them.

    Each member is in one run only: a run that comes to a member of an earlier one ends there.
    """
    known: set[int] = set()
    chains = [_follow(tar, size, 0, encoding, known)]
    own = _own_headers(chains[0])
    for position in _candidates(tar, size):
        if position not in known and position not in own:
            chain = _follow(tar, size, position, encoding, known)
            own |= _own_headers(chain)
            if len(chain):
                chains.append(chain)
    return chains


def _own_headers(chain: MemberRun) -> set[int]:
    """Where the headers of members stand that have PAX or GNU headers before them."""
    return set((chain.offsets[chain.offsets - chain.starts > BLOCK] - BLOCK).tolist())


def _candidates(tar: TarReader, size: int) -> Iterator[int]:
    """Every position at which a sound header stands."""
    for base in range(0, size, _WINDOW):
        data = tar.read(base, min(base + _WINDOW + BLOCK, size))
        for found in _MAGIC.finditer(data):
            at = found.start() - _MAGIC_AT
            if 0 <= at < _WINDOW and _header(data[at : at + BLOCK]) is not None:
                yield base + at


def _header(block: bytes) -> tarfile.TarInfo | None:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError:
        return None


def _follow(tar: TarReader, size: int, start: int, encoding: str, known: set[int]) -> MemberRun:
    """The run that begins at ``start`` and ends, at the latest, at a member of ``known``; its own are added there."""
    run = _Run(start, known)
    options = ScanOptions(chunk_bytes=1 << 20, large_bytes=_LARGE, encoding=encoding)
    parts = scan(_Padded(tar, size), options, start=start, on_no_marker=lambda text: None)
    try:
        run.end = "damage" if not all(map(run.take, parts)) else "cut" if run.stop >= size else "marker"
    except TarError:
        run.end = "damage"
    run.drop_cut(size)
    cut, name = _cut_there(tar, size, run.stop) if run.end == "damage" else (False, None)
    starts, offsets, sizes = (np.array(column, np.int64) for column in (run.starts, run.offsets, run.sizes))
    return MemberRun(run.names, starts, offsets, sizes, start, run.stop, "cut" if cut else run.end, name, run.odd)


class _Run:
    """A chain in the making."""

    def __init__(self, start: int, known: set[int]) -> None:
        self.names: list[str] = []
        self.starts: list[int] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.stop = start
        self.end: ChainEnd = "damage"
        self.odd: dict[int, str] = {}
        self._known = known

    def take(self, part: Chunk | UnreadableRange) -> bool:
        """Add the next members; False when one of them is known already."""
        if isinstance(part, UnreadableRange):
            return False
        starts = part.starts.tolist()
        met = next((number for number, at in enumerate(starts) if at in self._known), len(starts))
        for at in np.flatnonzero(part.offsets[:met] - part.starts[:met] > BLOCK).tolist() if part.data else ():
            self._look_at_headers(part, at)
        self.names += part.names[:met]
        self.starts += starts[:met]
        self.offsets += part.offsets[:met].tolist()
        self.sizes += part.sizes[:met].tolist()
        self._known.update(starts[:met])
        self.stop = part.stop if met == len(starts) else starts[met]
        return met == len(starts)

    def _look_at_headers(self, part: Chunk, at: int) -> None:
        """Whether what stands before a member's own header belongs to it: after a loss of bytes it may be another's."""
        start, stop = int(part.starts[at]) - part.base, int(part.offsets[at]) - part.base
        own = _header(part.data[stop - BLOCK : stop])
        if own is None:
            return
        if not _is_short_for(own.name, part.names[at]) or _pax_headers(part.data, start, stop - BLOCK) > 1:
            self.odd[len(self.names) + at] = own.name

    def drop_cut(self, size: int) -> None:
        """Leave out a last member of which more than the padding was made up."""
        if self.offsets and self.offsets[-1] + self.sizes[-1] > size:
            self.stop = self.starts[-1]
            self.end = "damage"
            for column in (self.names, self.starts, self.offsets, self.sizes):
                column.pop()


def _is_short_for(short: str, name: str) -> bool:
    """Whether a header's own name may be what was left of a longer one: cut, or with marks for other letters."""
    return len(short) <= len(name) and all(
        one == other or one in "?\ufffd" or not one.isascii() for one, other in zip(short, name, strict=False)
    )


def _pax_headers(data: bytes, start: int, stop: int) -> int:
    """How many PAX headers speak of one member."""
    count = 0
    while start < stop and (head := _header(data[start : start + BLOCK])) is not None:
        count += head.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
        start += BLOCK + -(-head.size // BLOCK) * BLOCK
    return count


_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def _cut_there(tar: TarReader, size: int, stop: int) -> tuple[bool, str | None]:
    """Whether the bytes end in the entry at ``stop``, and the name of its member where that can be read."""
    extended = False
    while (head := _header(tar.read(stop, stop + BLOCK))) is not None:
        behind = stop + BLOCK + -(-head.size // BLOCK) * BLOCK
        if head.type not in _EXTENDED:
            cut = stop + BLOCK + head.size > size
            return cut, head.name if cut and head.isreg() and not (extended and _may_be_short(head.name)) else None
        extended, stop = True, behind
    return size < stop + BLOCK, None


def _may_be_short(name: str) -> bool:
    """Whether the name in a header may stand for a longer one, or one with other letters."""
    return len(name.encode()) >= 100 or "?" in name or not name.isascii()


# ------------------------------------------------ which samples of a damaged shard are whole, and where their bytes are


# With an index that has checksums nothing is guessed: a member is whole when the bytes at its place, or behind a header
# that bears its name, have its size and crc32. Without checksums a tar does not say whether data is right. Then only
# the headers speak: samples whose headers are sound and follow each other are taken, and those next to damage are left.

_BUFFER = 4 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """One member that is whole: its bytes are ``[offset, offset + size)`` of the tar."""

    name: str
    field: str
    offset: int
    size: int
    crc: int | None = None
    """Of its bytes, where it is known."""


@dataclass(frozen=True, slots=True)
class SavedSample:
    """A sample of which every member is whole."""

    key: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Salvage:
    """What can be had of one shard."""

    saved: tuple[SavedSample, ...]
    lost: tuple[LostSample, ...]
    proof: Proof
    moved: int = 0
    """How many members were found elsewhere than the index says."""


def has_checksums(index: ShardIndex) -> bool:
    """Whether the index has a checksum for every member; imported ones have not."""
    return all(extents.crc is not None for extents in index.fields.values())


@dataclass(frozen=True, slots=True)
class _Expected:
    """A member as the index has it."""

    row: int
    field: str
    offset: int
    size: int
    crc: int


def salvage_by_checksums(tar: TarReader, size: int, index: ShardIndex) -> Salvage:
    """Every sample whose members' bytes are whole by their crc32, and for the others why they are not."""
    members = sorted(_expected(index), key=lambda each: each.offset)
    whole = _whole_at_their_place(tar, members)
    chains = find_chains(tar, size, index.facts.rule.encoding)
    keys = index.key_list(0, len(index))
    places = _named_places(chains, index.facts.rule)
    pieces: dict[int, list[tuple[int, Piece]]] = defaultdict(list)
    bad: dict[int, _Expected] = {}
    moved = 0
    for member, is_whole in zip(members, whole, strict=True):
        named = places.get((keys[member.row], member.field), [])
        found = _at_its_place(member, keys[member.row], named) if is_whole else _elsewhere(tar, member, named)
        moved += found is not None and not is_whole
        if found is None:
            bad.setdefault(member.row, member)
        else:
            pieces[member.row].append((member.offset, found))
    saved = [
        SavedSample(key, tuple(piece for _, piece in sorted(pieces[row], key=lambda pair: pair[0])))
        for row, key in enumerate(keys)
        if row not in bad and row in pieces
    ]
    lost = [_lost(keys[row], bad[row], size) for row in sorted(bad)]
    return Salvage(tuple(saved), tuple(lost), "checksums", moved)


def _expected(index: ShardIndex) -> Iterator[_Expected]:
    for name, extents in index.fields.items():
        rows = np.flatnonzero(extents.offset)
        assert extents.crc is not None  # noqa: S101 - asked before
        columns = (rows.tolist(), *(column[rows].tolist() for column in (extents.offset, extents.size, extents.crc)))
        for row, offset, size, crc in zip(*columns, strict=True):
            yield _Expected(row, name, offset, size, crc)


def _whole_at_their_place(tar: TarReader, members: Sequence[_Expected]) -> list[bool]:
    """Whether each member, in the order of their offsets, has the bytes that were indexed; read in large parts."""
    base, held, answers = 0, memoryview(b""), []
    for member in members:
        start, stop = member.offset, member.offset + member.size
        if member.size > _BUFFER:
            answers.append(_crc_of(tar, start, member.size) == member.crc)
            continue
        if not (base <= start and stop <= base + len(held)):
            base, held = start, memoryview(tar.read(start, start + _BUFFER))
        data = held[start - base : stop - base]
        answers.append(len(data) == member.size and zlib.crc32(data) == member.crc)
    return answers


def _crc_of(tar: TarReader, start: int, size: int) -> int | None:
    """The crc32 of a part of the tar; None where it is cut off."""
    crc, at, stop = 0, start, start + size
    while at < stop:
        data = tar.read(at, min(at + _BUFFER, stop))
        if not data:
            return None
        crc, at = zlib.crc32(data, crc), at + len(data)
    return crc


_Places = dict[tuple[str, str], list[Piece]]


def _named_places(chains: Sequence[MemberRun], rule: KeyRule) -> _Places:
    """Where members stand by what their headers say."""
    places: _Places = defaultdict(list)
    for chain in chains:
        for name, offset, size in zip(chain.names, chain.offsets.tolist(), chain.sizes.tolist(), strict=True):
            pair = split_name(name, rule)
            if pair is not None:
                places[pair].append(Piece(name, pair[1], offset, size))
        for number, name in chain.odd.items():
            pair = split_name(name, rule)
            if pair is not None:
                places[pair].append(Piece(name, pair[1], int(chain.offsets[number]), int(chain.sizes[number])))
    return places


def _at_its_place(member: _Expected, key: str, named: Sequence[Piece]) -> Piece:
    """The member where the index has it, by its own name where its header can still be read."""
    places = (piece.name for piece in named if (piece.offset, piece.size) == (member.offset, member.size))
    name = next(places, f"{key}.{member.field}")
    return Piece(name, member.field, member.offset, member.size, member.crc)


def _elsewhere(tar: TarReader, member: _Expected, named: Sequence[Piece]) -> Piece | None:
    """The member behind a header of its name; None when its bytes are nowhere to be found."""
    for piece in named:
        if piece.size == member.size and _crc_of(tar, piece.offset, piece.size) == member.crc:
            return replace(piece, crc=member.crc)
    return None


def _lost(key: str, member: _Expected, size: int) -> LostSample:
    cut = member.offset + member.size > size
    reason = "cut off" if cut else "its bytes are not those that were indexed"
    return LostSample(key, f"field {member.field}: {reason}", member.offset)


# --------------------------------------------------------------------------- samples of a damaged tar without checksums


# What is left out, and why:
#
# - the two samples on either side of a break: a header there may have come from elsewhere, with its name or its size;
# - of a tar that was cut, the last sample, unless the next one's header or its own fields show that it was complete;
# - samples whose key comes back, or that have a field twice: headers were exchanged, or a member is another's;
# - samples with headers inside their data that are not those of a tar in the tar, when something is broken elsewhere:
#   blocks may have been exchanged;
# - runs behind a break that end before the archive does and look like none of the samples before it: a tar in a tar.

_NEAR = 2
"""How many samples on either side of damage are not taken."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring members with one key."""

    key: str
    pieces: tuple[Piece, ...]
    doubt: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(sorted(piece.field for piece in self.pieces))


def salvage_by_structure(tar: TarReader, size: int, rule: KeyRule, index: ShardIndex | None = None) -> Salvage:
    """Every sample that the headers show to be in order; ``index``, which has no checksums, must agree where given."""
    chains = find_chains(tar, size, rule.encoding)
    outer, inner = _outer_and_inner(chains)
    runs = [_near_breaks(_groups(chain, rule), chain, number, rule) for number, chain in enumerate(outer)]
    damaged = len(outer) > 1 or outer[0].end != "marker"
    if damaged:
        strange = _strange(tar, inner, chains)
        runs = [_with_headers_inside(groups, strange) for groups in runs]
    runs = _without_strangers(runs, outer)
    groups = [_complete(group) for groups in runs for group in groups]
    groups = _once_each(groups) if rule.group == "neighbours" else _only_whole_archives(groups, damaged)
    if index is not None:
        groups = _as_indexed(groups, index)
    saved = tuple(SavedSample(group.key, group.pieces) for group in groups if group.doubt is None)
    lost = tuple(LostSample(group.key, group.doubt, group.pieces[0].offset) for group in groups if group.doubt)
    return Salvage(saved, (*lost, *_never_met(groups, index)), "structure")


def _outer_and_inner(chains: Sequence[MemberRun]) -> tuple[list[MemberRun], list[MemberRun]]:
    """The runs that follow each other, and those inside the data of their members."""
    outer, inner = [chains[0]], list[MemberRun]()
    for chain in chains[1:]:
        if chain.start >= outer[-1].stop and outer[-1].end != "cut":  # else it is in the data of the member that is cut
            outer.append(chain)
        else:
            inner.append(chain)
    return outer, inner


def _strange(tar: TarReader, inner: Sequence[MemberRun], chains: Sequence[MemberRun]) -> list[int]:
    """Where headers stand in data that are not those of a tar in the tar: one fills its member, and has an end."""
    data_starts = {int(offset) for chain in chains for offset in chain.offsets}
    return [
        chain.start
        for chain in inner
        if chain.start not in data_starts or tar.read(chain.stop, chain.stop + BLOCK).strip(b"\0")
    ]


def _groups(chain: MemberRun, rule: KeyRule) -> list[_Group]:
    groups: list[_Group] = []
    members = zip(chain.names, chain.offsets.tolist(), chain.sizes.tolist(), strict=True)
    for number, (name, offset, size) in enumerate(members):
        pair = split_name(name, rule)
        if pair is None:
            continue
        if not groups or groups[-1].key != pair[0]:
            groups.append(_Group(pair[0], ()))
        doubt = groups[-1].doubt or ("its name may be another member's" if number in chain.odd else None)
        groups[-1] = _Group(pair[0], (*groups[-1].pieces, Piece(name, pair[1], offset, size)), doubt)
    return groups


def _near_breaks(groups: list[_Group], chain: MemberRun, number: int, rule: KeyRule) -> list[_Group]:
    """Doubt what stands next to where the run began or ended, unless that is where the archive does."""
    for at in [at for at, group in enumerate(groups) if group.doubt]:  # bytes are missing inside its headers
        groups = _doubted(groups, slice(max(0, at - _NEAR), at + _NEAR + 1), "damage stands near it")
    if number:
        groups = _doubted(groups, slice(0, _NEAR), "damage stands before it")
    if chain.end == "damage":
        return _doubted(groups, slice(max(0, len(groups) - _NEAR), None), "damage stands behind it")
    if chain.end == "cut" and groups and not _was_complete(groups, chain, rule):
        return _doubted(groups, slice(-1, None), "the archive is cut off here")
    return groups


def _was_complete(groups: list[_Group], chain: MemberRun, rule: KeyRule) -> bool:
    """Whether the last sample before a cut has all of its members, as far as one can see."""
    if chain.next_name is not None:
        following = split_name(chain.next_name, rule)
        return following is not None and following[0] != groups[-1].key
    return groups[-1].fields in {group.fields for group in groups[:-1]}


def _doubted(groups: list[_Group], part: slice, why: str) -> list[_Group]:
    chosen = set(range(len(groups))[part])
    return [replace(group, doubt=group.doubt or why) if at in chosen else group for at, group in enumerate(groups)]


def _with_headers_inside(groups: list[_Group], inner: Iterable[int]) -> list[_Group]:
    places = np.sort(np.fromiter(inner, np.int64))
    return [
        replace(group, doubt=group.doubt or "its data holds a header of another member")
        if any(
            np.searchsorted(places, piece.offset) < np.searchsorted(places, piece.offset + piece.size)
            for piece in group.pieces
        )
        else group
        for group in groups
    ]


def _without_strangers(runs: list[list[_Group]], chains: Sequence[MemberRun]) -> list[list[_Group]]:
    """Doubt runs behind a break that do not reach the archive's end and look like no sample that must be real."""
    real = {
        group.fields
        for number, (groups, chain) in enumerate(zip(runs, chains, strict=True))
        if number == 0 or chain.end != "damage"
        for group in groups
    }
    return [
        groups
        if number == 0 or chain.end != "damage"
        else [
            group
            if group.fields in real
            else replace(group, doubt=group.doubt or "it looks like no other sample, and may be a part of one")
            for group in groups
        ]
        for number, (groups, chain) in enumerate(zip(runs, chains, strict=True))
    ]


def _complete(group: _Group) -> _Group:
    if len(set(group.fields)) == len(group.fields):
        return group
    return replace(group, doubt=group.doubt or "it has the same field twice")


def _once_each(groups: list[_Group]) -> list[_Group]:
    often = {key for key, count in Counter(group.key for group in groups).items() if count > 1}
    return [
        replace(group, doubt=group.doubt or "its key comes back after other keys") if group.key in often else group
        for group in groups
    ]


def _only_whole_archives(groups: list[_Group], damaged: bool) -> list[_Group]:
    """Samples gathered over the whole archive: after damage any of them may have lost a member."""
    merged: dict[str, _Group] = {}
    for group in groups:
        before = merged.get(group.key)
        pieces = group.pieces if before is None else (*before.pieces, *group.pieces)
        doubt = "a member of it may be lost: its members are spread over the archive" if damaged else None
        merged[group.key] = _complete(_Group(group.key, pieces, doubt))
    return list(merged.values())


def _as_indexed(groups: list[_Group], index: ShardIndex) -> list[_Group]:
    """Doubt what the index does not know just so: names, places and sizes."""
    known = {
        (key, frozenset((member.field, member.offset, member.size) for member in members_of(index, row)))
        for row, key in enumerate(index.key_list(0, len(index)))
    }
    return [
        group
        if (group.key, frozenset((piece.field, piece.offset, piece.size) for piece in group.pieces)) in known
        else replace(group, doubt=group.doubt or "the index knows it otherwise")
        for group in groups
    ]


def _never_met(groups: list[_Group], index: ShardIndex | None) -> tuple[LostSample, ...]:
    if index is None:
        return ()
    met = {group.key for group in groups}
    return tuple(
        LostSample(key, "its headers are gone", members_of(index, row)[0].offset)
        for row, key in enumerate(index.key_list(0, len(index)))
        if key not in met
    )


# -------------------------------------------------------------------------- the tar in a shard, as far as it can be had


_PART = 1 << 20
_STEP = 4096
"""What is inflated at a time: of a damaged block, all up to the damage comes out."""
_GZIP_HEAD = 10  # of a shard that shoal wrote: no name, no time


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A tar by position."""

    tar: TarReader
    size: int
    compression: str | None = None
    broken: bool = False
    """Whether the compressed stream could not be read to its end."""


@contextmanager
def unpacked(reader: ObjectReader, index: ShardIndex | None) -> Iterator[Unpacked]:
    """The tar of an open shard: the object itself, or a temporary file of what its stream gives.

    Where the index knows blocks that can be read alone, damage costs no other block: each stands at its place, and
    zeros stand where one is lost. Raises MissingExtraError when the shard is zstd and the extra is not installed.
    """
    compression: str | None = sniff(reader.read(0, BLOCK))
    if compression is None and index is not None:
        compression = index.facts.compression  # the very first bytes may be damaged
    if compression is None:
        yield Unpacked(reader, reader.info.size)
        return
    with tempfile.TemporaryFile() as file:
        blocks = None if index is None else index.blocks
        broken = _stream(reader, compression, file)
        if broken and blocks is not None and blocks.stored is not None:
            file.truncate(0)
            _each_block(reader, compression, blocks, file)
        yield Unpacked(_FileTar(file), file.seek(0, io.SEEK_END), compression, broken)


class _FileTar:
    """A file read by position, from several threads or one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        with self._lock:
            self._file.seek(start)
            return self._file.read(max(0, stop - start))


def _stream(reader: ObjectReader, compression: str, file: IO[bytes]) -> bool:
    """Write all that comes out in order; True when it breaks off."""
    stream = decompressed(reader_stream(reader), compression)
    try:
        while data := stream.read(_PART):
            file.write(data)
    except MissingExtraError:
        raise
    except TarError:
        return True
    return False


def _each_block(reader: ObjectReader, compression: str, blocks: Blocks, file: IO[bytes]) -> None:
    assert blocks.stored is not None  # noqa: S101 - asked before
    for number in range(len(blocks)):
        start, stop = (int(at) for at in blocks.stored[number : number + 2])
        offset, end = (int(at) for at in blocks.offsets[number : number + 2])
        stored = reader.read(start, stop)
        data = _inflated(stored, number == 0) if compression == "gzip" else _frame(stored, compression)
        file.seek(offset)
        file.write(data[: end - offset].ljust(end - offset, b"\0"))


def _inflated(stored: bytes, first: bool) -> bytes:
    """What comes out of one block of deflated data, up to where it is damaged."""
    stream, out = zlib.decompressobj(-zlib.MAX_WBITS), []
    stored = stored[_GZIP_HEAD:] if first else stored
    for at in range(0, len(stored), _STEP):
        try:
            out.append(stream.decompress(stored[at : at + _STEP]))
        except zlib.error:
            break
    return b"".join(out)


def _frame(stored: bytes, compression: str) -> bytes:
    stream, out = decompressed(io.BytesIO(stored), compression), []
    try:
        while data := stream.read(_PART):
            out.append(data)
    except ShoalError:
        pass
    return b"".join(out)
