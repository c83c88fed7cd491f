"""Publish schemas, datasets and labels in one's own repository.

Shards stay where others can read them, or are uploaded as blobs to one's own server: a shard larger than the server
takes is cut into smaller ones.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from shoal.dataset._dataset import Dataset
from shoal.dataset._load import load_dataset
from shoal.dataset._splits import DatasetDict
from shoal.errors import (
    AtmosphereError,
    ChecksumError,
    FormatError,
    OptionError,
    RecordError,
    RecordNotFoundError,
    SchemaError,
    TooLargeError,
)
from shoal.sample._annotations import schema_of
from shoal.schema._compatibility import compare, next_version
from shoal.schema._json_schema import schema_from_json, schema_hash
from shoal.schema._schema import Schema
from shoal.schema._version import bump_version, newest_version
from shoal.shard._compression import sniff
from shoal.shard._open_shards import open_shard
from shoal.shard._source import ShardSource
from shoal.shard._split_names import split_of
from shoal.shard._writer import ShardWriter
from shoal.store._options import options_for
from shoal.store._registry import store_for
from shoal.store._url import base_name, scheme_of

from ._http import is_private_url
from ._identifiers import AtUri, Cid, key_of, named_key
from ._lexicons import ENTRY, LABEL, SCHEMA
from ._records import (
    METADATA_KEY,
    PublishedDataset,
    PublishedLabel,
    PublishedSchema,
    dataset_from_record,
    dataset_to_record,
    label_to_record,
    published_schema,
    schema_to_record,
)
from ._repositories import Network
from ._storage import (
    BlobShard,
    Checksum,
    Storage,
    StorageBlobs,
    StorageHttp,
    StorageS3,
    UrlShard,
)

__all__ = [
    "MOST_BLOBS",
    "DatasetMetadata",
    "Progress",
    "SourceShard",
    "StorageKind",
    "manifest_schema",
    "now",
    "place_shards",
    "publish_dataset",
    "publish_label",
    "publish_schema",
    "shards_of",
    "with_sha256",
]

Progress = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""
StorageKind = Literal["auto", "http", "s3", "blobs"]
MAX_BLOB_BYTES = 52_428_800
"""Bytes of one blob, as the lexicon says."""
BLOB_LIMITS = (MAX_BLOB_BYTES, 5 << 20, 1_000_000)
"""What servers take, tried in turn: none says beforehand. The second is a PDS as it comes."""
MOST_BLOBS = 1_000_000_000
"""Bytes of one dataset as blobs, unless the caller says otherwise: a PDS is no data centre."""
_MIME = "application/x-tar"
_END = 10_240
"""What a tar may have after its last member."""
_READ_BYTES = 8 << 20


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

    Raises FormatError for a dataset that is not whole tar shards.
    """
    if isinstance(data, DatasetDict):
        return [shard for name, part in data.items() for shard in _shards_of_dataset(part, name)]
    if isinstance(data, Dataset):
        return list(_shards_of_dataset(data, None))
    paths = data if isinstance(data, str | os.PathLike) else list(data)
    return shards_of(load_dataset(paths))


def _shards_of_dataset(dataset: Dataset[Any], split: str | None) -> Iterator[SourceShard]:
    source = dataset.source
    if not isinstance(source, ShardSource) or not dataset.is_whole:
        raise FormatError(
            "only whole shards can be published",
            found="a view" if isinstance(source, ShardSource) else type(source).__name__,
            hint="write it first: shoal.write_samples(dataset, folder)",
        )
    known = {} if source.manifest is None else _manifest_records(source)
    for ref in source.shards:
        name, digest = known.get(ref.url, (None, None))
        samples = ref.samples if ref.rule == source.rule else None  # else counted by another key rule
        yield SourceShard(ref.url, split or name or split_of(base_name(ref.url)), samples, digest)


def _manifest_records(source: ShardSource) -> dict[str, tuple[str, str | None]]:
    """The split and the hash that the manifest has for each shard's URL."""
    manifest = source.manifest
    splits = {} if manifest is None else manifest.splits
    found = {record.path: (split, record.sha256) for split, records in splits.items() for record in records}
    return {ref.url: known for ref in source.shards for path, known in found.items() if ref.url.endswith(f"/{path}")}


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
        for start in range(0, size, _READ_BYTES):
            digest.update(reader.read(start, min(start + _READ_BYTES, size)))
    finally:
        reader.close()
    return digest.hexdigest(), size


def with_sha256(shard: SourceShard) -> SourceShard:
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

    Examples:
        >>> is_reachable("/data/a.tar"), is_reachable("http://localhost/a.tar"), is_reachable("memory://a.tar")
        (False, False, False)
    """
    if scheme_of(url) == "s3":
        endpoint = options_for(url).endpoint or os.environ.get("AWS_ENDPOINT_URL")
        return endpoint is None or not is_private_url(endpoint)
    return scheme_of(url) in ("http", "https") and not is_private_url(url)


class _Uploads(Protocol):
    def upload(self, data: bytes, mime_type: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A blob that stands for a shard, or a part of one."""

    blob: BlobShard
    name: str
    split: str
    samples: int | None


class _Uploader:
    """One run: what the server takes is found out once."""

    def __init__(self, server: _Uploads, limit: int | None) -> None:
        self._server = server
        self._limits = [limit] if limit is not None else list(BLOB_LIMITS)

    @property
    def limit(self) -> int:
        return self._limits[0]

    def put(self, data: bytes) -> BlobShard:
        """Raises TooLargeError where the server takes none of this size."""
        answer = self._server.upload(data, _MIME)
        cid = Cid.of_bytes(data)
        found = answer.get("blob", {})
        if found.get("ref", {}).get("$link") != str(cid) or found.get("size") != len(data):
            raise AtmosphereError("the server has other bytes than it was given", expected=str(cid), found=found)
        digest = Checksum("sha256", hashlib.sha256(data).hexdigest())
        return BlobShard(cid, len(data), found.get("mimeType", _MIME), digest)

    def lower(self, refused: int) -> bool:
        """Try with less, after a blob of this size was refused; False where there is no less."""
        self._limits = [limit for limit in self._limits if limit < refused]
        return bool(self._limits)

    def shard(self, shard: SourceShard) -> list[Uploaded]:
        """One shard, as one blob or several."""
        while True:
            largest = 0
            try:
                made = []
                for number, (data, samples) in enumerate(_pieces(shard, self.limit)):
                    largest = len(data)
                    made.append(Uploaded(self.put(data), _name(shard, number), shard.split, samples))
                return made
            except TooLargeError as error:
                if not largest:
                    raise
                if not self.lower(largest):
                    raise TooLargeError(
                        "the server takes no blob that small",
                        found=f"{largest} bytes: {error.found or error.problem}",
                        shard=shard.url,
                        hint="put the shards at a URL or into a bucket, and publish with storage='http' or 's3'",
                    ) from error


def upload_shards(
    shards: Sequence[SourceShard],
    server: _Uploads,
    *,
    limit: int | None = None,
    most: int = MOST_BLOBS,
    progress: Progress | None = None,
) -> list[Uploaded]:
    """Give a server all shards as blobs. It forgets them again, unless a record comes to name them.

    Raises TooLargeError for more than ``most`` bytes in all, and where a single sample is over the server's limit.
    """
    sizes = [store_for(shard.url).info(shard.url).size for shard in shards]
    total, done = sum(sizes), 0
    if total > most:
        raise TooLargeError(
            "the dataset is too large for blobs",
            expected=f"at most {most} bytes",
            found=total,
            hint="put the shards at a URL or into a bucket, or raise max_blob_bytes",
        )
    uploader, made = _Uploader(server, limit), []
    for shard, size in zip(shards, sizes, strict=True):
        made += uploader.shard(shard)
        done += size
        if progress is not None:
            progress(done, total)
    return made


def _name(shard: SourceShard, number: int) -> str:
    stem = shard.name.partition(".tar")[0] or "shard"
    return f"{stem}.tar" if not number else f"{stem}-{number:04d}.tar"


def _pieces(shard: SourceShard, limit: int) -> Iterator[tuple[bytes, int | None]]:
    """The shard, or smaller ones with its samples, each a whole tar of at most ``limit`` bytes."""
    store = store_for(shard.url)
    if store.info(shard.url).size <= limit:
        data = store.read_all(shard.url)
        if sniff(data[:512]) is None:  # a blob is a plain tar, as its type says
            yield data, _samples(shard)
            return
    with tempfile.TemporaryDirectory(prefix="shoal-blobs-") as folder:
        for path, samples in _cut(shard, os.path.join(folder, "part-%06d.tar"), limit):
            with open(path, "rb") as file:
                yield file.read(), samples
            os.unlink(path)


def _samples(shard: SourceShard) -> int:
    if shard.samples is not None:
        return shard.samples
    opened = open_shard(shard.url)
    try:
        return len(opened)
    finally:
        opened.close()


def _cut(shard: SourceShard, pattern: str, limit: int) -> list[tuple[str, int]]:
    """Smaller shards with the same samples, as stored."""
    with ShardWriter(pattern, max_bytes=max(limit - _END, 1), max_samples=1 << 40) as writer:
        for sample in Dataset(shard.url, decode=False, sample_type=dict):
            writer.write({name: value for name, value in sample.items() if name != "__url__"})
    for record in writer.shards:
        if record.bytes > limit:
            raise TooLargeError(
                "a single sample is larger than a blob may be",
                expected=f"at most {limit} bytes",
                found=record.bytes,
                shard=shard.url,
                key=record.first_key,
            )
    return [(os.path.join(writer.root, record.path), record.samples) for record in writer.shards]


def now() -> str:
    """The time, as records write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class DatasetMetadata:
    """What is said of a dataset."""

    description: str = ""
    tags: tuple[str, ...] = ()
    license: str = ""
    metadata: Mapping[str, Any] | None = None


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
    kept = replace(schema, version=version or _next_version(schema, there))
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


def _next_version(schema: Schema, there: Mapping[str, PublishedSchema]) -> str:
    if schema.version not in there:
        return schema.version
    version = next_version(there[newest_version(there)].schema, schema)
    while version in there:
        version = bump_version(version, "patch")
    return version


@dataclass(frozen=True, slots=True)
class UploadedShards:
    """Shards where others can read them, with the metadata of each."""

    storage: Storage
    metadata: list[dict[str, Any]]

    @property
    def samples(self) -> int | None:
        """How many samples there are; None where nobody counted."""
        counts = [one["samples"] for one in self.metadata]
        return None if None in counts else sum(counts)

    @property
    def bytes(self) -> int:
        """How many bytes the shards take."""
        return sum(one["bytes"] for one in self.metadata)


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
            f"these shards cannot be published as {storage}",
            expected=_EXPECTED[storage],
            found=_without_query(shards[0].url),
        )
    if storage != "blobs" and hidden:
        raise AtmosphereError(
            "others cannot read these shards where they are",
            found=_without_query(hidden[0]),
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
) -> UploadedShards:
    """Have shards where others can read them; blobs are given to one's own server for that."""
    if kind == "blobs":
        made = upload_shards(shards, network.own, limit=limit, most=most, progress=progress)
        metadata = [
            {"path": one.name, "split": one.split, "samples": one.samples, "bytes": one.blob.size} for one in made
        ]
        return UploadedShards(StorageBlobs(tuple(one.blob for one in made)), metadata)
    checked = _hash_shards(shards, progress)
    metadata = [
        {"path": shard.name, "split": shard.split, "samples": shard.samples, "bytes": shard.read_size}
        for shard in checked
    ]
    sums = [Checksum("sha256", str(shard.sha256)) for shard in checked]
    if kind == "http":
        return UploadedShards(StorageHttp(tuple(map(UrlShard, (shard.url for shard in shards), sums))), metadata)
    bucket, options = shards[0].url.split("/")[2], options_for(shards[0].url)
    keys = (shard.url.split("/", 3)[3] for shard in shards)
    return UploadedShards(
        StorageS3(bucket, tuple(map(UrlShard, keys, sums)), options.region, options.endpoint), metadata
    )


def _hash_shards(shards: Sequence[SourceShard], progress: Progress | None) -> list[SourceShard]:
    """Each shard with its real hash: of what is at the URL now, whatever was written down before."""
    found = []
    for number, shard in enumerate(shards):
        found.append(with_sha256(shard))
        if progress is not None:
            progress(number + 1, len(shards))
    return found


def publish_dataset(
    network: Network, name: str, schema_ref: AtUri, key: str, placed: UploadedShards, words: DatasetMetadata
) -> PublishedDataset:
    """Write a dataset's record; last of all, so that nobody finds half a dataset."""
    metadata = {**(words.metadata or {}), METADATA_KEY: {"shards": placed.metadata}}
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


def reword(network: Network, there: PublishedDataset, words: DatasetMetadata) -> PublishedDataset:
    """Say something else of a dataset that is published; what is not said stays as it was."""
    shards = {METADATA_KEY: (there.metadata or {}).get(METADATA_KEY)} if METADATA_KEY in (there.metadata or {}) else {}
    said = replace(
        there,
        description=words.description or there.description,
        tags=words.tags or there.tags,
        license=words.license or there.license,
        metadata={**words.metadata, **shards} if words.metadata else there.metadata,
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


def _without_query(url: str) -> str:
    """A URL as errors may show it: what follows the ``?`` is often a signature."""
    return url.partition("?")[0]


def storage_kind(storage: Storage) -> StorageKind:
    """The word for a storage."""
    return "blobs" if isinstance(storage, StorageBlobs) else "s3" if isinstance(storage, StorageS3) else "http"
