"""`Entry`: one version of a dataset, and how it is derived from the data."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from shoal.dataset import Dataset
from shoal.errors import FieldError, FormatError, ObjectNotFoundError, OptionError
from shoal.formats import detect
from shoal.schema import Schema, schema_from_json
from shoal.shard import SHARD_ENDINGS, Manifest, load_manifest, locate_shards, open_shard, shards_by_split, split_alias
from shoal.store import join_url, options_for, parent_url, relative_url, scheme_of, store_for

from ._credentials import CredentialsLike, check_no_secret, reach

if TYPE_CHECKING:
    from ._index import LocalIndex

__all__ = ["DataDescription", "Entry", "Storage", "StoredShard", "cid_of", "data_cid", "describe", "home_of", "settled"]

Part = str | bytes | int


# ---------------------------------------------------------------- entry: one version of a dataset, as an index keeps it


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


# -------------------------------------------------------------------------- what lies somewhere, as an index records it


_PART = 4 << 20
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class DataDescription:
    """Data where it lies."""

    cid: str
    storage: Storage
    shards: tuple[StoredShard, ...]
    schema: Schema | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """Files by split, and the manifest that named them."""

    files: dict[str, list[str]]
    root: str
    manifest: Manifest | None = None
    whole: bool = True


def describe(data: Any, *, hashed: bool = True) -> DataDescription:
    """What a dataset, a path, a pattern, a URL or a list of these names.

    Every byte is read once for its hash, unless the manifest has it. Raises OptionError for a dataset that is not just
    what lies in its files: a filtered one, a mixture, one of a data source.
    """
    schema = None
    split: str | None = None
    if isinstance(data, Dataset):
        description = data.described
        path: Any = description.path
        if description.stages or description.fields is not None or not data.is_whole or not _is_path(path):
            raise OptionError("only whole files are added to an index", found=repr(data)[:200], hint=_WRITE_IT)
        schema, split = data.schema, description.options.split
    else:
        path = data
    if not _is_path(path):
        raise OptionError("this names no dataset", expected="a Dataset, a path or a URL", found=type(data).__name__)
    found = _find(settled(path), split)
    storage = home_of(found.root, has_manifest=found.manifest is not None and found.whole)
    shards = _shards(found, storage, hashed)
    if schema is None and found.manifest is not None and found.manifest.schema is not None:
        schema = schema_from_json(found.manifest.schema)
    return DataDescription(_cid(shards, storage), storage, shards, schema)


_WRITE_IT = "write it with Repo.insert, or add the dataset it was made from"


def _is_path(path: Any) -> bool:
    if isinstance(path, (str, os.PathLike)):
        return True
    return isinstance(path, (list, tuple)) and bool(path) and all(isinstance(one, (str, os.PathLike)) for one in path)


def settled(path: Any) -> str | list[str]:
    """Paths that mean the same in any folder; URLs as they are. Raises OptionError for one with credentials in it."""
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        is_plain = scheme_of(text) == "file" and not text.startswith("file://")
        return os.path.abspath(os.path.expanduser(text)) if is_plain else check_no_secret(text)
    return [one for item in path for one in [settled(item)] if isinstance(one, str)]


def home_of(root: str, *, has_manifest: bool) -> Storage:
    """A folder with how it is reached, as far as that is no secret."""
    if scheme_of(root) not in ("s3", "s3a"):
        return Storage(root, has_manifest=has_manifest)
    options, told = options_for(root), os.environ
    endpoints = (options.endpoint, *map(told.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")))
    regions = (options.region, told.get("AWS_REGION"), told.get("AWS_DEFAULT_REGION"))
    return Storage(root, next(filter(None, endpoints), None), next(filter(None, regions), None), has_manifest)


# ------------------------------------------------------------------------------------------------------- what is there


def _find(path: str | list[str], split: str | None) -> _Found:
    if isinstance(path, str) and store_for(path).is_folder(path) and detect(path) != "webdataset":
        return _of_format(path)
    located = locate_shards(path, split)
    if located.manifest is not None and located.root is not None:
        root = located.root.rstrip("/")
        splits = located.manifest.splits.items()
        chosen = {name: [f"{root}/{one.path}" for one in records] for name, records in splits if split in (None, name)}
        return _Found(chosen, root, located.manifest, whole=split is None)
    urls = [ref.url for ref in located.shards]
    return _with_manifest(urls) or _Found(shards_by_split(urls, located.root), _folder_of(urls))


def _with_manifest(urls: list[str]) -> _Found | None:
    """Shards that the manifest of their folder lists, in its order: then it says what they are."""
    root = _folder_of(urls).rstrip("/")
    manifest = load_manifest(root)
    if manifest is None:
        return None
    listed = {name: [f"{root}/{one.path}" for one in records] for name, records in manifest.splits.items()}
    asked = set(urls)
    chosen = {name: [url for url in members if url in asked] for name, members in listed.items()}
    if [url for members in chosen.values() for url in members] != urls:
        return None
    files = {name: members for name, members in chosen.items() if members}
    return _Found(files, root, manifest, whole=files == listed)


def _of_format(root: str) -> _Found:
    kind = detect(root)
    urls = [info.url for info in store_for(root).list(root)]
    shown = [url for url in urls if not any(part.startswith(".") for part in relative_url(url, root).split("/"))]
    files = [url for url in shown if _is_of(url, kind)]
    if not files:
        raise ObjectNotFoundError(f"the folder has no {kind} files", found=root)
    return _Found(shards_by_split(files, root), root.rstrip("/"))


def _is_of(url: str, kind: str) -> bool:
    try:
        return detect([url]) == kind
    except FormatError:
        return False


def _folder_of(urls: Sequence[str]) -> str:
    """The folder that holds them all."""
    folder = parent_url(urls[0])
    while any(not url.startswith(f"{folder.rstrip('/')}/") for url in urls):
        above = parent_url(folder)
        if above == folder:
            break
        folder = above
    return folder


def _shards(found: _Found, storage: Storage, hashed: bool) -> tuple[StoredShard, ...]:
    said = {} if found.manifest is None else {one.path: one for one in found.manifest.shards}

    def look(item: tuple[str, str]) -> StoredShard:
        split, url = item
        path = relative_url(url, storage.root)
        size, known = store_for(url).info(url).size, said.get(path)
        samples = None if known is None else known.samples
        if not hashed:
            return StoredShard(path, split, samples, size)
        kept = known.sha256 if known is not None and known.bytes == size else None
        return StoredShard(path, split, _count(url, samples), size, kept or sha256_of(url))

    items = [(split, url) for split, urls in found.files.items() for url in urls]
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # hashing and reading let other threads run
        return tuple(pool.map(look, items))


def _count(url: str, known: int | None) -> int | None:
    """How many samples a tar has; None for another format's file."""
    if known is not None or not url.lower().endswith(SHARD_ENDINGS):
        return known
    with closing(open_shard(url)) as shard:
        return len(shard)


def sha256_of(url: str) -> str:
    """The sha256 of an object, read once."""
    digest = hashlib.sha256()
    with closing(store_for(url).open(url)) as reader:
        for start in range(0, reader.info.size, _PART):
            digest.update(reader.read(start, min(start + _PART, reader.info.size)))
    return digest.hexdigest()


def _cid(shards: Sequence[StoredShard], storage: Storage) -> str:
    known = [(shard.split, shard.sha256) for shard in shards if shard.sha256 is not None]
    if len(known) == len(shards):
        return data_cid(known)
    # Not hashed: what tells these bytes from others is where they are and which version of them is there.
    infos = [store_for(url).info(url) for url in (storage.url(shard.path) for shard in shards)]
    return cid_of([[shard.split, info.url, info.size, info.version] for shard, info in zip(shards, infos, strict=True)])


# ---------------------------------------------------------------------------------------------------- content addresses


_DAG_CBOR_SHA256 = bytes((0x01, 0x71, 0x12, 0x20))
"""CID version 1, DAG-CBOR, sha2-256 of 32 bytes."""


def cid_of(parts: Sequence[Sequence[Part]]) -> str:
    """The CID of a list of lists of texts, bytes and numbers, as any IPLD tool computes it.

    Example:
        >>> cid_of([["train", bytes(32)]])[:8]
        'bafyreih'
    """
    encoded = _head(4, len(parts)) + b"".join(_head(4, len(inner)) + b"".join(map(_encoded, inner)) for inner in parts)
    digest = _DAG_CBOR_SHA256 + hashlib.sha256(encoded).digest()
    return "b" + base64.b32encode(digest).decode().lower().rstrip("=")


def data_cid(shards: Sequence[tuple[str, str]]) -> str:
    """The CID of shards in order, each a split's name and the sha256 of its bytes in hex.

    Example:
        >>> one, two = data_cid([("train", "00" * 32)]), data_cid([("test", "00" * 32)])
        >>> len(one), one == two
        (59, False)
    """
    return cid_of([[split, bytes.fromhex(sha256)] for split, sha256 in shards])


def _encoded(part: Part) -> bytes:
    if isinstance(part, int):
        return _head(0, part)
    raw = part.encode() if isinstance(part, str) else part
    return _head(3 if isinstance(part, str) else 2, len(raw)) + raw


def _head(major: int, number: int) -> bytes:
    """CBOR's first bytes of an item, in the shortest form, which is the only one that DAG-CBOR has."""
    if number < 24:
        return bytes((major << 5 | number,))
    size = next(size for size in (1, 2, 4, 8) if number < 256**size)
    return bytes((major << 5 | 24 + (1, 2, 4, 8).index(size),)) + number.to_bytes(size, "big")
