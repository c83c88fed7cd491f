"""`cache_bytes` holds for all that the cache folder keeps: shards of any size, indexes, unpacked files, any process."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tests.store.conftest import _own_options, http, s3, s3_endpoint  # noqa: F401 - fixtures
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY

import shoal
from shoal.store import ObjectInfo, cached_reader, configure, put

MIB = 1 << 20
SHARDS = 24


def on_disk():
    """Bytes on disk of all files in the cache folder."""
    total = 0
    for folder, _, names in os.walk(os.environ["SHOAL_CACHE"]):
        for name in names:
            try:
                stat = os.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            total += stat.st_blocks * 512
    return total


def fill(folder, size=MIB, shards=SHARDS):
    """Shards of two samples, each of about this size."""
    with shoal.ShardWriter(f"{folder}/train-%06d.tar", max_samples=2) as writer:
        for number in range(2 * shards):
            writer.write({"__key__": f"{number:04d}", "bin": os.urandom(size // 2 - 2048)})


def read(dataset, limit):
    """All samples, with a look at the folder after each."""
    most, keys = 0, []
    for sample in dataset:
        keys.append(sample["__key__"])
        most = max(most, on_disk())
    assert keys == [f"{number:04d}" for number in range(len(keys))]
    assert 0 < most <= limit
    return keys


@pytest.mark.parametrize("size", [100_000, MIB, 3 * MIB])
@pytest.mark.parametrize("mode", ["blocks", "shards"])
def test_shards_of_any_size(s3, mode, size):  # noqa: F811 - a fixture
    fill(s3, size, shards=SHARDS * MIB // size // (1 if size >= MIB else 4))
    limit = 8 * MIB
    configure(f"s3://{BUCKET}", cache_bytes=limit)
    for _ in range(2):
        dataset = shoal.Dataset(f"{s3}/", cache=mode)
        read(dataset, limit)
        with shoal.DataLoader(shoal.Dataset(f"{s3}/", cache=mode), batch_size=None, shuffle=True) as loader:
            assert sum(1 for _ in loader) == len(dataset)
        assert on_disk() <= limit


def test_what_fits_stays(s3):  # noqa: F811 - a fixture
    fill(s3)
    configure(f"s3://{BUCKET}", cache_bytes=32 * MIB)
    read(shoal.Dataset(f"{s3}/", cache="shards"), 32 * MIB)
    assert on_disk() > SHARDS * MIB * 0.9


def test_over_http(http, tmp_path):  # noqa: F811 - a fixture
    fill(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            http.objects[f"/{path.relative_to(tmp_path)}"] = path.read_bytes()
    configure(http.url, cache_bytes=6 * MIB)
    read(shoal.Dataset(http.url, cache="shards"), 6 * MIB)


def test_an_object_larger_than_the_cache_is_read_without_it(s3):  # noqa: F811 - a fixture
    fill(s3, 4 * MIB, shards=3)
    configure(f"s3://{BUCKET}", cache_bytes=3 * MIB)
    for mode in ("blocks", "shards"):
        assert [sample["__key__"] for sample in shoal.Dataset(f"{s3}/", cache=mode)] == [f"{n:04d}" for n in range(6)]
    assert on_disk() < MIB


WORKER = """
import json, os, sys
import shoal
from shoal.store import configure
settings = json.loads(sys.argv[1])
configure(settings["bucket"], endpoint=settings["endpoint"], region="us-east-1", cache_bytes=settings["limit"],
          credential_provider=lambda: {"access_key_id": settings["id"], "secret_access_key": settings["secret"]})
print(sum(len(sample["bin"]) for sample in shoal.Dataset(settings["path"], cache="shards")))
"""


def start(path, endpoint, limit):
    settings = {"path": path, "endpoint": endpoint, "limit": limit, "bucket": f"s3://{BUCKET}"}
    arguments = json.dumps({**settings, "id": ACCESS_KEY, "secret": SECRET_KEY})
    return subprocess.Popen([sys.executable, "-c", WORKER, arguments], stdout=subprocess.PIPE, text=True)


def is_running(worker):
    try:
        worker.wait(timeout=0.02)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_two_processes_at_once(s3, s3_endpoint):  # noqa: F811 - fixtures
    fill(f"{s3}/a")
    fill(f"{s3}/b")
    limit, most = 10 * MIB, 0
    workers = [start(f"{s3}/{name}", s3_endpoint, limit) for name in "ab"]
    while any(is_running(worker) for worker in workers):
        most = max(most, on_disk())
    assert [int(worker.communicate()[0]) for worker in workers] == [2 * SHARDS * (MIB // 2 - 2048)] * 2
    assert 4 * MIB < most <= limit
    assert on_disk() <= limit


def test_many_processes_that_read_little_each(s3, s3_endpoint):  # noqa: F811 - fixtures
    limit = 3 * MIB
    for number in range(6):
        fill(f"{s3}/{number}", size=800_000, shards=1)
        worker = start(f"{s3}/{number}", s3_endpoint, limit)
        assert int(worker.communicate(timeout=120)[0]) == 2 * (400_000 - 2048)
        assert on_disk() <= limit


class TestDerivedFiles:
    @pytest.fixture
    def folder(self, request):
        folder = f"memory://{request.node.name}"
        configure(folder, cache_bytes=6 * MIB)
        return folder

    def test_unpacked_text(self, folder):
        line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
        for number in range(12):
            put(f"{folder}/{number:02d}.jsonl.gz", gzip.compress(line * 1000))
        dataset = shoal.Dataset(folder)
        for at in (0, 11_999, 5000, 5001, 11_000, 3):
            assert dataset[at]["text"] == "x" * 1000
        for number in range(12):
            assert len(shoal.Dataset(f"{folder}/{number:02d}.jsonl.gz")[500]["text"]) == 1000
            assert on_disk() <= 6 * MIB

    def test_unpacked_tars_and_indexes(self, folder, tmp_path):
        fill(tmp_path, shards=12)
        for path in sorted(tmp_path.glob("*.tar")):
            put(f"{folder}/{path.name}.gz", gzip.compress(path.read_bytes(), 1))
        for _ in range(2):
            dataset = shoal.Dataset(f"{folder}/*.tar.gz")
            for at in range(0, 24, 5):
                assert dataset[at]["__key__"] == f"{at:04d}"
                assert on_disk() <= 6 * MIB
            assert dataset.keys() == [f"{number:04d}" for number in range(24)]
            assert on_disk() <= 6 * MIB

    def test_a_file_that_unpacks_to_more_than_the_cache(self, folder):
        line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
        put(f"{folder}/a.jsonl.gz", gzip.compress(line * 8000))
        dataset = shoal.Dataset(f"{folder}/a.jsonl.gz")
        assert len(dataset[7999]["text"]) == len(dataset[0]["text"]) == 1000
        assert on_disk() <= MIB


class SlowObject:
    """A remote object whose bytes arrive in two pieces; between them it waits until all of its readers are there."""

    def __init__(self, number, size, together):
        self.info = ObjectInfo(f"s3://{BUCKET}/{number}", size, "1")
        self._together = together

    def stream(self, start, stop):
        half = (start + stop) // 2
        yield b"x" * (half - start)
        self._together.wait(timeout=60)
        yield b"x" * (stop - half)

    def read(self, start, stop):
        return b"x" * (stop - start)

    def read_many(self, starts, stops):
        return [self.read(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def close(self):
        pass


@pytest.mark.parametrize("limit", [3 * MIB, 8 * MIB])
def test_threads_that_write_at_once(limit):
    """Each of many threads is in the middle of a chunk when the size is measured."""
    configure(f"s3://{BUCKET}", cache_bytes=limit)
    readers, sizes = 16, []
    together = threading.Barrier(readers, action=lambda: sizes.append(on_disk()))

    def read_all(number):
        with closing(cached_reader(SlowObject(number, MIB, together), "blocks")) as reader:
            return reader.read(0, MIB)

    with ThreadPoolExecutor(readers) as threads:
        for turn in range(3):
            numbers = range(turn * readers, (turn + 1) * readers)
            assert all(data == b"x" * MIB for data in threads.map(read_all, numbers))
            assert on_disk() <= limit
    assert len(sizes) == 3
    assert 0 < max(sizes) <= limit
