"""Turn extents and bytes into samples.

A sample is a dict: ``__key__``, ``__url__``, then its fields. The functions that build them are made once per set of
fields, as dataclasses makes ``__init__``: one list comprehension without an inner loop, several times faster than a
loop over the fields of each sample.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Decoders", "Sample", "block_rows", "decode_rows", "edged_rows", "scattered_rows", "whole_rows"]

Sample = dict[str, Any]
Decoders = Mapping[str, Callable[[bytes], Any]]
Int64 = npt.NDArray[np.int64]


def block_rows(
    data: bytes,
    url: str,
    keys: list[str],
    fields: Sequence[str],
    edges: list[list[int]],
    decoders: Decoders,
    sparse: tuple[bool, ...],
) -> list[Sample]:
    """Samples whose members all lie in ``data``: ``edges`` has two lists for each field, where members start and stop.

    A negative start is a missing field; ``sparse`` says of which fields there may be such.
    """
    decoded = tuple([field in decoders for field in fields])
    build = _block_builder(tuple(fields), sparse, decoded)
    return build(data, url, keys, edges, [decoders[field] for field in itertools.compress(fields, decoded)])


def whole_rows(
    buffers: list[bytes], url: str, keys: list[str], fields: Sequence[str], starts: list[Int64], sizes: list[Int64]
) -> list[Sample]:
    """Samples with a buffer each, in which their members lie at ``starts``; a negative start is a missing field."""
    sparse = tuple(bool((start < 0).any()) for start in starts)
    edges = [column.tolist() for start, size in zip(starts, sizes, strict=True) for column in (start, start + size)]
    return edged_rows(buffers, url, keys, fields, edges, sparse)


def edged_rows(
    buffers: list[bytes],
    url: str,
    keys: list[str],
    fields: Sequence[str],
    edges: list[list[int]],
    sparse: tuple[bool, ...],
) -> list[Sample]:
    """Samples with a buffer each: ``edges`` has two lists for each field, where members start and stop in the buffers.

    A negative start is a missing field; ``sparse`` says of which fields there may be such.
    """
    return _whole_builder(tuple(fields), sparse)(keys, [buffers, *edges], url)


def scattered_rows(
    buffers: list[bytes],
    url: str,
    keys: list[str],
    fields: Sequence[str],
    places: list[Int64],
    starts: list[Int64],
    sizes: list[Int64],
) -> list[Sample]:
    """Samples whose members lie each in ``buffers[place]``; a negative start is a missing field."""
    sparse = tuple(bool((start < 0).any()) for start in starts)
    build = _scattered_builder(tuple(fields), sparse)
    columns = [
        column.tolist()
        for place, start, size in zip(places, starts, sizes, strict=True)
        for column in (place, start, start + size)
    ]
    return build(buffers, url, keys, columns)


def decode_rows(rows: list[Sample], decoders: Decoders) -> None:
    """Decode fields in place."""
    for field, decode in decoders.items():
        for row in rows:
            if field in row:
                row[field] = decode(row[field])


@functools.lru_cache(maxsize=256)
def _block_builder(
    fields: tuple[str, ...], sparse: tuple[bool, ...], decoded: tuple[bool, ...]
) -> Callable[..., list[Sample]]:
    numbers = iter(range(len(fields)))
    values = [f"d[{next(numbers)}](buf[a{i}:b{i}])" if decoded[i] else f"buf[a{i}:b{i}]" for i in range(len(fields))]
    columns = [f"a{i}, b{i}" for i in range(len(fields))]
    return _compiled("buf, url, keys, columns, d", fields, sparse, columns, values)


@functools.lru_cache(maxsize=256)
def _whole_builder(fields: tuple[str, ...], sparse: tuple[bool, ...]) -> Callable[..., list[Sample]]:
    values = [f"buf[a{i}:b{i}]" for i in range(len(fields))]
    columns = ["buf", *(f"a{i}, b{i}" for i in range(len(fields)))]
    return _compiled("keys, columns, url", fields, sparse, columns, values)


@functools.lru_cache(maxsize=256)
def _scattered_builder(fields: tuple[str, ...], sparse: tuple[bool, ...]) -> Callable[..., list[Sample]]:
    values = [f"bufs[p{i}][a{i}:b{i}]" for i in range(len(fields))]
    columns = [f"p{i}, a{i}, b{i}" for i in range(len(fields))]
    return _compiled("bufs, url, keys, columns", fields, sparse, columns, values)


def _compiled(
    arguments: str, fields: tuple[str, ...], sparse: tuple[bool, ...], columns: list[str], values: list[str]
) -> Callable[..., list[Sample]]:
    """Field names enter the source only through ``repr``, so no name can become code."""
    always = "".join(f", {field!r}: {values[i]}" for i, field in enumerate(fields) if not sparse[i])
    row = f"{{'__key__': k, '__url__': url{always}}}"
    loop = f"for k, {', '.join(columns)} in zip(keys, *columns)" if columns else "for k in keys"
    if any(sparse):
        maybe = "".join(
            f"\n        if a{i} >= 0: row[{field!r}] = {values[i]}" for i, field in enumerate(fields) if sparse[i]
        )
        body = f"    {loop}:\n        row = {row}{maybe}\n        out.append(row)\n"
        source = f"def build({arguments}):\n    out = []\n{body}    return out"
    else:
        source = f"def build({arguments}):\n    return [{row} {loop}]"
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102 - the text above, with names quoted
    build: Callable[..., list[Sample]] = scope["build"]
    return build
