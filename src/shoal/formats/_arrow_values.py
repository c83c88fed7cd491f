"""Rows of Arrow columns as Python values: lists of numbers and tensors are arrays, all else is what Arrow says."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["column_of", "rows_of"]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """One dict a row. Nulls are None."""
    names = table.column_names
    columns = [_values(column.combine_chunks()) for column in table.columns]
    if not columns:
        return [{} for _ in range(table.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(array: Any) -> list[Any]:
    if isinstance(array, pa.ChunkedArray):  # what combine_chunks gives of no chunks, in some versions
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType) and not array.null_count:
        return list(array.to_numpy_ndarray()) if len(array) else []
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if _is_numbers(kind) and not array.null_count:
        return _number_lists(array)
    values: list[Any] = array.to_pylist()
    return values


def _is_numbers(kind: Any) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(listed) and bool(pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))


def _number_lists(array: Any) -> list[Any]:
    if pa.types.is_fixed_size_list(array.type):
        inner = array.flatten()
        if inner.null_count:
            return list(array.to_pylist())
        return list(inner.to_numpy(zero_copy_only=False).reshape(len(array), array.type.list_size))
    if array.values.null_count:
        return list(array.to_pylist())
    values, offsets = array.values.to_numpy(zero_copy_only=False), array.offsets.to_pylist()
    return [values[start:stop] for start, stop in itertools.pairwise(offsets)]


def column_of(values: list[Any]) -> Any:
    """An Arrow column of values: arrays of one shape with several axes become tensors, of one axis become lists."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if not arrays:
        return pa.array([_plain(value) for value in values])
    first = arrays[0]
    alike = len(arrays) == len(values) and len({(array.shape, array.dtype.str) for array in arrays}) == 1
    if first.ndim > 1 and alike and first.size:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(np.stack(arrays)))
    if all(array.ndim == 1 for array in arrays):
        return pa.array(values)
    return pa.array([value.tolist() if isinstance(value, np.ndarray) else _plain(value) for value in values])


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, (memoryview, bytearray)) else value
