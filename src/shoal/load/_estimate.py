"""`predict`: estimate requests, bytes, memory and time of a loader's epoch without reading data."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shoal._typing import IntArray
from shoal.errors import OptionError
from shoal.order._block_shuffle import BlockShuffle
from shoal.order._epoch_plan import EpochPlan, plan_epoch
from shoal.order._orders import Order
from shoal.shard._read_plan import ReadCost

from ._autotune import Tuner
from ._cursor import cursor_at_epoch
from ._loader import DataLoader
from ._options import LoaderOptions
from ._pipeline import BoundPipeline, over_fetch_factor
from ._sources import IndexedSource, SourceLayout, StreamSource

__all__ = ["Prediction", "predict"]

_MAX_BATCHES = 64
"""Batches that are examined; if an epoch has more, these represent all."""
_MAX_SHARDS = 64
"""Shards whose indexes are opened for it."""
_REQUESTS_PER_OPEN = 2
"""Requests to open a shard: its index, and its first bytes, which show whether the index fits."""


@runtime_checkable
class SupportsReadEstimate(Protocol):
    """A source that can estimate its reads."""

    def estimate_reads(self, numbers: IntArray, *, batched: bool) -> ReadCost | None:
        """Return the reads of samples, as a batch or one by one; None if unknown."""
        ...

    def estimate_cached_reads(self, most_bytes: int) -> tuple[ReadCost, int] | None:
        """Return the reads of an epoch if shards are kept in memory, and the bytes of those; None if they are not."""
        ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction for the first epoch of a loader. Unknown values are None.

    ``requests`` are byte ranges that are requested from the store, ``bytes`` their size, in one epoch over all ranks,
    without opening shards; with ``rank_`` for one rank. They are exact if ``is_exact``. If not, they are estimated from
    64 batches spread over the epoch, or, if shards are kept in memory, from the reads of one thread.
    """

    samples: int
    """Samples of the data."""
    world_size: int
    batch_size: int
    steps: int | None
    """Batches per rank in an epoch; None after a filter and its like."""
    rank_samples: int
    """Maximum number of samples per rank."""
    repeated: int
    """Samples that are delivered twice, so that ranks have equal steps."""
    order: dict[str, Any]
    requests: int | None
    bytes: int | None
    rank_requests: int | None
    rank_bytes: int | None
    is_exact: bool
    over_fetch: float | None
    """Bytes read per byte of a field that is used: headers, padding and repeats make it larger than 1."""
    block_readers: int
    """How many ranks read from each block: 1 where the world size divides the lanes."""
    batch_bytes: float | None
    """Bytes of one batch as stored; decoded it may be larger."""
    window_samples: int
    """Samples that are mixed at a time."""
    window_bytes: float | None
    workers: int
    """Maximum number of workers."""
    prefetch: int
    """Maximum number of prefetched batches, for so many workers."""
    resident_bytes: float | None
    """Maximum bytes of cached shards and of batches that are ready or in progress, as stored; ``memory_budget`` limits
    both."""
    held_bytes: int
    """Bytes of local shards that are kept in memory: after the first epoch nothing is read any more."""
    first_batch_seconds: float | None
    """Seconds until the first batch, with one request after the other; None if the bandwidth is not given."""
    epoch_seconds: float | None
    """Seconds that one rank reads in an epoch, with requests divided among the workers."""
    shuffle_quality: float | None
    """1 is as mixed as a random order, 0 is not mixed; None if there is one shard only."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def predict(
    data: Any,
    options: LoaderOptions | None = None,
    *,
    bandwidth: float | None = None,
    latency: float = 0.0,
    **changes: Any,
) -> Prediction:
    """Predict an epoch of a ``DataLoader(data, options)``, or of a loader. Opens indexes, but reads no data.

    ``bandwidth`` in bytes per second and ``latency`` in seconds per request give the time.

    Raises:
        OptionError: The data has no positions that are known beforehand, or an option is wrong.

    Examples:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/predict/a-%06d.tar", max_samples=100) as writer:
        ...     for number in range(1000):
        ...         writer.write({"bin": bytes(1000)})
        >>> dataset = shoal.Dataset("memory://doc/predict")
        >>> prediction = predict(dataset, batch_size=32, rank=0, world_size=4)
        >>> prediction.steps, prediction.requests, prediction.bytes
        (8, 1000, 1000000)
    """
    loader = data if isinstance(data, DataLoader) else DataLoader(data, options)
    pipeline = (loader.with_options(**changes) if changes else loader)._pipeline  # noqa: SLF001 - one package
    source, order = pipeline.source, pipeline.order
    if isinstance(source, StreamSource) or order is None:
        raise OptionError("only an order that is known beforehand can be foretold", found=repr(pipeline.spec.data))
    if bandwidth is not None and not bandwidth > 0:
        raise OptionError("bandwidth is bytes a second", expected="a number above zero", found=repr(bandwidth))
    loader_plan = _LoaderPlan(pipeline, source, order, _first_plan(pipeline, order))
    return _build_prediction(loader_plan, _epoch_reads(loader_plan), bandwidth, latency)


@dataclass(frozen=True, slots=True)
class _LoaderPlan:
    """A pipeline with the plan of its first epoch."""

    pipeline: BoundPipeline
    source: IndexedSource
    order: Order
    plan: EpochPlan

    @property
    def delivered(self) -> int:
        """Samples of all readers together; replicas count once."""
        return sum(self.of(reader).rank_samples for reader in range(self.plan.split.readers))

    def of(self, reader: int) -> EpochPlan:
        """Return the plan of one reader."""
        return self.plan.for_rank(reader * self.plan.split.replication)

    def numbers(self, reader: int, step: int) -> IntArray:
        """Return the samples of one batch."""
        return self.of(reader).at(step).samples(self.order)

    def reads(self, numbers: IntArray) -> ReadCost | None:
        """Return the reads of samples."""
        source = self.source
        return (
            source.estimate_reads(numbers, batched=self.pipeline.reads_batches)
            if isinstance(source, SupportsReadEstimate)
            else None
        )


def _first_plan(pipeline: BoundPipeline, order: Order) -> EpochPlan:
    plan = cursor_at_epoch(pipeline, 0).plan
    if plan is not None and pipeline.batch is not None:
        return plan
    # Chunks, which are read together and batched later, or never.
    return plan_epoch(order.length, batch_size=pipeline.chunk, split=pipeline.split, tail="uneven")


@dataclass(frozen=True, slots=True)
class _EpochReads:
    """The reads of all readers together."""

    requests: float
    bytes: float
    wanted: float
    is_exact: bool
    held_bytes: int = 0


def _epoch_reads(loader_plan: _LoaderPlan) -> _EpochReads | None:
    """Add up the reads of all batches if there are few, else extrapolate from some."""
    examined, total, is_complete = 0, ReadCost(), True
    shards = _ShardSampler(loader_plan.source.geometry())
    for reader, step in _sampled_steps(loader_plan.plan):
        if step >= loader_plan.of(reader).steps:
            continue
        numbers = loader_plan.numbers(reader, step)
        subset = shards.restrict(numbers)
        reads = loader_plan.reads(subset)
        if reads is None:
            return None
        is_complete &= len(subset) == len(numbers)
        examined, total = examined + len(subset), total + reads
    is_exact = is_complete and examined == loader_plan.delivered
    factor = 1.0 if is_exact or not examined else loader_plan.delivered / examined
    by_range = _EpochReads(total.requests * factor, total.bytes * factor, total.wanted * factor, is_exact)
    return _cached_reads(loader_plan, by_range) or by_range


def _cached_reads(loader_plan: _LoaderPlan, by_range: _EpochReads) -> _EpochReads | None:
    """Return the reads if local shards are kept in memory, where blocks are read once; None if they are not."""
    source, pipeline = loader_plan.source, loader_plan.pipeline
    if not pipeline.reads_batches or not pipeline.keeps_data or not isinstance(source, SupportsReadEstimate):
        return None
    estimate = source.estimate_cached_reads(pipeline.options.memory_budget // 2)
    if estimate is None:
        return None
    reads, cached_bytes = estimate
    # Not exact: a row of a block that was not read yet may be read by itself first.
    return replace(by_range, requests=reads.requests, bytes=reads.bytes, is_exact=False, held_bytes=cached_bytes)


def _sampled_steps(plan: EpochPlan) -> list[tuple[int, int]]:
    """Return pairs of a reader and a step: all, or some that are spread over both."""
    readers, steps = plan.split.readers, plan.steps
    if readers * steps <= _MAX_BATCHES:
        return [(reader, step) for step in range(steps) for reader in range(readers)]
    return [(at * 7919 % readers, at * steps // _MAX_BATCHES) for at in range(_MAX_BATCHES)]


class _ShardSampler:
    """Restricts samples to those of the first 64 shards that it was given."""

    def __init__(self, geometry: SourceLayout) -> None:
        self._starts = geometry.shard_starts
        self._chosen: set[int] = set()

    def restrict(self, numbers: IntArray) -> IntArray:
        """Return the samples that are in one of the chosen shards."""
        shards = np.searchsorted(self._starts, numbers, "right") - 1
        for shard in shards.tolist():
            if len(self._chosen) < _MAX_SHARDS:
                self._chosen.add(shard)
        return numbers[np.isin(shards, list(self._chosen))]


def _build_prediction(
    loader_plan: _LoaderPlan, epoch: _EpochReads | None, bandwidth: float | None, latency: float
) -> Prediction:
    plan, options, split = loader_plan.plan, loader_plan.pipeline.options, loader_plan.plan.split
    mean, readers = _mean_sample_bytes(loader_plan, epoch), split.readers
    workers, prefetch = _max_workers_and_prefetch(options, loader_plan.pipeline)
    batch_bytes = None if mean is None else mean * plan.batch_size
    window, cached_bytes = _window_samples(loader_plan.order), 0 if epoch is None else epoch.held_bytes
    return Prediction(
        samples=len(loader_plan.source),
        world_size=split.world_size,
        batch_size=loader_plan.pipeline.batch_size,
        steps=_steps(loader_plan.pipeline),
        rank_samples=max(loader_plan.of(reader).rank_samples for reader in (0, readers - 1)),
        repeated=max(0, loader_plan.delivered - (plan.end - plan.start)),
        order=loader_plan.order.to_json(),
        requests=None if epoch is None else round(epoch.requests * split.replication),
        bytes=None if epoch is None else round(epoch.bytes * split.replication),
        rank_requests=None if epoch is None else round(epoch.requests / readers),
        rank_bytes=None if epoch is None else round(epoch.bytes / readers),
        is_exact=epoch is not None and epoch.is_exact,
        over_fetch=_over_fetch(loader_plan, epoch),
        block_readers=int(over_fetch_factor(loader_plan.order, split)),
        batch_bytes=batch_bytes,
        window_samples=window,
        window_bytes=None if mean is None else mean * window,
        workers=workers,
        prefetch=prefetch,
        resident_bytes=None
        if batch_bytes is None
        else cached_bytes + _resident_bytes(batch_bytes, workers, prefetch, options),
        held_bytes=cached_bytes,
        first_batch_seconds=_first_batch_seconds(loader_plan, bandwidth, latency),
        epoch_seconds=_epoch_seconds(epoch, readers, workers, bandwidth, latency),
        shuffle_quality=loader_plan.pipeline.shuffle_quality,
    )


def _steps(pipeline: BoundPipeline) -> int | None:
    steps = pipeline.options.steps_per_epoch
    if steps is not None:
        return steps
    plan = cursor_at_epoch(pipeline, 0).plan
    return plan.steps if plan is not None and pipeline.has_length else None


def _mean_sample_bytes(loader_plan: _LoaderPlan, epoch: _EpochReads | None) -> float | None:
    """Return the mean bytes of a sample's fields that are used."""
    if epoch is not None and loader_plan.delivered:
        return epoch.wanted / loader_plan.delivered
    return loader_plan.source.geometry().mean_bytes


def _over_fetch(loader_plan: _LoaderPlan, epoch: _EpochReads | None) -> float | None:
    """Return bytes read over bytes used, where samples that are repeated to pad ranks are used once."""
    if epoch is None or not epoch.wanted:
        return None
    once = min(1.0, len(loader_plan.source) / max(loader_plan.delivered, 1))
    return round(epoch.bytes / (epoch.wanted * once), 4)


def _window_samples(order: Order) -> int:
    """Return how many samples may be next."""
    if isinstance(order, BlockShuffle):
        return min(order.count, order.lane_count * order.window * order.block_samples)
    return 1 if order.to_json().get("order") == "sequential" else order.length


def _max_workers_and_prefetch(options: LoaderOptions, pipeline: BoundPipeline) -> tuple[int, int]:
    threading = pipeline.spec.threading
    num_workers = threading.workers(options.num_workers)
    workers = (threading.max_inter_op_parallelism or os.cpu_count() or 1) if num_workers == "auto" else num_workers
    tuner = Tuner(workers, None if options.prefetch == "auto" else options.prefetch)
    return workers, tuner.prefetch


def _resident_bytes(batch_bytes: float, workers: int, prefetch: int, options: LoaderOptions) -> float:
    """Return bytes of batches that are ready or in progress, and of the one in use; without workers only of that."""
    prefetched = 0.0 if not workers else min(batch_bytes * prefetch, max(batch_bytes, options.memory_budget))
    return batch_bytes + prefetched


def _first_batch_seconds(loader_plan: _LoaderPlan, bandwidth: float | None, latency: float) -> float | None:
    if bandwidth is None or not loader_plan.plan.steps:
        return None
    numbers = _ShardSampler(loader_plan.source.geometry()).restrict(
        loader_plan.numbers(loader_plan.plan.split.reader, 0)
    )
    reads = loader_plan.reads(numbers)
    if reads is None:
        return None
    shards = len(np.unique(np.searchsorted(loader_plan.source.geometry().shard_starts, numbers, "right")))
    return latency * (_REQUESTS_PER_OPEN * shards + reads.requests) + reads.bytes / bandwidth


def _epoch_seconds(
    epoch: _EpochReads | None, readers: int, workers: int, bandwidth: float | None, latency: float
) -> float | None:
    if epoch is None or bandwidth is None:
        return None
    return (latency * epoch.requests / max(workers, 1) + epoch.bytes / bandwidth) / readers
