"""The order of samples in an epoch. Pure arithmetic: no I/O, no state, no table that grows with the data.

::

    _permutation    hashed keys, and a permutation of any length
    _orders         orders (position of an epoch -> sample), and checks of arguments
    _block_shuffle  the shuffle by blocks: its layout, its block size, and how well it mixes shards
    _epoch_plan     the positions of each step of one rank, and which rank this process is
    _mixture        several sources by weight
    _state          how far a run has come, as a value; orders from JSON
    _samplers       orders as PyTorch's samplers

Examples:
    >>> from shoal.order import GlobalShuffle, Split, plan_epoch
    >>> order = GlobalShuffle(1_000_000_000_000, seed=1)
    >>> plan = plan_epoch(order.length, batch_size=4, start=900_000_000_000, split=Split(rank=3, world_size=8))
    >>> plan.at(0).samples(order).shape
    (4,)
"""

from __future__ import annotations

from ._block_shuffle import BlockShuffle, choose_lanes, mixing_quality, overfetch, shuffle_order
from ._epoch_plan import (
    EpochPlan,
    RankPositions,
    Split,
    Tail,
    epoch_end,
    launched_rank,
    plan_epoch,
    rank_positions,
    steps_per_epoch,
)
from ._mixture import Mix, Mixed
from ._orders import GlobalShuffle, Order, Sequential, Weighted, WithReplacement, fingerprint_of, line, samples_of
from ._permutation import key_of, permute, unpermute
from ._samplers import DistributedSampler, SequentialSampler, ShufflingSampler, WeightedSampler
from ._state import PartitionState, PendingElement, State, order_from_json

__all__ = [
    "BlockShuffle",
    "DistributedSampler",
    "EpochPlan",
    "GlobalShuffle",
    "Mix",
    "Mixed",
    "Order",
    "PartitionState",
    "PendingElement",
    "RankPositions",
    "Sequential",
    "SequentialSampler",
    "ShufflingSampler",
    "Split",
    "State",
    "Tail",
    "Weighted",
    "WeightedSampler",
    "WithReplacement",
    "choose_lanes",
    "epoch_end",
    "fingerprint_of",
    "key_of",
    "launched_rank",
    "line",
    "mixing_quality",
    "order_from_json",
    "overfetch",
    "permute",
    "plan_epoch",
    "rank_positions",
    "samples_of",
    "shuffle_order",
    "steps_per_epoch",
    "unpermute",
]
