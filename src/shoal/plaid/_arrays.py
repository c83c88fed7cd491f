"""Parts of arrays: what an indexer picks, of an array in memory or of one of which only these bytes are read."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal._typing import AnyArray
from shoal.codec._arrays import decode_npy
from shoal.errors import DecodeError, FieldError, OptionError, PositionError
from shoal.store._ranges import merge_ranges

__all__ = ["apply_indexer", "read_indexed", "select_features"]

Read = Callable[[int, int], bytes]
"""The bytes ``[start, stop)`` of a member."""
_HEAD_BYTES = 512
_GAP_BYTES = 4096
_MOST_RANGES = 64
"""Where more would be needed, the whole array is read at once."""


def apply_indexer(array: AnyArray, indexer: Any, path: str) -> AnyArray:
    """What an indexer (a slice, or positions) picks along the last axis; all of it where it is None.

    Raises OptionError for an indexer of another form or an array without axes, PositionError for one out of bounds.

    Examples:
        >>> apply_indexer(np.arange(6).reshape(2, 3), [0, 2], "Global/x")
        array([[0, 2],
               [3, 5]])
    """
    if indexer is None:
        return array
    picked = _checked(array.shape, indexer, path)
    found: AnyArray = array[..., picked]
    return found


def select_features(
    sample: Mapping[str, Any], features: Sequence[str] | None, indexers: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return some features of a sample, with indexers applied. Raises FieldError."""
    names = list(sample) if features is None else list(features)
    if unknown := [name for name in names if name not in sample]:
        raise FieldError("no such variable feature", expected=" or ".join(list(sample)[:8]), found=unknown[0])
    found = {name: sample[name] for name in names}
    for name, indexer in (indexers or {}).items():
        if found.get(name) is not None:
            found[name] = apply_indexer(found[name], indexer, name)
    return found


def _checked(shape: tuple[int, ...], indexer: Any, path: str) -> slice | npt.NDArray[np.int64]:
    if not shape:
        raise OptionError("a feature without axes has nothing to pick from", field=path)
    if isinstance(indexer, slice):
        return indexer
    positions = np.asarray(indexer, np.int64)
    if positions.ndim != 1:
        raise OptionError("an indexer is a slice or a list of positions", found=f"{positions.ndim} axes", field=path)
    if len(positions) and (positions.max() >= shape[-1] or positions.min() < -shape[-1]):
        raise PositionError(
            "an indexer is out of bounds",
            expected=f"{-shape[-1]} to {shape[-1] - 1}",
            found=f"{positions.min()} to {positions.max()}",
            field=path,
        )
    return positions


def read_indexed(read: Read, size: int, indexer: Any, path: str) -> AnyArray:
    """What an indexer picks of an array that lies elsewhere: its header is read, then the runs of what is picked."""
    if indexer is None or size <= _GAP_BYTES:
        return apply_indexer(decode_npy(read(0, size)), indexer, path)
    dtype, shape, fortran, start = _header(read(0, _HEAD_BYTES))
    picked = _checked(shape, indexer, path)
    positions = np.arange(shape[-1])[picked] if isinstance(picked, slice) else picked % max(shape[-1], 1)
    runs = _runs(positions, dtype.itemsize)
    rows = math.prod(shape[:-1])
    if fortran or rows * len(runs) > _MOST_RANGES:
        return apply_indexer(decode_npy(read(0, size)), indexer, path)
    return _gathered(read, dtype, shape, start, runs, positions)


def _header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except ValueError as error:
        raise DecodeError("the .npy header is damaged", found=error, offset=0) from error
    if dtype.hasobject:
        raise DecodeError("an array of Python objects cannot be read in parts", found=dtype)
    return dtype, shape, fortran, stream.tell()


def _runs(positions: npt.NDArray[np.int64], itemsize: int) -> list[tuple[int, int]]:
    """The stretches of an axis that hold these positions: first, and after the last."""
    ordered = np.unique(positions)
    firsts, lasts, _ = merge_ranges(ordered, ordered + 1, _GAP_BYTES // itemsize)
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _gathered(
    read: Read,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    start: int,
    runs: list[tuple[int, int]],
    positions: npt.NDArray[np.int64],
) -> AnyArray:
    rows, length = math.prod(shape[:-1]), shape[-1]
    found = np.empty((rows, len(positions)), dtype)
    for row in range(rows):
        for first, last in runs:
            begin = start + (row * length + first) * dtype.itemsize
            part = np.frombuffer(read(begin, begin + (last - first) * dtype.itemsize), dtype)
            here = (positions >= first) & (positions < last)
            found[row, here] = part[positions[here] - first]
    return found.reshape(*shape[:-1], len(positions))
