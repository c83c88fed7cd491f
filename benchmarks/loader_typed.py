"""How fast does a loader give shuffled batches of typed samples: an array, a text and a number each?"""

from __future__ import annotations

import glob
import io
import itertools
import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import datasets
import msgpack
import numpy as np
from numpy.typing import NDArray

import shoal
from shoal.load import DataLoader

from ._loader_peers import (
    WORKERS,
    huggingface_batches,
    litdata_batches,
    made,
    spdl_batches,
    streaming_batches,
    webdataset_batches,
    write_litdata,
    write_mds,
)
from ._loader_table import HEADER, loader_rows, readinto_rate
from ._loader_turns import Loader, take_turns
from ._measure import Question

__all__ = ["LOADERS", "Fact", "columns", "counted", "rows", "run", "typed_tars", "unpacked"]

BATCH = 256
SHARDS = 8
SAMPLES = 80_000


@shoal.packable
class Fact:
    """64 numbers, a text of varying length and one number more."""

    values: NDArray[np.float32]
    label: str
    weight: float


def rows() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(5)
    for number in range(SAMPLES):
        yield {"values": rng.random(64, np.float32), "label": "label" * (number % 7), "weight": number / 3}


def typed_tars() -> str:
    """As shoal writes typed samples: a msgpack a sample, with the array as a npy in it."""
    return made("typed/tar", _write_tars)


def _write_tars(folder: str) -> None:
    every = rows()
    for number in range(SHARDS):
        some = itertools.islice(every, SAMPLES // SHARDS)
        shoal.write_samples((Fact(**row) for row in some), f"{folder}/{number:06d}.tar", append=True)


def _mds() -> str:
    columns = {"values": "ndarray:float32:64", "label": "str", "weight": "float64"}
    return made("typed/mds", lambda folder: write_mds(folder, columns, rows()))


def _litdata() -> str:
    return made("typed/litdata", lambda folder: write_litdata(folder, rows(), "4MB"))


def _parquet() -> str:
    """For datasets: its own format, which is quicker there than a tar."""
    return made("typed/parquet", _write_parquet)


def _write_parquet(folder: str) -> None:
    features = datasets.Features(
        {
            "values": datasets.List(datasets.Value("float32"), 64),
            "label": datasets.Value("string"),
            "weight": datasets.Value("float64"),
        }
    )
    os.makedirs(folder)
    every = rows()
    for number in range(SHARDS):
        some = list(itertools.islice(every, SAMPLES // SHARDS))
        datasets.Dataset.from_list(some, features=features).to_parquet(f"{folder}/{number:06d}.parquet")


def columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "values": np.stack([sample["values"] for sample in samples]),
        "label": [sample["label"] for sample in samples],
        "weight": [sample["weight"] for sample in samples],
    }


def unpacked(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample of the tar, as atdata reads one."""
    found: dict[str, Any] = msgpack.unpackb(sample["msgpack"])
    return {**found, "values": np.load(io.BytesIO(found["values"]))}


def counted(batches: Iterable[dict[str, Any]]) -> Iterator[int]:
    return (len(batch["values"]) for batch in batches)


def _shoal(workers: Any) -> Iterator[int]:
    dataset = shoal.Dataset[Fact](f"{typed_tars()}/*.tar")
    with DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers) as loader:
        for batch in loader.repeat():
            _ = batch.label, batch.weight
            yield len(batch.values)


def _webdataset(workers: int) -> Iterator[int]:
    yield from counted(webdataset_batches(typed_tars(), BATCH, columns, unpacked, workers))


def _streaming(workers: int) -> Iterator[int]:
    yield from counted(streaming_batches(_mds(), BATCH, columns, None, workers))


def _lit(workers: int) -> Iterator[int]:
    yield from counted(litdata_batches(_litdata(), BATCH, columns, None, workers))


def _huggingface(workers: int) -> Iterator[int]:
    files = {"train": sorted(glob.glob(f"{_parquet()}/*.parquet"))}
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    yield from counted(huggingface_batches(stream.with_format("numpy"), BATCH, columns, None, workers))


def _spdl() -> Iterator[int]:
    yield from counted(spdl_batches(typed_tars(), BATCH, columns, unpacked, _grouped))


def _grouped(members: Iterable[tuple[str, memoryview]]) -> list[dict[str, Any]]:
    return [{"msgpack": view} for _, view in members]


LOADERS = (
    Loader("shoal, auto", partial(_shoal, "auto"), typed_tars),
    *(Loader(f"shoal, {workers} workers", partial(_shoal, workers), typed_tars) for workers in (0, 1, 2)),
    *(Loader(f"webdataset, {workers} workers", partial(_webdataset, workers), typed_tars) for workers in (0, WORKERS)),
    *(Loader(f"Streaming, {workers} workers", partial(_streaming, workers), _mds) for workers in (0, WORKERS)),
    *(Loader(f"litData, {workers} workers", partial(_lit, workers), _litdata) for workers in (0, WORKERS)),
    *(Loader(f"datasets, {workers} workers", partial(_huggingface, workers), _parquet) for workers in (0, WORKERS)),
    Loader("SPDL, 2 threads", _spdl, typed_tars),
)


def run(rounds: int = 5, seconds: float = 1.0) -> Question:
    """Compare loaders of shuffled batches, each with its own files of the same samples."""
    question = Question(
        "Loader, typed samples",
        f"Shuffled batches of {BATCH} samples of 64 float32, a text and a float: one array and two lists a batch, from "
        "warm local files (read in order once before, from the disk). "
        "Each reads its own format: shoal, webdataset and SPDL a tar of msgpack with npy in it, as "
        "atdata has it, Streaming MDS, litData its chunks, datasets Parquet. `workers` are processes for the peers and "
        "threads for shoal and SPDL. The limit is `readinto` of the tars.",
        HEADER,
    )
    for loader in LOADERS:
        loader.prepare()
    found = take_turns("benchmarks.loader_typed", [loader.name for loader in LOADERS], rounds, seconds)
    tars = glob.glob(f"{typed_tars()}/*.tar")
    question.rows.extend(loader_rows(found, sum(map(os.path.getsize, tars)) / SAMPLES, readinto_rate(tars, SAMPLES)))
    return question


if __name__ == "__main__":
    print(run().markdown())
