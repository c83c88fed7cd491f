"""Convert samples to what PLAID's converters take: a dict from feature path to array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._arrays import select_features
from ._layout import decode_sample, is_raw

if TYPE_CHECKING:
    from ._reader import WebDatasetWrapper

__all__ = ["sample_to_var_sample_dict", "to_var_sample_dict"]

_decode_sample = decode_sample


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

    Examples:
        >>> import numpy as np
        >>> to_var_sample_dict(
        ...     {"Global/Mach": np.arange(4), "Global/x": None}, 0, ["Global/Mach"], {"Global/Mach": [1]}
        ... )
        {'Global/Mach': array([1])}
    """
    if isinstance(wds_sample, Mapping):
        return select_features(sample_to_var_sample_dict(wds_sample), features, indexers)
    return wds_sample.read(idx, features, indexers)


def sample_to_var_sample_dict(wds_sample: Mapping[str, Any]) -> dict[str, Any]:
    """The variable features of a sample by path: as it is, or decoded where webdataset has read it.

    Examples:
        >>> sample_to_var_sample_dict({"Global/Mach": None})
        {'Global/Mach': None}
    """
    if is_raw(wds_sample):
        return decode_sample(wds_sample)
    return {path: value for path, value in wds_sample.items() if not path.startswith("__")}
