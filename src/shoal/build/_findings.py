"""Findings of verify and results of repair, as values."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shoal.codec import decode_spec, decoders
from shoal.errors import ShoalError
from shoal.shard import Decoders, Problem

__all__ = [
    "Action",
    "Finding",
    "LostSample",
    "Repair",
    "Severity",
    "ShardRepair",
    "by_severity",
    "error_of",
    "every_decoder",
    "note_of",
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


def error_of(problem: Problem) -> Finding:
    """A problem of one shard, with its explanation."""
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


def note_of(problem: Problem) -> Finding:
    """What is worth knowing of one shard."""
    if "no index" in problem.problem:
        why, advice = "only the tar's own structure could be judged", "index the dataset: `shoal index`"
        return Finding("note", "no-index", problem.problem, why, advice, problem.shard)
    return Finding("note", "note", problem.problem, "nothing is damaged", "nothing needs to be done", problem.shard)


def every_decoder() -> Callable[[Sequence[str]], Decoders]:
    """What ``decode=True`` decodes, and pictures where a decoder for them is installed."""
    spec = decode_spec("numpy" if importlib.util.find_spec("PIL") else True)
    return lambda fields: decoders(spec, fields)


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
        """As JSON can say it."""
        totals = {"complete": self.complete, "saved": self.saved, "lost": self.lost, "changed": len(self.changed)}
        return {**totals, **asdict(self)}
