"""The ways from a folder of images to a dataset, each in a process of its own: ``python -m benchmarks._build_ways``.

Nothing of a contender is imported here before it is its turn: workers that are started anew import this module.
"""

from __future__ import annotations

import glob
import importlib
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["NAMES", "OUT", "SHARD", "files"]

OUT = pathlib.Path(".bench") / "built"
SHARD = 64 << 20
Files = list[tuple[str, int]]


def _peer(name: str) -> Any:
    return importlib.import_module("benchmarks._loader_peers").peer(name)


def files(source: str) -> Files:
    """What a script does: list the classes, then the files of each."""
    classes = sorted(entry.name for entry in os.scandir(source) if entry.is_dir())
    return [
        (path, number) for number, name in enumerate(classes) for path in sorted(glob.glob(f"{source}/{name}/*.jpg"))
    ]


def _webdataset(part: tuple[int, Files]) -> None:
    import webdataset

    number, files = part
    pattern = str(OUT / f"train-{number}-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=100_000, maxsize=SHARD, verbose=0) as writer:
        for path, label in files:
            key = os.path.relpath(path, OUT).removesuffix(".jpg").replace("../", "")
            writer.write({"__key__": key, "jpg": pathlib.Path(path).read_bytes(), "cls": label})


def _mds(part: tuple[int, Files]) -> None:
    number, files = part
    columns = {"image": "bytes", "label": "int"}
    with _peer("streaming.base.format").MDSWriter(
        out=str(OUT / str(number)), columns=columns, size_limit=SHARD
    ) as writer:
        for path, label in files:
            writer.write({"image": pathlib.Path(path).read_bytes(), "label": label})


def _in_parts(work: Callable[[Any], object], source: str, workers: int) -> None:
    listed = files(source)
    parts = [(number, listed[number::workers]) for number in range(workers)]
    if workers == 1:
        work(parts[0])
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        pool.map(work, parts)


def _litdata_item(file: tuple[str, int]) -> dict[str, object]:
    return {"image": pathlib.Path(file[0]).read_bytes(), "label": file[1]}


def _litdata(source: str, workers: int) -> None:
    _peer("litdata").optimize(
        _litdata_item, files(source), output_dir=str(OUT), num_workers=workers, chunk_bytes=SHARD, verbose=False
    )


def _shoal(source: str, workers: int) -> None:
    import shoal

    shoal.build_shards(source, str(OUT), workers=workers, max_bytes=SHARD, max_samples=100_000, progress=False)


def _cat(source: str, workers: int) -> None:
    OUT.mkdir(exist_ok=True)
    with (OUT / "all").open("wb") as out:
        subprocess.run(["find", source, "-name", "*.jpg", "-exec", "cat", "{}", "+"], stdout=out, check=True)


WAYS: dict[str, Callable[[str, int], object]] = {
    "cat": _cat,
    "shoal.build_shards": _shoal,
    "webdataset.ShardWriter": lambda source, workers: _in_parts(_webdataset, source, workers),
    "streaming.MDSWriter": lambda source, workers: _in_parts(_mds, source, workers),
    "litdata.optimize": _litdata,
}
NAMES = tuple(WAYS)


def _child(name: str, workers: int, source: str) -> None:
    for module in ("shoal.build",) if name.startswith("shoal") else ("webdataset",) if "webdataset" in name else ():
        __import__(module)
    if name == "litdata.optimize":
        _peer("litdata")
    if name == "streaming.MDSWriter":
        _peer("streaming.base.format")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:workers])  # threads of one worker share its core
    begin = time.perf_counter()
    WAYS[name](source, workers)
    print(json.dumps(time.perf_counter() - begin))


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), sys.argv[3])
