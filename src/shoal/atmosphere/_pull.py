"""A published dataset as a folder."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import closing

from shoal.errors import ChecksumError
from shoal.schema import schema_to_json
from shoal.shard import Manifest, ShardRecord, open_shard, save_manifest, split_of

from ._at_uri import AtUri
from ._fetch import RemoteShard
from ._network import Network
from ._read import get_schema, remote_shards, told_of
from ._records import PublishedDataset
from ._upload import Progress

__all__ = ["pull"]

_PIECE = 1 << 20


def pull(network: Network, dataset: PublishedDataset, folder: str, progress: Progress | None) -> list[str]:
    """Copy every shard, checked, and write the manifest last. Raises ChecksumError for shards without a checksum."""
    schema = get_schema(network, AtUri.parse(dataset.schema_ref)).schema
    shards = remote_shards(network, dataset)
    os.makedirs(folder, exist_ok=True)
    paths = []
    for number, shard in enumerate(shards):
        if not shard.checksum.is_real:
            raise ChecksumError("the dataset was published without checksums", shard=shard.url)
        paths.append(_copied(network, shard, os.path.join(folder, shard.name)))
        if progress is not None:
            progress(number + 1, len(shards))
    splits: dict[str, tuple[ShardRecord, ...]] = {}
    for split, record in _records(dataset, shards, paths):
        splits[split] = (*splits.get(split, ()), record)
    save_manifest(Manifest(splits, {"uri": str(dataset.uri)}, schema_to_json(schema)), folder)
    return paths


def _copied(network: Network, shard: RemoteShard, path: str) -> str:
    if os.path.exists(path) and _digest(path, shard.checksum.algorithm) == shard.checksum.digest.lower():
        return path
    shutil.copyfile(network.fetch(shard), f"{path}.part")
    os.replace(f"{path}.part", path)
    return path


def _digest(path: str, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _records(
    dataset: PublishedDataset, shards: list[RemoteShard], paths: list[str]
) -> Iterator[tuple[str, ShardRecord]]:
    for shard, told, path in zip(shards, told_of(dataset, shards), paths, strict=True):
        samples = None if told is None else told.samples
        if samples is None:
            with closing(open_shard(path)) as opened:
                samples = len(opened)
        digest = shard.checksum.digest if shard.checksum.algorithm == "sha256" else None
        record = ShardRecord(shard.name, samples, os.path.getsize(path), sha256=digest)
        yield (split_of(shard.name) if told is None else told.split), record
