"""`DatasetSource`: a dataset as the source of a `DataLoader`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.codec._codec import SizedDecoder
from shoal.errors import ShoalError
from shoal.load._buffers import shared_buffers
from shoal.load._collate import SampleBatch, stacked
from shoal.load._columns import PayloadLayoutCache, PayloadReader, Ragged
from shoal.load._sources import PrefetchedSource, SourceLayout
from shoal.sample._annotations import schema_of
from shoal.schema._types import Array
from shoal.shard._extents import Extents
from shoal.shard._memory_cache import ShardMemoryCache
from shoal.shard._read import BytesColumn
from shoal.shard._read_plan import ReadCost
from shoal.shard._shard import Decoders
from shoal.shard._shuffle_window import ReadSchedule, SampleWindow
from shoal.shard._source import ShardSource
from shoal.store._registry import is_remote
from shoal.store._url import scheme_of

from ._decoding import PAYLOAD, finished
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
        return len(self._dataset.rows)

    @property
    def fingerprint(self) -> str:
        """That of the samples and their numbers; functions may be mended between two runs."""
        return self._dataset.stored.fingerprint

    @property
    def setting_digests(self) -> dict[str, str]:
        """A digest of each setting that decides which samples come and what they hold, without functions."""
        stored = self._dataset.stored
        rows = None if stored.is_whole else stored.rows
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
        dataset = self._dataset
        if not isinstance(self._reader, ShardSource):
            return dataset.stored_at(numbers)
        samples = self._reader.read(self._rows(numbers), dataset._fields, dataset._decoders)  # noqa: SLF001 - one package
        return finished(samples, dataset._reading, ())  # noqa: SLF001 - one package

    @functools.cached_property
    def _reader(self) -> Any:
        """The dataset's source, through the memory cache if there is one."""
        reader = self._dataset._reader  # noqa: SLF001 - one package
        if self._resident is None or not isinstance(reader, ShardSource):
            return reader
        return reader.with_memory(self._resident)

    def _rows(self, numbers: IntArray) -> IntArray:
        """The rows of these samples in the source."""
        return numbers if self._dataset.is_whole else self._dataset.rows.rows_at(numbers)

    def hold(self, most_bytes: int) -> None:
        """Keep local shards in memory as they are read, if they fit in ``most_bytes``; see `ShardMemoryCache`."""
        source = self._dataset.source
        if self._resident is not None or not isinstance(source, ShardSource) or not self.geometry().local:
            return
        with contextlib.suppress(ShoalError):  # whoever reads the shard says what is wrong
            self._resident = ShardMemoryCache.over(source, most_bytes)
        for name in ("_payloads", "_reader"):
            self.__dict__.pop(name, None)

    def read_batch(self, numbers: IntArray, ragged: Ragged) -> Any | None:
        """Return a batch made of columns: typed samples, and dicts as they are stored. None for other samples.

        Typed samples are gathered from their payloads, images of one size are decoded into one array, and fields that
        are not decoded are columns of bytes.
        """
        if self._payloads is None and not self._has_columns:
            return None
        if not self._windows:
            return self._read_batch(numbers, ragged)
        with self._reading(numbers):
            return self._read_batch(numbers, ragged)

    def _read_batch(self, numbers: IntArray, ragged: Ragged) -> Any:
        rows, dataset = self._rows(numbers), self._dataset
        if self._payloads is None:
            extents, columns = self._reader.columns(rows, dataset._fields)
            return decoded_batch(columns, extents, dataset._decoders, ragged)  # noqa: SLF001 - one package
        batch = SampleBatch(self._payloads.read(rows), ragged=ragged)
        for name in self._array_fields:  # here, in a worker's thread, not when the caller asks
            batch.column(name)
        return batch

    @functools.cached_property
    def _has_columns(self) -> bool:
        """Whether samples are dicts as they are stored in shards."""
        reading = self._dataset._reading  # noqa: SLF001 - one package
        plain = reading.sample_type is dict and reading.convert is None
        return plain and isinstance(self._dataset._reader, ShardSource)  # noqa: SLF001 - one package

    def estimate_reads(self, numbers: IntArray, *, batched: bool) -> ReadCost | None:
        """Return what reading these samples asks of the store, as a batch or one by one; None if it is not known."""
        reader = self._dataset._reader  # noqa: SLF001 - one package
        if not isinstance(reader, ShardSource):
            return None
        is_typed = batched and self._dataset.raw_source is not None
        return reader.estimate(self._rows(numbers), [PAYLOAD] if is_typed else self._dataset._fields)

    def estimate_cached_reads(self, most_bytes: int) -> tuple[ReadCost, int] | None:
        """Return what an epoch asks of the store if shards are kept in memory, and the bytes of those; else None."""
        self.hold(most_bytes)
        large = self._payloads is not None and (self.geometry().mean_bytes or 0) >= _LARGE_BYTES
        if self._resident is None or large or not (self._payloads is not None or self._has_columns):
            return None
        return ReadCost(self._resident.blocks, self._resident.stored_bytes), self._resident.size

    @functools.cached_property
    def _payloads(self) -> PayloadReader[Any] | None:
        """Reads typed samples as columns; None where they are not stored so."""
        source = self._dataset.raw_source
        if source is None:
            return None
        if self._resident is not None:
            source = source.with_memory(self._resident)
        return PayloadReader(source, PAYLOAD, PayloadLayoutCache(self._dataset.sample_type), resident=self._resident)

    @functools.cached_property
    def _array_fields(self) -> tuple[str, ...]:
        fields = schema_of(self._dataset.sample_type).fields
        return tuple(field.name for field in fields if isinstance(field.type, Array))

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """The shard and the key of a sample."""
        row, source = self._dataset.rows.row_at(number), self._dataset.source
        shard = None
        if isinstance(source, ShardSource):
            shard = source.shards[int(np.searchsorted(source.starts, row, "right")) - 1].url
        return shard, source.keys(np.array([row]))[0]

    def geometry(self) -> SourceLayout:
        """Where shards begin, and how large samples are on average."""
        source = self._dataset.source
        if not isinstance(source, ShardSource):
            return SourceLayout(np.array([0, len(self)], np.int64))
        local = all(scheme_of(url) in _LOCAL_SCHEMES for url in source.index.locations)
        return SourceLayout(self._shard_starts(source), _mean_bytes(source), local)

    def _shard_starts(self, source: ShardSource) -> IntArray:
        """Of a view in the source's order, where each shard's samples begin in it; else one run of all."""
        if self._dataset.is_whole:
            return source.starts
        rows = self._dataset.rows
        return rows.rank(source.starts) if rows.is_sorted else np.array([0, len(rows)], np.int64)


class _OpenWindow:
    """A window of a source, until it is closed."""

    def __init__(self, source: DatasetSource, window: SampleWindow) -> None:
        self._source = source
        self._window = window

    def close(self) -> None:
        self._source._windows = tuple(one for one in self._source._windows if one is not self._window)  # noqa: SLF001
        self._window.close()


def _mean_bytes(source: ShardSource) -> float | None:
    """Bytes a sample, where a manifest tells, else as the first shard's index does."""
    size, samples = source.index.total_bytes, source.index.known_length
    if size is not None and samples:
        return size / samples
    if not source.shards or not len(source.shard(0)):
        return None
    record = source.index.record(0)
    return sum(size for _, size in record.fields.values()) / record.samples


def decoded_batch(columns: dict[str, BytesColumn], rows: Extents, decoders: Decoders, ragged: Ragged) -> dict[str, Any]:
    """Return a batch of columns: fields with a decoder are decoded, others are columns of bytes.

    Raises:
        DecodeError: A value does not decode; it names shard, key and field.
    """
    batch: dict[str, Any] = {"__key__": rows.keys(), "__url__": list(rows.urls())}
    for name, column in columns.items():
        decoder = decoders[name] if name in decoders else None  # noqa: SIM401 - lazy decoders are made by `in`
        present = (column.starts >= 0).nonzero()[0]
        values: Any = BytesColumn(column.data, column.starts, column.sizes)  # without labels, which hold the index
        values = values if len(present) == len(column) else values.take(present)
        if isinstance(decoder, SizedDecoder):
            values = _decode_rows(values, rows, present, decoder)
        elif decoder is not None:
            values = _decode_values(values, rows, present, decoder)
        if len(present) < len(column):
            found = dict(zip(present.tolist(), values, strict=True))
            values = [found.get(row) for row in range(len(column))]
        batch[name] = values if isinstance(values, BytesColumn | np.ndarray) else stacked(values, ragged, name)
    return batch


def _decode_values(column: BytesColumn, rows: Extents, present: IntArray, decoder: Any) -> list[Any]:
    values: list[Any] = []
    for number, value in zip(present.tolist(), column, strict=True):
        try:
            values.append(decoder(value))
        except ShoalError as error:
            raise error.at(shard=rows.url(number), key=rows.key(number)) from error.__cause__
    return values


def _decode_rows(column: BytesColumn, rows: Extents, present: IntArray, decoder: SizedDecoder) -> npt.NDArray[Any]:
    """Decode values of one shape and dtype into one array."""
    out = _empty_rows(len(column), decoder)
    for number, view, row in zip(present.tolist(), column.views(), out, strict=True):
        try:
            decoder.decode_into(view, row)
        except ShoalError as error:
            raise error.at(shard=rows.url(number), key=rows.key(number)) from error.__cause__
    return out


def _empty_rows(count: int, decoder: SizedDecoder) -> npt.NDArray[Any]:
    """An array for ``count`` values, in memory of earlier batches that are no longer used."""
    size = count * math.prod(decoder.shape) * decoder.dtype.itemsize
    return shared_buffers().empty(size).view(decoder.dtype).reshape(count, *decoder.shape)
