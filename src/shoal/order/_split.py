"""Which ranks share an epoch, and where they stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from shoal.errors import OptionError
from shoal.order._check import check_count, check_whole

__all__ = ["Split", "Tail", "check_tail", "epoch_end"]

Tail = Literal["pad", "carry", "drop", "uneven"]
"""What happens at an epoch's end when it does not divide by the ranks.

``pad``: all ranks take as many steps, the last filled with repeats, which are marked. ``carry``: the last global
batch is filled from the next epoch, which starts that much later: each sample once, equal steps, and epochs may
differ by one step. ``drop``: what does not divide is left out. ``uneven``: each sample once, and some ranks get one
sample or one step less.
"""


@dataclass(frozen=True, slots=True)
class Split:
    """One reader among many. ``replication`` neighbouring ranks see the same data, as tensor parallel ranks have to.

    Raises:
        OptionError: a number is out of range, or ``replication`` does not divide ``world_size``.

    Example:
        >>> split = Split(rank=5, world_size=8, replication=2)
        >>> split.reader, split.readers
        (2, 4)
    """

    rank: int = 0
    world_size: int = 1
    replication: int = 1

    def __post_init__(self) -> None:
        check_whole("world_size", self.world_size, 1)
        check_whole("rank", self.rank, 0, self.world_size - 1)
        check_whole("replication", self.replication, 1)
        if self.world_size % self.replication:
            raise OptionError(
                "replication does not divide the ranks",
                expected=f"a divisor of {self.world_size}",
                found=self.replication,
            )

    @property
    def reader(self) -> int:
        """Which share of the data this rank sees."""
        return self.rank // self.replication

    @property
    def readers(self) -> int:
        """How many shares there are."""
        return self.world_size // self.replication


def check_tail(tail: object) -> None:
    """One of the four words."""
    if tail not in get_args(Tail):
        raise OptionError("tail cannot be this", expected=" or ".join(get_args(Tail)), found=repr(tail))


def epoch_end(
    count: int, start: int, world_size: int, batch_size: int, tail: Tail = "pad", drop_last: bool = False
) -> int:
    """Where ranks that begin at ``start`` stop: the last position of all of them, plus one.

    A position from ``count`` on is a repeat under ``pad``, and the next epoch's under ``carry``. With ``drop_last``
    no batch is short: what would be is filled, left out, or not taken by the rank that has it, as ``tail`` says; a
    single rank leaves it out, unless it carries.

    Example:
        >>> [epoch_end(10, 0, 4, 2, tail) for tail in ("pad", "carry", "drop", "uneven")]
        [12, 16, 8, 10]
    """
    check_count(count)
    check_whole("start", start, 0)
    check_whole("world_size", world_size, 1)
    check_whole("batch_size", batch_size, 1)
    check_tail(tail)
    rest, whole = max(count - start, 0), world_size * batch_size
    unit = whole if drop_last or tail == "carry" else world_size
    down, up = start + rest // unit * unit, start + -(-rest // unit) * unit
    if tail == "carry" or (tail == "pad" and world_size > 1):
        return up
    if tail == "drop" or (world_size == 1 and drop_last):
        return down
    return start + rest
