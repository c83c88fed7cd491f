"""The positions of one rank in each step of an epoch, and the rank of this process.

A step of all ranks together is ``readers * batch_size`` consecutive positions, and reader ``r`` takes every
``readers``-th of them from the ``r``-th on. So the order in which samples are consumed does not depend on the number of
readers, and one number, how far all of them have come, is enough to resume with any other number of readers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from shoal._typing import IntArray
from shoal.errors import OptionError, PositionError

from ._orders import Order, check_int, samples_of

__all__ = [
    "EpochPlan",
    "RankPositions",
    "Split",
    "Tail",
    "epoch_end",
    "launched_rank",
    "plan_epoch",
    "rank_positions",
    "steps_per_epoch",
]

Tail = Literal["pad", "carry", "drop", "uneven"]
"""What happens at an epoch's end when it does not divide by the ranks.

``pad``: all ranks take as many steps, the last filled with repeats, which are marked. ``carry``: the last global
batch is filled from the next epoch, which starts that much later: each sample once, equal steps, and epochs may
differ by one step. ``drop``: what does not divide is left out. ``uneven``: each sample once, and some ranks get one
sample or one step less.
"""
# The variables that each launcher sets: torchrun and Accelerate, Open MPI, MPICH and Intel MPI, SLURM's srun.
_LAUNCHER_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True)
class Split:
    """One reader among many. ``replication`` neighbouring ranks see the same data, as tensor parallel ranks have to.

    Raises:
        OptionError: a number is out of range, or ``replication`` does not divide ``world_size``.

    Examples:
        >>> split = Split(rank=5, world_size=8, replication=2)
        >>> split.reader, split.readers
        (2, 4)
    """

    rank: int = 0
    world_size: int = 1
    replication: int = 1
    reader: int = field(init=False, repr=False)
    """Which share of the data this rank sees."""
    readers: int = field(init=False, repr=False)
    """How many shares there are."""

    def __post_init__(self) -> None:
        check_int("world_size", self.world_size, 1)
        check_int("rank", self.rank, 0, self.world_size - 1)
        check_int("replication", self.replication, 1)
        if self.world_size % self.replication:
            raise OptionError(
                "replication does not divide the ranks",
                expected=f"a divisor of {self.world_size}",
                found=self.replication,
            )
        object.__setattr__(self, "reader", self.rank // self.replication)
        object.__setattr__(self, "readers", self.world_size // self.replication)


@dataclass(frozen=True, slots=True)
class RankPositions:
    """Positions of one rank, in its order, batch after batch."""

    positions: IntArray
    epochs: IntArray
    """Whose positions they are: all of one epoch, unless its last batch is carried over into the next."""
    repeats: npt.NDArray[np.bool_]
    """Where a sample was put in only so that all ranks have as many; not to be counted."""

    def __len__(self) -> int:
        return len(self.positions)

    def samples(self, order: Order) -> IntArray:
        """The samples at these positions."""
        return samples_of(order, self.positions, self.epochs)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What one rank does from ``start`` to the end of an epoch. Made by ``plan_epoch``.

    Examples:
        >>> plan = plan_epoch(10, batch_size=2, split=Split(rank=1, world_size=4))
        >>> plan.steps, plan.at(0).positions.tolist(), plan.at(1).positions.tolist()
        (2, [1, 5], [9])
        >>> plan_epoch(10, batch_size=2, split=Split(rank=3, world_size=4)).at(1).repeats.tolist()
        [True]
    """

    count: int
    epoch: int
    epoch_start: int
    """Where the epoch began: 0, unless the one before carried its last batch into it."""
    start: int
    end: int
    """Where the epoch's samples end: ``count``, less under ``drop``, more under ``carry``. Filling comes after it."""
    batch_size: int
    split: Split
    tail: Tail
    drop_last: bool
    global_batch: int = field(init=False, repr=False)
    """How many positions one step of all ranks takes."""
    rank_samples: int = field(init=False, repr=False)
    """How many samples this rank is given."""
    steps: int = field(init=False, repr=False)
    """How many batches this rank is given."""

    def __post_init__(self) -> None:
        readers, span = self.split.readers, self.end - self.start
        whole = readers * self.batch_size
        if self.tail != "uneven":  # all ranks have as many samples
            unit = whole if self.drop_last and readers > 1 else readers
            span = -(-span // unit) * unit
        given = max(0, -(-(span - self.split.reader) // readers))
        if self.drop_last and self.tail == "uneven" and readers > 1:
            # A single reader's short batch is cut off in `end`, or was begun by a world that did not cut it.
            given = given // self.batch_size * self.batch_size
        object.__setattr__(self, "global_batch", whole)
        object.__setattr__(self, "rank_samples", given)
        object.__setattr__(self, "steps", -(-given // self.batch_size))

    def at(self, steps: int | range) -> RankPositions:
        """The positions of this rank for one step, or for a range of steps, one after the other.

        Raises:
            PositionError: a step is not one of ``range(self.steps)``.
        """
        chosen = range(steps, steps + 1) if isinstance(steps, int) else steps
        if chosen.step != 1 or (len(chosen) and not 0 <= chosen.start < chosen.stop <= self.steps):
            raise PositionError("no such steps", expected=f"range(0, {self.steps})", found=repr(steps))
        first, last = chosen.start * self.batch_size, min(chosen.stop * self.batch_size, self.rank_samples)
        at = self.start + self.split.reader + np.arange(first, max(first, last), dtype=np.int64) * self.split.readers
        if self.tail == "carry":
            return RankPositions(
                at % max(self.count, 1), self.epoch + at // max(self.count, 1), np.zeros(len(at), bool)
            )
        repeats = at >= self.end
        # A repeat is a sample the epoch has had already: its first ones again.
        positions = np.where(repeats, (at - self.end) % max(min(self.end, self.count), 1), at)
        return RankPositions(positions, np.full(len(at), self.epoch), repeats)

    def consumed(self, steps: int) -> int:
        """How far all ranks together have come when each has done ``steps`` of these steps."""
        return min(self.start + steps * self.global_batch, self.end)

    def next_epoch(self) -> EpochPlan:
        """The plan of the epoch that follows."""
        later, start = divmod(self.end, self.count) if self.tail == "carry" and self.count else (1, 0)
        return plan_epoch(
            self.count,
            epoch=self.epoch + later,
            start=start,
            batch_size=self.batch_size,
            split=self.split,
            tail=self.tail,
            drop_last=self.drop_last,
        )

    def for_rank(self, rank: int) -> EpochPlan:
        """The same epoch for another rank."""
        return replace(self, split=replace(self.split, rank=rank))


def plan_epoch(
    count: int,
    *,
    epoch: int = 0,
    start: int = 0,
    epoch_start: int | None = None,
    end: int | None = None,
    batch_size: int = 1,
    split: Split | None = None,
    tail: Tail = "pad",
    drop_last: bool = False,
) -> EpochPlan:
    """The plan of an epoch of ``count`` positions, from ``start`` on.

    ``end`` is given when the epoch was begun by another world with the same global batch: the epoch then ends where
    it would have ended there.

    Raises:
        OptionError: a number is out of range.

    Examples:
        >>> plan_epoch(100, batch_size=8, start=64).steps
        5
    """
    split = split or Split()
    check_int("epoch", epoch, 0)
    shared = epoch_end(count, start, split.readers, batch_size, tail, drop_last)
    if end is None:
        end = shared if tail == "carry" else min(shared, max(count, start))
    elif end < start:
        raise OptionError("the epoch ends before it starts", expected=f"{start} or more", found=end)
    begun = start if epoch_start is None else epoch_start
    return EpochPlan(count, epoch, begun, start, end, batch_size, split, tail, drop_last)


def epoch_end(
    count: int, start: int, world_size: int, batch_size: int, tail: Tail = "pad", drop_last: bool = False
) -> int:
    """Where ranks that begin at ``start`` stop: the last position of all of them, plus one.

    A position from ``count`` on is a repeat under ``pad``, and the next epoch's under ``carry``. With ``drop_last``
    no batch is short: what would be is filled, left out, or not taken by the rank that has it, as ``tail`` says; a
    single rank leaves it out, unless it carries.

    Examples:
        >>> [epoch_end(10, 0, 4, 2, tail) for tail in ("pad", "carry", "drop", "uneven")]
        [12, 16, 8, 10]
    """
    check_int("count", count, 0)
    check_int("start", start, 0)
    check_int("world_size", world_size, 1)
    check_int("batch_size", batch_size, 1)
    if tail not in get_args(Tail):
        raise OptionError("tail cannot be this", expected=" or ".join(get_args(Tail)), found=repr(tail))
    rest, whole = max(count - start, 0), world_size * batch_size
    unit = whole if drop_last or tail == "carry" else world_size
    down, up = start + rest // unit * unit, start + -(-rest // unit) * unit
    if tail == "carry" or (tail == "pad" and world_size > 1):
        return up
    if tail == "drop" or (world_size == 1 and drop_last):
        return down
    return start + rest


def rank_positions(steps: int | range, plan: EpochPlan) -> RankPositions:
    """The positions of the plan's rank for one step or several: ``plan.at(steps)``.

    Examples:
        >>> rank_positions(range(2), plan_epoch(8, batch_size=2, split=Split(1, 2))).positions.tolist()
        [1, 3, 5, 7]
    """
    return plan.at(steps)


def steps_per_epoch(
    count: int,
    batch_size: int,
    world_size: int = 1,
    *,
    rank: int = 0,
    replication: int = 1,
    tail: Tail = "pad",
    drop_last: bool = False,
    start: int = 0,
) -> int:
    """How many batches one rank is given in an epoch.

    Examples:
        >>> steps_per_epoch(1000, 32), steps_per_epoch(1000, 32, 4), steps_per_epoch(1000, 32, drop_last=True)
        (32, 8, 31)
    """
    split = Split(rank, world_size, replication)
    return plan_epoch(count, start=start, batch_size=batch_size, split=split, tail=tail, drop_last=drop_last).steps


def launched_rank(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The rank and the world size: torch.distributed's once it is initialised, else the launcher's, else 0 of 1.

    Raises:
        OptionError: what it tells makes no sense.

    Examples:
        >>> launched_rank({"RANK": "1", "WORLD_SIZE": "4"}), launched_rank({})
        ((1, 4), (0, 1))
    """
    distributed = sys.modules.get("torch.distributed") if environment is None else None  # never imported here
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    known = os.environ if environment is None else environment
    for rank, world in _LAUNCHER_VARIABLES:
        if rank in known and world in known:
            return _parse_rank(known[rank], known[world], f"{rank} and {world}")
    if known.get("WORLD_SIZE", "1") != "1":  # one of several processes, which would each take everything
        hint = "set RANK, call torch.distributed.init_process_group first, or give rank= and world_size= to the loader"
        raise OptionError("WORLD_SIZE is set, and RANK is not", expected="both", found=known["WORLD_SIZE"], hint=hint)
    return 0, 1


def _parse_rank(rank: str, world: str, names: str) -> tuple[int, int]:
    try:
        parsed = int(rank), int(world)
    except ValueError:
        parsed = (-1, -1)
    if not 0 <= parsed[0] < parsed[1]:
        hint = "or give rank= and world_size= to the loader"
        expected = "a rank below the world size"
        raise OptionError(f"{names} make no sense", expected=expected, found=f"{rank!r} of {world!r}", hint=hint)
    return parsed
