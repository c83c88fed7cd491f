"""How long until a run knows which samples come next, at the start and far into an epoch?"""

from __future__ import annotations

import subprocess
import sys

from ._data import FOLDER
from ._measure import Question

__all__ = ["run"]

# Each contender answers in a process of its own, so that its peak memory is its own. What is imported is not counted.
_MEASURE = """
import json, resource, statistics, sys, time
def peak():  # in MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
def report(plan, rounds):
    before, seconds = peak(), []
    for _ in range(rounds):
        start = time.process_time()
        plan()
        seconds.append(time.process_time() - start)
    print(seconds[0], statistics.median(seconds), peak() - before)
"""

_SHOAL = """
from shoal.order import BlockShuffle, GlobalShuffle, Split, State
count, kind = int(sys.argv[1]), sys.argv[2]
seen = count * 9 // 10
def order():
    return GlobalShuffle(count, 1) if kind == "global" else BlockShuffle(count, 1, 50, window=4, lanes=192)
saved = json.dumps(State(order().to_json(), 0, seen, end=count, global_batch=2048).to_dict())
def resume():
    state, now = State.from_dict(json.loads(saved)), order()
    state.check_fingerprint(now.to_json())
    plan = state.plan(count, batch_size=256, split=Split(3, 8))
    assert len(plan.at(0).samples(now)) == 256
report(resume, 21)
"""

# Streaming's own code, unchanged. Importing the whole package asks for every cloud's client; these modules need NumPy
# only, so they are imported without what stands in the packages' `__init__`.
_STREAMING = """
import types, numpy as np
for name in ("streaming", "streaming.base"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[2] + "/" + name.replace(".", "/")]
from streaming.base.partition import get_partitions
from streaming.base.shuffle import get_shuffle
count = int(sys.argv[1])
shards = np.full(count // 10_000, 10_000)
def resume():  # as batching/random.py does it, for one node of eight ranks, from nine tenths of the epoch on
    ids = get_partitions("relaxed", count, 1, 1, 8, 1, 256, count * 9 // 10 // 2048 * 2048, 1)
    shuffle = get_shuffle("py1e", shards, 1, 1, 0, 4_000_000)
    ids = np.where(ids != -1, shuffle[ids], -1)
    assert ids.shape[-1] == 256
report(resume, 1)
"""


def run(rounds: int = 1) -> Question:
    """Resume at nine tenths of an epoch: rank 3 of 8, the numbers of its next batch of 256."""
    question = Question(
        "Planning and resuming",
        "From a saved state to the sample numbers of one rank's next batch of 256, at nine tenths of a shuffled epoch, "
        "8 ranks: the first time in a fresh process, and the median of 21, in seconds of the processor (one thread, so "
        "that other work on the machine does not count). MosaicML Streaming computes the whole epoch for all ranks of "
        "a node (its `py1e` shuffle and `relaxed` partition, its own code), so it does so once.",
        ("library", "samples", "first, ms", "median, ms", "MB above start"),
    )
    for title, count, program, argument in (
        ("shoal, global", 10**12, _SHOAL, "global"),
        ("shoal, blocks", 10**12, _SHOAL, "block"),
        ("shoal, blocks", 10**7, _SHOAL, "block"),
        ("Streaming", 10**7, _STREAMING, _streaming()),
        ("Streaming", 10**8, _STREAMING, _streaming()),
    ):
        best = min(_answer(program, count, argument) for _ in range(rounds))
        question.rows.append((title, f"{count:.0e}", *(f"{number:.1f}" for number in best)))
    return question


def _answer(program: str, count: int, argument: str) -> tuple[float, float, float]:
    command = [sys.executable, "-W", "ignore", "-c", _MEASURE + program, str(count), argument]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, median, memory = map(float, out.split())
    return first * 1e3, median * 1e3, memory


def _streaming() -> str:
    """Streaming without its dependencies: it asks for an older NumPy than is here, and its order needs no other."""
    folder = FOLDER / "streaming"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), "mosaicml-streaming==0.13.0"], check=True)
    return str(folder)


if __name__ == "__main__":
    print(run().markdown())
