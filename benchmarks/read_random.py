"""How much slower are samples in random order than in file order?"""

from __future__ import annotations

import numpy as np

import shoal
from shoal.shard import index_shard
from shoal.store import store_for

from ._data import image_tar, small_tar
from ._measure import Contender, Question, measure
from ._peers import Run, pread_slices

__all__ = ["run"]


def run(rounds: int = 5) -> Question:
    """Compare random and sequential reads of the same samples through the same index."""
    question = Question(
        "Indexed random read",
        "All samples of a warm shard in a random order, checksums verified, against the same samples in file order. "
        "The shard was read in order once before, from the disk. The bare loop reads each sample with one `pread` and "
        "slices its fields' bytes out at places known beforehand, without keys, mappings and checksums.",
        ("shard", "reader", "of sequential"),
    )
    for title, path in (("1 KB x 3 fields", small_tar()), ("20 KB jpg + json + cls", image_tar())):
        dataset = shoal.Dataset(path, decode=False)
        order = np.random.default_rng(0).permutation(len(dataset))
        runs = _runs(path, order)
        found = measure(
            [
                Contender("sequential", lambda dataset=dataset: sum(1 for _ in dataset)),
                Contender("bare pread and slices", lambda path=path, runs=runs: pread_slices(path, runs)),
                Contender("ds[[256 positions]]", lambda dataset=dataset, order=order: _batches(dataset, order)),
                Contender("ds[i]", lambda dataset=dataset, order=order: _single(dataset, order[:20_000])),
            ],
            rounds,
        )
        base = found["sequential"].median
        question.rows.extend((title, name, f"{base / one.median:.2f}") for name, one in found.items())
    return question


def _runs(path: str, order: np.ndarray) -> list[Run]:
    """Each sample as a run of its own."""
    index = index_shard(store_for(path).open(path))
    starts = np.array([part.offset[order] for part in index.fields.values()], np.int64).T
    stops = starts + np.array([part.size[order] for part in index.fields.values()], np.int64).T
    low, high = starts.min(axis=1), stops.max(axis=1)
    places = np.stack([starts - low[:, None], stops - low[:, None]], axis=2).tolist()
    found = zip(low.tolist(), high.tolist(), places, strict=True)
    return [(start, stop, [[tuple(place)] for place in sample]) for start, stop, sample in found]


def _batches(dataset: shoal.Dataset, order: np.ndarray) -> int:
    return sum(len(dataset[order[at : at + 256]]) for at in range(0, len(order), 256))


def _single(dataset: shoal.Dataset, order: np.ndarray) -> int:
    for position in order.tolist():
        dataset[position]
    return len(order)


if __name__ == "__main__":
    print(run().markdown())
