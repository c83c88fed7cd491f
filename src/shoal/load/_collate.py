"""Batches as users hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, overload

import numpy.typing as npt

from shoal.errors import FieldError
from shoal.load._columns import Ragged, TypedColumns

__all__ = ["SampleBatch"]

S = TypeVar("S")
T = TypeVar("T")


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
