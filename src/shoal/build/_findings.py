"""What a repair did, or would do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Action", "LostSample", "Repair", "ShardRepair"]

Action = Literal[
    "sound",  # nothing was wrong
    "recorded",  # only the manifest was wrong of it
    "reindexed",  # the tar is sound, its index was not
    "rewritten",  # what is whole was written anew
    "quarantined",  # nothing of it is whole
    "missing",  # it is not there
]


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
