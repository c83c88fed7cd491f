"""MosaicML Streaming's MDS format, and folders of chunks with an ``index.json``, which litData has too.

A chunk starts with the number of its items, the offset of each item and the end of the last one (all uint32); the items
follow. Both formats are read without the packages that write them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from shoal._optional import require
from shoal._typing import IntArray
from shoal.codec._documents import decode_json
from shoal.errors import (
    DecodeError,
    FormatError,
    ObjectNotFoundError,
    ShoalError,
    TruncatedError,
    UnsafeCodecError,
)
from shoal.store._base import ObjectInfo, ObjectReader
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, parent_url

from ._sources import PathLike, Values, runs_of

__all__ = ["ChunkSpec", "IndexFolder", "mds_chunks", "raw_image", "split_items"]


class ItemReader(Protocol):
    """Makes an item's values of its bytes."""

    @property
    def fields(self) -> tuple[str, ...]: ...

    def __call__(self, data: bytes, wanted: frozenset[str] | None) -> Values: ...


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """A chunk, as the index says."""

    path: str
    samples: int
    item: ItemReader
    compression: str | None = None
    instead: str | None = None
    """The name of the same chunk without compression, which is read where it is there."""


@dataclass(frozen=True)
class IndexFolder:
    """The chunks of a folder, in the order of its index."""

    path: PathLike
    specs: Callable[[str, Mapping[str, Any]], Sequence[ChunkSpec]]
    split: str | None = None
    _cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def root(self) -> str:
        """The folder with the index."""
        text = str(self.path)
        root = parent_url(text) if base_name(text) == "index.json" else text
        return root if self.split is None else join_url(root, self.split)

    @property
    def folder(self) -> str | None:
        """The folder with the index."""
        return self.root

    @property
    def chunks(self) -> tuple[tuple[ObjectInfo, ChunkSpec], ...]:
        """The chunks with the objects they are in."""
        if "chunks" not in self._cache:
            specs = self.specs(self.root, load_index_json(self.root))
            self._cache["chunks"] = tuple((self._object(spec), spec) for spec in specs)
        found: tuple[tuple[ObjectInfo, ChunkSpec], ...] = self._cache["chunks"]
        return found

    def _object(self, spec: ChunkSpec) -> ObjectInfo:
        for name in (spec.instead, spec.path):
            url = join_url(self.root, name) if name is not None else None
            if url is not None:
                try:
                    return store_for(url).info(url)
                except ObjectNotFoundError:
                    if name == spec.path:
                        raise
        raise AssertionError  # the loop returns or raises

    def find(self) -> tuple[ObjectInfo, ...]:
        """The chunks' objects."""
        return tuple(info for info, _ in self.chunks)

    def counts(self) -> list[int]:
        """How many samples each chunk has."""
        return [spec.samples for _, spec in self.chunks]

    def open(self, reader: ObjectReader) -> ChunkPart:
        """An open chunk."""
        spec = next(spec for info, spec in self.chunks if info.url == reader.info.url)
        packed = spec.compression if reader.info.url == join_url(self.root, spec.path) else None
        return ChunkPart(reader, spec, packed)


def load_index_json(root: str) -> Mapping[str, Any]:
    """The index of a folder. Raises ObjectNotFoundError, or FormatError when it is none."""
    url = join_url(root, "index.json")
    try:
        found = msgspec.json.decode(store_for(url).read_all(url))
    except msgspec.DecodeError as error:
        raise FormatError("the index is no JSON", found=error, shard=url) from error
    if not isinstance(found, dict):
        raise FormatError("the index is no JSON object", found=type(found).__name__, shard=url)
    return found


class ChunkPart:
    """One open chunk."""

    def __init__(self, reader: ObjectReader, spec: ChunkSpec, compression: str | None) -> None:
        self._reader = reader
        self._spec = spec
        self._compression = compression

    @functools.cached_property
    def _unpacked(self) -> bytes | None:
        if self._compression is None:
            return None
        return unpack_file(self._reader.read(0, self._reader.info.size), self._compression)

    def _read(self, start: int, stop: int) -> bytes:
        data = self._unpacked
        return self._reader.read(start, stop) if data is None else data[start:stop]

    @functools.cached_property
    def _offsets(self) -> IntArray:
        count = self._spec.samples
        head = self._read(0, 4 * (count + 2))
        size = self._reader.info.size if self._unpacked is None else len(self._unpacked)
        offsets = np.frombuffer(head[: len(head) // 4 * 4], "<u4").astype(np.int64)
        if len(offsets) < count + 2 or int(offsets[0]) != count:
            found = int(offsets[0]) if len(offsets) else "nothing"
            raise DecodeError(
                "a chunk holds another number of samples than its index says", expected=count, found=found
            )
        if bool((np.diff(offsets[1:]) < 0).any()) or int(offsets[-1]) > size:
            raise TruncatedError("a chunk ends before its samples do", expected=int(offsets[-1]), found=size)
        return offsets[1:]

    def __len__(self) -> int:
        return self._spec.samples

    @property
    def fields(self) -> tuple[str, ...]:
        """What items have."""
        return self._spec.item.fields

    def read(self, rows: IntArray, fields: Sequence[str] | None) -> list[Values]:
        """These items; what lies close together is read at once."""
        starts, stops = self._offsets[:-1][rows], self._offsets[1:][rows]
        wanted = None if fields is None else frozenset(fields)
        low, high = int(starts.min(initial=0)), int(stops.max(initial=0))
        if high - low <= max(1 << 16, 2 * int((stops - starts).sum())):
            data = self._read(low, high)
            ranges = zip((starts - low).tolist(), (stops - low).tolist(), strict=True)
            items = [data[start:stop] for start, stop in ranges]
        elif self._unpacked is not None:
            items = [self._unpacked[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        else:
            items = self._reader.read_many(starts.tolist(), stops.tolist())
        return [self._item(item, wanted) for item in items]

    def _item(self, item: bytes, wanted: frozenset[str] | None) -> Values:
        try:
            return self._spec.item(item, wanted)
        except ShoalError:
            raise
        except (ValueError, IndexError, KeyError, struct.error) as error:
            raise DecodeError("a sample does not fit what the index says of it", found=error) from error

    def runs(self, fields: Sequence[str] | None) -> Iterator[list[Values]]:
        """All items in order."""
        return runs_of(self, fields)


def split_items(data: bytes, fixed: Sequence[int | None]) -> list[bytes]:
    """The values of an item: the sizes of those that have no fixed one come first, as uint32."""
    loose = sum(size is None for size in fixed)
    sizes = iter(struct.unpack_from(f"<{loose}I", data))
    at, found = 4 * loose, []
    for size in fixed:
        stop = at + (next(sizes) if size is None else size)
        if stop > len(data):
            raise TruncatedError("a sample ends before its last field", expected=stop, found=len(data))
        found.append(data[at:stop])
        at = stop
    return found


def raw_image(data: bytes) -> Any:
    """An image stored as width, height, mode and pixels, as an array of height, width and channels."""
    width, height, letters = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + letters].decode()
    pixels = data[12 + letters :]
    dtype = {"1": None, "I": np.int32, "F": np.float32, "I;16": np.uint16}.get(mode, np.uint8)
    if dtype is None:
        return np.unpackbits(np.frombuffer(pixels, np.uint8).reshape(height, -1), axis=1)[:, :width].astype(bool)
    array = np.frombuffer(pixels, dtype)
    channels = array.size // max(1, width * height)
    return array.reshape((height, width) if channels == 1 else (height, width, channels))


def unpack_file(data: bytes, compression: str) -> bytes:
    """A whole chunk without its compression. Raises FormatError for one that nothing here knows."""
    kind = compression.partition(":")[0]
    try:
        if kind == "gz":
            import gzip

            return gzip.decompress(data)
        if kind == "bz2":
            import bz2

            return bz2.decompress(data)
    except (OSError, EOFError) as error:
        raise DecodeError("a compressed chunk is damaged", found=error) from error
    if kind == "zstd":
        return _unzstd(data)
    raise FormatError("no such compression", expected="zstd, gz or bz2", found=compression)


def _unzstd(data: bytes) -> bytes:
    zstandard = require("zstandard", extra="zstd")
    try:
        unpacked: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        return unpacked
    except zstandard.ZstdError as error:
        raise DecodeError("a compressed chunk is damaged", found=error) from error


_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_VALUE_TYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4"} | {
    64: "<u8",
    65: "<i8",
    66: "<f8",
}
_SHAPE_TYPES = ("u1", "<u2", "<u4", "<u8")


@dataclass(frozen=True)
class _MdsItem:
    """How the bytes of a sample become its columns."""

    fields: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def __call__(self, data: bytes, wanted: frozenset[str] | None) -> Values:
        parts = zip(self.fields, self.encodings, split_items(data, self.sizes), strict=True)
        return {name: _mds_value(name, kind, part) for name, kind, part in parts if wanted is None or name in wanted}


def mds_chunks(root: str, index: Mapping[str, Any]) -> Sequence[ChunkSpec]:
    """The shards that an index names. Raises FormatError for an index that is not MDS of version 2."""
    shards = index.get("shards")
    if index.get("version") != 2 or not isinstance(shards, list):
        raise FormatError("this is no index of MDS, version 2", found=f"version {index.get('version')}", shard=root)
    return [_chunk(shard, root) for shard in shards]


def _chunk(shard: Mapping[str, Any], root: str) -> ChunkSpec:
    try:
        if shard["format"] != "mds":
            raise FormatError("the shards are of another format of MosaicML's", expected="mds", found=shard["format"])
        sizes = tuple(size or None for size in shard["column_sizes"])
        item = _MdsItem(tuple(shard["column_names"]), tuple(shard["column_encodings"]), sizes)
        raw, packed = shard["raw_data"]["basename"], shard.get("zip_data")
        if not packed:
            return ChunkSpec(raw, shard["samples"], item)
        return ChunkSpec(packed["basename"], shard["samples"], item, shard["compression"], raw)
    except (KeyError, TypeError) as error:
        raise FormatError("the index says too little of a shard", found=error, shard=root) from error


def _mds_value(name: str, encoding: str, data: bytes) -> Any:
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        return _mds_array(data, rest)
    if kind in _SCALARS:
        return np.frombuffer(data, np.dtype(kind).newbyteorder("<"))[0].item()
    if kind.startswith("list["):
        return _listed(partial(_mds_value, name, kind[5:-1]), data, 4)
    if kind in ("jpeg_array", "jpegarray"):
        return _listed(bytes, data, 0)
    if kind == "pkl":
        raise UnsafeCodecError("a column of pickles can run code", field=name, hint="read the other columns")
    if kind not in _MDS_READERS:
        raise FormatError("no such encoding", expected=" or ".join(_MDS_READERS), found=encoding, field=name)
    return _MDS_READERS[kind](data)


def _listed(read: Callable[[bytes], Any], data: bytes, at: int) -> list[Any]:
    """A count, the size of each, then each of them."""
    count = int.from_bytes(data[at : at + 4], "little")
    sizes = np.frombuffer(data, "<u4", count, at + 4).tolist()
    at, found = at + 4 + 4 * count, []
    for size in sizes:
        found.append(read(data[at : at + size]))
        at += size
    return found


def _mds_array(data: bytes, said: str) -> Any:
    """An array, whose type and shape stand in the encoding, or else before its values."""
    name, _, shape_text = said.partition(":")
    at = 0
    dtype = np.dtype(name) if name else np.dtype(_VALUE_TYPES[data[0]])
    at += 0 if name else 1
    if shape_text:
        shape = tuple(map(int, shape_text.split(",")))
    else:
        axes, form = data[at] >> 2, np.dtype(_SHAPE_TYPES[data[at] & 3])
        shape = tuple(np.frombuffer(data, form, axes, at + 1).tolist())
        at += 1 + axes * form.itemsize
    return np.frombuffer(data, dtype, offset=at).reshape(shape)


_MDS_READERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "str": lambda data: data.decode("utf-8"),
    "int": lambda data: int.from_bytes(data, "little", signed=True),
    "str_int": int,
    "str_float": float,
    "str_decimal": lambda data: Decimal(data.decode()),
    "pil": raw_image,
    "jpeg": bytes,
    "png": bytes,
    "json": decode_json,
}
