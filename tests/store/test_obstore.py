"""What only an object store has: parts, versions, conditional writes; and that memory stays bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY

import shoal
from shoal.errors import ObjectChangedError, ObjectNotFoundError, StoreError
from shoal.store import configure, download, exists, get, put, statistics, store_for
from shoal.store import list as list_objects
from shoal.store._operations import open_sized


def left_uploads(s3_client):
    return [upload["Key"] for upload in s3_client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


def test_an_abort_leaves_no_parts(s3, s3_client):
    writer = store_for(s3).create(f"{s3}/a")
    for _ in range(30):
        writer.write(bytes(1_000_000))
    assert left_uploads(s3_client) == [f"{s3}/a".removeprefix(f"s3://{BUCKET}/")]
    assert not exists(f"{s3}/a")
    writer.abort()
    writer.abort()
    assert left_uploads(s3_client) == []
    with pytest.raises(StoreError, match="finished"):
        writer.write(b"more")
    with pytest.raises(StoreError, match="finished"):
        writer.commit()


@pytest.mark.parametrize("size", [0, 1, 8 << 20, (8 << 20) + 1, 16 << 20, 40_000_001])
def test_objects_of_any_number_of_parts_arrive_whole(s3, size):
    data = np.random.default_rng(size).bytes(size)
    writer = store_for(s3).create(f"{s3}/a")
    for start in range(0, size, 3_000_001):
        writer.write(data[start : start + 3_000_001])
    assert writer.commit().size == size
    same = get(f"{s3}/a") == data
    assert same


def test_one_write_of_many_parts_is_cut(s3):
    data = np.random.default_rng(0).bytes(50_000_000)
    writer = store_for(s3).create(f"{s3}/a")
    writer.write(data)
    writer.commit()
    same = get(f"{s3}/a") == data
    assert same


def test_a_large_object_is_read_in_parts_at_once(proxy, broken):
    data = np.random.default_rng(0).bytes(40_000_000)
    put(f"{broken}/a", data)
    proxy.requests.clear()
    configure(broken, part_size=5 << 20)
    same = get(f"{broken}/a") == data
    assert same
    assert len(proxy.requests) == 8
    assert proxy.most_at_once > 1


def test_bytes_read_over_bytes_needed(s3):
    """Members of a tar read in order cost their headers and no more."""
    put(f"{s3}/a", bytes(10_000_000))
    reader = store_for(s3).open(f"{s3}/a")
    before = statistics()
    starts = list(range(512, 9_000_000, 21_504))
    reader.read_many(starts, [start + 20_480 for start in starts])
    done = statistics() - before
    assert done.requests == {"GET": 1}
    assert done.bytes_read <= 1.06 * 20_480 * len(starts)


def test_a_list_of_many_objects_is_paged_and_sorted(s3):
    from shoal.store import put_many

    urls = [f"{s3}/{number:05d}/x" for number in range(1_100)]
    put_many([(url, b"x") for url in urls])
    before = statistics()
    assert [info.url for info in list_objects(s3)] == urls
    assert (statistics() - before).requests == {"LIST": 2}


def test_the_marks_of_folders_are_no_objects(s3, s3_client, tmp_path):
    """Consoles make them: an empty object whose name ends with a slash."""
    path = s3.removeprefix(f"s3://{BUCKET}/")
    for name, data in (("dir/", b""), ("dir/a", b"1"), ("alone/", b""), ("empty", b"")):
        s3_client.put_object(Bucket=BUCKET, Key=f"{path}/{name}", Body=data)
    assert [info.url for info in list_objects(s3)] == [f"{s3}/dir/a", f"{s3}/empty"]
    assert download(s3, tmp_path).objects == 2


def test_a_bucket_that_is_not_there(s3, s3_endpoint):
    url = "s3://no-such-bucket-here/a"
    configure("s3://no-such-bucket-here", endpoint=s3_endpoint)
    configure("s3://no-such-bucket-here", credential_provider=_keys)
    with pytest.raises(ObjectNotFoundError):
        get(url)
    with pytest.raises(ObjectNotFoundError, match="bucket"):
        list_objects("s3://no-such-bucket-here")
    assert not exists(url)


def _keys():
    return {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}


def test_appending_to_a_large_object_is_refused(s3, monkeypatch):
    from shoal.store import _obstore

    monkeypatch.setattr(_obstore, "_MAX_APPEND_BYTES", 1000)
    put(f"{s3}/a", bytes(990))
    store_for(s3).append(f"{s3}/a", bytes(10))
    with pytest.raises(StoreError, match="cannot append"):
        store_for(s3).append(f"{s3}/a", b"1")


def test_memory_is_bounded_while_streaming_up_and_down(s3, s3_endpoint):
    """180 MB go up and come down in a process that grows by far less."""
    code = """
        import resource, sys
        from shoal.store import put, get, store_for
        url = sys.argv[1]
        put(url, b"warm")
        get(url)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        writer = store_for(url).create(url)
        step = bytes(3_000_000)
        for _ in range(60):
            writer.write(step)
        assert writer.commit().size == 180_000_000
        reader = store_for(url).open(url)
        for start in range(0, 180_000_000, 16 << 20):
            reader.read(start, start + (16 << 20))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    environment = {**os.environ, **keys, "AWS_ENDPOINT_URL": s3_endpoint}
    command = [sys.executable, "-c", textwrap.dedent(code), f"{s3}/a"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150


def test_a_plan_holds_no_bytes_twice_for_long(s3):
    put(f"{s3}/a", bytes(8_000_000))
    reader = store_for(s3).open(f"{s3}/a")
    tracemalloc.start()
    try:
        found = reader.read(0, 8_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 8_000_000
    assert peak < 2.5 * len(found)


def close_at_once(s3, **options):
    """Four writers of one split that began before any of them ended; returns their errors."""
    writers = [shoal.ShardWriter(f"{s3}/{name}-%06d.tar", max_samples=1, **options) for name in "abcd"]
    for number, writer in enumerate(writers):
        writer.write({"__key__": f"k{number}", "txt": "x"})
    together, errors = threading.Barrier(len(writers)), []

    def close(writer):
        together.wait(60)
        try:
            writer.close()
        except shoal.errors.ShoalError as error:
            errors.append(error)

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(close, writers))
    return errors


def test_of_writers_of_one_split_that_end_at_once_one_is_in_the_manifest(s3):
    errors = close_at_once(s3)
    assert [type(error) for error in errors] == [shoal.errors.ObjectExistsError] * 3
    assert len(shoal.shard.load_manifest(s3).shards) == 1


def test_writers_that_end_at_once_in_one_folder_are_both_in_the_manifest(s3):
    assert close_at_once(s3, append=True) == []
    paths = [record.path for record in shoal.shard.load_manifest(s3).shards]  # in the order in which they ended
    assert sorted(paths) == [f"{name}-000000.tar" for name in "abcd"]


def test_an_object_of_known_size_is_opened_without_a_request(s3):
    put(f"{s3}/a", bytes(range(100)))
    before = statistics()
    reader = open_sized(f"{s3}/a", 100)
    assert (statistics() - before).requests == {}
    assert reader.info.size == 100
    assert reader.read(3, 5) == b"\3\4"
    assert reader.read_many([0, 90], [2, 200]) == [b"\0\1", bytes(range(90, 100))]

    put(f"{s3}/a", bytes(100))
    with pytest.raises(ObjectChangedError):
        reader.read(3, 5)


def test_an_object_of_another_size_than_expected_is_an_error(s3, tmp_path):
    for folder in (s3, str(tmp_path)):
        put(f"{folder}/a", bytes(100))
        for size in (99, 101):
            with pytest.raises(ObjectChangedError, match=f"{size} bytes"):
                open_sized(f"{folder}/a", size).read(0, 10)
            with pytest.raises(ObjectChangedError, match=f"{size} bytes"):
                open_sized(f"{folder}/a", size).read_many([0], [10])
