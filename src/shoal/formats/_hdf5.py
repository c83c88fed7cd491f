"""HDF5 files whose datasets have equal lengths: each row of them is a sample."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from shoal._optional import require
from shoal._typing import IntArray
from shoal.errors import DecodeError, EncodeError, FieldError
from shoal.store._base import ObjectReader

from ._member_values import as_member, is_bytes
from ._sources import Values, file_for, runs_of

__all__ = ["Column", "Hdf5Part", "import_h5py", "open_columns"]

_KEPT_BYTES = 64 << 20
_MOST_AT_ONCE = 32 << 20


def import_h5py() -> Any:
    """The library. Raises MissingExtraError."""
    return require("h5py", extra="hdf5")


class Hdf5Part:
    """One open HDF5 file.

    Values that lie in the file as they are, are read from it without the library, which lets one thread work at a time;
    chunks are kept when they were unpacked, for the rows that are asked for next.
    """

    def __init__(self, reader: ObjectReader, group: str = "/") -> None:
        self._reader = reader
        self._group = group
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._kept_bytes = 0

    @functools.cached_property
    def _datasets(self) -> dict[str, Any]:
        h5py = import_h5py()
        try:
            file = h5py.File(file_for(self._reader), "r")
        except OSError as error:
            raise DecodeError("this is no HDF5 file, or it is damaged", found=error) from error
        if self._group not in file or not isinstance(file[self._group], h5py.Group):
            raise FieldError("no such group", expected=" or ".join(file), found=self._group)
        found: dict[str, Any] = {}
        root = file[self._group]
        root.visititems(lambda name, node: found.update({name: node}) if isinstance(node, h5py.Dataset) else None)
        _check_lengths(found)
        return found

    def __len__(self) -> int:
        return next((len(dataset) for dataset in self._datasets.values()), 0)

    @property
    def fields(self) -> tuple[str, ...]:
        """The datasets, by their paths below the group."""
        return tuple(self._datasets)

    @functools.cached_property
    def _stored_at(self) -> dict[str, int]:
        """Where the values of datasets begin that lie in the file as they are."""
        found = {}
        for name, dataset in self._datasets.items():
            at = dataset.id.get_offset() if dataset.chunks is None else None
            plain = dataset.dtype.kind in "iufcb" and dataset.dtype.metadata is None
            user_block = dataset.file.userblock_size
            if at is not None and plain and not user_block and not dataset.external:
                found[name] = at
        return found

    def read(self, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        """These rows of each dataset."""
        names = [name for name in self._datasets if fields is None or name in fields]
        try:
            columns = [self._column(name, rows) for name in names]
        except OSError as error:
            if isinstance(error, DecodeError):
                raise
            raise DecodeError("the HDF5 file is damaged", found=error) from error
        if not columns:
            return [{} for _ in range(len(rows))]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def _column(self, name: str, rows: IntArray) -> list[Any]:
        dataset = self._datasets[name]
        if name in self._stored_at:
            return self._plain_rows(name, dataset, rows)
        with self._lock:
            return _items(dataset, self._chunked_rows(name, dataset, rows))

    def _plain_rows(self, name: str, dataset: Any, rows: IntArray) -> list[Any]:
        base, shape, dtype = self._stored_at[name], dataset.shape[1:], dataset.dtype
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        low, high = int(rows.min(initial=0)), int(rows.max(initial=-1)) + 1
        if size * (high - low) <= min(_MOST_AT_ONCE, max(1 << 20, 4 * size * len(rows))):
            data = self._reader.read(base + low * size, base + high * size)
            array = np.frombuffer(data, dtype).reshape(high - low, *shape)
            array = array if len(rows) == high - low and bool((np.diff(rows) == 1).all()) else array[rows - low]
            return array.tolist() if array.ndim == 1 else list(array)
        starts = [base + row * size for row in rows.tolist()]
        parts = self._reader.read_many(starts, [start + size for start in starts])
        arrays = [np.frombuffer(part, dtype).reshape(shape) for part in parts]
        return [array.item() for array in arrays] if not shape else arrays

    def _chunked_rows(self, name: str, dataset: Any, rows: IntArray) -> list[Any]:
        """Rows out of chunks, each of which is unpacked once for all rows that it holds."""
        length = dataset.chunks[0] if dataset.chunks else max(1, min(len(dataset), 1024))
        found: list[Any] = [None] * len(rows)
        numbers = rows // length
        for number in np.unique(numbers).tolist():
            chunk = self._chunk(name, dataset, number, length)
            places = np.flatnonzero(numbers == number)
            for place, row in zip(places.tolist(), (rows[places] - number * length).tolist(), strict=True):
                found[place] = chunk[row]
        return found

    def _chunk(self, name: str, dataset: Any, number: int, length: int) -> Any:
        kept = self._kept.pop((name, number), None)
        if kept is None:
            kept = dataset[number * length : (number + 1) * length]
            if kept.dtype.kind != "O":
                kept.flags.writeable = False
            self._kept_bytes += kept.nbytes
        self._kept[name, number] = kept
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return kept

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All rows in order."""
        return runs_of(self, fields)


def _check_lengths(datasets: dict[str, Any]) -> None:
    lengths = {name: dataset.shape[0] if dataset.shape else None for name, dataset in datasets.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        said = ", ".join(f"{name}: {'a single value' if n is None else n}" for name, n in lengths.items())
        raise DecodeError(
            "the datasets of the file are not equally long", found=said, hint="name the group that holds the samples"
        )


def _items(dataset: Any, values: list[Any]) -> list[Any]:
    """Rows as samples have them: UTF-8 strings as ``str``, byte strings as ``bytes``, single numbers as Python's."""
    h5py = import_h5py()
    string = h5py.check_string_dtype(dataset.dtype)
    if string is not None:  # h5py stores bytes as ASCII strings, and reads those as bytes
        return [_string(value, is_text=string.encoding == "utf-8") for value in values]
    inner = h5py.check_vlen_dtype(dataset.dtype)
    if inner == np.uint8:
        return [value.tobytes() for value in values]
    return [value.item() if isinstance(value, np.generic) and value.dtype.names is None else value for value in values]


def _string(value: Any, is_text: bool) -> Any:
    if isinstance(value, (np.ndarray, list)):
        return [_string(item, is_text) for item in (value if isinstance(value, list) else value.tolist())]
    if not is_text:
        return bytes(value)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


class Column:
    """A dataset that grows."""

    def __init__(self, dataset: Any, convert: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._convert = convert
        # Several rows that happen to be equally long would be taken for one array of two axes.
        self._by_row = import_h5py().check_vlen_dtype(dataset.dtype) is not None

    def append(self, values: list[Any]) -> None:
        """Write rows after those that are there. Raises EncodeError where they do not fit."""
        try:
            rows = self._convert(values)
            start = len(self._dataset)
            self._dataset.resize(start + len(values), axis=0)
            if self._by_row:
                for at, row in enumerate(rows):
                    self._dataset[start + at] = row
            else:
                self._dataset[start:] = rows
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, EncodeError):
                raise error.at(field=self._dataset.name) from error.__cause__
            raise _kind_error(found=error, field=self._dataset.name) from error


def open_columns(
    file: Any, batch: Sequence[tuple[str, Mapping[str, Any]]], compression: str | None
) -> dict[str, Column]:
    """A dataset for each field of these samples, of the kind that their values have."""
    names = dict.fromkeys(name for _, row in batch for name in row)
    return {name: _column(file, name, [row.get(name) for _, row in batch], compression) for name in names}


def _column(file: Any, name: str, values: list[Any], compression: str | None) -> Column:
    h5py = import_h5py()
    if all(isinstance(value, str) for value in values):
        return Column(_grown(file, name, (), h5py.string_dtype()), _texts)
    if all(is_bytes(value) for value in values):
        return Column(_grown(file, name, (), h5py.vlen_dtype(np.uint8)), _byte_rows)
    shapes = {np.shape(value) for value in values if isinstance(value, (np.ndarray, np.generic, int, float))}
    arrays = [np.asarray(value) for value in values] if shapes and not any(value is None for value in values) else []
    if all(array.dtype.kind in "iufcb" for array in arrays):
        dtype = np.result_type(*arrays) if arrays else None
        if len(arrays) == len(values) and len(shapes) == 1 and arrays:
            column = _grown(file, name, arrays[0].shape, dtype, compression)
            return Column(column, lambda rows: np.asarray([_exact_array(row, dtype) for row in rows], dtype))
        if arrays and all(array.ndim == 1 and array.dtype.kind in "iuf" for array in arrays):
            column = _grown(file, name, (), h5py.vlen_dtype(dtype))
            return Column(column, lambda rows: _objects([_exact_array(row, dtype) for row in rows]))
    member = as_member(name, values[0])[0]
    return Column(_grown(file, member, (), h5py.vlen_dtype(np.uint8)), partial(_member_rows, name, member))


def _kind_error(**facts: Any) -> EncodeError:
    return EncodeError(
        "the values of a field have one kind", hint="convert them to one type first, or write parquet", **facts
    )


def _exact_array(value: Any, dtype: Any) -> Any:
    """A value in this dtype. Raises EncodeError where it would be another value."""
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        made = array.astype(dtype)
        back = made.astype(array.dtype)
    is_number = array.dtype.kind in "iufcb"
    # Compared both ways: floats hide large ints, and ints of another sign come back as they were.
    is_same = is_number and all(np.array_equal(one, array, equal_nan=True) for one in (made, back))
    if not is_same:
        raise _kind_error(expected=str(dtype), found=f"{array.dtype} {value!r}")
    return made


def _texts(rows: list[Any]) -> Any:
    other = next((row for row in rows if not isinstance(row, str)), None)
    if other is not None:
        raise _kind_error(expected="str", found=repr(other))
    return _objects(rows)


def _member_rows(name: str, member: str, rows: list[Any]) -> list[Any]:
    members = [as_member(name, row) for row in rows]
    other = next((found for found, _ in members if found != member), None)
    if other is not None:
        raise _kind_error(expected=member, found=other)
    return _byte_rows([data for _, data in members])


def _grown(file: Any, name: str, shape: tuple[int, ...], dtype: Any, compression: str | None = None) -> Any:
    return file.create_dataset(name, (0, *shape), dtype, maxshape=(None, *shape), compression=compression, chunks=True)


def _objects(rows: list[Any]) -> Any:
    found = np.empty(len(rows), object)
    for at, row in enumerate(rows):
        found[at] = row
    return found


def _byte_rows(rows: list[Any]) -> list[Any]:
    return [np.frombuffer(row, np.uint8) for row in rows]
