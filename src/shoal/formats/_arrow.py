"""Parquet and Arrow IPC files."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import DecodeError
from shoal.shard._table import column_error, join_columns, refuse_unknown_column
from shoal.store._base import ObjectReader

from ._sources import KEY, PartSource, RangeFile, Values, file_for

__all__ = ["ArrowPart", "ParquetPart", "TableSource", "column_of"]

_KEPT_BYTES = 256 << 20
"""How much of a file's groups is kept for the next rows that are asked for."""


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """One dict a row. Nulls are None."""
    names = table.column_names
    columns = [_values(column.combine_chunks()) for column in table.columns]
    if not columns:
        return [{} for _ in range(table.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(array: Any) -> list[Any]:
    if isinstance(array, pa.ChunkedArray):  # what combine_chunks gives of no chunks, in some versions
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType) and not array.null_count:
        return list(array.to_numpy_ndarray()) if len(array) else []
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if _is_numbers(kind) and not array.null_count:
        return _number_lists(array)
    values: list[Any] = array.to_pylist()
    return values


def _is_numbers(kind: Any) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(listed) and bool(pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))


def _number_lists(array: Any) -> list[Any]:
    if pa.types.is_fixed_size_list(array.type):
        inner = array.flatten()
        if inner.null_count:
            return list(array.to_pylist())
        return list(inner.to_numpy(zero_copy_only=False).reshape(len(array), array.type.list_size))
    if array.values.null_count:
        return list(array.to_pylist())
    values, offsets = array.values.to_numpy(zero_copy_only=False), array.offsets.to_pylist()
    return [values[start:stop] for start, stop in itertools.pairwise(offsets)]


def column_of(values: list[Any]) -> Any:
    """An Arrow column of values: arrays of one shape with several axes become tensors, of one axis become lists."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if not arrays:
        column = pa.array([_plain(value) for value in values])
        if pa.types.is_binary(column.type) and any(isinstance(value, str) for value in values):
            raise ValueError("a column has texts or bytes, not both")  # Arrow would make bytes of the texts
        return column
    first = arrays[0]
    alike = len(arrays) == len(values) and len({(array.shape, array.dtype.str) for array in arrays}) == 1
    if first.ndim > 1 and alike and first.size:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(np.stack(arrays)))
    if all(array.ndim == 1 for array in arrays):
        return pa.array(values)
    return pa.array([value.tolist() if isinstance(value, np.ndarray) else _plain(value) for value in values])


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, (memoryview, bytearray)) else value


class _GroupedPart:
    """A file of groups of rows, the last few of which are kept."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], pa.Table] = OrderedDict()
        self._kept_bytes = 0

    @property
    def schema(self) -> Any:
        raise NotImplementedError

    def _sizes(self) -> list[int]:
        raise NotImplementedError

    def _group(self, number: int, columns: tuple[str, ...]) -> pa.Table:
        raise NotImplementedError

    @functools.cached_property
    def starts(self) -> IntArray:
        """The number of each group's first row, and the total at the end."""
        with self._lock:  # a file over ranges has one place, and threads may ask at once
            return np.cumsum([0, *self._sizes()], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self.schema.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Whole columns."""
        groups = [self._read(number, tuple(names)) for number in range(len(self.starts) - 1)]
        return pa.concat_tables(groups) if groups else self.schema.empty_table().select(list(names))

    def read(self, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        """These rows: each group is read once for all it holds."""
        names = self._present(fields)
        numbers = np.searchsorted(self.starts, rows, "right") - 1
        found: list[Values] = [{}] * len(rows)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            table = self._read(number, names).take(pa.array(rows[places] - self.starts[number]))
            for place, values in zip(places.tolist(), _rows(table, names), strict=True):
                found[place] = values
        return found

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All rows in order, some of a group at a time."""
        names = self._present(fields)
        for number in range(len(self.starts) - 1):
            table = self._read(number, names)
            for start in range(0, table.num_rows, 1024):
                yield _rows(table.slice(start, 1024), names)

    def _present(self, fields: Sequence[str] | None) -> tuple[str, ...]:
        return tuple(name for name in self.fields if fields is None or name in fields)

    def _read(self, number: int, names: tuple[str, ...]) -> pa.Table:
        key = (number, names)
        with self._lock:
            table = self._kept.pop(key, None)
            if table is None:
                table = self._decoded(number, names)
                self._kept_bytes += table.nbytes
            self._kept[key] = table
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
            return table

    def _decoded(self, number: int, names: tuple[str, ...]) -> pa.Table:
        try:
            if not names:  # a table without columns has no rows either
                return pa.table({"": pa.nulls(int(np.diff(self.starts)[number]))})
            return self._group(number, names)
        except (pa.ArrowException, OSError) as error:
            raise DecodeError("a group of rows cannot be read", found=error, hint=f"group {number}") from error


def _rows(table: pa.Table, names: tuple[str, ...]) -> list[Values]:
    return rows_of(table) if names else [{} for _ in range(table.num_rows)]


class ParquetPart(_GroupedPart):
    """One open Parquet file."""

    @functools.cached_property
    def _file(self) -> Any:
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(file_for(self._reader))
        except (pa.ArrowException, OSError) as error:
            raise DecodeError("this is no Parquet file, or its footer is damaged", found=error) from error

    @property
    def schema(self) -> Any:
        """The columns and their types."""
        return self._file.schema_arrow

    def _sizes(self) -> list[int]:
        facts = self._file.metadata
        return [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]

    def _group(self, number: int, columns: tuple[str, ...]) -> pa.Table:
        return self._file.read_row_group(number, columns=list(columns)).select(list(columns))


class ArrowPart(_GroupedPart):
    """One open Arrow IPC file, or stream. A stream has no index, so it is read whole."""

    @functools.cached_property
    def _batches(self) -> Any:
        try:
            if self._reader.read(0, 6) == b"ARROW1":
                return pa.ipc.open_file(self._source())
            return _Streamed(pa.ipc.open_stream(self._source()))
        except (pa.ArrowException, OSError) as error:
            raise DecodeError("this is no Arrow IPC file, or it is damaged", found=error) from error

    def _source(self) -> Any:
        source = file_for(self._reader)
        return pa.memory_map(source) if isinstance(source, str) else pa.PythonFile(RangeFile(self._reader), "r")

    @property
    def schema(self) -> Any:
        """The columns and their types."""
        return self._batches.schema

    def _sizes(self) -> list[int]:
        try:
            return [self._batches.get_batch(number).num_rows for number in range(self._batches.num_record_batches)]
        except (pa.ArrowException, OSError) as error:
            raise DecodeError("a batch of the Arrow file is damaged", found=error) from error

    def _group(self, number: int, columns: tuple[str, ...]) -> pa.Table:
        return pa.Table.from_batches([self._batches.get_batch(number).select(list(columns))])


class _Streamed:
    """The batches of an Arrow stream."""

    def __init__(self, reader: Any) -> None:
        self.schema = reader.schema
        self._batches = list(reader)
        self.num_record_batches = len(self._batches)

    def get_batch(self, number: int) -> Any:
        return self._batches[number]


class TableSource(PartSource):
    """Files whose columns can be asked about: ``where`` and ``table`` read no more than they name."""

    def column_names(self) -> tuple[str, ...]:
        """The columns of numbers, text, truth values and times."""
        first = self.part(0)
        kinds = first.schema if isinstance(first, _GroupedPart) else ()
        return tuple(field.name for field in kinds if field.name != KEY and _is_plain(field.type))

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Columns, one row a sample. Raises FieldError for one that there is not, and as `metadata` does."""
        refuse_unknown_column(columns, self.column_names())
        return self.metadata(columns)

    def metadata(self, columns: Sequence[str]) -> pa.Table:
        """Columns, one row a sample; null where a file does not have it.

        Raises FieldError for one of lists, structs or bytes, and for one that is not of one type.
        """
        stored = [name for name in columns if name != KEY]
        parts = [self._columns(number, stored) for number in range(len(self.infos))] if stored else []
        urls = [info.url for info in self.infos]
        found = {name: join_columns(name, [part.column(name) for part in parts], urls) for name in stored}
        return pa.table(
            [self._key_column() if name == KEY else found[name] for name in columns],
            names=list(columns),
        )

    def _key_column(self) -> pa.ChunkedArray:
        return super().table([KEY]).column(0)

    def _columns(self, number: int, names: list[str]) -> pa.Table:
        part = self.part(number)
        assert isinstance(part, _GroupedPart)  # noqa: S101 - the openers below make no others
        kinds = {field.name: field.type for field in part.schema}
        for name in names:
            if name in kinds and not _is_plain(kinds[name]):
                raise column_error(name, f"its type is {kinds[name]}", self.infos[number].url)
        table = part.columns([name for name in names if name in kinds])
        columns = [table.column(name) if name in kinds else pa.nulls(len(part)) for name in names]
        return pa.table(columns, names=names)


def _is_plain(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_temporal(kind)
    )
