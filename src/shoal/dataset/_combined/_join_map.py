"""Which sample of one dataset belongs to which of another, found in their indexes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.errors import OptionError, SampleKeyError

__all__ = ["Missing", "check_partners", "partners"]

pc: Any = pyarrow.compute  # its functions are made as it is imported, out of a checker's sight

Missing = Literal["error", "skip", "none"]
Int64 = npt.NDArray[np.int64]
_SHOWN = 3


def partners(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Int64:
    """For each value on the left its row on the right, or -1. Nothing is the partner of null.

    Raises OptionError when the values are of kinds that never meet, or one is twice on the right.
    """
    left, right = _alike(left, right)
    values = right.combine_chunks()
    _refuse_twice(values)
    rows = pc.index_in(left, value_set=values, skip_nulls=True)
    found: Int64 = pc.fill_null(rows, -1).to_numpy().astype(np.int64)
    return found


def _alike(left: pa.ChunkedArray, right: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Both as one type in which equal values are equal."""
    for is_kind, kind in ((_is_text, pa.large_string()), (pa.types.is_integer, None), (_is_number, pa.float64())):
        if all(is_kind(side.type) or pa.types.is_null(side.type) for side in (left, right)):
            return _cast(left, right, kind or pa.int64())
    if left.type != right.type:
        found = f"{left.type} on the left, {right.type} on the right"
        raise OptionError("the columns to join on are of different kinds", found=found)
    return left, right


def _cast(left: pa.ChunkedArray, right: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    try:
        return left.cast(kind), right.cast(kind)
    except pa.ArrowInvalid as error:
        raise OptionError("the columns to join on hold numbers too large to compare", found=str(error)) from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _refuse_twice(values: pa.Array) -> None:
    present = values.drop_null()
    if len(present.unique()) == len(present):
        return
    counts = pc.value_counts(present)
    numbers = counts.field("counts").to_numpy(zero_copy_only=False)
    first = int(np.argmax(numbers > 1))
    raise OptionError(
        "samples on the right cannot be told apart",
        expected="each value once",
        found=f"{counts.field('values')[first].as_py()!r} {numbers[first]} times",
        hint="choose one of them with `where`, `select` or `exclude`, or join on another column",
    )


def check_partners(rows: Int64, keys: pa.ChunkedArray) -> None:
    """Raise SampleKeyError, naming the first, when samples on the left have no partner."""
    lost = np.flatnonzero(rows < 0)
    if not len(lost):
        return
    shown = ", ".join(map(repr, keys.take(pa.array(lost[:_SHOWN])).to_pylist()))
    more = f" and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
    raise SampleKeyError(
        f"{len(lost):,} of {len(rows):,} samples have no partner",
        found=f"{shown}{more}",
        hint="missing='skip' leaves them out, missing='none' fills the fields with None",
    )
