"""How fast are samples read from an object store, against its client's own GETs and against others?"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from shoal import store

from ._delay import delayed
from ._measure import Question
from ._remote import PREFIX, Turn, served, turn

__all__ = ["run"]

_LIMITS = ("raw 16 MB x 2", "raw 16 MB x 4", "raw 32 MB x 4", "raw whole x 2")
_SLOW_LIMITS = ("raw 16 MB x 4", "raw 16 MB x 8")
_PEERS = (
    "s3dlio + tarfile",
    "s3torchconnector + tarfile",
    "webdataset, http",
    "webdataset, aws pipe",
    "s3fs + webdataset",
    "s3fs + tarfile",
)
_BLOCKS = ("raw blocks", "shoal, block-shuffled")
_MODULE = "benchmarks.remote_read"
_LATENCY = 0.02
_CLOUD_RATE = 60_000_000
"""Bytes a second of one connection, as clouds give them."""
_SLOW_ROUNDS = 2


def run(rounds: int = 5, megabytes: int = 2048, *, peers: bool = True) -> Question:
    """All contenders in turn, each in a process of its own, on a real S3 server on loopback."""
    question = Question(
        "Remote read",
        f"Dict samples of 22 KB from {megabytes} MB in shards of 256 MB on SeaweedFS on loopback, which has "
        "them in memory and shares the processor. The limit is the fastest of obstore's raw GETs of the same "
        "bytes (for the shuffle: of the same blocks in the same order); the sockets of the standard library "
        "take less of the processor. Medians of turns, each in a new "
        "process with everything imported; who begins changes from round to round. Peers read three shards, "
        "and count by the sample. Processor seconds are the reader's own and those of the processes it "
        "starts, memory is its own alone; with latency, each response begins 20 ms later, behind a proxy "
        "whose bodies pass through the kernel alone; on the third line each connection gives 60 MB a second "
        "besides, as clouds' do, and the limit is the best of four and eight at once.",
        ("line", "reader", "of the limit", "CPU s / GB", "MB above start", "downloaded / needed"),
    )
    readers = ["raw sockets 32 MB x 4", "shoal", "shoal, one field"]
    names = [*_LIMITS, *readers, *_BLOCKS, *(_PEERS if peers else ())]
    names = [name for name in names if _is_there(name)]
    with served(megabytes) as endpoint, tempfile.TemporaryDirectory() as folder:
        turn(_MODULE, _LIMITS[0], endpoint)  # the server reads what it wrote for the first time
        _measured(question, "loopback", names, endpoint, rounds)
        few = [name for name in names if name not in ("webdataset, aws pipe", "s3fs + webdataset", "shoal, one field")]
        with delayed(endpoint, _LATENCY) as slow:
            _measured(question, "20 ms more", few, slow, rounds)
        few = [*_SLOW_LIMITS, "shoal", *(_PEERS[:2] if peers else ())]
        with delayed(endpoint, _LATENCY, rate=_CLOUD_RATE) as slow:
            _measured(question, "20 ms, 60 MB/s", few, slow, _SLOW_ROUNDS, _SLOW_LIMITS)
        _cache_rows(question, endpoint, folder, rounds)
    return question


def _is_there(name: str) -> bool:
    if "aws pipe" not in name:
        return True
    found = shutil.which("aws")
    works = found is not None and not subprocess.run([found, "--version"], capture_output=True, check=False).returncode
    if not works:
        print("webdataset over the AWS command line is left out: there is no `aws`", file=sys.stderr)
    return works


def _turns(names: list[str], endpoint: str, rounds: int) -> dict[str, list[Turn]]:
    """A new one begins each round. Whoever takes long takes fewer turns: there, noise counts for less."""
    found: dict[str, list[Turn]] = {name: [] for name in names}
    for number in range(rounds):
        first = number * len(names) // rounds
        for name in names[first:] + names[:first]:
            if number < _SLOW_ROUNDS or not _is_slow(name):
                found[name].append(turn(_MODULE, name, endpoint))
                print(f"{name:28} {found[name][-1]}", file=sys.stderr)
    return found


def _is_slow(name: str) -> bool:
    return name in _BLOCKS or name in _PEERS


def _measured(
    question: Question, line: str, names: list[str], endpoint: str, rounds: int, limits: tuple[str, ...] = _LIMITS
) -> None:
    found = _turns(names, endpoint, rounds)
    stored, samples = found[limits[0]][0].bytes, found["shoal"][0].samples
    limit = min(_seconds(found[name], samples) for name in limits)
    for name in names:
        own = _seconds(found["raw blocks"], samples) if name in _BLOCKS else limit
        part = own / _seconds(found[name], samples)
        question.rows.append((line, name, f"{part:.2f}", *_costs(found[name], stored / samples, samples)))


def _seconds(turns: list[Turn], samples: int) -> float:
    """For a sample; who gives none had the bytes of all of them."""
    return statistics.median(one.seconds / (one.samples or samples) for one in turns)


def _costs(turns: list[Turn], sample_bytes: float, samples: int) -> tuple[str, str, str]:
    sizes = [(one.samples or samples) * sample_bytes for one in turns]
    processor = statistics.median(one.processor / size for one, size in zip(turns, sizes, strict=True)) * 1e9
    memory = max(one.memory for one in turns)
    came = turns[-1].downloaded
    share = "" if came is None else f"{came / sizes[-1]:.3f}"
    return f"{processor:.2f}", f"{memory:.0f}", share


def _cache_rows(question: Question, endpoint: str, folder: str, rounds: int) -> None:
    """The second epoch from the cache, against the same files on the same disk."""
    os.environ["SHOAL_CACHE"], os.environ["SHOAL_BENCH_LOCAL"] = f"{folder}/cache", f"{folder}/local"
    store.download(PREFIX, f"{folder}/local")
    turn(_MODULE, "shoal, cached", endpoint)
    found = _turns(["shoal, local", "shoal, cached"], endpoint, 2 * rounds + 1)  # each takes half a second
    samples = found["shoal, local"][0].samples
    local = _seconds(found["shoal, local"], samples)
    for name, turns in found.items():
        costs = _costs(turns, turns[0].bytes / samples, samples)
        part = local / _seconds(turns, samples)
        question.rows.append(("second epoch", name, f"{part:.2f} of local", *costs))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--turn"]:
        from ._remote_turns import main

        main(*sys.argv[2:4])
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rounds", type=int, default=5)
        parser.add_argument("--megabytes", type=int, default=2048)
        parser.add_argument("--no-peers", action="store_true")
        given = parser.parse_args()
        print(run(given.rounds, given.megabytes, peers=not given.no_peers).markdown())
