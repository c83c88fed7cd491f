"""Functions that the adapters for frameworks share: convert the arrays of a batch, and take every n-th batch.

`shoal.torch`, `shoal.tf` and `shoal.jax` give the same batch in the same containers; only the arrays differ.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from shoal._typing import AnyArray
from shoal.load._collate import SampleBatch
from shoal.load._loader import DataLoader
from shoal.order._epoch_plan import EpochPlan, RankPositions
from shoal.sample._annotations import is_record

__all__ = ["every_nth", "map_arrays", "map_leaves", "to_number_array"]

_NUMBER_KINDS = "biufc"
_LONG_DOUBLES = "gG"
"""Type characters that no framework has."""


def map_arrays(batch: Any, convert: Callable[[AnyArray], Any], *, is_batch: bool = True) -> Any:
    """The batch with its arrays of numbers, and its columns that are lists of numbers, as ``convert`` makes them.

    A :class:`shoal.SampleBatch`, and a sample with fields, become a dict by field; dicts, tuples and lists stay what
    they are. Columns of ints become int64, of floats float64, of booleans bool. Of typed samples, a field that is a
    list of numbers becomes an array, too. Values inside documents (json, msgpack, cbor) stay as they are, and so do
    ints that int64 does not hold, strings, bytes, single numbers and anything else. With ``is_batch=False`` the value
    is a sample, whose lists are documents.

    Examples:
        >>> batch = {"x": np.zeros(2, np.uint8), "y": [1, 2], "json": [{"at": [48.85, 2.29]}, {"at": []}]}
        >>> map_arrays(batch, lambda array: array.dtype.name)
        {'x': 'uint8', 'y': 'int64', 'json': [{'at': [48.85, 2.29]}, {'at': []}]}
    """
    if isinstance(batch, np.ndarray):
        return convert(batch) if _is_numbers(batch) else batch
    if isinstance(batch, SampleBatch):
        return {name: _map_typed_column(values, convert) for name, values in batch.to_dict().items()}
    if isinstance(batch, Mapping):
        return {name: map_arrays(value, convert, is_batch=is_batch) for name, value in batch.items()}
    if isinstance(batch, list):
        numbers = to_number_array(batch) if is_batch else None
        if numbers is not None:
            return convert(numbers)
        return [map_arrays(value, convert, is_batch=False) for value in batch]
    if isinstance(batch, tuple):
        values = (map_arrays(value, convert, is_batch=is_batch) for value in batch)
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    if is_record(type(batch)):
        return {name: _map_typed_value(getattr(batch, name), convert) for name in _field_names(type(batch))}
    return batch


def _map_typed_column(values: Any, convert: Callable[[AnyArray], Any]) -> Any:
    """One field of a batch of typed samples, in which a list of numbers is an array without a dtype."""
    if not isinstance(values, list) or to_number_array(values) is not None:
        return map_arrays(values, convert)
    return [_map_typed_value(value, convert) for value in values]


def _map_typed_value(value: Any, convert: Callable[[AnyArray], Any]) -> Any:
    return map_arrays(value, convert, is_batch=isinstance(value, list))


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The batch with all that is in its dicts, tuples and lists changed.

    Examples:
        >>> map_leaves({"x": (1, [2, 3])}, lambda number: -number)
        {'x': (-1, [-2, -3])}
    """
    if isinstance(batch, dict):
        return {name: map_leaves(value, change) for name, value in batch.items()}
    if isinstance(batch, list):
        return [map_leaves(value, change) for value in batch]
    if isinstance(batch, tuple):
        values = [map_leaves(value, change) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    return change(batch)


def _is_numbers(array: AnyArray) -> bool:
    # bfloat16 and similar types are not NumPy's, but those of the package ml_dtypes, which frameworks share.
    known = array.dtype.kind in _NUMBER_KINDS or array.dtype.type.__module__ == "ml_dtypes"
    return known and array.dtype.char not in _LONG_DOUBLES


def to_number_array(values: list[Any]) -> AnyArray | None:
    """Return a list of nothing but numbers as an array; None for any other list, and where a value would change.

    Examples:
        >>> to_number_array([1, 0.5]), to_number_array([2**63]), to_number_array([2**60 + 1, 0.5])
        (array([1. , 0.5]), None, None)
    """
    kinds = {type(value) for value in values}
    if not kinds or not all(issubclass(kind, (bool, int, float, np.number, np.bool_)) for kind in kinds):
        return None
    array = np.array(values)
    if not _is_numbers(array):
        return None
    if int in kinds and array.dtype.kind != "i":  # with floats among them, or too large for int64
        exact = (1 << 53) if array.dtype.kind == "f" else (1 << 63) - 1
        if any(abs(value) > exact for value in values if type(value) is int):
            return None
    return array


def _field_names(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return tuple(field.name for field in msgspec.structs.fields(kind))
    return tuple(kind.model_fields)  # type: ignore[attr-defined]


def every_nth(loader: DataLoader, first: int, step: int) -> Iterator[Any]:
    """The batches ``first``, ``first + step``, ... of those that the loader would give now.

    Those between are not made where their number is known beforehand; after a filter, or from a stream, they are made
    and passed over. Afterwards the loader stands where it would if it had given all.

    Examples:
        >>> loader = DataLoader(range(10), batch_size=2)
        >>> list(every_nth(loader, 1, 2))
        [[2, 3], [6, 7]]
    """
    # A loader has no method for this, so it is started with a plan that has only these steps.
    loader.load_state_dict(loader.state_dict())
    cursor, pipeline = loader._cursor, loader._pipeline  # noqa: SLF001 - the only private access of the adapters
    assert cursor is not None  # noqa: S101 - a state was loaded
    goes_on = loader._spec.epochs == 1 or pipeline.plan_steps is None  # noqa: SLF001
    if cursor.plan is None or not pipeline.has_length or not goes_on:
        return itertools.islice(loader, first, None, step)
    loader._cursor = dataclasses.replace(cursor, plan=_EveryNth.from_plan(cursor.plan, first, step))  # noqa: SLF001
    return iter(loader)


@dataclass(frozen=True)
class _EveryNth(EpochPlan):
    """Some steps of an epoch, as an epoch of that many steps."""

    full_plan: EpochPlan
    first: int
    stride: int

    @staticmethod
    def from_plan(plan: EpochPlan, first: int, stride: int) -> _EveryNth:
        """Return every ``stride``-th step of a plan."""
        values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(EpochPlan) if field.init}
        return _EveryNth(**values, full_plan=plan, first=first, stride=stride)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", max(0, -(-(self.full_plan.steps - self.first) // self.stride)))

    def at(self, steps: int | range) -> RankPositions:
        plan = self.full_plan
        step_range = range(steps, steps + 1) if isinstance(steps, int) else steps
        parts = [plan.at(self.first + step * self.stride) for step in step_range]
        if len(parts) == 1:
            return parts[0]
        names = ("positions", "epochs", "repeats")
        return RankPositions(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def consumed(self, steps: int) -> int:
        return self.full_plan.consumed(self.first + (steps - 1) * self.stride + 1 if steps else 0)

    def next_epoch(self) -> EpochPlan:
        """Return the next epoch's steps, counted through, so that all partitions stay in step over several epochs."""
        plan = self.full_plan
        return _EveryNth.from_plan(plan.next_epoch(), (self.first - plan.steps) % self.stride, self.stride)
