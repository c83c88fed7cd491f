"""Several orders as one, by weight: each source goes through its own order, as often as its share asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError
from shoal.order._check import as_positions, check_positions, check_whole
from shoal.order._fingerprint import fingerprint_of
from shoal.order._hash import Int64
from shoal.order._line import line
from shoal.order._mix import Mix
from shoal.order._orders import Order

__all__ = ["Mixed"]


@dataclass(frozen=True, slots=True)
class Mixed:
    """The samples of several sources, numbered one source after the other, in the proportions of a mix.

    Epochs are slices of one infinite line, so a source goes on in the next epoch where it was; each time it is through,
    its own next epoch begins. With weights that are the counts, an epoch has each sample once.

    Raises:
        OptionError: there is not one order for each source of the mix.

    Example:
        >>> from shoal.order import Sequential
        >>> order = Mixed(Mix((4, 2), (2, 1)), (Sequential(4), Sequential(2)))
        >>> order.samples(range(6)).tolist()
        [0, 4, 1, 2, 5, 3]
        >>> order.samples(range(6), epoch=1).tolist() == order.samples(range(6)).tolist()
        True
    """

    mix: Mix
    orders: tuple[Order, ...]
    draws: int | None = None

    def __post_init__(self) -> None:
        counts = tuple(order.length for order in self.orders)
        if counts != self.mix.counts:
            raise OptionError("a mix has an order for each source", expected=self.mix.counts, found=counts)
        if self.draws is not None:
            check_whole("draws", self.draws, 1)

    @property
    def count(self) -> int:
        """How many samples all sources have together."""
        return sum(order.count for order in self.orders)

    @property
    def length(self) -> int:
        """How many positions an epoch has: ``draws``, or as many as there are samples."""
        return self.mix.count if self.draws is None else self.draws

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> Int64:
        """The sample at each position of an epoch."""
        given = as_positions(positions)
        check_positions(given, self.length)
        sources, places = self.mix.at(given + epoch * self.length)
        found = np.empty(given.shape, np.int64)
        start = 0
        for number, order in enumerate(self.orders):
            here = sources == number
            if here.any():
                found[here] = start + line(order, places[here])
            start += order.count
        return found

    def to_json(self) -> dict[str, Any]:
        """The settings, readable."""
        return {
            **self.mix.to_json(),
            "order": "mixed",
            "orders": [order.to_json() for order in self.orders],
            "length": self.length,
        }

    def settings_before(self, position: int) -> dict[str, Any]:
        """The settings that fixed the line up to ``position``: stages from there on may still be changed."""
        document = self.to_json()
        return {**document, "stages": [stage for stage in document["stages"] if stage[0] < position]}

    def fingerprint(self) -> str:
        """A short name of the settings."""
        return fingerprint_of(self.to_json())
