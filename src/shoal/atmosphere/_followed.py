"""What was followed: records of others as this machine last heard of them, in a SQLite file.

Every event is applied in one transaction with the cursor that says it was, so a process that is killed anywhere goes
on where it was: no event is missed, and none is counted twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from shoal.errors import AtmosphereError, RecordError

from ._at_uri import AtUri
from ._cid import Cid
from ._home import home_file
from ._lexicon import ENTRY, LEGACY_ENTRIES
from ._records import PublishedDataset, dataset_from_record

__all__ = ["Event", "Followed"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS cursors (service TEXT PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    service TEXT, seq INTEGER, place INTEGER, action TEXT NOT NULL, uri TEXT NOT NULL, cid TEXT,
    PRIMARY KEY (service, seq, place)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    uri TEXT PRIMARY KEY, did TEXT NOT NULL, collection TEXT NOT NULL, cid TEXT, rev TEXT NOT NULL, value TEXT,
    words TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS records_of ON records (did, collection);
"""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a record: it was created, updated or deleted."""

    action: str
    uri: AtUri
    cid: Cid | None = None
    value: dict[str, Any] | None = None


class Followed:
    """Records that were followed, and how far. Opened when it is first used.

    Example:
        >>> followed = Followed(":memory:")
        >>> uri = AtUri.parse("at://did:plc:abc/science.alt.dataset.entry/3jzfcijpj2z2a")
        >>> followed.apply("wss://relay", 7, "3k", [Event("delete", uri)])
        1
        >>> followed.apply("wss://relay", 7, "3k", [Event("delete", uri)]), followed.cursor("wss://relay")
        (0, 7)
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = os.fspath(path) if path is not None else home_file("followed.db")
        self._lock = threading.RLock()
        self._made: sqlite3.Connection | None = None

    @property
    def _database(self) -> sqlite3.Connection:
        if self._made is None:
            if self.path != ":memory:":
                os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
            try:
                self._made = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
                self._made.execute("PRAGMA journal_mode=WAL")
                self._made.executescript(_SCHEMA)
            except sqlite3.Error as error:
                raise AtmosphereError("what was followed cannot be opened", found=f"{self.path}: {error}") from error
        return self._made

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            database = self._database
            try:
                with database:
                    yield database
            except sqlite3.Error as error:
                raise AtmosphereError("what was followed cannot be kept", found=f"{self.path}: {error}") from error

    # -------------------------------------------------------------------------------------------------------- writing

    def apply(self, service: str, seq: int, rev: str, events: Sequence[Event]) -> int:
        """Take what came with one number of a stream; returns how many events were new."""
        new = 0
        with self._change() as change:
            for place, event in enumerate(events):
                row = (service, seq, place, event.action, str(event.uri), _text(event.cid))
                if change.execute("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?)", row).rowcount:
                    new += 1
                    _put(change, event, rev)
            change.execute(
                "INSERT INTO cursors VALUES (?, ?) ON CONFLICT (service) DO UPDATE SET seq = max(seq, excluded.seq)",
                (service, seq),
            )
        return new

    def replace(self, did: str, collection: str, events: Iterable[Event]) -> int:
        """Take all records of a collection as they are now; what is not among them is gone."""
        found = list(events)
        with self._change() as change:
            change.execute("DELETE FROM records WHERE did = ? AND collection = ?", (did, collection))
            for event in found:
                _put(change, event, "")
        return len(found)

    def forget(self, did: str) -> None:
        """Drop everything of an account that is gone."""
        with self._change() as change:
            change.execute("DELETE FROM records WHERE did = ?", (did,))

    # -------------------------------------------------------------------------------------------------------- reading

    def cursor(self, service: str) -> int | None:
        """The last number of a stream that was taken; None for one that never was."""
        with self._change() as read:
            found = read.execute("SELECT seq FROM cursors WHERE service = ?", (service,)).fetchone()
        return None if found is None else int(found[0])

    def events(self, service: str) -> list[tuple[int, str, str]]:
        """Number, action and URI of every event that was taken from a stream."""
        asked = "SELECT seq, action, uri FROM events WHERE service = ? ORDER BY seq, place"
        with self._change() as read:
            return [(int(seq), str(action), str(uri)) for seq, action, uri in read.execute(asked, (service,))]

    def accounts(self) -> list[str]:
        """The DIDs of all accounts of whom something is known."""
        with self._change() as read:
            return [str(did) for (did,) in read.execute("SELECT DISTINCT did FROM records ORDER BY did")]

    def search(self, text: str = "", *, limit: int = 50) -> list[PublishedDataset]:
        """Datasets whose name, description, tags or license have all the words of a text; the newest first."""
        clauses = ["value IS NOT NULL", f"collection IN ({', '.join('?' * len(_DATASETS))})"]
        asked: list[str] = [*_DATASETS]
        for word in text.lower().split():
            clauses.append("words LIKE ? ESCAPE '!'")
            asked.append(f"%{_escaped(word)}%")
        query = f"SELECT uri, cid, value FROM records WHERE {' AND '.join(clauses)} ORDER BY rowid DESC LIMIT ?"  # noqa: S608 - the clauses are ours
        with self._change() as read:
            rows = read.execute(query, (*asked, limit)).fetchall()
        return [found for uri, cid, value in rows if (found := _dataset(uri, cid, value)) is not None]

    def __len__(self) -> int:
        with self._change() as read:
            return int(read.execute("SELECT count(*) FROM records WHERE value IS NOT NULL").fetchone()[0])

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        with self._lock:
            if self._made is not None:
                self._made.close()
            self._made = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_DATASETS = (ENTRY, *LEGACY_ENTRIES)


def _text(cid: Cid | None) -> str | None:
    return None if cid is None else str(cid)


def _escaped(word: str) -> str:
    return word.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _put(change: sqlite3.Connection, event: Event, rev: str) -> None:
    """Keep what is newest: two streams may tell of one repository, and one of them late."""
    value = None if event.value is None else json.dumps(event.value)
    facts = (str(event.uri), event.uri.authority, event.uri.collection, _text(event.cid), rev, value, _words(event))
    change.execute(
        "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uri) DO UPDATE SET cid = excluded.cid, "
        "rev = excluded.rev, value = excluded.value, words = excluded.words WHERE excluded.rev >= records.rev",
        facts,
    )


def _words(event: Event) -> str:
    value = event.value or {}
    tags = value.get("tags")
    told = [
        value.get("name"),
        value.get("description"),
        value.get("license"),
        *(tags if isinstance(tags, list) else ()),
    ]
    return " ".join(part for part in told if isinstance(part, str)).lower()


def _dataset(uri: str, cid: str | None, value: str) -> PublishedDataset | None:
    try:
        return dataset_from_record(AtUri.parse(uri), None if cid is None else Cid.parse(cid), json.loads(value))
    except RecordError:
        return None
