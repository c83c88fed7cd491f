"""Samples -> one batch."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from shoal.load._columns import Ragged, ragged_arrays
from shoal.sample import DictSample, is_record

from ._batch import SampleBatch
from ._placing import without_rows

__all__ = ["collate", "size_of", "stacked"]


def collate(samples: list[Any], ragged: Ragged = "list") -> Any:
    """One batch: a SampleBatch of typed samples, a dict of columns where they have no type, tuples as columns.

    Arrays of one shape become one array, and so do tensors; anything else is a list.

    Example:
        >>> batch = collate([{"x": np.zeros(2), "y": "a"}, {"x": np.ones(2), "y": "b"}])
        >>> batch["x"].shape, batch["y"]
        ((2, 2), ['a', 'b'])
    """
    first = samples[0] if samples else None
    if isinstance(first, (dict, DictSample)):
        names = dict.fromkeys(name for sample in samples for name in sample)
        return {name: stacked([sample.get(name) for sample in samples], ragged, name) for name in names}
    if isinstance(first, tuple):
        return tuple(stacked(list(column), ragged, str(at)) for at, column in enumerate(zip(*samples, strict=True)))
    if is_record(type(first)) and all(type(sample) is type(first) for sample in samples):
        return SampleBatch.of(samples, ragged=ragged)
    return stacked(samples, ragged, "")


def stacked(values: list[Any], ragged: Ragged = "list", name: str = "") -> Any:
    """Arrays of one shape and type as one array; of other shapes as ``ragged`` says; anything else as it is.

    So are PyTorch's tensors, which a `map` may have made.
    """
    values, whole = without_rows(values)
    if whole is not None:
        return whole
    if not all(isinstance(value, np.ndarray) for value in values) or not values:
        return _stacked_tensors(values, ragged, name) if values else values
    if len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    return ragged_arrays(values, name, ragged)


def _stacked_tensors(values: list[Any], ragged: Ragged, name: str) -> Any:
    """Tensors as one, anything else as it is. Where there are some, their package is loaded."""
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)  # a module that is being imported may not have it yet
    if kind is None or not all(isinstance(value, kind) for value in values):
        return values
    if len({(value.shape, value.dtype, value.device) for value in values}) == 1:
        return torch.stack(values)
    if ragged == "list":
        return values
    padded = ragged_arrays([value.detach().cpu().numpy() for value in values], name, ragged)
    return torch.from_numpy(padded)


_FLAT = frozenset((bytes, str))


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
        # Most samples are dicts of bytes and text, for which a call each takes longer than their batch does to read.
        return sum([len(value) if type(value) in _FLAT else size_of(value) for value in batch.values()])
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
    if _FLAT.issuperset(map(type, some)):
        return sum(map(len, some)) * len(values) // len(some) if some else 0
    return sum(size_of(value) for value in some) * len(values) // len(some) if some else 0
