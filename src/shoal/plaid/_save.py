"""PLAID's ``save_to_disk``, spared most of its first pass.

To learn which features are the same in all samples, PLAID makes all of them before it writes any, and hashes every
array twice: that takes several times as long as writing them. But once an array differs from the first of its name, the
others tell nothing new. From then on PLAID is shown an empty array in its place, which is of the same type and differs
as well; what is written is the sample itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from plaid import Infos, ProblemDefinition, Sample

__all__ = ["Outline", "save_to_disk", "whole_of"]

_LARGE = 64 << 10
"""Smaller arrays are hashed in no time."""
_LETTERS = np.dtype("S1")  # PLAID joins them to a text first

Array = npt.NDArray[Any]


def save_to_disk(
    output_folder: str | Path,
    sample_constructor: Callable[[Any], Sample],
    ids: Mapping[str, Sequence[Any]],
    infos: Infos | None = None,
    backend: str = "webdataset",
    pb_defs: dict[str, ProblemDefinition] | None = None,
    num_proc: int = 1,
    verbose: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Save a dataset as ``plaid.storage.save_to_disk`` does: the same files, in a fraction of the time.

    What it takes and raises is PLAID's; what else a newer PLAID takes is passed on. For other backends than
    ``webdataset`` it is PLAID's function.

    Example:
        >>> import numpy as np
        >>> from plaid import Sample
        >>> from plaid.storage import init_from_disk
        >>> def make_sample(number):
        ...     sample = Sample()
        ...     sample.add_global("Mach", np.array([number / 4]))
        ...     return sample
        >>> save_to_disk("flow", make_sample, {"train": range(3)})
        >>> datasets, converters = init_from_disk("flow")
        >>> converters["train"].to_plaid(datasets["train"], 2).get_global("Mach").item()
        0.5
    """
    from plaid.storage import save_to_disk as save

    if backend == "webdataset":
        ids = {split: _paired(split, own) for split, own in ids.items()}
        sample_constructor = _Outlining(sample_constructor)
    save(output_folder, sample_constructor, ids, infos, backend, pb_defs, num_proc, verbose, overwrite, **options)


def _paired(split: str, ids: Sequence[Any]) -> Sequence[Any]:
    """Ids that tell their split; what PLAID would refuse is left to it."""
    return [(split, each) for each in ids] if hasattr(ids, "__getitem__") and hasattr(ids, "__len__") else ids


@dataclass(frozen=True, slots=True)
class Outline:
    """A sample as PLAID's first pass sees it."""

    data: dict[float, Any]
    """A tree for each time, as in a sample."""
    whole: Sample


def whole_of(sample: Sample | Outline) -> Sample:
    """The sample itself."""
    return sample.whole if isinstance(sample, Outline) else sample


class _Outlining:
    """Makes outlines, from pairs of a split and an id. Sent to another process, it begins anew there."""

    def __init__(self, constructor: Callable[[Any], Sample]) -> None:
        self._constructor = constructor
        self._first: dict[Hashable, Array] = {}
        self._varying: set[Hashable] = set()

    def __call__(self, place: tuple[str, Any]) -> Any:
        split, number = place
        sample = self._constructor(number)
        if len(sample.data) != 1:  # of several times, the sizes of arrays matter too
            return sample
        return Outline({time: self._outlined(tree, (split,)) for time, tree in sample.data.items()}, sample)

    def _outlined(self, node: Any, path: tuple[str, ...]) -> list[Any]:
        name, value, children, label = node
        path = (*path, name)
        kept = _stand_in(value) if self._varies(path, value) else value
        return [name, kept, [self._outlined(child, path) for child in children], label]

    def _varies(self, path: tuple[str, ...], value: Any) -> bool:
        """Whether another value was shown to PLAID already for this path."""
        if not isinstance(value, np.ndarray) or value.nbytes < _LARGE or not value.ndim or value.dtype == _LETTERS:
            return False
        if path not in self._varying and not _same_bytes(self._first.setdefault(path, value), value):
            self._varying.add(path)
            del self._first[path]
        return path in self._varying

    def __reduce__(self) -> tuple[type[_Outlining], tuple[Callable[[Any], Sample]]]:
        return _Outlining, (self._constructor,)


def _stand_in(value: Array) -> Array:
    """An array that PLAID takes to be of the same type."""
    return np.empty((0,) * value.ndim, value.dtype)


def _same_bytes(first: Array, second: Array) -> bool:
    """What PLAID compares: not the shapes, nor the types."""
    if first is second:
        return True
    return first.nbytes == second.nbytes and np.array_equal(_bytes(first), _bytes(second))


def _bytes(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
