"""From samples to a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from shoal.errors import FieldError
from shoal.sample import DictSample, is_record

from ._buffers import shared_buffers
from ._columns import Ragged, TypedColumns, ragged_arrays

__all__ = ["BatchRowWriter", "SampleBatch", "collate", "size_of", "stacked"]

S = TypeVar("S")
T = TypeVar("T")
_LARGE = 16 << 10
"""Smaller arrays are quicker stacked."""


def collate(samples: list[Any], ragged: Ragged = "list") -> Any:
    """One batch: a SampleBatch of typed samples, a dict of columns where they have no type, tuples as columns.

    Arrays of one shape become one array, and so do tensors; anything else is a list.

    Example:
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
    """Arrays of one shape and type as one array; of other shapes as ``ragged`` says; anything else as it is.

    So are PyTorch's tensors, which a `map` may have made.
    """
    values, whole = without_rows(values)
    if whole is not None:
        return whole
    if not all(isinstance(value, np.ndarray) for value in values) or not values:
        return _stacked_tensors(values, ragged, name) if values else values
    if len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    return ragged_arrays(values, name, ragged)


def _stacked_tensors(values: list[Any], ragged: Ragged, name: str) -> Any:
    """Tensors as one, anything else as it is. Where there are some, their package is loaded."""
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)  # a module that is being imported may not have it yet
    if kind is None or not all(isinstance(value, kind) for value in values):
        return values
    if len({(value.shape, value.dtype, value.device) for value in values}) == 1:
        return torch.stack(values)
    if ragged == "list":
        return values
    padded = ragged_arrays([value.detach().cpu().numpy() for value in values], name, ragged)
    return torch.from_numpy(padded)


_FLAT = frozenset((bytes, str))


def size_of(batch: Any) -> int:
    """About how many bytes a batch holds: what a memory budget is kept by. Objects in it count as little."""
    if isinstance(batch, (bytes, bytearray, str)):
        return len(batch)
    if isinstance(batch, SampleBatch):
        return batch.__sizeof__()
    nbytes = getattr(batch, "nbytes", None)  # arrays, tensors, memory
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(batch, dict):
        # Most samples are dicts of bytes and text, for which a call each takes longer than their batch does to read.
        return sum([len(value) if type(value) in _FLAT else size_of(value) for value in batch.values()])
    if isinstance(batch, (list, tuple)):
        return _size_of_list(batch)
    return 64 + sum(size_of(getattr(batch, name, None)) for name in _field_names(type(batch)))


def _field_names(kind: type) -> Iterable[str]:
    """Of a dataclass, a msgspec Struct or a pydantic model; nothing of other objects."""
    names: Iterable[str] | None = getattr(kind, "__dataclass_fields__", None) or getattr(
        kind, "__struct_fields__", None
    )
    return cast("Iterable[str]", names or getattr(kind, "model_fields", ()))


def _size_of_list(values: list[Any] | tuple[Any, ...]) -> int:
    """A few are measured and stand for all: a batch may hold very many."""
    some = values[:: max(1, len(values) // 8)]
    if _FLAT.issuperset(map(type, some)):
        return sum(map(len, some)) * len(values) // len(some) if some else 0
    return sum(size_of(value) for value in some) * len(values) // len(some) if some else 0


class SampleBatch(Generic[T]):
    """Several samples of one type, seen field by field.

    ``batch.image`` is one array with the samples along its first axis where ``image`` is an array field, else a list.
    ``array`` gives any field as one array. Fields are read when they are first asked for, and kept. Arrays of
    different shapes are a list, or padded with zeros, or an error, as ``ragged`` says.

    Example:
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
        """A batch of samples that are already there."""
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
        """The sample at a position, or, as in a batch of dicts, the field of a name."""
        return self.column(index) if isinstance(index, str) else self.samples[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.column(name)
        except FieldError as error:
            raise AttributeError(str(error)) from error

    def column(self, name: str) -> Any:
        """One field of all samples. Raises FieldError when the type has no such field."""
        if name not in self._cache:
            self._check(name)
            self._cache[name] = self._columns.column(name, self._ragged)
        return self._cache[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """One field of all samples as one array."""
        self._check(name)
        return self._columns.numbers(name)

    def to_dict(self) -> dict[str, Any]:
        """All fields, by name."""
        return {name: self.column(name) for name in self._columns.types}

    def __getstate__(self) -> dict[str, Any]:
        """Without the fields that were read: in another process they are read again, from fewer bytes."""
        return {**self.__dict__, "_cache": {}}

    def _check(self, name: str) -> None:
        if name not in self._columns.types:
            expected = " or ".join(self._columns.types)
            raise FieldError("the sample type has no such field", expected=expected, found=name)

    def __repr__(self) -> str:
        return f"SampleBatch[{self.sample_type.__name__}]({len(self)} samples)"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._columns.types]


# Kept until the batch is whole, the arrays of a batch of pictures are megabytes that were in the processor's cache when
# they were made and are not any more when they are stacked. Copied as they come, each one's memory serves the next.
class _BatchRow(np.ndarray[Any, Any]):
    """A row of a batch that is being made. Nobody sees it but ``without_rows``."""

    batch: npt.NDArray[Any]
    number: int


class BatchRowWriter:
    """Puts large arrays of values into batches of ``count``: arrays, or those in dicts and tuples.

    Example:
        >>> place = BatchRowWriter(2)
        >>> rows = [place({"x": np.full(9000, number), "y": number})["x"] for number in range(2)]
        >>> without_rows(rows)[1][0][:3]
        array([0, 0, 0])
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._batches: dict[str | int, tuple[npt.NDArray[Any], list[int]]] = {}

    def __call__(self, value: Any) -> Any:
        """The value with rows in place of its large arrays; itself where it has none."""
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
            room = shared_buffers().empty(self._count * array.nbytes)
            self._batches[name] = room.view(array.dtype).reshape(self._count, *array.shape), []
        batch, taken = self._batches[name]
        if array.shape != batch.shape[1:] or array.dtype != batch.dtype or len(taken) == self._count:
            return array
        taken.append(len(taken))
        row: _BatchRow = batch[taken[-1]].view(_BatchRow)
        row[...] = array
        row.batch, row.number = batch, taken[-1]
        return row


def _is_large(value: Any) -> bool:
    return type(value) is np.ndarray and value.nbytes >= _LARGE and not value.dtype.hasobject


def without_rows(values: list[Any]) -> tuple[list[Any], npt.NDArray[Any] | None]:
    """The values with rows as plain arrays, and the array that they are all rows of, in order, if they are."""
    if _BatchRow not in set(map(type, values)):
        return values, None
    first = values[0]
    if all(type(one) is _BatchRow and one.batch is first.batch and one.number == at for at, one in enumerate(values)):
        whole: npt.NDArray[Any] = first.batch[: len(values)]
        return list(whole), whole
    return [one.view(np.ndarray) if type(one) is _BatchRow else one for one in values], None
