"""`StoreReadTests`, `StoreTests` and `store_machine`: what every store promises."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.errors import MissingExtraError, ObjectNotFoundError, StoreError
from shoal.store._base import ObjectInfo, Store
from shoal.store._url import base_name

__all__ = ["StoreReadTests", "StoreTests", "store_machine"]

_TEN = b"0123456789"
_RANGES = ((0, 0), (0, 1), (3, 7), (9, 10), (5, 100), (10, 20), (100, 200), (10, 10), (0, 1 << 40))


def _refused(kind: type[Exception], act: Callable[..., Any], *args: Any) -> Exception:
    """The error that a call raises; no error, or another one, fails the test."""
    try:
        act(*args)
    except kind as error:
        return error
    raise AssertionError(f"{act} raised no {kind.__name__}")


class StoreReadTests:
    """What a store that can be read promises. A subclass says how objects come to be in it.

    Examples:
        >>> class TestMine(StoreReadTests):
        ...     def store(self):
        ...         return my_store
        ...
        ...     def folder(self):
        ...         return "mine://bucket/new-folder"
        ...
        ...     def place(self, url, data):
        ...         my_server.put(url, data)
    """

    def store(self) -> Store:
        """The store under test."""
        raise NotImplementedError

    def folder(self) -> str:
        """The URL of a folder in it that nobody used before."""
        raise NotImplementedError

    def place(self, url: str, data: bytes) -> None:
        """Put an object there, replacing what was."""
        self.store().write_all(url, data)

    def test_what_is_there_is_read(self) -> None:
        store, url = self.store(), f"{self.folder()}/deep/er/a.bin"
        self.place(url, _TEN)
        info = store.info(url)
        assert (info.url, info.size) == (url, 10)
        assert store.read_all(url) == _TEN
        reader = store.open(url)
        assert reader.info == info
        assert reader.read(0, 10) == _TEN
        reader.close()

    def test_ranges_end_where_the_object_ends(self) -> None:
        store, url = self.store(), f"{self.folder()}/a"
        self.place(url, _TEN)
        reader = store.open(url)
        for start, stop in _RANGES:
            assert reader.read(start, stop) == _TEN[start:stop]
            assert reader.read_many([start, 0, start], [stop, 3, stop]) == [
                _TEN[start:stop],
                b"012",
                _TEN[start:stop],
            ]
        assert reader.read_many([], []) == []
        reader.close()

    def test_many_ranges_come_in_the_order_asked(self) -> None:
        store, url = self.store(), f"{self.folder()}/a"
        draw = random.Random(0)  # noqa: S311 - the same data each time
        data = draw.randbytes(3_000_000)
        self.place(url, data)
        starts = [draw.randrange(len(data)) for _ in range(200)]
        stops = [start + draw.choice([0, 1, 100, 5000, 300_000]) for start in starts]
        reader = store.open(url)
        right = reader.read_many(starts, stops) == [data[a:b] for a, b in zip(starts, stops, strict=True)]
        reader.close()
        assert right  # not compared in the assert: the difference would be a screenful

    def test_an_empty_object_is_an_object(self) -> None:
        store, url = self.store(), f"{self.folder()}/empty"
        self.place(url, b"")
        assert store.info(url).size == 0
        assert store.read_all(url) == b""
        reader = store.open(url)
        assert reader.read(0, 10) == b""
        reader.close()

    def test_nothing_there_is_an_error_with_the_name(self) -> None:
        store, root = self.store(), self.folder()
        self.place(f"{root}/file", b"x")
        for url in (f"{root}/none", f"{root}/no/folder", f"{root}/file/below"):
            for act in (store.info, store.open, store.read_all):
                error = _refused(ObjectNotFoundError, act, url)
                assert isinstance(error, FileNotFoundError)
                assert url in str(error)

    def test_a_folder_is_no_object(self) -> None:
        store, root = self.store(), self.folder()
        self.place(f"{root}/folder/a", b"x")
        for act in (store.open, store.read_all):
            _refused(StoreError, act, f"{root}/folder")

    def test_a_reader_never_mixes_two_objects(self) -> None:
        """The bytes that were there when it was opened, or an error: not those of the object that came later."""
        store, url = self.store(), f"{self.folder()}/a"
        self.place(url, b"old")
        reader = store.open(url)
        self.place(url, b"newer")
        try:
            assert reader.read(0, 10) == b"old"
        except StoreError as error:
            assert url in str(error)
        assert reader.info.size == 3
        reader.close()

    def test_a_closed_reader_gives_no_bytes_as_if_the_object_had_ended(self) -> None:
        store, url = self.store(), f"{self.folder()}/a"
        self.place(url, b"123")
        reader = store.open(url)
        reader.close()
        reader.close()
        _refused(StoreError, reader.read, 0, 3)
        _refused(StoreError, reader.read_many, [0], [3])

    def test_a_version_changes_with_the_bytes(self) -> None:
        store, url = self.store(), f"{self.folder()}/a"
        versions = set()
        for number in range(10):
            self.place(url, b"%04d" % number)
            info = store.info(url)
            assert store.info(url) == info
            reader = store.open(url)
            assert reader.info == info
            reader.close()
            versions.add(info.version)
        assert len(versions) == 10

    def test_many_threads_read_one_reader(self) -> None:
        store, url = self.store(), f"{self.folder()}/a"
        data = random.Random(1).randbytes(100_000)  # noqa: S311 - the same data each time
        self.place(url, data)
        reader, wrong = store.open(url), list[int]()

        def read(seed: int) -> None:
            wrong.extend(at for at in range(seed, 90_000, 4999) if reader.read(at, at + 100) != data[at : at + 100])

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reader.close()
        assert wrong == []


class StoreTests(StoreReadTests):
    """What a store that can be written promises.

    Examples:
        >>> from shoal.store import MemoryStore
        >>> class TestMemory(StoreTests):
        ...     memory = MemoryStore()
        ...     folders = 0
        ...
        ...     def store(self):
        ...         return self.memory
        ...
        ...     def folder(self):
        ...         TestMemory.folders += 1
        ...         return f"memory://{self.folders}"
        >>> TestMemory().test_an_object_appears_on_commit()
    """

    def url_of(self, root: str, name: str) -> str:
        """The URL of a name below a folder; a store whose URLs are quoted says so here."""
        return f"{root}/{name}"

    def test_what_is_written_is_read(self) -> None:
        store, url = self.store(), f"{self.folder()}/deep/er/a.bin"
        info = store.write_all(url, _TEN)
        assert (info.url, info.size) == (url, 10)
        assert store.info(url) == info
        assert store.read_all(url) == _TEN

    def test_an_object_appears_on_commit(self) -> None:
        store, root = self.store(), self.folder()
        writer = store.create(f"{root}/a")
        writer.write(b"half")
        assert list(store.list(root)) == []
        _refused(ObjectNotFoundError, store.info, f"{root}/a")
        writer.write(bytearray(b" and "))
        writer.write(memoryview(b"half"))
        info = writer.commit()
        assert info.size == 13
        assert store.info(f"{root}/a") == info
        assert store.read_all(f"{root}/a") == b"half and half"
        assert list(store.list(root)) == [info]

    def test_a_large_object_is_streamed(self) -> None:
        store, root = self.store(), self.folder()
        step = random.Random(2).randbytes(1_000_003)  # noqa: S311 - the same data each time
        writer = store.create(f"{root}/a")
        for _ in range(40):
            writer.write(step)
        assert list(store.list(root)) == []
        assert writer.commit().size == 40 * len(step)
        right = store.read_all(f"{root}/a") == step * 40
        assert right

    def test_nothing_is_left_of_a_large_object_that_was_aborted(self) -> None:
        store, root = self.store(), self.folder()
        writer = store.create(f"{root}/a")
        for _ in range(40):
            writer.write(bytes(1_000_003))
        writer.abort()
        assert list(store.list(root)) == []

    def test_the_old_object_stands_until_the_new_one_is_whole(self) -> None:
        store, url = self.store(), f"{self.folder()}/a"
        store.write_all(url, b"old")
        writer = store.create(url)
        writer.write(b"new and longer")
        assert store.read_all(url) == b"old"
        writer.commit(durable=True)
        assert store.read_all(url) == b"new and longer"

    def test_nothing_is_left_after_abort(self) -> None:
        store, root = self.store(), self.folder()
        store.write_all(f"{root}/kept", b"1")
        for written in (b"", b"something"):
            writer = store.create(f"{root}/a")
            if written:
                writer.write(written)
            writer.abort()
            writer.abort()
            assert [base_name(info.url) for info in store.list(root)] == ["kept"]

    def test_abort_after_commit_changes_nothing(self) -> None:
        store, url = self.store(), f"{self.folder()}/a"
        writer = store.create(url)
        writer.write(b"1")
        writer.commit()
        writer.abort()
        assert store.read_all(url) == b"1"

    def test_an_empty_object_can_be_written(self) -> None:
        store, root = self.store(), self.folder()
        assert store.write_all(f"{root}/a", b"").size == 0
        assert store.create(f"{root}/b").commit().size == 0
        assert [info.size for info in store.list(root)] == [0, 0]

    def test_lists_are_sorted_and_complete(self) -> None:
        store, root = self.store(), self.folder()
        names = [
            "b",
            "a/b",
            "a-b",
            "a/b-c",
            "a/a",
            "Z",
            "a.b",
            "é",
            "a b",
            "0",
            ".hidden/x",
            "a%41",
            "a#b",
            "a?b",
            "[x]",
        ]
        infos = [store.write_all(self.url_of(root, name), name.encode()) for name in names]
        found = list(store.list(root))
        assert found == sorted(infos, key=lambda info: info.url)
        in_order = sorted(names, key=lambda name: self.url_of(root, name))
        assert [store.read_all(info.url).decode() for info in found] == in_order
        assert list(store.list(root + "/")) == found
        below = [self.url_of(root, name) for name in in_order if name.startswith("a/")]
        assert [info.url for info in store.list(f"{root}/a")] == below

    def test_depth_says_how_far_down_a_list_goes(self) -> None:
        store, root = self.store(), self.folder()
        for name in ("a", "f/a", "f/g/a", "h/a", "f/g/i/a"):
            store.write_all(f"{root}/{name}", b"x")
        for depth, names in ((1, "a"), (2, "a f/a h/a"), (3, "a f/a f/g/a h/a"), (9, "a f/a f/g/a f/g/i/a h/a")):
            assert _names(store.list(root, depth), root) == names.split()

    def test_a_list_of_nothing_is_empty(self) -> None:
        store, root = self.store(), self.folder()
        assert list(store.list(f"{root}/none")) == []
        store.write_all(f"{root}/a", b"x")
        assert list(store.list(f"{root}/a")) == []
        assert store.is_folder(root)
        assert not store.is_folder(f"{root}/a")
        assert not store.is_folder(f"{root}/none")

    def test_names_that_begin_alike_are_not_one_folder(self) -> None:
        store, root = self.store(), self.folder()
        store.write_all(f"{root}/data/a", b"x")
        store.write_all(f"{root}/data-2/b", b"x")
        assert [info.url for info in store.list(f"{root}/data")] == [f"{root}/data/a"]
        assert not store.is_folder(f"{root}/dat")

    def test_append_makes_and_grows_an_object(self) -> None:
        store, url = self.store(), f"{self.folder()}/log/journal"
        for line in (b"1\n", b"", b"22\n", b"333\n"):
            store.append(url, line)
        before = store.info(url).version
        store.append(url, b"4\n")
        assert store.read_all(url) == b"1\n22\n333\n4\n"
        assert store.info(url).version != before

    def test_delete_takes_the_object_and_nothing_is_no_error(self) -> None:
        store, root = self.store(), self.folder()
        store.write_all(f"{root}/a", b"x")
        store.delete(f"{root}/a")
        store.delete(f"{root}/a")
        store.delete(f"{root}/no/such")
        store.write_all(f"{root}/b", b"x")
        store.delete(f"{root}/b/below")
        assert _names(store.list(root), root) == ["b"]

    def test_move_replaces_what_was_there(self) -> None:
        store, root = self.store(), self.folder()
        store.write_all(f"{root}/a", b"new")
        store.write_all(f"{root}/b/c", b"old")
        store.move(f"{root}/a", f"{root}/b/c")
        assert [(info.url, store.read_all(info.url)) for info in store.list(root)] == [(f"{root}/b/c", b"new")]
        store.move(f"{root}/b/c", f"{root}/new/folder/d")
        assert store.read_all(f"{root}/new/folder/d") == b"new"
        _refused(ObjectNotFoundError, store.move, f"{root}/none", f"{root}/x")

    def test_arrays_are_written_as_their_bytes(self) -> None:
        store, url = self.store(), f"{self.folder()}/a"
        array = np.arange(1000, dtype=np.int64)
        writer = store.create(url)
        writer.write(array.data)
        writer.write(b"end")
        assert writer.commit().size == 8003
        assert store.read_all(url) == array.tobytes() + b"end"

    def test_a_name_that_cannot_be_is_an_error_of_ours_or_an_object(self) -> None:
        store, root = self.store(), self.folder()
        for name in ("a\0b", "x" * 300, "a//b", "a/../b"):
            for act in (store.info, store.read_all, lambda url: store.write_all(url, b"x"), store.delete):
                try:
                    act(f"{root}/{name}")
                except StoreError:
                    continue  # any other error would fail the test


def _names(infos: Any, root: str) -> list[str]:
    found: list[ObjectInfo] = list(infos)
    return [info.url.removeprefix(f"{root}/") for info in found]


def store_machine(store: Callable[[], Store], folder: Callable[[], str]) -> Any:
    """A state machine for hypothesis that does the same to a store and to a `MemoryStore`: they must hold the same.

    ``store`` gives the store under test and ``folder`` the URL of a new folder in it, for each run. Run it as
    ``TestMine = store_machine(...).TestCase``. Raises MissingExtraError without hypothesis.

    Examples:
        >>> from itertools import count
        >>> from shoal.store import MemoryStore
        >>> numbers = count()
        >>> machine = store_machine(MemoryStore, lambda: f"memory://{next(numbers)}")
        >>> machine.TestCase("runTest").runTest()
    """
    try:
        from ._stateful import StoreMachine
    except ImportError:
        raise MissingExtraError("state machines need hypothesis", hint="pip install hypothesis") from None
    members = {"store": lambda self: store(), "folder": lambda self: folder()}
    return type("StoreMachine", (StoreMachine,), members)
