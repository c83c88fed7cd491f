"""Convert an index of another library into a `ShardRows`, after checking it against the tar.

The tar may have changed since the index was made. So its offsets must be possible ones, and the tar must agree at its
first sample, after its last one, and at members spread in between. Only headers are read, so an imported index has no
checksums, no blocks and no metadata columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import ShardIndexError, ShoalError, StaleIndexError, TarError
from shoal.store._base import ObjectReader

from ._index_build import MemberColumns, assemble, join_samples
from ._member_names import WEBDATASET_RULE, Grouper, KeyRule, split_name
from ._metadata_columns import ColumnCollector, extractor_for
from ._shard_rows import FieldExtents, IndexMetadata, LongExtents, ShardRows
from ._tar_header import BLOCK, MOST_PLAIN_SIZE, REGULAR, padded, parse_header
from ._tar_scan import Chunk, Feed, ReaderFeed, ScanOptions, UnreadableRange, scan

__all__ = ["SCAN_INSTEAD", "ForeignIndex", "Tar", "TarMembers", "import_foreign", "walk_headers"]

SCAN_INSTEAD = "index the tar itself: `shoal index`"


_SPOT_CHECKS = 16
"""How many members' headers are looked at: a tar that was written anew differs in nearly all of them."""
_WALK_OPTIONS = ScanOptions(chunk_bytes=1 << 18, large_bytes=1 << 18)
"""Small members are read past, as that is cheaper than to seek; larger ones are not read."""
_UNREAD = "the index was imported, which reads no members"


@dataclass(frozen=True, slots=True)
class Tar:
    """The shard that a foreign index describes."""

    url: str
    reader: ObjectReader
    rule: KeyRule = WEBDATASET_RULE


@dataclass(frozen=True, slots=True)
class ForeignIndex:
    """The members of a foreign index, in its order, and the number of the sample each belongs to."""

    names: list[str]
    samples: IntArray
    offsets: IntArray
    sizes: IntArray


@dataclass(frozen=True, slots=True)
class TarMembers:
    """Every regular member of a tar, by its headers."""

    names: list[str]
    starts: IntArray
    """Where each member's own headers start: PAX and GNU headers belong to it, a global PAX header does not."""
    offsets: IntArray
    sizes: IntArray
    stop: int
    """Where the members end: the place of the end marker."""


def import_foreign(foreign: ForeignIndex, tar: Tar) -> ShardRows:
    """Check a foreign index against its tar and convert it.

    Raises ShardIndexError when the index is impossible, StaleIndexError when it does not fit the tar.
    """
    try:
        _check_places(foreign, tar)
        _check_ends(foreign, tar)
        _check_spots(foreign, tar)
        return _to_index(foreign, tar)
    except ShoalError as error:
        raise error.at(shard=tar.url) from error.__cause__


def _to_index(foreign: ForeignIndex, tar: Tar) -> ShardRows:
    skipped: Counter[str] = Counter()
    grouper = Grouper(tar.rule, skipped)
    grouped = grouper.add(foreign.names)
    kept = np.arange(len(foreign.names)) if grouped.kept is None else grouped.kept
    _check_samples(foreign.samples[kept], grouped.rows, grouper.keys, tar.rule)
    unknown = np.zeros(len(kept), np.uint32)
    members = MemberColumns(grouped.rows, grouped.fields, foreign.offsets[kept], foreign.sizes[kept], unknown)
    names, keys = list(grouper.fields), grouper.keys
    joined = join_samples(keys, members)
    if joined is not None:
        keys, members = joined.keys, joined.members
    index = assemble(_facts(tar, skipped, names), keys, names, members, ColumnCollector(), None, tar.url)
    return _without_crcs(index)


def _facts(tar: Tar, skipped: Counter[str], names: list[str]) -> IndexMetadata:
    counted = {reason: count for reason, count in skipped.items() if count}
    dropped = {name: _UNREAD for name in names if extractor_for(name) is not None}
    return IndexMetadata(tar.reader.info.size, crc32(tar.reader.read(0, BLOCK)), tar.rule, None, counted, dropped)


def _without_crcs(index: ShardRows) -> ShardRows:
    fields = index.fields
    if isinstance(fields, LongExtents):
        long = LongExtents(
            len(index), fields.names, fields.entry_rows, fields.codes, fields.offset, fields.size, crc=None
        )
        return replace(index, fields=long)
    return replace(index, fields={name: FieldExtents(each.offset, each.size, None) for name, each in fields.items()})


def _check_places(foreign: ForeignIndex, tar: Tar) -> None:
    """Every member stands behind a header, inside the file, and on no other member's bytes."""
    size = tar.reader.info.size
    impossible = (foreign.offsets < BLOCK) | (foreign.offsets % BLOCK != 0) | (foreign.sizes < 0)
    if impossible.any():
        expected = f"a multiple of {BLOCK}, from {BLOCK} on"
        problem = "the index puts a member where none can be"
        raise _misfit_error(ShardIndexError, problem, foreign, int(impossible.argmax()), expected)
    behind = foreign.sizes > size - foreign.offsets
    if behind.any():
        problem = "the index points behind the end of the shard"
        raise _misfit_error(StaleIndexError, problem, foreign, int(behind.argmax()), f"at most {size} bytes")
    order = np.argsort(foreign.offsets, kind="stable")
    overlapping = np.diff(foreign.offsets[order]) < padded(foreign.sizes[order])[:-1] + BLOCK
    if overlapping.any():
        second = int(order[1:][overlapping.argmax()])
        raise _misfit_error(ShardIndexError, "the index puts two members on the same bytes", foreign, second)


def _misfit_error(
    kind: type[ShardIndexError], problem: str, foreign: ForeignIndex, at: int, expected: str | None = None
) -> ShardIndexError:
    offset, size = int(foreign.offsets[at]), int(foreign.sizes[at])
    found = f"{foreign.names[at]} with {size} bytes"
    return kind(problem, expected=expected, found=found, offset=offset, hint=SCAN_INSTEAD)


def _check_ends(foreign: ForeignIndex, tar: Tar) -> None:
    """Check that the tar's first sample is the index's first, and that none follows its last."""
    first = next(_sample_members(ReaderFeed(tar.reader), 0, tar.rule), None)
    claimed = next(_foreign_members(foreign, tar.rule), None)
    if claimed != first:
        problem, expected = "the shard does not start as the index says", claimed or "no samples"
        raise StaleIndexError(problem, expected=expected, found=first or "none", hint=SCAN_INSTEAD)
    stop = int((foreign.offsets + padded(foreign.sizes)).max(initial=0))
    more = _next_sample(tar, stop)
    if more is not None:
        raise StaleIndexError("the shard has samples that the index does not have", found=more, hint=SCAN_INSTEAD)


@dataclass(frozen=True, slots=True)
class _SampleMember:
    key: str
    field: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.key}.{self.field} with {self.size} bytes at {self.offset}"


def _foreign_members(foreign: ForeignIndex, rule: KeyRule) -> Iterator[_SampleMember]:
    """The members of a foreign index that belong to a sample, in the archive's order."""
    for at in np.argsort(foreign.offsets, kind="stable").tolist():
        pair = _pair(foreign.names[at], rule)
        if pair is not None:
            yield _SampleMember(*pair, int(foreign.offsets[at]), int(foreign.sizes[at]))


def _next_sample(tar: Tar, start: int) -> _SampleMember | None:
    try:
        return next(_sample_members(_RestFeed(tar.reader, start), start, tar.rule), None)
    except TarError as error:
        problem = "the shard does not go on as the index says"
        raise StaleIndexError(problem, expected="a header, or the end", offset=start, hint=SCAN_INSTEAD) from error


def _sample_members(feed: Feed, start: int, rule: KeyRule) -> Iterator[_SampleMember]:
    """The members that belong to a sample, of a feed that starts at byte ``start`` of the tar."""
    for chunk in _chunks(scan(feed, replace(_WALK_OPTIONS, encoding=rule.encoding))):
        for name, offset, size in zip(chunk.names, chunk.offsets.tolist(), chunk.sizes.tolist(), strict=True):
            pair = _pair(name, rule)
            if pair is not None:
                yield _SampleMember(*pair, offset + start, size)


def _pair(name: str, rule: KeyRule) -> tuple[str, str] | None:
    """Hidden files in folders are samples to WebDataset and Energon, and none to DALI: they settle nothing."""
    return None if name.rpartition("/")[2].startswith(".") else split_name(name, rule)


class _RestFeed:
    """An object from some byte on, for a scan to take as a whole archive: it always has an end marker."""

    def __init__(self, reader: ObjectReader, start: int) -> None:
        self._reader = reader
        self._start = start
        self._length = max(reader.info.size - start, 0)
        self.size: int | None = self._length + len(_MARKER)

    def at(self, position: int, length: int) -> bytes:
        data = self._reader.read(self._start + position, self._start + position + length)
        return (data + _MARKER[max(position - self._length, 0) :])[:length]


_MARKER = bytes(2 * BLOCK)


def _chunks(scanned: Iterator[Chunk | UnreadableRange]) -> Iterator[Chunk]:
    """Without ``on_damage``, a scan gives no gaps."""
    return (part for part in scanned if isinstance(part, Chunk))


def _check_spots(foreign: ForeignIndex, tar: Tar) -> None:
    """Some members, the last among them, have a header of their size before them."""
    last = len(foreign.names) - 1
    for at in sorted({last * part // _SPOT_CHECKS for part in range(_SPOT_CHECKS + 1)} if last >= 0 else ()):
        offset, size = int(foreign.offsets[at]), int(foreign.sizes[at])
        found = _header_size(tar.reader, offset - BLOCK)
        # a size that eleven octal digits cannot hold may be in a PAX header alone
        if found is None or (found != size and size <= MOST_PLAIN_SIZE):
            problem = "the shard has no such member where the index says"
            raise _misfit_error(
                StaleIndexError, problem, foreign, at, "no member" if found is None else f"{found} bytes"
            )


def _header_size(reader: ObjectReader, start: int) -> int | None:
    """The size in the regular member's header at ``start``; None when there is no such header."""
    try:
        header = parse_header(reader.read(start, start + BLOCK), start)
    except TarError:
        return None
    return header.size if header.kind in REGULAR else None


def _check_samples(samples: IntArray, rows: IntArray, keys: list[str], rule: KeyRule) -> None:
    """Under the rule that all these loaders follow, what they call a sample is one here."""
    if rule.dot != "first" or rule.group != "neighbours":
        return
    wrong = (np.diff(samples) == 0) != (np.diff(rows) == 0)
    if wrong.any():
        at = int(wrong.argmax())
        apart = samples[at] != samples[at + 1]
        problem = "the index takes one sample for two" if apart else "the index takes two samples for one"
        raise ShardIndexError(problem, key=keys[rows[at + 1]], hint=SCAN_INSTEAD)


def walk_headers(tar: Tar) -> TarMembers:
    """Read every header of a tar, but not the larger members' bytes. Raises a TarError where it is damaged."""
    names: list[str] = []
    parts: list[tuple[IntArray, IntArray, IntArray]] = []
    stop = 0
    try:
        for chunk in _chunks(scan(ReaderFeed(tar.reader), replace(_WALK_OPTIONS, encoding=tar.rule.encoding))):
            names += chunk.names
            parts.append((_own_starts(chunk, tar.reader), chunk.offsets, chunk.sizes))
            stop = chunk.stop
    except TarError as error:
        raise error.at(shard=tar.url) from error.__cause__
    starts, offsets, sizes = (np.concatenate(columns) for columns in zip(_NONE, *parts, strict=True))
    return TarMembers(names, starts, offsets, sizes, stop)


_NONE = (np.empty(0, np.int64),) * 3


def _own_starts(chunk: Chunk, reader: ObjectReader) -> IntArray:
    """Where members start, past the global PAX headers that a scan counts to the member after them."""
    starts = chunk.starts.copy()
    for at in np.flatnonzero(chunk.offsets - chunk.starts > BLOCK).tolist():
        start = int(starts[at])
        while (block := _block(chunk, reader, start))[156] == ord("g"):
            start += BLOCK + padded(parse_header(block, start).size)
        starts[at] = start
    return starts


def _block(chunk: Chunk, reader: ObjectReader, start: int) -> bytes:
    at = start - chunk.base
    return chunk.data[at : at + BLOCK] if chunk.data else reader.read(start, start + BLOCK)
