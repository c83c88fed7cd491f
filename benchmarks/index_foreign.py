"""How fast does a tar without an index get one?"""

from __future__ import annotations

from isal.isal_zlib import crc32

from shoal.shard import ReaderFeed, index_shard, scan
from shoal.store import store_for

from ._data import SHARDS
from ._measure import Contender, Question, measure
from ._peers import tarfile_list

__all__ = ["run"]


def run(rounds: int = 5) -> Question:
    """Compare indexing with the standard library's listing of members."""
    question = Question(
        "Index of a foreign tar",
        "The whole index (every member, crc32 of every byte, metadata columns) and the bare list of members, "
        "against `tarfile` listing the members of the same file, which reads no data. The limit for the whole index is "
        "to read all bytes once and take one crc32 of them.",
        ("shard", "work", "x tarfile"),
    )
    for title, made in SHARDS:
        path = made()
        members = tarfile_list(path)
        found = measure(
            [
                Contender("tarfile, list of members", lambda path=path: tarfile_list(path)),
                Contender("shoal, list of members", lambda path=path: _list(path)),
                Contender("shoal, whole index", lambda path=path: _index(path)),
                Contender("limit, all bytes and a crc32", lambda path=path, members=members: _limit(path, members)),
            ],
            rounds,
        )
        base = found["tarfile, list of members"].median
        question.rows.extend((title, name, f"{base / one.median:.1f}") for name, one in found.items())
    return question


def _list(path: str) -> int:
    return sum(len(chunk.names) for chunk in scan(ReaderFeed(store_for(path).open(path))))


def _index(path: str) -> int:
    return 3 * len(index_shard(store_for(path).open(path)))


def _limit(path: str, members: int) -> int:
    buffer = memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer):
            crc32(buffer[:got])
    return members


if __name__ == "__main__":
    print(run().markdown())
