"""Writers that end at the same time in one folder: each finds what the other wrote."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.scale import times

from shoal.errors import StoreError, StoreTimeoutError
from shoal.shard import Manifest, ShardRecord, ShardWriter, load_manifest, merge_shards, update_manifest, verify_dataset
from shoal.shard import _manifest as turn_module
from shoal.shard._manifest import turn

PROGRAM = """
import sys
from shoal.shard import ShardWriter

name = sys.argv[1]
for line in sys.stdin:  # a folder: write shards there, say so, and end when told to
    root, overwrite = line.split()
    writer = ShardWriter(f"{root}/{name}-%06d.tar", max_samples=1, overwrite=overwrite == "yes")
    for number in range(2):
        writer.write({"__key__": f"{name}{number}", "txt": name})
    print("ready", flush=True)
    sys.stdin.readline()
    writer.close()
    print("done", flush=True)
"""
DYING = """
import sys
from shoal.shard._manifest import turn

with turn(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def children(*names):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for name in names
    ]
    try:
        yield started
    finally:
        for process in started:
            process.stdin.close()
            process.stdout.close()
            process.wait(60)


def tell(processes, text):
    for process in processes:
        process.stdin.write(f"{text}\n")
        process.stdin.flush()


def hear(processes):
    return [process.stdout.readline().strip() for process in processes]


@pytest.mark.parametrize("overwrite", ["no", "yes"])
def test_two_processes_that_close_at_once_are_both_in_the_manifest(tmp_path, overwrite):
    with children("a", "b") as both:
        for number in range(times(40, 400)):
            root = tmp_path / f"{number:03d}"
            if overwrite == "yes":  # what is replaced goes through staging
                for name in ("a", "b"):
                    with ShardWriter(f"{root}/{name}-%06d.tar", max_samples=1) as writer:
                        for key in range(3):
                            writer.write({"__key__": f"old{key}", "txt": "old"})
            tell(both, f"{root} {overwrite}")
            assert hear(both) == ["ready", "ready"]
            tell(both, "close")
            assert hear(both) == ["done", "done"]
            paths = [record.path for record in load_manifest(str(root)).shards]
            assert paths == ["a-000000.tar", "a-000001.tar", "b-000000.tar", "b-000001.tar"]
            assert sorted(path.name for path in root.glob("*.tar")) == paths
            left = {path.name for path in (root / ".shoal").rglob("*") if path.is_file()} - {"manifest.json"}
            assert left == {f"{path}.arrow" for path in paths}
    assert all(report.ok for report in verify_dataset(root))


def record(name: str) -> ShardRecord:
    return ShardRecord(f"{name}.tar", 1, 1536, name, name)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_no_change_of_a_thread_is_lost(tmp_path, place):
    root = str(tmp_path) if place == "local" else f"memory://{uuid.uuid4()}"
    together = threading.Barrier(4)

    def add(name):
        together.wait(60)
        for number in range(10):
            made = record(f"{name}-{number}")
            update_manifest(root, lambda before, made=made: merge_shards(before, "train", [made]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, "abcd"))
    assert len(load_manifest(root).shards) == 40


def test_what_a_change_raises_leaves_the_manifest_and_the_turn(tmp_path):
    root = str(tmp_path)
    first = update_manifest(root, lambda before: merge_shards(before, "train", [record("a")]))

    def fail(before: Manifest) -> Manifest:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        update_manifest(root, fail)
    assert load_manifest(root) == first
    assert update_manifest(root, lambda before: before) == first


def test_who_dies_in_the_middle_holds_nobody_up(tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-c", DYING, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with started as process:
        assert process.stdout.readline() == "in\n"
        process.kill()
        process.wait(60)
    update_manifest(str(tmp_path), lambda before: merge_shards(before, "train", [record("a")]))
    assert len(load_manifest(str(tmp_path)).shards) == 1


def test_nobody_waits_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(turn_module, "_LONGEST_WAIT", 0.02)
    with turn(str(tmp_path)), pytest.raises(StoreTimeoutError, match="does not come to an end"):
        update_manifest(str(tmp_path), lambda before: before)
    assert update_manifest(str(tmp_path), lambda before: before) == Manifest({})


def test_where_no_folder_can_be_made_the_store_says_so(tmp_path):
    (tmp_path / ".shoal").write_text("a file")
    with pytest.raises(StoreError, match=r"\.shoal"):
        update_manifest(str(tmp_path), lambda before: before)
