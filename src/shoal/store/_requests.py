"""Requests for byte ranges: coalesced, and retried from the last good byte."""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shoal.errors import ObjectChangedError, StoreError

from ._clients import Address, Clients, address_of, clients_for, forget_clients
from ._concurrency import hold_all
from ._error_mapping import FOREIGN, Failure, failure_of, our_error, short_answer
from ._http import LARGE, open_plain, open_signed
from ._options import StoreOptions, gates_for, options_for, shown
from ._statistics import request

__all__ = [
    "ObjectVersion",
    "Place",
    "RangePlan",
    "RequestFailed",
    "Response",
    "RetryBudget",
    "cut_range",
    "fetch",
    "head",
    "joined",
    "known_of",
    "place_of",
    "plan_ranges",
    "version_of_etag",
    "wait_turn",
]

_CHUNK = 1 << 20
"""Bytes held at once of an answer under way: what a broken connection can lose."""
_PROGRESS = 256 << 10
"""A connection that brought this many bytes before it broke was a good one: retries are counted anew."""
_NO_SUCH_RANGE = 416
_NO_RANGES = "NotSupportedError"
"""What obstore says of an answer that is the whole object though a part was asked for."""
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 20.0
_FIRST_WAIT_THROTTLED = 0.5
_LONGEST_ASKED = 300.0
"""A server that asks for more than this, in seconds, is not waited for."""
_FREE_GAP = 4096
"""Bytes that cost less to fetch than to think about: a tar's headers and padding between two members."""


@dataclass(frozen=True, slots=True)
class Place:
    """A URL, and all that is needed to ask for it."""

    url: str
    address: Address
    options: StoreOptions

    @property
    def clients(self) -> Clients:
        return clients_for(self.url, self.address)


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """Which object an answer was of."""

    size: int
    version: str
    etag: str | None


@dataclass(frozen=True, slots=True)
class Response:
    """What a request brought, and of which object."""

    pieces: list[bytes]
    """In pieces, as they came: whoever wants them whole joins them with others at once."""
    known: ObjectVersion

    @property
    def data(self) -> bytes:
        return joined(self.pieces)


class RequestFailed(Exception):  # noqa: N818 - never leaves this package
    """A request that failed, with what is known of why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure
        self.summary = failure.summary


def joined(pieces: Sequence[bytes]) -> bytes:
    """All pieces as one; a single one as it is."""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def place_of(url: str) -> Place:
    """Raises StoreError for a URL that is none of an object store."""
    return Place(url, address_of(url), options_for(url))


def version_of(meta: Any) -> str:
    """What changes with the bytes: the ETag, and where there is none the time and the size."""
    if meta["e_tag"]:
        return version_of_etag(meta["e_tag"])
    return f"{meta['last_modified'].isoformat()}-{meta['size']}"


def version_of_etag(etag: str) -> str:
    """Azure quotes it in answers and not in lists."""
    return etag.replace('"', "")


def known_of(meta: Any) -> ObjectVersion:
    return ObjectVersion(meta["size"], version_of(meta), meta["e_tag"])


# ------------------------------------------------------------------------------------------------------------ retrying


class RetryBudget:
    """How often, and how long, one request is still worth repeating."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._left = place.options.retries
        self._waits = 0
        self._renewed = False
        self.attempts = 0
        self.signed = False
        """Whether the next attempt should be one whose headers we see: obstore does not show Retry-After."""

    def give_up_or_wait(self, failure: Failure) -> None:
        """Wait before the next attempt, or raise the error of ours when there should be none."""
        self.attempts += 1
        if failure.denied and not failure.no_credentials and not self._renewed:
            self._renewed = True  # they may have expired earlier than they said, or have been replaced in their file
            if forget_clients(self._place.url, self._place.address):
                return
        asked = failure.retry_after
        if not failure.passing or self._left == 0 or (asked or 0) > _LONGEST_ASKED:
            raise our_error(failure, self._place.url, attempts=self.attempts) from None
        self._left -= 1
        self.signed = failure.throttled
        # Of several endpoints another one may have time.
        everybody = failure.throttled and not self._place.options.endpoints
        _hold_off(self._place.address.root, self._backoff(failure) if asked is None else asked, everybody)

    def refresh(self) -> None:
        """Begin to count anew."""
        self._left, self._waits = self._place.options.retries, 0

    def _backoff(self, failure: Failure) -> float:
        first = _FIRST_WAIT_THROTTLED if failure.throttled else _FIRST_WAIT
        longest = min(_LONGEST_WAIT, first * 2**self._waits)
        self._waits += 1
        return random.uniform(longest / 2, longest)  # noqa: S311 - spreads retries, guards nothing


_NOT_BEFORE: dict[str, float] = {}
"""When a server that was asked too much may be asked again: all threads wait, not only the one that was told."""


def _hold_off(root: str, seconds: float, everybody: bool) -> None:
    if everybody:
        _NOT_BEFORE[root] = max(_NOT_BEFORE.get(root, 0.0), time.monotonic() + seconds)
    threading.Event().wait(seconds)


def wait_turn(root: str) -> None:
    """Wait until a server that was asked too much may be asked again."""
    left = _NOT_BEFORE.get(root, 0.0) - time.monotonic()
    if left > 0:
        threading.Event().wait(min(left, _LONGEST_ASKED))


# ------------------------------------------------------------------------------------------------------------ requests


def head(place: Place) -> ObjectVersion:
    """What is known of an object without reading it. Raises the errors of `our_error`."""
    patience = RetryBudget(place)
    while True:
        try:
            return _head_once(place, patience.attempts > 0)
        except RequestFailed as failed:
            patience.give_up_or_wait(failed.failure)


def _head_once(place: Place, retry: bool) -> ObjectVersion:
    clients = place.clients
    wait_turn(place.address.root)
    with hold_all(gates_for(place.url)), request("HEAD", place.url, clients.endpoint, retry=retry):
        try:
            return known_of(clients.once.head(place.address.path))
        except FOREIGN as error:
            raise RequestFailed(failure_of(error)) from None


def fetch(place: Place, start: int, stop: int | None, known: ObjectVersion | None = None) -> Response:
    """The bytes ``[start, stop)`` of the object, fewer only where it ends; of the ``known`` one and no other.

    ``stop`` None asks for the whole object, without a range. A connection that breaks is taken up again after the last
    byte that came. Raises ObjectChangedError when another object is there, and the other errors of `our_error`.
    """
    pieces = list[bytes]()
    for found, piece in streamed(place, start, stop, known):
        known = found
        if piece:
            pieces.append(piece)
    assert known is not None  # noqa: S101 - an answer says which object it is of
    return Response(pieces, known)


def streamed(
    place: Place, start: int, stop: int | None, known: ObjectVersion | None = None, chunk: int = _CHUNK
) -> Generator[tuple[ObjectVersion, bytes]]:
    """What `fetch` promises, in pieces of about ``chunk`` bytes as they come, each with the object it is of."""
    patience, begun = RetryBudget(place), start
    while True:
        failure, resumed = short_answer(), start
        try:
            with closing(_chunks(place, start, stop, known, patience, chunk)) as chunks:
                for found, piece in chunks:
                    known = _same(found, known, place.url)
                    start += len(piece)
                    yield known, piece
        except RequestFailed as failed:
            failure = failed.failure
        if known is not None and start >= (known.size if stop is None else min(stop, known.size)):
            return
        if failure.status == _NO_SUCH_RANGE and begun == 0 and known is None and stop is not None:
            yield from streamed(place, 0, None)  # an object without a first byte is empty
            return
        if failure.kind == _NO_RANGES and (start or stop is not None):
            yield from _cut_out(place, start, stop, known, chunk)
            return
        if start - resumed >= _PROGRESS:
            patience.refresh()
        patience.give_up_or_wait(failure)


def _cut_out(
    place: Place, start: int, stop: int | None, known: ObjectVersion | None, chunk: int
) -> Generator[tuple[ObjectVersion, bytes]]:
    """A range of an object whose server gives no ranges: what comes before it is read and dropped."""
    at, is_first = 0, True
    with closing(streamed(place, 0, None, known, chunk)) as pieces:
        for found, piece in pieces:
            part = piece[max(0, start - at) : None if stop is None else max(0, stop - at)]
            at += len(piece)
            if part or is_first:
                yield found, part
            is_first = False
            if stop is not None and at >= stop:
                return


def _same(found: ObjectVersion, known: ObjectVersion | None, url: str) -> ObjectVersion:
    if known is not None and (found.version, found.size) != (known.version, known.size):
        raise ObjectChangedError(
            "the object was replaced while it was read",
            expected=f"{known.size} bytes, version {known.version}",
            found=f"{found.size} bytes, version {found.version} at {shown(url)}",
            hint="open it again to have the new one",
        )
    return found


def _chunks(
    place: Place, start: int, stop: int | None, known: ObjectVersion | None, patience: RetryBudget, chunk: int
) -> Generator[tuple[ObjectVersion, bytes]]:
    """One attempt, in pieces as they come; the first says which object it is even when it is empty."""
    clients = place.clients
    wait_turn(place.address.root)
    retry = patience.attempts > 0
    with hold_all(gates_for(place.url)), request("GET", place.url, clients.endpoint, retry=retry) as made:
        try:
            pieces = _opened(place, clients, start, stop, known, patience, chunk)
            told, found = None, known
            for meta, piece in pieces:
                made.came(len(piece))
                if found is None or meta is not told:  # once an answer, not once a piece
                    told, found = meta, _found(place, meta, known)
                yield found, piece
        except StoreError:
            raise
        except FOREIGN as error:
            raise RequestFailed(getattr(error, "failure", None) or failure_of(error)) from None


def _opened(
    place: Place,
    clients: Clients,
    start: int,
    stop: int | None,
    known: ObjectVersion | None,
    patience: RetryBudget,
    chunk: int,
) -> Iterator[tuple[Any, bytes]]:
    """An answer, by the way that suits the request; obstore's own is good for all."""
    match = known.etag if known is not None and known.etag and not known.etag.startswith("W/") else None
    made = None
    if patience.signed:
        made = open_signed(place.url, place.address, clients, place.options, start, stop, match)
    elif known is not None and stop is not None and stop - start >= LARGE and not patience.attempts:
        made = open_plain(place.url, place.address, clients, place.options, start, stop, match, chunk)
    return _ask(clients, place.address.path, start, stop, match, chunk) if made is None else made


def _found(place: Place, meta: Any, known: ObjectVersion | None) -> ObjectVersion:
    """Which object this is. At a commit of a hub there is no other; the hosts that send it have ETags of their own."""
    if place.address.kind == "hf" and known is not None:
        return ObjectVersion(meta["size"], known.version, None)
    return known_of(meta)


def _ask(
    clients: Clients, path: str, start: int, stop: int | None, match: str | None, chunk: int
) -> Iterator[tuple[Any, bytes]]:
    options: dict[str, Any] = {"range": (start, stop)} if stop is not None else {}
    if stop is None and start:
        options["range"] = {"offset": start}
    if match is not None:
        options["if_match"] = match
    result = clients.once.get(path, options=options)
    meta = result.meta
    yield meta, b""
    for piece in result.stream(chunk):
        yield meta, piece


@dataclass(frozen=True, slots=True)
class RangePlan:
    """Requests that together fetch every wanted byte; sorted, and no byte is in two of them."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.starts)

    def gather(self, fetched: Sequence[bytes], start: int, stop: int) -> bytes:
        """The wanted range ``[start, stop)`` out of what the requests brought."""
        if start >= stop:
            return b""
        at = bisect_right(self.starts, start) - 1
        if stop <= self.stops[at]:
            data, base = fetched[at], self.starts[at]
            return data if start == base and stop == self.stops[at] else data[start - base : stop - base]
        parts = []
        while start < stop:  # a long range came in several requests
            end = min(stop, self.stops[at])
            parts.append(memoryview(fetched[at])[start - self.starts[at] : end - self.starts[at]])
            start, at = end, at + 1
        return b"".join(parts)


def plan_ranges(
    starts: Sequence[int],
    stops: Sequence[int],
    *,
    gap: int = 256 << 10,
    over_fetch: float = 0.25,
    most: int = 16 << 20,
) -> RangePlan:
    """Join near ranges into few requests, and cut long ones so that several can be in flight.

    Ranges at most ``gap`` bytes apart are joined as long as the bytes nobody asked for stay under ``over_fetch`` of the
    bytes asked for (gaps under 4 KiB are always joined); no request is longer than ``most``.

    Example:
        >>> plan = plan_ranges([0, 600, 10_000_000], [500, 900, 10_000_100])
        >>> list(zip(plan.starts, plan.stops))
        [(0, 900), (10000000, 10000100)]
    """
    cuts = [cut for start, stop in _joined(starts, stops, gap, over_fetch) for cut in cut_range(start, stop, most)]
    return RangePlan(tuple(start for start, _ in cuts), tuple(stop for _, stop in cuts))


def _joined(starts: Sequence[int], stops: Sequence[int], gap: int, over_fetch: float) -> Iterator[tuple[int, int]]:
    wanted = sorted((start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop)
    if not wanted:
        return
    (begin, end), wasted = wanted[0], 0
    for start, stop in wanted[1:]:
        hole = max(start - end, 0)
        useful = (end - begin - wasted) + max(stop - max(start, end), 0)
        if hole <= min(gap, _FREE_GAP) or (hole <= gap and wasted + hole <= over_fetch * useful):
            wasted, end = wasted + hole, max(end, stop)
        else:
            yield begin, end
            begin, end, wasted = start, stop, 0
    yield begin, end


def cut_range(start: int, stop: int, most: int) -> list[tuple[int, int]]:
    """Cut into near-equal pieces of at most ``most`` bytes, so that those in flight end together.

    Example:
        >>> cut_range(0, 100, 40)
        [(0, 34), (34, 67), (67, 100)]
    """
    size = stop - start
    count = max(1, -(-size // most))
    bounds = [start + -(-size * number // count) for number in range(count + 1)]
    return list(pairwise(bounds))
