"""Run every question and write RESULTS.md."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import sys

from . import (
    index_foreign,
    loader_autotune,
    loader_jpeg,
    loader_raw,
    loader_typed,
    memory_stream,
    plan_huge,
    read_random,
    read_sequential,
    typed_batches,
    where_million,
    write,
)

QUESTIONS = (
    read_sequential,
    read_random,
    index_foreign,
    write,
    memory_stream,
    typed_batches,
    where_million,
    plan_huge,
    loader_raw,
    loader_typed,
    loader_jpeg,
    loader_autotune,
)
_PACKAGES = ("shoal", "numpy", "pyarrow", "isal", "webdataset", "datasets")


def _machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory = next((int(line.split()[1]) // 2**20 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    return (
        f"{os.cpu_count()} cores ({model}), {memory} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; {versions}."
    )


def _lines(path: str) -> list[str]:
    file = pathlib.Path(path)
    return file.read_text().splitlines() if file.exists() else []


def main() -> None:
    """Answer all questions, or those named on the command line."""
    chosen = [module for module in QUESTIONS if not sys.argv[1:] or module.__name__.rpartition(".")[2] in sys.argv[1:]]
    answers = []
    for module in chosen:
        answers.append(module.run().markdown())
        print(answers[-1], flush=True)
    if len(chosen) == len(QUESTIONS):
        text = "\n".join(
            [
                "# Results",
                "",
                "Written by `make bench`. Medians of five rounds, contenders taking turns.",
                "",
                _machine(),
                "",
                *answers,
            ]
        )
        (pathlib.Path(__file__).parent / "RESULTS.md").write_text(text)


if __name__ == "__main__":
    main()
