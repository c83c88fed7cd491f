"""How fast are shards written to an object store while they are made, against its client's own upload?"""

from __future__ import annotations

import argparse
import random
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
    """Samples into shards on a real S3 server on loopback, and the same number of bytes by obstore's multipart put."""
    question = Question(
        "Remote write",
        f"{megabytes} MB of samples of 22 KB into shards of 256 MB on SeaweedFS on loopback, with index, checksums and "
        "manifest. The limit is obstore's multipart upload of as many bytes in memory, 8 MB parts, four at once.",
        ("writer", "of the limit", "MB above start"),
    )
    samples = list(_samples(megabytes))
    with seaweed() as endpoint:
        reach(endpoint)
        client = _client(endpoint)
        data = random.Random(1).randbytes(min(megabytes << 20, _SHARD))
        memory = {"raw multipart": 0.0, "shoal": 0.0}

        def watched(name: str, act: Any) -> int:
            before = _resident()
            act()
            memory[name] = max(memory[name], _resident() - before)
            return 1

        found = measure(
            [
                Contender("raw multipart", lambda: watched("raw multipart", lambda: _raw(client, data, megabytes))),
                Contender("shoal", lambda: watched("shoal", lambda: _write(samples)), _clear),
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


def _raw(client: Any, data: bytes, megabytes: int) -> None:
    left, number = megabytes << 20, 0
    while left > 0:
        obstore.put(client, f"raw/{number}", data[:left], use_multipart=True, chunk_size=_PART, max_concurrency=4)
        left, number = left - len(data), number + 1


def _write(samples: list[dict[str, Any]]) -> None:
    with shoal.ShardWriter(f"s3://{BUCKET}/written/train-%06d.tar", max_bytes=_SHARD, overwrite=True) as writer:
        for sample in samples:
            writer.write(sample)


def _clear() -> None:
    url = f"s3://{BUCKET}/written"
    if store.store_for(url).is_folder(url):
        store.delete(url, recursive=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=512)
    given = parser.parse_args()
    print(run(given.rounds, given.megabytes).markdown())
