"""The interface of an index's database, the records it keeps, and the backend in memory.

Everything an index promises is implemented once, on this interface; each database is one private module.

Records by kind:

    head    a dataset's name     its versions, tags, and number in the order of changes
    entry   name@version         schema, metadata and description of one version
    data    cid.place            storage and shards of data, and the entries that refer to it
    schema-head, schema          a schema's name; Name@version
    lens-head, lens              a lens's name; Name@version
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from shoal.errors import CatalogError

from ._entry import Storage, StoredShard

__all__ = [
    "Backend",
    "DataRecord",
    "EntryRecord",
    "Head",
    "Key",
    "MemoryBackend",
    "Query",
    "Row",
    "Term",
    "Transaction",
    "VersionList",
    "VersionRecord",
    "data_key",
    "decode_record",
    "encode_record",
]

T = TypeVar("T")
Key = tuple[str, str]
"""A kind of record and its key; keys of a kind are in the order of their UTF-8."""


@dataclass(frozen=True, slots=True)
class Row:
    """The searchable terms and numbers of a dataset."""

    name: str
    number: int
    """Greater for what came later; results are in falling order of it."""
    terms: tuple[str, ...]
    samples: int
    bytes: int
    created: float


@dataclass(frozen=True, slots=True)
class Term:
    """A term that rows must have; with ``prefix``, the start of one."""

    text: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A search: rows with all terms, and with numbers within the bounds, both ends included."""

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
        """Apply ``change`` atomically; it may be called again if another process was faster.

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
        """Close the connection; the next call opens it again."""
        ...


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One version of a name, and the data it stands for."""

    version: str
    data: str


@dataclass(frozen=True, slots=True)
class Head:
    """A dataset's name: its history, oldest first, and its tags."""

    number: int
    versions: tuple[VersionRecord, ...]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """Schema, metadata and description of one version."""

    schema_ref: str
    created_at: float
    metadata: dict[str, Any] | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class DataRecord:
    """Data in one place."""

    cid: str
    storage: Storage
    shards: tuple[StoredShard, ...]
    refs: tuple[str, ...] = ()
    """The versions that stand for it: it is forgotten with the last of them."""


@dataclass(frozen=True, slots=True)
class VersionList:
    """The versions of a schema or a lens, with a hash of what each one is; oldest first."""

    versions: dict[str, str] = field(default_factory=dict)


def data_key(cid: str, place: str) -> Key:
    """Return the key of the record for data with this content in this place."""
    return "data", f"{cid}.{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def encode_record(value: Any) -> bytes:
    """Return a record as JSON."""
    return msgspec.json.encode(value)


def decode_record(data: bytes, kind: type[T], key: Key) -> T:
    """Return the record that JSON describes. Raises CatalogError if it does not describe one."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CatalogError("a record of the index cannot be read", found=f"{key[0]} {key[1]}: {error}") from error


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
