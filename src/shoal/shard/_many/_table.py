"""Metadata columns of many shards as one table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shoal.errors import FieldError
from shoal.shard._one import Shard

__all__ = ["column_table"]

_NUMBERS = {"int64", "uint64", "double"}


def column_table(shards: Sequence[Shard], columns: Sequence[str], known: Sequence[str]) -> pa.Table:
    """One row a sample; null where a shard has no such column.

    Raises FieldError for a column that is not ``known``, or that is not of one type.
    """
    parts = [_columns_of(shard, columns) for shard in shards]
    if not parts:
        return pa.table({name: [] for name in columns})
    for name in columns:
        if name not in known:
            raise FieldError("no such column", expected=" or ".join(known), found=name)
        if len(kinds := {str(part.schema.field(name).type) for part in parts} - {"null"}) > 1:
            _refuse_mixed(name, kinds)
    return pa.concat_tables(parts, promote_options="permissive")


def _refuse_mixed(name: str, kinds: set[str]) -> None:
    """Whole numbers in one shard and fractions in another are numbers; anything else is a mix."""
    if not kinds <= _NUMBERS:
        raise FieldError("a column is of other types in other shards", found=f"{name}: {', '.join(sorted(kinds))}")


def _columns_of(shard: Shard, columns: Sequence[str]) -> pa.Table:
    index = shard.index
    for name in columns:
        if name in index.facts.dropped:
            raise FieldError("the column is not indexed", found=f"{name}: {index.facts.dropped[name]}", shard=shard.url)
    arrays = [index.keys if name == "__key__" else index.columns.get(name, pa.nulls(len(index))) for name in columns]
    return pa.table(arrays, names=list(columns))
