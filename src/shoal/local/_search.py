"""What a dataset is found by: words, tags, schema and fields as terms of one list, the same in every database."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from typing import Any

from shoal.errors import OptionError
from shoal.schema import Schema

from ._backend import Query, Row, Term
from ._entry import Entry
from ._refs import parse_thing

__all__ = ["query_of", "row_of"]

_WORD = re.compile(r"[^\W_]+")
_ASKED = re.compile(r"[^\W_]+\*?")
_MOST_WORDS = 1000
_LONGEST_WORD = 64
_MOST_RESULTS = 10_000

When = datetime | date | float | None
Bounds = tuple[int | None, int | None]


def _words(text: str) -> list[str]:
    return [word[:_LONGEST_WORD] for word in _WORD.findall(_folded(text))]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


# ------------------------------------------------------------------------------------------------------ what is kept


def row_of(entry: Entry, number: int, schema: Schema | None, created: float) -> Row:
    """What the newest version of a dataset is found by."""
    terms = dict.fromkeys(_terms(entry, schema))
    return Row(entry.name, number, tuple(terms), entry.samples or 0, entry.bytes, created)


def _terms(entry: Entry, schema: Schema | None) -> Iterator[str]:
    yield from (f"t:{_folded(tag)}" for tag in entry.tags)
    if schema is not None:
        yield f"s:{schema.name}"
        yield f"s:{schema.name}@{schema.version}"
        yield from (f"f:{field.name}" for field in schema.fields)
    words = (word for text in _texts(entry, schema) for word in _words(text))
    distinct = dict.fromkeys(words)
    yield from (f"w:{word}" for word, _ in zip(distinct, range(_MOST_WORDS), strict=False))


def _texts(entry: Entry, schema: Schema | None) -> Iterator[str]:
    """All that people wrote, the name first."""
    yield entry.name
    yield from entry.tags
    yield entry.description
    if schema is not None:
        yield schema.name
        yield from schema.names
    yield from _strings(entry.metadata)


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for name, inner in node.items():
            yield name
            yield from _strings(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _strings(inner)


# ----------------------------------------------------------------------------------------------------- what is asked


def query_of(
    text: str | None,
    tags: Iterable[str],
    schema: str | None,
    fields: Iterable[str],
    samples: Bounds,
    sizes: Bounds,
    created: tuple[When, When],
    limit: int,
    offset: int,
) -> Query:
    """A search as databases take it. Raises OptionError for what cannot be meant."""
    if not 1 <= limit <= _MOST_RESULTS or offset < 0:
        raise OptionError("a search gives some results", expected=f"a limit of 1 to {_MOST_RESULTS}", found=limit)
    if isinstance(tags, str) or isinstance(fields, str):
        raise OptionError("tags and fields are lists", expected="['a', 'b']", found=repr(tags or fields))
    terms = [
        *_asked_words(text),
        *(Term(f"t:{_folded(tag.strip())}") for tag in tags),
        *([] if schema is None else [_schema_term(schema)]),
        *(Term(f"f:{name}") for name in fields),
    ]
    after, before = (_seconds(when) for when in created)
    return Query(tuple(dict.fromkeys(terms)), samples, sizes, (after, before), limit, offset)


def _asked_words(text: str | None) -> Iterator[Term]:
    if not text or not text.strip():
        return
    found = _ASKED.findall(_folded(text))
    if not found:
        raise OptionError("there is no word to look for", expected="letters or digits", found=repr(text)[:80])
    for word in found:
        yield Term(f"w:{word.removesuffix('*')[:_LONGEST_WORD]}", prefix=word.endswith("*"))


def _schema_term(ref: str) -> Term:
    asked = parse_thing("schema", ref)
    return Term(f"s:{asked}")


def _seconds(when: When) -> float | None:
    if when is None or isinstance(when, int | float):
        return when
    if isinstance(when, datetime):
        return when.timestamp()
    return datetime.combine(when, time.min).astimezone().timestamp()
