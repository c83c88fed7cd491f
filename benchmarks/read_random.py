"""How much slower are samples in random order than in file order?"""

from __future__ import annotations

import numpy as np

import shoal

from ._data import image_tar, small_tar
from ._measure import Contender, Question, measure

__all__ = ["run"]


def run(rounds: int = 5) -> Question:
    """Compare random and sequential reads of the same samples through the same index."""
    question = Question(
        "Indexed random read",
        "All samples of a warm shard in a random order, checksums verified, against the same samples in file order. "
        "The shard was read in order once before, from the disk.",
        ("shard", "reader", "of sequential"),
    )
    for title, path in (("1 KB x 3 fields", small_tar()), ("20 KB jpg + json + cls", image_tar())):
        dataset = shoal.Dataset(path, decode=False)
        order = np.random.default_rng(0).permutation(len(dataset))
        found = measure(
            [
                Contender("sequential", lambda dataset=dataset: sum(1 for _ in dataset)),
                Contender("ds[[256 positions]]", lambda dataset=dataset, order=order: _batches(dataset, order)),
                Contender("ds[i]", lambda dataset=dataset, order=order: _single(dataset, order[:20_000])),
            ],
            rounds,
        )
        base = found["sequential"].median
        question.rows.extend((title, name, f"{base / one.median:.2f}") for name, one in found.items())
    return question


def _batches(dataset: shoal.Dataset, order: np.ndarray) -> int:
    return sum(len(dataset[order[at : at + 256]]) for at in range(0, len(order), 256))


def _single(dataset: shoal.Dataset, order: np.ndarray) -> int:
    for position in order.tolist():
        dataset[position]
    return len(order)


if __name__ == "__main__":
    print(run().markdown())
