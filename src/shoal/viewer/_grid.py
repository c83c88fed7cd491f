"""The page of samples: a filter, facets at the side, a card for each sample."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from shoal.errors import ShoalError

from ._html import Child, Html, fragment, plain, tag
from ._kinds import Kind, kind_of
from ._layout import Frame, asked, page
from ._opened import Ask, Numbers, Opened, Record
from ._places import Failure, Place, Values, place_of
from ._reading import CARD_LIMITS, read_values
from ._values import show_error, show_field, show_value
from ._words import show_bytes, show_count

__all__ = ["PAGE", "filter_box", "grid_page"]

PAGE = 24
_FIRST: tuple[Kind, ...] = ("image", "video", "audio", "array", "text", "svg", "value", "bytes", "pickle")
"""Which kinds of fields a card shows first."""
_ON_A_CARD = 3


def grid_page(opened: Opened, frame: Frame, ask: Ask, number: int) -> Html:
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


def filter_box(opened: Opened, ask: Ask, problem: ShoalError | None = None) -> Html:
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
    clear = tag("a", "Clear", href=asked("/", Ask("", ask.split, ask.shuffle)), cls="button") if ask.where else None
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


def _example(opened: Opened) -> str:
    """What may be written, in the dataset's own words."""
    with contextlib.suppress(ShoalError, OSError):
        names = [name.rpartition(".")[2] for name in opened.first_columns()]
        if names:
            return plain(f"a condition on {', '.join(dict.fromkeys(names[:5]))}", 90)
    return "width >= 512 and label = 'cat'"


def _splits(opened: Opened, ask: Ask) -> Html | None:
    try:
        names = list(opened.splits)
    except ShoalError:
        return None
    if not names:
        return None
    options = [tag("option", "all splits", value="")]
    options += [tag("option", plain(name, 60), value=name, selected=name == ask.split) for name in names]
    return tag("select", *options, name="split", aria_label="Split", cls="split")


def _summary(opened: Opened, ask: Ask, numbers: Numbers, at: int) -> Html:
    total = len(opened.dataset)
    found = show_count(numbers.count, "sample")
    if numbers.count != total:
        found = f"{found} of {total:,}"
    first, last = at * PAGE + 1, min(numbers.count, at * PAGE + PAGE)
    shown = tag("span", f"{first:,} to {last:,} shown") if numbers.count > PAGE else None
    mixed = (
        tag("a", "In order", href=asked("/", Ask(ask.where, ask.split)), id="shuffle")
        if ask.shuffle is not None
        else tag("a", "In a random order", href=asked("/", Ask(ask.where, ask.split, 1)), id="shuffle")
    )
    again = (
        tag("a", "Another", href=asked("/", Ask(ask.where, ask.split, ask.shuffle + 1)))
        if ask.shuffle is not None
        else None
    )
    writing = tag("a", "Being written: see how far it is", href="/build", cls="badge") if opened.is_unfinished else None
    return tag("p", tag("strong", found), shown, mixed, again, writing, cls="summary", role="status")


def _nothing(ask: Ask) -> Html:
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


def _pager(ask: Ask, at: int, last: int) -> Html | None:
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


def _facets(opened: Opened, ask: Ask) -> Html:
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
        shown = show_field(field, values.get(field), place_of(record, field), member.size, big=False)
        parts.append(tag("div", shown, cls=f"kind-{kind}"))
    return parts


def _plain(record: Record, values: Sequence[Any] | Values) -> list[Html]:
    parts = []
    for name, value in list(dict(values).items())[:_ON_A_CARD]:
        place = Place(record.number, name)
        shown = show_error(value.error) if isinstance(value, Failure) else show_value(value, place, big=False)
        parts.append(tag("div", tag("span", plain(name, 40), cls="label"), shown, cls="kind-value"))
    return parts or [fragment()]
