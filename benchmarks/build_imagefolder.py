"""How fast does a folder of JPEG files become a dataset, on one core and on two?

Every contender runs in a process of its own, ``python -m benchmarks.build_imagefolder NAME WORKERS``, which says how long
the work took after its imports.
"""

from __future__ import annotations

import glob
import io
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np

from ._data import FOLDER
from ._loader_peers import peer
from ._measure import Question

__all__ = ["run"]

_CLASSES = 20
_OUT = FOLDER / "built"
_SHARD = 64 << 20


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
        for number in range(count):
            if number % 50 == 0:  # pictures are made anew now and then; a comment makes each file its own
                small = Image.fromarray(rng.integers(0, 255, (side // 4, side // 4, 3), np.uint8))
                buffer = io.BytesIO()
                small.resize((side, side)).save(buffer, "JPEG", quality=90)
            data = buffer.getvalue()
            comment = b"%08d" % number
            data = data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:]
            (partial / f"class{number % _CLASSES:02d}" / f"{number:08d}.jpg").write_bytes(data)
        partial.rename(folder)
    return str(folder)


def _files(source: str) -> list[tuple[str, int]]:
    """What a script does: list the classes, then the files of each."""
    classes = sorted(entry.name for entry in os.scandir(source) if entry.is_dir())
    return [
        (path, number) for number, name in enumerate(classes) for path in sorted(glob.glob(f"{source}/{name}/*.jpg"))
    ]


def _webdataset(part: tuple[int, list[tuple[str, int]]]) -> None:
    import webdataset

    number, files = part
    pattern = str(_OUT / f"train-{number}-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=100_000, maxsize=_SHARD, verbose=0) as writer:
        for path, label in files:
            key = os.path.relpath(path, _OUT).removesuffix(".jpg").replace("../", "")
            writer.write({"__key__": key, "jpg": pathlib.Path(path).read_bytes(), "cls": label})


def _mds(part: tuple[int, list[tuple[str, int]]]) -> None:
    number, files = part
    columns = {"image": "bytes", "label": "int"}
    with peer("streaming.base.format").MDSWriter(
        out=str(_OUT / str(number)), columns=columns, size_limit=_SHARD
    ) as writer:
        for path, label in files:
            writer.write({"image": pathlib.Path(path).read_bytes(), "label": label})


def _in_parts(work: object, source: str, workers: int) -> None:
    files = _files(source)
    parts = [(number, files[number::workers]) for number in range(workers)]
    if workers == 1:
        work(parts[0])  # type: ignore[operator]
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        pool.map(work, parts)  # type: ignore[arg-type]


def _litdata_item(file: tuple[str, int]) -> dict[str, object]:
    return {"image": pathlib.Path(file[0]).read_bytes(), "label": file[1]}


def _litdata(source: str, workers: int) -> None:
    peer("litdata").optimize(
        _litdata_item, _files(source), output_dir=str(_OUT), num_workers=workers, chunk_bytes=_SHARD, verbose=False
    )


def _shoal(source: str, workers: int) -> None:
    import shoal

    shoal.build_shards(source, str(_OUT), workers=workers, max_bytes=_SHARD, max_samples=100_000, progress=False)


def _cat(source: str, workers: int) -> None:
    _OUT.mkdir(exist_ok=True)
    with (_OUT / "all").open("wb") as out:
        subprocess.run(["find", source, "-name", "*.jpg", "-exec", "cat", "{}", "+"], stdout=out, check=True)


WAYS = {
    "cat": _cat,
    "shoal.build_shards": _shoal,
    "webdataset.ShardWriter": lambda source, workers: _in_parts(_webdataset, source, workers),
    "streaming.MDSWriter": lambda source, workers: _in_parts(_mds, source, workers),
    "litdata.optimize": _litdata,
}


def run(rounds: int = 3, count: int = 20_000) -> Question:
    """Every contender on one core and on two, taking turns."""
    source = images(count)
    size = sum(os.path.getsize(path) for path, _ in _files(source))
    question = Question(
        "Build from a folder of images",
        f"{count:,} JPEG files, {size / 1e9:.1f} GB, to shards of {_SHARD >> 20} MiB. shoal also writes indexes, checksums, "
        "metadata columns, a plan, a journal and a manifest. `cat` of all files into one is the limit.",
        ("contender", "workers", "x webdataset", "2 workers over 1", "of cat"),
    )
    seconds: dict[tuple[str, int], list[float]] = {}
    for turn in range(rounds + 1):
        for name in WAYS:
            for workers in (1, 2) if name != "cat" else (1,):
                taken = _timed(name, workers, source)
                if turn:
                    seconds.setdefault((name, workers), []).append(taken)
    found = {key: statistics.median(values) for key, values in seconds.items()}
    for (name, workers), taken in found.items():
        ratio = found["webdataset.ShardWriter", workers] / taken
        over = f"{found[name, 1] / taken:.2f}" if workers == 2 else ""
        question.rows.append((name, str(workers), f"{ratio:.1f}", over, f"{found['cat', 1] / taken:.2f}"))
    shutil.rmtree(_OUT, ignore_errors=True)
    return question


def _timed(name: str, workers: int, source: str) -> float:
    shutil.rmtree(_OUT, ignore_errors=True)
    _OUT.mkdir(parents=True)
    if name == "shoal.build_shards":
        _OUT.rmdir()
    subprocess.run(["sync"], check=True)  # what the one before left to be written is not this one's
    words = [sys.executable, "-m", "benchmarks.build_imagefolder", name, str(workers), source]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def _child(name: str, workers: int, source: str) -> None:
    for module in ("shoal.build",) if name.startswith("shoal") else ("webdataset",) if "webdataset" in name else ():
        __import__(module)
    if name == "litdata.optimize":
        peer("litdata")
    if name == "streaming.MDSWriter":
        peer("streaming.base.format")
    begin = time.perf_counter()
    WAYS[name](source, workers)
    print(json.dumps(time.perf_counter() - begin))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        _child(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        print(run(*(int(word) for word in sys.argv[1:])).markdown())
