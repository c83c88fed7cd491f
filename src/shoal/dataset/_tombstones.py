"""Tombstones: samples deleted without touching a tar.

They are kept in ``.shoal/tombstones.json`` beside the manifest, replaced in one step, and looked up by every opening.
A tombstone names a shard and a key. It holds for the tar as it was then: it keeps the tar's size and the crc of its
first header, so a shard that was written anew under the same name loses no samples to it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from shoal.errors import FormatError, ManifestError, ObjectNotFoundError, ShoalWarning, StoreError
from shoal.shard import IndexMetadata, Manifest, ShardSource, Source, is_dataset_folder, load_manifest
from shoal.store import base_name, join_url, parent_url, scheme_of, store_for

__all__ = ["Tombstone", "add_tombstones", "living_rows", "remove_tombstones", "tombstones_of"]

pc: Any = pyarrow.compute  # its functions are made as it is imported, out of a checker's sight

Int64 = npt.NDArray[np.int64]
VERSION = 1
_NAME = "tombstones.json"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A sample that was deleted, and why."""

    key: str
    shard: str
    """The URL of the tar that still holds it."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _ShardTombstones:
    """The deleted samples of one shard, and which shard that was."""

    size: int
    head_crc: int
    keys: dict[str, str | None] = field(default_factory=dict)
    """Each key with its reason."""

    def fits(self, facts: IndexMetadata) -> bool:
        return (self.size, self.head_crc) == (facts.size, facts.head_crc)


_Graves = dict[str, _ShardTombstones]
"""By the shard's path in the folder that keeps them."""


# ------------------------------------------------------------------------------------------------------------- on disk


def _url(home: str) -> str:
    return join_url(home, ".shoal", _NAME)


def _load(home: str) -> _Graves:
    url = _url(home)
    try:
        document = msgspec.json.decode(store_for(url).read_all(url))
        version = document["shoal"]
        if version > VERSION:
            raise ManifestError("the tombstones are of a newer shoal", found=version, shard=url, hint="upgrade shoal")
        return msgspec.convert(document["shards"], dict[str, _ShardTombstones])
    except ObjectNotFoundError:
        return {}
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
        # Going on would bring deleted samples back without a word.
        hint = "restore the file, or open with tombstones=False to see all samples"
        raise ManifestError("the tombstones cannot be read", found=str(error), shard=url, hint=hint) from error


def _save(home: str, graves: _Graves) -> None:
    url, kept = _url(home), {path: grave for path, grave in graves.items() if grave.keys}
    if not kept:
        store_for(url).delete(url)
        return
    document = {"shoal": VERSION, "shards": {path: msgspec.to_builtins(kept[path]) for path in sorted(kept)}}
    store_for(url).write_all(url, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def _homes(source: ShardSource, path: object) -> list[str]:
    """Every folder that may keep tombstones of these shards: the dataset's, or those that hold the shards."""
    root = _root(path)
    if root is not None and source.manifest is not None:
        return [root]
    folders = dict.fromkeys(parent_url(ref.url) for ref in source.shards)
    return list(folders if root is None else {root: None, **folders})


def _above(homes: Iterable[str]) -> list[str]:
    """A shard may also lie in a folder of its dataset."""
    folders = dict.fromkeys(parent_url(home) for home in homes)
    return [folder for folder in folders if not folder.endswith("://") and folder not in homes]


def _root(path: object) -> str | None:
    """The folder that a path names, itself or by its manifest."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    text = os.fspath(path)
    if base_name(text) == "manifest.json" and base_name(parent_url(text)) == ".shoal":
        return parent_url(parent_url(text))
    return text if is_dataset_folder(text) else None


def _home_of(url: str, root: str | None, manifest_at: Callable[[str], Manifest | None]) -> str:
    """The folder that keeps the tombstones of a shard: its dataset's, whichever way the shard was named."""
    if root is not None:
        return root
    folder = parent_url(url)
    above = parent_url(folder)
    manifest = manifest_at(above)
    inside = manifest is not None and _name_in(above, url) in {record.path for record in manifest.shards}
    return above if inside else folder


def _by_url(source: ShardSource, path: object) -> dict[str, _ShardTombstones]:
    """What lies in all homes, by the URL of the shard."""
    found: dict[str, _ShardTombstones] = {}
    for home, graves in _all_graves(source, path):
        for url in dict.fromkeys(ref.url for ref in source.shards) if graves else ():
            grave = graves.get(_name_in(home, url) or "")
            if grave is not None:
                found[url] = replace(grave, keys={**found[url].keys, **grave.keys}) if url in found else grave
    return found


def _all_graves(source: ShardSource, path: object) -> Iterator[tuple[str, _Graves]]:
    homes = _homes(source, path)
    yield from ((home, _load(home)) for home in homes)
    if _root(path) is None:
        for home in _above(homes):
            with contextlib.suppress(StoreError):  # it may be closed to us, and then holds no dataset of ours
                yield home, _load(home)


def _name_in(home: str, url: str) -> str | None:
    """How the tombstones in a folder call a shard: the same for each way to write the shard's URL; None outside."""
    base, name = home.removeprefix("./"), url.removeprefix("./")
    if base not in (".", ""):
        base = base if base.endswith("/") else f"{base}/"
        if not name.startswith(base):
            return None
        name = name.removeprefix(base)
    elif name.startswith("/") or scheme_of(name) != "file":
        return None
    return unquote(name) if url.startswith("file://") else name


# ---------------------------------------------------------------------------------------------------------- in a source


def living_rows(source: Source, path: object) -> Int64 | None:
    """The numbers of the samples that are not deleted; None when none is. Only shards that lost samples are opened."""
    if not isinstance(source, ShardSource):
        return None
    graves = _by_url(source, path)
    if not graves:
        return None
    dead = _dead_rows(source, graves)
    return np.delete(np.arange(len(source)), dead) if len(dead) else None


def _dead_rows(source: ShardSource, graves: Mapping[str, _ShardTombstones]) -> Int64:
    found = [np.empty(0, np.int64)]
    for number, ref in enumerate(source.shards):
        grave = graves.get(ref.url)
        if grave is None:
            continue
        index = source.shard(number).index
        if not grave.fits(index.facts):
            _tell_replaced(ref.url, grave)
            continue
        dead = pc.is_in(index.keys, value_set=pa.array(list(grave.keys), index.keys.type))
        found.append(np.flatnonzero(dead.to_numpy(zero_copy_only=False)) + int(source.starts[number]))
    return np.concatenate(found)


def _tell_replaced(url: str, grave: _ShardTombstones) -> None:
    warnings.warn(
        f"{len(grave.keys)} tombstones are of another tar than {url} is now, and hide nothing; "
        "delete the samples again, or drop the tombstones with `restore`",
        ShoalWarning,
        stacklevel=2,
    )


def tombstones_of(source: Source, path: object) -> tuple[Tombstone, ...]:
    """The tombstones kept for the shards of a source, in the order of the shards."""
    if not isinstance(source, ShardSource):
        return ()
    graves = _by_url(source, path)
    urls = dict.fromkeys(ref.url for ref in source.shards if ref.url in graves)
    return tuple(Tombstone(key, url, reason) for url in urls for key, reason in graves[url].keys.items())


def add_tombstones(source: Source, path: object, rows: Int64, reason: str | None) -> None:
    """Delete the samples with these numbers; they are there again after ``remove_tombstones``."""
    shards = _shards(source)
    numbers = np.searchsorted(shards.starts, rows, "right") - 1
    root, manifest_at = _root(path), functools.cache(load_manifest)
    changed: dict[str, _Graves] = {}
    for number in np.unique(numbers).tolist():
        url = shards.shards[number].url
        home = _home_of(url, root, manifest_at)
        graves = changed.setdefault(home, _load(home))
        index = shards.shard(number).index
        name, facts = _name_in(home, url) or base_name(url), index.facts
        grave = graves.get(name)
        before = grave.keys if grave is not None and grave.fits(facts) else {}
        keys = index.keys.take(pa.array(rows[numbers == number] - shards.starts[number])).to_pylist()
        graves[name] = _ShardTombstones(facts.size, facts.head_crc, {**before, **dict.fromkeys(keys, reason)})
    for home, graves in changed.items():
        _save(home, graves)


def remove_tombstones(source: Source, path: object, keys: Iterable[str] | None) -> set[str]:
    """Take tombstones away, all where ``keys`` is None; returns the keys that had one."""
    shards = _shards(source)
    wanted = None if keys is None else set(keys)
    found: set[str] = set()
    for home, graves in list(_all_graves(shards, path)):
        ours = {_name_in(home, ref.url) for ref in shards.shards} if graves else set()
        kept: _Graves = {}
        for name, grave in graves.items():
            gone = {key for key in grave.keys if name in ours and (wanted is None or key in wanted)}
            kept[name] = replace(grave, keys={key: why for key, why in grave.keys.items() if key not in gone})
            found |= gone
        if kept != graves:
            _save(home, kept)
    return found


def _shards(source: Source) -> ShardSource:
    if isinstance(source, ShardSource):
        return source
    raise FormatError(
        "tombstones are kept with tar shards",
        expected="a dataset of tars",
        found=type(source).__name__,
        hint="`exclude` gives a view without the samples",
    )
