"""`write_format`, which writes samples as files of any format in `WRITABLE`."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from shoal.codec._documents import encode_json
from shoal.errors import EncodeError, FormatError, ObjectExistsError, ObjectNotFoundError, OptionError, WriteError
from shoal.shard._writer import ShardWriter
from shoal.store._base import ObjectWriter
from shoal.store._pattern import numbered_name
from shoal.store._registry import store_for
from shoal.store._url import join_url

from ._member_values import (
    Row,
    as_member,
    extension_of_image,
    is_bytes,
    member_key,
    member_name,
    plain_value,
    rows_from,
)
from ._registry import detect_name
from ._sources import PathLike
from ._text_lines import Compressor, compression_of, is_tab_separated, open_compressor

if TYPE_CHECKING:
    from ._feature_kinds import ExampleEncoder

__all__ = ["WRITABLE", "write_format"]

Rows = Iterator[tuple[str, Row]]
Options = dict[str, Any]


WRITABLE = ("webdataset", "raw", "imagefolder", "npz", "hdf5", "tfrecord", "parquet", "arrow", "csv", "jsonl")
"""The formats that can be written."""
_ENDINGS = {
    "webdataset": ".tar",
    "npz": ".npz",
    "hdf5": ".h5",
    "tfrecord": ".tfrecord",
    "parquet": ".parquet",
    "arrow": ".arrow",
    "csv": ".csv",
    "jsonl": ".jsonl",
}
_FOLDERS = ("raw", "imagefolder")
_BATCH = 1024


def write_format(
    path: PathLike,
    samples: Iterable[Any],
    *,
    format: str | None = None,  # noqa: A002 - the word users expect
    max_samples: int | None = None,
    keys: bool = True,
    overwrite: bool = False,
    **options: Any,
) -> list[str]:
    """Write samples as files of a format; return where they are.

    ``path`` is a file, a name with a number (``a-%06d.parquet``), or a folder; its ending says the format, unless
    ``format`` does. A file is closed after ``max_samples`` samples where the name has a number. ``keys`` writes the
    keys too, as a column or feature ``__key__``. A file is seen when it is whole.

    | format | what is written | options |
    | --- | --- | --- |
    | webdataset | tar shards | those of `ShardWriter` |
    | raw | a file ``key.field`` for each field | |
    | imagefolder | ``class_name/key.jpg`` of each image | |
    | npz | a file for each sample; with ``rows=True``, one of stacked arrays | ``rows``, ``compressed`` |
    | hdf5 | a dataset for each field | ``compression``, as h5py has it |
    | tfrecord | ``tf.train.Example``; floats become float32; a field has one kind in a file | ``compression_type`` |
    | parquet, arrow | a column for each field | ``row_group_size``; ``compression`` |
    | csv, jsonl | text, compressed where the name ends in ``.gz`` or the like; bytes are refused | ``delimiter`` |

    Raises FormatError for a format that is only read, ObjectExistsError unless ``overwrite``, and WriteError or
    EncodeError for samples that do not fit.

    Examples:
        >>> write_format("memory://doc/out/a.jsonl", [{"__key__": "x", "size": 1}])
        ['memory://doc/out/a.jsonl']
        >>> import shoal
        >>> shoal.Dataset("memory://doc/out/a.jsonl").get("x")["size"]
        1
    """
    target = os.fspath(path)
    name = detect_name(target) if format is None else format
    if name not in WRITABLE:
        expected = " or ".join(WRITABLE)
        raise FormatError("samples cannot be written in this format", expected=expected, found=name or target)
    if name == "webdataset":
        return _write_shards(target, samples, max_samples, overwrite, options)
    if name in _FOLDERS or (name == "npz" and not options.get("rows")):
        return _write_objects(name, target, rows_from(samples), overwrite, options)
    return _write_files(name, target, rows_from(samples), max_samples, keys, overwrite, options)


def _target_pattern(target: str, name: str) -> str:
    """Where files go: a folder gets numbered names."""
    ending = _ENDINGS[name]
    if detect_name(target) == name or numbered_name(target, 0) != target:
        return target
    return join_url(target, f"part-%06d{ending}")


def _write_shards(
    target: str, samples: Iterable[Any], max_samples: int | None, overwrite: bool, options: dict[str, Any]
) -> list[str]:
    pattern = _target_pattern(target, "webdataset")
    limits = (
        {"max_samples": 10_000}
        if numbered_name(pattern, 0) != pattern
        else {"max_samples": 1 << 62, "max_bytes": 1 << 62}
    )
    limits |= {"max_samples": max_samples} if max_samples else {}
    with ShardWriter(pattern, **{**limits, **options}, overwrite=overwrite) as writer:
        for key, row in rows_from(samples):
            writer.write((member_key(key, row), dict(_members(row))))
    return writer.urls


def _members(row: Row) -> Iterator[tuple[str, bytes]]:
    for field, value in row.items():
        if value is not None:
            yield as_member(member_name(field), value)


def _write_objects(name: str, root: str, rows: Rows, overwrite: bool, options: dict[str, Any]) -> list[str]:
    from ._npz import pack_npz

    known = {"rows", "compressed"} if name == "npz" else set()
    _refuse_unknown(name, options, known)
    written = []
    for key, row in rows:
        if name == "npz":
            objects = [(f"{key}.npz", pack_npz(row, compressed=bool(options.get("compressed"))))]
        elif name == "imagefolder":
            objects = [_image(key, row)]
        else:
            objects = [(f"{member_key(key, row)}.{field}", data) for field, data in _members(row)]
        for path, data in objects:
            written.append(_put(join_url(root, path), data, overwrite))
    return written


def _put(url: str, data: bytes, overwrite: bool) -> str:
    _refuse_existing(url, overwrite)
    store_for(url).write_all(url, data)
    return url


def _image(key: str, row: Row) -> tuple[str, bytes]:
    """The path and bytes of a sample's image. Raises WriteError without one, or without a class."""
    from shoal.codec._registry import codec_for

    kinds = {field: codec_for(field) for field in row}
    image = next((field for field, codec in kinds.items() if codec is not None and codec.kind == "image"), None)
    label = next((row[field] for field in ("class_name", "label", "cls") if row.get(field) is not None), None)
    if image is None or not is_bytes(row[image]):
        raise WriteError("a sample has no image in bytes", expected="a field such as image or jpg", key=key)
    if label is None:
        raise WriteError("a sample has no class", expected="a field class_name, label or cls", key=key)
    data = bytes(row[image])
    stem = member_key(key, row).removeprefix(f"{label}/").replace("/", "-")
    return f"{label}/{stem}.{extension_of_image(data) if image in ('image', 'img') else image}", data


def _write_files(
    name: str, target: str, rows: Rows, max_samples: int | None, keys: bool, overwrite: bool, options: dict[str, Any]
) -> list[str]:
    open_writer, known = _FILE_WRITERS[name]
    write = open_writer()
    _refuse_unknown(name, options, known)
    pattern = _target_pattern(target, name)
    numbered = numbered_name(pattern, 0) != pattern
    if max_samples is not None and not numbered:
        raise OptionError("several files need a number in their name", expected="such as a-%06d", found=pattern)
    most = (max_samples or 100_000) if numbered else None
    kept = ((key, {"__key__": key, **row} if keys else row) for key, row in rows)
    return list(_written(pattern, kept, most, overwrite, lambda url, some: write(url, some, options)))


def _written(
    pattern: str, rows: Rows, most: int | None, overwrite: bool, write: Callable[[str, Rows], None]
) -> Iterator[str]:
    """One file after the other, each with up to ``most`` samples; without any samples, one empty file."""
    for number in itertools.count():
        first = next(rows, None)
        if first is None and number:
            return
        url = numbered_name(pattern, number)
        _refuse_existing(url, overwrite)
        some = itertools.chain([] if first is None else [first], rows)
        write(url, itertools.islice(some, most) if most else some)
        yield url
        if most is None:
            return


def _refuse_unknown(name: str, options: dict[str, Any], known: set[str]) -> None:
    unknown = set(options) - known
    if unknown:
        expected = ", ".join(sorted(known)) or "none"
        raise OptionError(f"writing {name} has no such option", expected=expected, found=min(unknown))


def _refuse_existing(url: str, overwrite: bool) -> None:
    if overwrite:
        return
    try:
        store_for(url).info(url)
    except ObjectNotFoundError:
        return
    raise ObjectExistsError("a file is there already", found=url, hint="write elsewhere, or pass overwrite=True")


class _Sink(io.RawIOBase):
    """An object being written, as a file."""

    def __init__(self, writer: ObjectWriter, packer: Compressor | None = None) -> None:
        super().__init__()
        self._writer: ObjectWriter | None = writer
        self._packer = packer
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
            self._writer.write(view if self._packer is None else self._packer.compress(view))
        self._at += len(view)
        return len(view)


def _into(url: str, write: Callable[[_Sink], None], compression: str | None = None) -> None:
    """Write an object that appears when it is whole."""
    packer = None if compression is None else open_compressor(compression)
    writer = store_for(url).create(url)
    sink = _Sink(writer, packer)
    try:
        write(sink)
        if packer is not None:
            writer.write(packer.flush())
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    finally:
        sink.let_go()


def _batches(rows: Rows, size: int = _BATCH) -> Iterator[list[tuple[str, Row]]]:
    while batch := list(itertools.islice(rows, size)):
        yield batch


def _tfrecord_writer() -> Callable[[str, Rows, Options], None]:
    """A writer of files whose features have the same kinds in all of them."""
    from ._feature_kinds import ExampleEncoder

    return functools.partial(_write_tfrecord, ExampleEncoder())


def _write_tfrecord(encoder: ExampleEncoder, url: str, rows: Rows, options: Options) -> None:
    from ._tfrecord import frame

    kind = options.get("compression_type")
    kind = ("GZIP" if url.lower().endswith(".gz") else "") if kind is None else kind
    if kind not in ("", "GZIP", "ZLIB"):
        raise OptionError("no such compression", expected="'', 'GZIP' or 'ZLIB'", found=repr(kind))
    packer = zlib.compressobj(wbits=31 if kind == "GZIP" else 15) if kind else None

    def write(sink: _Sink) -> None:
        for batch in _batches(rows):
            for example in encoder.encode(batch):
                record = frame(example)
                sink.write(record if packer is None else packer.compress(record))
        sink.write(b"" if packer is None else packer.flush())

    _into(url, write)


def _write_jsonl(url: str, rows: Rows, options: Options) -> None:
    encoder = msgspec.json.Encoder(enc_hook=_json_value)

    def write(sink: _Sink) -> None:
        for batch in _batches(rows):
            for key, row in batch:
                _refuse_bytes(key, row)
            values = [row for _, row in batch]
            lines = encoder.encode_lines(values)
            if b"null" in lines:  # perhaps for NaN
                lines = b"".join(encode_json(plain_value(row)) + b"\n" for row in values)
            sink.write(lines)

    _into(url, write, compression_of(url))


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
            delimiter = options.get("delimiter") or ("\t" if is_tab_separated(url) else ",")
            writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
            if names is None:
                names = list(dict.fromkeys(name for _, row in batch for name in row))
                writer.writerow(names)
            for key, row in batch:
                _refuse_bytes(key, row)
                _refuse_others(key, row, names)
                writer.writerow([_cell(row.get(name)) for name in names])
            sink.write(text.getvalue().encode())

    _into(url, write, compression_of(url))


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, np.integer, np.floating)):
        return value
    text = msgspec.json.encode(value, enc_hook=_json_value)
    return (encode_json(plain_value(value)) if b"null" in text else text).decode()


def _refuse_others(key: str, row: Row, names: list[str]) -> None:
    other = next((name for name in row if name not in names), None)
    if other is not None:
        raise WriteError("a later sample has another field", expected=" or ".join(names), found=other, key=key)


def _cast_exactly(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in another schema. Raises ValueError where a value would be another one, which Arrow lets pass."""
    made = table.cast(schema)
    for before, after in zip(table.columns, made.columns, strict=True):
        if before.type == after.type:
            continue
        old, new, back = before.to_pylist(), after.to_pylist(), after.cast(before.type).to_pylist()
        # Their texts are compared, too, since NaN is not equal to itself.
        if repr(back) != repr(old) or (new != old and repr(new) != repr(old)):
            raise ValueError(f"values of type {before.type} would be others as {after.type}")
    return made


def _write_table(url: str, rows: Rows, options: Options, open_writer: Callable[[_Sink, Any], Any]) -> None:
    from ._arrow import column_of

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
                writer.write_table(table if table.schema == writer.schema else _cast_exactly(table, writer.schema))
            except (pa.ArrowException, ValueError, OverflowError) as error:
                hint = "convert the values of each field to one type first, or write jsonl"
                raise EncodeError("the samples fit no table", found=error, key=batch[0][0], hint=hint) from error
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


_FILE_WRITERS: dict[str, tuple[Callable[[], Callable[[str, Rows, Options], None]], set[str]]] = {
    "tfrecord": (_tfrecord_writer, {"compression_type"}),
    "jsonl": (lambda: _write_jsonl, set()),
    "csv": (lambda: _write_csv, {"delimiter"}),
    "parquet": (lambda: _write_parquet, {"row_group_size", "compression"}),
    "arrow": (lambda: _write_arrow, {"row_group_size", "compression"}),
    "npz": (lambda: _write_npz, {"rows"}),
    "hdf5": (lambda: _write_hdf5, {"compression"}),
}
