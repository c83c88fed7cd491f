"""A dataset to the hub, by the real client: all of it, once, whole, and again after an interruption."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.hub.conftest import files_below, samples, write
from tests.hub.server import TOKEN, Fault

import shoal
from shoal.errors import (
    AccessDeniedError,
    MissingExtraError,
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    ShoalWarning,
    StoreError,
)
from shoal.hub import _client, _push, dataset_card, push_to_hub
from shoal.shard import load_manifest, verify_dataset
from shoal.store import copy


def numbers(dataset):
    return [each["json"]["n"] for each in (dataset[at] for at in range(len(dataset)))]


def pushed_files(hub, name="tester/pets", revision="main"):
    return hub.repos["dataset", name].files(revision)


def test_what_is_pushed_is_the_folder(hub, folder, api, tmp_path):
    pushed = push_to_hub(folder, "tester/pets", private=True)
    assert hub.repos["dataset", "tester/pets"].private
    got = api.snapshot_download("tester/pets", repo_type="dataset", local_dir=tmp_path / "got")
    theirs, ours = files_below(Path(got)), files_below(Path(folder))
    theirs = {path: data for path, data in theirs.items() if not path.startswith(".cache/")}
    assert theirs.keys() - ours.keys() == {"README.md"}
    assert {path: theirs[path] for path in ours if "manifest" not in path} == {
        path: data for path, data in ours.items() if "manifest" not in path
    }
    for record in load_manifest(got).shards:
        assert record.sha256 == hashlib.sha256(ours[record.path]).hexdigest()
    assert all(not report.problems for report in verify_dataset(got))
    assert numbers(shoal.Dataset(pushed.url, split="train")) == list(range(30))
    assert pushed.commit == hub.repos["dataset", "tester/pets"].branches["main"]
    assert pushed.page == f"{hub.url}/datasets/tester/pets"


def test_a_push_is_one_commit_and_the_second_is_none(hub, folder):
    first = push_to_hub(folder, "tester/pets", message="All pets")
    repo = hub.repos["dataset", "tester/pets"]
    assert [commit.message for commit in repo.commits.values()] == ["initial commit", "All pets"]
    hub.forget()
    assert push_to_hub(folder, "tester/pets").commit == first.commit
    assert hub.count("/blob/", "PUT") == 0


def test_the_token_stays_in_headers(hub, folder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(AccessDeniedError, match="HF_TOKEN"):
        push_to_hub(folder, "tester/pets")
    pushed = push_to_hub(folder, "tester/pets", token=TOKEN, endpoint=hub.url, private=True)
    assert len(shoal.Dataset(pushed.url)) == 38  # from now on, for the repository
    assert not hub.count(TOKEN)
    assert {each.token for each in hub.seen("/blob/")} == {None}
    assert TOKEN not in repr(pushed) + repr(shoal.store.configured())


def test_an_interrupted_push_goes_on(hub, folder, monkeypatch):
    monkeypatch.setattr(_push, "_BATCH_FILES", 1)
    told = []

    def stop(done):
        told.append(done)
        if done.objects == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push_to_hub(folder, "tester/pets", progress=stop)
    assert [each.objects for each in told] == [1, 2, 3]
    assert not pushed_files(hub)  # readers see nothing yet
    sent = {each.path for each in hub.seen("/blob/", "PUT")}
    assert len(sent) == 3
    hub.forget()
    last = []
    push_to_hub(folder, "tester/pets", progress=last.append)
    assert not sent & {each.path for each in hub.seen("/blob/", "PUT")}
    assert (last[-1].objects, last[-1].bytes) == (last[-1].objects_in_all, last[-1].bytes_in_all)
    assert last[-1].objects == 8
    assert len(shoal.Dataset("hf://datasets/tester/pets")) == 38


def test_a_push_that_the_server_broke_goes_on(hub, folder):
    hub.faults.append(Fault("/blob/", method="PUT", status=400, after=3, times=100))
    with pytest.raises(StoreError):
        push_to_hub(folder, "tester/pets")
    hub.faults.clear()
    held = set(hub.blobs)
    assert len(held) == 3
    hub.forget()
    push_to_hub(folder, "tester/pets")
    assert not held & {each.path.split("/")[2] for each in hub.seen("/blob/", "PUT")}


def test_large_files_go_in_parts(hub, tmp_path):
    hub.multipart_over, hub.part_size = 200_000, 100_000
    push_to_hub(write(tmp_path / "big", train=10, size=40_000), "tester/big")
    assert hub.count("/part/", "PUT") >= 4
    assert pushed_files(hub, "tester/big")["train-000000.tar"] == (tmp_path / "big/train-000000.tar").read_bytes()


@pytest.mark.parametrize("pattern", ["/commit/", "/repos/create"])
def test_a_busy_hub_is_asked_again(hub, folder, pattern):
    fault = Fault(pattern, status=429, retry_after="0", times=2)
    hub.faults.append(fault)
    push_to_hub(folder, "tester/pets")
    assert fault.times == 0
    assert len(shoal.Dataset("hf://datasets/tester/pets")) == 38


def test_a_hub_that_stays_busy_or_asks_for_too_much(hub, folder):
    hub.faults.append(Fault("/commit/", status=429, retry_after="4000", times=100))
    with pytest.raises(StoreError, match="the hub answered 429"):
        push_to_hub(folder, "tester/pets")


def test_somebody_else_pushed_meanwhile(hub, folder):
    hub.faults.append(Fault("/commit/", status=412, times=100))
    with pytest.raises(ObjectChangedError, match="push again"):
        push_to_hub(folder, "tester/pets")


def test_a_hub_that_is_not_there(hub, folder, monkeypatch):
    monkeypatch.setattr(_client, "_TRIES", 1)
    with pytest.raises(StoreError, match="cannot be reached"):
        push_to_hub(folder, "tester/pets", endpoint="http://127.0.0.1:9")


def test_a_push_replaces_the_last_and_leaves_what_others_put_there(hub, folder, tmp_path):
    push_to_hub(folder, "tester/pets")
    hub.add("tester/pets", {"paper.pdf": b"pdf", "notes/a.txt": b"text"})
    push_to_hub(write(tmp_path / "fewer", train=5), "tester/pets")
    assert set(pushed_files(hub)) == {
        "README.md",
        "paper.pdf",
        "notes/a.txt",
        "train-000000.tar",
        ".shoal/manifest.json",
        ".shoal/index/train-000000.tar.arrow",
    }
    assert numbers(shoal.Dataset("hf://datasets/tester/pets")) == [0, 1, 2, 3, 4]


def test_many_files_are_several_commits_and_the_manifest_comes_last(hub, folder, monkeypatch):
    monkeypatch.setattr(_push, "_PER_COMMIT", 3)
    push_to_hub(folder, "tester/pets", message="Pets")
    commits = list(hub.repos["dataset", "tester/pets"].commits.values())
    assert [each.message for each in commits] == [
        "initial commit",
        "Pets (part 1 of 3)",
        "Pets (part 2 of 3)",
        "Pets",
    ]
    assert [".shoal/manifest.json" in each.files for each in commits] == [False, False, False, True]


def test_a_branch_is_made(hub, folder, tmp_path):
    push_to_hub(folder, "tester/pets")
    push_to_hub(write(tmp_path / "new", train=3), "tester/pets", revision="next")
    assert len(shoal.Dataset("hf://datasets/tester/pets")) == 38
    assert len(shoal.Dataset("hf://datasets/tester/pets@next")) == 3


def test_a_name_without_an_owner_is_the_users(hub, folder):
    assert push_to_hub(folder, "pets").repo_id == "tester/pets"
    assert "tester/pets" in pushed_files(hub)["README.md"].decode()


def test_other_files_go_along_and_what_writers_keep_does_not(hub, folder):
    root = Path(folder)
    for path in ("LICENSE", "docs/a.md", ".shoal/wids.json", ".shoal/journal-x.jsonl", ".git/config", "stray.tar"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"{}")
    push_to_hub(folder, "tester/pets")
    there = set(pushed_files(hub))
    assert {"LICENSE", "docs/a.md", ".shoal/wids.json"} <= there
    assert not {".shoal/journal-x.jsonl", ".git/config", "stray.tar"} & there


def test_tars_of_others_are_indexed_on_the_way(hub, folder, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    for tar in Path(folder).glob("*.tar"):
        (plain / tar.name).write_bytes(tar.read_bytes())
    before = files_below(plain)
    push_to_hub(plain, "tester/pets")
    assert files_below(plain) == before
    assert len(shoal.Dataset("hf://datasets/tester/pets", split="test")) == 8
    assert ".shoal/index/test-000000.tar.arrow" in pushed_files(hub)


def test_compressed_shards(hub, tmp_path):
    for compression, ending in (("gzip", "tar.gz"), ("zstd", "tar.zst")):
        pattern = tmp_path / compression / f"train-%06d.{ending}"
        shoal.write_samples(samples("train", 5), pattern, compression=compression)
    push_to_hub(tmp_path / "gzip", "tester/gzip")
    with pytest.warns(ShoalWarning, match="zstd"):
        push_to_hub(tmp_path / "zstd", "tester/zstd")
    for name in ("gzip", "zstd"):
        assert numbers(shoal.Dataset(f"hf://datasets/tester/{name}")) == [0, 1, 2, 3, 4]


def test_a_folder_elsewhere(hub, folder):
    copy(folder, "memory://hub/elsewhere")
    push_to_hub("memory://hub/elsewhere", "tester/pets")
    here, there = files_below(Path(folder)), pushed_files(hub)
    assert all(there[path] == data for path, data in here.items() if "manifest" not in path)


def test_a_split_and_a_view(hub, folder):
    dataset = shoal.Dataset(folder, split="train")
    assert push_to_hub(dataset, "tester/split").files == 6
    assert pushed_files(hub, "tester/split")["train-000002.tar"] == Path(folder, "train-000002.tar").read_bytes()
    push_to_hub(dataset.where("n >= 27"), "tester/view")
    pushed = shoal.load_dataset("hf://datasets/tester/view", split="train")
    assert numbers(pushed) == [27, 28, 29]
    kept = {each["__key__"]: each["bin"] for each in samples("train", 30)}
    assert all(each["bin"] == kept[each["__key__"]] for each in pushed[:3])


def test_splits_and_functions(hub, folder):
    splits = shoal.load_dataset(folder)
    push_to_hub({"train": splits["test"], "held_out": splits["train"].select([4, 2])}, "tester/mixed")
    there = shoal.load_dataset("hf://datasets/tester/mixed")
    assert {name: len(split) for name, split in there.items()} == {"train": 8, "held_out": 2}
    assert push_to_hub(splits, "tester/all").files == 8
    doubled = splits["test"].map(lambda each: {"__key__": each["__key__"], "json": {"n": each["json"]["n"] * 2}})
    push_to_hub(doubled, "tester/doubled")
    assert numbers(shoal.load_dataset("hf://datasets/tester/doubled", split="test")) == list(range(0, 16, 2))


@shoal.packable
class Point:
    at: NDArray[np.float32]
    name: str


def test_typed_samples_come_back_typed(hub, tmp_path):
    points = [Point(np.full(3, number, np.float32), f"p{number}") for number in range(4)]
    dataset = shoal.write_samples(points, tmp_path / "points")
    for given in (tmp_path / "points", dataset.select([3, 1])):
        push_to_hub(given, "tester/points")
        there = shoal.Dataset[Point]("hf://datasets/tester/points")
        assert [point.name for point in there[: len(there)]][-1] == ("p3" if len(there) == 4 else "p1")
        assert "Samples of type Point" in pushed_files(hub, "tester/points")["README.md"].decode()


def test_what_cannot_be_pushed(hub, folder, tmp_path):
    with pytest.raises(ObjectNotFoundError, match="no such folder"):
        push_to_hub(tmp_path / "none", "tester/pets")
    with pytest.raises(OptionError, match="cannot be pushed"):
        push_to_hub(3, "tester/pets")
    with pytest.raises(OptionError, match="nothing to push"):
        push_to_hub({}, "tester/pets")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("x")
    with pytest.raises(ObjectNotFoundError, match="no tar shards"):
        push_to_hub(tmp_path / "empty", "tester/pets")
    assert not hub.repos


def test_without_the_client_it_is_said_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"shoal\[hub\]"):
        push_to_hub(folder, "tester/pets")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtraError, match=r"shoal\[hub\]"):
        dataset_card(folder)
