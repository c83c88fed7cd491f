"""The SQLite file of an index."""

from __future__ import annotations

import sqlite3

import pytest

import shoal
from shoal.local import LocalIndex


def test_the_sqlite_file_is_in_wal_with_named_migrations(tmp_path):
    index = LocalIndex(tmp_path / "index.db")
    index.insert_dataset(shoal.write_samples([{"txt": "a"}], tmp_path / "d"), name="a")
    with sqlite3.connect(tmp_path / "index.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        names = [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY name")]
        assert names == ["0001-records", "0002-search"]
        connection.execute("INSERT INTO migrations VALUES ('9999-of-the-future', 0)")
    connection.close()
    index.close()
    with pytest.raises(shoal.ShoalError, match="newer shoal"):
        index.get_dataset("a")
    (tmp_path / "text.db").write_text("this is a text, and no database at all " * 100)
    with pytest.raises(ConnectionError, match="something else"):
        LocalIndex(tmp_path / "text.db").get_dataset("a")
