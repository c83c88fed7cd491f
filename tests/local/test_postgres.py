"""The PostgreSQL schema of an index."""

from __future__ import annotations

import pytest

import shoal
from shoal.local import LocalIndex


def test_postgres_has_the_same_migrations_and_refuses_newer_ones(postgres_url):
    with LocalIndex(postgres_url, namespace="migrated") as index:
        assert len(index) == 0
        assert index._backend.migrations() == ["0001-records", "0002-search"]
        with index._backend._open() as connection:
            connection.execute("INSERT INTO migrations (name) VALUES ('9999-of-the-future')")
        index.close()
        with pytest.raises(shoal.ShoalError, match="newer shoal"):
            index.get_dataset("a")
