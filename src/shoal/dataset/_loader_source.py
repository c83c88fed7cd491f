"""`DatasetSource`: a dataset as the source of a `DataLoader`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
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
from shoal.shard._extents import Extents
from shoal.shard._memory_cache import ShardMemoryCache
from shoal.shard._read import BytesColumn
from shoal.shard._read_plan import ReadCost
from shoal.shard._row_view import RowView
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
        return len(self._dataset.source if self._view is None else self._view)

    @functools.cached_property
    def _view(self) -> RowView | None:
        """The rows of the samples in the source; None for all of it."""
        return self._dataset._rows  # noqa: SLF001 - one package

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
        return numbers if self._view is None else self._view.rows_at(numbers)

    def hold(self, most_bytes: int) -> None:
        """Keep local shards in memory as they are read, if they fit in ``most_bytes``; see `ShardMemoryCache`."""
        source = self._dataset.source
        if self._resident is not None or not isinstance(source, ShardSource) or not self.geometry().local:
            return
        with contextlib.suppress(ShoalError):  # whoever reads the shard says what is wrong
            self._resident = ShardMemoryCache.over(source, most_bytes)
        for name in ("_make_batch", "_reader"):
            self.__dict__.pop(name, None)

    def read_batch(self, numbers: IntArray, ragged: Ragged) -> Any | None:
        """Return a batch made of columns: typed samples, and dicts as they are stored. None for other samples.

        Typed samples are gathered from their payloads, images of one size are decoded into one array, and fields that
        are not decoded are columns of bytes.
        """
        make = self._make_batch
        if make is None:
            return None
        if not self._windows:
            return make(self._rows(numbers), ragged)
        with self._reading(numbers):
            return make(self._rows(numbers), ragged)

    @functools.cached_property
    def _make_batch(self) -> Callable[[IntArray, Ragged], Any] | None:
        """Makes a batch of rows, where samples are stored as payloads of their type, or dicts as they are stored."""
        dataset, source = self._dataset, self._dataset.raw_source
        if source is not None:
            source = source if self._resident is None else source.with_memory(self._resident)
            layout_cache = PayloadLayoutCache(dataset.sample_type)
            payloads = PayloadReader(source, PAYLOAD, layout_cache, resident=self._resident)
            return functools.partial(_typed_batch, payloads, layout_cache.arrays)
        is_stored = dataset._reading.sample_type is dict and dataset._reading.convert is None  # noqa: SLF001 - one package
        if not is_stored or not isinstance(self._reader, ShardSource):
            return None
        return functools.partial(_decoded_batch, dataset, self._reader)

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
        large = self._dataset.raw_source is not None and (self.geometry().mean_bytes or 0) >= _LARGE_BYTES
        if self._resident is None or large or self._make_batch is None:
            return None
        return ReadCost(self._resident.blocks, self._resident.stored_bytes), self._resident.size

    def locate(self, number: int) -> tuple[str | None, str | None]:
        """The shard and the key of a sample; None for what is not known, as the key in a line that cannot be read."""
        row, source = self._dataset.rows.row_at(number), self._dataset.source
        shard = key = None
        if isinstance(source, ShardSource):
            shard = source.shards[int(np.searchsorted(source.starts, row, "right")) - 1].url
        with contextlib.suppress(ShoalError):
            key = source.keys(np.array([row]))[0]
        return shard, key

    def geometry(self) -> SourceLayout:
        """Where shards begin, and how large samples are on average."""
        return self._geometry

    @functools.cached_property
    def _geometry(self) -> SourceLayout:
        source, view = self._dataset.source, self._view
        if not isinstance(source, ShardSource):
            return SourceLayout(np.array([0, len(self)], np.int64))
        local = all(scheme_of(url) in _LOCAL_SCHEMES for url in source.index.locations)
        if view is None:
            starts = source.starts
        elif view.is_sorted:  # where each shard's samples begin in the view
            starts = view.rank(source.starts)
        else:
            starts = np.array([0, len(view)], np.int64)
        return SourceLayout(starts, _mean_bytes(source), local)


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
    size, samples = source.index.total_bytes, source.index.known_length
    if size is not None and samples:
        return size / samples
    if not source.shards or not len(source.shard(0)):
        return None
    record = source.index.record(0)
    return sum(size for _, size in record.fields.values()) / record.samples


def _typed_batch(
    payloads: PayloadReader[Any], arrays: tuple[str, ...], rows: IntArray, ragged: Ragged
) -> SampleBatch[Any]:
    batch = SampleBatch(payloads.read(rows), ragged=ragged)
    for name in arrays:  # here, in a worker's thread, not when the caller asks
        batch.column(name)
    return batch


def _decoded_batch(dataset: Dataset[Any], source: ShardSource, numbers: IntArray, ragged: Ragged) -> dict[str, Any]:
    """Return a batch of columns: fields with a decoder are decoded, others are columns of bytes.

    Raises:
        DecodeError: A value does not decode; it names shard, key and field.
    """
    decoders = dataset._decoders  # noqa: SLF001 - one package
    rows, columns = source.columns(numbers, dataset._fields)
    batch: dict[str, Any] = {"__key__": rows.keys(), "__url__": rows.urls()}
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
