"""From a description to something that runs: what is read, in which order, by which part of all readers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from shoal.errors import OptionError
from shoal.load._steps import Batch, Described, Map, Numbered, StreamSource, describe_source
from shoal.order import Mixed, Order, Sequential, Split, mixing_quality

from ._options import LoaderOptions
from ._ordering import order_of, split_of
from ._spec import Laid, PipelineSpec, lay_out

__all__ = ["Built", "build"]

_CHUNK_BYTES = 1 << 20
_MOST_CHUNK = 256
_STREAM_CHUNK = 32


@dataclass(frozen=True)
class Built:
    """A pipeline whose data has been looked at."""

    spec: PipelineSpec
    laid: Laid
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


def build(spec: PipelineSpec) -> Built:
    """Look at the data and decide its order. Raises OptionError for what cannot go together."""
    described: Described = describe_source(spec.data)
    laid = lay_out(spec, described)
    split = split_of(laid.options)
    if laid.sampled and isinstance(laid.source, StreamSource):
        raise OptionError("a sampler needs samples with positions", found=laid.source.name)
    source: Numbered | None = None if isinstance(laid.source, StreamSource) or laid.sampled else laid.source
    return Built(spec, laid, None if source is None else order_of(source, laid.options), split)
