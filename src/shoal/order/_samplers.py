"""Orders as samplers: iterables of sample numbers that ``torch.utils.data.DataLoader(sampler=...)`` takes.

Unlike an order, a sampler has a state: its epoch, and how far it has come. Iterating restarts the current epoch, or
resumes from a loaded state; a finished epoch is followed by the next. Samples that a loader's workers have prefetched
count as consumed, so with workers save the state of the loader, not that of the sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import OptionError

from ._block_shuffle import BlockShuffle
from ._epoch_plan import EpochPlan, Split, Tail, launched_rank, plan_epoch
from ._orders import WEIGHTS, GlobalShuffle, Order, Sequential, Weighted, check_int, check_weights
from ._permutation import draw_fractions, key_of
from ._state import State

__all__ = ["DistributedSampler", "SequentialSampler", "ShufflingSampler", "WeightedSampler"]

_CHUNK_STEPS = 4096


class _Sampler:
    """The steps of one rank in an order, and a position in them."""

    def __init__(self, order: Order, split: Split | None = None, tail: Tail = "pad") -> None:
        self.order = order
        self._split = split or Split()
        self._tail: Tail = tail
        self._plan = self._plan_of(0)
        self._done = 0

    def _plan_of(self, epoch: int) -> EpochPlan:
        return plan_epoch(self.order.length, epoch=epoch, split=self._split, tail=self._tail)

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or comes next."""
        return self._plan.epoch

    def __len__(self) -> int:
        """How many samples this rank is given in a whole epoch."""
        return self._plan_of(self.epoch).steps

    def __iter__(self) -> Iterator[int]:
        if self._done:  # an earlier iteration stopped early; after loading a state it is 0
            self._plan, self._done = self._plan_of(self.epoch), 0
        plan = self._plan
        for first in range(0, plan.steps, _CHUNK_STEPS):
            for number in self._numbers(plan, range(first, min(first + _CHUNK_STEPS, plan.steps))).tolist():
                self._done += 1
                yield number
        self._plan, self._done = self._plan_of(plan.epoch + 1), 0

    def _numbers(self, plan: EpochPlan, steps: range) -> IntArray:
        return plan.at(steps).samples(self.order)

    def _settings(self) -> dict[str, Any]:
        return self.order.to_json()

    def set_epoch(self, epoch: int) -> None:
        """Read this epoch next, from its start; nothing changes when it is the one being read.

        Raises:
            OptionError: it is not a whole number from 0.
        """
        check_int("epoch", epoch, 0)
        if epoch != self.epoch:
            self._plan, self._done = self._plan_of(epoch), 0

    def state_dict(self) -> dict[str, Any]:
        """How far all ranks together have come: plain values, the same on every rank."""
        return State.after(self._plan, self._done, self._settings()).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, also when it was taken on another number of ranks.

        Raises:
            LoaderStateError: it was taken from another order; the message says what differs.
        """
        loaded = State.from_dict(state)
        loaded.check_fingerprint(self._settings())
        self._plan = loaded.plan(self.order.length, batch_size=1, split=self._split, tail=self._tail)
        self._done = 0


class SequentialSampler(_Sampler):
    """Samples as they are numbered.

    Examples:
        >>> list(SequentialSampler(3))
        [0, 1, 2]
    """

    def __init__(self, source: Sized | int) -> None:
        super().__init__(Sequential(_length(source)))


class ShufflingSampler(_Sampler):
    """All samples in a new order each epoch.

    All are mixed at once, or, with ``window``, blocks of ``block_samples`` and then about ``window`` samples at a time.

    Examples:
        >>> sampler = ShufflingSampler(1000, seed=1)
        >>> first, second = list(sampler), list(sampler)
        >>> first != second and sorted(first) == sorted(second) == list(range(1000))
        True
    """

    def __init__(
        self, source: Sized | int, seed: int = 0, window: int | None = None, *, block_samples: int = 64
    ) -> None:
        super().__init__(_shuffle(_length(source), seed, window, block_samples))


class DistributedSampler(_Sampler):
    """One rank's share: PyTorch's sampler of that name, resumable on any number of ranks.

    ``num_replicas`` and ``rank`` are those of the launcher (torchrun, MPI, SLURM) where they are not given. Where the
    ranks do not divide the samples, the first are repeated, or the last left out with ``drop_last``.

    Examples:
        >>> [list(DistributedSampler(5, num_replicas=2, rank=rank, shuffle=False)) for rank in (0, 1)]
        [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        source: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        window: int | None = None,
        block_samples: int = 64,
    ) -> None:
        count = _length(source)
        order = _shuffle(count, seed, window, block_samples) if shuffle else Sequential(count)
        super().__init__(order, _split_of(rank, num_replicas), "drop" if drop_last else "pad")

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self._split.world_size

    @property
    def rank(self) -> int:
        """The rank whose share it gives."""
        return self._split.rank


def _split_of(rank: int | None, num_replicas: int | None) -> Split:
    if (rank is None) != (num_replicas is None):
        raise OptionError("rank and num_replicas go together", expected="both or none", found=(rank, num_replicas))
    return Split(*launched_rank()) if rank is None or num_replicas is None else Split(rank, num_replicas)


class WeightedSampler(_Sampler):
    """``num_samples`` draws an epoch, each sample as likely as its weight says.

    Without replacement each sample is drawn at most once. An epoch's draws are then made together when it starts, in
    time that grows with the number of weights.

    Raises:
        OptionError: a weight is negative, or without replacement there are too few samples with a weight.

    Examples:
        >>> sorted(WeightedSampler([1, 0, 5, 2], 3, replacement=False, seed=1))
        [0, 2, 3]
    """

    order: Weighted

    def __init__(self, weights: npt.ArrayLike, num_samples: int, replacement: bool = True, seed: int = 0) -> None:
        check_int("num_samples", num_samples, 1)
        possible = int(np.count_nonzero(check_weights(weights)))
        if not replacement and num_samples > possible:
            raise OptionError("there are too few samples to draw", expected=f"at most {possible}", found=num_samples)
        super().__init__(Weighted(np.asarray(weights, np.float64), seed, num_samples))
        self.replacement = replacement
        self._drawn: tuple[int, IntArray] | None = None

    def _settings(self) -> dict[str, Any]:
        return {**self.order.to_json(), "replacement": self.replacement}

    def _numbers(self, plan: EpochPlan, steps: range) -> IntArray:
        if self.replacement:
            return super()._numbers(plan, steps)
        if self._drawn is None or self._drawn[0] != plan.epoch:
            self._drawn = plan.epoch, _draw_without_replacement(self.order, plan.epoch)
        return self._drawn[1][plan.at(steps).positions]


def _draw_without_replacement(order: Weighted, epoch: int) -> IntArray:
    """Draws without replacement: each sample waits the shorter the larger its weight; the first to come are drawn."""
    possible = np.flatnonzero(order.weights)
    uniform = 1.0 - draw_fractions(key_of(order.seed, epoch, WEIGHTS), possible)
    waits = -np.log(uniform) / order.weights[possible]
    return possible[np.argsort(waits, kind="stable")[: order.length]]


def _length(source: Sized | int) -> int:
    return source if isinstance(source, int) else len(source)


def _shuffle(count: int, seed: int, window: int | None, block_samples: int) -> Order:
    if window is None:
        return GlobalShuffle(count, seed)
    check_int("window", window, 1)
    return BlockShuffle(count, seed, block_samples, -(-window // block_samples), lanes=1)
