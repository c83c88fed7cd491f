"""Does what a dataset costs depend on how many shards its samples are in, or how many appends wrote them?"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

import shoal
from shoal._crc32 import crc32
from shoal.load import DataLoader

from ._disk import FOLDER, freshly_cached
from ._measure import Contender, Measured, Question, measure

__all__ = ["run"]

SAMPLES, SHARDS = 80_000, (8, 4_000)
WIDE_SHARDS, WIDE_SAMPLES = 10_000, 1_000_000
APPENDS, APPENDED = 1_000, 100
BATCH, BATCHES, KEYS = 64, 200, 500
_BUDGET = 1 << 20
"""For the loader: less than the data, so that batches come from the files."""


def run(rounds: int = 5) -> Question:
    """Compare the same samples in few and in many shards, and written at once and in many appends."""
    question = Question(
        "Many shards, many appends",
        f"{SAMPLES:,} samples of about 300 bytes (a member of random bytes and a JSON with two scalars) in {SHARDS[0]} "
        f"shards and in {SHARDS[1]:,}; {APPENDS * APPENDED:,} samples written at once and by {APPENDS:,} appends of "
        f"{APPENDED}; and random batches of {BATCH} from {WIDE_SHARDS:,} shards of {WIDE_SAMPLES // WIDE_SHARDS} "
        "samples, beside a bare loop that opens each shard, reads the sample and compares its crc32. Opening is timed "
        "by itself; everything else on a dataset that was used before.",
        ("what", "few shards or one write, us", "many, us", "ratio"),
    )
    for title, few, many in (
        (f"{SHARDS[1]:,} shards", _in_shards(SHARDS[0]), _in_shards(SHARDS[1])),
        (f"{APPENDS:,} appends", _written_at_once(), _appended()),
    ):
        for name, contenders in _same_samples(few, many):
            found = measure(contenders, rounds)
            question.rows.append((f"{title}: {name}", *_compared(found["few"], found["many"])))
    found = measure(_random_batches(), rounds)
    question.rows.append((f"{WIDE_SHARDS:,} shards: random batch, beside a bare loop", *_compared(*found.values())))
    return question


def _compared(base: Measured, other: Measured) -> tuple[str, str, str]:
    return f"{base.median * 1e6:,.1f}", f"{other.median * 1e6:,.1f}", f"{other.median / base.median:.2f}"


def _same_samples(few: str, many: str) -> Iterator[tuple[str, list[Contender]]]:
    """What is timed of two folders with the same samples."""
    ways: dict[str, Callable[[str, shoal.Dataset[Any]], int]] = {
        "open": _open,
        "get of a random key": _get,
        "where": _where,
        "shuffled loader, a sample": _shuffled,
        "iteration, a sample": _iterate,
    }
    datasets = {"few": (few, shoal.Dataset(few, decode=False)), "many": (many, shoal.Dataset(many, decode=False))}
    for name, way in ways.items():
        yield name, [Contender(which, partial(way, *given)) for which, given in datasets.items()]


def _open(folder: str, _: shoal.Dataset[Any]) -> int:
    for _number in range(20):
        assert len(shoal.Dataset(folder, decode=False))
    return 20


def _get(_: str, dataset: shoal.Dataset[Any]) -> int:
    for number in np.random.default_rng(3).integers(0, len(dataset), KEYS).tolist():
        dataset.get(f"{number:09d}")
    return KEYS


def _where(_: str, dataset: shoal.Dataset[Any]) -> int:
    assert 0 < len(dataset.where("width >= 900")) < len(dataset)
    return 1


def _shuffled(_: str, dataset: shoal.Dataset[Any]) -> int:
    with DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=1, memory_budget=_BUDGET) as loader:
        return sum(len(batch["bin"]) for batch in loader)


def _iterate(_: str, dataset: shoal.Dataset[Any]) -> int:
    return sum(1 for _sample in dataset)


# ------------------------------------------------------------------------------------------- random batches, by hand


def _random_batches() -> list[Contender]:
    folder = _in_shards(WIDE_SHARDS, WIDE_SAMPLES)
    dataset = shoal.Dataset(folder, decode=False)
    rows = np.random.default_rng(4).integers(0, len(dataset), (BATCHES, BATCH))
    places = _places(dataset, np.unique(rows))
    by_hand = [[places[row] for row in batch] for batch in rows.tolist()]
    return [
        Contender("bare loop", lambda: sum(map(_read_batch, by_hand))),
        Contender("shoal", lambda: sum(len(dataset[batch]) for batch in rows)),
    ]


_Place = tuple[str, int, int, list[tuple[int, int, int]]]


def _places(dataset: shoal.Dataset[Any], rows: np.ndarray) -> dict[int, _Place]:
    """For each sample its shard, where it starts and ends, and its members with their crc32."""
    extents = dataset.source.extents(rows)
    urls, low, high = extents.urls(), extents.starts.min(axis=0).tolist(), extents.stops.max(axis=0).tolist()
    members = np.stack([extents.starts, extents.stops, extents.crcs], axis=2).transpose(1, 0, 2).tolist()
    found = zip(rows.tolist(), urls, low, high, members, strict=True)
    return {row: (url.removeprefix("file://"), *place) for row, url, *place in found}


def _read_batch(batch: list[_Place]) -> int:
    for path, low, high, members in batch:
        descriptor = os.open(path, os.O_RDONLY)
        os.fstat(descriptor)
        data = os.pread(descriptor, high - low, low)
        os.close(descriptor)
        for start, stop, crc in members:
            assert crc32(data[start - low : stop - low]) == crc
    return len(batch)


# ---------------------------------------------------------------------------------------------------------- the data


def _in_shards(shards: int, samples: int = SAMPLES) -> str:
    """A dataset of so many shards."""
    return _made(f"{samples}-in-{shards}", lambda path: _write(path, _samples(samples), samples // shards))


def _written_at_once() -> str:
    return _made("at-once", lambda path: _write(path, _samples(APPENDS * APPENDED), APPENDED))


def _appended() -> str:
    def write(path: str) -> None:
        samples = _samples(APPENDS * APPENDED)
        for _ in range(APPENDS):
            _write(path, itertools.islice(samples, APPENDED), APPENDED, append=True)

    return _made("appended", write)


def _write(path: str, samples: Iterable[dict[str, Any]], max_samples: int, *, append: bool = False) -> None:
    with shoal.ShardWriter(f"{path}/data-%06d.tar", max_samples=max_samples, append=append) as writer:
        for sample in samples:
            writer.write(sample)


def _samples(count: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(6)
    for number in range(count):
        facts = {"width": int(rng.integers(1, 1024)), "label": "cat" if number % 2 else "dog"}
        yield {"__key__": f"{number:09d}", "bin": rng.bytes(256), "json": facts}


def _made(name: str, write: Callable[[str], None]) -> str:
    folder = pathlib.Path(FOLDER) / "many_shards" / name
    if not folder.exists():
        partial_folder = folder.with_name(f"{name}.partial")
        shutil.rmtree(partial_folder, ignore_errors=True)
        write(str(partial_folder))
        partial_folder.rename(folder)
    freshly_cached(folder)
    return str(folder)


if __name__ == "__main__":
    print(run().markdown())
