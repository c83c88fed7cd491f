"""How fast is a shard read in order, undecoded, every field's bytes materialised?"""

from __future__ import annotations

import os

import shoal
from shoal.shard import ReaderFeed, SampleStream
from shoal.store import store_for

from ._data import SHARDS
from ._measure import Contender, Question, measure
from ._peers import huggingface_read, readinto, tarfile_read, webdataset_read

__all__ = ["run"]


def run(rounds: int = 5) -> Question:
    """Read two shards in every way."""
    question = Question(
        "Sequential read",
        "Every reader reads the whole file: undecoded, all bytes materialised, warm. "
        "The limit is a plain `readinto` of the same file; higher is better in every column.",
        ("shard", "reader", "x webdataset", "of the limit"),
    )
    for title, made in SHARDS:
        question.rows.extend(_rows(title, made(), rounds))
    return question


def _rows(title: str, path: str, rounds: int) -> list[tuple[str, ...]]:
    samples = len(shoal.Dataset(path))
    found = measure(
        [
            Contender("limit", lambda: _per_sample(readinto(path), path, samples)),
            Contender("webdataset", lambda: webdataset_read(path)),
            Contender("tarfile", lambda: tarfile_read(path) // 3),
            Contender("HF datasets", lambda: huggingface_read(path)),
            Contender("shoal", lambda: _read(path, verify=False)),
            Contender("shoal, verified (default)", lambda: _read(path, verify=True)),
            Contender("shoal, no index (stream)", lambda: _stream(path)),
        ],
        rounds,
    )
    peer, limit = found["webdataset"].median, found["limit"].median
    return [(title, name, f"{peer / one.median:.1f}", f"{limit / one.median:.2f}") for name, one in found.items()]


def _per_sample(total: int, path: str, samples: int) -> int:
    assert total == os.path.getsize(path)
    return samples


def _read(path: str, *, verify: bool) -> int:
    count = 0
    for _ in shoal.Dataset(path, decode=False, verify=verify):
        count += 1
    return count


def _stream(path: str) -> int:
    count = 0
    for _ in SampleStream(ReaderFeed(store_for(path).open(path)), path):
        count += 1
    return count


if __name__ == "__main__":
    print(run().markdown())
