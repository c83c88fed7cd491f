"""Samples as PLAID's converters take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import FieldError

from ._arrays import apply_indexer
from ._reader import WebDatasetWrapper, decode_sample, is_raw

__all__ = ["pick", "sample_to_var_sample_dict", "to_var_sample_dict"]


def to_var_sample_dict(
    wds_sample: WebDatasetWrapper | Mapping[str, Any],
    idx: int,
    features: list[str] | None = None,
    indexers: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The variable features of a sample by path: of the sample number ``idx`` of a split, or of a sample itself.

    ``features`` names those wanted, and ``indexers`` gives, by path, a slice or positions along the last axis: of a
    split, only the bytes of these are read. None where the sample has no value.

    Raises:
        PositionError: The split has no such sample.
        FieldError: It has no such feature.

    Example:
        >>> import numpy as np
        >>> to_var_sample_dict(
        ...     {"Global/Mach": np.arange(4), "Global/x": None}, 0, ["Global/Mach"], {"Global/Mach": [1]}
        ... )
        {'Global/Mach': array([1])}
    """
    if isinstance(wds_sample, Mapping):
        return pick(sample_to_var_sample_dict(wds_sample), features, indexers)
    return wds_sample.read(idx, features, indexers)


def sample_to_var_sample_dict(wds_sample: Mapping[str, Any]) -> dict[str, Any]:
    """The variable features of a sample by path: as it is, or decoded where webdataset has read it.

    Example:
        >>> sample_to_var_sample_dict({"Global/Mach": None})
        {'Global/Mach': None}
    """
    if is_raw(wds_sample):
        return decode_sample(wds_sample)
    return {path: value for path, value in wds_sample.items() if not path.startswith("__")}


def pick(
    sample: Mapping[str, Any], features: Sequence[str] | None, indexers: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Some features of a sample, and parts of them. Raises FieldError."""
    names = list(sample) if features is None else list(features)
    if unknown := [name for name in names if name not in sample]:
        raise FieldError("no such variable feature", expected=" or ".join(list(sample)[:8]), found=unknown[0])
    found = {name: sample[name] for name in names}
    for name, indexer in (indexers or {}).items():
        if found.get(name) is not None:
            found[name] = apply_indexer(found[name], indexer, name)
    return found
