"""The text of a condition, parsed into its tree.

Every mistake is a QueryError that says what was expected, what was found, and points at it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from shoal.errors import QueryError

from ._query import (
    KEYWORDS,
    And,
    Between,
    Column,
    Compare,
    Constant,
    Expression,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Span,
    negated,
    query_error,
    read_number,
)

__all__ = ["as_expression", "parse_where"]

DEEPEST = 64
"""How far parentheses and `not` may nest: deeper text is a mistake, and would exhaust Python's stack."""
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<name>[^\W\d]\w*(?:\.\w+)*)
  | (?P<quoted>"(?:[^"]|"")*")
  | (?P<text>'(?:[^']|'')*')
  | (?P<foreign>===|=>|=<|=~|&&?|\|\|?|--|!(?!=)|[≥≤≠\u201c\u201d\u2018\u2019`\[\]{};+*/%^~?@$#:\\])
  | (?P<operator><=|>=|<>|!=|==|[=<>(),-])
    """,
    re.VERBOSE,
)
_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_PREDICATES = {*_COMPARISONS, "is", "in", "between", "like", "ilike", "not"}
_ARITHMETIC = 'there is no arithmetic here; a name with other characters goes in double quotes: "my-name"'
_LIST = "a list goes in parentheses: (1, 2)"
_HINTS = {
    **dict.fromkeys(("&&", "&"), "write `and`"),
    **dict.fromkeys(("||", "|"), "write `or`"),
    **dict.fromkeys(("!", "~"), "write `not`"),
    **dict.fromkeys(("===", "=~"), "write `=`, or `like` for a pattern"),
    **dict.fromkeys(("=>", "≥"), "write `>=`"),
    **dict.fromkeys(("=<", "≤"), "write `<=`"),
    "≠": "write `!=`",
    "--": "SQL takes `--` for a comment; write a space between two minus signs",
    **dict.fromkeys("\u201c\u201d\u2018\u2019", "text is written in straight single quotes: 'cat'"),
    "`": 'a name with other characters goes in double quotes: "my name"',
    **dict.fromkeys("[]{}", _LIST),
    **dict.fromkeys("+*/%^", _ARITHMETIC),
    ";": "a condition is not a statement; it ends without `;`",
    **dict.fromkeys(("?", "$", ":"), "there are no parameters; write the value, or use `F`"),
}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`name`, `quoted`, `text`, `number`, `end`; an operator or a keyword is its own kind."""
    at: Span

    @property
    def text(self) -> str:
        return self.at.text[self.at.start : self.at.stop]

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else self.text if self.kind == "text" else f"`{self.text}`"


def parse_where(text: str) -> Expression:
    """The tree of a condition.

    Raises:
        QueryError: The text is not a condition; the error points at the first place where it is not.

    Examples:
        >>> parse_where("width >= 512")
        Compare(left=Column(name='width'), operator='>=', right=Literal(value=512))
        >>> print(parse_where("NOT label == 'cat' OR (Size<>-1)"))
        not label = 'cat' or Size != -1
    """
    cursor = _Cursor(_tokenize(text))
    if cursor.token.kind == "end":
        cursor.refuse("the condition is empty", expected="one such as width >= 512")
    tree = _condition(_parse_or(cursor))
    if cursor.token.kind != "end":
        _refuse_rest(cursor)
    return tree


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup == "foreign":
            raise _unknown_token_error(text, at, match)
        token = _Token(_token_kind(match), Span(text, at, match.end()))
        if match.lastgroup != "space":
            _check_token(token, tokens)
            tokens.append(token)
        at = match.end()
    return [*tokens, _Token("end", Span(text, len(text.rstrip()), len(text.rstrip())))]


def _token_kind(match: re.Match[str]) -> str:
    group = str(match.lastgroup)
    word = match.group().lower()
    return word if group == "operator" or (group == "name" and word in KEYWORDS) else group


def _unknown_token_error(text: str, at: int, match: re.Match[str] | None) -> Exception:
    if match is not None:
        found = match.group()
        return query_error(f"`{found}` is not part of a condition", Span(text, at, match.end()), hint=_HINTS.get(found))
    if text[at] in "'\"":
        return query_error(
            "this quote is never closed", Span(text, at, at + 1), hint=f"write {text[at] * 2} for one inside"
        )
    return query_error(f"the character {text[at]!r} is not part of a condition", Span(text, at, at + 1))


def _check_token(token: _Token, before: list[_Token]) -> None:
    if token.kind in {"text", "quoted"} and not _encodable(token.text):
        raise query_error("the text is not Unicode", token.at, hint="a lone surrogate cannot be stored")
    if token.text == '""':
        raise query_error("a column's name is missing between the quotes", token.at, hint="empty text is written ''")
    joined = bool(before) and before[-1].at.stop == token.at.start
    if joined and before[-1].kind == "number" and token.at.text[token.at.start] not in "<>=!(),-":
        whole = replace(token.at, start=before[-1].at.start)
        raise query_error(
            "this is neither a number nor a name", whole, hint='a name such as "2x" goes in double quotes'
        )


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


class _Cursor:
    """Position in the tokens."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    @property
    def token(self) -> _Token:
        return self._tokens[self._next]

    @property
    def ahead(self) -> str:
        """The kind of the token after the next one."""
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)].kind

    def take(self) -> _Token:
        token = self.token
        self._next += 1
        return token

    def accept(self, *kinds: str) -> _Token | None:
        return self.take() if self.token.kind in kinds else None

    def since(self, start: Span) -> Span:
        """From a place to the end of what was last taken."""
        return replace(start, stop=self._tokens[self._next - 1].at.stop)

    def deeper(self, by: int) -> None:
        self._depth += by
        if self._depth > DEEPEST:
            self.refuse(f"more than {DEEPEST} levels of parentheses and `not`", expected=None, found=None)

    def refuse(
        self, problem: str, *, expected: str | None, found: str | None = "", hint: str | None = None
    ) -> NoReturn:
        shown = str(self.token) if found == "" and self.token.kind != "end" else found or None
        raise query_error(problem, self.token.at, expected=expected, found=shown, hint=hint)


def _parse_or(cursor: _Cursor) -> Expression:
    return _parse_chain(cursor, "or", Or, _parse_and)


def _parse_and(cursor: _Cursor) -> Expression:
    return _parse_chain(cursor, "and", And, _parse_not)


def _parse_chain(cursor: _Cursor, word: str, kind: type[And | Or], part: Callable[[_Cursor], Expression]) -> Expression:
    start = cursor.token.at
    parts = [part(cursor)]
    while cursor.accept(word):
        parts.append(part(cursor))
    if len(parts) == 1:
        return parts[0]
    return kind(tuple(_condition(one, parts[0]) for one in parts), at=cursor.since(start))


def _parse_not(cursor: _Cursor) -> Expression:
    word = cursor.accept("not")
    if word is None:
        return _parse_predicate(cursor)
    cursor.deeper(1)
    inner = _condition(_parse_not(cursor))
    cursor.deeper(-1)
    return Not(inner, at=cursor.since(word.at))


def _condition(part: Expression, first: Expression | None = None) -> Expression:
    """The part, which must be able to be true; ``label = 'cat' or 'dog'`` is the usual way for it not to be."""
    if isinstance(part, Literal) and part.value is not None and not isinstance(part.value, bool):
        hint = None
        if isinstance(first, Compare) and first.operator == "=":
            hint = f"write `{first.left} in ({first.right}, {part})`"
        raise query_error("a constant is not a condition", part.at, expected="a comparison", found=str(part), hint=hint)
    return part


def _parse_predicate(cursor: _Cursor) -> Expression:
    start = cursor.token.at
    left = _parse_operand(cursor)
    if cursor.token.kind not in _PREDICATES:
        return left
    made = _parse_comparison(cursor, left) if cursor.token.kind in _COMPARISONS else _parse_test(cursor, left)
    if cursor.token.kind in _PREDICATES:
        cursor.refuse(
            "comparisons do not chain",
            expected="`and`, `or` or the end",
            hint="write `a < b and b < c`, or use parentheses",
        )
    return replace(made, at=cursor.since(start))


def _parse_comparison(cursor: _Cursor, left: Expression) -> Expression:
    operator = _COMPARISONS[cursor.take().kind]
    return Compare(left, operator, _parse_operand(cursor))


def _parse_test(cursor: _Cursor, left: Expression) -> Expression:
    """What follows an operand in words: ``is null``, ``in``, ``between``, ``like``, each with or without ``not``."""
    if cursor.accept("is"):
        negative = cursor.accept("not") is not None
        _expect(
            cursor, "null", "`is` only asks about null", hint="write `flag` or `not flag` for a truth, `=` for a value"
        )
        return Not(IsNull(left)) if negative else IsNull(left)
    negative = cursor.accept("not") is not None
    word = cursor.accept("in", "between", "like", "ilike")
    if word is None:
        hint = "write `is not null`" if cursor.token.kind == "null" else None
        cursor.refuse("a comparison is missing", expected="`in`, `between`, `like` or `ilike` after `not`", hint=hint)
    made = {"in": _parse_in, "between": _parse_between}.get(word.kind, _parse_like)(cursor, left, word.kind)
    return Not(made) if negative else made


def _parse_in(cursor: _Cursor, left: Expression, word: str) -> Expression:
    opening = _expect(cursor, "(", "`in` takes a list", hint=_LIST)
    items: list[Literal] = []
    while cursor.token.kind != ")" or items:
        items.append(_parse_item(cursor))
        if not cursor.accept(","):
            break
    _close(cursor, opening, "`,` or `)`")
    return In(left, tuple(items))


def _parse_item(cursor: _Cursor) -> Literal:
    token = cursor.token
    if token.kind in {"name", "quoted"}:
        cursor.refuse(
            "a list holds constants only", expected="a number, text, true, false or null", hint=_as_text(token)
        )
    item = _parse_operand(cursor)
    if not isinstance(item, Literal):
        raise query_error("a list holds constants only", token.at, expected="a number, text, true, false or null")
    return item


def _parse_between(cursor: _Cursor, left: Expression, word: str) -> Expression:
    low = _parse_operand(cursor)
    _expect(cursor, "and", "`between` takes two ends", hint="write `between 1 and 5`")
    return Between(left, low, _parse_operand(cursor))


def _parse_like(cursor: _Cursor, left: Expression, word: str) -> Expression:
    token = cursor.token
    pattern = _parse_operand(cursor)
    if not isinstance(pattern, Literal) or not isinstance(pattern.value, str | None):
        hint = _as_text(token) if isinstance(pattern, Column) else "such as 'a%'"
        raise query_error(f"`{word}` takes a pattern", pattern.at, expected="text", found=str(pattern), hint=hint)
    return Like(left, pattern, ignore_case=word == "ilike")


def _as_text(token: _Token) -> str:
    return "text is written in single quotes: '" + token.text.strip('"').replace("'", "''") + "'"


def _parse_operand(cursor: _Cursor) -> Expression:
    token = cursor.token
    match token.kind:
        case "(":
            return _parse_parentheses(cursor)
        case "-":
            return _parse_negative(cursor)
        case "name":
            if cursor.ahead == "(":
                cursor.refuse(
                    "there are no functions here",
                    expected=None,
                    hint="`like`, `in`, `between` and comparisons are all there is",
                )
            return Column(cursor.take().text, at=token.at)
        case "quoted":
            return Column(cursor.take().text[1:-1].replace('""', '"'), at=token.at)
        case "number" | "text" | "true" | "false" | "null":
            return Literal(_constant(cursor.take()), at=token.at)
    return _refuse_operand(cursor)


def _refuse_operand(cursor: _Cursor) -> NoReturn:
    problem = "the condition stops short" if cursor.token.kind == "end" else "something is missing here"
    hint = (
        f'a column of this name goes in double quotes: "{cursor.token.text}"' if cursor.token.kind in KEYWORDS else None
    )
    cursor.refuse(problem, expected="a column, a number or text", hint=hint)


def _constant(token: _Token) -> Constant:
    if token.kind == "number":
        return read_number(token.text)
    if token.kind == "text":
        return token.text[1:-1].replace("''", "'")
    return {"true": True, "false": False, "null": None}[token.kind]


def _parse_negative(cursor: _Cursor) -> Expression:
    start = cursor.token.at
    signs = 0
    while cursor.accept("-"):
        signs += 1
    operand = _parse_operand(cursor)
    if not isinstance(operand, Literal) or isinstance(operand.value, bool | str | None):
        raise query_error(
            "only a number can be negative", operand.at, found=str(operand), hint="there is no arithmetic on columns"
        )
    value = negated(operand.value) if signs % 2 else operand.value
    return Literal(value, at=cursor.since(start))


def _parse_parentheses(cursor: _Cursor) -> Expression:
    cursor.deeper(1)
    opening = cursor.take()
    inner = _parse_or(cursor)
    if cursor.token.kind == ",":
        cursor.refuse("a list can only follow `in`", expected="`)`")
    _close(cursor, opening, "`and`, `or` or `)`")
    cursor.deeper(-1)
    return inner


def _close(cursor: _Cursor, opening: _Token, expected: str) -> None:
    if cursor.token.kind == "end":
        raise query_error("this parenthesis is never closed", opening.at)
    if not cursor.accept(")"):
        cursor.refuse("something is missing here", expected=expected)


def _expect(cursor: _Cursor, kind: str, problem: str, hint: str) -> _Token:
    token = cursor.accept(kind)
    if token is None:
        cursor.refuse(problem, expected=f"`{kind}`", found="the end" if cursor.token.kind == "end" else "", hint=hint)
    return token


def _refuse_rest(cursor: _Cursor) -> NoReturn:
    if cursor.token.kind == ")":
        cursor.refuse("this parenthesis closes nothing", expected=None, found=None)
    hint = _ARITHMETIC if cursor.token.kind == "-" else None
    cursor.refuse("the condition goes on after its end", expected="`and`, `or` or the end", hint=hint)


# Text (``_query_parser``) or Python operators (``_query``) make a tree of frozen values (``_query``); its names are
# matched with a dataset's columns; then it is run over a table (``_query_executor``). The tree has SQL's meaning, with
# its three-valued logic, so that another engine can run it: ``sql_of`` gives that engine the text.
def as_expression(condition: str | Expression | Field) -> Expression:
    """The condition as a tree, whichever way it was written. Raises QueryError for anything else.

    Examples:
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
