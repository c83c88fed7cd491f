"""Block shuffle: samples in a new order every epoch, read in blocks.

::

    samples   |-- block 0 --|-- block 1 --| ... |-- block F-1 --|- short -|     blocks of b in the global numbering
    slots     permuted full blocks, dealt to L lanes in turn: slot j goes to lane j mod L, Q slots for each
    tail      what is not dealt: full blocks of the slots from Q * L on, then the short block; rotated by the epoch
    lane      Q blocks, then its run of the tail: cut into equal windows of at most w blocks, each permuted alone
    first     windows are shorter, by another number of blocks in each lane, so that lanes reach new ones in turn
    position  p is lane p mod L, at p // L; the fewer than L samples that no lane got come last

Whoever reads a lane keeps one window of it at a time, so memory is bounded by lanes * window * block, however large the
data is. Every lane has the same number of samples, so positions and lanes keep step to the end, and a rank that takes
every ``world_size``-th position reads whole lanes when ``world_size`` divides their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.order._check import as_positions, check_count, check_positions, check_seed, check_whole
from shoal.order._fingerprint import fingerprint_of
from shoal.order._hash import Int64, key_of
from shoal.order._orders import BLOCKS, ROTATION, WINDOWS
from shoal.order._permute import PIECE, permute

__all__ = ["BlockShuffle"]


@dataclass(frozen=True, slots=True)
class BlockShuffle:
    """Blocks of neighbouring samples are permuted and dealt to lanes; each lane's windows are permuted again.

    ``block_samples`` is what one read brings, ``window`` how many blocks of a lane are mixed, ``lanes`` how many lanes
    there are: fewer where there are fewer blocks, see ``lane_count``. Each epoch holds each sample once.

    Example:
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
        check_count(self.count)
        check_seed(self.seed)
        check_whole("block_samples", self.block_samples, 1)
        check_whole("window", self.window, 1)
        check_whole("lanes", self.lanes, 1)

    @property
    def length(self) -> int:
        """As many positions as samples."""
        return self.count

    @property
    def lane_count(self) -> int:
        """How many lanes there really are: no more than full blocks, and at least one."""
        return max(1, min(self.lanes, self.count // self.block_samples))

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> Int64:
        """The sample at each position of an epoch."""
        given = as_positions(positions)
        check_positions(given, self.count)
        layout, flat = _layout(self), given.ravel()
        found = np.empty_like(flat)
        for start in range(0, len(flat), PIECE):  # pieces stay in the processor's cache
            part = slice(start, start + PIECE)
            found[part] = _samples(layout, flat[part], epoch)
        return found.reshape(given.shape)

    def blocks(self, positions: npt.ArrayLike, epoch: int = 0) -> Int64:
        """The block that holds the sample at each position: its samples are numbered from ``block * block_samples``."""
        return self.samples(positions, epoch) // self.block_samples

    def lane(self, positions: npt.ArrayLike) -> Int64:
        """The lane of each position; -1 for the last few, which belong to none."""
        given = as_positions(positions)
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
    """The numbers that follow from an order's settings."""

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


def _samples(layout: _Layout, positions: Int64, epoch: int) -> Int64:
    last = positions >= layout.lanes_end
    if not last.any():
        return _in_lanes(layout, positions, epoch)
    found = np.empty_like(positions)
    found[~last] = _in_lanes(layout, positions[~last], epoch)
    found[last] = _in_tail(layout, positions[last] - layout.lanes_end + layout.lanes * layout.run, epoch)
    return found


def _in_lanes(layout: _Layout, positions: Int64, epoch: int) -> Int64:
    lane, at = positions % layout.lanes, positions // layout.lanes
    window, start, size = _windows(layout, lane, at)
    key = key_of(key_of(layout.seed, epoch, WINDOWS), window * layout.lanes + lane)
    place = start + permute(at - start, size, key)
    body = layout.lane_blocks * layout.block
    if not layout.run:
        return _in_blocks(layout, place // layout.block * layout.lanes + lane, place % layout.block, epoch)
    in_tail = place >= body
    found = np.empty_like(place)
    inside = place[~in_tail]
    found[~in_tail] = _in_blocks(
        layout, inside // layout.block * layout.lanes + lane[~in_tail], inside % layout.block, epoch
    )
    found[in_tail] = _in_tail(layout, place[in_tail] - body + lane[in_tail] * layout.run, epoch)
    return found


def _windows(layout: _Layout, lane: Int64, at: Int64) -> tuple[Int64, Int64, Int64]:
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


def _in_blocks(layout: _Layout, slots: Int64, offsets: Int64, epoch: int) -> Int64:
    """The sample at an offset of the full block in a slot."""
    return permute(slots, layout.full_blocks, key_of(layout.seed, epoch, BLOCKS)) * layout.block + offsets


def _in_tail(layout: _Layout, places: Int64, epoch: int) -> Int64:
    """The sample at a place of the tail, which starts somewhere else every epoch."""
    turned = (places + key_of(layout.seed, epoch, ROTATION) % layout.tail) % layout.tail
    slots, offsets = turned // layout.block + layout.lane_blocks * layout.lanes, turned % layout.block
    found = slots * layout.block + offsets  # right for the short block, which is never moved
    full = slots < layout.full_blocks
    if full.any():
        found[full] = _in_blocks(layout, slots[full], offsets[full], epoch)
    return found
