"""Conditions over metadata columns: `F`, and the expression tree that it and the parser build.

The nodes are frozen values. They can be written as SQL, and their column names resolved against those of a dataset.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np

from shoal.errors import QueryError

__all__ = [
    "KEYWORDS",
    "And",
    "Between",
    "Column",
    "Compare",
    "Constant",
    "Expression",
    "F",
    "Field",
    "In",
    "IsNull",
    "Like",
    "Literal",
    "Not",
    "Or",
    "Span",
    "columns_of",
    "negated",
    "query_error",
    "read_number",
    "resolve_columns",
    "sql_of",
]

Constant: TypeAlias = bool | int | Decimal | float | str | None
KEYWORDS = frozenset({"and", "or", "not", "in", "between", "like", "ilike", "is", "null", "true", "false"})
MAX_DIGITS = 38
"""What SQL's exact numbers hold; a literal with more digits is a double."""
_BARE_NAME = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
_EXCERPT_CHARS = 72


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a text that a node was written as, so that a later error can point at it."""

    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A condition, or a part of one. Equal and hashable by meaning; ``str`` gives the text it would be parsed from.

    ``&``, ``|`` and ``~`` join conditions, as ``and``, ``or`` and ``not`` do in the text.
    """

    at: Span | None = field(default=None, compare=False, repr=False)

    def __and__(self, other: Expression) -> And:
        if not isinstance(other, Expression):
            return NotImplemented
        return And((*_parts(And, self), *_parts(And, other)))

    def __or__(self, other: Expression) -> Or:
        if not isinstance(other, Expression):
            return NotImplemented
        return Or((*_parts(Or, self), *_parts(Or, other)))

    def __invert__(self) -> Not:
        return Not(self)

    def __bool__(self) -> bool:
        raise truth_value_error()

    def __str__(self) -> str:
        return _to_sql(self, _format_name)


@dataclass(frozen=True, slots=True)
class Column(Expression):
    """A column, by the name it was given, or by its exact name after ``resolve_columns``."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal(Expression):
    """A constant. ``12`` and ``1.5`` are exact (int, Decimal); ``15e-1`` is a double (float)."""

    value: Constant
    kind: type = field(init=False, repr=False)  # Python takes 1, 1.0 and True for equal

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", type(self.value))


@dataclass(frozen=True, slots=True)
class Compare(Expression):
    """``left operator right``; the operator is one of ``= != < <= > >=``."""

    left: Expression
    operator: str
    right: Expression


@dataclass(frozen=True, slots=True)
class In(Expression):
    """``operand in (items)``."""

    operand: Expression
    items: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Between(Expression):
    """``operand between low and high``, both ends included."""

    operand: Expression
    low: Expression
    high: Expression


@dataclass(frozen=True, slots=True)
class Like(Expression):
    """``operand like pattern``: ``%`` is any text, ``_`` any one character; ``ilike`` when case is ignored."""

    operand: Expression
    pattern: Literal
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class IsNull(Expression):
    """``operand is null``: never null itself."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Not(Expression):
    """``not operand``."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class And(Expression):
    """``part and part and ...``."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or(Expression):
    """``part or part or ...``."""

    parts: tuple[Expression, ...]


def _parts(kind: type[And | Or], expression: Expression) -> tuple[Expression, ...]:
    # Flat, so that a thousand conditions joined in a loop are one node and not a thousand levels.
    return expression.parts if isinstance(expression, And | Or) and type(expression) is kind else (expression,)


def sql_of(expression: Expression) -> str:
    """The condition as SQL, every name quoted: the right of a WHERE over a table with these columns.

    Examples:
        >>> print(sql_of(Compare(Column("json.width"), ">=", Literal(512)) & In(Column("label"), (Literal("it's"),))))
        "json.width" >= 512 and "label" in ('it''s')
    """
    return _to_sql(expression, _quote_name)


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _format_name(name: str) -> str:
    return name if _BARE_NAME.fullmatch(name) and name.lower() not in KEYWORDS else _quote_name(name)


def _to_sql(expression: Expression, name: Callable[[str], str], no: str = "") -> str:
    """The text; ``no`` is "not " where the word belongs inside, as in ``x not in (1)``."""
    match expression:
        case Column(label):
            return name(label)
        case Literal(value):
            return _literal(value)
        case And(parts):
            return " and ".join(_bracketed(part, name, And | Or) for part in parts)
        case Or(parts):
            return " or ".join(_bracketed(part, name, Or) for part in parts)
        case Not(In() | Between() | Like() | IsNull() as inner):
            return _to_sql(inner, name, "not ")
        case Not(inner):
            return f"not {_bracketed(inner, name, And | Or)}"
        case _:
            return _predicate(expression, name, no)


def _bracketed(part: Expression, name: Callable[[str], str], kinds: Any) -> str:
    return f"({_to_sql(part, name)})" if isinstance(part, kinds) else _to_sql(part, name)


def _predicate(expression: Expression, name: Callable[[str], str], no: str) -> str:
    def atom(part: Expression) -> str:
        return _to_sql(part, name) if isinstance(part, Column | Literal) else f"({_to_sql(part, name)})"

    match expression:
        case Compare(left, operator, right):
            return f"{atom(left)} {operator} {atom(right)}"
        case In(operand, items):
            return f"{atom(operand)} {no}in ({', '.join(map(atom, items))})"
        case Between(operand, low, high):
            return f"{atom(operand)} {no}between {atom(low)} and {atom(high)}"
        case Like(operand, pattern, ignore_case):
            return f"{atom(operand)} {no}{'ilike' if ignore_case else 'like'} {atom(pattern)}"
        case IsNull(operand):
            return f"{atom(operand)} is {no}null"
    raise TypeError(f"{expression!r} is no part of a condition")


def _literal(value: Constant) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, int):
        return str(value)
    text = f"{value:f}"
    return text if "." in text else f"{text}."


def _double_text(value: float) -> str:
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return repr(value) if "e" in repr(value) else f"{value!r}e0"


def read_number(text: str) -> int | Decimal | float:
    """The number that a text without sign says: exact, unless it has an exponent or over 38 digits, as in SQL."""
    if "e" in text.lower() or sum(map(str.isdigit, text)) > MAX_DIGITS:
        return float(text)
    return Decimal(text) if "." in text else int(text)


def negated(number: float | Decimal) -> int | Decimal | float:
    """Minus the number, exactly: Python's own minus rounds a Decimal."""
    return number.copy_negate() if isinstance(number, Decimal) else -number


def columns_of(expression: Expression) -> set[str]:
    """The names of the columns in a condition, as they were written.

    Examples:
        >>> sorted(columns_of(Compare(Column("width"), ">", Column("json.height"))))
        ['json.height', 'width']
    """
    if isinstance(expression, Column):
        return {expression.name}
    return {
        name
        for part in fields(expression)
        for child in _children(getattr(expression, part.name))
        for name in columns_of(child)
    }


def _children(value: object) -> list[Expression]:
    values = value if isinstance(value, tuple) else (value,)
    return [child for child in values if isinstance(child, Expression)]


def resolve_columns(expression: Expression, available: Sequence[str]) -> Expression:
    """The same condition with each name replaced by the exact name of the column it means.

    A name means the column of that name; else the one column that ends in ``.name``.

    Raises:
        QueryError: No column, or more than one, is meant; the error names those that come near.

    Examples:
        >>> print(resolve_columns(Compare(Column("width"), ">=", Literal(512)), ["json.width", "json.label"]))
        json.width >= 512
    """
    known = dict.fromkeys(available)
    return _rename_columns(expression, lambda column: replace(column, name=_resolve_name(column, known)))


def _rename_columns(expression: Expression, rename: Callable[[Column], Column]) -> Expression:
    if isinstance(expression, Column):
        return rename(expression)
    changed: dict[str, Any] = {}
    for part in fields(expression):
        value = getattr(expression, part.name)
        if isinstance(value, Expression):
            changed[part.name] = _rename_columns(value, rename)
        elif isinstance(value, tuple):
            changed[part.name] = tuple(_rename_columns(child, rename) for child in value)
    return replace(expression, **changed) if changed else expression


def _resolve_name(column: Column, available: dict[str, None]) -> str:
    if column.name in available:
        return column.name
    meant = [name for name in available if name.endswith(f".{column.name}")]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise query_error(
            f"{_format_name(column.name)} may mean {_join_names(meant, 'and')}", column.at, hint="write the whole name"
        )
    raise query_error(
        f"there is no column {_format_name(column.name)}", column.at, hint=_unknown_hint(column, list(available))
    )


def _unknown_hint(column: Column, available: list[str]) -> str:
    near = _similar_names(column.name, available)
    quoted = column.at is not None and column.at.text[column.at.start] == '"'
    as_text = f"text is written in single quotes: {_literal(column.name)}" if quoted or not near else ""
    there = (
        f"perhaps {_join_names(near, 'or')} was meant"
        if near
        else f"there are {_join_names(available, 'and')}"
        if available
        else "there are no columns"
    )
    return "; ".join(filter(None, (as_text, there)))


def _similar_names(name: str, available: list[str]) -> list[str]:
    """Columns that a slip of the hand or of the shift key may have meant, best first."""
    forms: dict[str, list[str]] = {}
    for column in available:
        for form in {column.casefold(), column.casefold().rpartition(".")[2]}:
            forms.setdefault(form, []).append(column)
    wanted = name.casefold()
    matches = [wanted] if wanted in forms else difflib.get_close_matches(wanted, forms, n=3)
    return list(dict.fromkeys(column for match in matches for column in forms[match]))


def _join_names(names: list[str], word: str) -> str:
    shown = [_format_name(name) for name in names[:8]]
    last = f"{len(names) - 8} more" if len(names) > 8 else shown.pop()
    return f"{', '.join(shown)} {word} {last}" if shown else last


def query_error(
    problem: str, at: Span | None, *, expected: str | None = None, found: str | None = None, hint: str | None = None
) -> QueryError:
    """A QueryError that points at its place in the text, where there is a text."""
    pointed = ", ".join(filter(None, (hint, _pointer(at)))) if at is not None else hint
    return QueryError(problem, expected=expected, found=found, hint=pointed)


def _pointer(at: Span) -> str:
    """The place, and the line around it with marks below: at most 72 characters of it."""
    first = max(0, min(at.start - _EXCERPT_CHARS // 2, len(at.text) - _EXCERPT_CHARS))
    line = "".join(" " if c.isspace() else c for c in at.text[first : first + _EXCERPT_CHARS])
    before, after = "..." if first else "", "..." if first + _EXCERPT_CHARS < len(at.text) else ""
    marks = max(1, min(at.stop, first + _EXCERPT_CHARS) - at.start)
    marked = " " * (len(before) + at.start - first) + "^" * marks
    return f"at character {at.start + 1}:\n    {before}{line}{after}\n    {marked}"


def truth_value_error() -> QueryError:
    """What Python's own `and`, `or`, `not` and chained comparisons on a condition meet."""
    return QueryError(
        "a condition is neither true nor false before it is run",
        hint="join with `&`, `|` and `~`, each comparison in parentheses",
    )


class Field:
    """A column to compare: ``F.width >= 512``, ``F.json.width``, ``F["any name"]``."""

    __slots__ = ("_name",)
    __hash__ = None  # type: ignore[assignment]  # `==` makes a condition
    __array_ufunc__ = None  # so that `np.int64(5) <= F.width` comes here

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Field:
        return Field(f"{self._name}.{_attribute(name)}")

    def __repr__(self) -> str:
        return f"F[{self._name!r}]"

    def __eq__(self, other: object) -> Compare:  # type: ignore[override]
        return self._compared("=", other)

    def __ne__(self, other: object) -> Compare:  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: object) -> Compare:
        return self._compared("<", other)

    def __le__(self, other: object) -> Compare:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Compare:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Compare:
        return self._compared(">=", other)

    def _compared(self, operator: str, other: object) -> Compare:
        return Compare(Column(self._name), operator, _operand(other))

    def __and__(self, other: Expression | Field) -> And:
        return Column(self._name) & _condition(other)

    def __rand__(self, other: Expression | Field) -> And:
        return _condition(other) & Column(self._name)

    def __or__(self, other: Expression | Field) -> Or:
        return Column(self._name) | _condition(other)

    def __ror__(self, other: Expression | Field) -> Or:
        return _condition(other) | Column(self._name)

    def __invert__(self) -> Not:
        return Not(Column(self._name))

    def __bool__(self) -> bool:
        raise truth_value_error()

    def isin(self, values: Iterable[object]) -> In:
        """Whether the value is one of these."""
        if isinstance(values, str | bytes):
            raise QueryError("isin takes several values", found=repr(values), hint=f"write isin([{values!r}])")
        return In(Column(self._name), tuple(_constant(value) for value in values))

    def between(self, low: object, high: object) -> Between:
        """Whether the value is at least ``low`` and at most ``high``."""
        return Between(Column(self._name), _operand(low), _operand(high))

    def like(self, pattern: str) -> Like:
        """Whether the text fits: ``%`` is any text, ``_`` any one character."""
        return Like(Column(self._name), _pattern(pattern))

    def ilike(self, pattern: str) -> Like:
        """As ``like``, upper and lower case alike."""
        return Like(Column(self._name), _pattern(pattern), ignore_case=True)

    def is_null(self) -> IsNull:
        """Whether the sample has no value here."""
        return IsNull(Column(self._name))

    def is_not_null(self) -> Not:
        """Whether the sample has a value here."""
        return Not(IsNull(Column(self._name)))


class _Fields:
    """Makes fields by name."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Field:
        return Field(_attribute(name))

    def __getitem__(self, name: str) -> Field:
        return Field(name)

    def __repr__(self) -> str:
        return "F"


F = _Fields()
"""Columns by name: ``F.width >= 512`` is the condition of the text ``width >= 512``."""


def _attribute(name: str) -> str:
    # copy, pickle and notebooks ask every object for names with underscores
    if name.startswith("_") and name != "__key__":
        raise AttributeError(f'no such attribute; for a column of this name write F["{name}"]')
    return name


def _condition(value: object) -> Expression:
    if isinstance(value, Field):
        return Column(value._name)  # noqa: SLF001 - a field's public names are columns
    if isinstance(value, Expression):
        return value
    raise QueryError("only conditions can be joined", found=repr(value), hint="put each comparison in parentheses")


def _operand(value: object) -> Expression:
    return _condition(value) if isinstance(value, Field | Expression) else _constant(value)


def _pattern(value: object) -> Literal:
    if not isinstance(value, str):
        raise QueryError("a pattern is text", found=repr(value))
    return _constant(value)


def _constant(value: object) -> Literal:
    """The literal that the same value would be in the text."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str):
        return Literal(_encodable(value))
    if isinstance(value, bool):
        return Literal(value)
    if isinstance(value, int) or (isinstance(value, float | Decimal) and not math.isnan(value)):
        return Literal(_number(value))
    hint = "write .is_null()" if value is None else None
    raise QueryError(
        "this cannot be compared with a column", expected="a number, text or a boolean", found=repr(value), hint=hint
    )


def _number(value: float | Decimal) -> int | Decimal | float:
    if isinstance(value, int):
        return value if abs(value) < 10**MAX_DIGITS else _to_double(value)
    if math.isinf(value):
        return float(value)
    text = repr(value) if isinstance(value, float) else f"{value:f}"
    number = read_number(text.removeprefix("-"))
    return negated(number) if text.startswith("-") else number


def _to_double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise QueryError(
            "the text is not Unicode", found=repr(text), hint="a lone surrogate cannot be stored"
        ) from error
    return text
