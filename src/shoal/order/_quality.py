"""How well an order mixes shards: whether samples that come soon after each other come from the same one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError
from shoal.order._check import check_whole
from shoal.order._hash import Int64, draw_below, key_of
from shoal.order._orders import Order

__all__ = ["mixing_quality"]

REACH = 256
PAIRS = 1 << 16


def mixing_quality(
    order: Order | npt.ArrayLike,
    shard_of: int | npt.ArrayLike | Callable[[Int64], npt.NDArray[np.generic]],
    *,
    epoch: int = 0,
    reach: int = REACH,
    pairs: int = PAIRS,
) -> float:
    """0 where all near samples come from one shard, 1 where they do as seldom as at random; a little above by chance.

    ``order`` is an order, or sample numbers as they were read. ``shard_of`` says which shard a sample is in: how many
    samples each shard has, where each shard ends (ascending numbers), or a function. ``pairs`` pairs of positions at
    most ``reach`` apart, about a batch, are compared; how large the data is does not matter. More pairs give a
    steadier number.

    Raises:
        OptionError: there are fewer than two samples, or only one shard, in which case nothing can be mixed.

    Example:
        >>> from shoal.order import GlobalShuffle, Sequential
        >>> round(mixing_quality(Sequential(1_000_000), 10_000), 2)
        0.01
        >>> round(mixing_quality(GlobalShuffle(1_000_000, seed=1), 10_000), 2)
        1.0
    """
    check_whole("reach", reach, 1)
    check_whole("pairs", pairs, 1)
    numbers = np.empty(0, np.int64) if isinstance(order, Order) else np.atleast_1d(np.asarray(order, np.int64))
    length = order.length if isinstance(order, Order) else len(numbers)
    if length < 2:
        raise OptionError("mixing needs something to mix", expected="two samples or more", found=length)
    apart = 1 + draw_below(min(reach, length - 1), key_of(length, 1), np.arange(pairs))
    first = draw_below(length, key_of(length, 2), np.arange(pairs)) % (length - apart)
    both = np.stack([first, first + apart])
    samples = order.samples(both, epoch) if isinstance(order, Order) else numbers[both]
    shards = _shards(samples, shard_of)
    same = float(np.mean(shards[0] == shards[1]))
    by_chance = _by_chance(shards)
    if by_chance >= 1:
        raise OptionError("mixing needs something to mix", expected="two shards or more", found=1)
    return (1 - same) / (1 - by_chance)


def _shards(
    samples: Int64, shard_of: int | npt.ArrayLike | Callable[[Int64], npt.NDArray[np.generic]]
) -> npt.NDArray[np.generic]:
    if callable(shard_of):
        return shard_of(samples)
    if isinstance(shard_of, int):
        check_whole("shard_of", shard_of, 1)
        return samples // shard_of
    return np.searchsorted(np.asarray(shard_of), samples, side="right")


def _by_chance(shards: npt.NDArray[np.generic]) -> float:
    """How often two samples of all would be of one shard, told by those that were met."""
    _, met = np.unique(shards, return_counts=True)
    total = int(met.sum())
    return float((met * (met - 1.0)).sum() / (total * (total - 1.0)))
