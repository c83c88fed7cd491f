"""Follow the event stream of a server or relay, and keep a local copy of the records that it tells of.

`Followed` is the local copy, an SQLite file. Each event is applied in one transaction with its cursor, so a process
that is killed resumes where it was: no event is missed, and none is counted twice. `watch` reads the stream, and `fill`
adds its datasets to a `LocalIndex`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

from shoal._optional import require
from shoal.errors import AtmosphereError, CatalogError, OptionError, RecordError, RecordNotFoundError, ShoalError
from shoal.local._entry import Entry, Storage, StoredShard
from shoal.local._index import LocalIndex

from ._identifiers import AtUri, Cid
from ._lexicons import ENTRY, LABEL, LEGACY_ENTRIES, LEGACY_SCHEMAS, LENS, LENS_VERIFICATION, SCHEMA
from ._pds import home_file
from ._records import PublishedDataset, dataset_from_record, shard_metadata_records
from ._repositories import Network
from ._storage import Checksum, StorageBlobs

__all__ = ["Event", "Followed", "watch"]

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

    Examples:
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
    texts = [
        value.get("name"),
        value.get("description"),
        value.get("license"),
        *(tags if isinstance(tags, list) else ()),
    ]
    return " ".join(part for part in texts if isinstance(part, str)).lower()


def _dataset(uri: str, cid: str | None, value: str) -> PublishedDataset | None:
    try:
        return dataset_from_record(AtUri.parse(uri), None if cid is None else Cid.parse(cid), json.loads(value))
    except RecordError:
        return None


COLLECTIONS = (ENTRY, SCHEMA, LABEL, LENS, LENS_VERIFICATION, *LEGACY_ENTRIES, *LEGACY_SCHEMAS)
"""The kinds of records that are followed."""
_METHOD = "com.atproto.sync.subscribeRepos"
_MOST_FRAME = 16 << 20
_TICK = 0.1
"""Seconds between looks whether to stop."""
_SAVE_EVERY = 200
"""Events of others that pass before the cursor is written down: to see them again costs nothing."""

OnEvent = Callable[[Event], None]


def watch(
    network: Network,
    service: str,
    followed: Followed,
    *,
    accounts: Collection[str] | None = None,
    index: LocalIndex | None = None,
    on_event: OnEvent | None = None,
    stop: threading.Event | None = None,
    idle: float | None = None,
) -> int:
    """Follow a server or a relay until ``stop`` is set, or nothing came for ``idle`` seconds; returns how many events.

    ``accounts`` are the DIDs to follow, None for all. The first time, and when the stream has lost what came since the
    last time, repositories are read as a whole first. A connection that breaks is made again. ``index`` is filled too,
    before an event counts as taken: see `fill`. Raises AtmosphereError for a service that is none.
    """
    require("websockets", extra="atmosphere")
    network.guard.check(service)
    follower = _Follower(network, service, followed, accounts, index, on_event, stop or threading.Event(), idle)
    if followed.cursor(service) is None:
        backfill(network, service, followed, accounts, index)
        followed.apply(service, 0, "", ())
    return follower.run()


def backfill(
    network: Network,
    service: str,
    followed: Followed,
    accounts: Collection[str] | None = None,
    index: LocalIndex | None = None,
) -> int:
    """Read repositories as they are now: of ``accounts``, else all that a server has; returns how many records."""
    count = 0
    for did in _repositories(network, service) if accounts is None else accounts:
        for collection in COLLECTIONS:
            try:
                found = [Event("create", one.uri, one.cid, one.value) for one in network.list(did, collection)]
            except ShoalError:
                continue  # one that cannot be read, or is gone, must not keep the others out
            _fill_all(network, index, found)
            count += followed.replace(did, collection, found)
    return count


def _fill_all(network: Network, index: LocalIndex | None, events: Iterable[Event]) -> None:
    if index is not None:
        for event in events:
            fill(network, index, event)


def _repositories(network: Network, service: str) -> Iterator[str]:
    """Every account of a server that may have datasets: by collection where it can tell, else all."""
    try:
        yield from _pages(network, service, "listReposByCollection", {"collection": ENTRY})
    except AtmosphereError:  # not every server has it
        yield from _pages(network, service, "listRepos", {})


def _pages(network: Network, service: str, method: str, asked: dict[str, Any]) -> Iterator[str]:
    cursor = None
    while True:
        answer = network.service(service).query(f"com.atproto.sync.{method}", {**asked, "limit": 500, "cursor": cursor})
        repos = answer.get("repos") or []
        yield from (str(repo["did"]) for repo in repos)
        before, cursor = cursor, answer.get("cursor")
        if not repos or not cursor or cursor == before:
            return


class _Follower:
    """One run over a stream."""

    def __init__(
        self,
        network: Network,
        service: str,
        followed: Followed,
        accounts: Collection[str] | None,
        index: LocalIndex | None,
        on_event: OnEvent | None,
        stop: threading.Event,
        idle: float | None,
    ) -> None:
        self._network = network
        self._service = service
        self._followed = followed
        self._accounts = None if accounts is None else frozenset(accounts)
        self._index = index
        self._on_event = on_event
        self._stop = stop
        self._idle = idle
        self._taken = 0
        self._passed = 0
        self._heard = time.monotonic()

    def run(self) -> int:
        failures = 0
        while not self._over():
            seen = self._taken + self._passed
            try:
                self._connected()
            except _connection_errors() as error:
                if isinstance(error, ShoalError):
                    raise
                failures = 0 if self._taken + self._passed > seen else failures + 1
                if failures >= self._network.reach.patience.tries:
                    raise AtmosphereError("the stream cannot be read", found=f"{self._service}: {error}") from error
                self._stop.wait(min(0.2 * 2**failures, 30) * (0.5 + random.random() / 2))  # noqa: S311
        return self._taken

    def _over(self) -> bool:
        quiet = self._idle is not None and time.monotonic() - self._heard > self._idle
        return self._stop.is_set() or quiet

    def _connected(self) -> None:
        from websockets.sync.client import connect

        cursor = self._followed.cursor(self._service) or 0
        place = self._service.replace("http", "ws", 1).rstrip("/")
        uri = f"{place}/xrpc/{_METHOD}?{urlencode({'cursor': cursor})}"
        with connect(uri, max_size=_MOST_FRAME, close_timeout=0.2, proxy=None) as stream:
            self._heard = time.monotonic()
            while not self._over():
                try:
                    frame = stream.recv(_TICK)
                except TimeoutError:
                    continue
                self._heard = time.monotonic()
                if isinstance(frame, bytes):
                    self._take(frame)

    def _take(self, frame: bytes) -> None:
        kind, body = _decoded(frame)
        if kind == "#info" and body.get("name") == "OutdatedCursor":
            # What is left of the stream follows on this very connection; what was lost is read as it is now.
            backfill(self._network, self._service, self._followed, self._accounts, self._index)
        seq = body.get("seq")
        if not isinstance(seq, int) or seq <= (self._followed.cursor(self._service) or 0):
            return
        did = str(body.get("repo") or body.get("did") or "")
        if self._accounts is not None and did not in self._accounts:
            self._pass(seq)
        elif kind == "#commit":
            self._commit(seq, did, body)
        elif kind == "#sync":
            backfill(self._network, self._service, self._followed, [did], self._index)
            self._pass(seq)
        elif kind == "#account" and body.get("active") is False and body.get("status") in ("deleted", "takendown"):
            self._followed.forget(did)
            self._pass(seq)
        else:
            if kind == "#identity":
                self._network.identities.forget()
            self._pass(seq)

    def _pass(self, seq: int) -> None:
        """An event of no concern: the cursor follows now and then."""
        self._passed += 1
        if self._passed % _SAVE_EVERY == 0:
            self._followed.apply(self._service, seq, "", ())

    def _commit(self, seq: int, did: str, body: dict[str, Any]) -> None:
        if body.get("tooBig"):
            backfill(self._network, self._service, self._followed, [did], self._index)
        found = (self._event(did, op, body) for op in body.get("ops") or ())
        events = [event for event in found if event is not None]
        if not events:
            self._pass(seq)
            return
        _fill_all(self._network, self._index, events)
        new = self._followed.apply(self._service, seq, str(body.get("rev") or ""), events)
        self._taken += new
        if self._on_event is not None and new:
            for event in events:
                self._on_event(event)

    def _event(self, did: str, op: dict[str, Any], body: dict[str, Any]) -> Event | None:
        collection, _, rkey = str(op.get("path") or "").partition("/")
        if collection not in COLLECTIONS:
            return None
        uri, action = AtUri(did, collection, rkey), str(op.get("action"))
        if action == "delete":
            return Event(action, uri)
        cid = _cid(op.get("cid"))
        value = _block(body, cid)
        if value is None:
            return self._fetched(action, uri)
        return Event(action, uri, cid, value)

    def _fetched(self, action: str, uri: AtUri) -> Event:
        """A record that the stream names without its bytes, as it is now."""
        try:
            found = self._network.get(uri)
        except RecordNotFoundError:
            return Event("delete", uri)
        return Event(action, found.uri, found.cid, found.value)


def _connection_errors() -> tuple[type[Exception], ...]:
    from websockets.exceptions import WebSocketException

    return (WebSocketException, EOFError, OSError)


def _decoded(frame: bytes) -> tuple[str, dict[str, Any]]:
    """The kind and the content of a frame. Raises AtmosphereError for an error of the server, or what is no frame."""
    from atproto_subscription.frames import ErrorFrame, Frame

    try:
        found = Frame.from_bytes(frame)
    except Exception as error:
        raise AtmosphereError("the stream sent what is no event", found=str(error)) from error
    if isinstance(found, ErrorFrame):
        raise AtmosphereError("the stream ended with an error", found=f"{found.body.error}: {found.body.message}")
    return str(found.header.t), found.body


def _cid(value: Any) -> Cid | None:
    return Cid(value[1], bytes(value[4:])) if isinstance(value, bytes) and _is_cid(value) else None


def _is_cid(value: bytes) -> bool:
    return len(value) == 36 and value[:1] == b"\x01" and value[1] in (0x55, 0x71) and value[2:4] == b"\x12\x20"


def _block(body: dict[str, Any], cid: Cid | None) -> dict[str, Any] | None:
    """The record of this name among a commit's blocks."""
    blocks = body.get("blocks")
    if cid is None or not blocks:
        return None
    from atproto_core.car import CAR

    for name, block in CAR.from_bytes(bytes(blocks)).blocks.items():
        if str(name) == str(cid):
            value = _as_json(block)
            return value if isinstance(value, dict) else None
    return None


def _as_json(value: Any) -> Any:
    """A decoded record in its JSON form."""
    if isinstance(value, bytes):
        found = _cid(value)
        if found is not None:
            return {"$link": str(found)}
        return {"$bytes": base64.b64encode(value).decode().rstrip("=")}
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items()}
    return [_as_json(inner) for inner in value] if isinstance(value, list) else value


def fill(network: Network, index: LocalIndex, event: Event) -> None:
    """Take one event into an index; once more changes nothing. What cannot be kept there is passed over."""
    if event.uri.collection not in (ENTRY, *LEGACY_ENTRIES):
        return
    before = _known(index, event.uri)
    if event.value is None:
        if before is not None:
            index.delete(before.name)
        return
    with contextlib.suppress(AtmosphereError, OptionError):
        dataset = dataset_from_record(event.uri, event.cid, event.value)
        _record(index, dataset, _name(network, dataset))


def _known(index: LocalIndex, uri: AtUri) -> Entry | None:
    """The entry of this URI, whatever it is called."""
    with contextlib.suppress(CatalogError, OptionError):
        for entry in index.search(str(uri.rkey), limit=1000):
            if (entry.metadata or {}).get("uri") == str(uri):
                return entry
    return None


def _name(network: Network, dataset: PublishedDataset) -> str:
    """``handle/name``, in letters that a name may have."""
    try:
        who = network.identities.find(dataset.uri.authority).handle or dataset.uri.authority
    except ShoalError:
        who = dataset.uri.authority
    parts = [re.sub(r"[^\w.-]+", "-", part).strip("-._") for part in (who, *dataset.name.split("/"))]
    return "/".join(part for part in parts if part)[:200].rstrip("/")


def _record(index: LocalIndex, dataset: PublishedDataset, name: str) -> None:
    metadata = shard_metadata_records(dataset)
    sums = _checksums(dataset)
    shards = [
        StoredShard(url, str(one.get("split") or "train"), one.get("samples"), int(one.get("bytes") or 0), digest)
        for url, digest, one in zip(dataset.data_urls, sums, metadata or [{}] * len(sums), strict=True)
    ]
    index.record_dataset(
        name=name,
        cid=str(dataset.cid or dataset.uri),
        storage=Storage(str(dataset.uri)),
        shards=shards,
        schema_ref=dataset.schema_ref,
        description=dataset.description,
        tags=dataset.tags,
        metadata={"uri": str(dataset.uri), "key": str(dataset.uri.rkey), "license": dataset.license},
    )


def _checksums(dataset: PublishedDataset) -> list[str | None]:
    storage = dataset.storage
    if isinstance(storage, StorageBlobs):
        return [blob.cid.sha256 for blob in storage.blobs]
    return [_sha256(shard.checksum) for shard in storage.shards]


def _sha256(checksum: Checksum | None) -> str | None:
    return checksum.digest if checksum is not None and checksum.algorithm == "sha256" else None
