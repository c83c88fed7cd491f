"""Batches of a dataset, in order and shuffled, on the caller's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import OptionError
from shoal.load import PayloadRun, Ragged, SampleBatch, TypedColumns
from shoal.sample import is_record
from shoal.shard import RawField, ShardSource, join_raw

__all__ = ["batch_of", "check_batch_size", "in_batches", "raw_ordered", "raw_shuffled", "typed_batches"]

Int64 = npt.NDArray[np.int64]

WINDOW_BLOCKS = 32
"""How many blocks are mixed at a time; a dataset that fits is shuffled as a whole."""


def check_batch_size(batch_size: int) -> int:
    """Raise OptionError unless it is a whole number of at least 1."""
    if type(batch_size) is not int or batch_size < 1:
        raise OptionError(
            "a batch holds at least one sample", expected="batch_size of at least 1", found=repr(batch_size)
        )
    return batch_size


def in_batches(samples: Iterable[Any], batch_size: int, drop_last: bool, ragged: Ragged) -> Iterator[Any]:
    """Samples gathered into batches; the last one may be short."""
    held: list[Any] = []
    for sample in samples:
        held.append(sample)
        if len(held) == batch_size:
            yield batch_of(held, ragged)
            held = []
    if held and not drop_last:
        yield batch_of(held, ragged)


def batch_of(samples: list[Any], ragged: Ragged) -> Any:
    """One batch: a SampleBatch of typed samples, a dict of columns of dicts, a list of anything else."""
    if isinstance(samples[0], dict):
        return _columns(samples)
    return SampleBatch.of(samples, ragged=ragged) if is_record(type(samples[0])) else samples


def _columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: _stacked([sample.get(name) for sample in samples]) for name in names}


def _stacked(values: list[Any]) -> Any:
    """Arrays of one shape and type as one array, anything else as it is."""
    first = values[0]
    alike = all(
        isinstance(value, np.ndarray) and value.shape == first.shape and value.dtype == first.dtype for value in values
    )
    return np.stack(values) if alike else values


def typed_batches(
    runs: Iterable[tuple[RawField, Int64 | None]],
    sample_type: type[Any],
    batch_size: int,
    drop_last: bool,
    ragged: Ragged,
) -> Iterator[SampleBatch[Any]]:
    """Payloads cut into batches, each run in the order given for it, or as it lies.

    A batch across a border is of two runs; nothing is copied to make it one.
    """
    held: list[tuple[PayloadRun[Any], slice | Int64]] = []
    count = 0
    for raw, order in runs:
        run, at = PayloadRun(raw, sample_type), 0
        while count + len(run) - at >= batch_size:
            stop = at + batch_size - count
            yield SampleBatch(TypedColumns([*held, (run, _part(order, at, stop))]), ragged=ragged)
            at, count, held = stop, 0, []
        if at < len(run):
            held.append((run, _part(order, at, len(run))))
            count += len(run) - at
    if held and not drop_last:
        yield SampleBatch(TypedColumns(list(held)), ragged=ragged)


def _part(order: Int64 | None, start: int, stop: int) -> slice | Int64:
    return slice(start, stop) if order is None else order[start:stop]


def raw_ordered(source: ShardSource, field: str, rows: Int64 | None) -> Iterator[tuple[RawField, None]]:
    """Payloads as they lie, or those of some samples in the order given."""
    runs = source.raw_stream(field) if rows is None else [source.raw_rows(rows, field)]
    return ((run, None) for run in runs)


def raw_shuffled(source: ShardSource, field: str, seed: int) -> Iterator[tuple[RawField, Int64]]:
    """Payloads in a random order: blocks are permuted, and the samples of each window of blocks mixed."""
    spans = [(number, *span) for number in range(len(source.shards)) for span in source.shard(number).spans([field])]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(spans)).tolist()
    for at in range(0, len(order), WINDOW_BLOCKS):
        window = [spans[place] for place in order[at : at + WINDOW_BLOCKS]]
        raw = join_raw([source.shard(number).raw_span(start, stop, field) for number, start, stop in window])
        yield raw, rng.permutation(len(raw))
