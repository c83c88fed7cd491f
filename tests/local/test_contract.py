"""One suite and one state machine for every database."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from tests.local.conftest import namespace
from tests.scale import times

from shoal.local import LocalIndex
from shoal.testing import IndexTests, index_machine

_NUMBERS = itertools.count()


class _Made(IndexTests):
    """Closes what it has made."""

    @pytest.fixture(autouse=True)
    def _held(self, request, tmp_path):
        self.made = []
        self.tmp_path = tmp_path
        self.request = request
        yield
        for index in self.made:
            index.close()

    def keep(self, index):
        self.made.append(index)
        return index

    def again(self, index):
        return self.keep(super().again(index))


class TestMemory(_Made):
    def index(self):
        return self.keep(LocalIndex("memory://"))

    def again(self, index):
        return index  # no other process reaches it


class TestSqlite(_Made):
    def index(self):
        return self.keep(LocalIndex(self.tmp_path / f"{next(_NUMBERS)}.db"))


class TestRedis(_Made):
    def index(self):
        return self.keep(LocalIndex(self.request.getfixturevalue("redis_url"), namespace=namespace()))


class TestPostgres(_Made):
    def index(self):
        return self.keep(LocalIndex(self.request.getfixturevalue("postgres_url"), namespace=namespace()))


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_any_sequence_of_calls_gives_the_same_as_in_memory(kind, tmp_path, request):
    def made():
        if kind == "sqlite":
            return LocalIndex(tmp_path / f"{next(_NUMBERS)}.db")
        return LocalIndex(request.getfixturevalue(f"{kind}_url"), namespace=namespace())

    case = index_machine(made).TestCase
    case.settings = settings(max_examples=times(8, 200), stateful_step_count=20, deadline=None)
    case("runTest").runTest()
