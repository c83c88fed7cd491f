"""What an epoch of a loader will ask of the store and of memory, told before anything is read."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError
from shoal.order import BlockShuffle, EpochPlan, Order, plan_epoch
from shoal.shard import Reads

from ._autotune import Tuner
from ._build import Built
from ._loader import DataLoader
from ._options import LoaderOptions
from ._ordering import over_fetch_of
from ._place import place_of_epoch
from ._source import Geometry, Numbered, StreamSource

__all__ = ["Prediction", "predict"]

Int64 = npt.NDArray[np.int64]
_MOST_UNITS = 64
"""Batches that are looked at; where an epoch has more, these stand for all."""
_MOST_SHARDS = 64
"""Shards whose indexes are opened for that."""
_OPENING = 2
"""Requests that opening a shard takes: its index, and its first bytes, which tell whether the index fits."""


@runtime_checkable
class Foreseeing(Protocol):
    """A source that knows what reading asks of its store."""

    def foresee(self, numbers: Int64, *, batched: bool) -> Reads | None: ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """An epoch of a loader, foretold. What cannot be known is None.

    ``requests`` are ranges that are asked of the store, ``bytes`` what they hold, in one epoch over all ranks, without
    what opening shards takes; the same under ``rank_`` for one rank. They are exact where ``is_exact``, else told from
    64 batches spread over the epoch.
    """

    samples: int
    """In the data."""
    world_size: int
    batch_size: int
    steps: int | None
    """Batches that a rank is given in an epoch; None after a filter and its like."""
    rank_samples: int
    """Samples that a rank is given, at most."""
    repeated: int
    """Samples that come twice, so that ranks have equal steps."""
    order: dict[str, Any]
    requests: int | None
    bytes: int | None
    rank_requests: int | None
    rank_bytes: int | None
    is_exact: bool
    over_fetch: float | None
    """Bytes read for each byte of a field that is wanted: headers, padding and repeats are above 1."""
    block_readers: int
    """How many ranks read from each block: 1 where the world size divides the lanes."""
    batch_bytes: float | None
    """Of one batch as it is stored; decoded it may be more."""
    window_samples: int
    """How many samples are mixed at a time."""
    window_bytes: float | None
    workers: int
    """At most."""
    prefetch: int
    """At most, for so many workers."""
    resident_bytes: float | None
    """What batches take that are ready or being made, at most, as stored; ``memory_budget`` bounds it."""
    first_batch_seconds: float | None
    """Until the first batch, one request after the other; None where the bandwidth is not known."""
    epoch_seconds: float | None
    """What reading takes one rank in an epoch, its requests shared by the workers."""
    shuffle_quality: float | None
    """1 is as mixed as at random, 0 not at all; None where there is one shard only."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def predict(
    data: Any,
    options: LoaderOptions | None = None,
    *,
    bandwidth: float | None = None,
    latency: float = 0.0,
    **changes: Any,
) -> Prediction:
    """What a ``DataLoader(data, options)``, or a loader, will do in an epoch. Indexes are opened, no data is read.

    ``bandwidth`` in bytes a second and ``latency`` in seconds a request tell how long it takes.

    Raises:
        OptionError: it has no positions that could be looked at beforehand, or an option is wrong.

    Example:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/predict/a-%06d.tar", max_samples=100) as writer:
        ...     for number in range(1000):
        ...         writer.write({"bin": bytes(1000)})
        >>> dataset = shoal.Dataset("memory://doc/predict")
        >>> foretold = predict(dataset, batch_size=32, shuffle=True, rank=0, world_size=4)
        >>> foretold.steps, foretold.requests, foretold.bytes
        (8, 1000, 1000000)
    """
    loader = data if isinstance(data, DataLoader) else DataLoader(data, options)
    built = (loader.with_options(**changes) if changes else loader)._built  # noqa: SLF001 - one package
    source, order = built.laid.source, built.order
    if isinstance(source, StreamSource) or order is None:
        raise OptionError("only an order that is known beforehand can be foretold", found=repr(built.spec.data))
    if bandwidth is not None and not bandwidth > 0:
        raise OptionError("bandwidth is bytes a second", expected="a number above zero", found=repr(bandwidth))
    seen = _Seen(built, source, order, _plan(built, order))
    return _told(seen, _epoch_reads(seen), bandwidth, latency)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A loader that was looked at, and the plan of its first epoch."""

    built: Built
    source: Numbered
    order: Order
    plan: EpochPlan

    @property
    def given(self) -> int:
        """Samples that one of each set of replicas is given, over all readers."""
        split = self.plan.split
        return sum(
            self.plan.for_rank(reader * split.replication).rank_samples for reader in _some(split.readers, 1 << 10)
        ) * _times(split.readers, 1 << 10)

    def numbers(self, reader: int, step: int) -> Int64:
        """The samples of one batch."""
        return self.plan.for_rank(reader * self.plan.split.replication).at(step).samples(self.order)


def _some(count: int, most: int) -> range:
    return range(min(count, most))


def _times(count: int, most: int) -> int:
    return max(1, count // most)


def _plan(built: Built, order: Order) -> EpochPlan:
    plan = place_of_epoch(built, 0).plan
    if plan is not None and built.laid.batch is not None:
        return plan
    # Chunks of the line, which are read together and batched later, or never.
    return plan_epoch(order.length, batch_size=built.chunk, split=built.split, tail="uneven")
