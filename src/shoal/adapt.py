"""What the adapters for frameworks share: batches as plain containers, and a loader's batches shared out.

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
import numpy.typing as npt

from shoal.load import DataLoader, SampleBatch
from shoal.order import EpochPlan, RankPositions
from shoal.sample import is_record

__all__ = ["every_nth", "map_arrays", "map_leaves"]

Array = npt.NDArray[Any]
_NUMBERS = "biufc"
_LONG = "gG"
"""Long doubles, which no framework has."""


def map_arrays(batch: Any, convert: Callable[[Array], Any]) -> Any:
    """The batch with each array of numbers, and each list of numbers, as ``convert`` makes it.

    A :class:`shoal.SampleBatch`, and a sample with fields, become a dict by field; dicts, tuples and lists stay what
    they are. Lists of whole numbers become int64, of fractions float32, of truths bool. Texts, bytes, single numbers
    and whatever else stay as they are.

    Example:
        >>> map_arrays({"x": np.zeros(2, np.uint8), "y": [1, 2], "name": ["a", "b"]}, lambda array: array.dtype.name)
        {'x': 'uint8', 'y': 'int64', 'name': ['a', 'b']}
    """
    if isinstance(batch, np.ndarray):
        return convert(batch) if _is_numbers(batch) else batch
    if isinstance(batch, SampleBatch):
        batch = batch.to_dict()
    if isinstance(batch, Mapping):
        return {name: map_arrays(value, convert) for name, value in batch.items()}
    if isinstance(batch, list):
        numbers = _numbers_of(batch)
        return [map_arrays(value, convert) for value in batch] if numbers is None else convert(numbers)
    if isinstance(batch, tuple):
        values = (map_arrays(value, convert) for value in batch)
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    if is_record(type(batch)):
        return {name: map_arrays(getattr(batch, name), convert) for name in _fields_of(type(batch))}
    return batch


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The batch with all that is in its dicts, tuples and lists changed.

    Example:
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


def _is_numbers(array: Array) -> bool:
    # bfloat16 and its like are no NumPy types of their own, but of a package that frameworks share.
    known = array.dtype.kind in _NUMBERS or array.dtype.type.__module__ == "ml_dtypes"
    return known and array.dtype.char not in _LONG


def _numbers_of(values: list[Any]) -> Array | None:
    """A list of nothing but numbers as an array; None for any other list."""
    kinds = {type(value) for value in values}
    if not kinds or not all(issubclass(kind, (bool, int, float, np.number, np.bool_)) for kind in kinds):
        return None
    array = np.array(values)
    if array.dtype.kind == "f" and float in kinds:
        return array.astype(np.float32)
    return array if _is_numbers(array) else None


def _fields_of(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return tuple(field.name for field in msgspec.structs.fields(kind))
    return tuple(kind.model_fields)  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------------- shared out


def every_nth(loader: DataLoader, first: int, step: int) -> Iterator[Any]:
    """The batches ``first``, ``first + step``, ... of those that the loader would give now.

    Those between are not made where their number is known beforehand; after a filter, or from a stream, they are made
    and passed over. Afterwards the loader stands where it would if it had given all.

    Example:
        >>> loader = DataLoader(range(10), batch_size=2)
        >>> list(every_nth(loader, 1, 2))
        [[2, 3], [6, 7]]
    """
    # A loader has no verb for this, so it is begun at a place whose plan has only these steps.
    loader.load_state_dict(loader.state_dict())
    place, built = loader._place, loader._built  # noqa: SLF001 - the adapters' one look inside
    assert place is not None  # noqa: S101 - a state was loaded
    goes_on = loader._spec.epochs == 1 or built.plan_steps is None  # noqa: SLF001
    if place.plan is None or not built.laid.has_length or not goes_on:
        return itertools.islice(loader, first, None, step)
    loader._place = dataclasses.replace(place, plan=_EveryNth.of(place.plan, first, step))  # noqa: SLF001
    return iter(loader)


@dataclass(frozen=True)
class _EveryNth(EpochPlan):
    """Some steps of an epoch, as an epoch of that many steps."""

    first: int = 0
    stride: int = 1

    @staticmethod
    def of(plan: EpochPlan, first: int, stride: int) -> _EveryNth:
        """Every ``stride``-th step of a plan."""
        known = {field.name: getattr(plan, field.name) for field in dataclasses.fields(EpochPlan)}
        return _EveryNth(**known, first=first, stride=stride)

    @property
    def _whole(self) -> EpochPlan:
        return EpochPlan(*(getattr(self, field.name) for field in dataclasses.fields(EpochPlan)))

    @property
    def steps(self) -> int:
        return max(0, -(-(self._whole.steps - self.first) // self.stride))

    def at(self, steps: int | range) -> RankPositions:
        wanted = range(steps, steps + 1) if isinstance(steps, int) else steps
        whole = self._whole
        parts = [whole.at(self.first + step * self.stride) for step in wanted]
        return parts[0] if len(parts) == 1 else RankPositions(*(
            np.concatenate([getattr(part, name) for part in parts]) for name in ("positions", "epochs", "repeats")
        ))  # fmt: skip

    def consumed(self, steps: int) -> int:
        return self._whole.consumed(self.first + (steps - 1) * self.stride + 1 if steps else 0)

    def next_epoch(self) -> EpochPlan:
        """Counted on, so that the shares of an iteration over several epochs stay in step."""
        whole = self._whole
        return _EveryNth.of(whole.next_epoch(), (self.first - whole.steps) % self.stride, self.stride)
