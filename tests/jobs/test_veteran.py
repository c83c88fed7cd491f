"""Idioms of webdataset, compared with webdataset itself on the same shards."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import webdataset as wds
from tests.jobs import veteran

pytestmark = pytest.mark.usefixtures("leaky_peer")
COUNT = 38


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four shards that webdataset's own writer made; jpg or png, captions for some."""
    folder = tmp_path_factory.mktemp("veteran")
    rng = np.random.default_rng(0)
    (folder / "shards").mkdir()
    with wds.ShardWriter(str(folder / "shards/train-%06d.tar"), maxcount=10, verbose=0) as writer:
        for number in range(COUNT):
            width = 8 * int(rng.integers(1, 5))
            image = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            sample = {"__key__": f"s{number:04d}", "png" if number % 3 else "jpg": image, "cls": number % 4}
            sample |= {"json": {"width": width, "note": None if number % 5 else "größe"}}
            sample |= {"npy": rng.random(3).astype(np.float32)}
            writer.write(sample | ({"txt": f"caption {number}"} if number % 2 else {}))
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def peer():
    return wds.WebDataset(veteran.URLS, shardshuffle=False, empty_check=False)


def keep(*names):
    return lambda sample: {name: sample[name] for name in names}


PEERS = {
    "raw": peer,
    "decoded": lambda: peer().decode("rgb8"),
    "tuples": lambda: peer().decode("rgb").to_tuple("png;jpg", "cls", "json"),
    "mapped": lambda: (
        peer()
        .decode("l8")
        .to_tuple("jpg;png", "cls", "__key__")
        .map_tuple(lambda image: int(image.sum()), lambda label: label * 10, lambda key: key)
    ),
    "renamed": lambda: (
        peer().decode().rename(image="jpg;png", label="cls").map_dict(label=str).map(keep("__key__", "label"))
    ),
    "selected": lambda: (
        peer().decode().select(lambda sample: sample["json"]["width"] > 20).map(keep("__key__", "cls", "json"))
    ),
    "batches": lambda: peer().decode("rgb8").to_tuple("jpg;png", "cls", "npy").batched(7),
    "full_batches": lambda: peer().decode().to_tuple("cls", "__key__").batched(7, partial=False),
    "lists": lambda: peer().decode().to_tuple("cls", "json").listed(6),
    "unbatched": lambda: peer().decode().to_tuple("cls", "npy").batched(7).unbatched(),
    "sliced": lambda: peer().decode().to_tuple("__key__", "cls").slice(3, 30, 4),
    "an_epoch": lambda: peer().decode().to_tuple("__key__").with_epoch(90),
    "without_images": lambda: peer().decode().map(lambda sample: (sample["__key__"], sample.get("txt"))),
    "transformed": lambda: (
        peer()
        .decode("torchrgb")
        .rename(image="jpg;png", label="cls")
        .to_tuple("image", "label")
        .map_tuple(lambda image: image.mean(), lambda label: label)
        .batched(5)
    ),
}


def same(mine, theirs):
    """Equal values of equal types, but that one of both may be a list where the other is a tuple."""
    if isinstance(theirs, dict):
        paths = {"__local_path__", "__url__"}
        assert mine.keys() - paths == theirs.keys() - paths
        for name in theirs.keys() - paths:
            same(mine[name], theirs[name])
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            same(a, b)
    elif hasattr(theirs, "dtype"):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert (np.asarray(mine) == np.asarray(theirs)).all()
    else:
        assert type(mine) is type(theirs)
        assert mine == theirs


@pytest.mark.parametrize("idiom", PEERS)
def test_an_idiom_gives_what_webdataset_gives(idiom):
    theirs = list(PEERS[idiom]())
    assert len(theirs) > 3
    same(getattr(veteran, idiom)(), theirs)


def keys():
    return [sample["__key__"] for sample in peer()]


def test_shuffled_epochs_have_every_sample_once():
    first, second, again = veteran.shuffled()
    assert sorted(first) == sorted(second) == keys()
    assert first == again
    assert len({tuple(order) for order in (first, second, keys())}) == 3


def test_processes_share_all_samples_without_a_splitter():
    found = veteran.by_node()
    assert sorted(itertools.chain(*found)) == keys()
    assert max(map(len, found)) - min(map(len, found)) <= 4


def test_worker_processes_share_all_samples_without_a_splitter():
    pairs = [(sample["__key__"], sample["cls"]) for sample in peer().decode()]
    assert veteran.worker_processes() == pairs


def test_lengths_positions_keys_and_queries_agree_with_a_scan():
    samples = list(peer().decode())
    length, batches, near, chosen = veteran.looked_up()
    assert (length, batches) == (COUNT, -(-COUNT // 7))
    assert near == [keys()[-1], samples[21]["cls"], keys()[-(COUNT % 7) :]]
    assert chosen == [s["__key__"] for s in samples if s["json"]["width"] > 20 and s["cls"] == 1]


def test_what_is_written_is_what_webdataset_reads(folder):
    urls = veteran.written()
    assert len(urls) == 3
    samples = list(itertools.islice(peer(), 20))
    same(list(wds.WebDataset([str(url) for url in urls], shardshuffle=False)), samples)
    assert json.loads(samples[0]["json"])["note"] == "größe"
