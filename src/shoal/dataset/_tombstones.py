"""Tombstones: samples deleted without changing a tar.

They are in ``.shoal/tombstones.json`` beside the manifest, which is replaced atomically and read when a dataset is
opened. A tombstone names a shard, a row and the key there: keys may repeat from shard to shard. The size of the tar and
the crc of its first header are recorded, so that it does not apply to a new shard of the same name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa

from shoal._typing import IntArray
from shoal.errors import FormatError, ManifestError, ObjectNotFoundError, ShoalWarning, StoreError
from shoal.shard._discovery import is_dataset_folder
from shoal.shard._manifest import Manifest, load_manifest
from shoal.shard._row_view import RowView
from shoal.shard._shard_rows import IndexMetadata, ShardRows
from shoal.shard._source import ShardSource, Source
from shoal.store._registry import store_for
from shoal.store._url import base_name, join_url, parent_url, scheme_of

from ._deletion import Tombstone

__all__ = ["add_tombstones", "remove_tombstones", "rows_not_deleted", "tombstones_of"]

_FORMAT_VERSION = 1
_NAME = "tombstones.json"


@dataclass(frozen=True, slots=True)
class _Deleted:
    """The key of a deleted sample, and why it was deleted."""

    key: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _ShardTombstones:
    """The deleted samples of one shard, and which shard that was."""

    size: int
    head_crc: int
    rows: dict[int, _Deleted] = field(default_factory=dict)

    def fits(self, facts: IndexMetadata) -> bool:
        return (self.size, self.head_crc) == (facts.size, facts.head_crc)


_TombstonesByPath = dict[str, _ShardTombstones]
"""By the path of the shard in the folder with the tombstones."""


def _tombstones_url(folder: str) -> str:
    return join_url(folder, ".shoal", _NAME)


def _load(folder: str) -> _TombstonesByPath:
    url = _tombstones_url(folder)
    try:
        document = msgspec.json.decode(store_for(url).read_all(url))
        version = document["shoal"]
        if version > _FORMAT_VERSION:
            raise ManifestError("the tombstones are of a newer shoal", found=version, shard=url, hint="upgrade shoal")
        return msgspec.convert(document["shards"], dict[str, _ShardTombstones], strict=False)
    except ObjectNotFoundError:
        return {}
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
        # To ignore the file would silently bring deleted samples back.
        hint = "restore the file, or open with tombstones=False to see all samples"
        raise ManifestError("the tombstones cannot be read", found=str(error), shard=url, hint=hint) from error


def _save(folder: str, by_path: _TombstonesByPath) -> None:
    url, kept = _tombstones_url(folder), {path: stones for path, stones in by_path.items() if stones.rows}
    if not kept:
        store_for(url).delete(url)
        return
    shards = {path: msgspec.to_builtins(kept[path], str_keys=True) for path in sorted(kept)}
    document = {"shoal": _FORMAT_VERSION, "shards": shards}
    store_for(url).write_all(url, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def _folders(source: ShardSource, path: object) -> list[str]:
    """Every folder that may keep tombstones of these shards: the dataset's, or those that hold the shards."""
    root = _root(path)
    if root is not None and source.manifest is not None:
        return [root]
    folders = dict.fromkeys(parent_url(ref.url) for ref in source.shards)
    return list(folders if root is None else {root: None, **folders})


def _parent_folders(folders: Sequence[str]) -> list[str]:
    """The folders above these: a shard may be in a subfolder of its dataset."""
    parents = dict.fromkeys(parent_url(folder) for folder in folders)
    return [parent for parent in parents if not parent.endswith("://") and parent not in folders]


def _root(path: object) -> str | None:
    """The folder that a path names, itself or by its manifest."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    text = os.fspath(path)
    if base_name(text) == "manifest.json" and base_name(parent_url(text)) == ".shoal":
        return parent_url(parent_url(text))
    return text if is_dataset_folder(text) else None


def _folder_of(url: str, root: str | None, manifest_at: Callable[[str], Manifest | None]) -> str:
    """The folder that keeps the tombstones of a shard: its dataset's, whichever way the shard was named."""
    if root is not None:
        return root
    folder = parent_url(url)
    above = parent_url(folder)
    manifest = manifest_at(above)
    inside = manifest is not None and _path_in(above, url) in {record.path for record in manifest.shards}
    return above if inside else folder


def _by_url(source: ShardSource, path: object) -> dict[str, _ShardTombstones]:
    """The tombstones in all folders, by the URL of the shard."""
    found: dict[str, _ShardTombstones] = {}
    for folder, by_path in _load_all(source, path):
        for url in dict.fromkeys(ref.url for ref in source.shards) if by_path else ():
            stones = by_path.get(_path_in(folder, url) or "")
            if stones is not None:
                found[url] = replace(stones, rows={**found[url].rows, **stones.rows}) if url in found else stones
    return found


def _load_all(source: ShardSource, path: object) -> Iterator[tuple[str, _TombstonesByPath]]:
    folders = _folders(source, path)
    yield from ((folder, _load(folder)) for folder in folders)
    if _root(path) is None:
        for folder in _parent_folders(folders):
            with contextlib.suppress(StoreError):  # without access to the folder there is no dataset in it
                yield folder, _load(folder)


def _path_in(folder: str, url: str) -> str | None:
    """The path of a shard in a folder, the same for each spelling of its URL; None if it is not in the folder."""
    base, name = folder.removeprefix("./"), url.removeprefix("./")
    if base not in (".", ""):
        base = base if base.endswith("/") else f"{base}/"
        if not name.startswith(base):
            return None
        name = name.removeprefix(base)
    elif name.startswith("/") or scheme_of(name) != "file":
        return None
    return unquote(name) if url.startswith("file://") else name


def rows_not_deleted(source: Source, path: object) -> RowView | None:
    """The rows of samples that are not deleted; None if none is. Only shards with tombstones are opened."""
    if not isinstance(source, ShardSource):
        return None
    by_url = _by_url(source, path)
    if not by_url:
        return None
    deleted = _deleted_rows(source, by_url)
    return RowView.whole(len(source)).without(deleted) if len(deleted) else None


def _deleted_rows(source: ShardSource, by_url: Mapping[str, _ShardTombstones]) -> IntArray:
    found = [np.empty(0, np.int64)]
    for number, ref in enumerate(source.shards):
        stones = by_url.get(ref.url)
        if stones is None:
            continue
        index = source.shard(number).index
        if not stones.fits(index.facts):
            _warn_replaced(ref.url, stones)
            continue
        rows = np.array(sorted(stones.rows), np.int64)
        _check_keys(ref.url, index, stones)
        found.append(rows + int(source.starts[number]))
    return np.concatenate(found)


def _check_keys(url: str, index: ShardRows, stones: _ShardTombstones) -> None:
    """Raise ManifestError where a row is another sample now, as under another key rule."""
    rows = [row for row in stones.rows if 0 <= row < len(index)]
    keys = index.keys.take(pa.array(rows, pa.int64())).to_pylist()
    if keys != [deleted.key for deleted in stones.rows.values()]:
        hint = (
            "open the dataset with the key rule under which they were deleted, or tombstones=False to see all samples"
        )
        raise ManifestError("the deleted samples of a shard have other keys now", shard=url, hint=hint)


def _warn_replaced(url: str, stones: _ShardTombstones) -> None:
    warnings.warn(
        f"{len(stones.rows)} tombstones are of another tar than {url} is now, and hide nothing; "
        "delete the samples again, or drop the tombstones with `restore`",
        ShoalWarning,
        stacklevel=2,
    )


def tombstones_of(source: Source, path: object) -> tuple[Tombstone, ...]:
    """The tombstones kept for the shards of a source, in the order of the shards."""
    if not isinstance(source, ShardSource):
        return ()
    by_url = _by_url(source, path)
    urls = dict.fromkeys(ref.url for ref in source.shards if ref.url in by_url)
    return tuple(
        Tombstone(deleted.key, url, row, deleted.reason)
        for url in urls
        for row, deleted in sorted(by_url[url].rows.items())
    )


def add_tombstones(source: Source, path: object, rows: IntArray, reason: str | None) -> None:
    """Delete the samples with these numbers; they are there again after ``remove_tombstones``."""
    shards = _tar_source(source)
    numbers = np.searchsorted(shards.starts, rows, "right") - 1
    root, manifest_at = _root(path), functools.cache(load_manifest)
    changed: dict[str, _TombstonesByPath] = {}
    for number in np.unique(numbers).tolist():
        url = shards.shards[number].url
        folder = _folder_of(url, root, manifest_at)
        by_path = changed.setdefault(folder, _load(folder))
        index = shards.shard(number).index
        name, facts = _path_in(folder, url) or base_name(url), index.facts
        stones = by_path.get(name)
        before = stones.rows if stones is not None and stones.fits(facts) else {}
        own = np.unique(rows[numbers == number]) - shards.starts[number]
        keys = index.keys.take(pa.array(own)).to_pylist()
        added = {row: _Deleted(key, reason) for row, key in zip(own.tolist(), keys, strict=True)}
        by_path[name] = _ShardTombstones(facts.size, facts.head_crc, {**before, **added})
    for folder, by_path in changed.items():
        _save(folder, by_path)


def remove_tombstones(source: Source, path: object, stones: Iterable[Tombstone]) -> None:
    """Take these tombstones away."""
    shards = _tar_source(source)
    gone: dict[str, set[int]] = {}
    for stone in stones:
        gone.setdefault(stone.shard, set()).add(stone.row)
    for folder, by_path in list(_load_all(shards, path)):
        kept = dict(by_path)
        for url, rows in gone.items():
            name = _path_in(folder, url)
            if name is not None and name in kept:
                left = {row: deleted for row, deleted in kept[name].rows.items() if row not in rows}
                kept[name] = replace(kept[name], rows=left)
        if kept != by_path:
            _save(folder, kept)


def _tar_source(source: Source) -> ShardSource:
    if isinstance(source, ShardSource):
        return source
    raise FormatError(
        "tombstones are kept with tar shards",
        expected="a dataset of tars",
        found=type(source).__name__,
        hint="`exclude` gives a view without the samples",
    )
