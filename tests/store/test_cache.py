"""The disk cache: each chunk is fetched once per machine and verified, the size is bounded, other files stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.scale import times
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Fault
from tests.store.test_remote_reading import SHARDS, difference, same, samples, write

import shoal
from shoal import store
from shoal.cli._cache import CACHE_COMMANDS
from shoal.errors import OptionError
from shoal.store import (
    _cache,
    cache_dir,
    cache_entries,
    cached_reader,
    clear_cache,
    configure,
    store_for,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SHOAL_CACHE", str(folder))
    return folder


def stored(root):
    return sum(info.size for info in store.list(root) if info.url.endswith(".tar"))


@pytest.mark.parametrize("mode", ["blocks", "shards"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_second_epoch_makes_no_request_for_bytes(s3, mode, shuffle):
    write(s3)

    def epoch():
        dataset = shoal.Dataset(f"{s3}/", cache=mode)
        if not shuffle:
            return list(dataset)
        with shoal.DataLoader(dataset, batch_size=None, shuffle=True, window=96, block_samples=10) as loader:
            return sorted(loader, key=lambda sample: sample["__key__"])

    for number in range(3):
        found, done = difference(epoch)
        assert same(found, samples())
        most = 1.15 * stored(s3) if number == 0 else 10_000  # the first has the indexes too
        assert done.bytes_read <= most
    assert sum(entry.held for entry in cache_entries()) >= stored(s3)
    assert {entry.url for entry in cache_entries()} == {f"{s3}/train-{number:06d}.tar" for number in range(SHARDS)}


def test_the_same_dataset_reads_from_disk_once_all_is_there(s3):
    write(s3)
    dataset = shoal.Dataset(f"{s3}/", cache="blocks")
    assert same(list(dataset), samples())
    found, done = difference(lambda: list(dataset))
    assert same(found, samples())
    assert not done.requests
    assert all(dataset.source.shard(number).far is None for number in range(SHARDS))


def test_configure_says_it_for_all_below_a_prefix(s3):
    write(s3)
    configure(f"s3://{BUCKET}", cache="blocks")
    assert same(list(shoal.Dataset(f"{s3}/")), samples())
    assert len(cache_entries()) == SHARDS
    with pytest.raises(OptionError, match="cache"):
        configure(cache="all")
    with pytest.raises(OptionError, match="cache"):
        shoal.Dataset(f"{s3}/", cache="all")


def test_single_samples_bring_only_their_cells(s3):
    write(s3, size=200_000, count=40)
    dataset = shoal.Dataset(f"{s3}/", cache="blocks")
    expected = list(samples(200_000, 40))
    for number in (3, 17, 3, 39):
        assert same([dataset[number]], [expected[number]])
    assert sum(entry.held for entry in cache_entries()) < 8 << 20
    assert sum(entry.held for entry in cache_entries()) < stored(s3)


def test_a_replaced_object_is_another_entry(s3):
    url = f"{s3}/a.bin"
    for content in (bytes(3_000_000), b"x" * 3_000_000):
        store.put(url, content)
        with closing(cached_reader(store_for(url).open(url), "blocks")) as reader:
            right = reader.read(0, 3_000_000) == content
            assert right
    assert len(cache_entries()) == 2


def test_clear_takes_what_is_ours_and_nothing_else(s3, cache):
    write(s3)
    list(shoal.Dataset(f"{s3}/", cache="shards"))
    (cache / "objects" / "mine").mkdir()
    (cache / "objects" / "mine" / "data").write_bytes(b"precious")
    (cache / "objects" / "notes.txt").write_text("precious")
    assert clear_cache(f"{s3}/train-000001") > 0
    assert len(cache_entries()) == SHARDS - 1
    assert clear_cache() > 0
    assert cache_entries() == []
    assert sorted(os.listdir(cache / "objects")) == ["mine", "notes.txt"]
    assert (cache / "objects" / "mine" / "data").read_bytes() == b"precious"


def test_a_cache_that_is_cleared_while_it_is_read_costs_requests_only(s3):
    write(s3)
    dataset = shoal.Dataset(f"{s3}/", cache="blocks")
    found = []
    for sample in dataset:
        found.append(sample)
        if len(found) % 50 == 0:
            clear_cache()
    assert same(found, samples())
    assert same(list(shoal.Dataset(f"{s3}/", cache="blocks")), samples())


def test_what_was_not_used_for_longest_leaves(s3):
    urls = [f"{s3}/{number}" for number in range(6)]
    configure(f"s3://{BUCKET}", cache_bytes=3 << 20)
    for number, url in enumerate(urls):
        store.put(url, bytes([number]) * (1 << 20))
        with closing(cached_reader(store_for(url).open(url), "shards")):
            pass
        for entry in cache_entries():
            if entry.url == url:  # as if it were an hour between two
                os.utime(os.path.join(entry.folder, "object.json"), (number * 3600, number * 3600))
    assert [entry.url for entry in cache_entries()] == urls[-len(cache_entries()) :]
    assert 1 <= len(cache_entries()) <= 4


def test_bytes_that_a_power_cut_lost_are_fetched_again(s3):
    url, content = f"{s3}/a", os.urandom(3 << 20)
    store.put(url, content)
    cached_reader(store_for(url).open(url), "shards").close()
    (entry,) = cache_entries()
    for name in os.listdir(entry.folder):
        if name.startswith("done-"):
            path = os.path.join(entry.folder, name)
            with open(path, "rb") as file:
                crc = file.read().partition(b" ")[0]
            with open(path, "wb") as file:
                file.write(crc + b" another-boot")
    Path(entry.folder, "whole").write_bytes(b"another-boot")
    with open(os.path.join(entry.folder, "data"), "r+b") as file:
        file.seek(1 << 20)
        file.write(bytes(1 << 20))
    with closing(cached_reader(store_for(url).open(url), "blocks")) as reader:
        right = reader.read(0, 3 << 20) == content
        assert right


def test_the_end_that_no_sample_needs_comes_too_so_that_all_is_there(s3):
    url, content = f"{s3}/a", os.urandom((2 << 20) + 10_240)
    store.put(url, content)
    with closing(_cache.CachedReader(store_for(url).open(url))) as reader:
        assert reader.read(0, 1 << 20) == content[: 1 << 20]
        assert reader.is_remote
        assert reader.read(1 << 20, 2 << 20) == content[1 << 20 : 2 << 20]
        assert not reader.is_remote
        assert reader.read(0, len(content)) == content


def test_that_all_is_there_is_noted_and_no_longer_said_once_a_cell_is_not(s3, monkeypatch):
    url = f"{s3}/a"
    store.put(url, os.urandom(3 << 20))
    cached_reader(store_for(url).open(url), "shards").close()
    copy = _cache.CachedObject(store_for(url).info(url))
    with monkeypatch.context() as patched:
        patched.setattr(_cache.CachedObject, "has", lambda *_: pytest.fail("each cell was looked at"))
        assert copy.is_whole()
    copy.forget(1)
    again = _cache.CachedObject(store_for(url).info(url))
    assert not again.is_whole()
    assert [again.has(cell) for cell in range(3)] == [True, False, True]


def test_a_file_that_was_cut_is_not_believed(s3):
    url, content = f"{s3}/a", os.urandom(3 << 20)
    store.put(url, content)
    with closing(cached_reader(store_for(url).open(url), "blocks")) as reader:
        reader.read(0, 3 << 20)
        (entry,) = cache_entries()
        os.truncate(os.path.join(entry.folder, "data"), 1000)
    with closing(_cache.CachedReader(store_for(url).open(url))) as reader:
        right = reader.read(0, 3 << 20) == content
        assert right


def test_a_cache_that_cannot_be_written_is_no_error(s3, monkeypatch, tmp_path):
    write(s3)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file"))
    assert same(list(shoal.Dataset(f"{s3}/", cache="blocks")), samples())


def test_an_epoch_over_a_bad_line_is_right_in_the_cache_too(proxy, broken):
    write(broken)
    for number in range(12):
        kind = ["reset", "cut", "fewer-bytes"][number % 3]
        proxy.faults.append(Fault(kind, path=f"train-{number % 4:06d}.tar", after=number * 30_000))
    for _ in range(2):
        assert same(list(shoal.Dataset(f"{broken}/", cache="blocks")), samples())
    assert sum(proxy.happened.values()) >= 8


@pytest.mark.parametrize("name", [command.__name__ for command in CACHE_COMMANDS])
def test_every_verb_of_the_command_explains_itself(run, name):  # noqa: F811 - the fixture
    done = run("cache", name, "--help")
    assert done.code == 0
    assert done.out.partition("Examples:")[2].count(f"shoal cache {name}") >= 2
    assert f"| `{name} " in PAGE.read_text("utf-8").partition("## shoal cache")[2].partition("\n## ")[0]


def test_the_command_lists_and_clears(run, s3):  # noqa: F811 - the fixture
    assert "0 objects" in run("cache", "ls").out
    write(s3)
    list(shoal.Dataset(f"{s3}/", cache="shards"))
    told = run("cache", "ls", s3, "--json").json["objects"]
    assert sorted(each["url"] for each in told) == [f"{s3}/train-{number:06d}.tar" for number in range(SHARDS)]
    assert all(each["held"] == each["size"] for each in told)
    assert "4 objects" in run("cache", "ls").out
    assert run("cache", "clear", f"{s3}/train-000000", "--json").json["objects"] == 1
    assert "removed 3 objects" in run("cache", "clear").out
    assert run("cache", "ls", "--json").json["objects"] == []


def test_threads_fetch_each_cell_once(proxy, broken):
    url, content = f"{broken}/a", os.urandom(8 << 20)
    store.put(url, content)
    found = []

    def read():
        with closing(cached_reader(store_for(url).open(url), "blocks")) as reader:
            found.append(reader.read(0, 8 << 20) == content)

    threads = [threading.Thread(target=read) for _ in range(5)]
    _, done = difference(lambda: [[thread.start() for thread in threads], [thread.join(60) for thread in threads]])
    assert found == [True] * 5
    assert done.bytes_read <= 1.05 * len(content)


SCRIPT = """
import os, sys
from contextlib import closing
from shoal import store
url, most = sys.argv[1], int(sys.argv[2])
with closing(store.cached_reader(store.store_for(url).open(url), "blocks")) as reader:
    print("open", flush=True)
    sys.stdin.readline()
    data, at = [], 0
    for piece in reader.stream(0, most):
        data.append(piece)
        if len(data) == 1:
            print("begun", flush=True)
    import hashlib
    print(hashlib.sha256(b"".join(data)).hexdigest(), store.statistics().bytes_read, flush=True)
"""


@pytest.fixture
def start(s3_endpoint, tmp_path, cache):
    """Starts processes that read an object through the cache; they are gone at the end."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    running = []

    def start(url, endpoint=s3_endpoint, most=1 << 40):
        names = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
        environment = {**os.environ, **names, "AWS_ENDPOINT_URL": endpoint, "SHOAL_CACHE": str(cache)}
        command = [sys.executable, str(script), url, str(most)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
        )
        running.append(process)
        assert process.stdout.readline() == "open\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_fetch_each_cell_once(s3, start):
    import hashlib

    url, content = f"{s3}/a", os.urandom(24 << 20)
    store.put(url, content)
    processes = [start(url) for _ in range(3)]
    for process in processes:
        go(process)
    told = [process.communicate(timeout=60)[0].split() for process in processes]
    assert {words[-2] for words in told} == {hashlib.sha256(content).hexdigest()}
    assert sum(int(words[-1]) for words in told) <= 1.1 * len(content)


def test_a_killed_process_holds_nobody_up(proxy, broken, start):
    """Whatever it was at: its claims are seen to be a dead one's."""
    import hashlib

    for number in range(times(2, 20)):
        url, content = f"{broken}/{number}", os.urandom(12 << 20)
        store.put(url, content)
        proxy.faults.append(Fault("hang", path=f"/{number}", times=1000, seconds=60))
        process = start_behind(start, proxy, url)
        go(process)
        wait_for_claims(url)
        process.send_signal(signal.SIGKILL)
        process.wait()
        proxy.faults.clear()
        begun = time.monotonic()
        with closing(cached_reader(store_for(url).open(url), "blocks")) as reader:
            digest = hashlib.sha256(reader.read(0, 12 << 20)).hexdigest()
        assert digest == hashlib.sha256(content).hexdigest()
        assert time.monotonic() - begun < 20


def start_behind(start, proxy, url):
    """A process that has opened the object, before the line goes bad."""
    faults, proxy.faults = proxy.faults, []
    try:
        return start(url, proxy.url)
    finally:
        proxy.faults = faults


def wait_for_claims(url):
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        folders = [entry.folder for entry in cache_entries() if entry.url == url]
        if any(name.startswith("claim-") for folder in folders for name in os.listdir(folder)):
            return
        threading.Event().wait(0.01)
    raise AssertionError("nothing was claimed")


def test_a_download_that_takes_too_long_is_not_waited_for(s3, monkeypatch):
    monkeypatch.setattr(_cache, "_MAX_WAIT_S", 0.2)
    url, content = f"{s3}/a", os.urandom(2 << 20)
    store.put(url, content)
    info = store_for(url).info(url)
    held = _cache.CachedObject(info)
    held.open()
    assert held.claim(0)
    assert not held.claim(0)
    with closing(cached_reader(store_for(url).open(url), "blocks")) as reader:
        right = reader.read(0, 2 << 20) == content
        assert right
    held.unclaim(0)
    held.close()


def test_the_cache_is_where_the_user_says(monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE", "/elsewhere")
    assert cache_dir() == "/elsewhere"
    monkeypatch.delenv("SHOAL_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir().startswith("/home/someone/")
    assert cache_dir().endswith("shoal")
