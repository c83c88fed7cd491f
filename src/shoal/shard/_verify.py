"""Verify shards and datasets: report everything that differs between tars, indexes and the manifest.

A shard is read once, in order, in bounded memory. Damage does not stop the scan: it continues at the next sound header.
What was found is then compared with the index, member by member and block by block.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import (
    CodecError,
    MissingExtraError,
    ObjectNotFoundError,
    ShardIndexError,
    ShoalError,
    StoreError,
    TarError,
    TruncatedError,
)
from shoal.store._base import ObjectReader
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._byte_reader import CompressedBytes
from ._compression import decompressed, reader_stream, sniff
from ._discovery import ShardList, locate_shards, tars_below
from ._index import load_index
from ._index_build import MemberColumns, join_members, join_samples, member_columns
from ._manifest import Manifest, ShardRecord
from ._member_names import OF_THE_SHARD, WEBDATASET_RULE, Grouped, Grouper, KeyRule
from ._open_shards import find_index
from ._segment_table import SegmentTable
from ._shard import Decoders
from ._shard_rows import Blocks, LongExtents, ShardRows
from ._table import ShardRef
from ._tar_header import BLOCK
from ._tar_scan import Chunk, Feed, ReaderFeed, ScanOptions, StreamFeed, UnreadableRange, scan

__all__ = ["Problem", "ShardReport", "VerifyOptions", "verify_dataset", "verify_shard", "with_hashes"]

ProblemKind = Literal[
    "shard",  # it is not there, or cannot be opened
    "index",  # its index is missing, stale or no index
    "header",  # a part of the tar cannot be read as members
    "data",  # a member has other bytes than were indexed
    "size",  # or another size
    "name",  # or another name
    "missing",  # a member, or a whole sample, is indexed and not there
    "extra",  # a member is there and not indexed
    "duplicate",  # a sample has the same field twice
    "filler",  # bytes between members changed
    "decode",  # a field is not what its extension says
    "manifest",  # the manifest says otherwise
    "hash",  # the whole shard has another sha256
    "note",  # worth knowing, and no damage
]
PathLike = str | os.PathLike[str]
_PART_BYTES = 1 << 20
_LARGE_BYTES = 64 << 20
_UNKNOWN_END = 1 << 62


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a shard, and where. ``offset`` counts in the tar, unpacked where it is compressed.

    Examples:
        >>> print(Problem("data", "the bytes changed", "a.tar", key="0001", field="jpg", offset=512))
        the bytes changed (shard a.tar, key 0001, field jpg, byte 512)
    """

    kind: ProblemKind
    problem: str
    shard: str
    expected: str | None = None
    found: str | None = None
    key: str | None = None
    field: str | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = {"shard": self.shard, "key": self.key, "field": self.field}
        return str(ShoalError(self.problem, expected=self.expected, found=self.found, offset=self.offset, **where))


@dataclass(frozen=True, slots=True)
class Members:
    """Members in the archive's order, with the names of their rows and fields."""

    keys: Sequence[str]
    fields: Sequence[str]
    columns: MemberColumns
    checked: bool = True
    """Whether the checksums are known."""

    def __len__(self) -> int:
        return len(self.columns.rows)

    def name(self, at: int) -> tuple[str, str]:
        """The key and field of one member."""
        return self.keys[int(self.columns.rows[at])], self.fields[int(self.columns.fields[at])]


def indexed_members(index: ShardRows) -> Members:
    """The members that an index knows, in the archive's order."""
    return Members(index.key_list(0, len(index)), list(index.fields), member_columns(index), has_checksums(index))


def has_checksums(index: ShardRows) -> bool:
    """Whether an index has a checksum for every member; imported ones have not."""
    if isinstance(index.fields, LongExtents):
        return index.fields.crc is not None
    return all(extents.crc is not None for extents in index.fields.values())


def compare(url: str, expected: Members, found: Members, gaps: Sequence[UnreadableRange]) -> tuple[list[Problem], int]:
    """What differs, and how many members are where the index says, under the name it says."""
    at = np.searchsorted(expected.columns.offsets, found.columns.offsets)
    met = np.append(expected.columns.offsets, -1)[at] == found.columns.offsets
    lost = np.ones(len(expected), bool)
    lost[at[met]] = False
    ours, theirs = at[met], np.flatnonzero(met)
    renamed = _renamed(expected, found, ours, theirs)
    problems = [
        *_differing(url, expected, found, ours, theirs, renamed),
        *_extra(url, expected, found, np.flatnonzero(~met), lost),
        *_gap_problems(url, expected, gaps, lost),
        *_lost(url, expected, lost),
    ]
    return problems, int(len(renamed) - renamed.sum())


def _differing(
    url: str, expected: Members, found: Members, ours: IntArray, theirs: IntArray, renamed: npt.NDArray[np.bool_]
) -> Iterator[Problem]:
    """Members ``ours`` of the index and ``theirs`` of the tar, which start at the same bytes, pair by pair."""
    resized = expected.columns.sizes[ours] != found.columns.sizes[theirs]
    changed = (expected.columns.crcs[ours] != found.columns.crcs[theirs]) & expected.checked
    for at in np.flatnonzero(renamed | resized | changed).tolist():
        mine, other = int(ours[at]), int(theirs[at])
        if renamed[at]:
            names = (".".join(members.name(place)) for members, place in ((expected, mine), (found, other)))
            yield _difference("name", "the shard has another member there", url, expected, mine, *names)
        elif resized[at]:
            sizes = f"{expected.columns.sizes[mine]} bytes", str(found.columns.sizes[other])
            yield _difference("size", "a member has another size than indexed", url, expected, mine, *sizes)
        else:
            crcs = f"crc32 {expected.columns.crcs[mine]:08x}", f"{found.columns.crcs[other]:08x}"
            yield _difference("data", "a member's bytes changed after they were written", url, expected, mine, *crcs)


def _renamed(expected: Members, found: Members, ours: IntArray, theirs: IntArray) -> npt.NDArray[np.bool_]:
    codes = {name: code for code, name in enumerate(expected.fields)}
    field_codes = np.array([codes.get(name, -1) for name in found.fields], np.int64)
    other_field = expected.columns.fields[ours] != field_codes[found.columns.fields[theirs]]
    rows = zip(expected.columns.rows[ours].tolist(), found.columns.rows[theirs].tolist(), strict=True)
    other_key = np.array([expected.keys[mine] != found.keys[other] for mine, other in rows], bool)
    renamed: npt.NDArray[np.bool_] = np.logical_or(other_field, other_key)
    return renamed


def _difference(kind: ProblemKind, problem: str, url: str, members: Members, at: int, said: str, found: str) -> Problem:
    key, field = members.name(at)
    return Problem(kind, problem, url, said, found, key, field, int(members.columns.offsets[at]))


def _extra(
    url: str, expected: Members, found: Members, extra: IntArray, lost: npt.NDArray[np.bool_]
) -> Iterator[Problem]:
    """Members that are not indexed, but for those inside a lost member: a tar in a tar, entered through its damage."""
    starts = expected.columns.offsets[lost]
    stops = starts + expected.columns.sizes[lost]
    for at in extra.tolist():
        offset = int(found.columns.offsets[at])
        if ((starts <= offset) & (offset < stops)).any():
            continue
        key, field = found.name(at)
        yield Problem("extra", "the shard has a member that is not indexed", url, key=key, field=field, offset=offset)


def _gap_problems(
    url: str, expected: Members, gaps: Iterable[UnreadableRange], lost: npt.NDArray[np.bool_]
) -> Iterator[Problem]:
    """Each damaged place, with the member that is lost by it; that one is then not told again."""
    for gap in gaps:
        at = int(np.searchsorted(expected.columns.offsets, gap.start, "right"))
        hit = at < len(expected) and lost[at] and expected.columns.offsets[at] <= gap.stop
        key, field = expected.name(at) if hit else (gap.error.key, gap.error.field)
        if hit:
            lost[at] = False
        said, met = gap.error.expected, gap.error.found
        yield Problem(
            "header",
            gap.error.problem,
            url,
            expected=None if said is None else str(said),
            found=None if met is None else str(met),
            key=key,
            field=field,
            offset=gap.start if gap.error.offset is None else gap.error.offset,
        )


def _lost(url: str, expected: Members, lost: npt.NDArray[np.bool_]) -> Iterator[Problem]:
    """Members that are not there: told sample by sample where all of one is lost."""
    rows = expected.columns.rows
    left, whole = np.bincount(rows[lost], minlength=1), np.bincount(rows, minlength=1)
    told: set[int] = set()
    for at in np.flatnonzero(lost).tolist():
        row, (key, field), offset = int(rows[at]), expected.name(at), int(expected.columns.offsets[at])
        if left[row] < whole[row]:
            yield Problem("missing", "a member is not in the shard", url, key=key, field=field, offset=offset)
        elif row not in told:
            told.add(row)
            yield Problem("missing", "a sample is not in the shard", url, key=key, offset=offset)


def duplicates(url: str, found: Members) -> list[Problem]:
    """Every field that a sample has once too often."""
    slots = found.columns.rows * max(len(found.fields), 1) + found.columns.fields
    order = np.argsort(slots, kind="stable")
    again = np.sort(order[1:][np.diff(slots[order]) == 0])
    return [_duplicate(url, found, at) for at in again.tolist()]


def _duplicate(url: str, found: Members, at: int) -> Problem:
    key, field = found.name(at)
    offset = int(found.columns.offsets[at])
    return Problem("duplicate", "a sample has the same field twice", url, key=key, field=field, offset=offset)


class BlockCheck:
    """Compares each block's checksum as the archive's bytes go by: headers and padding have no other."""

    def __init__(self, blocks: Blocks | None) -> None:
        self._stops: list[int] = [] if blocks is None else blocks.offsets[1:].tolist()
        self._crcs: list[int] = [] if blocks is None else blocks.crcs.tolist()
        self._start = 0 if blocks is None else int(blocks.offsets[0])
        self._position = 0
        self._running = 0
        self._number = 0
        self.damaged: list[tuple[int, int]] = []
        """Where the blocks that differ start and stop."""

    def add(self, data: memoryview) -> None:
        """Take the archive's next bytes."""
        while data and self._number < len(self._stops):
            part = data[: self._stops[self._number] - self._position]
            self._running = crc32(part, self._running)
            self._position += len(part)
            data = data[len(part) :]
            if self._position == self._stops[self._number]:
                self._end_block()

    def _end_block(self) -> None:
        if self._running != self._crcs[self._number]:
            self.damaged.append((self._start, self._position))
        self._start, self._running = self._position, 0
        self._number += 1

    def problems(self, url: str, known: Sequence[Problem]) -> list[Problem]:
        """The blocks that differ though nothing in them is known to: their headers or padding changed."""
        told = np.sort(np.array([each.offset for each in known if each.offset is not None], np.int64))
        return [
            Problem("filler", "bytes between members changed", url, found=f"in bytes {start} to {stop}", offset=start)
            for start, stop in self.damaged
            if np.searchsorted(told, start) == np.searchsorted(told, stop)
        ]


_NO_NUMBERS = np.empty(0, np.int64)
_NO_MEMBERS = MemberColumns(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, np.empty(0, np.uint32))


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How thorough to be."""

    rule: KeyRule = WEBDATASET_RULE
    hashed: bool = False
    """Also compute each shard's sha256, and compare it with the manifest's where that has one."""
    decoders: Callable[[Sequence[str]], Decoders] | None = None
    """Given fields, how each is decoded: then every such member is, to see that it is what its extension says."""
    on_bytes: Callable[[int], None] | None = None
    """Told of every part that was read."""
    watch: Callable[[str], Callable[[Chunk], None]] | None = None
    """Asked, by a shard's URL, who wants its members as they are met. Asked again when a walk has to begin anew."""


_DEFAULTS = VerifyOptions()


def problem_of(kind: ProblemKind, url: str, error: ShoalError) -> Problem:
    expected, found = (None if fact is None else str(fact) for fact in (error.expected, error.found))
    return Problem(kind, error.problem, url, expected, found, error.key, error.field, error.offset)


class _BrokenStreamError(Exception):
    """Compressed data that cannot be read further. Not a TarError, so that no scan tries to go on behind it."""

    def __init__(self, error: TarError) -> None:
        super().__init__(error)
        self.error = error


class _TeeReader:
    """A feed that shows each byte once, in order, also those that a scan jumps over."""

    def __init__(self, feed: Feed, see: Callable[[memoryview], None]) -> None:
        self.size = feed.size
        self._feed = feed
        self._see = see
        self._next = 0

    def at(self, position: int, length: int) -> bytes:
        while self._next < position and self._show(self._next, min(position - self._next, _PART_BYTES)):
            pass
        return self._show(position, length)

    def _show(self, position: int, length: int) -> bytes:
        try:
            data = self._feed.at(position, length)
        except TarError as error:
            raise _BrokenStreamError(error) from error
        if position + len(data) > self._next:
            self._see(memoryview(data)[self._next - position :])
            self._next = position + len(data)
        return data

    def drain(self) -> None:
        """Show the rest."""
        while self._show(self._next, _PART_BYTES):
            pass


class _BlockFeed:
    """One block of an archive, for a scan to take as one that starts there and has an end."""

    def __init__(self, data: bytes, base: int) -> None:
        self._data = data + bytes(2 * BLOCK)
        self._base = base
        self.size: int | None = base + len(self._data)

    def at(self, position: int, length: int) -> bytes:
        return self._data[position - self._base : position - self._base + length]


class ScanFindings:
    """Gathers what a walk meets."""

    def __init__(self, url: str, options: VerifyOptions) -> None:
        self.gaps: list[UnreadableRange] = []
        self.problems: list[Problem] = []
        self.stop = 0
        self._url = url
        self._options = options
        self._skipped: Counter[str] = Counter()
        self._grouper = Grouper(options.rule, self._skipped)
        self._parts: list[MemberColumns] = []
        self._decoders: dict[str, Callable[[bytes], object]] = {}
        self._asked: set[str] = set()
        self._told: dict[str, str] = {}
        self._watch = None if options.watch is None else options.watch(url)

    def scan(self, feed: Feed, start: int = 0) -> None:
        """Walk an archive, over all damage."""
        large = None if self._options.decoders is not None else _LARGE_BYTES
        options = ScanOptions(large_bytes=large, encoding=self._options.rule.encoding)
        for part in scan(feed, options, start=start, skipped=self._skipped, on_damage=lambda error: None):
            self._take(part, feed)

    def _take(self, part: Chunk | UnreadableRange, feed: Feed) -> None:
        if isinstance(part, UnreadableRange):
            self.gaps.append(part)
            return
        self.stop = part.stop
        if self._watch is not None:
            self._watch(part)
        try:
            grouped = self._grouper.add(part.named)
        except TarError as error:
            self.problems.append(problem_of("name", self._url, error))
            return
        self._add(part, grouped, feed)

    def _add(self, chunk: Chunk, grouped: Grouped, feed: Feed) -> None:
        kept = slice(None) if grouped.kept is None else grouped.kept
        offsets, sizes = chunk.offsets[kept], chunk.sizes[kept]
        starts = offsets - chunk.base
        spans = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        if chunk.data:
            view = memoryview(chunk.data)
            crcs = [crc32(view[start:stop]) for start, stop in spans]
            self._decode(chunk, grouped, spans)
        else:
            crcs = [_crc_of(feed, int(offset), int(size)) for offset, size in zip(offsets, sizes, strict=True)]
        self._parts.append(MemberColumns(grouped.rows, grouped.fields, offsets, sizes, np.array(crcs, np.uint32)))

    def _decode(self, chunk: Chunk, grouped: Grouped, spans: list[tuple[int, int]]) -> None:
        if self._options.decoders is None:
            return
        names = list(self._grouper.fields)
        self._ask(names)
        for row, code, (start, stop) in zip(grouped.rows.tolist(), grouped.fields.tolist(), spans, strict=True):
            decode = self._decoders.get(names[code])
            if decode is not None:
                self._decode_one(decode, row, names[code], chunk.data[start:stop], chunk.base + start)

    def _ask(self, names: list[str]) -> None:
        new = [name for name in names if name not in self._asked]
        self._asked.update(new)
        if new and self._options.decoders is not None:
            self._decoders.update(self._options.decoders(new))

    def _decode_one(self, decode: Callable[[bytes], object], row: int, field: str, data: bytes, offset: int) -> None:
        try:
            decode(data)
        except MissingExtraError as error:
            del self._decoders[field]
            self._told[field] = f"{field} fields were not decoded: {error}"
        except CodecError as error:
            key = self._grouper.keys[row]
            self.problems.append(replace(problem_of("decode", self._url, error), key=key, field=field, offset=offset))

    def members(self) -> Members:
        """Every member that belongs to a sample."""
        columns = join_members([_NO_MEMBERS, *self._parts])
        joined = join_samples(self._grouper.keys, columns)
        if joined is not None:
            return Members(joined.keys, list(self._grouper.fields), joined.members)
        return Members(self._grouper.keys, list(self._grouper.fields), columns)

    def notes(self, index: ShardRows | None) -> list[Problem]:
        """What is worth knowing."""
        told = list(self._told.values())
        told += [
            f"{count} member{'s were' if count > 1 else ' was'} passed over: {reason}"
            for reason, count in self._skipped.items()
            if count and reason != OF_THE_SHARD
        ]
        returned = len(self._grouper.keys) - len(set(self._grouper.keys))
        if returned:
            told.append(
                f"keys come back after other keys {returned} times: an index joins their members, or keeps samples of"
                " one key apart that have the same fields; a stream raises InterleavedKeyError"
            )
        if index is None:
            told.append("there is no index, so the members' bytes could not be compared with anything")
        elif not has_checksums(index):
            told.append("the index has no checksums, so only names and sizes were compared")
        return [Problem("note", text, self._url) for text in told]


def _crc_of(feed: Feed, offset: int, size: int) -> int:
    """The crc32 of a member too large to hold."""
    crc, at = 0, offset
    while at < offset + size and (data := feed.at(at, min(_PART_BYTES, offset + size - at))):
        crc = crc32(data, crc)
        at += len(data)
    return crc


def _scan_shard(
    url: str, reader: ObjectReader, index: ShardRows | None, options: VerifyOptions
) -> tuple[ScanFindings, BlockCheck]:
    compression = sniff(reader.read(0, BLOCK))
    seen, check = ScanFindings(url, options), BlockCheck(None if index is None else index.blocks)
    tap = _TeeReader(_feed(reader, compression, options), _tee_to(check, options if compression is None else _DEFAULTS))
    try:
        seen.scan(tap)
        tap.drain()
    except _BrokenStreamError as broken:
        if (
            index is not None
            and compression is not None
            and index.blocks is not None
            and index.blocks.stored is not None
        ):
            blocks = index.blocks
            again, check = _scan_blocks(url, CompressedBytes(reader, compression, blocks), blocks, options)
            if again.gaps or check.damaged:
                return again, check
            seen = again  # every block is sound, so what is broken is the stream's end, which no block holds
        seen.gaps.append(UnreadableRange(seen.stop, _UNKNOWN_END, broken.error))
    return seen, check


def _tee_to(check: BlockCheck, options: VerifyOptions) -> Callable[[memoryview], None]:
    def see(data: memoryview) -> None:
        check.add(data)
        if options.on_bytes is not None:
            options.on_bytes(len(data))

    return see


def _feed(reader: ObjectReader, compression: str | None, options: VerifyOptions) -> Feed:
    if compression is None:
        return ReaderFeed(reader)
    return StreamFeed(decompressed(_CountingStream(reader, options.on_bytes), compression))


class _CountingStream:
    """An object's bytes in order, told of as they are read."""

    def __init__(self, reader: ObjectReader, on_bytes: Callable[[int], None] | None) -> None:
        self._stream = reader_stream(reader)
        self._on_bytes = on_bytes

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size) or b""
        if self._on_bytes is not None:
            self._on_bytes(len(data))
        return data


def _scan_blocks(
    url: str, data: CompressedBytes, blocks: Blocks, options: VerifyOptions
) -> tuple[ScanFindings, BlockCheck]:
    """A compressed stream that is broken somewhere, block by block: each can be read alone."""
    seen, check = ScanFindings(url, options), BlockCheck(blocks)
    for start, stop in zip(blocks.offsets[:-1].tolist(), blocks.offsets[1:].tolist(), strict=True):
        try:
            block = data.read(start, stop)
        except TarError as error:
            error.offset = None  # where in the compressed block says nothing to a reader of the tar
            seen.gaps.append(UnreadableRange(start, stop, error))
            check.add(memoryview(bytes(stop - start)))
            continue
        check.add(memoryview(block))
        seen.scan(_BlockFeed(block, start), start)
    return seen, check


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What was found in one shard."""

    url: str
    samples: int = 0
    members: int = 0
    bytes: int = 0
    problems: tuple[Problem, ...] = ()
    """All that is wrong."""
    notes: tuple[Problem, ...] = ()
    """What is worth knowing and no damage."""
    sha256: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_shard(url: str, index: ShardRows | None = None, options: VerifyOptions = _DEFAULTS) -> ShardReport:
    """Read all of a shard and report what is wrong with it; compared with ``index`` where there is one.

    Without an index only the tar itself can be judged: its headers, its end, duplicate fields. With one, every member's
    name, size and checksum must be as indexed, and every byte between members too. Damage never raises.

    Examples:
        >>> import shoal
        >>> from shoal.shard import verify_shard
        >>> with shoal.ShardWriter("memory://doc/verify/a-%06d.tar") as writer:
        ...     writer.write({"__key__": "0001", "txt": "hello"})
        >>> report = verify_shard(writer.urls[0])
        >>> report.ok, report.samples, report.members
        (True, 1, 1)
    """
    try:
        reader = store_for(url).open(url)
    except StoreError as error:
        return ShardReport(url, problems=(problem_of("shard", url, error),))
    with closing(reader):
        if reader.info.size == 0 and index is None:  # an empty archive, or far more often a failed download
            return ShardReport(url, problems=(problem_of("shard", url, TruncatedError("the file is empty")),))
        try:
            return _verify_open(url, reader, index, options)
        except StoreError as error:  # a bad sector, a lost connection: other shards are still worth looking at
            return ShardReport(url, bytes=reader.info.size, problems=(problem_of("shard", url, error),))


def _verify_open(url: str, reader: ObjectReader, index: ShardRows | None, options: VerifyOptions) -> ShardReport:
    stale = _stale_index(url, reader, index)
    seen, blocks = _scan_shard(url, reader, index, options)
    found = seen.members()
    problems, notes = seen.problems, seen.notes(index)
    expected = Members((), (), _NO_MEMBERS, checked=False) if index is None else indexed_members(index)
    differing, met = compare(url, expected, found, seen.gaps)
    if index is None or (stale and len(found) and not met):  # of another tar: only what this one itself says counts
        differing, _ = compare(url, found, found, seen.gaps)
    problems = [*stale, *problems, *differing, *duplicates(url, found)]
    problems += blocks.problems(url, problems) if met else []
    sha256 = _sha256(reader) if options.hashed else None
    problems.sort(key=lambda each: -1 if each.offset is None else each.offset)
    return ShardReport(url, len(found.keys), len(found), reader.info.size, tuple(problems), tuple(notes), sha256)


def _stale_index(url: str, reader: ObjectReader, index: ShardRows | None) -> list[Problem]:
    if index is None:
        return []
    head = reader.read(0, BLOCK)
    try:
        index.check_object(url, reader.info.size, head, crc32(head))
    except ShardIndexError as error:
        return [problem_of("index", url, error)]
    return []


def _sha256(reader: ObjectReader) -> str:
    digest = hashlib.sha256()
    for start in range(0, reader.info.size, _PART_BYTES):
        digest.update(reader.read(start, start + _PART_BYTES))
    return digest.hexdigest()


def verify_dataset(
    path: PathLike | Iterable[PathLike],
    *,
    split: str | None = None,
    options: VerifyOptions = _DEFAULTS,
    workers: int = 1,
) -> Iterator[ShardReport]:
    """Verify every shard that ``path`` names, one report each, in order; ``workers`` of them at a time.

    Shards of a manifest are compared with what it says of them; one that is missing is reported, and a tar that it does
    not list gets a report with a note. Raises what ``locate_shards`` raises when ``path`` names nothing.
    """
    located = locate_shards(path, split)
    manifest, table = located.manifest, located.table
    listed = manifest if table is None else table
    options = replace(options, rule=listed.rule) if listed is not None and options.rule == WEBDATASET_RULE else options
    records = _records(located)

    def verified(number: int) -> ShardReport:
        if table is not None:
            return _verify_listed(table, options, number)
        ref = located.shards[number]
        return _verify_ref(ref, records.get(ref.url), options)

    numbers = range(len(located.shards))
    if workers == 1:
        yield from map(verified, numbers)
    else:
        with ThreadPoolExecutor(workers, "shoal-verify") as pool:
            yield from pool.map(verified, numbers)
    if located.has_manifest and located.root is not None and split is None:
        yield from _unlisted_tars(located.root, {ref.url for ref in located.shards})


def _records(located: ShardList) -> dict[str, ShardRecord]:
    """What the manifest says of each shard, by the shard's URL."""
    if located.manifest is None or located.root is None:
        return {}
    return {join_url(located.root, record.path): record for record in located.manifest.shards}


def _verify_ref(ref: ShardRef, record: ShardRecord | None, options: VerifyOptions) -> ShardReport:
    index, problems = _index_of(ref, options.rule)
    report = verify_shard(ref.url, index, options)
    if record is not None and all(each.kind != "shard" for each in report.problems):
        problems += _against_manifest(report, record)
    return replace(report, problems=(*problems, *report.problems))


def _verify_listed(table: SegmentTable, options: VerifyOptions, number: int) -> ShardReport:
    url = table.shards[number].url
    try:
        index, record = table.shard_rows(number), table.record(number)
    except (ShardIndexError, StoreError) as error:
        index, record, problems = None, None, [problem_of("index", url, error)]
    else:
        problems = []
    report = verify_shard(url, index, options)
    if record is not None and all(each.kind != "shard" for each in report.problems):
        problems += _against_manifest(report, record)
    return replace(report, problems=(*problems, *report.problems))


def _index_of(ref: ShardRef, rule: KeyRule) -> tuple[ShardRows | None, list[Problem]]:
    try:
        if ref.sidecar is not None:
            return load_index(ref.sidecar, whole=True), []
        with closing(store_for(ref.url).open(ref.url)) as reader:
            return find_index(reader, rule, whole=True), []
    except ObjectNotFoundError:
        if ref.sidecar is None:  # there is no shard either, which is told of as such
            return None, []
        return None, [Problem("index", "the shard's index is missing", ref.url, expected=ref.sidecar)]
    except (ShardIndexError, StoreError) as error:
        return None, [problem_of("index", ref.url, error)]


def _against_manifest(report: ShardReport, record: ShardRecord) -> list[Problem]:
    said = (("samples", record.samples, report.samples), ("bytes", record.bytes, report.bytes))
    problems = [
        Problem("manifest", f"the manifest counts other {what}", report.url, str(expected), str(found))
        for what, expected, found in said
        if expected != found
    ]
    if record.sha256 and report.sha256 and record.sha256 != report.sha256:
        problem = "the shard is not the one that was hashed"
        problems.append(Problem("hash", problem, report.url, record.sha256, report.sha256))
    return problems


def _unlisted_tars(root: str, listed: set[str]) -> Iterator[ShardReport]:
    try:
        found = tars_below(root)
    except StoreError:  # every shard is gone, which the reports before have told; or nobody can list them
        return
    for url in found:
        if url not in listed:
            note = Problem("note", "the manifest does not list this tar, so no reader sees it", url)
            yield ShardReport(url, bytes=store_for(url).info(url).size, notes=(note,))


def with_hashes(manifest: Manifest, hashes: Mapping[str, str]) -> Manifest:
    """The manifest with the sha256 of shards, by path, filled in."""
    splits = {
        name: tuple(replace(record, sha256=hashes.get(record.path, record.sha256)) for record in records)
        for name, records in manifest.splits.items()
    }
    return replace(manifest, splits=splits)
