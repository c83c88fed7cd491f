"""Samples -> one batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shoal.errors import DecodeError
from shoal.sample import is_record

from ._batch import SampleBatch
from ._placing import without_rows
from ._typed import Ragged

__all__ = ["collate", "size_of", "stacked"]


def collate(samples: list[Any], ragged: Ragged = "list") -> Any:
    """One batch: a SampleBatch of typed samples, a dict of columns of dicts, a tuple of columns of tuples.

    Arrays of one shape become one array; anything else is a list.

    Example:
        >>> batch = collate([{"x": np.zeros(2), "y": "a"}, {"x": np.ones(2), "y": "b"}])
        >>> batch["x"].shape, batch["y"]
        ((2, 2), ['a', 'b'])
    """
    first = samples[0] if samples else None
    if isinstance(first, dict):
        names = dict.fromkeys(name for sample in samples for name in sample)
        return {name: stacked([sample.get(name) for sample in samples], ragged, name) for name in names}
    if isinstance(first, tuple):
        return tuple(stacked(list(column), ragged, str(at)) for at, column in enumerate(zip(*samples, strict=True)))
    if is_record(type(first)) and all(type(sample) is type(first) for sample in samples):
        return SampleBatch.of(samples, ragged=ragged)
    return stacked(samples, ragged, "")


def stacked(values: list[Any], ragged: Ragged = "list", name: str = "") -> Any:
    """Arrays of one shape and type as one array; of other shapes as ``ragged`` says; anything else as it is."""
    values, whole = without_rows(values)
    if whole is not None:
        return whole
    if not all(isinstance(value, np.ndarray) for value in values) or not values:
        return values
    if len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    return ragged_arrays(values, name, ragged)


def ragged_arrays(arrays: list[npt.NDArray[Any]], name: str, ragged: Ragged) -> Any:
    """Arrays that do not stack: as they are, padded with zeros at their ends, or refused."""
    if ragged == "list":
        return arrays
    shapes = sorted({array.shape for array in arrays})
    if ragged == "error" or len({array.ndim for array in arrays}) > 1:
        some = ", ".join(map(str, shapes[:3]))
        hint = "ask for ragged='list' or 'pad'" if ragged == "error" else "padding needs one number of dimensions"
        raise DecodeError("the arrays of a field do not stack", expected="one shape", found=some, field=name, hint=hint)
    most = [max(sizes) for sizes in zip(*shapes, strict=True)]
    padded = np.zeros((len(arrays), *most), np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[tuple(slice(0, size) for size in array.shape)] = array
    return padded


def size_of(batch: Any) -> int:
    """About how many bytes a batch holds: what a memory budget is kept by. Objects in it count as little."""
    if isinstance(batch, (bytes, bytearray, str)):
        return len(batch)
    if isinstance(batch, SampleBatch):
        return batch.__sizeof__()
    nbytes = getattr(batch, "nbytes", None)  # arrays, tensors, memory
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(batch, dict):
        return sum(size_of(value) for value in batch.values())
    if isinstance(batch, (list, tuple)):
        return _size_of_list(batch)
    return 64 + sum(size_of(getattr(batch, name, None)) for name in _field_names(type(batch)))


def _field_names(kind: type) -> Iterable[str]:
    """Of a dataclass, a msgspec Struct or a pydantic model; nothing of other objects."""
    names: Iterable[str] | None = getattr(kind, "__dataclass_fields__", None) or getattr(
        kind, "__struct_fields__", None
    )
    return cast("Iterable[str]", names or getattr(kind, "model_fields", ()))


def _size_of_list(values: list[Any] | tuple[Any, ...]) -> int:
    """A few are measured and stand for all: a batch may hold very many."""
    some = values[:: max(1, len(values) // 8)]
    if {bytes, str}.issuperset(map(type, some)):
        return sum(map(len, some)) * len(values) // len(some) if some else 0
    return sum(size_of(value) for value in some) * len(values) // len(some) if some else 0
