"""Schemas, datasets and labels into one's own repository."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from shoal.errors import AtmosphereError, OptionError, RecordError, RecordNotFoundError, SchemaError
from shoal.sample import schema_of
from shoal.schema import Schema, compare, next_version, schema_hash
from shoal.store import options_for, scheme_of

from ._at_uri import AtUri
from ._lexicon import ENTRY, LABEL, SCHEMA
from ._network import Network
from ._records import (
    PublishedDataset,
    PublishedLabel,
    PublishedSchema,
    dataset_from_record,
    dataset_to_record,
    label_to_record,
    published_schema,
)
from ._schema_record import schema_to_record
from ._source_shards import SourceShard, hashed, is_reachable
from ._storage import Checksum, Storage, StorageBlobs, StorageHttp, StorageS3, UrlShard
from ._tid import key_of, named_key
from ._upload import MOST_BLOBS, Progress, upload_shards

__all__ = [
    "Placed",
    "StorageKind",
    "Words",
    "now",
    "place_shards",
    "publish_dataset",
    "publish_label",
    "publish_schema",
]

StorageKind = Literal["auto", "http", "s3", "blobs"]
TOLD = "shoal"
"""Under this name a dataset's metadata tells of each shard: its name, split, samples and bytes."""


def now() -> str:
    """The time, as records write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of a dataset."""

    description: str = ""
    tags: tuple[str, ...] = ()
    license: str = ""
    metadata: Mapping[str, Any] | None = None


# ------------------------------------------------------------------------------------------------------------ schemas


def publish_schema(
    network: Network, of: type[Any] | Schema, *, version: str | None = None, description: str | None = None
) -> PublishedSchema:
    """Publish the schema of a class; the same content again gives the record that is there.

    Without ``version`` a changed schema gets the next one, by what changed. Raises SchemaError for a version that has
    another content already.
    """
    schema = of if isinstance(of, Schema) else schema_of(of)
    there = {one.version: one for one in _own_schemas(network, schema.name)}
    same = [one for one in there.values() if _alike(one.schema, schema) and version in (None, one.version)]
    if same:
        return same[-1]
    if version in there:
        raise SchemaError(
            f"{schema.name}@{version} is something else already",
            expected="the same fields, or a new version",
            found=there[version].uri,
            hint="leave the version out and it follows from what changed",
        )
    kept = replace(schema, version=version or _next(schema, there))
    record = schema_to_record(kept, now(), description=description)
    found = network.put(SCHEMA, named_key(kept.name, kept.version), record)
    return published_schema(found.uri, found.cid, found.value)


def _alike(one: Schema, two: Schema) -> bool:
    return schema_hash(one) == schema_hash(two) and not compare(one, two)


def _own_schemas(network: Network, name: str) -> Iterable[PublishedSchema]:
    for found in network.list(None, SCHEMA):
        if found.value.get("name") == name:
            try:
                yield published_schema(found.uri, found.cid, found.value)
            except RecordError:
                continue  # one that cannot be read is not the one that is looked for


def _next(schema: Schema, there: Mapping[str, PublishedSchema]) -> str:
    if schema.version not in there:
        return schema.version
    newest = max(there.values(), key=lambda one: _numbers(one.version))
    version = next_version(newest.schema, schema)
    while version in there:
        major, minor, patch = _numbers(version)
        version = f"{major}.{minor}.{patch + 1}"
    return version


def _numbers(version: str) -> tuple[int, int, int]:
    major, minor, patch = version.partition("-")[0].partition("+")[0].split(".")
    return int(major), int(minor), int(patch)


# ----------------------------------------------------------------------------------------------------------- datasets


@dataclass(frozen=True, slots=True)
class Placed:
    """Shards where others can read them, with what is told of each."""

    storage: Storage
    told: list[dict[str, Any]]

    @property
    def samples(self) -> int | None:
        """How many samples there are; None where nobody counted."""
        counts = [one["samples"] for one in self.told]
        return None if None in counts else sum(counts)

    @property
    def bytes(self) -> int:
        """How many bytes the shards take."""
        return sum(one["bytes"] for one in self.told)


def chosen_storage(shards: Sequence[SourceShard], storage: StorageKind, *, allow_private: bool) -> StorageKind:
    """How shards are to be stored: as asked, or for ``auto`` where they are if others can read them there.

    Raises AtmosphereError, with the reason, for a storage that cannot be.
    """
    if storage not in ("auto", "http", "s3", "blobs"):
        raise OptionError("there is no such storage", expected="auto, http, s3 or blobs", found=repr(storage))
    schemes = {scheme_of(shard.url) for shard in shards}
    kind: StorageKind = "s3" if schemes == {"s3"} else "http" if schemes <= {"http", "https"} else "blobs"
    hidden = [] if allow_private else [shard.url for shard in shards if not is_reachable(shard.url)]
    buckets = {shard.url.split("/")[2] for shard in shards} if kind == "s3" else set()
    if storage == "auto":
        return "blobs" if hidden or len(buckets) > 1 else kind
    if storage not in ("blobs", kind):
        raise AtmosphereError(
            f"these shards cannot be published as {storage}", expected=_EXPECTED[storage], found=_shown(shards[0].url)
        )
    if storage != "blobs" and hidden:
        raise AtmosphereError(
            "others cannot read these shards where they are",
            found=_shown(hidden[0]),
            hint="publish with storage='blobs', or pass allow_private=True on a network you trust",
        )
    if len(buckets) > 1:
        raise AtmosphereError("a published dataset lies in one bucket", found=", ".join(sorted(buckets)))
    return storage


_EXPECTED = {"http": "http:// or https:// URLs", "s3": "s3:// URLs"}


def place_shards(
    network: Network,
    shards: Sequence[SourceShard],
    kind: StorageKind,
    *,
    most: int = MOST_BLOBS,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Placed:
    """Have shards where others can read them; blobs are given to one's own server for that."""
    if kind == "blobs":
        made = upload_shards(shards, network.own, limit=limit, most=most, progress=progress)
        told = [{"path": one.name, "split": one.split, "samples": one.samples, "bytes": one.blob.size} for one in made]
        return Placed(StorageBlobs(tuple(one.blob for one in made)), told)
    checked = _hashed(shards, progress)
    told = [
        {"path": shard.name, "split": shard.split, "samples": shard.samples, "bytes": shard.read_size}
        for shard in checked
    ]
    sums = [Checksum("sha256", str(shard.sha256)) for shard in checked]
    if kind == "http":
        return Placed(StorageHttp(tuple(map(UrlShard, (shard.url for shard in shards), sums))), told)
    bucket, options = shards[0].url.split("/")[2], options_for(shards[0].url)
    keys = (shard.url.split("/", 3)[3] for shard in shards)
    return Placed(StorageS3(bucket, tuple(map(UrlShard, keys, sums)), options.region, options.endpoint), told)


def _hashed(shards: Sequence[SourceShard], progress: Progress | None) -> list[SourceShard]:
    """Each shard with its real hash: of what is at the URL now, whatever was written down before."""
    found = []
    for number, shard in enumerate(shards):
        found.append(hashed(shard))
        if progress is not None:
            progress(number + 1, len(shards))
    return found


def publish_dataset(
    network: Network, name: str, schema_ref: AtUri, key: str, placed: Placed, words: Words
) -> PublishedDataset:
    """Write a dataset's record; last of all, so that nobody finds half a dataset."""
    metadata = {**(words.metadata or {}), TOLD: {"shards": placed.told}}
    uri = AtUri(str(network.own.did), ENTRY, key)
    draft = PublishedDataset(
        uri,
        None,
        name,
        str(schema_ref),
        placed.storage,
        words.description,
        words.tags,
        words.license,
        metadata,
        placed.samples,
        placed.bytes,
        now(),
    )
    found = network.put(ENTRY, key, dataset_to_record(draft))
    return dataset_from_record(found.uri, found.cid, found.value)


def reword(network: Network, there: PublishedDataset, words: Words) -> PublishedDataset:
    """Say something else of a dataset that is published; what is not said stays as it was."""
    told = {TOLD: (there.metadata or {}).get(TOLD)} if TOLD in (there.metadata or {}) else {}
    said = replace(
        there,
        description=words.description or there.description,
        tags=words.tags or there.tags,
        license=words.license or there.license,
        metadata={**words.metadata, **told} if words.metadata else there.metadata,
    )
    if said == there:
        return there
    found = network.put(ENTRY, str(there.uri.rkey), dataset_to_record(said))
    return dataset_from_record(found.uri, found.cid, found.value)


def dataset_key(name: str, schema: AtUri, shards: list[SourceShard]) -> str:
    """The key of a dataset: the same for the same name, schema and bytes, wherever they are."""
    return key_of("dataset", name, str(schema), *(str(shard.sha256) for shard in shards))


def find_dataset(network: Network, key: str) -> PublishedDataset | None:
    """One's own dataset under this key; None where there is none."""
    try:
        found = network.get(AtUri(str(network.own.did), ENTRY, key))
    except RecordNotFoundError:
        return None
    return dataset_from_record(found.uri, found.cid, found.value)


# ------------------------------------------------------------------------------------------------------------- labels


def publish_label(
    network: Network, name: str, dataset: AtUri, *, version: str | None = None, description: str = ""
) -> PublishedLabel:
    """Give a dataset a name and a version; the same name and version again means the new dataset from now on."""
    draft = PublishedLabel(
        AtUri(str(network.own.did), LABEL, key_of("label", name, version or "")),
        None,
        name,
        dataset,
        version,
        description,
        now(),
    )
    found = network.put(LABEL, str(draft.uri.rkey), label_to_record(draft))
    return replace(draft, cid=found.cid, created_at=str(found.value["createdAt"]))


def _shown(url: str) -> str:
    """A URL as errors may show it: what follows the ``?`` is often a signature."""
    return url.partition("?")[0]


def storage_kind(storage: Storage) -> StorageKind:
    """The word for a storage."""
    return "blobs" if isinstance(storage, StorageBlobs) else "s3" if isinstance(storage, StorageS3) else "http"
