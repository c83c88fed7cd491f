"""How everything here is measured: contenders take turns, several rounds, and the median counts.

Machines are noisy. Running one contender five times and then the next compares two moments; taking turns compares two
programs. Numbers are ratios, because seconds belong to one machine.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Contender", "Measured", "Question", "measure"]


@dataclass(frozen=True)
class Contender:
    """Something that does the work. ``run`` returns how many units it did: a slow peer may do fewer."""

    name: str
    run: Callable[[], int]
    prepare: Callable[[], object] = lambda: None
    """Done before each turn, and not timed."""


@dataclass(frozen=True)
class Measured:
    """Seconds a unit: the median, and the best and worst round."""

    name: str
    median: float
    best: float
    worst: float


@dataclass(frozen=True)
class Question:
    """What was asked, and the table that answers it."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def markdown(self) -> str:
        """The answer as a table."""
        lines = [f"## {self.title}", "", self.text, "", _row(self.header), _row(["---"] * len(self.header))]
        return "\n".join([*lines, *(_row(row) for row in self.rows), ""])


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def measure(contenders: list[Contender], rounds: int = 5) -> dict[str, Measured]:
    """Time each contender ``rounds`` times, taking turns; the first turn of each is not counted."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for round_number in range(rounds + 1):
        for contender in contenders:
            contender.prepare()
            gc.collect()
            start = time.perf_counter()
            units = contender.run()
            taken = (time.perf_counter() - start) / units
            if round_number:
                seconds[contender.name].append(taken)
    return {name: Measured(name, statistics.median(all_), min(all_), max(all_)) for name, all_ in seconds.items()}
