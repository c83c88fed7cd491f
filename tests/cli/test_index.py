"""index: for tars of others, beside them or in the cache, from and for other loaders."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import shoal
from shoal.shard import load_manifest


def test_beside_the_tar(run, foreign):
    done = run("index", foreign, "--json").json["shards"]
    assert [(shard["state"], shard["samples"]) for shard in done] == [("indexed", 4)]
    assert load_manifest(str(foreign)).samples == 4
    assert run("index", foreign, "--json").json["shards"][0]["state"] == "kept"
    assert run("index", foreign, "--force", "--json").json["shards"][0]["state"] == "indexed"


def test_a_tar_below_a_folder_is_found_again(run, foreign, monkeypatch):
    deep = foreign / "a" / "b"
    deep.mkdir(parents=True)
    (foreign / "x-000000.tar").rename(deep / "x.tar")
    run("index", foreign)
    monkeypatch.setenv("SHOAL_CACHE", str(foreign / "cache"))
    assert len(shoal.Dataset(foreign)) == 4
    assert not (foreign / "cache").exists()


def test_in_the_cache(run, foreign):
    done = run("index", foreign, "--cache", "--json").json
    assert (done["shards"][0]["state"], done["manifests"]) == ("indexed", [])
    assert not (foreign / ".shoal").exists()
    assert any(files for _, _, files in os.walk(os.environ["SHOAL_CACHE"]))
    assert run("index", foreign, "--cache", "--json").json["shards"][0]["state"] == "kept"


def test_a_changed_tar_is_indexed_again(run, foreign):
    run("index", foreign)
    path = foreign / "x-000000.tar"
    path.write_bytes(path.read_bytes() + bytes(10240))
    assert run("head", foreign).code == 1
    assert run("index", foreign, "--json").json["shards"][0]["state"] == "indexed"
    assert run("head", foreign).code == 0


def test_the_folder_becomes_a_dataset(run, foreign):
    (foreign / "x-000000.tar").rename(foreign / "val-0.tar")
    done = run("index", foreign, "--json").json
    assert done["manifests"] == [f"{foreign}/.shoal/manifest.json"]
    manifest = load_manifest(str(foreign))
    assert list(manifest.splits) == ["validation"]
    assert manifest.shards[0].fields["txt"] == (4, 32)
    assert run("index", foreign, "--json").json["manifests"] == []
    assert run("verify", foreign).code == 0


def test_the_manifest_follows_a_shard_that_is_indexed_again(run, dataset):
    path = dataset / "validation-000000.tar"
    path.write_bytes((dataset / "train-000000.tar").read_bytes())
    assert run("verify", dataset).code == 1
    run("index", dataset, "--force")  # of the same size, and with the same first member: only a reading tells
    assert load_manifest(str(dataset)).splits["validation"][0].samples == 4
    assert run("verify", dataset).code == 0


def test_several_paths(run, dataset, foreign):
    done = run("index", dataset, foreign / "*.tar", "--json").json
    assert [shard["state"] for shard in done["shards"]] == ["kept", "kept", "kept", "indexed"]


def test_a_manifest_is_about_all_tars_of_one_folder(run, dataset, foreign):
    assert run("index", f"{dataset}/train-000000.tar::{foreign}/x-000000.tar").code == 2
    shutil.copy(foreign / "x-000000.tar", foreign / "other.tar")
    done = run("index", foreign / "x-000000.tar")
    assert (done.code, "other.tar" in done.err) == (2, True)
    assert not (foreign / ".shoal").exists()
    assert run("index", foreign / "x-000000.tar", "--cache").code == 0
    assert run("index", foreign).code == 0


@pytest.mark.parametrize("loader, name", [("energon", "x-000000.tar.idx"), ("dali", "x-000000.idx")])
def test_to_and_from_other_loaders(run, foreign, loader, name):
    done = run("index", foreign, "--export", loader, "--json").json
    assert done["exported"] == [f"{foreign}/{name}"]
    samples = [sample["fields"] for sample in run("ls", foreign, "-l", "--json").json["samples"]]
    done = run("index", foreign, "--from", loader, "--force", "--json").json
    assert done["shards"][0]["state"] == "imported"
    assert [sample["fields"] for sample in run("ls", foreign, "-l", "--json").json["samples"]] == samples


def test_from_a_loader_that_was_not_here(run, foreign):
    done = run("index", foreign, "--from", "dali")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "x-000000.idx" in done.err


def test_to_and_from_wids(run, foreign):
    done = run("index", foreign, "--export", "wids", "--json").json
    assert done["exported"] == [f"{foreign}/.shoal/wids.json"]
    document = json.loads((foreign / ".shoal" / "wids.json").read_text())
    assert [shard["nsamples"] for shard in document["shardlist"]] == [4]
    done = run("index", foreign / ".shoal" / "wids.json", "--from", "wids", "--force", "--json").json
    assert [(shard["shard"], shard["samples"]) for shard in done["shards"]] == [(f"{foreign}/x-000000.tar", 4)]
    document["shardlist"][0]["nsamples"] = 5
    (foreign / "index.json").write_text(json.dumps(document | {"base": str(foreign)}))
    (foreign / ".shoal" / "wids.json").write_text(json.dumps(document))
    assert run("index", foreign / ".shoal" / "wids.json", "--from", "wids", "--force").code == 1


def test_the_table_for_people(run, foreign):
    out = run("index", foreign, "--export", "dali").out
    assert "indexed" in out
    assert f"wrote {foreign}/x-000000.idx" in out
