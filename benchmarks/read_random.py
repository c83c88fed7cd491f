"""How much slower are samples in random order than in file order?"""

from __future__ import annotations

from functools import partial

import numpy as np

import shoal
from shoal.shard import index_shard
from shoal.store import store_for

from ._data import image_tar, small_tar
from ._loader_peers import peer
from ._measure import Contender, Question, measure
from ._peers import Run, lance_take, pread_slices, written_lance

__all__ = ["run"]


def run(rounds: int = 5) -> Question:
    """Compare random and sequential reads of the same samples through the same index."""
    question = Question(
        "Indexed random read",
        "All samples of a warm shard in a random order, checksums verified, against the same samples in file order. "
        "The shard was read in order once before, from the disk. The bare loop reads each sample with one `pread` and "
        "slices its fields' bytes out at places known beforehand, without keys, mappings and checksums. Lance takes "
        "the same samples from a dataset of its own, on its own threads, as dicts of `bytes` and as Arrow.",
        ("shard", "reader", "of sequential"),
    )
    for title, path in (("1 KB x 3 fields", small_tar()), ("20 KB jpg + json + cls", image_tar())):
        dataset = shoal.Dataset(path, decode=False)
        order = np.random.default_rng(0).permutation(len(dataset))
        runs = _runs(path, order)
        lance, arrow = peer("lance").dataset(written_lance(path)), dataset.with_format("arrow")
        found = measure(
            [
                Contender("sequential", lambda dataset=dataset: sum(1 for _ in dataset)),
                Contender("bare pread and slices", lambda path=path, runs=runs: pread_slices(path, runs)),
                Contender("ds[[256 positions]]", partial(_batches, dataset, order, 256)),
                Contender("ds[[64 positions]]", partial(_batches, dataset, order, 64)),
                Contender("ds[[64 positions]], as Arrow", partial(_batches, arrow, order, 64)),
                Contender("Lance, take of 64, as bytes", partial(lance_take, lance, order, 64, as_bytes=True)),
                Contender("Lance, take of 64, as Arrow", partial(lance_take, lance, order, 64, as_bytes=False)),
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


def _batches(dataset: shoal.Dataset, order: np.ndarray, size: int) -> int:
    return sum(len(dataset[order[at : at + size]]) for at in range(0, len(order), size))


def _single(dataset: shoal.Dataset, order: np.ndarray) -> int:
    for position in order.tolist():
        dataset[position]
    return len(order)


if __name__ == "__main__":
    print(run().markdown())
