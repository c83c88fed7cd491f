"""S3 credentials are used, and never stored or shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import redis as redis_package
from tests.local.samples import credentials, samples
from tests.store.servers import ACCESS_KEY, BUCKET, SECRET_KEY

from shoal.errors import (
    AccessDeniedError,
    OptionError,
    StoreError,
)
from shoal.local import LocalIndex, Repo, verify_entry
from shoal.store import store_for


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
