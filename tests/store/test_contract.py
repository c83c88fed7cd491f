"""The suite that users may run on their own stores, passed by each of ours."""

from __future__ import annotations

import itertools
import uuid
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, settings

from shoal.store import LocalStore, MemoryStore, store_for
from shoal.testing import StoreReadTests, StoreTests, store_machine

SHORT = settings(max_examples=8, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck))


class TestMemory(StoreTests):
    memory = MemoryStore()

    def store(self):
        return self.memory

    def folder(self):
        return f"memory://{uuid.uuid4()}/folder"


class TestLocal(StoreTests):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.path, self.numbers = tmp_path, itertools.count()

    def store(self):
        return LocalStore()

    def folder(self):
        return str(self.path / str(next(self.numbers)))


class TestFileUrls(TestLocal):
    def folder(self):
        return (self.path / str(next(self.numbers))).as_uri()

    def url_of(self, root, name):
        return f"{root}/{quote(name)}"


class TestS3(StoreTests):
    @pytest.fixture(autouse=True)
    def _place(self, s3):
        self.root, self.numbers = s3, itertools.count()

    def store(self):
        return store_for("s3://")

    def folder(self):
        return f"{self.root}/{next(self.numbers)}"


class TestHttp(StoreReadTests):
    quirks: frozenset[str] = frozenset()

    @pytest.fixture(autouse=True)
    def _place(self, http):
        self.http, self.numbers = http, itertools.count()
        http.quirks |= self.quirks

    def store(self):
        return store_for("http://")

    def folder(self):
        return f"{self.http.url}/{next(self.numbers)}"

    def place(self, url, data):
        self.http.objects[url.removeprefix(self.http.url)] = data


class TestHttpWithWeakETags(TestHttp):
    quirks = frozenset({"weak-etag"})


class TestHttpWithoutHead(TestHttp):
    quirks = frozenset({"no-head"})


def test_any_sequence_of_calls_leaves_local_files_as_a_dictionary_would_be(tmp_path_factory):
    machine = store_machine(LocalStore, lambda: str(tmp_path_factory.mktemp("store")))
    machine.TestCase.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
    machine.TestCase("runTest").runTest()


def test_any_sequence_of_calls_leaves_a_bucket_as_a_dictionary_would_be(s3):
    numbers = itertools.count()
    machine = store_machine(lambda: store_for("s3://"), lambda: f"{s3}/{next(numbers)}")
    machine.TestCase.settings = SHORT
    machine.TestCase("runTest").runTest()


def test_the_machine_finds_a_store_that_forgets():
    class Forgetful(MemoryStore):
        def append(self, url, data):
            self.write_all(url, data)

    numbers = itertools.count()
    machine = store_machine(Forgetful, lambda: f"memory://{next(numbers)}")
    machine.TestCase.settings = settings(deadline=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        machine.TestCase("runTest").runTest()


class Unsorted(MemoryStore):
    def list(self, url, depth=None):
        return iter(list(super().list(url, depth))[::-1])


class Eager(MemoryStore):
    """Shows what is not committed."""

    def create(self, url):
        self.write_all(url, b"")
        return super().create(url)


class Deaf(MemoryStore):
    """Gives up to the last byte but one."""

    def open(self, url):
        reader = super().open(url)
        reader._data = reader._data[:-1]
        return reader


class Prefixes(MemoryStore):
    """Takes names that begin alike for one folder."""

    def list(self, url, depth=None):
        return (info for info in super().list("memory://", None) if info.url.startswith(url.rstrip("/")))


@pytest.mark.parametrize(
    "kind, test",
    [
        (Unsorted, "lists_are_sorted_and_complete"),
        (Eager, "an_object_appears_on_commit"),
        (Eager, "nothing_is_left_after_abort"),
        (Deaf, "ranges_end_where_the_object_ends"),
        (Deaf, "many_ranges_come_in_the_order_asked"),
        (Prefixes, "names_that_begin_alike_are_not_one_folder"),
        (Prefixes, "depth_says_how_far_down_a_list_goes"),
    ],
)
def test_the_suite_finds_a_store_that_breaks_a_promise(kind, test):
    class Suite(StoreTests):
        made = kind()

        def store(self):
            return self.made

        def folder(self):
            return f"memory://{uuid.uuid4()}"

    with pytest.raises(AssertionError):
        getattr(Suite(), f"test_{test}")()
