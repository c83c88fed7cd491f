"""How fast are shards written to an object store while they are made, against its client's own upload?"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from typing import Any

import obstore
from obstore.store import S3Store
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY, seaweed

import shoal
from shoal import store

from ._measure import Contender, Question, measure
from ._remote import reach

__all__ = ["run"]

_PART = 8 << 20
_SHARD = 256 << 20


def run(rounds: int = 3, megabytes: int = 512) -> Question:
    """Samples into shards on a real S3 server on loopback, and the same shards by obstore's multipart put."""
    question = Question(
        "Remote write",
        f"{megabytes} MB of samples of 22 KB into shards of 256 MB on SeaweedFS on loopback, with index, checksums and "
        "manifest. The limit is obstore's multipart upload of the same shards from memory, 8 MB parts, four at once. "
        "Each turn writes new objects: the server removes old ones in its own time, which is another's turn.",
        ("writer", "of the limit", "MB above start"),
    )
    samples, turns = list(_samples(megabytes)), itertools.count()
    with seaweed() as endpoint:
        reach(endpoint)
        client = _client(endpoint)
        shards = [store.get(url) for url in _write(samples, f"first-{next(turns)}")]
        memory = {"raw multipart": 0.0, "shoal": 0.0}

        def watched(name: str, act: Any) -> int:
            before = _resident()
            act()
            memory[name] = max(memory[name], _resident() - before)
            return 1

        found = measure(
            [
                Contender("raw multipart", lambda: watched("raw multipart", lambda: _raw(client, shards, turns))),
                Contender("shoal", lambda: watched("shoal", lambda: _write(samples, f"written-{next(turns)}"))),
            ],
            rounds,
        )
    limit = found["raw multipart"].median
    question.rows.extend((name, f"{limit / one.median:.2f}", f"{memory[name]:.0f}") for name, one in found.items())
    return question


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def _samples(megabytes: int) -> Any:
    draw = random.Random(0)
    pool, size, number = draw.randbytes(40 << 20), 0, 0
    while size < megabytes << 20:
        start, length = draw.randrange(0, 39 << 20), draw.randrange(10_000, 35_000)
        yield {
            "__key__": f"{number:08d}",
            "jpg": pool[start : start + length],
            "json": {"n": number},
            "cls": number % 9,
        }
        size, number = size + length, number + 1


def _client(endpoint: str) -> Any:
    facts: dict[str, Any] = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1"}
    return S3Store(BUCKET, endpoint=endpoint, client_options={"allow_http": True}, **facts)


def _raw(client: Any, shards: list[bytes], turns: Iterator[int]) -> None:
    """The same bytes: what a server does with a part may depend on what is in it."""
    for data in shards:
        obstore.put(client, f"raw/{next(turns)}.tar", data, use_multipart=True, chunk_size=_PART, max_concurrency=4)


def _write(samples: list[dict[str, Any]], folder: str) -> list[str]:
    """Where the shards are."""
    with shoal.ShardWriter(f"s3://{BUCKET}/{folder}/train-%06d.tar", max_bytes=_SHARD, max_samples=1 << 30) as writer:
        for sample in samples:
            writer.write(sample)
    return writer.urls


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=512)
    given = parser.parse_args()
    print(run(given.rounds, given.megabytes).markdown())
