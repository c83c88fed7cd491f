"""Whether the bytes of an entry are those that were recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from shoal.errors import StoreError
from shoal.store import store_for

from ._credentials import CredentialsLike
from ._entry import Entry, StoredShard
from ._write import Progress

__all__ = ["ShardCheck", "verify_entry"]

_PART = 4 << 20


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """What was found of one shard."""

    reference: str
    """The entry it belongs to."""
    url: str
    bytes: int
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether its bytes are those that were recorded."""
        return self.problem is None


def verify_entry(
    entry: Entry, *, credentials: CredentialsLike | None = None, progress: Progress | None = None
) -> Iterator[ShardCheck]:
    """Read every shard of an entry and compare size and checksum. Nothing is raised for damage.

    Example:
        >>> from shoal.local import LocalIndex, Repo, verify_entry
        >>> repo = Repo("memory://doc/verify-entry", index=LocalIndex("memory://"))
        >>> entry = repo.insert([{"txt": "a cat"}], name="pets")
        >>> [check.ok for check in verify_entry(entry)]
        [True]
    """
    entry.reach(credentials)
    for shard in entry.shards:
        url = entry.storage.url(shard.path)
        yield ShardCheck(entry.reference, url, shard.bytes, _problem(url, shard, progress or (lambda done: None)))


def _problem(url: str, shard: StoredShard, tell: Progress) -> str | None:
    try:
        size, digest = _read(url, tell)
    except StoreError as error:
        return str(error)
    if size != shard.bytes:
        return f"the size is another: expected {shard.bytes}, found {size}"
    if shard.sha256 is not None and digest != shard.sha256:
        return f"the bytes are others: expected sha256 {shard.sha256}, found {digest}"
    return None


def _read(url: str, tell: Progress) -> tuple[int, str]:
    digest = hashlib.sha256()
    with closing(store_for(url).open(url)) as reader:
        for start in range(0, reader.info.size, _PART):
            data = reader.read(start, min(start + _PART, reader.info.size))
            digest.update(data)
            tell(len(data))
        return reader.info.size, digest.hexdigest()
