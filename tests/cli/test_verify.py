"""verify and repair: what is printed, exit codes, reports and hashes."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import shoal
from shoal.shard import load_manifest


def flip(path, what: bytes) -> int:
    """Flip a bit of the first place that holds ``what``."""
    data = bytearray(path.read_bytes())
    at = data.index(what)
    data[at] ^= 1
    path.write_bytes(data)
    return at


def test_a_sound_dataset(run, dataset):
    done = run("verify", dataset)
    assert done.code == 0
    assert done.out.count(": ok (") == 3
    facts = run("verify", dataset, "--json").json
    assert (facts["ok"], facts["problems"]) == (True, 0)
    assert [shard["samples"] for shard in facts["shards"]] == [4, 3, 3]


def test_all_damage_is_listed_with_its_place(run, dataset):
    first = flip(dataset / "train-000000.tar", b"number 1")
    flip(dataset / "train-000000.tar", b"number 3")
    flip(dataset / "train-000001.tar", b"k05.json")
    done = run("verify", dataset)
    assert done.code == 1
    for words in ("key k01, field txt", f"byte {first}", "key k03, field txt", "key k05, field json"):
        assert words in done.out
    problems = [each for shard in run("verify", dataset, "--json").json["shards"] for each in shard["problems"]]
    assert [(each["kind"], each["key"], each["field"]) for each in problems] == [
        ("data", "k01", "txt"),
        ("data", "k03", "txt"),
        ("header", "k05", "json"),
    ]


def test_missing_and_unlisted_files(run, dataset):
    shutil.copy(dataset / "train-000000.tar", dataset / "extra.tar")
    assert run("verify", dataset).code == 0
    assert "does not list this tar" in run("verify", dataset).out
    (dataset / "train-000001.tar").unlink()
    (dataset / ".shoal" / "index" / "validation-000000.tar.arrow").unlink()
    done = run("verify", dataset, "--json")
    assert done.code == 1
    kinds = {
        shard["url"].rpartition("/")[2]: [each["kind"] for each in shard["problems"]] for shard in done.json["shards"]
    }
    assert kinds == {
        "train-000000.tar": [],
        "train-000001.tar": ["shard"],
        "validation-000000.tar": ["index"],
        "extra.tar": [],
    }


def test_one_split(run, dataset):
    flip(dataset / "train-000000.tar", b"number 1")
    assert run("verify", dataset, "--split", "validation").code == 0
    assert run("verify", dataset, "--split", "train").code == 1


def test_hashes_are_filled_in_and_then_compared(run, dataset):
    assert run("verify", dataset, "--hash", "--json").json["hashes_filled"] == 3
    records = load_manifest(str(dataset)).shards
    expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dataset.glob("*.tar")}
    assert {record.path: record.sha256 for record in records} == expected
    assert run("verify", dataset, "--hash", "--json").json["hashes_filled"] == 0
    text = (dataset / ".shoal" / "manifest.json").read_text()
    (dataset / ".shoal" / "manifest.json").write_text(text.replace(records[0].sha256, "0" * 64))
    done = run("verify", dataset, "--hash")
    assert done.code == 1
    assert "not the one that was hashed" in done.out


def test_a_damaged_shard_gets_no_hash(run, dataset):
    flip(dataset / "train-000000.tar", b"number 1")
    assert run("verify", dataset, "--hash").code == 1
    assert [record.sha256 is None for record in load_manifest(str(dataset)).shards] == [True, False, False]


def test_deep_decodes_every_field(run, tmp_path):
    with shoal.ShardWriter(tmp_path / "d" / "a.tar") as writer:
        writer.write({"__key__": "good", "json": b"{}", "png": shoal.codec.encode("png", _picture())})
        writer.write({"__key__": "bad", "json": b"{", "png": b"no picture", "bin": b"anything"})
    assert run("verify", tmp_path / "d").code == 0
    done = run("verify", tmp_path / "d", "--deep", "--json")
    assert done.code == 1
    problems = done.json["shards"][0]["problems"]
    assert [(each["kind"], each["key"], each["field"]) for each in problems] == [
        ("decode", "bad", "json"),
        ("decode", "bad", "png"),
    ]


def _picture():
    import numpy as np

    return np.zeros((4, 4, 3), np.uint8)


def test_a_tar_without_an_index_is_judged_by_itself(run, foreign):
    done = run("verify", foreign, "--json")
    assert done.code == 0
    assert "no index" in done.json["shards"][0]["notes"][0]["problem"]
    run("index", foreign)
    flip(foreign / "x-000000.tar", b"number 1")
    done = run("verify", foreign)
    assert done.code == 1
    assert "key k01, field txt" in done.out


def test_warnings_are_told_with_reasons_and_count_when_strict(run, tmp_path):
    with shoal.ShardWriter(tmp_path / "d" / "a.tar") as writer:
        writer.write({"__key__": "a", "txt": "x"})
        writer.write({"__key__": "b", "cls": 1})
    done = run("verify", tmp_path / "d")
    assert done.code == 0
    assert "warning: samples have different fields" in done.out
    assert "  why: " in done.out
    assert "  what to do: " in done.out
    assert done.out.endswith("1 shard: 2 warnings\n")
    assert run("verify", tmp_path / "d", "--strict").code == 1
    assert run("verify", tmp_path / "d", "--strict", "--no-lint").code == 0
    facts = run("verify", tmp_path / "d", "--json").json
    assert [each["rule"] for each in facts["findings"]] == ["mixed-fields", "hf-first-samples"]


def test_the_report_is_a_page(run, dataset, tmp_path):
    flip(dataset / "train-000000.tar", b"number 1")
    assert run("verify", dataset, "--report", tmp_path / "page.html", "--workers", 2).code == 1
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "k01" in page


def test_the_metadata_that_a_writer_adds_to_each_shard_is_nothing_to_note(run, tmp_path):
    with shoal.ShardWriter(tmp_path / "d" / "a.tar", metadata={"made": "here"}) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    assert "note" not in run("verify", tmp_path / "d").out


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
