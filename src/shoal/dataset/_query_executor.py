"""Run a condition over a table of columns, with SQL's meaning.

A condition is true, false or null (not known) in each row, and only true rows are kept. Numbers compare as in SQL:
whole numbers and decimals by their exact value, or all as doubles as soon as one of those compared is a double; NaN is
equal to itself and above all other numbers. The work is done by pyarrow.compute, a call or two a comparison.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from ._query import (
    And,
    Between,
    Column,
    Compare,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    query_error,
    resolve_columns,
)

__all__ = ["may_be_true", "run_where"]

pc: Any = pyarrow.compute  # its functions are made as it is imported, out of a checker's sight

Truth = Any
"""True, false or null a row: a pyarrow ChunkedArray of booleans, or one boolean scalar for all rows."""

_KERNELS: dict[str, Callable[..., Truth]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_PYTHON: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class _Value:
    """What an operand is worth: a column, or one constant for all rows."""

    kind: str
    """`integer`, `decimal`, `float`, `text`, `boolean` or `null`: what matters of a type."""
    data: Any
    """A ChunkedArray, or a Python value."""
    source: Expression

    @property
    def is_column(self) -> bool:
        return isinstance(self.data, pa.ChunkedArray)

    @property
    def family(self) -> str:
        return "number" if self.kind in {"integer", "decimal", "float"} else self.kind


def run_where(expression: Expression, table: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of the table the condition is true in.

    Names are resolved as ``resolve_columns`` does.

    Raises:
        QueryError: A name is not, or not only, one column's; or values are compared that are of different kinds.

    Examples:
        >>> from shoal.dataset._query_parser import parse_where
        >>> table = pa.table({"json.width": [640, 320, None], "json.label": ["cat", "dog", "cat"]})
        >>> run_where(parse_where("width >= 512 or label = 'dog'"), table).tolist()
        [True, True, False]
    """
    truth = _truth(resolve_columns(expression, table.column_names), table)
    if isinstance(truth, pa.Scalar):
        return np.full(table.num_rows, truth.as_py() is True)
    kept: npt.NDArray[np.bool_] = pc.fill_null(truth, False).to_numpy()
    return kept


def may_be_true(expression: Expression, bounds: Mapping[str, tuple[Any, Any] | None]) -> bool:
    """Whether a condition may be true in some of the rows in which columns have these smallest and largest values.

    Names are exact. NaN does not count among the values; None stands for bounds that are not known.

    Examples:
        >>> from shoal.dataset._query_parser import parse_where
        >>> may_be_true(parse_where("width >= 512 and label = 'dog'"), {"width": (0, 600), "label": ("ant", "cat")})
        False
    """
    match expression:
        case And(parts):
            return all(may_be_true(part, bounds) for part in parts)
        case Or(parts):
            return any(may_be_true(part, bounds) for part in parts)
        case Compare(Column(name), sign, Literal(value)):
            return _may_compare(sign, bounds.get(name), value)
        case Compare(Literal(value), sign, Column(name)):
            return _may_compare(_MIRRORED[sign], bounds.get(name), value)
        case Between(Column(name), Literal(low), Literal(high)):
            low, high = _alike([low, high])
            return _may_compare(">=", bounds.get(name), low) and _may_compare("<=", bounds.get(name), high)
        case In(Column(name), items):
            return any(_may_compare("=", bounds.get(name), value) for value in _alike([item.value for item in items]))
    return True


def _alike(values: list[Any]) -> list[Any]:
    """Constants that are compared with one column: all as doubles as soon as one is a double."""
    if not any(isinstance(value, float) for value in values):
        return values
    return [float(value) if isinstance(value, (int, Decimal)) else value for value in values]


def _may_compare(sign: str, pair: tuple[Any, Any] | None, value: Any) -> bool:
    if pair is None or value is None or sign == "!=" or _FAMILY_OF.get(type(pair[0])) != _FAMILY_OF.get(type(value)):
        return True
    low, high = pair
    if isinstance(low, float) or isinstance(high, float) or isinstance(value, float):
        if sign in _OPPOSITE or math.isnan(value):  # NaN, which may be among the values, is above all others
            return True
        low, high, value = float(low), float(high), float(value)
    if sign == "=":
        return bool(low <= value <= high)
    return _PYTHON[sign](low if sign in {"<", "<="} else high, value)


_FAMILY_OF = {bool: "boolean", int: "number", float: "number", Decimal: "number", str: "text"}


def _truth(expression: Expression, table: pa.Table) -> Truth:
    match expression:
        case And(parts):
            return reduce(pc.and_kleene, (_truth(part, table) for part in parts))
        case Or(parts):
            return reduce(pc.or_kleene, (_truth(part, table) for part in parts))
        case Not(inner):
            return pc.invert(_truth(inner, table))
        case Compare(left, sign, right):
            return _compared(sign, *_comparable([_value(left, table), _value(right, table)]))
        case Between(operand, low, high):
            value, *ends = _comparable([_value(part, table) for part in (operand, low, high)])
            return pc.and_kleene(_compared(">=", value, ends[0]), _compared("<=", value, ends[1]))
        case In(operand, items):
            return _in(*_comparable([_value(part, table) for part in (operand, *items)]))
        case Like(operand, pattern):
            return _like(expression, _value(operand, table), pattern.value)
        case IsNull(operand):
            return _is_null(operand, table)
    return _as_truth(_value(expression, table))


def _as_truth(value: _Value) -> Truth:
    if value.kind == "null":
        return _null()
    if value.kind != "boolean":
        raise _refused(value, f"{_named(value)} is not a condition", "a boolean", hint="compare it with something")
    return value.data if value.is_column else pa.scalar(value.data, pa.bool_())


def _is_null(operand: Expression, table: pa.Table) -> Truth:
    # A column of a type that nothing else here can handle still is null or not.
    data = table.column(operand.name) if isinstance(operand, Column) else _value(operand, table).data
    if isinstance(data, pa.ChunkedArray):
        return pc.is_null(_plain(data))
    return pa.scalar(data is None)


def _null() -> Truth:
    # Made when needed: pyarrow's first scalar imports pandas, where that is installed, and importing shoal must not.
    return pa.scalar(None, pa.bool_())


def _value(expression: Expression, table: pa.Table) -> _Value:
    if isinstance(expression, Column):
        data = _plain(table.column(expression.name))
        return _Value(_column_kind(data.type, expression), data, expression)
    if isinstance(expression, Literal):
        return _Value(_CONSTANT_KINDS[expression.kind], expression.value, expression)
    truth = _truth(expression, table)
    data = truth.as_py() if isinstance(truth, pa.Scalar) else truth
    return _Value("null" if data is None else "boolean", data, expression)


_CONSTANT_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    Decimal: "decimal",
    float: "float",
    str: "text",
    type(None): "null",
}


def _plain(data: Any) -> Any:
    """The column without what concerns only its storage."""
    if pa.types.is_dictionary(data.type):
        data = data.cast(data.type.value_type)
    if pa.types.is_string_view(data.type):
        return data.cast(pa.large_string())
    return data.cast(pa.float32()) if pa.types.is_float16(data.type) else data


def _column_kind(kind: pa.DataType, column: Column) -> str:
    types = pa.types
    if types.is_integer(kind):
        return "integer"
    if types.is_floating(kind):
        return "float"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_null(kind):
        return "null"
    found = f"{column} of type {kind}"
    raise query_error("this column cannot be compared", column.at, expected="numbers, text or booleans", found=found)


def _comparable(values: Sequence[_Value]) -> list[_Value]:
    """The values, which must be of one family, brought to one type where they are numbers. The first is compared."""
    known = [value for value in values if value.kind != "null"]
    odd = next((value for value in known if value.family != known[0].family), None)
    if odd is not None:
        raise _mismatch(known[0], odd)
    floats = [value for value in known if value.kind == "float"]
    if not floats:
        return list(values)
    single = all(value.is_column and value.data.type == pa.float32() for value in floats)
    return [_as_float(value, pa.float32() if single else pa.float64()) for value in values]


def _as_float(value: _Value, kind: pa.DataType) -> _Value:
    if value.kind == "null":
        return value
    if value.is_column:
        return replace(value, kind="float", data=value.data.cast(kind, safe=False))
    rounded = float(value.data)
    return replace(value, kind="float", data=float(np.float32(rounded)) if kind == pa.float32() else rounded)


def _mismatch(left: _Value, right: _Value) -> Exception:
    # The constant is the likelier mistake, so the error points at it and speaks of the column.
    fixed, odd = (right, left) if right.is_column and not left.is_column else (left, right)
    problem = f"{_named(fixed)} cannot be compared with {_named(odd, short=True)}"
    return _refused(odd, problem, _FAMILIES[fixed.family], hint=_mismatch_hint(fixed, odd))


def _mismatch_hint(fixed: _Value, odd: _Value) -> str | None:
    if odd.is_column or fixed.is_column is odd.is_column:
        return None
    if fixed.family == "text":
        return f"text is written in single quotes: '{odd.source}'"
    if fixed.kind == "boolean":
        return f"write `{fixed.source}` or `not {fixed.source}`"
    return "a number is written without quotes" if odd.family == "text" else None


_FAMILIES = {"number": "a number", "text": "text", "boolean": "a boolean", "null": "null"}


def _named(value: _Value, *, short: bool = False) -> str:
    if isinstance(value.source, Column):
        return f"{value.source} ({value.data.type})"
    return _FAMILIES[value.family] if short else f"{_FAMILIES[value.family]} ({value.source})"


def _refused(value: _Value, problem: str, expected: str, hint: str | None) -> Exception:
    return query_error(problem, value.source.at, expected=expected, found=str(value.source), hint=hint)


def _compared(sign: str, left: _Value, right: _Value) -> Truth:
    if left.kind == "null" or right.kind == "null":
        return _null()
    if left.is_column and right.is_column:
        return _compared_columns(sign, left, right)
    if left.is_column:
        return _compared_constant(sign, left, right.data)
    if right.is_column:
        return _compared_constant(_MIRRORED[sign], right, left.data)
    return pa.scalar(_PYTHON[sign](left.data, right.data))


def _compared_columns(sign: str, left: _Value, right: _Value) -> Truth:
    if left.kind == "float":
        return _compared_floats(sign, left.data, right.data)
    return _KERNELS[sign](*_same_type(left.data, right.data))


def _same_type(left: Any, right: Any) -> tuple[Any, Any]:
    """Two columns of one family as one type that holds both."""
    if left.type == right.type:
        return left, right
    if pa.types.is_integer(left.type):
        mixed = pa.types.is_uint64(left.type) or pa.types.is_uint64(right.type)
        common = pa.decimal128(20, 0) if mixed else pa.int64()
        return left.cast(common), right.cast(common)
    return left.cast(pa.large_string()), right.cast(pa.large_string())


def _compared_floats(sign: str, left: Any, right: Any) -> Truth:
    """Two columns of floats, a NaN equal to a NaN and above the rest: what IEEE leaves out is put in."""
    if sign in _OPPOSITE or sign == "!=":
        return pc.invert(_compared_floats(_OPPOSITE.get(sign, "="), left, right))
    above = pc.is_nan(right)
    if sign == "=":
        return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), above))
    if sign == "<":
        return pc.or_(pc.less(left, right), pc.and_(pc.invert(pc.is_nan(left)), above))
    return pc.or_(pc.less_equal(left, right), above)


def _compared_constant(sign: str, column: _Value, constant: Any) -> Truth:
    if column.kind == "integer":
        return _compared_integers(sign, column.data, constant)
    scalar = pa.scalar(constant, column.data.type)
    if column.kind == "float" and sign in _OPPOSITE:  # not `<=` is `>`, and true of NaN
        return pc.invert(_KERNELS[_OPPOSITE[sign]](column.data, scalar))
    return _KERNELS[sign](column.data, scalar)


def _compared_integers(sign: str, data: Any, constant: int | Decimal) -> Truth:
    """A column of integers against an exact number, which may lie between two integers or outside the column's type."""
    whole = math.ceil(constant) if sign in {"<", ">="} else math.floor(constant)
    if sign in {"=", "!="} and whole != constant:
        return _known(data, sign == "!=")
    low, high = _limits(data.type)
    if not low <= whole <= high:
        return _known(data, _PYTHON[sign](low, whole))  # one integer of the type stands for all
    return _KERNELS[sign](data, pa.scalar(whole, data.type))


def _limits(kind: pa.DataType) -> tuple[int, int]:
    limits = np.iinfo(kind.to_pandas_dtype())
    return int(limits.min), int(limits.max)


def _known(data: Any, truth: bool) -> Truth:
    """The same truth in every row that has a value."""
    return pc.if_else(pc.is_valid(data), pa.scalar(truth), _null())


def _in(value: _Value, *items: _Value) -> Truth:
    if value.kind == "null":
        return _null()
    wanted = [item.data for item in items if item.kind != "null"]
    otherwise = _null() if len(wanted) < len(items) else pa.scalar(False)
    if not value.is_column:
        return pa.scalar(True) if value.data in wanted else otherwise
    found = pc.is_in(value.data, value_set=pa.array(_storable(value, wanted), value.data.type))
    return pc.if_else(pc.is_valid(value.data), pc.if_else(found, pa.scalar(True), otherwise), _null())


def _storable(column: _Value, wanted: list[Any]) -> list[Any]:
    """Those of the constants that the column's type can hold: no other can be found in it."""
    if column.kind == "integer":
        low, high = _limits(column.data.type)
        return [int(number) for number in wanted if int(number) == number and low <= number <= high]
    if column.kind == "float" and 0.0 in wanted:
        return [*wanted, 0.0, -0.0]  # is_in takes the two zeros for different
    return wanted


def _like(test: Like, value: _Value, pattern: Any) -> Truth:
    if value.kind not in {"text", "null"}:
        word = "ilike" if test.ignore_case else "like"
        raise _refused(value, f"{_named(value)} cannot be matched by `{word}`", "text", hint=None)
    if value.kind == "null" or pattern is None:
        return _null()
    data = value.data if value.is_column else pa.scalar(value.data)
    if test.ignore_case:  # lower case on both sides, by the same function
        data, pattern = pc.utf8_lower(data), pc.utf8_lower(pa.scalar(pattern)).as_py()
    return _matched(test, data, pattern)


def _matched(test: Like, data: Any, pattern: str) -> Truth:
    """Not by Arrow's own match_like, in which a backslash escapes; in SQL it is a character."""
    first, *inner = pattern.split("%")
    last = inner.pop() if inner else None
    if "_" in pattern or len(list(filter(None, inner))) + bool(first) + bool(last) > 1:
        return _matched_regex(test, data, pattern)
    if last is None:
        return pc.equal(data, pa.scalar(first, data.type))
    if first:
        return pc.starts_with(data, first)
    return pc.ends_with(data, last) if last else pc.match_substring(data, "".join(inner))


def _matched_regex(test: Like, data: Any, pattern: str) -> Truth:
    words = {"%": ".*", "_": "."}
    body = "".join(words.get(part) or re.escape(part) for part in re.split("([%_])", pattern) if part)
    try:
        return pc.match_substring_regex(data, rf"\A(?s:{body})\z")
    except pa.ArrowInvalid as error:
        raise query_error("this pattern is too long", test.pattern.at, hint="use several shorter ones") from error
