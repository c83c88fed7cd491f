"""How much memory does streaming a 2 GB shard take?"""

from __future__ import annotations

import os
import subprocess
import sys

from ._data import large_tar
from ._measure import Question

__all__ = ["run"]

_PROGRAM = """
import sys, shoal
from shoal.shard import ReaderFeed, SampleStream
from shoal.store import store_for
def resident():  # in MB; pages of the index's memory map count too
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
path, way = sys.argv[1:]
stream = lambda: SampleStream(ReaderFeed(store_for(path).open(path)), path)
samples = iter(shoal.Dataset(path, decode=False) if way == "indexed" else stream())
before = peak = resident()
for count, _ in enumerate(samples, 1):
    if count % 100 == 0:
        peak = max(peak, resident())
print(count, peak - before)
"""


def run(rounds: int = 1) -> Question:
    """Stream a large shard in a process of its own and read its peak memory."""
    path = large_tar()
    question = Question(
        "Peak memory",
        f"Resident memory above the start, over a shard of {os.path.getsize(path) / 1e9:.1f} GB read from end to end.",
        ("way", "samples", "MB above start"),
    )
    for way in ("stream", "indexed"):
        for _ in range(rounds):
            out = subprocess.run(
                [sys.executable, "-c", _PROGRAM, path, way], capture_output=True, text=True, check=True
            )
            count, peak = out.stdout.split()
        question.rows.append((way, count, f"{float(peak):.0f}"))
    return question


if __name__ == "__main__":
    print(run().markdown())
