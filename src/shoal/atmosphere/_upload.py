"""Shards as blobs of a server: whole where they fit, else cut between samples into smaller shards."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.dataset import Dataset
from shoal.errors import AtmosphereError, TooLargeError
from shoal.shard import ShardWriter, open_shard, sniff
from shoal.store import store_for

from ._cid import Cid
from ._source_shards import SourceShard
from ._storage import BlobShard, Checksum

__all__ = ["BLOB_LIMITS", "MOST_BLOB", "MOST_BLOBS", "Progress", "Uploaded", "upload_shards"]

MOST_BLOB = 52_428_800
"""Bytes of one blob, as the lexicon says."""
BLOB_LIMITS = (MOST_BLOB, 5 << 20, 1_000_000)
"""What servers take, tried in turn: none says beforehand. The second is a PDS as it comes."""
MOST_BLOBS = 1_000_000_000
"""Bytes of one dataset as blobs, unless the caller says otherwise: a PDS is no data centre."""
_MIME = "application/x-tar"
_END = 10_240
"""What a tar may have after its last member."""

Progress = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""


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
