"""The page of a running write: what its journal says, asked again every second."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from shoal.errors import ShoalError
from shoal.shard import UnfinishedWrite
from shoal.store import get, join_url, stat

from ._html import Child, Html, plain, tag
from ._layout import Frame, page
from ._opened import Opened
from ._plots import bars
from ._words import show_bytes, show_count

__all__ = ["build_page", "build_part", "build_state"]


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a build is going to make, as it wrote down when it began."""

    items: int = 0
    shards: int = 0


def _planned(opened: Opened, write: UnfinishedWrite) -> _Planned:
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


def build_state(opened: Opened) -> dict[str, Any]:
    """How far the writers are, as JSON has it."""
    writes = opened.writes()
    return {
        "writing": bool(writes),
        "shards": sum(len(write.shards) for write in writes),
        "samples": sum(record.samples for write in writes for record in write.shards),
        "bytes": sum(record.bytes for write in writes for record in write.shards),
        "planned": sum(_planned(opened, write).items for write in writes),
    }


def build_page(opened: Opened, frame: Frame) -> Html:
    """The page; its script asks for `build_part` again and again."""
    live = tag("div", build_part(opened), id="build", data_src="/build/part", aria_live="polite")
    return page(frame, "Build", tag("h1", "Build"), live, here="/build")


def build_part(opened: Opened) -> Html:
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


def _ended(opened: Opened) -> list[Child]:
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
