"""All samples of a source in order: read ahead where shards are far, and as far as damage lets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shoal.errors import ShoalError, StaleIndexError, TarError
from shoal.shard._one import (
    Decoders,
    ErrorLog,
    PiecedBlocks,
    RawField,
    Sample,
    Shard,
    decode_rows,
    salvaged_runs,
    streamed_runs,
)
from shoal.store import PulledReader, is_far

from ._spans_ahead import SpansAhead, Want

if TYPE_CHECKING:
    from ._source import ShardSource

__all__ = ["stream_raw", "stream_samples"]

T = TypeVar("T")
_Begin = Callable[[Shard, Sequence[str] | None], Callable[[PulledReader, int, int], T]]
"""Gives what makes something of these fields of the spans of a shard, whose bytes come through the reader."""


def stream_samples(
    source: ShardSource, fields: Sequence[str] | None, decoders: Decoders, log: ErrorLog
) -> Iterator[list[Sample]]:
    """Block by block. A far shard that nobody has indexed is read as it comes."""
    with SpansAhead(_wants(source, fields, _samples_pulled)) as ahead:
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
    wants = _wants(
        source, [field], lambda shard, _: lambda reader, start, stop: shard.over(reader).raw_span(start, stop, field)
    )
    with SpansAhead(wants) as ahead:
        for number in range(len(source.shards)):
            shard = source.shard(number)
            for start, stop in shard.spans([field]):
                made = ahead.take(number, shard, [field], start)
                yield shard.raw_span(start, stop, field) if made is None else made


def _samples_pulled(shard: Shard, fields: Sequence[str] | None) -> Callable[[PulledReader, int, int], list[Sample]]:
    whole = fields is None or set(fields) >= set(shard.index.fields)
    blocks = PiecedBlocks(shard) if whole else None

    def read(reader: PulledReader, start: int, stop: int) -> list[Sample]:
        made = blocks.read(reader, start, stop) if blocks is not None else None
        return shard.over(reader).read_span(start, stop, fields) if made is None else made

    return read


def _wants(source: ShardSource, fields: Sequence[str] | None, begin: _Begin[T]) -> Iterator[Want[T]] | None:
    """What is read ahead; None where no shard is far."""
    return _far_wants(source, fields, begin) if any(is_far(ref.url) for ref in source.shards) else None


def _far_wants(source: ShardSource, fields: Sequence[str] | None, begin: _Begin[T]) -> Iterator[Want[T]]:
    for number in range(len(source.shards)):
        try:
            if source.is_foreign(number):
                continue
            shard = source.shard(number)
            wanted = source.wanted_fields(number, fields)
        except ShoalError:  # who reads it says so
            continue
        yield Want(number, shard, wanted, functools.partial(begin, shard, wanted))


def _span(  # a call, so that no name keeps samples that were handed out while the next are read
    ahead: SpansAhead[list[Sample]],
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
    except TarError:
        if not log.goes_on:
            raise
    found = []
    for row in range(start, stop):
        try:
            found += shard.read_rows(np.array([row]), fields, decoders)
        except TarError as error:
            log.handle(error.at(shard=shard.url, key=shard.index.keys[row].as_py()))
    return found
