"""`PipelineSpec`, a pipeline as a value, and `BoundPipeline`, the pipeline with its data and an order.

`build` binds a spec: it divides the stages between workers and the stream of their results, and chooses the order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoal.errors import OptionError
from shoal.order._block_shuffle import BlockShuffle, mixing_quality, overfetch, shuffle_order
from shoal.order._epoch_plan import Split, launched_rank, plan_epoch
from shoal.order._mixture import Mixed
from shoal.order._orders import GlobalShuffle, Order, Sequential
from shoal.shard._stream import ErrorPolicy

from ._options import LoaderOptions, ThreadingOptions
from ._sampler_shares import SamplerShare, sampler_shares, splits_itself
from ._sources import IndexedSource, SourceDescription, SourceLayout, StreamSource, describe_source, source_settings
from ._stages import (
    Batch,
    Bucket,
    Enumerate,
    Filter,
    FlatMap,
    Map,
    PerSample,
    ResumePoint,
    Shuffle,
    Skip,
    Stage,
    Take,
    Unbatch,
    Window,
)
from ._stream_stages import buffers_elements, is_seekable

__all__ = ["BoundPipeline", "PipelineSpec", "build", "over_fetch_factor"]

Mode = Literal["exact", "loose", "stream", "sampler"]
"""How samples of an element are known: beforehand, while reading, from a stream, or from a sampler."""
_COUNTED = (Map, Enumerate, Take, Skip)
"""Stages after which the number of elements is known."""
_CHUNK_BYTES = 1 << 20
_MAX_CHUNK_SAMPLES = 256
_STREAM_CHUNK_SAMPLES = 32
_BLOCK_BYTES = 1 << 20
_REMOTE_WINDOW_BLOCKS, _REMOTE_WINDOW_BYTES = 2, 128 << 20
"""Blocks of a lane that are mixed where they have to be kept in memory, and the bytes of all lanes together."""
_UNKNOWN_BYTES = 4096.0
"""Bytes assumed for a sample of unknown size."""


@dataclass(frozen=True)
class PipelineSpec:
    """Data, stages and options of a loader."""

    data: Any
    steps: tuple[Stage, ...] = ()
    options: LoaderOptions = field(default_factory=LoaderOptions)
    threading: ThreadingOptions = field(default_factory=ThreadingOptions)
    epochs: int | None = 1
    """Epochs of one iteration; None repeats without end."""
    sampler: Iterable[int] | None = None
    batch_sampler: Iterable[Iterable[int]] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Combines samples into the loader's own batches."""
    is_size_given: bool = True
    """Whether the user set ``batch_size``; if not, a method that makes batches replaces the loader's own."""
    timeout: float | None = None

    def then(self, stage: Stage) -> PipelineSpec:
        """Return the pipeline with one more stage."""
        return replace(self, steps=(*self.steps, stage))

    @property
    def gives_batches(self) -> bool:
        """Whether the elements are batches, not samples."""
        batches = self.options.batch_size is not None or bool(getattr(self.data, "gives_batches", False))
        for stage in self.steps:
            batches = isinstance(stage, (Batch, Bucket)) or (batches and not isinstance(stage, Unbatch))
        return batches

    @property
    def is_of_batches(self) -> bool:
        """Whether the elements are the loader's own batches, which no stage has split or combined."""
        return self.options.batch_size is not None and not any(
            isinstance(stage, (Batch, Bucket, Unbatch)) for stage in self.steps
        )


@dataclass(frozen=True)
class BoundPipeline:
    """A pipeline with its opened data, its order and the share of this process, divided among workers.

    One task of a worker applies ``per_sample`` and, if the number of samples is known beforehand, ``batch`` and
    ``per_batch``; ``rest`` is applied to the stream of results. Made by ``build``.
    """

    spec: PipelineSpec
    options: LoaderOptions
    """The options, with those of a shuffle stage."""
    errors: ErrorPolicy
    """What to do with samples that fail."""
    source: IndexedSource | StreamSource
    mode: Mode
    """The kind of tasks; see `_tasks`."""
    order: Order | None
    """None if samples have no positions, or come from a sampler."""
    split: Split
    per_sample: tuple[PerSample, ...]
    batch: Batch | None
    per_batch: tuple[Map, ...]
    rest: tuple[Stage, ...]
    reads_batches: bool
    """Whether the source may read batches, since no stage needs their samples."""
    has_length: bool
    """Whether the number of elements is known without making them."""
    length: int
    """Positions in an epoch."""
    batch_size: int
    """Samples that one reader takes in a step."""
    drop_last: bool
    """Whether a short last batch is left out."""
    plan_steps: int | None
    """``steps_per_epoch``, if each element is a step of a plan."""
    stream_steps: int | None
    """``steps_per_epoch``, if epochs are cut from one stream that goes on through all epochs."""

    @functools.cached_property
    def is_seekable(self) -> bool:
        """Whether it can be resumed from any resume point; if not, it is replayed from the epoch's start."""
        if self.mode not in ("exact", "loose"):
            return False
        if self.mode == "exact" and self.stream_steps is not None:
            return False  # where epochs of so many elements begins does not follow from the plan
        buffering = [at for at, stage in enumerate(self.rest) if buffers_elements(stage)]
        seekable = all(isinstance(stage, (Map, Filter)) or is_seekable(stage) for stage in self.rest)
        if not buffering:
            return seekable
        # Buffered elements are read again by `PerSampleTasks`, so no stage before may have changed them.
        return seekable and self.mode == "loose" and buffering == [0]

    @property
    def replay_reason(self) -> str:
        """Why resume points are not enough, for messages."""
        if isinstance(self.source, StreamSource):
            return f"{self.source.name} can only be read from its start"
        if self.mode == "sampler":
            return "a sampler says what comes"
        first = next((stage for stage in self.rest if not isinstance(stage, (Map, Filter, Batch))), None)
        return "steps_per_epoch cuts it" if first is None else f"{type(first).__name__.lower()} has no place of its own"

    def elements(self, steps: int) -> int | None:
        """Return how many elements so many steps of the plan give; None if that is not known beforehand."""
        if self.mode != "exact":
            return None
        for stage in self.rest:
            if not isinstance(stage, _COUNTED):
                return None
            if isinstance(stage, (Take, Skip)):
                steps = min(steps, stage.count) if isinstance(stage, Take) else max(0, steps - stage.count)
        return steps

    @property
    def no_length_reason(self) -> str:
        """Why the number of elements is unknown, for messages."""
        if isinstance(self.source, StreamSource):
            return f"{self.source.name} can only be read from its start"
        if self.mode == "sampler":
            return "a sampler says when it ends"
        first = next(stage for stage in (*self.per_sample, *self.rest) if not isinstance(stage, _COUNTED))
        return f"{type(first).__name__.lower()} comes after samples are read"

    def check_equal_steps(self) -> None:
        """Raise OptionError if ranks may get different numbers of elements, and nothing says what to do then."""
        options = self.options
        if self.split.readers == 1 or options.tail == "uneven" or options.steps_per_epoch is not None:
            return
        reason = self._unequal_steps_reason()
        if reason is not None:
            raise OptionError(
                f"{self.split.readers} ranks may get different numbers of batches: {reason}",
                expected='steps_per_epoch=, or tail="uneven" if ranks may differ',
                hint="options of shoal.DataLoader; or materialize() a filtered dataset, or select with where()",
            )

    def _unequal_steps_reason(self) -> str | None:
        """Return why ranks may get different numbers of elements; None if they get as many."""
        if isinstance(self.source, StreamSource):
            return f"{self.source.name} has no positions to split"
        unequal = next((stage for stage in self.per_sample if not isinstance(stage, Map)), None)
        if unequal is not None:
            return f"{type(unequal).__name__.lower()} keeps any number of samples"
        is_batched = self.batch is not None
        for stage in self.rest:
            name = type(stage).__name__.lower()
            if isinstance(stage, Map) and self.errors.goes_on:
                return f"on_error={self.errors.on_error!r} may leave out elements in {name}"
            keeps_count = isinstance(stage, (*_COUNTED, Batch, Window)) or (isinstance(stage, Unbatch) and is_batched)
            if not keeps_count and not (isinstance(stage, Shuffle) and self.mode != "loose"):
                return f"{name} gives any number of elements"
            is_batched = is_batched or isinstance(stage, Batch)
        return None

    @property
    def keeps_data(self) -> bool:
        """Whether data that fits may be kept in memory: if one reader reads all of it, in random order.

        One of many readers would keep samples that are read by others.
        """
        return not isinstance(self.order, Sequential) and self.split.readers == 1

    def settings_at(self, position: int) -> dict[str, Any]:
        """Return everything that determines the order, as plain values; of a mixture, up to a position."""
        if isinstance(self.order, Mixed):
            return {**self.settings, **self.order.settings_before(position)}
        return self.settings

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the order, as plain values."""
        order = {} if self.order is None else self.order.to_json()
        after = [_describe_stage(stage) for stage in (*self.per_sample, *self.rest) if not isinstance(stage, Map)]
        return {**source_settings(self.source), **order, **({"stages": after} if after else {})}

    @functools.cached_property
    def chunk(self) -> int:
        """Samples that are read at a time if batches are made later."""
        if isinstance(self.source, StreamSource):
            return _STREAM_CHUNK_SAMPLES
        mean, count = self.source.geometry().mean_bytes or _UNKNOWN_BYTES, self.length or len(self.source)
        return int(max(1, min(_MAX_CHUNK_SAMPLES, _CHUNK_BYTES // max(mean, 1.0), -(-count // 8))))

    @functools.cached_property
    def shuffle_quality(self) -> float | None:
        """How often neighbours are from different shards; None if there is one shard only, or no order."""
        if self.order is None or isinstance(self.source, StreamSource):
            return None
        ends = self.source.geometry().shard_starts[1:]
        if len(ends) < 2 or self.order.length < 2:
            return None
        return round(min(1.0, mixing_quality(self.order, ends, pairs=1 << 12)), 3)

    def shares(self, epoch: int, start: ResumePoint | None = None) -> Iterator[SamplerShare]:
        """Return this rank's share of a sampler's epoch, from ``start`` on."""
        sampler = self.sampler
        for epoch_sampler in (sampler, getattr(sampler, "sampler", None)):  # PyTorch's BatchSampler has one inside
            set_epoch = getattr(epoch_sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        count = 1 if self.spec.batch_sampler is not None else self.chunk if self.batch is None else self.batch_size
        return sampler_shares(sampler, count, start=start, **self._sampler_plan)

    @property
    def _sampler_plan(self) -> dict[str, Any]:
        """How ranks split what a sampler draws: into samples or batches of them, a batch sampler's into batches."""
        is_batched = self.spec.batch_sampler is None and self.batch is not None
        return {
            "batch_size": self.batch_size if is_batched else 1,
            "split": Split() if splits_itself(self.sampler) else self.split,
            "tail": self.options.tail,
            "drop_last": is_batched and self.drop_last,
        }

    @property
    def sampler(self) -> Iterable[Any]:
        """The sampler or batch sampler; empty if there is none."""
        spec = self.spec
        return spec.batch_sampler if spec.batch_sampler is not None else () if spec.sampler is None else spec.sampler

    @property
    def sampler_steps(self) -> int:
        """Number of elements of a sampler on this rank. Raises TypeError if it has no length."""
        return plan_epoch(len(self.sampler), **self._sampler_plan).steps  # type: ignore[arg-type]

    @property
    def skips_groups(self) -> bool:
        """Whether delivered elements of a sampler can be skipped without reading them: each group is one element."""
        keeps_groups = self.spec.batch_sampler is not None or _are_maps(self.per_sample)
        return self.mode == "sampler" and keeps_groups and _are_maps(self.rest) and self.stream_steps is None


def _describe_stage(stage: Any) -> str:
    """Return a stage's type and settings, without functions: they may be fixed between two runs."""
    names = [name for name in stage.__dataclass_fields__ if not callable(getattr(stage, name))]
    free = ("size", "drop_last", "ragged") if isinstance(stage, Batch) else ("drop_last", "ragged")
    shown = ", ".join(f"{name}={getattr(stage, name)!r}" for name in names if name not in free)
    return f"{type(stage).__name__}({shown})"


def build(spec: PipelineSpec) -> BoundPipeline:
    """Open the data, divide the stages and choose the order.

    Raises OptionError for settings that exclude each other and for stages that cannot follow each other.
    """
    described = describe_source(spec.data)
    source, is_sampled = described.source, spec.sampler is not None or spec.batch_sampler is not None
    if is_sampled and isinstance(source, StreamSource):
        raise OptionError("a sampler needs samples with positions", found=source.name)
    stages, options = _all_stages(spec, described, is_sampled)
    per_sample = _leading(stages, (Map, Filter, FlatMap))
    after = stages[len(per_sample) :]
    # The samples of a batch sampler's batch stay together, also if a filter drops some.
    is_counted = _are_maps(per_sample) or spec.batch_sampler is not None
    is_batched = bool(after) and isinstance(after[0], Batch) and is_counted and not isinstance(source, StreamSource)
    per_batch = _leading(after[1:], Map) if is_batched else ()
    rest = after[1 + len(per_batch) :] if is_batched else after
    batch: Batch | None = after[0] if is_batched else None
    mode: Mode = "stream" if isinstance(source, StreamSource) else "sampler" if is_sampled else "exact"
    if mode == "exact" and not (_are_maps(per_sample) and (is_batched or not any(map(buffers_elements, rest)))):
        mode = "loose"
    has_length = mode == "exact" and _are_maps(rest)
    errors = _error_policy(options, described.errors)
    order = None if isinstance(source, StreamSource) or is_sampled else choose_order(source, options)
    rank, world_size = options.rank, options.world_size
    if rank is None or world_size is None:
        rank, world_size = launched_rank()
    return BoundPipeline(
        spec,
        options,
        errors,
        source,
        mode,
        order,
        Split(rank, world_size, options.replication),
        per_sample,
        batch,
        per_batch,
        rest,
        reads_batches=batch is not None and batch.collate is None and not per_sample and not errors.goes_on,
        has_length=has_length,
        length=0 if order is None else order.length,
        batch_size=1 if batch is None else batch.size,
        drop_last=batch is not None and batch.drop_last,
        plan_steps=options.steps_per_epoch if has_length else None,
        stream_steps=None if has_length else options.steps_per_epoch,
    )


def _leading(stages: tuple[Any, ...], kinds: type | tuple[type, ...]) -> tuple[Any, ...]:
    """Return the first stages, up to one of another kind."""
    count = 0
    while count < len(stages) and isinstance(stages[count], kinds):
        count += 1
    return stages[:count]


def _are_maps(stages: tuple[Stage, ...]) -> bool:
    return len(_leading(stages, Map)) == len(stages)


def _error_policy(options: LoaderOptions, policy: ErrorPolicy | None) -> ErrorPolicy:
    """Return what to do with samples that fail: what the options say, else what the data does."""
    policy = policy or ErrorPolicy()
    return ErrorPolicy(
        policy.on_error if options.on_error is None else options.on_error,
        policy.budget if options.error_budget is None else options.error_budget,
        policy.quarantine if options.quarantine is None else options.quarantine,
    )


def _all_stages(
    spec: PipelineSpec, described: SourceDescription, is_sampled: bool
) -> tuple[tuple[Any, ...], LoaderOptions]:
    """Return the stages of the data, of the loader, and its own batch; a shuffle is an option where it can be."""
    options, stages = spec.options, (*described.steps, *spec.steps)
    if options.batch_size is not None:
        # A loader's own batch comes after the stages of the dataset and before its own, except for a shuffle that comes
        # first: that is the order of its samples, like `shuffle=True`.
        batch = Batch(options.batch_size, options.drop_last, options.ragged, spec.collate_fn)
        first = 1 if spec.steps and isinstance(spec.steps[0], Shuffle) and not is_sampled else 0
        stages = (*described.steps, *spec.steps[:first], batch, *spec.steps[first:])
    if described.collate is not None:
        stages = tuple(
            replace(stage, collate=described.collate) if isinstance(stage, Batch) and stage.collate is None else stage
            for stage in stages
        )
    return _shuffle_by_order(stages, options, not isinstance(described.source, StreamSource), is_sampled)


def _shuffle_by_order(
    stages: tuple[Stage, ...], options: LoaderOptions, numbered: bool, sampled: bool
) -> tuple[tuple[Stage, ...], LoaderOptions]:
    """Replace a shuffle of samples with positions by an order, which needs no buffer."""
    is_first, is_unbounded = True, False
    for at, stage in enumerate(stages):
        if isinstance(stage, Shuffle):
            if is_first and numbered and not sampled:
                ordered = options.with_options(shuffle=True, window=stage.buffer, seed=stage.seed)
                return (*stages[:at], *stages[at + 1 :]), ordered
            is_unbounded = is_unbounded or stage.buffer is None
        is_first = is_first and isinstance(stage, (Map, Filter))
    if is_unbounded or (options.shuffle and not numbered):
        raise OptionError(
            "what has no positions is shuffled through a buffer",
            expected="`.shuffle(1000)`, with the number to hold",
            found="`.shuffle()`" if is_unbounded else "shuffle=True",
        )
    return stages, options


def choose_order(source: IndexedSource, options: LoaderOptions) -> Order:
    """Return the order: the data's own if it has one (a mixture), else as stored, or shuffled.

    Data that fits the window is shuffled completely, and so is data in which any sample is as fast to read as its
    neighbour.
    """
    own_order = getattr(source, "order", None)
    if own_order is not None:
        order: Order = own_order(options)
        return order
    if not options.shuffle:
        return Sequential(len(source))
    return _shuffled_order(len(source), options, source.geometry())


def _shuffled_order(count: int, options: LoaderOptions, geometry: SourceLayout) -> Order:
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
            window=_REMOTE_WINDOW_BLOCKS,
            lanes=options.lanes,
            window_bytes=_REMOTE_WINDOW_BYTES,
        )
    # At least `window` samples are mixed at a time, over all lanes together.
    window = options.window or 4 * block * options.lanes
    if window >= count:
        return GlobalShuffle(count, options.seed)
    lanes = max(1, min(options.lanes, window // max(block, 1), count // max(block, 1)))
    blocks = -(-window // (lanes * block))
    return BlockShuffle(count, options.seed, block_samples=block, window=blocks, lanes=lanes)


def over_fetch_factor(order: Order, split: Split) -> float:
    """Return how many ranks read each block."""
    return float(overfetch(order.lane_count, split.readers)) if isinstance(order, BlockShuffle) else 1.0
