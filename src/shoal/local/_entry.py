"""`Entry`: one version of a dataset in an index, and the checks of what users say about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from shoal.dataset._dataset import Dataset
from shoal.errors import FieldError, OptionError
from shoal.shard._split_names import split_alias
from shoal.store._url import join_url, scheme_of

from ._credentials import CredentialsLike, reach

if TYPE_CHECKING:
    from ._index import LocalIndex

__all__ = ["Entry", "Storage", "StoredShard", "check_description", "check_metadata", "check_tags"]

_MAX_METADATA_BYTES = 1 << 20
_MAX_METADATA_DEPTH = 64
_MAX_TAGS, _MAX_TAG_LETTERS, _MAX_DESCRIPTION_LETTERS = 30, 150, 5000  # as in an AT Protocol record


@dataclass(frozen=True, slots=True)
class StoredShard:
    """One shard of a dataset."""

    path: str
    """Relative to the storage's root, or a complete URL."""
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

    Examples:
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


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Metadata as JSON gives it back; None for none.

    Raises OptionError for what JSON cannot hold as it is, for more than 1 MiB, and for more than 64 levels.

    Examples:
        >>> check_metadata({"source": "camera 3", "sizes": (1, 2)})
        {'source': 'camera 3', 'sizes': [1, 2]}
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise OptionError("metadata is a mapping", found=type(metadata).__name__)
    _check_json(dict(metadata), "metadata", _MAX_METADATA_DEPTH)
    text = json.dumps(dict(metadata), ensure_ascii=False)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise OptionError("metadata is not text that can be stored", found="half of a surrogate pair") from None
    if size > _MAX_METADATA_BYTES:
        hint = "keep it in a file of the dataset, and its name here"
        raise OptionError(
            "the metadata is too large", expected=f"at most {_MAX_METADATA_BYTES} bytes", found=size, hint=hint
        )
    kept: dict[str, Any] = json.loads(text)
    return kept


def _check_json(node: Any, path: str, left: int) -> None:
    if not left:
        raise OptionError(
            "the metadata is too deep, or contains itself", expected=f"{_MAX_METADATA_DEPTH} levels", field=path
        )
    if isinstance(node, dict):
        for name, inner in node.items():
            if not isinstance(name, str):
                raise OptionError("names in metadata are texts", found=repr(name)[:80], field=path)
            _check_json(inner, f"{path}.{name[:40]}", left - 1)
    elif isinstance(node, list | tuple):
        for inner in node:
            _check_json(inner, f"{path}[]", left - 1)
    elif not _is_json_scalar(node):
        expected = "texts, finite numbers below 2**63, true, false, null, lists and mappings"
        raise OptionError("this cannot be metadata", expected=expected, found=repr(node)[:80], field=path)


def _is_json_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return value - value == 0  # neither infinite nor NaN
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, str)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags in their one spelling, sorted, each once. Raises OptionError.

    Examples:
        >>> check_tags(["vision", "animals", "vision"])
        ('animals', 'vision')
    """
    if isinstance(tags, str):
        raise OptionError("tags are a list", expected=f"[{tags!r}]", found=repr(tags))
    kept = sorted(set(map(_check_tag, tags)))
    if len(kept) > _MAX_TAGS:
        raise OptionError("there are too many tags", expected=f"at most {_MAX_TAGS}", found=len(kept))
    return tuple(kept)


def _check_tag(tag: object) -> str:
    text = tag.strip() if isinstance(tag, str) else ""
    if not text or len(text) > _MAX_TAG_LETTERS or not text.isprintable():
        raise OptionError(
            "this is no tag", expected=f"1 to {_MAX_TAG_LETTERS} printable letters", found=repr(tag)[:200]
        )
    return text


def check_description(text: object) -> str:
    """The text itself. Raises OptionError for one that is too long, or none."""
    if not isinstance(text, str) or len(text) > _MAX_DESCRIPTION_LETTERS:
        found = len(text) if isinstance(text, str) else repr(text)[:80]
        raise OptionError(
            "this is no description", expected=f"a text of at most {_MAX_DESCRIPTION_LETTERS} letters", found=found
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError("the description is not text that can be stored", found="half of a surrogate pair") from None
    return text
