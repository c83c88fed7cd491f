"""The map of shards: how large they are, how many samples they hold, and whether they are sound."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from shoal.errors import ObjectNotFoundError, PositionError, ShoalError
from shoal.shard import ShardRecord, ShardSource, record_of, verify_shard
from shoal.store import base_name, stat

from ._grid import PAGE
from ._html import Html, fragment, plain, tag
from ._layout import Frame, page
from ._opened import Opened
from ._plots import bars
from ._words import show_bytes, show_count

__all__ = ["Health", "shards_page", "verified_part"]

Health = Literal["sound", "missing", "changed", "unknown"]
_ROWS = 100
_MOST_BARS = 400
_BY_GRAVITY: tuple[Health, ...] = ("sound", "unknown", "changed", "missing")
_RIGHT = ("Samples", "Size")
_WORDS: dict[Health, str] = {
    "sound": "as recorded",
    "missing": "missing",
    "changed": "size differs",
    "unknown": "not known",
}


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    url: str
    split: str
    record: ShardRecord
    first: int
    """The number of its first sample."""


def shards_page(opened: Opened, frame: Frame, start: int) -> Html:
    """A hundred shards from one on, and a drawing of all of them."""
    source = opened.shards
    if source is None:
        text = "This dataset is not made of tar shards, so there is no map of them."
        return page(frame, "Shards", tag("h1", "Shards"), tag("p", text), here="/shards")
    rows = _rows(opened, source)
    start = min(max(0, start), max(0, len(rows) - 1)) // _ROWS * _ROWS
    shown = rows[start : start + _ROWS]
    healths = _checked(shown)
    total = sum(row.record.bytes for row in rows)
    samples = sum(row.record.samples for row in rows)
    head = f"{show_count(len(rows), 'shard')}, {show_count(samples, 'sample')}, {show_bytes(total)}"
    return page(
        frame,
        "Shards",
        tag("h1", "Shards"),
        tag("p", tag("strong", head), cls="summary"),
        _map(rows, {row.number: health for row, health in zip(shown, healths, strict=True)}),
        _table(shown, healths),
        _pager(start, len(rows)),
        here="/shards",
    )


def _rows(opened: Opened, source: ShardSource) -> list[_Row]:
    manifest = source.manifest
    if manifest is not None and len(manifest.shards) == len(source.shards):
        named = [(name, record) for name, records in manifest.splits.items() for record in records]
        pairs = zip(source.shards, named, strict=True)
        return [
            _Row(at, ref.url, split, record, int(source.starts[at])) for at, (ref, (split, record)) in enumerate(pairs)
        ]
    known = {} if manifest is None else {record.path: record for record in manifest.shards}
    found = []
    for number, ref in enumerate(source.shards):
        record = next((record for path, record in known.items() if ref.url.endswith(f"/{path}")), None)
        split = opened.looked.split or ""
        record = record or record_of(base_name(ref.url), source.shard(number).index)
        found.append(_Row(number, ref.url, split, record, int(source.starts[number])))
    return found


def _map(rows: Sequence[_Row], healths: dict[int, Health]) -> Html:
    """One bar a shard, as high as it is large; of very many, one bar for several. Those that are ill stand out."""
    step = max(1, -(-len(rows) // _MOST_BARS))
    groups = [rows[at : at + step] for at in range(0, len(rows), step)]
    titles = [
        f"{plain(base_name(group[0].url), 80)}{f' and {len(group) - 1} more' if len(group) > 1 else ''}: "
        f"{show_bytes(sum(row.record.bytes for row in group))}, "
        f"{show_count(sum(row.record.samples for row in group), 'sample')}"
        for group in groups
    ]
    links = [f"/shards?start={group[0].number // _ROWS * _ROWS}#shard-{group[0].number}" for group in groups]
    means = [sum(row.record.bytes for row in group) / len(group) for group in groups]
    worst = [max((healths.get(row.number, "sound") for row in group), key=_BY_GRAVITY.index) for group in groups]
    sizes = bars(means, titles, links, 12, worst)
    caption = "Size of each shard" if step == 1 else f"Mean size, {step} shards a bar"
    return tag("figure", sizes, tag("figcaption", caption, cls="quiet"), cls="shard-map")


def _checked(rows: Sequence[_Row]) -> list[Health]:
    """Whether each is there and as large as was recorded: one small request each, and no bytes of data."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_health, rows))


def _health(row: _Row) -> Health:
    try:
        return "sound" if stat(row.url).size == row.record.bytes else "changed"
    except ObjectNotFoundError:
        return "missing"
    except ShoalError:
        return "unknown"


def _table(rows: Sequence[_Row], healths: Sequence[Health]) -> Html:
    names = ("Shard", "Split", "Samples", "Size", "Keys", "Health", "")
    head = tag(
        "thead",
        tag(
            "tr",
            *(
                tag("th", name, scope="col", cls="right" if name in _RIGHT else None) if name else tag("td")
                for name in names
            ),
        ),
    )
    body = [_line(row, health) for row, health in zip(rows, healths, strict=True)]
    return tag(
        "div", tag("table", head, tag("tbody", *body)), cls="scroll", tabindex="0", role="region", aria_label="Shards"
    )


def _line(row: _Row, health: Health) -> Html:
    record = row.record
    keys = f"{plain(record.first_key or '', 30)} to {plain(record.last_key or '', 30)}" if record.first_key else ""
    button = tag(
        "button",
        "Verify",
        type="submit",
        title=f"Reads all {show_bytes(record.bytes)} and compares every byte with the index",
        aria_label=f"Verify {plain(base_name(row.url), 80)}",
    )
    form = tag("form", button, method="post", action=f"/shards/{row.number}/verify", cls="verify")
    packed = tag("span", f" {record.compression}", cls="quiet") if record.compression else None
    return tag(
        "tr",
        tag("td", tag("a", plain(base_name(row.url), 120), href=f"/?page={row.first // PAGE}"), packed),
        tag("td", plain(row.split, 40)),
        tag("td", f"{record.samples:,}", cls="right"),
        tag("td", show_bytes(record.bytes), cls="right"),
        tag("td", keys, cls="quiet"),
        tag("td", tag("span", _WORDS[health], cls=f"health {health}")),
        tag("td", form),
        id=f"shard-{row.number}",
    )


def _pager(start: int, count: int) -> Html | None:
    if count <= _ROWS:
        return None
    before = tag("a", "Previous", href=f"/shards?start={start - _ROWS}", rel="prev", cls="button") if start else None
    more = start + _ROWS < count
    after = tag("a", "Next", href=f"/shards?start={start + _ROWS}", rel="next", cls="button main") if more else None
    said = tag("span", f"{start + 1:,} to {min(count, start + _ROWS):,} of {count:,}")
    return tag("nav", before, said, after, cls="pager", aria_label="Pages")


def verified_part(opened: Opened, number: int) -> Html:
    """What is wrong with one shard, found by reading all of it. Raises PositionError."""
    source = opened.shards
    if source is None or not 0 <= number < len(source.shards):
        raise PositionError("no such shard", found=number)
    ref = source.shards[number]
    try:
        index = source.shard(number).index
    except ShoalError:
        index = None
    report = verify_shard(ref.url, index)
    if report.ok:
        said = f"Sound: {show_count(report.members, 'member')}, {show_bytes(report.bytes)} compared"
        return tag("p", said, cls="health sound", role="status")
    problems = [tag("li", plain(str(problem), 600)) for problem in report.problems[:50]]
    more = len(report.problems) - len(problems)
    rest = tag("li", f"and {more:,} more") if more else None
    head = tag("p", show_count(len(report.problems), "problem"), cls="health missing")
    todo = tag(
        "p",
        "Restore the shard, save what is whole with ",
        tag("code", "shoal repair"),
        ", or read on with ",
        tag("code", "on_error='skip'"),
        ".",
    )
    return fragment(tag("div", head, tag("ul", *problems, rest), todo, cls="problems", role="status"))
