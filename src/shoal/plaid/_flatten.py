"""A PLAID sample as the values that are stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from plaid import Sample

__all__ = ["variable_values"]

Value = npt.NDArray[Any] | None
_TEXT = np.dtype("S1")


def variable_values(sample: Sample, paths: Iterable[str]) -> dict[str, Value]:
    """The values of these features in a sample, None for those it lacks: what PLAID's ``build_sample_dict`` gives.

    A sample with one time needs no comparing of times, so its arrays are neither hashed nor copied.
    """
    flat = _one_time(sample) if len(sample.data) == 1 else _many_times(sample)
    return {path: flat.get(path) for path in paths}


def _many_times(sample: Sample) -> dict[str, Value]:
    from plaid.storage.common.preprocessor import build_sample_dict

    flat: dict[str, Value] = build_sample_dict(sample)[0]
    return flat


def _one_time(sample: Sample) -> dict[str, Value]:
    from plaid.utils.cgns_helper import flatten_cgns_tree

    ((time, tree),) = sample.data.items()
    flat: dict[str, Any] = flatten_cgns_tree(tree)[0]
    found: dict[str, Value] = {}
    for path, value in flat.items():
        if "/Time" in path or "CGNSLibraryVersion" in path:
            continue
        found[path] = None if value is None else _joined_text(np.atleast_1d(value))
        found[f"{path}_times"] = None if value is None else np.array([time, 0.0, -1.0])
    return found


def _joined_text(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """CGNS keeps a text as an array of letters; PLAID stores it as one text."""
    if value.dtype != _TEXT or value.ndim != 1:
        return value
    return np.array([b"".join(value.tolist()).decode("ascii")])
