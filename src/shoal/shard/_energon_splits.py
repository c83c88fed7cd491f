"""Read Energon's ``.nv-meta/split.yaml``, which lists the shards of each split."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shoal._optional import require
from shoal.errors import ManifestError
from shoal.store._pattern import expand_braces
from shoal.store._registry import store_for
from shoal.store._url import join_url

__all__ = ["ENERGON_SPLITS", "load_energon_splits"]

ENERGON_SPLITS = ".nv-meta/split.yaml"


class _Document(msgspec.Struct, frozen=True):
    split_parts: dict[str, list[str]]
    exclude: list[str] | None = None


def load_energon_splits(root: str, tars: Sequence[str]) -> dict[str, list[str]]:
    """Return the URLs of the shards of each split of an Energon dataset, in the order of its ``split.yaml``.

    ``tars`` are the paths of the tars below ``root``. Names may have braces and globs; shards in ``exclude`` are left
    out. Raises ManifestError for a document that cannot be followed, MissingExtraError without PyYAML.
    """
    url = join_url(root, ENERGON_SPLITS)
    document = _load(url)
    excluded = set(_expand(document.exclude or (), tars))
    _refuse_samples(excluded, tars, url)
    listed = {name: list(dict.fromkeys(_expand(parts, tars))) for name, parts in document.split_parts.items()}
    present = set(tars)
    missing = next((path for paths in listed.values() for path in paths if path not in present | excluded), None)
    if missing is not None:
        raise ManifestError("Energon's split.yaml lists a shard that is not in the folder", found=missing, shard=url)
    return {name: [join_url(root, path) for path in paths if path not in excluded] for name, paths in listed.items()}


def _load(url: str) -> _Document:
    yaml: Any = require("yaml", extra="energon")
    try:
        return msgspec.convert(yaml.safe_load(store_for(url).read_all(url)), _Document)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        # To ignore the file would silently put validation samples into the training split.
        hint = "correct the file, or name the shards of the split yourself: '*.tar'"
        raise ManifestError("Energon's split.yaml cannot be read", found=error, shard=url, hint=hint) from error


def _expand(patterns: Iterable[str], tars: Sequence[str]) -> list[str]:
    names = [name for pattern in patterns for name in expand_braces(pattern)]
    return [path for name in names for path in (fnmatch.filter(tars, name) if _is_glob(name) else [name])]


def _is_glob(name: str) -> bool:
    return any(mark in name for mark in "*?[")


def _refuse_samples(excluded: Iterable[str], tars: Sequence[str], url: str) -> None:
    """Refuse ``exclude`` entries of the form ``shard.tar/key``."""
    for entry in excluded:
        if any(entry.startswith(f"{path}/") for path in tars):
            hint = "remove the entry, and leave the sample out of the dataset with `exclude`"
            raise ManifestError(
                "split.yaml excludes a single sample", expected="shards", found=entry, shard=url, hint=hint
            )
