"""The page of one sample: every field, its bytes, and where they lie."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np

from shoal.errors import PositionError, ShoalError
from shoal.store import base_name

from ._grid import PAGE
from ._html import Html, plain, tag
from ._kinds import kind_of
from ._layout import Frame, asked, page
from ._opened import Ask, Opened, Record
from ._places import Failure, Place, place_of
from ._reading import PAGE_LIMITS, TooLarge, read_values
from ._values import show_field, show_value
from ._words import show_bytes, show_number

__all__ = ["sample_page"]


def sample_page(opened: Opened, frame: Frame, ask: Ask, position: int) -> Html:
    """The sample at a position of what is asked for. Raises PositionError."""
    numbers = opened.numbers(ask)
    if not 0 <= position < numbers.count:
        hint = "go back to the samples"
        raise PositionError(
            "no sample at this position", expected=f"0 to {numbers.count - 1}", found=position, hint=hint
        )
    record = opened.records(numbers.at(position, position + 1))[0]
    values = read_values(opened, [record], PAGE_LIMITS)[0]
    sections = [_section(record, number, values) for number in range(len(record.members))]
    sections = sections or [_value(record, name, value) for name, value in values.items()]
    head = tag("div", tag("h1", tag("bdi", plain(record.key))), _walk(ask, position, numbers.count), cls="sample-head")
    aside = tag(
        "aside", _origin(opened, record), _columns(opened, record), cls="origin", aria_label="About this sample"
    )
    body = tag("div", tag("div", *sections, cls="fields"), aside, cls="two wide")
    return page(frame, plain(record.key, 80), head, body, here="/", ask=ask)


def _walk(ask: Ask, position: int, count: int) -> Html:
    def step(name: str, to: int, rel: str) -> Html:
        if not 0 <= to < count:
            return tag("span", name, cls="button off", aria_disabled="true")
        return tag("a", name, href=asked(f"/sample/{to}", ask), rel=rel, cls="button")

    up = tag("a", "All samples", href=asked("/", ask, page=position // PAGE or None), cls="button", id="up")
    said = tag("span", f"{position + 1:,} of {count:,}", cls="quiet")
    return tag(
        "nav",
        up,
        step("Previous", position - 1, "prev"),
        said,
        step("Next", position + 1, "next"),
        cls="walk",
        aria_label="Samples",
    )


def _section(record: Record, number: int, values: dict[str, Any]) -> Html:
    member, crc = record.members[number], record.crcs[number]
    value, place, kind = values.get(member.field), place_of(record, member.field), kind_of(member.field)
    whole = value is not None and not isinstance(value, Failure | TooLarge) and member.size <= PAGE_LIMITS.get(kind, 0)
    facts = [("offset", f"{member.offset:,}"), ("size", f"{member.size:,} B")]
    facts += [("crc32", f"{crc:08x}")] if crc is not None else []
    checked = tag("span", "checksum right", cls="good") if whole and crc is not None else None
    said = [tag("div", tag("dt", name), tag("dd", what)) for name, what in facts]
    peek = tag(
        "details",
        tag("summary", "Bytes"),
        tag("pre", "…", cls="hex", tabindex="0"),
        data_src=place.url("peek"),
        cls="peek",
    )
    download = tag("a", "Download", href=place.url("bytes", download=1), download=True)
    foot = tag("div", tag("dl", *said, cls="facts-row"), checked, download, cls="provenance")
    shown = show_field(member.field, value, place, member.size, big=True)
    draw = _drawn_svg(place, member.size) if kind == "svg" else None
    heading = tag("h2", plain(member.field), tag("span", show_bytes(member.size), cls="quiet"))
    return tag("section", heading, tag("div", shown, draw, cls=f"shown kind-{kind}"), foot, peek, cls="field")


def _drawn_svg(place: Place, size: int) -> Html | None:
    """As an image no script of it runs and nothing is fetched; it is drawn only for whoever asks."""
    if size > 1 << 20:
        return None
    drawn = tag("img", data_src=place.url("drawing"), alt="The drawing", cls="svg")
    return tag("details", tag("summary", "Draw it"), drawn, cls="draw")


def _value(record: Record, name: str, value: Any) -> Html:
    shown = show_value(value, Place(record.number, name), big=True)
    return tag("section", tag("h2", plain(name)), tag("div", shown, cls="shown"), cls="field")


def _origin(opened: Opened, record: Record) -> Html:
    facts: list[tuple[str, str]] = [("number", f"{record.number:,}")]
    if record.url is not None:
        facts += [("shard", plain(base_name(record.url))), ("row", f"{record.row:,}")]
        facts += [("bytes", show_bytes(sum(member.size for member in record.members)))]
        low = min((member.offset for member in record.members), default=0)
        high = max((member.offset + member.size for member in record.members), default=0)
        facts += [("in the tar", f"{low:,} to {high:,}")]
    rows = [tag("div", tag("dt", name), tag("dd", what)) for name, what in facts]
    command = f"shoal cat {shlex.quote(opened.looked.path)} {shlex.quote(record.key)}"
    where = tag("p", plain(record.url), cls="quiet path") if record.url is not None else None
    on_command_line = tag("pre", plain(command), cls="command", tabindex="0", aria_label="The same on the command line")
    return tag("section", tag("h2", "Where it lies"), tag("dl", *rows, cls="pairs"), where, on_command_line)


def _columns(opened: Opened, record: Record) -> Html | None:
    """What the index knows of the sample."""
    source = opened.shards
    if source is None or record.shard is None or record.problem is not None:
        return None
    columns = source.shard(record.shard).index.columns
    rows = []
    for name, column in list(columns.items())[:60]:
        value = column[record.row].as_py()
        rows.append(tag("div", tag("dt", plain(name, 60)), tag("dd", _told(value))))
    return tag("section", tag("h2", "In the index"), tag("dl", *rows, cls="pairs")) if rows else None


def _told(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return show_number(value) if isinstance(value, int | float) else plain(str(value), 160)


def peek_text(opened: Opened, place: Place, most: int = 512) -> bytes:
    """The first bytes of a stored field. Raises ShoalError."""
    source = opened.shards
    if source is None:
        return b""
    record = opened.records(np.array([place.number]))[0]
    if place.field not in {member.field for member in record.members}:
        raise ShoalError("the sample has no such field", found=place.field)
    return source.shard(record.shard or 0).read_part(record.row, place.field, 0, most)
