"""The page of samples, a grid with facets at its side, and the page of columns."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.dataset._dataset import Dataset
from shoal.dataset._query import F
from shoal.errors import FieldError, ShoalError

from ._html import Child, Frame, Html, asked, fragment, page, plain, show_bytes, show_count, show_number, tag
from ._kinds import Kind, kind_of
from ._media import bars
from ._session import (
    CARD_LIMITS,
    Failure,
    QueryResult,
    Record,
    SampleQuery,
    ValuePath,
    Values,
    ViewerSession,
    read_values,
    stored_path,
)
from ._values import show_error, show_field, show_value

__all__ = ["PAGE", "columns_page", "facets_of", "facets_part", "filter_box", "grid_page", "joined"]

PAGE = 24
_FIRST: tuple[Kind, ...] = ("image", "video", "audio", "array", "text", "svg", "value", "bytes", "pickle")
"""Which kinds of fields a card shows first."""
_ON_A_CARD = 3


def grid_page(opened: ViewerSession, frame: Frame, ask: SampleQuery, number: int) -> Html:
    """One page of samples. Raises QueryError where the condition is none."""
    numbers = opened.numbers(ask)
    last = max(0, (numbers.count - 1) // PAGE)
    at = min(max(number, 0), last)
    records = opened.records(numbers.at(at * PAGE, at * PAGE + PAGE))
    values = read_values(opened, records, CARD_LIMITS)
    cards = [
        _card(record, found, asked(f"/sample/{at * PAGE + place}", ask))
        for place, (record, found) in enumerate(zip(records, values, strict=True))
    ]
    body = [
        tag("h1", "Samples", cls="unseen"),
        filter_box(opened, ask),
        _summary(opened, ask, numbers, at),
        tag("div", *cards, cls="grid", id="grid") if cards else _nothing(ask),
        _pager(ask, at, last),
    ]
    aside = tag("aside", _facets(opened, ask), cls="facets", aria_label="Columns of these samples")
    title = f"{frame.path.rstrip('/').rpartition('/')[2]}, page {at + 1}"
    return page(frame, plain(title), tag("div", aside, tag("div", *body, cls="samples"), cls="two"), here="/", ask=ask)


def filter_box(opened: ViewerSession, ask: SampleQuery, problem: ShoalError | None = None) -> Html:
    """The line to write a condition in, with what was wrong with the last one."""
    hidden: list[Child] = []
    if ask.shuffle is not None:
        hidden.append(tag("input", type="hidden", name="shuffle", value=ask.shuffle))
    line = tag(
        "input",
        type="text",
        id="where",
        name="where",
        value=ask.where,
        placeholder=_example(opened),
        autocomplete="off",
        autocapitalize="off",
        spellcheck="false",
        role="combobox",
        aria_autocomplete="list",
        aria_expanded="false",
        aria_controls="suggestions",
        aria_describedby="where-problem" if problem is not None else None,
        aria_invalid="true" if problem is not None else None,
    )
    listed = tag("ul", id="suggestions", role="listbox", aria_label="Suggestions", hidden=True)
    said = tag("pre", str(problem), id="where-problem", cls="failure", role="alert") if problem is not None else None
    clear = (
        tag("a", "Clear", href=asked("/", SampleQuery("", ask.split, ask.shuffle)), cls="button") if ask.where else None
    )
    return tag(
        "form",
        tag("label", "Where", for_="where"),
        tag("div", line, listed, cls="combo"),
        _splits(opened, ask),
        *hidden,
        tag("button", "Filter", cls="main"),
        clear,
        said,
        action="/",
        cls="filter",
        role="search",
    )


def _example(opened: ViewerSession) -> str:
    """What may be written, in the dataset's own words."""
    with contextlib.suppress(ShoalError, OSError):
        names = [name.rpartition(".")[2] for name in opened.first_columns()]
        if names:
            return plain(f"a condition on {', '.join(dict.fromkeys(names[:5]))}", 90)
    return "width >= 512 and label = 'cat'"


def _splits(opened: ViewerSession, ask: SampleQuery) -> Html | None:
    try:
        names = list(opened.splits)
    except ShoalError:
        return None
    if not names:
        return None
    options = [tag("option", "all splits", value="")]
    options += [tag("option", plain(name, 60), value=name, selected=name == ask.split) for name in names]
    return tag("select", *options, name="split", aria_label="Split", cls="split")


def _summary(opened: ViewerSession, ask: SampleQuery, numbers: QueryResult, at: int) -> Html:
    total = len(opened.dataset)
    found = show_count(numbers.count, "sample")
    if numbers.count != total:
        found = f"{found} of {total:,}"
    first, last = at * PAGE + 1, min(numbers.count, at * PAGE + PAGE)
    shown = tag("span", f"{first:,} to {last:,} shown") if numbers.count > PAGE else None
    mixed = (
        tag("a", "In order", href=asked("/", SampleQuery(ask.where, ask.split)), id="shuffle")
        if ask.shuffle is not None
        else tag("a", "In a random order", href=asked("/", SampleQuery(ask.where, ask.split, 1)), id="shuffle")
    )
    again = (
        tag("a", "Another", href=asked("/", SampleQuery(ask.where, ask.split, ask.shuffle + 1)))
        if ask.shuffle is not None
        else None
    )
    writing = tag("a", "Being written: see how far it is", href="/build", cls="badge") if opened.is_unfinished else None
    return tag("p", tag("strong", found), shown, mixed, again, writing, cls="summary", role="status")


def _nothing(ask: SampleQuery) -> Html:
    if not ask.where and not ask.split:
        return tag("div", tag("h2", "No samples"), tag("p", "The dataset is empty."), cls="empty")
    back = tag("a", "Show all samples", href="/", cls="button")
    return tag(
        "div",
        tag("h2", "No sample fits"),
        tag("p", "The condition is understood, and true for none."),
        back,
        cls="empty",
    )


def _pager(ask: SampleQuery, at: int, last: int) -> Html | None:
    if last == 0:
        return None
    before = tag("a", "Previous", href=asked("/", ask, page=at - 1), rel="prev", cls="button") if at else None
    after = tag("a", "Next", href=asked("/", ask, page=at + 1), rel="next", cls="button main") if at < last else None
    hidden = [
        tag("input", type="hidden", name=name, value=value)
        for name, value in (("where", ask.where), ("split", ask.split), ("shuffle", ask.shuffle))
        if value not in ("", None)
    ]
    number = tag("input", type="number", name="goto", min=1, max=last + 1, value=at + 1, aria_label="Page")
    jump = tag("form", number, tag("span", f" of {last + 1:,}"), *hidden, action="/", cls="jump")
    return tag("nav", before, jump, after, cls="pager", aria_label="Pages")


def _facets(opened: ViewerSession, ask: SampleQuery) -> Html:
    """Counted after the page is there; of many shards far away only when somebody asks."""
    source = opened.shards
    costly = source is not None and not opened.is_local and len(source.shards) > 8
    link = tag("a", "Count the values of all columns", href=asked("/columns", ask), cls="button")
    return tag(
        "details",
        tag("summary", "Columns"),
        tag(
            "div",
            link,
            id="facets",
            data_src=asked("/facets", ask),
            data_wait="click" if costly else None,
            aria_live="polite",
        ),
        open=True,
        cls="fold",
    )


def _card(record: Record, values: Values, address: str) -> Html:
    shown = _stored(record, values) if record.members else _plain(record, values)
    size = sum(member.size for member in record.members)
    fields = " ".join(member.field for member in record.members[:6])
    foot = (
        tag("p", tag("span", plain(fields, 48)), tag("span", show_bytes(size)), cls="foot") if record.members else None
    )
    key = tag("a", tag("bdi", plain(record.key, 90)), href=address, cls="open", title=plain(record.key))
    return tag("article", tag("div", *shown, cls="shown"), tag("h2", key), foot, cls="card")


def _stored(record: Record, values: Values) -> list[Html]:
    members = sorted(record.members, key=lambda member: _FIRST.index(kind_of(member.field)))
    parts = []
    for member in members[:_ON_A_CARD]:
        field, kind = member.field, kind_of(member.field)
        shown = show_field(field, values.get(field), stored_path(record, field), member.size, big=False)
        parts.append(tag("div", shown, cls=f"kind-{kind}"))
    return parts


def _plain(record: Record, values: Sequence[Any] | Values) -> list[Html]:
    parts = []
    for name, value in list(dict(values).items())[:_ON_A_CARD]:
        place = ValuePath(record.number, name)
        shown = show_error(value.error) if isinstance(value, Failure) else show_value(value, place, big=False)
        parts.append(tag("div", tag("span", plain(name, 40), cls="label"), shown, cls="kind-value"))
    return parts or [fragment()]


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


def facets_of(opened: ViewerSession, ask: SampleQuery, names: Sequence[str] | None = None) -> list[Facet]:
    """The columns of the samples that are asked for. Raises QueryError."""
    numbers = opened.numbers(ask)
    chosen = (opened.dataset.column_names if names is None else names)[:_MOST_COLUMNS]
    view = opened.dataset
    if numbers.chosen is not None:
        view = view.select(view.rows.among(numbers.chosen))
    try:
        table = view.table(chosen)  # at once, since each table goes through the indexes of all shards
    except FieldError:
        return [_alone(view, name) for name in chosen]
    return [_facet(name, table.column(at)) for at, name in enumerate(chosen)]


def _alone(view: Dataset[Any], name: str) -> Facet:
    """One column by itself, where some column cannot be counted."""
    try:
        return _facet(name, view.table([name]).column(0))
    except FieldError as error:
        return Facet(name, "", note=str(error))


def _facet(name: str, values: pa.ChunkedArray) -> Facet:
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

    Examples:
        >>> joined("", "a = 1"), joined("a = 1 or b = 2", "c = 3"), joined("a = 1", "a = 1")
        ('a = 1', '(a = 1 or b = 2) and c = 3', 'a = 1')
    """
    if not where.strip() or where.strip() == more:
        return more
    return f"({where}) and {more}" if " or " in f" {where.lower()} " else f"{where} and {more}"


def facets_part(opened: ViewerSession, ask: SampleQuery) -> Html:
    """The columns, for the side of the page of samples."""
    facets = facets_of(opened, ask)
    if not facets:
        return tag("p", "No metadata columns: the index holds the scalars of json, cls and short txt.", cls="quiet")
    by_use = sorted(facets, key=lambda facet: not facet.bins)  # those that have values to show first
    return fragment([_shown(facet, ask) for facet in by_use])


def columns_page(opened: ViewerSession, frame: Frame, ask: SampleQuery) -> Html:
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


def _shown(facet: Facet, ask: SampleQuery) -> Html:
    heading = tag("h2", plain(facet.name, 60), tag("span", facet.type, cls="quiet"))
    links = [asked("/", SampleQuery(joined(ask.where, one.where), ask.split, ask.shuffle)) for one in facet.bins]
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
