"""Where everything of a PLAID dataset is kept, and what its manifest says of each split.

::

    data/<split>/shard-000000.tar                      sample_000000000.json, sample_000000000.0000_pressure.npy, ...
    .shoal/manifest.json                               the splits, their shards, their features
    .shoal/index/data/<split>/shard-000000.tar.arrow   where every member lies
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import ManifestError
from shoal.shard import Manifest, ShardRecord, manifest_url, update_manifest

__all__ = [
    "DATA_FOLDER",
    "SplitFacts",
    "describe_splits",
    "facts_of",
    "shard_path",
    "staging_folder",
]

DATA_FOLDER = "data"
_METADATA = "plaid"


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """What the manifest says of a split beside its shards."""

    samples: int
    features: dict[str, str] = field(default_factory=dict)
    """The member field of each variable feature's path."""


def shard_path(split: str, number: int) -> str:
    """The path of a shard below the dataset's folder."""
    return f"{DATA_FOLDER}/{split}/shard-{number:06d}.tar"


def staging_folder(root: Path) -> Path:
    """Where shards are written before they have their names."""
    return root / ".shoal" / "writing"


def describe_splits(root: Path, splits: Mapping[str, tuple[Sequence[ShardRecord], dict[str, str]]]) -> None:
    """Write the manifest: what is said of other splits stays. From now on these splits are there."""
    facts = {
        name: msgspec.to_builtins(SplitFacts(sum(record.samples for record in records), features))
        for name, (records, features) in splits.items()
    }
    # A split without samples has no shards, and is there all the same: the metadata names it.
    shards = {name: tuple(records) for name, (records, _) in splits.items() if records}

    def described(before: Manifest) -> Manifest:
        metadata = {**before.metadata, _METADATA: {**before.metadata.get(_METADATA, {}), **facts}}
        return replace(before, splits={**before.splits, **shards}, metadata=metadata)

    update_manifest(str(root), described)


def facts_of(manifest: Manifest, root: str) -> dict[str, SplitFacts]:
    """What the manifest says of each split; nothing where no PLAID dataset was written. Raises ManifestError."""
    said: Any = manifest.metadata.get(_METADATA, {})
    try:
        return msgspec.convert(said, dict[str, SplitFacts])
    except msgspec.ValidationError as error:
        raise ManifestError(
            "this is not the manifest of a PLAID dataset", found=error, shard=manifest_url(root)
        ) from error
