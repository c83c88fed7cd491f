"""Samples and batches of a dataset, in order and shuffled, on the caller's thread."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from typing import Any, Never, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np

from shoal.load import Ragged, SampleBatch
from shoal.sample import is_record
from shoal.shard import ShardSource

from ._batches import (
    TypedOptions,
    check_batch_size,
    check_buffers,
    check_ragged,
    in_batches,
    ordered_batches,
    shuffled_batches,
)
from ._core import Core, Int64
from ._peer._formats_out import Formatting
from ._reading import PAYLOAD

__all__ = ["Batching"]

T = TypeVar("T")
OfScalars: TypeAlias = "Batching[str] | Batching[bytes] | Batching[int] | Batching[float] | Batching[bool]"


class BatchOptions(TypedDict, total=False):
    """What may be said about batches."""

    drop_last: bool
    ragged: Ragged


class ShuffleOptions(BatchOptions, total=False):
    """What may be said about batches in a random order."""

    seed: int | None
    buffer_samples: int | None
    buffer_shards: int | None


class Batching(Core[T]):
    """``ordered`` and ``shuffled``."""

    @overload
    def ordered(self, batch_size: None = None, **options: Unpack[BatchOptions]) -> Iterator[T]: ...
    @overload  # of what is Any nothing is known; nothing else is also a Never
    def ordered(self: Batching[Never], batch_size: int, **options: Unpack[BatchOptions]) -> Iterator[Any]: ...
    @overload
    def ordered(  # type: ignore[overload-overlap] # the more special come first
        self: Batching[dict[str, Any]], batch_size: int, **options: Unpack[BatchOptions]
    ) -> Iterator[dict[str, Any]]: ...
    @overload
    def ordered(  # type: ignore[overload-overlap] # as above
        self: OfScalars, batch_size: int, **options: Unpack[BatchOptions]
    ) -> Iterator[list[T]]: ...
    @overload
    def ordered(self, batch_size: int, **options: Unpack[BatchOptions]) -> Iterator[SampleBatch[T]]: ...
    @overload
    def ordered(self, batch_size: int | None, **options: Unpack[BatchOptions]) -> Iterator[Any]: ...
    def ordered(
        self, batch_size: int | None = None, *, drop_last: bool = False, ragged: Ragged = "list"
    ) -> Iterator[Any]:
        """Samples in order, or batches of them: a ``SampleBatch`` of typed samples, a dict of columns of dicts.

        The last batch may be short, unless ``drop_last``. ``ragged`` says what becomes of arrays of different shapes.
        """
        if batch_size is None:
            return iter(self)
        check_batch_size(batch_size)
        check_ragged(ragged)
        if self._format is not None:
            return self._formatted_batches(self._rows, batch_size, drop_last)
        source = self._raw_source()
        if source is None:
            return in_batches(iter(self), batch_size, drop_last, ragged)
        options = TypedOptions(self.sample_type, batch_size, drop_last, ragged)
        return ordered_batches(source, PAYLOAD, self._rows, options)

    @overload
    def shuffled(self, batch_size: None = None, **options: Unpack[ShuffleOptions]) -> Iterator[T]: ...
    @overload  # of what is Any nothing is known; nothing else is also a Never
    def shuffled(self: Batching[Never], batch_size: int, **options: Unpack[ShuffleOptions]) -> Iterator[Any]: ...
    @overload
    def shuffled(  # type: ignore[overload-overlap] # the more special come first
        self: Batching[dict[str, Any]], batch_size: int, **options: Unpack[ShuffleOptions]
    ) -> Iterator[dict[str, Any]]: ...
    @overload
    def shuffled(  # type: ignore[overload-overlap] # as above
        self: OfScalars, batch_size: int, **options: Unpack[ShuffleOptions]
    ) -> Iterator[list[T]]: ...
    @overload
    def shuffled(self, batch_size: int, **options: Unpack[ShuffleOptions]) -> Iterator[SampleBatch[T]]: ...
    @overload
    def shuffled(self, batch_size: int | None, **options: Unpack[ShuffleOptions]) -> Iterator[Any]: ...
    def shuffled(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        ragged: Ragged = "list",
        buffer_samples: int | None = None,
        buffer_shards: int | None = None,
    ) -> Iterator[Any]:
        """Samples, or batches of them, in a random order, each once. A drawn seed is kept as ``seed``.

        Samples, and batches of dicts, are drawn from all there are. Batches of typed samples are read in blocks from
        all over the dataset, 32 of them mixed at a time, or as many more as it takes to mix ``buffer_samples``, which
        costs their memory. ``buffer_shards`` is atdata's, and accepted for its users: every shard is mixed, whatever
        it says.
        """
        check_ragged(ragged)
        least = check_buffers(buffer_samples, buffer_shards)
        self.seed = secrets.randbits(32) if seed is None else seed
        source = self._raw_source()
        if batch_size is not None and source is not None:
            options = TypedOptions(self.sample_type, check_batch_size(batch_size), drop_last, ragged)
            return shuffled_batches(source, PAYLOAD, self.seed, self._rows, options, least)
        order = np.random.default_rng(self.seed).permutation(self.numbers)
        if batch_size is not None and self._format is not None:
            return self._formatted_batches(order, check_batch_size(batch_size), drop_last)
        samples = self._walk(order)
        return samples if batch_size is None else in_batches(samples, check_batch_size(batch_size), drop_last, ragged)

    def _formatted_batches(self, chosen: Int64 | None, batch_size: int, drop_last: bool) -> Iterator[Any]:
        """Batches in the format that samples are handed out in."""
        form, runs = cast(Formatting, self._format), self._stored_runs(chosen, self.errors)
        samples = (sample for run in runs for sample in self._before_format(run))
        while held := list(itertools.islice(samples, batch_size)):
            if len(held) == batch_size or not drop_last:
                yield form.batch(held, None)
        self.errors.tell()

    @property
    def raw_source(self) -> ShardSource | None:
        """The source, where batches can be gathered from its payloads as they are; for who reads it by number."""
        return self._raw_source()

    def _raw_source(self) -> ShardSource | None:
        """The source, where batches can be gathered from its payloads as they are."""
        typed = self._reading.packed and is_record(self._reading.sample_type) and not self._description.stages
        whole = isinstance(self.source, ShardSource) and self._description.policy.on_error == "raise"
        return cast(ShardSource, self.source) if typed and whole else None
