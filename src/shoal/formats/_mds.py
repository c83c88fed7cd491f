"""MosaicML Streaming's MDS, read without the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import numpy as np

from shoal.errors import FormatError, UnsafeCodecError

from ._chunks import ChunkSpec, raw_image, split_items
from ._parts import Values

__all__ = ["mds_chunks"]

_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_VALUE_TYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4"} | {
    64: "<u8",
    65: "<i8",
    66: "<f8",
}
_SHAPE_TYPES = ("u1", "<u2", "<u4", "<u8")


@dataclass(frozen=True)
class _Item:
    """How the bytes of a sample become its columns."""

    fields: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def __call__(self, data: bytes, wanted: frozenset[str] | None) -> Values:
        parts = zip(self.fields, self.encodings, split_items(data, self.sizes), strict=True)
        return {name: _value(name, kind, part) for name, kind, part in parts if wanted is None or name in wanted}


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
        item = _Item(tuple(shard["column_names"]), tuple(shard["column_encodings"]), sizes)
        raw, packed = shard["raw_data"]["basename"], shard.get("zip_data")
        if not packed:
            return ChunkSpec(raw, shard["samples"], item)
        return ChunkSpec(packed["basename"], shard["samples"], item, shard["compression"], raw)
    except (KeyError, TypeError) as error:
        raise FormatError("the index says too little of a shard", found=error, shard=root) from error


def _value(name: str, encoding: str, data: bytes) -> Any:
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        return _array(data, rest)
    if kind in _SCALARS:
        return np.frombuffer(data, np.dtype(kind).newbyteorder("<"))[0].item()
    if kind.startswith("list["):
        return _listed(partial(_value, name, kind[5:-1]), data, 4)
    if kind in ("jpeg_array", "jpegarray"):
        return _listed(bytes, data, 0)
    if kind == "pkl":
        raise UnsafeCodecError("a column of pickles can run code", field=name, hint="read the other columns")
    if kind not in _READERS:
        raise FormatError("no such encoding", expected=" or ".join(_READERS), found=encoding, field=name)
    return _READERS[kind](data)


def _listed(read: Callable[[bytes], Any], data: bytes, at: int) -> list[Any]:
    """A count, the size of each, then each of them."""
    count = int.from_bytes(data[at : at + 4], "little")
    sizes = np.frombuffer(data, "<u4", count, at + 4).tolist()
    at, found = at + 4 + 4 * count, []
    for size in sizes:
        found.append(read(data[at : at + size]))
        at += size
    return found


def _array(data: bytes, said: str) -> Any:
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


_READERS: dict[str, Callable[[bytes], Any]] = {
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
