"""litData's format: folders of chunks, read without the package.

Folders and chunks are laid out as in MDS; values have encodings of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from shoal.errors import FormatError, UnsafeCodecError

from ._mds import ChunkSpec, raw_image, split_items
from ._sources import Values

__all__ = ["litdata_chunks"]

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
