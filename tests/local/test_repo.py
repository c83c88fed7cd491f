"""Repositories: what is inserted comes back, equal data is kept once, nothing is left over, secrets stay here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis as redis_package
from tests.local.samples import ImageSample, credentials, samples
from tests.store.servers import BUCKET

import shoal
from shoal.errors import (
    CatalogConflictError,
    EncodeError,
    OptionError,
    SchemaMismatchError,
    StoreError,
    WriteError,
)
from shoal.local import LocalIndex, LocalResolver, Repo, _repo_write, verify_entry
from shoal.protocols import AbstractDataStore, AbstractIndex, IndexEntry, Resolver
from shoal.shard import load_manifest


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def seed_block(endpoint, samples, prefix):
    from shoal.local import LocalIndex, Repo

    # Set up local index
    index = LocalIndex()  # Connects to Redis

    # Create repo with S3 storage
    repo = Repo(
        s3_credentials=credentials(endpoint),
        bucket=BUCKET,
        prefix=prefix,
        index=index,
    )

    # Insert dataset
    entry = repo.insert(samples, name="my-dataset")
    print(f"Stored at: {entry.data_urls}")
    return index, entry


def test_the_seeds_block_on_redis_and_s3(redis_url, s3_endpoint, monkeypatch, capsys):
    url = redis_url.replace("/0", "/7")
    monkeypatch.setenv("REDIS_URL", url)
    index, entry = seed_block(s3_endpoint, samples(), "seed-redis")
    assert repr(index) == f"<LocalIndex {url}>"
    assert f"Stored at: ['s3://{BUCKET}/seed-redis/my-dataset-" in capsys.readouterr().out
    with redis_package.Redis.from_url(url) as client:
        keys = set(client.keys("*"))
        assert {b"shoal:head:my-dataset", b"shoal:entry:my-dataset@1.0.0"} <= keys
        assert all(key.startswith(b"shoal:") for key in keys)
    opened = entry.open()
    assert [sample.label for sample in opened] == [sample.label for sample in samples()]
    assert (opened[3].image == 3).all()
    index.close()
    with redis_package.Redis.from_url(url) as client:
        client.flushdb()


def test_the_seeds_block_on_s3_with_no_other_server(s3_endpoint, tmp_path):
    index, entry = seed_block(s3_endpoint, samples(), "seed-sqlite")
    assert repr(index) == f"<LocalIndex sqlite {tmp_path / 'home' / 'index.db'}>"
    assert isinstance(index, AbstractIndex)
    assert isinstance(entry, IndexEntry)
    assert index.get_dataset("my-dataset") == entry
    assert [(sample.label, sample.image.tolist()) for sample in index.get_dataset("my-dataset").open()] == [
        (sample.label, sample.image.tolist()) for sample in samples()
    ]
    index.close()


def test_no_server_at_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index = LocalIndex()
    repo = Repo("repo", index=index)
    assert isinstance(repo, AbstractDataStore)
    assert isinstance(LocalResolver(), Resolver)
    entry = repo.insert(samples(), name="my-dataset")
    assert entry.data_urls == [str(path) for path in tmp_path.glob("repo/my-dataset-*/shard-000000.tar")]
    monkeypatch.chdir("/")
    loaded = shoal.load_dataset("@local/my-dataset", split="train")
    assert loaded[2].label == "label 2"
    assert shoal.load_dataset("@local/my-dataset@1.0.0", split="train", sample_type=ImageSample)[2] == samples()[2]
    index.close()


def test_what_is_inserted_comes_back_from_every_database(index, tmp_path):
    repo = Repo(tmp_path / "repo", index=index)
    entry = repo.insert(samples(25), name="pets", max_samples=10, metadata={"a": 1}, tags=["t"], description="Words.")
    assert (entry.samples, len(entry.shards), entry.schema_ref) == (25, 3, "shoal://local/schema/ImageSample@1.0.0")
    assert entry.bytes == sum(os.path.getsize(url) for url in entry.data_urls)
    assert list(entry.checksums) == entry.data_urls
    again = index.get_dataset("pets").open()
    assert [sample.label for sample in again] == [sample.label for sample in samples(25)]
    assert [check.ok for check in repo.verify()] == [True] * 3
    assert list(repo.entries()) == [entry]


@pytest.mark.parametrize("kind", ["samples", "dataset", "view", "mapped", "mapping", "dict", "path", "compressed"])
def test_all_that_can_be_inserted(kind, tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    written = shoal.write_samples(samples(6), tmp_path / "source", max_samples=4)
    data = {
        "samples": iter(samples(6)),
        "dataset": shoal.Dataset(tmp_path / "source"),
        "view": written.select([0, 1, 2, 3, 4, 5]),
        "mapped": written.map(lambda sample: sample),
        "mapping": {"train": samples(4), "val": samples(2, 4)},
        "dict": shoal.load_dataset(str(tmp_path / "source")),
        "path": tmp_path / "source",
        "compressed": samples(6),
    }[kind]
    entry = repo.insert(data, name="pets", **({"compression": "gzip"} if kind == "compressed" else {}))
    assert [float(sample.image[0, 0]) for sample in entry.open()] == [0, 1, 2, 3, 4, 5]
    assert entry.samples == 6
    assert entry.schema_ref == "shoal://local/schema/ImageSample@1.0.0"
    if kind == "mapping":
        assert list(entry.splits) == ["train", "val"]
        assert len(entry.open("val")) == 2
    if kind in ("dataset", "path", "dict"):  # the same bytes, so the same address
        hashes = [verify.url for verify in verify_entry(entry) if verify.ok]
        assert len(hashes) == 2
        assert repo.index.insert_dataset(shoal.Dataset(tmp_path / "source"), name="in-place").cid == entry.cid


def test_a_view_of_some_fields_is_written_without_the_others(tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    written = shoal.write_samples([{"txt": "a", "cls": 1}], tmp_path / "source", metadata={"by": "a test"})
    some = shoal.Dataset(tmp_path / "source", fields=["cls"])
    assert set(repo.insert(some, name="some").open()[0]) - {"__key__", "__url__"} == {"cls"}
    with pytest.raises(OptionError, match="whole files"):
        repo.index.insert_dataset(some, name="other")
    copied = repo.insert(tmp_path / "source", name="all")
    assert set(copied.open()[0]) >= {"cls", "txt"}
    assert load_manifest(copied.storage.root).metadata == {"by": "a test"}
    assert len(written) == 1


def test_plain_samples_and_foreign_tars_have_no_schema(tmp_path):
    index = LocalIndex("memory://")
    with shoal.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        writer.write({"__key__": "x", "txt": "hello", "json": {"n": 1}})
    (tmp_path / ".shoal" / "manifest.json").unlink()
    entry = Repo(tmp_path / "repo", index=index).insert(str(tmp_path / "a-000000.tar"), name="foreign")
    assert (entry.schema_ref, entry.samples) == ("", 1)
    assert entry.open()[0]["json"] == {"n": 1}
    assert index.insert_dataset(str(tmp_path / "a-000000.tar"), name="added").cid == entry.cid


def test_equal_data_is_kept_once_and_by_all_its_names(tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    one = repo.insert(samples(), name="one")
    before = files_in(tmp_path / "repo")
    two = repo.insert(samples(), name="two")
    assert (two.cid, two.data_urls) == (one.cid, one.data_urls)
    assert files_in(tmp_path / "repo") == before
    repo.index.delete("one")
    assert repo.gc().removed == ()
    assert two.open()[0].label == "label 0"
    repo.index.delete("two")
    assert repo.gc(dry_run=True).removed == repo.gc().removed == (one.storage.root,)
    assert files_in(tmp_path / "repo") == []
    assert list((tmp_path / "repo").iterdir()) == []


def test_data_that_vanished_is_written_again(tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    one = repo.insert(samples(), name="one")
    os.unlink(one.data_urls[0])
    assert [check.ok for check in repo.verify()] == [False]
    two = repo.insert(samples(), name="one")
    assert two.version == "1.0.0"
    assert two.cid == one.cid
    assert [check.ok for check in repo.verify()] == [True]
    assert repo.index.get_dataset("one").data_urls == two.data_urls
    assert repo.gc().removed == (one.storage.root,)
    assert two.open()[0].label == "label 0"


def test_the_same_data_in_two_repositories_is_in_both(tmp_path):
    index = LocalIndex("memory://")
    one = Repo(tmp_path / "one", index=index).insert(samples(), name="one")
    two = Repo(tmp_path / "two", index=index).insert(samples(), name="two")
    assert one.cid == two.cid
    assert two.data_urls[0].startswith(str(tmp_path / "two"))


@pytest.mark.parametrize("fails", ["nothing", "midway", "mixed", "unencodable", "name", "conflict", "split"])
def test_an_insert_that_fails_leaves_nothing(fails, tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    repo.insert(samples(3), name="there", version="1.0.0")
    before = files_in(tmp_path / "repo"), list(repo.index.list_schemas())

    def midway():
        yield from samples(30)
        raise RuntimeError("the source broke")

    @shoal.packable
    class Other:
        n: int

    data, name, error, options = {
        "nothing": ([], "new", WriteError, {}),
        "midway": (midway(), "new", RuntimeError, {"max_samples": 10}),
        "mixed": ([*samples(3), Other(1)], "new", SchemaMismatchError, {}),
        "unencodable": ([{"json": object()}], "new", EncodeError, {}),
        "name": (samples(), "../new", OptionError, {}),
        "conflict": ([Other(1)], "there", CatalogConflictError, {"version": "1.0.0"}),
        "split": ({"a/../b": samples()}, "new", OptionError, {}),
    }[fails]
    with pytest.raises(error):
        repo.insert(data, name=name, **options)
    assert (files_in(tmp_path / "repo"), list(repo.index.list_schemas())) == before
    assert [entry.name for entry in repo.index.list_datasets()] == ["there"]
    assert repo.gc().removed == ()


@pytest.mark.parametrize("moment", ["_record", "_keep_one_copy"])
def test_ctrl_c_after_the_entry_stands_takes_no_data_away(moment, tmp_path, monkeypatch):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    if moment == "_keep_one_copy":
        repo.insert(samples(), name="first")
    owner = repo.index if moment == "_record" else repo
    act = getattr(owner, moment)

    def interrupted(*args):
        act(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, moment, interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        repo.insert(samples(), name="pets")
    assert repo.gc().removed == ()
    assert [check.ok for check in repo.verify("pets")] == [True]
    assert repo.index.get_dataset("pets").open()[0].label == "label 0"


def test_a_store_for_shards_of_another_index(tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    data = shoal.write_samples(samples(), tmp_path / "source")
    entry = repo.index.insert_dataset(data, name="pets", data_store=repo, max_samples=2)
    assert entry.storage.root.startswith(str(tmp_path / "repo"))
    assert (entry.samples, len(entry.shards)) == (5, 3)
    assert repo.gc().removed == ()
    left = repo.write_shards(data, prefix="loose")
    assert repo.read_url(left[0]) == left[0]
    assert repo.supports_streaming()
    assert repo.gc().removed == (str(Path(left[0]).parent),)  # nobody recorded it, and its writer is done


def test_gc_keeps_what_is_being_written_and_what_is_of_others(tmp_path):
    repo, other = (Repo(tmp_path / "repo", index=LocalIndex("memory://")) for _ in range(2))
    kept = other.insert(samples(2), name="theirs")
    seen = []

    def slowly():
        yield from samples(3, 10)
        seen.append(repo.gc())

    entry = repo.insert(slowly(), name="mine")
    assert (seen[0].removed, len(seen[0].in_progress), seen[0].foreign) == ((), 1, (kept.storage.root,))
    assert entry.open()[0].label == "label 0"
    (tmp_path / "repo" / "notes.txt").write_text("the user's own")
    garbage = repo.gc(patience=0)
    assert (garbage.removed, garbage.foreign) == ((), (kept.storage.root,))
    assert kept.open()[0].label == "label 0"
    assert (tmp_path / "repo" / "notes.txt").exists()


def test_gc_waits_for_writers_on_other_machines(tmp_path, monkeypatch):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    monkeypatch.setattr(_repo_write, "_this_host", lambda: "another machine")
    left = repo.write_shards(samples(), prefix="left")
    folder = str(Path(left[0]).parent)
    _repo_write.write_owner(folder, repo.index._id)  # as before it was done
    monkeypatch.undo()
    assert repo.gc().in_progress == (folder,)
    assert repo.gc(patience=0).removed == (folder,)


def test_a_writer_whose_folder_was_removed_records_nothing(tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))

    def samples_while_it_is_removed():
        yield from samples(3)
        for folder in repo._folders():
            _repo_write.condemn(folder, _repo_write.read_owner(folder))

    with pytest.raises(StoreError, match="removed while it was written"):
        repo.insert(samples_while_it_is_removed(), name="pets")
    assert list(repo.index.list_datasets()) == []


def test_verify_tells_each_kind_of_damage(tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    entry = repo.insert(samples(9), name="pets", max_samples=3)
    first, second, third = entry.data_urls
    with open(first, "r+b") as file:
        file.seek(600)
        file.write(b"?")
    with open(second, "ab") as file:
        file.write(b"more")
    os.unlink(third)
    told = []
    problems = [check.problem or "" for check in repo.verify("pets", progress=told.append)]
    assert ["sha256" in problems[0], "size" in problems[1], third in problems[2]] == [True] * 3
    assert sum(told) == os.path.getsize(first) + os.path.getsize(second)
