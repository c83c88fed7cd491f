"""Columns of typed samples, straight from their payloads."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.errors import DecodeError, ShoalError
from shoal.sample import Span, array_span, pack, schema_of, unpack
from shoal.schema import Array, BoolType, BytesType, FieldType, FloatType, IntType, OptionalType, StrType
from shoal.shard import RawField

from ._walk import Walked, all_equal, copy_rows, gather, walk

__all__ = ["PayloadRun", "Ragged", "TypedColumns"]

T = TypeVar("T")
Ragged = Literal["list", "pad", "error"]
_PLAIN = (StrType, IntType, FloatType, BoolType, BytesType)
_FLOAT64 = 0xCB


class ArrayLayout(NamedTuple):
    """What stands before an array's numbers in each sample, and what they are."""

    head: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int


class PayloadRun(Generic[T]):
    """Payloads that lie in one buffer. What is worked out for them is worked out once for all batches cut from it."""

    def __init__(self, raw: RawField, sample_type: type[T]) -> None:
        self.raw = raw
        self.sample_type = sample_type
        self._layouts: dict[str, ArrayLayout | None] = {}

    def __len__(self) -> int:
        return len(self.raw)

    @functools.cached_property
    def walked(self) -> dict[str, Walked] | None:
        """Where each field lies in each payload; None when they are not alike."""
        return walk(self.raw.data, self.raw.starts, self.raw.sizes) if len(self.raw) else None

    @functools.cached_property
    def plain(self) -> list[Any] | None:
        """All plain fields of each sample, in one pass of msgspec; None when a payload does not fit as it is."""
        view, decode = memoryview(self.raw.data), _plain_decoder(cast(Hashable, self.sample_type))
        ends = (self.raw.starts + self.raw.sizes).tolist()
        try:
            return [decode(view[start:end]) for start, end in zip(self.raw.starts.tolist(), ends, strict=True)]
        except msgspec.DecodeError:
            return None

    def layout(self, name: str) -> ArrayLayout | None:
        """How an array field is stored, where it is stored alike in all samples."""
        if name not in self._layouts:
            self._layouts[name] = self._found_layout(name)
        return self._layouts[name]

    def _found_layout(self, name: str) -> ArrayLayout | None:
        if self.walked is None or name not in self.walked:
            return None
        span = self.walked[name]
        start, size = int(span.starts[0]), int(span.sizes[0])
        try:
            first = array_span(self.raw.data, Span(start, start + size, start, "bytes"))
        except DecodeError:
            return None
        head = self.raw.data[start : first.offset]
        alike = bool((span.sizes == size).all()) and all_equal(self.raw.data, span.starts, head)
        if not alike or first.order != "C" or first.nbytes == 0:
            return None
        self.sample(0)  # raises where the class does not allow such an array
        return ArrayLayout(head, first.dtype, first.shape, first.nbytes)

    def sample(self, row: int) -> T:
        """One sample, unpacked."""
        start, size = int(self.raw.starts[row]), int(self.raw.sizes[row])
        try:
            return unpack(self.sample_type, memoryview(self.raw.data)[start : start + size])
        except ShoalError as error:
            raise error.at(shard=self.raw.url, key=self.raw.keys()[row]) from error.__cause__


Rows = slice | npt.NDArray[np.int64]


class TypedColumns(Generic[T]):
    """The fields of several samples of one class, each read from the payloads when it is first asked for.

    Array fields of one shape are gathered into one array without decoding any sample; texts and numbers are decoded by
    msgspec, all such fields of a sample in one go; anything else by unpacking the samples.
    """

    def __init__(self, parts: list[tuple[PayloadRun[T], Rows]]) -> None:
        self._parts = parts
        self.sample_type = parts[0][0].sample_type
        self._types = {field.name: field.type for field in schema_of(self.sample_type).fields}
        self._counts = [len(run.raw.starts[rows]) for run, rows in parts]

    @classmethod
    def over(cls, raw: RawField, sample_type: type[T]) -> TypedColumns[T]:
        """Columns of all these payloads."""
        return cls([(PayloadRun(raw, sample_type), slice(None))])

    @classmethod
    def of(cls, samples: list[T]) -> TypedColumns[T]:
        """Columns of samples that are already there: they are packed, so that both kinds behave alike."""
        payloads = [pack(sample) for sample in samples]
        sizes = np.array([len(payload) for payload in payloads], np.int64)
        keys = pa.array([""] * len(samples))
        return cls.over(RawField(b"".join(payloads), np.cumsum(sizes) - sizes, sizes, keys, ""), type(samples[0]))

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def keys(self) -> list[str]:
        """The samples' keys."""
        return [key for run, rows in self._parts for key in run.raw.keys(rows)]

    @functools.cached_property
    def samples(self) -> list[T]:
        """The samples themselves."""
        return [run.sample(row) for run, rows in self._parts for row in np.arange(len(run))[rows].tolist()]

    def column(self, name: str, ragged: Ragged = "list") -> Any:
        """One field of all samples: an array where it is an array field, else a list."""
        kind = self._types[name]
        if isinstance(kind, Array):
            stacked = self._stacked(name)
            if stacked is not None:
                return stacked
            return _ragged([getattr(sample, name) for sample in self.samples], name, ragged)
        plain = self._plain(name) if _is_plain(kind) else None
        return [getattr(sample, name) for sample in self.samples] if plain is None else plain

    def _plain(self, name: str) -> list[Any] | None:
        found: list[Any] = []
        for run, rows in self._parts:
            if run.plain is None:
                return None
            chosen = run.plain[rows] if isinstance(rows, slice) else [run.plain[row] for row in rows.tolist()]
            found += map(operator.attrgetter(name), chosen)
        return found

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """One field of all samples as one array."""
        parts = [self._floats(run, rows, name) for run, rows in self._parts]
        if not any(part is None for part in parts):
            return np.concatenate([part for part in parts if part is not None])
        column = self.column(name, "error")
        return column if isinstance(column, np.ndarray) else np.asarray(column)

    def _floats(self, run: PayloadRun[T], rows: Rows, name: str) -> npt.NDArray[Any] | None:
        if run.walked is None or name not in run.walked or not bool((run.walked[name].codes == _FLOAT64).all()):
            return None
        found: npt.NDArray[Any] = gather(run.raw.data, run.walked[name].starts[rows], 8).view(">f8").astype(np.float64)
        return found

    def _stacked(self, name: str) -> npt.NDArray[Any] | None:
        """All arrays of a field as one, copied once; None when they differ in shape or type, or are stored unlike."""
        layouts = [run.layout(name) for run, _ in self._parts]
        first = layouts[0]
        if first is None or any(layout is None or layout[1:] != first[1:] for layout in layouts):
            return None
        out = np.empty((len(self), first.nbytes), np.uint8)
        at = 0
        for (run, rows), layout, count in zip(self._parts, layouts, self._counts, strict=True):
            if layout is not None and run.walked is not None:
                starts = run.walked[name].starts[rows] + len(layout.head)
                copy_rows(run.raw.data, starts, out[at : at + count])
            at += count
        return out.view(first.dtype).reshape(len(self), *first.shape)


@functools.cache
def _plain_decoder(sample_type: Hashable) -> Callable[[memoryview], Any]:
    plain = [field for field in schema_of(cast(type, sample_type)).fields if _is_plain(field.type)]
    fields = [(field.name, _python_type(field.type)) for field in plain]
    return msgspec.msgpack.Decoder(msgspec.defstruct("Plain", fields)).decode


def _is_plain(kind: FieldType) -> bool:
    return isinstance(kind.of if isinstance(kind, OptionalType) else kind, _PLAIN)


def _python_type(kind: FieldType) -> Any:
    if isinstance(kind, OptionalType):
        return _python_type(kind.of) | None
    return {StrType: str, IntType: int, FloatType: float, BoolType: bool, BytesType: bytes}[type(kind)]


def _ragged(arrays: list[npt.NDArray[Any]], name: str, ragged: Ragged) -> Any:
    """Arrays that do not stack: as they are, padded with zeros at their ends, or refused."""
    shapes = {array.shape for array in arrays}
    if len(shapes) <= 1 and len({array.dtype for array in arrays}) <= 1:
        return np.stack(arrays) if arrays else np.empty(0)
    if ragged == "error":
        some = ", ".join(map(str, sorted(shapes)[:3]))
        hint = "ask for ragged='list' or 'pad'"
        raise DecodeError("the arrays of a field do not stack", expected="one shape", found=some, field=name, hint=hint)
    if ragged == "list":
        return arrays
    most = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    padded = np.zeros((len(arrays), *most), np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[tuple(slice(0, size) for size in array.shape)] = array
    return padded
