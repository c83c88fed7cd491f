"""Mixtures: several datasets as one, in exact proportions in every part of an epoch."""

# ruff: noqa: SLF001 - one dataset is made of others

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from shoal.errors import OptionError
from shoal.load._options import LoaderOptions
from shoal.order._mixture import Mix, Mixed
from shoal.order._orders import GlobalShuffle, Order, Sequential
from shoal.shard._row_view import RowView

from ._base import DatasetBase
from ._combine import concat
from ._description import Step
from ._loader_source import DatasetSource

if TYPE_CHECKING:
    from ._dataset import Dataset

__all__ = ["MixedSource", "Mixture", "MixtureMethods", "mix"]

T = TypeVar("T")
Weight = float | int | Fraction


@dataclass(frozen=True, eq=False)
class Mixture:
    """How a dataset was mixed, for loaders, which continue past its length and shuffle each part separately."""

    mix: Mix
    length: int | None
    rows: RowView | None
    """The rows of all samples, one part after the other; None where they are those of the source."""

    def order(self, shuffle: bool) -> Mixed:
        """The order of the mixture, each part in its own: as it lies, or shuffled."""
        counts = self.mix.counts
        orders: list[Order] = [
            GlobalShuffle(count, self.mix.seed_of(number)) if shuffle else Sequential(count)
            for number, count in enumerate(counts)
        ]
        return Mixed(self.mix, tuple(orders), self.length)


class MixedSource(DatasetSource):
    """All samples of a mixture's parts, and the order it has of its own."""

    def __init__(self, dataset: Dataset[Any], mixture: Mixture) -> None:
        super().__init__(dataset)
        self._mixture = mixture

    def order(self, options: LoaderOptions) -> Order:
        """The mixture's order; a shuffle shuffles each part, with the loader's seed."""
        mixture = self._mixture
        if options.seed:
            mixture = replace(mixture, mix=replace(mixture.mix, seed=mixture.mix.seed + options.seed))
        return mixture.order(options.shuffle)


class MixtureMethods(DatasetBase[T]):
    """`mix`, as a method of `Dataset`."""

    def mix(
        self,
        *others: Dataset[T],
        weights: Sequence[Weight] | None = None,
        seed: int = 0,
        length: int | None = None,
        stages: Sequence[tuple[int, Sequence[Weight]]] = (),
    ) -> Dataset[T]:
        """This dataset and others as one, in exact proportions: `shoal.mix`, as a method."""
        parts = [cast("Dataset[T]", self), *others]
        return mix(parts, weights, seed=seed, length=length, stages=stages)


def mix(
    datasets: Iterable[Dataset[T]],
    weights: Sequence[Weight] | None = None,
    *,
    seed: int = 0,
    length: int | None = None,
    stages: Sequence[tuple[int, Sequence[Weight]]] = (),
) -> Dataset[T]:
    """Several datasets as one, taken from in turn so that every part of an epoch has their proportions.

    Without ``weights`` each sample comes once an epoch, evenly spread. With them, an epoch is ``length`` samples long
    (as many as there are in all, if not said), of which a dataset has its share to within one sample: small ones are
    repeated, large ones go on in the next epoch where they were. ``stages`` change the weights from a position on,
    ``((position, weights), ...)``; positions are counted in samples over all epochs and ranks. A loader that shuffles
    shuffles each dataset by itself.

    Raises OptionError for weights that do not fit the datasets.

    Examples:
        >>> import shoal
        >>> for name, count in (("a", 6), ("b", 3)):
        ...     with shoal.ShardWriter(f"memory://doc/mix/{name}/x-%06d.tar") as writer:
        ...         for number in range(count):
        ...             writer.write({"__key__": f"{name}{number}", "cls": number})
        >>> a, b = shoal.Dataset("memory://doc/mix/a"), shoal.Dataset("memory://doc/mix/b")
        >>> shoal.mix([a, b]).keys()
        ['a0', 'b0', 'a1', 'a2', 'b1', 'a3', 'a4', 'b2', 'a5']
        >>> shoal.mix([a, b], weights=[1, 1], length=8).keys()
        ['a0', 'b0', 'a1', 'b1', 'a2', 'b2', 'a3', 'b0']
    """
    parts = list(datasets)
    if not parts:
        raise OptionError("there is nothing to mix", expected="at least one dataset")
    whole = concat(parts) if len(parts) > 1 else parts[0]
    counts = tuple(len(part) for part in parts)
    shares = None if weights is None else _python_numbers(weights)
    shares_by_stage = tuple((start, _python_numbers(chosen)) for start, chosen in stages)
    return cast("Dataset[T]", _Mixing(len(parts), shares, seed, length, shares_by_stage).of(whole, counts))


@dataclass(frozen=True, slots=True)
class _Mixing:
    """The arguments of `mix`. Called with the concatenated datasets, as `refresh` does, it mixes them again."""

    datasets: int
    weights: tuple[Weight, ...] | None
    seed: int
    length: int | None
    stages: tuple[tuple[int, tuple[Weight, ...]], ...]

    def __call__(self, whole: Dataset[Any]) -> Dataset[Any]:
        path: Any = whole.described.path
        return self.of(whole, tuple(map(len, path.parts)) if self.datasets > 1 else (len(whole),))

    def of(self, whole: Dataset[Any], counts: tuple[int, ...]) -> Dataset[Any]:
        """Mix datasets of these lengths, which ``whole`` has one after the other."""
        shares = counts if self.weights is None else self.weights
        planned = Mix(counts, shares, self.seed, self.stages)
        mixture = Mixture(planned, self.length, None if whole.is_whole else whole.rows)
        order = mixture.order(shuffle=False)
        positions = order.samples(np.arange(order.length, dtype=np.int64))
        shown = ", ".join(f"{share:g}" if isinstance(share, (int, float)) else str(share) for share in shares)
        step = Step(f"mix({shown})", again=self)
        return whole._view(rows=whole.rows.take(positions), step=step, mixture=mixture)


def _python_numbers(given: Sequence[Weight]) -> tuple[Weight, ...]:
    """Weights without NumPy's number types: they are part of loader states, which are JSON."""
    if isinstance(given, Mapping):
        raise OptionError("weights are a list, one for each dataset", expected="such as [3, 1]", found=repr(given))
    return tuple(weight.item() if isinstance(weight, np.generic) else weight for weight in given)
