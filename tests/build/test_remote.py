"""Output on a real S3 server: the bytes that a local build writes, also after a kill, and of a reshard.

The builds that are killed run in processes of their own. This file is also the program that they run.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.build.built import contents, make_images
from tests.store.servers import BUCKET, seaweed
from tests.store.settings import keys, own_settings

import shoal
from shoal.build import LocalEngine, merge, reshard
from shoal.shard import load_manifest
from shoal.store import configure, relative_url, store_for

ROOT = Path(__file__).parents[2]
_NUMBERS = itertools.count()
OPTIONS = {"max_samples": 7, "shuffle": True, "splits": {"train": 0.8, "test": 0.2}}
SHARDS = 7


@pytest.fixture(scope="module")
def endpoint():
    with seaweed() as found:
        yield found


def reach(endpoint):
    configure(f"s3://{BUCKET}", endpoint=endpoint, region="us-east-1", credential_provider=keys, timeout=30)


@pytest.fixture
def s3(endpoint, monkeypatch, tmp_path):
    """The URL of a new folder on the server; our own settings, gone afterwards."""
    own_settings(monkeypatch, tmp_path)
    reach(endpoint)
    return f"s3://{BUCKET}/build/{next(_NUMBERS):04d}"


def far_contents(root):
    """What `contents` gives, of a folder on the server."""
    store = store_for(root)
    paths = {relative_url(info.url, root): info.url for info in store.list(root)}
    return {
        path: hashlib.sha256(store.read_all(url)).hexdigest() for path, url in paths.items() if "/build-" not in path
    }


def maybe_killed(sample):
    """The sample; or the end of the process, where the environment says that it is to end at this one."""
    if sample["__key__"] == os.environ.get("KILLED_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def build(source, out, **options):
    return shoal.build_shards(source, out, maybe_killed, **OPTIONS, **options)


def journal_lines(root):
    store = store_for(root)
    urls = sorted(info.url for info in store.list(f"{root}/.shoal") if "/journal-build-" in info.url)
    return [line for url in urls for line in store.read_all(url).split(b"\n")[1:-1]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_build_on_s3_has_the_bytes_of_a_local_one(tmp_path, s3, workers):
    source = make_images(tmp_path / "in")
    build(source, tmp_path / "out", workers=1)
    report = build(source, s3, engine=LocalEngine(workers, "forkserver" if workers > 1 else "auto"))
    assert far_contents(s3) == contents(tmp_path / "out")
    assert (report.samples, report.written) == (40, SHARDS)
    assert build(source, s3, workers=1).written == 0
    assert len(shoal.Dataset(s3, split="test")) == 8


@pytest.mark.parametrize("at", ["cat/0001", "dog/0020", "cat/0039"])
def test_a_build_on_s3_that_was_killed_is_finished_by_a_rerun(tmp_path, endpoint, s3, at):
    source = make_images(tmp_path / "in")
    build(source, tmp_path / "out", workers=1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KILLED_AT": at}
    words = [sys.executable, "-m", "tests.build.test_remote", endpoint, source, s3]
    assert subprocess.run(words, check=False, env=environment, cwd=ROOT).returncode == -signal.SIGKILL
    done = len(journal_lines(s3))
    assert done < SHARDS
    assert load_manifest(s3) is None
    assert build(source, s3, workers=1).written == SHARDS - done
    assert far_contents(s3) == contents(tmp_path / "out")


def test_shards_are_cut_anew_and_merged_onto_s3_and_from_it(tmp_path, s3):
    source = make_images(tmp_path / "in")
    for name in ("a", "b"):
        named = "number" if name == "b" else "keep"
        shoal.build_shards(source / "cat", tmp_path / name, max_samples=3, keys=named, workers=1)
    options = {"max_samples": 8, "workers": 1}
    reshard(tmp_path / "a", tmp_path / "cut", **options)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both", **options)
    reshard(tmp_path / "a", f"{s3}/cut", **options)
    reshard(f"{s3}/cut", f"{s3}/again", max_samples=8, engine=LocalEngine(2))
    merge([tmp_path / "a", tmp_path / "b"], f"{s3}/both", **options)
    assert far_contents(f"{s3}/cut") == far_contents(f"{s3}/again") == contents(tmp_path / "cut")
    assert far_contents(f"{s3}/both") == contents(tmp_path / "both")


if __name__ == "__main__":
    reach(sys.argv[1])
    build(sys.argv[2], sys.argv[3], workers=1)
