"""Indexes of other loaders -> a ShardIndex: what their layouts have in common.

A foreign index is a claim about a tar that somebody made at some time. Before it is used, its places must be possible
ones, and the tar must agree: at its first sample, behind its last one, and at members spread in between. Only headers
are read, so an imported index has no checksums, no blocks and no metadata columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.errors import ShardIndexError, ShoalError, StaleIndexError, TarError
from shoal.store import ObjectReader

from ._background_io import crc32
from ._index import Extents, IndexMetadata, LongExtents, ShardIndex
from ._index_build import MemberColumns, assemble
from ._member_names import WEBDATASET_RULE, Grouper, KeyRule, split_name
from ._metadata_columns import ColumnCollector, extractor_for
from ._tar_header import BLOCK, REGULAR, padded, parse_header
from ._tar_scan import Chunk, Feed, ReaderFeed, ScanOptions, UnreadableRange, scan

__all__ = ["SCAN_INSTEAD", "ForeignIndex", "Tar", "Walked", "import_claim", "known_members", "walk"]

SCAN_INSTEAD = "index the tar itself: `shoal index`"

Int64 = npt.NDArray[np.int64]

_SPREAD = 16
"""How many members' headers are looked at: a tar that was written anew differs in nearly all of them."""
_MOST_OCTAL = 8**11
_WALK = ScanOptions(chunk_bytes=1 << 18, large_bytes=1 << 18)
"""Small members are read past, as that is cheaper than to seek; larger ones are not read."""
_UNREAD = "the index was imported, which reads no members"


@dataclass(frozen=True, slots=True)
class Tar:
    """The shard that a foreign index speaks of."""

    url: str
    reader: ObjectReader
    rule: KeyRule = WEBDATASET_RULE


@dataclass(frozen=True, slots=True)
class ForeignIndex:
    """What a foreign index says: its members, in its order, and the number of the sample each belongs to."""

    names: list[str]
    samples: Int64
    offsets: Int64
    sizes: Int64


@dataclass(frozen=True, slots=True)
class Walked:
    """Every regular member of a tar, by its headers."""

    names: list[str]
    starts: Int64
    """Where each member's own headers start: PAX and GNU headers belong to it, a global PAX header does not."""
    offsets: Int64
    sizes: Int64
    stop: int
    """Where the members end: the place of the end marker."""


def import_claim(claim: ForeignIndex, tar: Tar) -> ShardIndex:
    """Check a claim against its tar and make it an index.

    Raises ShardIndexError when the claim is impossible, StaleIndexError when it is about other bytes than the tar's.
    """
    try:
        _check_places(claim, tar)
        _check_ends(claim, tar)
        _check_spread(claim, tar)
        return _assembled(claim, tar)
    except ShoalError as error:
        raise error.at(shard=tar.url) from error.__cause__


def _assembled(claim: ForeignIndex, tar: Tar) -> ShardIndex:
    skipped: Counter[str] = Counter()
    grouper = Grouper(tar.rule, skipped)
    grouped = grouper.add(claim.names)
    kept = np.arange(len(claim.names)) if grouped.kept is None else grouped.kept
    _check_samples(claim.samples[kept], grouped.rows, grouper.keys, tar.rule)
    unknown = np.zeros(len(kept), np.uint32)
    members = MemberColumns(grouped.rows, grouped.fields, claim.offsets[kept], claim.sizes[kept], unknown)
    names = list(grouper.fields)
    index = assemble(_facts(tar, skipped, names), grouper.keys, names, members, ColumnCollector(), None, tar.url)
    return _without_crcs(index)


def _facts(tar: Tar, skipped: Counter[str], names: list[str]) -> IndexMetadata:
    counted = {reason: count for reason, count in skipped.items() if count}
    dropped = {name: _UNREAD for name in names if extractor_for(name) is not None}
    return IndexMetadata(tar.reader.info.size, crc32(tar.reader.read(0, BLOCK)), tar.rule, None, counted, dropped)


def _without_crcs(index: ShardIndex) -> ShardIndex:
    fields = index.fields
    if isinstance(fields, LongExtents):
        long = LongExtents(
            len(index), fields.names, fields.entry_rows, fields.codes, fields.offset, fields.size, crc=None
        )
        return replace(index, fields=long)
    return replace(index, fields={name: Extents(each.offset, each.size, None) for name, each in fields.items()})


# ---------------------------------------------------------------------------------------------------------- the checks


def _check_places(claim: ForeignIndex, tar: Tar) -> None:
    """Every member stands behind a header, inside the file, and on no other member's bytes."""
    size = tar.reader.info.size
    impossible = (claim.offsets < BLOCK) | (claim.offsets % BLOCK != 0) | (claim.sizes < 0)
    if impossible.any():
        expected = f"a multiple of {BLOCK}, from {BLOCK} on"
        problem = "the index puts a member where none can be"
        raise _misfit(ShardIndexError, problem, claim, int(impossible.argmax()), expected)
    behind = claim.sizes > size - claim.offsets
    if behind.any():
        problem = "the index points behind the end of the shard"
        raise _misfit(StaleIndexError, problem, claim, int(behind.argmax()), f"at most {size} bytes")
    order = np.argsort(claim.offsets, kind="stable")
    overlapping = np.diff(claim.offsets[order]) < _padded(claim.sizes[order])[:-1] + BLOCK
    if overlapping.any():
        second = int(order[1:][overlapping.argmax()])
        raise _misfit(ShardIndexError, "the index puts two members on the same bytes", claim, second)


def _misfit(
    kind: type[ShardIndexError], problem: str, claim: ForeignIndex, at: int, expected: str | None = None
) -> ShardIndexError:
    offset, size = int(claim.offsets[at]), int(claim.sizes[at])
    found = f"{claim.names[at]} with {size} bytes"
    return kind(problem, expected=expected, found=found, offset=offset, hint=SCAN_INSTEAD)


def _padded(sizes: Int64) -> Int64:
    return (sizes + BLOCK - 1) // BLOCK * BLOCK


def _check_ends(claim: ForeignIndex, tar: Tar) -> None:
    """The tar's first sample is the claim's first, and none follows the claim's last."""
    first = next(_sample_members(ReaderFeed(tar.reader), 0, tar.rule), None)
    claimed = next(_claimed_members(claim, tar.rule), None)
    if claimed != first:
        problem, expected = "the shard does not start as the index says", claimed or "no samples"
        raise StaleIndexError(problem, expected=expected, found=first or "none", hint=SCAN_INSTEAD)
    stop = int((claim.offsets + _padded(claim.sizes)).max(initial=0))
    more = _next_sample(tar, stop)
    if more is not None:
        raise StaleIndexError("the shard has samples that the index does not have", found=more, hint=SCAN_INSTEAD)


@dataclass(frozen=True, slots=True)
class _Member:
    key: str
    field: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.key}.{self.field} with {self.size} bytes at {self.offset}"


def _claimed_members(claim: ForeignIndex, rule: KeyRule) -> Iterator[_Member]:
    """The claim's members that belong to a sample, in the archive's order."""
    for at in np.argsort(claim.offsets, kind="stable").tolist():
        pair = _pair(claim.names[at], rule)
        if pair is not None:
            yield _Member(*pair, int(claim.offsets[at]), int(claim.sizes[at]))


def _next_sample(tar: Tar, start: int) -> _Member | None:
    try:
        return next(_sample_members(_RestFeed(tar.reader, start), start, tar.rule), None)
    except TarError as error:
        problem = "the shard does not go on as the index says"
        raise StaleIndexError(problem, expected="a header, or the end", offset=start, hint=SCAN_INSTEAD) from error


def _sample_members(feed: Feed, start: int, rule: KeyRule) -> Iterator[_Member]:
    """The members that belong to a sample, of a feed that starts at byte ``start`` of the tar."""
    for chunk in _chunks(scan(feed, replace(_WALK, encoding=rule.encoding))):
        for name, offset, size in zip(chunk.names, chunk.offsets.tolist(), chunk.sizes.tolist(), strict=True):
            pair = _pair(name, rule)
            if pair is not None:
                yield _Member(*pair, offset + start, size)


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


def _check_spread(claim: ForeignIndex, tar: Tar) -> None:
    """Some members, the last among them, have a header of their size before them."""
    last = len(claim.names) - 1
    for at in sorted({last * part // _SPREAD for part in range(_SPREAD + 1)} if last >= 0 else ()):
        offset, size = int(claim.offsets[at]), int(claim.sizes[at])
        found = _header_size(tar.reader, offset - BLOCK)
        # a size that eleven octal digits cannot hold may be in a PAX header alone
        if found is None or (found != size and size < _MOST_OCTAL):
            problem = "the shard has no such member where the index says"
            raise _misfit(StaleIndexError, problem, claim, at, "no member" if found is None else f"{found} bytes")


def _header_size(reader: ObjectReader, start: int) -> int | None:
    """The size in the regular member's header at ``start``; None when there is no such header."""
    try:
        header = parse_header(reader.read(start, start + BLOCK), start)
    except TarError:
        return None
    return header.size if header.kind in REGULAR else None


def _check_samples(samples: Int64, rows: Int64, keys: list[str], rule: KeyRule) -> None:
    """Under the rule that all these loaders follow, what they call a sample is one here."""
    if rule.dot != "first" or rule.group != "neighbours":
        return
    wrong = (np.diff(samples) == 0) != (np.diff(rows) == 0)
    if wrong.any():
        at = int(wrong.argmax())
        apart = samples[at] != samples[at + 1]
        problem = "the index takes one sample for two" if apart else "the index takes two samples for one"
        raise ShardIndexError(problem, key=keys[rows[at + 1]], hint=SCAN_INSTEAD)


# ------------------------------------------------------------------------------------------------------------ the walk


def walk(tar: Tar) -> Walked:
    """Read every header of a tar, but not the larger members' bytes. Raises a TarError where it is damaged."""
    names: list[str] = []
    parts: list[tuple[Int64, Int64, Int64]] = []
    stop = 0
    try:
        for chunk in _chunks(scan(ReaderFeed(tar.reader), replace(_WALK, encoding=tar.rule.encoding))):
            names += chunk.names
            parts.append((_own_starts(chunk, tar.reader), chunk.offsets, chunk.sizes))
            stop = chunk.stop
    except TarError as error:
        raise error.at(shard=tar.url) from error.__cause__
    starts, offsets, sizes = (np.concatenate(columns) for columns in zip(_NONE, *parts, strict=True))
    return Walked(names, starts, offsets, sizes, stop)


_NONE = (np.empty(0, np.int64),) * 3


def _own_starts(chunk: Chunk, reader: ObjectReader) -> Int64:
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


def known_members(index: ShardIndex) -> MemberColumns:
    """The members an index knows, in the archive's order; checksums are left out."""
    if isinstance(index.fields, LongExtents):
        long = index.fields
        columns = (long.entry_rows, long.codes, long.offset.astype(np.int64), long.size.astype(np.int64))
    else:
        columns = _wide_columns(list(index.fields.values()))
    order = np.argsort(columns[2], kind="stable")
    rows, fields, offsets, sizes = (column[order] for column in columns)
    return MemberColumns(rows, fields, offsets, sizes, np.zeros(len(order), np.uint32))


def _wide_columns(fields: list[Extents]) -> tuple[Int64, Int64, Int64, Int64]:
    parts = [(*_NONE, _NONE[0])]
    for code, extents in enumerate(fields):
        rows = np.flatnonzero(extents.offset)
        offsets, sizes = extents.offset[rows].astype(np.int64), extents.size[rows].astype(np.int64)
        parts.append((rows, np.full(len(rows), code), offsets, sizes))
    rows, codes, offsets, sizes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return rows, codes, offsets, sizes
