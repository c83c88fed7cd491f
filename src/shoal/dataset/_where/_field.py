"""Conditions by Python's operators: ``F.width >= 512`` is the condition of the text ``width >= 512``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

import numpy as np

from shoal.errors import QueryError

from ._tree import (
    MOST_DIGITS,
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
    negated,
    no_truth,
    read_number,
)

__all__ = ["F", "Field"]


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
        raise no_truth()

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
        return value if abs(value) < 10**MOST_DIGITS else _double(value)
    if math.isinf(value):
        return float(value)
    text = repr(value) if isinstance(value, float) else f"{value:f}"
    number = read_number(text.removeprefix("-"))
    return negated(number) if text.startswith("-") else number


def _double(value: int) -> float:
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
