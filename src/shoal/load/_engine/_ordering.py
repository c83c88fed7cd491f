"""Which order a loader reads its data in, from its options and from how the data lies."""

from __future__ import annotations

from shoal.load._steps import Geometry, Numbered
from shoal.order import BlockShuffle, GlobalShuffle, Order, Sequential, Split, launched_rank, overfetch, shuffle_order

from ._options import LoaderOptions

__all__ = ["order_of", "over_fetch_of", "split_of"]

_BLOCK_BYTES = 1 << 20
_FAR_WINDOW, _FAR_WINDOW_BYTES = 2, 128 << 20
"""Blocks of a lane that are mixed where they have to be held in memory, and what those of all lanes may take."""
_UNKNOWN_BYTES = 4096.0
"""What a sample is taken to be where nobody knows."""


def order_of(source: Numbered, options: LoaderOptions) -> Order:
    """The order: the data's own where it has one (a mixture), else as stored, or shuffled.

    Data that fits the window is shuffled as a whole, and so is data in which any sample is as quick to read as its
    neighbour.
    """
    own = getattr(source, "order", None)
    if own is not None:
        made: Order = own(options)
        return made
    count = len(source)
    if not options.shuffle:
        return Sequential(count)
    return _shuffled(count, options, source.geometry())


def _shuffled(count: int, options: LoaderOptions, geometry: Geometry) -> Order:
    mean = geometry.mean_bytes or _UNKNOWN_BYTES
    block = options.block_samples or max(1, int(_BLOCK_BYTES / mean))
    if options.window is None and options.block_samples is None:
        if geometry.local:
            return GlobalShuffle(count, options.seed)
        return shuffle_order(
            count,
            options.seed,
            block_samples=block,
            mean_bytes=mean,
            window=_FAR_WINDOW,
            lanes=options.lanes,
            window_bytes=_FAR_WINDOW_BYTES,
        )
    # At least `window` samples are mixed at a time, over all lanes together.
    wanted = options.window or 4 * block * options.lanes
    if wanted >= count:
        return GlobalShuffle(count, options.seed)
    lanes = max(1, min(options.lanes, wanted // max(block, 1), count // max(block, 1)))
    blocks = -(-wanted // (lanes * block))
    return BlockShuffle(count, options.seed, block_samples=block, window=blocks, lanes=lanes)


def split_of(options: LoaderOptions) -> Split:
    """This process among all."""
    if options.rank is not None and options.world_size is not None:
        return Split(options.rank, options.world_size, options.replication)
    return Split(*launched_rank(), options.replication)


def over_fetch_of(order: Order, split: Split) -> float:
    """How many ranks read each block."""
    return float(overfetch(order.lane_count, split.readers)) if isinstance(order, BlockShuffle) else 1.0
