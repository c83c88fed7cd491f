"""From what a user names (a file, a pattern, a folder, a manifest) to the shards it stands for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.errors import FieldError, ManifestError, ObjectNotFoundError
from shoal.store import base_name, expand_pattern, join_url, parent_url, relative_url, store_for

from ._journal import is_unfinished, recover
from ._manifest import Manifest, ShardRecord, load_manifest, split_of
from ._open import SIDECAR_FOLDER, index_url
from ._source import ShardRef

__all__ = ["SHARD_ENDINGS", "Located", "locate_shards", "tars_below"]

SHARD_ENDINGS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Located:
    """Shards in order, and the manifest that named them."""

    shards: tuple[ShardRef, ...]
    manifest: Manifest | None = None
    root: str | None = None


def locate_shards(path: PathLike | Iterable[PathLike], split: str | None = None) -> Located:
    """The shards that ``path`` names: a tar, a pattern, a list, a folder, or a manifest.

    A folder with a manifest is what the manifest says, other tars in it are not looked at; one without is every tar
    below it. ``split`` keeps the shards of one split, by the manifest or by their names. Raises ObjectNotFoundError
    when there is nothing, FieldError when the split is not there, naming those that are.
    """
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        if base_name(text) == "manifest.json" and base_name(parent_url(text)) == SIDECAR_FOLDER:
            text = parent_url(parent_url(text))
        if store_for(text).is_folder(text):
            return _folder(text, split)
        path = text
    urls = expand_pattern(path)
    return Located(tuple(ShardRef(url) for url in _of_split(urls, split)))


def _folder(root: str, split: str | None) -> Located:
    recover(root)
    manifest = load_manifest(root)
    if manifest is None and is_unfinished(root):
        raise ManifestError(
            "the dataset was not finished",
            found=root,
            hint="run its writer again with resume=True, or name the shards that are there: '*.tar'",
        )
    if manifest is None:
        return Located(tuple(ShardRef(url) for url in _of_split(tars_below(root), split)), None, root)
    if split is not None and split not in manifest.splits:
        raise _no_split(split, list(manifest.splits))
    records = manifest.shards if split is None else manifest.splits[split]
    return Located(tuple(_ref(root, record, manifest) for record in records), manifest, root)


def _ref(root: str, record: ShardRecord, manifest: Manifest) -> ShardRef:
    url, sidecar = join_url(root, record.path), index_url(root, record.path)
    return ShardRef(url, record.samples, sidecar, manifest.rule, tuple(record.fields) or None)


def tars_below(root: str) -> list[str]:
    """Every tar below a folder but for hidden ones. Raises ObjectNotFoundError when there is none."""
    urls = (info.url for info in store_for(root).list(root))
    found = [url for url in urls if url.lower().endswith(SHARD_ENDINGS) and not _is_hidden(relative_url(url, root))]
    if not found:
        raise ObjectNotFoundError(
            "the folder has no tar shards", found=root, hint="pack a folder of samples with `shoal pack`"
        )
    return found


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _of_split(urls: list[str], split: str | None) -> list[str]:
    if split is None:
        return urls
    splits = {url: split_of(base_name(parent_url(url)) + "/" + base_name(url)) for url in urls}
    chosen = [url for url in urls if splits[url] == split]
    if not chosen:
        raise _no_split(split, list(dict.fromkeys(splits.values())))
    return chosen


def _no_split(split: str, present: list[str]) -> FieldError:
    return FieldError("no such split", expected=" or ".join(present) or "none: it is empty", found=split)
