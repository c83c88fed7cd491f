"""``shoal store``: the verbs as a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.store.servers import ACCESS_KEY, SECRET_KEY

from shoal import store
from shoal.cli._store import STORE_COMMANDS, store_app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
NAMES = [command.__name__ for command in STORE_COMMANDS]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, data in {"data/a.txt": b"1", "data/deep/b.txt": b"22", "c.txt": b"333"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_the_verbs_are_those_that_were_promised():
    assert sorted(NAMES) == ["cp", "get", "ls", "mkdir", "put", "rm", "stat"]


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_explains_itself_and_is_on_the_page(run, name):  # noqa: F811 - the fixture
    done = run("store", name, "--help")
    assert done.code == 0
    assert len(re.findall(rf"^ +shoal store {name} ", done.out.partition("Examples:")[2], re.MULTILINE)) >= 2
    command = typer.main.get_command(store_app).commands[name]
    options = {each for parameter in command.params for each in parameter.opts if each.startswith("--")}
    section = PAGE.read_text("utf-8").partition("## shoal store")[2].partition("\n## ")[0]
    row = re.search(rf"^\| `{name}[ `].*$", section, re.MULTILINE)
    assert row
    assert set(re.findall(r"`(--[a-z-]+)", row[0])) | {"--json"} == options
    assert "--json" in options


def test_a_round_trip_to_a_bucket(run, files, s3):  # noqa: F811 - the fixture
    assert run("store", "put", "data", f"{s3}/up", "--json").json == {"objects": 2, "bytes": 3, "target": f"{s3}/up"}
    assert run("store", "put", "c.txt", f"{s3}/up/d.txt").code == 0
    listed = run("store", "ls", f"{s3}/up", "--json").json["objects"]
    assert {each["url"].removeprefix(f"{s3}/up/"): each["size"] for each in listed} == {
        "a.txt": 1,
        "d.txt": 3,
        "deep/b.txt": 2,
    }
    assert [each["size"] for each in run("store", "ls", f"{s3}/up", "--depth", 1, "--json").json["objects"]] == [1, 3]
    assert "3 objects, 6 B" in run("store", "ls", f"{s3}/up").out
    assert run("store", "stat", f"{s3}/up/d.txt", "--json").json["size"] == 3
    assert "size     3" in run("store", "stat", f"{s3}/up/d.txt").out
    assert run("store", "cp", f"{s3}/up/d.txt", f"{s3}/up/e.txt").code == 0
    assert run("store", "get", f"{s3}/up", "down/").code == 0
    assert run("store", "get", f"{s3}/up/e.txt", "e.txt").code == 0
    assert run("store", "get", f"{s3}/up/e.txt", "-").data == b"333"
    assert run("store", "get", f"{s3}/up/*.txt", "some").code == 0
    assert sorted(path.name for path in (files / "some").iterdir()) == ["a.txt", "d.txt", "e.txt"]
    assert (files / "e.txt").read_bytes() == (files / "down/e.txt").read_bytes() == b"333"
    assert run("store", "rm", f"{s3}/up/e.txt", "--json").json == {"removed": 1}
    assert run("store", "rm", "-r", f"{s3}/up").out == "removed 3 objects\n"
    assert store.list(s3) == []


def test_with_a_depth_the_folders_there_are_named(run, files, s3):  # noqa: F811 - the fixture
    assert run("store", "put", "data", f"{s3}/up/data").code == 0
    (files / "data/empty").mkdir()
    for url, empty in (("data", ["data/empty/"]), (f"{s3}/up/data", [])):
        listed = run("store", "ls", url, "--depth", 1, "--json").json
        assert [each["url"] for each in listed["objects"]] == [f"{url}/a.txt"]
        assert listed["folders"] == [f"{url}/deep/", *empty]
        assert run("store", "ls", url, "--depth", 2, "--json").json["folders"] == []
        assert run("store", "ls", url, "--json").json["folders"] == []
        lines = run("store", "ls", url, "--depth", 1).out.splitlines()
        assert [line.split() for line in lines[2:4]] == [["1", "B", f"{url}/a.txt"], [f"{url}/deep/"]]
    assert lines[-1] == "1 object, 1 folder, 1 B"
    assert run("store", "ls", f"{s3}/up", "--depth", 1).out.endswith("0 objects, 1 folder, 0 B\n")


def test_patterns_and_several_files_go_below_the_url(run, files, s3):  # noqa: F811 - the fixture
    assert run("store", "put", "c.txt", "data/*.txt", s3).code == 0
    assert [info.url.removeprefix(f"{s3}/") for info in store.list(s3)] == ["a.txt", "c.txt"]
    assert run("store", "put", "c.txt", f"{s3}/into/").code == 0
    assert store.exists(f"{s3}/into/c.txt")


def test_folders_are_made_where_there_are_any(run, files):  # noqa: F811 - the fixture
    assert run("store", "mkdir", "new/folder", "--json").json == {"url": "new/folder", "made": True}
    assert (files / "new/folder").is_dir()
    assert "no folders" in run("store", "mkdir", "s3://bucket/x").out
    assert run("store", "mkdir", "gopher://x").code == 1


def test_what_is_not_there_is_one_sentence_and_1(run, s3, files):  # noqa: F811 - the fixture
    for args in (
        ["get", f"{s3}/none"],
        ["stat", f"{s3}/none"],
        ["rm", f"{s3}/none"],
        ["cp", f"{s3}/none", "x"],
        ["ls", f"{s3}/none"],
        ["ls", "none"],
        ["rm", "-r", f"{s3}/none"],
    ):
        done = run("store", *args)
        assert done.code == 1
        assert re.fullmatch(r"shoal: [^\n]+\n", done.err)
        assert "none" in done.err


def test_a_folder_is_removed_only_when_that_is_said(run, s3, files):  # noqa: F811 - the fixture
    assert run("store", "put", "data", f"{s3}/up").code == 0
    for folder in (f"{s3}/up", "data"):
        done = run("store", "rm", folder)
        assert done.code == 1
        assert "it is a folder: -r removes everything below it" in done.err
    assert len(store.list(f"{s3}/up")) == len(store.list("data")) == 2


def test_where_the_service_is_can_be_said(run, s3, s3_endpoint, files, monkeypatch):  # noqa: F811 - the fixture
    store.put(f"{s3}/a", b"x")
    bucket = s3.rpartition("/")[0]
    store.configure(bucket, endpoint=None, region=None, credential_provider=None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    store._options._CHOSEN.clear()
    options = ["--endpoint", s3_endpoint, "--region", "us-east-1", "--log", "log.tsv"]
    assert run("store", *options, "get", f"{s3}/a", "-").data == b"x"
    assert "\tGET\t" in (files / "log.tsv").read_text()
    assert SECRET_KEY not in (files / "log.tsv").read_text()
