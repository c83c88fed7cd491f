"""Values as HTML: text, trees, arrays, pictures, players. Small on a card, whole on a sample's own page."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.sample._annotations import is_record
from shoal.sample._dict_sample import DictSample

from ._html import Child, Html, fragment, plain, show_bytes, show_count, show_number, tag
from ._kinds import Kind, kind_of, sniffed
from ._media import array_facts, line_plot, looks_like_image, slices_in
from ._session import Failure, TooLarge, ValuePath, as_mapping

__all__ = ["hex_dump", "show_error", "show_media", "show_text", "show_value"]

_SHORT = 280
_LONG_TEXT = 256 << 10
_MOST_PARTS = 500
_DEEPEST = 24
_OPEN_DEPTH = 2
_WIDE = 1280
_CARD = 360


def show_value(value: Any, place: ValuePath, *, big: bool) -> Html:
    """Any value; what is inside it can be reached through its place."""
    if isinstance(value, Failure):
        return show_error(value.error)
    if isinstance(value, TooLarge):
        return tag("p", "Too large for this page.", cls="quiet")
    if isinstance(value, np.ndarray):
        return show_array(value, place, big=big)
    if isinstance(value, bytes | bytearray | memoryview):
        return show_media(sniffed(value), place, len(value), big=big)
    if isinstance(value, str):
        return show_text(value, len(value) if big else _SHORT)
    if isinstance(value, Mapping) or is_record(type(value)):
        return _parts(as_mapping(value), place, big=big)
    if isinstance(value, list | tuple):
        return _tree(value, place, big=big, depth=0)
    return tag("span", _scalar(value), cls="scalar")


def show_error(error: ShoalError) -> Html:
    """What is wrong, where a value would be."""
    said = [tag("strong", error.problem.capitalize())]
    said += [fragment(". Found: ", plain(str(error.found)))] if error.found is not None else []
    said += [fragment(". ", plain(error.hint).capitalize(), ".")] if error.hint else []
    return tag("p", *said, cls="failure")


def show_text(text: str | bytes, most: int = _LONG_TEXT, whole: int | None = None) -> Html:
    """Text, or its beginning; ``whole`` is its size in bytes where that may be more than what is given."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    shown = text[: min(most, _LONG_TEXT)]
    is_cut = len(shown) < len(text) or (whole is not None and whole > len(data))
    size = len(data) if len(shown) == len(text) else len(shown.encode("utf-8", "replace"))
    more = tag("p", f"{show_bytes(size)} of {show_bytes(whole or len(data))}", cls="quiet") if is_cut else None
    return tag(
        "div", tag("div", shown.replace("\0", "\ufffd"), cls="text", dir="auto"), more if most > _SHORT else None
    )


def show_media(kind: Kind, place: ValuePath, size: int, *, big: bool) -> Html:
    """Something that the browser asks for by itself: a picture, a player; else how large it is."""
    name = plain(".".join((place.field, *place.at)), 60)
    if kind == "image":
        return _picture(place, f"{name} of this sample", big=big)
    if kind in ("audio", "video"):
        return tag(
            kind,
            src=place.url("bytes"),
            controls=True,
            preload="metadata" if big else "none",
            aria_label=f"{name} of this sample",
        )
    note = " A pickle is not opened: that would run it." if kind == "pickle" else ""
    return tag("p", f"{show_bytes(size)} of bytes.{note}", cls="quiet")


def _picture(place: ValuePath, alt: str, *, big: bool, cls: str | None = None, **more: int) -> Html:
    width = _WIDE if big else _CARD
    return tag("img", src=place.url("picture", width=width, **more), alt=alt, loading="lazy", decoding="async", cls=cls)


def show_array(array: np.ndarray[Any, Any], place: ValuePath, *, big: bool) -> Html:
    """A plot of one dimension, a heat map of two, planes of more; always its type, shape and range."""
    facts = tag("p", array_facts(array), cls="facts")
    if array.dtype.kind not in "biufc" or array.size == 0 or array.ndim == 0:
        some = ", ".join(plain(str(value), 40) for value in array.reshape(-1)[:8].tolist())
        return tag("div", tag("span", some or "empty", cls="scalar"), facts)
    if array.ndim == 1:
        return tag("div", line_plot(array), facts)
    alt = f"{plain('.'.join((place.field, *place.at)), 60)} as a {'picture' if looks_like_image(array) else 'heat map'}"
    planes = slices_in(array)
    small = max(array.shape[-2:]) <= 96 and not looks_like_image(array)
    drawn = _picture(place, alt, big=big, cls="pixels" if small else None)
    return tag("div", drawn, _slider(planes) if big and planes > 1 else None, facts, cls="array")


def _slider(planes: int) -> Html:
    return tag(
        "label",
        tag("span", "Plane "),
        tag("output", 0),
        tag("span", f" of {planes:,}"),
        tag("input", type="range", min=0, max=min(planes, 10_000) - 1, value=0, cls="planes"),
        cls="slider",
    )


def _parts(parts: Mapping[str, Any], place: ValuePath, *, big: bool) -> Html:
    """A value with named parts: those of a sample, of an ``.npz``, of a JSON object."""
    if not big:
        return _few(parts, place)
    plain_parts = not isinstance(parts, DictSample) and not any(_is_drawn(part) for part in islice(parts.values(), 64))
    if plain_parts:
        return _tree(parts, place, big=True, depth=0)
    rows = []
    for name in islice(parts, _MOST_PARTS):
        shown = show_value(_looked_at(parts, name), place.inside(name), big=True)
        rows.append(tag("div", tag("h3", plain(name)), shown, cls="part"))
    return tag("div", *rows, _left_out(len(parts) - _MOST_PARTS), cls="parts")


def _few(parts: Mapping[str, Any], place: ValuePath) -> Html:
    """On a card: pictures first, then a few lines."""
    looked = [(name, _looked_at(parts, name)) for name in islice(parts, 16)]
    drawn = [show_value(part, place.inside(name), big=False) for name, part in looked if _is_drawn(part)][:2]
    lines = [
        tag("div", tag("dt", plain(name, 40)), tag("dd", _in_a_line(part)))
        for name, part in looked
        if not _is_drawn(part)
    ][:6]
    return fragment(drawn, tag("dl", *lines, cls="lines") if lines else None)


def _looked_at(parts: Mapping[str, Any], name: str) -> Any:
    """A part of a sample is decoded only now."""
    try:
        return parts[name]
    except ShoalError as error:
        return Failure(error)


def _is_drawn(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.dtype.kind in "biufc" and value.size > 0
    return isinstance(value, bytes | bytearray | memoryview) and sniffed(value) != "bytes"


def _in_a_line(value: Any) -> Html:
    if isinstance(value, Failure):
        return tag("span", "cannot be read", cls="failure")
    if isinstance(value, bytes | bytearray | memoryview):
        return tag("span", f"{show_bytes(len(value))} of bytes", cls="quiet")
    if isinstance(value, Mapping | list | tuple):
        return tag("span", show_count(len(value), "value"), cls="quiet")
    if isinstance(value, np.ndarray):
        return tag("span", array_facts(value), cls="quiet")
    text = f"{value:.6g}" if isinstance(value, float) else _scalar(value)
    return tag("span", plain(text, 90), cls=_class_of(value))


def _tree(value: Any, place: ValuePath, *, big: bool, depth: int, budget: list[int] | None = None) -> Html:
    """Dicts and lists, to be folded out; not more lines in all than a browser can bear."""
    left = [_MOST_PARTS if big else 12] if budget is None else budget
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[str, Any]] = ((str(name), part) for name, part in value.items())
    elif isinstance(value, list | tuple):
        pairs = ((str(at), part) for at, part in enumerate(value))
    elif _is_drawn(value):
        return show_value(value, place, big=False)
    else:
        return tag("span", _scalar(value, 2000), cls=_class_of(value))
    if _is_short(value):
        return tag("span", "[", ", ".join(map(_scalar, value)), "]", cls="number")
    if depth >= _DEEPEST:
        return tag("span", "nested deeper than is shown", cls="quiet")
    rows: list[Child] = []
    for name, part in pairs:
        if left[0] <= 0:
            break
        left[0] -= 1
        rows.append(_branch(name, part, place.inside(name), big=big, depth=depth, left=left))
    return (
        tag("ul", *rows, _left_out(len(value) - len(rows), "li"), cls="tree")
        if rows
        else tag("span", "empty", cls="quiet")
    )


def _is_short(value: Any) -> bool:
    """Whether a list is a few numbers, such as a box or a vector: one line says it."""
    return (
        isinstance(value, list | tuple) and 0 < len(value) <= 12 and all(type(part) in (int, float) for part in value)
    )


def _branch(name: str, part: Any, place: ValuePath, *, big: bool, depth: int, left: list[int]) -> Html:
    label = tag("span", plain(name, 120), cls="name")
    inner = _tree(part, place, big=big, depth=depth + 1, budget=left)
    if not isinstance(part, Mapping | list | tuple) or not part or _is_short(part):
        return tag("li", label, " ", inner)
    count = tag("span", f" {len(part):,}", cls="quiet")
    return tag(
        "li", tag("details", tag("summary", label, count), inner, open=depth + 1 < _OPEN_DEPTH and len(part) <= 40)
    )


def _left_out(count: int, name: str = "p") -> Html | None:
    return tag(name, f"and {count:,} more", cls="quiet") if count > 0 else None


def _class_of(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "word"
    return "number" if isinstance(value, int | float | np.number) else "string"


def _scalar(value: Any, longest: int = 400) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length():,} bits"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, np.generic):
        return (
            show_number(value.item())
            if isinstance(value, np.number) and value.dtype.kind in "iuf"
            else plain(str(value))
        )
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{show_bytes(len(value))} of bytes"
    if isinstance(value, str | dt.date | dt.time | decimal.Decimal | enum.Enum):
        return plain(str(value), longest)
    return plain(f"{type(value).__name__} {str(value)[:longest]}", longest)


def hex_dump(data: bytes, start: int = 0) -> str:
    """Bytes as hexadecimal numbers and as text, sixteen a line.

    Examples:
        >>> print(hex_dump(b"shoal"))
        00000000  73 68 6f 61 6c                                   shoal
    """
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start + at:08x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def show_field(field: str, value: Any, place: ValuePath, size: int, *, big: bool) -> Html:
    """A stored field, by what its name says it is and what was read of it; ``value`` is None where nothing was."""
    kind = kind_of(field)
    if isinstance(value, Failure):
        return show_error(value.error)
    if kind in ("text", "svg"):
        read = value if isinstance(value, bytes) else b""
        return (
            show_text(read, len(read) if big else _SHORT, size)
            if read or not size
            else show_media("bytes", place, size, big=big)
        )
    if kind == "array" and value is None:
        return _picture(place, f"{plain(field, 60)} as a picture", big=big, cls="drawn")
    if kind in ("value", "array") and value is not None:
        return show_value(value, place, big=big)
    return show_media(kind, place, size, big=big)
