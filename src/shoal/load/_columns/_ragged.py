"""Arrays of one batch that have different shapes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import DecodeError

__all__ = ["Ragged", "ragged_arrays"]

Ragged = Literal["list", "pad", "error"]


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
