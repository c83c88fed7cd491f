"""One file of a format, written as samples come."""

from __future__ import annotations

import csv
import io
import itertools
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shoal.errors import EncodeError, OptionError, WriteError
from shoal.store import ObjectWriter, store_for

from ._plain import Row, as_member, is_bytes

__all__ = ["FILE_WRITERS"]

Rows = Iterator[tuple[str, Row]]
Options = dict[str, Any]
_BATCH = 1024


class _Sink(io.RawIOBase):
    """An object being written, as a file."""

    def __init__(self, writer: ObjectWriter) -> None:
        super().__init__()
        self._writer: ObjectWriter | None = writer
        self._at = 0

    def writable(self) -> bool:
        return True

    def let_go(self) -> None:
        """Take nothing more: a library may still want to write its footer when it is thrown away."""
        self._writer = None

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._writer is not None:
            self._writer.write(view)
        self._at += len(view)
        return len(view)


def _into(url: str, write: Callable[[_Sink], None]) -> None:
    """Write an object that appears when it is whole."""
    writer = store_for(url).create(url)
    sink = _Sink(writer)
    try:
        write(sink)
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    finally:
        sink.let_go()


def _batches(rows: Rows, size: int = _BATCH) -> Iterator[list[tuple[str, Row]]]:
    while batch := list(itertools.islice(rows, size)):
        yield batch


def _write_tfrecord(url: str, rows: Rows, options: Options) -> None:
    from ._tfrecord import pack_record

    kind = options.get("compression_type") or ""
    if kind not in ("", "GZIP", "ZLIB"):
        raise OptionError("no such compression", expected="'', 'GZIP' or 'ZLIB'", found=repr(kind))
    packer = zlib.compressobj(wbits=31 if kind == "GZIP" else 15) if kind else None

    def write(sink: _Sink) -> None:
        for key, row in rows:
            try:
                record = pack_record(dict(_features(row)))
            except EncodeError as error:
                raise error.at(key=key) from error.__cause__
            sink.write(record if packer is None else packer.compress(record))
        sink.write(b"" if packer is None else packer.flush())

    _into(url, write)


def _features(row: Row) -> Iterator[tuple[str, Any]]:
    """What an Example can hold as it is, and the rest as bytes."""
    for name, value in row.items():
        if value is None:
            continue
        flat = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iufb" and len(value) != 1
        yield (name, value) if flat or isinstance(value, _NATIVE) or _is_flat(value) else as_member(name, value)


_NATIVE = (str, bytes, bytearray, memoryview, int, float, np.integer, np.floating, np.bool_)


def _is_flat(value: Any) -> bool:
    """Whether a list can be the list of a feature: of numbers, or of text and bytes, and told from a single value."""
    if not isinstance(value, (list, tuple)) or len(value) < 2:
        return False
    text = (str, bytes)
    return all(isinstance(v, text) for v in value) or all(isinstance(v, (int, float, np.number)) for v in value)


def _write_jsonl(url: str, rows: Rows, options: Options) -> None:
    encoder = msgspec.json.Encoder(enc_hook=_json_value)

    def write(sink: _Sink) -> None:
        for batch in _batches(rows):
            for key, row in batch:
                _refuse_bytes(key, row)
            sink.write(encoder.encode_lines([row for _, row in batch]))

    _into(url, write)


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise EncodeError("JSON has no place for this", found=type(value).__name__)


def _refuse_bytes(key: str, row: Row) -> None:
    for name, value in row.items():
        if is_bytes(value):
            raise EncodeError("a text format has no place for bytes", field=name, key=key, hint="write parquet instead")


def _write_csv(url: str, rows: Rows, options: Options) -> None:
    def write(sink: _Sink) -> None:
        names: list[str] | None = None
        for batch in _batches(rows):
            text = io.StringIO(newline="")
            delimiter = options.get("delimiter") or ("\t" if url.lower().endswith(".tsv") else ",")
            writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
            if names is None:
                names = list(dict.fromkeys(name for _, row in batch for name in row))
                writer.writerow(names)
            for key, row in batch:
                _refuse_bytes(key, row)
                _refuse_others(key, row, names)
                writer.writerow([_cell(row.get(name)) for name in names])
            sink.write(text.getvalue().encode())

    _into(url, write)


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, np.integer, np.floating)):
        return value
    return msgspec.json.encode(value, enc_hook=_json_value).decode()


def _refuse_others(key: str, row: Row, names: list[str]) -> None:
    other = next((name for name in row if name not in names), None)
    if other is not None:
        raise WriteError("a later sample has another field", expected=" or ".join(names), found=other, key=key)


def _write_table(url: str, rows: Rows, options: Options, open_writer: Callable[[_Sink, Any], Any]) -> None:
    from ._arrow_values import column_of

    def write(sink: _Sink) -> None:
        writer: Any = None
        for batch in _batches(rows, options.get("row_group_size") or _BATCH):
            names = (
                list(dict.fromkeys(name for _, row in batch for name in row)) if writer is None else writer.schema.names
            )
            for key, row in batch:
                _refuse_others(key, row, names)
            try:
                table = pa.table({name: column_of([row.get(name) for _, row in batch]) for name in names})
                if writer is None:
                    writer = open_writer(sink, table.schema)
                    writer.schema = table.schema
                writer.write_table(table if table.schema == writer.schema else table.cast(writer.schema))
            except (pa.ArrowException, ValueError) as error:
                raise EncodeError("the samples fit no table", found=error, key=batch[0][0]) from error
        (writer or open_writer(sink, pa.schema([]))).close()

    _into(url, write)


def _write_parquet(url: str, rows: Rows, options: Options) -> None:
    import pyarrow.parquet as pq

    compression = options.get("compression", "zstd")
    _write_table(
        url, rows, options, lambda sink, schema: _Writer(pq.ParquetWriter(sink, schema, compression=compression))
    )


def _write_arrow(url: str, rows: Rows, options: Options) -> None:
    how = pa.ipc.IpcWriteOptions(compression=options.get("compression"))
    _write_table(url, rows, options, lambda sink, schema: _Writer(pa.ipc.new_file(sink, schema, options=how)))


class _Writer:
    """A writer of Arrow's, with the schema that it was opened with."""

    def __init__(self, writer: Any) -> None:
        self.write_table = writer.write_table
        self.close = writer.close
        self.schema: Any = None


def _write_npz(url: str, rows: Rows, options: Options) -> None:
    """Arrays of all samples, stacked."""
    from ._npz import pack_npz

    columns: dict[str, list[Any]] = {}
    for number, (key, row) in enumerate(rows):
        if number and row.keys() != columns.keys():
            raise WriteError("every sample needs the same fields", expected=" or ".join(columns), key=key)
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    for name, values in columns.items():
        if any(is_bytes(value) for value in values) or len({np.shape(value) for value in values}) > 1:
            raise EncodeError("values of one shape can be stacked", found=type(values[0]).__name__, field=name)
    data = pack_npz({name: np.stack([np.asarray(v) for v in values]) for name, values in columns.items()})
    _into(url, lambda sink: (sink.write(data), None)[1])


def _write_hdf5(url: str, rows: Rows, options: Options) -> None:
    from ._hdf5 import import_h5py, open_columns

    h5py = import_h5py()
    with tempfile.TemporaryDirectory(prefix="shoal-hdf5-") as folder:  # HDF5 goes back to what it wrote
        path = os.path.join(folder, "a.h5")
        with h5py.File(path, "w") as file:
            columns: dict[str, Any] = {}
            for batch in _batches(rows):
                columns = columns or open_columns(file, batch, options.get("compression"))
                for key, row in batch:
                    if row.keys() != columns.keys():
                        raise WriteError("every sample needs the same fields", expected=" or ".join(columns), key=key)
                for name, column in columns.items():
                    column.append([row[name] for _, row in batch])

        def write(sink: _Sink) -> None:
            with open(path, "rb") as file:
                while chunk := file.read(1 << 20):
                    sink.write(chunk)

        _into(url, write)


FILE_WRITERS: dict[str, tuple[Callable[[str, Rows, Options], None], set[str]]] = {
    "tfrecord": (_write_tfrecord, {"compression_type"}),
    "jsonl": (_write_jsonl, set()),
    "csv": (_write_csv, {"delimiter"}),
    "parquet": (_write_parquet, {"row_group_size", "compression"}),
    "arrow": (_write_arrow, {"row_group_size", "compression"}),
    "npz": (_write_npz, {"rows"}),
    "hdf5": (_write_hdf5, {"compression"}),
}
