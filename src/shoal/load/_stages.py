"""Stages of a pipeline as frozen values, and the elements that flow between them."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from shoal.errors import OptionError
from shoal.order import PendingElement, key_of

from ._columns import Ragged

__all__ = [
    "Batch",
    "Bucket",
    "Element",
    "ElementPosition",
    "Enumerate",
    "EpochEnd",
    "Filter",
    "FlatMap",
    "Held",
    "Interleave",
    "Map",
    "Pack",
    "PerSample",
    "Shuffle",
    "Skip",
    "Step",
    "Take",
    "TakeWhile",
    "TaskResult",
    "Unbatch",
    "Window",
    "fed_again",
    "name_of",
    "rng_for",
    "takes_rng",
]

WorkerKind = Literal["thread", "process"]
_PURPOSE = 7
"""So that a sample's own random numbers are not those of the order."""


@dataclass(frozen=True, slots=True)
class Map:
    """One element in, one out."""

    function: Callable[..., Any]
    workers: WorkerKind = "thread"


@dataclass(frozen=True, slots=True)
class Filter:
    """Only elements for which the function is true."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FlatMap:
    """One element in, any number out."""

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Elements gathered ``size`` at a time."""

    size: int
    drop_last: bool = False
    ragged: Ragged = "list"
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """Batches of elements of about the same length: one open batch for each bucket between boundaries."""

    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    """Elements a batch, for each bucket: one more than there are boundaries."""
    length_of: Callable[[Any], int]
    drop_last: bool = False
    ragged: Ragged = "pad"
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Pack:
    """Token sequences put together into rows of ``length`` tokens."""

    length: int
    field: str
    how: Literal["first_fit", "concat"] = "first_fit"
    open_rows: int = 64
    """Rows that first-fit keeps open; the fullest leaves when one more is needed."""
    pad: int = 0


@dataclass(frozen=True, slots=True)
class Unbatch:
    """Batches taken apart into elements."""


@dataclass(frozen=True, slots=True)
class Window:
    """Lists of ``size`` neighbours, each starting ``shift`` after the one before."""

    size: int
    shift: int
    drop_last: bool = False


@dataclass(frozen=True, slots=True)
class Take:
    """The first elements only."""

    count: int


@dataclass(frozen=True, slots=True)
class Skip:
    """All but the first elements."""

    count: int


@dataclass(frozen=True, slots=True)
class TakeWhile:
    """Elements until the function is first false."""

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Enumerate:
    """Pairs of a number and an element."""

    start: int = 0


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Elements mixed through a buffer: for a line that has no positions."""

    buffer: int | None
    """How many; None where there are positions, and so no buffer."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Interleave:
    """What a function makes of each element, several at a time in turns."""

    function: Callable[[Any], Any]
    cycle: int = 2
    block: int = 1


PerSample = Map | Filter | FlatMap
Gathering = Batch | Bucket | Pack | Shuffle | Unbatch | Window
Step = PerSample | Gathering | Take | Skip | TakeWhile | Enumerate | Interleave


_TAKES_RNG: weakref.WeakKeyDictionary[Callable[..., Any], bool] = weakref.WeakKeyDictionary()
"""Not a cache that keeps them: a function may hold a whole dataset."""


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a function asks for a random generator, by a parameter named ``rng``."""
    try:
        known = _TAKES_RNG.get(function)
        if known is None:
            known = _TAKES_RNG[function] = _asks_for_rng(function)
    except TypeError:  # neither hashed nor referred to weakly
        return _asks_for_rng(function)
    return known


def _asks_for_rng(function: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions do not say
        return False


def name_of(function: Callable[..., Any]) -> str:
    """A function's name and where it is written, for messages."""
    inner = inspect.unwrap(getattr(function, "func", function))  # a partial's own function
    name = getattr(inner, "__qualname__", type(inner).__name__)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    return f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else name


def check_callable(what: str, function: object) -> None:
    """Raise OptionError when it cannot be called."""
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
class ElementPosition:
    """Where to go on, so that nothing comes twice and nothing is left out.

    ``position`` is the first place on the line that is not used up. ``part`` says how much of what came of the sample
    there is used already. ``pending`` are samples before it that are read and not yet delivered, in the groups they
    wait in. ``count`` is how many elements came before: what is skipped where only replaying helps.
    """

    position: int
    part: int = 0
    pending: tuple[tuple[PendingElement, ...], ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Element:
    """A sample, or a batch."""

    value: Any
    samples: int
    mark: ElementPosition
    key: PendingElement = (0, 0, 0)
    """Which sample it came of, where it is of one."""
    repeated: int = 0
    """How many of its samples came already in this epoch."""
    size: int = 0
    """Bytes, where that was looked at."""


Held = list[list[Element]]
"""Elements that a step held back when it was left, in the groups they waited in."""


def fed_again(held: Held) -> Iterator[Element]:
    """Elements that were held back, one after the other; those that are still to be fed wait in the mark of each."""
    for at, group in enumerate(held):
        later = tuple(tuple(element.key for element in other) for other in held[at + 1 :])
        for place, element in enumerate(group):
            rest = tuple(other.key for other in group[place + 1 :])
            yield replace(element, mark=replace(element.mark, pending=(rest, *later) if rest else later))


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What came of one unit of work."""

    elements: list[Element]
    skipped: int = 0
    """Samples of it that failed and were passed over."""

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return sum(element.size for element in self.elements)


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Stands between the elements of two epochs."""

    epoch: int
    mark: ElementPosition = field(default_factory=lambda: ElementPosition(0))
    """Where the next epoch begins."""


def rng_for(seed: int, epoch: int, number: int, *parts: int) -> np.random.Generator:
    """The random generator of one sample in one epoch, or of a part of it: the same on every rank, in every run.

    Example:
        >>> bool(rng_for(0, 1, 5).random() == rng_for(0, 1, 5).random())
        True
    """
    return np.random.Generator(np.random.SFC64(key_of(seed, epoch, _PURPOSE, number, *(parts or (0,)))))
