"""The result of verify or repair as one HTML page: everything in it, nothing fetched, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ._finding import Finding
from ._repaired import Repair, ShardRepair
from ._verify import Verification

__all__ = ["report_page"]

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


def _facts(facts: Sequence[tuple[str, object]]) -> str:
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
    return _facts([("state", "damaged" if not report.ok else "whole"), *facts, ("fields", fields)])


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
    return _facts(facts)


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
