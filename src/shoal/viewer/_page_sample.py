"""The page of one sample, of samples through a lens, and of the schema."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.errors import PositionError, ShoalError
from shoal.sample._lens import Lens
from shoal.schema._schema import Schema
from shoal.shard._source import ShardSource
from shoal.store._url import base_name

from ._html import Child, Frame, Html, asked, fragment, page, plain, show_bytes, show_count, show_number, tag
from ._kinds import kind_of
from ._page_samples import PAGE
from ._session import (
    PAGE_LIMITS,
    Failure,
    Record,
    SampleQuery,
    TooLarge,
    ValuePath,
    ViewerSession,
    as_mapping,
    lens_named,
    lenses_of,
    read_values,
    stored_path,
    typed_sample,
)
from ._values import show_error, show_field, show_value

__all__ = ["lenses_page", "sample_page", "schema_page"]

_ROWS = 6
_HOW = """from shoal import lens

@lens
def thumbnail(sample: Full) -> Small:
    return Small(sample.label)"""


def sample_page(opened: ViewerSession, frame: Frame, ask: SampleQuery, position: int) -> Html:
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
        "aside", _origin(opened, record), _sample_columns(opened, record), cls="origin", aria_label="About this sample"
    )
    body = tag("div", tag("div", *sections, cls="fields"), aside, cls="two wide")
    return page(frame, plain(record.key, 80), head, body, here="/", ask=ask)


def _walk(ask: SampleQuery, position: int, count: int) -> Html:
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
    member = record.members[number]
    value, place, kind = values.get(member.field), stored_path(record, member.field), kind_of(member.field)
    whole = value is not None and not isinstance(value, Failure | TooLarge) and member.size <= PAGE_LIMITS.get(kind, 0)
    facts = [("offset", f"{member.offset:,}"), ("size", f"{member.size:,} B")]
    facts += [("crc32", f"{member.crc32:08x}")] if member.crc32 is not None else []
    checked = tag("span", "checksum right", cls="good") if whole and member.crc32 is not None else None
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


def _drawn_svg(place: ValuePath, size: int) -> Html | None:
    """As an image no script of it runs and nothing is fetched; it is drawn only for whoever asks."""
    if size > 1 << 20:
        return None
    drawn = tag("img", data_src=place.url("drawing"), alt="The drawing", cls="svg")
    return tag("details", tag("summary", "Draw it"), drawn, cls="draw")


def _value(record: Record, name: str, value: Any) -> Html:
    shown = show_value(value, ValuePath(record.number, name), big=True)
    return tag("section", tag("h2", plain(name)), tag("div", shown, cls="shown"), cls="field")


def _origin(opened: ViewerSession, record: Record) -> Html:
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


def _sample_columns(opened: ViewerSession, record: Record) -> Html | None:
    """What the index knows of the sample."""
    source = opened.shards
    if source is None or record.shard is None or record.problem is not None:
        return None
    rows = [
        tag("div", tag("dt", plain(name, 60)), tag("dd", _cell_text(value)))
        for name, value in itertools.islice(source.index.values(record.number).items(), 60)
    ]
    return tag("section", tag("h2", "In the index"), tag("dl", *rows, cls="pairs")) if rows else None


def _cell_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return show_number(value) if isinstance(value, int | float) else plain(str(value), 160)


def peek_text(opened: ViewerSession, place: ValuePath, most: int = 512) -> bytes:
    """The first bytes of a stored field. Raises ShoalError."""
    source = opened.shards
    if source is None:
        return b""
    record = opened.records(np.array([place.number]))[0]
    if place.field not in {member.field for member in record.members}:
        raise ShoalError("the sample has no such field", found=place.field)
    return source.shard(record.shard or 0).read_part(record.row, place.field, 0, most)


def lenses_page(opened: ViewerSession, frame: Frame, ask: SampleQuery, name: str, number: int) -> Html:
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


def _how(opened: ViewerSession) -> Html:
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


def _row(opened: ViewerSession, record: Record, lens: Lens[Any, Any]) -> Html:
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
        shown = show_value(value, ValuePath(number, name, lens=lens), big=False)
        parts.append(tag("div", tag("h4", plain(name, 60)), shown, cls="part"))
    return tag("div", *parts, cls="parts")


def _pager(ask: SampleQuery, name: str, at: int, last: int) -> Html | None:
    if last == 0:
        return None

    def link(label: str, to: int, rel: str, cls: str) -> Html:
        return tag("a", label, href=asked("/lenses", ask, lens=name, page=to), rel=rel, cls=cls)

    before = link("Previous", at - 1, "prev", "button") if at else None
    after = link("Next", at + 1, "next", "button main") if at < last else None
    return tag("nav", before, tag("span", f"{at + 1:,} of {last + 1:,}"), after, cls="pager", aria_label="Pages")


def schema_page(opened: ViewerSession, frame: Frame) -> Html:
    """Fields, columns, schema and metadata."""
    dataset = opened.dataset
    source = opened.shards
    body: list[Child] = [tag("h1", "Schema")]
    if source is not None:
        body.append(_part("Fields", "Members of the tars.", _fields(source)))
    body.append(_part("Columns", "What conditions can ask about, without opening a tar.", _schema_columns(opened)))
    try:
        schema, kind = dataset.schema, dataset.sample_type
    except ShoalError as error:
        body.append(_part("Type", plain(str(error)), None))
    else:
        body.append(_type(schema, kind))
    if dataset.metadata:
        shown = show_value(dataset.metadata, ValuePath(0, ""), big=True)
        body.append(_part("Metadata", "Said of the dataset when it was written.", shown))
    return page(frame, "Schema", *body, here="/schema")


def _part(name: str, note: str, *body: Child) -> Html:
    return tag("section", tag("h2", name), tag("p", note, cls="quiet"), *body, cls="part-of-page")


def _table(label: str, names: Sequence[str], rows: Sequence[Sequence[Child]], right: Sequence[int] = ()) -> Html:
    head = tag(
        "thead",
        tag(
            "tr", *(tag("th", name, scope="col", cls="right" if at in right else None) for at, name in enumerate(names))
        ),
    )
    body = [
        tag("tr", *(tag("td", cell, cls="right" if at in right else None) for at, cell in enumerate(row)))
        for row in rows
    ]
    return tag(
        "div", tag("table", head, tag("tbody", *body)), cls="scroll", tabindex="0", role="region", aria_label=label
    )


def _fields(source: ShardSource) -> Html:
    """From the manifest where it says; else from the first shards' indexes."""
    totals: dict[str, list[int]] = {}
    records = () if source.manifest is None else source.manifest.shards
    known = [record.fields for record in records if record.fields]
    counted = known or [source.index.record(number).fields for number in range(min(8, len(source.shards)))]
    for fields in counted:
        for name, (samples, size) in fields.items():
            total = totals.setdefault(name, [0, 0])
            total[0] += samples
            total[1] += size
    rows = [
        (plain(name, 120), kind_of(name), f"{samples:,}", show_bytes(size), show_bytes(size / max(samples, 1)))
        for name, (samples, size) in list(totals.items())[:500]
    ]
    return _table("Fields", ("Field", "Shown as", "Samples", "Size", "Mean"), rows, (2, 3, 4))


def _schema_columns(opened: ViewerSession) -> Html | None:
    source = opened.shards
    names = opened.column_names()
    types = {} if source is None else source.index.column_types(4)
    dropped = {} if source is None else source.index.columns_left_out(4)
    rows: list[Sequence[Child]] = [(plain(name, 120), str(types.get(name, ""))) for name in names[:500]]
    rows += [
        (plain(name, 120), tag("span", f"left out: {plain(reason)}", cls="quiet"))
        for name, reason in list(dropped.items())[:100]
    ]
    return _table("Columns", ("Column", "Type"), rows) if rows else None


def _type(schema: Schema | None, kind: type) -> Html:
    if schema is None:
        return _part("Type", f"Samples are read as {kind.__name__}: the dataset has no schema of its own.")
    rows = [
        (
            plain(field.name, 120),
            tag("code", plain(str(field.type), 200)),
            "yes" if field.required else "no",
            plain(field.doc),
        )
        for field in schema.fields
    ]
    name = f"{schema.name} {schema.version}, {show_count(len(rows), 'field')}"
    text = f"{name}. {schema.description}" if schema.description else f"{name}."
    return _part("Type", plain(text), _table("Type", ("Field", "Type", "Required", "Meaning"), rows))
