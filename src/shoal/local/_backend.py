"""What a database has to do to keep an index: records by kind and key, rows to search, changes that happen whole.

All that an index promises is written once, over this; a database is one private module that does these few things.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

__all__ = ["Backend", "Key", "Query", "Row", "Term", "Transaction"]

T = TypeVar("T")
Key = tuple[str, str]
"""A kind of record and its key; keys of a kind are in the order of their UTF-8."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a dataset can be found by."""

    name: str
    number: int
    """Greater for what came later; results are in falling order of it."""
    terms: tuple[str, ...]
    samples: int
    bytes: int
    created: float


@dataclass(frozen=True, slots=True)
class Term:
    """A term that rows must have; with ``prefix``, one that begins so."""

    text: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for: rows with all terms, and numbers within bounds, both ends included."""

    terms: tuple[Term, ...] = ()
    samples: tuple[int | None, int | None] = (None, None)
    bytes: tuple[int | None, int | None] = (None, None)
    created: tuple[float | None, float | None] = (None, None)
    limit: int = 50
    offset: int = 0

    @property
    def bounds(self) -> list[tuple[str, float, float]]:
        """The bounds that were set: column, lowest, highest."""
        every = (("samples", self.samples), ("bytes", self.bytes), ("created", self.created))
        # No count and no date is as large as this, and every database can hold it.
        return [
            (name, -(2**62) if low is None else low, 2**62 if high is None else high)
            for name, (low, high) in every
            if (low, high) != (None, None)
        ]


class Transaction(Protocol):
    """Changes that happen together or not at all. What was read in it has not changed when they do."""

    def get(self, key: Key) -> bytes | None: ...

    def put(self, key: Key, value: bytes) -> None: ...

    def delete(self, key: Key) -> None:
        """Nothing there is no error."""
        ...

    def put_row(self, row: Row) -> None:
        """Set the row of a name, replacing the one it has."""
        ...

    def delete_row(self, name: str) -> None: ...

    def next_number(self) -> int:
        """A number greater than all before; some may be left out."""
        ...


class Backend(Protocol):
    """A database that keeps an index. Every method raises CatalogConnectionError when the database fails."""

    @property
    def shown(self) -> str:
        """What it is, without secrets: for reprs and errors."""
        ...

    def transact(self, change: Callable[[Transaction], T]) -> T:
        """Do what ``change`` does, whole or not at all; it may be called again when another process was quicker.

        An error of ``change`` undoes everything.
        """
        ...

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]: ...

    def scan(self, kind: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, bytes]]:
        """Records of a kind whose keys begin with ``prefix`` and come after ``after``, in order of their keys."""
        ...

    def count(self, kind: str) -> int: ...

    def search(self, query: Query) -> list[str]:
        """The names of the rows that fit."""
        ...

    def close(self) -> None:
        """Let go of the database; the next call reaches it again."""
        ...
