"""Write a dataset as a Parquet file, and shards from Parquet files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from shoal import schema
from shoal.codec._arrays import encode_npy
from shoal.codec._registry import codec_for
from shoal.errors import FieldError, FormatError, OptionError, ShoalError, WriteError
from shoal.sample._annotations import is_record, schema_of
from shoal.sample._class_factory import class_from_schema
from shoal.sample._dict_sample import DictSample
from shoal.sample._packable import pack, unpack
from shoal.schema._json_schema import schema_to_json
from shoal.schema._schema import Schema
from shoal.schema._types import FieldType
from shoal.shard._writer import ShardWriter
from shoal.store._base import ObjectReader, ObjectWriter
from shoal.store._pattern import expand_pattern
from shoal.store._registry import store_for

from ._append import is_numbered, shard_pattern
from ._arrow_batches import KEY, Layout, layout_of_schema
from ._arrow_types import ABSENT, Column, form_of_type, from_arrow
from ._description import PathLike

__all__ = ["shards_from_parquet", "write_parquet"]

Row = dict[str, Any]
RowEncoder = Callable[[Row], Mapping[str, Any]]


class _WriterFile(io.RawIOBase):
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


class _ReaderFile(io.RawIOBase):
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
                file = pq.ParquetWriter(_WriterFile(writer), batch.schema, compression=compression or "none")
            file.write_batch(batch, row_group_size=max(1, batch.num_rows))
            rows += batch.num_rows
        file = file or pq.ParquetWriter(_WriterFile(writer), empty, compression=compression or "none")
        file.close()
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    return rows


def read_parquet(
    path: PathLike | Iterable[PathLike], columns: Sequence[str] | None, batch_size: int
) -> tuple[Layout, Iterator[list[Row]]]:
    """What Parquet files hold, and their rows, some at a time. All files must have the columns of the first.

    Raises:
        ObjectNotFoundError: A file is not there, or a pattern names none.
        FormatError: One is not a Parquet file, or has other columns.
        FieldError: ``columns`` names one that the files do not have.
    """
    urls = [url for one in expand_pattern(path) for url in _parquet_files(one)]
    with _ParquetFile(urls[0]) as first:
        schema = first.schema
    layout = layout_of_schema(schema)
    for name in columns or ():
        if name not in schema.names:
            raise FieldError("no such column", expected=" or ".join(schema.names), found=name)
    kept = schema.names if columns is None else list(columns)
    chosen = Layout(layout.style, layout.schema, {name: layout.columns[name] for name in kept})
    return chosen, _rows(urls, schema, chosen, batch_size)


def _parquet_files(url: str) -> list[str]:
    store = store_for(url)
    if not store.is_folder(url):
        return [url]
    found = [info.url for info in store.list(url) if info.url.endswith(".parquet")]
    if not found:
        raise FormatError("there are no Parquet files in this folder", found=url)
    return found


class _ParquetFile:
    """A Parquet file, open."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Self:
        import pyarrow.parquet as pq

        self._object = _ReaderFile(store_for(self._url).open(self._url))
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
        with _ParquetFile(url) as file:
            if not file.schema.equals(schema):
                raise FormatError(
                    "the files are not of one table", expected=str(schema.names), found=f"{url}: {file.schema.names}"
                )
            for batch in file.batches(batch_size, list(layout.columns)):
                yield _batch_rows(batch, layout)


def _batch_rows(batch: pa.RecordBatch, layout: Layout) -> list[Row]:
    """The rows of a batch, as dicts of values."""
    columns = [_column_values(layout.columns[name], batch.column(name)) for name in layout.columns]
    names = list(layout.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else []


def _column_values(column: Column, array: pa.Array) -> list[Any]:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.string())  # a float would lose digits
    if array.type != column.form.type:
        column = Column(form_of_type(array.type), column.nulls)
    return from_arrow(column, array)


def shards_from_parquet(
    path: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    sample_type: type[Any] | None,
    key: str | None,
    columns: Sequence[str] | Mapping[str, str] | None,
    max_samples: int | None,
    max_bytes: int | None,
    compression: str | None,
    overwrite: bool,
    append: bool,
    batch_size: int,
) -> tuple[list[str], type[Any] | None]:
    """Write what Parquet files hold as shards. Returns their URLs, and the samples' type where they have one."""
    names = None if columns is None else [*columns, *([key] if key is not None and key not in columns else [])]
    layout, runs = read_parquet(path, names, batch_size)
    kind = sample_type
    if kind is None and layout.style == "typed" and layout.schema is not None and not isinstance(columns, Mapping):
        kind = class_from_schema(layout.schema)
    stored = _row_encoder(layout, kind, columns if isinstance(columns, Mapping) else None)
    pattern = shard_pattern(os.fspath(output), max_samples, max_bytes)
    writer = ShardWriter(
        pattern,
        max_samples=max_samples or (10_000 if is_numbered(pattern) else 1 << 62),
        max_bytes=max_bytes or (1 << 30 if is_numbered(pattern) else 1 << 62),
        compression=compression,
        schema=schema_to_json(schema_of(kind)) if kind is not None else None,
        overwrite=overwrite,
        append=append,
    )
    with writer:
        for name, row in _keyed(runs, layout, key):
            writer.write((name, _encode_row(name, row, stored)))
    return writer.urls, kind


def _keyed(runs: Iterator[list[Row]], layout: Layout, key: str | None) -> Iterator[tuple[str, Row]]:
    """Rows with their keys: a column's, or else their numbers."""
    column = key or (KEY if KEY in layout.columns else None)
    if column is not None and column not in layout.columns:
        raise FieldError("no such column", expected=" or ".join(layout.columns), found=column)
    number = 0
    for run in runs:
        for row in run:
            name = f"{number:09d}" if column is None else row[column]
            if name is None or name is ABSENT or isinstance(name, (bytes, list, dict, np.ndarray)):
                raise WriteError("a key is text", found=repr(name), field=column, hint=f"row {number}")
            yield str(name), row
            number += 1


def _encode_row(key: str, row: Row, stored: RowEncoder) -> Mapping[str, Any]:
    try:
        return stored({name: value for name, value in row.items() if value is not ABSENT})
    except ShoalError as error:
        raise error.at(key=key) from error.__cause__


def _row_encoder(layout: Layout, kind: type[Any] | None, fields: Mapping[str, str] | None) -> RowEncoder:
    """The function that turns a row into the fields of a sample."""
    if fields is not None:
        if kind is not None:
            raise OptionError("a typed sample is one field", expected="a list of columns", found="a mapping")
        return lambda row: {
            field: _member_value(row[name]) for name, field in fields.items() if row.get(name) is not None
        }
    if kind is not None:
        if not is_record(kind):
            raise OptionError("samples of this type cannot be made of rows", found=kind.__name__, hint="use @packable")
        of, foreign = schema_of(kind), layout.style == "foreign"
        return lambda row: {"msgpack": pack(unpack(kind, _encode_payload(_with_arrays(row, of) if foreign else row)))}
    if layout.style == "dict":
        return lambda row: {name: _encode_json_string(name, value) for name, value in row.items() if name != KEY}
    return lambda row: {"msgpack": DictSample({name: value for name, value in row.items() if name != KEY}).packed}


def _encode_json_string(field: str, value: Any) -> Any:
    """A value for `ShardWriter`, which takes a str in a JSON field for encoded JSON."""
    codec = codec_for(field) if type(value) is str else None
    return msgspec.json.encode(value) if codec is not None and codec.name == "json" else value


def _member_value(value: Any) -> Any:
    """A cell as a member. Images in tables of Hugging Face are structs of bytes and path."""
    if isinstance(value, dict) and set(value) == {"bytes", "path"} and isinstance(value["bytes"], bytes):
        return value["bytes"]
    return value


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return encode_npy(value)
    raise TypeError(type(value).__name__)


_encode_payload = msgspec.msgpack.Encoder(enc_hook=_encode_array).encode


def _with_arrays(row: Row, of: Schema) -> Row:
    """A row of a table that shoal did not write, with arrays where the schema has them."""
    return {name: _as_arrays(value, of[name].type) if name in of else value for name, value in row.items()}


def _as_arrays(value: Any, hint: FieldType) -> Any:
    match hint:
        case _ if value is None:
            return None
        case schema.OptionalType(inner):
            return _as_arrays(value, inner)
        case schema.Array() if isinstance(value, list):
            return np.asarray(value, _dtype(hint))
        case schema.Image() | schema.Audio():
            return _member_value(value)
        case schema.ListType(inner) if isinstance(value, list):
            return [_as_arrays(item, inner) for item in value]
        case schema.RecordType(inner) if isinstance(value, dict):
            return _with_arrays(value, inner)
    return value


def _dtype(hint: schema.Array) -> Any:
    try:
        return np.dtype(hint.dtype) if hint.dtype else None
    except TypeError:  # a family of dtypes, such as "floating"
        return None
