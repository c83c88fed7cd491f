"""Processes that insert at once, or are killed while they do: run as a program, so that forks are cheap and alone.

``python -m tests.local.crowd insert INDEX REPO NAMESPACE PROCESSES TURNS``, and ``kill INDEX REPO NAMESPACE ROUNDS
SEED``, print one JSON document.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import traceback

import shoal
from shoal.local import LocalIndex, Repo
from shoal.store import store_for


@shoal.packable
class Number:
    n: int
    text: str


def opened(location, folder, namespace):
    index = LocalIndex(location, namespace=namespace)
    return index, Repo(folder, index=index)


def forked(work):
    """A child that does the work and nothing of what its parent would do at its end."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - told, and the child ends here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# ------------------------------------------------------------------------------------------------------ all at once


def insert_at_once(location, folder, namespace, processes, turns):
    gate, opener = os.pipe()

    def work(number):
        os.close(opener)
        os.read(gate, 1)  # until the parent closes its end: all begin together
        index, repo = opened(location, folder, namespace)
        for turn in range(turns):
            repo.insert([Number(number, f"turn {turn}")], name=f"own/{number}-{turn}", tags=[f"p{number}"])
            repo.insert([Number(number, f"turn {turn}")], name="shared")
            repo.insert([Number(-1, "same for all")], name=f"same-{turn}")
        index.close()

    children = [forked(lambda number=number: work(number)) for number in range(processes)]
    os.close(opener)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    index, repo = opened(location, folder, namespace)
    garbage = repo.gc()
    facts = {
        "codes": codes,
        "names": [entry.name for entry in index.list_datasets()],
        "shared": [entry.version for entry in index.history("shared")],
        "shared_cids": len({entry.cid for entry in index.history("shared")}),
        "same": [len(index.history(f"same-{turn}")) for turn in range(turns)],
        "same_folders": len({index.get_dataset(f"same-{turn}").storage.root for turn in range(turns)}),
        "schemas": [record["$ref"] for record in index.list_schemas()],
        "garbage": garbage.removed,
        "problems": disagreements(index, repo, folder),
        "found": [len(index.search(tags=[f"p{number}"])) for number in range(processes)],
    }
    index.close()
    return facts


# ---------------------------------------------------------------------------------------------------------- killed


def kill_often(location, folder, namespace, rounds, seed):
    draw = random.Random(seed)
    index, repo = opened(location, folder, namespace)
    repo.insert([Number(0, "the first")], name="first")
    index.close()
    problems, unfinished = [], 0
    for turn in range(rounds):
        heard, said = os.pipe()
        child = forked(
            lambda turn=turn, said=said: insert_for_ever(location, folder, namespace, seed + turn, said, turn)
        )
        os.close(said)
        os.read(heard, 1)  # it is in the middle of an insert
        if turn:
            select.select([], [], [], draw.random() * 0.15)
        os.kill(child, signal.SIGKILL)
        os.close(heard)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            problems.append(f"round {turn}: the child ended by itself with {code}")
        index, repo = opened(location, folder, namespace)
        unfinished += len(repo.gc().removed)
        problems += [f"round {turn}: {problem}" for problem in disagreements(index, repo, folder)]
        index.close()
    index, repo = opened(location, folder, namespace)
    facts = {"problems": problems, "unfinished": unfinished, "entries": len(list(repo.entries()))}
    index.close()
    return facts


def insert_for_ever(location, folder, namespace, seed, said, turn):
    draw = random.Random(seed)
    index, repo = opened(location, folder, namespace)

    def samples():
        for number in range(draw.randrange(12, 30)):
            yield Number(draw.randrange(20), "x" * draw.randrange(3000))
            if number == 11:
                os.write(said, b".")
                if turn == 0:
                    signal.pause()  # the first is killed here for sure, with one shard whole and one begun

    while True:
        name = f"name-{draw.randrange(6)}"
        act = draw.random()
        if act < 0.8 or name not in index:
            repo.insert(samples(), name=name, max_samples=10)
        elif act < 0.9:
            index.delete(name)
        else:
            repo.gc()


def disagreements(index, repo, folder):
    """All in which index and store differ; none is what is promised."""
    found = [f"{check.url}: {check.problem}" for check in repo.verify() if not check.ok]
    entries = list(repo.entries())
    listed = {entry.reference for newest in index.list_datasets() for entry in index.history(newest.name)}
    found += [f"{reference} is not in the repository" for reference in listed - {entry.reference for entry in entries}]
    used = {entry.storage.root for entry in entries}
    objects = [info.url for info in store_for(folder).list(folder)]
    found += [f"{url} is of no entry" for url in objects if not any(url.startswith(f"{root}/") for root in used)]
    for entry in entries:
        samples = entry.open()
        if len(samples) != entry.samples or samples[0].n is None:
            found.append(f"{entry.reference} does not open")
    for newest in index.list_datasets():
        if newest.name not in [entry.name for entry in index.search(newest.name)]:
            found.append(f"{newest.name} is not found by its name")
    return found


def main(act, location, folder, namespace, *numbers):
    work = {"insert": insert_at_once, "kill": kill_often}[act]
    print(json.dumps(work(location, folder, namespace, *map(int, numbers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
