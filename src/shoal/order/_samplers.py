"""Orders as samplers: iterables of sample numbers that ``torch.utils.data.DataLoader(sampler=...)`` takes.

A sampler is the one thing here that remembers: which epoch it is in and how far it has come. Iterating starts the
current epoch anew, or goes on where a loaded state left off; a finished epoch is followed by the next. What a
loader's workers have read ahead counts as taken, so with workers keep the state that the loader hands out, not the
sampler's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError
from shoal.order._orders import WEIGHTS, GlobalShuffle, Order, Sequential, Weighted, checked_weights
from shoal.order._state import State

from ._block_shuffle import BlockShuffle
from ._epoch_plan import EpochPlan, Split, Tail, launched_rank, plan_epoch
from ._orders import check_whole
from ._permutation import Int64, fractions, key_of

__all__ = ["DistributedSampler", "SequentialSampler", "ShufflingSampler", "WeightedSampler"]

AT_ONCE = 4096


class _Sampler:
    """An order, cut for one rank, and a place in it."""

    def __init__(self, order: Order, split: Split | None = None, tail: Tail = "pad") -> None:
        self.order = order
        self._split = split or Split()
        self._tail: Tail = tail
        self._plan = self._whole(0)
        self._done = 0

    def _whole(self, epoch: int) -> EpochPlan:
        return plan_epoch(self.order.length, epoch=epoch, split=self._split, tail=self._tail)

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or comes next."""
        return self._plan.epoch

    def __len__(self) -> int:
        """How many samples this rank is given in a whole epoch."""
        return self._whole(self.epoch).steps

    def __iter__(self) -> Iterator[int]:
        if self._done:  # not where a state was loaded, but where an earlier iteration stopped
            self._plan, self._done = self._whole(self.epoch), 0
        plan = self._plan
        for first in range(0, plan.steps, AT_ONCE):
            for number in self._numbers(plan, range(first, min(first + AT_ONCE, plan.steps))).tolist():
                self._done += 1
                yield number
        self._plan, self._done = self._whole(plan.epoch + 1), 0

    def _numbers(self, plan: EpochPlan, steps: range) -> Int64:
        return plan.at(steps).samples(self.order)

    def _settings(self) -> dict[str, Any]:
        return self.order.to_json()

    def set_epoch(self, epoch: int) -> None:
        """Read this epoch next, from its start; nothing changes when it is the one being read.

        Raises:
            OptionError: it is not a whole number from 0.
        """
        check_whole("epoch", epoch, 0)
        if epoch != self.epoch:
            self._plan, self._done = self._whole(epoch), 0

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

    Example:
        >>> list(SequentialSampler(3))
        [0, 1, 2]
    """

    def __init__(self, source: Sized | int) -> None:
        super().__init__(Sequential(_length(source)))


class ShufflingSampler(_Sampler):
    """All samples in a new order each epoch.

    All are mixed at once, or, with ``window``, blocks of ``block_samples`` and then about ``window`` samples at a time.

    Example:
        >>> sampler = ShufflingSampler(1000, seed=1)
        >>> first, second = list(sampler), list(sampler)
        >>> first != second and sorted(first) == sorted(second) == list(range(1000))
        True
    """

    def __init__(
        self, source: Sized | int, seed: int = 0, window: int | None = None, *, block_samples: int = 64
    ) -> None:
        super().__init__(_shuffled(_length(source), seed, window, block_samples))


class DistributedSampler(_Sampler):
    """One rank's share: PyTorch's sampler of that name, resumable on any number of ranks.

    ``num_replicas`` and ``rank`` are those of the launcher (torchrun, MPI, SLURM) where they are not given. Where the
    ranks do not divide the samples, the first are repeated, or the last left out with ``drop_last``.

    Example:
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
        order = _shuffled(count, seed, window, block_samples) if shuffle else Sequential(count)
        super().__init__(order, _share(rank, num_replicas), "drop" if drop_last else "pad")


def _share(rank: int | None, num_replicas: int | None) -> Split:
    if (rank is None) != (num_replicas is None):
        raise OptionError("rank and num_replicas go together", expected="both or none", found=(rank, num_replicas))
    return Split(*launched_rank()) if rank is None or num_replicas is None else Split(rank, num_replicas)


class WeightedSampler(_Sampler):
    """``num_samples`` draws an epoch, each sample as likely as its weight says.

    Without replacement each sample is drawn at most once. An epoch's draws are then made together when it starts, in
    time that grows with the number of weights.

    Raises:
        OptionError: a weight is negative, or without replacement there are too few samples with a weight.

    Example:
        >>> sorted(WeightedSampler([1, 0, 5, 2], 3, replacement=False, seed=1))
        [0, 2, 3]
    """

    order: Weighted

    def __init__(self, weights: npt.ArrayLike, num_samples: int, replacement: bool = True, seed: int = 0) -> None:
        check_whole("num_samples", num_samples, 1)
        possible = int(np.count_nonzero(checked_weights(weights)))
        if not replacement and num_samples > possible:
            raise OptionError("there are too few samples to draw", expected=f"at most {possible}", found=num_samples)
        super().__init__(Weighted(np.asarray(weights, np.float64), seed, num_samples))
        self.replacement = replacement
        self._drawn: tuple[int, Int64] | None = None

    def _settings(self) -> dict[str, Any]:
        return {**self.order.to_json(), "replacement": self.replacement}

    def _numbers(self, plan: EpochPlan, steps: range) -> Int64:
        if self.replacement:
            return super()._numbers(plan, steps)
        if self._drawn is None or self._drawn[0] != plan.epoch:
            self._drawn = plan.epoch, _drawn_once(self.order, plan.epoch)
        return self._drawn[1][plan.at(steps).positions]


def _drawn_once(order: Weighted, epoch: int) -> Int64:
    """Draws without replacement: each sample waits the shorter the larger its weight; the first to come are drawn."""
    possible = np.flatnonzero(order.weights)
    uniform = 1.0 - fractions(key_of(order.seed, epoch, WEIGHTS), possible)
    waits = -np.log(uniform) / order.weights[possible]
    return possible[np.argsort(waits, kind="stable")[: order.length]]


def _length(source: Sized | int) -> int:
    return source if isinstance(source, int) else len(source)


def _shuffled(count: int, seed: int, window: int | None, block_samples: int) -> Order:
    if window is None:
        return GlobalShuffle(count, seed)
    check_whole("window", window, 1)
    return BlockShuffle(count, seed, block_samples, -(-window // block_samples), lanes=1)
