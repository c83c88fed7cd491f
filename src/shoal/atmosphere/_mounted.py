"""Published datasets as folders of a store, so that everything above reads them as it reads files.

``at-shards://DID/COLLECTION/KEY/train-000000.tar`` is a shard. It is fetched, and checked, when it is first opened.
Where the record tells how many samples each shard has, the folder has a manifest, so that nothing is fetched before it
is needed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from shoal.errors import ObjectNotFoundError
from shoal.schema import Schema, schema_to_json
from shoal.shard import Manifest, ShardRecord, save_manifest, split_of
from shoal.store import ObjectInfo, ObjectReader, ReadOnlyStore, RenamedReader, join_url, register_store, store_for

from ._fetch import RemoteShard

__all__ = ["SCHEME", "Told", "mount"]

SCHEME = "at-shards"
_MEMORY = "memory://at-shards"


class Fetcher(Protocol):
    """Fetches a shard."""

    def fetch(self, shard: RemoteShard, /) -> str:
        """The path of a checked local copy."""
        ...


@dataclass(frozen=True, slots=True)
class Told:
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
    place: str, shards: list[RemoteShard], told: list[Told | None], fetcher: Fetcher, schema: Schema | None
) -> str | dict[str, list[str]]:
    """Let this process read shards below ``at-shards://place``; returns what ``load_dataset`` takes.

    That is a folder with a manifest where everything is told of every shard, else URLs by split.
    """
    root = f"{SCHEME}://{quote(place, safe='/:')}"
    urls = [join_url(root, quote(shard.name, safe="")) for shard in shards]
    for url, shard in zip(urls, shards, strict=True):
        _STORE.add(url, _Held(shard, fetcher))
    known = [one for one in told if one is not None and one.samples is not None and one.size is not None]
    by_split: dict[str, list[Any]] = {}
    if len(known) != len(shards):
        for url, shard, one in zip(urls, shards, told, strict=True):
            by_split.setdefault(one.split if one is not None else split_of(shard.name), []).append(url)
        return by_split
    for shard, one in zip(shards, known, strict=True):
        digest = shard.checksum.digest if shard.checksum.algorithm == "sha256" else None
        record = ShardRecord(quote(shard.name, safe=""), one.samples or 0, one.size or 0, sha256=digest)
        by_split.setdefault(one.split, []).append(record)
    splits = {split: tuple(records) for split, records in by_split.items()}
    document = None if schema is None else schema_to_json(schema)
    save_manifest(Manifest(splits, schema=document), _in_memory(root))
    return root
