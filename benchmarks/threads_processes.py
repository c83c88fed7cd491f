"""The same samples loaded by threads and by processes: samples a second, time to the first batch, processor time.

``python -m benchmarks.threads_processes`` prints the table of the decision about it. Both load the same
:class:`shoal.Dataset` and collate with the same function; the processes are those of PyTorch's DataLoader.
"""

from __future__ import annotations

import io
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch.utils.data
from PIL import Image

import shoal
from shoal.load import collate

ROUNDS = 4
BATCH = 32
Make = Callable[[shoal.Dataset[Any]], Iterable[Any]]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print("| samples | by | a second | first batch, ms | processor, µs a sample |\n| --- | --- | --: | --: | --: |")
        for name, decode in _write().items():
            dataset = shoal.Dataset(name, decode=decode)
            for by, (seconds, first, processor) in _best(dataset).items():
                count = len(dataset)
                print(f"| {name} | {by} | {count / seconds:,.0f} | {1e3 * first:.0f} | {1e6 * processor / count:.0f} |")
        os.chdir("/")


def _write() -> dict[str, Any]:
    """Raw bytes, arrays and pictures; how each is decoded."""
    rng = np.random.default_rng(0)
    kinds: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {
        "20 kB of bytes": (4000, lambda: {"bin": rng.bytes(20_000)}),
        "150 kB arrays": (1000, lambda: {"npy": rng.integers(0, 255, (224, 224, 3), np.uint8)}),
        "384 px JPEGs": (600, lambda: {"jpg": _picture(rng)}),
    }
    for name, (count, sample) in kinds.items():
        with shoal.ShardWriter(f"{name}/train-%06d.tar", max_samples=500) as writer:
            for _ in range(count):
                writer.write(sample())
    return dict(zip(kinds, (True, True, "rgb8"), strict=True))


def _picture(rng: np.random.Generator) -> bytes:
    buffer = io.BytesIO()
    pixels = np.kron(rng.integers(0, 255, (32, 32, 3), np.uint8), np.ones((12, 12, 1), np.uint8))
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _threads(dataset: shoal.Dataset[Any], count: int) -> Iterable[Any]:
    return shoal.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=count)


def _processes(dataset: shoal.Dataset[Any]) -> Iterable[Any]:
    return torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=2, collate_fn=collate)


def _best(dataset: shoal.Dataset[Any]) -> dict[str, tuple[float, ...]]:
    """In turn, so that whatever else the machine does meets all alike."""
    ways: dict[str, Make] = {
        "1 thread": lambda data: _threads(data, 1),
        "2 threads": lambda data: _threads(data, 2),
        "2 processes": _processes,
    }
    best: dict[str, tuple[float, ...]] = {}
    for _ in range(ROUNDS):
        for name, make in ways.items():
            found = _epoch(make, dataset)
            best[name] = tuple(map(min, best.get(name, found), found))
    return best


def _epoch(make: Make, dataset: shoal.Dataset[Any]) -> tuple[float, float, float]:
    before, begun = _processor(), time.perf_counter()
    batches = iter(make(dataset))
    next(batches)
    first = time.perf_counter() - begun
    for _ in batches:
        pass
    seconds = time.perf_counter() - begun
    del batches  # processes that have ended are counted
    return seconds, first, _processor() - before


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    main()
