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

from ._measure import Question
from ._remote import PREFIX, Turn, delayed, served, turn

__all__ = ["run"]

_LIMITS = ("raw 16 MB x 2", "raw 16 MB x 4", "raw 32 MB x 4", "raw whole x 2")
_PEERS = (
    "s3dlio + tarfile",
    "s3torchconnector + tarfile",
    "webdataset, http",
    "webdataset, aws pipe",
    "s3fs + webdataset",
    "s3fs + tarfile",
)
_MODULE = "benchmarks.remote_read"
_LATENCY = 0.02


def run(rounds: int = 3, megabytes: int = 2048, *, peers: bool = True) -> Question:
    """All contenders in turn, each in a process of its own, on a real S3 server on loopback."""
    question = Question(
        "Remote read",
        f"Dict samples of 22 KB from {megabytes} MB in shards of 256 MB on SeaweedFS on loopback, which shares the "
        "processor. The limit is the fastest of obstore's raw GETs of the same bytes (for the shuffle: of the same "
        "blocks in the same order). Medians of turns taken one after the other; processor seconds are the reader's "
        "own; with latency, each response begins 20 ms later, behind a proxy that costs processor time too.",
        ("line", "reader", "of the limit", "CPU s / GB", "MB above start", "downloaded / needed"),
    )
    names = [*_LIMITS, "raw blocks", "shoal", "shoal, one field", "shoal, block-shuffled", *(_PEERS if peers else ())]
    names = [name for name in names if _is_there(name)]
    with served(megabytes) as endpoint, tempfile.TemporaryDirectory() as folder:
        _measured(question, "loopback", names, endpoint, rounds)
        few = [name for name in names if name not in ("webdataset, aws pipe", "s3fs + webdataset", "shoal, one field")]
        with delayed(endpoint, _LATENCY) as slow:
            _measured(question, "20 ms more", few, slow, max(1, rounds // 2))
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
    found: dict[str, list[Turn]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(turn(_MODULE, name, endpoint))
            print(f"{name:28} {found[name][-1]}", file=sys.stderr)
    return found


def _measured(question: Question, line: str, names: list[str], endpoint: str, rounds: int) -> None:
    found = _turns(names, endpoint, rounds)
    stored = found[_LIMITS[0]][0].bytes
    limit = min(_seconds(found[name]) for name in _LIMITS)
    for name in names:
        own = _seconds(found["raw blocks"]) if "block" in name else limit
        needed = stored if "field" not in name else None
        question.rows.append((line, name, f"{own / _seconds(found[name]):.2f}", *_costs(found[name], stored, needed)))


def _seconds(turns: list[Turn]) -> float:
    return statistics.median(one.seconds for one in turns)


def _costs(turns: list[Turn], stored: int, needed: int | None) -> tuple[str, str, str]:
    processor = statistics.median(one.processor for one in turns) / stored * 1e9
    memory = max(one.memory for one in turns)
    came = turns[-1].downloaded
    share = "" if came is None else f"{came / (needed or stored):.3f}"
    return f"{processor:.2f}", f"{memory:.0f}", share


def _cache_rows(question: Question, endpoint: str, folder: str, rounds: int) -> None:
    """The second epoch from the cache, against the same files on the same disk."""
    os.environ["SHOAL_CACHE"], os.environ["SHOAL_BENCH_LOCAL"] = f"{folder}/cache", f"{folder}/local"
    store.download(PREFIX, f"{folder}/local")
    turn(_MODULE, "shoal, cached", endpoint)
    found = _turns(["shoal, local", "shoal, cached"], endpoint, rounds)
    local = _seconds(found["shoal, local"])
    for name, turns in found.items():
        costs = _costs(turns, turns[0].bytes, None)
        question.rows.append(("second epoch", name, f"{local / _seconds(turns):.2f} of local", *costs))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--turn"]:
        from ._remote_turns import main

        main(*sys.argv[2:4])
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--megabytes", type=int, default=2048)
        parser.add_argument("--no-peers", action="store_true")
        given = parser.parse_args()
        print(run(given.rounds, given.megabytes, peers=not given.no_peers).markdown())
