"""Builds on Ray: a cluster of two nodes on this machine, in a process of its own and away from every network.

Ray's servers listen on all interfaces, so the program runs where there is none but the loopback.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.build.built import contents, make_images, tree

import shoal

ROOT = Path(__file__).parents[2]
OPTIONS = {"max_samples": 5, "shuffle": True, "splits": {"train": 0.8, "test": 0.2}}

PROGRAM = """
import logging, os, signal, sys
os.environ.update(RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_usage_stats_enabled="0")
import ray
from ray.cluster_utils import Cluster
import shoal
from shoal.build import RayEngine
from shoal.errors import ErrorBudgetExceeded, WorkerError
from tests.build.test_ray import OPTIONS

source, folder = sys.argv[1:]
facts = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**facts, "include_dashboard": False})
cluster.add_node(**facts)
ray.init(
    address=cluster.address, _node_ip_address="127.0.0.1", logging_level=logging.ERROR, log_to_driver=False
)
assert len([node for node in ray.nodes() if node["Alive"]]) == 2

# Two nodes, the same bytes as here.
seen = []
report = shoal.build_shards(source, f"{folder}/ray", engine="ray", progress=seen.append, **OPTIONS)
assert report.samples == 40 and seen[-1].samples == 40 and seen[-1].shards == len(report.shards)

# So does a stream, whose function runs on Ray and whose samples come back in order.
numbers = ({"cls": n} for n in range(500))
shoal.build_shards(numbers, f"{folder}/stream", lambda sample: sample, engine=RayEngine(), max_samples=90)
assert [s["cls"] for s in shoal.Dataset(f"{folder}/stream")] == list(range(500))

# A worker killed in mid-build: the build ends, a rerun does the rest.
def killed_once(sample):
    mark = f"{folder}/killed"
    if sample["__key__"].endswith("0017") and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return sample

once = RayEngine(options={"max_retries": 0})
try:
    shoal.build_shards(source, f"{folder}/killed-build", killed_once, engine=once, **OPTIONS)
except WorkerError as error:
    assert ".tar" in str(error)
else:
    raise AssertionError("the death of a worker went unnoticed")
done = {name: os.stat(f"{folder}/killed-build/{name}").st_ino for name in os.listdir(f"{folder}/killed-build")}
report = shoal.build_shards(source, f"{folder}/killed-build", killed_once, engine=once, **OPTIONS)
assert 0 < report.written < len(report.shards) + 1

# Ray itself begins a task again whose worker died.
os.remove(f"{folder}/killed")
report = shoal.build_shards(source, f"{folder}/retried", killed_once, engine="ray", **OPTIONS)
assert report.ok and os.path.exists(f"{folder}/killed")

# What a function raises is told as it is anywhere else.
def fails(sample):
    raise ValueError("no good")

try:
    shoal.build_shards(source, f"{folder}/fails", fails, engine="ray", **OPTIONS)
except ErrorBudgetExceeded as error:
    assert "no good" in str(error)
ray.shutdown()
cluster.shutdown()
print("done")
"""


def alone() -> list[str]:
    """What to put before a command so that it sees no network but the loopback."""
    for words in (["unshare", "-n"], ["unshare", "-rn"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0
        ):
            return [*words, "bash", "-c", 'ip link set lo up; exec "$@"', "bash"]
    return []


@pytest.fixture
def source(tmp_path):
    return make_images(tmp_path / "in")


def test_a_cluster_of_two_nodes_gives_the_same_bytes(tmp_path, source):
    done = subprocess.run(
        [*alone(), sys.executable, "-c", PROGRAM, str(source), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n")
    shoal.build_shards(source, tmp_path / "local", workers=1, **OPTIONS)
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")
    assert contents(tmp_path / "killed-build") == contents(tmp_path / "local")
    assert contents(tmp_path / "retried") == contents(tmp_path / "local")
