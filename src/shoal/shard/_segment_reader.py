"""Reads the rows of a segment back as batches, to write them into another segment or to look at one shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shoal._typing import AnyArray, IntArray, UInt8Array

from ._arrow_arrays import as_numpy
from ._layout import KEY_COLUMN
from ._parquet_files import ROW_GROUP_ROWS
from ._records import RecordTable
from ._rows_file import RowBatch
from ._shard_rows import FieldExtents, LongExtents
from ._split_columns import SplitColumns
from ._split_members import MemberRows, SplitMembers
from ._split_shards import SplitShards

__all__ = ["PartRows", "SegmentReader"]

_MAX_PART_MEMBERS = 1 << 22
"""Members of the layout that are read at a time."""
_MAX_WIDE_FIELDS = 256
"""With more fields, members are LongExtents, unless the layout has all of them."""
_UNKNOWN, _KNOWN, _MIXED = 1, 2, 3
_STEP_ROWS = 4096


@dataclass(frozen=True, slots=True)
class PartRows:
    """Neighbouring rows of a segment."""

    start: int
    stop: int
    members: MemberRows
    samples: pa.Table
    """Keys and metadata columns."""


class SegmentReader:
    """Reads rows of one segment. Rows and shards are counted in it."""

    def __init__(
        self, segment: int, shards: SplitShards, members: SplitMembers, columns: SplitColumns, blocks: RecordTable
    ) -> None:
        self._segment = segment
        self._members, self._columns, self._blocks = members, columns, blocks
        self._block_edges = shards.block_edges(segment)
        self.shards = shards.table([segment]).combine_chunks()
        """All its shards."""
        samples = as_numpy(self.shards["samples"].combine_chunks())
        self.first_rows: IntArray = np.concatenate(([0], np.cumsum(samples)))
        """The first row of each shard, and the number of all rows."""

    def parts(self, start: int, stop: int) -> Iterator[PartRows]:
        """Yield rows in parts that are small enough, and in which the crc32 of a field is known of all or of none."""
        step = max(_MAX_PART_MEMBERS // max(len(self._members.layout.fields), 1), 1)
        for group in range(start // ROW_GROUP_ROWS, -(-stop // ROW_GROUP_ROWS)):
            first = group * ROW_GROUP_ROWS
            samples = self._columns.read_back(self._segment, [group])
            group_stop = min(first + ROW_GROUP_ROWS, stop)
            for low in range(max(first, start), group_stop, step):
                members = self._members.read_back(self._segment, low, min(low + step, group_stop))
                for run in _uniform_runs(members):
                    part = samples.slice(low - first + run.start, len(run))
                    yield PartRows(low + run.start, low + run.stop, members.part(run), part)

    def rows(self, start: int, stop: int) -> PartRows:
        """Return rows as one part."""
        groups = range(start // ROW_GROUP_ROWS, -(-stop // ROW_GROUP_ROWS)) if start < stop else range(0)
        samples = self._columns.read_back(self._segment, groups)
        if start < stop:
            samples = samples.slice(start - groups.start * ROW_GROUP_ROWS, stop - start)
        return PartRows(start, stop, self._members.read_back(self._segment, start, stop), samples)

    def batch(self, rows: PartRows, first_shard: int, stop_shard: int) -> RowBatch:
        """Return rows as a batch in which these shards begin."""
        edges = self._block_edges[[first_shard, stop_shard]].tolist()
        blocks = self._blocks.read_range(self._segment, *edges).copy()
        blocks[:, 0] -= np.uint32(rows.start)
        columns = {name: rows.samples[name].combine_chunks() for name in rows.samples.column_names}
        keys = columns.pop(KEY_COLUMN)
        shards = self.shards.slice(first_shard, stop_shard - first_shard)
        fields = _fields_of(rows.members, self._members.fields)
        return RowBatch(shards, keys, fields, columns, self.unreadable(rows.start, rows.stop), blocks)

    def unreadable(self, start: int, stop: int) -> dict[str, IntArray]:
        """Return for each field the rows, counted from ``start``, whose member does not decode."""
        return self._columns.unreadable_rows(self._segment, start, stop)


# ------------------------------------------------------------------------------------------------------ known checksums


def _uniform_runs(members: MemberRows) -> Iterator[range]:
    """Yield runs of rows in which the crc32 of a field is known of all members or of none.

    With very many fields it is that of all fields. Members without bytes do not count: their crc32 is 0.
    """
    count, rare = len(members), members.rare
    is_known, rare_is_known = members.crcs >= 0, rare.crcs >= 0
    filled = members.sizes > 0
    if (is_known.all(where=filled) and rare_is_known.all()) or not (is_known.any(where=filled) or rare_is_known.any()):
        yield range(count)
        return
    lines = {name: line for line, name in enumerate(dict.fromkeys([*members.fields, *rare.names]))}
    flags = np.zeros((len(lines), count), np.uint8)
    flags[: len(filled)] = np.where(filled, np.where(is_known, _KNOWN, _UNKNOWN), 0)
    places = np.array([lines[name] for name in rare.names], np.int64)[rare.codes]
    flags[places, rare.columns] = np.where(rare.sizes > 0, np.where(rare_is_known, _KNOWN, _UNKNOWN), 0)
    if len(lines) > _MAX_WIDE_FIELDS:
        flags = np.bitwise_or.reduce(flags, axis=0, keepdims=True)
    yield from _runs_of_flags(flags)


def _runs_of_flags(flags: UInt8Array) -> Iterator[range]:
    start, count = 0, flags.shape[1]
    while start < count:
        stop, seen = count, np.zeros((len(flags), 1), np.uint8)
        for at in range(start, count, _STEP_ROWS):
            part = np.bitwise_or.accumulate(flags[:, at : at + _STEP_ROWS], axis=1) | seen
            mixed = (part == _MIXED).any(axis=0)
            if mixed.any():
                stop = max(at + int(mixed.argmax()), start + 1)
                break
            seen = part[:, -1:]
        yield range(start, stop)
        start = stop


# -------------------------------------------------------------------------------------------------------------- extents


def _fields_of(members: MemberRows, order: tuple[str, ...]) -> Mapping[str, FieldExtents]:
    """Return the extents of the fields that these rows have."""
    rare = members.rare
    has_rare = set(np.array(rare.names, object)[np.unique(rare.codes)].tolist())
    found = [name for name, has in zip(members.fields, np.any(members.starts, axis=1), strict=True) if has]
    names = sorted({*found, *has_rare}, key={name: place for place, name in enumerate(order)}.__getitem__)
    if len(names) > _MAX_WIDE_FIELDS and has_rare:
        long = _long_extents(members, names)
        if long is not None:
            return long
    lines = {name: line for line, name in enumerate(members.fields)}
    codes = {name: code for code, name in enumerate(rare.names) if name in has_rare}
    return {name: _wide_extents(members, lines.get(name), codes.get(name)) for name in names}


def _wide_extents(members: MemberRows, line: int | None, code: int | None) -> FieldExtents:
    if line is None:
        offsets, sizes, crcs = (np.zeros(len(members), np.int64) for _ in range(3))
    else:
        offsets, sizes, crcs = members.starts[line], members.sizes[line], members.crcs[line]
    if code is not None:
        rare = members.rare
        at = np.flatnonzero(rare.codes == code)
        own = rare.columns[at]
        offsets, sizes, crcs = offsets.copy(), sizes.copy(), crcs.copy()
        offsets[own], sizes[own], crcs[own] = rare.offsets[at], rare.sizes[at], rare.crcs[at]
    return FieldExtents(offsets.astype(np.uint64), sizes.astype(np.uint64), _known(crcs, sizes))


def _known(crcs: IntArray, sizes: IntArray) -> AnyArray | None:
    """Checksums as they are stored; None where one is not known."""
    is_unknown = bool(((crcs < 0) & (sizes > 0)).any())
    return None if is_unknown else np.maximum(crcs, 0).astype(np.uint32)


def _long_extents(members: MemberRows, names: list[str]) -> LongExtents | None:
    """Return all members in the order of rows; None where the crc32 of some of them is known, and of others is not."""
    numbers, rare = {name: number for number, name in enumerate(names)}, members.rare
    rows, lines = np.nonzero(members.starts.T)
    of_line = np.array([numbers.get(name, -1) for name in members.fields], np.int64)
    of_code = np.array([numbers.get(name, -1) for name in rare.names], np.int64)
    rows, codes = np.concatenate((rows, rare.columns)), np.concatenate((of_line[lines], of_code[rare.codes]))
    order = np.argsort(rows, kind="stable")
    offsets, sizes, crcs = (
        np.concatenate((near[lines, rows[: len(lines)]], far))[order]
        for near, far in (
            (members.starts, rare.offsets),
            (members.sizes, rare.sizes),
            (members.crcs, rare.crcs),
        )
    )
    is_unknown = (crcs < 0) & (sizes > 0)
    if is_unknown.any() and not is_unknown.all(where=sizes > 0):
        return None
    known = None if is_unknown.any() else np.maximum(crcs, 0).astype(np.uint32)
    return LongExtents(
        len(members), names, rows[order], codes[order], offsets.astype(np.uint64), sizes.astype(np.uint64), known
    )
