"""What is to be published: the shards of a dataset, with what is known of each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from shoal.dataset import Dataset, DatasetDict, load_dataset
from shoal.errors import ChecksumError, FormatError
from shoal.schema import Schema, schema_from_json
from shoal.shard import ShardRef, ShardSource, split_of
from shoal.store import base_name, options_for, scheme_of, store_for

from ._guard import is_private_url

__all__ = ["SourceShard", "hashed", "is_reachable", "manifest_schema", "sha256_of", "shards_of"]

_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class SourceShard:
    """One shard that is to be published."""

    url: str
    split: str
    samples: int | None
    sha256: str | None = None
    read_size: int | None = None
    """Its bytes, where the hash was made by reading them just now; an index's hash may be of older ones."""

    @property
    def name(self) -> str:
        """Its name, without the folder."""
        return base_name(self.url)


def shards_of(data: Any) -> list[SourceShard]:
    """The shards of a dataset, of its splits, or of what a path, a pattern or a list of URLs names.

    Raises FormatError for a dataset that is not tar shards as they lie.
    """
    if isinstance(data, DatasetDict):
        return [shard for name, part in data.items() for shard in _of_dataset(part, name)]
    if isinstance(data, Dataset):
        return list(_of_dataset(data, None))
    paths = data if isinstance(data, str | os.PathLike) else list(data)
    return shards_of(load_dataset(paths))


def _of_dataset(dataset: Dataset[Any], split: str | None) -> Iterator[SourceShard]:
    source = dataset.source
    if not isinstance(source, ShardSource) or not dataset.is_whole:
        raise FormatError(
            "only whole shards can be published",
            found="a view" if isinstance(source, ShardSource) else type(source).__name__,
            hint="write it first: shoal.write_samples(dataset, folder)",
        )
    known = {} if source.manifest is None else _by_path(source)
    for ref in source.shards:
        name, digest = known.get(ref.url, (None, None))
        yield SourceShard(ref.url, split or name or split_of(base_name(ref.url)), _count(source, ref), digest)


def _count(source: ShardSource, ref: ShardRef) -> int | None:
    return ref.samples if ref.rule == source.rule else None


def _by_path(source: ShardSource) -> dict[str, tuple[str, str | None]]:
    """The split and the hash that the manifest has for each shard's URL."""
    manifest = source.manifest
    splits = {} if manifest is None else manifest.splits
    found = {record.path: (split, record.sha256) for split, records in splits.items() for record in records}
    return {ref.url: told for ref in source.shards for path, told in found.items() if ref.url.endswith(f"/{path}")}


def manifest_schema(data: Any) -> Schema | None:
    """The schema that a dataset's manifest has; None where there is none."""
    parts: Iterable[Any] = data.values() if isinstance(data, DatasetDict) else [data]
    for part in parts:
        source = part.source if isinstance(part, Dataset) else None
        if isinstance(source, ShardSource) and source.manifest is not None and source.manifest.schema is not None:
            return schema_from_json(source.manifest.schema)
    return None


def sha256_of(url: str) -> tuple[str, int]:
    """The hash of an object, in hex, and its size; every byte is read once."""
    reader = store_for(url).open(url)
    digest, size = hashlib.sha256(), reader.info.size
    try:
        for start in range(0, size, _PIECE):
            digest.update(reader.read(start, min(start + _PIECE, size)))
    finally:
        reader.close()
    return digest.hexdigest(), size


def hashed(shard: SourceShard) -> SourceShard:
    """The shard with the hash of what is at its URL now. Raises ChecksumError where an index says another."""
    if shard.read_size is not None:
        return shard
    digest, size = sha256_of(shard.url)
    if shard.sha256 not in (None, digest):
        raise ChecksumError(
            "a shard is not the one that was indexed", expected=shard.sha256, found=digest, shard=shard.url
        )
    return replace(shard, sha256=digest, read_size=size)


def is_reachable(url: str) -> bool:
    """Whether others can be told to read a URL: it is neither a path nor in a private network.

    Example:
        >>> is_reachable("/data/a.tar"), is_reachable("http://localhost/a.tar"), is_reachable("memory://a.tar")
        (False, False, False)
    """
    if scheme_of(url) == "s3":
        endpoint = options_for(url).endpoint or os.environ.get("AWS_ENDPOINT_URL")
        return endpoint is None or not is_private_url(endpoint)
    return scheme_of(url) in ("http", "https") and not is_private_url(url)
