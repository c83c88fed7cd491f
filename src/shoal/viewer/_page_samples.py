"""Columns counted: the commonest values, or a histogram, of the samples that are asked for. Only the index is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.dataset import F
from shoal.errors import FieldError
from shoal.shard import Source

from ._html import Html, fragment, plain, tag
from ._layout import Frame, asked, page
from ._opened import Ask, Numbers, Opened
from ._plots import bars
from ._words import show_count, show_number

__all__ = ["Bin", "Facet", "columns_page", "facets_of", "facets_part", "joined"]

pc: Any = pyarrow.compute
_BINS = 24
_TOP = 8
_MOST_COLUMNS = 60
_FEW = 12
"""Whole numbers of so few different values are labels, not measures."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Some of the values, how many samples have them, and the condition that says so."""

    label: str
    count: int
    where: str


@dataclass(frozen=True, slots=True)
class Facet:
    """One column: its values in bins, in order where they are numbers, else the commonest first."""

    name: str
    type: str
    bins: tuple[Bin, ...] = ()
    is_histogram: bool = False
    nulls: int = 0
    distinct: int = 0
    note: str = ""


def facets_of(opened: Opened, ask: Ask, names: Sequence[str] | None = None) -> list[Facet]:
    """The columns of the samples that are asked for. Raises QueryError."""
    numbers = opened.numbers(ask)
    chosen = (opened.dataset.column_names if names is None else names)[:_MOST_COLUMNS]
    source = opened.dataset.source
    try:
        table = source.table(chosen)  # at once, since each table goes through the indexes of all shards
    except FieldError:
        return [_alone(source, numbers, name) for name in chosen]
    return [_facet(name, table.column(at), numbers) for at, name in enumerate(chosen)]


def _alone(source: Source, numbers: Numbers, name: str) -> Facet:
    """One column by itself, where some column cannot be counted."""
    try:
        return _facet(name, source.table([name]).column(0), numbers)
    except FieldError as error:
        return Facet(name, "", note=str(error))


def _facet(name: str, column: pa.ChunkedArray, numbers: Numbers) -> Facet:
    values = column if numbers.chosen is None else column.take(pa.array(numbers.chosen))
    kind, nulls = str(values.type), values.null_count
    known = values.drop_null()
    if pa.types.is_null(values.type) or not len(known):
        return Facet(name, kind, nulls=nulls, note="no values")
    if pa.types.is_floating(values.type):
        return Facet(name, kind, _histogram(name, known), is_histogram=True, nulls=nulls)
    if pa.types.is_integer(values.type) and not _is_few(known):
        return Facet(name, kind, _histogram(name, known), is_histogram=True, nulls=nulls)
    bins, distinct = _commonest(name, known)
    return Facet(name, kind, bins, nulls=nulls, distinct=distinct)


def _is_few(values: pa.ChunkedArray) -> bool:
    ends = pc.min_max(values).as_py()
    return int(ends["max"]) - int(ends["min"]) < 1 << 20 and pc.count_distinct(values).as_py() <= _FEW


def _histogram(name: str, values: pa.ChunkedArray) -> tuple[Bin, ...]:
    numbers = values.to_numpy().astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return ()
    low, high = float(numbers.min()), float(numbers.max())
    whole = pa.types.is_integer(values.type)
    edges = _edges(low, high, whole=whole)
    counts = np.histogram(numbers, edges)[0].tolist()
    found = []
    for at, count in enumerate(counts):
        start, stop = edges[at], edges[at + 1]
        last = at == len(counts) - 1
        label = f"{show_number(_tidy(start, whole))} to {show_number(_tidy(stop, whole))}"
        condition = (F[name] >= _tidy(start, whole)) & (
            F[name] <= _tidy(stop, whole) if last else F[name] < _tidy(stop, whole)
        )
        found.append(Bin(label, count, str(condition)))
    return tuple(found)


def _tidy(value: float, whole: bool) -> int | float:
    return int(value) if whole else float(value)


def _edges(low: float, high: float, *, whole: bool) -> npt.NDArray[np.float64]:
    """Ends of bins at round numbers."""
    span = high / _BINS - low / _BINS
    if span <= 0 or not math.isfinite(span):
        return np.array([low, np.nextafter(low, np.inf)]) if not whole else np.array([low, low + 1.0])
    power = 10.0 ** math.floor(math.log10(span))
    step = next(power * part for part in (1, 2, 2.5, 5, 10) if power * part >= span)
    step = max(1.0, math.ceil(step)) if whole else step
    first = math.floor(low / step)
    count = max(1, math.floor(high / step) - first + 1)
    return np.asarray((first + np.arange(count + 1)) * step, np.float64)


def _commonest(name: str, values: pa.ChunkedArray) -> tuple[tuple[Bin, ...], int]:
    counted = values.value_counts()
    counts = counted.field("counts").to_numpy()
    order = np.argsort(-counts, kind="stable")[:_TOP]
    chosen = zip(counted.field("values").take(pa.array(order)).to_pylist(), counts[order].tolist(), strict=True)
    # Where nearly every sample has a value of its own, a list of eight of them says nothing.
    least = max(2, len(values) // 100) if len(counted) > _FEW else 1
    bins = [Bin(_label(value), count, str(F[name] == value)) for value, count in chosen if count >= least]
    return tuple(bins), len(counted)


def _label(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else plain(str(value), 80)


def joined(where: str, more: str) -> str:
    """Both conditions.

    Example:
        >>> joined("", "a = 1"), joined("a = 1 or b = 2", "c = 3"), joined("a = 1", "a = 1")
        ('a = 1', '(a = 1 or b = 2) and c = 3', 'a = 1')
    """
    if not where.strip() or where.strip() == more:
        return more
    return f"({where}) and {more}" if " or " in f" {where.lower()} " else f"{where} and {more}"


# ----------------------------------------------------------------------------------------------------------------- HTML


def facets_part(opened: Opened, ask: Ask) -> Html:
    """The columns, for the side of the page of samples."""
    facets = facets_of(opened, ask)
    if not facets:
        return tag("p", "No metadata columns: the index holds the scalars of json, cls and short txt.", cls="quiet")
    told = sorted(facets, key=lambda facet: not facet.bins)  # those that say something first
    return fragment([_shown(facet, ask) for facet in told])


def columns_page(opened: Opened, frame: Frame, ask: Ask) -> Html:
    """All columns, on a page of their own."""
    numbers = opened.numbers(ask)
    head = tag(
        "p",
        tag("strong", show_count(numbers.count, "sample")),
        f" where {ask.where}" if ask.where else "",
        cls="summary",
    )
    return page(
        frame,
        "Columns",
        tag("h1", "Columns"),
        head,
        tag("div", facets_part(opened, ask), cls="facet-grid"),
        here="/columns",
        ask=ask,
    )


def _shown(facet: Facet, ask: Ask) -> Html:
    heading = tag("h2", plain(facet.name, 60), tag("span", facet.type, cls="quiet"))
    links = [asked("/", Ask(joined(ask.where, one.where), ask.split, ask.shuffle)) for one in facet.bins]
    body = _bars(facet, links) if facet.is_histogram else _values(facet, links)
    more = facet.distinct - len(facet.bins)
    notes = [facet.note] if facet.note else []
    notes += [f"{more:,} {'other' if facet.bins else 'different'} values"] if more > 0 else []
    notes += [show_count(facet.nulls, "null")] if facet.nulls else []
    return tag("section", heading, body, tag("p", ", ".join(notes), cls="quiet") if notes else None, cls="facet")


def _bars(facet: Facet, links: Sequence[str]) -> Html | None:
    if not facet.bins:
        return None
    titles = [f"{one.label}: {show_count(one.count, 'sample')}" for one in facet.bins]
    ends = tag(
        "p",
        tag("span", facet.bins[0].label.partition(" to ")[0]),
        tag("span", facet.bins[-1].label.partition(" to ")[2]),
        cls="ends",
    )
    return fragment(bars([one.count for one in facet.bins], titles, links), ends)


def _values(facet: Facet, links: Sequence[str]) -> Html:
    top = max((one.count for one in facet.bins), default=1)
    rows = [
        tag(
            "li",
            tag(
                "a",
                tag("span", one.label, cls="value"),
                tag("span", f"{one.count:,}", cls="count"),
                tag("progress", value=one.count, max=top, aria_hidden="true", tabindex="-1"),
                href=link,
                title=one.where,
            ),
        )
        for one, link in zip(facet.bins, links, strict=True)
    ]
    return tag("ul", *rows, cls="values")
