"""repair: what is printed, the exit code, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import shoal


def flip(path, what: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(what)] ^= 1
    path.write_bytes(data)


def test_nothing_to_do(run, dataset):
    done = run("repair", dataset)
    assert (done.code, done.err) == (0, "")
    assert done.out == "3 shards, 0 not sound: 10 samples, 0 lost\n"


def test_a_lost_sample_is_named_and_makes_the_exit_code_1(run, dataset):
    flip(dataset / "train-000000.tar", b"number 1")
    dry = run("repair", dataset, "--dry-run")
    assert dry.code == 1
    assert "nothing was written" in dry.out
    done = run("repair", dataset)
    assert done.code == 1
    assert "rewritten (3 samples saved, 1 lost, by checksums)" in done.out
    assert "lost k01: field txt" in done.out
    assert "quarantine" in done.out
    assert len(list(shoal.Dataset(dataset))) == 9
    assert run("repair", dataset).code == 0
    assert run("verify", dataset).code == 0


def test_a_cut_shard_is_told_without_naming_it_on_every_line(run, dataset):
    with open(dataset / "train-000000.tar", "r+b") as file:
        file.truncate(3000)
    done = run("repair", dataset)
    assert "the shard changed after it was indexed" in done.out
    assert "(shard" not in done.out


def test_json_and_the_page(run, dataset, tmp_path):
    flip(dataset / "train-000000.tar", b"number 1")
    done = run("repair", dataset, "--json", "--report", tmp_path / "page.html", "--output", tmp_path / "whole")
    assert done.code == 1
    facts = done.json
    assert (facts["saved"], facts["lost"], facts["complete"], facts["changed"]) == (9, 1, False, 1)
    assert facts["shards"][0]["lost"][0]["key"] == "k01"
    assert "k01" in (tmp_path / "page.html").read_text()
    assert len(list(shoal.Dataset(tmp_path / "whole"))) == 9


def test_an_index_is_made_anew_without_loss(run, dataset):
    (dataset / ".shoal" / "index" / "train-000000.tar.arrow").unlink()
    done = run("repair", dataset)
    assert done.code == 0
    assert "reindexed (4 samples saved, 0 lost)" in done.out


def test_missing_shards(run, dataset):
    (dataset / "train-000000.tar").unlink()
    assert run("repair", dataset).code == 1
    assert run("repair", dataset, "--drop-missing", "--json").json["shards"][0]["action"] == "missing"
    assert run("repair", dataset).code == 0


def test_wrong_use(run, dataset):
    assert run("repair", dataset, "--trust", "nobody").code == 2
    assert run("repair", dataset, "--output", dataset).code == 2


def test_a_name_cannot_command_the_terminal(run, tmp_path):
    path: Path = tmp_path / "a\x1b[2J.tar"
    path.write_bytes(b"junk" * 1000)
    done = run("repair", path)
    assert done.code in (0, 1)
    assert "\x1b" not in done.out
    assert json.loads(run("repair", tmp_path, "--json").data)
