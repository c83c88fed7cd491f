"""Lists of tars without an index, against what ``tarfile`` reads of them."""

from __future__ import annotations

import bz2
import contextlib
import gc
import gzip
import io
import json
import lzma
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.shard.archives import Members, by_tarfile, pax_member
from tests.shard.watched import WatchedStore, watched_store
from tests.store.conftest import _own_options, http, s3, s3_endpoint  # noqa: F401 - fixtures

from shoal.errors import (
    DuplicateFieldError,
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    ShoalError,
    ShoalWarning,
    StaleIndexError,
    TarError,
    TruncatedError,
)
from shoal.shard import _foreign_tars as module
from shoal.shard._commit import load_generation
from shoal.shard._foreign_formats import (
    WidsShard,
    check_wids,
    export_dali_idx,
    export_tar_idx,
    export_wids,
    import_wids,
)
from shoal.shard._foreign_tars import IndexedTar, IndexOptions, index_tars, open_tars
from shoal.shard._index_build import MOST_WIDE_FIELDS
from shoal.shard._member_names import WEBDATASET_RULE, KeyRule, split_name
from shoal.shard._open_shards import index_shard
from shoal.shard._rows_file import RowsFile
from shoal.shard._split_table import SplitTable
from shoal.store import configure
from shoal.store._operations import list_objects
from shoal.store._registry import store_for

Row = tuple[str, dict[str, tuple[int, int, int]]]

# ------------------------------------------------------------------------------------------------------ tars and oracle


def members(count: int, mark: str = "a") -> Members:
    """Samples with three fields, of which one is sometimes missing."""
    found: Members = []
    for number in range(count):
        key = f"{mark}{number:03d}"
        found += [(f"{key}.json", json.dumps({"number": number, "mark": mark}).encode())]
        found += [(f"{key}.jpg", mark.encode() * (number * 37 % 900))]
        found += [(f"{key}.cls", b"%d" % number)] if number % 3 else []
    return found


def oracle(archive: bytes, rule: KeyRule = WEBDATASET_RULE) -> list[Row]:
    """Key, and offset, size and crc32 of each field, of the samples in order of their first members."""
    rows: dict[str, dict[str, tuple[int, int, int]]] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding=rule.encoding) as tar:
        for member in tar:
            pair = split_name(member.name, rule) if member.isreg() else None
            if pair is not None:
                data = tar.extractfile(member).read()  # type: ignore[union-attr]
                rows.setdefault(pair[0], {})[pair[1]] = (member.offset_data, member.size, zlib.crc32(data))
    return list(rows.items())


def rows_of(table: SplitTable) -> list[Row]:
    found = []
    for row in range(len(table)):
        own = table.row_members(row)
        found.append((own.key, {name: (offset, size, crc) for name, offset, size, crc in own.members}))
    return found


def write_tars(folder: Path, count: int, samples: int = 4) -> list[str]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:03d}.tar" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(by_tarfile(members(samples, f"{number}-")))
    return [str(path) for path in paths]


def rows_of_files(urls: Sequence[str]) -> list[Row]:
    return [row for url in urls for row in oracle(store_for(url).read_all(url))]


class Scans:
    """Which tars were read through."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    def take(self) -> list[str]:
        urls, self.urls = self.urls, []
        return sorted(map(os.path.basename, urls))


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Scans:
    counted = Scans()

    def count(reader: Any, rule: KeyRule) -> Any:
        counted.urls.append(reader.info.url)
        return index_shard(reader, rule)

    monkeypatch.setattr(module, "index_shard", count)
    return counted


def cache_files(folder: str = "") -> list[Path]:
    found = Path(os.environ["SHOAL_CACHE"], folder).rglob("*")
    return sorted(path for path in found if path.is_file() and "locks" not in path.parts)


def cached_lists() -> list[Path]:
    return list(Path(os.environ["SHOAL_CACHE"], "lists").iterdir())


# ------------------------------------------------------------------------------------------------------ what tables say


@given(st.lists(st.integers(0, 12), max_size=5), st.randoms(use_true_random=False))
def test_a_list_has_what_tarfile_reads(counts: list[int], shuffle: random.Random) -> None:
    store, archives = watched_store(), []
    for number, count in enumerate(counts):
        archive = by_tarfile(members(count, f"{shuffle.randrange(100)}-"))
        store.write_all(f"watched://d/{number}.tar", archive)
        archives.append(archive)
    urls = [f"watched://d/{number}.tar" for number in range(len(counts))]
    table = open_tars(urls)
    rows = [row for archive in archives for row in oracle(archive)]
    assert rows_of(table) == rows
    assert [table.shard_url(number) for number in range(table.shard_count)] == urls
    assert table.shards()["path"].to_pylist() == urls
    assert table.shard_starts().tolist() == np.cumsum([0, *counts]).tolist()
    for number, archive in enumerate(archives):
        info = table.shard(number)
        assert (info.path, info.samples, info.bytes) == (urls[number], counts[number], len(archive))
        assert info.head_crc32 == zlib.crc32(archive[:512])
    if rows:
        assert table.columns(["json.number"])["json.number"].to_pylist() == [n for c in counts for n in range(c)]
        assert table.find(rows[-1][0]) == [len(rows) - 1]


def test_a_shard_has_the_same_rows_as_after_its_scan(tmp_path: Path) -> None:
    urls = write_tars(tmp_path, 3)
    table = open_tars(urls)
    for number, url in enumerate(urls):
        reader = store_for(url).open(url)
        rows, expected = table.shard_rows(number, WEBDATASET_RULE), index_shard(reader)
        reader.close()
        assert rows.keys.to_pylist() == expected.keys.to_pylist()
        assert rows.blocks is not None
        assert expected.blocks is not None
        assert rows.blocks.crcs.tolist() == expected.blocks.crcs.tolist()
        assert rows.columns.keys() == expected.columns.keys()


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes,
    ".tar.gz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
    ".tar.zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_compressed_tars_have_the_extents_of_the_tar(tmp_path: Path, ending: str, scans: Scans) -> None:
    archive = by_tarfile(members(20))
    path = tmp_path / f"a{ending}"
    path.write_bytes(COMPRESSIONS[ending](archive))
    for expected in ([path.name], []):
        table = open_tars([str(path)])
        assert rows_of(table) == oracle(archive)
        assert scans.take() == expected
    compression = ending.removeprefix(".tar").removeprefix(".") or None
    assert table.shard(0).compression == {"gz": "gzip", "zst": "zstd"}.get(compression or "", compression)
    assert table.shard(0).bytes == path.stat().st_size


def test_members_in_any_order_are_joined(tmp_path: Path) -> None:
    shuffled = members(30)
    random.Random(1).shuffle(shuffled)
    archive = by_tarfile(shuffled)
    (tmp_path / "a.tar").write_bytes(archive)
    table = open_tars([str(tmp_path / "a.tar")])
    assert rows_of(table) == oracle(archive)
    assert table.blocks(0) is None


@pytest.mark.parametrize("rule", [KeyRule(dot="last"), KeyRule(case="keep"), KeyRule(group="archive")])
def test_each_rule_has_its_own_rows(tmp_path: Path, rule: KeyRule, scans: Scans) -> None:
    archive = by_tarfile([("d/a.x.TXT", b"1"), ("d/a.y.TXT", b"22"), ("d/b.x.TXT", b"333")])
    (tmp_path / "a.tar").write_bytes(archive)
    for expected in (2, 0):
        for each in (WEBDATASET_RULE, rule):
            assert rows_of(open_tars([str(tmp_path / "a.tar")], IndexOptions(each))) == oracle(archive, each)
        assert len(scans.take()) == expected


def test_pax_headers_and_names_that_are_no_samples(tmp_path: Path) -> None:
    archive = b"".join(pax_member(f"{'long' * 40}/ключ{number}.txt", b"x" * number) for number in range(9))
    archive += by_tarfile([("__meta__", b"{}"), ("no-dot", b"1"), ("z.txt", b"2")])
    (tmp_path / "a.tar").write_bytes(archive)
    assert rows_of(open_tars([str(tmp_path / "a.tar")])) == oracle(archive)


def test_very_many_fields(tmp_path: Path) -> None:
    urls = []
    for shard in range(3):
        fields = range(shard * 100, shard * 100 + MOST_WIDE_FIELDS + 50)
        named = [(f"{shard}-{row}.f{field}", b"x" * (field % 7)) for row in range(5) for field in fields[row::5]]
        (tmp_path / f"{shard}.tar").write_bytes(by_tarfile(named))
        urls.append(str(tmp_path / f"{shard}.tar"))
    expected = [(key, dict(sorted(own.items()))) for key, own in rows_of_files(urls)]
    assert [(key, dict(sorted(own.items()))) for key, own in rows_of(open_tars(urls))] == expected


def test_an_empty_list_and_tars_without_samples(tmp_path: Path) -> None:
    assert len(open_tars([])) == 0
    (tmp_path / "a.tar").write_bytes(by_tarfile([]))
    table = open_tars([str(tmp_path / "a.tar")] * 2)
    assert (len(table), table.shard_count) == (0, 2)


def test_a_tar_twice_in_a_list_is_two_shards(tmp_path: Path, scans: Scans) -> None:
    (url,) = write_tars(tmp_path, 1)
    table = open_tars([url, url])
    assert rows_of(table) == 2 * rows_of_files([url])
    assert scans.take() == ["000.tar"]


def test_columns_that_differ_are_left_out_and_say_why(tmp_path: Path) -> None:
    for name, value in (("a", b"1"), ("b", b'"x"')):
        (tmp_path / f"{name}.tar").write_bytes(by_tarfile([(f"{name}.json", b'{"v": %s}' % value)]))
    reason = open_tars([str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]).unanswerable("json.v")
    assert reason is not None
    assert "a.tar" in reason
    assert "b.tar" in reason


# --------------------------------------------------------------------------------------------------------- scanned once


def test_one_more_tar_and_a_part_of_a_list_scan_only_what_is_new(tmp_path: Path, scans: Scans) -> None:
    urls = write_tars(tmp_path, 6)
    assert rows_of(open_tars(urls[:5])) == rows_of_files(urls[:5])
    assert scans.take() == [f"{number:03d}.tar" for number in range(5)]
    for chosen, expected in ((urls, ["005.tar"]), (urls[1:3], []), (urls[::-1], []), (urls[:5], [])):
        assert rows_of(open_tars(chosen)) == rows_of_files(chosen)
        assert scans.take() == expected


def test_what_was_listed_needs_no_request() -> None:
    store = watched_store()
    for number in range(3):
        store.write_all(f"watched://d/{number}.tar", by_tarfile(members(3, f"{number}-")))
    infos = list(store.list("watched://d"))
    table = open_tars(infos)
    store.ranges.clear()
    assert rows_of(open_tars(infos)) == rows_of(table)
    assert not store.ranges


def test_a_list_is_known_under_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: Scans) -> None:
    urls = write_tars(tmp_path / "data", 2)
    table = open_tars(urls)
    scans.take()
    monkeypatch.chdir(tmp_path)
    for spelled in (["data/000.tar", "./data/001.tar"], [f"file://{url}" for url in urls]):
        other = open_tars(spelled)
        assert [other.shard_url(number) for number in range(2)] == spelled
        assert other.shards()["path"].to_pylist() == spelled
        assert (other.root, scans.take()) == (table.root, [])


def test_what_is_reported(tmp_path: Path) -> None:
    urls = write_tars(tmp_path, 3)
    sizes = [os.path.getsize(url) for url in urls]
    for chosen, states in ((urls[:2], ["indexed"] * 2), (urls[:2], ["kept"] * 2), (urls, ["kept"] * 2 + ["indexed"])):
        done: list[IndexedTar] = []
        open_tars(chosen, on_indexed=done.append)
        expected = [IndexedTar(url, state, 4, size) for url, state, size in zip(chosen, states, sizes, strict=False)]  # type: ignore[arg-type]
        assert sorted(done, key=lambda tar: tar.url) == expected


def test_force_indexes_again(tmp_path: Path, scans: Scans) -> None:
    urls = write_tars(tmp_path, 2)
    for _ in range(2):
        assert rows_of(open_tars(urls, IndexOptions(force=True))) == rows_of_files(urls)
        assert len(scans.take()) == 2
    assert len(cached_lists()) == 1


def test_a_tar_that_changed_is_scanned_again(tmp_path: Path, scans: Scans) -> None:
    urls = write_tars(tmp_path, 3)
    for mark in ("x", "y"):  # of the same size
        open_tars(urls)
        scans.take()
        store_for(urls[1]).write_all(urls[1], by_tarfile(members(4, mark)))
        assert rows_of(open_tars(urls)) == rows_of_files(urls)
        assert scans.take() == ["001.tar"]


def test_a_tar_that_changed_since_it_was_listed(tmp_path: Path) -> None:
    urls = write_tars(tmp_path, 2)
    infos = list(store_for(urls[0]).list(str(tmp_path)))
    store_for(urls[1]).write_all(urls[1], by_tarfile(members(9, "x")))
    with pytest.raises(ObjectChangedError, match="replaced"):
        open_tars(infos)


def test_a_tar_that_is_missing(tmp_path: Path) -> None:
    urls = write_tars(tmp_path, 1)
    for on_damage in (None, print):
        with pytest.raises(ObjectNotFoundError):
            open_tars([*urls, str(tmp_path / "b.tar")], on_damage=on_damage)


# --------------------------------------------------------------------------------------------------------------- damage


def damaged_tars(folder: Path) -> list[str]:
    urls = write_tars(folder, 5)
    archive = Path(urls[1]).read_bytes()
    Path(urls[1]).write_bytes(archive[:3000])
    Path(urls[3]).write_bytes(by_tarfile([("a.txt", b"1"), ("a.txt", b"2")]))
    return urls


def test_a_damaged_tar_is_an_error_with_its_name(tmp_path: Path) -> None:
    urls = damaged_tars(tmp_path)
    for url, kind in ((urls[1], TruncatedError), (urls[3], DuplicateFieldError)):
        with pytest.raises(kind) as caught:
            open_tars([urls[0], url, urls[2]])
        assert caught.value.shard == url


def test_damaged_tars_are_left_out_if_the_caller_wants_so(tmp_path: Path, scans: Scans) -> None:
    urls, errors = damaged_tars(tmp_path), list[ShoalError]()
    for expected in ([f"{number:03d}.tar" for number in range(5)], ["001.tar", "003.tar"]):
        errors.clear()
        table = open_tars(urls, on_damage=errors.append)
        assert rows_of(table) == rows_of_files([urls[0], urls[2], urls[4]])
        assert [table.shard_url(number) for number in range(3)] == [urls[0], urls[2], urls[4]]
        assert {error.shard: type(error) for error in errors} == {urls[1]: TruncatedError, urls[3]: DuplicateFieldError}
        assert scans.take() == expected


def test_an_error_of_the_callback_is_raised(tmp_path: Path) -> None:
    def refuse(error: Exception) -> None:
        raise error

    with pytest.raises(TarError):
        open_tars(damaged_tars(tmp_path), on_damage=refuse)


@pytest.mark.parametrize("damage", [b"", b"not one", bytes(5000)])
def test_a_cached_rows_file_that_is_damaged_is_made_again(tmp_path: Path, damage: bytes, scans: Scans) -> None:
    urls = write_tars(tmp_path, 3)
    open_tars(urls[:2])
    scans.take()
    for path in cache_files("index"):
        path.write_bytes(damage)
    assert rows_of(open_tars(urls)) == rows_of_files(urls)
    assert len(scans.take()) == 3


def test_rows_whose_bytes_changed_are_made_again(tmp_path: Path, scans: Scans) -> None:
    urls = write_tars(tmp_path, 3)
    open_tars(urls[:2])
    path = cache_files("index")[0]
    path.write_bytes(path.read_bytes()[:-100] + bytes(100))  # the head is as it was
    scans.take()
    for expected in (2, 0):
        assert rows_of(open_tars(urls)) == rows_of_files(urls)
        assert len(scans.take()) == expected


@pytest.mark.parametrize("change", ["remove", "truncate", "manifest", "other"])
def test_a_cached_list_that_is_damaged_is_made_again(tmp_path: Path, change: str, scans: Scans) -> None:
    urls = write_tars(tmp_path, 3)
    table = open_tars(urls)
    files = [path for path in cache_files("lists") if path.suffix == (".json" if change == "manifest" else ".rec")]
    for path in files:
        if change == "remove":
            path.unlink()
        else:
            path.write_bytes({"truncate": b"", "manifest": b"{}", "other": bytes(99)}[change])
    scans.take()
    again = open_tars(urls)
    assert again.root == table.root
    assert rows_of(again) == rows_of_files(urls)
    assert not scans.take()
    if change in ("remove", "manifest"):  # all files had been opened
        assert rows_of(table) == rows_of_files(urls)


def test_a_table_does_not_need_the_cache_any_more(tmp_path: Path) -> None:
    urls = write_tars(tmp_path, 3)
    table = open_tars(urls)
    for path in cache_files():
        path.unlink()
    assert rows_of(table) == rows_of_files(urls)
    assert table.columns(["json.mark", "cls"]).num_rows == len(table)
    assert table.find("1-002") == [6]
    assert table.blocks(0) is not None


# ------------------------------------------------------------------------------------------------------------ the cache


def test_a_cache_that_cannot_be_written_costs_time_and_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: Scans
) -> None:
    urls = write_tars(tmp_path / "data", 5)
    (tmp_path / "file").write_bytes(b"in the way")
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file"))
    before = {info.url for info in list_objects("memory://")}
    for _ in range(2):
        with pytest.warns(ShoalWarning, match="cannot be kept in the cache.*SHOAL_CACHE") as warned:
            table = open_tars(urls)
        assert len(warned) == 1
        assert len(scans.take()) == 5
        assert rows_of(table) == rows_of_files(urls)
    del table
    gc.collect()
    assert {info.url for info in list_objects("memory://")} == before


def test_what_a_read_only_cache_has_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: Scans) -> None:
    urls = write_tars(tmp_path, 5)
    open_tars(urls[:3])
    scans.take()

    class ReadOnly:
        """The cache's folder on a disk that is full, or mounted to be read."""

        def create(self, url: str) -> Any:
            return self if url.startswith(os.environ["SHOAL_CACHE"]) else original(url)

        def write(self, data: bytes) -> None:
            raise store_error

        def abort(self) -> None:
            pass

    store = store_for("")
    original, store_error = store.create, ObjectChangedError("Read-only file system")
    monkeypatch.setattr(store, "create", ReadOnly().create)
    assert rows_of(open_tars(urls[:3])) == rows_of_files(urls[:3])
    with pytest.warns(ShoalWarning, match="Read-only file system"):
        assert rows_of(open_tars(urls)) == rows_of_files(urls)
    assert scans.take() == ["003.tar", "004.tar"]
    assert not [path for path in cache_files() if ".partial" in str(path)]


def test_segments_that_cannot_be_written_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: Scans
) -> None:
    urls = write_tars(tmp_path, 3)
    Path(os.environ["SHOAL_CACHE"]).mkdir(exist_ok=True)
    Path(os.environ["SHOAL_CACHE"], "lists").write_bytes(b"in the way")
    for count in (3, 0):
        with pytest.warns(ShoalWarning, match="cannot be kept in the cache"):
            assert rows_of(open_tars(urls)) == rows_of_files(urls)
        assert len(scans.take()) == count


def test_the_limit_of_the_cache_holds(tmp_path: Path) -> None:
    limit, urls = 3 << 20, write_tars(tmp_path, 12, samples=200)
    configure(str(tmp_path), cache_bytes=limit)
    expected = rows_of_files(urls)
    for turn in range(24):
        table = open_tars(urls[turn % 12 :] + urls[: turn % 12] + urls[: turn // 12])
        assert table.key(len(table) - 1) == rows_of_files(urls[(turn + 11) % 12 if turn < 12 else 0 :][:1])[-1][0]
    assert limit // 2 < sum(path.stat().st_size for path in cache_files()) < limit
    assert 2 < len(cached_lists()) < 24
    assert rows_of(open_tars(urls)) == expected


def test_a_list_that_is_being_written_is_not_removed(tmp_path: Path) -> None:
    lists = Path(os.environ["SHOAL_CACHE"], "lists")
    (lists / ".abc.partial").mkdir(parents=True)
    (lists / ".abc.partial" / "file").write_bytes(bytes(100_000))
    (lists / "old").mkdir()
    (lists / "old" / "file").write_bytes(bytes(100_000))
    os.utime(lists / "old", (1, 1))
    configure(str(tmp_path), cache_bytes=10_000)
    open_tars(write_tars(tmp_path, 1))
    assert (lists / ".abc.partial").exists()
    assert not (lists / "old").exists()


def test_a_file_of_another_user_of_the_cache_is_no_list(tmp_path: Path) -> None:
    urls = write_tars(tmp_path, 2)
    table = open_tars(urls)
    for path in cache_files("lists"):
        path.unlink()
    assert rows_of(open_tars(urls)) == rows_of(table)


# ------------------------------------------------------------------------------------------------------- more processes

_OPEN = """
import sys
from shoal.shard._foreign_tars import open_tars
done = []
sys.stdin.readline()
table = open_tars(sys.argv[1:], on_indexed=done.append)
print(sum(tar.state == "indexed" for tar in done), len(done), len(table))
"""
_DIE = """
import os, signal, sys
from shoal.shard import _foreign_tars as module
original, calls = getattr(module, sys.argv[1]), []
def die(*args, **options):
    calls.append(args)
    if len(calls) == 3 or sys.argv[1] != "write_rows_file":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **options)
setattr(module, sys.argv[1], die)
module.open_tars(sys.argv[2:])
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_several_processes_scan_each_tar_once(tmp_path: Path, scans: Scans) -> None:
    urls = write_tars(tmp_path, 60)
    processes = [start(_OPEN, *urls) for _ in range(3)]
    for process in processes:  # all have been started: now all begin
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], found
    counts = [list(map(int, out.split())) for out, _ in found]
    assert sum(count[0] for count in counts) == 60
    assert [count[1:] for count in counts] == [[60, 240]] * 3
    assert rows_of(open_tars(urls)) == rows_of_files(urls)
    assert not scans.take()


@pytest.mark.parametrize("step", ["write_rows_file", "write_document", "write_segments", "_replace_folder"])
def test_a_killed_process_leaves_nothing_that_is_half_done(tmp_path: Path, step: str, scans: Scans) -> None:
    urls = write_tars(tmp_path, 6)
    with start(_DIE, step, *urls) as process:
        process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert rows_of(open_tars(urls)) == rows_of_files(urls)
    assert len(scans.take()) in ((4, 5) if step == "write_rows_file" else (0,))  # two threads scan
    assert [path.name[0] == "." for path in cached_lists()] == [False]


# --------------------------------------------------------------------------------------------------------- other stores


def test_over_http(http: Any, scans: Scans) -> None:  # noqa: F811 - the fixture
    archives = {f"/d/{number}.tar": by_tarfile(members(5, f"{number}-")) for number in range(4)}
    archives["/d/4.tar.gz"] = gzip.compress(by_tarfile(members(5, "z")), mtime=0)
    http.objects.update(archives)
    urls = [f"{http.url}{path}" for path in archives]
    expected = [
        row for path, data in archives.items() for row in oracle(gzip.decompress(data) if "gz" in path else data)
    ]
    assert rows_of(open_tars(urls)) == expected
    assert len(scans.take()) == 5
    http.requests.clear()
    table = open_tars(urls)
    assert rows_of(table) == expected
    assert {method for method, *_ in http.requests} == {"HEAD"}
    assert (len(http.requests), scans.take()) == (5, [])


def test_in_an_object_store(s3: str, scans: Scans) -> None:  # noqa: F811 - the fixture
    for number in range(4):
        store_for(s3).write_all(f"{s3}/{number}.tar", by_tarfile(members(5, f"{number}-")))
    infos = list(store_for(s3).list(s3))
    expected = rows_of_files([info.url for info in infos])
    for count in (4, 0):
        assert rows_of(open_tars(infos)) == expected
        assert len(scans.take()) == count
    assert rows_of(open_tars([info.url for info in infos])) == expected
    assert not scans.take()


def test_tars_in_memory_leave_nothing_on_disk() -> None:
    store_for("memory://").write_all("memory://foreign/a.tar", by_tarfile(members(5)))
    for _ in range(2):
        assert rows_of(open_tars(["memory://foreign/a.tar"])) == oracle(by_tarfile(members(5)))
    assert not cache_files()


def test_a_signature_in_a_url_stays_out_of_the_cache(http: Any) -> None:  # noqa: F811 - the fixture
    http.objects["/a.tar"] = by_tarfile(members(5))
    http.secret = "signature=123456"
    url = f"{http.url}/a.tar?{http.secret}"
    assert open_tars([url]).shard_url(0) == url
    assert all(b"123456" not in path.read_bytes() for path in cache_files())


# --------------------------------------------------------------------------------------------- indexes of other loaders


def export(url: str, loader: str) -> None:
    reader = store_for(url).open(url)
    rows = index_shard(reader)
    if loader == "dali":
        export_dali_idx(rows, url.removesuffix(".tar") + ".idx")
    else:
        export_tar_idx(rows, f"{url}.idx", reader)
    reader.close()


@pytest.mark.parametrize("loader", ["dali", "energon"])
def test_indexes_of_other_loaders_are_imported(tmp_path: Path, loader: Any, scans: Scans) -> None:
    urls, done = write_tars(tmp_path, 3), list[IndexedTar]()
    for url in urls:
        export(url, loader)
    table = open_tars(urls, IndexOptions(loader=loader), on_indexed=done.append)
    assert [tar.state for tar in done] == ["imported"] * 3
    expected = [
        (key, {name: (offset, size, None if size else 0) for name, (offset, size, _) in own.items()})
        for key, own in rows_of_files(urls)
    ]
    assert rows_of(table) == expected
    assert rows_of(open_tars(urls)) == expected
    assert rows_of(open_tars(urls[1:])) == expected[4:]
    assert not scans.take()
    with index_tars(urls) as rows:  # a scan says more
        assert len(rows) == 3
    assert len(scans.take()) == 3
    assert rows_of(open_tars(urls[:2])) == rows_of_files(urls[:2])


def test_an_index_that_does_not_fit_its_tar(tmp_path: Path) -> None:
    urls, errors = write_tars(tmp_path, 2), list[ShoalError]()
    for url in urls:
        export(url, "dali")
    Path(urls[1]).write_bytes(by_tarfile(members(9, "b")))
    options = IndexOptions(loader="dali")
    with pytest.raises(StaleIndexError) as caught:
        open_tars(urls, options)
    assert caught.value.shard == urls[1]
    assert open_tars(urls, options, on_damage=errors.append).shard_count == 1
    assert [error.shard for error in errors] == [urls[1]]


# --------------------------------------------------------------------------------------------------------- rows of tars


def test_rows_of_tars_are_sources_of_one_batch(tmp_path: Path) -> None:
    urls = write_tars(tmp_path, 3)
    with index_tars(urls) as sources:
        for url, source in zip(urls, sources, strict=True):
            (batch,) = source.batches()
            assert batch.shards["path"].to_pylist() == [url]
            assert (source.summary.rows, source.info.url, source.record.samples) == (4, url, 4)
        for path in cache_files():
            path.unlink()
        assert [len(batch.keys) for source in sources for batch in source.batches()] == [4, 4, 4]
    assert len(cache_files("index")) == 3
    assert all(RowsFile(str(path)).record.samples == 4 for path in cache_files("index"))


def test_two_hundred_tiny_tars(tmp_path: Path) -> None:
    urls = write_tars(tmp_path, 200, samples=2)
    table = open_tars(urls)
    assert (len(table.segments), table.shard_count) == (1, 200)
    assert rows_of(table) == rows_of_files(urls)


def test_a_list_has_the_same_id_whenever_it_is_made(tmp_path: Path) -> None:
    urls, ids = write_tars(tmp_path, 2), set()
    for chosen in (urls, urls, urls[:1]):
        generation = load_generation(open_tars(chosen, IndexOptions(force=True)).root)
        assert generation is not None
        assert generation.rule == WEBDATASET_RULE
        ids.add((generation.id, generation.lineage))
    assert len(ids) == 2


def test_shards_that_wids_lists(tmp_path: Path) -> None:
    urls, done = write_tars(tmp_path, 3), dict[str, IndexedTar]()
    export_wids([WidsShard(url, 4, os.path.getsize(url)) for url in urls], str(tmp_path / "index.json"))
    shards = import_wids(str(tmp_path / "index.json"))
    table = open_tars([shard.url for shard in shards], on_indexed=lambda tar: done.update({tar.url: tar}))
    assert rows_of(table) == rows_of_files(urls)
    for shard in shards:
        check_wids(shard, done[shard.url].samples, done[shard.url].bytes)


def test_energons_database_is_below_the_root(tmp_path: Path) -> None:
    (url,) = write_tars(tmp_path / "deep", 1)
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / ".info.json").write_text('{"shard_counts": {"deep/000.tar": 4}}')
    rows = oracle(Path(url).read_bytes())
    with contextlib.closing(sqlite3.connect(tmp_path / ".nv-meta" / "index.sqlite")) as database, database:
        database.execute("CREATE TABLE samples (tar_file_id, sample_key, sample_index, byte_offset, byte_size)")
        names = "tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size"
        database.execute(f"CREATE TABLE sample_parts ({names})")
        for number, (key, own) in enumerate(rows):
            start = min(offset for offset, _, _ in own.values()) - 512
            stop = max(offset + -(-size // 512) * 512 for offset, size, _ in own.values())
            database.execute("INSERT INTO samples VALUES (0, ?, ?, ?, ?)", (key, number, start, stop - start))
            for name, (offset, size, _) in own.items():
                database.execute("INSERT INTO sample_parts VALUES (0, ?, ?, ?, ?)", (number, name, offset, size))
    table = open_tars([url], IndexOptions(loader="energon", root=str(tmp_path)))
    assert [(key, {name: extent[:2] for name, extent in own.items()}) for key, own in rows_of(table)] == [
        (key, {name: extent[:2] for name, extent in own.items()}) for key, own in rows
    ]


def test_urls_must_have_one_for_each_shard(tmp_path: Path) -> None:
    table = open_tars(write_tars(tmp_path, 2))
    with pytest.raises(OptionError, match="one for each shard"):
        SplitTable(table.root, table.segments, table._open_files, ["a.tar"])


def test_paths_of_a_dataset_lead_into_it(tmp_path: Path) -> None:
    table = open_tars(write_tars(tmp_path, 2))
    plain = SplitTable(table.root, table.segments, table._open_files)
    with pytest.raises(ShoalError, match="leads out of the dataset"):
        plain.shard_url(0)


def test_watched_tars_are_read_once(scans: Scans) -> None:
    store: WatchedStore = watched_store()
    archive = by_tarfile(members(50))
    store.write_all("watched://d/a.tar", archive)
    open_tars(["watched://d/a.tar"])
    assert store.bytes_read < 1.2 * len(archive) + 2048
    store.ranges.clear()
    assert len(open_tars(["watched://d/a.tar"])) == 50
    assert not store.ranges
