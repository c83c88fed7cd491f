"""From what a user names (a file, a pattern, a folder, a manifest) to the shards it stands for."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.errors import FieldError, ManifestError, ObjectNotFoundError
from shoal.store import base_name, expand_pattern, join_url, parent_url, relative_url, store_for

from ._journal import is_unfinished, recover
from ._manifest import Manifest, ShardRecord, load_manifest, split_alias, split_of
from ._open import SIDECAR_FOLDER, index_url
from ._source import ShardRef

__all__ = ["SHARD_ENDINGS", "Located", "locate_shards", "shards_by_split", "tars_below"]

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
        return Located(tuple(ShardRef(url) for url in _of_split(tars_below(root), split, root)), None, root)
    if split is not None and split not in manifest.splits:
        raise _no_split(split, list(manifest.splits))
    records = manifest.shards if split is None else manifest.splits[split]
    return Located(tuple(_ref(root, record, manifest) for record in records), manifest, root)


def _ref(root: str, record: ShardRecord, manifest: Manifest) -> ShardRef:
    url, sidecar = join_url(root, record.path), index_url(root, record.path)
    return ShardRef(url, record.samples, sidecar, manifest.rule, tuple(record.fields) or None, record.bytes)


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


def shards_by_split(urls: Iterable[str], root: str | None = None) -> dict[str, list[str]]:
    """Shards by the split that their paths below ``root`` name, in order; ``root`` is the folder that holds them all.

    Folders above say nothing, unless the last one is a split's name: ``test/a.tar`` is a test, ``test_run/a.tar`` not.

    Example:
        >>> shards_by_split(["test_run/val/a.tar", "test_run/b.tar"])
        {'validation': ['test_run/val/a.tar'], 'train': ['test_run/b.tar']}
    """
    urls = list(urls)
    if root is None or any(not url.startswith(root) for url in urls):  # "." and quoted URLs are listed otherwise
        root = _shared_folder(urls)
    above = base_name(root) if split_alias(base_name(root)) else ""
    splits: dict[str, list[str]] = {}
    for url in urls:
        splits.setdefault(split_of(f"{above}/{relative_url(url, root)}"), []).append(url)
    return splits


def _shared_folder(urls: list[str]) -> str:
    names = zip(*(url.split("/")[:-1] for url in urls), strict=False)
    return "/".join(same[0] for same in itertools.takewhile(lambda same: len(set(same)) == 1, names))


def _of_split(urls: list[str], split: str | None, root: str | None = None) -> list[str]:
    if split is None:
        return urls
    splits = shards_by_split(urls, root)
    if split not in splits:
        raise _no_split(split, list(splits))
    return splits[split]


def _no_split(split: str, present: list[str]) -> FieldError:
    return FieldError("no such split", expected=" or ".join(present) or "none: it is empty", found=split)
