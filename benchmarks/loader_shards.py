"""How fast does a loader give shuffled batches of many shards, where none of them is kept in memory?"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import webdataset

import shoal
from shoal.load import DataLoader

from . import loader_raw, loader_typed
from ._loader_peers import WORKERS, litdata_batches, made, webdataset_batches, write_litdata
from ._loader_table import HEADER, loader_rows, readinto_rate
from ._loader_turns import Loader, Turns, take_turns
from ._measure import Question

__all__ = ["LOADERS", "run"]

SHARDS = 400
_BUDGET = 32 << 20
"""Less than the data, so that nothing is kept: as for data of any size, and for each of several ranks."""
_RAW, _TYPED = loader_raw.SAMPLES, loader_typed.SAMPLES


def _raw_tars() -> str:
    return made("shards/raw/tar", _write_raw)


def _write_raw(folder: str) -> None:
    os.makedirs(folder)
    samples = loader_raw.samples()
    for number in range(SHARDS):
        with open(f"{folder}/{number:06d}.tar", "wb") as file, webdataset.TarWriter(file, mtime=0) as writer:
            for sample in itertools.islice(samples, _RAW // SHARDS):
                writer.write(sample)


def _typed_tars() -> str:
    return made("shards/typed/tar", _write_typed)


def _write_typed(folder: str) -> None:
    facts = (loader_typed.Fact(**row) for row in loader_typed.rows())
    for number in range(SHARDS):
        shoal.write_samples(itertools.islice(facts, _TYPED // SHARDS), f"{folder}/{number:06d}.tar", append=True)


def _raw_litdata() -> str:
    return made("shards/raw/litdata", lambda folder: write_litdata(folder, loader_raw.fields(), "512KB"))


def _typed_litdata() -> str:
    return made("shards/typed/litdata", lambda folder: write_litdata(folder, loader_typed.rows(), "64KB"))


def _shoal_raw(**options: Any) -> Iterator[int]:
    dataset = shoal.Dataset(f"{_raw_tars()}/*.tar", decode=False)
    with DataLoader(dataset, batch_size=loader_raw.BATCH, shuffle=True, memory_budget=_BUDGET, **options) as loader:
        yield from loader_raw.counted(loader.repeat())


def _shoal_typed(**options: Any) -> Iterator[int]:
    dataset = shoal.Dataset[loader_typed.Fact](f"{_typed_tars()}/*.tar")
    with DataLoader(dataset, batch_size=loader_typed.BATCH, shuffle=True, memory_budget=_BUDGET, **options) as loader:
        for batch in loader.repeat():
            _ = batch.label, batch.weight
            yield len(batch.values)


def _webdataset_raw(workers: int) -> Iterator[int]:
    found = webdataset_batches(_raw_tars(), loader_raw.BATCH, loader_raw.columns, None, workers)
    yield from loader_raw.counted(found)


def _webdataset_typed(workers: int) -> Iterator[int]:
    one = loader_typed
    yield from one.counted(webdataset_batches(_typed_tars(), one.BATCH, one.columns, one.unpacked, workers))


def _lit_raw(workers: int) -> Iterator[int]:
    found = litdata_batches(_raw_litdata(), loader_raw.BATCH, loader_raw.columns, None, workers)
    yield from loader_raw.counted(found)


def _lit_typed(workers: int) -> Iterator[int]:
    found = litdata_batches(_typed_litdata(), loader_typed.BATCH, loader_typed.columns, None, workers)
    yield from loader_typed.counted(found)


def _contenders(kind: str, ours: Any, web: Any, lit: Any, tars: Any, chunks: Any) -> Iterator[Loader]:
    yield Loader(f"{kind}: shoal, auto", ours, tars)
    yield Loader(f"{kind}: shoal, auto, window=16", partial(ours, window=16), tars)
    yield Loader(f"{kind}: webdataset, {WORKERS} workers", partial(web, WORKERS), tars)
    yield from (
        Loader(f"{kind}: litData, {workers} workers", partial(lit, workers), chunks) for workers in (0, WORKERS)
    )


LOADERS = (
    *_contenders("raw", _shoal_raw, _webdataset_raw, _lit_raw, _raw_tars, _raw_litdata),
    *_contenders("typed", _shoal_typed, _webdataset_typed, _lit_typed, _typed_tars, _typed_litdata),
)


def run(rounds: int = 5, seconds: float = 1.0) -> Question:
    """Compare loaders of shuffled batches of many shards, each with its own files of the same samples."""
    question = Question(
        "Loader, many shards",
        f"The raw and the typed samples of the two questions above, in {SHARDS} shards or as many chunks, warm. shoal "
        "may keep 32 MiB, less than the data, so that every batch is read from the files: as of data of any size, or "
        "by one of several ranks. shoal shuffles all samples, or with `window=16` those of 16 blocks at a time; "
        "webdataset shuffles shards and a buffer of 1,000 samples, litData chunks and the samples in each. The limit "
        "is `readinto`.",
        HEADER,
    )
    for loader in LOADERS:
        loader.prepare()
    found = take_turns("benchmarks.loader_shards", [loader.name for loader in LOADERS], rounds, seconds)
    for kind, folder, count in (("raw", _raw_tars(), _RAW), ("typed", _typed_tars(), _TYPED)):
        tars = glob.glob(f"{folder}/*.tar")
        own = {name.partition(": ")[2]: _named(one) for name, one in found.items() if name.startswith(kind)}
        rows = loader_rows(own, sum(map(os.path.getsize, tars)) / count, readinto_rate(tars, count))
        question.rows.extend((f"{kind}: {row[0]}", *row[1:]) for row in rows)
    return question


def _named(one: Turns) -> Turns:
    """Without the kind of samples."""
    return replace(one, name=one.name.partition(": ")[2])


if __name__ == "__main__":
    print(run().markdown())
