"""Combine samples into a batch: `collate`, `SampleBatch`, and `BatchRowWriter` for large arrays.

`BatchRowWriter` copies large arrays into their batch when each sample is made. Kept until all samples are there, the
arrays of a batch of images are megabytes that have left the processor's cache by the time they are stacked. Copied at
once, the memory of one serves the next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from shoal.errors import FieldError
from shoal.sample._annotations import is_record
from shoal.sample._dict_sample import DictSample

from ._buffers import shared_buffers
from ._columns import Ragged, TypedColumns, ragged_arrays

__all__ = ["BatchRowWriter", "SampleBatch", "collate", "size_of", "stacked"]

S = TypeVar("S")
T = TypeVar("T")
_MIN_ROW_BYTES = 16 << 10
"""Smaller arrays are faster to stack."""


def collate(samples: list[Any], ragged: Ragged = "list") -> Any:
    """Combine samples into a batch: a SampleBatch of typed samples, a dict of columns of dicts, a tuple of tuples.

    Arrays of one shape become one array, and so do tensors; anything else becomes a list.

    Examples:
        >>> batch = collate([{"x": np.zeros(2), "y": "a"}, {"x": np.ones(2), "y": "b"}])
        >>> batch["x"].shape, batch["y"]
        ((2, 2), ['a', 'b'])
    """
    first = samples[0] if samples else None
    if isinstance(first, (dict, DictSample)):
        names = dict.fromkeys(name for sample in samples for name in sample)
        return {name: stacked([sample.get(name) for sample in samples], ragged, name) for name in names}
    if isinstance(first, tuple):
        return tuple(stacked(list(column), ragged, str(at)) for at, column in enumerate(zip(*samples, strict=True)))
    if is_record(type(first)) and all(type(sample) is type(first) for sample in samples):
        return SampleBatch.of(samples, ragged=ragged)
    return stacked(samples, ragged, "")


def stacked(values: list[Any], ragged: Ragged = "list", name: str = "") -> Any:
    """Stack arrays of one shape and dtype; combine others as ``ragged`` says; return anything else as is.

    The same holds for PyTorch's tensors, which a ``map`` may return.
    """
    values, batch = without_rows(values)
    if batch is not None:
        return batch
    if not all(isinstance(value, np.ndarray) for value in values) or not values:
        return _stacked_tensors(values, ragged, name) if values else values
    if len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    return ragged_arrays(values, name, ragged)


def _stacked_tensors(values: list[Any], ragged: Ragged, name: str) -> Any:
    """Stack tensors; return anything else as is."""
    torch: Any = sys.modules.get("torch")  # loaded, if there is a tensor
    kind = getattr(torch, "Tensor", None)  # a module that is being imported may not have it yet
    if kind is None or not all(isinstance(value, kind) for value in values):
        return values
    if len({(value.shape, value.dtype, value.device) for value in values}) == 1:
        return torch.stack(values)
    if ragged == "list":
        return values
    padded = ragged_arrays([value.detach().cpu().numpy() for value in values], name, ragged)
    return torch.from_numpy(padded)


_FLAT_TYPES = frozenset((bytes, str))


def size_of(batch: Any) -> int:
    """Return about how many bytes a batch takes, for memory budgets. Objects of unknown types count little."""
    if isinstance(batch, (bytes, bytearray, str)):
        return len(batch)
    if isinstance(batch, SampleBatch):
        return batch.__sizeof__()
    nbytes = getattr(batch, "nbytes", None)  # arrays, tensors, memory
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(batch, dict):
        # Most samples are dicts of bytes and strings, for which a call each would take longer than reading them.
        return sum([len(value) if type(value) in _FLAT_TYPES else size_of(value) for value in batch.values()])
    if isinstance(batch, (list, tuple)):
        return _size_of_list(batch)
    return 64 + sum(size_of(getattr(batch, name, None)) for name in _field_names(type(batch)))


def _field_names(kind: type) -> Iterable[str]:
    """Return the fields of a dataclass, a msgspec Struct or a pydantic model; none of other classes."""
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "__struct_fields__", None)
    return cast("Iterable[str]", names or getattr(kind, "model_fields", ()))


def _size_of_list(values: list[Any] | tuple[Any, ...]) -> int:
    """Measure a few values for all: a list may be very long."""
    some = values[:: max(1, len(values) // 8)]
    if _FLAT_TYPES.issuperset(map(type, some)):
        return sum(map(len, some)) * len(values) // len(some) if some else 0
    return sum(size_of(value) for value in some) * len(values) // len(some) if some else 0


class SampleBatch(Generic[T]):
    """Several samples of one type, accessed by field.

    ``batch.image`` is one array with the samples along its first axis if ``image`` is an array field, else a list.
    ``array`` returns any field as one array. Fields are read on first access and cached. Arrays of different shapes are
    a list, or padded with zeros, or an error, depending on ``ragged``.

    Examples:
        >>> import numpy as np, shoal
        >>> from numpy.typing import NDArray
        >>> @shoal.packable
        ... class Point:
        ...     at: NDArray[np.float32]
        ...     name: str
        ...     weight: float
        >>> batch = SampleBatch.of([Point(np.zeros(2, np.float32), "a", 0.5), Point(np.ones(2, np.float32), "b", 1.5)])
        >>> batch.at.shape, batch.name, batch.array("weight")
        ((2, 2), ['a', 'b'], array([0.5, 1.5]))
    """

    def __init__(self, samples: TypedColumns[T] | list[T], *, ragged: Ragged = "list") -> None:
        self._columns: TypedColumns[T] = samples if isinstance(samples, TypedColumns) else TypedColumns.of(samples)
        self._ragged: Ragged = ragged
        self._cache: dict[str, Any] = {}

    @staticmethod
    def of(samples: list[S], *, ragged: Ragged = "list") -> SampleBatch[S]:
        """Return a batch of samples that are in memory."""
        return SampleBatch(TypedColumns.of(samples), ragged=ragged)

    @property
    def sample_type(self) -> type[T]:
        """The class of the samples."""
        return self._columns.sample_type

    @property
    def samples(self) -> list[T]:
        """The samples themselves."""
        return self._columns.samples

    @property
    def keys(self) -> list[str]:
        """The samples' keys."""
        return self._columns.keys

    def __len__(self) -> int:
        return len(self._columns)

    def __sizeof__(self) -> int:
        return self._columns.stored_bytes

    def __iter__(self) -> Iterator[T]:
        return iter(self.samples)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: str) -> Any: ...
    def __getitem__(self, index: int | str) -> Any:
        """Return the sample at an index, or, as in a batch of dicts, the field with a name."""
        return self.column(index) if isinstance(index, str) else self.samples[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.column(name)
        except FieldError as error:
            raise AttributeError(str(error)) from error

    def column(self, name: str) -> Any:
        """Return one field of all samples. Raises FieldError if the type has no such field."""
        if name not in self._cache:
            self._cache[name] = self._columns.column(name, self._ragged)
        return self._cache[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return one field of all samples as one array."""
        return self._columns.numbers(name)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return {name: self.column(name) for name in self._columns.types}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached fields: another process reads them again, from fewer bytes."""
        return {**self.__dict__, "_cache": {}}

    def __repr__(self) -> str:
        return f"SampleBatch[{self.sample_type.__name__}]({len(self)} samples)"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._columns.types]


class _BatchRow(np.ndarray[Any, Any]):
    """A row of a batch that is being made; `without_rows` replaces it before users see it."""

    batch: npt.NDArray[Any]
    row: int


class BatchRowWriter:
    """Copies large arrays, alone or in dicts and tuples, into batches of ``count`` rows.

    Examples:
        >>> writer = BatchRowWriter(2)
        >>> rows = [writer({"x": np.full(9000, number), "y": number})["x"] for number in range(2)]
        >>> without_rows(rows)[1][0][:3]
        array([0, 0, 0])
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._batches: dict[str | int, npt.NDArray[Any]] = {}
        self._rows_used: dict[str | int, int] = {}

    def __call__(self, value: Any) -> Any:
        """Return the value with its large arrays replaced by rows of batches."""
        kind = type(value)
        if kind is np.ndarray:
            return self._row(0, value)
        if kind is dict:
            large = {name: self._row(name, part) for name, part in value.items() if _is_large(part)}
            return {**value, **large} if large else value
        if kind is tuple:
            return tuple(self._row(at, part) if _is_large(part) else part for at, part in enumerate(value))
        return value

    def _row(self, name: str | int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not _is_large(array):
            return array
        if name not in self._batches:
            buffer = shared_buffers().empty(self._count * array.nbytes)
            self._batches[name] = buffer.view(array.dtype).reshape(self._count, *array.shape)
        batch, index = self._batches[name], self._rows_used.get(name, 0)
        if array.shape != batch.shape[1:] or array.dtype != batch.dtype or index == self._count:
            return array
        self._rows_used[name] = index + 1
        row: _BatchRow = batch[index].view(_BatchRow)
        row[...] = array
        row.batch, row.row = batch, index
        return row


def _is_large(value: Any) -> bool:
    return type(value) is np.ndarray and value.nbytes >= _MIN_ROW_BYTES and not value.dtype.hasobject


def without_rows(values: list[Any]) -> tuple[list[Any], npt.NDArray[Any] | None]:
    """Return the values with rows as plain arrays, and the batch if they are all of its rows, in order."""
    if _BatchRow not in set(map(type, values)):
        return values, None
    first = values[0]
    if all(type(row) is _BatchRow and row.batch is first.batch and row.row == at for at, row in enumerate(values)):
        batch: npt.NDArray[Any] = first.batch[: len(values)]
        return list(batch), batch
    return [value.view(np.ndarray) if type(value) is _BatchRow else value for value in values], None
