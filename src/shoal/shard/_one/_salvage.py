"""What can still be had of a shard that is too damaged to be indexed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from shoal.errors import ShoalError, TarError
from shoal.shard._compress import decompressed, reader_stream, sniff
from shoal.shard._tar import BLOCK, Feed, KeyRule, ReaderFeed, StreamFeed
from shoal.store import ObjectReader, store_for

from ._policy import ErrorLog
from ._rows import Decoders, Sample
from ._stream import SampleStream, StreamOptions

__all__ = ["salvaged_runs", "streamed_runs"]

_RUN = 256


def salvaged_runs(
    url: str,
    rule: KeyRule,
    fields: Sequence[str] | None,
    decoders: Decoders,
    log: ErrorLog,
    reason: ShoalError,
) -> Iterator[list[Sample]]:
    """The samples of a shard that could not be opened for ``reason``; damage is passed over as ``log`` lets it."""
    if not isinstance(reason, TarError) or rule.group == "archive":  # else the stream meets it again
        log.handle(reason)
    if rule.group == "archive":
        return  # any sample may have lost a member
    yield from streamed_runs(store_for(url).open(url), rule, fields, decoders, log)


def streamed_runs(
    reader: ObjectReader, rule: KeyRule, fields: Sequence[str] | None, decoders: Decoders, log: ErrorLog
) -> Iterator[list[Sample]]:
    """The samples of an open shard as they lie, in one pass without an index; it is closed at the end."""
    try:
        samples = _samples(reader, rule, decoders, log)
        while run := list(itertools.islice(samples, _RUN)):
            yield run if fields is None else [_projected(sample, fields) for sample in run]
    finally:
        reader.close()


def _samples(reader: ObjectReader, rule: KeyRule, decoders: Decoders, log: ErrorLog) -> Iterator[Sample]:
    def found(names: Sequence[str]) -> Decoders:
        return {name: decoders[name] for name in names if name in decoders}

    options = StreamOptions(rule, decoders=found)
    try:
        yield from SampleStream(_feed(reader), reader.info.url, options, on_damage=log.handle)
    except TarError as error:  # a compressed stream gives nothing behind damage
        log.handle(error)


def _feed(reader: ObjectReader) -> Feed:
    compression = sniff(reader.read(0, BLOCK))
    return ReaderFeed(reader) if compression is None else StreamFeed(decompressed(reader_stream(reader), compression))


def _projected(sample: Sample, fields: Sequence[str]) -> Sample:
    return {name: value for name, value in sample.items() if name in fields or name in ("__key__", "__url__")}
