"""Read shards in order: local ones block by block, remote ones in large parts that are fetched ahead of the reader.

A part is one request for some megabytes, or several if fields are chosen. The thread that makes it cuts samples as the
bytes arrive, while they are still in the processor's cache. Whatever a thread could not read is read again by the
consumer, which then raises the error. Clouds limit the bandwidth of each connection: where connections are found to be
slow, parts are smaller, and more of them are fetched at once, in the same memory.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import numpy as np

from shoal._typing import IntArray
from shoal.errors import DecodeError, ShoalError, StaleIndexError, TarError
from shoal.store._concurrency import submit
from shoal.store._prefetch_queue import PrefetchQueue, Workers
from shoal.store._readers import StreamingReader
from shoal.store._registry import is_remote

from ._extents import Extents, shard_extents
from ._read import (
    BytesColumn,
    Fetched,
    compare_blocks,
    crc_of,
    decode_samples,
    read_columns,
    read_row,
    read_samples,
    samples_of,
)
from ._read_plan import Ranges, join_ranges, prefetch_ranges, whole_blocks
from ._shard import Decoders, Sample, Shard
from ._stream import ErrorLog, salvaged_runs, streamed_runs

if TYPE_CHECKING:
    from ._source import ShardSource

__all__ = ["stream_column", "stream_samples"]

R = TypeVar("R")
Pieces = Sequence[tuple[int, bytes]]
"""Bytes that follow each other as they arrived, each piece with its offset."""
_FIRST_PART_BYTES, _PART_BYTES = 4 << 20, 32 << 20
"""Large enough that the start of a request does not count, small enough that several in flight are no burden; the first
one is smaller, so that the first sample comes early."""
_CONCURRENCY = 5
_SLOW_PART_BYTES, _SLOW_CONCURRENCY = 8 << 20, 12
_SLOW_BYTES_PER_S = 90e6
"""Slower connections profit from more of them."""
_MEASURED_REQUESTS = 6
"""Several, since a busy processor makes single requests slow."""
_OPEN_AHEAD = 4
"""Shards that are opened before they are needed."""
_FAR = np.int64(1 << 62)


def stream_samples(
    source: ShardSource, fields: Sequence[str] | None, decoders: Decoders, log: ErrorLog
) -> Iterator[list[Sample]]:
    """Yield all samples, block by block. A remote shard without an index is read as it arrives."""
    with _ReadAhead(source, fields, _read_samples) as ahead:
        for number in range(len(source.shards)):
            try:
                shard = source.indexed(number)
            except (TarError, StaleIndexError) as error:
                if not log.goes_on:
                    raise
                yield from salvaged_runs(source.shards[number].url, source.rule, fields, decoders, log, error)
                continue
            if not isinstance(shard, Shard):
                yield from streamed_runs(shard, source.rule, fields, decoders, log)
                continue
            wanted = source.wanted_fields(number, fields)
            for start, stop in shard.spans(wanted):
                yield _span(ahead, number, shard, start, stop, wanted, decoders, log)


def stream_column(source: ShardSource, field: str) -> Iterator[BytesColumn]:
    """Yield one field of all samples, block by block."""
    with _ReadAhead(source, [field], _read_column) as ahead:
        for number in range(len(source.shards)):
            shard = source.shard(number)
            for start, stop in shard.spans([field]):
                made = ahead.take(number, start)
                yield _column_of(shard, start, stop, field) if made is None else made


def _read_column(
    shard: Shard, reader: StreamingReader, start: int, stop: int, fields: Sequence[str] | None
) -> BytesColumn:
    assert fields is not None  # noqa: S101 - `stream_column` gives one
    return _column_of(shard, start, stop, fields[0])


def _column_of(shard: Shard, start: int, stop: int, field: str) -> BytesColumn:
    return read_columns(shard_extents(shard, slice(start, stop), [field]))[field]


def _read_samples(
    shard: Shard, reader: StreamingReader, start: int, stop: int, fields: Sequence[str] | None
) -> list[Sample]:
    extents = shard_extents(shard, slice(start, stop), fields)
    made = _pieced_samples(shard, reader, extents)
    return read_samples(extents) if made is None else made


def _span(  # a call, so that no name keeps samples that were handed out while the next are read
    ahead: _ReadAhead[list[Sample]],
    number: int,
    shard: Shard,
    start: int,
    stop: int,
    fields: Sequence[str] | None,
    decoders: Decoders,
    log: ErrorLog,
) -> list[Sample]:
    made = ahead.take(number, start)
    if made is not None:
        with contextlib.suppress(ShoalError):  # raised again, for the one sample that does not decode
            return _decoded(made, shard, decoders)
    try:
        return _decoded(read_samples(shard_extents(shard, slice(start, stop), fields)), shard, decoders)
    except (TarError, DecodeError):
        if not log.goes_on:
            raise
    found = []
    for row in range(start, stop):
        try:
            found += _decoded([read_row(shard, shard.members(row), fields)], shard, decoders)
        except (TarError, DecodeError) as error:
            log.handle(error.at(shard=shard.url, key=shard.key(row)))
    return found


def _decoded(samples: list[Sample], shard: Shard, decoders: Decoders) -> list[Sample]:
    decode_samples(samples, list(shard.presence), decoders)
    return samples


@dataclass
class _Part(Generic[R]):
    """Neighbouring spans of one shard that are fetched together, and what was made of them."""

    number: int
    shard: Shard
    spans: list[tuple[int, int]]
    ranges: Ranges
    size: int
    made: dict[int, R] = field(default_factory=dict)
    """By the first row of the span; a span that is missing failed."""


class _ReadAhead(Generic[R]):
    """What ``read`` makes of the spans of a source's remote shards, fetched before it is asked for."""

    def __init__(
        self,
        source: ShardSource,
        fields: Sequence[str] | None,
        read: Callable[[Shard, StreamingReader, int, int, Sequence[str] | None], R],
    ) -> None:
        self._source = source
        self._fields = fields
        self._read = read
        self._closed = threading.Event()
        self._last: deque[tuple[int, float]] = deque(maxlen=_MEASURED_REQUESTS)
        self._is_slow = False
        self._part: _Part[R] | None = None
        self._queue: PrefetchQueue[_Part[R], _Part[R]] | None = None
        self._workers = Workers("shoal-read-ahead")

    def __enter__(self) -> Self:
        if any(map(is_remote, self._source.index.locations)):
            self._workers.resize(_CONCURRENCY)
            self._queue = PrefetchQueue(self._parts(), self._fetch, self._workers, self._depth)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._workers.close(0)

    def take(self, number: int, start: int) -> R | None:
        """Return what was made of a span; None if it is to be read now. Spans are asked for in order, each once."""
        if self._queue is None or not self._workers.is_usable:
            return None
        while self._part is None or (self._part.number, self._part.spans[-1][0]) < (number, start):
            self._part = next(self._queue, None)
            if self._part is None:
                self._queue = None
                return None
        return self._part.made.pop(start, None) if self._part.number == number else None

    def _depth(self) -> int:
        if self._is_slow and self._workers.count < _SLOW_CONCURRENCY:
            self._workers.resize(_SLOW_CONCURRENCY)
        return self._workers.count - 1

    def _parts(self) -> Iterator[_Part[R]]:
        most = _FIRST_PART_BYTES
        for number, shard in self._open_shards():
            wanted = self._source.wanted_fields(number, self._fields)
            part: _Part[R] = _Part(number, shard, [], [], 0)
            for span in shard.spans(wanted):
                ranges = prefetch_ranges(shard_extents(shard, slice(*span), wanted))
                size = sum(stop - start for start, stop in ranges)
                limit = _SLOW_PART_BYTES if self._is_slow else most
                if part.spans and part.size + size > limit:
                    yield part
                    part, most = _Part(number, shard, [], [], 0), _PART_BYTES
                part.spans.append(span)
                part.size += size
                part.ranges += ranges
            if part.spans:
                yield part

    def _open_shards(self) -> Iterator[tuple[int, Shard]]:
        """Yield remote shards that have an index, opened in the background."""
        opening: deque[tuple[int, Future[Shard | None]]] = deque()
        for number in range(len(self._source.shards)):
            opening.append((number, submit(functools.partial(self._open, number))))
            if len(opening) > _OPEN_AHEAD:
                yield from _opened(*opening.popleft())
        while opening:
            yield from _opened(*opening.popleft())

    def _open(self, number: int) -> Shard | None:
        if self._closed.is_set() or self._source.is_foreign(number):
            return None
        with contextlib.suppress(ShoalError):  # raised again by the consumer
            shard = self._source.shard(number)
            return shard if shard.far is not None else None
        return None

    def _fetch(self, part: _Part[R]) -> _Part[R]:
        """Fetch a part and make something of its spans, until one fails."""
        shard, began = part.shard, time.monotonic()
        wanted = self._source.wanted_fields(part.number, self._fields)
        if shard.far is None:
            return part
        pieces = StreamingReader(shard.far, join_ranges(part.ranges))
        with contextlib.suppress(ShoalError), contextlib.closing(pieces) as reader:
            own = shard.over(reader)
            for start, stop in part.spans:
                if self._closed.is_set():
                    return part
                part.made[start] = self._read(own, reader, start, stop, wanted)
            self._note(part.size, time.monotonic() - began)
        return part

    def _note(self, size: int, seconds: float) -> None:
        """Note how long a request took. Connections that are slow once are taken to stay slow."""
        self._last.append((size, seconds))
        every = list(self._last)
        rate = sum(size for size, _ in every) / max(sum(each for _, each in every), 1e-9)
        self._is_slow |= len(every) == _MEASURED_REQUESTS and rate < _SLOW_BYTES_PER_S


def _opened(number: int, opening: Future[Shard | None]) -> Iterator[tuple[int, Shard]]:
    shard = opening.result()
    if shard is not None:
        yield number, shard


def _pieced_samples(shard: Shard, reader: StreamingReader, extents: Extents) -> list[Sample] | None:
    """Return the samples of a block, verified and cut from the pieces that arrived, without joining those.

    None if the rows are not one block. Raises ChecksumError and the errors of the store.
    """
    numbers, blocks = whole_blocks(extents), shard.blocks
    if numbers is None or blocks is None or len(numbers) != 1 or shard.compression is not None:
        return None
    low, high = blocks.offsets[numbers.start : numbers.start + 2].tolist()
    pieces = reader.pieces(low, high)
    if not pieces:
        return None
    verified, damaged_block = compare_blocks(extents, numbers, map(crc_of, [_between(pieces, low, high)]))
    first = np.where(extents.starts < 0, _FAR, extents.starts).min(axis=0, initial=_FAR)
    buffers, bases = _buffers(pieces, first, np.maximum(extents.stops.max(axis=0, initial=0) - 1, first))
    fetched = Fetched(buffers, np.arange(len(buffers)), bases, verified, damaged_block=damaged_block)
    return samples_of(extents, fetched)


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
