"""Drawings as SVG of our own: lines for arrays of one dimension, bars for counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._html import Html, tag
from ._words import show_number

__all__ = ["array_facts", "bars", "line_plot"]

Array = npt.NDArray[Any]
_WIDTH, _HEIGHT = 320, 120
_POINTS = 320
_LOOKED_AT = 1 << 24


def line_plot(array: Array, *, alone: bool = False) -> Html:
    """An array of one dimension as a line; a long one as the band between its smallest and largest values.

    ``alone``: as an image file, with colours of its own, which suit light and dark.
    """
    values = _numbers(array)
    low, high = _ends(values)
    points = _line(values, low, high) if len(values) <= _POINTS else _band(values, low, high)
    shape = "polyline" if len(values) <= _POINTS else "polygon"
    look = {"fill": "none" if shape == "polyline" else "#2a8f8f", "stroke": "#2a8f8f", "stroke_width": 1.5}
    drawn = tag(shape, points=points, stroke_linejoin="round", **(look if alone else {"cls": f"plot-{shape}"}))
    label = f"{len(array):,} values from {show_number(float(low))} to {show_number(float(high))}"
    return tag(
        "svg",
        tag("title", label),
        drawn,
        xmlns="http://www.w3.org/2000/svg" if alone else None,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        cls="plot",
        width=_WIDTH if alone else None,
        height=_HEIGHT if alone else None,
    )


def _numbers(array: Array) -> Array:
    with np.errstate(all="ignore"):
        return (np.abs(array) if array.dtype.kind == "c" else array).astype(np.float64)


def _ends(values: Array) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _heights(values: Array, low: float, high: float) -> Array:
    with np.errstate(all="ignore"):
        part = (values / 2 - low / 2) / (high / 2 - low / 2)
    part = np.nan_to_num(part, nan=0.0, posinf=1.0, neginf=0.0)
    return _HEIGHT - 6 - np.clip(part, 0, 1) * (_HEIGHT - 12)


def _line(values: Array, low: float, high: float) -> str:
    across = np.linspace(4, _WIDTH - 4, len(values)) if len(values) > 1 else np.array([_WIDTH / 2])
    return _points(across, _heights(values, low, high))


def _band(values: Array, low: float, high: float) -> str:
    edges = np.linspace(0, len(values), _POINTS + 1).astype(np.int64)
    known = np.where(np.isfinite(values), values, low)
    most, least = np.maximum.reduceat(known, edges[:-1]), np.minimum.reduceat(known, edges[:-1])
    across = np.linspace(4, _WIDTH - 4, _POINTS)
    upper, lower = _heights(most, low, high) - 0.5, _heights(least, low, high) + 0.5
    return _points(np.concatenate((across, across[::-1])), np.concatenate((upper, lower[::-1])))


def _points(across: Array, down: Array) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across.tolist(), down.tolist(), strict=True))


def array_facts(array: Array) -> str:
    """Type, shape and range of an array, in a few words.

    Example:
        >>> array_facts(np.arange(6, dtype=np.float32).reshape(2, 3))
        'float32 · 2 by 3 · 0 to 5, mean 2.5'
    """
    shape = " by ".join(f"{length:,}" for length in array.shape) or "one value"
    said = f"{array.dtype} · {shape}"
    if array.dtype.kind not in "biuf" or array.size == 0:
        return said
    with np.errstate(all="ignore"):
        flat = array.reshape(-1)[:_LOOKED_AT].astype(np.float64)
    known = flat[np.isfinite(flat)]
    if not len(known):
        return f"{said} · no finite value"
    with np.errstate(all="ignore"):
        numbers = f"{show_number(float(known.min()))} to {show_number(float(known.max()))}"
        numbers = f"{numbers}, mean {show_number(float(known.mean()))}"
    missing = len(flat) - len(known)
    return f"{said} · {numbers}{f', {missing:,} not finite' if missing else ''}"


def bars(
    heights: Sequence[float],
    titles: Sequence[str],
    links: Sequence[str] | None = None,
    least: int = 1,
    marks: Sequence[str] | None = None,
) -> Html:
    """Bars side by side, each with a title and perhaps a link, no wider than ``least`` of them would be.

    ``marks`` are classes, which have colours of their own.
    """
    top, step = max([*heights, 1e-12]), _WIDTH / max(least, len(heights))
    drawn = []
    for at, (height, title) in enumerate(zip(heights, titles, strict=True)):
        bar = _bar(at * step, step, max(1.5, height / top * 58) if height else 0, marks[at] if marks else None)
        room = tag("rect", x=f"{at * step:.2f}", y=0, width=f"{step:.2f}", height=60, cls="room")
        parts = [tag("title", title), room, bar]
        drawn.append(tag("a", *parts, href=links[at], aria_label=title) if links else tag("g", *parts))
    about = {"viewBox": f"0 0 {_WIDTH} 60", "preserveAspectRatio": "none", "cls": "bars"}
    if links:
        return tag("svg", *drawn, **about)  # its links have names of their own
    said = f"{len(titles):,} bars, the last one {titles[-1]}" if titles else "no bars"
    return tag("svg", *drawn, **about, role="img", aria_label=said)


def _bar(left: float, step: float, tall: float, mark: str | None) -> Html:
    wide = max(step - min(1, step / 4), 0.3)
    return tag("rect", x=f"{left:.2f}", y=f"{60 - tall:.2f}", width=f"{wide:.2f}", height=f"{tall:.2f}", cls=mark)
