"""`SplitTable`: the index of one split, all rows of its segments as one sequence; and a segment's rows read back.

Opening reads nothing: the segments of the manifest say how many rows and shards there are. Extents and keys are looked
up in records, metadata columns and shards in Parquet files, each when it is first needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import OptionError

from ._key_table import KeyTable, hash_key
from ._layout import BLOCK_WORDS, BLOCKS, KEYS, Segment
from ._member_names import KeyRule
from ._parquet_files import ROW_GROUP_ROWS
from ._records import OpenFiles, RecordFile, RecordTable
from ._row_view import RowView
from ._rows_file import RowBatch, RowsSummary, blocks_of_records, rows_of_batch
from ._segment_reader import SegmentReader
from ._shard_rows import Blocks, ShardRows
from ._split_columns import Bounds, SplitColumns, type_of_name
from ._split_members import SplitMembers, record_files
from ._split_shards import ShardInfo, SplitShards, damaged_file, file_url
from ._table import RowExtents, RowMembers, Rows

__all__ = ["SegmentRows", "ShardInfo", "SplitTable"]


class SplitTable:
    """The index of one split. Thread-safe. Rows and shards are counted from its first one; deleted rows count too.

    ``urls`` are the shards where they are not below ``root``: of a list of tars, whose index is in the user's cache.

    Raises ShardIndexError where a file of the index is damaged, and errors of the store where it cannot be read.
    """

    def __init__(
        self, root: str, segments: Sequence[Segment], open_files: OpenFiles, urls: Sequence[str] | None = None
    ) -> None:
        self.root = root
        self.segments = tuple(segments)
        self._open_files = open_files
        self._shards = SplitShards(root, self.segments, open_files, urls)
        self._members = SplitMembers(root, self.segments, open_files, self._shards)
        self._columns = SplitColumns(root, self.segments, open_files, self._shards)

    def __len__(self) -> int:
        return self._shards.row_edge_list[-1]

    @property
    def starts(self) -> IntArray:
        """The first row of each segment, and the number of all rows."""
        return self._shards.row_edges

    # --------------------------------------------------------------------------------------------------------- shards

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        return len(self._shards)

    def segment_shards(self, segment: int) -> range:
        """Return the numbers of the shards of a segment."""
        return range(*self._shards.edges[segment : segment + 2])

    def shard_starts(self) -> IntArray:
        """Return the row at which each shard begins, and the number of all rows. Reads the shards of all segments."""
        return self._shards.starts()

    def shard_numbers(self, rows: IntArray) -> IntArray:
        """Return the number of the shard that has each of these rows."""
        return self._shards.numbers(rows, self._shards.segments_of(rows))

    def locate(self, row: int) -> tuple[int, int]:
        """Return the number of the shard that has a row, and the row's number in it. Raises PositionError."""
        number, first, _ = self._shards.locate(row, self._shards.segment_of(row))
        return number, row - first

    def shard(self, number: int) -> ShardInfo:
        """Return what is known of one shard. Raises PositionError."""
        return self._shards.info(number)

    def shard_path(self, number: int) -> str:
        """Return the path of one shard, or its URL where those were given. Raises PositionError."""
        return self._shards.path(number)

    def shard_url(self, number: int) -> str:
        """Return where one shard is. Raises PositionError, and ManifestError where its path leads out of the root."""
        return self._shards.url(number)

    def shards(self) -> pa.Table:
        """Return all that is known of all shards, as `SHARD_COLUMNS`."""
        return self._shards.table()

    def blocks(self, shard: int) -> Blocks | None:
        """Return the blocks of one shard; None if they are not known."""
        info = self._shards.info(shard)
        records = self._block_table.read_range(info.segment, info.blocks.start, info.blocks.stop)
        first = info.first_row - self._shards.row_edge_list[info.segment]
        try:
            blocks = blocks_of_records(records, first)
        except ValueError as error:
            raise self._damaged("the blocks of a shard do not follow each other", info.segment, BLOCKS) from error
        if blocks is not None and blocks.rows[-1] != info.samples:
            raise self._damaged("the blocks of a shard have other samples", info.segment, BLOCKS)
        return blocks

    @functools.cached_property
    def _block_table(self) -> RecordTable:
        return RecordTable(record_files(self.root, self.segments, BLOCKS), BLOCK_WORDS, self._open_files)

    def _damaged(self, problem: str, segment: int, name: str) -> Exception:
        return damaged_file(problem, file_url(self.root, self.segments[segment], self.segments[segment].file(name)))

    # --------------------------------------------------------------------------------------------------- keys, members

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field: those of the layout, then the others as they first appear."""
        return self._members.fields

    @property
    def layout_fields(self) -> tuple[str, ...]:
        """The fields of the layout, which `extents` of all fields always has."""
        return self._members.layout.fields

    @property
    def sparse(self) -> dict[str, bool]:
        """For each field, whether some row may lack it."""
        return self._members.sparse

    def keys(self, rows: IntArray) -> list[str]:
        """Return the keys of rows. Raises PositionError."""
        return self._members.keys(rows)

    def key(self, row: int) -> str:
        """Return the key of one row. Raises PositionError."""
        return self._members.key(row)

    def extents(self, rows: Rows, fields: Sequence[str] | None = None) -> RowExtents:
        """Return where the members of rows are: of these fields as far as the split has them, or of all.

        Of all fields, those outside the layout are left out that none of the rows has. Raises PositionError.
        """
        return self._members.extents(rows, fields)

    def row_members(self, row: int) -> RowMembers:
        """Return shard, key and members of one row; for a single one quicker than `extents`. Raises PositionError."""
        return self._members.row(row)

    def field_totals(self, rows: IntArray | None = None) -> dict[str, tuple[int, int]]:
        """For each field, how many of these rows have it and its bytes in all; None stands for all rows."""
        totals: dict[str, tuple[int, int]] = {}
        if rows is None:
            for segment in self.segments:
                _add_totals(totals, segment.fields)
            return totals
        for first in range(0, len(rows), ROW_GROUP_ROWS):
            found = self.extents(rows[first : first + ROW_GROUP_ROWS])
            counts = (found.starts >= 0).sum(axis=1).tolist()
            sizes = (found.stops - found.starts).sum(axis=1).tolist()
            _add_totals(totals, dict(zip(found.fields, zip(counts, sizes, strict=True), strict=True)))
        return totals

    def find(self, key: str) -> list[int]:
        """Return the rows that have this key, ascending."""
        return list(self._find(key))

    def first(self, key: str) -> int | None:
        """Return the first row that has this key; None if there is none."""
        return next(self._find(key), None)

    def _find(self, key: str) -> Iterator[int]:
        key_hash, size = hash_key(key), self._members.layout.key_bytes
        slot = key.encode().ljust(size, b"\0")
        is_near = len(slot) == size and 0 not in slot[: len(key.encode())] and key != ""
        members, find = self._members, self._key_table.find
        for number in range(len(self.segments)):
            for own in find(number, key_hash):
                found = members.key_slot(number, own)
                if found == slot if is_near else not any(found[:4]) and members.key_of(number, own) == key:
                    yield self._shards.row_edge_list[number] + own

    @functools.cached_property
    def _key_table(self) -> KeyTable:
        return KeyTable(record_files(self.root, self.segments, KEYS, per_row=True), self._open_files)

    # --------------------------------------------------------------------------------------------------- deleted rows

    def deleted(self) -> RowView:
        """Return the rows that are deleted."""
        return self._deleted

    def live(self) -> RowView:
        """Return the rows that are not deleted."""
        return self._live

    @functools.cached_property
    def _live(self) -> RowView:
        whole = RowView.whole(len(self))
        return whole.without(self._deleted) if len(self._deleted) else whole

    @functools.cached_property
    def _deleted(self) -> RowView:
        entries = [(number, segment, segment.deleted) for number, segment in enumerate(self.segments)]
        files = [
            RecordFile(file_url(self.root, segment, file), f"{segment.id}/{file.name}", file.size, file.records)
            for _, segment, file in entries
            if file is not None
        ]
        table = RecordTable(files, 1, self._open_files)
        numbers = np.array([number for number, _, file in entries if file is not None], np.int64)
        edges = np.concatenate(([0], np.cumsum(table.counts)))
        places = np.repeat(np.arange(len(files)), table.counts)
        own = table.read(places, np.arange(int(edges[-1])) - edges[:-1][places])[:, 0].astype(np.int64)
        segments = numbers[places]
        rows = own + self.starts[segments]
        wrong = rows >= self.starts[segments + 1]
        wrong[1:] |= rows[1:] <= rows[:-1]
        if wrong.any():
            url = files[int(places[wrong][0])].url
            raise damaged_file("deleted rows are not rows of their segment in ascending order", url)
        return RowView.from_rows(rows)

    # -------------------------------------------------------------------------------------------------------- columns

    def column_types(self) -> dict[str, pa.DataType]:
        """Return the type of each metadata column; null where no row has a value."""
        return dict(self._columns.types)

    def left_out(self) -> dict[str, str]:
        """Return columns, or names with all columns below them, that some segment does not have, and why."""
        return dict(self._columns.left_out)

    def unanswerable(self, name: str) -> str | None:
        """Return why some rows may have values under a name that the index does not have; None if it has all."""
        return self._columns.unanswerable(name)

    def unreadable_row(self, name: str) -> tuple[int, str] | None:
        """Return the first row of which a column is not known as its member does not decode, and that field."""
        return self._columns.unreadable_row(name)

    def columns(self, names: Sequence[str], rows: RowView | None = None, *, strict: bool = True) -> pa.Table:
        """Return columns of all rows, or of those of a view in its order; null where a row has no value.

        ``__key__`` is the column of the keys. A name that is no column is one of nulls. Raises FieldError where rows
        may have values under a name that are not in the index; unless ``strict``, members that do not decode have no
        value.
        """
        return self._columns.read(names, rows, strict=strict)

    def check_column(self, name: str, *, strict: bool = True) -> None:
        """Raise FieldError where a column is not known of all rows."""
        self._columns.check(name, strict=strict)

    def scan(
        self,
        names: Sequence[str],
        may_match: Callable[[Mapping[str, Bounds | None]], bool],
        *,
        as_dictionary: Sequence[str] = (),
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield columns of neighbouring rows, and the first row of each part; rows that cannot match are left out.

        ``may_match`` gets the smallest and largest value of each column in some rows, and None where they are unknown.
        Texts of columns in ``as_dictionary`` are dictionary arrays. Does not `check_column`.
        """
        return self._columns.scan(names, may_match, as_dictionary=as_dictionary)

    def values(self, row: int) -> dict[str, Any]:
        """Return the value of each metadata column of one row. Raises PositionError."""
        return self._columns.values(row)

    # ------------------------------------------------------------------------------------------------------- read back

    def shard_rows(self, shard: int, rule: KeyRule) -> ShardRows:
        """Return the index of one shard as it was before it was part of a segment, without ``skipped``."""
        number = self._shards.segment_of_shard(shard)
        own = shard - self._shards.edges[number]
        reader = self.reader(number)
        start, stop = reader.first_rows[own : own + 2].tolist()
        batch = reader.batch(reader.rows(start, stop), own, own + 1)
        try:
            return rows_of_batch(batch, rule, self.segments[number].left_out, self.segments[number].complete)
        except ValueError as error:
            raise self._damaged("the blocks of a shard do not follow each other", number, BLOCKS) from error

    def reader(self, segment: int) -> SegmentReader:
        """Return what reads the rows of a segment as batches."""
        return SegmentReader(segment, self._shards, self._members, self._columns, self._block_table)


def _add_totals(totals: dict[str, tuple[int, int]], more: Mapping[str, tuple[int, int]]) -> None:
    for name, (count, size) in more.items():
        known = totals.get(name, (0, 0))
        totals[name] = known[0] + count, known[1] + size


class SegmentRows:
    """The rows of one segment, or of neighbouring shards of it, read back in parts: a `RowSource`.

    ``shards`` are numbers of shards in the split.
    """

    def __init__(self, table: SplitTable, segment: int, shards: range | None = None) -> None:
        whole = table.segment_shards(segment)
        shards = whole if shards is None else shards
        if not whole.start <= shards.start <= shards.stop <= whole.stop or shards.step != 1:
            raise OptionError(f"shards must be neighbours from {whole.start} to {whole.stop}", found=repr(shards))
        self._table, self._segment, self._is_whole = table, segment, shards == whole
        self._shards = range(shards.start - whole.start, shards.stop - whole.start)

    @functools.cached_property
    def _reader(self) -> SegmentReader:
        return self._table.reader(self._segment)

    @property
    def summary(self) -> RowsSummary:
        """Of its rows. That of some shards only takes reading their records.

        The longest key is that for which the layout of the split was chosen.
        """
        return self._summary

    @functools.cached_property
    def _summary(self) -> RowsSummary:
        segment = self._table.segments[self._segment]
        rows, size = segment.rows, segment.bytes
        fields, unreadable = segment.fields, segment.unreadable
        if not self._is_whole:
            start, stop = self._rows
            rows, size = stop - start, sum(self._reader.shards["bytes"].to_pylist()[self._own])
            first = int(self._table.starts[self._segment])
            totals = self._table.field_totals(np.arange(start, stop) + first)
            fields = {name: total for name, total in totals.items() if total[0]}
            found = self._reader.unreadable(start, stop)
            unreadable = {name: int(numbers[0]) for name, numbers in found.items()}
        return RowsSummary(
            rows,
            len(self._shards),
            size,
            fields,
            {name: type_of_name(kind, self._table.root) for name, kind in segment.columns.items()},
            segment.left_out,
            segment.complete,
            segment.layout.key_bytes,
            unreadable,
        )

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows in order, at most a row group at a time.

        A batch ends where the crc32 of a field begins or ceases to be known.
        """
        reader, at = self._reader, self._shards.start
        for rows in reader.parts(*self._rows):
            stop = self._shards.stop
            if rows.stop < self._rows[1]:
                stop = int(np.searchsorted(reader.first_rows[: stop + 1], rows.stop))
            yield reader.batch(rows, at, stop)
            at = stop
        if at < self._shards.stop:  # shards without rows
            yield reader.batch(reader.rows(self._rows[1], self._rows[1]), at, self._shards.stop)

    @property
    def _own(self) -> slice:
        return slice(self._shards.start, self._shards.stop)

    @property
    def _rows(self) -> tuple[int, int]:
        """The first row in the segment, and the one after the last."""
        first_rows = self._reader.first_rows
        return int(first_rows[self._shards.start]), int(first_rows[self._shards.stop])
