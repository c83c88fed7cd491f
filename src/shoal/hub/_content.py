"""The files that a push uploads: those of a folder of shards, or of a view that is written out first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal._typing import IntArray
from shoal.dataset._dataset import Dataset
from shoal.dataset._write import write_samples
from shoal.errors import FieldError, ObjectNotFoundError, OptionError
from shoal.schema._json_schema import schema_to_json
from shoal.shard._copy import copy_samples
from shoal.shard._discovery import SHARD_ENDINGS, locate_shards
from shoal.shard._manifest import Manifest, ShardRecord, load_manifest, manifest_url, merge_shards, record_of
from shoal.shard._open_shards import index_shard
from shoal.shard._row_view import RowView
from shoal.shard._shard_rows import ShardRows
from shoal.shard._source import ShardSource, Source
from shoal.shard._stored_rows import index_path, load_rows, save_rows
from shoal.shard._table import ShardRef
from shoal.shard._writer import ShardWriter
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, parent_url, relative_url

__all__ = [
    "TOMBSTONES_PATH",
    "Content",
    "HubFolder",
    "compacted",
    "content_of",
    "manifest_path",
    "raw_rows",
]

HubFolder = str | os.PathLike[str]
_README = "README.md"
_RUN_BYTES = 64 << 20
_MOST_ROWS = 4096
_MAX_REWRITE_ROWS = 256
TOMBSTONES_PATH = ".shoal/tombstones.json"


@dataclass(frozen=True, slots=True)
class Content:
    """A dataset as files: where each file of the repository is now."""

    root: str
    """The folder that its samples can be read from."""
    manifest: Manifest
    files: Mapping[str, str]
    """URLs by path, but for the manifest, which is made for each push, and the card."""
    readme: str | None = None
    """The URL of a card that the folder has."""
    deleted: Mapping[str, IntArray] = field(default_factory=dict)
    """Rows of deleted samples that are still in a shard, by the path of the shard."""


def content_of(dataset: HubFolder | Dataset[Any] | Mapping[str, Dataset[Any]], staging: str) -> Content:
    """The files of a dataset. What is no folder of shards yet is written as one into ``staging``.

    A Dataset that shows a whole folder, or a whole split of one, is that folder or split; any other view is written
    out, sample by sample. Raises ObjectNotFoundError when there are no shards.
    """
    if isinstance(dataset, Mapping):
        return _of_splits(dataset, staging)
    if isinstance(dataset, Dataset):
        return _of_splits({_split_shown(dataset): dataset}, staging)
    if not isinstance(dataset, (str, os.PathLike)):
        raise OptionError("this cannot be pushed", expected="a folder, a Dataset or a DatasetDict", found=repr(dataset))
    return _of_folder(os.fspath(dataset).rstrip("/"), staging)


def restricted(content: Content, splits: Iterable[str]) -> Content:
    """Only these splits, with only their files. Raises FieldError for one that is not there."""
    kept = {name: _records(content.manifest, name) for name in splits}
    dropped = {
        record.path for name, records in content.manifest.splits.items() if name not in kept for record in records
    }
    gone = dropped | {index_path(path) for path in dropped}
    files = {path: url for path, url in content.files.items() if path not in gone}
    deleted = {path: rows for path, rows in content.deleted.items() if path not in gone}
    return replace(content, manifest=replace(content.manifest, splits=kept), files=files, deleted=deleted)


def compacted(content: Content, staging: str) -> Content:
    """The same dataset without the bytes of deleted samples: shards that hold some are rewritten into ``staging``."""
    files = {path: url for path, url in content.files.items() if path != TOMBSTONES_PATH}
    records: dict[str, ShardRecord] = {}
    for path, rows in content.deleted.items():
        index = _without_rows(content, path, rows, staging)
        if index is None:
            del files[path], files[index_path(path)]
        else:
            files |= {path: join_url(staging, path), index_path(path): join_url(staging, index_path(path))}
            records[path] = record_of(path, index)
    splits = {
        name: tuple(records.get(record.path, record) for record in members if record.path in files)
        for name, members in content.manifest.splits.items()
    }
    return replace(content, manifest=replace(content.manifest, splits=splits), files=files, deleted={})


def _without_rows(content: Content, path: str, deleted: IntArray, staging: str) -> ShardRows | None:
    """Write a shard without some of its samples, and its index; None where none is left."""
    rule, target = content.manifest.rule, join_url(staging, path)
    source = ShardSource([ShardRef(content.files[path], None, content.files[index_path(path)], rule)], rule=rule)
    try:
        rows = np.delete(np.arange(len(source)), deleted)
        if not len(rows):
            return None
        written = copy_samples(target, source, rows)  # samples of a compressed shard are written again instead
        index = _rewritten(target, source, rows) if written is None else written.index
    finally:
        source.close()
    save_rows(index, staging, path)
    return index


def _rewritten(target: str, source: ShardSource, rows: IntArray) -> ShardRows:
    with ShardWriter(target, max_samples=len(rows), max_bytes=1 << 62) as writer:
        for sample in raw_rows(source, RowView.from_rows(rows), None, _RUN_BYTES / _MAX_REWRITE_ROWS):
            writer.write(sample)
    return load_rows(parent_url(target), base_name(target))


def _records(manifest: Manifest, split: str) -> Any:
    if split not in manifest.splits:
        raise FieldError("no such split", expected=" or ".join(manifest.splits), found=split)
    return manifest.splits[split]


def _of_folder(root: str, staging: str) -> Content:
    if not store_for(root).is_folder(root):
        raise ObjectNotFoundError("no such folder", found=root)
    held = load_manifest(root)
    manifest = _indexed(root, staging) if held is None else held
    shards = {record.path for record in manifest.shards}
    below = [(relative_url(info.url, root), info.url) for info in store_for(root).list(root)]
    files = {path: url for path, url in below if path in shards or _is_pushed(path)}
    home = staging if held is None else root
    files |= {index_path(path): join_url(home, index_path(path)) for path in shards}
    files.pop(manifest_path(), None)
    return Content(root, manifest, files, files.pop(_README, None), _deleted_rows(root, manifest))


def _deleted_rows(root: str, manifest: Manifest) -> dict[str, IntArray]:
    """The rows of deleted samples in each shard that has some."""
    dataset: Dataset[Any] | None = Dataset(root) if manifest.shards else None
    if dataset is None or dataset.is_whole or not isinstance(dataset.source, ShardSource):
        return {}
    source = dataset.source
    deleted = RowView.whole(len(source)).without(dataset.rows)
    return {relative_url(source.shards[number].url, root): rows for number, rows in deleted.split_by(source.starts)}


def _is_pushed(path: str) -> bool:
    """Whether a file that is no shard of the dataset is pushed with it: not what writers keep, not other tars."""
    hidden = [part for part in path.split("/") if part.startswith(".")]
    if hidden and (hidden[0] != ".shoal" or len(hidden) > 1):
        return False
    below = path.removeprefix(".shoal/")
    kept_by_writers = hidden and below.startswith(("staging/", "journal-", "commit", "card/", "index/"))
    return not kept_by_writers and not path.lower().endswith(SHARD_ENDINGS)


def _indexed(root: str, staging: str) -> Manifest:
    """The manifest of tars that have none: each is indexed, in ``staging``, since the folder may be of others."""
    manifest = Manifest({})
    for split, shards in locate_shards(root).urls_by_split().items():
        records = []
        for url in shards:
            path = relative_url(url, root)
            reader = store_for(url).open(url)
            try:
                index = index_shard(reader)
            finally:
                reader.close()
            save_rows(index, staging, path)
            records.append(record_of(path, index))
        manifest = merge_shards(manifest, split, records)
    return manifest


def manifest_path() -> str:
    """Where the manifest is in a repository."""
    return relative_url(manifest_url("x"), "x")


def _of_splits(splits: Mapping[str, Dataset[Any]], staging: str) -> Content:
    if not splits:
        raise OptionError("there is nothing to push", expected="at least one split")
    root = _shared_folder(splits)
    if root is not None:
        return restricted(_of_folder(root, staging), splits)
    for split, dataset in splits.items():
        _write_out(dataset, split, staging)
    return _of_folder(staging, staging)


def _shared_folder(splits: Mapping[str, Dataset[Any]]) -> str | None:
    """The folder of which these are whole splits; None when they are not."""
    roots = {_folder_of(dataset, split) for split, dataset in splits.items()}
    return roots.pop() if len(roots) == 1 else None


def _folder_of(dataset: Dataset[Any], split: str) -> str | None:
    said, source = dataset.described, dataset.source
    if not isinstance(said.path, (str, os.PathLike)) or not isinstance(source, ShardSource) or source.manifest is None:
        return None
    if said.stages or said.fields is not None or not dataset.is_whole or split not in source.manifest.splits:
        return None
    root = os.fspath(said.path).rstrip("/")
    meant = [join_url(root, record.path) for record in source.manifest.splits[split]]
    return root if [ref.url for ref in source.shards] == meant and store_for(root).is_folder(root) else None


def _split_shown(dataset: Dataset[Any]) -> str:
    """The split that a dataset shows, ``train`` when it says none."""
    source = dataset.source
    if isinstance(source, ShardSource) and source.manifest is not None:
        urls = {ref.url for ref in source.shards}
        for name, records in source.manifest.splits.items():
            if any(url.endswith(f"/{record.path}") for record in records for url in urls):
                return name
    return dataset.described.options.split or "train"


def _write_out(dataset: Dataset[Any], split: str, staging: str) -> None:
    """Write the samples in view: stored bytes as they are, and what functions made of them as a writer encodes it."""
    said, source, pattern = dataset.described, dataset.source, join_url(staging, f"{split}-%06d.tar")
    if said.stages or not isinstance(source, ShardSource):
        write_samples(dataset, pattern, split=split, metadata=dataset.metadata, overwrite=True)
        return
    schema = None if dataset.schema is None else schema_to_json(dataset.schema)
    sizes = [ref.size or 0 for ref in source.shards]
    with ShardWriter(pattern, split=split, metadata=dataset.metadata, schema=schema, overwrite=True) as writer:
        for sample in raw_rows(source, dataset.rows, said.fields, sum(sizes) / max(len(source), 1)):
            writer.write(sample)


def raw_rows(
    source: Source, rows: RowView, fields: Sequence[str] | None, mean_bytes: float
) -> Iterator[dict[str, Any]]:
    """These samples with these fields, as bytes; so many are read at once as fit in memory."""
    step = int(min(max(_RUN_BYTES / max(mean_bytes, 1), 1), _MOST_ROWS))
    for part in rows.chunks(step):
        for sample in source.read(part, fields):
            yield {name: value for name, value in sample.items() if name == "__key__" or not name.startswith("__")}
