"""Plain HTTP servers: reading, with the quirks that servers have."""

from __future__ import annotations

import gzip
from contextlib import closing
from urllib.parse import urlsplit

import pytest

import shoal
from shoal.build import repair, verify
from shoal.errors import ObjectChangedError, ObjectNotFoundError, OptionError, StoreError
from shoal.formats import webdataset
from shoal.store import exists, get, put, stat, store_for
from shoal.store import list as list_objects

DATA = bytes(range(256)) * 400


@pytest.fixture
def url(http):
    http.objects["/data/a.tar"] = DATA
    return f"{http.url}/data/a.tar"


def test_only_what_is_asked_for_is_fetched(http, url):
    reader = store_for(url).open(url)
    assert reader.read(1000, 1010) == DATA[1000:1010]
    reader.close()
    assert http.requests == [("HEAD", "/data/a.tar", None), ("GET", "/data/a.tar", "bytes=1000-1009")]


def test_a_signed_url_keeps_its_signature(http, url):
    http.secret = "X-Sig=a%2Fb%3D&X-Date=2026"
    assert get(f"{url}?{http.secret}") == DATA
    assert stat(f"{url}?{http.secret}").size == len(DATA)
    assert {path for _, path, _ in http.requests} == {f"/data/a.tar?{http.secret}"}
    with pytest.raises(StoreError, match="access denied"):
        get(url)


def test_quoted_names_are_unquoted_once(http):
    http.objects["/a b/ü%41.tar"] = b"x"
    assert get(f"{http.url}/a%20b/%C3%BC%2541.tar") == b"x"


def test_a_server_without_ranges_is_read_from_the_start_each_time(http, url):
    http.quirks.add("no-ranges")  # as `python -m http.server` has none
    assert get(url) == DATA
    with closing(store_for(url).open(url)) as reader:
        assert reader.info.size == len(DATA)
        for start, stop in ((10, 20), (0, 1), (70_000, 90_000), (len(DATA) - 5, len(DATA)), (7, 7), (5, len(DATA) + 9)):
            assert reader.read(start, stop) == DATA[start:stop]
        http.objects["/data/a.tar"] = DATA + b"more"
        with pytest.raises(ObjectChangedError):
            reader.read(10, 20)


@pytest.mark.parametrize("packed", [False, True])
def test_shards_on_a_server_without_ranges_are_samples_all_the_same(http, tmp_path, packed):
    http.quirks.add("no-ranges")
    with shoal.ShardWriter(f"{tmp_path}/a-%06d.tar") as writer:
        for number in range(20):
            writer.write({"__key__": f"{number:03d}", "txt": f"text {number}"})
    data = (tmp_path / "a-000000.tar").read_bytes()
    url = f"{http.url}/b.tar{'.gz' if packed else ''}"
    http.objects[urlsplit(url).path] = gzip.compress(data) if packed else data
    expected = [f"text {number}" for number in range(20)]
    assert [sample["txt"] for sample in webdataset.stream(url)] == expected
    assert [sample["txt"] for sample in shoal.Dataset(url)] == expected
    assert shoal.Dataset(url)[13]["txt"] == "text 13"


def test_without_an_etag_the_size_is_watched(http, url):
    http.quirks.add("no-etag")
    reader = store_for(url).open(url)
    assert reader.read(0, 10) == DATA[:10]
    http.objects["/data/a.tar"] = DATA + b"more"
    with pytest.raises(ObjectChangedError):
        reader.read(0, 10)


def test_what_a_server_cannot_do_is_said(http, url):
    store = store_for(url)
    with pytest.raises(StoreError, match=r"listed.*name them"):
        list_objects(f"{http.url}/data")
    for act in (
        lambda: put(url, b"x"),
        lambda: store.create(url),
        lambda: store.append(url, b"x"),
        lambda: store.delete(url),
        lambda: store.move(url, f"{url}.new"),
    ):
        with pytest.raises(StoreError, match="written"):
            act()
    assert not store.is_folder(url)
    assert exists(url)
    assert not exists(f"{http.url}/none")
    assert http.objects == {"/data/a.tar": DATA}


def test_nothing_there(http):
    with pytest.raises(ObjectNotFoundError):
        get(f"{http.url}/none")


def served(http, folder):
    """A dataset on a server that lists nothing."""
    with shoal.ShardWriter(folder / "train-%06d.tar", max_samples=4) as writer:
        for number in range(10):
            writer.write({"__key__": f"k{number}", "txt": f"text {number}", "cls": number})
    for path in folder.rglob("*"):
        if path.is_file():
            http.objects[f"/v1.2/pets/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return f"{http.url}/v1.2/pets"


def test_a_folder_with_a_manifest_is_a_dataset(http, tmp_path):
    url = served(http, tmp_path / "pets")
    for path in (url, f"{url}/", f"{url}/.shoal/manifest.json"):
        dataset = shoal.Dataset(path)
        assert (len(dataset), dataset[7]["txt"], dataset.where("cls > 7").keys()) == (10, "text 7", ["k8", "k9"])
        assert len(shoal.load_dataset(path, split="train")) == 10
    assert [sample["cls"] for sample in shoal.Dataset(url)] == list(range(10))
    assert verify(url).ok
    assert sum(1 for _ in webdataset.stream(url)) == 10


def test_a_folder_without_a_manifest_is_not_there(http):
    http.objects["/x/a.tar"] = DATA
    with pytest.raises(ObjectNotFoundError, match="no such object"):
        len(shoal.Dataset(f"{http.url}/x"))
    with pytest.raises(ObjectNotFoundError, match="no such object"):
        verify(f"{http.url}/x")


def test_what_can_only_be_read_is_repaired_elsewhere(http, tmp_path):
    url = served(http, tmp_path / "pets")
    with pytest.raises(OptionError, match=r"only be read.*--output"):
        repair(url)
    assert repair(url, dry_run=True).complete
    assert repair(url, output=tmp_path / "whole").complete
    assert len(shoal.Dataset(tmp_path / "whole")) == 10
