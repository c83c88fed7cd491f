"""What does each option of the loader do to its speed?"""

from __future__ import annotations

import glob
import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import shoal
from shoal.load import DataLoader

from ._loader_turns import Loader, take_turns
from ._measure import Question
from .loader_jpeg import SAMPLES, picture_tars

__all__ = ["LOADERS", "run"]

USUAL: dict[str, Any] = {"batch_size": 64, "num_workers": 2, "prefetch": 4}
KNOBS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("num_workers", (0, 1, 2, 4, "auto")),
    ("prefetch", (1, 2, 4, 16, "auto")),
    ("batch_size", (8, 64, 256)),
    ("shuffle", (False, True)),
    ("window", (64, 512, None)),
    ("block_samples", (1, 16, 256, None)),
    ("lanes", (1, 192)),
    ("auto_tune", (False, True)),
    ("memory_budget", (8 << 20, 64 << 20, 1 << 30)),
    ("max_in_flight", (1, 2, None)),
    ("verify", (False, True)),
)
"""Each is turned by itself, the others as usual."""
AS_USUAL = (
    "num_workers=2",
    "prefetch=4",
    "batch_size=64",
    "shuffle=True",
    "window=None",
    "block_samples=None",
    "lanes=192",
    "memory_budget=1024 MiB",
    "max_in_flight=None",
    "verify=True",
)
"""The same setting by other names: their median is what the others are compared with."""


def _pictures(knob: str, value: Any) -> Iterator[int]:
    options = {"shuffle": True, **USUAL}
    verify = value if knob == "verify" else True
    if knob == "auto_tune":
        options |= {"num_workers": "auto", "prefetch": "auto"}
    if knob != "verify":
        options[knob] = value
    dataset = shoal.Dataset(f"{picture_tars()}/*.tar", decode={"jpg": "rgb8@224", "cls": True}, verify=verify)
    with DataLoader(dataset, **options) as loader:
        yield from (len(batch["jpg"]) for batch in loader.repeat())


def _named(value: Any) -> str:
    return f"{value >> 20} MiB" if isinstance(value, int) and value >= 1 << 20 else str(value)


LOADERS = tuple(
    Loader(f"{knob}={_named(value)}", partial(_pictures, knob, value), picture_tars)
    for knob, values in KNOBS
    for value in values
)


def run(rounds: int = 3, seconds: float = 1.5) -> Question:
    """Turn every knob, one at a time."""
    usual = ", ".join(f"{name}={value}" for name, value in USUAL.items())
    question = Question(
        "Options of the loader",
        f"Shuffled batches of JPEG pictures decoded to 224 x 224, warm local files; each option by itself, the others "
        f"{usual}, as a ratio to those.",
        ("option", "of the usual setting", "first batch, ms", "CPU s a GB"),
    )
    picture_tars()
    found = take_turns("benchmarks.loader_knobs", [loader.name for loader in LOADERS], rounds, seconds)
    base = statistics.median(found[name].rate for name in AS_USUAL)
    mean = sum(map(os.path.getsize, glob.glob(f"{picture_tars()}/*.tar"))) / SAMPLES
    for name, one in found.items():
        cells = (f"{one.rate / base:.2f}", f"{one.first * 1e3:.0f}", f"{one.cpu / mean * 1e9:.1f}")
        question.rows.append((name, *(cells if one.rates else (f"cannot run: {one.why_not}", "", ""))))
    return question


if __name__ == "__main__":
    print(run().markdown())
