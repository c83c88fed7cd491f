"""How fast are typed samples batched: an array, a text and a number each?"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import webdataset
from numpy.typing import NDArray

import shoal

from ._data import FOLDER
from ._disk import freshly_cached
from ._measure import Contender, Question, measure

__all__ = ["run"]

BATCH = 256


@shoal.packable
class Fixed:
    """The array first, so that it lies at the same place in every sample."""

    image: NDArray[np.float32]
    label: str
    confidence: float


@shoal.packable
class Varying:
    """A text of varying length first, so that nothing lies at the same place."""

    label: str
    image: NDArray[np.float32]
    confidence: float


@shoal.packable
class Picture:
    """150 KB of pixels."""

    image: NDArray[np.uint8]
    label: str
    confidence: float


def run(rounds: int = 5) -> Question:
    """Compare batches with the loop that unpacks, loads and stacks sample by sample."""
    question = Question(
        "Typed batches",
        f"Batches of {BATCH}, from a warm shard. The loop reads with webdataset, then does `msgpack.unpackb`, "
        "`np.load` and `np.stack` for each sample, as atdata does. For pictures the limit is a copy of their bytes, by "
        "one thread into fresh memory; they are read by two threads, into memory that is used again.",
        ("samples", "reader", "x the loop", "of a copy"),
    )
    for kind, count in ((Fixed, 50_000), (Varying, 50_000), (Picture, 1500)):
        question.rows.extend(_rows(kind, count, rounds))
    return question


def _rows(kind: type[Any], count: int, rounds: int) -> list[tuple[str, ...]]:
    path = _made(kind, count)
    dataset = shoal.Dataset[kind](path)  # type: ignore[valid-type]
    unchecked = shoal.Dataset[kind](path, verify=False)  # type: ignore[valid-type]
    some = count if kind is Picture else 5000
    pixels = np.full((BATCH, dataset[0].image.nbytes), 7, np.uint8)
    found = measure(
        [
            Contender("loop", lambda: _loop(path, some)),
            Contender("copy", lambda: _copy(pixels, count)),
            Contender("shoal, in order, all fields", lambda: _read(dataset.ordered(BATCH), _all_fields)),
            Contender("shoal, shuffled, all fields", lambda: _read(dataset.shuffled(BATCH, seed=1), _all_fields)),
            Contender("shoal, in order, array only", lambda: _read(dataset.ordered(BATCH), _array)),
            Contender("shoal, in order, array only, verify=False", lambda: _read(unchecked.ordered(BATCH), _array)),
            Contender("shoal, shuffled, array only", lambda: _read(dataset.shuffled(BATCH, seed=1), _array)),
        ],
        rounds,
    )
    loop, copy = found["loop"].median, found["copy"].median
    return [
        (kind.__name__, name, f"{loop / one.median:.0f}", f"{copy / one.median:.2f}" if kind is Picture else "")
        for name, one in found.items()
        if name != "copy" or kind is Picture
    ]


def _made(kind: type[Any], count: int) -> str:
    path = FOLDER / "typed" / kind.__name__ / "data.tar"
    if not path.exists():
        shoal.write_samples(_samples(kind, count), path)
    freshly_cached(path)
    return str(path)


def _samples(kind: type[Any], count: int) -> Iterator[Any]:
    rng = np.random.default_rng(3)
    for number in range(count):
        image = rng.integers(0, 255, (224, 224, 3), np.uint8) if kind is Picture else rng.random(64, np.float32)
        yield kind(image=image, label="label" * (number % 7), confidence=number / 3)


def _loop(path: str, count: int) -> int:
    samples = itertools.islice(webdataset.WebDataset([path], shardshuffle=False, empty_check=False), count)
    done = 0
    while rows := [msgpack.unpackb(sample["msgpack"]) for sample in itertools.islice(samples, BATCH)]:
        np.stack([np.load(io.BytesIO(row["image"])) for row in rows])
        _ = [row["label"] for row in rows], [row["confidence"] for row in rows]
        done += len(rows)
    return done


def _copy(pixels: np.ndarray, count: int) -> int:
    for _ in range(0, count, BATCH):
        pixels.copy()
    return count


def _all_fields(batch: Any) -> None:
    _ = batch.image, batch.label, batch.confidence


def _array(batch: Any) -> None:
    _ = batch.image


def _read(batches: Iterator[Any], look: Callable[[Any], object]) -> int:
    done = 0
    for batch in batches:
        look(batch)
        done += len(batch)
    return done


if __name__ == "__main__":
    print(run().markdown())
