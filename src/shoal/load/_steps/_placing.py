"""Arrays that a map makes go to their rows of the batch at once.

Kept until the batch is whole, the arrays of a batch of pictures are megabytes that were in the processor's cache when
they were made and are not any more when they are stacked. Copied as they come, each one's memory serves the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.load._columns import shared_buffers

__all__ = ["Placing", "without_rows"]

_LARGE = 16 << 10
"""Smaller arrays are quicker stacked."""


class Row(np.ndarray[Any, Any]):
    """A row of a batch that is being made. Nobody sees it but ``without_rows``."""

    batch: npt.NDArray[Any]
    number: int


class Placing:
    """Puts large arrays of values into batches of ``count``: arrays, or those in dicts and tuples.

    Example:
        >>> place = Placing(2)
        >>> rows = [place({"x": np.full(9000, number), "y": number})["x"] for number in range(2)]
        >>> without_rows(rows)[1][0][:3]
        array([0, 0, 0])
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._batches: dict[str | int, tuple[npt.NDArray[Any], list[int]]] = {}

    def __call__(self, value: Any) -> Any:
        """The value with rows in place of its large arrays; itself where it has none."""
        kind = type(value)
        if kind is np.ndarray:
            return self._row(0, value)
        if kind is dict:
            large = {name: self._row(name, part) for name, part in value.items() if _is_large(part)}
            return {**value, **large} if large else value
        if kind is tuple:
            return tuple(self._row(at, part) if _is_large(part) else part for at, part in enumerate(value))
        return value

    def _row(self, name: str | int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not _is_large(array):
            return array
        if name not in self._batches:
            room = shared_buffers().empty(self._count * array.nbytes)
            self._batches[name] = room.view(array.dtype).reshape(self._count, *array.shape), []
        batch, taken = self._batches[name]
        if array.shape != batch.shape[1:] or array.dtype != batch.dtype or len(taken) == self._count:
            return array
        taken.append(len(taken))
        row: Row = batch[taken[-1]].view(Row)
        row[...] = array
        row.batch, row.number = batch, taken[-1]
        return row


def _is_large(value: Any) -> bool:
    return type(value) is np.ndarray and value.nbytes >= _LARGE and not value.dtype.hasobject


def without_rows(values: list[Any]) -> tuple[list[Any], npt.NDArray[Any] | None]:
    """The values with rows as plain arrays, and the array that they are all rows of, in order, if they are."""
    if Row not in set(map(type, values)):
        return values, None
    first = values[0]
    if all(type(one) is Row and one.batch is first.batch and one.number == at for at, one in enumerate(values)):
        whole: npt.NDArray[Any] = first.batch[: len(values)]
        return list(whole), whole
    return [one.view(np.ndarray) if type(one) is Row else one for one in values], None
