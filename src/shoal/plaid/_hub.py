"""PLAID datasets on the Hugging Face Hub: pushed, downloaded in whole or in part, and streamed by ranges."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import FieldError, ObjectExistsError, ObjectNotFoundError
from shoal.hub import client_of, hub_url, patiently, push_to_hub
from shoal.store import HubStore, join_url, store_for

from ._dataset import WebDatasetWrapper
from ._layout import describe_splits, staging_folder
from ._record import check_split
from ._run import place_shards, write_values
from ._splits import FoundSplit, chosen_splits, splits_at

__all__ = [
    "download_datasetdict_from_hub",
    "init_datasetdict_streaming_from_hub",
    "push_local_datasetdict_to_hub",
]

_PATTERNS = ["data/*", ".shoal/manifest.json", ".shoal/index/*"]

SplitIds = dict[str, Iterable[int]]


def push_local_datasetdict_to_hub(repo_id: str, local_dir: str | Path, num_workers: int = 1) -> None:
    """Upload the shards of a dataset in a folder, their indexes and its manifest; PLAID uploads its own files itself.

    The repository is made where there is none. What is there already is not sent again, so a push that was interrupted
    is simply made again. Files are sent as `shoal.hub.push_to_hub` sends them, whatever ``num_workers`` says.

    Raises:
        ObjectNotFoundError: There is no dataset in the folder.
        AccessDeniedError: The token may not write there, or there is none.
    """
    splits_at(str(local_dir))
    push_to_hub(str(local_dir), repo_id, readme=False, message="Upload WebDataset shards")


def init_datasetdict_streaming_from_hub(
    repo_id: str, split_ids: SplitIds | None = None, features: list[str] | None = None
) -> dict[str, WebDatasetWrapper]:
    """The splits of a dataset on the Hub: samples are fetched as they are asked for, by number or one after the other.

    ``split_ids`` gives the numbers of the samples wanted of each split, in order, and ``features`` the paths of the
    features: nothing else is fetched but the manifest, indexes, and what PLAID needs to make trees of these features.

    Raises:
        FieldError: There is no such split or feature.
        PositionError: There is no such sample; when the split is first used.
        ObjectNotFoundError, AccessDeniedError: There is no such repository, or it may not be read.
    """
    root = hub_url(repo_id)
    HubStore().forget(root)  # it may have been pushed a moment ago, by clients of other packages
    found = splits_at(root)
    names = chosen_splits(found, split_ids)
    wanted = None if features is None else _needed(root, found, features)
    return {
        name: found[name].opened(None if split_ids is None else [int(number) for number in split_ids[name]], wanted)
        for name in names
    }


def download_datasetdict_from_hub(
    repo_id: str,
    local_dir: str | Path,
    split_ids: SplitIds | None = None,
    features: list[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Download a dataset from the Hub to a folder, which is returned: all of it, or some samples and features.

    ``split_ids`` and ``features`` are as for `init_datasetdict_streaming_from_hub`; samples keep their numbers. A
    folder with something in it is refused, or with ``overwrite`` replaced, once all has come.

    Raises:
        ObjectExistsError: The folder is not empty.
        FieldError, PositionError: There is no such split, feature or sample.
        ObjectNotFoundError, AccessDeniedError: There is no such repository, or it may not be read.
    """
    target = Path(local_dir)
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        raise ObjectExistsError("the folder is not empty", found=str(target), hint="pass overwrite=True to replace it")
    splits = init_datasetdict_streaming_from_hub(repo_id, split_ids, features)
    for name, split in splits.items():
        check_split(name)
        if split_ids is not None:
            split.ids  # noqa: B018 - raises PositionError, before anything is removed
    # What is to be replaced stays until the new is whole.
    place = target.with_name(f".{target.name}.download") if target.exists() else target
    try:
        if split_ids is None and features is None:
            _fetch_all(repo_id, place)
        else:
            _fetch(splits, place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    if place != target:
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        os.replace(place, target)
    return target


def _fetch_all(repo_id: str, target: Path) -> None:
    client = client_of(repo_id)
    patiently(
        lambda: client.snapshot_download(repo_id, repo_type="dataset", allow_patterns=_PATTERNS, local_dir=str(target)),
        hub_url(repo_id),
    )


def _fetch(splits: Mapping[str, WebDatasetWrapper], target: Path) -> None:
    """Write what is wanted of each split as a dataset of its own."""
    described = {}
    for name, split in splits.items():
        fields = {path: field for path, field in split.fields.items() if path in split.features}
        samples = zip(split.ids.tolist(), split, strict=True)
        written = write_values(str(staging_folder(target) / name), fields, samples)
        described[name] = (place_shards(target, name, [written], []), fields)
    describe_splits(target, described)
    shutil.rmtree(staging_folder(target))


def _needed(root: str, splits: Mapping[str, FoundSplit], features: Sequence[str]) -> list[str]:
    """The variable features among these, and those without which PLAID can make no tree of them.

    A constant feature is not an error, and nothing to fetch. Raises FieldError for one that is neither.
    """
    variable = list(dict.fromkeys(path for split in splits.values() for path in split.opened().features))
    constant = _constant_features(root, splits)
    if unknown := [path for path in features if path not in variable and path not in constant]:
        some = " or ".join(path for path in variable[:8]) or "none: the dataset has no variable features"
        raise FieldError("no such feature", expected=some, found=" and ".join(unknown))
    named = _expanded(features, constant, variable)
    return [path for path in variable if path in named]


def _expanded(features: Sequence[str], constant: Iterable[str], variable: Iterable[str]) -> set[str]:
    from plaid.utils.cgns_helper import update_features_for_CGNS_compatibility

    try:
        named = update_features_for_CGNS_compatibility(list(features), constant, variable)
    except (AssertionError, KeyError, ValueError):  # it wants names of a certain form; arrays can be had without
        named = list(features)
    return {*named, *(f"{path}_times" for path in named)}


def _constant_features(root: str, splits: Iterable[str]) -> list[str]:
    """What PLAID's own files say is the same in all samples of a split; nothing where they are not there."""
    import yaml  # type: ignore[import-untyped]

    found: dict[str, Any] = {}
    for name in splits:
        url = join_url(root, "constants", name, "constant_schema.yaml")
        try:
            found |= yaml.safe_load(store_for(url).read_all(url)) or {}
        except ObjectNotFoundError:
            continue
    return list(found)
