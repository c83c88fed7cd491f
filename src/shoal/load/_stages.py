"""Stages of a pipeline as frozen values, and the elements that pass between them."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from shoal.errors import OptionError
from shoal.order._permutation import key_of
from shoal.order._state import PendingElement

from ._columns import Ragged

__all__ = [
    "Batch",
    "Bucket",
    "Element",
    "Enumerate",
    "EpochEnd",
    "Filter",
    "FlatMap",
    "Interleave",
    "Map",
    "Pack",
    "PendingGroups",
    "PerSample",
    "ResumePoint",
    "Shuffle",
    "Skip",
    "Stage",
    "Take",
    "TakeWhile",
    "TaskResult",
    "Unbatch",
    "Window",
    "function_location",
    "replay_pending",
    "rng_for",
    "takes_rng",
]

WorkerKind = Literal["thread", "process"]
_PURPOSE = 7
"""Keeps the random numbers of a sample apart from those of the order."""


@dataclass(frozen=True, slots=True)
class Map:
    """Replace each element by what a function returns."""

    function: Callable[..., Any]
    workers: WorkerKind = "thread"


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep only elements for which the function is true."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FlatMap:
    """Replace each element by any number of elements."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Combine every ``size`` elements into a batch."""

    size: int
    drop_last: bool = False
    ragged: Ragged = "list"
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """Batch elements of similar length: one open batch for each bucket between boundaries."""

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    """Elements per batch, for each bucket: one more than there are boundaries."""
    length_of: Callable[[Any], int]
    drop_last: bool = False
    ragged: Ragged = "pad"
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Pack:
    """Pack token sequences into rows of ``length`` tokens."""

    length: int
    field: str
    how: Literal["first_fit", "concat"] = "first_fit"
    open_rows: int = 64
    """Rows that first-fit keeps open; the fullest is delivered when one more is needed."""
    pad: int = 0


@dataclass(frozen=True, slots=True)
class Unbatch:
    """Split batches into elements."""


@dataclass(frozen=True, slots=True)
class Window:
    """Lists of ``size`` consecutive elements, each starting ``shift`` after the one before."""

    size: int
    shift: int
    drop_last: bool = False


@dataclass(frozen=True, slots=True)
class Take:
    """Keep the first elements only."""

    count: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Leave out the first elements."""

    count: int


@dataclass(frozen=True, slots=True)
class TakeWhile:
    """Stop at the first element for which the function is false."""

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Enumerate:
    """Replace each element by a pair of its number and itself."""

    start: int = 0


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Shuffle samples: through a buffer if they are a stream, else by their order."""

    buffer: int | None
    """Size of the buffer; None if samples have positions, which need none."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Interleave:
    """Replace each element by the elements of an iterable, taking turns between several."""

    function: Callable[[Any], Any]
    cycle: int = 2
    block: int = 1


PerSample = Map | Filter | FlatMap
Stage = (
    PerSample | Batch | Bucket | Pack | Shuffle | Unbatch | Window | Take | Skip | TakeWhile | Enumerate | Interleave
)


_TAKES_RNG: weakref.WeakKeyDictionary[Callable[..., Any], bool] = weakref.WeakKeyDictionary()
"""Weak, since a function may refer to an entire dataset."""


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter ``rng``, for a random generator."""
    try:
        takes = _TAKES_RNG.get(function)
        if takes is None:
            takes = _TAKES_RNG[function] = _has_rng_parameter(function)
    except TypeError:  # not hashable, or without weak references
        return _has_rng_parameter(function)
    return takes


def _has_rng_parameter(function: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def function_location(function: Callable[..., Any]) -> str:
    """Return a function's name, file and line, for messages."""
    inner = inspect.unwrap(getattr(function, "func", function))  # the function of a partial
    name = getattr(inner, "__qualname__", type(inner).__name__)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else name


def check_callable(what: str, function: object) -> None:
    """Raise OptionError if it cannot be called."""
    if not callable(function):
        raise OptionError(f"{what} takes a function", expected="something to call", found=repr(function))


def check_buckets(boundaries: Sequence[int], sizes: Sequence[int]) -> None:
    """Raise OptionError unless boundaries rise and there is a size for each bucket."""
    if list(boundaries) != sorted(set(boundaries)) or not boundaries:
        raise OptionError("bucket boundaries rise", found=repr(list(boundaries)))
    if len(sizes) != len(boundaries) + 1:
        expected = f"{len(boundaries) + 1} for {len(boundaries)} boundaries"
        raise OptionError("there is one batch size for each bucket", expected=expected, found=len(sizes))


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to resume after an element, so that nothing is repeated or left out.

    ``position`` is that of the first sample that was not delivered completely, counted through all epochs, and ``part``
    the number of its elements that were. ``pending`` are samples before it that are buffered, by group.
    """

    position: int
    part: int = 0
    pending: tuple[tuple[PendingElement, ...], ...] = ()
    drawn: str = ""
    """Checksum of what a sampler has drawn up to here."""


@dataclass(frozen=True, slots=True)
class Element:
    """A sample, or a batch."""

    value: Any
    samples: int
    resume_point: ResumePoint
    key: PendingElement = (0, 0, 0)
    """The sample that it is made from, if it is one."""
    repeated: int = 0
    """How many of its samples were delivered earlier in this epoch."""
    size: int = 0
    """Bytes, if measured."""


PendingGroups = list[list[Element]]
"""Elements that a stage had buffered when the state was saved, read again, by group."""


def replay_pending(groups: PendingGroups) -> Iterator[Element]:
    """Yield elements that a stage had buffered, each with the keys of those that follow it.

    So a state that is saved in between is complete.
    """
    for at, group in enumerate(groups):
        later = tuple(tuple(element.key for element in other) for other in groups[at + 1 :])
        for index, element in enumerate(group):
            rest = tuple(other.key for other in group[index + 1 :])
            yield replace(
                element, resume_point=replace(element.resume_point, pending=(rest, *later) if rest else later)
            )


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The elements that a task made."""

    elements: list[Element]
    skipped: int = 0
    """Samples that failed and were skipped."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Separates the elements of two epochs."""


def rng_for(seed: int, epoch: int, number: int, *parts: int) -> np.random.Generator:
    """Return the random generator of a sample, or a part of it, in an epoch: the same on every rank and in every run.

    Examples:
        >>> bool(rng_for(0, 1, 5).random() == rng_for(0, 1, 5).random())
        True
    """
    return np.random.Generator(np.random.SFC64(key_of(seed, epoch, _PURPOSE, number, *(parts or (0,)))))
