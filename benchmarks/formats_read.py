"""Are other formats read at least as fast as by their own libraries?"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import h5py
import numpy as np

from shoal.dataset import Dataset, Hdf5Dataset, NpzDataset, TFRecordDataset
from shoal.formats import write_format

from ._data import FOLDER
from ._measure import Contender, Question, measure

__all__ = ["run"]

# TensorFlow in a process of its own: it starts threads as it is imported. It takes turns by being asked for one round.
_TENSORFLOW = """
import sys, time
import tensorflow as tf
path, one = sys.argv[1], tf.io.FixedLenFeature
features = {"image": one([], tf.string), "label": one([], tf.int64), "box": one([4], tf.float32)}
def raw():
    return sum(1 for _ in tf.data.TFRecordDataset(path).as_numpy_iterator())
def parsed():
    parse = lambda record: tf.io.parse_single_example(record, features)
    return sum(1 for _ in tf.data.TFRecordDataset(path).map(parse).as_numpy_iterator())
def batched():
    parse = lambda records: tf.io.parse_example(records, features)
    return sum(len(b["label"]) for b in tf.data.TFRecordDataset(path).batch(256).map(parse).as_numpy_iterator())
for line in sys.stdin:
    work = {"raw": raw, "parsed": parsed, "batched": batched}[line.strip()]
    start = time.perf_counter()
    done = work()
    print(time.perf_counter() - start, done, flush=True)
"""


class _TensorFlow:
    """A process that reads when it is told."""

    def __init__(self, path: pathlib.Path) -> None:
        command = [sys.executable, "-W", "ignore", "-c", _TENSORFLOW, str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def read(self, how: str) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(how + "\n")
        stdin.flush()
        return int(stdout.readline().split()[1])

    def close(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def run(rounds: int = 5) -> Question:
    """Read whole files in order, and rows in a random order, by ours and by the library that owns the format."""
    question = Question(
        "Other formats",
        "All samples of a warm local file, by ours and by the plain loop over the format's own library; samples a "
        "second of theirs = 1. TFRecord: 20,000 Examples of 4 KB, a label and a box, checksums checked by both. NPZ: "
        "2,000 files of 12 KB. HDF5: 20,000 rows of 3 KB, contiguous, and in compressed chunks of 64, of which ours "
        "keeps up to 64 MiB unpacked. `batched` lets TensorFlow parse 256 Examples in one call, on all cores.",
        ("format", "read as", "theirs", "shoal"),
    )
    question.rows.extend(_tfrecord(rounds))
    question.rows.extend(_npz(rounds))
    question.rows.extend(_hdf5(rounds))
    return question


def _row(format_name: str, how: str, contenders: list[Contender], rounds: int) -> tuple[str, ...]:
    found = measure(contenders, rounds)
    return format_name, how, "1.00", f"{found['theirs'].median / found['ours'].median:.2f}"


def _tfrecord(rounds: int) -> list[tuple[str, ...]]:
    path = FOLDER / "formats" / "a.tfrecord"
    if not path.exists():
        rng = np.random.default_rng(0)
        samples = (
            {"image": rng.bytes(4096), "label": n % 1000, "box": rng.random(4, np.float32)} for n in range(20_000)
        )
        write_format(path, samples, keys=False)
    peer = _TensorFlow(path)
    rows = []
    for how, ours in (
        ("raw", lambda: sum(1 for _ in TFRecordDataset(path, example=False))),
        ("parsed", lambda: sum(1 for _ in TFRecordDataset(path))),
        ("batched", lambda: sum(1 for _ in TFRecordDataset(path))),
    ):
        theirs = Contender("theirs", lambda how=how: peer.read(how))
        rows.append(_row("TFRecord", how, [theirs, Contender("ours", ours)], rounds))
    peer.close()
    return rows


def _npz(rounds: int) -> list[tuple[str, ...]]:
    folder = FOLDER / "formats" / "npz"
    if not folder.exists():
        rng, partial = np.random.default_rng(0), folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for number in range(2000):
            np.savez(partial / f"{number:05d}.npz", x=rng.random((32, 96), np.float32), y=number)
        partial.rename(folder)
    paths = sorted(folder.glob("*.npz"))

    def theirs() -> int:
        done = 0
        for path in paths:
            with np.load(path) as arrays:
                done += len({name: arrays[name] for name in arrays}) > 0
        return done

    ours = Contender("ours", lambda: sum(1 for _ in NpzDataset(folder)))
    return [_row("NPZ", "a file a sample", [Contender("theirs", theirs), ours], rounds)]


def _hdf5(rounds: int) -> list[tuple[str, ...]]:
    path = FOLDER / "formats" / "a.h5"
    if not path.exists():
        values = np.random.default_rng(0).integers(0, 9, (20_000, 768)).astype(np.float32)
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file["plain/x"], file["plain/y"] = values, np.arange(20_000)
            file.create_dataset("packed/x", data=values, chunks=(64, 768), compression="gzip")
            file["packed/y"] = np.arange(20_000)
    order = np.random.default_rng(0).permutation(20_000)
    rows = []
    with h5py.File(path) as file:
        for group in ("plain", "packed"):
            x, y = file[group]["x"], file[group]["y"]
            dataset = Hdf5Dataset(path, group=group)
            pairs = [
                (
                    "in order",
                    lambda x=x, y=y: len([(x[n], y[n]) for n in range(4000)]),
                    lambda d=dataset: _some(d, 4000),
                ),
                (
                    "at random",
                    lambda x=x, y=y: len([(x[n], y[n]) for n in order[:1000]]),
                    lambda d=dataset: _at(d, order[:1000]),
                ),
            ]
            for how, theirs, ours in pairs:
                contenders = [Contender("theirs", theirs), Contender("ours", ours)]
                rows.append(_row(f"HDF5, {group}", how, contenders, rounds))
    return rows


def _some(dataset: Dataset, count: int) -> int:
    return sum(1 for _, _sample in zip(range(count), dataset, strict=False))


def _at(dataset: Dataset, order: np.ndarray) -> int:
    return sum(len(dataset[order[at : at + 256]]) for at in range(0, len(order), 256))


if __name__ == "__main__":
    print(run().markdown())
