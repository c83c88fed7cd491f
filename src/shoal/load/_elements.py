"""What goes down the line: an element, how many samples are in it, and where to go on after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.order import Pending

__all__ = ["Element", "EpochEnd", "Mark"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Where to go on, so that nothing comes twice and nothing is left out.

    ``position`` is the first place on the line that is not used up. ``part`` says how much of what came of the sample
    there is used already. ``pending`` are samples before it that are read and not yet delivered, in the groups they
    wait in. ``count`` is how many elements came before: what is skipped where only replaying helps.
    """

    position: int
    part: int = 0
    pending: tuple[tuple[Pending, ...], ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Element:
    """A sample, or a batch."""

    value: Any
    samples: int
    mark: Mark
    key: Pending = (0, 0, 0)
    """Which sample it came of, where it is of one."""
    repeated: int = 0
    """How many of its samples came already in this epoch."""
    size: int = 0
    """Bytes, where that was looked at."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Stands between the elements of two epochs."""

    epoch: int
    mark: Mark = field(default_factory=lambda: Mark(0))
    """Where the next epoch begins."""
