"""What may stand in the square brackets of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError, PositionError

__all__ = ["positions_in", "wrapped"]

Int64 = npt.NDArray[np.int64]


def positions_in(item: Any, length: int) -> Int64:
    """The positions that a slice, a list, an array or a mask names. Raises OptionError for anything else."""
    if isinstance(item, slice):
        return np.arange(*item.indices(length))
    positions = np.asarray(item)
    if positions.dtype == bool:
        if positions.shape != (length,):
            raise OptionError("a mask has one entry a sample", expected=length, found=len(np.atleast_1d(positions)))
        return np.flatnonzero(positions)
    if positions.ndim != 1 or (positions.size and not np.issubdtype(positions.dtype, np.integer)):
        expected = "int, slice, list of int or a mask"
        raise OptionError("positions are whole numbers", expected=expected, found=type(item).__name__)
    return positions.astype(np.int64)


def wrapped(positions: Int64, length: int) -> Int64:
    """Positions counted from the start; negative ones count from the end. Raises PositionError outside."""
    found = np.where(positions < 0, positions + length, positions)
    outside = (found < 0) | (found >= length)
    if outside.any():
        expected = f"{-length} to {length - 1}" if length else "none: it is empty"
        raise PositionError("no sample at this position", expected=expected, found=int(positions[outside][0]))
    return found
