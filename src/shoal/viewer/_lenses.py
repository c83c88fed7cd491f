"""Samples side by side: as they are, and through a lens."""

from __future__ import annotations

from typing import Any

from shoal.errors import ShoalError
from shoal.sample import Lens

from ._html import Child, Html, fragment, plain, tag
from ._layout import Frame, asked, page
from ._opened import Ask, Opened, Record
from ._places import Place, as_mapping, lens_named, lenses_of, typed_sample
from ._values import show_error, show_value

__all__ = ["lenses_page"]

_ROWS = 6
_HOW = """from shoal import lens

@lens
def thumbnail(sample: Full) -> Small:
    return Small(sample.label)"""


def lenses_page(opened: Opened, frame: Frame, ask: Ask, name: str, number: int) -> Html:
    """A few samples and their views. Raises LensNotFoundError, QueryError."""
    lenses = lenses_of(opened)
    head = tag("h1", "Lenses")
    if not lenses:
        return page(frame, "Lenses", head, _how(opened), here="/lenses", ask=ask)
    chosen = lens_named(opened, name) if name else lenses[0]
    numbers = opened.numbers(ask)
    last = max(0, (numbers.count - 1) // _ROWS)
    at = min(max(number, 0), last)
    records = opened.records(numbers.at(at * _ROWS, at * _ROWS + _ROWS))
    rows = [_row(opened, record, chosen) for record in records]
    links = [
        tag(
            "a",
            plain(lens.name, 60),
            href=asked("/lenses", ask, lens=lens.name),
            aria_current="true" if lens is chosen else None,
        )
        for lens in lenses
    ]
    choice = tag("nav", *links, cls="tabs", aria_label="Lenses")
    return page(frame, "Lenses", head, choice, *rows, _pager(ask, chosen.name, at, last), here="/lenses", ask=ask)


def _how(opened: Opened) -> Html:
    kind = opened.dataset.sample_type.__name__
    return fragment(
        tag("p", f"No lens from {kind} is known. A lens shows samples of one type as another:"),
        tag("pre", _HOW, cls="command", tabindex="0"),
        tag("p", "Name the module and the lens, and this page shows both sides:"),
        tag(
            "pre",
            f"shoal view {plain(opened.looked.path, 80)} --type my_types:Full --lens my_types:thumbnail",
            cls="command",
            tabindex="0",
        ),
    )


def _row(opened: Opened, record: Record, lens: Lens[Any, Any]) -> Html:
    try:
        sample = typed_sample(opened.dataset, record.number)
        left: Html = _side(sample, record.number, "")
    except ShoalError as error:
        return tag("section", tag("h2", plain(record.key)), show_error(error), cls="pair")
    try:
        right = _side(lens.get(sample), record.number, lens.name)
    except Exception as error:  # noqa: BLE001 - a lens is somebody's function: all it may raise is told
        right = tag("p", tag("strong", "The lens failed. "), plain(f"{type(error).__name__}: {error}"), cls="failure")
    sides = tag(
        "div",
        tag("div", tag("h3", plain(lens.source_type.__name__)), left),
        tag("div", tag("h3", plain(lens.view_type.__name__)), right),
        cls="sides",
    )
    return tag("section", tag("h2", tag("bdi", plain(record.key))), sides, cls="pair")


def _side(sample: Any, number: int, lens: str) -> Html:
    parts: list[Child] = []
    for name, value in list(as_mapping(sample).items())[:40]:
        shown = show_value(value, Place(number, name, lens=lens), big=False)
        parts.append(tag("div", tag("h4", plain(name, 60)), shown, cls="part"))
    return tag("div", *parts, cls="parts")


def _pager(ask: Ask, name: str, at: int, last: int) -> Html | None:
    if last == 0:
        return None

    def link(label: str, to: int, rel: str, cls: str) -> Html:
        return tag("a", label, href=asked("/lenses", ask, lens=name, page=to), rel=rel, cls=cls)

    before = link("Previous", at - 1, "prev", "button") if at else None
    after = link("Next", at + 1, "next", "button main") if at < last else None
    return tag("nav", before, tag("span", f"{at + 1:,} of {last + 1:,}"), after, cls="pager", aria_label="Pages")
