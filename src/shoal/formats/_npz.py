"""NumPy's ``.npz`` files: one sample per file, or one per row of arrays of equal length."""

from __future__ import annotations

import functools
import io
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal._typing import AnyArray, IntArray
from shoal.codec._arrays import decode_npy
from shoal.codec._codec import Limits
from shoal.codec._dispatch import encode
from shoal.codec._registry import codec_for
from shoal.errors import CodecError, DecodeError, EncodeError, UnsafeCodecError
from shoal.store._base import ObjectReader

from ._sources import RangeFile, Values, runs_of

__all__ = ["NpzRows", "npz_fields", "npz_values", "pack_npz"]

_LOCAL_HEADER = 30


@functools.cache
def _decoder() -> Callable[[Any], dict[str, Any]]:
    codec = codec_for("npz")
    assert codec is not None  # noqa: S101 - it comes with shoal
    assert codec.decoder is not None  # noqa: S101
    return codec.decoder(Limits())


def npz_values(path: str, data: bytes, fields: Sequence[str] | None) -> Values:
    """The arrays of a file by name, as views of its bytes where it is not compressed. Raises DecodeError."""
    try:
        arrays = _decoder()(data)
    except CodecError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
        raise DecodeError("this is no .npz file, or it is damaged", found=error) from error
    return arrays if fields is None else {name: arrays[name] for name in fields if name in arrays}


def npz_fields(paths: Sequence[str], read: Callable[[str], bytes]) -> tuple[str, ...]:
    """The arrays of the first file."""
    return tuple(npz_values(paths[0], read(paths[0]), None)) if paths else ()


@dataclass(frozen=True, slots=True)
class _Member:
    """An array of the file: what it is, and where its values are, where they lie there as they are."""

    name: str
    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values_at: int | None
    """None where they are compressed, or stored column by column."""


class NpzRows:
    """One open ``.npz`` whose arrays have a row for each sample."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._whole: dict[str, Any] = {}

    @functools.cached_property
    def _members(self) -> dict[str, _Member]:
        try:
            with zipfile.ZipFile(io.BufferedReader(RangeFile(self._reader))) as archive:
                found = [self._member(archive, info) for info in archive.infolist()]
        except CodecError:
            raise
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
            raise DecodeError("this is no .npz file, or it is damaged", found=error) from error
        lengths = {member.name: member.shape[0] if member.shape else None for member in found}
        if len(set(lengths.values())) > 1 or None in lengths.values():
            said = ", ".join(f"{name}: {'a single value' if n is None else n}" for name, n in lengths.items())
            raise DecodeError(
                "the arrays are not equally long", found=said, hint="with rows=False each file is one sample"
            )
        return {member.name: member for member in found}

    def _member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
        name = info.filename.removesuffix(".npy")
        with archive.open(info) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = read(file)
            if dtype.hasobject:
                raise UnsafeCodecError("an array of Python objects can run code", field=name)
            plain = info.compress_type == zipfile.ZIP_STORED and not by_columns
            start = self._data_start(info) + file.tell() if plain else None
        return _Member(name, info, shape, dtype, start)

    def _data_start(self, info: zipfile.ZipInfo) -> int:
        header = self._reader.read(info.header_offset, info.header_offset + _LOCAL_HEADER)
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return info.header_offset + _LOCAL_HEADER + lengths

    def __len__(self) -> int:
        return next((member.shape[0] for member in self._members.values()), 0)

    @property
    def fields(self) -> tuple[str, ...]:
        """The arrays."""
        return tuple(self._members)

    def read(self, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        """These rows of each array."""
        names = [name for name in self._members if fields is None or name in fields]
        columns = [self._rows(self._members[name], rows) for name in names]
        if not columns:
            return [{} for _ in range(len(rows))]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def _rows(self, member: _Member, rows: IntArray) -> Sequence[Any]:
        if member.values_at is None:
            return _items(self._array(member)[rows])
        size = member.dtype.itemsize * int(np.prod(member.shape[1:], dtype=np.int64))
        low, high = int(rows.min(initial=0)), int(rows.max(initial=-1)) + 1
        if size * (high - low) <= max(1 << 20, 4 * size * len(rows)):
            data = self._reader.read(member.values_at + low * size, member.values_at + high * size)
            array = np.frombuffer(data, member.dtype).reshape(high - low, *member.shape[1:])
            return _items(array[rows - low])
        starts = [member.values_at + row * size for row in rows.tolist()]
        parts = self._reader.read_many(starts, [start + size for start in starts])
        return _items([np.frombuffer(part, member.dtype).reshape(member.shape[1:]) for part in parts])

    def _array(self, member: _Member) -> Any:
        """A compressed array, unpacked once."""
        with self._lock:
            if member.name not in self._whole:
                try:
                    with zipfile.ZipFile(io.BufferedReader(RangeFile(self._reader))) as archive:
                        self._whole[member.name] = decode_npy(archive.read(member.info))
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise DecodeError("an array of the .npz is damaged", found=error, field=member.name) from error
            return self._whole[member.name]

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All rows in order."""
        return runs_of(self, fields)


def _items(array: Any) -> list[Any]:
    """Rows as samples have them: numbers and texts are Python's, everything with axes stays an array."""
    if isinstance(array, list):
        return [item.item() if item.ndim == 0 else item for item in array]
    return array.tolist() if array.ndim == 1 and array.dtype.names is None else list(array)


def _as_array(name: str, value: Any) -> AnyArray:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, np.uint8)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise EncodeError("the list has no shape", found=error, field=name, hint="write jsonl or parquet") from error
    if array.dtype.hasobject:
        raise EncodeError("this is no array", found=type(value).__name__, field=name)
    has_nan = array.dtype.kind in "fc" and np.isnan(array).any()
    if isinstance(value, (list, tuple)) and not has_nan and not _same_values(array.tolist(), value):
        found = f"{array.dtype} for {value!r}"
        raise EncodeError("an array has values of one type", found=found, field=name, hint="write jsonl or parquet")
    return array


def _same_values(one: Any, two: Any) -> bool:
    if isinstance(one, list) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(_same_values, one, two))
    return bool(np.array_equal(one, two) if isinstance(two, np.ndarray) else one == two)


def pack_npz(values: Mapping[str, Any], *, compressed: bool = False) -> bytes:
    """The bytes of a ``.npz`` with these arrays; bytes become arrays of uint8."""
    arrays = {name: _as_array(name, value) for name, value in values.items() if value is not None}
    if not compressed:
        return bytes(encode("npz", arrays))
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # its stubs take a name for `allow_pickle`
    return stream.getvalue()
