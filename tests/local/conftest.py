"""The servers, started once a session, and an environment without indexes and clouds of the user's."""

from __future__ import annotations

import itertools

import pytest
from tests.local.servers import postgres_server, redis_server
from tests.store.servers import seaweed
from tests.store.settings import own_settings

from shoal.local import LocalIndex, set_default_index

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def redis_url():
    with redis_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def postgres_url():
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def s3_endpoint():
    with seaweed() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def _own_place(monkeypatch, tmp_path):
    """What a test configures is gone after it; the user's own index and clouds are not seen."""
    own_settings(monkeypatch, tmp_path)
    for name in ("REDIS_URL", "SHOAL_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    yield
    set_default_index(None)


def namespace():
    return f"test_{next(_NUMBERS)}"


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def index(request, tmp_path):
    """A new, empty index in each kind of database."""
    if request.param == "memory":
        made = LocalIndex("memory://")
    elif request.param == "sqlite":
        made = LocalIndex(tmp_path / "index.db")
    else:
        made = LocalIndex(request.getfixturevalue(f"{request.param}_url"), namespace=namespace())
    with made:
        yield made
