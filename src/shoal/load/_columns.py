"""Typed columns of many samples, straight from their payloads."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.codec import Buffer
from shoal.errors import DecodeError, ShoalError
from shoal.sample import keeps_fields, pack, schema_of, unpack
from shoal.schema import Array, BoolType, BytesType, FieldType, FloatType, Image, IntType, OptionalType, StrType
from shoal.shard import RawField, ScatterSpec, ShardMemoryCache, ShardSource, as_arrow, join_raw

from ._buffers import BufferPool, shared_buffers
from ._msgpack_scan import Step, Walk, Walked, copy_rows, gather, join_walked, steps_of, walk

__all__ = [
    "PayloadLayoutCache",
    "PayloadReader",
    "PayloadRun",
    "Ragged",
    "TypedColumns",
    "direct_columns",
    "direct_plan",
    "ragged_arrays",
    "settled_run",
    "window_run",
]

T = TypeVar("T")
Rows = slice | npt.NDArray[np.int64]
Int64 = npt.NDArray[np.int64]
Column = npt.NDArray[Any]
Ragged = Literal["list", "pad", "error"]


# --------------------------------------------------------------- columns of typed samples, straight from their payloads


_SMALL = 4096
_MOST_LAYOUTS = 256
_LENT = 1 << 20  # from this size on memory is used again
_NUMBERS = (IntType, FloatType, BoolType)
_NONE_FILLED: Mapping[str, npt.NDArray[Any]] = {}


class ArrayLayout(NamedTuple):
    """What stands before an array's numbers in each sample, and what they are."""

    head: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int


class PayloadLayoutCache(Generic[T]):
    """What the samples of one type taught about how they are stored, so that the next ones need not be asked.

    Nothing depends on it but speed: all that it says is compared with the bytes. Threads may share it.
    """

    def __init__(self, sample_type: type[T]) -> None:
        self.sample_type = sample_type
        self.types = {field.name: field.type for field in schema_of(sample_type).fields}
        self.as_stored = keeps_fields(sample_type)
        """Whether a field of a sample is what is stored, so that it can be read without making the sample."""
        self.steps: tuple[Step, ...] = ()
        """What the last payload held that was looked at by itself."""
        self.layouts: dict[tuple[str, bytes, int], ArrayLayout | None] = {}
        """By field, header and size: what the class was seen to take."""


class PayloadRun(Generic[T]):
    """Payloads that lie in one buffer. What is worked out for them is worked out once for all batches cut from it.

    ``walked`` may be given by who walked them already. Where some bytes of the payloads lie elsewhere, as those of
    large arrays may, ``whole`` gets all of them again.
    """

    def __init__(
        self,
        raw: RawField,
        learnt: PayloadLayoutCache[T],
        *,
        walked: Mapping[str, Walked] | None = None,
        whole: Callable[[], RawField] | None = None,
    ) -> None:
        self.raw = raw
        self.learnt = learnt
        self._given = walked
        self._whole = whole
        self._walk: Walk | None = None
        self._is_own = False
        self._layouts: dict[str, ArrayLayout | None] = {}
        self._values: dict[str, Values | None] = {}
        self._array_starts: dict[str, npt.NDArray[np.int64]] = {}
        self._stacks: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.raw)

    def field(self, name: str) -> Walked | None:
        """Where a field lies in each payload; None when they are not alike up to it."""
        if self._given is not None or not len(self.raw):
            return (self._given or {}).get(name)
        if self._walk is None and self.learnt.steps:
            self._walk = Walk(self.raw.data, self.raw.starts, self.raw.sizes, self.learnt.steps)
        found = None if self._walk is None else self._walk.field(name)
        known = found is not None and (found.head or not isinstance(self.learnt.types[name], Array))
        if not known and not self._is_own:  # not as the payloads before lay: as the first of these does
            self._walk, self._is_own = self._own_walk(), True
            found = self._walk.field(name)
        return found

    def _own_walk(self) -> Walk:
        start, size = int(self.raw.starts[0]), int(self.raw.sizes[0])
        try:
            self.learnt.steps = steps_of(memoryview(self.raw.data)[start : start + size])
        except DecodeError:  # unpacking it says of which sample
            self.learnt.steps = ()
        return Walk(self.raw.data, self.raw.starts, self.raw.sizes, self.learnt.steps)

    @functools.cached_property
    def whole(self) -> RawField:
        """The payloads with nothing left out."""
        return self.raw if self._whole is None else self._whole()

    @functools.cached_property
    def plain(self) -> list[Any] | None:
        """All plain fields of each sample, in one pass of msgspec; None when a payload does not fit as it is."""
        view, decode = memoryview(self.whole.data), _plain_decoder(cast(Hashable, self.learnt.sample_type))
        ends = (self.whole.starts + self.whole.sizes).tolist()
        try:
            return [decode(view[start:end]) for start, end in zip(self.whole.starts.tolist(), ends, strict=True)]
        except msgspec.DecodeError:
            return None

    def values(self, name: str) -> Values | None:
        """A plain field of all samples, read from where it lies; None where it has to be decoded."""
        if name not in self._values:
            walked = self.field(name)
            kind = self.learnt.types[name]
            self._values[name] = None if walked is None else plain_values(self.raw.data, walked, kind)
        return self._values[name]

    def settled(self) -> bool:
        """Work out now how every field is read, for payloads that stay where they are; texts stay there too.

        False where a field is not stored alike in all of them: then each batch is better off by itself.
        """
        for name, kind in self.learnt.types.items():
            if isinstance(kind, Array):
                if self.layout(name) is None:
                    return False
                self.array_starts(name)
            elif is_plain(kind):
                walked = self.field(name)
                self._values[name] = None if walked is None else values_in_place(self.raw.data, walked, kind)
                if self._values[name] is None:
                    return False
        self._given = None  # nobody asks any more
        return True

    def layout(self, name: str) -> ArrayLayout | None:
        """How an array field is stored, where it is stored alike in all samples."""
        if name not in self._layouts:
            walked = self.field(name)
            self._layouts[name] = self._found_layout(name, walked) if walked is not None and walked.head else None
        return self._layouts[name]

    def _found_layout(self, name: str, walked: Walked) -> ArrayLayout | None:
        known, key = self.learnt.layouts, (name, walked.head, int(walked.sizes[0]))
        if key not in known:
            if len(known) >= _MOST_LAYOUTS:
                known.clear()
            known[key] = self._new_layout(name)
        return known.get(key)

    def array_starts(self, name: str) -> npt.NDArray[np.int64]:
        """Where the numbers of an array field start in each payload, where it has a layout."""
        if name not in self._array_starts:
            walked = self.field(name)
            assert walked is not None  # noqa: S101 - who has a layout was walked
            self._array_starts[name] = walked.starts + len(walked.head)
        return self._array_starts[name]

    def stacked(self, name: str, layout: ArrayLayout, rows: Rows) -> npt.NDArray[Any]:
        """The arrays of some samples as one. Neighbours are cut from one array of all that is made at once."""
        if isinstance(rows, slice):
            if name not in self._stacks:
                self._stacks[name] = self._gathered(name, layout, slice(None))
            return self._stacks[name][rows]
        return self._gathered(name, layout, rows)

    def _gathered(self, name: str, layout: ArrayLayout, rows: Rows) -> npt.NDArray[Any]:
        found = gather(self.raw.data, self.array_starts(name)[rows], layout.nbytes)
        return found.view(layout.dtype).reshape(len(found), *layout.shape)

    def _new_layout(self, name: str) -> ArrayLayout | None:
        step = next(step for step in steps_of(self.payload(0)) if step.name == name)
        if step.array is None or step.array.order != "C" or step.array.nbytes == 0:
            return None
        self.sample(0)  # raises where the class does not allow such an array
        return ArrayLayout(step.head, step.array.dtype, step.array.shape, step.array.nbytes)

    def payload(self, row: int) -> memoryview:
        """One sample as it is stored."""
        start, size = int(self.whole.starts[row]), int(self.whole.sizes[row])
        return memoryview(self.whole.data)[start : start + size]

    def sample(self, row: int) -> T:
        """One sample, unpacked."""
        try:
            return unpack(self.learnt.sample_type, self.payload(row))
        except ShoalError as error:
            key = self.raw.keys(slice(row, row + 1))[0]
            raise error.at(shard=self.raw.url(row), key=key) from error.__cause__


class TypedColumns(Generic[T]):
    """The fields of several samples of one class, each read from the payloads when it is first asked for.

    Array fields of one shape are gathered into one array without decoding any sample; texts and numbers that are stored
    alike are read from where they lie, others decoded by msgspec, all such fields of a sample in one go; anything else
    by unpacking the samples, as are all fields of a class that computes something when a sample is made. ``filled`` are
    array fields that were read into place already.
    """

    def __init__(
        self, parts: list[tuple[PayloadRun[T], Rows]], filled: Mapping[str, npt.NDArray[Any]] = _NONE_FILLED
    ) -> None:
        self._parts = parts
        self._filled = filled
        self.types = parts[0][0].learnt.types
        self._counts = [_count(run, rows) for run, rows in parts]
        self.sample_type = parts[0][0].learnt.sample_type
        self._as_stored = parts[0][0].learnt.as_stored

    @classmethod
    def over(cls, raw: RawField, sample_type: type[T]) -> TypedColumns[T]:
        """Columns of all these payloads."""
        return cls([(PayloadRun(raw, PayloadLayoutCache(sample_type)), slice(None))])

    @classmethod
    def of(cls, samples: list[T]) -> TypedColumns[T]:
        """Columns of samples that are already there: they are packed, so that both kinds behave alike."""
        made = cls._joined(type(samples[0]), [pack(sample) for sample in samples], [""] * len(samples))
        made.__dict__["samples"] = list(samples)  # themselves: one that is unpacked may compute something once more
        return made

    @classmethod
    def _joined(cls, sample_type: type[T], payloads: list[bytes], keys: list[str]) -> TypedColumns[T]:
        sizes = np.array([len(payload) for payload in payloads], np.int64)
        raw = RawField(b"".join(payloads), np.cumsum(sizes) - sizes, sizes, pa.array(keys, pa.string()), ("",))
        return cls.over(raw, sample_type)

    def __reduce__(self) -> tuple[Any, ...]:
        """What goes to another process: the payloads of these samples alone, and their keys."""
        payloads = [bytes(run.payload(row)) for run, row in self._places()]
        return TypedColumns._joined, (self.sample_type, payloads, self.keys)

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the samples as they are stored."""
        return sum(int(run.raw.sizes[rows].sum()) for run, rows in self._parts)

    @property
    def keys(self) -> list[str]:
        """The samples' keys."""
        return [key for run, rows in self._parts for key in run.raw.keys(rows)]

    @functools.cached_property
    def samples(self) -> list[T]:
        """The samples themselves."""
        return [run.sample(row) for run, row in self._places()]

    def column(self, name: str, ragged: Ragged = "list") -> Any:
        """One field of all samples: an array where it is an array field, else a list."""
        kind = self.types[name]
        if isinstance(kind, Array):
            stacked = self._stacked(name) if self._as_stored else None
            if stacked is not None:
                return stacked
            return _stacked_or([getattr(sample, name) for sample in self.samples], name, ragged)
        if isinstance(kind, Image):
            return _stacked_or([self._decoded(number, name) for number in range(len(self))], name, ragged)
        plain = self._plain(name) if self._as_stored and is_plain(kind) else None
        return [getattr(sample, name) for sample in self.samples] if plain is None else plain

    def _decoded(self, number: int, name: str) -> Any:
        """A field that is decoded when it is looked at; where that fails, the sample is named."""
        try:
            return getattr(self.samples[number], name)
        except ShoalError as error:
            run, row = self._places()[number]
            key = run.raw.keys(slice(row, row + 1))[0]
            raise error.at(shard=run.raw.url(row) or None, key=key or None) from error.__cause__

    def _places(self) -> list[tuple[PayloadRun[T], int]]:
        """Where each sample is."""
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
        """One field of all samples as one array."""
        if self._as_stored and isinstance(inner_type(self.types[name]), _NUMBERS):
            parts = [(run.values(name), rows) for run, rows in self._parts]
            known = [values[rows] for values, rows in parts if values is not None]
            if len(known) == len(parts):
                return np.concatenate(known)
        column = self.column(name, "error")
        return column if isinstance(column, np.ndarray) else np.asarray(column)

    def _stacked(self, name: str) -> npt.NDArray[Any] | None:
        """All arrays of a field as one, copied once; None when they differ in shape or type, or are stored unlike."""
        if name in self._filled:
            return self._filled[name]
        layouts = [run.layout(name) for run, _ in self._parts]
        first = layouts[0]
        if first is None or any(layout is None or layout[1:] != first[1:] for layout in layouts[1:]):
            return None
        if len(layouts) == 1 and first.nbytes < _SMALL:
            run, rows = self._parts[0]
            return run.stacked(name, first, rows)
        return self._filled_rows(name, first)

    def _filled_rows(self, name: str, layout: ArrayLayout) -> npt.NDArray[Any]:
        size, at = len(self) * layout.nbytes, 0
        bare = shared_buffers().empty(size) if size >= _LENT else np.empty(size, np.uint8)
        out = bare.reshape(len(self), layout.nbytes)
        for (run, rows), count in zip(self._parts, self._counts, strict=True):
            copy_rows(run.raw.data, run.array_starts(name)[rows], out[at : at + count])
            at += count
        return out.view(layout.dtype).reshape(len(self), *layout.shape)


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


def _stacked_or(arrays: list[npt.NDArray[Any]], name: str, ragged: Ragged) -> Any:
    """One array where they are alike, else as ``ragged`` says."""
    if len({(array.shape, array.dtype) for array in arrays}) > 1:
        return ragged_arrays(arrays, name, ragged)
    return np.stack(arrays) if arrays else np.empty(0)


# ----------------------------------------------- texts, byte strings, numbers and truth values of many payloads at once


_VALUES_AT_ONCE = 1 << 16

_FLOAT64, _FALSE, _TRUE = 0xCB, 0xC2, 0xC3
_INTS = {
    0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xCF: ">u8", 0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8",
}  # fmt: skip
_IS_INT = np.zeros(256, bool)
_IS_INT[:0x80] = _IS_INT[0xE0:] = _IS_INT[list(_INTS)] = True
_IS_BYTES = np.zeros(256, bool)
_IS_BYTES[0xC4:0xC7] = True
_IS_TEXT = np.zeros(256, bool)
_IS_TEXT[0xA0:0xC0] = _IS_TEXT[0xD9:0xDC] = True


def inner_type(kind: FieldType) -> FieldType:
    """What an optional field holds where it holds something."""
    return kind.of if isinstance(kind, OptionalType) else kind


def is_plain(kind: FieldType) -> bool:
    """Whether fields of this type can be read by `plain_values`."""
    return type(inner_type(kind)) in _READERS


class Values(Protocol):
    """A field of many samples; ``tolist`` of some of them gives Python values."""

    def __getitem__(self, rows: Int64 | slice, /) -> Column:
        """Of some of the samples."""
        ...


def plain_values(data: Buffer, walked: Walked, kind: FieldType) -> Column | None:
    """One plain field of all payloads: an array of numbers or truth values, or of texts or byte strings as objects.

    None where it is stored in more than one way, or in one that is not simply the value: a number that is none in some
    samples, a whole number in a field of floats. Decoding the samples says what is right then.
    """
    return _READERS[type(inner_type(kind))](data, walked)


def values_in_place(data: Buffer, walked: Walked, kind: FieldType) -> Values | None:
    """The same of very many payloads that stay where they are: texts and byte strings are made when asked for."""
    inner = inner_type(kind)
    if isinstance(inner, StrType):
        lying = _lying_texts(data, walked)
        return None if lying is None or not _are_texts(lying) else _Texts(lying)
    if isinstance(inner, BytesType):
        return _ByteStrings(memoryview(data), walked) if bool(_IS_BYTES[walked.codes].all()) else None
    return plain_values(data, walked, kind)


class _Texts:
    def __init__(self, lying: pa.Array) -> None:
        self._lying = lying

    def __getitem__(self, rows: Int64 | slice) -> Column:
        return _made_texts(self._lying, _row_numbers(rows, len(self._lying) // 2))


class _ByteStrings:
    def __init__(self, view: memoryview, walked: Walked) -> None:
        self._view = view
        self._walked = walked

    def __getitem__(self, rows: Int64 | slice) -> Column:
        return _made_bytes(self._view, self._walked.starts[rows], self._walked.sizes[rows])


def _row_numbers(rows: Int64 | slice, count: int) -> Int64:
    return np.arange(count)[rows] if isinstance(rows, slice) else rows


def _are_texts(lying: pa.Array) -> bool:
    """Whether all are UTF-8; looked at in parts, since Arrow copies them for that."""
    count = len(lying) // 2
    try:
        for start in range(0, count, _VALUES_AT_ONCE):
            lying.take(as_arrow(2 * np.arange(start, min(start + _VALUES_AT_ONCE, count)))).validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _floats(data: Buffer, walked: Walked) -> Column | None:
    if not bool((walked.codes == _FLOAT64).all()):
        return None
    return gather(data, walked.starts, 8).view(">f8").astype(np.float64)


def _bools(data: Buffer, walked: Walked) -> Column | None:
    values: Column = walked.codes == _TRUE
    return values if bool((values | (walked.codes == _FALSE)).all()) else None


def _ints(data: Buffer, walked: Walked) -> Column | None:
    codes = walked.codes
    if not bool(_IS_INT[codes].all()):
        return None
    values = codes.astype(np.int8).astype(np.int64)  # right for those that are their own code
    for code, dtype in _INTS.items():
        rows = np.flatnonzero(codes == code)
        if len(rows):
            found = gather(data, walked.starts[rows], np.dtype(dtype).itemsize).view(dtype)
            if code == 0xCF and bool((found >> np.uint64(63)).any()):  # Python has room for it, int64 has not
                return None
            values[rows] = found.astype(np.int64)
    return values


def _texts(data: Buffer, walked: Walked) -> Column | None:
    lying = _lying_texts(data, walked)
    try:
        return None if lying is None else _made_texts(lying, np.arange(len(walked.starts)))
    except pa.ArrowException:  # one is not UTF-8: reading the sample alone says which
        return None


def _lying_texts(data: Buffer, walked: Walked) -> pa.Array | None:
    """Texts over the bytes as they lie, as Arrow has them: text, gap, text, gap.

    Its offsets must rise, so payloads that do not lie in order are not for it.
    """
    if not bool(_IS_TEXT[walked.codes].all()):
        return None
    count = len(walked.starts)
    offsets = np.empty(2 * count + 1, np.int64)
    offsets[:-1:2] = walked.starts
    np.add(walked.starts, walked.sizes, out=offsets[1::2])
    offsets[-1] = offsets[-2]
    if bool((offsets[1:] < offsets[:-1]).any()):
        return None
    return pa.Array.from_buffers(pa.large_utf8(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _made_texts(lying: pa.Array, rows: Int64) -> Column:
    texts: Column = lying.take(as_arrow(2 * rows)).to_numpy(zero_copy_only=False)
    return texts


def _byte_strings(data: Buffer, walked: Walked) -> Column | None:
    if not bool(_IS_BYTES[walked.codes].all()):
        return None
    return _made_bytes(memoryview(data), walked.starts, walked.sizes)


def _made_bytes(view: memoryview, starts: Int64, sizes: Int64) -> Column:
    stops = (starts + sizes).tolist()
    values = np.empty(len(stops), object)
    values[:] = [bytes(view[start:stop]) for start, stop in zip(starts.tolist(), stops, strict=True)]
    return values


_READERS: Mapping[type, Callable[[Buffer, Walked], Column | None]] = {
    StrType: _texts,
    IntType: _ints,
    FloatType: _floats,
    BoolType: _bools,
    BytesType: _byte_strings,
}


# ---------------------------------------------------------------------------------------------- typed samples by number


_MOST_MISSES = 3


class PayloadReader(Generic[T]):
    """Reads columns of typed samples by their numbers; threads may share it.

    Large arrays are read straight into memory of ``buffers`` where samples are stored alike, the payloads around them,
    and all others, as they lie, or taken from where they are ``resident``. ``threads`` may read one batch of large
    arrays at once: one where batches are already read on several threads.
    """

    def __init__(
        self,
        source: ShardSource,
        field: str,
        learnt: PayloadLayoutCache[T],
        *,
        buffers: BufferPool | None = None,
        threads: int = 1,
        resident: ShardMemoryCache | None = None,
    ) -> None:
        self._source = source
        self._field = field
        self._learnt = learnt
        self._buffers = buffers or shared_buffers()
        self._threads = threads
        self._resident = resident
        self._plan: DirectPlan | None = None
        self._kept: PayloadRun[T] | None = None
        self._settling = threading.Lock()
        self._misses = -1
        """How many batches in a row the plan was wrong for; negative before there was one."""

    def is_direct(self, number: int) -> bool:
        """Whether samples like this one are read straight into place, so that reading by number costs no copy."""
        if self._misses < 0:
            self._plan, self._misses = direct_plan(self._source, number, self._field, self._learnt), 0
        return self._plan is not None

    def read(self, numbers: Int64) -> TypedColumns[T]:
        """The samples with these numbers, in this order. Raises ChecksumError, TruncatedError and PositionError."""
        source, field, learnt = self._source, self._field, self._learnt
        if len(numbers) and self.is_direct(int(numbers[0])) and (plan := self._plan) is not None:
            columns = direct_columns(source, numbers, field, learnt, plan, self._buffers, self._threads)
            if columns is not None:
                self._misses = 0
                return columns
            # As these samples are, perhaps; but not for ever: each try that fails reads the batch twice.
            self._misses += 1
            again = self._misses < _MOST_MISSES
            self._plan = direct_plan(source, int(numbers[-1]), field, learnt) if again else None
        held = None if self._resident is None else self._held(self._resident, numbers)
        if held is not None:
            return held
        lying, order = np.unique(numbers, return_inverse=True)
        run = PayloadRun(source.raw_rows(lying, field), learnt)
        in_order = len(lying) == len(numbers) and bool((lying == numbers).all())
        return TypedColumns([(run, slice(0, len(lying)) if in_order else order)])

    def _held(self, resident: ShardMemoryCache, numbers: Int64) -> TypedColumns[T] | None:
        """From memory: in place once all samples are there and known to be alike, before that as copies of these."""
        kept = self._kept or self._settled(resident)
        if kept is not None:
            resident.check(numbers)
            return TypedColumns([(kept, numbers)])
        copied = resident.raw_rows(numbers, self._field)
        return None if copied is None else TypedColumns([(PayloadRun(copied, self._learnt), slice(0, len(numbers)))])

    def _settled(self, resident: ShardMemoryCache) -> PayloadRun[T] | None:
        """All samples, once they are there; found out once, by one thread, while the others go on."""
        if not resident.is_full or not self._settling.acquire(blocking=False):
            return None
        raw = resident.raw(self._field)  # the lock is not given back: what was found out stays true
        self._kept = None if raw is None else settled_run(raw, self._learnt)
        return self._kept


# --------------------------------------------------------------------------------- typed samples that are all in memory


_WALKED_AT_ONCE = 1 << 14
"""Payloads walked at a time: what that takes meanwhile is more than what is kept of it."""


def settled_run(raw: RawField, learnt: PayloadLayoutCache[T]) -> PayloadRun[T] | None:
    """All payloads with their fields found; None where they are not stored alike, or one is not as its class says."""
    walked = _walked(raw)
    run = None if walked is None else PayloadRun(raw, learnt, walked=walked)
    try:
        return run if run is not None and run.settled() else None
    except ShoalError:  # of a sample that a view may leave out: whoever reads it says so
        return None


def _walked(raw: RawField) -> Mapping[str, Walked] | None:
    steps = _first_steps(raw)
    parts: list[Mapping[str, Walked]] = []
    for start in range(0, len(raw), _WALKED_AT_ONCE):
        some = slice(start, start + _WALKED_AT_ONCE)
        found = walk(raw.data, raw.starts[some], raw.sizes[some], steps)
        if found is None:
            return None
        parts.append(found)
    return join_walked(parts) if parts else None


def _first_steps(raw: RawField) -> tuple[Step, ...]:
    if not len(raw):
        return ()
    start, size = int(raw.starts[0]), int(raw.sizes[0])
    try:
        return steps_of(memoryview(raw.data)[start : start + size])
    except DecodeError:  # reading it says of which sample
        return ()


# ---------------------------------------------------------------------------------------- a window of blocks as one run


def window_run(
    source: ShardSource,
    spans: Sequence[tuple[int, int, int]],
    field: str,
    learnt: PayloadLayoutCache[T],
    buffers: BufferPool,
) -> PayloadRun[T]:
    """The samples of these spans (shard, first, after the last) in one buffer of the pool, one span after the other.

    Each block is looked through right after it was read, while it is still in the processor's cache. The buffer goes
    back to the pool with the last batch, or sample, that was made of it.
    """
    parts, walks = [], []
    for part in source.raw_spans(spans, field, lambda size: buffers.empty(size).data):
        run = PayloadRun(part, learnt)
        found = {name: run.field(name) for name in learnt.types}
        parts.append(part)
        walks.append({name: one for name, one in found.items() if one is not None})
    whole = join_raw(parts)
    if any(part.data is not parts[0].data for part in parts):
        return PayloadRun(whole, learnt)
    if isinstance(whole.data, memoryview):
        whole = replace(whole, data=whole.data.toreadonly())
    return PayloadRun(whole, learnt, walked=join_walked(walks))


# -------------------------------------------------------------------- batches of large arrays, read straight into place


# Where samples are alike, the index and one of them say where in the file the numbers of each array lie. So they are
# read into their rows of the batch, and only what stands around them is looked at, afterwards: were the samples not
# alike after all, the batch is read anew, whole. Checksums are made of the pieces.

LARGE_BYTES = 32 << 10
"""Arrays from this size on are read into place; smaller ones are quicker copied from their block."""
_CACHE_LINE = 64
_FIXED_KINDS = ("float", "bool")


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """How samples are cut, by the fields of one of them: which arrays are taken out, and what is left."""

    cuts: ScatterSpec
    steps: tuple[Step, ...]
    layouts: dict[str, ArrayLayout]


def direct_plan(source: ShardSource, number: int, field: str, learnt: PayloadLayoutCache[Any]) -> DirectPlan | None:
    """What sample ``number`` says of how to read others; None where it has no large array, or none can be found so."""
    if not learnt.as_stored or not source.shard_of(number).scatters:
        return None
    run = PayloadRun(source.raw_rows(np.array([number]), field), learnt)
    try:
        steps = steps_of(memoryview(run.raw.data)[int(run.raw.starts[0]) :][: int(run.raw.sizes[0])])
        layouts = {step.name: run.layout(step.name) for step in steps if isinstance(learnt.types.get(step.name), Array)}
    except ShoalError:  # whoever reads it says so
        return None
    large = {name: layout for name, layout in layouts.items() if layout is not None and layout.nbytes >= LARGE_BYTES}
    cuts = _cuts(steps, large) if large else None
    return None if cuts is None else DirectPlan(cuts, steps, large)


def _cuts(steps: tuple[Step, ...], large: dict[str, ArrayLayout]) -> ScatterSpec | None:
    """None where more than one gap may be of another size in other samples."""
    gaps, taken, varying = [0], [], set()
    for step in steps:
        gaps[-1] += len(step.key) + len(step.header)
        if step.name in large:
            gaps[-1] += len(step.head)
            taken.append(large[step.name].nbytes)
            gaps.append(0)
        else:
            gaps[-1] += step.size
            if step.kind not in _FIXED_KINDS and not step.head:
                varying.add(len(gaps) - 1)
    return (
        ScatterSpec(tuple(gaps), tuple(taken), varying.pop() if varying else len(taken)) if len(varying) < 2 else None
    )


def direct_columns(
    source: ShardSource,
    numbers: Int64,
    field: str,
    learnt: PayloadLayoutCache[T],
    plan: DirectPlan,
    buffers: BufferPool,
    threads: int = 1,
) -> TypedColumns[T] | None:
    """Columns of the samples with these numbers, in this order; None where ``plan`` is not right for all of them."""
    layouts, count = plan.layouts, len(numbers)
    starts = np.cumsum([gap + size for gap, size in zip(plan.cuts.gaps, (0, *plan.cuts.taken), strict=True)]).tolist()
    outs = [
        buffers.empty(count * layout.nbytes, _offset(layout, start))
        for layout, start in zip(layouts.values(), starts, strict=False)
    ]
    raw = source.raw_cut(numbers, field, plan.cuts, [out.data for out in outs], threads)
    if raw is None:
        return None
    elided = {name: layout.nbytes for name, layout in layouts.items()}
    walk = Walk(raw.data, raw.starts, raw.sizes, plan.steps, elided)
    walked = walk.fields()
    if not walk.ended:
        return None
    run = PayloadRun(raw, learnt, walked=walked, whole=lambda: source.raw_rows(numbers, field))
    arrays = {
        name: out.view(layout.dtype).reshape(count, *layout.shape)
        for (name, layout), out in zip(layouts.items(), outs, strict=True)
    }
    return TypedColumns([(run, slice(None))], arrays)


def _offset(layout: ArrayLayout, start: int) -> int:
    """Where in a cache line rows begin: where they begin in the file, which makes the system's copy a fifth faster."""
    within = start % _CACHE_LINE
    return within if layout.nbytes % _CACHE_LINE == 0 and within % layout.dtype.alignment == 0 else 0


# ----------------------------------------------------------------------- arrays of one batch that have different shapes


def ragged_arrays(arrays: list[npt.NDArray[Any]], name: str, ragged: Ragged) -> Any:
    """Arrays that do not stack: as they are, padded with zeros at their ends, or refused."""
    if ragged == "list":
        return arrays
    shapes = sorted({array.shape for array in arrays})
    if ragged == "error" or len({array.ndim for array in arrays}) > 1:
        some = ", ".join(map(str, shapes[:3]))
        hint = "ask for ragged='list' or 'pad'" if ragged == "error" else "padding needs one number of dimensions"
        raise DecodeError("the arrays of a field do not stack", expected="one shape", found=some, field=name, hint=hint)
    most = [max(sizes) for sizes in zip(*shapes, strict=True)]
    padded = np.zeros((len(arrays), *most), np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[tuple(slice(0, size) for size in array.shape)] = array
    return padded
