"""HEAD and GET requests to object stores, retried, and resumed after the last byte that arrived."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shoal.errors import ObjectChangedError, StoreError

from ._clients import Address, Clients, address_of, clients_for, forget_clients
from ._concurrency import acquire_all
from ._error_mapping import OBSTORE_ERRORS, Failure, failure_of, translate_failure, truncated_response
from ._http import open_signed
from ._options import StoreOptions, concurrency_limits_for, options_for, shown
from ._statistics import request

__all__ = [
    "ObjectLocation",
    "ObjectVersion",
    "RequestError",
    "Response",
    "RetryBudget",
    "fetch",
    "head",
    "join_pieces",
    "locate",
    "object_version",
    "version_of_etag",
    "wait_for_rate_limit",
]

_CHUNK_BYTES = 1 << 20
"""Size of the pieces in which a response is read: at most this much is lost when a connection breaks."""
_PROGRESS_BYTES = 256 << 10
"""After a connection that delivered this much before it broke, retries are counted from zero again."""
_RANGE_NOT_SATISFIABLE = 416
_NO_RANGES = "NotSupportedError"
"""The name of obstore's error for a server that ignores ranges and sends the complete object."""
_FIRST_WAIT_S, _MAX_WAIT_S = 0.1, 20.0
_FIRST_WAIT_THROTTLED_S = 0.5
_MAX_RETRY_AFTER_S = 300.0
"""A request is given up when the server wants us to wait longer than this."""


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A URL with the address and the options that are needed to request it."""

    url: str
    address: Address
    options: StoreOptions

    @property
    def clients(self) -> Clients:
        return clients_for(self.url, self.address)


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """Size and version of an object, as a response names them."""

    size: int
    version: str
    etag: str | None


@dataclass(frozen=True, slots=True)
class Response:
    """The bytes of a request, and the version of the object they belong to."""

    pieces: list[bytes]
    """As they arrived, so that a caller with several responses copies the bytes only once, when it joins them all."""
    known: ObjectVersion

    @property
    def data(self) -> bytes:
        return join_pieces(self.pieces)


class RequestError(Exception):
    """A request that failed. Never leaves this package: `translate_failure` makes the error that users see."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure
        self.summary = failure.summary


def join_pieces(pieces: Sequence[bytes]) -> bytes:
    """Join pieces; a single one is returned without a copy."""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def locate(url: str) -> ObjectLocation:
    """Return the location of a URL. Raises StoreError if it does not name an object store."""
    return ObjectLocation(url, address_of(url), options_for(url))


def _version_string(meta: Any) -> str:
    """Return a string that changes with the bytes: the ETag, or else the time and the size."""
    if meta["e_tag"]:
        return version_of_etag(meta["e_tag"])
    return f"{meta['last_modified'].isoformat()}-{meta['size']}"


def version_of_etag(etag: str) -> str:
    """Return the version that an ETag stands for; Azure quotes it in responses but not in lists."""
    return etag.replace('"', "")


def object_version(meta: Any) -> ObjectVersion:
    """Return the version in obstore's metadata of an object."""
    return ObjectVersion(meta["size"], _version_string(meta), meta["e_tag"])


class RetryBudget:
    """Decides whether a failed request is repeated, and how long to wait before that."""

    def __init__(self, location: ObjectLocation) -> None:
        self._location = location
        self._left = location.options.retries
        self._waits = 0
        self._renewed = False
        self.attempts = 0
        self.signed = False
        """Whether the next attempt must show the response headers: obstore does not show Retry-After."""

    def give_up_or_wait(self, failure: Failure) -> None:
        """Wait before the next attempt, or raise the error of `translate_failure` when there should be none."""
        self.attempts += 1
        if failure.denied and not failure.no_credentials and not self._renewed:
            self._renewed = True  # they may have expired earlier than they said, or have been replaced in their file
            if forget_clients(self._location.url, self._location.address):
                return
        asked = failure.retry_after
        if not failure.passing or self._left == 0 or (asked or 0) > _MAX_RETRY_AFTER_S:
            raise translate_failure(failure, self._location.url, attempts=self.attempts) from None
        self._left -= 1
        self.signed = failure.throttled
        # With several endpoints, another one may not be throttled.
        all_threads = failure.throttled and not self._location.options.endpoints
        _back_off(self._location.address.root, self._backoff(failure) if asked is None else asked, all_threads)

    def refresh(self) -> None:
        """Count retries from zero again."""
        self._left, self._waits = self._location.options.retries, 0

    def _backoff(self, failure: Failure) -> float:
        first = _FIRST_WAIT_THROTTLED_S if failure.throttled else _FIRST_WAIT_S
        longest = min(_MAX_WAIT_S, first * 2**self._waits)
        self._waits += 1
        return random.uniform(longest / 2, longest)  # noqa: S311 - spreads retries, guards nothing


_NOT_BEFORE: dict[str, float] = {}
"""Time before which a throttled server gets no request from any thread, by bucket URL."""


def _back_off(root: str, seconds: float, all_threads: bool) -> None:
    if all_threads:
        _NOT_BEFORE[root] = max(_NOT_BEFORE.get(root, 0.0), time.monotonic() + seconds)
    threading.Event().wait(seconds)


def wait_for_rate_limit(root: str) -> None:
    """Wait until a server that throttled this process may be asked again."""
    left = _NOT_BEFORE.get(root, 0.0) - time.monotonic()
    if left > 0:
        threading.Event().wait(min(left, _MAX_RETRY_AFTER_S))


def head(location: ObjectLocation) -> ObjectVersion:
    """Return size and version of an object without reading it. Raises the errors of `translate_failure`."""
    budget = RetryBudget(location)
    while True:
        try:
            return _head_once(location, budget.attempts > 0)
        except RequestError as failed:
            budget.give_up_or_wait(failed.failure)


def _head_once(location: ObjectLocation, retry: bool) -> ObjectVersion:
    clients = location.clients
    wait_for_rate_limit(location.address.root)
    with (
        acquire_all(concurrency_limits_for(location.url)),
        request("HEAD", location.url, clients.endpoint, retry=retry),
    ):
        try:
            return object_version(clients.once.head(location.address.path))
        except OBSTORE_ERRORS as error:
            raise RequestError(failure_of(error)) from None


def fetch(location: ObjectLocation, start: int, stop: int | None, known: ObjectVersion | None = None) -> Response:
    """Return the bytes ``[start, stop)`` of the ``known`` version of the object, fewer only where it ends.

    ``stop`` None requests the complete object, without a range. After a broken connection the request is resumed after
    the last byte that arrived. Raises ObjectChangedError if the object was replaced, and the other errors of
    `translate_failure`.
    """
    pieces = list[bytes]()
    for found, piece in stream_range(location, start, stop, known):
        known = found
        if piece:
            pieces.append(piece)
    assert known is not None  # noqa: S101 - the first item of a response has it
    return Response(pieces, known)


def stream_range(
    location: ObjectLocation,
    start: int,
    stop: int | None,
    known: ObjectVersion | None = None,
    chunk: int = _CHUNK_BYTES,
) -> Generator[tuple[ObjectVersion, bytes]]:
    """Yield what `fetch` returns in pieces of about ``chunk`` bytes, each with the version it belongs to."""
    budget, begun = RetryBudget(location), start
    while True:
        failure, resumed = truncated_response(), start
        try:
            with closing(_attempt(location, start, stop, known, budget, chunk)) as chunks:
                for found, piece in chunks:
                    known = _check_unchanged(found, known, location.url)
                    start += len(piece)
                    yield known, piece
        except RequestError as failed:
            failure = failed.failure
        if known is not None and start >= (known.size if stop is None else min(stop, known.size)):
            return
        if failure.status == _RANGE_NOT_SATISFIABLE and begun == 0 and known is None and stop is not None:
            yield from stream_range(location, 0, None)  # the object is empty
            return
        if failure.kind == _NO_RANGES and (start or stop is not None):
            yield from _skip_to_range(location, start, stop, known, chunk)
            return
        if start - resumed >= _PROGRESS_BYTES:
            budget.refresh()
        budget.give_up_or_wait(failure)


def _skip_to_range(
    location: ObjectLocation, start: int, stop: int | None, known: ObjectVersion | None, chunk: int
) -> Generator[tuple[ObjectVersion, bytes]]:
    """Stream a range from a server without ranges: the bytes before it are read and dropped."""
    at, is_first = 0, True
    with closing(stream_range(location, 0, None, known, chunk)) as pieces:
        for found, piece in pieces:
            part = piece[max(0, start - at) : None if stop is None else max(0, stop - at)]
            at += len(piece)
            if part or is_first:
                yield found, part
            is_first = False
            if stop is not None and at >= stop:
                return


def _check_unchanged(found: ObjectVersion, known: ObjectVersion | None, url: str) -> ObjectVersion:
    if known is not None and (found.version, found.size) != (known.version, known.size):
        raise ObjectChangedError(
            "the object was replaced while it was read",
            expected=f"{known.size} bytes, version {known.version}",
            found=f"{found.size} bytes, version {found.version} at {shown(url)}",
            hint="open it again to have the new one",
        )
    return found


def _attempt(
    location: ObjectLocation, start: int, stop: int | None, known: ObjectVersion | None, budget: RetryBudget, chunk: int
) -> Generator[tuple[ObjectVersion, bytes]]:
    """Make one attempt and yield its pieces; the first item carries the version, even if the object is empty."""
    clients = location.clients
    wait_for_rate_limit(location.address.root)
    retry = budget.attempts > 0
    with (
        acquire_all(concurrency_limits_for(location.url)),
        request("GET", location.url, clients.endpoint, retry=retry) as made,
    ):
        try:
            pieces = _open_response(location, clients, start, stop, known, budget, chunk)
            told, found = None, known
            for meta, piece in pieces:
                made.came(len(piece))
                if found is None or meta is not told:  # once per response, not once per piece
                    told, found = meta, _version_in_response(location, meta, known)
                yield found, piece
        except StoreError:
            raise
        except OBSTORE_ERRORS as error:
            raise RequestError(getattr(error, "failure", None) or failure_of(error)) from None


def _open_response(
    location: ObjectLocation,
    clients: Clients,
    start: int,
    stop: int | None,
    known: ObjectVersion | None,
    budget: RetryBudget,
    chunk: int,
) -> Iterator[tuple[Any, bytes]]:
    """Send the request: with obstore, or signed and with a client that shows the headers of the response."""
    match = known.etag if known is not None and known.etag and not known.etag.startswith("W/") else None
    signed = (location.url, location.address, clients, location.options, start, stop, match)
    made = open_signed(*signed) if budget.signed else None
    return _get_with_obstore(clients, location.address.path, start, stop, match, chunk) if made is None else made


def _version_in_response(location: ObjectLocation, meta: Any, known: ObjectVersion | None) -> ObjectVersion:
    """Return the version of a response. A file of a hub's commit never changes, though hosts send different ETags."""
    if location.address.kind == "hf" and known is not None:
        return ObjectVersion(meta["size"], known.version, None)
    return object_version(meta)


def _get_with_obstore(
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
