"""How many lanes an order has, and whether it needs any: decided from the data's size, never from the world's."""

from __future__ import annotations

import math

from shoal.errors import OptionError
from shoal.order._block import BlockShuffle
from shoal.order._check import check_count, check_whole
from shoal.order._orders import GlobalShuffle

__all__ = ["BLOCK_BYTES", "LANES", "WINDOW", "WINDOW_BYTES", "choose_lanes", "overfetch", "shuffle_order"]

LANES = 192
"""2**6 * 3: most worlds are divided by it, or divide it."""
WINDOW = 4
BLOCK_BYTES = 256 << 10
WINDOW_BYTES = 256 << 20
LANE_BLOCKS = 4


def choose_lanes(
    count: int,
    block_samples: int,
    block_bytes: int,
    window: int,
    lanes: int = LANES,
    window_bytes: int = WINDOW_BYTES,
) -> int:
    """``lanes``, halved until each has four blocks and the windows of all fit ``window_bytes``.

    Example:
        >>> choose_lanes(10_000_000, block_samples=50, block_bytes=1 << 20, window=4)
        48
    """
    check_count(count)
    for name, value in (("block_samples", block_samples), ("block_bytes", block_bytes), ("window", window)):
        check_whole(name, value, 1)
    check_whole("lanes", lanes, 1)
    check_whole("window_bytes", window_bytes, 1)
    blocks = count // block_samples
    while lanes > 1 and (lanes * LANE_BLOCKS > blocks or lanes * window * block_bytes > window_bytes):
        lanes //= 2
    return lanes


def shuffle_order(
    count: int,
    seed: int = 0,
    *,
    block_samples: int | None = None,
    block_bytes: int | None = None,
    mean_bytes: float = 1.0,
    window: int = WINDOW,
    lanes: int = LANES,
    window_bytes: int = WINDOW_BYTES,
) -> GlobalShuffle | BlockShuffle:
    """The shuffle for ``count`` samples of ``mean_bytes`` each: global where all fit the window, else by blocks.

    A block is ``block_samples``, or as many samples as make ``block_bytes``; the latter is divided once, here, so an
    order does not change when the mean does. All samples fit the window when one lane's window would hold them, or
    ``window_bytes`` do.

    Raises:
        OptionError: a number is out of range, or both ``block_samples`` and ``block_bytes`` are given.

    Example:
        >>> shuffle_order(1000, seed=1, mean_bytes=20_000)
        GlobalShuffle(count=1000, seed=1)
        >>> shuffle_order(10_000_000, seed=1, mean_bytes=20_000)
        BlockShuffle(count=10000000, seed=1, block_samples=13, window=4, lanes=192)
    """
    if block_samples is not None and block_bytes is not None:
        raise OptionError("a block has one size", expected="block_samples or block_bytes", found="both")
    if not 0 < mean_bytes < math.inf:
        raise OptionError("mean_bytes cannot be this", expected="a number above zero", found=repr(mean_bytes))
    if block_samples is None:
        check_whole("block_bytes", BLOCK_BYTES if block_bytes is None else block_bytes, 1)
        block_samples = max(1, int((block_bytes or BLOCK_BYTES) / mean_bytes))
    size = max(1, round(block_samples * mean_bytes))
    lanes = choose_lanes(count, block_samples, size, window, lanes, window_bytes)
    if count <= window * block_samples or count * mean_bytes <= window_bytes:
        return GlobalShuffle(count, seed)
    return BlockShuffle(count, seed, block_samples, window, lanes)


def overfetch(lanes: int, world_size: int) -> int:
    """How many ranks read each block: one when ``world_size`` divides ``lanes``.

    Example:
        >>> overfetch(192, 8), overfetch(192, 5), overfetch(192, 128)
        (1, 5, 2)
    """
    check_whole("lanes", lanes, 1)
    check_whole("world_size", world_size, 1)
    return world_size // math.gcd(world_size, lanes)
