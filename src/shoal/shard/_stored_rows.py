"""Where the index of a finished shard is kept: below the dataset's folder, or in the user's cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from shoal.errors import ObjectNotFoundError
from shoal.store._base import ObjectReader
from shoal.store._cache import cache_dir
from shoal.store._operations import exists
from shoal.store._registry import store_for
from shoal.store._url import join_url, local_path, scheme_of

from ._index import load_index, save_index
from ._member_names import KeyRule
from ._shard_rows import ShardRows

__all__ = [
    "INDEX_FOLDER",
    "SIDECAR_FOLDER",
    "cached_index_url",
    "index_path",
    "index_url",
    "load_rows",
    "move_shard",
    "remove_shards",
    "save_rows",
]

SIDECAR_FOLDER = ".shoal"
INDEX_FOLDER = "index"
_SCAN_VERSION = 2
"""Counts changes of what a scan accepts and joins: an index that was cached before such a change is made again."""


def index_path(path: str) -> str:
    """The path of the index of a shard, both relative to the dataset's root."""
    return f"{SIDECAR_FOLDER}/{INDEX_FOLDER}/{path}.arrow"


def index_url(root: str, path: str) -> str:
    """Where the index of the shard ``path``, relative to the dataset's root, is kept."""
    return join_url(root, SIDECAR_FOLDER, INDEX_FOLDER, path + ".arrow")


def cached_index_url(reader: ObjectReader, rule: KeyRule) -> str:
    """Where the user's cache keeps the index of an object: one place for each state of it and each key rule."""
    info = reader.info
    place = os.path.abspath(local_path(info.url)) if scheme_of(info.url) == "file" else info.url
    name = hashlib.sha256(repr((place, info.size, info.version, rule, _SCAN_VERSION)).encode()).hexdigest()
    return join_url(cache_dir(), INDEX_FOLDER, name + ".arrow")


def save_rows(rows: ShardRows, root: str, path: str) -> None:
    """Keep the index of the shard ``path`` below the dataset's root."""
    save_index(rows, index_url(root, path))


def load_rows(root: str, path: str) -> ShardRows:
    """The index that `save_rows` kept. Raises ObjectNotFoundError and ShardIndexError."""
    return load_index(index_url(root, path), whole=True)


def move_shard(root: str, path: str, new_root: str, new_path: str) -> list[str]:
    """Move a shard and its index to another folder or name; return what was written.

    The tar comes last. What an earlier call moved already is left alone.
    """
    moves = (index_url(root, path), index_url(new_root, new_path)), (join_url(root, path), join_url(new_root, new_path))
    for source, target in moves:
        try:
            store_for(source).move(source, target)
        except ObjectNotFoundError:
            if not exists(target):
                raise
    return [target for _, target in moves]


def remove_shards(root: str, paths: Sequence[str]) -> None:
    """Remove shards and their indexes; the tar last, so that an interruption leaves nothing nobody would find."""
    for path in paths:
        store_for(root).delete(index_url(root, path))
        store_for(root).delete(join_url(root, path))
