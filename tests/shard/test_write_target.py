"""What a write may do in a folder, by what is there."""

from __future__ import annotations

import uuid

import pytest
from tests.shard.test_segment import RowList, plain_shard

from shoal.errors import ObjectExistsError
from shoal.shard._changes import append_rows
from shoal.shard._generation import NO_GENERATION
from shoal.shard._manifest import ShardRecord
from shoal.shard._rows_file import RowsFile
from shoal.shard._shard_rows import IndexMetadata, ShardRows
from shoal.shard._write_target import load_target, paths_to_replace
from shoal.shard._writing import WriteHead, Writing
from shoal.store._registry import store_for


@pytest.fixture(params=["disk", "memory"])
def root(request, tmp_path):
    return str(tmp_path / "data") if request.param == "disk" else f"memory://{uuid.uuid4()}"


def put_tars(root: str, *paths: str) -> None:
    for path in paths:
        store_for(root).write_all(f"{root}/{path}", bytes(1024))


def append(root: str, split: str, *paths: str) -> None:
    put_tars(root, *paths)
    append_rows(root, {split: [RowList([plain_shard(path, 2) for path in paths])]})


def ask(root, splits=("train",), names=("a-000000.tar", "a-000001.tar"), pattern="a-%06d.tar", **options):
    return paths_to_replace(load_target(root, pattern), splits, names.__contains__, **options)


def finish_shard(writing: Writing, path: str) -> None:
    (batch,) = RowList([plain_shard(path, 2)]).batches()
    rows = ShardRows(IndexMetadata(1024, 0), batch.keys, batch.fields, {}, None)
    writing.add(ShardRecord(path, 2, 1024, fields={"jpg": (2, 14)}), rows)
    put_tars(writing.root, path)
    assert RowsFile(writing.rows_url(0)).record.path == path


def test_an_empty_folder_may_be_written_to(root):
    target = load_target(root, "a-%06d.tar")
    assert (target.generation, target.unlisted, target.unfinished) == (NO_GENERATION, (), ())
    assert ask(root) == ask(root, overwrite=True) == []


def test_a_new_split_may_be_written(root):
    append(root, "val", "b-000000.tar")
    assert ask(root) == []
    assert ask(root, overwrite=True) == []


def test_a_split_is_replaced_only_if_that_is_asked(root):
    append(root, "train", "old-000000.tar", "a-000000.tar")
    append(root, "val", "b.tar")
    with pytest.raises(
        ObjectExistsError, match=r"Split 'train' already exists.*old-000000\.tar.*append=True.*overwrite"
    ):
        ask(root)
    with pytest.raises(ObjectExistsError, match="Choose another folder or pass overwrite=True"):
        ask(root, can_append=False)
    assert ask(root, overwrite=True) == ["old-000000.tar", "a-000000.tar"]


def test_a_write_that_began_may_join_its_split_but_not_take_its_names(root):
    append(root, "train", "old-000000.tar")
    assert ask(root, join=True) == []
    append(root, "train", "a-000001.tar")
    with pytest.raises(ObjectExistsError, match=r"Split 'train' already exists.*a-000001\.tar"):
        ask(root, join=True)


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"join": True}])
def test_shards_of_another_split_are_never_replaced(root, options):
    append(root, "val", "a-000000.tar", "b-000000.tar")
    with pytest.raises(ObjectExistsError, match=r"Split 'val' has shards of the names.*a-000000\.tar.*append=True for"):
        ask(root, **options)


def test_two_words_for_a_split_are_one(root):
    append(root, "validation", "old-000000.tar")
    with pytest.raises(ObjectExistsError, match="Split 'validation' already exists"):
        ask(root, splits=("val",))
    assert ask(root, splits=("dev",), overwrite=True) == ["old-000000.tar"]


def test_tars_without_a_manifest_are_not_hidden(root):
    put_tars(root, "a-000000.tar", "x.tar", "y.tar", "z.tar", "zz.tar")
    with pytest.raises(
        ObjectExistsError, match=r"tars that the new dataset would hide.*'x\.tar', .* and 1 more"
    ) as caught:
        ask(root, overwrite=True)
    assert caught.value.hint == "Choose another folder, or pass append=True to make them part of the dataset"
    with pytest.raises(ObjectExistsError, match="Choose another folder or move them"):
        ask(root, can_append=False)


def test_tars_of_the_same_names_are_replaced_only_if_that_is_asked(root):
    put_tars(root, "a-000000.tar")
    with pytest.raises(ObjectExistsError, match=r"Dataset already exists.*a-000000\.tar"):
        ask(root)
    assert ask(root, overwrite=True) == ["a-000000.tar"]


def test_shards_of_another_write_are_not_those_of_a_dataset(root):
    with Writing.begin(root, WriteHead("write", "b-%06d.tar", "train")) as writing:
        assert ask(root) == []  # nothing is finished
        finish_shard(writing, "b-000000.tar")
        assert load_target(root, "a-%06d.tar").unlisted == ()
        assert ask(root, splits=("val",)) == []
        with pytest.raises(
            ObjectExistsError, match=r"Split 'train' is being written, or its .*resume=True, or choose an"
        ):
            ask(root)
        assert ask(root, overwrite=True) == ask(root, join=True) == []
        own = load_target(root, "b-%06d.tar")
        assert (own.unfinished, [write.id for write in own.own]) == ((), [writing.id])
        writing.discard()


def test_staged_shards_of_another_write_do_not_count(root):
    with Writing.begin(root, WriteHead("overwrite", "b-%06d.tar", "train", staged=True)) as writing:
        assert load_target(root, "a-%06d.tar").unfinished == ()
        writing.discard()
