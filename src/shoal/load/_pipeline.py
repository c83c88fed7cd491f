"""A pipeline as a value: what is read, in which order, and what is done to it. Built and run by `_run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoal.errors import OptionError
from shoal.load._steps import (
    Batch,
    Bucket,
    Described,
    Enumerate,
    Filter,
    FlatMap,
    Map,
    Numbered,
    PerSample,
    Shuffle,
    Skip,
    Step,
    StreamSource,
    Take,
    Unbatch,
    holds_back,
    is_marked,
)

from ._options import LoaderOptions, ThreadingOptions

__all__ = ["Laid", "Mode", "PipelineSpec", "lay_out"]

Mode = Literal["exact", "loose", "stream", "sampler"]
"""Whether what an element holds is known beforehand, found while reading, taken from a line, or said by a sampler."""
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
class Laid:
    """A pipeline cut where work changes hands.

    ``per_sample`` and, where the number of samples is known beforehand, ``batch`` and ``per_batch`` are done by workers
    in one go; ``rest`` is done to the line of what they give.
    """

    source: Numbered | StreamSource
    options: LoaderOptions
    per_sample: tuple[PerSample, ...]
    batch: Batch | None
    per_batch: tuple[Map, ...]
    rest: tuple[Step, ...]

    sampled: bool = False
    """Whether a sampler of the user's says which samples."""

    @property
    def mode(self) -> Mode:
        """How the line is made: see `_head`."""
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


def lay_out(spec: PipelineSpec, described: Described) -> Laid:
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
    return Laid(described.source, options, inner, head, per_batch, tuple(rest[maps:]), sampled)


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
