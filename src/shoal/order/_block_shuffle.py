"""The shuffle by blocks, how many lanes it gets, and how well an order mixes shards.

The layout of an epoch::

    samples   |-- block 0 --|-- block 1 --| ... |-- block F-1 --|- short -|     blocks of b in the global numbering
    slots     permuted full blocks, dealt to L lanes in turn: slot j goes to lane j mod L, Q slots for each
    tail      what is not dealt: full blocks of the slots from Q * L on, then the short block; rotated by the epoch
    lane      Q blocks, then its run of the tail: cut into equal windows of at most w blocks, each permuted alone
    first     windows are shorter, by another number of blocks in each lane, so that lanes reach new ones in turn
    position  p is lane p mod L, at p // L; the fewer than L samples that no lane got come last

A reader of a lane keeps one window of it at a time, so memory is bounded by lanes * window * block, however large the
data is. Every lane has the same number of samples, so positions and lanes keep step to the end, and a rank that takes
every ``world_size``-th position reads whole lanes when ``world_size`` divides their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import OptionError

from ._orders import (
    BLOCKS,
    ROTATION,
    WINDOWS,
    GlobalShuffle,
    Order,
    check_int,
    check_seed,
    checked_positions,
    fingerprint_of,
)
from ._permutation import CHUNK_SIZE, draw_below, key_of, permute

__all__ = ["BlockShuffle", "choose_lanes", "mixing_quality", "overfetch", "shuffle_order"]

DEFAULT_LANES = 192
"""2**6 * 3: divides most world sizes, or is divided by them."""
DEFAULT_WINDOW_BLOCKS = 4
DEFAULT_BLOCK_BYTES = 256 << 10
DEFAULT_WINDOW_BYTES = 256 << 20
MIN_LANE_BLOCKS = 4
DEFAULT_REACH = 256
DEFAULT_PAIRS = 1 << 16


@dataclass(frozen=True, slots=True)
class BlockShuffle:
    """Blocks of neighbouring samples are permuted and dealt to lanes; each lane's windows are permuted again.

    ``block_samples`` is what one read brings, ``window`` how many blocks of a lane are mixed, ``lanes`` how many lanes
    there are: fewer where there are fewer blocks, see ``lane_count``. Each epoch holds each sample once.

    Examples:
        >>> order = BlockShuffle(1000, seed=1, block_samples=10, window=4, lanes=6)
        >>> sorted(order.samples(range(1000), epoch=3).tolist()) == list(range(1000))
        True
    """

    count: int
    seed: int = 0
    block_samples: int = 64
    window: int = 4
    lanes: int = 192

    def __post_init__(self) -> None:
        check_int("count", self.count, 0)
        check_seed(self.seed)
        check_int("block_samples", self.block_samples, 1)
        check_int("window", self.window, 1)
        check_int("lanes", self.lanes, 1)

    @property
    def length(self) -> int:
        """As many positions as samples."""
        return self.count

    @property
    def lane_count(self) -> int:
        """How many lanes there really are: no more than full blocks, and at least one."""
        return max(1, min(self.lanes, self.count // self.block_samples))

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> IntArray:
        """The sample at each position of an epoch."""
        given = checked_positions(positions, self.count)
        layout, flat = _layout(self), given.ravel()
        found = np.empty_like(flat)
        for start in range(0, len(flat), CHUNK_SIZE):  # chunks stay in the processor's cache
            part = slice(start, start + CHUNK_SIZE)
            found[part] = _samples_at(layout, flat[part], epoch)
        return found.reshape(given.shape)

    def blocks(self, positions: npt.ArrayLike, epoch: int = 0) -> IntArray:
        """The block that holds the sample at each position: its samples are numbered from ``block * block_samples``."""
        return self.samples(positions, epoch) // self.block_samples

    def lane(self, positions: npt.ArrayLike) -> IntArray:
        """The lane of each position; -1 for the last few, which belong to none."""
        given = np.asarray(positions, np.int64)
        return np.where(given < _layout(self).lanes_end, given % self.lane_count, -1)

    def to_json(self) -> dict[str, Any]:
        """The settings, readable."""
        return {
            "order": "block",
            "count": self.count,
            "seed": self.seed,
            "block_samples": self.block_samples,
            "window": self.window,
            "lanes": self.lane_count,
        }

    def fingerprint(self) -> str:
        """A short name of the settings."""
        return fingerprint_of(self.to_json())


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes that follow from an order's settings."""

    seed: int
    block: int
    full_blocks: int
    lanes: int
    lane_blocks: int
    window_blocks: int
    tail: int
    run: int

    @property
    def lane_length(self) -> int:
        return self.lane_blocks * self.block + self.run

    @property
    def lanes_end(self) -> int:
        return self.lanes * self.lane_length


def _layout(order: BlockShuffle) -> _Layout:
    full_blocks, lanes = order.count // order.block_samples, order.lane_count
    lane_blocks = full_blocks // lanes
    tail = order.count - lane_blocks * lanes * order.block_samples
    windows = max(1, -(-lane_blocks // order.window))
    window_blocks = max(1, -(-lane_blocks // windows))  # as many windows, but none much smaller than the others
    return _Layout(
        order.seed, order.block_samples, full_blocks, lanes, lane_blocks, window_blocks, tail, run=tail // lanes
    )


def _samples_at(layout: _Layout, positions: IntArray, epoch: int) -> IntArray:
    last = positions >= layout.lanes_end
    if not last.any():
        return _lane_samples(layout, positions, epoch)
    found = np.empty_like(positions)
    found[~last] = _lane_samples(layout, positions[~last], epoch)
    found[last] = _tail_samples(layout, positions[last] - layout.lanes_end + layout.lanes * layout.run, epoch)
    return found


def _lane_samples(layout: _Layout, positions: IntArray, epoch: int) -> IntArray:
    lane, at = positions % layout.lanes, positions // layout.lanes
    window, start, size = _windows_at(layout, lane, at)
    key = key_of(key_of(layout.seed, epoch, WINDOWS), window * layout.lanes + lane)
    place = start + permute(at - start, size, key)
    body = layout.lane_blocks * layout.block
    if not layout.run:
        return _block_samples(layout, place // layout.block * layout.lanes + lane, place % layout.block, epoch)
    in_tail = place >= body
    found = np.empty_like(place)
    inside = place[~in_tail]
    found[~in_tail] = _block_samples(
        layout, inside // layout.block * layout.lanes + lane[~in_tail], inside % layout.block, epoch
    )
    found[in_tail] = _tail_samples(layout, place[in_tail] - body + lane[in_tail] * layout.run, epoch)
    return found


def _windows_at(layout: _Layout, lane: IntArray, at: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The window of each place in a lane, where it starts and how many samples it holds.

    Lanes start at different places in their first window, so that they do not all come to a new one at once.
    """
    each = layout.window_blocks
    ahead = lane * each // layout.lanes if each < layout.lane_blocks else np.zeros_like(lane)
    window = (np.minimum(at // layout.block, max(layout.lane_blocks - 1, 0)) + ahead) // each
    first = np.maximum(window * each - ahead, 0)
    last = np.minimum((window + 1) * each - ahead, layout.lane_blocks)
    size = (last - first) * layout.block + (last == layout.lane_blocks) * layout.run
    return window, first * layout.block, size


def _block_samples(layout: _Layout, slots: IntArray, offsets: IntArray, epoch: int) -> IntArray:
    """The sample at an offset of the full block in a slot."""
    return permute(slots, layout.full_blocks, key_of(layout.seed, epoch, BLOCKS)) * layout.block + offsets


def _tail_samples(layout: _Layout, places: IntArray, epoch: int) -> IntArray:
    """The sample at a place of the tail, which starts somewhere else every epoch."""
    turned = (places + key_of(layout.seed, epoch, ROTATION) % layout.tail) % layout.tail
    slots, offsets = turned // layout.block + layout.lane_blocks * layout.lanes, turned % layout.block
    found = slots * layout.block + offsets  # right for the short block, which is never moved
    full = slots < layout.full_blocks
    if full.any():
        found[full] = _block_samples(layout, slots[full], offsets[full], epoch)
    return found


def choose_lanes(
    count: int,
    block_samples: int,
    block_bytes: int,
    window: int,
    lanes: int = DEFAULT_LANES,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
) -> int:
    """``lanes``, halved until each has four blocks and the windows of all fit ``window_bytes``.

    Examples:
        >>> choose_lanes(10_000_000, block_samples=50, block_bytes=1 << 20, window=4)
        48
    """
    check_int("count", count, 0)
    for name, value in (("block_samples", block_samples), ("block_bytes", block_bytes), ("window", window)):
        check_int(name, value, 1)
    check_int("lanes", lanes, 1)
    check_int("window_bytes", window_bytes, 1)
    blocks = count // block_samples
    while lanes > 1 and (lanes * MIN_LANE_BLOCKS > blocks or lanes * window * block_bytes > window_bytes):
        lanes //= 2
    return lanes


def shuffle_order(
    count: int,
    seed: int = 0,
    *,
    block_samples: int | None = None,
    block_bytes: int | None = None,
    mean_bytes: float = 1.0,
    window: int = DEFAULT_WINDOW_BLOCKS,
    lanes: int = DEFAULT_LANES,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
) -> GlobalShuffle | BlockShuffle:
    """The shuffle for ``count`` samples of ``mean_bytes`` each: global where all fit the window, else by blocks.

    A block is ``block_samples``, or as many samples as make ``block_bytes``; the latter is divided once, here, so an
    order does not change when the mean does. All samples fit the window when one lane's window would hold them, or
    ``window_bytes`` do.

    Raises:
        OptionError: a number is out of range, or both ``block_samples`` and ``block_bytes`` are given.

    Examples:
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
        check_int("block_bytes", DEFAULT_BLOCK_BYTES if block_bytes is None else block_bytes, 1)
        block_samples = max(1, int((block_bytes or DEFAULT_BLOCK_BYTES) / mean_bytes))
    size = max(1, round(block_samples * mean_bytes))
    lanes = choose_lanes(count, block_samples, size, window, lanes, window_bytes)
    if count <= window * block_samples or count * mean_bytes <= window_bytes:
        return GlobalShuffle(count, seed)
    return BlockShuffle(count, seed, block_samples, window, lanes)


def overfetch(lanes: int, world_size: int) -> int:
    """How many ranks read each block: one when ``world_size`` divides ``lanes``.

    Examples:
        >>> overfetch(192, 8), overfetch(192, 5), overfetch(192, 128)
        (1, 5, 2)
    """
    check_int("lanes", lanes, 1)
    check_int("world_size", world_size, 1)
    return world_size // math.gcd(world_size, lanes)


def mixing_quality(
    order: Order | npt.ArrayLike,
    shard_of: int | npt.ArrayLike | Callable[[IntArray], npt.NDArray[np.generic]],
    *,
    epoch: int = 0,
    reach: int = DEFAULT_REACH,
    pairs: int = DEFAULT_PAIRS,
) -> float:
    """0 where all near samples come from one shard, 1 where they do as seldom as at random; a little above by chance.

    ``order`` is an order, or sample numbers as they were read. ``shard_of`` says which shard a sample is in: how many
    samples each shard has, where each shard ends (ascending numbers), or a function. ``pairs`` pairs of positions at
    most ``reach`` apart, about a batch, are compared; how large the data is does not matter. More pairs give a
    steadier number.

    Raises:
        OptionError: there are fewer than two samples, or only one shard, in which case nothing can be mixed.

    Examples:
        >>> from shoal.order import GlobalShuffle, Sequential
        >>> round(mixing_quality(Sequential(1_000_000), 10_000), 2)
        0.01
        >>> round(mixing_quality(GlobalShuffle(1_000_000, seed=1), 10_000), 2)
        1.0
    """
    check_int("reach", reach, 1)
    check_int("pairs", pairs, 1)
    numbers = np.empty(0, np.int64) if isinstance(order, Order) else np.atleast_1d(np.asarray(order, np.int64))
    length = order.length if isinstance(order, Order) else len(numbers)
    if length < 2:
        raise OptionError("mixing needs something to mix", expected="two samples or more", found=length)
    apart = 1 + draw_below(min(reach, length - 1), key_of(length, 1), np.arange(pairs))
    first = draw_below(length, key_of(length, 2), np.arange(pairs)) % (length - apart)
    both = np.stack([first, first + apart])
    samples = order.samples(both, epoch) if isinstance(order, Order) else numbers[both]
    shards = _shards_of(samples, shard_of)
    same = float(np.mean(shards[0] == shards[1]))
    by_chance = _same_shard_probability(shards)
    if by_chance >= 1:
        raise OptionError("mixing needs something to mix", expected="two shards or more", found=1)
    return (1 - same) / (1 - by_chance)


def _shards_of(
    samples: IntArray, shard_of: int | npt.ArrayLike | Callable[[IntArray], npt.NDArray[np.generic]]
) -> npt.NDArray[np.generic]:
    if callable(shard_of):
        return shard_of(samples)
    if isinstance(shard_of, int):
        check_int("shard_of", shard_of, 1)
        return samples // shard_of
    return np.searchsorted(np.asarray(shard_of), samples, side="right")


def _same_shard_probability(shards: npt.NDArray[np.generic]) -> float:
    """Estimate how likely two random samples are of one shard, from the shards of the samples compared."""
    _, counts = np.unique(shards, return_counts=True)
    total = int(counts.sum())
    return float((counts * (counts - 1.0)).sum() / (total * (total - 1.0)))
