"""The page of what samples are made of: fields, columns, the type, and what was said when it was written."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import ShoalError
from shoal.schema import Schema
from shoal.shard import ShardSource, field_totals

from ._html import Child, Html, plain, tag
from ._kinds import kind_of
from ._layout import Frame, page
from ._opened import Opened
from ._places import Place
from ._values import show_value
from ._words import show_bytes, show_count

__all__ = ["schema_page"]


def schema_page(opened: Opened, frame: Frame) -> Html:
    """Fields, columns, schema and metadata."""
    dataset = opened.dataset
    source = opened.shards
    body: list[Child] = [tag("h1", "Schema")]
    if source is not None:
        body.append(_part("Fields", "Members of the tars.", _fields(source)))
    body.append(_part("Columns", "What conditions can ask about, without opening a tar.", _columns(opened)))
    try:
        schema, kind = dataset.schema, dataset.sample_type
    except ShoalError as error:
        body.append(_part("Type", plain(str(error)), None))
    else:
        body.append(_type(schema, kind))
    if dataset.metadata:
        shown = show_value(dataset.metadata, Place(0, ""), big=True)
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
    counted = known or [field_totals(source.shard(number).index) for number in range(min(8, len(source.shards)))]
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


def _columns(opened: Opened) -> Html | None:
    source = opened.shards
    names = opened.column_names()
    types: dict[str, str] = {}
    dropped: dict[str, str] = {}
    for number in range(min(4, len(source.shards)) if source is not None else 0):
        index = source.shard(number).index if source is not None else None
        if index is not None:
            types |= {name: str(column.type) for name, column in index.columns.items()}
            dropped |= index.facts.dropped
    rows: list[Sequence[Child]] = [(plain(name, 120), types.get(name, "")) for name in names[:500]]
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
