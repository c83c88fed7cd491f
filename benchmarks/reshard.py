"""How fast are shards cut anew and merged, and in how much memory?

By default 8 GB in 5,000 shards, which takes 25 GB of disk while it runs and leaves the shards in ``.bench``;
``python -m benchmarks.reshard GIGABYTES SHARDS ROUNDS`` takes others.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import numpy as np

import shoal

from ._data import FOLDER
from ._disk import settle
from ._measure import Question

__all__ = ["run"]

_OUT = FOLDER / "resharded"
_PROGRAM = """
import json, resource, sys, threading, time
import shoal.build
from shoal.build import merge, reshard
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
way, out, *sources = sys.argv[1:]
before = peak = resident()
ended = threading.Event()
def watch():
    global peak
    while not ended.wait(0.02):
        peak = max(peak, resident())
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
begin = time.perf_counter()
if way == "merge":
    merge(sources, out, workers=1, max_samples=10**9, progress=False)
else:
    reshard(sources[0], out, workers=1, max_samples=10**9, shuffle=way == "shuffle", progress=False)
seconds = time.perf_counter() - begin
ended.set()
print(json.dumps([seconds, max(peak, resident()) - before]))
"""


def shards(size: int, count: int) -> str:
    """``size`` bytes in ``count`` shards, in two datasets below one folder, made once."""
    folder = FOLDER / f"reshard-{size}-{count}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        rng = np.random.default_rng(4)
        each = size // count
        for half, name in enumerate(("a", "b")):
            per_shard = max(1, each // 20_000)
            with shoal.ShardWriter(str(partial / name / "train-%06d.tar"), max_samples=per_shard) as writer:
                for number in range(per_shard * (count // 2)):
                    data = rng.bytes(20_000)
                    writer.write({"__key__": f"{half}{number:08d}", "jpg": data, "json": {"width": number % 1000}})
        partial.rename(folder)
    return str(folder)


def run(rounds: int = 3, gigabytes: float = 8, count: int = 5000) -> Question:
    """`cat` of all shards against cutting them anew, merging them and shuffling them."""
    folder = shards(int(gigabytes * 1e9), count)
    tars = sorted(map(str, pathlib.Path(folder).glob("*/*.tar")))
    size = sum(map(os.path.getsize, tars))
    question = Question(
        "Reshard and merge",
        f"{size / 1e9:.1f} GB of samples of 20 KB in {len(tars):,} shards, to shards of 1 GiB, by one worker, every "
        "block checked; one is read while the last is written. The limit is `cat` of the same shards into "
        "one file. Memory is the most at any moment, above the start.",
        ("way", "of cat", "MB above start"),
    )
    seconds: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    _timed("cat", folder, tars, size)  # so that all find the shards in memory
    for turn in range(rounds):
        for way in ("cat", "reshard", "merge", "shuffle") if turn == 0 else ("cat", "reshard", "merge"):
            taken, peak = _timed(way, folder, tars, size)
            memory[way] = max(memory.get(way, 0), peak)
            seconds.setdefault(way, []).append(taken)
    found = {way: statistics.median(values) for way, values in seconds.items()}
    for way, taken in found.items():
        question.rows.append((way, f"{found['cat'] / taken:.2f}", "" if way == "cat" else f"{memory[way] / 1e6:.0f}"))
    shutil.rmtree(_OUT, ignore_errors=True)
    return question


def _timed(way: str, folder: str, tars: list[str], size: int) -> tuple[float, float]:
    shutil.rmtree(_OUT, ignore_errors=True)
    settle(FOLDER, size)
    if way == "cat":
        return _cat(tars), 0
    sources = [f"{folder}/a", f"{folder}/b"] if way == "merge" else [f"{folder}/*/*.tar"]
    words = [sys.executable, "-c", _PROGRAM, way, str(_OUT), *sources]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    taken, peak = json.loads(done.stdout)
    return taken, peak


def _cat(tars: list[str]) -> float:
    import time

    _OUT.mkdir()
    with (_OUT / "all.tar").open("wb") as out:
        begin = time.perf_counter()
        subprocess.run(["xargs", "cat"], input="\n".join(tars).encode(), stdout=out, check=True)
        return time.perf_counter() - begin


if __name__ == "__main__":
    gigabytes, count, rounds = (*sys.argv[1:], *("8", "5000", "3")[len(sys.argv) - 1 :])
    print(run(int(rounds), float(gigabytes), int(count)).markdown())
