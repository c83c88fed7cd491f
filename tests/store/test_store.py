"""What every store promises, asked of each of them."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import uuid

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.errors import ObjectNotFoundError, StoreError
from shoal.store import (
    LocalStore,
    MemoryStore,
    base_name,
    cache_dir,
    join_url,
    parent_url,
    register_store,
    relative_url,
    scheme_of,
    store_for,
)

KINDS = ["local", "file", "memory"]


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    """A store and the URL of an empty folder in it."""
    if request.param == "memory":
        return MemoryStore(), "memory://bucket/folder"
    return LocalStore(), str(tmp_path) if request.param == "local" else tmp_path.as_uri()


# ------------------------------------------------------------------------------------------------------------- contract


def test_what_is_written_is_read(place):
    store, root = place
    url = f"{root}/deep/er/a.bin"
    info = store.write_all(url, b"0123456789")
    assert (info.url, info.size) == (url, 10)
    assert store.read_all(url) == b"0123456789"
    assert store.info(url) == info
    reader = store.open(url)
    assert reader.info == info
    assert reader.read(0, 10) == b"0123456789"
    reader.close()


@pytest.mark.parametrize(
    "start, stop", [(0, 0), (0, 1), (3, 7), (9, 10), (5, 100), (10, 20), (100, 200), (10, 10), (0, 1 << 40)]
)
def test_ranges_end_where_the_object_ends(place, start, stop):
    store, root = place
    store.write_all(f"{root}/a", b"0123456789")
    reader = store.open(f"{root}/a")
    assert reader.read(start, stop) == b"0123456789"[start:stop]
    assert reader.read_many([start, 0, start], [stop, 3, stop]) == [
        b"0123456789"[start:stop],
        b"012",
        b"0123456789"[start:stop],
    ]
    assert reader.read_many([], []) == []
    reader.close()


def test_an_empty_object_is_an_object(place):
    store, root = place
    assert store.write_all(f"{root}/a", b"").size == 0
    assert store.read_all(f"{root}/a") == b""
    writer = store.create(f"{root}/b")
    assert writer.commit().size == 0
    assert [info.size for info in store.list(root)] == [0, 0]


def test_nothing_there_is_an_error_with_the_name(place):
    store, root = place
    store.write_all(f"{root}/file", b"x")
    for url in (f"{root}/none", f"{root}/no/folder", f"{root}/file/below"):
        for act in (store.info, store.open, store.read_all):
            with pytest.raises(ObjectNotFoundError) as caught:
                act(url)
            assert isinstance(caught.value, FileNotFoundError)
            assert url in str(caught.value)


def test_a_folder_is_no_object(place):
    store, root = place
    store.write_all(f"{root}/folder/a", b"x")
    for act in (store.open, store.read_all):
        with pytest.raises(StoreError):
            act(f"{root}/folder")


def test_nobody_sees_an_object_before_its_commit(place):
    store, root = place
    writer = store.create(f"{root}/a")
    writer.write(b"half")
    assert list(store.list(root)) == []
    with pytest.raises(ObjectNotFoundError):
        store.info(f"{root}/a")
    writer.write(bytearray(b" and "))
    writer.write(memoryview(b"half"))
    assert writer.commit().size == 13
    assert store.read_all(f"{root}/a") == b"half and half"
    assert [info.url for info in store.list(root)] == [f"{root}/a"]


def test_the_old_object_stands_until_the_new_one_is_whole(place):
    store, root = place
    store.write_all(f"{root}/a", b"old")
    writer = store.create(f"{root}/a")
    writer.write(b"new and longer")
    assert store.read_all(f"{root}/a") == b"old"
    writer.commit(durable=True)
    assert store.read_all(f"{root}/a") == b"new and longer"


@pytest.mark.parametrize("written", [b"", b"something"])
def test_nothing_is_left_after_abort(place, tmp_path, written):
    store, root = place
    store.write_all(f"{root}/kept", b"1")
    writer = store.create(f"{root}/a")
    if written:
        writer.write(written)
    writer.abort()
    writer.abort()
    assert [base_name(info.url) for info in store.list(root)] == ["kept"]
    assert {path.name for path in tmp_path.iterdir()} <= {"kept"}


def test_abort_after_commit_changes_nothing(place):
    store, root = place
    writer = store.create(f"{root}/a")
    writer.write(b"1")
    writer.commit()
    writer.abort()
    assert store.read_all(f"{root}/a") == b"1"


def test_a_reader_keeps_the_object_it_opened(place):
    store, root = place
    store.write_all(f"{root}/a", b"old")
    reader = store.open(f"{root}/a")
    store.write_all(f"{root}/a", b"newer")
    assert reader.read(0, 10) == b"old"
    assert reader.info.size == 3
    store.delete(f"{root}/a")
    assert reader.read(0, 10) == b"old"
    reader.close()


def test_a_closed_reader_gives_no_bytes_as_if_the_object_had_ended(place):
    store, root = place
    store.write_all(f"{root}/a", b"123")
    reader = store.open(f"{root}/a")
    reader.close()
    reader.close()
    with pytest.raises(StoreError):
        reader.read(0, 3)
    with pytest.raises(StoreError):
        reader.read_many([0], [3])


def test_a_version_changes_with_the_bytes(place):
    """Even where the clock does not tick between the writes and the sizes are equal."""
    store, root = place
    versions = set()
    for number in range(50):
        info = store.write_all(f"{root}/a", b"%04d" % number)
        assert store.info(f"{root}/a").version == info.version
        reader = store.open(f"{root}/a")
        assert reader.info == info
        reader.close()
        versions.add(info.version)
    before = store.info(f"{root}/a").version
    store.append(f"{root}/a", b"x")
    assert store.info(f"{root}/a").version != before
    assert len(versions) > 1


def test_the_version_of_an_object_is_not_that_of_the_one_it_replaced(place):
    store, root = place
    for number in range(50):
        before = store.write_all(f"{root}/a", b"%04d" % number).version
        assert store.write_all(f"{root}/a", b"%04d" % (number + 1)).version != before


def test_lists_are_sorted_and_complete(place):
    store, root = place
    names = ["b", "a/b", "a-b", "a/b-c", "a/a", "Z", "a.b", "é", "a b", "0", ".hidden/x", "a%41", "a#b", "a?b", "[x]"]
    for name in names:
        store.write_all(_url(root, name), name.encode())
    found = [info.url for info in store.list(root)]
    assert found == sorted(_url(root, name) for name in names)
    assert {url: store.read_all(url) for url in found} == {_url(root, name): name.encode() for name in names}
    assert [info.url for info in store.list(root + "/")] == found
    assert [info.url for info in store.list(f"{root}/a")] == sorted(
        _url(root, name) for name in names if name.startswith("a/")
    )


def _url(root, name):
    """The URL of a name: in a ``file://`` URL what has a meaning there is quoted."""
    if root.startswith("file://"):
        for mark in "% #?é[]":
            name = name.replace(mark, "".join(f"%{byte:02X}" for byte in mark.encode()))
    return f"{root}/{name}"


def test_a_list_of_nothing_is_empty(place):
    store, root = place
    assert list(store.list(f"{root}/none")) == []
    store.write_all(f"{root}/a", b"x")
    assert list(store.list(f"{root}/a")) == []
    assert store.is_folder(root)
    assert not store.is_folder(f"{root}/a")
    assert not store.is_folder(f"{root}/none")


def test_names_that_begin_alike_are_not_one_folder(place):
    store, root = place
    store.write_all(f"{root}/data/a", b"x")
    store.write_all(f"{root}/data-2/b", b"x")
    assert [info.url for info in store.list(f"{root}/data")] == [f"{root}/data/a"]
    assert not store.is_folder(f"{root}/dat")


def test_append_makes_and_grows_an_object(place):
    store, root = place
    for line in (b"1\n", b"", b"22\n", b"333\n"):
        store.append(f"{root}/log/journal", line)
    assert store.read_all(f"{root}/log/journal") == b"1\n22\n333\n"


def test_delete_takes_the_object_and_nothing_is_no_error(place):
    store, root = place
    store.write_all(f"{root}/a", b"x")
    store.delete(f"{root}/a")
    store.delete(f"{root}/a")
    store.delete(f"{root}/no/such")
    store.write_all(f"{root}/b", b"x")
    store.delete(f"{root}/b/below")
    assert [base_name(info.url) for info in store.list(root)] == ["b"]


def test_move_replaces_what_was_there(place):
    store, root = place
    store.write_all(f"{root}/a", b"new")
    store.write_all(f"{root}/b/c", b"old")
    store.move(f"{root}/a", f"{root}/b/c")
    assert [(info.url, store.read_all(info.url)) for info in store.list(root)] == [(f"{root}/b/c", b"new")]
    store.move(f"{root}/b/c", f"{root}/new/folder/d")
    assert store.read_all(f"{root}/new/folder/d") == b"new"
    with pytest.raises(ObjectNotFoundError):
        store.move(f"{root}/none", f"{root}/x")


def test_arrays_are_written_as_their_bytes(place):
    store, root = place
    array = np.arange(1000, dtype=np.int64)
    writer = store.create(f"{root}/a")
    writer.write(memoryview(array))
    writer.write(b"end")
    assert writer.commit().size == 8003
    assert store.read_all(f"{root}/a") == array.tobytes() + b"end"


def test_many_threads_read_one_reader(place):
    store, root = place
    data = os.urandom(100_000)
    store.write_all(f"{root}/a", data)
    reader = store.open(f"{root}/a")
    wrong = []

    def read(seed):
        wrong.extend(at for at in range(seed, 90_000, 977) if reader.read(at, at + 100) != data[at : at + 100])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.close()
    assert wrong == []


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_name_that_cannot_be_is_an_error_of_ours_or_an_object(place, name):
    store, root = place
    for act in (
        store.info,
        store.open,
        store.read_all,
        lambda url: store.write_all(url, b"x"),
        store.delete,
        lambda url: store.append(url, b"x"),
    ):
        with contextlib.suppress(StoreError):  # any other error would fail the test
            act(f"{root}/{name}")


class StoreMachine(RuleBasedStateMachine):
    """Any sequence of calls leaves every store as a plain dictionary would be."""

    names = st.sampled_from(["a", "b", "f/a", "f/b", "f/g/a"])

    def __init__(self):
        super().__init__()
        self.folder = f"memory://{uuid.uuid4()}"
        self.store, self.model, self.open = self.make(), {}, []

    def make(self):
        return MemoryStore()

    @rule(name=names, data=st.binary(max_size=20))
    def write(self, name, data):
        self.store.write_all(f"{self.folder}/{name}", data)
        self.model[name] = data

    @rule(name=names, data=st.binary(max_size=20))
    def append(self, name, data):
        self.store.append(f"{self.folder}/{name}", data)
        self.model[name] = self.model.get(name, b"") + data

    @rule(name=names)
    def delete(self, name):
        self.store.delete(f"{self.folder}/{name}")
        self.model.pop(name, None)

    @rule(source=names, to=names)
    def move(self, source, to):
        if source in self.model:
            self.store.move(f"{self.folder}/{source}", f"{self.folder}/{to}")
            self.model[to] = self.model.pop(source)

    @rule(name=names, data=st.binary(max_size=20))
    def begin(self, name, data):
        writer = self.store.create(f"{self.folder}/{name}")
        writer.write(data)
        self.open.append((name, data, writer))

    @rule(commit=st.booleans())
    def end(self, commit):
        if self.open:
            name, data, writer = self.open.pop()
            if commit:
                writer.commit()
                self.model[name] = data
            else:
                writer.abort()

    @invariant()
    def the_store_is_the_model(self):
        found = {relative_url(info.url, self.folder): info for info in self.store.list(self.folder)}
        assert list(found) == sorted(self.model)
        for name, data in self.model.items():
            assert self.store.read_all(f"{self.folder}/{name}") == data
            assert found[name].size == len(data)

    def teardown(self):
        for _, _, writer in self.open:
            writer.abort()


TestMemoryMachine = StoreMachine.TestCase


def test_a_local_store_behaves_as_the_model(tmp_path_factory):
    class LocalMachine(StoreMachine):
        def __init__(self):
            super().__init__()
            self.folder = str(tmp_path_factory.mktemp("store"))

        def make(self):
            return LocalStore()

    LocalMachine.TestCase.settings = StoreMachine.TestCase.settings.__class__(
        max_examples=50, stateful_step_count=20, deadline=None
    )
    LocalMachine.TestCase("runTest").runTest()


# ---------------------------------------------------------------------------------------------------------- local files


def test_files_have_the_permissions_that_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        LocalStore().write_all(str(tmp_path / "a"), b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_write_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").write_bytes(b"1")
    with pytest.raises(StoreError):
        LocalStore().write_all(str(tmp_path / "folder"), b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(StoreError):
        LocalStore().write_all(str(tmp_path / "folder" / "x" / "y"), b"data")
    assert (tmp_path / "folder" / "x").read_bytes() == b"1"


def test_what_a_crash_left_behind_is_not_listed(tmp_path):
    store = LocalStore()
    writer = store.create(str(tmp_path / "a.tar"))
    writer.write(b"half")
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a.tar.")
    assert left.name.endswith(".partial")
    assert list(store.list(str(tmp_path))) == []
    writer.abort()


def test_plain_paths_and_file_urls_are_one_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = store_for("a b#c.tar")
    store.write_all("a b#c.tar", b"x")
    assert store.read_all((tmp_path / "a b#c.tar").as_uri()) == b"x"
    assert store.read_all(f"file://{tmp_path}/a b#c.tar") == b"x"
    assert store.read_all(f"file://localhost{tmp_path}/a b#c.tar") == b"x"
    assert [info.url for info in store.list(".")] == ["a b#c.tar"]
    assert [info.url for info in store.list("./")] == ["./a b#c.tar"]


def test_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    LocalStore().write_all("~/a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    assert [info.url for info in LocalStore().list("~")] == ["~/a"]


def test_links_are_followed_and_dangling_ones_passed_over(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    assert [(base_name(info.url), info.size) for info in LocalStore().list(str(tmp_path))] == [("a", 2), ("link", 2)]


def test_a_reader_that_nobody_closed_closes_itself(tmp_path):
    LocalStore().write_all(str(tmp_path / "a"), b"x")
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        LocalStore().open(str(tmp_path / "a"))
    assert len(os.listdir("/dev/fd")) <= before + 1


# -------------------------------------------------------------------------------------------------- routes, URLs, cache


def test_schemes_find_their_store():
    mine = MemoryStore()
    register_store("Scratch2", mine)
    assert store_for("scratch2://x") is mine
    assert store_for("SCRATCH2://x") is mine
    assert isinstance(store_for("a/b"), LocalStore)
    assert isinstance(store_for("C:\\data\\a.tar"), LocalStore)
    with pytest.raises(StoreError, match="no store for gopher://"):
        store_for("gopher://x")


@pytest.mark.parametrize(
    "url, scheme, parent, base",
    [
        ("s3://bucket/data/a.tar", "s3", "s3://bucket/data", "a.tar"),
        ("s3://bucket/a.tar", "s3", "s3://bucket", "a.tar"),
        ("memory://a.tar", "memory", "memory://", "a.tar"),
        ("data/a.tar", "file", "data", "a.tar"),
        ("/a.tar", "file", "/", "a.tar"),
        ("a.tar", "file", ".", "a.tar"),
        ("data/folder/", "file", "data", "folder"),
        ("file:///data/a.tar", "file", "file:///data", "a.tar"),
        ("file:///a.tar", "file", "file:///", "a.tar"),
    ],
)
def test_urls_as_text(url, scheme, parent, base):
    assert (scheme_of(url), parent_url(url), base_name(url)) == (scheme, parent, base)
    assert join_url(parent, base) in (url, url.rstrip("/"), f"./{url}")


@pytest.mark.parametrize("base", ["s3://bucket", "s3://bucket/", "data", "/data", "/", "memory://"])
def test_joined_urls_are_relative_again(base):
    joined = join_url(base, ".shoal", "index", "a.arrow")
    assert joined.startswith(base)
    assert relative_url(joined, base) == ".shoal/index/a.arrow"


def test_the_cache_is_where_the_user_says(monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE", "/elsewhere")
    assert cache_dir() == "/elsewhere"
    monkeypatch.delenv("SHOAL_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir().startswith("/home/someone/")
    assert cache_dir().endswith("shoal")


def test_bytes_of_any_length_are_written_whole(tmp_path):
    """A raw write may take fewer bytes than it was given."""

    class Stingy(io.RawIOBase):
        def __init__(self, file):
            self.file = file

        def write(self, data):
            return self.file.write(memoryview(data).cast("B")[:1000])

        def close(self):
            self.file.close()

    writer = LocalStore().create(str(tmp_path / "a"))
    writer.write(b"0")
    writer._file = Stingy(writer._file)
    array = np.arange(5000, dtype=np.int32)
    writer.write(memoryview(array))
    writer.write(b"x" * 2500)
    writer.commit()
    whole = (tmp_path / "a").read_bytes() == b"0" + array.tobytes() + b"x" * 2500
    assert whole  # not compared in the assert: the difference would be a screenful
