"""``shoal dataload``: a loader at work, and what holds it up."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from shoal.load import DataLoader, LoaderOptions, LoaderStats

from ._loading import (
    BatchSizeOption,
    DecodeOption,
    DropLastOption,
    PrefetchOption,
    RankOption,
    SeedOption,
    ShuffleOption,
    TailOption,
    WindowOption,
    WorkersOption,
    WorldOption,
    auto_or_number,
    loaded,
    ranks,
)
from ._options import JsonOption, PathArgument, SplitOption
from ._output import print_facts, print_json, print_table, print_text, show_bytes, show_count

__all__ = ["dataload"]

_INTERRUPTED = 130
_SHOWN_STEPS = 8
_EVERY = 0.1
"""Seconds between two looks at the statistics: a look at each batch would slow quick loaders down."""

Fact = tuple[str, str]


def dataload(
    path: PathArgument,
    batch_size: BatchSizeOption = 32,
    workers: WorkersOption = "auto",
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
    rank, world_size = ranks(rank, world_size)
    options = LoaderOptions(
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        window=window,
        drop_last=drop_last,
        tail=tail,  # type: ignore[arg-type] # checked by LoaderOptions itself
        num_workers=auto_or_number("workers", workers),
        prefetch=auto_or_number("prefetch", prefetch),
        rank=rank,
        world_size=world_size,
    )
    with closing(DataLoader(loaded(path, split=split, decode=decode, quiet=as_json), options)) as loader:
        interrupted, seconds = _run(loader, epochs, max_batches, quiet=as_json)
        stats = loader.stats()
    document = {
        "path": path,
        "seconds": round(seconds, 6),
        "interrupted": interrupted,
        **_rates(stats),
        **_plain(stats),
    }
    print_json(document) if as_json else _print(stats, interrupted)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)


def _run(loader: DataLoader, epochs: int, most: int | None, *, quiet: bool) -> tuple[bool, float]:
    """Take the batches and let go of them. Says whether it was interrupted, and how long it took."""
    begun = time.perf_counter()
    batches = itertools.islice((batch for _ in range(epochs) for batch in loader), most)
    try:
        with _shown(loader, quiet=quiet) as show:
            for _ in batches:
                show()
    except KeyboardInterrupt:
        return True, time.perf_counter() - begun
    return False, time.perf_counter() - begun


@contextmanager
def _shown(loader: DataLoader, *, quiet: bool) -> Iterator[Any]:
    """A table on stderr that follows the loader; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    console = Console(file=sys.stderr, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        following = 0.0

        def show() -> None:
            nonlocal following
            if time.perf_counter() >= following:
                live.update(_live_table(loader.stats()), refresh=True)
                following = time.perf_counter() + _EVERY

        yield show


def _live_table(stats: LoaderStats) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in [*_facts(stats), *_last_steps(stats)]:
        table.add_row(name, value)
    return table


def _facts(stats: LoaderStats) -> list[Fact]:
    first = "" if stats.first_batch is None else f"{1000 * stats.first_batch:,.1f} ms"
    rate = stats.bytes / stats.seconds if stats.seconds else 0.0
    quality = [] if stats.shuffle_quality is None else [("shuffle quality", f"{stats.shuffle_quality:.2f}")]
    skipped = [("skipped", show_count(stats.skipped, "sample"))] if stats.skipped else []
    return [
        ("rate", f"{stats.rate:,.0f} samples/s, {rate / 1e6:,.1f} MB/s"),
        ("read", f"{show_count(stats.samples, 'sample')}, {show_bytes(stats.bytes)}, in {stats.batches:,} batches"),
        ("bound by", stats.bound_by),
        ("waited", f"{stats.wait:.2f} s of {stats.seconds:.2f} s"),
        ("work", f"{_work(stats)}, over all threads"),
        ("first batch", f"after {first}" if first else "none came"),
        ("settings", f"{show_count(stats.workers, 'worker')}, {stats.prefetch} ahead"),
        *quality,
        *skipped,
    ]


def _work(stats: LoaderStats) -> str:
    done = {"read": stats.fetch, "decode": stats.decode, "map": stats.map, "collate": stats.collate}
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in done.items())


def _last_steps(stats: LoaderStats) -> list[Fact]:
    return [("tried", _step(one)) for one in stats.tuning[-_SHOWN_STEPS:]]


def _step(one: dict[str, Any]) -> str:
    rate, share = one["rate"], one["wait_share"]
    return f"{show_count(one['workers'], 'worker')}, {one['prefetch']} ahead: {rate:,.1f} batches/s, {share:.0%} wait"


def _print(stats: LoaderStats, interrupted: bool) -> None:
    print_facts(_facts(stats))
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


def _rates(stats: LoaderStats) -> dict[str, float]:
    seconds = stats.seconds or 1.0
    return {"samples_per_second": stats.samples / seconds, "bytes_per_second": stats.bytes / seconds}


def _plain(stats: LoaderStats) -> dict[str, Any]:
    return {name: value for name, value in stats.to_dict().items() if name not in ("seconds", "rate")}
