"""obstore hangs in a process forked from one that used it: ours says so instead, and everything else works."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from tests.store.servers import ACCESS_KEY, SECRET_KEY

from shoal.store import put

PRELUDE = """
import multiprocessing, os, sys
from shoal.errors import StoreError
from shoal.store import get, put, statistics, store_for

url = sys.argv[1]

def read():
    assert get(url) == b"hello"

def in_child(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except StoreError as error:
            print(error, flush=True)
            os._exit(7)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(8)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.fixture
def run(s3, s3_endpoint, tmp_path):
    """Runs a script in a fresh interpreter, which a hang would end after a minute."""
    url = f"{s3}/a"
    put(url, b"hello")

    def run(code):
        script = tmp_path / "script.py"
        script.write_text(PRELUDE + textwrap.dedent(code))
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
        environment = {**os.environ, **keys, "AWS_ENDPOINT_URL": s3_endpoint}
        command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), url]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_child_of_a_process_that_used_a_store_is_told_so(run):
    told = run("""
        read()
        assert in_child(read) == 7
        read()
    """)
    assert "forkserver" in told
    assert told.count("\n") == 1


def test_a_reader_from_before_the_fork_is_told_so_too(run):
    told = run("""
        put(url, bytes(5000))
        reader = store_for(url).open(url)
        assert in_child(lambda: reader.read(0, 5000)) == 7
        assert in_child(lambda: store_for(url).create(url).commit()) == 7
        assert reader.read(0, 5000) == bytes(5000)
    """)
    assert told.count("forkserver") == 2


def test_a_grandchild_is_told_so(run):
    run("""
        read()
        assert in_child(lambda: os._exit(in_child(read))) == 7
    """)


def test_a_fork_before_the_first_use_is_fine(run):
    run("""
        import shoal
        assert in_child(read) == 0
        assert statistics().requests == {}
        read()
    """)


def test_files_and_memory_work_in_any_child(run):
    run("""
        read()
        put("memory://a/b", b"1")
        def other():
            assert get("memory://a/b") == b"1"
            put(__file__ + ".copy", b"2")
            assert get(__file__ + ".copy") == b"2"
        assert in_child(other) == 0
    """)


def test_a_lock_held_at_the_fork_does_not_stay_held(run):
    """Another thread is in the middle of a request, with every lock there is."""
    run("""
        import threading
        from shoal.store import _clients, _concurrency, _options, _statistics, configure

        held, over = threading.Event(), threading.Event()

        def hold():
            limit = _options._LIMITS[""]
            with _clients._lock, _options._lock, _concurrency._lock, _statistics._totals.lock, limit.hold(64):
                held.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        def other():
            configure(timeout=5)
            statistics()
            read()
        assert in_child(other) == 0
        over.set()
        thread.join()
    """)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_read(run, method):
    run(f"""
        if __name__ == "__main__":
            read()
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                assert pool.apply(get, (url,)) == b"hello"
    """)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_are_handed_the_options(run, method):
    run(f"""
        from functools import partial
        from shoal.store import configure, configure_all, configured

        def keys(access, secret):
            return {{"access_key_id": access, "secret_access_key": secret}}

        if __name__ == "__main__":
            names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            endpoint, access, secret = (os.environ.pop(name) for name in names)
            configure(url, endpoint=endpoint, credential_provider=partial(keys, access, secret))
            read()
            with multiprocessing.get_context("{method}").Pool(1, configure_all, (configured(),)) as pool:
                assert pool.apply(get, (url,)) == b"hello"
    """)


def test_a_child_forked_in_mid_epoch_is_told_so(run):
    """Neither an iteration nor a loader waits for threads that the child has not."""
    told = run("""
        import shoal
        root = url + "-data"
        with shoal.ShardWriter(root + "/a-%06d.tar", max_samples=20) as writer:
            for number in range(100):
                writer.write({"__key__": f"{number:04d}", "bin": bytes(50_000)})
        dataset = shoal.Dataset(root + "/")
        samples = iter(dataset)
        next(samples)
        assert in_child(lambda: list(samples)) == 7
        assert len(list(samples)) == 99
        loader = shoal.DataLoader(dataset, batch_size=10, shuffle=True)
        batches = iter(loader)
        next(batches)
        assert in_child(lambda: list(shoal.DataLoader(dataset, batch_size=10, shuffle=True))) == 7
        assert len(list(batches)) == 9
        loader.close()
    """)
    assert told.count("forkserver") == 2


def test_a_forked_child_reads_though_threads_of_the_parent_held_every_lock(tmp_path: pathlib.Path) -> None:
    program = """
        import os, signal, sys, threading, warnings
        from contextlib import ExitStack
        import numpy as np
        import shoal
        from shoal.shard import ShardMemoryCache
        from shoal.store._fork import _LOCKS

        warnings.simplefilter("ignore")
        with shoal.ShardWriter(sys.argv[1] + "/x-%03d.tar.gz", max_samples=20) as writer:
            for number in range(100):
                writer.write({"bin": bytes([number]) * 5000})
        dataset = shoal.Dataset(sys.argv[1], decode=False)
        source, rows = dataset.source, np.random.default_rng(0).permutation(100)
        memory = ShardMemoryCache.over(source, 1 << 30)
        readers = source, source.with_memory(memory)
        source.columns(rows)

        def read():
            for reader in readers:
                assert [sample["bin"][0] for sample in reader.read(rows)] == rows.tolist()
            assert sum(len(batch["bin"]) for batch in shoal.DataLoader(dataset, batch_size=10, shuffle=True)) == 100
            assert memory.is_full

        held, over = threading.Event(), threading.Event()

        def hold():
            with ExitStack() as stack:
                for lock in list(_LOCKS):
                    stack.enter_context(lock)
                memory._states[:2] = 1  # blocks that the thread was about to read
                held.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends it if it hangs
            read()
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        over.set()
        thread.join()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
