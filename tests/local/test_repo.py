"""Repositories: what is inserted comes back, equal data is kept once, nothing is left over, secrets stay here."""

from __future__ import annotations

import os
import pickle
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest
import redis as redis_package
from numpy.typing import NDArray
from tests.local.conftest import namespace
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY

import shoal
from shoal.errors import (
    AccessDeniedError,
    CatalogConflictError,
    EncodeError,
    FieldError,
    OptionError,
    SchemaMismatchError,
    StoreError,
    WriteError,
)
from shoal.local import Entry, LocalIndex, LocalResolver, Repo, _repo, verify_entry
from shoal.protocols import AbstractDataStore, AbstractIndex, IndexEntry, Resolver
from shoal.shard import load_manifest
from shoal.store import store_for


@shoal.packable
class ImageSample:
    image: NDArray[np.float32]
    label: str


def samples(count=5, shift=0):
    return [ImageSample(np.full((2, 2), number + shift, np.float32), f"label {number}") for number in range(count)]


def credentials(endpoint, **changes):
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    return {"AWS_ENDPOINT": endpoint, **keys, **changes}


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


# ----------------------------------------------------------------------------------------------------- the seed's block


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


def test_the_backend_is_chosen_by_argument_then_environment_then_default(redis_url, tmp_path, monkeypatch):
    assert repr(LocalIndex()) == f"<LocalIndex sqlite {tmp_path / 'home' / 'index.db'}>"
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@somewhere:1/3")
    assert repr(LocalIndex()) == "<LocalIndex redis://somewhere:1/3>"
    monkeypatch.setenv("SHOAL_INDEX", str(tmp_path / "named.db"))
    assert repr(LocalIndex()) == f"<LocalIndex sqlite {tmp_path / 'named.db'}>"
    assert repr(LocalIndex(tmp_path / "a.db")) == f"<LocalIndex sqlite {tmp_path / 'a.db'}>"
    assert repr(LocalIndex(host="h", port=5)) == "<LocalIndex redis://h:5/0>"
    assert repr(LocalIndex("postgresql://me:hunter2@h/db")) == "<LocalIndex postgresql://h/db>"
    assert list(tmp_path.iterdir()) == []  # nothing was opened
    with redis_package.Redis.from_url(redis_url, decode_responses=True) as client:
        index = LocalIndex(redis=client, namespace=namespace())
        assert repr(index).startswith("<LocalIndex redis://127.0.0.1:")
        index.insert_dataset(shoal.write_samples([{"txt": "ü"}], tmp_path / "d"), name="ü", description="ü")
        assert [entry.description for entry in index.search("ü")] == ["ü"]
        with pytest.raises(TypeError, match="cannot be sent"):
            pickle.dumps(index)
    for arguments in ({"location": "a.db", "host": "h"}, {"location": "ftp://x/y"}, {"namespace": "a b"}):
        with pytest.raises(OptionError):
            LocalIndex(**arguments)


# -------------------------------------------------------------------------------------------------------------- insert


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


@pytest.mark.parametrize("moment", ["_record", "_settle"])
def test_ctrl_c_after_the_entry_stands_takes_no_data_away(moment, tmp_path, monkeypatch):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))
    if moment == "_settle":
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


# ------------------------------------------------------------------------------------------------------------------ gc


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
    monkeypatch.setattr(_repo, "this_host", lambda: "another machine")
    left = repo.write_shards(samples(), prefix="left")
    folder = str(Path(left[0]).parent)
    _repo.write_owner(folder, repo.index._id)  # as before it was done
    monkeypatch.undo()
    assert repo.gc().in_progress == (folder,)
    assert repo.gc(patience=0).removed == (folder,)


def test_a_writer_whose_folder_was_removed_records_nothing(tmp_path):
    repo = Repo(tmp_path / "repo", index=LocalIndex("memory://"))

    def samples_while_it_is_removed():
        yield from samples(3)
        for folder in repo._folders():
            _repo.condemn(folder, _repo.read_owner(folder))

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


# ------------------------------------------------------------------------------------------------------------- secrets


def raw_bytes(folder):
    return b"".join(path.read_bytes() for path in Path(folder).rglob("*") if path.is_file())


def test_no_secret_is_in_the_index_or_the_bucket(s3_endpoint, tmp_path, redis_url):
    for index in (LocalIndex(tmp_path / "index.db"), LocalIndex(redis_url, namespace="secrets")):
        repo = Repo(s3_credentials=credentials(s3_endpoint), bucket=BUCKET, prefix="secrets", index=index)
        entry = repo.insert(samples(), name="pets")
        assert (entry.storage.endpoint, entry.storage.region, entry.storage.bucket) == (
            s3_endpoint,
            "us-east-1",
            BUCKET,
        )
        shown = f"{repo!r} {entry!r} {index!r} {repo._credentials!r} {vars(repo)!r}"
        stored = b"".join(store_for(info.url).read_all(info.url) for info in store_for(repo.root).list(repo.root))
        pickled = pickle.dumps(entry)
        index.close()
        assert SECRET_KEY not in shown
        for secret in (SECRET_KEY.encode(), ACCESS_KEY.encode()):
            assert secret not in stored
            assert secret not in pickled
            assert secret not in raw_bytes(tmp_path)
    with redis_package.Redis.from_url(redis_url) as client:
        held = b"".join(client.dump(key) for key in client.keys("secrets:*"))
        assert s3_endpoint.encode() in held or len(held) > 1000
        assert SECRET_KEY.encode() not in held
        assert ACCESS_KEY.encode() not in held


def test_an_entry_is_opened_with_keys_from_the_environment_or_given(s3_endpoint, tmp_path, monkeypatch):
    from shoal.store import _options

    index = LocalIndex(tmp_path / "index.db")
    (tmp_path / ".env").write_text(
        "# settings\n"
        + "".join(f"export {name}='{value}'\n" for name, value in credentials(s3_endpoint).items())
        + "OTHER=1\n"
    )
    repo = Repo("s3://" + BUCKET + "/opened", s3_credentials=tmp_path / ".env", index=index)
    repo.insert(samples(), name="pets")
    entry = index.get_dataset("pets")
    monkeypatch.setattr(_options, "_CHOSEN", {})  # another process: it knows nothing of the repository
    with pytest.raises((AccessDeniedError, StoreError)):
        entry.open(credentials={"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": "wrong"})[0]
    assert entry.open(credentials=tmp_path / ".env")[1].label == "label 1"
    monkeypatch.setattr(_options, "_CHOSEN", {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert entry.open()[1].label == "label 1"
    assert [check.ok for check in verify_entry(entry)] == [True]
    assert repo.gc().removed == ()
    index.delete("pets")
    assert repo.gc().removed == (entry.storage.root,)
    assert list(store_for(repo.root).list(repo.root)) == []
    index.close()


def test_settings_that_make_no_sense_are_refused_without_showing_them(tmp_path):
    index = LocalIndex("memory://")
    bad = [
        {"s3_credentials": {"AWS_SECRET_ACCESS_KEY": "hunter2"}, "bucket": "b"},
        {"s3_credentials": {"AWS_SECRET": "hunter2"}, "bucket": "b"},
        {"s3_credentials": {"AWS_REGION": 7}, "bucket": "b"},
        {"s3_credentials": tmp_path / "none.env", "bucket": "b"},
        {"s3_credentials": {"AWS_REGION": "x"}, "location": tmp_path},
        {"location": tmp_path, "bucket": "b"},
        {"bucket": "a/b"},
        {"location": tmp_path, "prefix": "x"},
        {"location": "s3://key:hunter2@bucket/x"},
        {},
    ]
    for arguments in bad:
        with pytest.raises(OptionError) as caught:
            Repo(index=index, **arguments)
        assert "hunter2" not in str(caught.value)


# -------------------------------------------------------------------------------------------------------------- values


def test_an_entry_is_a_value(tmp_path):
    index = LocalIndex(tmp_path / "index.db")
    entry = Repo(tmp_path / "repo", index=index).insert(samples(), name="pets")
    other = pickle.loads(pickle.dumps(entry))
    assert other == entry
    assert isinstance(other, Entry)
    assert other.open()[0].label == "label 0"
    for one in (entry, index.insert_dataset(shoal.Dataset(entry.data_urls), name="one")):
        assert len(one.open("training")) == 5
        with pytest.raises(FieldError, match="no such split"):
            one.open("test")
    index.close()


def test_the_sqlite_file_is_in_wal_with_named_migrations(tmp_path):
    index = LocalIndex(tmp_path / "index.db")
    index.insert_dataset(shoal.write_samples([{"txt": "a"}], tmp_path / "d"), name="a")
    with sqlite3.connect(tmp_path / "index.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        names = [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY name")]
        assert names == ["0001-records", "0002-search"]
        connection.execute("INSERT INTO migrations VALUES ('9999-of-the-future', 0)")
    connection.close()
    index.close()
    with pytest.raises(shoal.ShoalError, match="newer shoal"):
        index.get_dataset("a")
    (tmp_path / "text.db").write_text("this is a text, and no database at all " * 100)
    with pytest.raises(ConnectionError, match="something else"):
        LocalIndex(tmp_path / "text.db").get_dataset("a")


def test_postgres_has_the_same_migrations_and_refuses_newer_ones(postgres_url):
    with LocalIndex(postgres_url, namespace="migrated") as index:
        assert len(index) == 0
        assert index._backend.migrations() == ["0001-records", "0002-search"]
        with index._backend._open() as connection:
            connection.execute("INSERT INTO migrations (name) VALUES ('9999-of-the-future')")
        index.close()
        with pytest.raises(shoal.ShoalError, match="newer shoal"):
            index.get_dataset("a")


def test_what_goes_wrong_with_a_database_says_where_and_no_secret():
    for url in ("redis://me:hunter2@127.0.0.1:1/0", "postgresql://me:hunter2@127.0.0.1:1/db"):
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1") as caught:
            LocalIndex(url).get_dataset("pets")
        assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"
    with pytest.raises(OptionError) as refused:
        LocalIndex("redis://me:hunter2@host:port/0").get_dataset("pets")
    assert "hunter2" not in str(refused.value)


def test_load_dataset_takes_names_where_no_file_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        shoal.load_dataset("team/pets", split="train")
    assert list(tmp_path.iterdir()) == []  # to look is no reason to make an index
    with LocalIndex() as index:
        Repo("repo", index=index).insert({"train": samples(4), "val": samples(2)}, name="team/pets")
        Repo("repo", index=index).insert(samples(7), name="team/pets")
        assert shoal.load_dataset("team/pets@1.0.0").num_samples == {"train": 4, "val": 2}
        assert len(shoal.load_dataset("team/pets", split="train")) == 7
        assert len(shoal.load_dataset("team/pets@latest", split="train[:3]")) == 3
        for wrong in ("team/cats", "team/pets@9.0.0", "team/pets@new"):
            with pytest.raises(FileNotFoundError):
                shoal.load_dataset(wrong)
        with pytest.raises(KeyError, match=r"no such version: expected 1\.0\.0, 1\.1\.0"):
            shoal.load_dataset("@local/team/pets@9.0.0")
        (tmp_path / "team").mkdir()
        shoal.write_samples([{"txt": "a file"}], tmp_path / "team" / "pets")
        assert shoal.load_dataset("team/pets", split="train")[0]["txt"] == "a file"  # what lies there comes first
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(FileNotFoundError) as caught:
        shoal.load_dataset("nothing-at-all")
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_other_formats_are_added_where_they_lie_and_inserted_as_samples(tmp_path):
    index = LocalIndex("memory://")
    shoal.write_samples([{"txt": f"number {number}", "cls": number} for number in range(5)], tmp_path / "tars")
    shoal.Dataset(tmp_path / "tars").to_parquet(tmp_path / "tables" / "train.parquet")
    added = index.insert_dataset(str(tmp_path / "tables"), name="added")
    assert (added.samples, list(added.splits), len(added.checksums)) == (None, ["train"], 1)
    assert added.open()[3]["cls"] == 3
    assert [check.ok for check in verify_entry(added)] == [True]
    assert index.search("added")[0] == added
    entry = Repo(tmp_path / "repo", index=index).insert(str(tmp_path / "tables"), name="inserted")
    assert entry.samples == 5
    assert [sample["cls"] for sample in entry.open()] == [0, 1, 2, 3, 4]


def test_data_too_large_to_hash_has_the_address_of_where_it_is(tmp_path):
    index = LocalIndex("memory://")
    shoal.write_samples(samples(), tmp_path / "data")
    entry = index.insert_dataset(tmp_path / "data", name="pets", hashed=False)
    assert (entry.checksums, entry.samples) == ({}, 5)
    assert entry.cid != index.insert_dataset(tmp_path / "data", name="hashed").cid
    assert index.insert_dataset(tmp_path / "data", name="pets", hashed=False) == entry
    shoal.write_samples(samples(7), tmp_path / "data", overwrite=True)
    assert index.insert_dataset(tmp_path / "data", name="pets", hashed=False).version == "1.1.0"


@pytest.mark.parametrize(
    "data", ["filtered", "selected", "mixture", "nothing", 7, [], object(), "missing"], ids=lambda data: str(data)[:8]
)
def test_what_is_no_dataset_in_files_is_not_added(data, tmp_path):
    index = LocalIndex("memory://")
    written = shoal.write_samples(samples(), tmp_path / "data")
    views = {
        "filtered": lambda: written.filter(lambda sample: True),
        "selected": lambda: written.select([1, 2]),
        "mixture": lambda: shoal.concat([written, written]),
        "nothing": lambda: None,
        "missing": lambda: str(tmp_path / "missing.tar"),
    }
    value = views[data]() if isinstance(data, str) else data
    with pytest.raises((OptionError, FileNotFoundError)):
        index.insert_dataset(value, name="pets")
    assert list(index.list_datasets()) == []


@pytest.mark.parametrize("index", ["sqlite", "redis", "postgres"], indirect=True)
def test_an_index_goes_on_after_a_fork(index, tmp_path):
    index.insert_dataset(shoal.write_samples([{"txt": "a"}], tmp_path / "a"), name="before")
    child = os.fork()
    if not child:
        code = 1
        try:
            index.insert_dataset(str(tmp_path / "a"), name="child")
            code = 0 if "before" in index else 2
        finally:
            os._exit(code)
    index.insert_dataset(str(tmp_path / "a"), name="parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    index.insert_dataset(str(tmp_path / "a"), name="after")
    assert [entry.name for entry in index.list_datasets()] == ["after", "before", "child", "parent"]


@pytest.mark.parametrize(
    "package, url", [("redis", "redis://127.0.0.1:1/0"), ("psycopg", "postgresql://127.0.0.1:1/db")]
)
def test_a_missing_package_is_named_with_its_extra(package, url, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    extra = "redis" if package == "redis" else "postgres"
    with pytest.raises(ImportError, match=rf"shoal\[{extra}\]"):
        LocalIndex(url).get_dataset("pets")
