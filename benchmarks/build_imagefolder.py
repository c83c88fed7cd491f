"""How fast does a folder of JPEG files become a dataset, on one core and on two?

Every contender runs in a process of its own, which says how long the work took after its imports.
``python -m benchmarks.build_imagefolder ROUNDS FILES`` takes others than three rounds of 20,000 files.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys

import numpy as np

from ._build_ways import NAMES, OUT, SHARD, files
from ._data import FOLDER
from ._disk import settle
from ._measure import Question

__all__ = ["run"]

_CLASSES = 20


def images(count: int, side: int = 320) -> str:
    """``count`` JPEG files in folders by class, made once."""
    folder = FOLDER / f"imagefolder-{count}"
    if not folder.exists():
        from PIL import Image

        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        rng = np.random.default_rng(3)
        for number in range(_CLASSES):
            (partial / f"class{number:02d}").mkdir(parents=True)
        picture = b""
        for number in range(count):
            if number % 50 == 0:  # pictures are made anew now and then; a comment makes each file its own
                small = Image.fromarray(rng.integers(0, 255, (side // 4, side // 4, 3), np.uint8))
                buffer = io.BytesIO()
                small.resize((side, side)).save(buffer, "JPEG", quality=90)
                picture = buffer.getvalue()
            comment = b"%08d" % number
            data = picture[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + picture[2:]
            (partial / f"class{number % _CLASSES:02d}" / f"{number:08d}.jpg").write_bytes(data)
        partial.rename(folder)
    return str(folder)


def run(rounds: int = 3, count: int = 20_000) -> Question:
    """Every contender on one core and on two, taking turns."""
    source = images(count)
    size = sum(os.path.getsize(path) for path, _ in files(source))
    question = Question(
        "Build from a folder of images",
        f"{count:,} JPEG files, {size / 1e9:.1f} GB, to shards of {SHARD >> 20} MiB. shoal also writes indexes, "
        "checksums, metadata columns, a plan, a journal and a manifest. A contender with one worker has one core, and "
        "with two workers two. `cat` of all files into one is the limit.",
        ("contender", "workers", "x webdataset", "2 workers over 1", "of cat"),
    )
    seconds: dict[tuple[str, int], list[float]] = {}
    for turn in range(rounds + 1):
        for name in NAMES:
            for workers in (1, 2) if name != "cat" else (1,):
                taken = _timed(name, workers, source, size)
                if turn:
                    seconds.setdefault((name, workers), []).append(taken)
    found = {key: statistics.median(values) for key, values in seconds.items()}
    for (name, workers), taken in found.items():
        ratio = found["webdataset.ShardWriter", workers] / taken
        over = f"{found[name, 1] / taken:.2f}" if workers == 2 else ""
        question.rows.append((name, str(workers), f"{ratio:.1f}", over, f"{found['cat', 1] / taken:.2f}"))
    shutil.rmtree(OUT, ignore_errors=True)
    return question


def _timed(name: str, workers: int, source: str, size: int) -> float:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    if name == "shoal.build_shards":
        OUT.rmdir()
    settle(FOLDER, size)
    words = [sys.executable, "-m", "benchmarks._build_ways", name, str(workers), source]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    print(run(*(int(word) for word in sys.argv[1:])).markdown())
