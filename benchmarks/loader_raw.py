"""How fast does a loader give shuffled batches of raw samples?"""

from __future__ import annotations

import glob
import itertools
import json
import os
import pathlib
import random
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import datasets
import webdataset

import shoal
from shoal.load import DataLoader

from ._data import image_samples
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

__all__ = ["LOADERS", "columns", "counted", "fields", "raw_tars", "run", "samples"]

BATCH = 64
SHARDS = 8
SAMPLES = 10_000
FIELDS = ("jpg", "json", "cls")
_CUT = "limit: bytes cut from memory"


def samples() -> Iterator[dict[str, Any]]:
    """All fields as bytes: nobody decodes anything."""
    for sample in image_samples(SAMPLES):
        text = json.dumps(sample["json"]).encode()
        yield {**sample, "json": text, "cls": str(sample["cls"]).encode()}


def raw_tars() -> str:
    """Where the shards are."""
    return made("raw/tar", _write_tars)


def _write_tars(folder: str) -> None:
    os.makedirs(folder)
    every, most = samples(), SAMPLES // SHARDS
    for number in range(SHARDS):
        with open(f"{folder}/{number:06d}.tar", "wb") as file, webdataset.TarWriter(file, mtime=0) as writer:
            for sample in itertools.islice(every, most):
                writer.write(sample)


def fields() -> Iterator[dict[str, bytes]]:
    return ({name: sample[name] for name in FIELDS} for sample in samples())


def _mds() -> str:
    return made("raw/mds", lambda folder: write_mds(folder, dict.fromkeys(FIELDS, "bytes"), fields()))


def _litdata() -> str:
    return made("raw/litdata", lambda folder: write_litdata(folder, fields(), "16MB"))


def columns(some: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [sample[name] for sample in some] for name in FIELDS}


def counted(batches: Iterable[dict[str, Any]]) -> Iterator[int]:
    """How many samples are in each batch. All of its bytes are here by now."""
    return (len(batch["jpg"]) for batch in batches)


def _shoal(workers: Any) -> Iterator[int]:
    dataset = shoal.Dataset(f"{raw_tars()}/*.tar", decode=False)
    with DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers) as loader:
        yield from counted(loader.repeat())


def _webdataset(workers: int) -> Iterator[int]:
    yield from counted(webdataset_batches(raw_tars(), BATCH, columns, None, workers))


def _streaming(workers: int) -> Iterator[int]:
    yield from counted(streaming_batches(_mds(), BATCH, columns, None, workers))


def _lit(workers: int) -> Iterator[int]:
    yield from counted(litdata_batches(_litdata(), BATCH, columns, None, workers))


def _huggingface(workers: int) -> Iterator[int]:
    files = {"train": sorted(glob.glob(f"{raw_tars()}/*.tar"))}
    stream = datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True).decode(False)
    yield from counted(huggingface_batches(stream, BATCH, columns, None, workers))


def _spdl() -> Iterator[int]:
    yield from counted(spdl_batches(raw_tars(), BATCH, columns, None, _grouped))


def _grouped(members: Iterable[tuple[str, memoryview]]) -> list[dict[str, bytes]]:
    """A shard's members, three a sample, as bytes of their own."""
    found = [(name.rpartition(".")[2], bytes(view)) for name, view in members]
    return [dict(found[at : at + 3]) for at in range(0, len(found), 3)]


def _cut() -> Iterator[int]:
    """All files in memory, every member's place known, the order too: what is left is to make the bytes."""
    whole, places = _in_memory()
    view = memoryview(whole)
    while True:
        random.shuffle(places)
        for start in range(0, SAMPLES, BATCH):
            wanted = zip(*places[start : start + BATCH], strict=True)
            batch = [[bytes(view[begin:end]) for begin, end in column] for column in wanted]
            yield len(batch[0])


def _in_memory() -> tuple[bytes, list[tuple[tuple[int, int], ...]]]:
    parts, places, size = [], [], 0
    for path in sorted(glob.glob(f"{raw_tars()}/*.tar")):
        with tarfile.open(path) as archive:
            places += [(size + one.offset_data, size + one.offset_data + one.size) for one in archive]
        parts.append(pathlib.Path(path).read_bytes())
        size += len(parts[-1])
    return b"".join(parts), list(zip(*[iter(places)] * len(FIELDS), strict=True))


LOADERS = (
    Loader("shoal, auto", partial(_shoal, "auto"), raw_tars),
    *(Loader(f"shoal, {workers} workers", partial(_shoal, workers), raw_tars) for workers in (0, 1, 2)),
    *(Loader(f"webdataset, {workers} workers", partial(_webdataset, workers), raw_tars) for workers in (0, WORKERS)),
    *(Loader(f"Streaming, {workers} workers", partial(_streaming, workers), _mds) for workers in (0, WORKERS)),
    *(Loader(f"litData, {workers} workers", partial(_lit, workers), _litdata) for workers in (0, WORKERS)),
    *(Loader(f"datasets, {workers} workers", partial(_huggingface, workers), raw_tars) for workers in (0, WORKERS)),
    Loader("SPDL, 2 threads", _spdl, raw_tars),
    Loader(_CUT, _cut, raw_tars),
)


def run(rounds: int = 5, seconds: float = 1.0) -> Question:
    """Compare loaders of shuffled batches, each with its own files of the same samples."""
    question = Question(
        "Loader, raw samples",
        f"Shuffled batches of {BATCH} samples of 20 KB jpg, json and cls, undecoded, as bytes in the caller's process, "
        f"from warm local files (read in order once before, from the disk). "
        f"`workers` are processes for the peers and threads for shoal and SPDL. datasets "
        "decodes the JSON, it cannot be told not to. The limit is a loop that has all files in memory and knows what "
        "lies where, so that it only has to cut the bytes; `readinto` of the same files into one buffer, which makes "
        "no samples, stands beside it.",
        HEADER,
    )
    for loader in LOADERS:
        loader.prepare()
    found = take_turns("benchmarks.loader_raw", [loader.name for loader in LOADERS], rounds, seconds)
    tars = glob.glob(f"{raw_tars()}/*.tar")
    cut, whole = found[_CUT].rate, readinto_rate(tars, SAMPLES)
    question.rows.extend(loader_rows(found, sum(map(os.path.getsize, tars)) / SAMPLES, cut))
    question.rows.append(("limit: readinto", f"{whole:,.0f}", "", "", f"{whole / cut:.2f}", "", ""))
    return question


if __name__ == "__main__":
    print(run().markdown())
