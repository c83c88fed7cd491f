"""How fast is a GPU fed with pictures from local shards?

Needs a machine with a GPU, torch, torchvision, webdataset, simplejpeg and OpenCV; run it from the repository's root:
``python -m benchmarks.gpu.feed``. Every loader gives shuffled batches of 128 pictures of 224 x 224 on the GPU. In one
run: the bare decoders, with no loader around them; ours, decoding on the processor's threads and on the GPU; webdataset
under PyTorch's DataLoader; each also feeding a small training step, with the share of time that the GPU had nothing
to do; and four ranks at once.
"""

from __future__ import annotations

import argparse
import glob
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
import torchvision
import webdataset as wds

import shoal
import shoal.torch
from shoal.codec import ImageSpec, decode, decode_spec

BATCH, SIDE, SHARDS = 128, 224, 32
IMAGE = ImageSpec("rgb8", SIDE, interpolation="linear")
"""The same decoder and resizer for all: simplejpeg, and cv2's linear one."""
SPEC = decode_spec({"jpg": IMAGE})
CORES = len(os.sched_getaffinity(0))


# ------------------------------------------------------------------------------------------------------------- data


def write_shard(task: tuple[str, int, int]) -> None:
    """Pictures of about 500 x 375 with large and small detail."""
    folder, shard, count = task
    rng = np.random.default_rng(shard)
    with shoal.ShardWriter(f"{folder}/part-{shard:03d}-%06d.tar", max_samples=count) as writer:
        for number in range(count):
            height, width = 360 + number % 4 * 10, 500 - number % 3 * 20
            coarse = rng.integers(0, 256, (12, 16, 3), np.uint8)
            fine = cv2.resize(rng.integers(0, 64, (height // 3, width // 3, 3), np.uint8), (width, height))
            image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) // 4 * 3 + fine
            data = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=85)
            writer.write({"__key__": f"{shard:03d}{number:06d}", "jpg": data, "cls": str(number % 10).encode()})


def make_data(folder: str, samples: int) -> list[str]:
    tasks = [(f"{folder}/{shard:03d}", shard, samples // SHARDS) for shard in range(SHARDS)]
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        pool.map(write_shard, tasks)
    return sorted(glob.glob(f"{folder}/*/*.tar"))


def some_bytes(tars: list[str], count: int) -> list[bytes]:
    return [sample["jpg"] for sample in shoal.Dataset(tars, decode=False)[:count]]


# ------------------------------------------------------------------------------------------------------------- bare


def bare_processor(images: list[bytes], threads: int) -> Iterator[int]:
    """Decode and resize on threads, each its share into one array, and nothing else."""
    out = np.empty((len(images), SIDE, SIDE, 3), np.uint8)

    def work(first: int) -> None:
        for at in range(first, len(images), threads):
            cv2.resize(simplejpeg.decode_jpeg(images[at], "RGB"), (SIDE, SIDE), dst=out[at])

    while True:
        running = [threading.Thread(target=work, args=(first,)) for first in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join()
        yield len(images)


def bare_gpu(images: list[bytes]) -> Iterator[int]:
    """The GPU's decoder, batch after batch, from memory."""
    data = [torch.from_numpy(np.frombuffer(image, np.uint8).copy()) for image in images]
    while True:
        for start in range(0, len(data), BATCH):
            torchvision.io.decode_jpeg(
                data[start : start + BATCH], mode=torchvision.io.ImageReadMode.RGB, device="cuda"
            )
            torch.cuda.synchronize()
            yield len(data[start : start + BATCH])


# ------------------------------------------------------------------------------------------------------------- loaders


def ours(tars: list[str], where: str, workers: Any, **options: Any) -> Iterator[Any]:
    """Batches on the GPU, from our loader, epoch after epoch."""
    fields: Any = {"jpg": IMAGE, "cls": True} if where == "processor" else {"jpg": False, "cls": True}
    gpu = {"decode_jpeg": {"jpg": SIDE}} if where == "gpu" else {}
    loader = shoal.torch.DataLoader(
        shoal.Dataset(tars, decode=fields),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        device="cuda",
        num_workers=workers,
        **gpu,
        **options,
    )
    with loader:
        for batch in loader.repeat():
            yield batch["jpg"], batch["cls"]


def theirs(tars: list[str], workers: int) -> Iterator[Any]:
    """The same from webdataset under PyTorch's DataLoader."""

    def picture(sample: dict[str, Any]) -> Any:
        return decode("jpg", sample["jpg"], SPEC), int(sample["cls"])

    def together(samples: list[Any]) -> Any:
        return torch.from_numpy(np.stack([one for one, _ in samples])), torch.tensor([cls for _, cls in samples])

    def dataset() -> Any:
        shards = wds.SimpleShardList(tars)
        steps = [wds.shuffle(100), wds.split_by_worker, wds.tarfile_to_samples(), wds.shuffle(1000)]
        return wds.DataPipeline(shards, *steps, wds.map(picture), wds.batched(BATCH, collation_fn=together))

    while True:
        batches = torch.utils.data.DataLoader(
            dataset(), batch_size=None, num_workers=workers, pin_memory=True, prefetch_factor=4
        )
        for images, labels in batches:
            if len(images) == BATCH:
                yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)


# ------------------------------------------------------------------------------------------------------------ measuring


def rate(batches: Iterator[Any], seconds: float, warm: float) -> float:
    """Images a second, after a while of getting warm."""
    count = 0
    begun, since = time.perf_counter(), None
    for batch in batches:
        now = time.perf_counter()
        count += batch if isinstance(batch, int) else len(batch[0])
        if since is None and now - begun >= warm:
            since, count = now, 0
        if since is not None and now - since >= seconds:
            break
    torch.cuda.synchronize()
    assert since is not None
    return count / (time.perf_counter() - since)


def training_step() -> Callable[[Any, Any], None]:
    """A ResNet-18 in bfloat16, one step of it."""
    model = torchvision.models.resnet18(num_classes=10).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(images: Any, labels: Any) -> None:
        images = images if images.shape[1] == 3 else images.permute(0, 3, 1, 2)
        x = images.float().div_(255).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), labels.long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def trained(batches: Iterator[Any], seconds: float, warm: float) -> tuple[float, float]:
    """Images a second through the training step, and the share of time the GPU did no step."""
    step = training_step()
    spans: list[tuple[Any, Any]] = []
    count, since = 0, 0.0
    begun = time.perf_counter()
    for images, labels in batches:
        now = time.perf_counter()
        if not since and now - begun >= warm:
            torch.cuda.synchronize()
            since, count = time.perf_counter(), 0
            spans.clear()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        step(images, labels)
        last.record()
        spans.append((first, last))
        count += len(images)
        if len(spans) > 2:
            spans[-3][1].synchronize()  # as a program that reads its loss does: not far ahead of the GPU
        if since and time.perf_counter() - since >= seconds:
            break
    torch.cuda.synchronize()
    wall = time.perf_counter() - since
    busy = sum(first.elapsed_time(last) for first, last in spans) / 1000
    return count / wall, 1 - busy / wall


def same_batch() -> Iterator[Any]:
    """One batch again and again: a loader that costs nothing."""
    images = torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8, device="cuda")
    labels = torch.zeros(BATCH, dtype=torch.int64, device="cuda")
    while True:
        yield images, labels


# ------------------------------------------------------------------------------------------------------------- ranks


def rank_rate(tars: list[str], where: str, rank: int, ranks: int, seconds: float, barrier: Any, results: Any) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[rank * (CORES // ranks) : (rank + 1) * (CORES // ranks)])
    torch.set_num_threads(1)
    batches = ours(tars, where, CORES // ranks, rank=rank, world_size=ranks)
    next(batches)
    barrier.wait()
    results[rank] = rate(batches, seconds, 3.0)
    barrier.wait()
    batches.close()  # type: ignore[attr-defined]


def of_ranks(tars: list[str], where: str, ranks: int, seconds: float) -> list[float]:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        barrier, results = context.Barrier(ranks), manager.dict()
        given = [(tars, where, rank, ranks, seconds, barrier, results) for rank in range(ranks)]
        running = [context.Process(target=rank_rate, args=args) for args in given]
        for one in running:
            one.start()
        for one in running:
            one.join()
        return [results[rank] for rank in range(ranks)]


# ------------------------------------------------------------------------------------------------------------- all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=16_000)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default="-")
    given = parser.parse_args()
    cv2.setNumThreads(1)
    torch.backends.cudnn.benchmark = True
    with tempfile.TemporaryDirectory() as folder:
        tars = make_data(folder, given.samples)
        found = measured(tars, given.seconds, given.rounds)
    text = json.dumps(found, indent=1)
    print(text)
    if given.out != "-":
        with open(given.out, "w") as file:
            file.write(text)


def measured(tars: list[str], seconds: float, rounds: int) -> dict[str, Any]:
    images = some_bytes(tars, 16 * BATCH)
    rates: dict[str, Callable[[], Iterator[Any]]] = {
        f"bare decode, {CORES} threads": lambda: bare_processor(images, CORES),
        "bare decode, GPU": lambda: bare_gpu(images),
        "ours, processor": lambda: ours(tars, "processor", CORES),
        "ours, processor, auto": lambda: ours(tars, "processor", "auto"),
        "ours, GPU": lambda: ours(tars, "gpu", 2),
        "ours, GPU, auto": lambda: ours(tars, "gpu", "auto"),
        f"webdataset, {CORES} workers": lambda: theirs(tars, CORES),
    }
    trainings: dict[str, Callable[[], Iterator[Any]]] = {
        "nothing to load": same_batch,
        "ours, processor": rates["ours, processor"],
        "ours, GPU": rates["ours, GPU"],
        f"webdataset, {CORES} workers": lambda: theirs(tars, CORES),
    }
    found: dict[str, Any] = {
        "machine": {"gpu": torch.cuda.get_device_name(), "cores": CORES, "torch": torch.__version__},
        "data": {"bytes": sum(map(os.path.getsize, tars)), "mean_jpeg": statistics.mean(map(len, images))},
        "images/s": {name: [] for name in rates},
        "training": {name: [] for name in trainings},
    }
    for _ in range(rounds):
        for name, begin in rates.items():
            batches = begin()
            found["images/s"][name].append(rate(batches, seconds, 4.0))
            batches.close()  # type: ignore[attr-defined]
            print(name, round(found["images/s"][name][-1]), flush=True)
    for name, begin in trainings.items():
        batches = begin()
        found["training"][name].append(trained(batches, seconds, 5.0))
        batches.close()  # type: ignore[attr-defined]
        print("training:", name, found["training"][name][-1], flush=True)
    found["four ranks"] = {where: of_ranks(tars, where, 4, seconds) for where in ("processor", "gpu")}
    return found


if __name__ == "__main__":
    main()
