"""`Entry`: one version of a dataset, as an index keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from shoal.dataset import Dataset
from shoal.errors import FieldError
from shoal.shard import split_alias
from shoal.store import join_url, scheme_of

from ._credentials import CredentialsLike, reach

if TYPE_CHECKING:
    from ._index import LocalIndex

__all__ = ["Entry", "Storage", "StoredShard"]


@dataclass(frozen=True, slots=True)
class StoredShard:
    """One shard of a dataset."""

    path: str
    """Relative to the storage's root; a whole URL where it lies elsewhere."""
    split: str
    samples: int | None
    bytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a dataset's bytes are: all that is needed to reach them but for secrets, which are never kept."""

    root: str
    """The URL of the folder."""
    endpoint: str | None = None
    region: str | None = None
    has_manifest: bool = False
    """Whether a manifest in the folder names exactly these shards."""

    @property
    def bucket(self) -> str | None:
        """The bucket of an object store; None for a folder."""
        return None if scheme_of(self.root) in ("file", "memory") else self.root.partition("://")[2].partition("/")[0]

    def url(self, path: str) -> str:
        """The URL of a shard."""
        return path if "://" in path or path.startswith("/") else join_url(self.root, path)


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a dataset: what it is called, what its samples are, where its bytes lie, and what they hash to.

    A plain value: nothing is read until ``open``.

    Example:
        >>> from shoal.local import LocalIndex, Repo
        >>> repo = Repo("memory://doc/entry", index=LocalIndex("memory://"))
        >>> entry = repo.insert([{"txt": "a cat"}, {"txt": "a dog"}], name="pets")
        >>> entry.reference, entry.samples, len(entry.data_urls), entry.open()[1]["txt"]
        ('pets@1.0.0', 2, 1, 'a dog')
    """

    name: str
    version: str
    cid: str
    """The address of the content: equal data has an equal CID, wherever it lies."""
    schema_ref: str
    """The schema of its samples, for ``LocalIndex.get_schema``; empty where samples have none."""
    storage: Storage
    shards: tuple[StoredShard, ...]
    metadata: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    description: str = ""
    created_at: datetime | None = None
    _index: LocalIndex | None = field(default=None, repr=False, compare=False)

    @property
    def reference(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    @property
    def data_urls(self) -> list[str]:
        """The URL of every shard, in order."""
        return [self.storage.url(shard.path) for shard in self.shards]

    @property
    def checksums(self) -> dict[str, str]:
        """The sha256 of every shard that has one, by URL."""
        return {self.storage.url(shard.path): shard.sha256 for shard in self.shards if shard.sha256 is not None}

    @property
    def samples(self) -> int | None:
        """How many samples there are; None where that was never counted."""
        counts = [shard.samples for shard in self.shards if shard.samples is not None]
        return sum(counts) if len(counts) == len(self.shards) else None

    @property
    def bytes(self) -> int:
        """How many bytes its shards take."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def splits(self) -> dict[str, list[str]]:
        """The URLs of the shards of each split, in order."""
        found: dict[str, list[str]] = {}
        for shard in self.shards:
            found.setdefault(shard.split, []).append(self.storage.url(shard.path))
        return found

    def open(
        self,
        split: str | None = None,
        *,
        sample_type: type[Any] | None = None,
        credentials: CredentialsLike | None = None,
        **options: Any,
    ) -> Dataset[Any]:
        """The dataset itself: all of it, or one split.

        Samples are of ``sample_type``, else of a class made from the entry's schema, else what the data says.
        ``credentials`` are what ``Repo`` takes; without them the environment and the AWS profile say what is secret.
        ``options`` are those of :class:`shoal.Dataset`. Raises FieldError for a split that is not there.
        """
        chosen = None if split is None else self._split(split)
        self.reach(credentials)
        kind = sample_type if sample_type is not None else self.sample_type()
        if self.storage.has_manifest:
            return Dataset(self.storage.root, split=chosen, sample_type=kind, **options)
        return Dataset(self.data_urls if chosen is None else self.splits[chosen], sample_type=kind, **options)

    def sample_type(self) -> type[Any] | None:
        """The class of the samples, made from the schema that the index has; None where there is none."""
        if self._index is None or not self.schema_ref.startswith("shoal://local/"):
            return None
        return self._index.get_schema_type(self.schema_ref)

    def reach(self, credentials: CredentialsLike | None = None) -> None:
        """Let this process read the entry's URLs: its endpoint and region, and ``credentials`` where they are given."""
        reach(self.storage.root, self.storage.endpoint, self.storage.region, credentials)

    def _split(self, asked: str) -> str:
        """The split of this name, or of another word for it."""
        names = list(self.splits)
        fitting = [name for name in names if split_alias(asked) is not None and split_alias(name) == split_alias(asked)]
        if asked not in names and len(fitting) != 1:
            raise FieldError("no such split", expected=" or ".join(names), found=asked)
        return asked if asked in names else fitting[0]
