"""Arrow arrays from Python and NumPy values, and back, without ``pa.array`` and ``to_numpy``.

Both of those import pandas where it is installed, to test for a Series: a quarter of a second, and tens of megabytes,
before the first sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["as_arrow", "as_floats", "as_numpy", "common_type", "scalar_array", "text_array", "text_edges"]

_ARROW = {np.dtype(kind): getattr(pa, kind)() for kind in ("int64", "uint64", "uint32", "float64")}
_NUMPY = {arrow: numpy for numpy, arrow in _ARROW.items()}


def as_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers over the same memory.

    Examples:
        >>> as_arrow(np.array([2, 3])).to_pylist()
        [2, 3]
    """
    whole = np.ascontiguousarray(values)
    return pa.Array.from_buffers(_ARROW[whole.dtype], len(whole), [None, pa.py_buffer(whole)])


def as_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Numbers without nulls, over the same memory.

    Examples:
        >>> as_numpy(pa.array([2, 3])).tolist()
        [2, 3]
    """
    kind = _NUMPY[array.type]
    return np.frombuffer(array.buffers()[1] or b"", kind, len(array), array.offset * kind.itemsize)


def text_array(texts: list[str], valid: pa.Buffer | None = None) -> pa.Array:
    """Texts as one array. Raises UnicodeEncodeError where one is not Unicode.

    Examples:
        >>> text_array(["shoal", "Schön"]).to_pylist()
        ['shoal', 'Schön']
    """
    whole = "".join(texts)
    data = whole.encode()
    sizes = map(len, texts) if len(data) == len(whole) else (len(text.encode()) for text in texts)
    is_small = len(data) <= np.iinfo(np.int32).max
    kind, width = (pa.string(), np.int32) if is_small else (pa.large_string(), np.int64)
    offsets = np.fromiter(accumulate(sizes, initial=0), width, len(texts) + 1)
    return pa.Array.from_buffers(kind, len(texts), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def text_edges(array: pa.Array) -> tuple[npt.NDArray[np.signedinteger[Any]], memoryview]:
    """Where each text begins, and the last ends, in the bytes of all of them: quicker than Arrow for a text or two.

    Examples:
        >>> edges, data = text_edges(text_array(["shoal", "Schön"]))
        >>> edges.tolist(), str(data[5:11], "utf-8")
        ([0, 5, 11], 'Schön')
    """
    _, edges, data = array.buffers()
    width = np.dtype(np.int32 if array.type == pa.string() else np.int64)
    count = len(array) + 1 if edges is not None and edges.size else 0
    found = np.frombuffer(edges or b"", width, count, array.offset * width.itemsize if count else 0)
    return found, memoryview(data if data is not None else b"")


def scalar_array(values: list[Any]) -> pa.Array:
    """Scalars of one kind, or None, as one typed array; what is stranger is left to Arrow, which may refuse it.

    Raises OverflowError for an integer beyond 64 bits, UnicodeEncodeError, and what Arrow raises.

    Examples:
        >>> scalar_array([1, None, 3]).to_pylist()
        [1, None, 3]
    """
    kinds = set(map(type, values))
    others = kinds - {type(None)}
    if not others:
        return pa.nulls(len(values))
    if len(others) != 1 or not others <= _SIMPLE.keys():
        return pa.array(values)
    kind = others.pop()
    valid = _bits([value is not None for value in values]) if type(None) in kinds else None
    return _SIMPLE[kind](values if valid is None else [kind() if value is None else value for value in values], valid)


def _bits(flags: list[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))


def _integers(values: list[int], valid: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [valid, pa.py_buffer(np.array(values, np.int64))])


def _floats(values: list[float], valid: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.float64(), len(values), [valid, pa.py_buffer(np.array(values, np.float64))])


def _flags(values: list[bool], valid: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [valid, _bits(values)])


_SIMPLE: dict[type, Callable[[list[Any], pa.Buffer | None], pa.Array]] = {
    int: _integers,
    float: _floats,
    bool: _flags,
    str: text_array,
}


def as_floats(values: Any) -> Any:
    """Integers as doubles, rounded as Python does; other values as they are."""
    return values.cast(pa.float64(), safe=False) if pa.types.is_integer(values.type) else values


def common_type(arrays: Sequence[Any]) -> pa.DataType | None:
    """The type that holds the values of all these arrays; None where they are of different kinds.

    Integers and floats are floats: the cast, which is to be a safe one, refuses an integer that no float is equal to.

    Examples:
        >>> common_type([pa.array([1]), pa.array([0.5]), pa.nulls(2)]), common_type([pa.array([1]), pa.array(["a"])])
        (DataType(double), None)
    """
    kinds = [kind for kind in dict.fromkeys(array.type for array in arrays) if not pa.types.is_null(kind)]
    if len(kinds) < 2:
        return kinds[0] if kinds else pa.null()
    if all(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds):
        return pa.large_string()
    if all(pa.types.is_integer(kind) for kind in kinds):
        return pa.int64()
    numeric = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds)
    return pa.float64() if numeric else None
