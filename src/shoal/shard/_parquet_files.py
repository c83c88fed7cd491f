"""Parquet files of a segment: every byte is compared with its checksum before Arrow gets it.

The crc32 of each 64 KiB before the footer is in the footer, and where the footer begins and its crc32 are in the
manifest. All row groups have 65,536 rows except the last, so the group of a row is arithmetic.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal._crc32 import crc32
from shoal.errors import ShardIndexError, ShoalError
from shoal.store._registry import is_remote, store_for

from ._layout import IndexFile, Scalar
from ._records import OpenFiles
from ._shard_rows import REINDEX_HINT

__all__ = ["ROW_GROUP_ROWS", "ParquetFile", "ParquetFileWriter"]

ROW_GROUP_ROWS = 1 << 16
"""The rows of every row group except the last one of a file."""
_CHUNK_BYTES = 1 << 16
"""Each so many bytes have a checksum."""
_MIN_WRITE_BYTES = 1 << 20
_SMALL_FILE_BYTES = 1 << 18
"""A file of at most this size is read with its footer, in one request."""
_MAX_BOUND_CHARS = 64
_CHECKSUMS = b"shoal.crc32"
_SORTED_STRINGS = ("__key__", "path")
_SORTED_INTEGERS = ("__shard__", "samples", "bytes")


def _chunk_sums(data: memoryview) -> list[int]:
    return [crc32(data[at : at + _CHUNK_BYTES]) for at in range(0, len(data), _CHUNK_BYTES)]


# -------------------------------------------------------------------------------------------------------------- footers


@dataclass(frozen=True, slots=True)
class _Footer:
    """What the footer of a file says."""

    metadata: Any
    schema: pa.Schema
    sums: list[int]
    """The crc32 of each chunk before the footer."""
    leaves: dict[str, range]
    """The numbers of the Parquet columns of each column: several where it is nested."""
    file_bytes: memoryview | None = None
    """All bytes before the footer, of a small file."""

    def bounds(self, column: str) -> list[tuple[Scalar, Scalar] | None]:
        """The smallest and largest value in each row group."""
        if not _has_bounds(self.schema.field(column).type):
            return [None] * self.metadata.num_row_groups
        return [
            (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None
            for statistics in self._statistics(column)
        ]

    def null_counts(self, column: str) -> list[int | None]:
        """How many rows of each row group are null."""
        if pa.types.is_nested(self.schema.field(column).type):
            return [None] * self.metadata.num_row_groups  # its statistics count elements
        return [
            statistics.null_count if statistics is not None and statistics.has_null_count else None
            for statistics in self._statistics(column)
        ]

    def _statistics(self, column: str) -> Iterator[Any]:
        leaf = self.leaves[column][0]
        for group in range(self.metadata.num_row_groups):
            yield self.metadata.row_group(group).column(leaf).statistics


def _parse_footer(data: bytes | memoryview) -> _Footer:
    """Raises errors of Arrow, a ValueError or a LookupError where `ParquetFileWriter` did not write it."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    sums = np.frombuffer(bytes.fromhex((metadata.metadata or {})[_CHECKSUMS].decode()), "<u4").tolist()
    schema = metadata.schema.to_arrow_schema()
    edges = accumulate((_leaf_count(column.type) for column in schema), initial=0)
    leaves = {name: range(*edge) for name, edge in zip(schema.names, pairwise(edges), strict=True)}
    return _Footer(metadata, schema, sums, leaves)


def _leaf_count(kind: pa.DataType) -> int:
    if not kind.num_fields:
        return 1
    return sum(_leaf_count(kind.field(number).type) for number in range(kind.num_fields))


def _has_bounds(kind: pa.DataType) -> bool:
    """Whether the statistics of Parquet are the values; those of times, for example, are other numbers."""
    is_number = pa.types.is_integer(kind) or kind in (pa.bool_(), pa.float32(), pa.float64())
    return is_number or _is_string(kind)


def _is_string(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string())


# -------------------------------------------------------------------------------------------------------------- writing


class _Sink(io.RawIOBase):
    """The file that Arrow writes: computes checksums, and keeps the footer."""

    def __init__(self, url: str) -> None:
        self.size = 0
        self.sums: list[int] = []
        self.footer: bytearray | None = None
        self.is_aborted = False
        self.writer = store_for(url).create(url)
        self._pending = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.is_aborted:
            (self._pending if self.footer is None else self.footer).extend(data)
            if len(self._pending) >= _MIN_WRITE_BYTES:
                self._write_out(len(self._pending) // _CHUNK_BYTES * _CHUNK_BYTES)
        return len(data)

    def begin_footer(self) -> None:
        """Write what is pending; all that follows is the footer."""
        self._write_out(len(self._pending))
        self.footer = bytearray()

    def _write_out(self, size: int) -> None:
        with memoryview(self._pending) as view, view[:size] as part:
            self.sums += _chunk_sums(part)
            self.writer.write(part)
        self.size += size
        del self._pending[:size]


class ParquetFileWriter:
    """Writes the file ``name`` of a segment. Without rows there is no file."""

    def __init__(self, folder: str, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.count = 0
        """Rows so far."""
        self.bounds: dict[str, tuple[Scalar, Scalar]] = {}
        """Of the closed file: the smallest and largest value of each column where both are known and short."""
        self._schema = schema.remove_metadata()
        self._sink = _Sink(f"{folder}/{name}")
        self._writer: Any = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    @property
    def size(self) -> int:
        """How many bytes were written so far: row groups that are complete."""
        return self._sink.size + (0 if self._sink.footer is None else len(self._sink.footer))

    def write(self, table: pa.Table | pa.RecordBatch) -> None:
        """Add rows. Raises ValueError where they have another schema."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        table = table.replace_schema_metadata(None)
        if not table.schema.equals(self._schema):
            raise ValueError(f"table must have the schema of the file, got {table.schema}")
        self._pending.append(table)
        self._pending_rows += len(table)
        self.count += len(table)
        if self._pending_rows >= ROW_GROUP_ROWS:
            self._write_groups(self._pending_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    def _write_groups(self, rows: int) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), self._schema, **_options(self._schema))
        table = pa.concat_tables(self._pending)
        self._writer.write_table(table.slice(0, rows), row_group_size=ROW_GROUP_ROWS)
        self._pending = [table.slice(rows)]
        self._pending_rows -= rows

    def close(self) -> IndexFile | None:
        """Finish the file; None if there is none."""
        if not self.count:
            self._sink.writer.abort()
            return None
        if self._pending_rows:
            self._write_groups(self._pending_rows)
        sink = self._sink
        sink.begin_footer()
        self._writer.add_key_value_metadata({_CHECKSUMS.decode(): np.array(sink.sums, "<u4").tobytes().hex()})
        self._writer.close()
        data = bytes(sink.footer or b"")
        self.bounds = _file_bounds(_parse_footer(data))
        sink.writer.write(data)
        sink.writer.commit(durable=True)
        return IndexFile(self.name, sink.size + len(data), self.count, sink.size, crc32(data))

    def abort(self) -> None:
        """Remove what was written."""
        self._sink.is_aborted = True  # Arrow writes a footer even so
        self._pending.clear()
        self._sink.writer.abort()


def _options(schema: pa.Schema) -> dict[str, Any]:
    """The options of Arrow's writer."""
    encodings = {
        column.name: "DELTA_BYTE_ARRAY" if column.name in _SORTED_STRINGS else "DELTA_BINARY_PACKED"
        for column in schema
        if (column.name in _SORTED_STRINGS and _is_string(column.type))
        or (column.name in _SORTED_INTEGERS and pa.types.is_integer(column.type))
    }
    others = [column for column in schema if column.name not in encodings]
    dictionaries = [column.name for column in others if not pa.types.is_fixed_size_binary(column.type)]
    compression = {"compression": "zstd", "compression_level": 1}
    return {**compression, "column_encoding": encodings, "use_dictionary": dictionaries, "write_statistics": True}


def _file_bounds(footer: _Footer) -> dict[str, tuple[Scalar, Scalar]]:
    rows = [footer.metadata.row_group(group).num_rows for group in range(footer.metadata.num_row_groups)]
    bounds = {}
    for column in footer.schema.names:
        pairs = [
            pair
            for pair, nulls, count in zip(footer.bounds(column), footer.null_counts(column), rows, strict=True)
            if nulls != count  # a group without values has no bounds
        ]
        known = [pair for pair in pairs if pair is not None]
        if known and len(known) == len(pairs):
            pair = min(low for low, _ in known), max(high for _, high in known)
            if all(map(_is_short, pair)):
                bounds[column] = pair
    return bounds


def _is_short(value: Scalar) -> bool:
    """Whether a value may be in the manifest; JSON has no infinity."""
    return len(value) <= _MAX_BOUND_CHARS if isinstance(value, str) else math.isfinite(value)


# -------------------------------------------------------------------------------------------------------------- reading


class _Source(io.RawIOBase):
    """The file that Arrow reads in one call. It has a position, so each call has its own."""

    def __init__(self, size: int, read_range: Callable[[int, int], memoryview]) -> None:
        self._size, self._read_range = size, read_range
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> Any:
        start = self._position
        self._position = self._size if size is None or size < 0 else start + size
        return self._read_range(start, self._position)


class ParquetFile:
    """A Parquet file of a segment. Thread-safe; the footer is read when something is first needed.

    Raises ShardIndexError, with file and byte, where it is damaged.
    """

    def __init__(self, url: str, file: IndexFile, open_files: OpenFiles) -> None:
        self.url = url
        self.records = file.records
        """How many rows it has."""
        self._file, self._open_files = file, open_files
        self._loaded: _Footer | None = None

    @property
    def schema(self) -> pa.Schema:
        """Names and types of its columns."""
        return self._footer().schema

    @property
    def num_row_groups(self) -> int:
        """How many row groups it has."""
        return -(-self.records // ROW_GROUP_ROWS)

    @property
    def row_group_rows(self) -> list[int]:
        """The rows of each row group."""
        return [min(ROW_GROUP_ROWS, self.records - first) for first in range(0, self.records, ROW_GROUP_ROWS)]

    def bounds(self, column: str) -> list[tuple[Scalar, Scalar] | None]:
        """Return the smallest and largest value in each row group: NaN is not counted; None where they are unknown."""
        self._check_column(column)
        return self._footer().bounds(column)

    def null_counts(self, column: str) -> list[int | None]:
        """Return how many rows of each row group are null; None where that is unknown, as it is for lists."""
        self._check_column(column)
        return self._footer().null_counts(column)

    def read(
        self, columns: Sequence[str], groups: Sequence[int] | None = None, *, as_dictionary: Sequence[str] = ()
    ) -> pa.Table:
        """Return columns of these row groups, or of all, in this order.

        String columns in ``as_dictionary`` are dictionary arrays, with a dictionary for each row group.
        """
        footer = self._footer()
        groups = range(self.num_row_groups) if groups is None else groups
        for column in columns:
            self._check_column(column)
        for group in groups:
            if not 0 <= group < self.num_row_groups:
                self._refuse_rows(group * ROW_GROUP_ROWS, (group + 1) * ROW_GROUP_ROWS)
        # By number: Arrow takes the name "json" for "json.width" too.
        leaves = [leaf for column in columns for leaf in footer.leaves[column]]
        strings = [name for name in as_dictionary if name in columns and _is_string(footer.schema.field(name).type)]
        parts = self._prefetch(footer, leaves, groups)

        def read_range(start: int, stop: int) -> memoryview:
            return parts.pop((start, stop), None) or self._read_ranges(footer, [(start, stop)])[0]

        source = _Source(self._file.size, read_range)
        with self._translated():
            file = pq.ParquetFile(source, metadata=footer.metadata, read_dictionary=strings, pre_buffer=False)
            table = file.reader.read_row_groups([*groups], column_indices=leaves, use_threads=len(leaves) > 1)
            return table.select(columns).replace_schema_metadata(None)

    def read_rows(self, columns: Sequence[str], start: int, stop: int) -> pa.Table:
        """Return columns of the rows ``[start, stop)``."""
        if not 0 <= start <= stop <= self.records:
            self._refuse_rows(start, stop)
        first = start // ROW_GROUP_ROWS
        table = self.read(columns, range(first, max(first, -(-stop // ROW_GROUP_ROWS))))
        return table.slice(start - first * ROW_GROUP_ROWS, stop - start)

    def _prefetch(
        self, footer: _Footer, leaves: Sequence[int], groups: Sequence[int]
    ) -> dict[tuple[int, int], memoryview]:
        """Request all that will be needed at once, where that takes a request to another machine."""
        if footer.file_bytes is not None or not is_remote(self.url):
            return {}
        ranges = [_chunk_range(footer.metadata.row_group(group).column(leaf)) for group in groups for leaf in leaves]
        return dict(zip(ranges, self._read_ranges(footer, ranges), strict=True))

    def _read_ranges(self, footer: _Footer, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return byte ranges before the footer, verified."""
        end = self._file.footer_start or 0
        for start, stop in ranges:
            if not 0 <= start <= stop <= end:
                raise self._error("a range of bytes is outside of its data", f"bytes {start} to {stop}", start)
        if footer.file_bytes is not None:
            return [footer.file_bytes[start:stop] for start, stop in ranges]
        starts = [start // _CHUNK_BYTES * _CHUNK_BYTES for start, _ in ranges]
        stops = [min(-(-stop // _CHUNK_BYTES) * _CHUNK_BYTES, end) for _, stop in ranges]
        parts = [memoryview(part) for part in self._reader().read_many(starts, stops)]
        for first, last, part in zip(starts, stops, parts, strict=True):
            self._verify(footer, first, last, part)
        return [
            part[start - first : stop - first] for (start, stop), first, part in zip(ranges, starts, parts, strict=True)
        ]

    def _verify(self, footer: _Footer, start: int, stop: int, data: memoryview) -> None:
        expected = footer.sums[start // _CHUNK_BYTES : -(-stop // _CHUNK_BYTES)]
        sums = _chunk_sums(data)
        if sums == expected:
            return
        pairs = enumerate(zip(sums, expected, strict=False))
        number = start // _CHUNK_BYTES + next((at for at, (crc, right) in pairs if crc != right), len(sums))
        found = f"chunk {number} of {self._file.name}"
        raise self._error("a chunk does not match its checksum", found, number * _CHUNK_BYTES)

    def _footer(self) -> _Footer:
        footer = self._loaded
        if footer is None:
            footer = self._loaded = self._load_footer()  # two threads may both do it; the result is the same
        return footer

    def _load_footer(self) -> _Footer:
        size, start, checksum = self._file.size, self._file.footer_start, self._file.footer_crc32
        if start is None:
            raise self._error("the manifest does not have its footer", self._file.name, None)
        first = 0 if size <= _SMALL_FILE_BYTES else start
        data = memoryview(self._reader().read(first, size))
        tail = data[start - first :]
        if crc32(tail) != checksum:
            raise self._error("the footer does not match its checksum", f"footer of {self._file.name}", start)
        with self._translated():
            footer = _parse_footer(tail)
        rows = [footer.metadata.row_group(group).num_rows for group in range(footer.metadata.num_row_groups)]
        if rows != self.row_group_rows:
            found = f"{sum(rows)} rows in {len(rows)} row groups"
            raise self._error(f"the footer does not match the manifest, which has {self.records} rows", found, start)
        if first:
            return footer
        self._verify(footer, 0, start, data[:start])
        return _Footer(footer.metadata, footer.schema, footer.sums, footer.leaves, data[:start])

    def _reader(self) -> Any:
        return self._open_files.get(self.url, self._file.size)

    def _check_column(self, column: str) -> None:
        if column not in self._footer().leaves:
            raise self._error(f"{self._file.name} does not have a column of the manifest", repr(column), None)

    def _refuse_rows(self, start: int, stop: int) -> None:
        problem = f"{self._file.name} does not have rows that another file refers to"
        raise self._error(problem, f"rows {start} to {stop} of {self.records}", None)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of Arrow: verified bytes that it cannot read were written wrong."""
        try:
            yield
        except (ShoalError, MemoryError):
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            raise self._error(f"{self._file.name} cannot be read", str(error), None) from error

    def _error(self, problem: str, found: str, offset: int | None) -> ShardIndexError:
        return ShardIndexError(
            f"The index is damaged: {problem}", found=found, shard=self.url, offset=offset, hint=REINDEX_HINT
        )


def _chunk_range(column: Any) -> tuple[int, int]:
    """Where the pages of a column in one row group are."""
    start = column.data_page_offset
    if column.has_dictionary_page:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size
