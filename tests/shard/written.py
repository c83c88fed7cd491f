"""What writers have made of a folder, whatever format its index has."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.shard import load_index, load_manifest
from shoal.shard._manifest import ShardRecord
from shoal.shard._segment_table import open_generation
from shoal.shard._shard_rows import ShardRows
from shoal.shard._stored_rows import index_url

__all__ = ["Written", "contents", "files", "index_of", "read_written"]

_LOCKS = {".shoal/lock", ".shoal/index/lock"}


@dataclass
class Written:
    """A dataset as its index describes it."""

    splits: dict[str, list[ShardRecord]]
    metadata: dict[str, Any]
    schema: dict[str, Any] | None
    digests: list[bytes] = field(default_factory=list)

    @property
    def shards(self) -> list[ShardRecord]:
        return [record for records in self.splits.values() for record in records]

    @property
    def samples(self) -> int:
        return sum(record.samples for record in self.shards)


def read_written(root: str | Path) -> Written | None:
    """Return the dataset in a folder, None where there is none."""
    opened = open_generation(str(root))
    if opened is None:
        manifest = load_manifest(str(root))
        if manifest is None:
            return None
        splits = {name: list(records) for name, records in manifest.splits.items()}
        return Written(splits, manifest.metadata, manifest.schema)
    written = Written({}, opened.generation.metadata, opened.generation.schema)
    for name in opened.generation.splits:
        shards = opened.split(name).shards().to_pylist()
        written.splits[name] = [
            ShardRecord(each["path"], each["samples"], each["bytes"], None, None, each["compression"], each["sha256"])
            for each in shards
        ]
        written.digests += [each["digest"] for each in shards]
    opened.close()
    return written


def index_of(root: str | Path, path: str) -> ShardRows:
    """Return the index of one shard."""
    opened = open_generation(str(root))
    if opened is None:
        return load_index(index_url(str(root), path), whole=True)
    table = opened.table()
    numbers = [number for number, ref in enumerate(table.shards) if ref.url.endswith(f"/{path}")]
    rows = table.shard_rows(numbers[0])
    opened.close()
    return rows


def files(folder: str | Path) -> dict[str, bytes]:
    """Everything below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def contents(root: str | Path) -> dict[str, Any]:
    """Return what is equal whenever the same is written: all files; of segments, whose names differ, what they say."""
    found: dict[str, Any] = files(root)
    opened = open_generation(str(root))
    if opened is not None:
        index = (".shoal/index/", ".shoal/generations/")
        found = {name: data for name, data in found.items() if not name.startswith(index) and name not in _LOCKS}
        found[".shoal/manifest.json"] = read_written(root)
        opened.close()
    return found
