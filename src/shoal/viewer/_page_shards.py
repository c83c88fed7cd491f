"""The page of shards, and of a running write."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from shoal.errors import ObjectNotFoundError, PositionError, ShoalError
from shoal.shard._journal import UnfinishedWrite
from shoal.shard._manifest import ShardRecord
from shoal.shard._source import ShardSource
from shoal.shard._verify import verify_shard
from shoal.store._operations import get, stat
from shoal.store._url import base_name, join_url

from ._html import Child, Frame, Html, fragment, page, plain, show_bytes, show_count, tag
from ._media import bars
from ._page_samples import PAGE
from ._session import ViewerSession

__all__ = ["build_page", "build_part", "build_state", "shards_page", "verified_part"]

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


def shards_page(opened: ViewerSession, frame: Frame, start: int) -> Html:
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


def _rows(opened: ViewerSession, source: ShardSource) -> list[_Row]:
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
        record = record or source.index.record(number)
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


def verified_part(opened: ViewerSession, number: int) -> Html:
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


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a build is going to make, as it wrote down when it began."""

    items: int = 0
    shards: int = 0


def _planned(opened: ViewerSession, write: UnfinishedWrite) -> _Planned:
    """The plan of a build; nothing where the writer has none."""
    mark = hashlib.sha256(write.pattern.encode()).hexdigest()[:12]
    url = join_url(opened.looked.path, ".shoal", f"build-{mark}.json")
    try:
        return _read_plan(url, stat(url).version or "")
    except ShoalError:
        return _Planned()


@lru_cache(maxsize=8)
def _read_plan(url: str, version: str) -> _Planned:
    """Read once for each version: it has a line for each shard, and pages ask every second."""
    try:
        document = msgspec.json.decode(bytes(get(url)), type=dict[str, Any])
        shards = [int(one["items"]) for one in document["shards"]]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return _Planned()
    return _Planned(sum(shards), len(shards))


def build_state(opened: ViewerSession) -> dict[str, Any]:
    """How far the writers are, as JSON has it."""
    writes = opened.writes()
    return {
        "writing": bool(writes),
        "shards": sum(len(write.shards) for write in writes),
        "samples": sum(record.samples for write in writes for record in write.shards),
        "bytes": sum(record.bytes for write in writes for record in write.shards),
        "planned": sum(_planned(opened, write).items for write in writes),
    }


def build_page(opened: ViewerSession, frame: Frame) -> Html:
    """The page; its script asks for `build_part` again and again."""
    live = tag("div", build_part(opened), id="build", data_src="/build/part", aria_live="polite")
    return page(frame, "Build", tag("h1", "Build"), live, here="/build")


def build_part(opened: ViewerSession) -> Html:
    """What changes: totals, and each writer's shards."""
    writes = opened.writes()
    state = build_state(opened)
    facts = {f"data_{name}": str(value).lower() for name, value in state.items()}
    if not writes:
        return tag("div", *_ended(opened), **facts)
    totals = tag(
        "div",
        _total(f"{state['samples']:,}", "samples"),
        _total(show_bytes(state["bytes"]), "written"),
        _total(f"{state['shards']:,}", "shards"),
        tag("div", tag("strong", "…", id="rate"), tag("span", "samples a second"), cls="total"),
        cls="totals",
    )
    return tag("div", totals, *(_write(write, _planned(opened, write)) for write in writes), **facts)


def _total(number: str, name: str) -> Html:
    return tag("div", tag("strong", number), tag("span", name), cls="total")


def _ended(opened: ViewerSession) -> list[Child]:
    opened.forget()
    try:
        count = show_count(len(opened.dataset), "sample")
    except ShoalError as error:
        return [tag("p", "Nothing is being written here.", cls="summary"), tag("p", plain(str(error)), cls="failure")]
    return [
        tag("p", tag("strong", f"Finished: {count}."), " Nothing is being written here.", cls="summary"),
        tag("a", "Look at the samples", href="/", cls="button main"),
    ]


def _write(write: UnfinishedWrite, planned: _Planned) -> Html:
    last = write.shards[-400:]
    titles = [
        f"{plain(record.path, 80)}: {show_count(record.samples, 'sample')}, {show_bytes(record.bytes)}"
        for record in last
    ]
    note = "These shards wait to take the place of those that are there now." if write.staged else ""
    newest = [
        tag(
            "tr",
            tag("td", plain(record.path, 120)),
            tag("td", f"{record.samples:,}", cls="right"),
            tag("td", show_bytes(record.bytes), cls="right"),
        )
        for record in reversed(write.shards[-8:])
    ]
    head = tag(
        "thead",
        tag(
            "tr",
            *(
                tag("th", name, scope="col", cls="right" if at else None)
                for at, name in enumerate(("Newest shards", "Samples", "Size"))
            ),
        ),
    )
    return tag(
        "section",
        tag("h2", plain(write.pattern, 160)),
        tag("p", note, cls="quiet") if note else None,
        _how_far(write, planned) if planned.shards else None,
        tag("figure", bars([record.bytes for record in last], titles, least=12), cls="shard-map") if last else None,
        tag("table", head, tag("tbody", *newest))
        if newest
        else tag("p", "The first shard is being written.", cls="quiet"),
        cls="part-of-page",
    )


def _how_far(write: UnfinishedWrite, planned: _Planned) -> Html:
    done = len(write.shards)
    label = f"{done:,} of {show_count(planned.shards, 'shard')}"
    bar = tag("progress", value=done, max=planned.shards, aria_label=label)
    return tag("div", bar, tag("p", label, tag("span", id="left")), cls="how-far")
