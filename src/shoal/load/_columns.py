"""Columns of typed samples, straight from their payloads."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import DecodeError, ShoalError
from shoal.sample import keeps_fields, pack, schema_of, unpack
from shoal.schema import Array, BoolType, BytesType, FieldType, FloatType, Image, IntType, OptionalType, StrType
from shoal.shard import RawField

from ._buffers import shared_buffers
from ._plain import Values, inner_type, is_plain, plain_values, values_in_place
from ._ragged import Ragged, ragged_arrays
from ._walk import Step, Walk, Walked, copy_rows, gather, steps_of

__all__ = ["ArrayLayout", "Learnt", "PayloadRun", "TypedColumns"]

T = TypeVar("T")
Rows = slice | npt.NDArray[np.int64]
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


class Learnt(Generic[T]):
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
        learnt: Learnt[T],
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
        return cls([(PayloadRun(raw, Learnt(sample_type)), slice(None))])

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
        return [(run, row) for run, rows in self._parts for row in _numbers(run, rows)]

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


def _numbers(run: PayloadRun[Any], rows: Rows) -> list[int]:
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
