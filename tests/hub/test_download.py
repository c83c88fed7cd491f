"""A dataset from the hub to a folder: what is fetched is counted at the hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.conftest import files_below, write
from tests.hub.server import TOKEN, Fault

import shoal
from shoal.errors import (
    ChecksumError,
    FieldError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    UnsafeNameError,
)
from shoal.hub import download, push_to_hub
from shoal.shard import verify_dataset
from shoal.store import _requests


def test_all_of_it(hub, pets, folder, tmp_path):
    told = []
    dataset = download("tester/pets", tmp_path / "got", progress=told.append)
    assert files_below(tmp_path / "got") == files_below(Path(folder))
    assert len(dataset) == 38
    assert told[-1].objects == told[-1].objects_in_all == 8
    assert told[-1].bytes == told[-1].bytes_in_all
    assert all(not report.problems for report in verify_dataset(str(tmp_path / "got")))


def test_only_the_shards_of_a_split_are_fetched(hub, pets, folder, tmp_path):
    dataset = download("tester/pets", tmp_path / "got", splits=["test"])
    assert [each["json"]["n"] for each in dataset[:8]] == list(range(8))
    assert list(shoal.load_dataset(str(tmp_path / "got"))) == ["test"]
    assert not hub.count("train")
    hub.forget()
    both = download("tester/pets", tmp_path / "got", splits="training")
    assert len(both) == 38
    assert not hub.count("test-")
    assert files_below(tmp_path / "got") == files_below(Path(folder))


def test_only_the_bytes_of_a_column_are_fetched(hub, tmp_path):
    hub.add("tester/wide", files_below(Path(write(tmp_path / "wide", train=20, size=100_000))))
    dataset = download("tester/wide", tmp_path / "got", columns=["json", ".cls"])
    assert dataset[7] == {
        "__key__": "train00007",
        "__url__": dataset[7]["__url__"],
        "json": {"n": 7, "split": "train"},
        "cls": 1,
    }
    assert dataset.fields == ("json", "cls")
    assert hub.sent("/blob/") < 100_000  # of two million
    hub.forget()
    assert len(download("tester/wide", tmp_path / "got", columns=["json", "cls"])) == 20
    assert hub.count("/blob/") == 0


def test_an_interrupted_download_goes_on(hub, pets, folder, tmp_path, monkeypatch):
    def stop(done):
        if done.objects == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("tester/pets", tmp_path / "got", progress=stop, at_once=1)
    held = files_below(tmp_path / "got")
    assert 4 <= len(held) < 8
    assert ".shoal/manifest.json" not in held
    hub.forget()
    assert len(download("tester/pets", tmp_path / "got")) == 38
    assert hub.count("/blob/") == 8 - len(held)
    assert files_below(tmp_path / "got") == files_below(Path(folder))


def test_columns_go_on_too(hub, pets, tmp_path):
    def stop(done):
        if done.objects == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("tester/pets", tmp_path / "got", columns="txt", progress=stop)
    hub.forget()
    dataset = download("tester/pets", tmp_path / "got", columns="txt")
    assert len(dataset) == 38
    assert not hub.count("train-000000")
    assert dataset[12]["txt"] == "word 12"


def test_a_revision_and_a_private_repository(hub, pets, tmp_path, monkeypatch):
    repo = hub.repos["dataset", "tester/pets"]
    repo.tags["v1"], repo.private = repo.branches["main"], True
    push_to_hub(write(tmp_path / "new", train=2), "tester/pets")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ObjectNotFoundError, match="HF_TOKEN"):
        download("tester/pets", tmp_path / "none")
    assert len(download("tester/pets", tmp_path / "v1", revision="v1", token=TOKEN)) == 38
    assert len(download("tester/pets", tmp_path / "now", endpoint=hub.url)) == 2
    assert (tmp_path / "now/README.md").exists()


def test_a_repository_without_a_manifest(hub, folder, tmp_path):
    tars = {path: data for path, data in files_below(Path(folder)).items() if path.endswith(".tar")}
    hub.add("org/plain", {**tars, "README.md": b"hi", ".gitattributes": b"x"})
    assert len(download("org/plain", tmp_path / "got", splits="test")) == 8
    assert set(files_below(tmp_path / "got")) == {"test-000000.tar", "README.md"}
    dataset = download("org/plain", tmp_path / "columns", splits="test", columns=["json"])
    assert dataset.fields == ("json",)
    with pytest.raises(FieldError, match=r"expected .*json"):
        download("org/plain", tmp_path / "other", splits="test", columns=["png"])


def test_what_is_not_there(hub, pets, tmp_path):
    with pytest.raises(FieldError, match="train or test"):
        download("tester/pets", tmp_path / "got", splits="dev")
    with pytest.raises(FieldError, match="expected bin or json or txt or cls, found png"):
        download("tester/pets", tmp_path / "got", columns="png")
    with pytest.raises(ObjectNotFoundError, match="no such repository"):
        download("tester/none", tmp_path / "got")
    with pytest.raises(OptionError, match="local folder"):
        download("tester/pets", "memory://got")
    assert not (tmp_path / "got").exists()


def test_a_shard_with_another_content_is_not_replaced_unasked(hub, pets, folder, tmp_path):
    write(tmp_path / "got", test=3)
    before = files_below(tmp_path / "got")
    with pytest.raises(ObjectExistsError, match="overwrite"):
        download("tester/pets", tmp_path / "got", splits="test")
    assert {path: before[path] for path in before if path.endswith(".tar")}.items() <= files_below(
        tmp_path / "got"
    ).items()
    assert len(download("tester/pets", tmp_path / "got", splits="test", overwrite=True)) == 8


def test_bytes_that_are_not_what_the_hub_says(hub, pets, tmp_path):
    listed = hub.repos["dataset", "tester/pets"].commits[hub.repos["dataset", "tester/pets"].branches["main"]].files
    blob = listed["test-000000.tar"]
    hub.lies[blob.sha256] = bytes([blob.data[0] ^ 1]) + blob.data[1:]
    with pytest.raises(ChecksumError, match="not what the hub says"):
        download("tester/pets", tmp_path / "got")
    assert not (tmp_path / "got/test-000000.tar").exists()
    assert not (tmp_path / "got/.shoal/manifest.json").exists()


def test_a_manifest_that_names_what_is_not_there(hub, folder, tmp_path):
    files = files_below(Path(folder))
    del files["train-000001.tar"]
    hub.add("tester/holes", files)
    with pytest.raises(ObjectNotFoundError, match="train-000001"):
        download("tester/holes", tmp_path / "got")


@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/out.txt"])
def test_a_name_that_leads_out_of_the_folder(hub, folder, tmp_path, name):
    hub.add("tester/evil", {**files_below(Path(folder)), name: b"out"})
    with pytest.raises(UnsafeNameError, match="leads out"):
        download("tester/evil", tmp_path / "in" / "got")
    assert not list(tmp_path.rglob("out.txt"))


def test_a_bad_line(hub, pets, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(_requests, "_FIRST_WAIT_S", 0.01)
    hub.faults += [Fault("/blob/", status=0, half=True, times=3), Fault("/resolve/", status=500, times=2)]
    download("tester/pets", tmp_path / "got")
    assert files_below(tmp_path / "got") == files_below(Path(folder))
    assert not any(fault.times for fault in hub.faults)


def test_typed_samples_have_no_columns_of_their_own(hub, tmp_path):
    shoal.write_samples([shoal.DictSample(a=1)], tmp_path / "typed")
    hub.add("tester/typed", files_below(tmp_path / "typed"))
    with pytest.raises(FieldError, match="one payload"):
        download("tester/typed", tmp_path / "got", columns="a")
