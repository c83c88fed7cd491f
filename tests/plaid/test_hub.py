"""On the Hub, with the real client and PLAID's own functions: pushed, streamed, downloaded, in whole and in part."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml
from plaid.storage import download_from_hub, init_from_disk, init_streaming_from_hub, push_to_hub
from tests.hub.server import TOKEN
from tests.hub.server import environment as environment_of
from tests.plaid import physics
from tests.plaid.physics import FIELD, GLOBAL, SPEED

from shoal.errors import AccessDeniedError, FieldError, ObjectExistsError, ObjectNotFoundError, PositionError
from shoal.plaid import (
    configure_dataset_card,
    download_datasetdict_from_hub,
    generate_datasetdict_to_disk,
    init_datasetdict_from_disk,
    init_datasetdict_streaming_from_hub,
    push_local_datasetdict_to_hub,
)
from shoal.plaid._hub import _expanded

REPO = "tester/flow"
LARGE = 200_000  # values of a field: 800 kB


@pytest.fixture(scope="module")
def held():
    """What the hub held after a push, by folder: other hubs are given the same, since a push takes many requests."""
    return {}


def with_dataset(hub, folder, held):
    if folder in held:
        hub.add(REPO, held[folder])
    else:
        push_to_hub(REPO, folder)
        held[folder] = hub.repos["dataset", REPO].files()
    hub.forget()
    return hub


@pytest.fixture
def pushed(hub, dataset_folder, held):
    """The small dataset on a hub of this test's own."""
    return with_dataset(hub, dataset_folder, held)


def large_sample(number):
    rng = np.random.default_rng(number)
    sample = physics.bare_sample()
    sample.add_global("Mach", np.array([number / 8], np.float32))
    for name in ("speed", "pressure"):
        sample.add_global(name, rng.random(LARGE, np.float32))
    return sample


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory):
    return physics.saved(tmp_path_factory.mktemp("large") / "d", large_sample, {"train": range(4), "test": range(4, 6)})


@pytest.fixture
def large(hub, large_folder, held):
    return with_dataset(hub, large_folder, held)


def sent(hub):
    """How many bytes of data the hub gave away: shards, not the manifest and the like."""
    return sum(each.sent for each in hub.requests if each.method == "GET" and each.sent > 30_000)


def card_of(hub):
    text = hub.repos["dataset", REPO].files()["README.md"].decode()
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_a_push_holds_all_that_plaid_needs(pushed, dataset_folder):
    files = pushed.repos["dataset", REPO].files()
    assert {"README.md", "infos.yaml", "variable_schema.yaml", ".shoal/manifest.json"} <= files.keys()
    for path in sorted((dataset_folder / "data").rglob("*.tar")):
        name = path.relative_to(dataset_folder).as_posix()
        assert files[name] == path.read_bytes()
        assert f".shoal/index/{name}.arrow" in files


def test_plaid_streams_it(pushed, dataset_folder):
    local, _ = init_from_disk(dataset_folder)
    datasets, converters = init_streaming_from_hub(REPO)
    for name, ids in physics.IDS.items():
        for number, sample, expected in zip(ids, datasets[name], local[name], strict=True):
            physics.same_values(sample, expected)
            found = converters[name].sample_to_plaid(sample)
            np.testing.assert_array_equal(found.get_field("speed"), physics.make_sample(number).get_field("speed"))
    assert converters["test"].to_plaid(datasets["test"], 2).get_global("Mach") == pytest.approx(12 / 8)


def test_plaid_downloads_it(pushed, dataset_folder, tmp_path):
    download_from_hub(REPO, tmp_path / "d")
    for part in ("data", ".shoal/index", "constants"):
        for path in (dataset_folder / part).rglob("*"):
            if path.is_file():
                assert (tmp_path / "d" / path.relative_to(dataset_folder)).read_bytes() == path.read_bytes()
    datasets, converters = init_from_disk(tmp_path / "d")
    assert converters["test"].to_plaid(datasets["test"], 2).get_global("Mach") == pytest.approx(12 / 8)


READ_BY_DATASETS = """
import datasets, json
found = datasets.load_dataset("tester/flow", streaming=True)
print(json.dumps({name: [[s["__key__"], s["json"]["number"]] for s in split] for name, split in found.items()}))
"""


def test_huggingface_datasets_streams_it_without_any_configuration(pushed, tmp_path):
    environment = {**os.environ, **environment_of(pushed, tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", READ_BY_DATASETS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        name: [[f"sample_{number:09d}", number] for number in range(len(ids))] for name, ids in physics.IDS.items()
    }


def test_empty_splits_and_samples_without_features_survive(hub, tmp_path):
    generators = {name: lambda shards: (physics.bare_sample() for ids in shards for _ in ids) for name in ("a", "b")}
    kwargs = {"a": {"shards_ids": [[1, 2]]}, "b": {"shards_ids": []}}
    generate_datasetdict_to_disk(tmp_path / "d", generators, {}, kwargs)
    push_local_datasetdict_to_hub(REPO, tmp_path / "d")
    assert {name: list(split) for name, split in init_datasetdict_streaming_from_hub(REPO).items()} == {
        "a": [{}, {}],
        "b": [],
    }
    download_datasetdict_from_hub(REPO, tmp_path / "e")
    assert {name: len(split) for name, split in init_datasetdict_from_disk(tmp_path / "e").items()} == {"a": 2, "b": 0}
    configure_dataset_card(REPO, {"license": "mit"}, tmp_path / "d")
    head, _ = card_of(hub)
    assert head["configs"][0]["data_files"] == [{"split": "a", "path": "data/a/*.tar"}]


def test_tars_without_manifest_and_index_are_streamed_too(hub, dataset_folder):
    tar = (dataset_folder / "data" / "train" / "shard-000001.tar").read_bytes()
    hub.add(REPO, {"data/train.tar": tar})
    split = init_datasetdict_streaming_from_hub(REPO, features=[SPEED])["train"]
    assert split.ids.tolist() == [1]
    local = init_datasetdict_from_disk(dataset_folder)["train"]
    physics.same_values(split[1], local.read(1, split.features))


def test_a_sample_is_fetched_by_one_request(large):
    split = init_datasetdict_streaming_from_hub(REPO)["train"]
    split.read(1, ["Global/Mach"])
    for features in (None, ["Global/speed", "Global/Mach", "Global/pressure"]):
        large.forget()
        split.read(1, features)
        assert [each.method for each in large.requests if each.sent > 1000] == ["GET"]


def test_streaming_some_samples_fetches_their_bytes_only(large, large_folder):
    datasets = init_datasetdict_streaming_from_hub(REPO, {"train": [2, 0]})
    assert list(datasets) == ["train"]
    assert datasets["train"].ids.tolist() == [2, 0]
    local = init_datasetdict_from_disk(large_folder)["train"]
    for number, sample in zip([2, 0], datasets["train"], strict=True):
        physics.same_values(sample, local[number])
    assert 2 * 2 * 4 * LARGE <= sent(large) < 1.02 * 2 * 2 * 4 * LARGE
    with pytest.raises(PositionError, match="no sample has this number"):
        datasets["train"][1]


def test_streaming_some_features_fetches_their_bytes_only(large, large_folder):
    datasets = init_datasetdict_streaming_from_hub(REPO, features=["Global/speed"])
    local = init_datasetdict_from_disk(large_folder)["train"]
    for number, sample in enumerate(datasets["train"]):
        physics.same_values({"Global/speed": sample["Global/speed"]}, local.read(number, ["Global/speed"]))
        assert "Global/pressure" not in sample
    assert 4 * 4 * LARGE <= sent(large) < 1.02 * 4 * 4 * LARGE
    with pytest.raises(FieldError, match="the feature was not asked for"):
        datasets["train"].read(0, ["Global/pressure"])


def test_plaid_converts_a_stream_of_some_features(large):
    datasets, converters = init_streaming_from_hub(REPO, {"train": [3]}, ["Global/Mach", "Global/speed"])
    found = converters["train"].to_plaid(datasets["train"], 3, features=["Global/Mach", "Global/speed"])
    np.testing.assert_array_equal(found.get_global("speed"), large_sample(3).get_global("speed"))
    assert found.get_global_names() == ["Mach", "speed"]


def test_an_indexer_fetches_its_bytes_only(large):
    split = init_datasetdict_streaming_from_hub(REPO)["train"]
    split.read(1, ["Global/Mach"])
    large.forget()
    found = split.read(1, ["Global/speed"], {"Global/speed": slice(1000, 3000)})
    np.testing.assert_array_equal(found["Global/speed"], large_sample(1).get_global("speed")[1000:3000])
    assert 8000 <= sum(each.sent for each in large.requests if each.method == "GET") < 10_000


def test_downloading_a_part_fetches_its_bytes_only(large, large_folder, tmp_path):
    folder = download_datasetdict_from_hub(REPO, tmp_path / "d", {"train": [3, 1], "test": []}, ["Global/speed"])
    assert folder == tmp_path / "d"
    assert 2 * 4 * LARGE <= sent(large) < 1.02 * 2 * 4 * LARGE
    found, local = init_datasetdict_from_disk(folder), init_datasetdict_from_disk(large_folder)["train"]
    assert {name: split.ids.tolist() for name, split in found.items()} == {"train": [3, 1], "test": []}
    for number in (1, 3):
        physics.same_values(found["train"].read(number, ["Global/speed"]), local.read(number, ["Global/speed"]))
    assert set(found["train"].features) == {"Global/speed"}
    with pytest.raises(FieldError, match="no such variable feature"):
        found["train"].read(1, ["Global/pressure"])


def test_plaid_downloads_a_part(large, tmp_path):
    download_from_hub(REPO, tmp_path / "d", {"test": [1]}, ["Global/Mach"])
    datasets, converters = init_from_disk(tmp_path / "d")
    assert converters["test"].to_plaid(datasets["test"], 1, features=["Global/Mach"]).get_global("Mach") == 5 / 8
    assert sent(large) == 0


def test_what_a_tree_needs_is_fetched_too_where_plaid_can_say_it():
    constant = ["Base_2_2", "Base_2_2/Zone", "Base_2_2/Zone/ZoneType", "Base_2_2/Zone/VertexFields"]
    assert _expanded(["Base_2_2/Zone/VertexFields/x"], constant, ["Base_2_2/Zone/VertexFields/x"]) >= {
        *constant,
        "Base_2_2/Zone/VertexFields/x",
        "Base_2_2/Zone/VertexFields/x_times",
    }
    assert _expanded(["Mesh/Zone/VertexFields/x"], [], ["Mesh/Zone/VertexFields/x"]) == {
        "Mesh/Zone/VertexFields/x",
        "Mesh/Zone/VertexFields/x_times",
    }


def test_a_constant_feature_is_no_mistake_and_nothing_to_fetch(pushed):
    (split,) = init_datasetdict_streaming_from_hub(
        REPO, {"train": [0]}, ["Base_2_2/Zone/GridCoordinates/CoordinateX"]
    ).values()
    assert list(split) == [{}]


@pytest.mark.parametrize(
    "split_ids, features, kind, message",
    [
        ({"validation": [0]}, None, FieldError, "no such split: expected train or test, found validation"),
        (None, ["Global/mach"], FieldError, "no such feature.*found Global/mach"),
        ({"train": [7]}, None, PositionError, "no sample has this number.*found 7"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_removed(pushed, tmp_path, split_ids, features, kind, message):
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(kind, match=message):
        download_datasetdict_from_hub(REPO, tmp_path, split_ids, features, overwrite=True)
    assert (tmp_path / "kept.txt").read_text() == "mine"


@pytest.mark.parametrize("split_ids", [None, {"train": [1]}])
def test_a_folder_that_is_not_empty_is_refused_unless_it_may_be_replaced(pushed, tmp_path, split_ids):
    (tmp_path / "d").mkdir()
    download_datasetdict_from_hub(REPO, tmp_path / "d", split_ids)
    (tmp_path / "d" / "other.txt").write_text("x")
    with pytest.raises(ObjectExistsError, match="the folder is not empty"):
        download_datasetdict_from_hub(REPO, tmp_path / "d", split_ids)
    download_datasetdict_from_hub(REPO, tmp_path / "d", split_ids, overwrite=True)
    assert not (tmp_path / "d" / "other.txt").exists()
    assert init_datasetdict_from_disk(tmp_path / "d")["train"][1][GLOBAL] == np.float32(1 / 8)


def test_a_download_that_fails_leaves_nothing(pushed, tmp_path):
    path = next(path for path in pushed.repos["dataset", REPO].files() if path.endswith("train/shard-000002.tar"))
    data = bytearray(pushed.repos["dataset", REPO].files()[path])
    data[data.index(b"\x93NUMPY") + 140] ^= 0xFF
    pushed.add(REPO, {path: bytes(data)})
    with pytest.raises(ValueError, match=r"shard-000002\.tar"):
        download_datasetdict_from_hub(REPO, tmp_path / "d", {"train": [2]})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "d").write_text("mine")
    with pytest.raises(ValueError, match=r"shard-000002\.tar"):
        download_datasetdict_from_hub(REPO, tmp_path / "d", {"train": [2]}, overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("d", "mine")]
    download_datasetdict_from_hub(REPO, tmp_path / "d", {"train": [1]}, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_repository_that_is_not_there(hub, tmp_path):
    for call in (
        lambda: init_datasetdict_streaming_from_hub("tester/nothing"),
        lambda: download_datasetdict_from_hub("tester/nothing", tmp_path / "d"),
        lambda: push_local_datasetdict_to_hub("tester/nothing", tmp_path),
    ):
        with pytest.raises(ObjectNotFoundError):
            call()


def test_a_private_dataset_needs_its_token(pushed, monkeypatch, dataset_folder):
    pushed.repos["dataset", REPO].private = True
    assert len(init_datasetdict_streaming_from_hub(REPO)["train"]) == 5
    assert {each.token for each in pushed.seen("/api/")} == {f"Bearer {TOKEN}"}
    assert TOKEN not in "".join(each.path for each in pushed.requests)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises((AccessDeniedError, ObjectNotFoundError)):
        init_datasetdict_streaming_from_hub(REPO)
    with pytest.raises((AccessDeniedError, ObjectNotFoundError)):
        push_local_datasetdict_to_hub(REPO, dataset_folder)


@pytest.fixture
def repo(hub):
    hub.add(REPO, {"README.md": b"old"})
    return hub


def test_the_card_says_what_the_dataset_is(repo, dataset_folder):
    configure_dataset_card(REPO, physics.infos(), dataset_folder)
    head, body = card_of(repo)
    assert (head["license"], head["size_categories"]) == ("cc-by-4.0", ["n<1K"])
    assert "graph-ml" in head["task_categories"]
    assert {"physics learning", "webdataset"} <= set(head["tags"])
    told = {each["name"]: each for each in head["dataset_info"]["splits"]}
    assert {name: each["num_examples"] for name, each in told.items()} == {"train": 5, "test": 3}
    size = sum(path.stat().st_size for path in (dataset_folder / "data" / "test").iterdir())
    assert told["test"]["num_bytes"] == size
    assert head["dataset_info"]["download_size"] == told["train"]["num_bytes"] + size
    assert not {"viewer", "pretty_name"} & head.keys()
    assert "owner: us" in body
    assert f'download_from_hub("{REPO}"' in body
    assert "Dataset Description" not in body
    assert "Papers" not in body
    assert "<img" not in body


@pytest.mark.parametrize("viewer", [True, False])
def test_the_card_says_whether_to_show_samples(repo, viewer):
    configure_dataset_card(REPO, physics.infos(), viewer=viewer)
    assert card_of(repo)[0]["viewer"] is viewer


def test_the_card_has_a_pretty_name(repo):
    configure_dataset_card(REPO, physics.infos(), pretty_name="Flow: around a thing #1")
    assert card_of(repo)[0]["pretty_name"] == "Flow: around a thing #1"


def test_the_card_has_a_long_description(repo):
    configure_dataset_card(REPO, physics.infos(), dataset_long_description="Made with {braces} and é.")
    assert "### Dataset Description\n\nMade with {braces} and é.\n" in card_of(repo)[1]


def test_the_card_has_pictures(repo):
    configure_dataset_card(REPO, physics.infos(), illustration_urls=["https://a.test/1.png", "https://a.test/'2.png"])
    body = card_of(repo)[1]
    assert "<img src='https://a.test/1.png'" in body
    assert "https://a.test/&#x27;2.png" in body


def test_the_card_names_papers(repo):
    configure_dataset_card(REPO, physics.infos(), arxiv_paper_urls=["https://arxiv.test/1", "https://arxiv.test/2"])
    body = card_of(repo)[1]
    assert "- [arxiv](https://arxiv.test/1)\n   - [arxiv](https://arxiv.test/2)\n" in body


def test_a_card_without_the_dataset_at_hand_tells_its_splits(repo):
    infos = {"license": "mit", "owner": "us", "num_samples": {"train": 2000}}
    configure_dataset_card(REPO, infos)
    head, _ = card_of(repo)
    assert head["size_categories"] == ["1K<n<10K"]
    assert head["configs"][0]["data_files"] == [{"split": "train", "path": "data/train/*.tar"}]
    assert "dataset_info" not in head


def test_plaids_arguments_reach_the_card(hub, dataset_folder):
    push_to_hub(REPO, dataset_folder, 2, True, "Flow", "long", ["https://a.test/1.png"], ["https://arxiv.test/1"])
    head, body = card_of(hub)
    assert (head["viewer"], head["pretty_name"]) == (True, "Flow")
    assert all(text in body for text in ("long", "https://a.test/1.png", "https://arxiv.test/1"))
    assert FIELD not in body
    assert SPEED not in body
