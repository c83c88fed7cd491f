"""Shuffle window: blocks of remote shards that are prefetched and kept until their last sample was read.

A loader knows which samples it will read, in which order. In a shuffled epoch neighbours are read far apart, which
would take one request per sample; here a request brings a block of neighbours, which stays in memory until all of them
were read. The order of a block shuffle bounds how many blocks there are at a time.

This is no `PrefetchQueue`: blocks are requested in order, but read in any order by several threads, stay until all of
their samples were read, and one that is needed early is fetched before the others.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from shoal._typing import IntArray
from shoal.errors import ShoalError
from shoal.store._concurrency import submit
from shoal.store._readers import PrefetchRange

from ._extents import shard_extents
from ._read_plan import is_run, prefetch_ranges
from ._shard import Shard
from ._source import ShardSource

__all__ = ["BlockRefCounts", "ReadSchedule", "SampleWindow"]

_BLOCK_BYTES = 8 << 20
"""Of samples that are read as they lie."""
_PREFETCH_BYTES = 32 << 20
"""On their way, or there, before they are needed."""
_MARGIN = 1.25
"""A lane's last window has some samples more than the others, and a block across two lanes stays longer."""
_MAX_CONCURRENCY = 32


@dataclass(frozen=True)
class ReadSchedule:
    """What is known beforehand of how samples will be read."""

    coming: Iterator[tuple[int, IntArray]]
    """Their numbers, in the order in which they will be read, some at a time, with their epoch."""
    count: int
    """How many samples there are."""
    block_samples: int | None
    """Neighbours that come together in the order, though not one after the other; None where they do that too."""
    spread: int
    """So many samples may be read between two of one block."""
    most_bytes: int
    """What may be held."""


class _Block:
    """Some samples' ranges, in one shard or two."""

    def __init__(self, name: int, parts: Sequence[tuple[Shard, list[tuple[int, int]]]]) -> None:
        self.name = name
        self.size = sum(stop - start for _, ranges in parts for start, stop in ranges)
        self._parts = parts
        self._segments: list[tuple[Shard, list[PrefetchRange]]] = []

    def begin(self) -> None:
        self._segments = [(shard, shard.far.hold(ranges)) for shard, ranges in self._parts if shard.far is not None]

    def run(self) -> None:
        for _, segments in self._segments:
            for segment in segments:
                segment.fetch()

    def drop(self) -> None:
        for shard, segments in self._segments:
            if shard.far is not None:
                shard.far.release(segments)
        self._segments = []


class _BlockQueue:
    """Runs the tasks of ``coming``, in its order, at most ``at_once`` at a time and ``most_bytes`` held.

    ``coming`` is asked on another thread, one call at a time, and may itself make requests: to open the next shard. It
    gives None when there is nothing for now; then it is asked again when something was let go of, or by `go_on`.
    What it raises ends it silently, since who reads the same comes upon the same. ``release`` lets go of what was
    used; ``close`` of everything.
    """

    def __init__(self, coming: Iterator[_Block | None], *, most_bytes: int, at_once: int) -> None:
        self._coming = coming
        self._most_bytes = most_bytes
        self.at_once = at_once
        """May be changed at any time."""
        self._lock = threading.Lock()
        self._waiting: deque[_Block] = deque()
        self._held: dict[int, _Block] = {}
        self._bytes = 0
        self._running = 0
        self._asking = self._ended = self._closed = self._paused = False
        self._process = os.getpid()
        self.most_held = 0
        """The most bytes that were held at a time."""

    @property
    def is_usable(self) -> bool:
        """Not in a forked child: it has none of the threads, and locks may be held by one of them."""
        return self._process == os.getpid()

    def go_on(self) -> None:
        """Begin whatever may be begun now."""
        if not self.is_usable:
            return
        self._paused = False
        self._continue()

    def _continue(self) -> None:
        self._start(self._begun())

    def _start(self, tasks: Iterable[_Block]) -> None:
        for task in tasks:
            submit(functools.partial(self._run, task))

    def _begun(self) -> list[_Block]:
        """Tasks that were begun just now, and are to be run."""
        begun: list[_Block] = []
        with self._lock:
            if self._closed:
                return []
            while self._waiting and self._running < self.at_once and self._fits(self._waiting[0]):
                task = self._waiting.popleft()
                if task.name not in self._held:  # or it was hurried
                    begun.append(self._begin(task))
                    self._running += 1
            ask = not (self._asking or self._ended or self._paused) and len(self._waiting) < self.at_once
            self._asking = self._asking or ask
        if ask:
            submit(self._ask)
        return begun

    def _fits(self, task: _Block) -> bool:
        return not self._bytes or self._bytes + task.size <= self._most_bytes

    def _begin(self, task: _Block) -> _Block:
        self._held[task.name] = task
        self._bytes += task.size
        self.most_held = max(self.most_held, self._bytes)
        task.begin()
        return task

    def _ask(self) -> None:
        """Have a few more tasks."""
        found: list[_Block] = []
        ended = True
        try:
            while len(found) < self.at_once and not self._closed and not self._paused:
                task = next(self._coming)
                self._paused = task is None
                found += [] if task is None else [task]
            ended = False
        except (StopIteration, ShoalError):
            pass
        finally:
            with self._lock:
                self._asking, self._ended = False, ended
                self._waiting += found
        self._continue()

    def _run(self, task: _Block) -> None:
        """This task and then the next: the same thread, because each has its own memory for what it makes."""
        begun = [task]
        while begun:
            try:
                if not self._closed:
                    begun[0].run()
            finally:
                with self._lock:
                    self._running -= 1
            begun = self._begun()
            self._start(begun[1:])

    def hurry(self, tasks: Iterable[_Block]) -> None:
        """Begin these now, whatever else is under way, if they may still be held."""
        if not self.is_usable:
            return
        begun: list[_Block] = []
        with self._lock:
            for task in tasks:
                if task.name not in self._held and self._fits(task) and not self._closed:
                    begun.append(self._begin(task))
                    self._running += 1
        self._start(begun)

    def is_held(self, name: int) -> bool:
        """Whether the task of this name has begun and was not let go of."""
        return name in self._held

    def release(self, is_over: Callable[[int], bool]) -> None:
        """Let go of all whose names are over."""
        if not self.is_usable:
            return
        with self._lock:
            gone = [self._held.pop(name) for name in [name for name in self._held if is_over(name)]]
            self._bytes -= sum(task.size for task in gone)
        for task in gone:
            task.drop()
        self.go_on()

    def close(self) -> None:
        """Let go of everything. What is on its way is dropped as it comes."""
        if not self.is_usable:
            return
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self.release(lambda _: True)


class SampleWindow:
    """Fetches the samples of a `ReadSchedule` before they are read, in few large requests and in bounded memory.

    ``rows_of`` gives the rows in ``source`` of samples by number, ``fields`` says what is read of them. Reads of the
    source's shards find what is there by themselves; those that come early wait for what is under way, and fetch what
    nobody has asked for. ``reading`` is told what is read, so that what has been used is let go of.
    """

    def __init__(
        self,
        source: ShardSource,
        foresight: ReadSchedule,
        rows_of: Callable[[IntArray], IntArray],
        fields: Callable[[int], Sequence[str] | None],
        mean_bytes: float,
    ) -> None:
        self._source = source
        self._rows_of = rows_of
        self._fields = fields
        self._count = foresight.count
        self._block = foresight.block_samples or max(1, int(_BLOCK_BYTES / mean_bytes))
        self._coming = foresight.coming
        self._spread = int(_MARGIN * foresight.spread) + (0 if foresight.block_samples else self._block)
        self._lock = threading.Lock()
        self._uses = BlockRefCounts()
        self._named: set[int] = set()
        """Blocks that are held, or will be."""
        self._renewed: set[int] = set()
        """Those that the next epoch needs again soon, so that they stay."""
        self._most_known = self._spread + int(2 * _PREFETCH_BYTES / mean_bytes)
        """So many samples are looked ahead, at most."""
        block_bytes = max(1, int(self._block * mean_bytes))
        most = min(foresight.most_bytes, int(self._spread / _MARGIN * mean_bytes) + _PREFETCH_BYTES)
        at_once = max(4, min(_MAX_CONCURRENCY, _PREFETCH_BYTES // block_bytes))
        self._ahead = _BlockQueue(self._tasks(), most_bytes=most, at_once=at_once)

    @property
    def most_held(self) -> int:
        """The most bytes that were held at a time."""
        return self._ahead.most_held

    def go_on(self) -> None:
        """Begin to fetch."""
        self._ahead.go_on()

    @contextmanager
    def reading(self, numbers: IntArray) -> Iterator[None]:
        """These samples are read inside."""
        if not self._ahead.is_usable:
            yield
            return
        self._need(numbers)
        try:
            yield
        finally:
            with self._lock:
                over = self._let_go(self._uses.read(numbers // self._block))
            if over:
                self._ahead.release(lambda name: name in over)
            else:
                self._ahead.go_on()

    def _let_go(self, over: set[int]) -> set[int]:
        """Those of the blocks that nobody needs soon."""
        gone = over - self._renewed
        self._renewed -= over
        self._named -= gone
        return gone

    def _need(self, numbers: IntArray) -> None:
        """Have the blocks of these samples fetched now, all at once."""
        blocks = [block for block in np.unique(numbers // self._block).tolist() if not self._ahead.is_held(block)]
        if blocks:
            with self._lock:
                self._named.update(blocks)
            self._ahead.hurry(list(self._made(blocks)))

    def _made(self, blocks: Iterable[int]) -> Iterator[_Block]:
        for block in blocks:
            with suppress(ShoalError):  # who reads it says so
                yield _Block(block, self._parts(block))

    def _tasks(self) -> Iterator[_Block | None]:
        """Blocks in the order in which they are first needed, named when all is known that is read before their last.

        So a block is not let go of while there is more to come of it.
        """
        known: deque[IntArray] = deque()
        ahead = 0
        for epoch, numbers in self._coming:
            blocks = numbers // self._block
            with self._lock:
                over = self._let_go(self._uses.expect(epoch, blocks))
            if over:
                self._ahead.release(lambda name, over=over: name in over)  # type: ignore[misc]
            known.append(blocks)
            ahead += len(blocks)
            while known and ahead - len(known[0]) >= self._spread:
                ahead -= len(known[0])
                yield from self._new(known.popleft())
            while self._uses.expected - self._uses.done > self._most_known:
                yield None
        while known:
            yield from self._new(known.popleft())

    def _new(self, blocks: IntArray) -> Iterator[_Block]:
        for block in dict.fromkeys(blocks.tolist()):
            with self._lock:
                if block not in self._uses:  # all of it was read before we came to it
                    continue
                if block in self._named:
                    self._note_renewed(block)
                    continue
                self._named.add(block)
            yield from self._made([block])

    def _note_renewed(self, block: int) -> None:
        if self._uses.epochs(block) > 1:
            self._renewed.add(block)

    def _parts(self, block: int) -> list[tuple[Shard, list[tuple[int, int]]]]:
        first = block * self._block
        rows = self._rows_of(np.arange(first, min(first + self._block, self._count)))
        owners = np.searchsorted(self._source.starts, rows, "right") - 1
        found = []
        for number in np.unique(owners).tolist():
            shard, own = self._source.shard(number), rows[owners == number] - self._source.starts[number]
            chosen = slice(int(own[0]), int(own[-1]) + 1) if is_run(own) else own
            found.append((shard, prefetch_ranges(shard_extents(shard, chosen, self._fields(number)))))
        return found

    def close(self) -> None:
        """Let go of everything."""
        self._ahead.close()


class BlockRefCounts:
    """Reads of blocks that are known to come, and which blocks are over.

    Examples:
        >>> uses = BlockRefCounts()
        >>> uses.expect(0, np.array([1, 2, 1]))
        set()
        >>> uses.read(np.array([1])), uses.read(np.array([1, 2]))
        (set(), {1, 2})
    """

    def __init__(self) -> None:
        self._left: dict[int, list[list[int]]] = {}
        """Of each block the epochs that are known to need it, and how often still."""
        self._early: Counter[int] = Counter()
        """Reads of blocks before they were known to come."""
        self.expected = 0
        self.done = 0

    def __contains__(self, block: int) -> bool:
        return block in self._left

    def epochs(self, block: int) -> int:
        """How many epochs are known to need it still."""
        return len(self._left.get(block, ()))

    def expect(self, epoch: int, blocks: IntArray) -> set[int]:
        """These will be read in an epoch, after all that is known; gives those that were read so often already."""
        self.expected += len(blocks)
        over = set()
        for block, count in _counted(blocks):
            early = min(count, self._early.pop(block, 0))
            epochs = self._left.setdefault(block, [])
            if epochs and epochs[-1][0] == epoch:
                epochs[-1][1] += count - early
            elif count > early:
                epochs.append([epoch, count - early])
            if not epochs:
                del self._left[block]
                over.add(block)
        return over

    def read(self, blocks: IntArray) -> set[int]:
        """These were read; gives the blocks that the epoch has done with."""
        self.done += len(blocks)
        over = set()
        for block, count in _counted(blocks):
            epochs = self._left.get(block)
            if epochs is None:
                self._early[block] += count
                continue
            epochs[0][1] -= count
            if epochs[0][1] <= 0:
                over.add(block)
                del epochs[0]
                if not epochs:
                    del self._left[block]
        return over


def _counted(blocks: IntArray) -> list[tuple[int, int]]:
    found, counts = np.unique(blocks, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
