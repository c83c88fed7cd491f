"""Where the shards of a published dataset are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from shoal.dataset import Dataset, DatasetDict, load_dataset
from shoal.errors import ChecksumError, FormatError, RecordError
from shoal.schema import Schema, schema_from_json
from shoal.shard import ShardRef, ShardSource, split_of
from shoal.store import base_name, expand_braces, options_for, scheme_of, store_for

from ._http import is_private_url
from ._identifiers import Cid
from ._lexicons import NAMESPACE

__all__ = [
    "BlobShard",
    "Checksum",
    "SourceShard",
    "Storage",
    "StorageBlobs",
    "StorageExternal",
    "StorageHttp",
    "StorageS3",
    "UrlShard",
    "hashed",
    "is_reachable",
    "manifest_schema",
    "shard_names",
    "shards_of",
    "storage_from_record",
    "storage_to_record",
]

MOST_SHARDS = 100_000
"""A record could say {0..999999999} in a few letters."""
_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a shard's bytes hash to: an algorithm of hashlib, and the digest in hex."""

    algorithm: str
    digest: str

    @property
    def is_real(self) -> bool:
        """Whether it says anything: atdata writes ``none`` where it computed nothing."""
        return bool(self.digest) and self.algorithm.lower() not in ("", "none")


@dataclass(frozen=True, slots=True)
class UrlShard:
    """A shard at a URL, or at a key of a bucket."""

    url: str
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class BlobShard:
    """A shard that the publisher's server keeps as a blob."""

    cid: Cid
    size: int
    mime_type: str = "application/x-tar"
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class StorageHttp:
    """Shards at URLs that everybody can read."""

    shards: tuple[UrlShard, ...]


@dataclass(frozen=True, slots=True)
class StorageS3:
    """Shards in a bucket; ``url`` of each shard is its key."""

    bucket: str
    shards: tuple[UrlShard, ...]
    region: str | None = None
    endpoint: str | None = None

    def public_url(self, key: str) -> str:
        """Where everybody could read a key, were the bucket public.

        Example:
            >>> StorageS3("pets", (), region="eu-west-1").public_url("train 0.tar")
            'https://pets.s3.eu-west-1.amazonaws.com/train%200.tar'
        """
        if self.endpoint is not None:
            return f"{self.endpoint.rstrip('/')}/{quote(self.bucket)}/{quote(key)}"
        host = f"s3.{self.region}.amazonaws.com" if self.region else "s3.amazonaws.com"
        return f"https://{self.bucket}.{host}/{quote(key)}"


@dataclass(frozen=True, slots=True)
class StorageBlobs:
    """Shards that the publisher's server keeps."""

    blobs: tuple[BlobShard, ...]


@dataclass(frozen=True, slots=True)
class StorageExternal:
    """What older records have: URLs in brace notation, without checksums."""

    urls: tuple[str, ...]

    @property
    def shards(self) -> tuple[UrlShard, ...]:
        """One for each URL that the patterns stand for."""
        return tuple(UrlShard(url) for pattern in self.urls for url in expand_braces(pattern))


Storage = StorageHttp | StorageS3 | StorageBlobs | StorageExternal


def storage_to_record(storage: Storage) -> dict[str, Any]:
    """A storage in the JSON form of a record. Raises RecordError for the legacy one, which is only read.

    Example:
        >>> shard = UrlShard("https://example.org/a.tar", Checksum("sha256", "00" * 32))
        >>> storage_to_record(StorageHttp((shard,)))["shards"][0]["url"]
        'https://example.org/a.tar'
    """
    if isinstance(storage, StorageHttp):
        shards = [{"url": shard.url, "checksum": _checksum(shard.checksum)} for shard in storage.shards]
        return {"$type": f"{NAMESPACE}.storageHttp", "shards": shards}
    if isinstance(storage, StorageS3):
        keys = [{"key": shard.url, "checksum": _checksum(shard.checksum)} for shard in storage.shards]
        facts = {"bucket": storage.bucket, "region": storage.region, "endpoint": storage.endpoint, "shards": keys}
        return {"$type": f"{NAMESPACE}.storageS3", **{name: fact for name, fact in facts.items() if fact is not None}}
    if isinstance(storage, StorageBlobs):
        return {"$type": f"{NAMESPACE}.storageBlobs", "blobs": [_blob(blob) for blob in storage.blobs]}
    raise RecordError("storageExternal is only read", expected="storageHttp, storageS3 or storageBlobs")


def _checksum(checksum: Checksum | None) -> dict[str, str]:
    if checksum is None or not checksum.is_real:
        raise RecordError("a published shard has a checksum", expected="sha256 and its digest", found=checksum)
    return {"algorithm": checksum.algorithm, "digest": checksum.digest}


def _blob(shard: BlobShard) -> dict[str, Any]:
    link = {"$type": "blob", "ref": {"$link": str(shard.cid)}, "mimeType": shard.mime_type, "size": shard.size}
    return {"blob": link} if shard.checksum is None else {"blob": link, "checksum": _checksum(shard.checksum)}


def storage_from_record(record: Any) -> Storage:
    """The storage that a record tells of, in any form that was ever written. Raises RecordError."""
    if not isinstance(record, Mapping):
        raise RecordError("a dataset's record tells no storage", found=type(record).__name__, field="$.storage")
    kind = str(record.get("$type", "")).rpartition(".")[2].removesuffix("#main")
    try:
        storage = _KINDS[kind](record)
        count = len(storage.blobs if isinstance(storage, StorageBlobs) else storage.shards)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(
            "a dataset's storage cannot be read", expected=", ".join(_KINDS), found=kind or record, field="$.storage"
        ) from error
    if not 0 < count <= MOST_SHARDS:
        raise RecordError("a dataset's storage is out of bounds", expected=f"1 to {MOST_SHARDS} shards", found=count)
    return storage


def _read_checksum(record: Mapping[str, Any]) -> Checksum | None:
    found = record.get("checksum")
    return Checksum(str(found["algorithm"]), str(found["digest"])) if isinstance(found, Mapping) else None


def _http(record: Mapping[str, Any]) -> Storage:
    if "shards" not in record:  # before there were checksums
        return _external(record)
    return StorageHttp(tuple(UrlShard(str(shard["url"]), _read_checksum(shard)) for shard in record["shards"]))


def _s3(record: Mapping[str, Any]) -> Storage:
    shards = tuple(UrlShard(str(shard["key"]), _read_checksum(shard)) for shard in record["shards"])
    return StorageS3(str(record["bucket"]), shards, record.get("region"), record.get("endpoint"))


def _blobs(record: Mapping[str, Any]) -> Storage:
    return StorageBlobs(tuple(_read_blob(shard) for shard in record["blobs"]))


def _read_blob(shard: Mapping[str, Any]) -> BlobShard:
    blob = shard.get("blob", shard)  # before v0.6 the blobs themselves were in the list
    ref = blob["ref"]
    link = ref["$link"] if isinstance(ref, Mapping) else ref
    return BlobShard(Cid.parse(link), int(blob["size"]), str(blob["mimeType"]), _read_checksum(shard))


def _external(record: Mapping[str, Any]) -> Storage:
    return StorageExternal(tuple(str(url) for url in record["urls"]))


_KINDS = {"storageHttp": _http, "storageS3": _s3, "storageBlobs": _blobs, "storageExternal": _external}


def shard_names(storage: Storage) -> list[str]:
    """A name for each shard, by which its split can be told; every one is another.

    Example:
        >>> shard_names(
        ...     StorageHttp((UrlShard("https://a.org/x/train-0.tar?sig=1"), UrlShard("https://b.org/train-0.tar")))
        ... )
        ['train-0.tar', '1-train-0.tar']
    """
    if isinstance(storage, StorageBlobs):
        return [f"shard-{number:06d}.tar" for number in range(len(storage.blobs))]
    paths = [urlsplit(shard.url).path if "://" in shard.url else shard.url for shard in storage.shards]
    names = [unquote(base_name(path)) for path in paths]
    seen: set[str] = set()
    for number, name in enumerate(names):
        if not name or name in seen or "/" in name:
            names[number] = f"{number}-{name.replace('/', '_')}"
        seen.add(name)
    return names


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
