"""An index in PostgreSQL: one schema of its own, changes one at a time under an advisory lock."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from shoal.errors import CatalogConnectionError, CatalogError, MissingExtraError, ShoalError

from ._backend import Key, Query, Row, Term, Transaction

__all__ = ["MIGRATIONS", "PostgresBackend"]

T = TypeVar("T")
_CONNECT_TIMEOUT_S = 10

MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "0001-records",
        (
            'CREATE TABLE records (kind text COLLATE "C", key text COLLATE "C", value bytea, PRIMARY KEY (kind, key))',
            "CREATE SEQUENCE numbers",
        ),
    ),
    (
        "0002-search",
        (
            'CREATE TABLE rows (name text COLLATE "C" PRIMARY KEY, number int8 UNIQUE)',
            "ALTER TABLE rows ADD COLUMN samples int8, ADD COLUMN bytes int8, ADD COLUMN created float8",
            'CREATE TABLE terms (term text COLLATE "C" NOT NULL, number bigint NOT NULL, PRIMARY KEY (term, number))',
            "CREATE INDEX terms_of_a_row ON terms (number)",
            "CREATE INDEX rows_by_samples ON rows (samples)",
            "CREATE INDEX rows_by_bytes ON rows (bytes)",
            "CREATE INDEX rows_by_created ON rows (created)",
        ),
    ),
)
"""Every step from nothing to this version, by name; each is done once, and recorded with it in one transaction."""


def _module() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError(
            "the package psycopg cannot be imported", found=error, hint="pip install 'shoal[postgres]'"
        ) from error
    return psycopg


class PostgresBackend:
    """One connection for each process, used by one thread at a time, and made anew when it is lost."""

    def __init__(self, url: str, namespace: str) -> None:
        self.location = url
        self._ns = namespace
        self._number = int.from_bytes(hashlib.sha256(f"shoal {namespace}".encode()).digest()[:8], "big", signed=True)
        """The advisory lock of this index."""
        self._lock = threading.RLock()
        self._held: Any = None
        self._process = 0
        self._inherited: list[Any] = []

    @property
    def shown(self) -> str:
        """Host and database, without user and password."""
        parts = urlsplit(self.location)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        psycopg = _module()
        if self._process not in (0, os.getpid()):  # forked: the parent's lock may be held by a thread we have not
            self._lock = threading.RLock()
        with self._lock:
            try:
                yield self._connection(psycopg)
            except ShoalError:
                raise
            except psycopg.Error as error:
                if self._held is not None and self._held.closed:
                    self._held = None
                raise CatalogConnectionError(
                    "the PostgreSQL of the index failed", found=f"{self.shown}: {_first_line(error)}"
                ) from error

    def _connection(self, psycopg: Any) -> Any:
        if self._held is not None and self._process != os.getpid():
            self._inherited.append(self._held)  # neither used nor closed: it is the parent's connection
            self._held = None
        if self._held is not None and not self._held.closed:
            return self._held
        self._held, self._process = None, os.getpid()
        held = psycopg.connect(self.location, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S)
        try:
            self._migrate(held)
        except BaseException:
            held.close()
            raise
        self._held = held
        return held

    def _migrate(self, connection: Any) -> None:
        """Do the steps that are not done; those who come at the same time wait for each other."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._number,))
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._ns}"')
            connection.execute(
                f'CREATE TABLE IF NOT EXISTS "{self._ns}".migrations'
                " (name text PRIMARY KEY, done_at timestamptz NOT NULL DEFAULT now())"
            )
        connection.execute(f'SET search_path TO "{self._ns}"')
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._number,))
            done = {name for (name,) in connection.execute("SELECT name FROM migrations")}
            unknown = done - {name for name, _ in MIGRATIONS}
            if unknown:
                raise CatalogError("the index is of a newer shoal", found=min(unknown), hint="upgrade shoal")
            for name, statements in MIGRATIONS:
                if name not in done:
                    for statement in statements:
                        connection.execute(statement)
                    connection.execute("INSERT INTO migrations (name) VALUES (%s)", (name,))

    def transact(self, change: Callable[[Transaction], T]) -> T:
        """Under the lock of the index, which waits for other processes."""
        with self._open() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._number,))
            return change(_Change(connection))

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """All of them as of one moment."""
        sql = "SELECT kind, key, value FROM records WHERE (kind, key) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        kinds, names = [kind for kind, _ in keys], [key for _, key in keys]
        with self._open() as connection:
            rows = connection.execute(sql, (kinds, names))
            found = {(kind, key): bytes(value) for kind, key, value in rows}
        return [found.get(key) for key in keys]

    def scan(self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, bytes]]:
        """By the primary key."""
        sql = "SELECT key, value FROM records WHERE kind = %s AND key > %s AND key >= %s AND key < %s"
        with self._open() as connection:
            rows = connection.execute(
                f"{sql} ORDER BY key LIMIT %s", (kind, after, prefix, prefix + "\U0010ffff", limit)
            )
            return [(key, bytes(value)) for key, value in rows]

    def count(self, kind: str) -> int:
        """By the primary key."""
        with self._open() as connection:
            return int(connection.execute("SELECT count(*) FROM records WHERE kind = %s", (kind,)).fetchone()[0])

    def search(self, query: Query) -> list[str]:
        """The first term's rows in falling order, each looked up for the others, so a limit ends it early."""
        wheres: list[tuple[str, tuple[Any, ...]]] = [_where(term) for term in query.terms]
        wheres += [(f"rows.{name} BETWEEN %s AND %s", (low, high)) for name, low, high in query.bounds]
        where = " AND ".join(text for text, _ in wheres) or "true"
        values = [value for _, part in wheres for value in part]
        sql = f"SELECT name FROM rows WHERE {where} ORDER BY number DESC LIMIT %s OFFSET %s"  # noqa: S608 - ours
        with self._open() as connection:
            return [name for (name,) in connection.execute(sql, (*values, query.limit, query.offset))]

    def migrations(self) -> list[str]:
        """The names of the steps that this index has gone through."""
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


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _where(term: Term) -> tuple[str, tuple[str, ...]]:
    if term.prefix:
        text = "terms.term >= %s AND terms.term < %s"
        values: tuple[str, ...] = (term.text, term.text + "\U0010ffff")
    else:
        text, values = "terms.term = %s", (term.text,)
    return f"EXISTS (SELECT 1 FROM terms WHERE terms.number = rows.number AND {text})", values  # noqa: S608 - ours


class _Change:
    """A transaction, on a connection that holds the advisory lock."""

    def __init__(self, connection: Any) -> None:
        self._do = connection.execute

    def get(self, key: Key) -> bytes | None:
        found = self._do("SELECT value FROM records WHERE kind = %s AND key = %s", key).fetchone()
        return None if found is None else bytes(found[0])

    def put(self, key: Key, value: bytes) -> None:
        self._do(
            "INSERT INTO records VALUES (%s, %s, %s) ON CONFLICT (kind, key) DO UPDATE SET value = EXCLUDED.value",
            (*key, value),
        )

    def delete(self, key: Key) -> None:
        self._do("DELETE FROM records WHERE kind = %s AND key = %s", key)

    def put_row(self, row: Row) -> None:
        self.delete_row(row.name)
        self._do(
            "INSERT INTO rows (name, number, samples, bytes, created) VALUES (%s, %s, %s, %s, %s)",
            (row.name, row.number, row.samples, row.bytes, row.created),
        )
        self._do("INSERT INTO terms SELECT unnest(%s::text[]), %s", (list(row.terms), row.number))

    def delete_row(self, name: str) -> None:
        found = self._do("DELETE FROM rows WHERE name = %s RETURNING number", (name,)).fetchone()
        if found is not None:
            self._do("DELETE FROM terms WHERE number = %s", found)

    def next_number(self) -> int:
        return int(self._do("SELECT nextval('numbers')").fetchone()[0])
