"""A pipeline as a value, and bound to its data and an order."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoal.errors import OptionError
from shoal.order import (
    BlockShuffle,
    GlobalShuffle,
    Mixed,
    Order,
    Sequential,
    Split,
    launched_rank,
    mixing_quality,
    overfetch,
    shuffle_order,
)

from ._options import LoaderOptions, ThreadingOptions
from ._sources import IndexedSource, SourceDescription, SourceLayout, StreamSource, describe_source
from ._stages import Batch, Bucket, Enumerate, Filter, FlatMap, Map, PerSample, Shuffle, Skip, Step, Take, Unbatch
from ._stream_stages import holds_back, is_marked

__all__ = ["BoundPipeline", "PipelineLayout", "PipelineSpec", "build", "over_fetch_of"]

Mode = Literal["exact", "loose", "stream", "sampler"]
"""Whether what an element holds is known beforehand, found while reading, taken from a line, or said by a sampler."""


# ------------------------------------------------------------------------------------------------ a pipeline as a value


_COUNTED = (Map, Enumerate, Take, Skip)
"""Steps after which it is known how many elements there are."""


@dataclass(frozen=True)
class PipelineSpec:
    """All that a loader was told."""

    data: Any
    steps: tuple[Step, ...] = ()
    options: LoaderOptions = field(default_factory=LoaderOptions)
    threading: ThreadingOptions = field(default_factory=ThreadingOptions)
    epochs: int | None = 1
    """How many epochs one iteration has; None has no end."""
    sampler: Iterable[int] | None = None
    batch_sampler: Iterable[Iterable[int]] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Makes the loader's own batches."""
    is_size_given: bool = True
    """Whether somebody chose the size of the loader's own batches; else it gives way to a verb that makes batches."""
    timeout: float | None = None

    def then(self, step: Step) -> PipelineSpec:
        """One step more."""
        return replace(self, steps=(*self.steps, step))

    @property
    def is_of_batches(self) -> bool:
        """Whether the loader's own batches, and nothing else so far, are what a verb would gather."""
        return self.options.batch_size is not None and not any(
            isinstance(step, (Batch, Bucket, Unbatch)) for step in self.steps
        )


@dataclass(frozen=True)
class PipelineLayout:
    """A pipeline cut where work changes hands.

    ``per_sample`` and, where the number of samples is known beforehand, ``batch`` and ``per_batch`` are done by workers
    in one go; ``rest`` is done to the line of what they give.
    """

    source: IndexedSource | StreamSource
    options: LoaderOptions
    per_sample: tuple[PerSample, ...]
    batch: Batch | None
    per_batch: tuple[Map, ...]
    rest: tuple[Step, ...]

    sampled: bool = False
    """Whether a sampler of the user's says which samples."""

    @property
    def mode(self) -> Mode:
        """How the line is made: see `_tasks`."""
        if isinstance(self.source, StreamSource):
            return "stream"
        if self.sampled:
            return "sampler"
        holds = self.batch is None and any(holds_back(step) for step in self.rest)
        return "exact" if all(isinstance(step, Map) for step in self.per_sample) and not holds else "loose"

    @property
    def is_marked(self) -> bool:
        """Whether it can be gone on from anywhere by marks alone; else it is replayed from the epoch's start."""
        if self.mode not in ("exact", "loose"):
            return False
        if self.mode == "exact" and self.options.steps_per_epoch is not None and not self.has_length:
            return False  # the plan of an epoch does not know where epochs of so many elements begin
        holding = [at for at, step in enumerate(self.rest) if holds_back(step)]
        known = all(isinstance(step, (Map, Filter)) or is_marked(step) for step in self.rest)
        if not holding:
            return known
        # Elements held back are read again by the head, so nothing may have changed them on their way.
        return known and self.mode == "loose" and holding == [0]

    @property
    def why_replayed(self) -> str:
        """What makes marks not enough."""
        if isinstance(self.source, StreamSource):
            return f"{self.source.name} can only be read from its start"
        if self.sampled:
            return "a sampler says what comes"
        first = next((step for step in self.rest if not isinstance(step, (Map, Filter, Batch))), None)
        return "steps_per_epoch cuts it" if first is None else f"{type(first).__name__.lower()} has no place of its own"

    @property
    def has_length(self) -> bool:
        """Whether the number of elements is known without making them."""
        return self.mode == "exact" and all(isinstance(step, Map) for step in self.rest)

    def elements(self, steps: int) -> int | None:
        """How many elements come of so many steps of the plan; None where only making them tells."""
        if self.mode != "exact":
            return None
        for step in self.rest:
            if not isinstance(step, _COUNTED):
                return None
            if isinstance(step, (Take, Skip)):
                steps = min(steps, step.count) if isinstance(step, Take) else max(0, steps - step.count)
        return steps

    @property
    def why_no_length(self) -> str:
        """What makes the number of elements unknown."""
        if isinstance(self.source, StreamSource):
            return f"{self.source.name} can only be read from its start"
        if self.sampled:
            return "a sampler says when it ends"
        first = next(step for step in (*self.per_sample, *self.rest) if not isinstance(step, _COUNTED))
        return f"{type(first).__name__.lower()} comes after samples are read"


def lay_out(spec: PipelineSpec, described: SourceDescription) -> PipelineLayout:
    """Cut a pipeline. Raises OptionError for steps that cannot follow each other."""
    sampled = spec.sampler is not None or spec.batch_sampler is not None
    options, steps = spec.options, (*described.steps, *spec.steps)
    if options.batch_size is not None:
        # A loader's own batch comes after what the dataset does, before its own verbs: but for a shuffle that comes
        # first, which is the order of its samples, as `shuffle=True` is.
        batch = Batch(options.batch_size, options.drop_last, options.ragged, spec.collate_fn)
        first = 1 if spec.steps and isinstance(spec.steps[0], Shuffle) and not sampled else 0
        steps = (*described.steps, *spec.steps[:first], batch, *spec.steps[first:])
    if described.collate is not None:
        steps = tuple(
            replace(step, collate=described.collate) if isinstance(step, Batch) and step.collate is None else step
            for step in steps
        )
    numbered = not isinstance(described.source, StreamSource)
    steps, options = _ordered_first(steps, options, numbered, sampled)
    count = next((at for at, step in enumerate(steps) if not isinstance(step, (Map, Filter, FlatMap))), len(steps))
    per_sample, after = steps[:count], steps[count:]
    # What a batch sampler puts together stays together, also where a filter leaves less of it.
    exact = numbered and (spec.batch_sampler is not None or all(isinstance(step, Map) for step in per_sample))
    head = after[0] if after and isinstance(after[0], Batch) and exact else None
    rest = after if head is None else after[1:]
    maps = 0 if head is None else next((at for at, step in enumerate(rest) if not isinstance(step, Map)), len(rest))
    per_batch = tuple(step for step in rest[:maps] if isinstance(step, Map))
    inner = tuple(step for step in per_sample if isinstance(step, (Map, Filter, FlatMap)))
    return PipelineLayout(described.source, options, inner, head, per_batch, tuple(rest[maps:]), sampled)


def _ordered_first(
    steps: tuple[Step, ...], options: LoaderOptions, numbered: bool, sampled: bool
) -> tuple[tuple[Step, ...], LoaderOptions]:
    """A shuffle of samples that have numbers is an order, not a buffer: exact, and without memory."""
    for at, step in enumerate(steps):
        if isinstance(step, Shuffle) and numbered and not sampled:
            ordered = options.with_options(shuffle=True, window=step.buffer, seed=step.seed)
            return (*steps[:at], *steps[at + 1 :]), ordered
        if not isinstance(step, (Map, Filter)):
            break
    unbounded = any(isinstance(step, Shuffle) and step.buffer is None for step in steps)
    if unbounded or (options.shuffle and not numbered):
        raise OptionError(
            "what has no positions is shuffled through a buffer",
            expected="`.shuffle(1000)`, with the number to hold",
            found="`.shuffle()`" if unbounded else "shuffle=True",
        )
    return steps, options


# ---------------------------------------------------------------------------- from a description to something that runs


_CHUNK_BYTES = 1 << 20
_MOST_CHUNK = 256
_STREAM_CHUNK = 32


@dataclass(frozen=True)
class BoundPipeline:
    """A pipeline whose data has been looked at."""

    spec: PipelineSpec
    laid: PipelineLayout
    order: Order | None
    """None where the line has no positions, or a sampler decides."""
    split: Split

    @property
    def options(self) -> LoaderOptions:
        """The options, with what a shuffle step said."""
        return self.laid.options

    @property
    def length(self) -> int:
        """Positions in an epoch."""
        return 0 if self.order is None else self.order.length

    @property
    def keeps_data(self) -> bool:
        """Whether data that fits may be kept in memory: one reader of all of it, who reads here and there.

        One of many readers would read and hold what is for the others.
        """
        return not isinstance(self.order, Sequential) and self.split.readers == 1

    @property
    def batch_size(self) -> int:
        """Samples that one reader takes in a step."""
        return 1 if self.laid.batch is None else self.laid.batch.size

    @property
    def drop_last(self) -> bool:
        """Whether a short last batch is left out."""
        return self.laid.batch is not None and self.laid.batch.drop_last

    def settings_at(self, position: int) -> dict[str, Any]:
        """All that fixes which sample comes when, readable; of a mix, what fixed it up to a place on the line."""
        if isinstance(self.order, Mixed):
            return {**self.settings, **self.order.settings_before(position)}
        return self.settings

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All that fixes which sample comes when, readable."""
        order = {} if self.order is None else self.order.to_json()
        after = [_named(step) for step in (*self.laid.per_sample, *self.laid.rest) if not isinstance(step, Map)]
        return {"data": self.laid.source.fingerprint, **order, **({"stages": after} if after else {})}

    @functools.cached_property
    def chunk(self) -> int:
        """Samples that are read at a time where batches are made later."""
        if isinstance(self.laid.source, StreamSource):
            return _STREAM_CHUNK
        mean, count = self.laid.source.geometry().mean_bytes or 4096.0, self.length or len(self.laid.source)
        return int(max(1, min(_MOST_CHUNK, _CHUNK_BYTES // max(mean, 1.0), -(-count // 8))))

    @functools.cached_property
    def shuffle_quality(self) -> float | None:
        """How far neighbours come from different shards; None where there is one shard only, or no order."""
        if self.order is None or isinstance(self.laid.source, StreamSource):
            return None
        ends = self.laid.source.geometry().shard_starts[1:]
        if len(ends) < 2 or self.order.length < 2:
            return None
        return round(min(1.0, mixing_quality(self.order, ends, pairs=1 << 12)), 3)

    def groups(self, epoch: int, skipped: int = 0) -> Iterator[list[int]]:
        """What a sampler gives for an epoch, cut into batches, without the first ``skipped`` elements."""
        given: Iterable[Any] = self.sampler
        for one in (given, getattr(given, "sampler", None)):  # PyTorch's BatchSampler holds the one that knows epochs
            set_epoch = getattr(one, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        if self.spec.batch_sampler is not None:
            return (list(group) for group in itertools.islice(given, skipped, None))
        size = self.batch_size if self.laid.batch is not None else 1
        numbers = itertools.islice(given, skipped * size, None)
        return _cut(numbers, size if self.laid.batch is not None else self.chunk, self.drop_last)

    @property
    def sampler(self) -> Iterable[Any]:
        """What says which samples come, or groups of them."""
        spec = self.spec
        return spec.batch_sampler if spec.batch_sampler is not None else () if spec.sampler is None else spec.sampler

    @property
    def sampler_steps(self) -> int:
        """Elements that a sampler gives. Raises TypeError when it does not say."""
        count = len(self.sampler)  # type: ignore[arg-type]
        if self.spec.batch_sampler is not None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    @property
    def skips_groups(self) -> bool:
        """Whether what a sampler gave already is passed over without reading it: each group is one element."""
        whole = self.spec.batch_sampler is not None or all(isinstance(step, Map) for step in self.laid.per_sample)
        one = whole and all(isinstance(step, Map) for step in self.laid.rest)
        return self.laid.sampled and one and self.line_steps is None

    @property
    def plan_steps(self) -> int | None:
        """Steps of an epoch where an element is a step of the plan; None where the data's own end decides."""
        return self.laid.options.steps_per_epoch if self.laid.has_length else None

    @property
    def line_steps(self) -> int | None:
        """Elements of an epoch that are cut from a line which goes on through all epochs; None where none are."""
        return None if self.laid.has_length else self.laid.options.steps_per_epoch


def _cut(numbers: Iterator[int], size: int, drop_last: bool) -> Iterator[list[int]]:
    while group := list(itertools.islice(numbers, size)):
        if len(group) == size or not drop_last:
            yield group


def _named(step: Any) -> str:
    """A step by what it is and its numbers: functions may be mended between two runs."""
    names = [name for name in step.__dataclass_fields__ if not callable(getattr(step, name))]
    free = ("size", "drop_last", "ragged") if isinstance(step, Batch) else ("drop_last", "ragged")
    shown = ", ".join(f"{name}={getattr(step, name)!r}" for name in names if name not in free)
    return f"{type(step).__name__}({shown})"


def build(spec: PipelineSpec) -> BoundPipeline:
    """Look at the data and decide its order. Raises OptionError for what cannot go together."""
    described: SourceDescription = describe_source(spec.data)
    laid = lay_out(spec, described)
    split = split_of(laid.options)
    if laid.sampled and isinstance(laid.source, StreamSource):
        raise OptionError("a sampler needs samples with positions", found=laid.source.name)
    source: IndexedSource | None = None if isinstance(laid.source, StreamSource) or laid.sampled else laid.source
    return BoundPipeline(spec, laid, None if source is None else order_of(source, laid.options), split)


# ---------------------------------- which order a loader reads its data in, from its options and from how the data lies


_BLOCK_BYTES = 1 << 20
_FAR_WINDOW, _FAR_WINDOW_BYTES = 2, 128 << 20
"""Blocks of a lane that are mixed where they have to be held in memory, and what those of all lanes may take."""
_UNKNOWN_BYTES = 4096.0
"""What a sample is taken to be where nobody knows."""


def order_of(source: IndexedSource, options: LoaderOptions) -> Order:
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


def _shuffled(count: int, options: LoaderOptions, geometry: SourceLayout) -> Order:
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
