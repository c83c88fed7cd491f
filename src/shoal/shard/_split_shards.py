"""The shards of a split: which one has a row, where it begins, how large it is. Read per segment, when it is needed."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal._typing import IntArray
from shoal.errors import OptionError, PositionError, ShardIndexError
from shoal.store._concurrency import run_all
from shoal.store._registry import is_remote
from shoal.store._url import join_url

from ._arrow_arrays import as_arrow, as_numpy, text_array
from ._generation import locate
from ._layout import BLOCKS, SEGMENT_FOLDER, SHARDS, IndexFile, Segment
from ._parquet_files import ParquetFile
from ._records import OpenFiles
from ._rows_file import SHARD_COLUMNS
from ._shard_rows import REINDEX_HINT

__all__ = ["ShardInfo", "SplitShards", "damaged_file", "file_url"]

_COLUMNS = ("path", "samples", "bytes", "blocks", "compression", "head_crc32")
_UNLIMITED = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What a segment has of one shard, its digests excepted."""

    path: str
    samples: int
    bytes: int
    compression: str | None
    head_crc32: int
    first_row: int
    """The row of the split at which it begins."""
    segment: int
    blocks: range
    """Its records in ``blocks.rec`` of that segment."""


@dataclass(frozen=True, slots=True)
class _SegmentShards:
    """The shards of one segment."""

    paths: pa.ChunkedArray
    compressions: pa.ChunkedArray
    head_crcs: IntArray
    sizes: IntArray
    block_edges: IntArray
    """The first block of each shard, and the number of all."""


def file_url(root: str, segment: Segment, file: IndexFile) -> str:
    """Return the URL of a file of a segment."""
    return join_url(root, SEGMENT_FOLDER, segment.id, file.name)


def damaged_file(problem: str, url: str, found: object = None) -> ShardIndexError:
    """Return the error for a file whose checksums are right, and whose content cannot be."""
    return ShardIndexError(f"The index is damaged: {problem}", found=found, shard=url, hint=REINDEX_HINT)


class SplitShards:
    """The ``shards.parquet`` of the segments of a split. Thread-safe; reads those of the segments that are asked for.

    Arrays over all shards are made when the first is needed. Until a segment is read, its shards seem to begin at its
    first row, so the arrays are sorted at any time and one search is right for rows of segments that were read.

    Paths of shards are relative to the root. ``urls``, one for each shard, take the place of paths where tars are those
    that the caller named: only paths come from files.
    """

    def __init__(
        self, root: str, segments: Sequence[Segment], open_files: OpenFiles, urls: Sequence[str] | None = None
    ) -> None:
        self._root, self._segments, self._open_files, self._urls = root, segments, open_files, urls
        self.row_edges: IntArray = np.cumsum([0, *(segment.rows for segment in segments)], dtype=np.int64)
        """The first row of each segment, and the number of all rows."""
        self.row_edge_list: list[int] = self.row_edges.tolist()
        self.edges: list[int] = np.cumsum([0, *(segment.shards for segment in segments)], dtype=np.int64).tolist()
        """The first shard of each segment, and the number of all shards."""
        self._known: dict[int, _SegmentShards] = {}
        self._first_rows = self._limits = np.empty(0, np.int64)
        self._lock = threading.Lock()
        if urls is not None and len(urls) != len(self):
            raise OptionError("urls must have one for each shard", expected=len(self), found=len(urls))

    def __len__(self) -> int:
        return self.edges[-1]

    def segment_of(self, row: int) -> int:
        """Return the segment that has a row. Raises PositionError."""
        edges = self.row_edge_list
        if not 0 <= row < edges[-1]:
            raise PositionError("No sample at this position", expected=f"0 to {edges[-1] - 1}", found=row)
        return bisect_right(edges, row) - 1

    def segments_of(self, rows: IntArray) -> IntArray:
        """Return the segment of each row. Raises PositionError."""
        count = self.row_edge_list[-1]
        outside = rows.view(np.uint64) >= count  # as such, negative ones are very large
        if outside.any():
            self.segment_of(int(rows[outside][0]))  # which raises
        if len(self._segments) == 1:
            return np.zeros(len(rows), np.int64)
        return np.searchsorted(self.row_edges, rows, "right") - 1

    def numbers(self, rows: IntArray, segments: IntArray) -> IntArray:
        """Return the shard of each of these rows, which are in these segments."""
        self._load_of(segments)
        return np.searchsorted(self._first_rows, rows, "right") - 1

    def first_rows(self, numbers: IntArray) -> IntArray:
        """Return the rows at which shards begin that `numbers` returned."""
        return self._first_rows[numbers]

    def limits(self, numbers: IntArray) -> IntArray:
        """Return where members of shards that `numbers` returned must end: only the size of plain tars is known."""
        return self._limits[numbers]

    def locate(self, row: int, segment: int) -> tuple[int, int, int]:
        """Return the number of the shard that has a row of this segment, its first row, and where members must end."""
        if segment not in self._known:
            self.load([segment])
        first_rows = self._first_rows.data
        number = bisect_right(first_rows, row, self.edges[segment], self.edges[segment + 1]) - 1
        return number, first_rows[number], self._limits.data[number]

    def segment_of_shard(self, number: int) -> int:
        """Return the segment that has a shard. Raises PositionError."""
        if not 0 <= number < len(self):
            raise PositionError("No shard has this number", expected=f"0 to {len(self) - 1}", found=number)
        return bisect_right(self.edges, number) - 1

    def info(self, number: int) -> ShardInfo:
        """Return what is known of one shard."""
        segment = self.segment_of_shard(number)
        self.load([segment])
        shards, own = self._known[segment], number - self.edges[segment]
        first, stop = int(self._first_rows[number]), self.row_edge_list[segment + 1]
        if number + 1 < self.edges[segment + 1]:
            stop = int(self._first_rows[number + 1])
        return ShardInfo(
            shards.paths[own].as_py(),
            stop - first,
            int(shards.sizes[own]),
            shards.compressions[own].as_py(),
            int(shards.head_crcs[own]),
            first,
            segment,
            range(*shards.block_edges[own : own + 2].tolist()),
        )

    def path(self, number: int) -> str:
        """Return the path of one shard."""
        segment = self.segment_of_shard(number)
        if self._urls is not None:
            return self._urls[number]
        self.load([segment])
        path: str = self._known[segment].paths[number - self.edges[segment]].as_py()
        return path

    def url(self, number: int) -> str:
        """Return where one shard is. Raises ManifestError where its path leads out of the dataset."""
        path = self.path(number)
        return path if self._urls is not None else locate(self._root, path)

    def block_edges(self, segment: int) -> IntArray:
        """Return the first block of each shard of a segment, and the number of all its blocks."""
        self.load([segment])
        return self._known[segment].block_edges

    def starts(self) -> IntArray:
        """Return the row at which each shard begins, and the number of all rows."""
        self.load(range(len(self._segments)))
        return np.append(self._first_rows, self.row_edges[-1])

    def table(self, segments: Iterable[int] | None = None) -> pa.Table:
        """Return the shards of these segments, or of all, with all that is known of them."""
        chosen = range(len(self._segments)) if segments is None else segments
        reads = [partial(self._read, segment, SHARD_COLUMNS.names) for segment in chosen]
        return pa.concat_tables([SHARD_COLUMNS.empty_table(), *self._run(reads)])

    def load(self, segments: Iterable[int]) -> None:
        """Read the shards of some segments, unless they are known."""
        with self._lock:
            missing = [segment for segment in segments if segment not in self._known]
            if not missing:
                return
            tables = self._run([partial(self._read, segment, _COLUMNS) for segment in missing])
            if len(self._first_rows) < len(self):
                first_rows = np.repeat(self.row_edges[:-1], np.diff(self.edges))
                self._limits, self._first_rows = np.zeros(len(self), np.int64), first_rows
            for segment, table in zip(missing, tables, strict=True):
                self._add(segment, table)

    def _load_of(self, segments: IntArray) -> None:
        if len(self._known) < len(self._segments):
            missing = set(segments.tolist()) - self._known.keys()
            if missing:
                self.load(sorted(missing))

    def _run(self, reads: list[partial[pa.Table]]) -> list[pa.Table]:
        return run_all(reads) if len(reads) > 1 and is_remote(self._root) else [read() for read in reads]

    def _read(self, segment: int, columns: Sequence[str]) -> pa.Table:
        file = self._segments[segment].file(SHARDS)
        if file.records != self._segments[segment].shards:
            raise damaged_file("a segment has another number of shards than it says", self._url(segment), file.records)
        if not file.records:
            return pa.table({name: pa.array([], SHARD_COLUMNS.field(name).type) for name in columns})
        table = ParquetFile(self._url(segment), file, self._open_files).read(columns)
        schema = pa.schema([SHARD_COLUMNS.field(name) for name in columns])
        if table.num_rows != file.records or table.schema.types != schema.types:
            raise damaged_file("the columns of its shards are not what they must be", self._url(segment))
        if self._urls is not None and "path" in columns:
            urls = text_array(list(self._urls[self.edges[segment] : self.edges[segment + 1]]))
            table = table.set_column(table.column_names.index("path"), SHARD_COLUMNS.field("path"), urls)
        return table.combine_chunks()

    def _add(self, segment: int, table: pa.Table) -> None:
        samples, sizes, blocks, head_crcs = (
            self._numbers_of(segment, table, name) for name in ("samples", "bytes", "blocks", "head_crc32")
        )
        rows, record_count = self._segments[segment].rows, self._segments[segment].file(BLOCKS).records
        if _total(samples, rows) != rows or _total(blocks, record_count) != record_count:
            raise damaged_file("its shards have another number of samples or blocks", self._url(segment))
        if table["path"].null_count:
            raise damaged_file("a shard has no path", self._url(segment))
        own = slice(self.edges[segment], self.edges[segment + 1])
        is_plain = pc.call_function("is_null", [table["compression"].combine_chunks()])
        limits = pc.call_function("if_else", [is_plain, as_arrow(sizes), pa.scalar(_UNLIMITED, pa.int64())])
        self._limits[own] = as_numpy(limits)
        self._first_rows[own] = self.row_edges[segment] + np.cumsum(samples) - samples
        block_edges = np.concatenate(([0], np.cumsum(blocks)))
        shards = _SegmentShards(table["path"], table["compression"], head_crcs, sizes, block_edges)
        self._known[segment] = shards

    def _numbers_of(self, segment: int, table: pa.Table, name: str) -> IntArray:
        column = table[name]
        values: IntArray = as_numpy(column.combine_chunks()) if not column.null_count else np.array([-1])
        if len(values) and values.min() < 0:
            raise damaged_file(
                f"the column {name!r} of its shards has values that are out of range", self._url(segment)
            )
        return values

    def _url(self, segment: int) -> str:
        return file_url(self._root, self._segments[segment], self._segments[segment].file(SHARDS))


def _total(values: IntArray, expected: int) -> int:
    """The sum of values that are not negative; -1 where it cannot be the expected one, and might not fit."""
    return -1 if len(values) and values.max() > expected else int(values.sum())
