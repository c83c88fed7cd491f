"""An index in one SQLite file: no server, many processes, write-ahead logging, search by FTS5."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from shoal.errors import CatalogConnectionError, CatalogError, ShoalError

from ._backend import Key, Query, Row, Term, Transaction

__all__ = ["MIGRATIONS", "SqliteBackend"]

T = TypeVar("T")
_BUSY_TIMEOUT_S = 60.0
_MAX_SORTED_ROWS = 2000
"""Up to this many rows, sorting is faster than walking from the newest one."""


def _records(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE records (kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, key))"
        " WITHOUT ROWID"
    )
    connection.execute("CREATE TABLE counter (number INTEGER NOT NULL)")
    connection.execute("INSERT INTO counter VALUES (0)")


def _search(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE rows (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, samples INTEGER NOT NULL,"
        " bytes INTEGER NOT NULL, created REAL NOT NULL)"
    )
    for column in ("samples", "bytes", "created"):
        connection.execute(f"CREATE INDEX rows_by_{column} ON rows ({column})")
    # Terms are hex, one token each: words are split before, in the same way for every database.
    connection.execute("CREATE VIRTUAL TABLE terms USING fts5(listed, detail='none', tokenize='ascii')")


MIGRATIONS: tuple[tuple[str, Callable[[sqlite3.Connection], None]], ...] = (
    ("0001-records", _records),
    ("0002-search", _search),
)
"""Every step from an empty file to this version, by name; each is done once, in one transaction with its record."""


class SqliteBackend:
    """One connection for each process, used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self.path = self.location = path
        self.shown = f"sqlite {path}"
        self._lock = threading.RLock()
        self._held: sqlite3.Connection | None = None
        self._process = 0
        self._inherited: list[sqlite3.Connection] = []

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        if self._process not in (0, os.getpid()):  # forked: the parent's lock may be held by a thread we have not
            self._lock = threading.RLock()
        with self._lock, _translated(self.path):
            yield self._connection()

    def _connection(self) -> sqlite3.Connection:
        if self._held is not None and self._process != os.getpid():
            self._inherited.append(self._held)  # never used, nor closed: SQLite's locks are the parent's
            self._held = None
        if self._held is None:
            self._held, self._process = _connected(self.path), os.getpid()
        return self._held

    def transact(self, change: Callable[[Transaction], T]) -> T:
        """Take the write lock, which waits for other processes, then do it."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                done = change(_Change(connection))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return done

    @property
    def _is_new(self) -> bool:
        """Whether nothing was ever written: reading must not create a file."""
        return self._held is None and not os.path.exists(self.path)

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """All of them as of one moment."""
        if self._is_new:
            return [None] * len(keys)
        sql = "SELECT value FROM records WHERE kind = ? AND key = ?"
        with self._open() as connection, _reading(connection):
            # One by one: SQLite looks pairs up in a list of them by reading the whole table.
            rows = [connection.execute(sql, key).fetchone() for key in keys]
        return [None if row is None else row[0] for row in rows]

    def scan(self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, bytes]]:
        """By the primary key."""
        if self._is_new:
            return []
        sql = "SELECT key, value FROM records WHERE kind = ? AND key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
        with self._open() as connection:
            return list(connection.execute(sql, (kind, after, prefix, prefix + "\U0010ffff", limit)))

    def count(self, kind: str) -> int:
        """By the primary key."""
        if self._is_new:
            return 0
        with self._open() as connection:
            return int(connection.execute("SELECT count(*) FROM records WHERE kind = ?", (kind,)).fetchone()[0])

    def search(self, query: Query) -> list[str]:
        """By the bounds, where few rows are within them; else the newest first, which a limit ends early."""
        if self._is_new:
            return []
        with self._open() as connection:
            sql, values = _search_sql(query, _narrow(connection, query))
            return [name for (name,) in connection.execute(sql, (*values, query.limit, query.offset))]

    def migrations(self) -> list[str]:
        """The names of the steps that this file has gone through."""
        with self._open() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY name")]

    def close(self) -> None:
        """Close the connection of this process."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None and self._process == os.getpid():
                held.close()

    def __del__(self) -> None:
        if getattr(self, "_process", 0) == os.getpid():
            self.close()


def _connected(path: str) -> sqlite3.Connection:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        _begin_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")  # a committed change survives a power cut
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _begin_wal(connection: sqlite3.Connection) -> None:
    """Turn write-ahead logging on. SQLite does not wait for others here, so this does."""
    ends = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > ends:
                raise
            time.sleep(0.01)


def _migrate(connection: sqlite3.Connection) -> None:
    """Do the steps that are not done; processes that come at the same time wait for each other."""
    if _is_current(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, done_at REAL NOT NULL)")
        done = {name for (name,) in connection.execute("SELECT name FROM migrations")}
        for name, step in MIGRATIONS:
            if name not in done:
                step(connection)
                connection.execute("INSERT INTO migrations VALUES (?, ?)", (name, time.time()))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _is_current(connection: sqlite3.Connection) -> bool:
    """Raises CatalogError for a file of a newer shoal, whose records this one would misread."""
    try:
        done = {name for (name,) in connection.execute("SELECT name FROM migrations")}
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return False
        raise
    known = {name for name, _ in MIGRATIONS}
    if not done <= known:
        raise CatalogError("the index is of a newer shoal", found=min(done - known), hint="upgrade shoal")
    return done == known


@contextlib.contextmanager
def _reading(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except ShoalError:
        raise
    except (sqlite3.Error, OSError) as error:
        hint = None
        if isinstance(error, sqlite3.DatabaseError) and "not a database" in str(error):
            hint = "name another file: this one is something else"
        elif "fts5" in str(error):
            hint = "this Python's SQLite has no full text search: use a Python of python.org or a package manager"
        raise CatalogConnectionError("the index cannot be used", found=f"{path}: {error}", hint=hint) from error


def _narrow(connection: sqlite3.Connection, query: Query) -> str | None:
    """The column whose bounds leave only a few rows; None where none does. Counting stops where it is of no use."""
    counts = {}
    for name, low, high in query.bounds:
        sql = f"SELECT count(*) FROM (SELECT 1 FROM rows WHERE {name} BETWEEN ? AND ? LIMIT {_MAX_SORTED_ROWS})"  # noqa: S608 - ours
        counts[name] = connection.execute(sql, (low, high)).fetchone()[0]
    least = min(counts, key=lambda name: counts[name], default=None)
    return least if least is not None and counts[least] < _MAX_SORTED_ROWS else None


def _search_sql(query: Query, narrow: str | None) -> tuple[str, list[Any]]:
    bounds = " AND ".join(f"rows.{name} BETWEEN ? AND ?" for name, _, _ in query.bounds)
    values: list[Any] = [value for _, low, high in query.bounds for value in (low, high)]
    match = " AND ".join(map(_matched, query.terms))
    if not query.terms or narrow is not None:
        where = [bounds] * bool(bounds) + ["number IN (SELECT rowid FROM terms WHERE terms MATCH ?)"] * bool(match)
        how = "NOT INDEXED" if narrow is None else f"INDEXED BY rows_by_{narrow}"
        sql = f"SELECT name FROM rows {how} WHERE {' AND '.join(where) or '1'} ORDER BY number DESC"  # noqa: S608 - ours
        values += [match] * bool(match)
    else:
        sql = "SELECT rows.name FROM terms JOIN rows ON rows.number = terms.rowid WHERE terms MATCH ?"
        sql += f"{' AND ' + bounds if bounds else ''} ORDER BY terms.rowid DESC"
        values.insert(0, match)
    return f"{sql} LIMIT ? OFFSET ?", values


def _hex(term: str) -> str:
    return "x" + term.encode().hex()


def _matched(term: Term) -> str:
    return f"{_hex(term.text)}{'*' if term.prefix else ''}"


class _Change:
    """A transaction, on a connection that holds the write lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._do = connection.execute

    def get(self, key: Key) -> bytes | None:
        found = self._do("SELECT value FROM records WHERE kind = ? AND key = ?", key).fetchone()
        return None if found is None else found[0]

    def put(self, key: Key, value: bytes) -> None:
        self._do("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (*key, value))

    def delete(self, key: Key) -> None:
        self._do("DELETE FROM records WHERE kind = ? AND key = ?", key)

    def put_row(self, row: Row) -> None:
        self.delete_row(row.name)
        self._do(
            "INSERT INTO rows (number, name, samples, bytes, created) VALUES (?, ?, ?, ?, ?)",
            (row.number, row.name, row.samples, row.bytes, row.created),
        )
        self._do("INSERT INTO terms (rowid, listed) VALUES (?, ?)", (row.number, " ".join(map(_hex, row.terms))))

    def delete_row(self, name: str) -> None:
        found = self._do("DELETE FROM rows WHERE name = ? RETURNING number", (name,)).fetchone()
        if found is not None:
            self._do("DELETE FROM terms WHERE rowid = ?", found)

    def next_number(self) -> int:
        return int(self._do("UPDATE counter SET number = number + 1 RETURNING number").fetchone()[0])
