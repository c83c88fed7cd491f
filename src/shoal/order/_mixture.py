"""Weighted mixtures of several orders.

Sources are the leaves of a tree in which every node divides its positions between two sides, the left one getting its
share as evenly as integers allow: ``floor((n * left + half) / both)`` of the first ``n``. So any position is computed
as fast as the first, and exactly: weights are integers inside, and no product needs more than 62 bits.

With two sources every run of positions holds each source's quota, rounded up or down. With three or more that is
impossible: at 1/2, 1/3 and 1/6 the first takes every other position and the second every third, so they collide.
Instead there is a bound, ``Mix.deviation``, which depends on the shape of the tree: at most 1 for up to four sources; a
search for the worst eight found 1.21.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import lcm
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import OptionError, PositionError

from ._orders import Order, check_int, check_seed, checked_positions, fingerprint_of, line
from ._permutation import key_of

__all__ = ["Mix", "Mixed"]

MAX_WEIGHT_SUM = 1 << 31
"""Weights become integers that add up to no more, so that a product of two fits 62 bits."""
MAX_SEARCHED_SOURCES = 12
"""With more sources the tree is built by halving, without a search for the best one."""


@dataclass(frozen=True, slots=True)
class _Node:
    left: _Tree
    right: _Tree
    left_parts: int
    parts: int


_Tree: TypeAlias = "_Node | int"


@dataclass(frozen=True, slots=True)
class _Stage:
    start: int
    parts: tuple[int, ...]
    tree: _Tree
    before: tuple[int, ...]
    """How many samples of each source came before the stage."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Sources of ``counts`` samples, taken from in proportion to ``weights``, for ever.

    ``stages`` change the weights: ``((start, weights), ...)``, each from the position ``start`` on. A source goes on
    where it was, whatever stage asks for it. A weight of zero takes nothing from its source.

    Raises:
        OptionError: counts, weights or stages do not fit each other or are out of range.

    Examples:
        >>> mix = Mix(counts=(1000, 10), weights=(3, 1), stages=((8, (1, 1)),))
        >>> sources, positions = mix.at(range(12))
        >>> sources.tolist()
        [0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1]
        >>> positions.tolist()
        [0, 1, 0, 2, 3, 4, 1, 5, 6, 2, 7, 3]
    """

    counts: tuple[int, ...]
    weights: tuple[float | int | Fraction, ...]
    seed: int = 0
    stages: tuple[tuple[int, tuple[float | int | Fraction, ...]], ...] = ()
    _stages: tuple[_Stage, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))
        object.__setattr__(self, "weights", tuple(self.weights))
        object.__setattr__(self, "stages", tuple((start, tuple(weights)) for start, weights in self.stages))
        for count in self.counts:
            check_int("count", count, 0)
        check_seed(self.seed)
        object.__setattr__(self, "_stages", _build_stages(self))

    @property
    def count(self) -> int:
        """How many samples all sources have together: as good a length of an epoch as any."""
        return sum(self.counts)

    @property
    def deviation(self) -> float:
        """The bound on how far the first ``n`` positions of a stage are from each source's quota, for every ``n``.

        A run of positions between any two lies within twice this; with two sources, within one sample.
        """
        return max(_deviation(stage.tree, stage.parts) for stage in self._stages)

    def at(self, positions: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """For each position the source it takes from, and the position on that source's own infinite line.

        Raises:
            PositionError: a position is negative.
        """
        given = np.asarray(positions, np.int64)
        if given.size and given.min() < 0:
            raise PositionError("no such position of the mix", expected="0 or more", found=given.min())
        flat = given.ravel()
        sources, places = np.empty_like(flat), np.empty_like(flat)
        stage_of = np.searchsorted([stage.start for stage in self._stages], flat, side="right") - 1
        for number, stage in enumerate(self._stages):
            here = np.flatnonzero(stage_of == number)
            _descend(stage.tree, flat[here] - stage.start, here, sources, places)
            places[here] += np.asarray(stage.before, np.int64)[sources[here]]
        return sources.reshape(given.shape), places.reshape(given.shape)

    def counts_before(self, position: int) -> tuple[int, ...]:
        """How many samples each source has given before ``position``.

        Examples:
            >>> Mix((10, 10), (3, 1)).counts_before(1_000_000_000_000)
            (750000000000, 250000000000)
        """
        check_int("position", position, 0)
        stage = max((stage for stage in self._stages if stage.start <= position), key=lambda stage: stage.start)
        return _counts_at(stage, position)

    def seed_of(self, source: int) -> int:
        """A seed for one source's own order, so that sources do not move alike."""
        return key_of(self.seed, source) >> 1

    def to_json(self) -> dict[str, Any]:
        """The settings, readable."""
        return {
            "order": "mix",
            "counts": list(self.counts),
            "weights": list(self._stages[0].parts),
            "seed": self.seed,
            "stages": [[stage.start, list(stage.parts)] for stage in self._stages[1:]],
        }

    def fingerprint(self) -> str:
        """A short name of the settings."""
        return fingerprint_of(self.to_json())


def _build_stages(mix: Mix) -> tuple[_Stage, ...]:
    staged: list[_Stage] = []
    for start, weights in ((0, mix.weights), *mix.stages):
        check_int("a stage's start", start, staged[-1].start + 1 if staged else 0)
        parts = _to_int_weights(mix.counts, weights)
        before = _counts_at(staged[-1], start) if staged else (0,) * len(parts)
        staged.append(_Stage(start, parts, _best_tree(parts), before))
    return tuple(staged)


def _to_int_weights(counts: tuple[int, ...], weights: Sequence[float | int | Fraction]) -> tuple[int, ...]:
    """Return weights as integers: exactly as written, or the nearest that add up to at most ``MAX_WEIGHT_SUM``."""
    exact = [_to_fraction(weight) for weight in weights]
    if len(exact) != len(counts) or not exact:
        raise OptionError("a mix needs a weight for each source", expected=len(counts) or "1 or more", found=len(exact))
    if sum(exact) == 0:
        raise OptionError("weights cannot be all zero", expected="some above zero", found=list(weights))
    if any(weight and not count for weight, count in zip(exact, counts, strict=True)):
        raise OptionError("an empty source cannot be taken from", expected="weight 0", found=list(weights))
    scale = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    common = np.gcd.reduce(np.array(whole, object))
    whole = [part // common for part in whole]
    return tuple(whole) if sum(whole) <= MAX_WEIGHT_SUM else _largest_remainders(exact)


def _to_fraction(weight: object) -> Fraction:
    """A weight as the number that was written: 0.1 is a tenth, not the double nearest to it."""
    if isinstance(weight, Fraction | int | float) and not isinstance(weight, bool) and 0 <= weight < float("inf"):
        return Fraction(repr(float(weight))) if isinstance(weight, float) else Fraction(weight)
    raise OptionError("a weight cannot be this", expected="a finite number from 0", found=repr(weight))


def _largest_remainders(exact: list[Fraction]) -> tuple[int, ...]:
    """Divide ``MAX_WEIGHT_SUM`` by weight: each share rounded down, then one more for the largest remainders."""
    total = sum(exact)
    shares = [weight * MAX_WEIGHT_SUM / total for weight in exact]
    whole = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda source: (whole[source] - shares[source], source))
    for source in by_remainder[: MAX_WEIGHT_SUM - sum(whole)]:
        whole[source] += 1
    return tuple(whole)


def _best_tree(parts: tuple[int, ...]) -> _Tree:
    """Split the sources, sorted by weight, where the bound is smallest; near the middle if there are too many."""
    sources = sorted((source for source, part in enumerate(parts) if part), key=lambda source: (-parts[source], source))
    if len(sources) <= MAX_SEARCHED_SOURCES:
        bounds = [0.5 + number / 50 for number in range(100)]
        found = next((tree for bound in bounds if (tree := _tree_within(bound, sources, parts)) is not None), None)
        if found is not None:
            return found
    return _halving_tree(sources, parts)


def _tree_within(bound: float, sources: list[int], parts: tuple[int, ...]) -> _Tree | None:
    """A tree whose leaves all keep to ``bound``, if splitting the sorted sources can give one."""
    ends = np.concatenate([[0], np.cumsum([parts[source] for source in sources])]).tolist()

    @cache
    def tree(first: int, last: int, above: float) -> _Tree | None:
        if above > bound:
            return None
        if last - first == 1:
            return sources[first]
        both = ends[last] - ends[first]
        for middle in range(first + 1, last):
            share = (ends[middle] - ends[first]) / both
            left = tree(first, middle, above * share + 0.5)
            right = None if left is None else tree(middle, last, above * (1 - share) + 0.5)
            if left is not None and right is not None:
                return _Node(left, right, ends[middle] - ends[first], both)
        return None

    return tree(0, len(sources), 0.0)


def _halving_tree(sources: list[int], parts: tuple[int, ...]) -> _Tree:
    if len(sources) == 1:
        return sources[0]
    ends = np.cumsum([parts[source] for source in sources])
    middle = int(np.abs(2 * ends[:-1] - ends[-1]).argmin()) + 1
    left, right = _halving_tree(sources[:middle], parts), _halving_tree(sources[middle:], parts)
    return _Node(left, right, int(ends[middle - 1]), int(ends[-1]))


def _deviation(tree: _Tree, parts: tuple[int, ...]) -> float:
    """Each node rounds by half a sample at most; what reaches a leaf is its share of the node's rounding, added up."""

    def worst(node: _Tree, above: float) -> float:
        # `above` is the bound on the positions that reach this node, before this node's own rounding.
        if isinstance(node, int):
            return above
        shares = (node.left_parts / node.parts, 1 - node.left_parts / node.parts)
        return max(
            worst(side, above * share + 0.5) for side, share in zip((node.left, node.right), shares, strict=True)
        )

    return worst(tree, 0.0)


def _count_left(node: _Node, numbers: Any) -> Any:
    """Return how many of a node's first positions go left. Full rounds are taken out first to keep products small."""
    rounds, rest = numbers // node.parts, numbers % node.parts
    return rounds * node.left_parts + (rest * node.left_parts + node.parts // 2) // node.parts


def _descend(tree: _Tree, numbers: IntArray, where: IntArray, sources: IntArray, places: IntArray) -> None:
    if isinstance(tree, int):
        sources[where], places[where] = tree, numbers
        return
    before = _count_left(tree, numbers)
    left = _count_left(tree, numbers + 1) > before
    _descend(tree.left, before[left], where[left], sources, places)
    _descend(tree.right, (numbers - before)[~left], where[~left], sources, places)


def _counts_at(stage: _Stage, position: int) -> tuple[int, ...]:
    counts = list(stage.before)

    def count(tree: _Tree, number: int) -> None:
        if isinstance(tree, int):
            counts[tree] += number
        else:
            left = _count_left(tree, number)
            count(tree.left, left)
            count(tree.right, number - left)

    count(stage.tree, position - stage.start)
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class Mixed:
    """The samples of several sources, numbered one source after the other, in the proportions of a mix.

    Epochs are slices of one infinite line, so a source goes on in the next epoch where it was; each time it is through,
    its own next epoch begins. With weights that are the counts, an epoch has each sample once.

    Raises:
        OptionError: there is not one order for each source of the mix.

    Examples:
        >>> from shoal.order import Sequential
        >>> order = Mixed(Mix((4, 2), (2, 1)), (Sequential(4), Sequential(2)))
        >>> order.samples(range(6)).tolist()
        [0, 4, 1, 2, 5, 3]
        >>> order.samples(range(6), epoch=1).tolist() == order.samples(range(6)).tolist()
        True
    """

    mix: Mix
    orders: tuple[Order, ...]
    draws: int | None = None

    def __post_init__(self) -> None:
        counts = tuple(order.length for order in self.orders)
        if counts != self.mix.counts:
            raise OptionError("a mix has an order for each source", expected=self.mix.counts, found=counts)
        if self.draws is not None:
            check_int("draws", self.draws, 1)

    @property
    def count(self) -> int:
        """How many samples all sources have together."""
        return sum(order.count for order in self.orders)

    @property
    def length(self) -> int:
        """How many positions an epoch has: ``draws``, or as many as there are samples."""
        return self.mix.count if self.draws is None else self.draws

    def samples(self, positions: npt.ArrayLike, epoch: int = 0) -> IntArray:
        """The sample at each position of an epoch."""
        given = checked_positions(positions, self.length)
        sources, places = self.mix.at(given + epoch * self.length)
        found = np.empty(given.shape, np.int64)
        start = 0
        for number, order in enumerate(self.orders):
            here = sources == number
            if here.any():
                found[here] = start + line(order, places[here])
            start += order.count
        return found

    def to_json(self) -> dict[str, Any]:
        """The settings, readable."""
        return {
            **self.mix.to_json(),
            "order": "mixed",
            "orders": [order.to_json() for order in self.orders],
            "length": self.length,
        }

    def settings_before(self, position: int) -> dict[str, Any]:
        """The settings that fixed the line up to ``position``: stages from there on may still be changed."""
        document = self.to_json()
        return {**document, "stages": [stage for stage in document["stages"] if stage[0] < position]}

    def fingerprint(self) -> str:
        """A short name of the settings."""
        return fingerprint_of(self.to_json())
