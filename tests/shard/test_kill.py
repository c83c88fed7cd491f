"""kill -9 at any moment leaves the old dataset or the new one, and a rerun finishes the job.

The writes run in children that die: at each step of the store in turn (before it, half-way through it and after it),
of the new format at each file that is opened, renamed or removed, and by SIGKILL at arbitrary moments. This file is
also the program that those children run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys

import pytest
from tests.shard import children, written

from shoal.errors import ManifestError, ObjectExistsError, ObjectNotFoundError
from shoal.shard import ShardSource, ShardWriter, _writer, locate_shards
from shoal.shard._writing import unfinished_writes
from shoal.store import LocalStore, register_store

pytestmark = pytest.mark.usefixtures("commits")
SAMPLES = 7
PER_SHARD = 2
DEATHS = [("manifest", "before"), ("manifest", "half"), ("manifest", "after"), ("segments", "step")]
HALF = [("manifest", "half"), ("segments", "step")]
AFTER = [("manifest", "after"), ("segments", "step")]


def rows(start=0, count=SAMPLES):
    return [{"__key__": f"k{n:03d}", "bin": bytes([n]) * 700, "json": {"n": n}} for n in range(start, start + count)]


OLD, NEW = rows(100, 9), rows(0)


def write(root, samples, **options):
    with ShardWriter(f"{root}/s-%06d.tar", max_samples=PER_SHARD, metadata={"m": 1}, **options) as writer:
        for sample in samples:
            writer.write(sample)


# -------------------------------------------------------------------------------------------------- the child that dies


class DyingStore(LocalStore):
    """The local disk under ``dying://``: the process ends at the n-th thing done to it."""

    def __init__(self, last, when):
        self.steps, self.last, self.when = 0, last, when

    def step(self, whole, half=lambda: None):
        """Do one thing, or die before it, after its first half or after it."""
        self.steps += 1
        if self.steps < self.last:
            return whole()
        if self.when == "half":
            half()
        if self.when == "after":
            whole()
        os._exit(9)

    def create(self, url):
        return DyingWriter(self, super().create(path_of(url)))

    def write_all(self, url, data):
        writer = super().create(path_of(url))
        self.step(lambda: LocalStore.write_all(self, path_of(url), data), lambda: writer.write(data[: len(data) // 2]))
        return self.info(url)

    def append(self, url, data):
        def half():
            with open(path_of(url), "ab") as file:
                file.write(data[: len(data) // 2])

        self.step(lambda: LocalStore.append(self, path_of(url), data), half)

    def delete(self, url):
        self.step(lambda: LocalStore.delete(self, path_of(url)))

    def move(self, url, target):
        if os.path.exists(path_of(url)):
            self.step(lambda: LocalStore.move(self, path_of(url), path_of(target)))
        else:
            super().move(path_of(url), path_of(target))

    def info(self, url):
        return super().info(path_of(url))

    def open(self, url):
        return super().open(path_of(url))

    def list(self, url):
        return (dataclasses.replace(info, url=f"dying://{info.url}") for info in super().list(path_of(url)))

    def read_all(self, url):
        return super().read_all(path_of(url))

    def is_folder(self, url):
        return super().is_folder(path_of(url))


class DyingWriter:
    def __init__(self, store, inner):
        self.store, self.inner = store, inner

    def write(self, data):
        self.store.step(lambda: self.inner.write(data), lambda: self.inner.write(data[: len(data) // 2]))

    def commit(self, *, durable=False):
        self.store.step(lambda: self.inner.commit(durable=durable))

    def abort(self):
        self.inner.abort()


def path_of(url):
    return url.removeprefix("dying://")


def in_child(action):
    """Run ``action`` in a fork and say how it ended."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - the parent must see it
            print("unexpected:", repr(error), file=sys.stderr, flush=True)
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at_each_step(base, before, when, **options):
    """Write into ``base/0``, ``base/1``, ... dying one step later each time, until nothing is left to die at."""
    for number in range(1000):
        root = os.path.join(base, str(number))
        shutil.copytree(before, root)

        def action(root=root, number=number):
            register_store("dying", DyingStore(number + 1, when))
            write(f"dying://{root}", NEW, **options)

        status = in_child(action)
        if status != 9:
            return status, number
    return None


def die_at_any_moment(base, before, count, **options):
    """Write into ``base/n`` and be killed from outside after a while."""
    for number in range(count):
        root = os.path.join(base, str(number))
        shutil.copytree(before, root)
        get, put = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(get)
            write(root, (os.write(put, b".") and row for row in NEW), **options)
            os._exit(0)
        os.close(put)
        wait_for(get, random.Random(number).randrange(len(NEW) + 1))
        spin = random.Random(-number).randrange(40_000)
        while spin:
            spin -= 1
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(get)


def wait_for(pipe, count):
    seen = 0
    while seen < count and (part := os.read(pipe, 1)):
        seen += len(part)


# ------------------------------------------------------------------------------------------------------- what is left


def read(root):
    located = locate_shards(str(root))
    source = ShardSource(located.shards if located.table is None else located.table)
    with contextlib.closing(source):
        found = [{**row, "json": json.loads(row["json"])} for run in source.stream() for row in run]
    return [{name: value for name, value in row.items() if name != "__url__"} for row in found]


def what_is_there(root):
    """The samples of the dataset, or None where there is none."""
    try:
        return read(root)
    except (ManifestError, ObjectNotFoundError):
        return None


def contents(root):
    """Everything but what a killed process cannot take away: its unfinished temporary files.

    The folder of a writer without its head is such a rest, which the next commit removes.
    """
    found = written.contents(root)
    writers = re.compile(r"(\.shoal/writing/[^/]+)/")
    rests = {
        name for name in found if (match := writers.match(name)) is not None and f"{match[1]}/head.json" not in found
    }
    return {name: data for name, data in found.items() if name not in rests and not name.endswith(".partial")}


def marks(root):
    """What changes when a shard is written again, for the shards that are finished."""
    journals = list((root / ".shoal").glob("journal-*"))
    lines = [line for path in journals for line in path.read_bytes().split(b"\n")[1:-1]]
    names = [json.loads(line)["path"] for line in lines]
    names += [record.path for write in unfinished_writes(str(root)) for record in write.shards]
    found = {}
    for name in names:
        for folder in (*root.glob(".shoal/staging"), *root.glob(".shoal/writing/*/staging"), root):
            if (folder / name).exists():
                status = (folder / name).stat()
                found[name] = (status.st_ino, status.st_mtime_ns)
                break
    return found


def run_child(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "unexpected" not in done.stderr, done.stderr


@pytest.fixture
def whole(shm_path, commits):
    """What an uninterrupted run makes of an empty folder."""
    write(shm_path / "whole", NEW)
    return contents(shm_path / "whole")


def check_fresh(root, whole):
    found = what_is_there(root)
    assert found in (None, NEW)
    finished = marks(root)
    try:
        write(root, NEW, resume=True)
    except ObjectExistsError:
        assert found == NEW  # it had been done
    assert {name: mark for name, mark in files_marks(root).items() if name in finished} == finished
    assert contents(root) == whole
    assert read(root) == NEW
    return found is not None


def check_overwritten(root, whole):
    finished = marks(root)
    found = what_is_there(root)  # rolls forward, as every reader does
    assert found in (OLD, NEW)
    assert what_is_there(root) == found
    write(root, NEW, resume=True, overwrite=True)
    if found == OLD:
        assert {name: mark for name, mark in files_marks(root).items() if name in finished} == finished
    assert contents(root) == whole
    assert read(root) == NEW
    return found == NEW


def files_marks(root):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in root.glob("*.tar")}


@pytest.mark.parametrize("commits, when", DEATHS, indirect=["commits"])
def test_a_fresh_write_that_dies_at_any_step_is_finished_by_a_rerun(shm_path, whole, commits, when):
    (shm_path / "empty").mkdir()
    run_child("steps", commits, shm_path / "runs", shm_path / "empty", when, "{}")
    seen = [check_fresh(root, whole) for root in ordered(shm_path / "runs")]
    assert len(seen) > 5
    assert False in seen
    assert seen[-1]


@pytest.mark.parametrize("commits, when", DEATHS, indirect=["commits"])
def test_an_overwrite_that_dies_at_any_step_leaves_the_old_or_the_new(shm_path, whole, commits, when):
    write(shm_path / "old", OLD)
    run_child("steps", commits, shm_path / "runs", shm_path / "old", when, json.dumps({"overwrite": True}))
    seen = [check_overwritten(root, whole) for root in ordered(shm_path / "runs")]
    assert len(seen) > 10
    assert seen == sorted(seen)  # first the old one, from some step on the new one, and never anything else
    assert {False, True} == set(seen)


@pytest.mark.parametrize("commits, when", HALF, indirect=["commits"])
def test_so_does_one_over_a_dataset_that_has_no_manifest(shm_path, whole, commits, when):
    write(shm_path / "old", OLD)
    shutil.rmtree(shm_path / "old" / ".shoal")
    run_child("steps", commits, shm_path / "runs", shm_path / "old", when, json.dumps({"overwrite": True}))
    seen = [check_overwritten(root, whole) for root in ordered(shm_path / "runs")]
    assert seen == sorted(seen)
    assert {False, True} == set(seen)


@pytest.mark.parametrize("commits, when", HALF, indirect=["commits"])
def test_a_rerun_that_dies_too_is_finished_by_the_next(shm_path, whole, commits, when):
    write(shm_path / "old", OLD)
    run_child("steps", commits, shm_path / "first", shm_path / "old", when, json.dumps({"overwrite": True}))
    # The last one that was not committed: tars that are to be replaced are known by what changes when they are copied.
    half_done = next(root for root in reversed(ordered(shm_path / "first")) if what_is_there(root) == OLD)
    run_child("steps", commits, shm_path / "runs", half_done, when, json.dumps({"overwrite": True, "resume": True}))
    for root in ordered(shm_path / "runs"):
        check_overwritten(root, whole)


@pytest.mark.parametrize("commits, when", AFTER, indirect=["commits"])
def test_starting_over_after_any_death_gives_the_new_dataset_and_no_rest_of_the_old(shm_path, commits, when):
    (shm_path / "empty").mkdir()
    run_child("steps", commits, shm_path / "runs", shm_path / "empty", when, "{}")
    write(shm_path / "other", OLD[:3])
    for root in ordered(shm_path / "runs"):
        write(root, OLD[:3], overwrite=True)
        assert contents(root) == contents(shm_path / "other")


@pytest.mark.parametrize("overwrite", [False, True])
def test_sigkill_at_any_moment(shm_path, whole, commits, overwrite):
    (shm_path / "before").mkdir()
    if overwrite:
        write(shm_path / "before", OLD)
    run_child("moments", commits, shm_path / "runs", shm_path / "before", 25, json.dumps({"overwrite": overwrite}))
    runs = ordered(shm_path / "runs")
    assert len(runs) == 25
    for root in runs:
        (check_overwritten if overwrite else check_fresh)(root, whole)


def ordered(base):
    return sorted(base.iterdir(), key=lambda path: int(path.name))


def main(kind, commits, base, before, detail, options):
    _writer._COMMITS = {"manifest": _writer.JournaledWrite, "segments": _writer.DatasetWrite}[commits]
    write("memory://warm", NEW)  # what is loaded when it is first used is loaded once, not in each child
    if detail == "step":
        children.die_at_each_step(base, before, lambda root: write(root, NEW, **json.loads(options)), every=9)
        return
    os.makedirs(base)
    if kind == "steps":
        status, _ = die_at_each_step(base, before, detail, **json.loads(options))
        sys.exit(status)
    die_at_any_moment(base, before, int(detail), **json.loads(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
