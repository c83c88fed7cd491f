"""Prefetching: run tasks ahead of the reader, and read remote shards in order that way.

Only the reader blocks. Tasks start on the shared store thread pool whenever one is consumed or finishes. A reader that
needs a task not yet started runs it inline, so it never waits on a stalled pool.

A part is one large request. The thread that makes it cuts it into blocks and the blocks into rows as the bytes arrive,
while they are still in the processor's cache. Parts end where it suits the store, so a block across two parts is built
by the reader, when both are there; it is built from the pieces, since joining them first would copy each byte again.

Clouds limit the bandwidth of each connection. Where one is found to be slow, the shards that follow are cut into
smaller parts, and more of them are fetched at once, in the same memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from shoal._crc32 import crc32
from shoal._typing import IntArray
from shoal.errors import DecodeError, ShoalError, StaleIndexError, TarError
from shoal.store._concurrency import submit
from shoal.store._readers import PrefetchedReader, StreamingReader
from shoal.store._registry import is_remote

from ._index import Blocks, Edges, LongExtents, ShardIndex, edges_from
from ._read_plan import PART_BYTES, SpanPart, span_parts
from ._shard import Decoders, RawField, Sample, Shard, decode_rows, edged_rows
from ._stream import ErrorLog, salvaged_runs, streamed_runs

if TYPE_CHECKING:
    from ._source import ShardSource

__all__ = ["PiecedBlocks", "Prefetcher", "Task", "stream_raw", "stream_samples"]

T = TypeVar("T")
_Begin = Callable[[Shard, Sequence[str] | None], Callable[[StreamingReader, int, int], T]]
"""Gives what makes something of these fields of the spans of a shard, whose bytes come through the reader."""
R = TypeVar("R")
Pieces = Sequence[tuple[int, bytes]]
"""Bytes that follow each other as they arrived, each piece with its position."""


AT_ONCE = 4
MOST_BYTES = 112 << 20
"""Three large requests and a half: when half of the first was used the fourth begins, and waits while others come."""


class Task(Protocol):
    """Some bytes to be fetched, and perhaps made into something."""

    @property
    def name(self) -> Hashable: ...

    size: int
    """Bytes it takes until it is let go of."""

    def begin(self) -> None:
        """It is about to be run: called in order, and quick."""
        ...

    def run(self) -> None:
        """Do it, unless another thread has begun to. Raises nothing."""
        ...

    def drop(self) -> None:
        """Let go of all it has; what still comes is not wanted."""
        ...


class Prefetcher:
    """Runs the tasks of ``coming``, in its order, at most ``at_once`` at a time and ``most_bytes`` held.

    ``coming`` is asked on another thread, one call at a time, and may itself make requests: to open the next shard. It
    gives None when there is nothing for now; then it is asked again when something was let go of, or by `go_on`.
    What it raises ends it silently, since who reads the same comes upon the same. ``release`` lets go of what was
    used; ``close`` of everything.
    """

    def __init__(self, coming: Iterator[Task | None], *, most_bytes: int = MOST_BYTES, at_once: int = AT_ONCE) -> None:
        self._coming = coming
        self._most_bytes = most_bytes
        self.at_once = at_once
        """May be changed at any time."""
        self._lock = threading.Lock()
        self._told = threading.Condition(self._lock)
        self._waiting: deque[Task] = deque()
        self._held: dict[Hashable, Task] = {}
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

    def _start(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            submit(functools.partial(self._run, task))

    def _begun(self) -> list[Task]:
        """Tasks that were begun just now, and are to be run."""
        begun: list[Task] = []
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

    def _fits(self, task: Task) -> bool:
        return not self._bytes or self._bytes + task.size <= self._most_bytes

    def _begin(self, task: Task) -> Task:
        self._held[task.name] = task
        self._bytes += task.size
        self.most_held = max(self.most_held, self._bytes)
        task.begin()
        return task

    def _ask(self) -> None:
        """Have a few more tasks."""
        found: list[Task] = []
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
                self._told.notify_all()
        self._continue()

    def _run(self, task: Task) -> None:
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

    def hurry(self, tasks: Iterable[Task]) -> None:
        """Begin these now, whatever else is under way, if they may still be held."""
        if not self.is_usable:
            return
        begun: list[Task] = []
        with self._lock:
            for task in tasks:
                if task.name not in self._held and self._fits(task) and not self._closed:
                    begun.append(self._begin(task))
                    self._running += 1
        self._start(begun)

    def is_held(self, name: Hashable) -> bool:
        """Whether the task of this name has begun and was not let go of."""
        return name in self._held

    def take(self, name: Hashable, is_before: Callable[[Hashable], bool]) -> Task | None:
        """The task of this name, begun if it was not; None where there is none, or it was let go of.

        Waits while more tasks are asked for. Those before it, which nobody has taken, are passed over.
        """
        if not self.is_usable:
            return None
        with self._lock:
            while name not in self._held:
                while self._waiting and is_before(self._waiting[0].name):
                    self._waiting.popleft()
                if self._waiting:
                    return self._hurried() if self._waiting[0].name == name else None
                if self._closed or (self._ended and not self._asking):
                    return None
                if not self._asking:
                    self._asking = True
                    submit(self._ask)
                self._told.wait()  # for a thread that makes requests, each with a timeout
            return self._held[name]

    def _hurried(self) -> Task:
        """The first that waits, begun whatever is under way."""
        task = self._begin(self._waiting.popleft())
        self._running += 1
        self._start([task])
        return task

    def shrink(self, name: Hashable, size: int) -> None:
        """Of a task that is held, so many bytes were used, and are not held any more."""
        with self._lock:
            task = self._held.get(name)
            if task is None:
                return
            task.size -= size
            self._bytes -= size
        self._continue()

    def release(self, is_over: Callable[[Hashable], bool]) -> None:
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
            self._told.notify_all()
        self.release(lambda _: True)


def stream_samples(
    source: ShardSource, fields: Sequence[str] | None, decoders: Decoders, log: ErrorLog
) -> Iterator[list[Sample]]:
    """Block by block. A far shard that nobody has indexed is read as it comes."""
    with OrderedPrefetcher(_requests(source, fields, _streamed_samples)) as ahead:
        for number, ref in enumerate(source.shards):
            try:
                shard = source.indexed(number)
            except (TarError, StaleIndexError) as error:
                if not log.goes_on:
                    raise
                yield from salvaged_runs(ref.url, source.rule, fields, decoders, log, error)
                continue
            if not isinstance(shard, Shard):
                yield from streamed_runs(shard, source.rule, fields, decoders, log)
                continue
            wanted = source.wanted_fields(number, fields)
            for start, stop in shard.spans(wanted):
                yield _span(ahead, number, shard, start, stop, wanted, decoders, log)


def stream_raw(source: ShardSource, field: str) -> Iterator[RawField]:
    """One field of all samples, block by block."""
    wants = _requests(
        source, [field], lambda shard, _: lambda reader, start, stop: shard.over(reader).raw_span(start, stop, field)
    )
    with OrderedPrefetcher(wants) as ahead:
        for number in range(len(source.shards)):
            shard = source.shard(number)
            for start, stop in shard.spans([field]):
                made = ahead.take(number, shard, [field], start)
                yield shard.raw_span(start, stop, field) if made is None else made


def _streamed_samples(
    shard: Shard, fields: Sequence[str] | None
) -> Callable[[StreamingReader, int, int], list[Sample]]:
    whole = fields is None or set(fields) >= set(shard.index.fields)
    blocks = PiecedBlocks(shard) if whole else None

    def read(reader: StreamingReader, start: int, stop: int) -> list[Sample]:
        made = blocks.read(reader, start, stop) if blocks is not None else None
        return shard.over(reader).read_span(start, stop, fields) if made is None else made

    return read


def _requests(
    source: ShardSource, fields: Sequence[str] | None, begin: _Begin[T]
) -> Iterator[ShardReadRequest[T]] | None:
    """What is read ahead; None where no shard is far."""
    return _remote_requests(source, fields, begin) if any(is_remote(ref.url) for ref in source.shards) else None


def _remote_requests(
    source: ShardSource, fields: Sequence[str] | None, begin: _Begin[T]
) -> Iterator[ShardReadRequest[T]]:
    for number in range(len(source.shards)):
        try:
            if source.is_foreign(number):
                continue
            shard = source.shard(number)
            wanted = source.wanted_fields(number, fields)
        except ShoalError:  # who reads it says so
            continue
        yield ShardReadRequest(number, shard, wanted, functools.partial(begin, shard, wanted))


def _span(  # a call, so that no name keeps samples that were handed out while the next are read
    ahead: OrderedPrefetcher[list[Sample]],
    number: int,
    shard: Shard,
    start: int,
    stop: int,
    fields: Sequence[str] | None,
    decoders: Decoders,
    log: ErrorLog,
) -> list[Sample]:
    made = ahead.take(number, shard, fields, start)
    if made is None or not _decode(made, shard, decoders):
        return _read_span(shard, start, stop, fields, decoders, log)
    return made


def _decode(samples: list[Sample], shard: Shard, decoders: Decoders) -> bool:
    """Decode samples that were read ahead; False where one cannot be: reading it alone says which."""
    try:
        decode_rows(samples, {name: decoders[name] for name in shard.index.fields if name in decoders})
    except ShoalError:
        return False
    return True


def _read_span(
    shard: Shard, start: int, stop: int, fields: Sequence[str] | None, decoders: Decoders, log: ErrorLog
) -> list[Sample]:
    try:
        return shard.read_span(start, stop, fields, decoders)
    except (TarError, DecodeError):
        if not log.goes_on:
            raise
    found = []
    for row in range(start, stop):
        try:
            found += shard.read_rows(np.array([row]), fields, decoders)
        except (TarError, DecodeError) as error:
            log.handle(error.at(shard=shard.url, key=shard.index.keys[row].as_py()))
    return found


_START_TIMEOUT_S = 0.1
"""How long to wait for a thread to start a task: all threads may be busy."""
_SLOW_BYTES_PER_S = 90e6
"""Slower connections profit from more of them."""
_MEASURED_REQUESTS = 6
"""Several, since a busy processor makes single requests slow."""
_SMALL_PART_BYTES, _SLOW_CONCURRENCY = 8 << 20, 10


class _ConnectionSpeed:
    """Measured speed of a connection, which decides part size and concurrency."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, float]] = deque(maxlen=_MEASURED_REQUESTS)
        self._is_slow = False
        self._cuts: dict[int, int] = {}

    def note(self, size: int, seconds: float) -> None:
        """A request of so many bytes took so long, and what was made of them. A line that is slow stays that."""
        self._last.append((size, seconds))
        every = list(self._last)
        taken = sum(each for _, each in every)
        self._is_slow |= len(every) == _MEASURED_REQUESTS and sum(each for each, _ in every) < _SLOW_BYTES_PER_S * taken

    @property
    def at_once(self) -> int:
        return _SLOW_CONCURRENCY if self._is_slow else AT_ONCE

    def part_bytes(self, number: int) -> int:
        """Of the parts of a shard: the same whenever it is asked."""
        return self._cuts.setdefault(number, _SMALL_PART_BYTES if self._is_slow else PART_BYTES)


@dataclass(frozen=True)
class ShardReadRequest(Generic[R]):
    """A shard to be read in order, and how its spans are."""

    number: int
    shard: Shard
    fields: Sequence[str] | None
    begin: Callable[[], Callable[[StreamingReader, int, int], R]]
    """Gives what reads the spans of one part, which are asked for in order."""


class _Part(Generic[R]):
    """The spans of one shard that end in what one request brings."""

    def __init__(
        self,
        want: ShardReadRequest[R],
        far: PrefetchedReader,
        name: int,
        spans: Sequence[tuple[int, int]],
        part: SpanPart,
        line: _ConnectionSpeed,
    ) -> None:
        self.name = (want.number, name)
        self.size = sum(stop - start for start, stop in part.ranges)
        self.share = self.size // max(len(spans), 1)
        """Of a span, about."""
        self._read = want.begin()
        self._far = far
        self._spans = spans
        self._part = part
        self._line = line
        self._made: dict[int, R] = {}
        self._head: Pieces | None = None
        self._tail: Pieces = ()
        self._changed = threading.Condition()
        self._begun = self._ended = self._dropped = False

    def begin(self) -> None:
        """Nothing."""

    def run(self) -> None:
        with self._changed:
            if self._begun:
                return
            self._begun = True
            self._changed.notify_all()
        began = time.monotonic()
        try:
            self._read_all()
            self._line.note(sum(stop - start for start, stop in self._part.ranges), time.monotonic() - began)
        except ShoalError:
            pass  # who asks for the span reads it alone, and comes upon the same
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    @property
    def _is_split(self) -> bool:
        """Whether the first span begins in the part before."""
        return bool(self._part.ranges) and self._part.head > self._part.ranges[0][0]

    def _read_all(self) -> None:
        part = self._part
        with contextlib.closing(StreamingReader(self._far, part.ranges)) as reader:
            if self._is_split:
                self._keep_head(reader.pieces(part.ranges[0][0], part.head))
            for start, stop in self._spans[self._is_split :]:
                made = self._read(reader, start, stop)
                with self._changed:
                    if self._dropped:
                        return
                    self._made[start] = made
                    self._changed.notify_all()
            if part.ranges and part.tail < part.ranges[-1][1]:
                self._tail = reader.pieces(part.tail, part.ranges[-1][1])

    def _keep_head(self, head: Pieces) -> None:
        with self._changed:
            self._head = head
            self._changed.notify_all()

    def taken(self, start: int, before: Pieces) -> R | None:
        """What was made of the span that starts here; None where that failed.

        ``before`` is what the part before had left over: the beginning of the first span, where that began there.
        """
        if not self._begins_soon():
            self.run()
        is_first = self._is_split and start == self._spans[0][0]
        with self._changed:
            while not (self._ended or start in self._made or (is_first and self._head is not None)):
                self._changed.wait()  # for a thread that makes requests, each with a timeout
            found, head = self._made.pop(start, None), self._head
        return self._across([*before, *head]) if is_first and head else found

    def _begins_soon(self) -> bool:
        """Whether a thread reads it, or is about to: so that spans are there one by one, as they are made."""
        with self._changed:
            return self._changed.wait_for(lambda: self._begun, _START_TIMEOUT_S)

    def _across(self, pieces: Pieces) -> R | None:
        """The first span, of what the part before had left over and what came first here."""
        held = (pieces[0][0], [piece for _, piece in pieces])
        try:
            return self._read(StreamingReader(self._far, (), held), *self._spans[0])
        except ShoalError:
            return None  # as above

    def left_over(self) -> Pieces:
        """The beginning of the span that ends in the part that follows; waits until it is there."""
        with self._changed:
            while not self._ended:
                self._changed.wait()  # as above
            return self._tail

    def drop(self) -> None:
        with self._changed:
            self._dropped = self._ended = True
            self._made.clear()
            self._head, self._tail = None, ()
            self._changed.notify_all()


class OrderedPrefetcher(Generic[R]):
    """What was made of the spans of shards before it is asked for; nothing at all where no shard is far."""

    def __init__(self, wants: Iterator[ShardReadRequest[R]] | None) -> None:
        self._line = _ConnectionSpeed()
        self._ahead = None if wants is None else Prefetcher(_tasks(wants, self._line))
        self._part: _Part[R] | None = None
        self._before: Pieces = ()
        """What the part before had left over."""
        self._shard = -1
        self._parts: dict[int, int] = {}
        """The part of each span of the shard that is read, by where the span starts."""

    def __enter__(self) -> Self:
        if self._ahead is not None:
            self._ahead.go_on()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def take(self, number: int, shard: Shard, fields: Sequence[str] | None, start: int) -> R | None:
        """What was made of a span; None where it is to be read now. Spans are asked for in order, each once."""
        if self._ahead is None or shard.far is None or not self._ahead.is_usable:
            return None
        if number != self._shard:
            self._shard = number
            cut = _cut(shard, fields, self._line.part_bytes(number))
            self._parts = {first: at for at, (spans, _) in enumerate(cut) for first, _ in spans}
        name = (number, self._parts[start])
        if self._part is None or self._part.name != name:
            follows = self._part is not None and self._part.name == (number, name[1] - 1)
            self._before = self._part.left_over() if self._part is not None and follows else ()
            self._ahead.at_once = self._line.at_once
            self._ahead.release(lambda held: _is_before(held, name))
            found: Any = self._ahead.take(name, lambda held: _is_before(held, name))
            self._part = found
        if self._part is None:
            return None
        made = self._part.taken(start, self._before)
        self._ahead.shrink(name, self._part.share)
        return made


def _is_before(one: object, name: tuple[int, int]) -> bool:
    return isinstance(one, tuple) and one < name


def _tasks(wants: Iterator[ShardReadRequest[R]], line: _ConnectionSpeed) -> Iterator[Task]:
    for want in wants:
        far = want.shard.far
        if far is not None:
            cut = _cut(want.shard, want.fields, line.part_bytes(want.number))
            for name, (spans, part) in enumerate(cut):
                yield _Part(want, far, name, spans, part, line)


def _cut(shard: Shard, fields: Sequence[str] | None, most: int) -> Iterator[tuple[list[tuple[int, int]], SpanPart]]:
    """The parts of a shard, each with the spans that end in it."""
    spans, done = shard.spans(fields), 0
    for part in span_parts(shard.index, spans, fields, most=most):
        yield spans[done : part.span + 1], part
        done = part.span + 1


_FAR = np.int64(1 << 62)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where members lie, and the first and the last byte of each sample's."""

    edges: Edges
    first: IntArray
    last: IntArray


class PiecedBlocks:
    """Reads blocks of a shard one after the other, all fields of them."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        index = shard.index
        is_usual = index.facts.compression is None and not isinstance(index.fields, LongExtents)
        self._blocks = index.blocks if is_usual else None
        self._names = list(index.fields)
        self._places: _Places | None = None

    @functools.cached_property
    def _sparse(self) -> tuple[bool, ...]:
        return tuple(not is_everywhere for is_everywhere in self._shard.presence.values())

    def read(self, reader: StreamingReader, start: int, stop: int) -> list[Sample] | None:
        """Samples ``[start, stop)``; None where they are no block, or its checksum is wrong.

        Raises the errors of the store.
        """
        blocks = self._blocks
        if blocks is None:
            return None
        number = int(np.searchsorted(blocks.rows, start))
        if number == len(blocks) or blocks.rows[number] != start or blocks.rows[number + 1] != stop:
            return None
        pieces = reader.pieces(*(int(at) for at in blocks.offsets[number : number + 2]))
        if not pieces or (self._shard.verify and _crc(pieces, blocks, number) != blocks.crcs[number]):
            return None
        return self._rows(pieces, start, stop)

    def _rows(self, pieces: Pieces, start: int, stop: int) -> list[Sample]:
        places = self._places
        if places is None or not places.edges.hold(start, stop):
            places = self._places = _places_from(self._shard.index, start, stop)  # of two threads, each has its own
        rows = slice(start - places.edges.first, stop - places.edges.first)
        buffers, bases = _buffers(pieces, places.first[rows], places.last[rows])
        edges = (places.edges.lines[:, rows] - bases).tolist()
        keys = self._shard.index.key_list(start, stop)
        return edged_rows(buffers, self._shard.url, keys, self._names, edges, self._sparse)


def _places_from(index: ShardIndex, start: int, stop: int) -> _Places:
    edges = edges_from(index, start, stop)
    starts, stops = edges.lines[::2], edges.lines[1::2]
    first = np.where(starts < 0, _FAR, starts).min(axis=0, initial=_FAR)
    return _Places(edges, first, np.maximum(stops.max(axis=0, initial=0) - 1, first))


def _crc(pieces: Pieces, blocks: Blocks, number: int) -> int:
    low, high = (int(at) for at in blocks.offsets[number : number + 2])
    return functools.reduce(lambda crc, part: crc32(part, crc), _between(pieces, low, high), 0)


def _between(pieces: Pieces, low: int, high: int) -> list[memoryview]:
    """The bytes ``[low, high)``, piece by piece."""
    return [
        memoryview(piece)[max(low - at, 0) : high - at] for at, piece in pieces if at < high and at + len(piece) > low
    ]


def _buffers(pieces: Pieces, first: IntArray, last: IntArray) -> tuple[list[bytes], IntArray]:
    """For each sample the piece that it lies in, and where that begins; its own bytes where it lies across some."""
    begins = np.array([at for at, _ in pieces])
    begin, end = begins.searchsorted(first, "right") - 1, begins.searchsorted(last, "right") - 1
    buffers, bases = [pieces[place][1] for place in begin.tolist()], begins[begin]
    for row in np.flatnonzero(begin != end).tolist():
        own = pieces[int(begin[row]) : int(end[row]) + 1]
        buffers[row] = b"".join(_between(own, int(first[row]), int(last[row]) + 1))
        bases[row] = first[row]
    return buffers, bases
