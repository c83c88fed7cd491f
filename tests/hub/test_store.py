"""``hf://`` as a store: what is asked of the hub, who asks, and what happens when it does not answer as it should."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest
from tests.hub.conftest import files_below, samples, write
from tests.hub.server import TOKEN, Fault

import shoal
from shoal import store
from shoal.errors import AccessDeniedError, ObjectNotFoundError, StoreError
from shoal.hub import hub_url
from shoal.store import HubStore, _huggingface, configure, hub_access
from shoal.store._http import failure_of_answer
from shoal.store._hub_access import hub_token
from shoal.store._huggingface import repository_of
from shoal.store._options import StoreOptions

TRAIN = [(each["__key__"], each["bin"], each["json"]["n"]) for each in samples("train", 30)]


def read(dataset):
    return [(each["__key__"], each["bin"], each["json"]["n"]) for each in dataset]


def test_opening_is_one_listing_and_the_manifest(hub, pets):
    dataset = shoal.Dataset(pets, split="train")
    assert len(dataset) == 30
    commit = hub.repos["dataset", "tester/pets"].branches["main"]
    assert [each.path for each in hub.requests] == [
        "/api/datasets/tester/pets/revision/main?expand=sha",
        f"/api/datasets/tester/pets/tree/{commit}?recursive=true&expand=false",
        f"/datasets/tester/pets/resolve/{commit}/.shoal/manifest.json",
    ]
    hub.forget()
    splits = shoal.load_dataset(f"{pets}@main")
    assert {name: len(split) for name, split in splits.items()} == {"train": 30, "test": 8}
    assert hub.count("/resolve/") == 0  # a commit's manifest stays what it is


def test_every_sample_comes_by_ranges(hub, pets):
    dataset = shoal.Dataset(pets, split="train")
    assert dataset[17]["json"] == {"n": 17, "split": "train"}
    whole = sum(len(data) for path, data in hub.repos["dataset", "tester/pets"].files().items() if path[-4:] == ".tar")
    assert hub.sent("/blob/") < whole / 4
    assert not hub.count(r"\.tar$", "HEAD")
    assert all(each.range for each in hub.seen(r"resolve/.*\.tar$"))
    same = read(dataset) == TRAIN
    assert same


def test_a_pattern_and_the_verbs_of_a_store(hub, pets, tmp_path):
    assert [each["__key__"] for each in shoal.Dataset(f"{pets}/train-{{000000..000001}}.tar")][:1] == ["train00000"]
    assert len(shoal.Dataset(f"{pets}@main/t*.tar")) == 38
    assert [info.url for info in store.list(f"{pets}/", 1)] == [
        f"{pets}/{name}" for name in ("test-000000.tar", *(f"train-{n:06d}.tar" for n in range(3)))
    ]
    assert store.exists(f"{pets}/test-000000.tar")
    assert not store.exists(f"{pets}/none.tar")
    assert not store.exists("hf://datasets/tester/none/a.tar")
    assert store.download(pets, tmp_path / "copy").objects == 9
    assert files_below(tmp_path / "copy") == hub.repos["dataset", "tester/pets"].files()
    assert store.store_for(pets).is_folder(f"{pets}/.shoal/index")
    assert not store.store_for(pets).is_folder(f"{pets}/trai")


def test_large_and_empty_files(hub):
    data = bytes(range(256)) * 25_000
    hub.add("org/x", {"big.bin": data, "middle.bin": data[: 2 << 20], "empty.txt": b""})
    configure("hf://datasets/org/x", part_size=5 << 20)
    assert store.get("hf://datasets/org/x/big.bin") == data
    assert hub.count("/blob/") == 2
    assert store.get("hf://datasets/org/x/middle.bin") == data[: 2 << 20]
    assert store.get("hf://datasets/org/x/empty.txt") == b""


def test_a_shuffled_loader_goes_on_where_it_was(hub, pets):
    def loader():
        return shoal.Dataset(pets, split="train").shuffle(100, seed=3).batch(4)

    whole = [list(batch["__key__"]) for batch in loader()]
    keys, in_order = [key for batch in whole for key in batch], [key for key, _, _ in TRAIN]
    assert keys != in_order
    assert sorted(keys) == in_order
    first = loader()
    batches = iter(first)
    began = [list(next(batches)["__key__"]) for _ in range(3)]
    state = first.state_dict()
    batches.close()
    second = loader()
    second.load_state_dict(state)
    assert began + [list(batch["__key__"]) for batch in second] == whole


def test_small_files_may_come_from_elsewhere_on_the_hub(hub, pets):
    hub.redirects_small = hub.repos["dataset", "tester/pets"].private = True
    same = read(shoal.Dataset(pets, split="train")) == TRAIN
    assert same
    assert [each.token for each in hub.seen("/resolve-cache/")] == [f"Bearer {TOKEN}"]


def test_many_files_come_in_pages(hub, pets):
    hub.page = 2
    assert len(list(store.list(pets))) == 9
    assert hub.count("cursor=") >= 4


def test_a_repository_of_others_is_indexed_once(hub, folder, tmp_path):
    tars = {path: data for path, data in files_below(Path(folder)).items() if path.endswith(".tar")}
    hub.add("org/plain", tars)
    assert len(shoal.load_dataset("hf://datasets/org/plain", split="train")) == 30
    hub.forget()
    assert shoal.load_dataset("hf://datasets/org/plain", split="train")[29]["json"]["n"] == 29
    assert hub.sent("/blob/") < 10_000


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, pets, tmp_path):
    repo = hub.repos["dataset", "tester/pets"]
    repo.tags["v1"] = first = repo.branches["main"]
    hub.add("tester/pets", files_below(Path(write(tmp_path / "new", train=5, per_shard=5))))
    repo.branches["odd/name"] = repo.branches["main"]
    assert [len(shoal.Dataset(f"{pets}{at}", split="train")) for at in ("@v1", f"@{first}", "", "@odd%2Fname")] == [
        30,
        30,
        5,
        5,
    ]
    assert hub.count("revision/") == 3  # nothing is asked of a commit
    with pytest.raises(ObjectNotFoundError, match="no such revision: found v2"):
        len(shoal.Dataset(f"{pets}@v2"))


def test_a_reader_keeps_to_its_commit(hub, pets, tmp_path, monkeypatch):
    dataset = shoal.Dataset(pets, split="train")
    assert dataset[0]["json"]["n"] == 0
    hub.add("tester/pets", files_below(Path(write(tmp_path / "new", train=5, per_shard=5))))
    same = read(dataset) == TRAIN
    assert same
    monkeypatch.setattr(_huggingface, "_MAX_AGE_S", 0.0)
    assert len(shoal.Dataset(pets, split="train")) == 5


def test_a_file_that_came_later_is_found(hub, pets, monkeypatch):
    monkeypatch.setattr(_huggingface, "_MAX_AGE_S", 0.0)
    assert not store.exists(f"{pets}/later.txt")
    hub.add("tester/pets", {"later.txt": b"here"})
    assert store.get(f"{pets}/later.txt") == b"here"
    hub.add("tester/pets", {"later.txt": b"changed"})
    HubStore().forget(pets)
    assert store.get(f"{pets}/later.txt") == b"changed"


def test_few_repositories_are_remembered(hub, monkeypatch):
    monkeypatch.setattr(_huggingface, "_MAX_CACHED", 2)
    for number in range(5):
        hub.add(f"org/r{number}", {"a.txt": b"%d" % number})
        assert store.get(f"hf://datasets/org/r{number}/a.txt") == b"%d" % number
    assert len(_huggingface._LISTINGS) == 2


def test_the_token_is_sent_to_the_hub_and_nowhere_else(hub, pets):
    hub.repos["dataset", "tester/pets"].private = True
    same = read(shoal.Dataset(pets, split="train")) == TRAIN
    assert same
    assert {each.token for each in hub.seen("^/(api|datasets)/")} == {f"Bearer {TOKEN}"}
    assert {each.token for each in hub.seen("/blob/")} == {None}
    assert not hub.count(TOKEN)
    assert TOKEN not in repr(hub_access(pets))


def test_a_private_repository_without_a_token(hub, pets, monkeypatch):
    hub.repos["dataset", "tester/pets"].private = True
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ObjectNotFoundError, match=r"private one.*HF_TOKEN"):
        len(shoal.Dataset(pets))
    configure(pets, credential_provider=lambda: {"token": TOKEN})
    assert len(shoal.Dataset(pets)) == len(shoal.Dataset(f"{pets}@main")) == 38
    configure(pets, credential_provider=dict)
    with pytest.raises(AccessDeniedError, match="gave no token"):
        len(shoal.Dataset(pets))


def test_a_token_that_is_wrong_is_not_shown(hub, pets, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(AccessDeniedError, match=r"access denied \(401\).*HF_TOKEN") as caught:
        len(shoal.Dataset(pets))
    assert "hf_wrong" not in str(caught.value)


def test_a_gated_repository(hub, pets, monkeypatch):
    repo = hub.repos["dataset", "tester/pets"]
    repo.gated = True
    assert len(shoal.Dataset(pets)) == 38
    hub.tokens["hf_other"] = "other"
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(AccessDeniedError, match=r"403.*ask for access"):
        store.get(f"{pets}/.shoal/index/test-000000.tar.arrow")
    repo.readers = frozenset({"other"})
    assert store.get(f"{pets}/.shoal/index/test-000000.tar.arrow")


@pytest.mark.parametrize(
    "options, environment, expected",
    [
        ({}, {"HF_TOKEN": " hf_a\n"}, "hf_a"),
        ({}, {"HUGGING_FACE_HUB_TOKEN": "hf_b"}, "hf_b"),
        ({}, {"HF_TOKEN_PATH": "kept"}, "hf_kept"),
        ({}, {"HF_HOME": "home"}, "hf_home"),
        ({}, {"XDG_CACHE_HOME": "cache"}, "hf_cache"),
        ({}, {"HF_HOME": "nowhere"}, None),
        ({}, {"HF_TOKEN": "hf_a", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, None),
        ({"anonymous": True}, {"HF_TOKEN": "hf_a"}, None),
        ({"credential_provider": lambda: {"token": "hf_p"}}, {"HF_TOKEN": "hf_a"}, "hf_p"),
    ],
)
def test_where_the_token_comes_from(options, environment, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, token in (("kept", "hf_kept"), ("home/token", "hf_home\n"), ("cache/huggingface/token", "hf_cache")):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(token)
    assert hub_token(StoreOptions(**options), environment) == expected


@pytest.mark.parametrize(
    "fault",
    [
        Fault("/tree/", status=503),
        Fault("/revision/", status=0),
        Fault("/tree/", status=0, half=True),
        Fault("/resolve/", status=500, times=2),
        Fault("/blob/", status=0, times=2),
        Fault("/blob/", status=0, half=True, times=2),
        Fault("/blob/", status=429, retry_after="0", times=3),
    ],
    ids=str,
)
def test_an_epoch_over_a_bad_line_is_byte_exact(hub, pets, fault):
    hub.faults.append(fault)
    same = read(shoal.Dataset(pets, split="train")) == TRAIN
    assert same
    assert fault.times == 0


@pytest.mark.parametrize("pattern", ["/tree/", "/resolve/"])
def test_retry_after_is_waited_for(hub, pets, pattern):
    fault = Fault(pattern, status=429, retry_after="1", times=2 if pattern == "/resolve/" else 1)
    hub.faults.append(fault)
    began = time.monotonic()
    assert store.get(f"{pets}/.shoal/manifest.json")
    assert time.monotonic() - began >= 1.0
    assert fault.times == 0


def test_a_hub_that_asks_for_too_much_is_not_waited_for(hub, pets):
    hub.faults.append(Fault("/tree/", status=429, retry_after="4000"))
    with pytest.raises(StoreError, match="429"):
        len(shoal.Dataset(pets))


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"Retry-After": "7"}, 7.0),
        ({"RateLimit": '"resolvers";r=0;t=55'}, 55.0),
        ({"Retry-After": "2", "RateLimit": '"api";r=0;t=55'}, 2.0),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers, seconds):
    assert failure_of_answer(429, headers).retry_after == seconds


def test_a_hub_that_is_not_there(pets, hub):
    configure("hf://", endpoint="http://127.0.0.1:9", retries=0)
    with pytest.raises(StoreError, match="cannot be reached"):
        len(shoal.Dataset(pets))


def test_a_server_that_is_no_hub(http_text):
    configure("hf://", endpoint=http_text, retries=0)
    with pytest.raises(StoreError, match="cannot be understood"):
        len(shoal.Dataset("hf://datasets/org/name"))


def test_a_file_of_another_size_is_refused(hub, pets):
    listed = HubStore().snapshot(pets)
    repo = hub.repos["dataset", "tester/pets"]
    held = repo.commits[listed.commit].files
    held["test-000000.tar"] = type(held["test-000000.tar"])(b"short", big=True)
    with pytest.raises(StoreError):
        store.get(f"{pets}/test-000000.tar")


@pytest.mark.parametrize(
    "url, expected",
    [
        ("hf://datasets/org/name", ("datasets", "org/name", "main", "")),
        ("hf://datasets/org/name/", ("datasets", "org/name", "main", "")),
        ("hf://datasets/org/name@v1.0/a/b.tar", ("datasets", "org/name", "v1.0", "a/b.tar")),
        (
            "hf://datasets/org/name@refs/convert/parquet/a.parquet",
            ("datasets", "org/name", "refs/convert/parquet", "a.parquet"),
        ),
        ("hf://datasets/org/name@a%2Fb/c@d.tar", ("datasets", "org/name", "a/b", "c@d.tar")),
        ("hf://org/name/a.bin", ("models", "org/name", "main", "a.bin")),
        ("hf://models/org/name@x", ("models", "org/name", "x", "")),
        ("hf://spaces/org/name/app.py", ("spaces", "org/name", "main", "app.py")),
    ],
)
def test_what_a_url_names(url, expected):
    repository, path = repository_of(url)
    assert (repository.kind, repository.name, repository.revision, path) == expected
    assert url.startswith(repository.prefix)


@pytest.mark.parametrize("url", ["hf://", "hf://datasets", "hf://datasets/org", "hf://datasets/org/name@", "hf://org"])
def test_a_url_without_a_repository(url):
    with pytest.raises(StoreError, match="names no repository"):
        repository_of(url)


def test_what_cannot_be_a_repository_is_not_asked_for(hub):
    assert not store.exists("hf://datasets/org/.shoal/a")
    assert not hub.requests


def test_a_model_is_not_a_dataset(hub, pets):
    with pytest.raises(ObjectNotFoundError, match="a dataset is hf://datasets/tester/pets"):
        len(shoal.Dataset("hf://tester/pets"))
    hub.add("tester/net", {"a.txt": b"weights"}, kind="model")
    assert store.get("hf://tester/net/a.txt") == b"weights"


def test_a_repository_is_not_written_file_by_file(hub, pets):
    place = store.store_for(pets)
    for act in (
        lambda: store.put(f"{pets}/x", b""),
        lambda: place.create(f"{pets}/x"),
        lambda: place.append(f"{pets}/x", b""),
        lambda: place.delete(f"{pets}/x"),
        lambda: place.move(f"{pets}/x", f"{pets}/y"),
    ):
        with pytest.raises(StoreError, match="push_to_hub"):
            act()


def test_a_dataset_on_the_hub_can_be_sent_to_another_process(hub, pets):
    dataset = pickle.loads(pickle.dumps(shoal.Dataset(pets, split="test")))
    assert len(dataset) == 8
    assert hub_url("org/name", "a/b", "c.tar") == "hf://datasets/org/name@a%2Fb/c.tar"
