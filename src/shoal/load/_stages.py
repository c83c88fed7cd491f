"""The steps of a pipeline, as frozen values: what is done to each sample, and to the line of them."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shoal.errors import OptionError
from shoal.load._columns import Ragged

__all__ = [
    "Batch",
    "Bucket",
    "Enumerate",
    "Filter",
    "FlatMap",
    "Interleave",
    "Map",
    "Pack",
    "PerSample",
    "Shuffle",
    "Skip",
    "Step",
    "Take",
    "TakeWhile",
    "Unbatch",
    "Window",
    "name_of",
    "takes_rng",
]

WorkerKind = Literal["thread", "process"]


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
