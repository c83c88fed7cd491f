"""What goes down the line: an element, how many samples are in it, and where to go on after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.order import Pending

__all__ = ["Element", "EpochEnd", "Held", "Mark", "Worked", "fed_again"]


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


Held = list[list[Element]]
"""Elements that a step held back when it was left, in the groups they waited in."""


def fed_again(held: Held) -> Iterator[Element]:
    """Elements that were held back, one after the other; those that are still to be fed wait in the mark of each."""
    for at, group in enumerate(held):
        later = tuple(tuple(element.key for element in other) for other in held[at + 1 :])
        for place, element in enumerate(group):
            rest = tuple(other.key for other in group[place + 1 :])
            yield replace(element, mark=replace(element.mark, pending=(rest, *later) if rest else later))


@dataclass(frozen=True, slots=True)
class Worked:
    """What came of one unit of work."""

    elements: list[Element]
    skipped: int = 0
    """Samples of it that failed and were passed over."""

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return sum(element.size for element in self.elements)


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Stands between the elements of two epochs."""

    epoch: int
    mark: Mark = field(default_factory=lambda: Mark(0))
    """Where the next epoch begins."""
