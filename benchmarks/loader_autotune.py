"""Does autotune come near the best fixed setting?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import shoal
from shoal.load import DataLoader

from . import loader_jpeg, loader_raw, loader_typed
from ._loader_turns import Loader, take_turns
from ._measure import Question

__all__ = ["LOADERS", "run"]

GRID = ((0, 1), *((workers, prefetch) for workers in (1, 2, 4) for prefetch in (2, 8)))
"""Threads, and batches ahead."""


def _raw(workers: Any, prefetch: Any) -> Iterator[int]:
    dataset = shoal.Dataset(f"{loader_raw.raw_tars()}/*.tar", decode=False)
    options: dict[str, Any] = {"batch_size": loader_raw.BATCH, "num_workers": workers, "prefetch": prefetch}
    with DataLoader(dataset, shuffle=True, **options) as loader:
        yield from (len(batch["jpg"]) for batch in loader.repeat())


def _typed(workers: Any, prefetch: Any) -> Iterator[int]:
    dataset = shoal.Dataset[loader_typed.Fact](f"{loader_typed.typed_tars()}/*.tar")
    options: dict[str, Any] = {"batch_size": loader_typed.BATCH, "num_workers": workers, "prefetch": prefetch}
    with DataLoader(dataset, shuffle=True, **options) as loader:
        for batch in loader.repeat():
            _ = batch.label, batch.weight
            yield len(batch.values)


def _jpeg(workers: Any, prefetch: Any) -> Iterator[int]:
    dataset = shoal.Dataset(f"{loader_jpeg.picture_tars()}/*.tar", decode=False).map(loader_jpeg.decoded_sample)
    options: dict[str, Any] = {"batch_size": loader_jpeg.BATCH, "num_workers": workers, "prefetch": prefetch}
    with DataLoader(dataset, shuffle=True, **options) as loader:
        yield from (len(batch["image"]) for batch in loader.repeat())


WORK = (
    ("raw", _raw, loader_raw.raw_tars, 4.0),
    ("typed", _typed, loader_typed.typed_tars, 4.0),
    ("pictures", _jpeg, loader_jpeg.picture_tars, 12.0),
)
"""What is loaded, its files, and the seconds that autotune is given to try its settings: some dozens of batches."""

LOADERS = tuple(
    loader
    for name, begin, prepare, search in WORK
    for loader in (
        Loader(f"{name}, auto", partial(begin, "auto", "auto"), prepare, search),
        *(
            Loader(f"{name}, {workers} workers, {prefetch} ahead", partial(begin, workers, prefetch), prepare)
            for workers, prefetch in GRID
        ),
    )
)


def run(rounds: int = 5, seconds: float = 0.75) -> Question:
    """Compare with every setting of a grid."""
    question = Question(
        "Autotune",
        "Batches a second with threads and prefetch found while running, against each fixed setting of a grid: "
        f"{len(GRID)} settings, medians of {rounds}. The caller does nothing with a batch. What autotune takes to "
        "search is not counted.",
        ("work", "best fixed setting", "autotune, of the best", "worst fixed setting, of the best"),
    )
    for loader in LOADERS:
        loader.prepare()
    found = take_turns("benchmarks.loader_autotune", [loader.name for loader in LOADERS], rounds, seconds)
    for name, *_ in WORK:
        fixed = [one for title, one in found.items() if title.startswith(f"{name}, ") and "auto" not in title]
        best, worst = max(fixed, key=lambda one: one.rate), min(fixed, key=lambda one: one.rate)
        auto = found[f"{name}, auto"].rate
        row = (name, best.name.partition(", ")[2], f"{auto / best.rate:.2f}", f"{worst.rate / best.rate:.2f}")
        question.rows.append(row)
    return question


if __name__ == "__main__":
    print(run().markdown())
