"""How fast does a loader give shuffled batches of decoded and resized pictures?"""

from __future__ import annotations

import glob
import io
import itertools
import os
import tarfile
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch

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
from ._loader_table import HEADER, loader_rows
from ._loader_turns import Loader, take_turns
from ._measure import Question

__all__ = ["LOADERS", "decoded", "decoded_sample", "grouped", "picture_tars", "run"]

BATCH = 64
SHARDS = 8
SAMPLES = 4000
SIDE = 224


def _pictures() -> Iterator[dict[str, Any]]:
    """Pictures of about 400 x 320 with large and small detail, of about 30 KB each."""
    cv2, simplejpeg = _decoders()
    rng = np.random.default_rng(7)
    for number in range(SAMPLES):
        height, width = 300 + number % 40, 380 + number % 60
        coarse = rng.integers(0, 256, (12, 16, 3), np.uint8)
        fine = cv2.resize(rng.integers(0, 64, (height // 3, width // 3, 3), np.uint8), (width, height))
        image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) // 4 * 3 + fine
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=85)
        yield {"__key__": f"{number:08d}", "jpg": data, "cls": str(number % 10).encode()}


def _decoders() -> tuple[Any, Any]:
    """One decoder and one resizer for all, each on the thread that calls it."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    return cv2, simplejpeg


def decoded(data: Any) -> np.ndarray:
    """The picture at 224 x 224."""
    cv2, simplejpeg = _decoders()
    image: np.ndarray = cv2.resize(simplejpeg.decode_jpeg(data, "RGB"), (SIDE, SIDE))
    return image


def picture_tars() -> str:
    """Where the shards are."""
    return made("jpeg/tar", _write_tars)


def _write_tars(folder: str) -> None:
    os.makedirs(folder)
    pictures = _pictures()
    for number in range(SHARDS):
        with tarfile.open(f"{folder}/{number:06d}.tar", "w") as archive:
            for sample in itertools.islice(pictures, SAMPLES // SHARDS):
                for field in ("cls", "jpg"):
                    member = tarfile.TarInfo(f"{sample['__key__']}.{field}")
                    member.size = len(sample[field])
                    archive.addfile(member, io.BytesIO(sample[field]))


def _fields() -> Iterator[dict[str, bytes]]:
    return ({"jpg": sample["jpg"], "cls": sample["cls"]} for sample in _pictures())


def _mds() -> str:
    return made("jpeg/mds", lambda folder: write_mds(folder, {"jpg": "bytes", "cls": "bytes"}, _fields()))


def _litdata() -> str:
    return made("jpeg/litdata", lambda folder: write_litdata(folder, _fields(), "16MB"))


def decoded_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample with its picture decoded."""
    return {"image": decoded(sample["jpg"]), "cls": sample["cls"]}


def _from_datasets(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": decoded(sample["jpg"]["bytes"]), "cls": sample["cls"]}


def _columns(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"image": np.stack([one["image"] for one in samples]), "cls": [one["cls"] for one in samples]}


def _tensors(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """As tensors, which torch's processes hand over in shared memory."""
    columns = _columns(samples)
    return {**columns, "image": torch.from_numpy(columns["image"])}


def _counted(batches: Iterable[dict[str, Any]]) -> Iterator[int]:
    return (len(batch["image"]) for batch in batches)


def _shoal(workers: Any) -> Iterator[int]:
    dataset = shoal.Dataset(f"{picture_tars()}/*.tar", decode=False).map(decoded_sample)
    with DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers) as loader:
        yield from _counted(loader.repeat())


def _webdataset(workers: int) -> Iterator[int]:
    yield from _counted(webdataset_batches(picture_tars(), BATCH, _tensors, decoded_sample, workers))


def _streaming(workers: int) -> Iterator[int]:
    yield from _counted(streaming_batches(_mds(), BATCH, _tensors, decoded_sample, workers))


def _lit(workers: int) -> Iterator[int]:
    yield from _counted(litdata_batches(_litdata(), BATCH, _tensors, decoded_sample, workers))


def _huggingface(workers: int) -> Iterator[int]:
    files = {"train": sorted(glob.glob(f"{picture_tars()}/*.tar"))}
    stream = datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True).decode(False)
    yield from _counted(huggingface_batches(stream, BATCH, _tensors, _from_datasets, workers))


def _spdl() -> Iterator[int]:
    yield from _counted(spdl_batches(picture_tars(), BATCH, _columns, decoded_sample, grouped))


def grouped(members: Iterable[tuple[str, memoryview]]) -> list[dict[str, bytes]]:
    """The samples of a shard, for SPDL."""
    found = [(name.rpartition(".")[2], bytes(view)) for name, view in members]
    return [dict(found[at : at + 2]) for at in range(0, len(found), 2)]


def _bare(threads: int) -> Iterator[int]:
    """Decode and resize, on so many threads, of pictures in memory, one after the other, and nothing else."""
    dataset = shoal.Dataset(f"{picture_tars()}/*.tar", decode=False)
    data = [sample["jpg"] for sample in dataset[: SAMPLES // 4]]
    counts, stop = [0] * threads, threading.Event()

    def work(number: int) -> None:
        for one in itertools.cycle(data[number::threads]):
            decoded(one)
            counts[number] += 1
            if stop.is_set():
                return

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    try:
        for worker in workers:
            worker.start()
        seen = 0
        while True:
            time.sleep(0.02)
            now = sum(counts)
            if now > seen:
                yield now - seen
            seen = now
    finally:
        stop.set()
        for worker in workers:
            worker.join()


LOADERS = (
    Loader(f"limit: bare, {WORKERS} threads", partial(_bare, WORKERS), picture_tars),
    Loader("limit: bare, 1 threads", partial(_bare, 1), picture_tars),
    Loader("shoal, auto", partial(_shoal, "auto"), picture_tars),
    *(Loader(f"shoal, {workers} workers", partial(_shoal, workers), picture_tars) for workers in (0, 1, 2)),
    Loader(f"webdataset, {WORKERS} workers", partial(_webdataset, WORKERS), picture_tars),
    Loader(f"Streaming, {WORKERS} workers", partial(_streaming, WORKERS), _mds),
    Loader(f"litData, {WORKERS} workers", partial(_lit, WORKERS), _litdata),
    Loader(f"datasets, {WORKERS} workers", partial(_huggingface, WORKERS), picture_tars),
    Loader(f"SPDL, {WORKERS} threads", _spdl, picture_tars),
)


def run(rounds: int = 5, seconds: float = 2.0) -> Question:
    """Compare loaders with each other and with the bare work."""
    question = Question(
        "Loader, pictures",
        f"Shuffled batches of {BATCH} JPEG pictures of about 400 x 320, decoded by simplejpeg and resized by cv2 to "
        f"{SIDE} x {SIDE}, as one uint8 array in the caller's process, from warm files (read in "
        f"order once before). The limit is the same "
        f"decoding and resizing on {WORKERS} threads, of bytes in memory, with no loader and no batch. `workers` are "
        "processes for the peers and threads for shoal and SPDL.",
        HEADER,
    )
    for loader in LOADERS:
        loader.prepare()
    found = take_turns("benchmarks.loader_jpeg", [loader.name for loader in LOADERS], rounds, seconds)
    size = sum(map(os.path.getsize, glob.glob(f"{picture_tars()}/*.tar")))
    question.rows.extend(loader_rows(found, size / SAMPLES, found[f"limit: bare, {WORKERS} threads"].rate))
    return question


if __name__ == "__main__":
    print(run().markdown())
