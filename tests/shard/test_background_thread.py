"""Reading and writing on a background thread: nothing is lost or out of order, and no thread stays."""

from __future__ import annotations

import gc
import io
import pathlib
import subprocess
import sys
import tarfile
import threading

import pytest

from shoal.errors import StoreError
from shoal.shard import ReaderFeed, scan
from shoal.shard._background_thread import BackgroundThread, WriteBehindBuffer
from shoal.store import ObjectInfo, store_for

MEGABYTE = 1 << 20


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("shoal-beside")]


class Sink:
    """Takes blocks, and fails once, at one of them."""

    def __init__(self, bad: int | None = None) -> None:
        self.blocks: list[bytes] = []
        self.bad = bad
        self.end = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(self.blocks) == self.bad:
            self.bad = None
            raise StoreError("the disk is full")
        self.blocks.append(bytes(data))

    def commit(self, *, durable: bool = False) -> ObjectInfo:
        self.end = "committed"
        return ObjectInfo("memory://x", sum(map(len, self.blocks)), "1")

    def abort(self) -> None:
        self.end = "aborted"


def test_a_call_is_under_way_when_start_returns() -> None:
    began, go = threading.Event(), threading.Event()
    beside = BackgroundThread()

    def call() -> str:
        began.set()
        go.wait(10)
        return "done"

    started = beside.start(call)
    assert not started.future.done()
    go.set()
    assert started.future.result(10) == "done"
    assert began.is_set()
    beside.close()
    assert not ours()


def test_no_thread_stays_when_it_is_forgotten() -> None:
    beside = BackgroundThread()
    beside.start(int).future.result(10)
    threads = ours()
    assert threads
    del beside
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_blocks_are_written_in_order() -> None:
    sink = Sink()
    writer = WriteBehindBuffer(sink)
    blocks = [bytes([number]) * (MEGABYTE if number % 3 else 10) for number in range(12)]
    for block in blocks:
        writer.write(block)
    writer.commit()
    assert sink.blocks == blocks
    assert sink.end == "committed"
    assert not ours()


@pytest.mark.parametrize("last", ["write", "write a block", "commit"])
def test_what_went_wrong_is_raised_by_the_next_call(last: str) -> None:
    """And nothing is written behind it."""
    sink = Sink(bad=1)
    writer = WriteBehindBuffer(sink)
    writer.write(bytes(MEGABYTE))
    writer.write(bytes(MEGABYTE))
    with pytest.raises(StoreError, match="disk is full"):
        writer.commit() if last == "commit" else writer.write(b"more" if last == "write" else bytes(MEGABYTE))
    writer.abort()
    assert sink.end == "aborted"
    assert len(sink.blocks) == 1
    assert not ours()


FULL_DISK = """
import resource, sys
import shoal
resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))
try:
    with shoal.ShardWriter(sys.argv[1]) as writer:
        for number in range(200):
            writer.write({"__key__": f"{number}", "bin": bytes(100_000)})
except shoal.errors.StoreError as error:
    print(error)
"""


def test_a_disk_that_takes_no_more_leaves_no_shard(tmp_path: pathlib.Path) -> None:
    """The system's own refusal, met by a block that was on its way."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "a-%06d.tar")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "too large" in found.stdout
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def large_tar(path: pathlib.Path, members: int = 40, size: int = 300_000) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(members):
            info = tarfile.TarInfo(f"{number:04d}.bin")
            info.size = size
            tar.addfile(info, io.BytesIO(bytes([number]) * size))


def test_a_scan_that_is_left_early_leaves_no_thread(tmp_path: pathlib.Path) -> None:
    large_tar(tmp_path / "a.tar")
    url = str(tmp_path / "a.tar")
    reader = store_for(url).open(url)
    walk = scan(ReaderFeed(reader))
    next(walk)
    assert not ours()  # one chunk may be all that is wanted
    next(walk)
    assert ours()  # which reads what comes next
    walk.close()  # type: ignore[attr-defined]
    assert not ours()
    reader.close()


def test_what_is_expected_is_what_is_read(tmp_path: pathlib.Path) -> None:
    large_tar(tmp_path / "a.tar")
    url = str(tmp_path / "a.tar")
    data = (tmp_path / "a.tar").read_bytes()
    feed = ReaderFeed(store_for(url).open(url))
    feed.expect(512, 3 * MEGABYTE)
    assert feed.at(512, 3 * MEGABYTE) == data[512 : 512 + 3 * MEGABYTE]
    feed.expect(4 * MEGABYTE, MEGABYTE)
    assert feed.at(5 * MEGABYTE, 100) == data[5 * MEGABYTE : 5 * MEGABYTE + 100]  # another one after all
    feed.settle()
    assert not ours()


def test_a_forked_child_goes_on_reading_and_leaves_the_shard_alone(tmp_path: pathlib.Path) -> None:
    large_tar(tmp_path / "a.tar")
    paths = [str(tmp_path / "a.tar"), str(tmp_path / "b" / "b-%06d.tar")]
    command = [sys.executable, "-W", "ignore", "-c", FORKED, *paths]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.splitlines() == [
        "child: 40 members, a shard is finished by the process that began it; open a writer in each process",
        "parent: 40 members, 100 samples",
    ]


FORKED = """
import os, sys
import shoal
from shoal.shard import ReaderFeed, scan
from shoal.store import store_for

walk = scan(ReaderFeed(store_for(sys.argv[1]).open(sys.argv[1])))
before = sum(len(next(walk).names) for _ in range(2))
writer = shoal.ShardWriter(sys.argv[2])
for number in range(50):
    writer.write({"__key__": f"{number:04d}", "bin": bytes(100_000)})
child = os.fork()
members = before + sum(len(chunk.names) for chunk in walk)
try:
    for number in range(50, 100):
        writer.write({"__key__": f"{number:04d}", "bin": bytes(100_000)})
    writer.close()
    told = f"{len(shoal.Dataset(writer.urls))} samples"
except shoal.errors.WriteError as error:
    told = str(error)
if child:
    os.waitpid(child, 0)
print(f"{'parent' if child else 'child'}: {members} members, {told}", flush=True)
os._exit(0)
"""
