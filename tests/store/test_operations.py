"""Functions by URL, and folders copied from one store to another."""

from __future__ import annotations

import random
import uuid

import pytest
from tests.store.servers import BUCKET, Fault

from shoal import store
from shoal.errors import ObjectNotFoundError, OptionError, StoreError, UnsafeNameError

DATA = random.Random(3).randbytes(40_000_000)


@pytest.fixture(params=["local", "memory", "s3"])
def root(request, tmp_path):
    """A new folder in each kind of store."""
    if request.param == "s3":
        return request.getfixturevalue("s3")
    return str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4()}"


def test_one_object(root):
    url = f"{root}/a.txt"
    assert not store.exists(url)
    assert store.put(url, bytearray(b"hello")).size == 5
    assert store.exists(url)
    assert store.exists(root)
    assert store.get(url) == b"hello"
    assert store.stat(url).size == 5
    assert [info.url for info in store.list(root)] == [url]
    assert [info.url for info in store.list(url)] == [url]
    assert store.list(f"{root}/none") == []
    assert store.delete(url) == 1
    assert not store.exists(url)
    for act in (store.delete, store.get, store.stat):
        with pytest.raises(ObjectNotFoundError):
            act(url)


def test_folders_are_named_level_by_level(root):
    for name in ("a.txt", "b/c/d.txt", "b/e.txt", "f g/h.txt", "i/j/k/l.txt"):
        store.put(f"{root}/{name}", b"1")

    def below(depth):
        return [name.removeprefix(f"{root}/") for name in store.folders(root, depth)]

    assert [below(depth) for depth in (1, 2, 3, 4)] == [["b/", "f g/", "i/"], ["b/c/", "i/j/"], ["i/j/k/"], []]
    assert store.folders(f"{root}/b/") == [f"{root}/b/c/"]
    assert store.folders(f"{root}/a.txt") == store.folders(f"{root}/none") == []
    with pytest.raises(OptionError, match="at least 1"):
        store.folders(root, 0)


def test_many_objects(root):
    items = [(f"{root}/{number:03d}", b"%d" % number) for number in range(50)]
    infos = store.put_many(iter(items))
    assert [(info.url, info.size) for info in infos] == [(url, len(data)) for url, data in items]
    assert store.get_many(url for url, _ in reversed(items)) == [data for _, data in reversed(items)]
    assert store.get_many([]) == []
    with pytest.raises(ObjectNotFoundError):
        store.get_many([items[0][0], f"{root}/none"])
    assert store.delete(root, recursive=True) == 50
    with pytest.raises(ObjectNotFoundError):
        store.delete(root, recursive=True)
    with pytest.raises(OptionError):
        store.get_many([], at_once=0)


def test_a_folder_goes_up_and_comes_down_again(root, tmp_path):
    names = {"a.txt": b"1", "deep/er/b.bin": DATA[:300_000], "deep/c d.txt": b"", "big": DATA}
    for name, data in names.items():
        path = tmp_path / "from" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    seen = []
    done = store.upload(tmp_path / "from", f"{root}/up", progress=seen.append)
    total = sum(map(len, names.values()))
    assert done == store.Transferred(4, total, 4, total)
    assert seen[-1] == done
    assert [each.bytes for each in seen] == sorted(each.bytes for each in seen)
    assert len({each.bytes for each in seen}) >= 4  # a large file tells before it is done
    assert {info.url: info.size for info in store.list(f"{root}/up")} == {
        f"{root}/up/{name}": len(data) for name, data in names.items()
    }
    assert store.download(f"{root}/up", tmp_path / "to") == done
    same = {name: (tmp_path / "to" / name).read_bytes() for name in names} == names
    assert same


def test_files_and_patterns_go_by_their_names(root, tmp_path):
    for name in ("a.tar", "b.tar", "c.txt"):
        (tmp_path / name).write_bytes(name.encode())
    store.upload([f"{tmp_path}/*.tar", tmp_path / "c.txt"], root)
    assert [store.base_name(info.url) for info in store.list(root)] == ["a.tar", "b.tar", "c.txt"]
    assert store.download(f"{root}/{{a,b}}.tar", tmp_path / "to").objects == 2
    assert store.download(f"{root}/*.txt", tmp_path / "to").objects == 1
    assert (tmp_path / "to" / "c.txt").read_bytes() == b"c.txt"


def test_copies(root):
    store.put(f"{root}/a", b"1")
    store.put(f"{root}/f/b", b"22")
    assert store.copy(f"{root}/a", f"{root}/c").bytes == 1
    assert store.copy(f"{root}/a", f"{root}/into/").bytes == 1
    assert store.copy(f"{root}/f", f"{root}/g").objects == 1
    assert store.copy(f"{root}/f/", f"memory://{root}-copy").objects == 1
    assert [info.url.removeprefix(root) for info in store.list(root)] == ["/a", "/c", "/f/b", "/g/b", "/into/a"]
    with pytest.raises(ObjectNotFoundError):
        store.copy(f"{root}/none", f"{root}/x")


def test_inside_a_bucket_the_server_copies(proxy, broken):
    store.put(f"{broken}/a", DATA[:1_000_000])
    proxy.requests.clear()
    store.copy(f"{broken}/a", f"{broken}/b")
    assert "GET" not in {method for method, path, *_ in proxy.requests if "list-type" not in path}
    same = store.get(f"{broken}/b") == DATA[:1_000_000]
    assert same


def test_only_files_are_uploaded_and_only_to_files_is_downloaded(s3, tmp_path):
    with pytest.raises(OptionError, match="local"):
        store.upload(f"{s3}/a", s3)
    with pytest.raises(OptionError, match="local"):
        store.download(s3, f"s3://{BUCKET}/x")
    with pytest.raises(StoreError):
        store.upload(tmp_path / "none", s3)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "..\\out"])
def test_a_name_in_a_store_cannot_lead_out_of_the_folder(tmp_path, name):
    root = f"memory://{uuid.uuid4()}"
    store.put(f"{root}/{name}", b"x")
    with pytest.raises(UnsafeNameError):
        store.download(root, tmp_path / "to")
    assert not list(tmp_path.rglob("*out"))


def test_a_transfer_that_fails_leaves_no_half_file(proxy, broken, tmp_path):
    store.put(f"{broken}/a.bin", DATA[:1_000_000])
    store.configure(broken, retries=1)
    proxy.faults.append(Fault("cut", times=100, after=1000))
    with pytest.raises(StoreError):
        store.download(f"{broken}/a.bin", tmp_path / "to")
    assert not [path for path in (tmp_path / "to").rglob("*") if path.is_file()]
