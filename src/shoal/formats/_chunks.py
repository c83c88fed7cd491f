"""Chunks of MosaicML MDS and of litData.

A chunk is a count, the offsets of its items and the end of the last one (all uint32), and the items.
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
import numpy.typing as npt

from shoal.errors import (
    DecodeError,
    FormatError,
    MissingExtraError,
    ObjectNotFoundError,
    ShoalError,
    TruncatedError,
    UnsafeCodecError,
)
from shoal.store import ObjectInfo, ObjectReader, base_name, join_url, parent_url, store_for

from ._registry import PathLike
from ._sources import Values, runs_of

__all__ = ["IndexFolder", "litdata_chunks", "mds_chunks"]

Int64 = npt.NDArray[np.int64]


# ------------------------------------------ folders of chunks with an index.json: what MosaicML's MDS and litData share


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
    def _offsets(self) -> Int64:
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

    def read(self, rows: Int64, fields: Sequence[str] | None) -> list[Values]:
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
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError(
            "the package zstandard cannot be imported", found=error, hint="pip install 'shoal[zstd]'"
        ) from error
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError as error:
        raise DecodeError("a compressed chunk is damaged", found=error) from error


# ------------------------------------------------------------------- MosaicML Streaming's MDS, read without the package


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
    "json": msgspec.json.decode,
}


# --------------------------------------------------------------------------- litData's chunks, read without the package


_NUMPY_TYPES = ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "?")
_TENSOR_TYPES = (
    "<f4 <f4 <f8 <f8 <c8 <c8 <c16 <c16 <f2 <f2 bfloat16 u1 i1 <i2 <i2 <i4 <i4 <i8 <i8 ? <u2".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class _LitdataItem:
    """How the bytes of an item become its leaves, and these the fields."""

    fields: tuple[str, ...]
    formats: tuple[str, ...]
    spec: Any
    """How leaves are nested; None where the item is a single one."""

    def __call__(self, data: bytes, wanted: frozenset[str] | None) -> Values:
        parts = split_items(data, [None] * len(self.formats))
        leaves = iter(zip(self.formats, parts, strict=True))
        return _top(self.spec, leaves, wanted)


def litdata_chunks(root: str, index: Mapping[str, Any]) -> Sequence[ChunkSpec]:
    """The chunks that an index names. Raises FormatError for one that cannot be read here."""
    try:
        config, chunks = index["config"], index["chunks"]
        if config.get("encryption"):
            raise FormatError("the chunks are encrypted", found=root)
        if (loader := config.get("item_loader") or "PyTreeLoader") != "PyTreeLoader":
            raise FormatError("the chunks hold no items", expected="PyTreeLoader", found=loader)
        tree = msgspec.json.decode(config["data_spec"])[1]
        item = _LitdataItem(_names(tree), tuple(config["data_format"]), tree)
        return [ChunkSpec(chunk["filename"], chunk["chunk_size"], item, config["compression"]) for chunk in chunks]
    except (KeyError, TypeError, IndexError, msgspec.DecodeError) as error:
        raise FormatError("this is no index of litData", found=error, shard=root) from error


def _kind(tree: Mapping[str, Any]) -> str:
    return str(tree["type"]).rpartition(".")[2]


def _names(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields: the names of a dict, the numbers of a list or tuple, or ``0`` for an item that is one value."""
    if _kind(tree) in ("dict", "OrderedDict"):
        return tuple(map(str, msgspec.json.decode(tree["context"])))
    return tuple(str(number) for number in range(len(tree["children_spec"]) if tree["type"] else 1))


def _top(tree: Mapping[str, Any], leaves: Iterator[tuple[str, bytes]], wanted: frozenset[str] | None) -> Values:
    children = tree["children_spec"] if tree["type"] else [tree]
    found: Values = {}
    for name, child in zip(_names(tree), children, strict=True):
        if wanted is None or name in wanted:
            found[name] = _nested(child, leaves)
        else:
            _pass_over(child, leaves)
    return found


def _nested(tree: Mapping[str, Any], leaves: Iterator[tuple[str, bytes]]) -> Any:
    if not tree["type"]:
        return _litdata_value(*next(leaves))
    values = [_nested(child, leaves) for child in tree["children_spec"]]
    if _kind(tree) in ("dict", "OrderedDict"):
        return dict(zip(_names(tree), values, strict=True))
    return tuple(values) if _kind(tree) == "tuple" else values


def _pass_over(tree: Mapping[str, Any], leaves: Iterator[tuple[str, bytes]]) -> None:
    if not tree["type"]:
        next(leaves)
    for child in tree["children_spec"]:
        _pass_over(child, leaves)


def _litdata_value(form: str, data: bytes) -> Any:
    kind, _, number = form.partition(":")
    if kind == "no_header_numpy":
        return np.frombuffer(data, _NUMPY_TYPES[int(number)])
    if kind == "no_header_tensor":
        return np.frombuffer(data, _tensor_type(int(number)))
    if kind == "pickle":
        raise UnsafeCodecError("a pickle can run code", found=form, hint="read the other fields")
    if kind not in _LITDATA_READERS:
        raise FormatError("no such kind of value", expected=" or ".join(_LITDATA_READERS), found=form)
    return _LITDATA_READERS[kind](data)


def _tensor_type(number: int) -> str:
    found = _TENSOR_TYPES[number]
    if found == "bfloat16":
        raise FormatError("NumPy has no bfloat16", found=number)
    return found


def _litdata_array(data: bytes) -> Any:
    number, axes = struct.unpack_from("<2I", data)
    shape = struct.unpack_from(f"<{axes}I", data, 8)
    return np.frombuffer(data, _NUMPY_TYPES[number], offset=8 + 4 * axes).reshape(shape)


def _tensor(data: bytes) -> Any:
    number, axes = struct.unpack_from(">2I", data)
    shape = struct.unpack_from(f">{axes}I", data, 8)
    return np.frombuffer(data, _tensor_type(number), offset=8 + 4 * axes).reshape(shape)


def _json(data: bytes) -> Any:
    """Lists and dicts: as JSON, or by tags (strings, numbers, truth values, and dicts of them)."""
    if data[:1] in (b"[", b"{"):
        return msgspec.json.decode(data)
    return _tagged(data, 0)[0]


def _tagged(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag == 11:
        return None, at
    if tag == 10:
        return bool(data[at]), at + 1
    if tag in (8, 9):
        return struct.unpack_from("<q" if tag == 8 else "<d", data, at)[0], at + 8
    (count,) = struct.unpack_from("<I", data, at)
    at += 4
    if tag in (0, 7):
        text = data[at : at + count]
        return msgspec.json.decode(text) if tag == 0 else text.decode(), at + count
    if tag in (2, 3):
        return np.frombuffer(data, "<i8" if tag == 2 else "<f8", count, at).tolist(), at + 8 * count
    if tag == 4:
        return [bool(byte) for byte in data[at : at + count]], at + count
    if tag in (1, 5):
        return _tagged_many(data, at, count, named=tag == 5)
    raise FormatError("no such tag of a list", found=tag)


def _tagged_many(data: bytes, at: int, count: int, *, named: bool) -> tuple[Any, int]:
    texts, values = [], []
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
        if named:
            value, at = _tagged(data, at)
            values.append(value)
    return (dict(zip(texts, values, strict=True)) if named else texts), at


_LITDATA_READERS: dict[str, Callable[[bytes], Any]] = {
    "str": lambda data: data.decode("utf-8"),
    "text": lambda data: data.decode("utf-8"),
    "int": lambda data: struct.unpack("<q", data)[0],
    "float": lambda data: struct.unpack("<d", data)[0],
    "bool": lambda data: data[0] != 0,
    "bytes": bytes,
    "file": bytes,
    "image": bytes,
    "jpeg": bytes,
    "video": bytes,
    "audio": bytes,
    "tifffile": bytes,
    "pil": raw_image,
    "numpy": _litdata_array,
    "tensor": _tensor,
    "json": _json,
}
