"""The report of a build, its progress, and reports as HTML."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any

import msgspec

from shoal.shard import ShardRecord
from shoal.store import join_url

from ._findings import Finding, Repair, ShardRepair
from ._tasks import BuiltShard, Failure
from ._verify import Verification

__all__ = ["BuildProgress", "BuildReport", "Meter", "metered", "report_of", "report_page"]


# ----------------------------------------------------------------- what became of a build, as a value and as a document


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What became of a build: which shards there are, and what is not in them and why."""

    root: str
    splits: dict[str, tuple[ShardRecord, ...]]
    failures: tuple[Failure, ...] = ()
    dropped: int = 0
    """Items of which the function made nothing."""
    duplicates: int = 0
    """Items left out because an earlier one has the same content."""
    written: int = 0
    """Shards that this run wrote; the others were there from an earlier one."""
    seconds: float = 0.0
    """How long this run took."""

    @property
    def shards(self) -> tuple[ShardRecord, ...]:
        """The shards of all splits."""
        return tuple(record for records in self.splits.values() for record in records)

    @property
    def urls(self) -> list[str]:
        """Where the shards are."""
        return [join_url(self.root, record.path) for record in self.shards]

    @property
    def samples(self) -> int:
        """How many samples the shards hold."""
        return sum(record.samples for record in self.shards)

    @property
    def bytes(self) -> int:
        """How many bytes the shards take."""
        return sum(record.bytes for record in self.shards)

    @property
    def ok(self) -> bool:
        """Whether no item failed."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, without what is different each time."""
        return {
            "samples": self.samples,
            "bytes": self.bytes,
            "failed": len(self.failures),
            "dropped": self.dropped,
            "duplicates": self.duplicates,
            "splits": {
                split: [{"path": one.path, "samples": one.samples, "bytes": one.bytes} for one in records]
                for split, records in self.splits.items()
            },
            "failures": [msgspec.to_builtins(failure) for failure in self.failures],
        }


def report_of(
    root: str, builts: Iterable[BuiltShard], *, duplicates: int = 0, written: int = 0, seconds: float = 0.0
) -> BuildReport:
    """The report of shards in the plan's order; those of which nothing was left are not among them."""
    splits: dict[str, tuple[ShardRecord, ...]] = {}
    failures: list[Failure] = []
    dropped = 0
    for built in builts:
        failures += built.failures
        dropped += built.dropped
        duplicates += built.duplicates
        if built.record.samples:
            splits[built.split] = (*splits.get(built.split, ()), built.record)
    return BuildReport(root, splits, tuple(failures), dropped, duplicates, written, seconds)


# --------------------------------------------------------------------------------------------------- how far a build is


_EVERY = 0.1
"""Seconds between two tellings."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is."""

    phase: str
    """``hashing`` while duplicates are looked for, then ``building``."""
    samples: int
    """Items that are through, those of earlier runs included."""
    total: int | None
    """All items; None for a stream."""
    bytes: int
    """Written by this run."""
    shards: int
    failures: int
    seconds: float
    rate: float
    """Items a second, of this run."""
    eta: float | None
    """Seconds that are left at this rate; None where nobody knows."""


@dataclass
class Meter:
    """Counts, and tells now and then."""

    show: Callable[[BuildProgress], object] | None = None
    clock: Callable[[], float] = time.monotonic
    phase: str = "building"
    total: int | None = None
    before: int = 0
    """Items that earlier runs had done."""
    samples: int = 0
    bytes: int = 0
    shards: int = 0
    failures: int = 0
    _begin: float = field(default=0.0, init=False)
    _last: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._begin = self._last = self.clock()

    def start(self, phase: str, total: int | None, before: int = 0) -> None:
        """Begin to count anew."""
        self.phase, self.total, self.before = phase, total, before
        self.samples = self.bytes = 0
        self._begin = self.clock()

    def tell(self, samples: int, size: int) -> None:
        """Count what is through, and say so when it is time."""
        self.samples += samples
        self.bytes += size
        if self.show is not None and (now := self.clock()) - self._last >= _EVERY:
            self._last = now
            self.show(self.now())

    def now(self) -> BuildProgress:
        """How far it is."""
        seconds = self.clock() - self._begin
        rate = self.samples / seconds if seconds > 0 else 0.0
        done = self.before + self.samples
        eta = (self.total - done) / rate if self.total is not None and rate > 0 else None
        return BuildProgress(self.phase, done, self.total, self.bytes, self.shards, self.failures, seconds, rate, eta)

    def finish(self) -> None:
        """Tell the end."""
        if self.show is not None:
            self.show(self.now())


@contextmanager
def metered(progress: bool | Callable[[BuildProgress], object] | None) -> Iterator[Meter]:
    """A meter that tells a function, or a line on stderr: asked for by True, and by None where stderr is a terminal."""
    if callable(progress):
        yield Meter(progress)
    elif progress or (progress is None and sys.stderr.isatty()):
        with _line() as show:
            yield Meter(show)
    else:
        yield Meter()


@contextmanager
def _line() -> Iterator[Callable[[BuildProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:  # else the last line stays
        task = bar.add_task("building", total=None, facts="")

        def show(now: BuildProgress) -> None:
            fields: Any = {"facts": _facts(now)}
            bar.update(task, description=now.phase, completed=now.samples, total=now.total, **fields)

        yield show


def _facts(now: BuildProgress) -> str:
    """The numbers of a line.

    Example:
        >>> _facts(BuildProgress("building", 1500, 3000, 20_000_000, 2, 1, 10.0, 150.0, 10.0))
        '1,500/3,000  150/s  2.0 MB/s  2 shards  0:10 left  1 failed'
    """
    whole = "" if now.total is None else f"/{now.total:,}"
    speed = now.bytes / now.seconds / 1e6 if now.seconds > 0 else 0.0
    parts = [f"{now.samples:,}{whole}", f"{now.rate:,.0f}/s", f"{speed:,.1f} MB/s", f"{now.shards} shards"]
    if now.eta is not None:
        parts.append(f"{int(now.eta) // 60}:{int(now.eta) % 60:02d} left")
    return "  ".join([*parts, *([f"{now.failures} failed"] if now.failures else [])])


# ---------------------------------------------------------------------- the result of verify or repair as one HTML page


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1c20;
  background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #d5d9e0;
  overflow-wrap: anywhere }
th { font-weight: 600 } td.number { text-align: right; font-variant-numeric: tabular-nums }
.error, .quarantined, .missing { color: #a3140f } .warning, .rewritten { color: #7a4b00 }
.note, .sound { color: #2c5f2d } .mark { font-weight: 600; white-space: nowrap }
.small { color: #4a505b; font-size: .9rem }
dl { display: grid; grid-template-columns: max-content auto; gap: .2rem 1rem }
dt { color: #4a505b } dd { margin: 0 }
@media (prefers-color-scheme: dark) {
  body { color: #e4e7ec; background: #15171b } th, td { border-color: #363b45 } .small, dt { color: #a5adba }
  .error, .quarantined, .missing { color: #ff8a80 } .warning, .rewritten { color: #ffc46b }
  .note, .sound { color: #8fd694 }
}
"""
_MOST_ROWS = 2000
"""More than anybody reads; the JSON has them all."""


def report_page(report: Verification | Repair) -> str:
    """The report as a page of its own, to be saved as ``report.html`` and opened anywhere.

    Example:
        >>> import shoal
        >>> from shoal.build import report_page, verify
        >>> with shoal.ShardWriter("memory://doc/page/a.tar") as writer:
        ...     writer.write({"__key__": "k", "txt": "hello"})
        >>> report_page(verify("memory://doc/page")).startswith("<!doctype html>")
        True
    """
    if isinstance(report, Verification):
        return _page(f"Verification of {report.path}", [_verification(report), _findings(report.findings)])
    title = f"{'What a repair would do to' if report.dry_run else 'Repair of'} {report.path}"
    return _page(title, [_repair(report), _shards(report.shards), *map(_lost, report.changed)])


def _page(title: str, parts: Iterable[str]) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = f"<h1>{escape(title)}</h1>{''.join(parts)}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _facts_html(facts: Sequence[tuple[str, object]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(_text(value))}</dd>' for name, value in facts)}</dl>"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[:_MOST_ROWS])
    more = len(rows) - _MOST_ROWS
    rest = f'<p class="small">and {more:,} more, which the JSON report has</p>' if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _mark(word: str) -> str:
    return f'<span class="mark {escape(word)}">{escape(word)}</span>'


def _verification(report: Verification) -> str:
    counts = [(f"{name}s", report.count(name)) for name in ("error", "warning", "note")]
    facts = [("shards", len(report.shards)), ("samples", report.samples), ("bytes", report.bytes), *counts]
    fields = ", ".join(f"{name} ({count:,})" for name, count in report.fields.items())
    return _facts_html([("state", "damaged" if not report.ok else "whole"), *facts, ("fields", fields)])


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<p>Nothing was found.</p>"
    rows = [(_mark(each.severity), _what(each), _where(each), escape(each.advice)) for each in findings]
    return f"<h2>Findings</h2>{_table(('', 'what', 'where', 'what to do'), rows)}"


def _what(finding: Finding) -> str:
    facts = (("expected", finding.expected), ("found", finding.found))
    said = ", ".join(f"{word} {value}" for word, value in facts if value is not None)
    often = f" ({finding.count:,} times)" if finding.count > 1 else ""
    text = f"{finding.what}{': ' + said if said else ''}{often}"
    return f'{escape(text)}<br><span class="small">{escape(finding.why)} [{escape(finding.rule)}]</span>'


def _where(finding: Finding) -> str:
    facts = (("shard", finding.shard), ("key", finding.key), ("field", finding.field), ("byte", finding.offset))
    return "<br>".join(f"{word} {escape(str(value))}" for word, value in facts if value is not None)


def _repair(report: Repair) -> str:
    facts: list[tuple[str, object]] = [("shards", len(report.shards)), ("changed", len(report.changed))]
    facts += [("samples", report.saved), ("samples lost", report.lost), ("repaired dataset", report.output)]
    return _facts_html(facts)


def _shards(shards: Sequence[ShardRepair]) -> str:
    rows = [
        (
            _mark(each.action),
            escape(each.url),
            f"{each.saved:,}",
            f"{each.lost_count:,}",
            escape(each.proof or ""),
            escape(each.quarantine or ""),
        )
        for each in shards
        if each.action != "sound"
    ]
    if not rows:
        return "<p>Every shard is sound.</p>"
    return f"<h2>Shards</h2>{_table(('', 'shard', 'saved', 'lost', 'proof', 'kept at'), rows)}"


def _lost(shard: ShardRepair) -> str:
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in shard.reasons)
    rows = [(escape(each.key), escape(each.reason), _text(each.offset)) for each in shard.lost]
    lost = _table(("key", "why it is lost", "byte"), rows) if rows else ""
    return f"<h2>{escape(shard.url)}</h2><ul>{reasons}</ul>{lost}"
