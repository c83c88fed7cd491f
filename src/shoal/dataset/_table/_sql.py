"""SQL over the metadata of a dataset, by duckdb, with the short names that ``where`` knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import MissingExtraError, QueryError

__all__ = ["KEY_COLUMN", "run_condition", "run_sql", "short_names"]

KEY_COLUMN = "key"
_KEY = "__key__"
_ROW = "__row__"
_TOKENS = re.compile(
    r"""
    (?P<skip> '(?:[^']|'')*' | --[^\n]* | /\*.*?\*/ | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<name> (?: "(?:[^"]|"")*" | [^\W\d]\w* ) (?: \s*\.\s* (?: "(?:[^"]|"")*" | \w+ ) )* )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile(r'"(?:[^"]|"")*"|\w+')


def short_names(columns: Sequence[str]) -> dict[str, str]:
    """For each column the name it has in SQL: its last part, or the whole name where that would not be clear.

    Example:
        >>> short_names(["json.width", "json.size", "meta.json.size", "cls"])
        {'json.width': 'width', 'json.size': 'json.size', 'meta.json.size': 'meta.json.size', 'cls': 'cls'}
    """
    # SQL knows no upper and lower case.
    lasts = Counter(name.rpartition(".")[2].lower() for name in columns)
    taken = {KEY_COLUMN, _KEY, _ROW, *(name.lower() for name in columns if "." in name)}
    short = {name: name.rpartition(".")[2] for name in columns}
    return {
        name: last if lasts[last.lower()] == 1 and last.lower() not in taken else name for name, last in short.items()
    }


def run_sql(query: str, table: pa.Table) -> pa.Table:
    """The answer to a query over ``ds``, which is this table of columns and ``__key__``.

    Raises:
        QueryError: duckdb does not understand the query.
        MissingExtraError: duckdb is not installed.
    """
    names = {_KEY: KEY_COLUMN, **short_names([name for name in table.column_names if name != _KEY])}
    return _answer(rewritten(query, names), table.rename_columns([names[name] for name in table.column_names]))


def run_condition(condition: str, table: pa.Table) -> npt.NDArray[np.bool_]:
    """The rows in which a condition is true, whatever else duckdb knows in it."""
    row = pa.array(np.arange(table.num_rows))
    # As a value and not in a WHERE: then rows come back as they went in, and no part of it is done by another engine.
    query = f"select {_ROW}, coalesce(({condition}\n), false) as kept from ds"  # noqa: S608 - SQL is what is asked for
    names = {_KEY: KEY_COLUMN, **short_names([name for name in table.column_names if name != _KEY])}
    renamed = table.rename_columns([names[name] for name in table.column_names]).append_column(_ROW, row)
    found = _answer(rewritten(query, names), renamed)
    kept = np.zeros(table.num_rows, np.bool_)
    kind = found.schema.field("kept").type
    if not pa.types.is_boolean(kind):
        raise QueryError("this is not a condition", expected="a boolean", found=str(kind))
    kept[found.column(_ROW).to_numpy()] = found.column("kept").to_numpy()
    return kept


def rewritten(query: str, names: dict[str, str]) -> str:
    """The query with whole column names, as ``json.width``, in the form that its table has them."""

    def replaced(found: re.Match[str]) -> str:
        chain = found["name"]
        if chain is None:
            return found[0]
        parts = [part[1:-1].replace('""', '"') if part[0] == '"' else part for part in _PART.findall(chain)]
        name = ".".join(parts)
        for whole in (name, name.removeprefix("ds.")):
            if whole in names and (whole != names[whole] or "." in whole):
                return '"' + names[whole].replace('"', '""') + '"'
        return chain

    return _TOKENS.sub(replaced, query)


def _answer(query: str, table: pa.Table) -> pa.Table:
    duckdb = _duckdb()
    connection = duckdb.connect(config={"enable_external_access": "false"})  # a query reads the dataset, no files
    try:
        # What duckdb would hand to Arrow is compared by Arrow's rules, in which NaN is nothing's equal.
        connection.execute("set disabled_optimizers = 'filter_pushdown'")
        connection.register("ds", table)
        connection.execute("set lock_configuration = true")
        answer = connection.sql(query)
        if answer is None:
            raise QueryError("this gives no table", expected="a query, such as select", found=query)
        found: pa.Table = answer.to_arrow_table()
    except duckdb.Error as error:
        raise QueryError("duckdb cannot run this query", found=str(error), hint=_columns_hint(table)) from error
    finally:
        connection.close()
    return found


def _columns_hint(table: pa.Table) -> str:
    return f"the table is ds, with {', '.join(table.column_names[:20])}"


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError(
            "the package duckdb cannot be imported", found=error, hint="pip install 'shoal[sql]'"
        ) from error
    return duckdb
