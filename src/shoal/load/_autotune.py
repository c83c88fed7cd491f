"""Autotune: find the number of threads and of prefetched batches while the loader runs.

**Explore.** Try all threads and half of them, half first if there are many. If all are not faster than half, halve
again while little is lost, down to zero: the caller's own thread. **Race.** Settings close to the best, and not clearly
slower than one tried before, take turns in several rounds. Each turn is compared with others of its round only, since
speed changes over time: the first epoch is read from storage, a later one may be in memory. The best setting over the
rounds is chosen. While the caller hardly waits, nothing is changed. If the rate stays far from that of the chosen
setting for several measurements in a row, the search starts again.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Tuner", "Tuning"]

_MIN_BATCHES = 8
_MIN_SECONDS = 0.1
_SLOW_BATCHES, _SLOW_SECONDS = 2, 1.0
"""Enough for a measurement too: where batches take long, eight of them would take too long."""
_MAX_WAIT_SHARE = 0.05
"""Fraction of its time that the caller may wait without anything being changed."""
_MIN_GAIN = 1.03
"""Rate of all threads over that of half of them from which on fewer are not tried."""
_MAX_LOSS = 0.7
"""Rate after halving over the rate before, down to which halving goes on."""
_SMALL_MACHINE_THREADS = 4
"""Up to this many, all threads are used from the start: images are decoded by all cores from the first batch on."""
_RACE_SHARE = 0.3
"""Fraction of the best rate that a setting needs to take part in the race."""
_SLOWER_SHARE = 0.6
"""A setting below this fraction of an earlier setting's rate is out: rates mostly rise with time."""
_ROUNDS = 3
_FELL, _ROSE = 0.5, 2.0
"""Rates, relative to that of the chosen setting, beyond which something has changed."""
_MAX_CHANGED = 10
"""Measurements in a row beyond those rates after which the search starts again."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """One setting that was tried."""

    workers: int
    prefetch: int
    rate: float
    """Batches per second."""
    wait_share: float


class Tuner:
    """Chooses the settings that are ``"auto"``; updated after every batch."""

    def __init__(
        self,
        workers: int | None,
        prefetch: int | None,
        max_workers: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._fixed_workers = workers
        self._fixed_prefetch = prefetch
        self._max_workers = max(1, max_workers or os.cpu_count() or 1)
        self._clock = clock
        self.workers = _first_setting(self._max_workers) if workers is None else workers
        self.is_fixed = workers is not None and (prefetch is not None or not workers)
        """Whether there is nothing to choose: without workers nothing is prefetched."""
        self.tried: list[Tuning] = []
        self._search: _Search | None = None if workers is not None else _Search(self._max_workers)
        self._chosen_rate = 0.0
        self._changed = 0
        """Measurements in a row whose rate was far from the chosen one."""
        self._depth_factor = 2
        self._last = clock()
        """When the last batch was delivered."""
        self._was_away = False
        """Whether the caller did something else since, as between two epochs."""
        self._start_measuring(self._last, skip=1)

    def _start_measuring(self, now: float, skip: int) -> None:
        """Measure from here on, after ``skip`` batches that were made under another setting."""
        self._since, self._batches, self._waited, self._skip = now, 0, 0.0, skip

    @property
    def prefetch(self) -> int:
        """How many batches may be in progress or ready."""
        if self._fixed_prefetch is not None:
            return self._fixed_prefetch
        return max(2, self._depth_factor * max(1, self.workers))

    def record_batch(self, waited: float) -> None:
        """Count a batch that was delivered after ``waited`` seconds."""
        now = self._clock()
        away = now - self._last if self._was_away else 0.0
        self._last, self._was_away = now, False
        if away:
            self._since += away
            return
        if self._skip:
            self._start_measuring(now, self._skip - 1)
            return
        self._batches += 1
        self._waited += waited
        seconds = now - self._since
        if (self._batches >= _MIN_BATCHES and seconds >= _MIN_SECONDS) or (
            self._batches >= _SLOW_BATCHES and seconds >= _SLOW_SECONDS
        ):
            self._evaluate(now)

    def resume(self) -> None:
        """Leave out the time up to the next batch: the caller was away, as between two epochs.

        The measurement before it goes on: an epoch may be shorter than a measurement.
        """
        self._was_away = True

    def _evaluate(self, now: float) -> None:
        seconds = now - self._since
        rate, share = self._batches / seconds, self._waited / seconds
        self.tried.append(Tuning(self.workers, self.prefetch, round(rate, 2), round(share, 3)))
        del self.tried[:-64]
        before, depth = self.workers, self.prefetch
        if share >= _MAX_WAIT_SHARE:
            self._change(rate)
        # Batches that are ready or in progress were made under the setting before.
        self._start_measuring(now, skip=0 if self.workers == before else depth + 1)

    def _change(self, rate: float) -> None:
        if self._fixed_workers is not None:
            if self._fixed_prefetch is None and self._depth_factor < 4:
                self._depth_factor += 1
        elif self._search is not None:
            self.workers = self._search.next(rate)
            if self._search.is_over:
                self._chosen_rate, self._search, self._changed = self._search.rate, None, 0
        elif self._has_changed(rate):
            self._search = _Search(self._max_workers)
            self.workers = _first_setting(self._max_workers)

    def _has_changed(self, rate: float) -> bool:
        is_same = _FELL * self._chosen_rate <= rate <= _ROSE * self._chosen_rate
        self._changed = 0 if is_same else self._changed + 1
        return self._changed >= _MAX_CHANGED

    def history(self) -> tuple[dict[str, Any], ...]:
        """Settings that were tried, oldest first."""
        return tuple(map(asdict, self.tried))


def _first_setting(max_workers: int) -> int:
    """Return the number of threads that a search starts with: enough to decode, few enough for small samples."""
    return max_workers if max_workers <= _SMALL_MACHINE_THREADS else max_workers // 2


class _Search:
    """One search: given the rate of a setting, it returns the next one to try."""

    def __init__(self, max_workers: int) -> None:
        self.is_over = False
        self.rate = 0.0
        """Rate of the best setting, once the search is over."""
        self._rates: dict[int, list[float]] = {}
        self._current = _first_setting(max_workers)
        self._settings = self._iter_settings(max_workers)
        next(self._settings)

    def next(self, rate: float) -> int:
        """Return the setting to try after the one that ran at this rate; the best one, once the search is over."""
        self._rates.setdefault(self._current, []).append(rate)
        self._current = next(self._settings)
        return self._current

    def _iter_settings(self, max_workers: int) -> Iterator[int]:
        yield from self._explore(max_workers)
        candidates = self._candidates()
        if len(candidates) > 1:
            self._rates.clear()
            for turn in range(_ROUNDS):  # forwards and backwards in turn, so that slow changes favour none
                yield from candidates if turn % 2 else reversed(candidates)
        best = max(candidates, key=lambda setting: self._score(setting, candidates))
        self.is_over, self.rate = True, max(self._rates[best])  # other rounds may have been disturbed
        yield best

    def _explore(self, max_workers: int) -> Iterator[int]:
        half = max_workers // 2
        yield from (max_workers, half) if max_workers <= _SMALL_MACHINE_THREADS else (half, max_workers)
        if max_workers > 2 and self._last_rate(max_workers) >= _MIN_GAIN * self._last_rate(half):
            if max_workers > _SMALL_MACHINE_THREADS:
                yield 3 * max_workers // 4
            return
        before, current = max_workers, half
        while current and self._last_rate(current) >= _MAX_LOSS * self._last_rate(before):
            before, current = current, current // 2
            yield current

    def _candidates(self) -> list[int]:
        """Settings that may be the best, in the order in which they were tried."""
        candidates, before, minimum = [], 0.0, _RACE_SHARE * max(map(max, self._rates.values()))
        for setting in self._rates:
            if self._last_rate(setting) >= max(minimum, _SLOWER_SHARE * before):
                candidates.append(setting)
            before = max(before, self._last_rate(setting))
        return candidates

    def _last_rate(self, setting: int) -> float:
        return self._rates[setting][-1]

    def _score(self, setting: int, candidates: list[int]) -> float:
        """Rate relative to the best of its round; the median over rounds, since one may have been disturbed."""
        rounds = zip(*(self._rates[other] for other in candidates), strict=True)
        shares = [rate / max(others) for rate, others in zip(self._rates[setting], rounds, strict=True)]
        return float(statistics.median(shares))
