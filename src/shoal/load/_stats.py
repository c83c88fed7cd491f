"""`LoaderStats`, what a loader has done and what it waits for, and the `Meter` that collects it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

from shoal.codec._codec import decoding_seconds
from shoal.store._statistics import statistics

__all__ = ["LoaderStats", "Meter", "Work"]

Work = Literal["fetch", "decode", "map", "collate"]
_KINDS: tuple[Work, ...] = ("fetch", "decode", "map", "collate")
_NAMES = {"fetch": "read", "decode": "decode", "map": "map", "collate": "collate"}


@dataclass(frozen=True)
class LoaderStats:
    """Counts and times of a loader so far.

    Seconds of work, summed over threads: ``fetch`` is reading, with decoding of text, numbers and arrays; ``decode``
    is decoding of images, audio and video; ``map`` is the user's functions; ``collate`` is making batches of samples.
    ``wait`` is how long the caller waited for batches and ``busy`` how long it did something else between them.
    """

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    """Bytes of the delivered batches."""
    skipped: int = 0
    """Samples skipped because of errors."""
    repeated: int = 0
    """Samples delivered a second time in an epoch, so that all ranks have equal steps."""
    epoch: int = 0
    wait: float = 0.0
    busy: float = 0.0
    fetch: float = 0.0
    decode: float = 0.0
    map: float = 0.0
    collate: float = 0.0
    first_batch: float | None = None
    """Seconds until the first batch."""
    seconds: float = 0.0
    workers: int = 0
    prefetch: int = 0
    ready: int = 0
    """Batches that are ready now."""
    over_fetch: float = 1.0
    """How often each block is read over all ranks: 1 where the world size divides the lanes."""
    shuffle_quality: float | None = None
    """How often neighbours are from different shards: 1 is as often as in a random order, 0 is never."""
    requests: int = 0
    """Requests to object stores by this process since the loader was created, including those of other code."""
    downloaded: int = 0
    """Bytes received in those requests."""
    retries: int = 0
    """Requests that repeated a failed one."""
    request_seconds: float = 0.0
    """Total seconds of those requests."""
    tuning: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """Settings that autotune tried, and how fast they were."""

    @property
    def wait_share(self) -> float:
        """Fraction of its time that the caller waited."""
        return self.wait / (self.wait + self.busy) if self.wait + self.busy else 0.0

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bound_by(self) -> str:
        """The bottleneck, in a few words: ``"decode-bound, 30 % wait"``."""
        share = f"{round(100 * self.wait_share)} % wait"
        if self.wait_share < 0.05:
            return f"consumer-bound, {share}"
        kind = max(_KINDS, key=lambda name: float(getattr(self, name)))
        return f"{_NAMES[kind]}-bound, {share}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and properties as plain values."""
        values = {**asdict(self), "tuning": list(self.tuning)}
        return {**values, "wait_share": self.wait_share, "rate": self.rate, "bound_by": self.bound_by}

    def __str__(self) -> str:
        return f"{self.samples:,} samples in {self.batches:,} batches, {self.rate:,.0f} a second; {self.bound_by}"


class Meter:
    """Collects the counts and times of one loader. Thread-safe, except for the methods about the caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work = dict.fromkeys(_KINDS, 0.0)
        self._counts = {"batches": 0, "samples": 0, "bytes": 0, "skipped": 0, "repeated": 0}
        self._wait = self._busy = 0.0
        self._first_request: float | None = None
        self._last_request: float | None = None
        self._last_delivery: float | None = None
        self.first_batch: float | None = None
        self.last_wait = 0.0
        self._traffic = statistics()

    def after_fork(self) -> None:
        """Reset in the child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._traffic = statistics()

    @contextmanager
    def timed(self, kind: Work) -> Iterator[None]:
        """Count the time inside as work of this kind, except for the part that was decoding."""
        begun, decoded = time.perf_counter(), decoding_seconds()
        try:
            yield
        finally:
            decoded = decoding_seconds() - decoded
            with self._lock:
                self._work[kind] += time.perf_counter() - begun - decoded
                self._work["decode"] += decoded

    def count_skipped(self, samples: int) -> None:
        """Count samples that failed and were skipped."""
        with self._lock:
            self._counts["skipped"] += samples

    def batch_requested(self) -> None:
        """Record that the caller requests a batch."""
        now = time.perf_counter()
        self._first_request = now if self._first_request is None else self._first_request
        if self._last_delivery is not None:
            self._busy += now - self._last_delivery
        self._last_request = now

    def batch_delivered(self, samples: int, repeated: int, size: int) -> None:
        """Record that the caller receives a batch."""
        now = time.perf_counter()
        if self._last_request is not None:
            self.last_wait = now - self._last_request
            self._wait += self.last_wait
        if self.first_batch is None and self._first_request is not None:
            self.first_batch = now - self._first_request
        self._last_delivery = now
        with self._lock:
            self._counts["batches"] += 1
            self._counts["samples"] += samples
            self._counts["repeated"] += repeated
            self._counts["bytes"] += size

    def pause(self) -> None:
        """Record that the caller has left: the time until it comes back is neither wait nor work."""
        self._last_delivery = self._last_request = None

    def stats(self, **others: Any) -> LoaderStats:
        """Return what was collected, with ``others`` for the fields that a meter does not have."""
        traffic = statistics() - self._traffic
        with self._lock:
            return LoaderStats(
                **cast("dict[str, Any]", {**self._counts, **self._work}),
                wait=self._wait,
                busy=self._busy,
                first_batch=self.first_batch,
                seconds=self._wait + self._busy,
                requests=sum(traffic.requests.values()),
                downloaded=traffic.bytes_read,
                retries=traffic.retries,
                request_seconds=traffic.seconds,
                **others,
            )
