"""Data into a folder of a repository: samples are written, whole shards are copied as they are."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from shoal.dataset import Dataset, write_samples
from shoal.errors import OptionError, WriteError
from shoal.schema import schema_from_json, schema_to_json
from shoal.shard import (
    SHARD_ENDINGS,
    Manifest,
    ShardRecord,
    ShardRef,
    fitting_index,
    index_shard,
    index_url,
    load_manifest,
    locate_shards,
    save_index,
    shards_by_split,
    update_manifest,
)
from shoal.store import ObjectWriter, join_url, store_for

from ._cid import data_cid
from ._describe import Described, settled
from ._entry import Storage, StoredShard

__all__ = ["Progress", "write_data"]

_PART = 4 << 20
_RENEW_SECONDS = 600.0
"""Far less than the patience that gc has with writers on other machines."""

Progress = Callable[[int], None]
"""Called with each number of bytes, or of samples, that is done."""


@dataclass(frozen=True, slots=True)
class _Task:
    """Where data goes, how, and who hears of it."""

    folder: str
    options: Mapping[str, Any]
    tell: Progress
    finished: Callable[[], None]
    """Called now and then, and after each shard that is copied, so that a long job can show that it lives."""


def write_data(
    data: Any,
    storage: Storage,
    *,
    options: Mapping[str, Any],
    progress: Progress | None = None,
    finished: Callable[[], None] = lambda: None,
) -> Described:
    """Write samples, a dataset, or several by split, below the storage's root, with a manifest at the end.

    Raises WriteError when there are no samples.
    """
    task = _Task(storage.root, options, progress or (lambda done: None), finished)
    if isinstance(data, (str, os.PathLike)):
        data = Dataset(settled(data))
    parts = data if isinstance(data, Mapping) else {None: data}
    if not parts or not all(name is None or isinstance(name, str) for name in parts):
        raise OptionError("splits have names", expected="a mapping from names to samples", found=repr(parts)[:80])
    for split, part in parts.items():
        _write_part(part, split, task)
        finished()
    return _described(storage)


def _write_part(part: Any, split: str | None, task: _Task) -> None:
    refs = _whole_shards(part) if isinstance(part, Dataset) and not task.options else None
    if refs is not None:
        _copy_shards(part, refs, split, task)
    elif isinstance(part, Iterable):
        _write_samples(part, split, task)
    else:
        expected = "samples, a Dataset, or a mapping of these by split"
        raise OptionError("this cannot be written", expected=expected, found=type(part).__name__)


# ------------------------------------------------------------------------------------------------------------- samples


def _write_samples(samples: Iterable[Any], split: str | None, task: _Task) -> None:
    name = "shard" if split is None else split
    counted = _counted(samples, task)
    pattern = join_url(task.folder, f"{_file_name(name)}-%06d.tar")
    write_samples(counted, pattern, split=split or "train", hashed=True, durable=True, **task.options)


def _file_name(split: str) -> str:
    if not split.replace("-", "").replace("_", "").isalnum():
        raise OptionError("this is no name for a split", expected="letters, digits, '-' and '_'", found=repr(split))
    return split


def _counted(samples: Iterable[Any], task: _Task) -> Iterable[Any]:
    renewed = time.monotonic()
    for sample in samples:
        yield sample
        task.tell(1)
        if time.monotonic() - renewed > _RENEW_SECONDS:
            task.finished()
            renewed = time.monotonic()


# -------------------------------------------------------------------------------------------------------- whole shards


def _whole_shards(dataset: Dataset[Any]) -> tuple[ShardRef, ...] | None:
    """The tars that a dataset is all of; None where it is less, more or something else."""
    description = dataset.described
    path: Any = description.path
    is_path = isinstance(path, (str, os.PathLike)) or (
        isinstance(path, tuple) and all(isinstance(one, (str, os.PathLike)) for one in path)
    )
    plain = not description.stages and description.fields is None and description.format in (None, "webdataset")
    if not is_path or not plain or not dataset.is_whole:
        return None
    shards = getattr(dataset.source, "shards", None)
    if not isinstance(shards, tuple) or not all(isinstance(ref, ShardRef) for ref in shards):
        return None
    return shards


def _copy_shards(dataset: Dataset[Any], refs: tuple[ShardRef, ...], split: str | None, task: _Task) -> None:
    """The same bytes under names of ours, each with its index; then the manifest."""
    splits = _splits_of(dataset, refs) if split is None else {split: list(refs)}
    copied: dict[str, tuple[ShardRecord, ...]] = {}
    for name, members in splits.items():
        stem = "shard" if split is None and len(splits) == 1 else _file_name(name)
        copied[name] = tuple(
            _copy_shard(ref, f"{stem}-{number:06d}.{_ending(ref)}", task) for number, ref in enumerate(members)
        )
    source, document = _manifest_of(dataset), _document_of(dataset)
    words = {} if source is None else source.metadata

    def merged(before: Manifest) -> Manifest:
        metadata = {**before.metadata, **words}
        return Manifest({**before.splits, **copied}, metadata, document or before.schema, refs[0].rule)

    update_manifest(task.folder, merged)


def _manifest_of(dataset: Dataset[Any]) -> Manifest | None:
    manifest = getattr(dataset.source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) else None


def _document_of(dataset: Dataset[Any]) -> dict[str, Any] | None:
    """The schema, as the dataset's own manifest has it where it has one."""
    manifest = _manifest_of(dataset)
    if manifest is not None and manifest.schema is not None:
        return manifest.schema
    return None if dataset.schema is None else schema_to_json(dataset.schema)


def _ending(ref: ShardRef) -> str:
    """As the shard is called: it says how it is compressed."""
    return next((ending[1:] for ending in SHARD_ENDINGS if ref.url.lower().endswith(ending)), "tar")


def _splits_of(dataset: Dataset[Any], refs: tuple[ShardRef, ...]) -> dict[str, list[ShardRef]]:
    path: Any = dataset.described.path
    located = locate_shards(path, dataset.described.options.split)
    by_url = {ref.url: ref for ref in refs}
    if located.manifest is not None and located.root is not None:
        listed = {
            name: [by_url[url] for one in records if (url := join_url(located.root, one.path)) in by_url]
            for name, records in located.manifest.splits.items()
        }
        return {name: members for name, members in listed.items() if members}
    return {name: [by_url[url] for url in urls] for name, urls in shards_by_split(list(by_url), located.root).items()}


def _copy_shard(ref: ShardRef, name: str, task: _Task) -> ShardRecord:
    target = join_url(task.folder, name)
    digest, size = _copied(ref.url, target, task.tell)
    with closing(store_for(target).open(target)) as reader:
        kept = None if ref.sidecar is None else fitting_index(ref.sidecar, reader)
        index = index_shard(reader, ref.rule) if kept is None else kept
    save_index(index, index_url(task.folder, name))
    keys = index.keys
    first, last = (keys[0].as_py(), keys[-1].as_py()) if len(keys) else (None, None)
    task.finished()
    return ShardRecord(name, len(keys), size, first, last, index.facts.compression, digest)


def _copied(url: str, target: str, tell: Progress) -> tuple[str, int]:
    """Copy an object and hash it on the way."""
    digest = hashlib.sha256()
    writer: ObjectWriter = store_for(target).create(target)
    try:
        with closing(store_for(url).open(url)) as reader:
            size = reader.info.size
            for start in range(0, size, _PART):
                data = reader.read(start, min(start + _PART, size))
                digest.update(data)
                writer.write(data)
                tell(len(data))
        writer.commit(durable=True)
    except BaseException:
        writer.abort()
        raise
    return digest.hexdigest(), size


# ------------------------------------------------------------------------------------------------------------- outcome


def _described(storage: Storage) -> Described:
    """What the manifest says of what was written."""
    manifest = load_manifest(storage.root)
    if manifest is None or not manifest.shards:
        raise WriteError("there are no samples to write", expected="at least one")
    shards = tuple(
        StoredShard(one.path, split, one.samples, one.bytes, one.sha256)
        for split, records in manifest.splits.items()
        for one in records
    )
    schema = None if manifest.schema is None else schema_from_json(manifest.schema)
    cid = data_cid([(shard.split, str(shard.sha256)) for shard in shards])
    return Described(cid, replace(storage, has_manifest=True), shards, schema)
