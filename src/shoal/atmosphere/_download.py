"""Published shards: fetched, verified, and read through a read-only store.

``at-shards://DID/COLLECTION/KEY/train-000000.tar`` is a shard. It is fetched and verified when it is first opened.
Where the record has the number of samples of each shard, the folder has a manifest, so that opening the dataset fetches
no shard.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote

from shoal._optional import require
from shoal.errors import (
    AtmosphereError,
    ChecksumError,
    ObjectNotFoundError,
    RecordNotFoundError,
    ShoalError,
    TooLargeError,
)
from shoal.schema._json_schema import schema_to_json
from shoal.schema._schema import Schema
from shoal.shard._journal import commit
from shoal.shard._manifest import Manifest, ShardRecord
from shoal.shard._split_names import split_of
from shoal.store._base import ObjectInfo, ObjectReader
from shoal.store._cache import cache_dir, count_added, mark_used
from shoal.store._options import options_for
from shoal.store._read_only import ReadOnlyStore, RenamedReader
from shoal.store._registry import register_store, store_for
from shoal.store._url import join_url

from ._http import Guard
from ._pds import Patience
from ._storage import Checksum

__all__ = ["RemoteShard", "ShardMetadata", "fetch_shard", "mount"]

_PIECE = 1 << 20
_ALGORITHMS = frozenset({"sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s"})
"""Those that nobody can forge a shard for; md5 and sha1 are checked too, but mean less."""
_WEAK = frozenset({"md5", "sha1"})


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """Where a published shard is, and what its bytes must be."""

    name: str
    url: str
    checksum: Checksum
    size: int | None = None
    through_store: bool = False
    """Whether a store of this process reads it, with its own credentials, rather than anybody's HTTP."""


def cached_path(shard: RemoteShard) -> str:
    """Where the shard is kept once it was fetched: by its hash, so equal shards are kept once."""
    algorithm, digest = _checked(shard.checksum)
    return os.path.join(cache_dir(), "atmosphere", algorithm, f"{digest}.tar")


def _checked(checksum: Checksum) -> tuple[str, str]:
    algorithm, digest = checksum.algorithm.lower().replace("-", ""), checksum.digest.lower()
    known = algorithm in _ALGORITHMS | _WEAK
    if not known or not digest or set(digest) - set("0123456789abcdef"):
        raise ChecksumError("a shard's checksum cannot be computed", expected="sha256", found=checksum.algorithm)
    return algorithm, digest


def fetch_shard(shard: RemoteShard, guard: Guard, patience: Patience, *, most: int) -> str:
    """The path of a local copy whose hash is the record's.

    Raises ChecksumError when the bytes are others, TooLargeError for more than ``most`` bytes, or than the record says.
    """
    path = cached_path(shard)
    if os.path.exists(path):
        mark_used(path)
        return path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".fetching-")
    try:
        with open(descriptor, "w+b") as file:
            digest = _Fetch(shard, file, min(most, shard.size or most)).run(guard, patience)
        if digest != _checked(shard.checksum)[1]:
            raise ChecksumError(
                "a shard's bytes are not those that were published",
                expected=f"{shard.checksum.algorithm} {shard.checksum.digest}",
                found=digest,
                shard=shard.url,
                hint="tell its publisher; nothing of it was read",
            )
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    count_added(path, os.path.getsize(path), options_for(shard.url).cache_bytes)
    return path


class _Fetch:
    """One shard on its way; what came stays when a connection breaks, and the next goes on behind it."""

    def __init__(self, shard: RemoteShard, file: BinaryIO, most: int) -> None:
        self._shard = shard
        self._file = file
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._digest = hashlib.new(_checked(self._shard.checksum)[0], usedforsecurity=False)
        self._done = 0
        self._file.seek(0)
        self._file.truncate()

    def _add(self, piece: bytes) -> None:
        self._done += len(piece)
        if self._done > self._most:
            raise TooLargeError(
                "a shard is larger than it may be", expected=f"at most {self._most} bytes", shard=self._shard.url
            )
        self._digest.update(piece)
        self._file.write(piece)

    def run(self, guard: Guard, patience: Patience) -> str:
        if self._shard.through_store:
            self._from_store()
        else:
            self._from_http(guard, patience)
        return self._digest.hexdigest()

    def _from_store(self) -> None:
        reader = store_for(self._shard.url).open(self._shard.url)
        try:
            for start in range(0, reader.info.size, 8 * _PIECE):
                self._add(reader.read(start, start + 8 * _PIECE))
        finally:
            reader.close()

    def _from_http(self, guard: Guard, patience: Patience) -> None:
        require("httpx", extra="atmosphere")
        import httpx

        from ._http import http_client

        problem = "not asked"
        with http_client(guard, most=None) as client:
            for attempt in range(patience.tries):
                before = self._done
                try:
                    if self._once(client):
                        return
                    problem = "the server has no time"
                except ShoalError:
                    raise
                except httpx.HTTPError as error:
                    problem = str(error) or type(error).__name__
                if attempt + 1 < patience.tries and self._done == before:
                    time.sleep(patience.wait_after(attempt))
        raise AtmosphereError("a shard could not be fetched", found=problem, shard=self._shard.url)

    def _once(self, client: Any) -> bool:
        """Fetch what is missing; False when the server said to come back later."""
        headers = {"Range": f"bytes={self._done}-"} if self._done else {}
        with client.stream("GET", self._shard.url, headers={**headers, "Accept-Encoding": "identity"}) as response:
            status = response.status_code
            if status in (429, 500, 502, 503, 504):
                return False
            if status in (404, 410) or (status == 400 and "getBlob" in self._shard.url):
                raise RecordNotFoundError("a published shard is gone", found=status, shard=self._shard.url)
            if status not in (200, 206):
                raise AtmosphereError("a shard could not be fetched", found=f"status {status}", shard=self._shard.url)
            if status == 200 and self._done:
                self._begin()
            for piece in response.iter_raw():  # as it comes, so that nothing is lost when it breaks
                self._add(piece)
        return True


SCHEME = "at-shards"
_MEMORY = "memory://at-shards"


class Fetcher(Protocol):
    """Fetches a shard."""

    def fetch(self, shard: RemoteShard, /) -> str:
        """The path of a checked local copy."""
        ...


@dataclass(frozen=True, slots=True)
class ShardMetadata:
    """What a record tells of a shard beyond its hash."""

    split: str
    samples: int | None
    size: int | None


@dataclass(frozen=True, slots=True)
class _Held:
    shard: RemoteShard
    fetcher: Fetcher


class _PublishedStore(ReadOnlyStore):
    """All published datasets that this process has opened."""

    def __init__(self) -> None:
        super().__init__("a published dataset is only read", "`shoal pull` makes a copy of it")
        self._held: dict[str, _Held] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def add(self, url: str, held: _Held) -> None:
        with self._lock:
            self._held[url] = held

    def _path(self, url: str) -> tuple[str, _Held]:
        try:
            held = self._held[url]
        except KeyError:
            raise ObjectNotFoundError(
                "no published dataset has this shard here", found=url, hint="open it by its at:// URI first"
            ) from None
        with self._lock:
            lock = self._locks.setdefault(url, threading.Lock())
        with lock:  # one a shard: others can be fetched meanwhile
            return held.fetcher.fetch(held.shard), held

    def info(self, url: str) -> ObjectInfo:
        if _is_sidecar(url):
            found = store_for(_MEMORY).info(_in_memory(url))
            return ObjectInfo(url, found.size, found.version)
        held = self._held.get(url)
        if held is not None and held.shard.size is not None:
            return ObjectInfo(url, held.shard.size, held.shard.checksum.digest)
        path, held = self._path(url)
        return ObjectInfo(url, store_for(path).info(path).size, held.shard.checksum.digest)

    def open(self, url: str) -> ObjectReader:
        if _is_sidecar(url):
            return store_for(_MEMORY).open(_in_memory(url))
        path, held = self._path(url)
        reader = store_for(path).open(path)
        return RenamedReader(reader, ObjectInfo(url, reader.info.size, held.shard.checksum.digest))

    def read_all(self, url: str) -> bytes:
        if _is_sidecar(url):
            return store_for(_MEMORY).read_all(_in_memory(url))
        path, _ = self._path(url)
        return store_for(path).read_all(path)

    def urls(self) -> list[str]:
        return list(self._held)


def _is_sidecar(url: str) -> bool:
    return "/.shoal/" in url


def _in_memory(url: str) -> str:
    return url.replace(f"{SCHEME}://", f"{_MEMORY}/", 1)


_STORE = _PublishedStore()
register_store(SCHEME, _STORE)


def mount(
    place: str, shards: list[RemoteShard], metadata: list[ShardMetadata | None], fetcher: Fetcher, schema: Schema | None
) -> str | dict[str, list[str]]:
    """Let this process read shards below ``at-shards://place``; returns what ``load_dataset`` takes.

    That is a folder with a manifest where the metadata of every shard is complete, else URLs by split.
    """
    root = f"{SCHEME}://{quote(place, safe='/:')}"
    urls = [join_url(root, quote(shard.name, safe="")) for shard in shards]
    for url, shard in zip(urls, shards, strict=True):
        _STORE.add(url, _Held(shard, fetcher))
    known = [one for one in metadata if one is not None and one.samples is not None and one.size is not None]
    by_split: dict[str, list[Any]] = {}
    if len(known) != len(shards):
        for url, shard, one in zip(urls, shards, metadata, strict=True):
            by_split.setdefault(one.split if one is not None else split_of(shard.name), []).append(url)
        return by_split
    for shard, one in zip(shards, known, strict=True):
        digest = shard.checksum.digest if shard.checksum.algorithm == "sha256" else None
        record = ShardRecord(quote(shard.name, safe=""), one.samples or 0, one.size or 0, sha256=digest)
        by_split.setdefault(one.split, []).append(record)
    splits = {split: tuple(records) for split, records in by_split.items()}
    document = None if schema is None else schema_to_json(schema)
    commit(_in_memory(root), lambda before: Manifest(splits, schema=document))
    return root
