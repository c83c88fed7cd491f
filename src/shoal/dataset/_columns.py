"""Columns of a whole dataset: their values as Arrow arrays, sorted, and as tables."""

# ruff: noqa: SLF001 - reads private attributes of the dataset, of which it is a part

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from shoal._typing import IntArray
from shoal.codec._arrays import as_array
from shoal.errors import ColumnError, EncodeError, FieldError, MissingExtraError, OptionError, QueryError
from shoal.schema._types import BoolType, FloatType, IntType, StrType

from ._column_stages import columns_of_sample, names_after, origin_of
from ._decoding import PAYLOAD
from ._description import Stage

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["arrow_table", "column_values", "data_frame", "sorted_order"]

pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them
_INDEXED_AS_STORED = (StrType, IntType, FloatType, BoolType)


def column_values(dataset: Dataset[Any], name: str) -> pa.Array | pa.ChunkedArray:
    """The values of a column, one a sample, null where a sample has none.

    A column of samples comes first; else ``name`` is one of the index, such as ``json.width`` or just ``width``.

    Raises:
        ColumnError: There is no such column.
        EncodeError: Its values are nothing that Arrow has a type for.
    """
    stages = dataset._description.stages if dataset._format is None else dataset._description.stages[:-1]
    known = names_after(stages, dataset._stored_columns(complete=True))
    if known is not None and name not in known:
        return _metadata(dataset, name, known)
    indexed = _indexed(dataset, origin_of(name, stages))
    return _read(dataset, stages, name) if indexed is None else indexed


def _metadata(dataset: Dataset[Any], name: str, known: tuple[str, ...]) -> pa.ChunkedArray:
    columns = dataset.column_names
    meant = [column for column in columns if column == name or column.endswith(f".{name}")]
    exact = [column for column in meant if column == name] or meant
    if len(exact) != 1:
        names = [*known, *(column for column in columns if column not in known)]
        problem = "several columns may be meant" if exact else "no such column"
        raise ColumnError(problem, expected=" or ".join(exact or names), found=name)
    return dataset.table(exact).column(0)


def _indexed(dataset: Dataset[Any], origin: str | None) -> pa.ChunkedArray | pa.Array | None:
    """The column of the index that holds the same values as samples do, if there is one."""
    if origin == "__key__" and dataset._reading.convert is None:
        return pa.array(dataset.keys(), pa.string())
    column = None if origin is None else _column_of(dataset, origin)
    if column is None or column not in dataset.column_names:
        return None
    try:
        return dataset.table([column]).column(0)
    except (FieldError, QueryError):  # left out of the index of a shard
        return None


def _column_of(dataset: Dataset[Any], origin: str) -> str | None:
    """How the index calls a stored column whose values it has as they are."""
    reading, spec = dataset._reading, dataset._description.spec
    if reading.convert is None:
        choice = spec.choice_for(tuple(origin.split(".")))
        usual = spec.automatic and not spec.steps and choice is None and spec.only is None
        return origin if usual else None
    schema = dataset.schema if reading.packed and not dataset._description.stages else None
    written = schema is not None and origin in schema and isinstance(schema[origin].type, _INDEXED_AS_STORED)
    return f"{PAYLOAD}.{origin}" if written else None


def _read(dataset: Dataset[Any], stages: tuple[Stage, ...], name: str) -> pa.Array:
    only: Dataset[Any] = dataset._view(stages=stages, sample_type=None).select_columns(name)
    values = [columns_of_sample(sample).get(name) for sample in only]
    if len(values) != len(dataset):
        hint = "ask for a column of the index, or leave them out first"
        raise OptionError("samples were passed over", expected=len(dataset), found=len(values), hint=hint)
    return arrow_column(values, name)


def sorted_order(columns: Sequence[Any], downward: Sequence[bool], *, nulls_first: bool) -> IntArray:
    """The positions in the order of the columns, the first one before the others; equal ones stay in their order.

    Examples:
        >>> sorted_order([pa.array([2, None, 1])], [False], nulls_first=True).tolist()
        [1, 2, 0]
    """
    keys: list[tuple[Any, str]] = []
    for column, down in zip(columns, downward, strict=True):
        if nulls_first:  # a key of its own, since pyarrow says it in another way from version to version
            keys.append((_places(column), "ascending"))
        keys.append((column, "descending" if down else "ascending"))
    table = pa.table([column for column, _ in keys], names=[str(place) for place in range(len(keys))])
    ways = [(str(place), way) for place, (_, way) in enumerate(keys)]
    order: IntArray = pc.sort_indices(table, sort_keys=ways).to_numpy().astype(np.int64)
    return order


def _places(column: Any) -> Any:
    """Nulls before what is not a number, and that before values."""
    nan = pc.is_nan(column) if pa.types.is_floating(column.type) else pa.scalar(False)
    return pc.if_else(pc.is_null(column), 0, pc.if_else(nan, 1, 2))


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
