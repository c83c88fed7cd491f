"""DatasetDict: the splits of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import numpy.typing as npt

from shoal.errors import FieldError, OptionError

from ._where import Expression, Field

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["DatasetDict"]

T = TypeVar("T")
V = TypeVar("V")


class DatasetDict(dict[str, "Dataset[T]"], Generic[T]):
    """Datasets by the name of their split; a dict, in the order of the data.

    Where there is one split only, its dataset's verbs work here too: ``ordered``, ``shuffled``, ``as_type``, ``head``,
    ``select`` and ``where``. With several they raise OptionError; ``each`` applies any verb to all of them.

    Example:
        >>> import shoal
        >>> for name in ("train", "val"):
        ...     with shoal.ShardWriter(f"memory://doc/dict/{name}-%06d.tar") as writer:
        ...         for number in range(4):
        ...             writer.write({"__key__": f"{name}{number}", "json": {"width": number}})
        >>> splits = shoal.load_dataset("memory://doc/dict")
        >>> splits.num_samples
        {'train': 4, 'validation': 4}
        >>> splits.each(lambda ds: ds.where("width >= 1")).num_samples
        {'train': 3, 'validation': 3}
        >>> splits["test"]
        Traceback (most recent call last):
        ...
        shoal.errors.FieldError: no such split: expected train or validation, found test
    """

    def __init__(self, splits: Mapping[str, Dataset[T]] | None = None, *, sample_type: type[T] | None = None) -> None:
        super().__init__(splits or {})
        self._sample_type = sample_type

    @property
    def sample_type(self) -> type[T] | None:
        """The type of the samples, if one was asked for; each dataset's own ``sample_type`` says what its data says."""
        return self._sample_type

    @property
    def num_samples(self) -> dict[str, int]:
        """How many samples each split has."""
        return {split: len(dataset) for split, dataset in self.items()}

    @property
    def num_shards(self) -> dict[str, int]:
        """How many shards each split has."""
        return {split: len(dataset.shards) for split, dataset in self.items()}

    def __missing__(self, split: str) -> NoReturn:
        raise FieldError("no such split", expected=" or ".join(self) or "none: it is empty", found=split)

    def __repr__(self) -> str:
        """One line a split; nothing is opened or counted for it."""
        width = max(map(len, self), default=0)
        kind = "" if self._sample_type is None else f"[{self._sample_type.__name__}]"
        lines = "".join(f"\n  {split:<{width}}  {dataset!r}" for split, dataset in self.items())
        return f"DatasetDict{kind}{lines or ' without splits'}"

    def each(self, verb: Callable[[Dataset[T]], Dataset[V]]) -> DatasetDict[V]:
        """A verb of Dataset applied to every split: ``splits.each(lambda ds: ds.where("width > 10"))``."""
        changed = {split: verb(dataset) for split, dataset in self.items()}
        return DatasetDict(changed)

    @property
    def only(self) -> Dataset[T]:
        """The dataset of the one split there is. Raises OptionError when there are several, or none."""
        if len(self) != 1:
            raise OptionError(
                "this needs one split",
                expected="one",
                found=", ".join(self) or "none",
                hint="choose one: splits['train']" if self else None,
            )
        return next(iter(self.values()))

    def ordered(self, batch_size: int | None = None, **options: Any) -> Iterator[Any]:
        """``Dataset.ordered`` of the only split."""
        return self.only.ordered(batch_size, **options)

    def shuffled(self, batch_size: int | None = None, **options: Any) -> Iterator[Any]:
        """``Dataset.shuffled`` of the only split."""
        return self.only.shuffled(batch_size, **options)

    def as_type(self, kind: type[V]) -> Dataset[V]:
        """``Dataset.as_type`` of the only split."""
        return self.only.as_type(kind)

    def head(self, count: int = 5) -> list[T]:
        """``Dataset.head`` of the only split."""
        return self.only.head(count)

    def select(self, indices: Sequence[int] | npt.NDArray[Any]) -> Dataset[T]:
        """``Dataset.select`` of the only split."""
        return self.only.select(indices)

    def where(self, expression: str | Expression | Field) -> Dataset[T]:
        """``Dataset.where`` of the only split."""
        return self.only.where(expression)
