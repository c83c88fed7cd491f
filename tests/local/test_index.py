"""Which database an index uses, its errors, and datasets by name."""

from __future__ import annotations

import os
import pickle
import sys

import pytest
import redis as redis_package
from tests.local.conftest import namespace
from tests.local.samples import samples

import shoal
from shoal.errors import (
    OptionError,
)
from shoal.local import LocalIndex, Repo


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
