"""Description of data where it is: its shards with sizes, counts and hashes, and its schema, for an index."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shoal.dataset._dataset import Dataset
from shoal.errors import ObjectNotFoundError, OptionError
from shoal.formats._registry import detect, has_format
from shoal.schema._json_schema import schema_from_json
from shoal.schema._schema import Schema
from shoal.shard._discovery import SHARD_ENDINGS, files_below, locate_shards, shards_by_split
from shoal.shard._manifest import Manifest, load_manifest
from shoal.shard._open_shards import open_shard
from shoal.store._options import options_for
from shoal.store._registry import store_for
from shoal.store._url import parent_url, relative_url, scheme_of

from ._cid import cid_of, data_cid
from ._credentials import check_no_secret
from ._entry import Storage, StoredShard

__all__ = ["DataDescription", "describe", "hash_object", "storage_of", "to_absolute"]

_PART_BYTES = 4 << 20
_MAX_THREADS = 8
_WRITE_IT = "write it with Repo.insert, or add the dataset it was made from"


@dataclass(frozen=True, slots=True)
class DataDescription:
    """Shards with their hashes, where they are, and their schema."""

    cid: str
    storage: Storage
    shards: tuple[StoredShard, ...]
    schema: Schema | None = None


@dataclass(frozen=True, slots=True)
class _Files:
    """Files by split, and the manifest that lists them."""

    files: dict[str, list[str]]
    root: str
    manifest: Manifest | None = None
    whole: bool = True


def describe(data: Any, *, hashed: bool = True) -> DataDescription:
    """Describe a dataset, a path, a pattern, a URL or a list of these.

    Every byte is read once for its hash, unless the manifest has it. Raises OptionError for a dataset that is not
    exactly the content of its files: a filtered one, a mixture, one of a data source.
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
    found = _find(to_absolute(path), split)
    storage = storage_of(found.root, has_manifest=found.manifest is not None and found.whole)
    shards = _shards(found, storage, hashed)
    if schema is None and found.manifest is not None and found.manifest.schema is not None:
        schema = schema_from_json(found.manifest.schema)
    return DataDescription(_content_id(shards, storage), storage, shards, schema)


def _is_path(path: Any) -> bool:
    if isinstance(path, (str, os.PathLike)):
        return True
    return isinstance(path, (list, tuple)) and bool(path) and all(isinstance(one, (str, os.PathLike)) for one in path)


def to_absolute(path: Any) -> str | list[str]:
    """Return paths as absolute paths, and URLs unchanged. Raises OptionError for a URL with credentials in it."""
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        is_plain = scheme_of(text) == "file" and not text.startswith("file://")
        return os.path.abspath(os.path.expanduser(text)) if is_plain else check_no_secret(text)
    return [one for item in path for one in [to_absolute(item)] if isinstance(one, str)]


def storage_of(root: str, *, has_manifest: bool) -> Storage:
    """Return the storage of a folder, with endpoint and region but without secrets."""
    if scheme_of(root) not in ("s3", "s3a"):
        return Storage(root, has_manifest=has_manifest)
    options, told = options_for(root), os.environ
    endpoints = (options.endpoint, *map(told.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")))
    regions = (options.region, told.get("AWS_REGION"), told.get("AWS_DEFAULT_REGION"))
    return Storage(root, next(filter(None, endpoints), None), next(filter(None, regions), None), has_manifest)


def _find(path: str | list[str], split: str | None) -> _Files:
    if isinstance(path, str) and store_for(path).is_folder(path) and detect(path) != "webdataset":
        return _files_of_format(path)
    located = locate_shards(path, split)
    if located.manifest is not None and located.root is not None:
        root = located.root.rstrip("/")
        splits = located.manifest.splits.items()
        chosen = {name: [f"{root}/{one.path}" for one in records] for name, records in splits if split in (None, name)}
        return _Files(chosen, root, located.manifest, whole=split is None)
    urls = [ref.url for ref in located.shards]
    return _with_manifest(urls) or _Files(located.urls_by_split(), _folder_of(urls))


def _with_manifest(urls: list[str]) -> _Files | None:
    """Return shards with the manifest of their folder, if it lists them in this order; else None."""
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
    return _Files(files, root, manifest, whole=files == listed)


def _files_of_format(root: str) -> _Files:
    kind = detect(root)
    files = [info.url for info in files_below(root) if has_format(info.url, kind)]
    if not files:
        raise ObjectNotFoundError(f"the folder has no {kind} files", found=root)
    return _Files(shards_by_split(files, root), root.rstrip("/"))


def _folder_of(urls: Sequence[str]) -> str:
    """Return the deepest folder that contains all URLs."""
    folder = parent_url(urls[0])
    while any(not url.startswith(f"{folder.rstrip('/')}/") for url in urls):
        above = parent_url(folder)
        if above == folder:
            break
        folder = above
    return folder


def _shards(found: _Files, storage: Storage, hashed: bool) -> tuple[StoredShard, ...]:
    recorded = {} if found.manifest is None else {one.path: one for one in found.manifest.shards}

    def look(item: tuple[str, str]) -> StoredShard:
        split, url = item
        path = relative_url(url, storage.root)
        size, known = store_for(url).info(url).size, recorded.get(path)
        samples = None if known is None else known.samples
        if not hashed:
            return StoredShard(path, split, samples, size)
        kept = known.sha256 if known is not None and known.bytes == size else None
        return StoredShard(path, split, _count(url, samples), size, kept or hash_object(url)[1])

    items = [(split, url) for split, urls in found.files.items() for url in urls]
    with ThreadPoolExecutor(_MAX_THREADS) as pool:  # hashing and reading let other threads run
        return tuple(pool.map(look, items))


def _count(url: str, known: int | None) -> int | None:
    """Return the number of samples in a tar; None for a file of another format."""
    if known is not None or not url.lower().endswith(SHARD_ENDINGS):
        return known
    with closing(open_shard(url)) as shard:
        return len(shard)


def hash_object(url: str, progress: Callable[[int], None] | None = None) -> tuple[int, str]:
    """Read an object once and return its size and sha256; ``progress`` is called with each number of bytes."""
    digest = hashlib.sha256()
    with closing(store_for(url).open(url)) as reader:
        for start in range(0, reader.info.size, _PART_BYTES):
            data = reader.read(start, min(start + _PART_BYTES, reader.info.size))
            digest.update(data)
            if progress is not None:
                progress(len(data))
        return reader.info.size, digest.hexdigest()


def _content_id(shards: Sequence[StoredShard], storage: Storage) -> str:
    known = [(shard.split, shard.sha256) for shard in shards if shard.sha256 is not None]
    if len(known) == len(shards):
        return data_cid(known)
    # Without hashes, URL, size and object version identify the bytes.
    infos = [store_for(url).info(url) for url in (storage.url(shard.path) for shard in shards)]
    return cid_of([[shard.split, info.url, info.size, info.version] for shard, info in zip(shards, infos, strict=True)])
