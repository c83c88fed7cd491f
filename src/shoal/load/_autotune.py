"""Autotune: how many threads, and how many batches ahead, found while the loader runs.

It starts with one thread and grows while the caller waits. Each setting runs for a short while and is rated by batches
a second; when more threads stop helping, no threads at all are tried too, and the best stays. When the caller does not
wait there is nothing to gain and nothing is changed. A rate that falls by a quarter starts the search anew.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

__all__ = ["Tuner", "Tuning"]

_LEAST_BATCHES = 8
_LEAST_SECONDS = 0.1
_WAITS = 0.05
"""The share of its time that the caller may wait without anything being changed."""
_GAIN = 1.03
"""What one more thread must gain to be worth trying the next."""
_DRIFT = 0.75


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

    def __init__(self, workers: int | None, prefetch: int | None, most_workers: int | None = None) -> None:
        self._fixed_workers = workers
        self._fixed_prefetch = prefetch
        self._most = max(1, most_workers or os.cpu_count() or 1)
        self.workers = 1 if workers is None else workers
        self.tried: list[Tuning] = []
        self._best: dict[int, float] = {}
        self._settled = workers is not None
        self._depth_factor = 2
        self._begin(time.perf_counter())

    def _begin(self, now: float) -> None:
        self._since, self._batches, self._waited, self._first = now, 0, 0.0, True

    @property
    def prefetch(self) -> int:
        """How many batches may be under way or ready."""
        if self._fixed_prefetch is not None:
            return self._fixed_prefetch
        return max(2, self._depth_factor * max(1, self.workers))

    def step(self, waited: float) -> None:
        """A batch was delivered after so many seconds of waiting."""
        now = time.perf_counter()
        if self._first:  # made before the setting was changed
            self._begin(now)
            self._first = False
            return
        self._batches += 1
        self._waited += waited
        if self._batches >= _LEAST_BATCHES and now - self._since >= _LEAST_SECONDS:
            self._judge(now)

    def resume(self) -> None:
        """The caller was away: what was measured so far is of another time."""
        self._begin(time.perf_counter())

    def _judge(self, now: float) -> None:
        seconds = now - self._since
        rate, share = self._batches / seconds, self._waited / seconds
        self.tried.append(Tuning(self.workers, self.prefetch, round(rate, 2), round(share, 3)))
        del self.tried[:-64]
        known = self._best.get(self.workers, 0.0)
        self._best[self.workers] = max(known, rate)
        if share >= _WAITS:
            self._change(rate, known)
        self._begin(now)

    def _change(self, rate: float, known: float) -> None:
        if self._fixed_prefetch is None and self._depth_factor < 4 and self._fixed_workers is not None:
            self._depth_factor += 1
        if self._fixed_workers is not None:
            return
        if not known:
            return  # each setting is measured twice, and its better half counts
        if self._settled:
            if rate < _DRIFT * self._best[self.workers]:
                self._best, self._settled, self.workers = {}, False, max(1, self.workers)
            return
        self.workers = self._next()

    def _next(self) -> int:
        """The next setting to try; the best one, when all that may help were."""
        now = self.workers
        tried = self._best
        grows = now > 0 and now < self._most and now + 1 not in tried
        if grows and (now - 1 not in tried or now == 1 or tried[now] >= _GAIN * tried[now - 1]):
            return now + 1
        if 0 not in tried:
            return 0
        self._settled = True
        return max(tried, key=lambda workers: tried[workers])

    def steps(self) -> tuple[dict[str, Any], ...]:
        """What was tried, oldest first."""
        return tuple(
            {"workers": one.workers, "prefetch": one.prefetch, "rate": one.rate, "wait_share": one.wait_share}
            for one in self.tried
        )
