"""Samples -> one batch, as webdataset's default collation puts them together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from shoal.codec import framework_of
from shoal.errors import ColumnError, OptionError
from shoal.load import SampleBatch
from shoal.sample import is_record

__all__ = ["collate", "split_batch"]


def collate(samples: list[Any]) -> Any:
    """Tuples become a tuple of columns, dicts a dict of columns, typed samples a ``SampleBatch``.

    A column of numbers is one array, arrays and tensors are stacked, anything else is a list.

    Raises:
        ColumnError: Samples of one batch have different columns, or tuples different lengths.
        OptionError: Arrays of one column have different shapes, or the samples are of another kind.

    Example:
        >>> collate([("a", 1), ("b", 2)])
        (['a', 'b'], array([1, 2]))
    """
    first = samples[0]
    if isinstance(first, dict):
        _refuse_different(next((sample for sample in samples if sample.keys() != first.keys()), first), first)
        return {name: _combined([sample[name] for sample in samples], name) for name in first}
    if isinstance(first, (list, tuple)):
        other = next((sample for sample in samples if len(sample) != len(first)), first)
        _refuse_different(range(len(other)), range(len(first)))
        return tuple(_combined(list(column), str(at)) for at, column in enumerate(zip(*samples, strict=True)))
    if is_record(type(first)):
        return SampleBatch.of(samples)
    raise OptionError(
        "these samples are not put together by themselves",
        expected="dicts, tuples or typed samples",
        found=type(first).__name__,
        hint="give batched a collation_fn, or None for lists",
    )


def _refuse_different(found: Iterable[Any], expected: Iterable[Any]) -> None:
    if set(found) != set(expected):
        names = [", ".join(map(str, columns)) for columns in (expected, found)]
        raise ColumnError("samples of one batch differ in their columns", expected=names[0], found=names[1])


def _combined(values: list[Any], name: str) -> Any:
    first = values[0]
    if isinstance(first, (int, float)):
        return np.array(values)
    if not hasattr(first, "shape") or not hasattr(first, "dtype"):
        return values
    if len(shapes := {tuple(value.shape) for value in values}) > 1:
        found = " and ".join(map(str, sorted(shapes)))
        hint = "make them alike first, or give batched a collation_fn"
        raise OptionError("arrays of one batch have different shapes", found=found, field=name, hint=hint)
    if isinstance(first, (np.ndarray, np.generic)):
        return np.stack(values)
    of = framework_of(first)
    return values if of is None else of.together(values)


def split_batch(batch: Any) -> list[Any]:
    """The samples of a batch: tuples from a tuple of columns, dicts from a dict of columns.

    Raises:
        OptionError: It is no batch, or its columns have different lengths.

    Example:
        >>> split_batch((["a", "b"], [1, 2]))
        [('a', 1), ('b', 2)]
    """
    if isinstance(batch, SampleBatch):
        return batch.samples
    columns = list(batch.values()) if isinstance(batch, dict) else batch
    if not isinstance(columns, (list, tuple)):
        raise OptionError("this is no batch", expected="a tuple, list or dict of columns", found=type(batch).__name__)
    if len(lengths := {len(column) for column in columns}) > 1:
        raise OptionError("columns of one batch have different lengths", found=", ".join(map(str, sorted(lengths))))
    rows = zip(*columns, strict=True)
    return [dict(zip(batch, row, strict=True)) for row in rows] if isinstance(batch, dict) else list(rows)
