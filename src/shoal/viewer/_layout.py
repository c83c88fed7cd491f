"""The frame around every page: its head, its navigation, its list of keys."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from shoal.store import base_name, parent_url

from ._html import Child, Html, fragment, plain, tag
from ._opened import Ask

__all__ = ["Frame", "asked", "page"]

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


@dataclass(frozen=True, slots=True)
class Frame:
    """What every page says of the dataset."""

    path: str
    subtitle: str = ""
    is_unfinished: bool = False


def asked(address: str, ask: Ask, **more: str | int | None) -> str:
    """An address with what is asked for.

    Example:
        >>> asked("/", Ask("width >= 2"), page=3)
        '/?where=width%20%3E%3D%202&page=3'
    """
    pairs: dict[str, str | int | None] = {"where": ask.where, "split": ask.split, "shuffle": ask.shuffle, **more}
    said = [(name, str(value)) for name, value in pairs.items() if value not in (None, "")]
    return f"{address}?{urlencode(said, quote_via=quote, errors='replace')}" if said else address


def page(frame: Frame | None, title: str, *body: Child, here: str = "", ask: Ask | None = None) -> Html:
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
    whole = tag("body", main) if frame is None else tag("body", skip, _header(frame, here, ask or Ask()), main, _keys())
    return fragment(Html("<!doctype html>"), tag("html", head, whole, lang="en"))


def _header(frame: Frame, here: str, ask: Ask) -> Html:
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
