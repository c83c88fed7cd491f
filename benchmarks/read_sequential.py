"""How fast is a shard read in order, undecoded, every field's bytes materialised?"""

from __future__ import annotations

import itertools
import os

import shoal
from shoal.shard import ReaderFeed, SampleStream, index_shard
from shoal.store import store_for

from ._data import SHARDS
from ._measure import Contender, Question, measure
from ._peers import (
    LANCE_BATCH,
    Run,
    huggingface_read,
    lance_read,
    pread_slices,
    readinto,
    tarfile_read,
    webdataset_read,
    written_lance,
)

__all__ = ["run"]


def run(rounds: int = 5) -> Question:
    """Read two shards in every way."""
    question = Question(
        "Sequential read",
        "Every reader reads the whole file: undecoded, all bytes materialised, warm: read in "
        "order once before, from the disk. "
        "The limit is a plain `readinto` of the same file into one buffer, which gives nobody a sample. The bare loop "
        "reads with `pread` and slices each field's bytes out at places known beforehand: what any reader that "
        "hands out `bytes` must do, without keys, mappings and checksums. Lance reads the same samples from a dataset "
        f"of its own, on its own threads, in batches of {LANCE_BATCH}, as dicts of `bytes` and as Arrow; shoal as "
        "Arrow reads batches of as many. Higher is better in every column.",
        ("shard", "reader", "x webdataset", "of the limit"),
    )
    for title, made in SHARDS:
        question.rows.extend(_rows(title, made(), rounds))
    return question


def _rows(title: str, path: str, rounds: int) -> list[tuple[str, ...]]:
    samples, runs, lance = len(shoal.Dataset(path)), _runs(path), written_lance(path)
    found = measure(
        [
            Contender("limit", lambda: _per_sample(readinto(path), path, samples)),
            Contender("bare pread and slices", lambda: pread_slices(path, runs)),
            Contender("webdataset", lambda: webdataset_read(path)),
            Contender("tarfile", lambda: tarfile_read(path) // 3),
            Contender("HF datasets", lambda: huggingface_read(path)),
            Contender("Lance, as bytes", lambda: lance_read(lance, as_bytes=True)),
            Contender("Lance, as Arrow", lambda: lance_read(lance, as_bytes=False)),
            Contender("shoal", lambda: _read(path, verify=False)),
            Contender("shoal, verified (default)", lambda: _read(path, verify=True)),
            Contender("shoal, verified, as Arrow", lambda: _read_arrow(path)),
            Contender("shoal, no index (stream)", lambda: _stream(path)),
        ],
        rounds,
    )
    peer, limit = found["webdataset"].median, found["limit"].median
    return [(title, name, f"{peer / one.median:.1f}", f"{limit / one.median:.2f}") for name, one in found.items()]


def _runs(path: str, most: int = 1 << 20) -> list[Run]:
    """Runs of whole samples: where each starts and stops, and where each field lies in it."""
    index = index_shard(store_for(path).open(path))
    columns = [(part.offset.tolist(), (part.offset + part.size).tolist()) for part in index.fields.values()]
    firsts = [min(row) - 512 for row in zip(*(starts for starts, _ in columns), strict=True)]
    edges = [0]
    for row, first in enumerate(firsts):
        if first - firsts[edges[-1]] >= most:
            edges.append(row)
    runs = []
    for low, high in itertools.pairwise([*edges, len(firsts)]):
        base, stop = firsts[low], max(stops[high - 1] for _, stops in columns)
        places = [
            [(start - base, stop - base) for start, stop in zip(*(part[low:high] for part in column), strict=True)]
            for column in columns
        ]
        runs.append((base, stop, places))
    return runs


def _per_sample(total: int, path: str, samples: int) -> int:
    assert total == os.path.getsize(path)
    return samples


def _read(path: str, *, verify: bool) -> int:
    count = 0
    for _ in shoal.Dataset(path, decode=False, verify=verify):
        count += 1
    return count


def _read_arrow(path: str) -> int:
    dataset = shoal.Dataset(path, decode=False).with_format("arrow")
    return sum(len(table) for table in dataset.ordered(LANCE_BATCH))


def _stream(path: str) -> int:
    count = 0
    for _ in SampleStream(ReaderFeed(store_for(path).open(path)), path):
        count += 1
    return count


if __name__ == "__main__":
    print(run().markdown())
