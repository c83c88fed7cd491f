"""Epochs as slices of one infinite line: its position ``P`` is position ``P % length`` of epoch ``P // length``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.errors import PositionError
from shoal.order._check import as_positions
from shoal.order._hash import Int64
from shoal.order._orders import Order

__all__ = ["line", "samples_of"]


def line(order: Order, positions: npt.ArrayLike) -> Int64:
    """The sample at each position of an order's infinite line.

    Raises:
        PositionError: a position is negative, or the order has no samples.

    Example:
        >>> from shoal.order import Sequential
        >>> line(Sequential(3), range(7)).tolist()
        [0, 1, 2, 0, 1, 2, 0]
    """
    given = as_positions(positions)
    if given.size and (order.length == 0 or given.min() < 0):
        raise PositionError("no such position on the line", expected="0 or more, of some samples", found=given.min())
    return samples_of(order, given % max(order.length, 1), given // max(order.length, 1))


def samples_of(order: Order, positions: npt.ArrayLike, epochs: npt.ArrayLike) -> Int64:
    """The sample at each position of each one's own epoch.

    Example:
        >>> from shoal.order import Sequential
        >>> samples_of(Sequential(3), [2, 0], [0, 1]).tolist()
        [2, 0]
    """
    given, own = np.broadcast_arrays(as_positions(positions), as_positions(epochs))
    found = np.empty(given.shape, np.int64)
    if not given.size:
        return found
    if own.min() == own.max():
        return order.samples(given, int(own.min()))
    for epoch in np.unique(own):
        here = own == epoch
        found[here] = order.samples(given[here], int(epoch))
    return found
