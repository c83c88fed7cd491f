"""``shoal plan``: what a training run will ask of the store and of memory, before it starts."""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from shoal.load import LoaderOptions, Prediction, predict
from shoal.shard import ShardSource, foresee

from ._dataset import shards_of
from ._loading import (
    BatchSizeOption,
    DropLastOption,
    PrefetchOption,
    SeedOption,
    ShuffleOption,
    TailOption,
    WindowOption,
    WorkersOption,
    auto_or_number,
    loaded,
)
from ._options import JsonOption, PathArgument, SplitOption, parse_bytes
from ._output import print_facts, print_json, show_bytes, show_count

__all__ = ["plan"]

_MEASURED_BYTES = 8 << 20
_FEW = 64
Fact = tuple[str, str]


def plan(
    path: PathArgument,
    world_size: Annotated[int, typer.Option("--world-size", min=1, metavar="N", help="How many processes.")] = 1,
    batch_size: BatchSizeOption = 32,
    shuffle: ShuffleOption = False,
    seed: SeedOption = 0,
    window: WindowOption = None,
    lanes: Annotated[int, typer.Option("--lanes", min=1, metavar="N", help="Shares of the data that ranks own.")] = 192,
    tail: TailOption = "pad",
    drop_last: DropLastOption = False,
    replication: Annotated[
        int, typer.Option("--replication", min=1, metavar="N", help="Neighbouring ranks that see the same data.")
    ] = 1,
    workers: WorkersOption = "auto",
    prefetch: PrefetchOption = "auto",
    bandwidth: Annotated[
        str | None,
        typer.Option("--bandwidth", metavar="SIZE", help="Bytes a second of one rank; measured if not given."),
    ] = None,
    latency: Annotated[
        float | None, typer.Option("--latency", min=0, metavar="SECONDS", help="Of one request; measured likewise.")
    ] = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict what loading will take, without loading.

    Steps, samples, requests, bytes, memory, time to the first batch and shuffle quality, for one epoch. Only indexes
    are opened; where no --bandwidth is given, the first few megabytes are read to measure it.

    \b
    Examples:
      shoal plan data/ --world-size 8 --batch-size 256 --shuffle
      shoal plan data/ --world-size 64 --shuffle --window 100000 --bandwidth 200MB --latency 0.02
      shoal plan data/ --world-size 7 --tail carry --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    options = LoaderOptions(
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        window=window,
        lanes=lanes,
        tail=tail,  # type: ignore[arg-type] # checked by LoaderOptions itself
        drop_last=drop_last,
        replication=replication,
        num_workers=auto_or_number("workers", workers),
        prefetch=auto_or_number("prefetch", prefetch),
        rank=0,
        world_size=world_size,
    )
    dataset = loaded(path, split=split, decode="yes", quiet=as_json)
    speed, delay = _speed(shards_of(dataset), None if bandwidth is None else parse_bytes(bandwidth), latency)
    foretold = predict(dataset, options, bandwidth=speed, latency=delay)
    if as_json:
        print_json({"path": path, "bandwidth": speed, "latency": delay, **foretold.to_dict()})
    else:
        print_facts([*_facts(foretold), *_times(foretold, speed, delay)])


def _speed(source: ShardSource, bandwidth: float | None, latency: float | None) -> tuple[float | None, float]:
    """What was given, else what reading the first samples takes: one for the latency, some for the bandwidth."""
    if bandwidth is not None or not len(source):
        return bandwidth, latency or 0.0
    few = np.arange(min(len(source), _FEW))
    mean = max(1.0, foresee(source, few).bytes / len(few))
    rows = np.arange(min(len(source), max(2, int(_MEASURED_BYTES / mean))))
    source.read(rows[:1])  # opens the shard
    one, run = _seconds(source, rows[:1]), _seconds(source, rows)
    each = max(run - one, 1e-9) / foresee(source, rows).bytes
    return 1 / each, one if latency is None else latency


def _seconds(source: ShardSource, rows: npt.NDArray[np.int64]) -> float:
    begun = time.perf_counter()
    source.read(rows)
    return time.perf_counter() - begun


def _facts(told: Prediction) -> list[Fact]:
    about = "" if told.is_exact else "about "
    repeated = f", {show_count(told.repeated, 'sample')} twice" if told.repeated else ""
    held = f", {show_bytes(told.held_bytes)} of shards that are kept" if told.held_bytes else ""
    order = ", ".join(f"{name} {value}" for name, value in told.order.items() if name not in ("order", "count"))
    return [
        ("order", f"{told.order['order']} ({order})" if order else str(told.order["order"])),
        ("steps", "unknown" if told.steps is None else f"{told.steps:,} an epoch, of {told.batch_size:,} samples"),
        ("samples", f"{told.rank_samples:,} a rank of {told.samples:,} in all{repeated}"),
        ("requests", f"{about}{_number(told.rank_requests)} a rank, {_number(told.requests)} in all"),
        ("bytes", f"{about}{_size(told.rank_bytes)} a rank, {_size(told.bytes)} in all"),
        ("over-fetch", _over_fetch(told)),
        ("memory", f"{_size(told.resident_bytes)}: {told.prefetch} batches of {_size(told.batch_bytes)} ahead{held}"),
        ("mixed", f"{show_count(told.window_samples, 'sample')}, {_size(told.window_bytes)}, at a time"),
        ("shuffle quality", "one shard only" if told.shuffle_quality is None else f"{told.shuffle_quality:.2f}"),
    ]


def _over_fetch(told: Prediction) -> str:
    read = "unknown" if told.over_fetch is None else f"{told.over_fetch:.2f} bytes for each that is wanted"
    if told.block_readers == 1:
        return read
    return f"{read}; {told.block_readers} ranks read from each block: a world size that divides the lanes has one"


def _times(told: Prediction, bandwidth: float | None, latency: float) -> list[Fact]:
    if told.first_batch_seconds is None or told.epoch_seconds is None or bandwidth is None:
        return []
    given = f"at {show_bytes(bandwidth)}/s and {1000 * latency:.2f} ms a request"
    first = f"first batch after {1000 * told.first_batch_seconds:,.1f} ms"
    return [("time", f"{first}, reading an epoch takes {told.epoch_seconds:,.1f} s, {given}")]


def _number(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _size(size: float | None) -> str:
    return "unknown" if size is None else show_bytes(size)
