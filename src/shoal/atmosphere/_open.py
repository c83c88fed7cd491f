"""Find, open and pull published datasets, also by way of an AppView."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from shoal.errors import AtmosphereError, ChecksumError, RecordError, RecordNotFoundError, ShoalWarning
from shoal.protocols import Resolved
from shoal.sample import class_from_schema
from shoal.schema import schema_to_json
from shoal.shard import Manifest, ShardRecord, open_shard, save_manifest, split_of
from shoal.store import configured

from ._download import RemoteShard, ShardMetadata, mount
from ._identifiers import AtUri, DatasetRef, parse_ref
from ._lexicons import ENTRY, LABEL, LEGACY_ENTRIES, LEGACY_SCHEMAS, NAMESPACE, SCHEMA
from ._pds import Service
from ._publish import TOLD, Progress
from ._records import (
    PublishedDataset,
    PublishedLabel,
    PublishedSchema,
    dataset_from_record,
    label_from_record,
    published_schema,
)
from ._repositories import FetchedRecord, Network
from ._storage import Checksum, StorageBlobs, StorageExternal, StorageS3, shard_names

__all__ = [
    "AppView",
    "get_dataset",
    "get_schema",
    "list_datasets",
    "list_labels",
    "list_schemas",
    "pull",
    "resolve_dataset",
    "told_records",
]

_PIECE = 1 << 20
_PAGE = 100
_MOST_URIS = 25


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

    Labels are asked first: of several versions the highest is meant, where none was asked for. A dataset that has no
    label is found by its own name, the newest of several. Raises RecordNotFoundError.
    """
    labels = [one for one in list_labels(network, ref.account) if one.name == ref.name]
    if ref.version is not None:
        for label in labels:
            if label.version == ref.version:
                return label.dataset_uri
        expected = ", ".join(sorted(label.version or "no version" for label in labels)) or None
        raise RecordNotFoundError("the dataset has no such version", expected=expected, found=str(ref))
    if labels:
        return max(labels, key=lambda label: (_precedence(label.version), label.created_at)).dataset_uri
    named = [one for one in list_datasets(network, ref.account) if one.name == ref.name]
    if not named:
        raise RecordNotFoundError("there is no such dataset", found=str(ref))
    return max(named, key=lambda one: one.created_at).uri


def _precedence(version: str | None) -> tuple[Any, ...]:
    """Versions in order: numbers by their value, a pre-release before its release, none before all."""
    if version is None:
        return ()
    core, _, rest = version.partition("+")[0].partition("-")
    parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in core.split("."))
    return (1, parts, not rest, rest)


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
    return max(fitting, key=lambda one: _precedence(one.version))


# ------------------------------------------------------------------------------------------------------------ opening


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
    return Resolved(mount(place, checked, told_of(dataset, checked), network, schema), kind)


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
    storage, told = dataset.storage, told_records(dataset)
    names = [str(one["path"]) for one in told] if told else shard_names(storage)
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


def told_records(dataset: PublishedDataset) -> list[dict[str, Any]]:
    """What the publisher told of each shard; empty where it told nothing, or nonsense."""
    storage, metadata = dataset.storage, dataset.metadata or {}
    told = metadata.get(TOLD)
    records = told.get("shards") if isinstance(told, Mapping) else None
    count = len(storage.blobs if isinstance(storage, StorageBlobs) else storage.shards)
    if not isinstance(records, list) or len(records) != count:
        return []
    good = all(isinstance(one, dict) and isinstance(one.get("path"), str) and one["path"] for one in records)
    return records if good else []


def told_of(dataset: PublishedDataset, shards: list[RemoteShard]) -> list[ShardMetadata | None]:
    """What the publisher told of each shard beyond its hash; None where it told nothing."""
    records = told_records(dataset)
    if not records:
        return [None] * len(shards)
    return [
        ShardMetadata(str(one.get("split") or "train"), _count(one.get("samples")), _count(one.get("bytes")))
        for one in records
    ]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


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


# What it says is a hint. Records are read from the repositories they are in; where it fails, the long way is taken.
class AppView:
    """The calls of an AppView for datasets."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self._service.query(f"{NAMESPACE}.{method}", params)

    def _pages(self, method: str, word: str, limit: int, **params: Any) -> Iterator[dict[str, Any]]:
        cursor, given = None, 0
        while given < limit:
            answer = self._ask(method, limit=min(_PAGE, limit - given), cursor=cursor, **params)
            items = [item for item in answer.get(word) or [] if isinstance(item, dict)]
            yield from items[: limit - given]
            given += len(items)
            before, cursor = cursor, answer.get("cursor")
            if not items or not cursor or cursor == before:
                return

    def search_datasets(
        self, text: str, *, tags: tuple[str, ...] = (), repo: str | None = None, limit: int = 50
    ) -> list[AtUri]:
        """Datasets that fit a text."""
        return _uris(self._pages("searchDatasets", "entries", limit, q=text, tags=list(tags) or None, repo=repo))

    def search_lenses(
        self, *, source: AtUri | None = None, target: AtUri | None = None, limit: int = 50
    ) -> list[AtUri]:
        """Lenses from one schema to another."""
        ends = {"sourceSchema": source and str(source), "targetSchema": target and str(target)}
        return _uris(self._pages("searchLenses", "lenses", limit, **ends))

    def list_entries(self, repo: str | None = None, limit: int = 1000) -> list[AtUri]:
        """Datasets of a repository, or of all."""
        return _uris(self._pages("listEntries", "entries", limit, repo=repo))

    def list_schemas(self, repo: str | None = None, limit: int = 1000) -> list[AtUri]:
        """Schemas of a repository, or of all."""
        return _uris(self._pages("listSchemas", "schemas", limit, repo=repo))

    def list_lenses(self, repo: str | None = None, limit: int = 1000) -> list[AtUri]:
        """Lenses of a repository, or of all."""
        return _uris(self._pages("listLenses", "lenses", limit, repo=repo))

    def resolve_label(self, handle: str, name: str, version: str | None = None) -> AtUri:
        """The dataset that a label names."""
        return _uri(self._ask("resolveLabel", handle=handle, name=name, version=version))

    def resolve_schema(self, handle: str, schema_id: str, version: str | None = None) -> AtUri:
        """The schema of this name."""
        return _uri(self._ask("resolveSchema", handle=handle, schemaId=schema_id, version=version))

    def get_entry(self, uri: AtUri) -> dict[str, Any]:
        """What the AppView has of a dataset."""
        found = self._ask("getEntry", uri=str(uri))
        return dict(found.get("entry") or found)

    def get_entries(self, uris: list[AtUri]) -> list[dict[str, Any]]:
        """What the AppView has of several datasets."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(uris), _MOST_URIS):
            asked = [str(uri) for uri in uris[start : start + _MOST_URIS]]
            found += self._ask("getEntries", uris=asked).get("entries") or []
        return found

    def entry_stats(self, uri: AtUri) -> dict[str, Any]:
        """How often a dataset was looked for and looked at."""
        return self._ask("getEntryStats", uri=str(uri))

    def resolve_blobs(self, uris: list[AtUri]) -> list[dict[str, Any]]:
        """Where the blobs of datasets can be read."""
        return list(self._ask("resolveBlobs", uris=[str(uri) for uri in uris[:_MOST_URIS]]).get("blobs") or [])

    def describe(self) -> dict[str, Any]:
        """What the AppView says of itself."""
        return self._ask("describeService")


def _uri(item: Mapping[str, Any]) -> AtUri:
    return AtUri.parse(str(item.get("uri")))


def _uris(items: Iterator[dict[str, Any]]) -> list[AtUri]:
    found: dict[AtUri, None] = {}
    for item in items:
        try:
            found[_uri(item)] = None
        except AtmosphereError:
            continue  # a hint that is none
    return list(found)
