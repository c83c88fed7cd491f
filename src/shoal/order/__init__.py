"""Which sample comes when. Pure arithmetic: no I/O, no state, no table that grows with the data.

::

    _hash, _permute  keys; a permutation of any length    _orders, _block  orders: position of an epoch -> sample
    _line            epochs as one infinite line          _lanes           block size and lanes, from the data's size
    _split, _plan    ranks, tails, steps                  _state           where a run stands
    _mix, _mixed     several sources by weight            _samplers        orders as PyTorch's samplers
    _quality         how well an order mixes shards       _document        orders from JSON
    _launcher        which of how many processes this is

Example:
    >>> from shoal.order import GlobalShuffle, Split, plan_epoch
    >>> order = GlobalShuffle(1_000_000_000_000, seed=1)
    >>> plan = plan_epoch(order.length, batch_size=4, start=900_000_000_000, split=Split(rank=3, world_size=8))
    >>> plan.at(0).samples(order).shape
    (4,)
"""

from __future__ import annotations

from shoal.order._block import BlockShuffle
from shoal.order._document import order_from_json
from shoal.order._fingerprint import fingerprint_of
from shoal.order._hash import key_of
from shoal.order._lanes import choose_lanes, overfetch, shuffle_order
from shoal.order._launcher import launched_rank
from shoal.order._line import line, samples_of
from shoal.order._mix import Mix
from shoal.order._mixed import Mixed
from shoal.order._orders import GlobalShuffle, Order, Sequential, Weighted, WithReplacement
from shoal.order._permute import permute, unpermute
from shoal.order._plan import EpochPlan, RankPositions, plan_epoch, rank_positions, steps_per_epoch
from shoal.order._quality import mixing_quality
from shoal.order._samplers import DistributedSampler, SequentialSampler, ShufflingSampler, WeightedSampler
from shoal.order._split import Split, Tail, epoch_end
from shoal.order._state import Pending, Share, State

__all__ = [
    "BlockShuffle",
    "DistributedSampler",
    "EpochPlan",
    "GlobalShuffle",
    "Mix",
    "Mixed",
    "Order",
    "Pending",
    "RankPositions",
    "Sequential",
    "SequentialSampler",
    "Share",
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
