"""Folders of tars that become datasets, against what ``tarfile`` reads of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.shard.archives import by_tarfile
from tests.shard.test_foreign_tars import Scans, export, members, oracle, rows_of, rows_of_files, scans  # noqa: F401
from tests.store.conftest import _own_options, s3, s3_endpoint  # noqa: F401 - fixtures

from shoal.errors import (
    FieldError,
    ManifestError,
    ObjectNotFoundError,
    OptionError,
    StaleIndexError,
    TruncatedError,
)
from shoal.shard import _folder_index as module
from shoal.shard._changes import append_rows, delete_rows
from shoal.shard._commit import load_generation
from shoal.shard._folder_index import index_folder, tars_by_split
from shoal.shard._foreign_tars import IndexedTar, IndexOptions, index_tars, open_tars
from shoal.shard._generation import Generation
from shoal.shard._member_names import KeyRule
from shoal.shard._records import OpenFiles
from shoal.shard._split_table import SplitTable
from shoal.shard._writing import WriteHead, Writing
from shoal.store._registry import store_for

FORCE = IndexOptions(force=True)


def fill(root: str, names: Sequence[str], samples: int = 4) -> list[str]:
    urls = [f"{root}/{name}.tar" for name in names]
    for url in urls:
        store_for(url).write_all(url, by_tarfile(members(samples, f"{os.path.basename(url)[:-4]}-")))
    return urls


def table_of(root: str, split: str = "train") -> SplitTable:
    generation = load_generation(root)
    assert generation is not None
    return SplitTable(root, generation.splits[split].segments, OpenFiles())


def paths_of(root: str, generation: Generation) -> dict[str, list[str]]:
    return {name: table_of(root, name).shards()["path"].to_pylist() for name in generation.splits}


@pytest.fixture(params=["local", "file", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path / "my data"
    if request.param == "s3":
        found: str = request.getfixturevalue("s3")
        return found
    names = {"local": str(folder), "file": folder.as_uri(), "memory": f"memory://{request.node.name}"}
    return names[request.param]


def test_a_folder_becomes_a_dataset_and_grows(root: str, scans: Scans) -> None:  # noqa: F811 - the fixture
    urls = fill(root, ["b", "a", "deep/c"])
    first = index_folder(root)
    assert len(scans.take()) == 3
    assert paths_of(root, first) == {"train": ["a.tar", "b.tar", "deep/c.tar"]}
    table = table_of(root)
    assert rows_of(table) == rows_of_files(sorted(urls))
    assert [store_for(root).info(table.shard_url(n)).size for n in range(3)] == table.shards()["bytes"].to_pylist()
    assert index_folder(root) == first
    more = fill(root, ["0", "val-0"])
    second, done = index_folder(root, on_indexed=(found := []).append), found
    assert scans.take() == ["0.tar", "val-0.tar"]
    assert sorted((tar.url.removeprefix(f"{root}/"), tar.state) for tar in done) == [
        ("0.tar", "indexed"),
        ("a.tar", "kept"),
        ("b.tar", "kept"),
        ("deep/c.tar", "kept"),
        ("val-0.tar", "indexed"),
    ]
    assert paths_of(root, second) == {"train": ["a.tar", "b.tar", "deep/c.tar", "0.tar"], "validation": ["val-0.tar"]}
    assert second.lineage == first.lineage
    assert rows_of(table_of(root)) == rows_of_files([*sorted(urls), more[0]])
    assert rows_of(table_of(root, "validation")) == rows_of_files(more[1:])


def test_what_was_opened_before_is_not_scanned_again(tmp_path: Path, scans: Scans) -> None:  # noqa: F811
    urls = fill(str(tmp_path), ["a", "b"])
    open_tars(urls)
    scans.take()
    index_folder(str(tmp_path))
    assert not scans.take()
    assert table_of(str(tmp_path)).shard_path(0) == "a.tar"


def test_many_runs_leave_few_segments(tmp_path: Path) -> None:
    root = str(tmp_path)
    for number in range(12):
        fill(root, [f"{number:02d}"])
        index_folder(root)
    table = table_of(root)
    assert len(table.segments) < 5
    assert rows_of(table) == rows_of_files([f"{root}/{number:02d}.tar" for number in range(12)])


def test_energon_lists_the_splits(tmp_path: Path) -> None:
    root = str(tmp_path)
    fill(root, ["a", "b", "c", "d"])
    text = "split_parts: {train: ['{c,a}.tar'], val: [b.tar], test: [d.tar]}\nexclude: [d.tar]"
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "split.yaml").write_text(text)
    splits = tars_by_split(root)
    assert {name: [os.path.basename(info.url) for info in infos] for name, infos in splits.items()} == {
        "train": ["c.tar", "a.tar"],
        "val": ["b.tar"],
        "test": [],
    }
    assert rows_of(open_tars(splits["train"])) == rows_of_files([f"{root}/c.tar", f"{root}/a.tar"])
    assert paths_of(root, index_folder(root)) == {"train": ["c.tar", "a.tar"], "val": ["b.tar"]}


def test_a_tar_in_two_splits_and_one_that_is_left_out_later(tmp_path: Path) -> None:
    root, listing = str(tmp_path), tmp_path / ".nv-meta" / "split.yaml"
    urls = fill(root, ["a", "b"])
    listing.parent.mkdir()
    listing.write_text("split_parts: {train: [a.tar, b.tar], val: [b.tar]}")
    splits = {"train": ["a.tar", "b.tar"], "val": ["b.tar"]}
    assert paths_of(root, index_folder(root)) == splits
    listing.write_text("split_parts: {train: [a.tar]}\nexclude: [b.tar]")
    assert paths_of(root, index_folder(root)) == splits
    assert paths_of(root, index_folder(root, FORCE)) == splits
    assert rows_of(table_of(root, "val")) == rows_of_files(urls[1:])


def test_only_the_tars_that_were_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "d")
    urls = fill(root, ["a", "b", "c"])
    monkeypatch.chdir(tmp_path)
    assert paths_of(root, index_folder(root, tars=["d/a.tar", urls[2]])) == {"train": ["a.tar", "c.tar"]}
    assert paths_of(root, index_folder("d", tars=["./d/b.tar"])) == {"train": ["a.tar", "c.tar", "b.tar"]}
    for name in ("d/x.tar", "x.tar", "memory://d/x.tar"):
        with pytest.raises((ObjectNotFoundError, OptionError)):
            index_folder(root, tars=[name])
    monkeypatch.chdir(root)
    assert index_folder(".") == load_generation(root)


def test_a_folder_without_tars(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1")
    with pytest.raises(ObjectNotFoundError, match="no tar shards"):
        index_folder(str(tmp_path))


def test_a_damaged_tar_is_named_and_nothing_is_committed(tmp_path: Path) -> None:
    urls = fill(str(tmp_path), ["a", "b"])
    Path(urls[1]).write_bytes(Path(urls[1]).read_bytes()[:2000])
    with pytest.raises(TruncatedError) as caught:
        index_folder(str(tmp_path))
    assert caught.value.shard == urls[1]
    assert load_generation(str(tmp_path)) is None


def test_the_key_rule_is_that_of_the_dataset(tmp_path: Path) -> None:
    root, rule = str(tmp_path), KeyRule(dot="last")
    (tmp_path / "a.tar").write_bytes(by_tarfile([("a.b.txt", b"1")]))
    assert index_folder(root, IndexOptions(rule)).rule == rule
    (tmp_path / "b.tar").write_bytes(by_tarfile([("b.b.txt", b"1")]))
    index_folder(root)
    assert [key for key, _ in rows_of(table_of(root))] == ["a.b", "b.b"]
    with pytest.raises(OptionError, match="key rule of the dataset"):
        index_folder(root, IndexOptions(KeyRule(case="keep")))


def test_columns_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    for name, value in (("a", b"1"), ("b", b'"x"')):
        (tmp_path / f"{name}.tar").write_bytes(by_tarfile([(f"{name}.json", b'{"v": %s, "w": 1}' % value)]))
        index_folder(str(tmp_path))
    table = table_of(str(tmp_path))
    assert table.columns(["json.w"])["json.w"].to_pylist() == [1, 1]
    with pytest.raises(FieldError, match=r"json\.v"):
        table.columns(["json.v"])


# ------------------------------------------------------------------------------------------------- tars that changed


def test_tars_that_changed_or_are_missing_are_errors(root: str, scans: Scans) -> None:  # noqa: F811 - the fixture
    urls = fill(root, ["a", "b", "c", "d", "e"])
    before = index_folder(root)
    original = store_for(root).read_all(urls[1])
    for change in (by_tarfile(members(9, "x")), by_tarfile(members(4, "b+"))):  # the second one of the same size
        store_for(root).write_all(urls[1], change)
        with pytest.raises(StaleIndexError, match=r"b\.tar.*--force"):
            index_folder(root)
    store_for(root).write_all(urls[1], original)
    for url in urls[1:]:
        store_for(root).delete(url)
    with pytest.raises(ObjectNotFoundError, match=r"b\.tar, c\.tar, d\.tar and 1 more.*--force"):
        index_folder(root)
    assert load_generation(root) == before


def test_force_indexes_again_what_is_there(root: str, scans: Scans) -> None:  # noqa: F811 - the fixture
    urls = fill(root, ["a", "b", "c", "val-0"])
    before = index_folder(root)
    store_for(root).write_all(urls[1], by_tarfile(members(9, "x")))
    store_for(root).delete(urls[0])
    fill(root, ["0"])
    scans.take()
    after = index_folder(root, FORCE)
    assert scans.take() == ["0.tar", "b.tar", "c.tar", "val-0.tar"]
    assert paths_of(root, after) == {"train": ["b.tar", "c.tar", "0.tar"], "validation": ["val-0.tar"]}
    assert rows_of(table_of(root)) == rows_of_files([urls[1], urls[2], f"{root}/0.tar"])
    assert after.lineage != before.lineage
    assert not after.pending
    assert index_folder(root) == after


def test_force_keeps_what_else_the_dataset_has(tmp_path: Path) -> None:
    root = str(tmp_path)
    urls = fill(root, ["a", "b", "c"])
    with index_tars(urls[:2]) as rows:
        sources = [module.PathRows(source, name) for source, name in zip(rows, ["a.tar", "b.tar"], strict=True)]
        append_rows(root, {"own": sources}, metadata={"by": "me"})
    after = index_folder(root, FORCE, tars=[urls[1], urls[2]])
    assert after.metadata == {"by": "me"}
    assert paths_of(root, after) == {"own": ["a.tar", "b.tar"], "train": ["c.tar"]}
    assert rows_of(table_of(root, "own")) == rows_of_files(urls[:2])


def test_deleted_samples_stay_deleted(tmp_path: Path) -> None:
    root = str(tmp_path)
    urls = fill(root, ["a", "b", "c", "d"])
    before = index_folder(root)
    delete_rows(root, {"train": np.array([0, 5, 6, 9, 15])}, lineage=before.lineage)
    deleted = {table_of(root).key(row) for row in table_of(root).deleted().as_array().tolist()}
    Path(urls[1]).write_bytes(by_tarfile(members(9, "b-")[3:]))  # 5 and 6 of the dataset are at other places there
    Path(urls[0]).unlink()
    index_folder(root, FORCE, tars=None)
    table = table_of(root)
    assert {table.key(row) for row in table.deleted().as_array().tolist()} == deleted - {"a-000"}
    assert len(table) == sum(len(oracle(Path(url).read_bytes())) for url in urls[1:])


def test_imported_indexes_are_replaced_by_a_scan(tmp_path: Path, scans: Scans) -> None:  # noqa: F811
    root = str(tmp_path)
    urls, done = fill(root, ["a", "b"]), list[IndexedTar]()
    for url in urls:
        export(url, "dali")
    index_folder(root, IndexOptions(loader="dali"), on_indexed=done.append)
    assert ([tar.state for tar in done], scans.take()) == (["imported"] * 2, [])
    assert [key for key, _ in rows_of(table_of(root))] == [key for key, _ in rows_of_files(urls)]
    index_folder(root, FORCE)
    assert rows_of(table_of(root)) == rows_of_files(urls)


# ------------------------------------------------------------------------------------------------------ other writers


def test_a_folder_that_somebody_writes_is_refused(tmp_path: Path) -> None:
    root = str(tmp_path)
    fill(root, ["a"])
    with Writing.begin(root, WriteHead("write", "x-%06d.tar", "train")) as writing:
        with pytest.raises(ManifestError, match=r"x-%06d\.tar"):
            index_folder(root)
        writing.discard()
    assert index_folder(root).splits["train"].rows == 4


def test_tars_that_somebody_else_adds_at_the_same_time_are_added_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, runs = str(tmp_path), list[Any]()
    urls = fill(root, ["a", "b", "c"])
    original = module.append_rows

    def append_late(*args: Any, **options: Any) -> Generation:
        if not runs:
            runs.append(None)
            runs.append(index_folder(root, tars=urls[:2]))
        return original(*args, **options)

    monkeypatch.setattr(module, "append_rows", append_late)
    generation = index_folder(root)
    assert paths_of(root, generation) == {"train": ["a.tar", "b.tar", "c.tar"]}
    assert generation.parent == runs[1].id
    assert replace(index_folder(root), id="") == replace(generation, id="")
