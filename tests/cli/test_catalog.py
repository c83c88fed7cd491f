"""``shoal catalog`` and ``shoal repo``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

import shoal
from shoal.cli._catalog import CATALOG_COMMANDS, REPO_COMMANDS, catalog_app, repo_app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
VERBS = [
    *(("catalog", command.__name__, catalog_app) for command in CATALOG_COMMANDS),
    *(("repo", command.__name__, repo_app) for command in REPO_COMMANDS),
]


@pytest.fixture(autouse=True)
def _own_index(monkeypatch, tmp_path):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    for name in ("REDIS_URL", "SHOAL_INDEX"):
        monkeypatch.delenv(name, raising=False)


def test_the_verbs_are_those_that_were_promised():
    assert [name for _, name, _ in VERBS] == ["add", "ls", "show", "search", "rm", "tag", "insert", "verify", "gc"]


@pytest.mark.parametrize("group, name, app", VERBS)
def test_every_verb_explains_itself_and_is_on_the_page(run, group, name, app):
    done = run(group, name, "--help")
    assert done.code == 0
    assert len(re.findall(rf"^ +shoal {group} {name}( |$)", done.out.partition("Examples:")[2], re.MULTILINE)) >= 2
    command = typer.main.get_command(app).commands[name]
    options = {each for one in command.params for each in (*one.opts, *one.secondary_opts) if each.startswith("--")}
    section = PAGE.read_text("utf-8").partition(f"## shoal {group}\n")[2].partition("\n## ")[0]
    row = re.search(rf"^\| `{name}[ `].*$", section, re.MULTILINE)
    assert row
    assert set(re.findall(r"`(--[a-z-]+)", row[0])) | {"--json"} == options


def test_a_catalog_from_add_to_rm(run, dataset, tmp_path):
    assert run("catalog", "ls").out == "0 datasets\n"
    assert not (tmp_path / "home").exists()
    done = run("catalog", "add", "team/pets", dataset, "--tag", "a", "--tag", "b", "--description", "Ten things.")
    assert (done.code, done.out) == (0, "team/pets@1.0.0: 3 shards, 10 samples, 61.4 kB\n")
    added = run("catalog", "add", "other", dataset / "train-000000.tar", "--metadata", '{"n": 1}', "--json").json
    assert (added["reference"], added["metadata"], added["samples"]) == ("other@1.0.0", {"n": 1}, 4)
    assert [one["name"] for one in run("catalog", "ls", "--json").json["datasets"]] == ["other", "team/pets"]
    listed = run("catalog", "ls", "team/").out
    assert "team/pets@1.0.0" in listed
    assert "Ten things." in listed
    assert "1 dataset" in listed
    shown = run("catalog", "show", "team/pets").out
    assert re.search(r"^splits +train \(2 shards\), validation \(1 shard\)$", shown, re.MULTILINE)
    assert run("catalog", "show", "team/pets@1.0.0", "--json").json["versions"] == ["1.0.0"]
    found = run("catalog", "search", "ten", "thing*", "--tag", "a", "--min-samples", 5, "--max-bytes", "1MB", "--json")
    assert [one["name"] for one in found.json["datasets"]] == ["team/pets"]
    assert run("catalog", "search", "--after", "2999-01-01", "--json").json == {"datasets": []}
    assert run("catalog", "tag", "team/pets", "c", "--json").json["tags"] == ["a", "b", "c"]
    assert run("catalog", "tag", "team/pets", "a", "b", "--remove").out == "team/pets: c\n"
    assert run("catalog", "rm", "team/pets", "--json").json == {"removed": 1}
    assert run("catalog", "rm", "team/pets").code == 1
    assert shoal.Dataset(dataset)[0]["txt"] == "number 0"


def test_a_repository_from_insert_to_gc(run, dataset, tmp_path):
    repo, index = tmp_path / "repo", ("--index", tmp_path / "other.db")
    done = run("repo", "insert", repo, dataset, "--name", "pets", "--tag", "t", *index, "--json")
    assert (done.code, done.json["samples"], done.json["splits"]) == (0, 10, {"train": 2, "validation": 1})
    assert not (tmp_path / "home").exists()
    root = Path(done.json["root"])
    assert run("repo", "verify", repo, *index).out == "3 shards, 61.4 kB: all is well\n"
    (root / "validation-000000.tar").write_bytes(b"damaged")
    done = run("repo", "verify", repo, "pets", *index, "--json")
    assert (done.code, done.json["shards"], len(done.json["problems"])) == (1, 3, 1)
    assert run("repo", "verify", repo, *index).code == 1
    assert run("repo", "gc", repo, *index).out == "removed 0 folders, 0 B\n"
    assert run("catalog", "rm", "pets", *index).code == 0
    looked = run("repo", "gc", repo, "--dry-run", *index)
    assert "would remove 1 folder" in looked.out
    assert root.exists()
    assert run("repo", "gc", repo, *index, "--json").json["removed"] == [str(root)]
    assert not root.exists()


@pytest.mark.parametrize(
    "words, code",
    [
        (["catalog", "add", "no good", "x"], 2),
        (["catalog", "add", "good", "nothing-there.tar"], 1),
        (["catalog", "add", "good", "x", "--metadata", "[1]"], 2),
        (["catalog", "add", "good", "x", "--metadata", "{"], 2),
        (["catalog", "show", "nothing"], 1),
        (["catalog", "search", "!"], 2),
        (["catalog", "search", "--after", "yesterday"], 2),
        (["catalog", "ls", "--index", "ftp://x"], 2),
        (["repo", "insert", "repo", "nothing-there.tar", "--name", "x"], 1),
        (["repo", "gc", "repo", "--env", "none.env"], 2),
    ],
)
def test_what_is_wrong_is_one_sentence(run, tmp_path, monkeypatch, words, code):
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.code == code
    assert re.fullmatch(r"shoal: [^\n]+\n", done.err)
