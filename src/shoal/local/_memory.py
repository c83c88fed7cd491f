"""An index in the memory of this process: gone with it. Also the model that the databases are compared with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ._backend import Key, Query, Row, Term, Transaction

__all__ = ["MemoryBackend"]

T = TypeVar("T")


class MemoryBackend:
    """Dictionaries under a lock."""

    shown = "memory://"

    def __init__(self) -> None:
        self._records: dict[Key, bytes] = {}
        self._rows: dict[str, Row] = {}
        self._number = 0
        self._lock = threading.RLock()

    def transact(self, change: Callable[[Transaction], T]) -> T:
        """Keep what was there, for the case that ``change`` fails."""
        with self._lock:
            before = dict(self._records), dict(self._rows)
            try:
                return change(self)
            except BaseException:
                self._records, self._rows = before
                raise

    def get(self, key: Key) -> bytes | None:
        """One record."""
        return self._records.get(key)

    def put(self, key: Key, value: bytes) -> None:
        """Set one record."""
        self._records[key] = value

    def delete(self, key: Key) -> None:
        """Remove one record."""
        self._records.pop(key, None)

    def put_row(self, row: Row) -> None:
        """Set one row."""
        self._rows[row.name] = row

    def delete_row(self, name: str) -> None:
        """Remove one row."""
        self._rows.pop(name, None)

    def next_number(self) -> int:
        """Count."""
        self._number += 1
        return self._number

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Several records."""
        with self._lock:
            return [self._records.get(key) for key in keys]

    def scan(self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, bytes]]:
        """Look at all of them."""
        with self._lock:
            found = [(key, value) for (of, key), value in self._records.items() if of == kind]
        fitting = [item for item in found if item[0].startswith(prefix) and item[0].encode() > after.encode()]
        return sorted(fitting, key=lambda item: item[0].encode())[:limit]

    def count(self, kind: str) -> int:
        """Count them."""
        with self._lock:
            return sum(of == kind for of, _ in self._records)

    def search(self, query: Query) -> list[str]:
        """Look at all of them."""
        with self._lock:
            rows = sorted(self._rows.values(), key=lambda row: -row.number)
        found = [row.name for row in rows if _fits(row, query)]
        return found[query.offset : query.offset + query.limit]

    def close(self) -> None:
        """Nothing to let go of."""


def _fits(row: Row, query: Query) -> bool:
    return all(_has(row, term) for term in query.terms) and all(
        low <= getattr(row, name) <= high for name, low, high in query.bounds
    )


def _has(row: Row, term: Term) -> bool:
    return any(text.startswith(term.text) for text in row.terms) if term.prefix else term.text in row.terms
