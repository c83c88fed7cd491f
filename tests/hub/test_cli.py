"""``shoal hub``, and the other commands with ``hf://`` as PATH."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.hub.conftest import files_below

from shoal.cli._sharing import HUB_COMMANDS, hub_app

ROOT = Path(__file__).parents[2]
NAMES = [command.__name__ for command in HUB_COMMANDS]


def test_push_card_and_download(hub, folder, tmp_path, run):  # noqa: F811
    done = run("hub", "push", folder, "tester/pets", "--private", "--license", "mit", "--tag", "cats", "--json")
    assert done.code == 0, done.err
    repo = hub.repos["dataset", "tester/pets"]
    assert done.json["commit"] == repo.branches["main"]
    assert done.json["files"] == 8
    assert repo.private
    text = run("hub", "card", folder, "tester/pets", "--license", "mit", "--tag", "cats").out
    assert text.strip() == repo.files()["README.md"].decode().strip()
    assert run("hub", "card", folder, "--title", "T", "--description", "D", "--json").json["pictures"] == []
    done = run("hub", "download", "tester/pets", tmp_path / "got", "--split", "test", "--fields", "json,txt")
    assert done.out == f"8 samples in 1 shards: {tmp_path / 'got'}\n"
    done = run("hub", "download", "tester/pets", tmp_path / "all", "--json", "--at-once", 2)
    assert done.json == {"folder": str(tmp_path / "all"), "samples": 38, "shards": 4}
    assert "train-000002.tar" in files_below(tmp_path / "all")
    assert "tester/pets" in run("hub", "push", folder, "tester/pets").out


def test_an_endpoint_and_a_failure(hub, pets, folder, tmp_path, run, monkeypatch):  # noqa: F811
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert run("hub", "--endpoint", hub.url, "download", "tester/pets", tmp_path / "got").code == 0
    done = run("hub", "--endpoint", hub.url, "download", "tester/none", tmp_path / "none", "--json")
    assert done.code == 1
    assert done.json["error"]["type"] == "ObjectNotFoundError"
    assert "no such repository" in done.err


def test_other_commands_read_from_the_hub(hub, pets, run):  # noqa: F811
    assert run("info", pets, "--json").json["samples"] == 38
    assert "train00000" in run("ls", pets).out
    assert run("store", "ls", pets, "--depth", 1, "--json").json["objects"][0]["url"] == f"{pets}/test-000000.tar"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_examples_and_is_on_the_page(name, run):  # noqa: F811
    done = run("hub", name, "--help")
    assert done.code == 0
    assert f"shoal hub {name}" in done.out
    page = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    assert f"shoal hub {name}" in page
    command = typer.main.get_command(hub_app).commands[name]
    assert [each for each in command.params if each.name == "as_json"]
