"""How long does it take to find one of 100,000 datasets, and how much memory?"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial

import redis

from shoal.local import LocalIndex, Storage, StoredShard
from shoal.local._backend import Transaction
from shoal.local._cid import cid_of
from shoal.local._datasets import EntryDraft, record
from shoal.schema import Field, FloatType, IntType, Schema, StrType

from ._measure import Contender, Question, measure

__all__ = ["run"]

ENTRIES = 100_000
_WORDS = ["cats", "dogs", "photos", "audio", "video", "street", "night", "day", "city", "forest", "ocean", "music"]
_TAGS = ("vision", "sound", "language", "raw", "clean", "large", "small")
_SCHEMAS = [
    Schema("ImageSample", (Field("image", StrType()), Field("label", StrType()))),
    Schema("AudioSample", (Field("audio", StrType()), Field("rate", IntType()))),
    Schema("TextSample", (Field("text", StrType()), Field("score", FloatType()))),
]
_PER_TURN = 200


def run(rounds: int = 5, entries: int = ENTRIES) -> Question:
    """Look up names and search in SQLite and Redis, beside the bare lookup that each database can do."""
    question = Question(
        f"an index of {entries:,} datasets",
        f"Each turn asks {_PER_TURN} times, each time for something else, and reads the whole entries. The limits read "
        "one row, or one key, of the same database by its primary key and decode nothing. Memory is what one process "
        "grows by while it goes through all entries.",
        ("index", "question", "ms", "of the limit"),
    )
    with tempfile.TemporaryDirectory() as folder, _redis(folder) as url:
        for name, location in (("SQLite", os.path.join(folder, "index.db")), ("Redis", url)):
            with LocalIndex(location) as index:
                _fill(index, entries)
                question.rows.extend(_answers(name, index, location, rounds, entries))
            question.rows.append((name, "memory to list all", _memory(location), ""))
    return question


def _answers(name: str, index: LocalIndex, location: str, rounds: int, entries: int) -> Iterator[tuple[str, ...]]:
    contenders = [Contender(f"limit: {name} by key", _turn(_bare(location, entries)))]
    for words, ask in _questions(index, entries).items():
        contenders.append(Contender(words, _turn(ask)))
    found = measure(contenders, rounds)
    limit = found[f"limit: {name} by key"].median
    for words, one in found.items():
        yield name, words, f"{one.median * 1000:.3f}", f"{one.median / limit:.0f} x"


def _questions(index: LocalIndex, entries: int) -> dict[str, Callable[[random.Random], object]]:
    return {
        "get_dataset(name)": lambda draw: index.get_dataset(_name(draw.randrange(entries))),
        "search: one rare word": lambda draw: index.search(f"n{draw.randrange(entries):06d}"),
        "search: one common word, 50 newest": lambda draw: index.search(draw.choice(_WORDS)),
        "search: two common words": lambda draw: index.search(" ".join(draw.sample(_WORDS, 2)), limit=10),
        "search: beginning of a word": lambda draw: index.search(f"n{draw.randrange(entries // 10):05d}*", limit=10),
        "search: tag and field": lambda draw: index.search(tags=[draw.choice(_TAGS)], fields=["image"], limit=10),
        "search: word, schema and sizes": lambda draw: index.search(
            draw.choice(_WORDS), schema="TextSample", samples=(draw.randrange(500_000), None), limit=10
        ),
        "search: word and narrow sizes": lambda draw: index.search(
            draw.choice(_WORDS), samples=(n := draw.randrange(10**6), n + 20), limit=10
        ),
        "search: narrow sizes alone": lambda draw: index.search(samples=(n := draw.randrange(10**6), n + 20), limit=10),
    }


def _turn(ask: Callable[[random.Random], object]) -> Callable[[], int]:
    seeds = itertools.count()

    def turn() -> int:
        draw = random.Random(next(seeds))
        for _ in range(_PER_TURN):
            ask(draw)
        return _PER_TURN

    return turn


def _bare(location: str, entries: int) -> Callable[[random.Random], object]:
    if location.startswith("unix://"):
        client = redis.Redis.from_url(location)
        return lambda draw: client.get(f"shoal:head:{_name(draw.randrange(entries))}")
    connection = sqlite3.connect(location)
    sql = "SELECT value FROM records WHERE kind = 'head' AND key = ?"
    return lambda draw: connection.execute(sql, (_name(draw.randrange(entries)),)).fetchone()


def _name(number: int) -> str:
    return f"team-{number % 97}/n{number:06d}"


def _fill(index: LocalIndex, entries: int) -> None:
    """As `insert_dataset` records them, many in one step, and without the bytes that they would stand for."""
    refs = [index.publish_schema(schema) for schema in _SCHEMAS]
    draw, start = random.Random(1), time.perf_counter()
    for first in range(0, entries, 250):
        drafts = [_draft(number, refs, draw) for number in range(first, min(first + 250, entries))]
        index._backend.transact(partial(_recorded, drafts))  # noqa: SLF001 - what insert_dataset does, in larger steps
    taken = time.perf_counter() - start
    print(f"{index!r}: {entries:,} entries in {taken:.0f} s, {taken / entries * 1000:.2f} ms each", file=sys.stderr)


def _recorded(drafts: list[EntryDraft], change: Transaction) -> None:
    for draft in drafts:
        record(change, draft, 1.8e9)


def _draft(number: int, refs: list[str], draw: random.Random) -> EntryDraft:
    size = draw.randrange(10**6)
    shards = tuple(
        StoredShard(f"shard-{at:06d}.tar", "train", size // 3, size * 100, f"{number * 4 + at:064x}") for at in range(3)
    )
    storage = Storage(f"s3://bucket/{number}", "http://127.0.0.1:9000", "us-east-1", has_manifest=True)
    return EntryDraft(
        _name(number),
        cid_of([["train", number]]),
        storage,
        shards,
        storage.root,
        refs[number % 3],
        metadata={"source": draw.choice(_WORDS), "n": number},
        tags=tuple(sorted(draw.sample(_TAGS, 2))),
        description=" ".join(draw.choices(_WORDS, k=8)),
    )


def _memory(location: str) -> str:
    """How much a fresh process grows by over a whole listing, after its first thousand entries."""
    script = (
        "import sys, psutil; from shoal.local import LocalIndex; size = lambda: psutil.Process().memory_info().rss\n"
        "with LocalIndex(sys.argv[1]) as index:\n"
        "    for number, entry in enumerate(index.list_datasets()):\n"
        "        if number == 1000: before = size()\n"
        "print((size() - before) / 1e6)"
    )
    done = subprocess.run([sys.executable, "-c", script, location], capture_output=True, text=True, check=True)
    return f"{float(done.stdout):.1f} MB"


@contextlib.contextmanager
def _redis(folder: str) -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed")
    socket = os.path.join(folder, "redis.sock")
    options = ["--port", "0", "--unixsocket", socket, "--dir", folder, "--appendonly", "yes", "--save", ""]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        while not os.path.exists(socket):
            if server.poll() is not None:
                raise SystemExit("redis-server did not start")
            time.sleep(0.01)
        yield f"unix://{socket}"
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    print(run(chosen.rounds, chosen.entries).markdown())
