"""One thing that verify found: where, what, why it matters, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.errors import ShoalError

__all__ = ["Finding", "Severity", "by_severity"]

Severity = Literal["error", "warning", "note"]
"""``error``: data is damaged, missing or contradicts itself. ``warning``: a reader fails on it or loses data. ``note``:
worth knowing."""

_RANKS: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that verify found.

    Example:
        >>> print(Finding("error", "data", "the bytes changed", "bits flip", "run `shoal repair`", "a.tar", key="k1"))
        the bytes changed (shard a.tar, key k1)
    """

    severity: Severity
    rule: str
    """A short name for this kind of finding, the same for ever: to count by, or to look for."""
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


def by_severity(findings: list[Finding]) -> tuple[Finding, ...]:
    """The worst first; otherwise in the order they have."""
    return tuple(sorted(findings, key=lambda each: _RANKS[each.severity]))
