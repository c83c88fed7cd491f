"""kill -9 at any moment: a rerun finishes the build, with the same bytes, and writes no finished shard again.

The builds run in processes of their own. This file is also the program that they run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.build.built import make_images, tree
from tests.scale import times

import shoal
from shoal.build import LocalEngine

ROOT = Path(__file__).parents[2]
OPTIONS = {"max_samples": 3, "shuffle": True, "splits": {"train": 0.7, "test": 0.3}, "dedupe": True}


def build(source, out, **options):
    return shoal.build_shards(source, out, engine=LocalEngine(2, "fork"), **OPTIONS, **options)


def stream(source, out, **options):
    samples = (
        {"__key__": path.stem, "jpg": path.read_bytes()} for path in sorted(Path(source).rglob("*.jpg")) for _ in (0, 1)
    )
    kept = {name: value for name, value in OPTIONS.items() if name != "shuffle"}
    return shoal.build_shards(samples, out, engine=LocalEngine(2, "fork"), **kept, **options)


def children(source, before, base, kind, seeds):
    """Build into ``base/seed`` in a child for each seed, and kill it, with its workers or without, after a while."""
    run = {"build": build, "stream": stream}[kind]
    begin = time.monotonic()
    run(source, f"{base}/whole")
    whole = time.monotonic() - begin
    for seed in seeds:
        begun, ready = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.write(ready, b".")
            run(source, f"{base}/{seed}", **({"overwrite": True} if before == "old" else {}))
            os._exit(0)
        os.read(begun, 1)
        os.close(begun)
        os.close(ready)
        moment = random.Random(seed)
        until = time.monotonic() + moment.random() * 1.2 * whole
        while time.monotonic() < until:
            pass
        (os.killpg if moment.random() < 0.5 else os.kill)(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_children(*words):
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr


def finished(root):
    """What changes when a shard is written again, for the shards that the journal says are done."""
    lines = [
        line for path in sorted((root / ".shoal").glob("journal-*")) for line in path.read_bytes().split(b"\n")[1:-1]
    ]
    names = [record["path"] for record in map(json.loads, lines) if record["samples"]]
    places = {name: next(p for p in (root / ".shoal" / "staging" / name, root / name) if p.exists()) for name in names}
    return {name: (path.stat().st_ino, path.stat().st_mtime_ns) for name, path in places.items()}


def marks(root, names):
    return {name: ((root / name).stat().st_ino, (root / name).stat().st_mtime_ns) for name in names}


@pytest.fixture
def source(tmp_path):
    return make_images(tmp_path / "in", 80, 30_000)


@pytest.mark.parametrize("kind, before", [("build", "nothing"), ("build", "old"), ("stream", "nothing")])
def test_a_build_killed_at_any_moment_is_finished_by_a_rerun(tmp_path, source, kind, before):
    runs = tmp_path / "runs"
    seeds = range(times(5, 100) if (kind, before) == ("build", "nothing") else times(2, 40))
    if before == "old":
        for seed in seeds:
            shoal.build_shards([{"txt": "old"}], runs / str(seed), workers=1)
    run_children(kind, source, before, runs, json.dumps(list(seeds)))
    run = {"build": build, "stream": stream}[kind]
    interrupted = 0
    for seed in seeds:
        root = runs / str(seed)
        done = finished(root) if (root / ".shoal").exists() else {}
        interrupted += bool(done)
        over = {"overwrite": True} if before == "old" else {}
        if kind == "stream" and (root / ".shoal" / "manifest.json").exists() and not done:
            continue  # it had ended before it was killed
        run(source, root, **over)
        assert marks(root, done) == done
        assert tree(root) == tree(runs / "whole")
    assert interrupted or len(seeds) < 10


def main(kind, source, before, base, seeds):
    children(source, before, base, kind, json.loads(seeds))


if __name__ == "__main__":
    main(*sys.argv[1:])
