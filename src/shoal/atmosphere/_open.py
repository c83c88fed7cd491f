"""List, resolve, open and pull published datasets."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from shoal.errors import ChecksumError, RecordError, RecordNotFoundError, ShoalWarning
from shoal.protocols import Resolved
from shoal.sample._class_factory import class_from_schema
from shoal.schema._json_schema import schema_to_json
from shoal.schema._version import newest_version, version_precedence
from shoal.shard._journal import commit
from shoal.shard._manifest import Manifest, ShardRecord
from shoal.shard._open_shards import open_shard
from shoal.shard._split_names import split_of
from shoal.store._options import configured

from ._download import RemoteShard, ShardMetadata, mount
from ._identifiers import AtUri, DatasetRef, parse_ref
from ._lexicons import ENTRY, LABEL, LEGACY_ENTRIES, LEGACY_SCHEMAS, SCHEMA
from ._records import (
    PublishedDataset,
    PublishedLabel,
    PublishedSchema,
    dataset_from_record,
    label_from_record,
    published_schema,
    shard_metadata_records,
    to_count,
)
from ._repositories import FetchedRecord, Network
from ._storage import Checksum, StorageBlobs, StorageExternal, StorageS3, shard_names

__all__ = [
    "get_dataset",
    "get_schema",
    "list_datasets",
    "list_labels",
    "list_schemas",
    "pull",
    "resolve_dataset",
]

_PIECE = 1 << 20


def _readable(found: Iterator[FetchedRecord], read: Any) -> Iterator[Any]:
    """Those that can be read: what somebody else wrote wrongly must not hide the rest, but it is said."""
    for one in found:
        try:
            yield read(one.uri, one.cid, one.value)
        except RecordError as error:
            warnings.warn(f"a record is passed over: {error}", ShoalWarning, stacklevel=3)


def list_datasets(network: Network, account: str | None) -> Iterator[PublishedDataset]:
    """Every dataset of an account, those in older collections too."""
    for collection in (ENTRY, *LEGACY_ENTRIES):
        yield from _readable(network.list(account, collection), dataset_from_record)


def list_schemas(network: Network, account: str | None) -> Iterator[PublishedSchema]:
    """Every schema of an account, those in older collections too."""
    for collection in (SCHEMA, *LEGACY_SCHEMAS):
        yield from _readable(network.list(account, collection), published_schema)


def list_labels(network: Network, account: str | None) -> Iterator[PublishedLabel]:
    """Every label of an account."""
    return _readable(network.list(account, LABEL), label_from_record)


def resolve_label(network: Network, ref: DatasetRef) -> AtUri:
    """The dataset that ``@handle/name`` or ``@handle/name@version`` names.

    Labels are asked first: of several versions the highest is meant, where none was asked for, and a pre-release only
    where there is no release. A dataset that has no label is found by its own name, the newest of several. Raises
    RecordNotFoundError.
    """
    labels = [one for one in list_labels(network, ref.account) if one.name == ref.name]
    if ref.version is not None:
        for label in labels:
            if label.version == ref.version:
                return label.dataset_uri
        versions = sorted((label.version for label in labels if label.version), key=version_precedence)
        expected = ", ".join(versions) or None
        raise RecordNotFoundError("the dataset has no such version", expected=expected, found=str(ref))
    if labels:
        version = newest_version(label.version or "" for label in labels)
        found = [label for label in labels if (label.version or "") == version]
        return max(found, key=lambda label: label.created_at).dataset_uri
    named = [one for one in list_datasets(network, ref.account) if one.name == ref.name]
    if not named:
        raise RecordNotFoundError("there is no such dataset", found=str(ref))
    return max(named, key=lambda one: one.created_at).uri


def get_dataset(network: Network, ref: str | AtUri | DatasetRef) -> PublishedDataset:
    """The dataset of ``at://...``, ``@handle/name`` or ``@handle/name@version``. Raises RecordNotFoundError."""
    asked = parse_ref(ref) if isinstance(ref, str) else ref
    uri = resolve_label(network, asked) if isinstance(asked, DatasetRef) else asked
    if uri.collection == LABEL:
        found = network.get(uri)
        uri = label_from_record(found.uri, found.cid, found.value).dataset_uri
    if uri.collection not in (ENTRY, *LEGACY_ENTRIES):
        raise RecordError("this names no dataset", expected=f"at://ACCOUNT/{ENTRY}/KEY", found=str(uri))
    found = network.get(uri)
    return dataset_from_record(found.uri, found.cid, found.value)


def get_schema(network: Network, ref: str | AtUri) -> PublishedSchema:
    """The schema of an ``at://`` URI, or of ``@handle/Name@version``. Raises RecordNotFoundError."""
    asked = parse_ref(ref) if isinstance(ref, str) else ref
    if isinstance(asked, AtUri):
        found = network.get(asked)
        return published_schema(found.uri, found.cid, found.value)
    named = [one for one in list_schemas(network, asked.account) if one.name == asked.name]
    fitting = [one for one in named if asked.version in (None, one.version)]
    if not fitting:
        expected = ", ".join(one.version for one in named) or None
        raise RecordNotFoundError("there is no such schema", expected=expected, found=str(asked))
    version = newest_version(one.version for one in fitting)
    return next(one for one in fitting if one.version == version)


def resolve_dataset(network: Network, dataset: PublishedDataset, *, verify: bool = True) -> Resolved:
    """What ``load_dataset`` opens: shards that are fetched and checked when they are needed, and their class.

    With ``verify=False`` shards at URLs are read in place, by ranges: whoever serves them is trusted.
    """
    schema = get_schema(network, AtUri.parse(dataset.schema_ref)).schema
    kind = class_from_schema(schema)
    shards = remote_shards(network, dataset)
    if not verify or isinstance(dataset.storage, StorageExternal):
        return Resolved(_in_place(network, dataset, shards), kind)
    place = str(dataset.uri).removeprefix("at://") + (f"/{dataset.cid}" if dataset.cid is not None else "")
    checked = [shard for shard in shards if shard.checksum.is_real]
    if len(checked) != len(shards):
        _warn_unchecked(dataset)
        return Resolved(_in_place(network, dataset, shards), kind)
    return Resolved(mount(place, checked, shard_metadata(dataset, checked), network, schema), kind)


def _warn_unchecked(dataset: PublishedDataset) -> None:
    words = f"{dataset.uri} was published without checksums: its bytes cannot be verified"
    warnings.warn(words, ShoalWarning, stacklevel=4)


def _in_place(network: Network, dataset: PublishedDataset, shards: list[RemoteShard]) -> list[str]:
    if isinstance(dataset.storage, StorageExternal):
        _warn_unchecked(dataset)
    for shard in shards:
        if not shard.through_store:
            network.guard.check(shard.url)
    return [shard.url for shard in shards]


def remote_shards(network: Network, dataset: PublishedDataset) -> list[RemoteShard]:
    """Where each shard is, and what its bytes must be."""
    storage, metadata = dataset.storage, shard_metadata_records(dataset)
    names = [str(one["path"]) for one in metadata] if metadata else shard_names(storage)
    if len(set(names)) != len(names) or any("/" in name or name.startswith(".") for name in names):
        names = [f"{number:06d}-{name.replace('/', '_')}" for number, name in enumerate(names)]
    if isinstance(storage, StorageBlobs):
        return [
            RemoteShard(
                name,
                network.blob_url(dataset.uri.authority, blob.cid),
                # A blob's CID is the hash of its bytes; the checksum beside it can only say the same.
                Checksum("sha256", blob.cid.sha256),
                blob.size,
            )
            for name, blob in zip(names, storage.blobs, strict=True)
        ]
    nothing = Checksum("none", "")
    places = [
        _s3_place(storage, shard.url) if isinstance(storage, StorageS3) else (shard.url, False)
        for shard in storage.shards
    ]
    return [
        RemoteShard(name, url, shard.checksum or nothing, None, through_store)
        for name, (url, through_store), shard in zip(names, places, storage.shards, strict=True)
    ]


def _s3_place(storage: StorageS3, key: str) -> tuple[str, bool]:
    """Where a key is read: by a store of this process where its user said how, else as anybody would.

    A stranger's record may name any endpoint, so nothing is signed for it unless its bucket was configured here.
    """
    url = f"s3://{storage.bucket}/{key}"
    mine = any(prefix and (url.startswith(prefix) or prefix == f"s3://{storage.bucket}") for prefix in configured())
    ambient = storage.endpoint is None and bool(os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_PROFILE"))
    return (url, True) if mine or ambient else (storage.public_url(key), False)


def shard_metadata(dataset: PublishedDataset, shards: list[RemoteShard]) -> list[ShardMetadata | None]:
    """Return the metadata that the publisher listed for each shard; None where it listed none."""
    records = shard_metadata_records(dataset)
    if not records:
        return [None] * len(shards)
    return [
        ShardMetadata(str(one.get("split") or "train"), to_count(one.get("samples")), to_count(one.get("bytes")))
        for one in records
    ]


def pull(
    network: Network, dataset: PublishedDataset, folder: str, progress: Callable[[int, int], None] | None
) -> list[str]:
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
    manifest = Manifest(splits, {"uri": str(dataset.uri)}, schema_to_json(schema))
    commit(folder, lambda before: manifest)
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
    for shard, metadata, path in zip(shards, shard_metadata(dataset, shards), paths, strict=True):
        samples = None if metadata is None else metadata.samples
        if samples is None:
            with closing(open_shard(path)) as opened:
                samples = len(opened)
        digest = shard.checksum.digest if shard.checksum.algorithm == "sha256" else None
        record = ShardRecord(shard.name, samples, os.path.getsize(path), sha256=digest)
        yield (split_of(shard.name) if metadata is None else metadata.split), record
