"""Where the shards of a published dataset are, as values: URLs, keys of a bucket, or blobs of a server."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from shoal.store._pattern import expand_braces
from shoal.store._url import base_name

from ._identifiers import Cid

__all__ = [
    "BlobShard",
    "Checksum",
    "Storage",
    "StorageBlobs",
    "StorageExternal",
    "StorageHttp",
    "StorageS3",
    "UrlShard",
    "shard_names",
]


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

        Examples:
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


def shard_names(storage: Storage) -> list[str]:
    """A name for each shard, by which its split can be told; every one is another.

    Examples:
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
