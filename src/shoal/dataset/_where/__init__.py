"""``ds.where("width >= 512 and label = 'cat'")``: conditions on index columns, run without opening a tar.

Text (``_parse``) or Python operators (``_field``) make a tree of frozen values (``_tree``); its names
are matched with a dataset's columns; then it is run over a table (``_run``). The tree has SQL's meaning, with its
three-valued logic, so that another engine can run it: ``sql_of`` gives that engine the text.
"""

from __future__ import annotations

from shoal.errors import QueryError

from ._field import F, Field
from ._parse import parse_where
from ._run import run_where
from ._tree import Column, Expression, columns_of, resolve_columns, sql_of

__all__ = [
    "Expression",
    "F",
    "Field",
    "as_expression",
    "columns_of",
    "parse_where",
    "resolve_columns",
    "run_where",
    "sql_of",
]


def as_expression(condition: str | Expression | Field) -> Expression:
    """The condition as a tree, whichever way it was written. Raises QueryError for anything else.

    Example:
        >>> from shoal.dataset import F
        >>> as_expression("not (width < 512)") == as_expression(~(F.width < 512))
        True
        >>> print(as_expression(F.flag))
        flag
    """
    if isinstance(condition, str):
        return parse_where(condition)
    if isinstance(condition, Field):
        return Column(condition._name)  # noqa: SLF001 - a field's public names are columns
    if isinstance(condition, Expression):
        return condition
    raise QueryError("this is no condition", expected="text or an expression of `F`", found=repr(condition))
