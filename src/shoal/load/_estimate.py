"""What an epoch of a loader will ask of the store and of memory, told before anything is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError
from shoal.order import BlockShuffle, EpochPlan, Order, plan_epoch
from shoal.shard import ReadCost

from ._autotune import Tuner
from ._cursor import place_of_epoch
from ._loader import DataLoader
from ._options import LoaderOptions
from ._pipeline import BoundPipeline, over_fetch_of
from ._sources import IndexedSource, SourceLayout, StreamSource

__all__ = ["Prediction", "predict"]

Int64 = npt.NDArray[np.int64]
_MOST_UNITS = 64
"""Batches that are looked at; where an epoch has more, these stand for all."""
_MOST_SHARDS = 64
"""Shards whose indexes are opened for that."""
_OPENING = 2
"""Requests that opening a shard takes: its index, and its first bytes, which tell whether the index fits."""


@runtime_checkable
class SupportsReadEstimate(Protocol):
    """A source that knows what reading asks of its store."""

    def foresee(self, numbers: Int64, *, batched: bool) -> ReadCost | None:
        """What these samples ask, as a batch or one by one; None where nobody knows."""
        ...

    def foresee_held(self, batches: Iterable[Int64], most_bytes: int) -> tuple[ReadCost, int] | None:
        """What all batches ask where shards are kept in memory, and the bytes of those; None where they are not."""
        ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """An epoch of a loader, foretold. What cannot be known is None.

    ``requests`` are ranges that are asked of the store, ``bytes`` what they hold, in one epoch over all ranks, without
    what opening shards takes; the same under ``rank_`` for one rank. They are exact where ``is_exact``. Else they are
    told from 64 batches spread over the epoch, or, where shards are kept in memory, from what one thread would read.
    It is the first epoch that is foretold.
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
    """What is held, and batches that are ready or being made, at most, as stored; ``memory_budget`` bounds both."""
    held_bytes: int
    """Near shards that are kept in memory as they are read: after the first epoch nothing is asked any more."""
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
        >>> foretold = predict(dataset, batch_size=32, rank=0, world_size=4)
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

    built: BoundPipeline
    source: IndexedSource
    order: Order
    plan: EpochPlan

    @property
    def given(self) -> int:
        """Samples that all readers together are given; replicas of one count once."""
        return sum(self.of(reader).rank_samples for reader in range(self.plan.split.readers))

    @property
    def batched(self) -> bool:
        """Whether batches are gathered as a whole, so that neighbours are read together."""
        laid = self.built.laid
        batch = laid.batch
        own = batch is None or batch.collate is not None
        return not own and not laid.per_sample and self.built.options.on_error == "raise"

    def of(self, reader: int) -> EpochPlan:
        """The plan of one reader."""
        return self.plan.for_rank(reader * self.plan.split.replication)

    def numbers(self, reader: int, step: int) -> Int64:
        """The samples of one batch."""
        return self.of(reader).at(step).samples(self.order)

    def reads(self, numbers: Int64) -> ReadCost | None:
        """What reading these samples asks of the store."""
        source = self.source
        return source.foresee(numbers, batched=self.batched) if isinstance(source, SupportsReadEstimate) else None


def _plan(built: BoundPipeline, order: Order) -> EpochPlan:
    plan = place_of_epoch(built, 0).plan
    if plan is not None and built.laid.batch is not None:
        return plan
    # Chunks of the line, which are read together and batched later, or never.
    return plan_epoch(order.length, batch_size=built.chunk, split=built.split, tail="uneven")


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What all readers together ask of the store."""

    requests: float
    bytes: float
    wanted: float
    is_exact: bool
    held_bytes: int = 0


def _epoch_reads(seen: _Seen) -> _Epoch | None:
    """Of all batches where they are few, else of some, for as many samples as all have."""
    looked, total, every = 0, ReadCost(), True
    shards = _Shards(seen.source.geometry())
    for reader, step in _units(seen.plan):
        if step >= seen.of(reader).steps:
            continue
        numbers = seen.numbers(reader, step)
        some = shards.of_few(numbers)
        found = seen.reads(some)
        if found is None:
            return None
        every &= len(some) == len(numbers)
        looked, total = looked + len(some), total + found
    is_exact = every and looked == seen.given
    more = 1.0 if is_exact or not looked else seen.given / looked
    by_range = _Epoch(total.requests * more, total.bytes * more, total.wanted * more, is_exact)
    return _held(seen, by_range) or by_range


def _held(seen: _Seen, by_range: _Epoch) -> _Epoch | None:
    """Where near shards are kept in memory, blocks are read once; None where they are not."""
    source = seen.source
    if not seen.batched or not seen.built.keeps_data or not isinstance(source, SupportsReadEstimate):
        return None
    batches = (seen.numbers(0, step) for step in range(seen.of(0).steps))
    found = source.foresee_held(batches, seen.built.options.memory_budget // 2)
    if found is None:
        return None
    reads, held = found
    # Not exact: threads may each read a sample of a block that the other is about to have.
    return replace(by_range, requests=reads.requests, bytes=reads.bytes, is_exact=False, held_bytes=held)


def _units(plan: EpochPlan) -> list[tuple[int, int]]:
    """Readers and steps: all, or some that are spread over both."""
    readers, steps = plan.split.readers, plan.steps
    if readers * steps <= _MOST_UNITS:
        return [(reader, step) for step in range(steps) for reader in range(readers)]
    return [(at * 7919 % readers, at * steps // _MOST_UNITS) for at in range(_MOST_UNITS)]


class _Shards:
    """Keeps to the samples of those shards that were met first, once they are many."""

    def __init__(self, geometry: SourceLayout) -> None:
        self._starts = geometry.shard_starts
        self._met: set[int] = set()

    def of_few(self, numbers: Int64) -> Int64:
        """Those samples that are in one of the first shards met."""
        shards = np.searchsorted(self._starts, numbers, "right") - 1
        for shard in shards.tolist():
            if len(self._met) < _MOST_SHARDS:
                self._met.add(shard)
        return numbers[np.isin(shards, list(self._met))]


def _told(seen: _Seen, epoch: _Epoch | None, bandwidth: float | None, latency: float) -> Prediction:
    plan, options, split = seen.plan, seen.built.options, seen.plan.split
    mean, readers = _mean_bytes(seen, epoch), split.readers
    workers, prefetch = _most(options, seen.built)
    batch_bytes = None if mean is None else mean * plan.batch_size
    window, held = _window(seen.order), 0 if epoch is None else epoch.held_bytes
    return Prediction(
        samples=len(seen.source),
        world_size=split.world_size,
        batch_size=seen.built.batch_size,
        steps=_steps(seen.built),
        rank_samples=max(seen.of(reader).rank_samples for reader in (0, readers - 1)),
        repeated=max(0, seen.given - (plan.end - plan.start)),
        order=seen.order.to_json(),
        requests=None if epoch is None else round(epoch.requests * split.replication),
        bytes=None if epoch is None else round(epoch.bytes * split.replication),
        rank_requests=None if epoch is None else round(epoch.requests / readers),
        rank_bytes=None if epoch is None else round(epoch.bytes / readers),
        is_exact=epoch is not None and epoch.is_exact,
        over_fetch=_over_fetch(seen, epoch),
        block_readers=int(over_fetch_of(seen.order, split)),
        batch_bytes=batch_bytes,
        window_samples=window,
        window_bytes=None if mean is None else mean * window,
        workers=workers,
        prefetch=prefetch,
        resident_bytes=None if batch_bytes is None else held + _resident(batch_bytes, workers, prefetch, options),
        held_bytes=held,
        first_batch_seconds=_first_batch(seen, bandwidth, latency),
        epoch_seconds=_epoch_seconds(epoch, readers, workers, bandwidth, latency),
        shuffle_quality=seen.built.shuffle_quality,
    )


def _steps(built: BoundPipeline) -> int | None:
    steps = built.options.steps_per_epoch
    if steps is not None:
        return steps
    plan = place_of_epoch(built, 0).plan
    return plan.steps if plan is not None and built.laid.has_length else None


def _mean_bytes(seen: _Seen, epoch: _Epoch | None) -> float | None:
    """Bytes of one sample's wanted fields."""
    if epoch is not None and seen.given:
        return epoch.wanted / seen.given
    return seen.source.geometry().mean_bytes


def _over_fetch(seen: _Seen, epoch: _Epoch | None) -> float | None:
    """Each sample has to be read once; what is read again because ranks are padded is over it too."""
    if epoch is None or not epoch.wanted:
        return None
    once = min(1.0, len(seen.source) / max(seen.given, 1))
    return round(epoch.bytes / (epoch.wanted * once), 4)


def _window(order: Order) -> int:
    """Samples among which a sample may come next."""
    if isinstance(order, BlockShuffle):
        return min(order.count, order.lane_count * order.window * order.block_samples)
    return 1 if order.to_json().get("order") == "sequential" else order.length


def _most(options: LoaderOptions, built: BoundPipeline) -> tuple[int, int]:
    """How many threads there may be, and how many batches under way."""
    asked = built.spec.threading.workers(options.num_workers)
    workers = (built.spec.threading.max_inter_op_parallelism or os.cpu_count() or 1) if asked == "auto" else asked
    tuner = Tuner(workers, None if options.prefetch == "auto" else options.prefetch)
    return workers, tuner.prefetch


def _resident(batch_bytes: float, workers: int, prefetch: int, options: LoaderOptions) -> float:
    """Batches that are ready or under way, and the one in use; without workers that one only."""
    ahead = 0.0 if not workers else min(batch_bytes * prefetch, max(batch_bytes, options.memory_budget))
    return batch_bytes + ahead


def _first_batch(seen: _Seen, bandwidth: float | None, latency: float) -> float | None:
    if bandwidth is None or not seen.plan.steps:
        return None
    numbers = _Shards(seen.source.geometry()).of_few(seen.numbers(seen.plan.split.reader, 0))
    found = seen.reads(numbers)
    if found is None:
        return None
    shards = len(np.unique(np.searchsorted(seen.source.geometry().shard_starts, numbers, "right")))
    return latency * (_OPENING * shards + found.requests) + found.bytes / bandwidth


def _epoch_seconds(
    epoch: _Epoch | None, readers: int, workers: int, bandwidth: float | None, latency: float
) -> float | None:
    if epoch is None or bandwidth is None:
        return None
    return (latency * epoch.requests / max(workers, 1) + epoch.bytes / bandwidth) / readers
