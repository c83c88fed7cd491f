"""Results of verify and repair: findings and what became of each shard, as values and as an HTML page."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

from shoal.codec._dispatch import decode_spec, decoders
from shoal.errors import ShoalError
from shoal.shard._shard import Decoders
from shoal.shard._verify import Problem, ShardReport

__all__ = [
    "Action",
    "Finding",
    "LostSample",
    "Repair",
    "Severity",
    "ShardRepair",
    "Verification",
    "error_finding",
    "every_decoder",
    "note_finding",
    "report_page",
    "sort_by_severity",
]

Severity = Literal["error", "warning", "note"]
"""``error``: data is damaged, missing or contradicts itself. ``warning``: a reader fails on it or loses data. ``note``:
worth knowing."""
Action = Literal[
    "sound",  # nothing was wrong
    "recorded",  # only the manifest was wrong of it
    "reindexed",  # the tar is sound, its index was not
    "rewritten",  # what is whole was written anew
    "quarantined",  # nothing of it is whole
    "missing",  # it is not there
]
_RANKS: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
_REPAIR = "run `shoal repair`: it saves every sample that is whole and keeps the damaged shard in quarantine"
_FETCH = "fetch the shard again if there is another copy; else " + _REPAIR
_WORDS = {
    "shard": ("a reader of the dataset stops here", "fetch the shard again, or leave it out with `shoal repair`"),
    "index": (
        "without the right index no sample can be read by its number, and damage in it is not noticed",
        "run `shoal repair`, which makes the index anew where the tar is sound",
    ),
    "header": ("most readers end here without a word and lose all samples behind it", _FETCH),
    "data": ("the sample's bytes are not those that were written; a tar alone would not tell", _FETCH),
    "size": ("the member was changed after it was indexed", _FETCH),
    "name": ("bytes would be taken for another sample's", _FETCH),
    "missing": ("the dataset has fewer samples than it says", _FETCH),
    "extra": ("a reader by index does not see it, a reader in order does", "index the dataset again: `shoal index`"),
    "duplicate": (
        "webdataset and Hugging Face stop with an error at it",
        "write the sample again with each field once, or drop it with `shoal repair`",
    ),
    "filler": ("no sample is damaged, but what changed bytes here may change others", _REPAIR),
    "decode": (
        "training stops, or skips the sample, when it comes to it",
        "write the sample again, or read with on_error='skip'",
    ),
    "manifest": ("the length of the dataset, and so every order and split of it, is computed from it", _REPAIR),
    "hash": ("every byte may be another than when the hash was taken", _FETCH),
}
_OTHER = ("something is not as it was written", _REPAIR)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that verify found.

    Examples:
        >>> print(Finding("error", "data", "the bytes changed", "bits flip", "run `shoal repair`", "a.tar", key="k1"))
        the bytes changed (shard a.tar, key k1)
    """

    severity: Severity
    rule: str
    """A short, stable name for this kind of finding."""
    what: str
    why: str
    advice: str
    """What to do about it."""
    shard: str | None = None
    key: str | None = None
    field: str | None = None
    offset: int | None = None
    """Where in the tar, unpacked where it is compressed."""
    expected: str | None = None
    found: str | None = None
    count: int = 1
    """How often it was met; the place is that of the first."""

    def __str__(self) -> str:
        where = {"shard": self.shard, "key": self.key, "field": self.field}
        text = str(ShoalError(self.what, expected=self.expected, found=self.found, offset=self.offset, **where))
        return text if self.count == 1 else f"{text}, {self.count:,} times"


def sort_by_severity(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return the findings with the worst first; otherwise in the given order."""
    return tuple(sorted(findings, key=lambda each: _RANKS[each.severity]))


def error_finding(problem: Problem) -> Finding:
    """Return a problem of one shard as an error, with its explanation."""
    why, advice = _WORDS.get(problem.kind, _OTHER)
    return Finding(
        "error",
        problem.kind,
        problem.problem,
        why,
        advice,
        problem.shard,
        problem.key,
        problem.field,
        problem.offset,
        problem.expected,
        problem.found,
    )


def note_finding(problem: Problem) -> Finding:
    """Return a note about one shard."""
    if "no index" in problem.problem:
        why, advice = "only the tar's own structure could be judged", "index the dataset: `shoal index`"
        return Finding("note", "no-index", problem.problem, why, advice, problem.shard)
    return Finding("note", "note", problem.problem, "nothing is damaged", "nothing needs to be done", problem.shard)


def every_decoder() -> Callable[[Sequence[str]], Decoders]:
    """Return what makes the decoders of ``decode=True``, and of images where Pillow is installed."""
    spec = decode_spec("numpy" if importlib.util.find_spec("PIL") else True)
    return lambda fields: decoders(spec, fields)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verify."""

    path: str
    shards: tuple[ShardReport, ...]
    findings: tuple[Finding, ...]
    """The worst first."""
    fields: dict[str, int]
    """Each field and how many samples have it."""

    @property
    def ok(self) -> bool:
        """Whether there are no errors; there may be warnings."""
        return not self.count("error")

    @property
    def samples(self) -> int:
        """How many samples were found."""
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """How many bytes the shards have."""
        return sum(shard.bytes for shard in self.shards)

    def count(self, severity: str) -> int:
        """How many findings of this severity there are."""
        return sum(finding.severity == severity for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        shards = [{"ok": shard.ok, **asdict(shard)} for shard in self.shards]
        totals = {"ok": self.ok, "path": self.path, "samples": self.samples, "bytes": self.bytes, "fields": self.fields}
        return {**totals, "findings": [asdict(finding) for finding in self.findings], "shards": shards}


@dataclass(frozen=True, slots=True)
class LostSample:
    """A sample that could not be saved."""

    key: str
    reason: str
    offset: int | None = None
    """Where in the tar."""


@dataclass(frozen=True, slots=True)
class ShardRepair:
    """What became of one shard."""

    url: str
    action: Action
    saved: int = 0
    """How many samples it has now."""
    lost: tuple[LostSample, ...] = ()
    """The samples that are known to be lost, by key."""
    lost_unnamed: int = 0
    """How many more are lost, of which only the manifest's count tells."""
    proof: str | None = None
    """For a rewritten shard: ``checksums`` when each byte was checked, ``structure`` when only headers could be."""
    moved: int = 0
    """How many members were found elsewhere than where they belong."""
    quarantine: str | None = None
    """Where the shard as it was is kept."""
    reasons: tuple[str, ...] = ()
    """What was wrong with it."""

    @property
    def lost_count(self) -> int:
        """How many samples are lost."""
        return len(self.lost) + self.lost_unnamed


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did, or in a dry run would do."""

    path: str
    output: str
    """The dataset that is repaired now: ``path`` itself, or where it was written."""
    dry_run: bool
    shards: tuple[ShardRepair, ...]

    @property
    def changed(self) -> tuple[ShardRepair, ...]:
        """The shards that were not sound."""
        return tuple(shard for shard in self.shards if shard.action != "sound")

    @property
    def saved(self) -> int:
        """How many samples there are now."""
        return sum(shard.saved for shard in self.shards)

    @property
    def lost(self) -> int:
        """How many samples could not be saved."""
        return sum(shard.lost_count for shard in self.shards)

    @property
    def complete(self) -> bool:
        """Whether nothing is lost, nothing is missing, and no shard was of no use at all."""
        return not self.lost and all(shard.action not in ("missing", "quarantined") for shard in self.shards)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        totals = {"complete": self.complete, "saved": self.saved, "lost": self.lost, "changed": len(self.changed)}
        return {**totals, **asdict(self)}


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
_MAX_ROWS = 2000
"""The rest is in the JSON report."""


def report_page(report: Verification | Repair) -> str:
    """Return the report as one self-contained HTML page.

    Examples:
        >>> import shoal
        >>> from shoal.build import report_page, verify
        >>> with shoal.ShardWriter("memory://doc/page/a.tar") as writer:
        ...     writer.write({"__key__": "k", "txt": "hello"})
        >>> report_page(verify("memory://doc/page")).startswith("<!doctype html>")
        True
    """
    if isinstance(report, Verification):
        return _page(f"Verification of {report.path}", [_verification_html(report), _findings_html(report.findings)])
    title = f"{'What a repair would do to' if report.dry_run else 'Repair of'} {report.path}"
    return _page(title, [_repair_html(report), _shards_html(report.shards), *map(_lost_html, report.changed)])


def _page(title: str, parts: Iterable[str]) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = f"<h1>{escape(title)}</h1>{''.join(parts)}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _facts_list(facts: Sequence[tuple[str, object]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(_text(value))}</dd>' for name, value in facts)}</dl>"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its cells must be HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[:_MAX_ROWS])
    more = len(rows) - _MAX_ROWS
    rest = f'<p class="small">and {more:,} more, which the JSON report has</p>' if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _badge(word: str) -> str:
    return f'<span class="mark {escape(word)}">{escape(word)}</span>'


def _verification_html(report: Verification) -> str:
    counts = [(f"{name}s", report.count(name)) for name in ("error", "warning", "note")]
    facts = [("shards", len(report.shards)), ("samples", report.samples), ("bytes", report.bytes), *counts]
    fields = ", ".join(f"{name} ({count:,})" for name, count in report.fields.items())
    return _facts_list([("state", "damaged" if not report.ok else "whole"), *facts, ("fields", fields)])


def _findings_html(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<p>Nothing was found.</p>"
    rows = [(_badge(each.severity), _what_html(each), _where_html(each), escape(each.advice)) for each in findings]
    return f"<h2>Findings</h2>{_table(('', 'what', 'where', 'what to do'), rows)}"


def _what_html(finding: Finding) -> str:
    facts = (("expected", finding.expected), ("found", finding.found))
    said = ", ".join(f"{word} {value}" for word, value in facts if value is not None)
    often = f" ({finding.count:,} times)" if finding.count > 1 else ""
    text = f"{finding.what}{': ' + said if said else ''}{often}"
    return f'{escape(text)}<br><span class="small">{escape(finding.why)} [{escape(finding.rule)}]</span>'


def _where_html(finding: Finding) -> str:
    facts = (("shard", finding.shard), ("key", finding.key), ("field", finding.field), ("byte", finding.offset))
    return "<br>".join(f"{word} {escape(str(value))}" for word, value in facts if value is not None)


def _repair_html(report: Repair) -> str:
    facts: list[tuple[str, object]] = [("shards", len(report.shards)), ("changed", len(report.changed))]
    facts += [("samples", report.saved), ("samples lost", report.lost), ("repaired dataset", report.output)]
    return _facts_list(facts)


def _shards_html(shards: Sequence[ShardRepair]) -> str:
    rows = [
        (
            _badge(each.action),
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


def _lost_html(shard: ShardRepair) -> str:
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in shard.reasons)
    rows = [(escape(each.key), escape(each.reason), _text(each.offset)) for each in shard.lost]
    lost = _table(("key", "why it is lost", "byte"), rows) if rows else ""
    return f"<h2>{escape(shard.url)}</h2><ul>{reasons}</ul>{lost}"
