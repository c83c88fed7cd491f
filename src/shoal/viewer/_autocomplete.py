"""Suggestions for completing a condition: columns, operators, and the values of a column."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.dataset._query import F
from shoal.errors import ShoalError

from ._session import ViewerSession

__all__ = ["Suggestion", "suggestions"]

_MOST = 12
_TOKEN = re.compile(r"""\s+|'(?:[^']|'')*'?|"(?:[^"]|"")*"?|<=|>=|<>|!=|==|[=<>(),-]|[\w.]+|.""")
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_WORDS = frozenset({"and", "or", "not"})
_NUMBER_WORDS = ("= ", "!= ", ">= ", "<= ", "> ", "< ", "between ", "in (", "is null", "is not null")
_TEXT_WORDS = ("= ", "!= ", "in (", "like '", "ilike '", "is null", "is not null")
_TRUTH_WORDS = ("", "= false", "is null", "is not null")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Text for the place of what is half written; ``note`` says more about it."""

    text: str
    note: str = ""


def suggestions(opened: ViewerSession, text: str, at: int) -> tuple[int, list[Suggestion]]:
    """Where the word at the cursor starts, and what may stand there.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/suggest/a-%06d.tar") as writer:
        ...     writer.write({"__key__": "a", "json": {"width": 640, "label": "cat"}})
        >>> from shoal.viewer._session import ViewOptions
        >>> opened = ViewerSession(ViewOptions("memory://doc/suggest"))
        >>> suggestions(opened, "wi", 2)
        (0, [Suggestion(text='width ', note='int64')])
        >>> suggestions(opened, "label = ", 8)
        (8, [Suggestion(text="'cat' ", note='1')])
    """
    tokens = _TOKEN.findall(text[:at])
    word = "" if not tokens or tokens[-1].isspace() or tokens[-1] in (*_COMPARISONS, "(", ",") else tokens.pop()
    before = [token for token in tokens if not token.isspace()]
    return at - len(word), _next(opened, before, word)[:_MOST]


def _next(opened: ViewerSession, before: Sequence[str], word: str) -> list[Suggestion]:
    columns = _columns(opened)
    if not before or before[-1].lower() in _WORDS or (before[-1] == "(" and not _in_list(before)):
        return _names(columns, word)
    last = before[-1]
    if last in _COMPARISONS or last.lower() in ("like", "ilike", "between") or _in_list(before):
        column = _column_before(before, columns)
        return [] if column is None else _values(opened, column, word)
    if _unquoted(last) in columns:
        return _operators(columns[_unquoted(last)], word)
    return [Suggestion(f"{join} ") for join in ("and", "or") if join.startswith(word.lower())]


def _in_list(before: Sequence[str]) -> bool:
    """Whether this is inside ``in ( ... ``."""
    opens = [at for at, token in enumerate(before) if token == "("]  # noqa: S105 - a bracket
    return bool(opens) and ")" not in before[opens[-1] :] and opens[-1] > 0 and before[opens[-1] - 1].lower() == "in"


def _column_before(before: Sequence[str], columns: dict[str, str]) -> str | None:
    named = (_unquoted(token) for token in reversed(before))
    return next((name for name in named if name in columns), None)


def _unquoted(token: str) -> str:
    return token[1:-1].replace('""', '"') if token.startswith('"') else token


def _columns(opened: ViewerSession) -> dict[str, str]:
    """Every name a column may go by, and its type: whole names, and their ends where only one column ends so."""
    whole = {name: _type(opened, name) for name in opened.column_names()}
    ends: dict[str, list[str]] = {}
    for name in whole:
        ends.setdefault(name.rpartition(".")[2], []).append(name)
    short = {end: whole[names[0]] for end, names in ends.items() if len(names) == 1}
    return {**short, **whole, "__key__": "string"}


def _type(opened: ViewerSession, name: str) -> str:
    source = opened.shards
    if source is None:
        return ""
    return str(source.index.column_types(4).get(name, ""))


def _names(columns: dict[str, str], word: str) -> list[Suggestion]:
    wanted = word.lower().strip('"')
    fitting = [name for name in columns if name.lower().startswith(wanted)]
    inside = [name for name in columns if wanted in name.lower() and name not in fitting]
    if "." not in wanted:  # one way to write each is enough
        inside = [name for name in inside if name.rpartition(".")[2] not in fitting]
        fitting = [name for name in fitting if "." not in name or name.rpartition(".")[2] not in columns]
    plainly = {str(F[name].is_null()).removesuffix(" is null"): columns[name] for name in (*fitting, *inside)}
    return [Suggestion(f"{name} ", kind) for name, kind in plainly.items()]


def _operators(kind: str, word: str) -> list[Suggestion]:
    words = _TRUTH_WORDS if kind == "bool" else _TEXT_WORDS if kind == "string" else _NUMBER_WORDS
    return [Suggestion(each) for each in words if each and each.startswith(word.lower())]


def _values(opened: ViewerSession, column: str, word: str) -> list[Suggestion]:
    wanted = word.strip("'").replace("''", "'").lower()
    found = []
    for value, count in _counted(opened, column):
        text = str(value).lower()
        if text.startswith(wanted) or (len(wanted) > 1 and wanted in text):
            found.append(Suggestion(f"{str(F.x == value).removeprefix('x = ')} ", f"{count:,}"))
    return found


_LOCK = threading.Lock()


def _counted(opened: ViewerSession, column: str) -> tuple[tuple[Any, int], ...]:
    with _LOCK:
        return _commonest(opened, opened.dataset, column)


@lru_cache(maxsize=64)
def _commonest(opened: ViewerSession, dataset: Any, column: str) -> tuple[tuple[Any, int], ...]:
    """The commonest values; counted once for each opening of the dataset."""
    try:
        values = dataset.column(column).drop_null()
        counted = values.value_counts() if len(values) else pa.array([])
    except ShoalError:
        return ()
    if not len(counted):
        return ()
    order = np.argsort(-counted.field("counts").to_numpy(), kind="stable")[:500]
    return tuple((one["values"], one["counts"]) for one in counted.take(pa.array(order)).to_pylist())
