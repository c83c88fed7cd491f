"""Samples and batches of a dataset, in order and shuffled, on the caller's thread."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import numpy as np

from shoal.load import Ragged
from shoal.sample import is_record
from shoal.shard import ShardSource

from ._batches import check_batch_size, in_batches, raw_ordered, raw_shuffled, typed_batches
from ._core import Core
from ._reading import PAYLOAD

__all__ = ["Batching"]

T = TypeVar("T")


class Batching(Core[T]):
    """``ordered`` and ``shuffled``."""

    def ordered(
        self, batch_size: int | None = None, *, drop_last: bool = False, ragged: Ragged = "list"
    ) -> Iterator[Any]:
        """Samples in order, or batches of them: a ``SampleBatch`` of typed samples, a dict of columns of dicts.

        The last batch may be short, unless ``drop_last``. ``ragged`` says what becomes of arrays of different shapes.
        """
        if batch_size is None:
            return iter(self)
        check_batch_size(batch_size)
        source = self._raw_source()
        if source is None:
            return in_batches(iter(self), batch_size, drop_last, ragged)
        runs = raw_ordered(source, PAYLOAD, self._rows)
        return typed_batches(runs, self.sample_type, batch_size, drop_last, ragged)

    def shuffled(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        ragged: Ragged = "list",
    ) -> Iterator[Any]:
        """Samples, or batches of them, in a random order, each once. A drawn seed is kept as ``seed``."""
        self.seed = secrets.randbits(32) if seed is None else seed
        source = self._raw_source()
        if batch_size is not None and source is not None and self._rows is None:
            runs = raw_shuffled(source, PAYLOAD, self.seed)
            return typed_batches(runs, self.sample_type, check_batch_size(batch_size), drop_last, ragged)
        samples = self._walk(np.random.default_rng(self.seed).permutation(self.numbers))
        return samples if batch_size is None else in_batches(samples, check_batch_size(batch_size), drop_last, ragged)

    def _raw_source(self) -> ShardSource | None:
        """The source, where batches can be gathered from its payloads as they are."""
        typed = self._reading.packed and is_record(self._reading.sample_type) and not self._description.stages
        whole = isinstance(self.source, ShardSource) and self._description.policy.on_error == "raise"
        return cast(ShardSource, self.source) if typed and whole else None
