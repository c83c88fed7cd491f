"""What the columns of a WebDataset are for Hugging Face `datasets`, told from a few samples.

`datasets` looks at the first five samples of one shard, which must all have the same fields. A card that says the
features spares it that, so that samples may differ. What is said must be right: where a few samples do not tell,
nothing is said, and `datasets` looks for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shoal.codec import decode_npy
from shoal.errors import CodecError

__all__ = ["column_kinds", "features_of", "shown_value"]

IMAGES = frozenset(["bmp", "gif", "jpeg", "jpg", "png", "ppm", "pgm", "tif", "tiff", "webp"])
AUDIO = frozenset(["aac", "aif", "aiff", "flac", "m4a", "mp3", "ogg", "opus", "wav"])
VIDEO = frozenset(["avi", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "webm"])
_TEXTS = frozenset({"txt", "text", "transcript"})
_NUMBERS = frozenset({"cls", "cls2", "index", "inx", "id"})
_JSON = frozenset({"json", "jsn"})
_PACKED = frozenset(["gz", "bz2", "xz", "zst", "lz4", "mp", "msg", "cbor", "ten", "tb", "npz", "pth"])
"""What `datasets` unpacks or decodes in ways of its own: nothing is said of datasets with these."""


class _Untold(Exception):  # noqa: N818 - never leaves this module
    """A few samples do not tell what a column is."""


def features_of(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The features as a card's YAML has them, of samples with fields as bytes; None when they cannot be told.

    Example:
        >>> features_of([{"__key__": "a", "jpg": b"...", "json": b'{"age": 3}'}])[:2]
        [{'name': 'jpg', 'dtype': 'image'}, {'name': 'json', 'struct': [{'name': 'age', 'dtype': 'int64'}]}]
    """
    names = list(dict.fromkeys(name for sample in samples for name in sample if not name.startswith("__")))
    try:
        told = [_feature(name, [sample[name] for sample in samples if name in sample]) for name in names]
    except (_Untold, CodecError, pa.ArrowException, ValueError):
        return None
    return [*told, {"name": "__key__", "dtype": "string"}, {"name": "__url__", "dtype": "string"}]


def column_kinds(features: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Each column and what it is, in a word."""
    return {each["name"]: str(each.get("dtype", "list" if "list" in each else "struct")) for each in features or ()}


def _feature(name: str, values: Sequence[Any]) -> dict[str, Any]:
    extension = name.rpartition(".")[2]
    if extension in _PACKED:
        raise _Untold
    for word, extensions in (("image", IMAGES), ("audio", AUDIO), ("video", VIDEO), ("string", _TEXTS)):
        if extension in extensions:
            return {"name": name, "dtype": word}
    if extension in _NUMBERS:
        return {"name": name, "dtype": "int64"}
    if extension in _JSON:
        return {"name": name, **_of_arrow(_arrow_type([msgspec.json.decode(value) for value in values]))}
    if extension == "npy":
        return {"name": name, **_of_arrays([decode_npy(value) for value in values])}
    return {"name": name, "dtype": "binary"}


def _arrow_type(values: list[Any]) -> pa.DataType:
    tables = [pa.Table.from_pylist([{"value": value}]) for value in values]
    kind: pa.DataType = pa.concat_tables(tables, promote_options="permissive").schema.field("value").type
    return kind


def _of_arrow(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise _Untold
        return {"struct": [{"name": field.name, **_of_arrow(field.type)} for field in kind]}
    if pa.types.is_list(kind):
        return {"list": _item(_of_arrow(kind.value_type))}
    word = {"double": "float64", "string": "string", "int64": "int64", "bool": "bool"}.get(str(kind))
    if word is None:
        raise _Untold
    return {"dtype": word}


def _item(inner: dict[str, Any]) -> Any:
    """What is in a list, in as few words as YAML has for it."""
    return next(iter(inner.values())) if list(inner) in (["dtype"], ["struct"]) else inner


def _of_arrays(arrays: list[Any]) -> dict[str, Any]:
    kinds = {(array.dtype, array.ndim) for array in arrays if isinstance(array, np.ndarray)}
    if len(kinds) != 1:
        raise _Untold
    dtype, dimensions = kinds.pop()
    if dtype.kind not in "biuf" or dimensions == 0:
        raise _Untold
    inner: dict[str, Any] = {"dtype": dtype.name}
    for _ in range(dimensions):
        inner = {"list": _item(inner)}
    return inner


# ---------------------------------------------------------------------------------------------------------- for people


def shown_value(name: str, data: Any, longest: int = 60) -> str:
    """A field's value in a few words: text as it is, bytes as their size, an array as its type and shape.

    Example:
        >>> shown_value("txt", b"a cat"), shown_value("jpg", bytes(2048))
        ('a cat', '2,048 bytes')
    """
    extension = name.rpartition(".")[2]
    if extension == "npy":
        try:
            array = decode_npy(data)
        except CodecError:
            return f"{len(data):,} bytes"
        return f"{array.dtype} {tuple(array.shape)}"
    if extension not in _TEXTS | _NUMBERS | _JSON:
        return f"{len(data):,} bytes"
    text = " ".join(bytes(data).decode("utf-8", "replace").split())
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
