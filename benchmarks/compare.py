"""Is one commit faster than another? Both are measured in turn, each time in a process of its own.

``python -m benchmarks compare OLD [NEW] [rows ...] [--rounds 9] [--size small]`` compares two commits, or folders with
a checkout; NEW is the work tree where it is not given. All rows are measured where none is named.

Each side writes its data once, the same samples, since their indexes may differ. A measurement is a process that opens
the data, makes one pass that does not count, and then makes passes until it has taken some time: old, new, old, new and
so on. A ratio is of two measurements that follow each other, in samples a second: 1.10 is a tenth faster. How far two
measurements of the old code in a row are apart says how much the machine itself varies.
"""

from __future__ import annotations

import argparse
import gc
import io
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shoal

__all__ = ["main", "measure_row", "write_data"]

ROOT = pathlib.Path(__file__).resolve().parents[1]
SLOWER = 0.97
"""Rows with a median below this are marked."""
SIZES = {"tiny": (0.02, 0.05), "small": (1.0, 0.35), "large": (5.0, 1.0)}
"""For each size: the number of samples, relative to small, and the seconds that a measurement takes at least."""

Pass = Callable[[], int]


@shoal.packable
class Fact:
    """64 numbers, a text of varying length and one number more."""

    values: NDArray[np.float32]
    label: str
    weight: float


# ------------------------------------------------------------------------------------------------------------- the data


def _small_samples(count: int) -> Iterator[dict[str, Any]]:
    """Three fields of 1 KB, which can be compressed to two thirds."""
    rng = np.random.default_rng(1)
    for number in range(count):
        fields = {f"{name}.bin": rng.integers(0, 40, 1024, np.uint8).tobytes() for name in "abc"}
        yield {"__key__": f"{number:08d}", **fields}


def _image_samples(count: int) -> Iterator[dict[str, Any]]:
    """A picture's worth of bytes, a JSON, a class."""
    rng = np.random.default_rng(2)
    for number in range(count):
        facts = {"width": 256 + number % 512, "height": 512, "label": "cat" if number % 2 else "dog"}
        yield {"__key__": f"{number:08d}", "jpg": rng.bytes(20_000), "json": facts, "cls": number % 10}


def _facts(count: int) -> Iterator[Fact]:
    rng = np.random.default_rng(3)
    for number in range(count):
        yield Fact(values=rng.random(64, np.float32), label="label" * (number % 7), weight=number / 3)


def _write(folder: pathlib.Path, samples: Iterable[Any], max_samples: int, compression: str | None = None) -> None:
    with shoal.ShardWriter(f"{folder}/%06d.tar", max_samples=max_samples, compression=compression) as writer:
        for sample in samples:
            writer.write(sample)


def _write_small(folder: pathlib.Path, size: float) -> None:
    _write(folder, _small_samples(int(20_000 * size)), 20_000 * 10)


def _write_small_16(folder: pathlib.Path, size: float) -> None:
    each = int(1250 * size)
    _write(folder, _small_samples(16 * each), each)


def _write_compressed(compression: str, folder: pathlib.Path, size: float) -> None:
    _write(folder, _small_samples(int(5000 * size)), 20_000 * 10, compression)


def _write_images(folder: pathlib.Path, size: float) -> None:
    _write(folder, _image_samples(int(4000 * size)), 4000 * 10)


def _write_images_8(folder: pathlib.Path, size: float) -> None:
    each = int(500 * size)
    _write(folder, _image_samples(8 * each), each)


def _write_facts(folder: pathlib.Path, size: float) -> None:
    each = int(5000 * size)
    shoal.write_samples(_facts(8 * each), f"{folder}/%06d.tar", max_samples=each)


DATA: dict[str, Callable[[pathlib.Path, float], None]] = {
    "small": _write_small,
    "small-16": _write_small_16,
    "small-zstd": partial(_write_compressed, "zstd"),
    "small-gzip": partial(_write_compressed, "gzip"),
    "images": _write_images,
    "images-8": _write_images_8,
    "facts": _write_facts,
}
"""Each folder of data, and how it is written."""


# ------------------------------------------------------------------------------------------------------------- the rows


def _undecoded(folder: pathlib.Path) -> Any:
    return shoal.Dataset(str(folder), decode=False)


def _in_order(folder: pathlib.Path) -> Pass:
    dataset = _undecoded(folder)
    return lambda: sum(1 for _ in dataset)


def _all_fields(folder: pathlib.Path) -> Pass:
    dataset = _undecoded(folder)

    def read() -> int:
        done = 0
        for sample in dataset:
            _ = dict(sample)
            done += 1
        return done

    return read


def _random_batches(folder: pathlib.Path) -> Pass:
    dataset = _undecoded(folder)
    order = np.random.default_rng(4).permutation(len(dataset))
    return partial(_at, dataset, [order[at : at + 64] for at in range(0, len(order), 64)])


def _neighbours(folder: pathlib.Path) -> Pass:
    dataset = _undecoded(folder)
    starts = np.random.default_rng(5).permutation(len(dataset) // 64) * 64
    return partial(_at, dataset, [np.arange(start, start + 64) for start in starts.tolist()])


def _at(dataset: Any, batches: list[Any]) -> int:
    return sum(len(dataset[positions]) for positions in batches)


def _by_number(folder: pathlib.Path) -> Pass:
    dataset = _undecoded(folder)
    numbers = np.random.default_rng(6).permutation(len(dataset))[:3000].tolist()
    return lambda: sum(1 for number in numbers if dataset[number])


def _by_key(folder: pathlib.Path) -> Pass:
    dataset = _undecoded(folder)
    names = dataset.keys()
    keys = [names[number] for number in np.random.default_rng(7).permutation(len(names))[:3000].tolist()]
    return lambda: sum(1 for key in keys if dataset.get(key))


def _raw_loader(folder: pathlib.Path, *, shuffle: bool) -> Pass:
    loader = shoal.DataLoader(_undecoded(folder), batch_size=64, shuffle=shuffle, seed=1, num_workers=0)
    return lambda: sum(len(batch["jpg"]) for batch in loader)


def _typed_loader(folder: pathlib.Path, *, shuffle: bool, batch_size: int) -> Pass:
    dataset = shoal.Dataset[Fact](str(folder))
    loader = shoal.DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, seed=1, num_workers=0)
    return lambda: _typed(loader)


def _typed_ordered(folder: pathlib.Path) -> Pass:
    dataset = shoal.Dataset[Fact](str(folder))
    return lambda: _typed(dataset.ordered(256))


def _typed_shuffled(folder: pathlib.Path) -> Pass:
    dataset = shoal.Dataset[Fact](str(folder))
    return lambda: _typed(dataset.shuffled(256, seed=1))


def _typed(batches: Iterable[Any]) -> int:
    done = 0
    for batch in batches:
        _ = batch.label, batch.weight
        done += len(batch.values)
    return done


def _written(folder: pathlib.Path) -> Pass:
    samples = list(_image_samples(max(20, len(_undecoded(folder)) // 2)))
    out = folder.parent / "written"

    def write() -> int:
        _write(out, samples, 100_000)
        return len(samples)

    return write


def _clear(folder: pathlib.Path) -> None:
    shutil.rmtree(folder.parent / "written", ignore_errors=True)


@dataclass(frozen=True)
class Row:
    """What is measured: ``begin`` opens a folder of ``DATA``; it returns a pass, which counts its samples."""

    title: str
    data: str
    begin: Callable[[pathlib.Path], Pass]
    prepare: Callable[[pathlib.Path], object] = lambda folder: None
    """Done before each pass, and not timed."""


ROWS = {
    "order_1kb": Row("read in order, 3 fields of 1 KB", "small", _in_order),
    "order_20kb": Row("read in order, 20 KB", "images", _in_order),
    "all_fields": Row("iterate with all fields, 3 of 1 KB", "small", _all_fields),
    "random_16": Row("random batches of 64, 16 shards, 3 of 1 KB", "small-16", _random_batches),
    "random_1": Row("random batches of 64, one shard, 3 of 1 KB", "small", _random_batches),
    "neighbours": Row("64 neighbours, one shard, 3 of 1 KB", "small", _neighbours),
    "by_number": Row("one sample by number, 3 of 1 KB", "small-16", _by_number),
    "by_key": Row("get by key, 3 of 1 KB", "small-16", _by_key),
    "loader_order": Row("DataLoader, undecoded in order, 20 KB", "images", partial(_raw_loader, shuffle=False)),
    "loader_raw": Row("DataLoader, undecoded shuffled, 20 KB", "images-8", partial(_raw_loader, shuffle=True)),
    "loader_typed": Row(
        "DataLoader, typed shuffled, 256", "facts", partial(_typed_loader, shuffle=True, batch_size=256)
    ),
    "typed_neighbours": Row(
        "DataLoader, typed in order, 128", "facts", partial(_typed_loader, shuffle=False, batch_size=128)
    ),
    "typed_ordered": Row("ordered(256), typed", "facts", _typed_ordered),
    "typed_shuffled": Row("shuffled(256), typed", "facts", _typed_shuffled),
    "write_20kb": Row("write, 20 KB", "images", _written, _clear),
    "zstd": Row("read in order, zstd, 3 of 1 KB", "small-zstd", _in_order),
    "gzip": Row("read in order, gzip, 3 of 1 KB", "small-gzip", _in_order),
}


# --------------------------------------------------------------------------------------- what runs in the other process


def write_data(name: str, folder: str, size: str) -> None:
    """Write a folder of data."""
    _check_source()
    DATA[name](pathlib.Path(folder), SIZES[size][0])


def measure_row(name: str, data: str, size: str) -> None:
    """Measure a row once, and print samples a second, by the clock and by the processor's time."""
    _check_source()
    row = ROWS[name]
    folder = pathlib.Path(data) / row.data
    run = row.begin(folder)
    row.prepare(folder)
    run()
    gc.collect()
    samples, wall, cpu = 0, 0.0, 0.0
    while wall < SIZES[size][1]:
        row.prepare(folder)
        cpu_before, before = time.process_time(), time.perf_counter()
        samples += run()
        wall += time.perf_counter() - before
        cpu += time.process_time() - cpu_before
    row.prepare(folder)
    print(json.dumps({"wall": samples / wall, "cpu": samples / cpu}))


def _check_source() -> None:
    found, expected = pathlib.Path(shoal.__file__).parents[1], os.environ["PYTHONPATH"]
    if str(found) != expected:
        raise RuntimeError(f"shoal was imported from {found}, not from {expected}")


# ------------------------------------------------------------------------------------------------------ the comparison


@dataclass(frozen=True)
class Compared:
    """New speeds by the old ones next to them, and old speeds by the old ones before them."""

    ratios: list[float]
    old_by_old: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    def cells(self) -> list[str]:
        """The median, the range, and the range of old by old."""
        return [f"{self.median:.2f}", _range(self.ratios), _range(self.old_by_old)]


def _range(values: list[float]) -> str:
    return f"{min(values):.2f}..{max(values):.2f}" if values else "-"


def main(arguments: list[str] | None = None) -> None:
    """Compare two commits and print a table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks compare",
        description="Compare the speed of two commits or checkouts.",
        epilog=f"rows: {', '.join(ROWS)}",
    )
    parser.add_argument("old", help="a commit, or a folder with a checkout")
    parser.add_argument("others", nargs="*", metavar="new/row", help="the new one (default: the work tree), and rows")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each side (default: 9)")
    parser.add_argument("--size", choices=SIZES, default="small", help="how much data (default: small)")
    options = parser.parse_args(arguments)
    names = [name for name in options.others if name in ROWS] or list(ROWS)
    new = [name for name in options.others if name not in ROWS] or [str(ROOT)]
    if len(new) > 1:
        parser.error(f"no such row: {', '.join(new[1:])}; there are {', '.join(ROWS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    with tempfile.TemporaryDirectory(prefix="shoal-compare-") as made:
        folder = pathlib.Path(made).resolve()
        sources = {"old": _copy_source(options.old, folder / "old"), "new": _copy_source(new[0], folder / "new")}
        print(f"old: {options.old}, new: {new[0]}, {options.rounds} rounds, size {options.size}; samples a second\n")
        _print_row(["row", "wall, new/old", "range", "old/old", "cpu, new/old", "range", "old/old", ""])
        reasons: list[str] = []
        failed = _write_all(sources, names, folder, options.size)
        for name in names:
            row = ROWS[name]
            try:
                if row.data in failed:
                    raise _FailedError(failed[row.data])
                found = _compare(sources, name, folder, options.size, options.rounds)
            except _FailedError as error:
                reasons.append(f"n/a: {name}: {error}")
                _print_row([name, *["n/a", "", ""] * 2, ""])
                continue
            slower = [kind for kind, one in found.items() if one.median < SLOWER]
            cells = [cell for one in found.values() for cell in one.cells()]
            _print_row([name, *cells, f"SLOWER ({', '.join(slower)})" if slower else ""])
        print("\n".join(["", *(f"{name}: {ROWS[name].title}" for name in names), *reasons]))


def _print_row(cells: list[str]) -> None:
    widths = (17, 13, 11, 11, 12, 11, 11, 0)
    print(" | ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip(" |"), flush=True)


def _copy_source(version: str, folder: pathlib.Path) -> pathlib.Path:
    """A copy of ``src`` of a checkout or a commit, so that nothing changes while it is measured."""
    source = pathlib.Path(version) / "src"
    if (source / "shoal").is_dir():
        shutil.copytree(source, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        return folder / "src"
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", version, "src"], capture_output=True, check=False)
    if archive.returncode:
        sys.exit(f"{version} is neither a commit, nor a folder with a checkout, nor a row: {archive.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


def _write_all(sources: dict[str, pathlib.Path], names: list[str], folder: pathlib.Path, size: str) -> dict[str, str]:
    """Write the data of some rows for each side; returns what could not be written, and why."""
    failed = {}
    for name, side in itertools.product(dict.fromkeys(ROWS[row].data for row in names), sources):
        try:
            _start(sources[side], "write_data", name, str(_data(folder, side) / name), size)
        except _FailedError as error:
            failed[name] = f"{side}: {error}"
    return failed


def _data(folder: pathlib.Path, side: str) -> pathlib.Path:
    return folder / f"data-{side}"


def _compare(
    sources: dict[str, pathlib.Path], name: str, folder: pathlib.Path, size: str, rounds: int
) -> dict[str, Compared]:
    speeds: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    for _, side in itertools.product(range(rounds), sources):
        try:
            printed = _start(sources[side], "measure_row", name, str(_data(folder, side)), size)
            speeds[side].append(json.loads(printed))
        except _FailedError as error:
            raise _FailedError(f"{side}: {error}") from error
    compared = {}
    for kind in ("wall", "cpu"):
        old, new = ([speed[kind] for speed in speeds[side]] for side in ("old", "new"))
        compared[kind] = Compared(
            [after / before for before, after in zip(old, new, strict=True)],
            [after / before for before, after in itertools.pairwise(old)],
        )
    return compared


class _FailedError(Exception):
    """One side could not do something."""


def _start(source: pathlib.Path, function: str, *arguments: str) -> str:
    """Call a function of this module in a new process, with another shoal. Returns the last line that it prints."""
    program = f"import sys; from benchmarks import compare; compare.{function}(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise _FailedError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return (done.stdout.splitlines() or [""])[-1]


if __name__ == "__main__":
    main()
