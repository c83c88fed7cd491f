"""Which splits are at a place, and which shards are theirs: as the manifest says, or as the folders look."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import FieldError, ObjectNotFoundError
from shoal.shard import Manifest, ShardRecord, index_url, load_manifest
from shoal.store import join_url, relative_url, store_for

from ._arrays import ShardPlace
from ._dataset import WebDatasetDict, WebDatasetWrapper
from ._layout import DATA_FOLDER, facts_of
from ._record import number_in_key

__all__ = ["FoundSplit", "chosen_splits", "init_datasetdict_from_disk", "splits_at"]


@dataclass(frozen=True, slots=True)
class FoundSplit:
    """A split at its place."""

    url: str
    """Of its folder."""
    places: tuple[ShardPlace, ...]
    features: dict[str, str] | None = None
    """The member field of each feature path, where a manifest says it."""

    def opened(self, chosen: Sequence[int] | None = None, wanted: Sequence[str] | None = None) -> WebDatasetWrapper:
        """The split, or some samples and features of it."""
        path = Path(self.url) if "://" not in self.url else self.url
        return WebDatasetWrapper._over(path, self.places, self.features, chosen=chosen, wanted=wanted)  # noqa: SLF001


def init_datasetdict_from_disk(path: str | Path) -> WebDatasetDict:
    """The splits of the dataset in a folder: those its manifest names, else its tars.

    These are ``data/<split>/*.tar`` and ``data/<split>.tar``. Nothing but the manifest is read before a split is used.
    Raises ObjectNotFoundError when there is no dataset.
    """
    found = splits_at(os.fspath(path))
    return WebDatasetDict._of(Path(path), {name: split.opened() for name, split in found.items()})  # noqa: SLF001


def splits_at(root: str) -> dict[str, FoundSplit]:
    """The splits of the dataset at ``root``, a folder or a URL. Raises ObjectNotFoundError."""
    manifest = load_manifest(root)
    facts = {} if manifest is None else facts_of(manifest, root)
    if manifest is not None and facts:
        return {
            name: FoundSplit(join_url(root, DATA_FOLDER, name), _places(manifest, root, name), fact.features)
            for name, fact in facts.items()
        }
    return _looked_up(root)


def _places(manifest: Manifest, root: str, split: str) -> tuple[ShardPlace, ...]:
    return tuple(
        ShardPlace(join_url(root, record.path), index_url(root, record.path), _numbers(record))
        for record in manifest.splits.get(split, ())
    )


def _numbers(record: ShardRecord) -> range | None:
    """The numbers of a shard's samples, where they have no gap: then its ends and their count tell all of them."""
    first, last = (None if key is None else number_in_key(key) for key in (record.first_key, record.last_key))
    if first is None or last is None or last - first + 1 != record.samples:
        return None
    return range(first, last + 1)


def _looked_up(root: str) -> dict[str, FoundSplit]:
    folder = join_url(root, DATA_FOLDER)
    tars: dict[str, list[str]] = {}
    for info in store_for(folder).list(folder, depth=2):
        name, _, inner = relative_url(info.url, folder).partition("/")
        if (inner or name).endswith(".tar"):
            tars.setdefault(name if inner else name.removesuffix(".tar"), []).append(info.url)
    if not tars:
        raise ObjectNotFoundError("no PLAID dataset of tars is there", expected="data/<split>/*.tar", found=root)
    return {
        name: FoundSplit(join_url(folder, name), tuple(ShardPlace(url) for url in urls)) for name, urls in tars.items()
    }


def chosen_splits(found: Mapping[str, FoundSplit], split_ids: Mapping[str, object] | None) -> list[str]:
    """The splits that are asked for. Raises FieldError for one that is not there."""
    names = list(found) if split_ids is None else list(split_ids)
    if unknown := [name for name in names if name not in found]:
        raise FieldError("no such split", expected=" or ".join(found), found=unknown[0])
    return names
