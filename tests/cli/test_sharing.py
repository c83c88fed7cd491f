"""`shoal login`, `publish`, `find`, `pull` and `atmosphere watch`, against a real server."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest
from tests.atmosphere.conftest import (  # noqa: F401 - fixtures
    Pet,
    _own_home,
    alice,
    connect,
    folder,
    new_handle,
    pds,
    pets,
    plc,
)
from tests.atmosphere.servers import PASSWORD

import shoal
from shoal.local import LocalIndex, Repo


@pytest.fixture
def shell(run, pds, plc, monkeypatch):  # noqa: F811
    """The command, on the test's own network."""
    monkeypatch.setenv("SHOAL_PDS_URL", pds.url)
    monkeypatch.setenv("SHOAL_PLC_URL", plc)
    monkeypatch.setenv("SHOAL_ALLOW_PRIVATE", "1")
    return run


def test_the_whole_story(shell, new_handle, folder, tmp_path, monkeypatch):  # noqa: F811
    handle = new_handle()
    refused = shell("publish", folder, "--name", "pets")
    assert (refused.code, "nobody is logged in" in refused.err) == (1, True)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    entered = shell("login", handle, "--save", "--json")
    assert entered.json["handle"] == handle
    path = entered.json["session"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert PASSWORD not in entered.out + entered.err + Path(path).read_text("utf-8")

    made = shell("publish", folder, "--name", "pets", "--tag", "fur", "--version", "1.0.0", "--json").json
    assert (made["samples"], made["storage"], made["reference"]) == (20, "blobs", f"@{handle}/pets")
    assert shell("publish", folder, "--name", "pets").out.startswith(made["uri"])

    found = shell("find", "fur", "--of", handle, "--json").json["datasets"]
    assert [one["uri"] for one in found] == [made["uri"]]
    assert made["uri"] in shell("find", "--of", handle).out
    assert "nothing was found" in shell("find", "feathers", "--of", handle).out

    pulled = shell("pull", f"@{handle}/pets@1.0.0", tmp_path / "copy", "--json").json
    assert len(pulled["shards"]) == 2
    assert [pet.label for pet in shoal.load_dataset(str(tmp_path / "copy"), split="train")] == [
        pet.label for pet in pets(20)
    ]
    assert "2 shards of pets" in shell("pull", made["uri"], tmp_path / "copy").out

    assert "known" in shell("atmosphere", "watch", handle, "--idle", "0.1").out
    assert made["uri"] in shell("find", "fur").out
    assert shell("atmosphere", "watch", handle, "--idle", "0.1", "--json").json["records"] == 3

    assert shell("login", "--forget").code == 0
    assert not os.path.exists(path)


def test_a_dataset_of_the_local_index_is_published(shell, new_handle, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SHOAL_HANDLE", new_handle())
    monkeypatch.setenv("SHOAL_APP_PASSWORD", PASSWORD)
    monkeypatch.setenv("SHOAL_INDEX", str(tmp_path / "index.db"))
    with LocalIndex() as index:
        Repo(str(tmp_path / "data"), index=index).insert(pets(5), name="mine", tags=["a"])
    made = shell("publish", "@local/mine", "--json").json
    assert (made["name"], made["samples"]) == ("mine", 5)
    assert shell("login", os.environ["SHOAL_HANDLE"]).out.startswith("logged in as")


def test_errors_are_one_sentence(shell, new_handle, folder, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SHOAL_APP_PASSWORD", "wrong")
    wrong = shell("login", new_handle())
    assert wrong.code == 1
    assert wrong.err.count("\n") == 1
    assert "Invalid identifier or password" in wrong.err
    assert shell("login").code == 2
    assert shell("publish", folder, "--storage", "ftp").code == 2
    assert shell("pull", "@nobody.test/x", "y").code == 1
    assert shell("pull", "@nobody.test/x", "y", "--json").json["error"]["type"] == "RecordNotFoundError"
