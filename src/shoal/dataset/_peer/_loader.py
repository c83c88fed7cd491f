"""A loader of samples that knows webdataset's verbs too: its users shuffle first, and say what they want then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self, cast

from shoal.errors import OptionError
from shoal.load import DataLoader, Filter, Map, Shuffle, takes_rng

from ._collate import collate

__all__ = ["SampleLoader"]


class SampleLoader(DataLoader):
    """What a dataset's ``shuffle`` and its like give. Verbs about single samples are done by the dataset.

    Example:
        >>> import shoal
        >>> with shoal.ShardWriter("memory://doc/shuffle-first/a-%06d.tar") as writer:
        ...     for number in range(6):
        ...         writer.write({"__key__": f"k{number}", "txt": f"text {number}", "cls": number})
        >>> batches = shoal.Dataset("memory://doc/shuffle-first").shuffle(1000).to_tuple("txt", "cls").batched(4)
        >>> [len(texts) for texts, labels in batches]
        [4, 2]
    """

    def decode(self, *specs: Any, **options: Any) -> Self:
        """``Dataset.decode``."""
        return self._of_data("decode", specs, options)

    def to_tuple(self, *columns: Any, **options: Any) -> Self:
        """``Dataset.to_tuple``."""
        return self._of_data("to_tuple", columns, options)

    def rename(self, **columns: Any) -> Self:
        """``Dataset.rename``."""
        return self._of_data("rename", (), columns)

    def rename_keys(self, *pairs: Any, **patterns: Any) -> Self:
        """``Dataset.rename_keys``."""
        return self._of_data("rename_keys", pairs, patterns)

    def map_dict(self, **functions: Callable[[Any], Any]) -> Self:
        """``Dataset.map_dict``."""
        return self._of_data("map_dict", (), functions)

    def map_tuple(self, *functions: Callable[[Any], Any] | None) -> Self:
        """``Dataset.map_tuple``."""
        return self._of_data("map_tuple", functions, {})

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = collate,
        partial: bool = True,
    ) -> DataLoader:
        """Batches put together as ``Dataset.batched`` does it, which is as webdataset does."""
        return self.batch(batchsize, not partial, collate_fn=list if collation_fn is None else collation_fn)

    def listed(self, batchsize: int, partial: bool = True) -> DataLoader:
        """Lists of samples."""
        return self.batched(batchsize, None, partial)

    def _of_data(self, verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Self:
        """The same loader over a dataset that does this, and what was said before it, by itself."""
        data, shuffles = self._spec.data, []
        for step in self._spec.steps:
            if isinstance(step, Shuffle):  # an order, which samples do not know of
                shuffles.append(step)
            elif isinstance(step, Map) and step.workers == "thread" and not takes_rng(step.function):
                data = data.map(step.function)
            elif isinstance(step, Filter):
                data = data.filter(step.function)
            else:
                found = type(step).__name__.lower()
                raise OptionError(f"{verb} is about the samples of a dataset", expected=f"{verb} before {found}")
        changed = getattr(data, verb)(*arguments, **options)
        return cast(Self, self._with(replace(self._spec, data=changed, steps=tuple(shuffles))))
