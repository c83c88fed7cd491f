"""A dataset as a loader reads it: numbered samples, and the maps and filters that follow."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.load import Geometry, Learnt, PayloadReader, Ragged, SampleBatch
from shoal.sample import schema_of
from shoal.schema import Array
from shoal.shard import Reads, ShardSource, foresee
from shoal.store import scheme_of

from ._reading import PAYLOAD

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["DatasetSource"]

Int64 = npt.NDArray[np.int64]
_NEAR = ("file", "memory", "data-source")
"""Where a read of one sample alone costs little."""


class DatasetSource:
    """The samples of a dataset, before its maps and filters, by their positions in it."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset.source) if self._dataset.is_whole else len(self._dataset.numbers)

    @property
    def fingerprint(self) -> str:
        """That of the samples and their numbers; functions may be mended between two runs."""
        return self._dataset.stored.fingerprint

    def read(self, numbers: Int64) -> list[Any]:
        """The samples at these positions, as stored."""
        return self._dataset.stored_at(numbers)

    def read_batch(self, numbers: Int64, ragged: Ragged) -> Any | None:
        """Typed samples are gathered from their payloads; None for others."""
        if self._payloads is None:
            return None
        rows = numbers if self._dataset.is_whole else self._dataset.numbers[numbers]
        batch = SampleBatch(self._payloads.read(rows), ragged=ragged)
        for name in self._array_fields:  # here, in a worker's thread, not when the caller asks
            batch.column(name)
        return batch

    def foresee(self, numbers: Int64, *, batched: bool) -> Reads | None:
        """What reading these samples asks of the store, as a batch or one by one; None where nobody knows."""
        reader = self._dataset._reader  # noqa: SLF001 - one package
        if not isinstance(reader, ShardSource):
            return None
        rows = numbers if self._dataset.is_whole else self._dataset.numbers[numbers]
        if batched and self._dataset.raw_source is not None:
            return foresee(reader, rows, raw=PAYLOAD)
        return foresee(reader, rows, self._dataset._fields)

    @functools.cached_property
    def _payloads(self) -> PayloadReader[Any] | None:
        """Reads typed samples as columns; None where they are not stored so."""
        source = self._dataset.raw_source
        return None if source is None else PayloadReader(source, PAYLOAD, Learnt(self._dataset.sample_type))

    @functools.cached_property
    def _array_fields(self) -> tuple[str, ...]:
        fields = schema_of(self._dataset.sample_type).fields
        return tuple(field.name for field in fields if isinstance(field.type, Array))

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """The shard and the key of a sample."""
        row, source = int(self._dataset.numbers[number]), self._dataset.source
        shard = None
        if isinstance(source, ShardSource):
            shard = source.shards[int(np.searchsorted(source.starts, row, "right")) - 1].url
        return shard, source.keys(np.array([row]))[0]

    def geometry(self) -> Geometry:
        """Where shards begin, and how large samples are on average."""
        source = self._dataset.source
        if not isinstance(source, ShardSource):
            return Geometry(np.array([0, len(self)], np.int64))
        local = all(scheme_of(ref.url) in _NEAR for ref in source.shards)
        return Geometry(self._shard_starts(source), _mean_bytes(source), local)

    def _shard_starts(self, source: ShardSource) -> Int64:
        """Of a view in the source's order, where each shard's samples begin in it; else one run of all."""
        if self._dataset.is_whole:
            return source.starts
        rows = self._dataset.numbers
        in_order = bool((rows[1:] >= rows[:-1]).all())
        return np.searchsorted(rows, source.starts).astype(np.int64) if in_order else np.array([0, len(rows)], np.int64)


def _mean_bytes(source: ShardSource) -> float | None:
    """Bytes a sample, as the manifest says, else as the first shard's index does."""
    manifest = source.manifest
    if manifest is not None and len(source):
        known = [record.bytes for records in manifest.splits.values() for record in records]
        samples = sum(record.samples for records in manifest.splits.values() for record in records)
        return sum(known) / samples if samples else None
    if not source.shards or not len(source.shard(0)):
        return None
    index = source.shard(0).index
    return sum(int(part.size.sum()) for part in index.fields.values()) / len(index)
