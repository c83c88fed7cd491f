"""Parquet files: batches written to one in a bounded memory, and rows read from many."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import pyarrow as pa

from shoal.errors import FieldError, FormatError
from shoal.store import ObjectReader, ObjectWriter, expand_pattern, store_for

from ._arrow_columns import Column, from_arrow
from ._arrow_forms import form_of_type
from ._batches import Layout, layout_of_schema

__all__ = ["Row", "read_parquet", "write_parquet"]

Row = dict[str, Any]


class _Target(io.RawIOBase):
    """An object being written, as the file that pyarrow expects."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._writer.write(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size


class _ObjectFile(io.RawIOBase):
    """A stored object, as the file that pyarrow expects."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._reader.info.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._reader.info.size if size < 0 else self._at + size
        data = self._reader.read(self._at, stop)
        self._at += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


def write_parquet(batches: Iterable[pa.RecordBatch], empty: pa.Schema, url: str, compression: str | None) -> int:
    """Write batches, each a row group, and show the file when it is whole. Returns how many rows it has.

    ``empty`` is the schema of a file without rows.
    """
    import pyarrow.parquet as pq  # not needed by `import shoal`, and slow to import

    writer = store_for(url).create(url)
    rows = 0
    file: Any = None
    try:
        for batch in batches:
            if file is None:
                file = pq.ParquetWriter(_Target(writer), batch.schema, compression=compression or "none")
            file.write_batch(batch, row_group_size=max(1, batch.num_rows))
            rows += batch.num_rows
        file = file or pq.ParquetWriter(_Target(writer), empty, compression=compression or "none")
        file.close()
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    return rows


def read_parquet(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], columns: Sequence[str] | None, batch_size: int
) -> tuple[Layout, Iterator[list[Row]]]:
    """What Parquet files hold, and their rows, some at a time. All files must have the columns of the first.

    Raises:
        ObjectNotFoundError: A file is not there, or a pattern names none.
        FormatError: One is not a Parquet file, or has other columns.
        FieldError: ``columns`` names one that the files do not have.
    """
    urls = [url for one in expand_pattern(path) for url in _files_in(one)]
    with _Opened(urls[0]) as first:
        schema = first.schema
    layout = layout_of_schema(schema)
    for name in columns or ():
        if name not in schema.names:
            raise FieldError("no such column", expected=" or ".join(schema.names), found=name)
    kept = schema.names if columns is None else list(columns)
    chosen = Layout(layout.style, layout.schema, {name: layout.columns[name] for name in kept})
    return chosen, _rows(urls, schema, chosen, batch_size)


def _files_in(url: str) -> list[str]:
    store = store_for(url)
    if not store.is_folder(url):
        return [url]
    found = [info.url for info in store.list(url) if info.url.endswith(".parquet")]
    if not found:
        raise FormatError("there are no Parquet files in this folder", found=url)
    return found


class _Opened:
    """A Parquet file, open."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Self:
        import pyarrow.parquet as pq

        self._object = _ObjectFile(store_for(self._url).open(self._url))
        try:
            self._file = pq.ParquetFile(self._object)
        except pa.ArrowException as error:
            self._object.close()
            raise FormatError("this is not a Parquet file", found=f"{self._url}: {error}") from error
        self.schema: pa.Schema = self._file.schema_arrow
        return self

    def batches(self, size: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Its rows in order. Raises FormatError where they are damaged."""
        try:
            yield from self._file.iter_batches(batch_size=size, columns=columns)
        except pa.ArrowException as error:
            raise FormatError("this Parquet file is damaged", found=f"{self._url}: {error}") from error

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._object.close()


def _rows(urls: list[str], schema: pa.Schema, layout: Layout, batch_size: int) -> Iterator[list[Row]]:
    for url in urls:
        with _Opened(url) as file:
            if not file.schema.equals(schema):
                raise FormatError(
                    "the files are not of one table", expected=str(schema.names), found=f"{url}: {file.schema.names}"
                )
            for batch in file.batches(batch_size, list(layout.columns)):
                yield rows_of(batch, layout)


def rows_of(batch: pa.RecordBatch, layout: Layout) -> list[Row]:
    """The rows of a batch, as dicts of values."""
    columns = [_values(layout.columns[name], batch.column(name)) for name in layout.columns]
    names = list(layout.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else []


def _values(column: Column, array: pa.Array) -> list[Any]:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.string())  # numbers of that many digits are no floats
    if array.type != column.form.type:
        column = Column(form_of_type(array.type), column.nulls)
    return from_arrow(column, array)
