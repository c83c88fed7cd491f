"""Sequential, shuffled and weighted orders, the protocol `Order`, and the checks of arguments that all orders share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import OptionError, PositionError

from ._permutation import MAX_COUNT, draw_below, draw_fractions, key_of, permute

__all__ = [
    "GlobalShuffle",
    "Order",
    "Sequential",
    "Weighted",
    "WithReplacement",
    "check_int",
    "check_seed",
    "checked_positions",
    "fingerprint_of",
    "line",
    "samples_of",
]

# The purpose of a key is hashed into it, so these numbers must never change or be reused: saved states rely on them.
SAMPLES, BLOCKS, ROTATION, WINDOWS, DRAWS, WEIGHTS = 0, 1, 2, 3, 4, 5


@runtime_checkable
class Order(Protocol):
    """The protocol of every order. Positions of one epoch are ``0`` to ``length - 1``."""

    @property
    def count(self) -> int:
        """How many samples there are to choose from: numbers are below it."""
        ...

    @property
    def length(self) -> int:
        """How many positions one epoch has: ``count``, unless samples are drawn."""
        ...

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> IntArray:
        """The number of the sample at each position of an epoch."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The settings that fix the order, readable; see ``order_from_json``."""
        ...

    def fingerprint(self) -> str:
        """A short name of those settings."""
        ...


@dataclass(frozen=True, slots=True)
class Sequential:
    """Samples as they are numbered, every epoch alike.

    Examples:
        >>> Sequential(10).samples([0, 9]).tolist()
        [0, 9]
    """

    count: int

    def __post_init__(self) -> None:
        check_int("count", self.count, 0)

    @property
    def length(self) -> int:
        """As many positions as samples."""
        return self.count

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> IntArray:
        """The positions themselves."""
        found = checked_positions(positions, self.count)
        return found.copy()

    def to_json(self) -> dict[str, Any]:
        """The settings, readable."""
        return {"order": "sequential", "count": self.count}

    def fingerprint(self) -> str:
        """A short name of the settings."""
        return fingerprint_of(self.to_json())


@dataclass(frozen=True, slots=True)
class GlobalShuffle:
    """All samples permuted at once: the best shuffle, and a read anywhere for each sample.

    Examples:
        >>> order = GlobalShuffle(5, seed=1)
        >>> order.samples(range(5), epoch=0).tolist(), order.samples(range(5), epoch=1).tolist()
        ([1, 3, 0, 2, 4], [2, 4, 1, 3, 0])
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("count", self.count, 0)
        check_seed(self.seed)

    @property
    def length(self) -> int:
        """As many positions as samples."""
        return self.count

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> IntArray:
        """The sample at each position; every epoch has a permutation of its own."""
        found = checked_positions(positions, self.count)
        return permute(found, self.count, key_of(self.seed, epoch, SAMPLES))

    def to_json(self) -> dict[str, Any]:
        """The settings, readable."""
        return {"order": "global", "count": self.count, "seed": self.seed}

    def fingerprint(self) -> str:
        """A short name of the settings."""
        return fingerprint_of(self.to_json())


@dataclass(frozen=True, slots=True)
class WithReplacement:
    """Every position draws any sample, whatever was drawn before; an epoch is ``draws`` draws, or ``count``.

    Examples:
        >>> WithReplacement(1000, seed=3, draws=4).samples(range(4)).tolist()
        [591, 127, 747, 287]
    """

    count: int
    seed: int = 0
    draws: int | None = None

    def __post_init__(self) -> None:
        check_int("count", self.count, 1)
        check_seed(self.seed)
        if self.draws is not None:
            check_int("draws", self.draws, 1)

    @property
    def length(self) -> int:
        """How many draws an epoch has."""
        return self.count if self.draws is None else self.draws

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> IntArray:
        """The sample drawn at each position."""
        found = checked_positions(positions, self.length)
        return draw_below(self.count, key_of(self.seed, epoch, DRAWS), found)

    def to_json(self) -> dict[str, Any]:
        """The settings, readable."""
        return {"order": "replacement", "count": self.count, "seed": self.seed, "draws": self.length}

    def fingerprint(self) -> str:
        """A short name of the settings."""
        return fingerprint_of(self.to_json())


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """Every position draws a sample, each as likely as its weight says; an epoch is ``draws`` draws.

    Weights need not add up to one. They are the only order that keeps something for each sample: 8 bytes.

    Examples:
        >>> set(Weighted([0.0, 1.0, 3.0], seed=1, draws=100).samples(range(100)).tolist())
        {1, 2}
    """

    weights: npt.NDArray[np.float64]
    seed: int = 0
    draws: int | None = None
    _ends: npt.NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weights = check_weights(self.weights)
        check_seed(self.seed)
        if self.draws is not None:
            check_int("draws", self.draws, 1)
        ends = np.cumsum(weights)
        weights.flags.writeable = ends.flags.writeable = False
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "_ends", ends)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighted) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    @property
    def count(self) -> int:
        """How many samples there are to draw from."""
        return len(self.weights)

    @property
    def length(self) -> int:
        """How many draws an epoch has."""
        return self.count if self.draws is None else self.draws

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> IntArray:
        """The sample drawn at each position."""
        found = checked_positions(positions, self.length)
        at = draw_fractions(key_of(self.seed, epoch, WEIGHTS), found) * self._ends[-1]
        drawn = np.searchsorted(self._ends, at, side="right")
        # A product may round up to the sum of all weights; it then draws the last sample whose weight is not zero.
        last = int(np.searchsorted(self._ends, self._ends[-1], side="left"))
        capped: IntArray = np.minimum(drawn, last)
        return capped

    def to_json(self) -> dict[str, Any]:
        """The settings, readable; of the weights, a hash."""
        digest = hashlib.sha256(self.weights.astype("<f8").tobytes()).hexdigest()[:16]
        return {
            "order": "weighted",
            "count": self.count,
            "weights": digest,
            "seed": self.seed,
            "draws": self.length,
        }

    def fingerprint(self) -> str:
        """A short name of the settings."""
        return fingerprint_of(self.to_json())


def check_weights(weights: object) -> npt.NDArray[np.float64]:
    """Return weights as a new array, checked: one for each sample, none negative, some above zero."""
    try:
        found = np.array(weights, np.float64)
    except (TypeError, ValueError):
        raise OptionError("weights cannot be this", expected="a number for each sample", found=repr(weights)) from None
    if found.ndim != 1 or not len(found):
        raise OptionError("weights cannot be this", expected="a number for each sample", found=f"shape {found.shape}")
    if not np.isfinite(found).all() or found.min() < 0 or not 0 < found.sum() < np.inf:
        raise OptionError(
            "weights cannot be these", expected="finite, none negative, some above zero", found=f"sum {found.sum()}"
        )
    return found


def fingerprint_of(settings: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that stand for ``settings``, whatever the order of its keys.

    Examples:
        >>> fingerprint_of({"seed": 1, "count": 10}) == fingerprint_of({"count": 10, "seed": 1})
        True
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def line(order: Order, positions: npt.ArrayLike) -> IntArray:
    """The sample at each position of an order's infinite line.

    Raises:
        PositionError: a position is negative, or the order has no samples.

    Examples:
        >>> from shoal.order import Sequential
        >>> line(Sequential(3), range(7)).tolist()
        [0, 1, 2, 0, 1, 2, 0]
    """
    given = np.asarray(positions, np.int64)
    if given.size and (order.length == 0 or given.min() < 0):
        raise PositionError("no such position on the line", expected="0 or more, of some samples", found=given.min())
    return samples_of(order, given % max(order.length, 1), given // max(order.length, 1))


def samples_of(order: Order, positions: npt.ArrayLike, epochs: npt.ArrayLike) -> IntArray:
    """The sample at each position of each one's own epoch.

    Examples:
        >>> from shoal.order import Sequential
        >>> samples_of(Sequential(3), [2, 0], [0, 1]).tolist()
        [2, 0]
    """
    given, own = np.broadcast_arrays(np.asarray(positions, np.int64), np.asarray(epochs, np.int64))
    if given.size and own.min() == own.max():
        return order.samples(given, int(own.min()))
    found = np.empty(given.shape, np.int64)
    for epoch in np.unique(own):
        here = own == epoch
        found[here] = order.samples(given[here], int(epoch))
    return found


def check_int(name: str, value: object, least: int, most: int = MAX_COUNT) -> None:
    """Check that a value is an int from ``least`` to ``most``. Booleans and NumPy's integers are refused."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        expected = f"a whole number from {least}" + ("" if most == MAX_COUNT else f" to {most}")
        raise OptionError(f"{name} cannot be this", expected=expected, found=repr(value))


def check_seed(value: object) -> None:
    """Check that a seed is a 64-bit int, signed or unsigned."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 64:
        raise OptionError("seed cannot be this", expected="a whole number of 64 bits", found=repr(value))


def checked_positions(positions: npt.ArrayLike, length: int) -> IntArray:
    """Return positions as an int64 array. Raises PositionError unless all are in ``[0, length)``."""
    found = np.asarray(positions, np.int64)
    if found.size and (found.min() < 0 or found.max() >= length):
        outside = f"{found.min()} to {found.max()}"
        raise PositionError("positions outside the epoch", expected=f"0 to {length - 1}", found=outside)
    return found
