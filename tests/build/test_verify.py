"""verify: what is found in a dataset, over all of its shards, and how it is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.build import READERS, Verification, repair, report_page, verify
from shoal.errors import ObjectNotFoundError, OptionError


@pytest.fixture
def root(tmp_path) -> Path:
    folder = tmp_path / "data"
    with shoal.ShardWriter(folder / "train-%06d.tar", max_samples=4, hashed=True) as writer:
        for number in range(12):
            writer.write({"__key__": f"k{number:02d}", "bin": bytes([number]) * 700, "txt": f"number {number}"})
    return folder


def flip(path: Path, what: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(what)] ^= 1
    path.write_bytes(data)


def rules(found: Verification) -> list[str]:
    return [finding.rule for finding in found.findings]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_sound_dataset_has_no_findings(root, workers):
    reports, read = [], []
    found = verify(root, workers=workers, hashed=True, on_shard=reports.append, on_bytes=read.append)
    assert (found.ok, found.findings, found.samples) == (True, (), 12)
    assert found.fields == {"bin": 12, "txt": 12}
    assert found.bytes == sum(path.stat().st_size for path in root.glob("*.tar"))
    assert [report.url for report in reports] == [report.url for report in found.shards]
    assert sum(read) == found.bytes


@pytest.mark.parametrize("workers", [1, 3])
def test_damage_is_told_with_its_place_and_with_what_to_do(root, workers):
    for number in (1, 6, 11):
        flip(root / f"train-{number // 4:06d}.tar", b"number %d" % number)
    found = verify(root, workers=workers)
    assert not found.ok
    errors = [finding for finding in found.findings if finding.severity == "error"]
    assert [(each.rule, each.key, each.field) for each in errors] == [
        ("data", "k01", "txt"),
        ("data", "k06", "txt"),
        ("data", "k11", "txt"),
    ]
    assert all(each.shard and each.offset and each.why and "shoal repair" in each.advice for each in errors)


def test_the_manifest_and_the_hash_are_compared(root):
    text = (root / ".shoal" / "manifest.json").read_text()
    document = json.loads(text)
    document["splits"]["train"][1]["samples"] = 5
    document["splits"]["train"][2]["sha256"] = "0" * 64
    (root / ".shoal" / "manifest.json").write_text(json.dumps(document))
    assert rules(verify(root)) == ["manifest"]
    assert rules(verify(root, hashed=True)) == ["manifest", "hash"]


def test_decode_finds_pictures_that_are_none(tmp_path):
    good = shoal.codec.encode("png", np.zeros((4, 4, 3), np.uint8))
    with shoal.ShardWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "good", "png": good})
        writer.write({"__key__": "bad", "png": good[:40]})
    assert verify(tmp_path).ok
    found = verify(tmp_path, decode=True)
    assert [(each.rule, each.key) for each in found.findings] == [("decode", "bad")]


def test_a_key_in_two_shards_is_found(tmp_path):
    for name in ("a", "b"):
        with shoal.ShardWriter(tmp_path / f"{name}-%06d.tar", append=True) as writer:
            for key in ("one", "two", name):
                writer.write({"__key__": key, "txt": "x"})
    (finding,) = verify(tmp_path).findings
    assert (finding.rule, finding.severity, finding.key, finding.count) == ("key-twice", "warning", "one", 2)
    assert "a-000000.tar" in finding.found
    assert "b-000000.tar" in finding.found


def test_a_key_in_two_splits_is_another_finding_than_one_in_two_shards_of_a_split(tmp_path):
    for split in ("train", "val"):
        with shoal.ShardWriter(tmp_path / "d" / f"{split}-%06d.tar", max_samples=2) as writer:
            for key in ("one", "two", split):
                writer.write({"__key__": key, "txt": split})
    for path in (tmp_path / "d", f"{tmp_path}/d/*.tar"):
        (finding,) = verify(path).findings
        assert (finding.rule, finding.severity, finding.key, finding.count) == ("key-in-splits", "warning", "one", 2)
        assert finding.found == "in train-000000.tar and in val-000000.tar"
    assert verify(tmp_path / "d", split="val").findings == ()
    with shoal.ShardWriter(tmp_path / "d" / "train-b-%06d.tar", split="train", append=True) as writer:
        writer.write({"__key__": "two", "txt": "again"})
    assert rules(verify(tmp_path / "d")) == ["key-twice", "key-in-splits"]


def test_other_fields_are_told_with_the_usual_ones(tmp_path):
    with shoal.ShardWriter(tmp_path / "a-%06d.tar", max_samples=6) as writer:
        for number in range(30):
            extra = {"cls": 1} if number in (20, 21) else {}
            writer.write({"__key__": f"{number:03d}", "jpg": b"x", **extra})
    found = verify(tmp_path)
    mixed = found.findings[0]
    assert (mixed.rule, mixed.key, mixed.expected, mixed.found, mixed.count) == (
        "mixed-fields",
        "020",
        "jpg",
        "cls, jpg",
        2,
    )
    assert rules(found) == ["mixed-fields", "hf-late-field"]
    assert found.ok


def test_only_the_readers_that_are_asked_about(tmp_path):
    with shoal.ShardWriter(tmp_path / "a-%06d.tar", compression="gzip") as writer:
        writer.write({"__key__": "a", "jpg": b"x"})
    assert rules(verify(tmp_path)) == ["compressed"]
    assert rules(verify(tmp_path, readers=["webdataset", "huggingface"])) == []
    assert rules(verify(tmp_path, readers=())) == []
    with pytest.raises(OptionError, match="no such reader"):
        verify(tmp_path, readers=["tensorflow"])
    assert READERS == ("webdataset", "huggingface", "dali")


def test_a_shard_that_is_missing_or_not_listed(root):
    (root / "train-000001.tar").rename(root / "other.tar")
    found = verify(root)
    assert [(each.severity, each.rule) for each in found.findings] == [("error", "shard"), ("note", "note")]
    assert found.samples == 8


def test_the_document_and_the_page(root):
    flip(root / "train-000001.tar", b"number 6")
    found = verify(root)
    document = json.loads(json.dumps(found.to_dict()))
    assert (document["ok"], document["samples"], document["fields"]) == (False, 12, {"bin": 12, "txt": 12})
    assert document["findings"][0]["key"] == "k06"
    assert [shard["ok"] for shard in document["shards"]] == [True, False, True]
    page = report_page(found)
    assert all(text in page for text in ("k06", "damaged", "shoal repair", "train-000001.tar"))


def test_nothing_there_raises(tmp_path):
    with pytest.raises(ObjectNotFoundError):
        verify(tmp_path / "*.tar")


@pytest.mark.parametrize("care", [verify, repair])
def test_names_that_stand_for_nothing_are_an_error_and_no_damage(root, tmp_path, care):
    for path in (tmp_path / "none.tar", tmp_path / "none-{000..003}.tar", [tmp_path / "a.tar", tmp_path / "b.tar"]):
        with pytest.raises(ObjectNotFoundError, match="no such file or folder"):
            care(path)
    there = min(tmp_path.rglob("*.tar"))
    done = care([there, tmp_path / "none.tar"])  # of several, those that are missing are told of
    assert len(done.shards) == 2
