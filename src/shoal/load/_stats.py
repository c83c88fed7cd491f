"""What a loader has done and what it waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

from shoal.codec import decoding_seconds
from shoal.store import statistics

__all__ = ["LoaderStats", "Meter", "Work"]

Work = Literal["fetch", "decode", "map", "collate"]
_KINDS: tuple[Work, ...] = ("fetch", "decode", "map", "collate")
_NAMES = {"fetch": "read", "decode": "decode", "map": "map", "collate": "collate"}


@dataclass(frozen=True)
class LoaderStats:
    """Counts and times of a loader so far.

    ``fetch`` is reading, with the decoding of text, numbers and arrays; ``decode`` is that of pictures, sound and
    films; ``map`` the user's functions, ``collate`` making batches of samples: seconds of work, summed over threads.
    ``wait`` is how long the caller waited for batches and ``busy`` how long it did something else between them.
    """

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    """Bytes of the batches, as they were delivered."""
    skipped: int = 0
    """Samples that were passed over because of errors."""
    repeated: int = 0
    """Samples that came a second time in an epoch, so that all ranks have equal steps."""
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
    """How far neighbours come from different shards: 1 is as far as chance brings them, 0 is not at all."""
    requests: int = 0
    """Requests to object stores by this process since the loader was made, whoever made them."""
    downloaded: int = 0
    """Bytes that those brought."""
    retries: int = 0
    """Those of them that repeated one that failed."""
    request_seconds: float = 0.0
    """How long they took, all added up."""
    tuning: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """What autotune tried, and how fast it was."""

    @property
    def wait_share(self) -> float:
        """How much of its time the caller waited."""
        return self.wait / (self.wait + self.busy) if self.wait + self.busy else 0.0

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bound_by(self) -> str:
        """What to change to be faster, in a few words: ``"decode-bound, 30 % wait"``."""
        share = f"{round(100 * self.wait_share)} % wait"
        if self.wait_share < 0.05:
            return f"consumer-bound, {share}"
        kind = max(_KINDS, key=lambda name: float(getattr(self, name)))
        return f"{_NAMES[kind]}-bound, {share}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        shown = {**asdict(self), "tuning": list(self.tuning)}
        return {**shown, "wait_share": self.wait_share, "rate": self.rate, "bound_by": self.bound_by}

    def __str__(self) -> str:
        return f"{self.samples:,} samples in {self.batches:,} batches, {self.rate:,.0f} a second; {self.bound_by}"


class Meter:
    """Adds up what threads report. Listeners are told after each batch, in the caller's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work = dict.fromkeys(_KINDS, 0.0)
        self._counts = {"batches": 0, "samples": 0, "bytes": 0, "skipped": 0, "repeated": 0}
        self._wait = self._busy = 0.0
        self._begun: float | None = None
        self._asked: float | None = None
        self._given: float | None = None
        self.first_batch: float | None = None
        self.last_wait = 0.0
        self._traffic = statistics()

    def after_fork(self) -> None:
        """In the child: a thread of the parent's may have held the lock."""
        self._lock = threading.Lock()
        self._traffic = statistics()

    @contextmanager
    def timed(self, kind: Work) -> Iterator[None]:
        """Count the time inside as work of this kind, but for what of it was decoding."""
        begun, decoded = time.perf_counter(), decoding_seconds()
        try:
            yield
        finally:
            decoded = decoding_seconds() - decoded
            self.add(kind, time.perf_counter() - begun - decoded)
            if decoded:
                self.add("decode", decoded)

    def add(self, kind: Work, seconds: float) -> None:
        """Count work that a thread has done."""
        with self._lock:
            self._work[kind] += seconds

    def count(self, name: str, more: int) -> None:
        """Count something that happened."""
        if more:
            with self._lock:
                self._counts[name] += more

    def asked(self) -> None:
        """The caller asks for a batch."""
        now = time.perf_counter()
        self._begun = now if self._begun is None else self._begun
        if self._given is not None:
            self._busy += now - self._given
        self._asked = now

    def given(self, samples: int, size: int) -> None:
        """The caller gets a batch."""
        now = time.perf_counter()
        if self._asked is not None:
            self.last_wait = now - self._asked
            self._wait += self.last_wait
        if self.first_batch is None and self._begun is not None:
            self.first_batch = now - self._begun
        self._given = now
        with self._lock:
            self._counts["batches"] += 1
            self._counts["samples"] += samples
            self._counts["bytes"] += size

    def paused(self) -> None:
        """The caller left: the time until it comes back is neither wait nor work."""
        self._given = self._asked = None

    @property
    def waited(self) -> tuple[float, float]:
        """Seconds waited and seconds busy, so far."""
        return self._wait, self._busy

    def stats(self, **facts: Any) -> LoaderStats:
        """All of it as a value."""
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
                **facts,
            )
