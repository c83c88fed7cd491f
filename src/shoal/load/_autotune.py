"""Autotune: how many threads, and how many batches ahead, found while the loader runs.

**Look around.** All threads there may be and half of them, of many half first; where all do not help, half as many
again and again while little is lost, down to none at all: the caller's own. **Race.** Those that came near the best
and were not clearly slower than one before take turns, and each turn is compared with the others of its round only,
since the machine and the data change meanwhile: the first epoch is read, a later one may be in memory. What is best
over the rounds is **settled**. When the caller hardly waits there is nothing to gain, and nothing is changed. When the
rate leaves what was settled, for several spans in a row, the search begins anew.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Tuner", "Tuning"]

_LEAST_BATCHES = 8
_LEAST_SECONDS = 0.1
_SLOW_BATCHES, _SLOW_SECONDS = 2, 1.0
"""Enough, too: where batches take long, nobody waits for eight of them."""
_WAITS = 0.05
"""The share of its time that the caller may wait without anything being changed."""
_GAIN = 1.03
"""What all threads must gain over half of them for fewer not to be tried."""
_LOST = 0.7
"""What half of them may lose for fewer still to be tried."""
_FEW = 4
"""So many threads are all begun with: pictures are decoded by all cores from the first batch on."""
_NEAR = 0.3
"""The share of the best rate seen that takes a setting into the race."""
_CLEARLY_LESS = 0.6
"""The share of an earlier setting's rate below which one is out: what changes with time is mostly for the better."""
_ROUNDS = 3
_FELL, _ROSE = 0.5, 2.0
"""Rates, by the settled one, at which something has changed."""
_PATIENCE = 10
"""Spans in a row that say so."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """One setting that was tried."""

    workers: int
    prefetch: int
    rate: float
    """Batches a second."""
    wait_share: float


class Tuner:
    """Decides the settings that are ``"auto"``; asked after every batch."""

    def __init__(
        self,
        workers: int | None,
        prefetch: int | None,
        most_workers: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._fixed_workers = workers
        self._fixed_prefetch = prefetch
        self._most = max(1, most_workers or os.cpu_count() or 1)
        self._clock = clock
        self.workers = _first(self._most) if workers is None else workers
        self.tried: list[Tuning] = []
        self._search: _Search | None = None if workers is not None else _Search(self._most)
        self._settled_rate = 0.0
        self._changed = 0
        """Spans in a row whose rate was not the settled one."""
        self._depth_factor = 2
        self._last = clock()
        """When the last batch was delivered."""
        self._is_back = False
        """The caller was away since."""
        self._begin(self._last, passed=1)

    def _begin(self, now: float, passed: int) -> None:
        """Measure from here on, after ``passed`` batches that were made under another setting."""
        self._since, self._batches, self._waited, self._passed = now, 0, 0.0, passed

    @property
    def prefetch(self) -> int:
        """How many batches may be under way or ready."""
        if self._fixed_prefetch is not None:
            return self._fixed_prefetch
        return max(2, self._depth_factor * max(1, self.workers))

    def step(self, waited: float) -> None:
        """A batch was delivered after so many seconds of waiting."""
        now = self._clock()
        away = now - self._last if self._is_back else 0.0
        self._last, self._is_back = now, False
        if away:
            self._since += away
            return
        if self._passed:
            self._begin(now, self._passed - 1)
            return
        self._batches += 1
        self._waited += waited
        seconds = now - self._since
        if (self._batches >= _LEAST_BATCHES and seconds >= _LEAST_SECONDS) or (
            self._batches >= _SLOW_BATCHES and seconds >= _SLOW_SECONDS
        ):
            self._judge(now)

    def resume(self) -> None:
        """The caller was away, as between two epochs: the time up to its next batch does not count.

        What was measured before does: an epoch may be shorter than a span.
        """
        self._is_back = True

    def _judge(self, now: float) -> None:
        seconds = now - self._since
        rate, share = self._batches / seconds, self._waited / seconds
        self.tried.append(Tuning(self.workers, self.prefetch, round(rate, 2), round(share, 3)))
        del self.tried[:-64]
        before, depth = self.workers, self.prefetch
        if share >= _WAITS:
            self._change(rate)
        # What is ready or under way was made by the setting before.
        self._begin(now, passed=0 if self.workers == before else depth + 1)

    def _change(self, rate: float) -> None:
        if self._fixed_workers is not None:
            if self._fixed_prefetch is None and self._depth_factor < 4:
                self._depth_factor += 1
        elif self._search is not None:
            self._go_on(self._search, rate)
        elif self._is_changed(rate):
            self._search = _Search(self._most)
            self.workers = _first(self._most)

    def _go_on(self, search: _Search, rate: float) -> None:
        self.workers = search.next(rate)
        if search.is_over:
            self._search, self._settled_rate, self._changed = None, search.rate, 0

    def _is_changed(self, rate: float) -> bool:
        is_same = _FELL * self._settled_rate <= rate <= _ROSE * self._settled_rate
        self._changed = 0 if is_same else self._changed + 1
        return self._changed >= _PATIENCE

    def steps(self) -> tuple[dict[str, Any], ...]:
        """What was tried, oldest first."""
        return tuple(
            {"workers": one.workers, "prefetch": one.prefetch, "rate": one.rate, "wait_share": one.wait_share}
            for one in self.tried
        )


def _first(most: int) -> int:
    """Where a search begins: far enough to decode at once, not so far that small samples only wait for each other."""
    return most if most <= _FEW else most // 2


class _Search:
    """One search: told the rate of a setting, it says which is next."""

    def __init__(self, most: int) -> None:
        self.is_over = False
        self.rate = 0.0
        """That of the best, when it is over."""
        self._rates: dict[int, list[float]] = {}
        self._now = _first(most)
        self._settings = self._order(most)
        next(self._settings)

    def next(self, rate: float) -> int:
        """The setting to try after the one that ran at this rate; the best one, when it is over."""
        self._rates.setdefault(self._now, []).append(rate)
        self._now = next(self._settings)
        return self._now

    def _order(self, most: int) -> Iterator[int]:
        yield from self._around(most)
        near = self._near()
        if len(near) > 1:
            self._rates.clear()
            for turn in range(_ROUNDS):  # now forward, now back: what changes slowly favours none
                yield from near if turn % 2 else reversed(near)
        best = max(near, key=lambda setting: self._score(setting, near))
        self.is_over, self.rate = True, max(self._rates[best])  # another may have been disturbed
        yield best

    def _around(self, most: int) -> Iterator[int]:
        half = most // 2
        yield from (most, half) if most <= _FEW else (half, most)
        if most > 2 and self._last(most) >= _GAIN * self._last(half):
            if most > _FEW:  # between few there is nothing
                yield 3 * most // 4
            return
        before, now = most, half
        while now and self._last(now) >= _LOST * self._last(before):
            before, now = now, now // 2
            yield now

    def _near(self) -> list[int]:
        """Those that may be the best, in the order in which they were tried."""
        found, before, least = [], 0.0, _NEAR * max(map(max, self._rates.values()))
        for setting in self._rates:
            if self._last(setting) >= max(least, _CLEARLY_LESS * before):
                found.append(setting)
            before = max(before, self._last(setting))
        return found

    def _last(self, setting: int) -> float:
        return self._rates[setting][-1]

    def _score(self, setting: int, near: list[int]) -> float:
        """How near it came to the best of its round, in the median over rounds: one may have been disturbed."""
        rounds = zip(*(self._rates[other] for other in near), strict=True)
        near_best = [rate / max(others) for rate, others in zip(self._rates[setting], rounds, strict=True)]
        return float(statistics.median(near_best))
