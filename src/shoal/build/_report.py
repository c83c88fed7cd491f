"""The report of a build, and its progress while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.shard._manifest import ShardRecord
from shoal.store._url import join_url

from ._tasks import BuiltShard, Failure

__all__ = ["BuildProgress", "BuildReport", "ProgressMeter", "make_report", "progress_meter"]


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The result of a build: its shards, and the items that are not in them and why."""

    root: str
    splits: dict[str, tuple[ShardRecord, ...]]
    failures: tuple[Failure, ...] = ()
    dropped: int = 0
    """Items of which the function made nothing."""
    duplicates: int = 0
    """Items left out because an earlier one has the same content."""
    written: int = 0
    """Shards that this run wrote; the others were there from an earlier one."""
    seconds: float = 0.0
    """How long this run took."""

    @property
    def shards(self) -> tuple[ShardRecord, ...]:
        """The shards of all splits."""
        return tuple(record for records in self.splits.values() for record in records)

    @property
    def urls(self) -> list[str]:
        """Where the shards are."""
        return [join_url(self.root, record.path) for record in self.shards]

    @property
    def samples(self) -> int:
        """How many samples the shards hold."""
        return sum(record.samples for record in self.shards)

    @property
    def bytes(self) -> int:
        """How many bytes the shards take."""
        return sum(record.bytes for record in self.shards)

    @property
    def ok(self) -> bool:
        """Whether no item failed."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values, without those that differ from run to run."""
        return {
            "samples": self.samples,
            "bytes": self.bytes,
            "failed": len(self.failures),
            "dropped": self.dropped,
            "duplicates": self.duplicates,
            "splits": {
                split: [{"path": one.path, "samples": one.samples, "bytes": one.bytes} for one in records]
                for split, records in self.splits.items()
            },
            "failures": [msgspec.to_builtins(failure) for failure in self.failures],
        }


def make_report(
    root: str, builts: Iterable[BuiltShard], *, duplicates: int = 0, written: int = 0, seconds: float = 0.0
) -> BuildReport:
    """Make the report of shards that are in the order of the plan; shards without samples are left out."""
    splits: dict[str, tuple[ShardRecord, ...]] = {}
    failures: list[Failure] = []
    dropped = 0
    for built in builts:
        failures += built.failures
        dropped += built.dropped
        duplicates += built.duplicates
        if built.record.samples:
            splits[built.split] = (*splits.get(built.split, ()), built.record)
    return BuildReport(root, splits, tuple(failures), dropped, duplicates, written, seconds)


_INTERVAL_S = 0.1
"""Seconds between two updates of the progress."""


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
    """Seconds that are left at this rate; None where that is unknown."""


@dataclass
class ProgressMeter:
    """Counts samples and bytes, and reports the progress at intervals."""

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
        """Start a phase, with counts of zero."""
        self.phase, self.total, self.before = phase, total, before
        self.samples = self.bytes = 0
        self._begin = self.clock()

    def tell(self, samples: int, size: int) -> None:
        """Count items that are done, and report the progress where the interval has passed."""
        self.samples += samples
        self.bytes += size
        if self.show is not None and (now := self.clock()) - self._last >= _INTERVAL_S:
            self._last = now
            self.show(self.now())

    def now(self) -> BuildProgress:
        """Return the current progress."""
        seconds = self.clock() - self._begin
        rate = self.samples / seconds if seconds > 0 else 0.0
        done = self.before + self.samples
        eta = (self.total - done) / rate if self.total is not None and rate > 0 else None
        return BuildProgress(self.phase, done, self.total, self.bytes, self.shards, self.failures, seconds, rate, eta)

    def finish(self) -> None:
        """Report the final progress."""
        if self.show is not None:
            self.show(self.now())


@contextmanager
def progress_meter(progress: bool | Callable[[BuildProgress], object] | None) -> Iterator[ProgressMeter]:
    """Open a meter that calls a function, or shows a line on stderr (True; None where that is a terminal)."""
    if callable(progress):
        yield ProgressMeter(progress)
    elif progress or (progress is None and sys.stderr.isatty()):
        with _progress_line() as show:
            yield ProgressMeter(show)
    else:
        yield ProgressMeter()


@contextmanager
def _progress_line() -> Iterator[Callable[[BuildProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:  # else the last line stays
        task = bar.add_task("building", total=None, facts="")

        def show(now: BuildProgress) -> None:
            fields: Any = {"facts": _format_progress(now)}
            bar.update(task, description=now.phase, completed=now.samples, total=now.total, **fields)

        yield show


def _format_progress(now: BuildProgress) -> str:
    """Return the numbers of the progress line.

    Examples:
        >>> _format_progress(BuildProgress("building", 1500, 3000, 20_000_000, 2, 1, 10.0, 150.0, 10.0))
        '1,500/3,000  150/s  2.0 MB/s  2 shards  0:10 left  1 failed'
    """
    total = "" if now.total is None else f"/{now.total:,}"
    speed = now.bytes / now.seconds / 1e6 if now.seconds > 0 else 0.0
    parts = [f"{now.samples:,}{total}", f"{now.rate:,.0f}/s", f"{speed:,.1f} MB/s", f"{now.shards} shards"]
    if now.eta is not None:
        parts.append(f"{int(now.eta) // 60}:{int(now.eta) % 60:02d} left")
    return "  ".join([*parts, *([f"{now.failures} failed"] if now.failures else [])])
