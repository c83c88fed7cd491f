"""How many files and functions does a batch pass through, and how many statements is the code?

``python -m benchmarks.path_length`` counts this checkout, ``--checkout PATH`` another one beside it.

Counted is what `sys.setprofile` sees in the caller's thread, without workers: the functions of the package, lambdas and
comprehensions among them, and functions that it compiled from text. What runs because a module is imported, at its
first use, is left out, so that the order of imports does not matter.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from types import FrameType

import numpy as np
from numpy.typing import NDArray

import shoal

from ._measure import Question

__all__ = ["Batches", "Passed", "count_batches", "print_batches", "statements"]

ROOT = pathlib.Path(__file__).resolve().parents[1]
BATCH = 64
SAMPLES = 1000
_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined] # noqa: SLF001 - no other name


@shoal.packable
class Point:
    """64 numbers, a text and one number more."""

    position: NDArray[np.float32]
    label: str
    weight: float


@dataclass(frozen=True)
class Passed:
    """What ran: files, functions, and how often a function was called."""

    files: int
    functions: int
    calls: int


@dataclass(frozen=True)
class Batches:
    """What ran from opening to the first batch, and for each of the others."""

    first: Passed
    later: list[Passed]

    @property
    def usual(self) -> Passed:
        """The median of the later batches."""
        return Passed(*(int(statistics.median_low(counts)) for counts in self._counts()))

    @property
    def most(self) -> Passed:
        """The most of the later batches."""
        return Passed(*(max(counts) for counts in self._counts()))

    def _counts(self) -> Iterator[tuple[int, ...]]:
        yield from zip(*(astuple(one) for one in self.later), strict=True)


class _Watch:
    """For `sys.setprofile`: the functions of the package in a folder that are called."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._imports = 0
        self.functions: dict[tuple[str, str], int] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is _IMPORT:
            self._imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._imports and self._is_ours(frame):
            key = (frame.f_code.co_filename, frame.f_code.co_qualname)
            self.functions[key] = self.functions.get(key, 0) + 1

    def _is_ours(self, frame: FrameType | None) -> bool:
        """Whether a function is the package's; one compiled from text is, if a function of the package called it."""
        while frame is not None and frame.f_code.co_filename == "<string>":
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith((self._folder, "<shoal"))

    def passed(self) -> Passed:
        """What was called since the last time."""
        found, self.functions = self.functions, {}
        return Passed(len({file for file, _ in found}), len(found), sum(found.values()))


# ------------------------------------------------------------------------------------- what runs in the other process


def _write_typed(folder: pathlib.Path) -> None:
    points = (Point(position=np.arange(64, dtype=np.float32), label="cat", weight=0.5) for _ in range(SAMPLES))
    shoal.write_samples(points, folder / "train-000000.tar")


def _typed(folder: pathlib.Path) -> Iterator[int]:
    dataset = shoal.Dataset[Point](str(folder))
    for batch in shoal.DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=1, num_workers=0):
        _ = batch.label, batch.weight
        yield len(batch.position)


def _write_raw(folder: pathlib.Path) -> None:
    with shoal.ShardWriter(str(folder / "train-%06d.tar")) as writer:
        for _ in range(SAMPLES):
            writer.write({"jpg": bytes(20_000), "json": {"width": 256}, "cls": 1})


def _raw(folder: pathlib.Path) -> Iterator[int]:
    dataset = shoal.Dataset(str(folder), decode=False)
    for batch in shoal.DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=1, num_workers=0):
        yield len(batch["jpg"])


def _write_webdataset(folder: pathlib.Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(folder / "train-000000.tar")) as writer:
        for number in range(SAMPLES):
            writer.write({"__key__": f"{number:06d}", "npy": np.arange(64, dtype=np.float32), "cls": 1})


def _webdataset(folder: pathlib.Path) -> Iterator[int]:
    import webdataset

    dataset = webdataset.WebDataset(str(folder / "train-000000.tar"), shardshuffle=False).shuffle(100).decode()
    for arrays, _ in dataset.to_tuple("npy", "cls").batched(BATCH):
        yield len(arrays)


_WAYS = {
    "typed": (_write_typed, _typed),
    "raw": (_write_raw, _raw),
    "webdataset": (_write_webdataset, _webdataset),
}
"""How samples are written, and how batches of them are read."""


def print_batches(way: str, package: str) -> None:
    """Count what runs of a package in this process, and print it."""
    write, read = _WAYS[way]
    name = pathlib.Path(package).name
    if pathlib.Path(str(importlib.import_module(name).__file__)).parent != pathlib.Path(package):
        raise RuntimeError(f"{name} was not imported from {package}")
    watch = _Watch(f"{package}{os.sep}")
    counts: list[dict[str, int]] = []
    sizes: list[int] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "data"
        folder.mkdir()
        write(folder)
        batches = read(folder)
        while sum(sizes) < SAMPLES:
            sys.setprofile(watch)
            sizes.append(next(batches))
            sys.setprofile(None)
            counts.append(asdict(watch.passed()))
        batches.close()  # type: ignore[attr-defined] # a generator
    assert sizes[0] == BATCH
    print(json.dumps(counts))


# -------------------------------------------------------------------------------------------------------- counting


def count_batches(way: str, package: pathlib.Path) -> Batches:
    """Count what runs of the package in a folder, in a new process."""
    package = package.resolve()
    program = "import sys; from benchmarks import path_length; path_length.print_batches(*sys.argv[1:])"
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, way, str(package)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    first, *later = (Passed(**count) for count in json.loads(out.stdout.splitlines()[-1]))
    return Batches(first, later)


def statements(package: pathlib.Path) -> dict[str, int]:
    """How many statements each package in a folder has, docstrings left out; the modules beside them count as one."""
    found: dict[str, int] = {}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).parts
        name = f"{inside[0]}/" if len(inside) > 1 else "modules"
        found[name] = found.get(name, 0) + _statements(ast.parse(path.read_text("utf-8")))
    return found


def _statements(tree: ast.Module) -> int:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    texts = [node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return len(nodes) - sum(isinstance(node.value.value, str) for node in texts if isinstance(node.value, ast.Constant))


def main() -> None:
    """Count one or two checkouts, and print two tables."""
    parser = argparse.ArgumentParser("python -m benchmarks.path_length", description="Count what a batch runs.")
    parser.add_argument("--checkout", type=pathlib.Path, metavar="PATH", help="another checkout, to compare with")
    checkouts = {"here": ROOT}
    if (other := parser.parse_args().checkout) is not None:
        checkouts[str(other)] = other
    packages = {name: path / "src" / "shoal" for name, path in checkouts.items()}
    print(_paths(packages).markdown())
    print(_sizes(packages).markdown())


def _paths(packages: dict[str, pathlib.Path]) -> Question:
    question = Question(
        "What a batch runs",
        f"Shuffled batches of {BATCH} samples by `DataLoader(num_workers=0)`, from one shard of {SAMPLES:,}.",
        ("checkout", "batches", "part", "files", "functions", "calls"),
    )
    for way in ("typed", "raw"):
        for name, package in packages.items():
            found = count_batches(way, package)
            parts = {
                "opening to the first batch": found.first,
                "a later batch, median": found.usual,
                "a later batch, most": found.most,
            }
            for part, one in parts.items():
                question.rows.append((name, way, part, *(f"{count:,}" for count in astuple(one))))
    return question


def _sizes(packages: dict[str, pathlib.Path]) -> Question:
    question = Question("Statements", "Statements as `ast` counts them, without docstrings.", ("package", *packages))
    found = [statements(package) for package in packages.values()]
    for name in sorted({name for one in found for name in one}):
        question.rows.append((name, *(f"{one.get(name, 0):,}" for one in found)))
    question.rows.append(("all", *(f"{sum(one.values()):,}" for one in found)))
    return question


if __name__ == "__main__":
    main()
