"""Escaping, the frame of every page, numbers as text, and error pages."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, urlencode

from shoal.errors import (
    FieldError,
    LensNotFoundError,
    MissingExtraError,
    OptionError,
    PositionError,
    QueryError,
    SampleKeyError,
    ShoalError,
    StoreError,
)
from shoal.store._url import base_name, parent_url

from ._session import SampleQuery

__all__ = [
    "Child",
    "Frame",
    "Html",
    "asked",
    "fragment",
    "not_allowed_page",
    "page",
    "plain",
    "problem_page",
    "show_bytes",
    "show_count",
    "show_number",
    "status_of",
    "tag",
    "unknown_page",
]

_KEYS = (
    ("/", "filter the samples"),
    ("j  k  or arrows", "next and previous sample"),
    ("Enter", "open the sample"),
    ("n  p", "next and previous page"),
    ("u", "back to the samples"),
    ("r", "samples in a random order"),
    ("1 to 5", "samples, columns, shards, schema, lenses"),
    ("t", "light or dark"),
    ("?", "this list"),
)
_NOT_THERE = (FieldError, SampleKeyError, PositionError, LensNotFoundError)
_GENERAL = "Check the path, run `shoal verify` on it, and load this page again."


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | int | Html | Iterable[Child] | None"
Attribute: TypeAlias = str | float | bool | None

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. ``cls`` is ``class``, ``for_`` is ``for``, ``data_key`` is ``data-key``; None and False are left out.

    Examples:
        >>> tag("p", "a < b ", tag("b", "!"), cls="note", hidden=True, id=None)
        '<p class="note" hidden>a &lt; b <b>!</b></p>'
    """
    said = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{fragment(*children)}</{name}>")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    label = "class" if name == "cls" else name.rstrip("_").replace("_", "-")
    return f" {label}" if value is True else f' {label}="{html.escape(str(value), quote=True)}"'


def fragment(*children: Child) -> Html:
    """Several children, one after the other.

    Examples:
        >>> fragment("<", [1, None, tag("br")])
        '&lt;1<br>'
    """
    return Html("".join(map(_written, children)))


def _written(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int):
        return html.escape(str(child), quote=False)
    return "".join(map(_written, child))


def plain(text: str, longest: int = 400) -> str:
    r"""A name from a dataset, safe to read: characters that hide, or turn the text around, are written out.

    Examples:
        >>> plain("evil\u202egpj.exe\x00")
        'evil\\u202egpj.exe\\x00'
    """
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


@dataclass(frozen=True, slots=True)
class Frame:
    """What every page says of the dataset."""

    path: str
    subtitle: str = ""
    is_unfinished: bool = False


def asked(address: str, ask: SampleQuery, **more: str | int | None) -> str:
    """An address with what is asked for.

    Examples:
        >>> asked("/", SampleQuery("width >= 2"), page=3)
        '/?where=width%20%3E%3D%202&page=3'
    """
    pairs: dict[str, str | int | None] = {"where": ask.where, "split": ask.split, "shuffle": ask.shuffle, **more}
    said = [(name, str(value)) for name, value in pairs.items() if value not in (None, "")]
    return f"{address}?{urlencode(said, quote_via=quote, errors='replace')}" if said else address


def page(frame: Frame | None, title: str, *body: Child, here: str = "", ask: SampleQuery | None = None) -> Html:
    """A whole page. ``here`` is the address of the part it belongs to; without a frame, nothing else is said."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", f"{title} · shoal"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/static/style.css"),
        tag("script", src="/static/theme.js"),
        tag("script", src="/static/app.js", defer=True),
    )
    main = tag("main", *body, id="main", tabindex="-1")
    skip = tag("a", "Skip to the content", href="#main", cls="skip")
    whole = (
        tag("body", main)
        if frame is None
        else tag("body", skip, _header(frame, here, ask or SampleQuery()), main, _keys())
    )
    return fragment(Html("<!doctype html>"), tag("html", head, whole, lang="en"))


def _header(frame: Frame, here: str, ask: SampleQuery) -> Html:
    places = [
        ("Samples", "/"),
        ("Columns", "/columns"),
        ("Shards", "/shards"),
        ("Schema", "/schema"),
        ("Lenses", "/lenses"),
    ]
    places += [("Build", "/build")] if frame.is_unfinished or here == "/build" else []
    kept = ("/", "/columns", "/lenses")
    links = [
        tag(
            "a",
            name,
            href=asked(address, ask) if address in kept else address,
            aria_current="page" if address == here else None,
        )
        for name, address in places
    ]
    return tag("header", _name(frame), tag("nav", *links, aria_label="Parts of the dataset"), _buttons(), cls="top")


def _name(frame: Frame) -> Html:
    path = frame.path.rstrip("/")
    above = parent_url(path) if "/" in path else ""
    return tag(
        "div",
        tag("a", tag("img", src="/static/icon.svg", alt="", width=22, height=22), "shoal", href="/", cls="brand"),
        tag("span", plain(base_name(path) or path, 80), cls="dataset", title=plain(path)),
        tag("span", plain(frame.subtitle or above, 90), cls="quiet subtitle"),
        cls="title",
    )


def _buttons() -> Html:
    theme = tag("button", "Theme", type="button", id="theme", aria_label="Light or dark")
    keys = tag("button", "Keys", type="button", id="keys-button", aria_haspopup="dialog")
    return tag("div", theme, keys, cls="buttons")


def _keys() -> Html:
    rows = [
        tag("div", tag("dt", [tag("kbd", key) for key in keys.split("  ")]), tag("dd", does)) for keys, does in _KEYS
    ]
    form = tag("form", tag("button", "Close"), method="dialog")
    return tag(
        "dialog", tag("h2", "Keys", id="keys-title"), tag("dl", *rows), form, id="keys", aria_labelledby="keys-title"
    )


def show_bytes(size: float) -> str:
    """A size.

    Examples:
        >>> show_bytes(512), show_bytes(20_480), show_bytes(3_000_000_000)
        ('512 B', '20.5 kB', '3.0 GB')
    """
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 1000 or unit == "TB":
            return f"{size:,.1f} {unit}"
    raise AssertionError


def show_count(number: int, word: str) -> str:
    """A number of things.

    Examples:
        >>> show_count(1, "shard"), show_count(2000, "sample")
        ('1 shard', '2,000 samples')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def show_number(value: float) -> str:
    """A number in a few digits.

    Examples:
        >>> show_number(1234567), show_number(0.1234567), show_number(3.0), show_number(float("nan"))
        ('1,234,567', '0.1235', '3', 'nan')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


def status_of(error: Exception) -> int:
    """The status that a browser is told."""
    if isinstance(error, QueryError | OptionError):
        return 400
    if isinstance(error, _NOT_THERE):
        return 404
    if isinstance(error, StoreError):
        return 502
    return 500


def problem_page(frame: Frame, error: ShoalError | OSError) -> Html:
    """What went wrong with the data, or with reaching it."""
    problem = error.problem if isinstance(error, ShoalError) else str(error)
    hint = error.hint if isinstance(error, ShoalError) else None
    facts = (
        [("Expected", error.expected), ("Found", error.found), ("Shard", error.shard)]
        if isinstance(error, ShoalError)
        else []
    )
    facts += (
        [("Key", error.key), ("Field", error.field), ("Byte", error.offset)] if isinstance(error, ShoalError) else []
    )
    rows = [tag("div", tag("dt", name), tag("dd", plain(str(what)))) for name, what in facts if what is not None]
    todo = hint or _GENERAL
    if isinstance(error, MissingExtraError):
        todo = f"Install it ({todo}) and start the viewer again."
    again = None if isinstance(error, _NOT_THERE) else tag("a", "Try again", href="", cls="button main")
    back = tag("a", "All samples", href="/", cls="button" if again else "button main")
    return page(
        frame,
        "Something is wrong",
        tag("h1", plain(problem[:1].upper() + problem[1:])),
        tag("dl", *rows, cls="pairs") if rows else None,
        tag("section", tag("h2", "What to do"), tag("pre", plain(todo, 2000), cls="command", tabindex="0"), cls="todo"),
        tag("p", again, back, cls="actions"),
    )


def unknown_page(frame: Frame, title: str, text: str) -> Html:
    """Anything else."""
    link = tag("p", tag("a", "All samples", href="/", cls="button main"), cls="actions")
    return page(frame, title, tag("h1", title), tag("p", text), link)


def not_allowed_page(text: str, todo: str) -> Html:
    """For somebody who has not shown the token: says nothing of the dataset."""
    return page(None, "Not allowed", tag("h1", "Not allowed"), tag("p", text), tag("p", todo))
