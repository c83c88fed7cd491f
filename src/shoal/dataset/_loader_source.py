"""`DatasetSource`: a dataset as the source of a `DataLoader`."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.codec._codec import Buffer, SizedDecoder
from shoal.errors import ShoalError
from shoal.load._buffers import shared_buffers
from shoal.load._collate import SampleBatch, collate, stacked
from shoal.load._columns import PayloadLayoutCache, PayloadReader, Ragged
from shoal.load._sources import PrefetchedSource, SourceLayout
from shoal.sample._annotations import schema_of
from shoal.schema._types import Array
from shoal.shard._memory_cache import ShardMemoryCache
from shoal.shard._read_cost import ReadCost, estimate_cached_reads, estimate_reads
from shoal.shard._shard import Decoders, Sample
from shoal.shard._shuffle_window import ReadSchedule, SampleWindow
from shoal.shard._source import ShardSource
from shoal.store._registry import is_remote
from shoal.store._url import scheme_of

from ._decoding import PAYLOAD, WithoutSized
from ._fingerprint import setting_digests

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["DatasetSource"]

_LOCAL_SCHEMES = ("file", "memory", "data-source")
"""Stores in which reading a single sample is cheap."""
_UNKNOWN_BYTES = 4096.0
_LARGE_BYTES = 32 << 10
"""Samples of this size may have arrays that are read directly into batches, not from the memory cache."""


class DatasetSource:
    """The samples of a dataset, before its maps and filters, by their positions in it."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset
        self._resident: ShardMemoryCache | None = None
        self._windows: tuple[SampleWindow, ...] = ()

    def __len__(self) -> int:
        return len(self._dataset.source) if self._dataset.is_whole else len(self._dataset.numbers)

    @property
    def fingerprint(self) -> str:
        """That of the samples and their numbers; functions may be mended between two runs."""
        return self._dataset.stored.fingerprint

    @property
    def setting_digests(self) -> dict[str, str]:
        """A digest of each setting that decides which samples come and what they hold, without functions."""
        stored = self._dataset.stored
        rows = None if stored.is_whole else stored.numbers
        return setting_digests(stored.described, stored.source, rows, stored.sample_type)

    def foresee_order(self, foresight: ReadSchedule) -> PrefetchedSource | None:
        """Fetch far shards by blocks ahead of reading; see ``shard.SampleWindow``.

        Not where any sample may come next and they do not all fit: blocks would be fetched again and again.
        """
        dataset, geometry = self._dataset, self.geometry()
        reader = dataset._reader  # noqa: SLF001 - one package
        if not isinstance(reader, ShardSource) or not any(is_remote(ref.url) for ref in reader.shards):
            return None
        mean = geometry.mean_bytes or _UNKNOWN_BYTES
        if foresight.block_samples is None and foresight.spread * mean > foresight.most_bytes:
            return None
        is_typed = dataset.raw_source is not None
        fields = [PAYLOAD] if is_typed else dataset._fields
        window = SampleWindow(
            reader, foresight, self._rows, lambda number: reader.wanted_fields(number, fields), max(mean, 1.0)
        )
        self._windows = (*self._windows, window)
        window.go_on()
        return _OpenWindow(self, window)

    @contextlib.contextmanager
    def _reading(self, numbers: IntArray) -> Iterator[None]:
        """Tell the prefetch windows which samples are read."""
        with contextlib.ExitStack() as stack:
            for window in self._windows:
                stack.enter_context(window.reading(numbers))
            yield

    def read(self, numbers: IntArray) -> list[Any]:
        """The samples at these positions, as stored."""
        if not self._windows:
            return self._read(numbers)
        with self._reading(numbers):
            return self._read(numbers)

    def _read(self, numbers: IntArray) -> list[Any]:
        columns = self._columns(self._rows(numbers))
        if columns is None:
            return self._dataset.stored_at(numbers)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _rows(self, numbers: IntArray) -> IntArray:
        """The numbers of these samples in the source."""
        return numbers if self._dataset.is_whole else self._dataset.numbers[numbers]

    def hold(self, most_bytes: int) -> None:
        """Keep local shards in memory as they are read, if they fit in ``most_bytes``; see `ShardMemoryCache`."""
        source = self._dataset.source
        if self._resident is not None or not isinstance(source, ShardSource) or not self.geometry().local:
            return
        with contextlib.suppress(ShoalError):  # whoever reads the shard says what is wrong
            self._resident = ShardMemoryCache.over(source, most_bytes)
        self.__dict__.pop("_payloads", None)
        self.__dict__.pop("_plain_fields", None)

    def read_batch(self, numbers: IntArray, ragged: Ragged) -> Any | None:
        """Typed samples are gathered from their payloads, images of one size decoded into place.

        Fields of plain samples are taken from shards in memory. None for others.
        """
        if not self._windows or (self._payloads is None and not self._has_sized_images):
            return self._read_batch(numbers, ragged)  # what is None is read otherwise, and counted then
        with self._reading(numbers):
            return self._read_batch(numbers, ragged)

    def _read_batch(self, numbers: IntArray, ragged: Ragged) -> Any | None:
        rows = self._rows(numbers)
        if self._has_sized_images:
            dataset = self._dataset
            samples = dataset._reader.read(rows, dataset._fields, WithoutSized(dataset._decoders))  # noqa: SLF001
            return filled_batch(samples, dataset._decoders, ragged)  # noqa: SLF001 - one package
        if self._payloads is None:
            columns = self._columns(rows)
            if columns is None:
                return None
            return {name: stacked(values, ragged, name) for name, values in columns.items()}
        batch = SampleBatch(self._payloads.read(rows), ragged=ragged)
        for name in self._array_fields:  # here, in a worker's thread, not when the caller asks
            batch.column(name)
        return batch

    def estimate_reads(self, numbers: IntArray, *, batched: bool) -> ReadCost | None:
        """What reading these samples asks of the store, as a batch or one by one; None where nobody knows."""
        reader = self._dataset._reader  # noqa: SLF001 - one package
        if not isinstance(reader, ShardSource):
            return None
        rows = self._rows(numbers)
        if batched and self._dataset.raw_source is not None:
            return estimate_reads(reader, rows, raw=PAYLOAD)
        return estimate_reads(reader, rows, self._dataset._fields)

    def estimate_cached_reads(self, batches: Iterable[IntArray], most_bytes: int) -> tuple[ReadCost, int] | None:
        """What batches one after the other ask of the store where shards are kept in memory, and the bytes of those.

        None where they are not kept, or nothing is taken from there.
        """
        self.hold(most_bytes)
        source, dataset = self._dataset.source, self._dataset
        names = self._plain_fields if self._payloads is None else (PAYLOAD,)
        large = self._payloads is not None and (self.geometry().mean_bytes or 0) >= _LARGE_BYTES
        if (
            self._resident is None
            or not isinstance(source, ShardSource)
            or names is None
            or large
            or self._has_sized_images
        ):
            return None
        rows = (numbers if dataset.is_whole else dataset.numbers[numbers] for numbers in batches)
        first = next(rows, np.empty(0, np.int64))
        reads, held = estimate_cached_reads(source, itertools.chain([first], rows), names)
        # Of typed samples one is looked at first, for how large its arrays are.
        looked = self._payloads is not None and source.shard(0).scatters and len(first) > 0
        return (reads + estimate_reads(source, first[:1], raw=PAYLOAD) if looked else reads), held

    @functools.cached_property
    def _has_sized_images(self) -> bool:
        """Whether samples are dicts, read from shards, with images that are decoded to one size."""
        dataset = self._dataset
        plain = dataset._reading.convert is None and isinstance(dataset.source, ShardSource)  # noqa: SLF001
        return plain and dataset.described.spec.has_sizes

    def _columns(self, rows: IntArray) -> dict[str, list[Any]] | None:
        """Plain samples as columns; None where they are not in memory or not alike, or one fails: reading it tells."""
        names, held = self._plain_fields, self._resident
        if names is None or held is None:
            return None
        decoders = self._dataset._decoders  # noqa: SLF001 - one package
        try:
            columns: dict[str, list[Any]] = {**held.columns(rows, names)}
            for name in names:
                if name in decoders:
                    columns[name] = list(map(decoders[name], columns[name]))
        except ShoalError:
            return None
        return {"__key__": held.keys(rows), "__url__": held.urls(rows), **columns}

    @functools.cached_property
    def _plain_fields(self) -> tuple[str, ...] | None:
        """The fields that are read of samples that are dicts in memory, where all have the same ones."""
        dataset, reading = self._dataset, self._dataset._reading  # noqa: SLF001 - one package
        if self._resident is None or reading.sample_type is not dict or reading.convert is not None:
            return None
        reader = dataset._reader  # noqa: SLF001 - one package
        return self._resident.wanted(reader, dataset._fields) if isinstance(reader, ShardSource) else None

    @functools.cached_property
    def _payloads(self) -> PayloadReader[Any] | None:
        """Reads typed samples as columns; None where they are not stored so."""
        source = self._dataset.raw_source
        if source is None:
            return None
        return PayloadReader(source, PAYLOAD, PayloadLayoutCache(self._dataset.sample_type), resident=self._resident)

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

    def geometry(self) -> SourceLayout:
        """Where shards begin, and how large samples are on average."""
        source = self._dataset.source
        if not isinstance(source, ShardSource):
            return SourceLayout(np.array([0, len(self)], np.int64))
        local = all(scheme_of(ref.url) in _LOCAL_SCHEMES for ref in source.shards)
        return SourceLayout(self._shard_starts(source), _mean_bytes(source), local)

    def _shard_starts(self, source: ShardSource) -> IntArray:
        """Of a view in the source's order, where each shard's samples begin in it; else one run of all."""
        if self._dataset.is_whole:
            return source.starts
        rows = self._dataset.numbers
        in_order = bool((rows[1:] >= rows[:-1]).all())
        return np.searchsorted(rows, source.starts).astype(np.int64) if in_order else np.array([0, len(rows)], np.int64)


class _OpenWindow:
    """A window of a source, until it is closed."""

    def __init__(self, source: DatasetSource, window: SampleWindow) -> None:
        self._source = source
        self._window = window

    def close(self) -> None:
        self._source._windows = tuple(one for one in self._source._windows if one is not self._window)  # noqa: SLF001
        self._window.close()


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


def filled_batch(samples: list[Sample], decoders: Decoders, ragged: Ragged) -> Any:
    """A dict of columns, of samples in which what has a `SizedDecoder` is still bytes.

    Raises:
        DecodeError: An image does not decode; it names shard, key and field.
    """
    batch = collate(samples, ragged)
    sized = [name for name in batch if name in decoders and isinstance(decoders[name], SizedDecoder)]
    for name in sized:
        batch[name] = _decode_column(batch[name], samples, decoders[name])
    return batch


def _decode_column(values: list[Buffer | None], samples: list[Sample], decoder: Any) -> Any:
    """One array; a list where some samples have no such field."""
    present = [place for place, value in enumerate(values) if value is not None]
    column, decode_into, place = _empty_rows(len(present), decoder), decoder.decode_into, 0
    try:
        for row, place in zip(column, present, strict=True):
            decode_into(values[place], row)
    except ShoalError as error:
        sample = samples[place]
        raise error.at(shard=sample["__url__"], key=sample["__key__"]) from error.__cause__
    if len(present) == len(values):
        return column
    rows = dict(zip(present, column, strict=True))
    return [rows.get(place) for place in range(len(values))]


def _empty_rows(count: int, decoder: SizedDecoder) -> npt.NDArray[Any]:
    """An array for ``count`` values, in memory of earlier batches that are no longer used."""
    size = count * math.prod(decoder.shape) * decoder.dtype.itemsize
    return shared_buffers().empty(size).view(decoder.dtype).reshape(count, *decoder.shape)
