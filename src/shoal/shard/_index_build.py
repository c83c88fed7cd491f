"""Build the index of a shard, from a scan of the tar or while it is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import DuplicateFieldError, ShoalError, TruncatedError

from ._arrow_arrays import text_array
from ._byte_reader import keep_freed_memory
from ._member_names import WEBDATASET_RULE, Grouped, Grouper, KeyRule
from ._metadata_columns import LARGEST_SOURCE, Buffer, ColumnCollector, extractor_for, largest_source
from ._shard_rows import Blocks, FieldExtents, IndexMetadata, LongExtents, ShardRows, spread
from ._tar_scan import Chunk, Feed, ScanOptions, UnreadableRange, scan

__all__ = [
    "BLOCK_BYTES",
    "MOST_WIDE_FIELDS",
    "BlockCutter",
    "MemberColumns",
    "MemberLog",
    "assemble",
    "build_index",
    "join_members",
    "join_samples",
    "member_columns",
    "refuse_duplicates",
]

BLOCK_BYTES = 2 << 20
"""Large enough that a read costs little beside its bytes, small enough to stay near the processor: 1 MiB and 4 MiB took
longer to read."""
_CHUNK_BYTES = 4 << 20  # what is done once a chunk then costs a member little
_LARGE_BYTES = 64 << 20
_SMALL_BYTES = 512
MOST_WIDE_FIELDS = 256
"""Beyond this many distinct fields a column each would be mostly zeros: the long layout takes over."""


def build_index(feed: Feed, facts: IndexMetadata, url: str) -> ShardRows:
    """Scan an archive and index it: members, checksums and metadata columns.

    Memory stays at a few chunks plus the index itself. Raises a TarError, with the shard's URL, where it is damaged.
    """
    keep_freed_memory()
    builder = _Builder(feed, facts.rule)
    options = ScanOptions(chunk_bytes=_CHUNK_BYTES, large_bytes=_LARGE_BYTES, encoding=facts.rule.encoding)
    try:
        for chunk in scan(feed, options, skipped=builder.skipped):
            assert not isinstance(chunk, UnreadableRange)  # noqa: S101 - a gap needs on_damage, which is not given
            builder.add(chunk)
        return builder.finish(facts, url)
    except ShoalError as error:
        raise error.at(shard=url) from error.__cause__


class BlockCutter:
    """Cuts the archive into blocks at sample starts and keeps each block's crc32."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._rows = [0]
        self._offsets = [0]
        self._crcs: list[int] = []
        self._running = 0
        self._position = 0

    def add(self, data: memoryview, base: int, starts: IntArray, rows: IntArray) -> None:
        """Take the archive's next bytes, from ``base`` on, in which the samples ``rows`` start at ``starts``."""
        while (at := int(np.searchsorted(starts, self._offsets[-1] + self._block_bytes))) < len(starts):
            cut = int(starts[at])
            self._advance(data[self._position - base : cut - base])
            self._cut(int(rows[at]))
        self._advance(data[self._position - base :])

    def _advance(self, data: memoryview) -> None:
        self._running = crc32(data, self._running)
        self._position += len(data)

    def _cut(self, row: int) -> None:
        self._crcs.append(self._running)
        self._rows.append(row)
        self._offsets.append(self._position)
        self._running = 0

    def finish(self, rows: int) -> Blocks:
        """All blocks, the last one ending where the archive's members end."""
        if self._position > self._offsets[-1]:
            self._cut(rows)
        return Blocks(
            np.array(self._rows, np.int64), np.array(self._offsets, np.int64), np.array(self._crcs, np.uint32)
        )


class _Builder:
    """Columns gathered chunk by chunk."""

    def __init__(self, feed: Feed, rule: KeyRule = WEBDATASET_RULE) -> None:
        self.skipped: Counter[str] = Counter()
        self._feed = feed
        self._grouper = Grouper(rule, self.skipped)
        self._collector = ColumnCollector()
        self._cutter = BlockCutter()
        self._parts: list[MemberColumns] = []
        self._last_row = -1
        self._neighbours = True

    def add(self, chunk: Chunk) -> None:
        # First: each checksum of a large member lets go of the interpreter for a moment, which takes long when a thread
        # waits for it. The one that reads the next chunk does not yet.
        contents = _contents(chunk) if chunk.data else []
        crcs = np.fromiter(map(crc32, contents), np.uint32, len(contents))
        grouped = self._grouper.add(chunk.named)
        kept = slice(None) if grouped.kept is None else grouped.kept
        starts, offsets, sizes = chunk.starts[kept], chunk.offsets[kept], chunk.sizes[kept]
        if chunk.data:
            self._collect(grouped, contents, sizes)
        else:
            self._drop_columns(grouped)
        self._cut_blocks(chunk, grouped.rows, starts)
        crcs = crcs if chunk.data else np.array([self._large_crc], np.uint32)
        self._parts.append(MemberColumns(grouped.rows, grouped.fields, offsets, sizes, crcs[kept]))

    def _cut_blocks(self, chunk: Chunk, rows: IntArray, starts: IntArray) -> None:
        before = np.concatenate(([self._last_row], rows[:-1])) if len(rows) else rows
        self._neighbours &= bool((rows >= before).all())
        first = rows != before
        self._last_row = int(rows[-1]) if len(rows) else self._last_row
        if chunk.data:
            self._cutter.add(memoryview(chunk.data)[: chunk.stop - chunk.base], chunk.base, starts[first], rows[first])
        else:
            self._pass_large(chunk, starts[first], rows[first])

    def _pass_large(self, chunk: Chunk, starts: IntArray, rows: IntArray) -> None:
        at = chunk.base
        while at < chunk.stop:
            piece = self._feed.at(at, min(4 << 20, chunk.stop - at))
            if not piece:
                problem = "the archive ends inside a member"
                raise TruncatedError(
                    problem, expected=f"bytes up to {chunk.stop}", found=f"the end at {at}", offset=chunk.base
                )
            self._cutter.add(memoryview(piece), at, starts, rows)
            self._large_crc = self._update_large(chunk, piece, at)
            starts, rows = starts[:0], rows[:0]
            at += len(piece)

    def _update_large(self, chunk: Chunk, piece: bytes, at: int) -> int:
        start, stop = int(chunk.offsets[0]), int(chunk.offsets[0] + chunk.sizes[0])
        before = self._large_crc if at > chunk.base else 0
        return crc32(memoryview(piece)[max(start - at, 0) : max(stop - at, 0)], before)

    _large_crc = 0

    def _collect(self, grouped: Grouped, contents: list[Buffer], sizes: IntArray) -> None:
        for name, code in self._grouper.fields.items():
            extract = extractor_for(name)
            if extract is None:
                continue
            at = np.flatnonzero(grouped.fields == code)
            if len(at) and sizes[at].max() > largest_source(name):
                self._collector.drop(name, f"a member over {largest_source(name)} bytes")
            elif len(at):
                places = at if grouped.kept is None else grouped.kept[at]
                members = [contents[place] for place in places.tolist()]
                self._collector.add_bytes(grouped.rows[at].tolist(), name, members, extract)

    def _drop_columns(self, grouped: Grouped) -> None:
        """A member whose bytes were not asked for has no columns either."""
        names = list(self._grouper.fields)
        for name in {names[code] for code in grouped.fields.tolist()}:
            if extractor_for(name) is not None:
                self._collector.drop(name, f"a member over {LARGEST_SOURCE} bytes")

    def finish(self, facts: IndexMetadata, url: str) -> ShardRows:
        keys, names = self._grouper.keys, list(self._grouper.fields)
        members = join_members(self._parts)
        blocks = self._cutter.finish(len(keys)) if self._neighbours else None
        joined = join_samples(keys, members)
        if joined is not None:
            self._collector.move_rows(joined.rows.tolist())
            keys, members, blocks = joined.keys, joined.members, None
        counted = {reason: count for reason, count in self.skipped.items() if count}
        facts = IndexMetadata(facts.size, facts.head_crc, facts.rule, facts.compression, counted)
        return assemble(facts, keys, names, members, self._collector, blocks, url)


def _contents(chunk: Chunk) -> list[Buffer]:
    """The bytes of each member: a view where they are many, since to copy a few takes less time than a view of them."""
    starts, data, view = chunk.offsets - chunk.base, chunk.data, memoryview(chunk.data)
    edges = zip(starts.tolist(), (starts + chunk.sizes).tolist(), strict=True)
    return [data[start:stop] if stop - start < _SMALL_BYTES else view[start:stop] for start, stop in edges]


@dataclass(frozen=True, slots=True)
class MemberColumns:
    """Every member that belongs to a sample, in the archive's order."""

    rows: IntArray
    fields: IntArray
    offsets: IntArray
    sizes: IntArray
    crcs: npt.NDArray[np.uint32]


def join_members(parts: Sequence[MemberColumns]) -> MemberColumns:
    """Concatenate columns of members."""

    def join(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0, np.int64)

    return MemberColumns(join("rows"), join("fields"), join("offsets"), join("sizes"), join("crcs"))


def member_columns(index: ShardRows) -> MemberColumns:
    """The members of an index, in the archive's order; checksums are 0 where the index has none."""
    fields = index.fields
    if isinstance(fields, LongExtents):
        crcs = np.zeros(len(fields.codes), np.uint32) if fields.crc is None else fields.crc
        offsets, sizes = fields.offset.astype(np.int64), fields.size.astype(np.int64)
        members = MemberColumns(fields.entry_rows, fields.codes, offsets, sizes, crcs)
    else:
        members = join_members([_field_members(code, extents) for code, extents in enumerate(fields.values())])
    order = np.argsort(members.offsets, kind="stable")
    return MemberColumns(
        members.rows[order],
        members.fields[order],
        members.offsets[order],
        members.sizes[order],
        members.crcs[order].astype(np.uint32),
    )


def _field_members(code: int, extents: FieldExtents) -> MemberColumns:
    rows = np.flatnonzero(extents.offset)
    offsets, sizes = extents.offset[rows].astype(np.int64), extents.size[rows].astype(np.int64)
    crcs = np.zeros(len(rows), np.uint32) if extents.crc is None else extents.crc[rows]
    return MemberColumns(rows, np.full(len(rows), code), offsets, sizes, crcs)


@dataclass(frozen=True, slots=True)
class JoinedSamples:
    """Samples after their members, which are apart in the archive, were joined."""

    keys: list[str]
    members: MemberColumns
    rows: IntArray
    """The new row of each row before."""


def join_samples(keys: Sequence[str], members: MemberColumns) -> JoinedSamples | None:
    """Join the rows of one key, as of archives whose members are in no order; None where there is nothing to join.

    Rows of one key that have the same fields are several samples with that key, and stay as they are; so do hidden
    files, whose key is their folder. A field that joined rows have twice is left for `refuse_duplicates` to find.
    """
    if len(set(keys)) == len(keys):
        return None
    first: dict[str, int] = {}
    targets = [row if key.endswith("/") else first.setdefault(key, row) for row, key in enumerate(keys)]
    fields: dict[int, set[int]] = {}
    returning = np.isin(np.array(targets), [target for row, target in enumerate(targets) if target != row])
    at = np.flatnonzero(returning[members.rows])
    for row, field in zip(members.rows[at].tolist(), members.fields[at].tolist(), strict=True):
        fields.setdefault(row, set()).add(field)
    apart = {targets[row] for row, names in fields.items() if names != fields[targets[row]]}
    kept = [row for row, target in enumerate(targets) if target == row or target not in apart]
    if len(kept) == len(keys):
        return None
    numbers = {row: number for number, row in enumerate(kept)}
    rows = np.array([numbers.get(row, numbers[target]) for row, target in enumerate(targets)], np.int64)
    return JoinedSamples([keys[row] for row in kept], replace(members, rows=rows[members.rows]), rows)


def assemble(
    facts: IndexMetadata,
    keys: list[str],
    names: list[str],
    members: MemberColumns,
    columns: ColumnCollector,
    blocks: Blocks | None,
    url: str | None = None,
) -> ShardRows:
    """Build the index. ``names`` are the fields by code. Raises DuplicateFieldError when a sample has one twice."""
    refuse_duplicates(keys, names, members, url)
    fields = _wide(len(keys), names, members) if len(names) <= MOST_WIDE_FIELDS else _long(len(keys), names, members)
    arrays = columns.finish(len(keys))
    facts = replace(
        facts,
        dropped={**facts.dropped, **columns.dropped},
        nested=columns.nested,
        unreadable=columns.unreadable,
        complete=columns.complete,
    )
    return ShardRows(facts, text_array(keys), fields, arrays, blocks)


def refuse_duplicates(keys: list[str], names: list[str], members: MemberColumns, url: str | None) -> None:
    """Raise DuplicateFieldError when a sample has one field twice."""
    slots = members.rows * len(names) + members.fields
    if not (np.diff(slots) <= 0).any():  # the usual case: fields in one order, samples one after the other
        return
    if not (np.diff(np.sort(slots)) == 0).any():
        return
    order = np.argsort(slots, kind="stable")
    second = int(order[1:][np.diff(slots[order]) == 0].min())
    raise DuplicateFieldError(
        "a sample has the same field twice",
        shard=url,
        key=keys[members.rows[second]],
        field=names[members.fields[second]],
        offset=int(members.offsets[second]) - 512,
        hint="fields are compared in lower case; KeyRule(case='keep') tells them apart",
    )


def _wide(rows: int, names: list[str], members: MemberColumns) -> Mapping[str, FieldExtents]:
    found: dict[str, FieldExtents] = {}
    for code, name in enumerate(names):
        at = np.flatnonzero(members.fields == code)
        found[name] = FieldExtents(
            spread(rows, members.rows[at], members.offsets[at], np.uint64),
            spread(rows, members.rows[at], members.sizes[at], np.uint64),
            spread(rows, members.rows[at], members.crcs[at], np.uint32),
        )
    return found


def _long(rows: int, names: list[str], members: MemberColumns) -> LongExtents:
    order = np.argsort(members.rows, kind="stable")
    return LongExtents(
        rows,
        names,
        members.rows[order],
        members.fields[order],
        members.offsets[order].astype(np.uint64),
        members.sizes[order].astype(np.uint64),
        members.crcs[order],
    )


class MemberLog:
    """Columns of members, noted block by block: for many at once it takes a fraction of the time."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.fields: dict[str, int] = {}
        self._parts: list[MemberColumns] = []
        self._collector = ColumnCollector()

    def add(
        self,
        keys: Sequence[str],
        fields: Sequence[Sequence[str]],
        contents: Sequence[bytes],
        offsets: IntArray,
        sizes: IntArray,
    ) -> None:
        """Note samples: the fields of each, and all their members one after the other."""
        codes = self._codes(fields)
        rows = np.repeat(np.arange(len(self.keys), len(self.keys) + len(keys)), list(map(len, fields)))
        crcs = np.fromiter(map(crc32, contents), np.uint32, len(contents))
        self.keys += keys
        self._parts.append(MemberColumns(rows, codes, offsets, sizes, crcs))
        self._collect(rows, codes, contents, sizes)

    def _codes(self, fields: Sequence[Sequence[str]]) -> IntArray:
        codes = self.fields
        sets = {names: [codes.setdefault(name, len(codes)) for name in names] for names in dict.fromkeys(fields)}
        return np.array(list(chain.from_iterable(map(sets.__getitem__, fields))), np.int64)

    def _collect(self, rows: IntArray, codes: IntArray, contents: Sequence[bytes], sizes: IntArray) -> None:
        for name, code in self.fields.items():
            extract = extractor_for(name)
            if extract is None or not len(at := np.flatnonzero(codes == code)):
                continue
            if sizes[at].max() > largest_source(name):
                self._collector.drop(name, f"a member over {largest_source(name)} bytes")
            else:
                members = [contents[place] for place in at.tolist()]
                self._collector.add_bytes(rows[at].tolist(), name, members, extract)

    def field_totals(self) -> dict[str, tuple[int, int]]:
        """For each field, how many samples have it and its bytes in all."""
        members = join_members(self._parts)
        counts = np.bincount(members.fields, minlength=len(self.fields)).tolist()
        sizes = np.zeros(len(self.fields), np.int64)
        np.add.at(sizes, members.fields, members.sizes)
        return dict(zip(self.fields, zip(counts, sizes.tolist(), strict=True), strict=True))

    def finish(self, facts: IndexMetadata, blocks: Blocks) -> ShardRows:
        """The index of all members noted."""
        return assemble(facts, self.keys, list(self.fields), join_members(self._parts), self._collector, blocks)
