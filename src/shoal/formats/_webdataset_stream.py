"""`WebDatasetStream`: the samples of many archives as one iterator, with a position to resume from."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from shoal.errors import OptionError
from shoal.shard._shard import Sample
from shoal.shard._stream import ErrorLog
from shoal.store._prefetch_queue import PrefetchQueue, Workers
from shoal.store._url import base_name

from ._webdataset_reader import (
    ArchiveOptions,
    ArchivePosition,
    ArchiveReader,
    ArchiveSource,
    ArchiveStep,
    archive_name,
    is_stream,
    resolve_sources,
)

__all__ = ["ReadAhead", "StreamPlan", "WebDatasetStream", "shard_order"]


_VERSION = 1
_BATCH_STEPS, _BATCH_BYTES, _MAX_BATCHES = 256, 256 << 10, 32


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """All that says which samples come, and in which order; nothing is opened by it."""

    paths: ArchiveSource | tuple[ArchiveSource, ...]
    archive: ArchiveOptions
    shuffle: bool = False
    seed: int = 0
    epoch: int = 0
    workers: int = 1
    buffer_bytes: int = 16 << 20
    resume_from: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise OptionError("reading takes a worker", expected="workers of at least 1", found=self.workers)
        if self.archive.most is not None and self.archive.most < 0:
            raise OptionError("max_samples counts samples", expected="0 or more", found=self.archive.most)
        if self.buffer_bytes < 1:
            raise OptionError("buffer_bytes must be positive", expected="1 or more", found=self.buffer_bytes)


@dataclass(frozen=True, slots=True)
class _Position:
    """What `WebDatasetStream.position` holds, as a value."""

    made: dict[str, Any]
    """What the stream is made of: in a stream made otherwise the rest would mean something else."""
    samples: int = 0
    shard: int = 0
    """In the order in which shards are read."""
    offset: int = 0
    passed: int = 0
    size: int | None = None
    version: int = _VERSION


def shard_order(count: int, seed: int, epoch: int) -> list[int]:
    """The order in which ``count`` shards are read: one that ``seed`` and ``epoch`` alone decide, for ever."""
    return sorted(range(count), key=lambda number: hashlib.sha256(f"{seed} {epoch} {number}".encode()).digest())


class WebDatasetStream(Iterator[Sample]):
    """Samples one at a time, in bounded memory; made by `stream` and `stream_shards`.

    It is an iterator, and a context manager that closes what it opened. ``errors`` counts and keeps what was passed
    over (see ``on_error``); ``skipped`` counts members that belong to no sample, by reason; ``position`` is a small
    dict for JSON: a stream made the same way with ``resume_from=position`` gives exactly the samples not yet given.
    """

    def __init__(self, plan: StreamPlan, log: ErrorLog) -> None:
        self.errors = log
        self._run = _StreamProgress(plan, log)
        self._samples = self._run.samples()
        # Threads must end even where nobody closes the stream; they know the run, which does not know the stream.
        weakref.finalize(self, self._run.stop, wait=False)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sample:
        return next(self._samples)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all files and threads, and warn of what was passed over. No sample comes after it."""
        self._samples.close()
        self._run.stop(wait=True)
        self.errors.tell()

    @property
    def position(self) -> dict[str, Any]:
        """Where the next sample starts."""
        return asdict(self._run.position())

    @property
    def skipped(self) -> Counter[str]:
        """How many members belong to no sample, by reason: names without an extension, folders, links, ..."""
        return self._run.skipped()


class _StreamProgress:
    """How far a stream has come."""

    def __init__(self, plan: StreamPlan, log: ErrorLog) -> None:
        self._plan = plan
        self._log = log
        self._sources: tuple[ArchiveSource, ...] | None = None
        self._start = _Position({})
        self._place = ArchivePosition()
        self._readers: dict[int, ArchiveReader] = {}
        self._skipped: Counter[str] = Counter()
        self._ahead: ReadAhead | None = None

    def begin(self) -> tuple[ArchiveSource, ...]:
        """Find the archives and the place to start: the first I/O."""
        if self._sources is None:
            plan, found = self._plan, resolve_sources(self._plan.paths)
            start = _checked(plan.resume_from, _stream_settings(plan, found))
            order = shard_order(len(found), plan.seed, plan.epoch) if plan.shuffle else range(len(found))
            self._start, self._shard, self._given, self._size = start, start.shard, start.samples, start.size
            self._place = ArchivePosition(start.offset, start.passed)
            self._sources = tuple(found[number] for number in order)
        return self._sources

    def position(self) -> _Position:
        self.begin()
        reader, place = self._readers.get(self._shard), self._place
        size = self._size if reader is None else reader.size
        return _Position(self._start.made, self._given, self._shard, place.offset, place.passed, size)

    def skipped(self) -> Counter[str]:
        reader = self._readers.get(self._shard) if self._sources is not None else None
        return +(self._skipped + (Counter(dict(reader.skipped)) if reader is not None else Counter()))

    def samples(self) -> Generator[Sample]:
        """Every sample that is left. Raises what reading raises, in its place."""
        most = self._plan.archive.most
        if most == 0:
            return
        sources = self.begin()
        for number in range(self._shard, len(sources)):
            if number != self._shard:
                self._shard, self._place, self._size = number, ArchivePosition(), None
            steps = self._steps(number, len(sources))
            try:
                while (most is None or self._given < most) and (step := next(steps, None)) is not None:
                    if step.error is not None:
                        self._log.handle(step.error)
                    elif step.sample is not None:
                        self._place, self._given = step.place, self._given + 1
                        yield step.sample
            finally:
                steps.close()
            if most is not None and self._given >= most:
                break
            reader = self._readers.pop(number)
            self._skipped += reader.skipped
            self._size = reader.size
        self.stop(wait=True)
        self._log.tell()

    def _steps(self, number: int, count: int) -> Generator[ArchiveStep]:
        workers = min(self._plan.workers, count - self._start.shard)
        if workers == 1:
            return self._read(number)
        if self._ahead is None:
            self._ahead = ReadAhead(self._read, number, count, workers, self._plan.buffer_bytes)
        return self._ahead.steps(number)

    def _read(self, number: int) -> Generator[ArchiveStep]:
        start = self._start
        place, size = ArchivePosition(), None
        if number == start.shard:
            place, size = ArchivePosition(start.offset, start.passed), start.size
        reader = self._readers[number] = ArchiveReader(self.begin()[number], self._plan.archive, place, size)
        return reader.steps()

    def stop(self, *, wait: bool) -> None:
        """End the threads. One that waits for the caller's own stream cannot be woken, so it is not waited for."""
        if self._ahead is not None:
            self._ahead.stop(wait=wait and not any(map(is_stream, self.begin())))


def _stream_settings(plan: StreamPlan, sources: tuple[ArchiveSource, ...]) -> dict[str, Any]:
    """What decides which samples come and what a place means; folders may move between a stop and a resume."""
    rule, fields = plan.archive.rule, plan.archive.fields
    names = "\n".join(base_name(archive_name(source)) for source in sources)
    return {
        "shards": len(sources),
        "names": hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:16],
        "shuffle": [plan.seed, plan.epoch] if plan.shuffle else None,
        "extensions": None if fields is None else sorted(fields),
        "rule": asdict(rule),
    }


def _checked(resume_from: Mapping[str, Any] | None, made: dict[str, Any]) -> _Position:
    """The position to start at. Raises OptionError with what differs where it was taken in another stream."""
    if resume_from is None:
        return _Position(made)
    hint = "pass what `position` gave, to a stream made the same way"
    try:
        position = msgspec.convert(dict(resume_from), _Position)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise OptionError("resume_from is no position", found=error, hint=hint) from error
    if position.version != _VERSION:
        raise OptionError("the position is of another version", expected=_VERSION, found=position.version)
    differing = [name for name in made if position.made.get(name) != made[name]]
    if differing:
        name = differing[0]
        expected, found = f"{name} {made[name]!r}", repr(position.made.get(name))
        raise OptionError("the position is of another stream", expected=expected, found=found, hint=hint)
    if min(position.samples, position.shard, position.offset, position.passed) < 0:
        raise OptionError("resume_from is no position", expected="0 or more", found=dict(resume_from), hint=hint)
    return position


Batch = tuple[list[ArchiveStep], int]
"""Steps that follow each other, and the bytes that they take."""


@dataclass(frozen=True, slots=True)
class _Archive:
    """One archive that is being read on a thread of its own."""

    batches: Generator[Batch]
    workers: Workers
    queue: PrefetchQueue[Generator[Batch], Batch]

    def close(self, timeout_s: float | None) -> None:
        """End the thread; the archive is closed now, or by the thread if that is not waited for."""
        self.workers.close(timeout_s)
        if timeout_s is None:
            self.batches.close()


class ReadAhead:
    """Reads the archives from ``first`` up to ``count``, ``workers`` at a time; ``read(number)`` gives one's steps.

    Steps come exactly as they would one archive after the other, errors in their place. Of each archive at most
    ``max_bytes`` are held, or one sample where that is larger. Threads are those of `Workers`, one for an archive.
    """

    def __init__(
        self, read: Callable[[int], Generator[ArchiveStep]], first: int, count: int, workers: int, max_bytes: int
    ) -> None:
        self._read = read
        self._numbers = iter(range(first, count))
        self._workers = workers
        self._max_bytes = max_bytes
        self._ahead: deque[_Archive] = deque()

    def steps(self, number: int) -> Generator[ArchiveStep]:
        """The steps of one archive. Archives are asked for one after the other."""
        self._begin()
        archive = self._ahead[0]
        for batch, _ in archive.queue:
            if not batch:
                break
            for other in self._ahead:
                other.queue.fill()
            yield from batch
        self._ahead.popleft().close(None)

    def _begin(self) -> None:
        for number in itertools.islice(self._numbers, self._workers - len(self._ahead)):
            batches, workers = _batches(self._read(number)), Workers("shoal-read-ahead")
            workers.resize(1)  # a generator runs on one thread at a time
            queue = PrefetchQueue(
                itertools.repeat(batches),
                _next_batch,
                workers,
                lambda: _MAX_BATCHES,
                budget=self._max_bytes,
                size_of=_size_of_batch,
            )
            queue.fill()
            self._ahead.append(_Archive(batches, workers, queue))

    def stop(self, *, wait: bool = True) -> None:
        """End the threads; ``wait`` until they have let go of their archives."""
        for archive in self._ahead:
            archive.workers.close(0)  # all of them end at the same time
        for archive in self._ahead:
            archive.close(None if wait else 0)


def _batches(steps: Generator[ArchiveStep]) -> Generator[Batch]:
    """Yield steps some at a time; an error is raised after what came before it."""
    batch: list[ArchiveStep] = []
    size = offset = 0
    failure: Exception | None = None
    with contextlib.closing(steps):
        try:
            for step in steps:
                batch.append(step)
                size += max(0, step.place.offset - offset)
                offset = step.place.offset
                if len(batch) >= _BATCH_STEPS or size >= _BATCH_BYTES:
                    yield batch, size
                    batch, size = [], 0
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
    if batch:
        yield batch, size
    if failure is not None:
        raise failure


def _next_batch(batches: Generator[Batch]) -> Batch:
    return next(batches, ([], 0))


def _size_of_batch(batch: Batch) -> int:
    return batch[1]
