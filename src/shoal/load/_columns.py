"""Columns of typed samples, read from their payloads without unpacking each sample.

`TypedColumns` has the fields of a batch; a `PayloadRun` has payloads in one buffer and how their fields are stored.
`PayloadReader` reads samples by their numbers: from shards in memory (`resolved_run`), or large arrays directly into
the batch (`direct_plan`, `direct_columns`), or payloads as stored. `window_run` reads a shuffle window.
"""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal._typing import IntArray
from shoal.codec._codec import Buffer
from shoal.errors import DecodeError, FieldError, ShoalError
from shoal.sample._annotations import schema_of
from shoal.sample._field_mapping import keeps_fields
from shoal.sample._packable import pack, unpack
from shoal.schema._types import Array, BoolType, BytesType, FieldType, FloatType, Image, IntType, OptionalType, StrType
from shoal.shard._arrow_arrays import as_arrow
from shoal.shard._byte_reader import ScatterSpec
from shoal.shard._extents import RowLabels, join_extents, shard_extents
from shoal.shard._memory_cache import ShardMemoryCache
from shoal.shard._read import BytesColumn, columns_of, fetch, read_scattered
from shoal.shard._read_plan import plan_reads
from shoal.shard._source import ShardSource
from shoal.shard._table import checked_rows

from ._buffers import BufferPool, shared_buffers
from ._msgpack_scan import (
    ArrayLayout,
    FieldLocations,
    PayloadScan,
    TemplateField,
    copy_rows,
    gather,
    join_locations,
    read_template,
)

__all__ = [
    "PayloadLayoutCache",
    "PayloadReader",
    "PayloadRun",
    "Ragged",
    "TypedColumns",
    "direct_columns",
    "direct_plan",
    "ragged_arrays",
    "resolved_run",
    "window_run",
]

T = TypeVar("T")
Rows = slice | npt.NDArray[np.int64]
Column = npt.NDArray[Any]
Ragged = Literal["list", "pad", "error"]

_MAX_GATHER_BYTES = 4096
"""Arrays from this size on are copied row by row."""
_MAX_LAYOUTS = 256
_MIN_POOL_BYTES = 1 << 20
"""Columns from this size on are in memory of the buffer pool."""
_MIN_DIRECT_BYTES = 64 << 10
"""Arrays from this size on are read directly into the batch; smaller ones are faster to copy from their block."""
_MAX_MISSES = 3
"""Batches in a row that a plan may be wrong for, before nothing is read directly any more."""
_SCAN_CHUNK = 1 << 14
"""Payloads scanned at a time: scanning takes more memory than its results."""
_TEXT_CHUNK = 1 << 16
"""Strings checked at a time: Arrow copies them for that."""
_CACHE_LINE = 64
_FIXED_KINDS = ("float", "bool")
_NUMBER_TYPES = (IntType, FloatType, BoolType)
_NO_COLUMNS: Mapping[str, npt.NDArray[Any]] = {}


class PayloadLayoutCache(Generic[T]):
    """Cache of payload layouts observed for one sample type. Thread-safe.

    Affects speed only: every layout is verified against the bytes.
    """

    def __init__(self, sample_type: type[T]) -> None:
        self.sample_type = sample_type
        self.types = {field.name: field.type for field in schema_of(sample_type).fields}
        self.as_stored = keeps_fields(sample_type)
        """Whether fields of a sample are what is stored, so that they can be read without creating the sample."""
        self.arrays = tuple(name for name, kind in self.types.items() if isinstance(kind, Array))
        """The array fields."""
        self.plain = frozenset(name for name, kind in self.types.items() if self.as_stored and is_plain(kind))
        """Fields that can be read by `plain_values`."""
        self.template: tuple[TemplateField, ...] = ()
        """The fields of the payload that others were last compared with."""
        self.accepted: set[tuple[str, ArrayLayout]] = set()
        """Fields, and how their arrays are stored, that the class accepts."""


class PayloadRun(Generic[T]):
    """Payloads in one buffer, with what is computed once for all batches from it.

    ``locations`` are those of the fields, if known. If some bytes of the payloads are elsewhere, as those of large
    arrays may be, ``read_full`` reads complete payloads.
    """

    def __init__(
        self,
        raw: BytesColumn,
        layout_cache: PayloadLayoutCache[T],
        *,
        locations: Mapping[str, FieldLocations] | None = None,
        read_full: Callable[[], BytesColumn] | None = None,
    ) -> None:
        self.raw = raw
        self.layout_cache = layout_cache
        self._locations = locations
        self._read_full = read_full
        self._scan: PayloadScan | None = None
        self._has_own_template = False
        self._arrays: dict[str, tuple[ArrayLayout, IntArray] | None] = {}
        self._values: dict[str, Values | None] = {}
        self._stacks: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.raw)

    def field(self, name: str) -> FieldLocations | None:
        """Return where a field is in each payload; None if payloads differ before it."""
        if self._locations is not None or not len(self.raw):
            return (self._locations or {}).get(name)
        if self._scan is None and self.layout_cache.template:
            self._scan = PayloadScan(self.raw.data, self.raw.starts, self.raw.sizes, self.layout_cache.template)
        locations = None if self._scan is None else self._scan.field(name)
        known = locations is not None and (locations.array or not isinstance(self.layout_cache.types[name], Array))
        if not known and not self._has_own_template:  # not stored as payloads before: perhaps as the first of these is
            self.layout_cache.template = _first_template(self.raw)
            self._scan = PayloadScan(self.raw.data, self.raw.starts, self.raw.sizes, self.layout_cache.template)
            self._has_own_template = True
            locations = self._scan.field(name)
        return locations

    @functools.cached_property
    def full(self) -> BytesColumn:
        """The complete payloads."""
        return self.raw if self._read_full is None else self._read_full()

    @functools.cached_property
    def plain(self) -> list[Any] | None:
        """All plain fields of each sample, decoded by msgspec together; None if a payload cannot be decoded so."""
        view, decode = memoryview(self.full.data), _plain_decoder(cast(Hashable, self.layout_cache.sample_type))
        ends = (self.full.starts + self.full.sizes).tolist()
        try:
            return [decode(view[start:end]) for start, end in zip(self.full.starts.tolist(), ends, strict=True)]
        except msgspec.DecodeError:
            return None

    def values(self, name: str) -> Values | None:
        """Return a plain field of all samples, read without decoding; None if it has to be decoded."""
        if name not in self._values:
            locations = self.field(name)
            kind = self.layout_cache.types[name]
            self._values[name] = None if locations is None else plain_values(self.raw.data, locations, kind)
        return self._values[name]

    def resolve_fields(self) -> bool:
        """Determine how every field is read, for payloads that stay in memory; strings are not copied.

        False if a field is not stored alike in all of them: then each batch is faster with a scan of its own.
        """
        for name, kind in self.layout_cache.types.items():
            if isinstance(kind, Array):
                if self.arrays(name) is None:
                    return False
            elif is_plain(kind):
                locations = self.field(name)
                self._values[name] = None if locations is None else values_in_place(self.raw.data, locations, kind)
                if self._values[name] is None:
                    return False
        self._locations = None  # not needed any more
        return True

    def arrays(self, name: str) -> tuple[ArrayLayout, IntArray] | None:
        """Return how an array field is stored, and where its numbers start in each payload.

        None if it is not stored alike in all samples, or not as it is in memory.
        """
        if name not in self._arrays:
            locations, accepted = self.field(name), self.layout_cache.accepted
            layout = None if locations is None else locations.array
            if locations is None or layout is None or not layout.is_plain:
                self._arrays[name] = None
                return None
            if (name, layout) not in accepted:
                self.sample(0)  # raises if the class does not allow such an array
                if len(accepted) >= _MAX_LAYOUTS:
                    accepted.clear()
                accepted.add((name, layout))
            self._arrays[name] = layout, locations.starts + len(layout.head)
        return self._arrays[name]

    def stacked(self, name: str, layout: ArrayLayout, starts: IntArray, rows: Rows) -> npt.NDArray[Any]:
        """Return the arrays of some samples as one. Neighbours are slices of one array of all samples."""
        if isinstance(rows, slice) and name in self._stacks:
            return self._stacks[name][rows]
        starts = starts if isinstance(rows, slice) else starts[rows]
        found = gather(self.raw.data, starts, layout.nbytes).view(layout.dtype).reshape(len(starts), *layout.shape)
        if not isinstance(rows, slice):
            return found
        self._stacks[name] = found
        return found[rows]

    def payload(self, row: int) -> memoryview:
        """Return one sample as stored."""
        start, size = int(self.full.starts[row]), int(self.full.sizes[row])
        return memoryview(self.full.data)[start : start + size]

    def sample(self, row: int) -> T:
        """Return one sample, unpacked."""
        try:
            return unpack(self.layout_cache.sample_type, self.payload(row))
        except ShoalError as error:
            raise _located(error, self.raw, row) from error.__cause__


class TypedColumns(Generic[T]):
    """The fields of several samples of one class, each read from the payloads when it is first needed.

    Array fields of one shape are gathered into one array without decoding samples. Strings and numbers that are stored
    alike are read from the payloads; otherwise msgspec decodes all such fields of a sample together. Anything else is
    read by unpacking the samples, as are all fields of a class that computes something when a sample is created.
    ``filled`` are array fields that were read directly into arrays.
    """

    def __init__(
        self, parts: list[tuple[PayloadRun[T], Rows]], filled: Mapping[str, npt.NDArray[Any]] = _NO_COLUMNS
    ) -> None:
        layout_cache = parts[0][0].layout_cache
        self._parts = parts
        self._filled = filled
        self._layout_cache = layout_cache
        self.types = layout_cache.types
        self.sample_type = layout_cache.sample_type

    @classmethod
    def over(cls, raw: BytesColumn, sample_type: type[T]) -> TypedColumns[T]:
        """Return columns of all these payloads."""
        return cls([(PayloadRun(raw, PayloadLayoutCache(sample_type)), slice(None))])

    @classmethod
    def of(cls, samples: list[T]) -> TypedColumns[T]:
        """Return columns of samples in memory: they are packed, so that both kinds behave alike."""
        columns = cls._from_payloads(type(samples[0]), [pack(sample) for sample in samples], [""] * len(samples))
        columns.__dict__["samples"] = list(samples)  # not unpacked ones: their class may compute something once more
        return columns

    @classmethod
    def _from_payloads(cls, sample_type: type[T], payloads: list[bytes], keys: list[str]) -> TypedColumns[T]:
        sizes = np.array([len(payload) for payload in payloads], np.int64)
        return cls.over(BytesColumn(b"".join(payloads), np.cumsum(sizes) - sizes, sizes, keys), sample_type)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the payloads of these samples only, and their keys."""
        payloads = [bytes(run.payload(row)) for run, row in self._rows()]
        return TypedColumns._from_payloads, (self.sample_type, payloads, self.keys)

    def __len__(self) -> int:
        return sum(_count(run, rows) for run, rows in self._parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the samples as stored."""
        size = 0
        for run, rows in self._parts:
            size += int(run.raw.sizes[rows].sum())
        return size

    @property
    def keys(self) -> list[str]:
        """The samples' keys."""
        return [key for run, rows in self._parts for key in _keys(run.raw, rows)]

    @functools.cached_property
    def samples(self) -> list[T]:
        """The samples themselves."""
        return [run.sample(row) for run, row in self._rows()]

    def column(self, name: str, ragged: Ragged = "list") -> Any:
        """Return one field of all samples: an array if it is an array field, else a list.

        Raises FieldError if the type has no such field.
        """
        kind = self.types.get(name)
        if kind is None:
            expected = " or ".join(self.types)
            raise FieldError("the sample type has no such field", expected=expected, found=name)
        if isinstance(kind, Array):
            stacked = self._stacked(name) if self._layout_cache.as_stored else None
            if stacked is not None:
                return stacked
            return _stack([getattr(sample, name) for sample in self.samples], name, ragged)
        if isinstance(kind, Image):
            return _stack([self._decoded(number, name) for number in range(len(self))], name, ragged)
        plain = self._plain(name) if name in self._layout_cache.plain else None
        return [getattr(sample, name) for sample in self.samples] if plain is None else plain

    def _decoded(self, number: int, name: str) -> Any:
        """Return a field that is decoded on access; an error names the sample."""
        try:
            return getattr(self.samples[number], name)
        except ShoalError as error:
            run, row = self._rows()[number]
            raise _located(error, run.raw, row) from error.__cause__

    def _rows(self) -> list[tuple[PayloadRun[T], int]]:
        return [(run, row) for run, rows in self._parts for row in _row_list(run, rows)]

    def _plain(self, name: str) -> list[Any] | None:
        found: list[Any] = []
        for run, rows in self._parts:
            values = run.values(name)
            if values is not None:
                found += values[rows].tolist()
            elif run.plain is not None:
                chosen = run.plain[rows] if isinstance(rows, slice) else [run.plain[row] for row in rows.tolist()]
                found += map(operator.attrgetter(name), chosen)
            else:
                return None
        return found

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return one field of all samples as one array."""
        if name in self._layout_cache.plain and isinstance(inner_type(self.types[name]), _NUMBER_TYPES):
            parts = [(run.values(name), rows) for run, rows in self._parts]
            known = [values[rows] for values, rows in parts if values is not None]
            if len(known) == len(parts):
                return np.concatenate(known)
        column = self.column(name, "error")
        return column if isinstance(column, np.ndarray) else np.asarray(column)

    def _stacked(self, name: str) -> npt.NDArray[Any] | None:
        """Return all arrays of a field as one, copied once; None if they differ in shape, dtype or storage."""
        if name in self._filled:
            return self._filled[name]
        (run, rows), *others = self._parts
        stored = run.arrays(name)
        if stored is None:
            return None
        layout, starts = stored
        if not others and layout.nbytes < _MAX_GATHER_BYTES:
            return run.stacked(name, layout, starts, rows)
        chosen = [starts[rows]]
        for other, own in others:
            found = other.arrays(name)
            if found is None or found[0][1:] != layout[1:]:
                return None
            chosen.append(found[1][own])
        length, at = len(self), 0
        size = length * layout.nbytes
        bare = shared_buffers().empty(size) if size >= _MIN_POOL_BYTES else np.empty(size, np.uint8)
        out = bare.reshape(length, layout.nbytes)
        for (part, _), own_starts in zip(self._parts, chosen, strict=True):
            copy_rows(part.raw.data, own_starts, out[at : at + len(own_starts)])
            at += len(own_starts)
        return out.view(layout.dtype).reshape(length, *layout.shape)


def _keys(column: BytesColumn, rows: Rows) -> list[str]:
    labels, chosen = column.labels, np.arange(len(column))[rows]
    if isinstance(labels, RowLabels):
        return labels.keys.take(chosen).to_list()
    return [] if labels is None else [labels[row] for row in chosen.tolist()]


def _located(error: ShoalError, column: BytesColumn, row: int) -> ShoalError:
    """Return the error with the shard and the key of a row."""
    labels = column.labels
    if isinstance(labels, RowLabels):
        return error.at(shard=labels.url(row), key=labels.keys.get(row))
    return error if labels is None else error.at(key=labels[row] or None)


def _count(run: PayloadRun[Any], rows: Rows) -> int:
    return len(range(len(run))[rows]) if isinstance(rows, slice) else len(rows)


def _row_list(run: PayloadRun[Any], rows: Rows) -> list[int]:
    return list(range(len(run))[rows]) if isinstance(rows, slice) else rows.tolist()


@functools.cache
def _plain_decoder(sample_type: Hashable) -> Callable[[memoryview], Any]:
    plain = [field for field in schema_of(cast(type, sample_type)).fields if is_plain(field.type)]
    fields = [(field.name, _python_type(field.type)) for field in plain]
    return msgspec.msgpack.Decoder(msgspec.defstruct("Plain", fields)).decode


def _python_type(kind: FieldType) -> Any:
    if isinstance(kind, OptionalType):
        return _python_type(kind.of) | None
    return {StrType: str, IntType: int, FloatType: float, BoolType: bool, BytesType: bytes}[type(kind)]


def _stack(arrays: list[npt.NDArray[Any]], name: str, ragged: Ragged) -> Any:
    if len({(array.shape, array.dtype) for array in arrays}) > 1:
        return ragged_arrays(arrays, name, ragged)
    return np.stack(arrays) if arrays else np.empty(0)


_TRUE = 0xC3
_INTS = {
    0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xCF: ">u8", 0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8",
}  # fmt: skip
_CODES: Mapping[type, Sequence[int]] = {
    StrType: [*range(0xA0, 0xC0), *range(0xD9, 0xDC)],
    IntType: [*range(0x80), *range(0xE0, 0x100), *_INTS],
    FloatType: [0xCB],
    BoolType: [0xC2, _TRUE],
    BytesType: range(0xC4, 0xC7),
}
"""The first bytes of values that are stored simply as what they are."""
_IS_PLAIN = {kind: np.isin(np.arange(256), list(codes)) for kind, codes in _CODES.items()}


def inner_type(kind: FieldType) -> FieldType:
    """Return the type of an optional field's values; any other type as is."""
    return kind.of if isinstance(kind, OptionalType) else kind


def is_plain(kind: FieldType) -> bool:
    """Whether fields of this type can be read by `plain_values`."""
    return type(inner_type(kind)) in _READERS


class Values(Protocol):
    """A field of many samples; ``values[rows].tolist()`` are Python values."""

    def __getitem__(self, rows: IntArray | slice, /) -> Column: ...


def plain_values(data: Buffer, locations: FieldLocations, kind: FieldType) -> Column | None:
    """Return one plain field of all payloads: an array of numbers or bools, or of strings or bytes as objects.

    None if it is stored in more than one way, or not simply as the value: null in some samples, an int in a field of
    floats. Then the samples have to be decoded.
    """
    inner = type(inner_type(kind))
    return _READERS[inner](data, locations) if bool(_IS_PLAIN[inner][locations.codes].all()) else None


def values_in_place(data: Buffer, locations: FieldLocations, kind: FieldType) -> Values | None:
    """Return the same for many payloads that stay in memory: strings and bytes are created on access."""
    inner = type(inner_type(kind))
    if inner not in (StrType, BytesType) or not bool(_IS_PLAIN[inner][locations.codes].all()):
        return plain_values(data, locations, kind)
    if inner is BytesType:
        return _ByteStrings(memoryview(data), locations)
    spans = _text_spans(data, locations)
    return None if spans is None or not _are_utf8(spans) else _Texts(spans)


class _Texts:
    def __init__(self, spans: pa.Array) -> None:
        self._spans = spans

    def __getitem__(self, rows: IntArray | slice) -> Column:
        return _take_texts(self._spans, np.arange(len(self._spans) // 2)[rows] if isinstance(rows, slice) else rows)


class _ByteStrings:
    def __init__(self, view: memoryview, locations: FieldLocations) -> None:
        self._view = view
        self._locations = locations

    def __getitem__(self, rows: IntArray | slice) -> Column:
        return _take_bytes(self._view, self._locations.starts[rows], self._locations.sizes[rows])


def _are_utf8(spans: pa.Array) -> bool:
    count = len(spans) // 2
    try:
        for start in range(0, count, _TEXT_CHUNK):
            spans.take(as_arrow(2 * np.arange(start, min(start + _TEXT_CHUNK, count)))).validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _floats(data: Buffer, locations: FieldLocations) -> Column:
    return gather(data, locations.starts, 8).view(">f8").astype(np.float64)


def _bools(data: Buffer, locations: FieldLocations) -> Column:
    values: Column = locations.codes == _TRUE
    return values


def _ints(data: Buffer, locations: FieldLocations) -> Column | None:
    codes = locations.codes
    values = codes.astype(np.int8).astype(np.int64)  # right for small ints, which are their own code
    for code, dtype in _INTS.items():
        rows = np.flatnonzero(codes == code)
        if len(rows):
            found = gather(data, locations.starts[rows], np.dtype(dtype).itemsize).view(dtype)
            if code == 0xCF and bool((found >> np.uint64(63)).any()):  # too large for int64
                return None
            values[rows] = found.astype(np.int64)
    return values


def _texts(data: Buffer, locations: FieldLocations) -> Column | None:
    spans = _text_spans(data, locations)
    try:
        return None if spans is None else _take_texts(spans, np.arange(len(locations.starts)))
    except pa.ArrowException:  # one is not UTF-8: reading the sample alone says which
        return None


def _text_spans(data: Buffer, locations: FieldLocations) -> pa.Array | None:
    """Return an Arrow array over the bytes, without a copy: string, gap, string, gap.

    Arrow's offsets must rise, so None if payloads are not in order.
    """
    count = len(locations.starts)
    offsets = np.empty(2 * count + 1, np.int64)
    offsets[:-1:2] = locations.starts
    np.add(locations.starts, locations.sizes, out=offsets[1::2])
    offsets[-1] = offsets[-2]
    if bool((offsets[1:] < offsets[:-1]).any()):
        return None
    return pa.Array.from_buffers(pa.large_utf8(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _take_texts(spans: pa.Array, rows: IntArray) -> Column:
    texts: Column = spans.take(as_arrow(2 * rows)).to_numpy(zero_copy_only=False)
    return texts


def _byte_strings(data: Buffer, locations: FieldLocations) -> Column:
    return _take_bytes(memoryview(data), locations.starts, locations.sizes)


def _take_bytes(view: memoryview, starts: IntArray, sizes: IntArray) -> Column:
    stops = (starts + sizes).tolist()
    values = np.empty(len(stops), object)
    values[:] = [bytes(view[start:stop]) for start, stop in zip(starts.tolist(), stops, strict=True)]
    return values


_READERS: Mapping[type, Callable[[Buffer, FieldLocations], Column | None]] = {
    StrType: _texts,
    IntType: _ints,
    FloatType: _floats,
    BoolType: _bools,
    BytesType: _byte_strings,
}


class PayloadReader(Generic[T]):
    """Reads columns of typed samples by their numbers. Thread-safe.

    If samples are stored alike, large arrays are read directly into memory of ``buffers``. Other payloads are taken
    from ``resident``, the memory cache, or read as stored. ``threads`` may read one batch of large arrays at once; use
    one if batches are already read on several threads.
    """

    def __init__(
        self,
        source: ShardSource,
        field: str,
        layout_cache: PayloadLayoutCache[T],
        *,
        buffers: BufferPool | None = None,
        threads: int = 1,
        resident: ShardMemoryCache | None = None,
    ) -> None:
        self._source = source
        self._field = field
        self._layout_cache = layout_cache
        self._buffers = buffers or shared_buffers()
        self._threads = threads
        self._resident = resident
        self._plan: DirectPlan | None = None
        self._cached_run: PayloadRun[T] | None = None
        self._resolving = threading.Lock()
        self._misses = -1
        """How many batches in a row the plan was wrong for; negative before there is a plan."""

    def is_direct(self, number: int) -> bool:
        """Whether arrays of samples like this one are read directly into the batch, without a copy."""
        if self._misses < 0:
            self._plan, self._misses = direct_plan(self._source, number, self._field, self._layout_cache), 0
        return self._plan is not None

    def read(self, numbers: IntArray) -> TypedColumns[T]:
        """Read samples, in this order. Raises ChecksumError, TruncatedError and PositionError."""
        source, field, layout_cache = self._source, self._field, self._layout_cache
        if len(numbers) and self.is_direct(int(numbers[0])) and (plan := self._plan) is not None:
            columns = direct_columns(source, numbers, field, layout_cache, plan, self._buffers, self._threads)
            if columns is not None:
                self._misses = 0
                return columns
            # Try a plan from these samples, but only a few times: after a wrong plan the batch is read twice.
            self._misses += 1
            again = self._misses < _MAX_MISSES
            self._plan = direct_plan(source, int(numbers[-1]), field, layout_cache) if again else None
        run = self._cached_run
        if run is None and self._resident is not None:
            run = self._resolve_cached(self._resident)
        if run is not None:
            return TypedColumns([(run, checked_rows(numbers, len(run.raw.starts)))])
        order: Rows = slice(0, len(numbers))
        if not bool((numbers[1:] > numbers[:-1]).all()):  # strings are read without a copy only in order
            numbers, order = np.unique(numbers, return_inverse=True)
        return TypedColumns([(PayloadRun(source.column(numbers, field), layout_cache), order)])

    def _resolve_cached(self, resident: ShardMemoryCache) -> PayloadRun[T] | None:
        """Return all samples, once they are cached; done once, by one thread, while others use copies."""
        if not resident.is_full or not self._resolving.acquire(blocking=False):
            return None
        raw = resident.column(self._field)  # the lock is never released: the result does not change
        self._cached_run = None if raw is None else resolved_run(raw, self._layout_cache)
        return self._cached_run


def resolved_run(raw: BytesColumn, layout_cache: PayloadLayoutCache[T]) -> PayloadRun[T] | None:
    """Return payloads with all fields resolved; None if they are not stored alike, or one does not fit its class."""
    template, parts = _first_template(raw), list[Mapping[str, FieldLocations]]()
    for start in range(0, len(raw), _SCAN_CHUNK):
        rows = slice(start, start + _SCAN_CHUNK)
        locations = PayloadScan(raw.data, raw.starts[rows], raw.sizes[rows], template).all_fields()
        if locations is None:
            return None
        parts.append(locations)
    run = PayloadRun(raw, layout_cache, locations=join_locations(parts)) if parts else None
    try:
        return run if run is not None and run.resolve_fields() else None
    except ShoalError:  # raised again when the sample is read, unless a view leaves it out
        return None


def _first_template(raw: BytesColumn) -> tuple[TemplateField, ...]:
    if not len(raw):
        return ()
    start, size = int(raw.starts[0]), int(raw.sizes[0])
    try:
        return read_template(memoryview(raw.data)[start : start + size])
    except DecodeError:  # raised again, with the sample, when it is unpacked
        return ()


def window_run(
    source: ShardSource,
    spans: Sequence[tuple[int, int, int]],
    field: str,
    layout_cache: PayloadLayoutCache[T],
    buffers: BufferPool,
) -> PayloadRun[T]:
    """Read the samples of these spans (shard, start, stop) into one buffer of the pool, one span after the other.

    Each block is scanned right after it was read, while it is still in the processor's cache. The buffer returns to the
    pool with the last batch, or sample, made from it.
    """
    every = [shard_extents(source.shard(number), slice(start, stop), [field]) for number, start, stop in spans]
    plans = [plan_reads(extents) for extents in every]
    sizes = [plan.size for plan in plans]
    data, at = buffers.empty(sum(sizes)).data, 0
    parts, locations = [], []
    for extents, plan, size in zip(every, plans, sizes, strict=True):
        own = data[at : at + size]
        part = columns_of(extents, fetch(extents, plan, own), own)[field]
        run = PayloadRun(BytesColumn(data, part.starts + at, part.sizes), layout_cache)
        fields = {name: run.field(name) for name in layout_cache.types}
        parts.append(run.raw)
        locations.append({name: field for name, field in fields.items() if field is not None})
        at += size
    edges = np.cumsum([0, *map(len, parts)]).tolist()
    places = [np.arange(first, last) for first, last in itertools.pairwise(edges)]
    labels = join_extents(dict(enumerate(every)), places).labels
    starts, lengths = np.concatenate([part.starts for part in parts]), np.concatenate([part.sizes for part in parts])
    joined = BytesColumn(data.toreadonly(), starts, lengths, labels)
    return PayloadRun(joined, layout_cache, locations=join_locations(locations))


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """How to read large arrays directly into a batch, from the fields of one sample.

    If samples are stored alike, the index and one of them give the offsets of the numbers of each array. So these are
    read into their rows of the batch, and the bytes around them are checked afterwards: if the samples are not alike,
    the batch is read again, as stored. Checksums are computed from the parts.
    """

    cuts: ScatterSpec
    template: tuple[TemplateField, ...]
    layouts: dict[str, ArrayLayout]


def direct_plan(
    source: ShardSource, number: int, field: str, layout_cache: PayloadLayoutCache[Any]
) -> DirectPlan | None:
    """Return how to read samples like sample ``number``; None if it has no large array, or none with a known offset."""
    if not layout_cache.as_stored or not source.shard_of(number).data.scatters:
        return None
    run = PayloadRun(source.column(np.array([number]), field), layout_cache)
    large = {}
    try:
        template = read_template(run.payload(0))
        for each in template:
            layout = each.array if each.name in layout_cache.arrays else None
            if layout is not None and layout.is_plain and layout.nbytes >= _MIN_DIRECT_BYTES:
                large[each.name] = layout
        if large:
            run.sample(0)  # raises if the class does not allow such arrays
    except ShoalError:  # raised again when the sample is read
        return None
    cuts = _scatter_spec(template, large) if large else None
    return None if cuts is None else DirectPlan(cuts, template, large)


def _scatter_spec(template: tuple[TemplateField, ...], large: dict[str, ArrayLayout]) -> ScatterSpec | None:
    """Return how to cut samples; None if more than one gap may have another size in other samples."""
    gaps, taken, varying = [0], [], set()
    for field in template:
        gaps[-1] += len(field.key) + len(field.header)
        if field.name in large:
            gaps[-1] += len(large[field.name].head)
            taken.append(large[field.name].nbytes)
            gaps.append(0)
        else:
            gaps[-1] += field.size
            if field.kind not in _FIXED_KINDS and field.array is None:
                varying.add(len(gaps) - 1)
    return (
        ScatterSpec(tuple(gaps), tuple(taken), varying.pop() if varying else len(taken)) if len(varying) < 2 else None
    )


def direct_columns(
    source: ShardSource,
    numbers: IntArray,
    field: str,
    layout_cache: PayloadLayoutCache[T],
    plan: DirectPlan,
    buffers: BufferPool,
    threads: int = 1,
) -> TypedColumns[T] | None:
    """Read columns of samples, in this order; None if the plan is wrong for one of them."""
    layouts, count = plan.layouts, len(numbers)
    starts = np.cumsum([gap + size for gap, size in zip(plan.cuts.gaps, (0, *plan.cuts.taken), strict=True)]).tolist()
    outs = [
        buffers.empty(count * layout.nbytes, _offset(layout, start))
        for layout, start in zip(layouts.values(), starts, strict=False)
    ]
    extents = source.extents(checked_rows(numbers, len(source)), [field])
    raw = read_scattered(extents, plan.cuts, [out.data for out in outs], threads)
    if raw is None:
        return None
    elided = {name: layout.nbytes for name, layout in layouts.items()}
    locations = PayloadScan(raw.data, raw.starts, raw.sizes, plan.template, elided).all_fields()
    if locations is None:
        return None
    run = PayloadRun(raw, layout_cache, locations=locations, read_full=lambda: source.column(numbers, field))
    arrays = {
        name: out.view(layout.dtype).reshape(count, *layout.shape)
        for (name, layout), out in zip(layouts.items(), outs, strict=True)
    }
    return TypedColumns([(run, slice(None))], arrays)


def _offset(layout: ArrayLayout, start: int) -> int:
    """Return where in a cache line rows begin: as in the file, which makes the system's copy a fifth faster."""
    within = start % _CACHE_LINE
    return within if layout.nbytes % _CACHE_LINE == 0 and within % layout.dtype.alignment == 0 else 0


def ragged_arrays(arrays: list[npt.NDArray[Any]], name: str, ragged: Ragged) -> Any:
    """Return arrays of different shapes as a list, or padded with zeros at their ends, or raise DecodeError."""
    if ragged == "list":
        return arrays
    shapes = sorted({array.shape for array in arrays})
    if ragged == "error" or len({array.ndim for array in arrays}) > 1:
        some = ", ".join(map(str, shapes[:3]))
        hint = "ask for ragged='list' or 'pad'" if ragged == "error" else "padding needs one number of dimensions"
        raise DecodeError("the arrays of a field do not stack", expected="one shape", found=some, field=name, hint=hint)
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    padded = np.zeros((len(arrays), *largest), np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[tuple(slice(0, size) for size in array.shape)] = array
    return padded
