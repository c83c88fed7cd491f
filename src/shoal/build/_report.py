"""What became of a build, as a value and as a document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.shard import ShardRecord
from shoal.store import join_url

from ._work import Built, Failure

__all__ = ["BuildReport", "report_of"]


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
    root: str, builts: Iterable[Built], *, duplicates: int = 0, written: int = 0, seconds: float = 0.0
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
