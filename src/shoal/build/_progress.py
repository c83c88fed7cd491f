"""How far a build is: told to a function of the user's, or shown on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BuildProgress", "Meter", "metered"]

_EVERY = 0.1
"""Seconds between two tellings."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is."""

    phase: str
    """``hashing`` while duplicates are looked for, then ``building``."""
    samples: int
    """Items that are through, those of earlier runs included."""
    total: int | None
    """All items; None for a stream."""
    bytes: int
    """Written by this run."""
    shards: int
    failures: int
    seconds: float
    rate: float
    """Items a second, of this run."""
    eta: float | None
    """Seconds that are left at this rate; None where nobody knows."""


@dataclass
class Meter:
    """Counts, and tells now and then."""

    show: Callable[[BuildProgress], object] | None = None
    clock: Callable[[], float] = time.monotonic
    phase: str = "building"
    total: int | None = None
    before: int = 0
    """Items that earlier runs had done."""
    samples: int = 0
    bytes: int = 0
    shards: int = 0
    failures: int = 0
    _begin: float = field(default=0.0, init=False)
    _last: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._begin = self._last = self.clock()

    def start(self, phase: str, total: int | None, before: int = 0) -> None:
        """Begin to count anew."""
        self.phase, self.total, self.before = phase, total, before
        self.samples = self.bytes = 0
        self._begin = self.clock()

    def tell(self, samples: int, size: int) -> None:
        """Count what is through, and say so when it is time."""
        self.samples += samples
        self.bytes += size
        if self.show is not None and (now := self.clock()) - self._last >= _EVERY:
            self._last = now
            self.show(self.now())

    def now(self) -> BuildProgress:
        """How far it is."""
        seconds = self.clock() - self._begin
        rate = self.samples / seconds if seconds > 0 else 0.0
        done = self.before + self.samples
        eta = (self.total - done) / rate if self.total is not None and rate > 0 else None
        return BuildProgress(self.phase, done, self.total, self.bytes, self.shards, self.failures, seconds, rate, eta)

    def finish(self) -> None:
        """Tell the end."""
        if self.show is not None:
            self.show(self.now())


@contextmanager
def metered(progress: bool | Callable[[BuildProgress], object] | None) -> Iterator[Meter]:
    """A meter that tells a function, or a line on stderr: asked for by True, and by None where stderr is a terminal."""
    if callable(progress):
        yield Meter(progress)
    elif progress or (progress is None and sys.stderr.isatty()):
        with _line() as show:
            yield Meter(show)
    else:
        yield Meter()


@contextmanager
def _line() -> Iterator[Callable[[BuildProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:  # else the last line stays
        task = bar.add_task("building", total=None, facts="")

        def show(now: BuildProgress) -> None:
            fields: Any = {"facts": _facts(now)}
            bar.update(task, description=now.phase, completed=now.samples, total=now.total, **fields)

        yield show


def _facts(now: BuildProgress) -> str:
    """The numbers of a line.

    Example:
        >>> _facts(BuildProgress("building", 1500, 3000, 20_000_000, 2, 1, 10.0, 150.0, 10.0))
        '1,500/3,000  150/s  2.0 MB/s  2 shards  0:10 left  1 failed'
    """
    whole = "" if now.total is None else f"/{now.total:,}"
    speed = now.bytes / now.seconds / 1e6 if now.seconds > 0 else 0.0
    parts = [f"{now.samples:,}{whole}", f"{now.rate:,.0f}/s", f"{speed:,.1f} MB/s", f"{now.shards} shards"]
    if now.eta is not None:
        parts.append(f"{int(now.eta) // 60}:{int(now.eta) % 60:02d} left")
    return "  ".join([*parts, *([f"{now.failures} failed"] if now.failures else [])])
