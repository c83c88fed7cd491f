"""A table's first column of ratios as a picture of bars."""

from __future__ import annotations

import html

from ._measure import Question

__all__ = ["bars"]

_LABEL, _WIDE, _LINE = 400, 320, 22
_COLOURS = {"shoal": "#00897b", "limit": "#b0bec5"}


def bars(question: Question) -> str | None:
    """An SVG; None where no column compares with something ("x webdataset", "of the limit")."""
    at = next((at for at, name in enumerate(question.header) if name.startswith(("x ", "of "))), None)
    if at is None or not question.rows:
        return None
    values = [_number(row[at]) for row in question.rows]
    most = max(value for value in values if value is not None) if any(value is not None for value in values) else 0
    if not most:
        return None
    lines = [
        _bar(row, at, value, most, place) for place, (row, value) in enumerate(zip(question.rows, values, strict=True))
    ]
    high = _LINE * (len(lines) + 1) + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LABEL + _WIDE + 70} {high}" '
        f'font-family="sans-serif" font-size="12" role="img"><title>{html.escape(question.title)}</title>'
    )
    axis = f'<text x="{_LABEL}" y="14" fill="#78909c">{html.escape(question.header[at])}</text>'
    return "\n".join([head, axis, *lines, "</svg>", ""])


def _bar(row: tuple[str, ...], at: int, value: float | None, most: float, place: int) -> str:
    name = ", ".join(cell for cell in row[:at] if cell)
    top = _LINE * (place + 1)
    wide = 0.0 if value is None else _WIDE * value / most
    colour = next((colour for word, colour in _COLOURS.items() if word in name.lower()), "#90a4ae")
    return (
        f'<text x="{_LABEL - 8}" y="{top + 14}" text-anchor="end" fill="#78909c">{html.escape(name)}</text>'
        f'<rect x="{_LABEL}" y="{top + 3}" width="{max(wide, 1):.1f}" height="15" rx="2" fill="{colour}"/>'
        f'<text x="{_LABEL + max(wide, 1) + 6:.1f}" y="{top + 14}" fill="#78909c">{html.escape(row[at])}</text>'
    )


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", "").split()[0])
    except (ValueError, IndexError):
        return None
