"""Following: the event stream of a server or a relay, from where it was left, into what was followed."""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from urllib.parse import urlencode

from shoal._optional import need
from shoal.errors import AtmosphereError, RecordNotFoundError, ShoalError
from shoal.local import LocalIndex

from ._at_uri import AtUri
from ._cid import Cid
from ._fill import fill
from ._followed import Event, Followed
from ._lexicon import ENTRY, LABEL, LEGACY_ENTRIES, LEGACY_SCHEMAS, LENS, LENS_VERIFICATION, SCHEMA
from ._network import Network

__all__ = ["COLLECTIONS", "backfill", "watch"]

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
    need("websockets")
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
