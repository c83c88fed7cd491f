"""Columns of Python values and arrays as Arrow tables and data frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shoal.codec import as_array
from shoal.errors import EncodeError, MissingExtraError

__all__ = ["arrow_column", "arrow_table", "data_frame"]


def arrow_table(columns: dict[str, list[Any]]) -> pa.Table:
    """A table of columns. Raises EncodeError for values that Arrow has no type for."""
    return pa.table({name: arrow_column(values, name) for name, values in columns.items()})


def arrow_column(values: list[Any], name: str) -> pa.Array:
    """One column: arrays and tensors become lists, as deep as they have axes."""
    try:
        return pa.array([_plain(value) for value in values])
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, EncodeError) as error:
        raise EncodeError("Arrow has no type for a column", found=str(error), field=name) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if not hasattr(value, "__array__"):
        return value
    array = as_array(value)
    return array if array.ndim == 1 else array.tolist()


def data_frame(columns: dict[str, list[Any]]) -> Any:
    """A pandas DataFrame of columns. Raises MissingExtraError without pandas."""
    table = arrow_table(columns)
    try:
        return table.to_pandas()
    except ImportError as error:
        hint = "pip install 'shoal[pandas]'"
        raise MissingExtraError("the package pandas cannot be imported", found=error, hint=hint) from error
