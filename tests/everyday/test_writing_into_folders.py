"""A writer joins a folder that is empty, or where its split is new and its schema fits; else only when asked to."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile

import pytest

import shoal
from shoal.build import build_shards, merge, reshard
from shoal.errors import ObjectExistsError, ObjectNotFoundError, OptionError, SchemaMismatchError, WriteError
from shoal.formats import webdataset, write_format
from shoal.shard import ShardingService
from shoal.store import store_for

pytestmark = pytest.mark.usefixtures("commits")
only_manifest = pytest.mark.parametrize("commits", ["manifest"], indirect=True)
only_segments = pytest.mark.parametrize("commits", ["segments"], indirect=True)


@shoal.packable
class Cat:
    name: str


@shoal.packable
class Dog:
    weight: float


CATS = [Cat(f"cat {number}") for number in range(3)]


@pytest.fixture(params=["file", "memory"])
def place(request, tmp_path):
    return str(tmp_path / "d") if request.param == "file" else f"memory://joining/{os.urandom(8).hex()}"


def samples(count=2, prefix="new"):
    return [{"__key__": f"{prefix}{number}", "txt": f"{prefix} {number}"} for number in range(count)]


def put_tar(url, rows):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for row in rows:
            info = tarfile.TarInfo(f"{row['__key__']}.txt")
            info.size = len(row["txt"])
            tar.addfile(info, io.BytesIO(row["txt"].encode()))
    store_for(url).write_all(url, out.getvalue())


def put_foreign(place, count=20):
    for number in range(count):
        put_tar(f"{place}/foreign-{number:03d}.tar", samples(5, f"old{number:03d}-"))


def keys(place, **options):
    return [sample["__key__"] for sample in shoal.Dataset(place, sample_type=dict, **options)]


def contents(place):
    infos = [info for info in store_for(place).list(place) if not info.url.endswith("/lock")]
    return {info.url: store_for(place).read_all(info.url) for info in infos}


def write_with_shard_writer(place, rows, **options):
    with shoal.ShardWriter(f"{place}/x-%06d.tar", **options) as writer:
        for row in rows:
            writer.write(row)


def build(place, rows, **options):
    build_shards(rows, place, workers=1, **options)


def reshard_into(place, rows, **options):
    source = f"memory://sources/{os.urandom(8).hex()}"
    shoal.write_samples(rows, source)
    reshard(source, place, workers=1, **options)


def merge_into(place, rows, **options):
    source = f"memory://sources/{os.urandom(8).hex()}"
    shoal.write_samples(rows, source)
    merge([source], place, workers=1, **options)


def from_parquet(place, rows, **options):
    source = f"memory://sources/{os.urandom(8).hex()}/a.parquet"
    shoal.write_samples(rows, f"{source}.shards").to_parquet(source)
    shoal.Dataset.from_parquet(source, place, **options)


WRITERS = {
    "ShardWriter": write_with_shard_writer,
    "write_samples": lambda place, rows, **options: shoal.write_samples(rows, place, **options),
    "write_samples to a tar": lambda place, rows, **options: shoal.write_samples(rows, f"{place}/one.tar", **options),
    "ShardingService": lambda place, rows, **options: ShardingService(place).create_shards_from_data(rows, **options),
    "webdataset.write": lambda place, rows, **options: webdataset.write(f"{place}/w-%06d.tar", rows, **options),
    "write_format": lambda place, rows, **options: write_format(place, rows, format="webdataset", **options),
    "from_parquet": from_parquet,
    "build_shards": build,
    "reshard": reshard_into,
    "merge": merge_into,
}
APPENDING = sorted(WRITERS.keys() - {"build_shards", "reshard", "merge"})


def for_each_format(writers):
    """Builds, resharding and merging write the old format only."""
    pairs = [
        (commits, write)
        for write in writers
        for commits in ("manifest", "segments")
        if commits == "manifest" or not write.startswith(("build", "reshard", "merge"))
    ]
    return pytest.mark.parametrize("commits, write", pairs, indirect=["commits"])


every_writer = for_each_format(WRITERS)


@every_writer
def test_an_empty_folder_takes_any_writer(place, write):
    WRITERS[write](place, samples())
    assert keys(place) == ["new0", "new1"]


@every_writer
@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_tars_are_not_hidden(place, write, overwrite):
    put_foreign(place)
    before = contents(place)
    with pytest.raises(ObjectExistsError, match=r"would hide.*another folder"):
        WRITERS[write](place, samples(), overwrite=overwrite)
    assert contents(place) == before
    assert len(shoal.Dataset(place)) == 100


@every_writer
@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv.gz"])
def test_files_of_another_format_are_not_hidden(place, write, ending):
    write_format(f"{place}/data.{ending}", [{"n": number} for number in range(3)])
    before = contents(place)
    for overwrite in (False, True):
        with pytest.raises(ObjectExistsError, match=r"another format.*another folder"):
            WRITERS[write](place, samples(), overwrite=overwrite)
    assert contents(place) == before
    assert len(shoal.Dataset(place)) == 3
    if write in APPENDING:
        WRITERS[write](place, samples(), append=True)
        assert keys(place) == ["new0", "new1"]
    WRITERS[write](f"{place}/shards", samples())
    assert keys(f"{place}/shards") == ["new0", "new1"]


@pytest.mark.parametrize("write", APPENDING)
def test_appending_makes_foreign_tars_part_of_the_dataset(place, write):
    put_foreign(place)
    old = keys(place)
    WRITERS[write](place, samples(), append=True)
    assert keys(place) == [*old, "new0", "new1"]
    assert shoal.Dataset(place).get("old003-2")["txt"] == "old003- 2"


@every_writer
def test_another_dataset_of_the_split_is_not_joined(place, write):
    shoal.write_samples(samples(3, "old"), f"{place}/data-%06d.tar")
    before = contents(place)
    with pytest.raises(ObjectExistsError, match=r"'train' already exists.*overwrite=True"):
        WRITERS[write](place, samples())
    assert contents(place) == before


@pytest.mark.parametrize(
    "write", [shoal.write_samples, lambda rows, path, **options: webdataset.write(path, rows, **options)]
)
def test_tars_are_written_one_by_one_with_append(place, write):
    for number in range(3):
        write(samples(2, f"part{number}-"), f"{place}/data-{number:03d}.tar", append=True)
    assert len(shoal.Dataset(place)) == len(shoal.Dataset(f"{place}/*.tar")) == 6
    before = contents(place)
    with pytest.raises(ObjectExistsError, match="append=True"):
        write(samples(), f"{place}/other.tar")
    with pytest.raises((FileExistsError, OptionError)):
        write(samples(), f"{place}/data-001.tar", append=True)
    assert contents(place) == before


@pytest.mark.parametrize("write", APPENDING)
def test_appending_joins_another_dataset(place, write):
    shoal.write_samples(samples(3, "old"), f"{place}/data-%06d.tar")
    WRITERS[write](place, samples(), append=True)
    assert keys(place) == ["old0", "old1", "old2", "new0", "new1"]


@every_writer
def test_overwriting_replaces_the_split_and_nothing_else(place, write):
    shoal.write_samples(samples(3, "old"), f"{place}/data-%06d.tar", max_samples=1)
    shoal.write_samples(samples(2, "kept"), f"{place}/val-%06d.tar")
    WRITERS[write](place, samples(), overwrite=True)
    assert keys(place, split="train") == ["new0", "new1"]
    assert keys(place, split="validation") == ["kept0", "kept1"]
    assert not [url for url in contents(place) if "data-" in url]


@pytest.mark.parametrize("write", ["ShardWriter", "write_samples", "webdataset.write"])
def test_a_new_split_joins(place, write):
    shoal.write_samples(samples(3, "old"), f"{place}/train-%06d.tar")
    WRITERS[write](place, samples(), split="test")
    assert (len(keys(place, split="train")), keys(place, split="test")) == (3, ["new0", "new1"])


SPLIT_WRITERS = {
    "ShardWriter": lambda place, rows, split, **options: write_with_shard_writer(place, rows, split=split, **options),
    "write_samples": lambda place, rows, split, **options: shoal.write_samples(rows, place, split=split, **options),
    "ShardingService": lambda place, rows, split, **options: ShardingService(place).create_shards_from_data(
        rows, {"split": split}, **options
    ),
    "build_shards": lambda place, rows, split, **options: build(place, rows, split=split, **options),
    "build_shards, x": lambda place, rows, split, **options: build(f"{place}/x-%06d.tar", rows, split=split, **options),
}


@for_each_format(SPLIT_WRITERS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_no_split_is_lost_to_another_of_the_same_names(place, write, overwrite):
    SPLIT_WRITERS[write](place, samples(3, "old"), "train")
    before = contents(place)
    if write not in ("write_samples", "build_shards"):  # the others write the same names for every split
        with pytest.raises(ObjectExistsError, match=r"Split 'train' has shards of the names.*'test-%06d.tar'"):
            SPLIT_WRITERS[write](place, samples(), "test", overwrite=overwrite)
        assert contents(place) == before
    else:
        SPLIT_WRITERS[write](place, samples(), "test", overwrite=overwrite)
        assert keys(place, split="test") == ["new0", "new1"]
    assert keys(place, split="train") == ["old0", "old1", "old2"]


def test_a_folder_takes_splits_one_after_the_other(place):
    for split in ("train", "val", "test"):
        shoal.write_samples(samples(2, split), place, split=split)
    shoal.write_samples(samples(1, "new"), place, split="val", overwrite=True)
    shoal.write_samples(samples(1, "more"), place, split="test", append=True)
    assert keys(place, split="train") == ["train0", "train1"]
    assert keys(place, split="val") == ["new0"]
    assert keys(place, split="test") == ["test0", "test1", "more0"]
    shoal.write_samples(samples(2, "a"), f"{place}/b/{{split}}-%06d.tar", split="val")
    assert contents(f"{place}/b").keys() >= {f"{place}/b/val-000000.tar"}


@for_each_format([one for one in SPLIT_WRITERS if one != "ShardingService"])
def test_two_words_for_a_split_are_one_split(place, write):
    shoal.write_samples(samples(3, "old"), f"{place}/validation-%06d.tar")
    with pytest.raises(ObjectExistsError, match=r"'validation' already exists"):
        SPLIT_WRITERS[write](place, samples(), "val")
    SPLIT_WRITERS[write](place, samples(), "val", overwrite=True)
    assert keys(place, split="validation") == keys(place, split="dev") == keys(place) == ["new0", "new1"]
    if not write.startswith("build"):
        SPLIT_WRITERS[write](place, samples(1, "more"), "dev", append=True)
        assert keys(place, split="validation") == keys(place) == ["new0", "new1", "more0"]


@every_writer
@pytest.mark.parametrize("new", [[Dog(1.0)], samples()], ids=["another type", "no type"])
def test_a_new_split_of_another_type_does_not_join(place, write, new):
    if write == "from_parquet" and not isinstance(new[0], Dog):
        new = [Dog(1.0)]
    shoal.write_samples(CATS, f"{place}/val-%06d.tar")
    with pytest.raises(SchemaMismatchError, match="do not fit the schema"):
        WRITERS[write](place, new)
    assert list(shoal.Dataset[Cat](place)) == CATS
    assert [sample.name for sample in shoal.Dataset(place)] == [cat.name for cat in CATS]


def test_typed_samples_are_refused_before_their_shard_is_finished(place):
    shoal.write_samples(CATS, f"{place}/val-%06d.tar")
    writer = shoal.ShardWriter(f"{place}/train-%06d.tar", max_samples=1)
    writer.write(Dog(1.0))
    with pytest.raises(SchemaMismatchError):
        writer.write(Dog(2.0))
    writer.abort()


@every_writer
def test_a_new_split_of_the_same_type_joins(place, write):
    shoal.write_samples(CATS, f"{place}/val-%06d.tar")
    WRITERS[write](place, [Cat("new")])
    assert list(shoal.Dataset[Cat](place, split="train")) == [Cat("new")]
    assert list(shoal.Dataset[Cat](place, split="val")) == CATS


def test_appended_typed_samples_have_keys_of_their_own(place):
    shoal.write_samples(CATS, place)
    shoal.write_samples([Cat("new")], place, append=True)
    found = shoal.Dataset[Cat](place)
    assert list(found) == [*CATS, Cat("new")]
    assert len(set(found.keys())) == 4


def test_appending_a_tar_that_is_there_is_refused(place):
    shoal.write_samples(samples(3, "old"), f"{place}/a.tar")
    before = contents(place)
    with pytest.raises(OptionError, match="number in the name"):
        shoal.write_samples(samples(), f"{place}/a.tar", append=True)
    assert contents(place) == before
    shoal.write_samples(samples(), f"{place}/b.tar", append=True)
    assert keys(place) == ["old0", "old1", "old2", "new0", "new1"]


def test_a_damaged_foreign_tar_is_not_adopted(place):
    put_foreign(place, 2)
    store_for(place).write_all(f"{place}/foreign-009.tar", b"")
    with pytest.raises(shoal.TarError):
        shoal.write_samples(samples(), place, append=True)
    assert not [url for url in contents(place) if "shard-" in url]


def test_an_interrupted_append_leaves_foreign_tars_as_they_were(place):
    put_foreign(place, 3)
    before, old = contents(place), keys(place)
    writer = shoal.ShardWriter(f"{place}/x-%06d.tar", append=True)
    writer.write(samples()[0])
    writer.abort()
    assert contents(place) == before
    assert keys(place) == old


def test_foreign_splits_are_kept_by_their_names(place):
    put_tar(f"{place}/val-000.tar", samples(2, "val"))
    put_tar(f"{place}/train-000.tar", samples(3, "train"))
    shoal.write_samples(samples(), f"{place}/train-%06d.tar", append=True)
    assert keys(place, split="train") == ["train0", "train1", "train2", "new0", "new1"]
    assert keys(place, split="val") == ["val0", "val1"]


# ---------------------------------------------------------------------------------------------------- several writers


def test_train_and_val_are_written_side_by_side(place):
    with (
        shoal.ShardWriter(f"{place}/train-%06d.tar", max_samples=1) as train,
        shoal.ShardWriter(f"{place}/val-%06d.tar", max_samples=1) as val,
    ):
        for number in range(4):
            train.write({"__key__": f"t{number}", "txt": "x"})
            val.write({"__key__": f"v{number}", "txt": "x"})
            if number == 2:  # their first shards are there, and no manifest
                with shoal.ShardWriter(f"{place}/test-%06d.tar") as test:
                    test.write({"__key__": "s", "txt": "x"})
    assert {split: len(keys(place, split=split)) for split in ("train", "val", "test")} == {
        "train": 4,
        "val": 4,
        "test": 1,
    }


@only_manifest
def test_a_second_writer_of_the_split_is_refused(place):
    with shoal.ShardWriter(f"{place}/a-%06d.tar", max_samples=1) as first:
        for row in samples(3, "first"):
            first.write(row)
        with pytest.raises(ObjectExistsError, match="being written"):
            shoal.write_samples(samples(), f"{place}/b-%06d.tar")
        shoal.write_samples(samples(), f"{place}/c-%06d.tar", append=True)
        with contextlib.suppress(WriteError):
            first.abort()
    write_with = {"max_samples": 1, "resume": True}
    with shoal.ShardWriter(f"{place}/a-%06d.tar", **write_with) as first:
        for row in samples(3, "first"):
            first.write(row)
    assert sorted(keys(place)) == ["first0", "first1", "first2", "new0", "new1"]


@only_manifest
def test_two_writers_of_a_split_that_began_at_once_are_not_mixed(place):
    first, second = (shoal.ShardWriter(f"{place}/{name}-%06d.tar") for name in "ab")
    for writer in (first, second):
        writer.write(samples()[0])
    first.close()
    with pytest.raises(ObjectExistsError, match="resume=True"):
        second.close()
    assert keys(place) == ["new0"]


@only_segments
def test_a_writer_holds_its_split_until_it_ends(place):
    first = shoal.ShardWriter(f"{place}/a-%06d.tar", max_samples=1)
    for number, row in enumerate(samples(3, "first")):
        first.write(row)
        for options in ({}, {"append": True}, {"overwrite": True}) if number in (0, 2) else ():
            with pytest.raises(ObjectExistsError, match="'train' is being written"):
                shoal.write_samples(samples(), f"{place}/b-%06d.tar", **options)
    first.abort()

    with pytest.raises(
        ObjectExistsError, match=r"'train' is being written, or its writer was interrupted.*resume=True"
    ):
        shoal.write_samples(samples(), f"{place}/b-%06d.tar")
    shoal.write_samples(samples(), f"{place}/c-%06d.tar", append=True)
    with shoal.ShardWriter(f"{place}/a-%06d.tar", max_samples=1, resume=True) as first:
        for row in samples(3, "first"):
            first.write(row)
    assert keys(place) == ["new0", "new1", "first0", "first1", "first2"]


@only_segments
def test_writers_that_append_at_once_take_other_names(place):
    shoal.write_samples(samples(1, "old"), f"{place}/x-%06d.tar")
    writers = [shoal.ShardWriter(f"{place}/x-%06d.tar", max_samples=1, append=True) for _ in range(3)]
    for number in range(2):
        for name, writer in zip("abc", writers, strict=True):
            writer.write({"__key__": f"{name}{number}", "txt": "x"})
    writers[1].abort()
    for writer in (writers[2], writers[0]):
        writer.close()
    assert keys(place) == ["old0", "c0", "c1", "a0", "a1"]
    assert sorted(url[-5:] for url in contents(place) if url.endswith(".tar")) == [
        "0.tar",
        "1.tar",
        "3.tar",
        "4.tar",
        "6.tar",
    ]


@only_segments
def test_of_two_that_append_to_foreign_tars_one_makes_them_part_of_the_dataset(place):
    put_foreign(place, 2)
    old = keys(place)
    writers = [shoal.ShardWriter(f"{place}/{name}-%06d.tar", append=True) for name in "ab"]
    for name, writer in zip("ab", writers, strict=True):
        writer.write({"__key__": name, "txt": "x"})
    for writer in writers:
        writer.close()
    assert keys(place) == [*old, "a", "b"]


def test_an_interrupted_write_is_finished_beside_a_split_that_was_written_meanwhile(place):
    def write(rows, **options):
        with shoal.ShardWriter(f"{place}/train-%06d.tar", max_samples=1, **options) as writer:
            for row in rows:
                writer.write(row)

    def broken():
        yield from samples(2)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write(broken())
    shoal.write_samples(samples(1, "val"), f"{place}/val-%06d.tar")
    write(samples(4), resume=True)
    assert (len(keys(place, split="train")), len(keys(place, split="val"))) == (4, 1)


# --------------------------------------------------------------------------------------------------- nested datasets


def test_a_dataset_in_a_folder_below_is_not_read(place):
    put_tar(f"{place}/a.tar", samples(3, "a"))
    put_tar(f"{place}/part/b.tar", samples(2, "b"))
    shoal.write_samples(samples(5, "emb"), f"{place}/emb")
    assert sorted(keys(place)) == ["a0", "a1", "a2", "b0", "b1"]
    assert len(keys(f"{place}/emb")) == 5
    assert len(shoal.load_dataset(place, split="train")) == 5
    assert len(shoal.Dataset(f"{place}/**/*.tar")) == 10  # asked for by name


def test_an_unfinished_dataset_in_a_folder_below_is_not_read(place):
    put_tar(f"{place}/a.tar", samples(3, "a"))
    with shoal.ShardWriter(f"{place}/emb/x-%06d.tar", max_samples=1) as writer:
        for row in samples(3, "emb"):
            writer.write(row)
        assert keys(place) == ["a0", "a1", "a2"]


def test_a_folder_that_holds_only_datasets_has_no_shards_of_its_own(place):
    shoal.write_samples(samples(5, "emb"), f"{place}/emb")
    with pytest.raises(
        ObjectNotFoundError, match=r"nothing but other datasets: found emb/; open one of them: '.*/emb'"
    ):
        len(shoal.Dataset(place))


@every_writer
def test_a_dataset_below_does_not_keep_writers_out(place, write):
    shoal.write_samples(samples(5, "emb"), f"{place}/emb")
    WRITERS[write](place, samples())
    assert keys(place) == ["new0", "new1"]
    assert len(keys(f"{place}/emb")) == 5


def test_other_formats_stop_at_a_dataset_below(place):
    write_format(f"{place}/a.jsonl", [{"__key__": "a", "size": 1}])
    shoal.write_samples(samples(5, "emb"), f"{place}/emb")
    assert len(shoal.Dataset(place)) == 1


# ------------------------------------------------------------------------------------------------------- the command


@only_manifest
def test_the_command_refuses_and_names_its_options(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n\n1\n")
    put_foreign(str(tmp_path / "out"), 2)

    def run(command, *options):
        arguments = [sys.executable, "-m", "shoal", command, tmp_path / "in", tmp_path / "out", *options]
        return subprocess.run(arguments, capture_output=True, text=True, check=False)

    for command in ("pack", "build", "convert"):
        done = run(command)
        assert done.returncode != 0
        assert "would hide" in done.stderr.replace("\n", " ")
        assert ("--append" in done.stderr) == (command != "build")
    assert len(shoal.Dataset(tmp_path / "out")) == 10
    assert run("pack", "--append").returncode == 0
    assert len(shoal.Dataset(tmp_path / "out")) == 11
    assert shoal.Dataset(tmp_path / "out")[10]["__key__"] == "a"
