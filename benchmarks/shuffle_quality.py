"""How well do a window and a buffer mix shards, at the same size? Draws ``docs/explanation/shuffle-quality.svg``.

``python -m benchmarks.shuffle_quality`` draws it anew in some seconds; the bytes are the same each time.
"""

from __future__ import annotations

import pathlib
import random

import numpy as np
from webdataset.filters import shuffle as buffer_shuffle

from shoal.order import BlockShuffle, GlobalShuffle, mixing_quality, permute

from ._measure import Question

__all__ = ["run"]

DRAWING = pathlib.Path(__file__).parents[1] / "docs" / "explanation" / "shuffle-quality.svg"
SHARD, SHARDS = 2500, 80
COUNT = SHARD * SHARDS
SIZES = (250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000)
"""How many samples are held in memory."""


def windowed(size: int, block: int) -> float:
    """Shoal: a window of blocks that holds ``size`` samples."""
    return mixing_quality(BlockShuffle(COUNT, 1, block, max(1, size // block), lanes=1), SHARD)


def buffered(size: int, shards_at_once: int = 1) -> float:
    """webdataset's own buffer over shuffled shards, of one worker, or of several whose samples alternate."""
    shards = permute(np.arange(SHARDS), SHARDS, 1)
    streams = []
    for worker in range(shards_at_once):
        own = (shards[worker::shards_at_once, None] * SHARD + np.arange(SHARD)).ravel().tolist()
        each = size // shards_at_once
        stages = buffer_shuffle(bufsize=each, initial=each, rng=random.Random(worker), handler=None)
        streams.append(np.array(list(stages(iter(own)))))
    shortest = min(map(len, streams))
    return mixing_quality(np.stack([stream[:shortest] for stream in streams], axis=1).ravel(), SHARD)


def run(rounds: int = 1) -> Question:
    """Measure and draw."""
    lines = {
        "shoal, blocks of 25": [windowed(size, 25) for size in SIZES],
        "shoal, blocks of 250": [windowed(size, 250) for size in SIZES],
        "webdataset buffer, 1 worker": [buffered(size) for size in SIZES],
        "webdataset buffer, 4 workers": [buffered(size, 4) for size in SIZES],
        "all at once": [mixing_quality(GlobalShuffle(COUNT, 1), SHARD)] * len(SIZES),
    }
    question = Question(
        "Shuffle quality",
        f"`mixing_quality` over {SHARDS} shards of {SHARD} samples, against how many samples are held in memory: how "
        "seldom two samples at most 256 apart come from one shard, beside chance. 1 is as at random, 0 is unmixed.",
        ("way", *(f"{size:,}" for size in SIZES)),
    )
    question.rows.extend((name, *(f"{value:.2f}" for value in values)) for name, values in lines.items())
    DRAWING.write_text(drawn(lines), "utf-8")
    return question


# ------------------------------------------------------------------------------------------------------------- drawing

WIDE, HIGH, LEFT, TOP, PLOT_WIDE, PLOT_HIGH = 760, 400, 60, 24, 470, 310
COLOURS = ("#00796b", "#4db6ac", "#e65100", "#ffb74d", "#757575")


def drawn(lines: dict[str, list[float]]) -> str:
    """The lines as an SVG that reads on light and dark pages."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="13">',
        "<title>Mixing quality against samples held in memory</title>",
        '<g fill="#757575" stroke="none">',
        *(text(at(SIZES[0], level)[0] - 8, at(SIZES[0], level)[1] + 4, f"{level:.2f}", "end") for level in LEVELS),
        *(text(at(size, 0)[0], at(size, 0)[1] + 20, f"{size:,}", "middle") for size in SIZES[::2]),
        text(LEFT + PLOT_WIDE / 2, HIGH - 12, "samples held in memory", "middle"),
        "</g>",
        *(segment([at(SIZES[0], level), at(SIZES[-1], level)], "#bdbdbd", 0.5) for level in LEVELS),
    ]
    ends = apart([at(SIZES[-1], values[-1])[1] for values in lines.values()])
    for (name, values), colour, end in zip(lines.items(), COLOURS, ends, strict=True):
        parts.append(segment([at(size, value) for size, value in zip(SIZES, values, strict=True)], colour, 2))
        parts.append(f'<g fill="{colour}">{text(LEFT + PLOT_WIDE + 12, end + 4, name, "start")}</g>')
    return "\n".join([*parts, "</svg>", ""])


LEVELS = (0, 0.25, 0.5, 0.75, 1)


def at(size: int, value: float) -> tuple[float, float]:
    """Where a value is drawn: sizes by their logarithm."""
    along = np.log(size / SIZES[0]) / np.log(SIZES[-1] / SIZES[0])
    return LEFT + PLOT_WIDE * float(along), TOP + PLOT_HIGH * (1 - value)


def apart(heights: list[float], space: float = 17) -> list[float]:
    """Heights of labels, moved down where they would cover each other."""
    found = dict.fromkeys(range(len(heights)), 0.0)
    last = -space
    for place in sorted(found, key=lambda number: heights[number]):
        found[place] = last = max(heights[place], last + space)
    return list(found.values())


def segment(points: list[tuple[float, float]], colour: str, width: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


if __name__ == "__main__":
    print(run().markdown())
