"""HTML as values: whatever is put into an element is escaped, unless it is an element itself."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

__all__ = ["Child", "Html", "fragment", "plain", "tag"]


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | int | Html | Iterable[Child] | None"
Attribute: TypeAlias = str | float | bool | None

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. ``cls`` is ``class``, ``for_`` is ``for``, ``data_key`` is ``data-key``; None and False are left out.

    Example:
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

    Example:
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

    Example:
        >>> plain("evil\u202egpj.exe\x00")
        'evil\\u202egpj.exe\\x00'
    """
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
