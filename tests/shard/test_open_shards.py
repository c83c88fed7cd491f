"""The limit on open shards: a closed shard is reopened cheaply, and refused when it changed."""

from __future__ import annotations

import os
import pathlib
import shutil
import threading

import numpy as np
import pytest

import shoal
from shoal.errors import ShoalError
from shoal.shard import ShardSource
from shoal.shard import _open_shards as module
from shoal.shard._read import read_row

SHARDS, EACH = 10, 20


def written(folder: pathlib.Path, mark: bytes = b"a") -> ShardSource:
    with shoal.ShardWriter(str(folder / "x-%03d.tar"), max_samples=EACH) as writer:
        for number in range(SHARDS * EACH):
            writer.write({"__key__": f"k{number}", "bin": mark * (number + 1)})
    source = shoal.Dataset(str(folder), decode=False).source
    assert isinstance(source, ShardSource)
    return source


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "most_open", lambda: 2)


def open_files(folder: pathlib.Path) -> int:
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith(str(folder)) for link in links if os.path.islink(link))


def read_all(source: ShardSource) -> bool:
    rows = np.random.default_rng(1).permutation(SHARDS * EACH)
    return all(len(sample["bin"]) == row + 1 for row, sample in zip(rows, source.read(rows), strict=True))


def test_no_more_files_than_may_be_are_open(tmp_path: pathlib.Path) -> None:
    source = written(tmp_path / "data")
    assert read_all(source)
    assert open_files(tmp_path) <= 2
    source.close()
    assert open_files(tmp_path) == 0
    assert read_all(source)


def test_an_index_is_read_once(tmp_path: pathlib.Path) -> None:
    source = written(tmp_path / "data")
    assert read_all(source)
    shutil.rmtree(tmp_path / "data" / ".shoal")
    assert read_all(source)


def test_a_shard_that_changed_since_is_not_read_by_its_old_index(tmp_path: pathlib.Path) -> None:
    source = written(tmp_path / "data")
    assert read_all(source)
    written(tmp_path / "other", b"bb")
    shutil.copy(tmp_path / "other" / "x-004.tar", tmp_path / "data" / "x-004.tar")
    with pytest.raises(ShoalError, match="changed after it was indexed"):
        source.read(np.array([4 * EACH]))
    assert len(source.read(np.array([0]))) == 1


def test_what_is_remembered_is_bounded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KNOWN_INDEXES", 3)
    source = written(tmp_path / "data")
    assert read_all(source)
    assert read_all(source)
    assert len(source._open._known) == 3


def test_threads_share_it(tmp_path: pathlib.Path) -> None:
    source, right = written(tmp_path / "data"), []
    threads = [threading.Thread(target=lambda: right.append(read_all(source))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 6


def test_closing_does_not_disturb_a_read_that_is_under_way(tmp_path: pathlib.Path) -> None:
    source = written(tmp_path / "data")
    shard = source.shard(3)
    source.close()
    others = [
        (tmp_path / f"other{number}").open("wb") for number in range(4)
    ]  # which get the descriptors that are free
    assert read_row(shard, shard.members(2))["bin"] == b"a" * (3 * EACH + 3)
    assert len(source.read(np.array([3 * EACH]))) == 1
    for file in others:
        file.close()
    del shard
    source.close()
    assert open_files(tmp_path) == 0


@pytest.mark.parametrize("limit, most", [(256, 128), (1024, 128), (4096, 512), (1 << 20, 1024), (-1, 1024)])
def test_the_system_says_how_many(limit: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert module.most_open.__wrapped__() == most
