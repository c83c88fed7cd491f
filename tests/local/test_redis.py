"""Redis servers that may lose an index."""

from __future__ import annotations

import pytest
from tests.local.servers import redis_server

import shoal
from shoal.local import LocalIndex, Repo


def test_a_redis_without_persistence_is_detected_and_said(tmp_path):
    with redis_server("--save", "", "--appendonly", "no") as server:
        index = LocalIndex(server.url)
        with pytest.warns(shoal.ShoalWarning, match="keeps nothing on disk") as told:
            index.publish_schema(_Pet)
        assert told[0].filename == __file__
        index.publish_schema(_Pet)  # said once
        index.close()
        with LocalIndex(server.url) as other, pytest.warns(shoal.ShoalWarning, match="keeps nothing"):
            Repo(tmp_path / "repo", index=other).insert([{"txt": "a cat"}], name="pets")


def test_a_redis_that_drops_keys_is_said_too():
    options = ("--appendonly", "yes", "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    told = pytest.warns(shoal.ShoalWarning, match="allkeys-lru")
    with redis_server(*options) as server, LocalIndex(server.url) as index, told:
        index.publish_schema(_Pet)


@shoal.packable
class _Pet:
    name: str
