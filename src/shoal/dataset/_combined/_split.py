"""Splits by hash: a sample stays in its split however the dataset grows, is sharded or shuffled."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.dataset._where import Expression, Field
from shoal.errors import OptionError

from ._hash import hash_texts

__all__ = ["By", "SplitAgain", "checked_weights", "grouped_by", "is_kept", "part_of_each"]

By: TypeAlias = str | Field | Expression | Callable[[str], object]
"""What decides: ``"key"``, a metadata column, or a function of the key."""

_BITS = 53  # as many as a double holds exactly, so that a weight is what it says
_TOLERANCE = 1e-9


def checked_weights(weights: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, float]:
    """The weight of each split. Raises OptionError unless they are shares of one whole."""
    if weights is not None and not isinstance(weights, Mapping):
        raise OptionError("splits have names", expected="such as split(train=0.9, val=0.1)", found=repr(weights))
    found: dict[Any, Any] = {**(weights or {}), **named}
    if not found:
        raise OptionError("a split needs weights", expected="such as split(train=0.9, val=0.1)")
    for name, weight in found.items():
        is_number = isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(weight, bool)
        if not isinstance(name, str) or not is_number or not 0 <= weight <= 1:
            raise OptionError("a weight is a share", expected="a number from 0 to 1", found=f"{name}={weight!r}")
    total = math.fsum(found.values())
    if abs(total - 1) > _TOLERANCE:
        shown = ", ".join(f"{name}={weight}" for name, weight in found.items())
        raise OptionError("the weights are not one whole", expected="a sum of 1", found=f"{total:.12g} ({shown})")
    return {name: float(weight) for name, weight in found.items()}


def part_of_each(texts: pa.ChunkedArray, weights: Mapping[str, float], seed: int) -> npt.NDArray[np.int64]:
    """The number of the split that each text falls into."""
    places = hash_texts(texts, seed) >> np.uint64(64 - _BITS)
    ends = [round(end * (1 << _BITS)) for end in np.cumsum(list(weights.values())).tolist()]
    # Rounding must leave no gap at the end, and nothing for a split of weight 0 there.
    last = max(number for number, weight in enumerate(weights.values()) if weight > 0)
    ends[last:] = [1 << _BITS] * (len(ends) - last)
    return np.searchsorted(np.array(ends, np.uint64), places, "right")


def grouped_by(keys: pa.ChunkedArray, function: Callable[[str], object]) -> pa.ChunkedArray:
    """What a function makes of each key, as text. Raises OptionError where it makes nothing."""
    found: list[str] = []
    for key in keys.to_pylist():
        group = function(key)
        if group is None:
            raise OptionError("`by` gave no group for a key", expected="a text or a number", found=f"None for {key!r}")
        found.append(str(group))
    return pa.chunked_array([pa.array(found, pa.large_string())])


@dataclass(frozen=True, slots=True)
class SplitAgain:
    """Takes the same split of a dataset that has grown."""

    weights: Mapping[str, float]
    by: By
    seed: int
    name: str

    def __call__(self, dataset: Any) -> Any:
        """The split of this name."""
        return dataset.split(self.weights, by=self.by, seed=self.seed)[self.name]


def is_kept(by: By) -> bool:
    """Whether what decides can go with a view to another process."""
    try:
        pickle.dumps(by)
    except Exception:  # noqa: BLE001 - a lambda raises one thing, a closure another
        return False
    return True
