"""How loaders are measured: each in a process of its own, told when its turn is.

So none can leave threads, settings or memory to another, and what a contender's processes take can be counted. A turn
lasts a few seconds, over as many epochs as that takes. The rate is counted from some time after the first batch on, so
that all have started; how long the first batch takes is told by itself. Seconds of the processor are of the whole turn.
"""

from __future__ import annotations

import gc
import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ._disk import FOLDER, freshly_cached

__all__ = ["Loader", "Turns", "endless", "take_turns"]


@dataclass(frozen=True)
class Loader:
    """A contender. ``begin`` gives the number of samples in each batch, as they come, with its epochs' ends unseen."""

    name: str
    begin: Callable[[], Iterator[int]]
    prepare: Callable[[], object] = lambda: None
    """Done once, and not timed: writes the files it reads."""
    warm_up: float = 0.75
    """Seconds after the first batch that do not count."""


@dataclass
class Turns:
    """What came of a contender's turns."""

    name: str
    rates: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    seconds_of_cpu: list[float] = field(default_factory=list)
    why_not: str = ""
    """Why it cannot run here."""

    @property
    def rate(self) -> float:
        """Samples a second."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def first(self) -> float:
        """Seconds until the first batch."""
        return statistics.median(self.firsts)

    @property
    def cpu(self) -> float:
        """Seconds of all processors a sample."""
        return statistics.median(self.seconds_of_cpu)


def endless(epoch: Callable[[], Iterable[int]]) -> Iterator[int]:
    """Epoch after epoch."""
    while True:
        yield from epoch()


class _Started:
    """The process of one contender."""

    def __init__(self, module: str, name: str) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks._loader_turns", module, name]
        self.turns = Turns(name)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self, seconds: float) -> dict[str, float] | None:
        """Have it run; None when it cannot."""
        if self.turns.why_not or self._process.stdin is None or self._process.stdout is None:
            return None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        lines = iter(self._process.stdout.readline, "")
        said = next((line[len(_MARK) :] for line in lines if line.startswith(_MARK)), '{"why_not": "it crashed"}')
        answer: dict[str, float] = json.loads(said)
        self.turns.why_not = str(answer.get("why_not", ""))
        return None if self.turns.why_not else answer

    def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def take_turns(module: str, names: Sequence[str], rounds: int = 5, seconds: float = 1.5) -> dict[str, Turns]:
    """Let the loaders of a module run ``rounds`` times each, taking turns; the first turn of each is not counted."""
    freshly_cached(FOLDER / "loader")
    started = [_Started(module, name) for name in names]
    for number in range(rounds + 1):
        for one in started:
            found = one.turn(seconds)
            if found is not None and number:
                one.turns.rates.append(found["rate"])
                one.turns.firsts.append(found["first"])
                one.turns.seconds_of_cpu.append(found["cpu"])
    for one in started:
        one.end()
    return {one.turns.name: one.turns for one in started}


_MARK = "turn "


def _cpu() -> float:
    """Seconds of the processor that this process and those it started, and saw end, have taken."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _turn(loader: Loader, seconds: float) -> dict[str, float]:
    gc.collect()
    cpu, begun = _cpu(), time.perf_counter()
    batches = loader.begin()
    total = uncounted = next(batches)
    first = now = since = time.perf_counter()
    while now - since < seconds:
        total += next(batches)
        now = time.perf_counter()
        if now - first < loader.warm_up:
            since, uncounted = now, total
    batches.close()  # type: ignore[attr-defined] # a generator: its workers end here, and are counted
    del batches
    gc.collect()
    return {"rate": (total - uncounted) / (now - since), "first": first - begun, "cpu": (_cpu() - cpu) / total}


def _serve(module: str, name: str) -> None:
    loader = next(one for one in importlib.import_module(module).LOADERS if one.name == name)
    is_prepared = False
    for line in sys.stdin:
        try:
            if not is_prepared:
                loader.prepare()
                is_prepared = True
            answer: dict[str, float | str] = {**_turn(loader, float(line))}
        except Exception as error:  # noqa: BLE001 - told in the table
            traceback.print_exc()
            answer = {"why_not": f"{type(error).__name__}: {error}"}
        print(_MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
