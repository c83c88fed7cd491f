"""Read several archives at once on threads, and give what they hold in the order of the archives.

- Success: steps come exactly as they would one archive after the other.
- Failure: an archive's exception is raised where its next step would have come, after all that came before it.
- Memory: no archive is begun before it is among the next ``workers``, and each holds at most ``most_bytes`` ahead (or
  one sample, where that is larger).
- Cancellation: ``stop`` wakes every thread; each closes its archive and ends. Threads are daemons, so an exiting
  interpreter waits for none of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from ._webdataset_archive import Step

__all__ = ["ReadAhead"]

_BATCH_STEPS, _BATCH_BYTES = 64, 256 << 10


@dataclass(slots=True)
class _Lane:
    """What one archive has given and nobody has taken."""

    batches: deque[tuple[list[Step], int]] = field(default_factory=deque)
    held: int = 0
    ended: bool = False
    error: BaseException | None = None


class ReadAhead:
    """Reads the archives from ``first`` up to ``count`` on ``workers`` threads; ``read(number)`` gives one's steps."""

    def __init__(
        self, read: Callable[[int], Generator[Step]], first: int, count: int, workers: int, most_bytes: int
    ) -> None:
        self._read = read
        self._next = first
        self._first = first
        self._count = count
        self._workers = workers
        self._most = most_bytes
        self._lanes: dict[int, _Lane] = {}
        self._taking = first
        self._stopped = False
        self._change = threading.Condition()
        self._threads: list[threading.Thread] = []

    def steps(self, number: int) -> Generator[Step]:
        """The steps of one archive. Archives are asked for one after the other."""
        self._start()
        with self._change:
            self._taking = number
            self._change.notify_all()
        while (batch := self._take(number)) is not None:
            yield from batch
        with self._change:
            lane = self._lanes.pop(number)
            self._taking = number + 1
            self._change.notify_all()
        if lane.error is not None:
            raise lane.error

    def stop(self, *, wait: bool = True) -> None:
        """End the threads; ``wait`` until they have let go of their archives."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        if wait:
            for thread in self._threads:
                thread.join()

    def _start(self) -> None:
        if not self._threads:
            count = min(self._workers, self._count - self._first)
            self._threads = [
                threading.Thread(target=self._work, name=f"shoal-read-ahead-{number}", daemon=True)
                for number in range(count)
            ]
            for thread in self._threads:
                thread.start()

    def _work(self) -> None:
        while (number := self._begin()) is not None:
            error: BaseException | None = None
            try:
                self._run(number)
            except BaseException as raised:  # noqa: BLE001 - whatever it is, the consumer gets it, in its place
                error = raised
            with self._change:
                lane = self._lanes[number]
                lane.ended, lane.error = True, error
                self._change.notify_all()

    def _begin(self) -> int | None:
        """The next archive, once it is near enough."""
        with self._change:
            while not self._stopped and self._next < self._count and self._next >= self._taking + self._workers:
                self._change.wait()
            if self._stopped or self._next >= self._count:
                return None
            number, self._next = self._next, self._next + 1
            self._lanes[number] = _Lane()
            self._change.notify_all()
            return number

    def _run(self, number: int) -> None:
        batch: list[Step] = []
        size = offset = 0
        steps = self._read(number)
        try:
            for step in steps:
                batch.append(step)
                size += max(0, step.place.offset - offset)
                offset = step.place.offset
                if len(batch) >= _BATCH_STEPS or size >= _BATCH_BYTES:
                    if not self._put(number, batch, size):
                        return
                    batch, size = [], 0
        finally:
            steps.close()
            if batch:
                self._put(number, batch, size)

    def _put(self, number: int, batch: list[Step], size: int) -> bool:
        with self._change:
            lane = self._lanes[number]
            while not self._stopped and lane.held and lane.held + size > self._most:
                self._change.wait()
            lane.batches.append((batch, size))
            lane.held += size
            self._change.notify_all()
            return not self._stopped

    def _take(self, number: int) -> list[Step] | None:
        with self._change:
            while True:
                lane = self._lanes.get(number)
                if lane is not None and lane.batches:
                    batch, size = lane.batches.popleft()
                    lane.held -= size
                    self._change.notify_all()
                    return batch
                if lane is not None and lane.ended:
                    return None
                self._change.wait()
