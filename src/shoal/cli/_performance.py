"""``shoal bench``, ``dataload`` and ``plan``: measure and predict how fast a dataset is read."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from shoal.dataset._dataset import Dataset
from shoal.errors import FormatError
from shoal.load._estimate import Prediction, predict
from shoal.load._loader import DataLoader
from shoal.load._options import LoaderOptions
from shoal.load._stats import LoaderStats
from shoal.shard._manifest import Manifest
from shoal.shard._member_names import WEBDATASET_RULE
from shoal.shard._shard import Sample
from shoal.shard._source import ShardSource
from shoal.shard._table import ShardRef
from shoal.shard._writer import ShardWriter
from shoal.store._registry import store_for
from shoal.store._url import local_path, parent_url, scheme_of

from ._options import (
    BatchSizeOption,
    DecodeOption,
    DropLastOption,
    JsonOption,
    LoaderWorkersOption,
    PathArgument,
    PrefetchOption,
    RankOption,
    SeedOption,
    ShuffleOption,
    SplitOption,
    TailOption,
    WindowOption,
    WorldOption,
    default_rank,
    open_for_loading,
    parse_auto_or_int,
    parse_bytes,
    require_shards,
)
from ._output import print_facts, print_json, print_table, print_text, progress, show_bytes, show_count

__all__ = ["bench", "dataload", "plan"]

Benchmark = Callable[[], str | None]
"""A function to measure. Returns the folder that it wrote, if any, which is removed when the time has been taken."""
Fact = tuple[str, str]
_READ_BYTES = 1 << 20
_BATCH_SAMPLES = 256
_MIN_BENCH_BYTES = 16 << 20
"""With less data, opening files takes more time than reading them."""
_INTERRUPTED = 130
_SHOWN_STEPS = 8
_INTERVAL_S = 0.1
"""Seconds between two updates of the statistics; an update per batch would slow fast loaders down."""
_MEASURED_BYTES = 8 << 20
_PROBE_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class _Speed:
    """The median time of a benchmark, and the median of its ratios to the limit in each round."""

    seconds: float
    ratio: float

    def document(self, size: int, samples: int) -> dict[str, float]:
        rates = {"bytes_per_second": round(size / self.seconds), "samples_per_second": round(samples / self.seconds)}
        return {"ratio": round(self.ratio, 3), **rates}


def bench(
    path: PathArgument,
    repeats: Annotated[int, typer.Option("--repeats", min=1, metavar="N", help="How often each is measured.")] = 5,
    most: Annotated[str, typer.Option("--bytes", metavar="SIZE", help="Take about this much of the data.")] = "128MiB",
    scratch: Annotated[
        str | None, typer.Option("--scratch", metavar="DIR", help="Where to write; by default beside the data.")
    ] = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure reading and writing against the disk.

    All are ratios to the limit for that path: 1.0 is as fast as the bytes can move at all. The limit for reading is a
    plain read of the same files into one buffer, for writing a plain copy of the written files. All are measured in
    turn, several times, on warm files; ratios are medians. What is written is removed again.

    \b
    Examples:
      shoal bench data/
      shoal bench data/ --bytes 1GB --repeats 9
      shoal bench data/ --scratch /mnt/other --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    source = _first_shards(require_shards(Dataset(path, split=split)), parse_bytes(most))
    unchecked = _open_source(source.shards, source.manifest, verify=False)
    with closing(source), closing(unchecked), progress("measuring", 2 * repeats, quiet=as_json) as advance:
        size = sum(store_for(ref.url).info(ref.url).size for ref in source.shards)
        reads = _measure_reads(source, unchecked, repeats, advance)
        written, writes = _measure_writes(source, parse_bytes(most), scratch, repeats, advance)
        samples = len(source)
    facts = {
        "path": path,
        "shards": len(source.shards),
        "samples": samples,
        "bytes": size,
        "repeats": repeats,
        "read": {name: speed.document(size, samples) for name, speed in reads.items()},
        "write": {name: speed.document(*written) for name, speed in writes.items()},
    }
    print_json(facts) if as_json else _print_bench(facts)


def _first_shards(source: ShardSource, most: int) -> ShardSource:
    """The first shards, up to ``most`` bytes; at least one."""
    chosen: list[ShardRef] = []
    left = most
    for ref in source.shards:
        left -= store_for(ref.url).info(ref.url).size
        if chosen and left < 0:
            break
        chosen.append(ref)
    if not chosen:
        raise FormatError("there is nothing to measure", expected="at least one shard", found="none")
    return _open_source(chosen, source.manifest)


def _open_source(shards: Sequence[ShardRef], manifest: Manifest | None, *, verify: bool = True) -> ShardSource:
    rule = WEBDATASET_RULE if manifest is None else manifest.rule
    return ShardSource(shards, rule=rule, verify=verify, manifest=manifest)


def _measure_reads(
    source: ShardSource, unchecked: ShardSource, repeats: int, advance: Callable[[int], None]
) -> dict[str, _Speed]:
    order = np.random.default_rng(0).permutation(len(source))
    benchmarks: dict[str, Benchmark] = {
        "limit": lambda: _read_files(source),
        "sequential": lambda: _read_in_order(source),
        "sequential, unchecked": lambda: _read_in_order(unchecked),
        "random": lambda: _read_at_random(source, order),
    }
    return _measure(benchmarks, repeats, advance)


def _measure(benchmarks: dict[str, Benchmark], repeats: int, advance: Callable[[int], None]) -> dict[str, _Speed]:
    """Run all benchmarks in each round, so that other load affects them alike. The first round only warms up."""
    times: dict[str, list[float]] = {name: [] for name in benchmarks}
    for number in range(repeats + 1):
        for name, run in benchmarks.items():
            start = time.perf_counter()
            made = run()
            taken = time.perf_counter() - start
            if number:
                times[name].append(taken)
            if made is not None:
                shutil.rmtree(made)
        advance(1 if number else 0)
    limit = times[next(iter(benchmarks))]
    return {
        name: _Speed(
            statistics.median(own), statistics.median(best / each for best, each in zip(limit, own, strict=True))
        )
        for name, own in times.items()
    }


def _read_files(source: ShardSource) -> None:
    """Read every byte into one buffer: the limit of reading."""
    buffer = bytearray(_READ_BYTES)
    for ref in source.shards:
        if scheme_of(ref.url) == "file":
            with open(local_path(ref.url), "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        else:
            with closing(store_for(ref.url).open(ref.url)) as reader:
                for start in range(0, reader.info.size, _READ_BYTES):
                    reader.read(start, start + _READ_BYTES)


def _read_in_order(source: ShardSource) -> None:
    for _ in source.stream():
        pass


def _read_at_random(source: ShardSource, order: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    for start in range(0, len(order), _BATCH_SAMPLES):
        source.read(order[start : start + _BATCH_SAMPLES])


def _measure_writes(
    source: ShardSource, most: int, scratch: str | None, repeats: int, advance: Callable[[int], None]
) -> tuple[tuple[int, int], dict[str, _Speed]]:
    """Measure writing. Returns the bytes and samples that were written, too."""
    samples = _samples_in_memory(source, most)
    with _scratch_folder(source, scratch) as folder:
        original = _write_samples(samples, folder)
        paths = [each.path for each in os.scandir(original) if each.is_file()]
        size = sum(os.path.getsize(path) for path in paths)
        benchmarks: dict[str, Benchmark] = {
            "limit": lambda: _copy_files(paths, folder),
            "write": lambda: _write_samples(samples, folder),
        }
        return (size, len(samples)), _measure(benchmarks, repeats, advance)


def _samples_in_memory(source: ShardSource, most: int) -> list[Sample]:
    """The first samples, up to ``most`` bytes, so that writing is not measured together with reading."""
    samples: list[Sample] = []
    left, keys = most, set[str]()
    for run in source.stream():
        for sample in run:
            left -= sum(len(value) for name, value in sample.items() if not name.startswith("__"))
            if samples and left < 0:
                return samples
            # Shards that each number their samples anew have the same keys, which one shard cannot have.
            samples.append(sample if sample["__key__"] not in keys else {**sample, "__key__": f"{len(samples):09d}"})
            keys.add(samples[-1]["__key__"])
    return samples


@contextmanager
def _scratch_folder(source: ShardSource, scratch: str | None) -> Iterator[str]:
    """Make a temporary folder next to the data where that is writable, else in the system's folder."""
    url = source.shards[0].url
    beside = local_path(parent_url(url)) if scheme_of(url) == "file" else None
    chosen = scratch or (beside if beside is not None and os.access(beside, os.W_OK) else None)
    with tempfile.TemporaryDirectory(prefix=".shoal-bench-", dir=chosen) as folder:
        yield folder


def _write_samples(samples: list[Sample], folder: str) -> str:
    target = tempfile.mkdtemp(dir=folder)
    with ShardWriter(os.path.join(target, "bench-%06d.tar")) as writer:
        for sample in samples:
            writer.write(sample)
    return target


def _copy_files(paths: list[str], folder: str) -> str:
    """Copy files through one buffer: the limit of writing."""
    target, buffer = tempfile.mkdtemp(dir=folder), bytearray(_READ_BYTES)
    view = memoryview(buffer)
    for path in paths:
        copy = os.path.join(target, os.path.basename(path))
        with open(path, "rb", buffering=0) as source, open(copy, "wb", buffering=0) as file:
            while count := source.readinto(buffer):
                file.write(view[:count])
    return target


def _print_bench(facts: dict[str, Any]) -> None:
    rows = [
        (f"{kind}, {name}" if kind == "read" else name, f"{speed['ratio']:.2f}", *_rate_cells(speed))
        for kind in ("read", "write")
        for name, speed in facts[kind].items()
        if name != "limit"
    ]
    limits = [(f"{kind} limit", "1.00", *_rate_cells(facts[kind]["limit"])) for kind in ("read", "write")]
    columns = ["what", "of the limit", "bytes a second", "samples a second"]
    print_table(columns, [*rows, *limits], right=columns[1:])
    size = f"{show_bytes(facts['bytes'])}, {facts['samples']:,} samples"
    if facts["bytes"] < _MIN_BENCH_BYTES:
        print_text("\nso little data says little: opening files counts for more than reading them")
    print_text(f"\nover {size} of {facts['path']}, the median of {facts['repeats']} rounds, warm")


def _rate_cells(speed: dict[str, float]) -> tuple[str, str]:
    return f"{show_bytes(speed['bytes_per_second'])}/s", f"{speed['samples_per_second']:,}"


def dataload(
    path: PathArgument,
    batch_size: BatchSizeOption = 32,
    workers: LoaderWorkersOption = "auto",
    prefetch: PrefetchOption = "auto",
    shuffle: ShuffleOption = False,
    seed: SeedOption = 0,
    window: WindowOption = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, metavar="N", help="How often all is read.")] = 1,
    max_batches: Annotated[
        int | None, typer.Option("--max-batches", min=1, metavar="N", help="Stop after so many batches.")
    ] = None,
    decode: DecodeOption = "yes",
    drop_last: DropLastOption = False,
    tail: TailOption = "pad",
    rank: RankOption = None,
    world_size: WorldOption = None,
    split: SplitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a loader over a dataset and show its speed.

    Rates, waits, what the loader is bound by and what autotune tried are shown while it runs, where stderr is a
    terminal, and again at the end. Ctrl-C ends it early, with what was measured so far and exit code 130.

    \b
    Examples:
      shoal dataload data/ --batch-size 256 --shuffle
      shoal dataload data/ --decode rgb8 --workers 4 --prefetch 8
      shoal dataload data/ --rank 3 --world-size 8 --max-batches 1000 --json
    """  # noqa: D301 - click's own mark for a paragraph that is not to be wrapped
    rank, world_size = default_rank(rank, world_size)
    options = LoaderOptions(
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        window=window,
        drop_last=drop_last,
        tail=tail,  # type: ignore[arg-type] # checked by LoaderOptions itself
        num_workers=parse_auto_or_int("workers", workers),
        prefetch=parse_auto_or_int("prefetch", prefetch),
        rank=rank,
        world_size=world_size,
    )
    with closing(DataLoader(open_for_loading(path, split=split, decode=decode, quiet=as_json), options)) as loader:
        interrupted, seconds = _run_loader(loader, epochs, max_batches, quiet=as_json)
        stats = loader.stats()
    document = {
        "path": path,
        "seconds": round(seconds, 6),
        "interrupted": interrupted,
        **_loader_rates(stats),
        **_other_stats(stats),
    }
    print_json(document) if as_json else _print_dataload(stats, interrupted)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)


def _run_loader(loader: DataLoader, epochs: int, most: int | None, *, quiet: bool) -> tuple[bool, float]:
    """Iterate over the batches. Returns whether it was interrupted, and how many seconds it took."""
    begun = time.perf_counter()
    batches = itertools.islice((batch for _ in range(epochs) for batch in loader), most)
    try:
        with _live_statistics(loader, quiet=quiet) as show:
            for _ in batches:
                show()
    except KeyboardInterrupt:
        return True, time.perf_counter() - begun
    return False, time.perf_counter() - begun


@contextmanager
def _live_statistics(loader: DataLoader, *, quiet: bool) -> Iterator[Any]:
    """Show a table on stderr that follows the loader, where that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    console = Console(file=sys.stderr, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        next_update = 0.0

        def show() -> None:
            nonlocal next_update
            if time.perf_counter() >= next_update:
                live.update(_live_table(loader.stats()), refresh=True)
                next_update = time.perf_counter() + _INTERVAL_S

        yield show


def _live_table(stats: LoaderStats) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in [*_loader_facts(stats), *_last_steps(stats)]:
        table.add_row(name, value)
    return table


def _loader_facts(stats: LoaderStats) -> list[Fact]:
    first = "" if stats.first_batch is None else f"{1000 * stats.first_batch:,.1f} ms"
    rate = stats.bytes / stats.seconds if stats.seconds else 0.0
    quality = [] if stats.shuffle_quality is None else [("shuffle quality", f"{stats.shuffle_quality:.2f}")]
    skipped = [("skipped", show_count(stats.skipped, "sample"))] if stats.skipped else []
    return [
        ("rate", f"{stats.rate:,.0f} samples/s, {rate / 1e6:,.1f} MB/s"),
        ("read", f"{show_count(stats.samples, 'sample')}, {show_bytes(stats.bytes)}, in {stats.batches:,} batches"),
        ("bound by", stats.bound_by),
        ("waited", f"{stats.wait:.2f} s of {stats.seconds:.2f} s"),
        ("work", f"{_format_work(stats)}, over all threads"),
        ("first batch", f"after {first}" if first else "none came"),
        ("settings", f"{show_count(stats.workers, 'worker')}, {stats.prefetch} ahead"),
        *quality,
        *skipped,
    ]


def _format_work(stats: LoaderStats) -> str:
    done = {"read": stats.fetch, "decode": stats.decode, "map": stats.map, "collate": stats.collate}
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in done.items())


def _last_steps(stats: LoaderStats) -> list[Fact]:
    return [("tried", _format_step(one)) for one in stats.tuning[-_SHOWN_STEPS:]]


def _format_step(one: dict[str, Any]) -> str:
    rate, share = one["rate"], one["wait_share"]
    return f"{show_count(one['workers'], 'worker')}, {one['prefetch']} ahead: {rate:,.1f} batches/s, {share:.0%} wait"


def _print_dataload(stats: LoaderStats, interrupted: bool) -> None:
    print_facts(_loader_facts(stats))
    if stats.tuning:
        print_text("\nautotune")
        rows = [
            (str(one["workers"]), str(one["prefetch"]), f"{one['rate']:,.1f}", f"{one['wait_share']:.0%}")
            for one in stats.tuning
        ]
        columns = ["workers", "ahead", "batches a second", "wait"]
        print_table(columns, rows, right=columns)
    if interrupted:
        print_text("\ninterrupted")


def _loader_rates(stats: LoaderStats) -> dict[str, float]:
    seconds = stats.seconds or 1.0
    return {"samples_per_second": stats.samples / seconds, "bytes_per_second": stats.bytes / seconds}


def _other_stats(stats: LoaderStats) -> dict[str, Any]:
    return {name: value for name, value in stats.to_dict().items() if name not in ("seconds", "rate")}


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
    workers: LoaderWorkersOption = "auto",
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
        num_workers=parse_auto_or_int("workers", workers),
        prefetch=parse_auto_or_int("prefetch", prefetch),
        rank=0,
        world_size=world_size,
    )
    dataset = open_for_loading(path, split=split, decode="yes", quiet=as_json)
    speed, delay = _measure_speed(
        require_shards(dataset), None if bandwidth is None else parse_bytes(bandwidth), latency
    )
    prediction = predict(dataset, options, bandwidth=speed, latency=delay)
    if as_json:
        print_json({"path": path, "bandwidth": speed, "latency": delay, **prediction.to_dict()})
    else:
        print_facts([*_plan_facts(prediction), *_time_facts(prediction, speed, delay)])


def _measure_speed(source: ShardSource, bandwidth: float | None, latency: float | None) -> tuple[float | None, float]:
    """Return bandwidth and latency: those given, else measured by reading one sample and then several."""
    if bandwidth is not None or not len(source):
        return bandwidth, latency or 0.0
    few = np.arange(min(len(source), _PROBE_SAMPLES))
    mean = max(1.0, source.estimate(few).bytes / len(few))
    rows = np.arange(min(len(source), max(2, int(_MEASURED_BYTES / mean))))
    source.read(rows[:1])  # opens the shard
    one, run = _time_read(source, rows[:1]), _time_read(source, rows)
    each = max(run - one, 1e-9) / source.estimate(rows).bytes
    return 1 / each, one if latency is None else latency


def _time_read(source: ShardSource, rows: npt.NDArray[np.int64]) -> float:
    begun = time.perf_counter()
    source.read(rows)
    return time.perf_counter() - begun


def _plan_facts(plan: Prediction) -> list[Fact]:
    about = "" if plan.is_exact else "about "
    repeated = f", {show_count(plan.repeated, 'sample')} twice" if plan.repeated else ""
    batches = f"{plan.prefetch} batches of {_format_size(plan.batch_bytes)}"
    kept = f", {show_bytes(plan.held_bytes)} of shards that are kept" if plan.held_bytes else ""
    order = ", ".join(f"{name} {value}" for name, value in plan.order.items() if name not in ("order", "count"))
    return [
        ("order", f"{plan.order['order']} ({order})" if order else str(plan.order["order"])),
        ("steps", "unknown" if plan.steps is None else f"{plan.steps:,} an epoch, of {plan.batch_size:,} samples"),
        ("samples", f"{plan.rank_samples:,} a rank of {plan.samples:,} in all{repeated}"),
        ("requests", f"{about}{_format_number(plan.rank_requests)} a rank, {_format_number(plan.requests)} in all"),
        ("bytes", f"{about}{_format_size(plan.rank_bytes)} a rank, {_format_size(plan.bytes)} in all"),
        ("over-fetch", _over_fetch(plan)),
        ("memory", f"{_format_size(plan.resident_bytes)}: {batches} ahead{kept}"),
        ("mixed", f"{show_count(plan.window_samples, 'sample')}, {_format_size(plan.window_bytes)}, at a time"),
        ("shuffle quality", "one shard only" if plan.shuffle_quality is None else f"{plan.shuffle_quality:.2f}"),
    ]


def _over_fetch(plan: Prediction) -> str:
    read = "unknown" if plan.over_fetch is None else f"{plan.over_fetch:.2f} bytes for each that is wanted"
    if plan.block_readers == 1:
        return read
    return f"{read}; {plan.block_readers} ranks read from each block: a world size that divides the lanes has one"


def _time_facts(plan: Prediction, bandwidth: float | None, latency: float) -> list[Fact]:
    if plan.first_batch_seconds is None or plan.epoch_seconds is None or bandwidth is None:
        return []
    given = f"at {show_bytes(bandwidth)}/s and {1000 * latency:.2f} ms a request"
    first = f"first batch after {1000 * plan.first_batch_seconds:,.1f} ms"
    return [("time", f"{first}, reading an epoch takes {plan.epoch_seconds:,.1f} s, {given}")]


def _format_number(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _format_size(size: float | None) -> str:
    return "unknown" if size is None else show_bytes(size)
