"""GET requests by the standard library, where obstore is too slow or hides the response headers.

`open_plain` fetches large ranges over plain sockets. obstore copies bytes through buffers and threads of its own, which
takes at least twice the processor time per byte; on a fast connection without TLS, as between machines of a cluster,
that time limits reading. `open_signed` repeats a request after a 429 or 503, because obstore does not show
``Retry-After``. In both cases obstore signs the URL. Whatever fails here is retried by `_requests`.
"""

from __future__ import annotations

import atexit
import contextlib
import email.utils
import http.client
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import obstore

from ._clients import Address, Clients
from ._error_mapping import OBSTORE_ERRORS, Failure, parse_error_code
from ._fork import register_after_fork
from ._hub_access import hub_headers
from ._options import StoreOptions

__all__ = ["MIN_PLAIN_BYTES", "failure_of_answer", "open_plain", "open_signed", "parse_retry_after"]

MIN_PLAIN_BYTES = 256 << 10
"""Ranges of at least this many bytes are fetched over plain sockets."""
_CONNECT_TIMEOUT_S = 5.0
_MAX_IDLE_S = 4.0
"""A connection that was idle for longer is not used again: the server may be about to close it."""
_MAX_ERROR_BYTES = 64 << 10
"""Bytes that are read of the body of an error response."""
_PLAIN_URL = re.compile(r"http://([^/@?#]+)(/[!-\"$-~]*)")
_PARTIAL = 206
_DENIED = frozenset({401, 403})
_FINAL = frozenset({404, 408, 412, 416, 429, 500, 502, 503, 504}) | _DENIED
"""Statuses that are reported as they are. After any other, such as a redirect, obstore repeats the request."""
_MAX_REFUSALS = 3
"""After this many refusals in a row a host gets no more plain requests: not every server accepts signed URLs."""
_CHUNK_BYTES = 1 << 20
_SIGNATURE_LIFETIME = timedelta(minutes=15)
_RATE_LIMIT = re.compile(r"(?:^|;)\s*t=(\d+)")
"""Seconds to wait in a ``RateLimit`` header, which some servers send: ``"api";r=0;t=55``."""


class SignedError(OSError):
    """A request that failed, with the status and headers of the response."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


def signed_get(
    url: str, address: Address, clients: Clients, start: int, stop: int | None, match: str | None
) -> tuple[str, dict[str, str]] | None:
    """Return URL and headers of a GET of a range; None if the store cannot sign."""
    signed = _signed_url(url, address, clients)
    if signed is None:
        return None
    headers = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop is not None else {}
    return signed, headers if match is None else {**headers, "If-Match": match}


def _signed_url(url: str, address: Address, clients: Clients) -> str | None:
    if address.kind == "hf":
        return f"{address.root}/{quote(address.path)}"
    return url if address.kind == "http" else _sign(clients, address.path)


def _provided_headers(address: Address, options: StoreOptions) -> Mapping[str, str]:
    if address.kind == "hf":
        return hub_headers(options, os.environ)
    if address.kind != "http" or options.credential_provider is None:
        return {}
    told: Mapping[str, str] = options.credential_provider().get("headers", {})
    return told


def _sign(clients: Clients, path: str) -> str | None:
    try:
        return obstore.sign(clients.once, "GET", path, _SIGNATURE_LIFETIME)
    except OBSTORE_ERRORS:
        return None  # anonymous, or credentials that cannot sign


def open_signed(
    url: str, address: Address, clients: Clients, options: StoreOptions, start: int, stop: int | None, match: str | None
) -> Iterator[tuple[dict[str, Any], bytes]] | None:
    """Return the range in pieces, each with the object's metadata; None if the store cannot sign."""
    found = signed_get(url, address, clients, start, stop, match)
    if found is None:
        return None
    asked = urllib.request.Request(found[0], headers=found[1])  # noqa: S310 - http(s) only
    for name, value in _provided_headers(address, options).items():
        asked.add_unredirected_header(name, value)  # credentials must not follow a redirect
    return _signed_pieces(asked, options.timeout)


def _signed_pieces(asked: urllib.request.Request, timeout: float) -> Iterator[tuple[dict[str, Any], bytes]]:
    ends = time.monotonic() + timeout
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:  # noqa: S310 - http(s) only
            meta = _meta_from_headers(answer.headers)
            yield meta, b""
            while piece := answer.read(_CHUNK_BYTES):
                yield meta, piece
                if time.monotonic() > ends:
                    raise SignedError(Failure("Timeout", broken="Timeout"))
    except urllib.error.HTTPError as error:
        with error:
            raise SignedError(failure_of_answer(error.code, error.headers)) from None
    except TimeoutError:
        raise SignedError(Failure("Timeout", broken="Timeout")) from None
    except (OSError, ValueError) as error:
        raise SignedError(getattr(error, "failure", None) or Failure("Broken", broken="Interrupted")) from None


def failure_of_answer(status: int, headers: Any, body: bytes = b"") -> Failure:
    """Return the failure that an error response describes; ``X-Error-Code`` is the Hugging Face Hub's error code."""
    kind = {404: "FileNotFoundError", 412: "PreconditionError"}.get(status, "GenericError")
    wait = parse_retry_after(headers.get("Retry-After"))
    if wait is None and (match := _RATE_LIMIT.search(headers.get("RateLimit") or "")):
        wait = float(match[1])
    return Failure(kind, status, headers.get("X-Error-Code") or parse_error_code(body), retry_after=wait)


def parse_retry_after(text: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds from now that a ``Retry-After`` header, a number or a date, asks for; None if it is neither.

    Examples:
        >>> parse_retry_after("7"), parse_retry_after("soon")
        (7.0, None)
    """
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        at = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


def _meta_from_headers(headers: Any) -> dict[str, Any]:
    """Return an object's metadata from response headers, in obstore's form."""
    told = headers.get("Content-Range", "").rpartition("/")[2]
    modified = headers.get("Last-Modified")
    return {
        "size": int(told if told.isdecimal() else headers.get("Content-Length", 0)),
        "e_tag": headers.get("ETag"),
        "last_modified": email.utils.parsedate_to_datetime(modified) if modified else datetime.fromtimestamp(0, UTC),
    }


class _DeadlineSocket(socket.socket):
    """A socket with one deadline for the complete response, so that a slow drip of bytes ends too."""

    ends = 0.0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_seconds_left(self.ends))
        return super().recv_into(buffer, nbytes, flags)


def _seconds_left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Connection(http.client.HTTPConnection):
    """A keep-alive connection to one host."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        self.idle_since = 0.0
        self._ends = 0.0

    def connect(self) -> None:
        made = socket.create_connection((self.host, self.port), min(_CONNECT_TIMEOUT_S, _seconds_left(self._ends)))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = _DeadlineSocket(fileno=made.detach())

    def ask(self, path: str, headers: Mapping[str, str], ends: float) -> http.client.HTTPResponse:
        """Send a GET and return the start of the response, all of which has to arrive before ``ends``."""
        self._ends = ends
        if self.sock is None:
            self.connect()
        if isinstance(self.sock, _DeadlineSocket):  # always true; the base class declares another type
            self.sock.ends = ends
            self.sock.settimeout(_seconds_left(ends))
        self.request("GET", path, headers=dict(headers))
        return self.getresponse()


_lock = threading.Lock()
_IDLE: list[_Connection] = []
"""Idle connections to all hosts, the one used last at the end."""
_REFUSED: Counter[str] = Counter()


def _reset_after_fork() -> None:
    """Drop the parent's connections, and its lock, which may be held."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()
    _close_idle()


def _close_idle() -> None:
    while _IDLE:
        _IDLE.pop().close()


atexit.register(_close_idle)
register_after_fork(_reset_after_fork)


def open_plain(
    url: str,
    address: Address,
    clients: Clients,
    options: StoreOptions,
    start: int,
    stop: int,
    match: str | None,
    chunk: int,
) -> Iterator[tuple[dict[str, Any], bytes]] | None:
    """Return the range in pieces of ``chunk`` bytes, each with the object's metadata; None if obstore should be used.

    Raises SignedError.
    """
    if not clients.endpoint.startswith("http://") or _needs_headers_per_request(address, options):
        return None
    asked = signed_get(url, address, clients, start, stop, match)
    host, path = _split(asked[0]) if asked is not None else ("", "")
    if asked is None or not path or _REFUSED[host] >= _MAX_REFUSALS or _has_proxy(host):
        return None
    with _translating_errors():
        connection, answer = _get_response(host, path, asked[1], time.monotonic() + options.timeout)
    return _socket_pieces(connection, answer, chunk) if _has_bytes(connection, answer) else None


def _needs_headers_per_request(address: Address, options: StoreOptions) -> bool:
    """Whether a token or a credential provider supplies headers for each request."""
    return address.kind == "hf" or (address.kind == "http" and options.credential_provider is not None)


def _split(url: str) -> tuple[str, str]:
    """Return host and path; empty strings if the URL would have to be quoted first."""
    found = _PLAIN_URL.fullmatch(url)
    return (found[1], found[2]) if found is not None else ("", "")


def _has_bytes(connection: _Connection, answer: http.client.HTTPResponse) -> bool:
    """Whether a response delivers the range. Raises SignedError if it says why not."""
    if answer.status == _PARTIAL and answer.length is not None:
        _REFUSED[connection.name] = 0
        return True
    with contextlib.closing(connection), _translating_errors():
        body = answer.read(_MAX_ERROR_BYTES) if answer.status in _FINAL else b""
    if answer.status in _DENIED or answer.status not in _FINAL:
        _REFUSED[connection.name] += 1
    if answer.status in _FINAL:
        raise SignedError(failure_of_answer(answer.status, answer.headers, body))
    return False


def _has_proxy(host: str) -> bool:
    """Whether requests have to go through a proxy, which only obstore supports."""
    return "http" in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


def _get_response(
    host: str, path: str, headers: Mapping[str, str], ends: float
) -> tuple[_Connection, http.client.HTTPResponse]:
    """Send the request on an idle connection, or on a new one if there is none or the server has closed it."""
    held = _take_idle(host)
    if held is not None:
        try:
            return held, held.ask(path, headers, ends)
        except (ConnectionError, http.client.HTTPException):
            held.close()
    made = _Connection(host)
    try:
        return made, made.ask(path, headers, ends)
    except BaseException:
        made.close()
        raise


def _take_idle(host: str) -> _Connection | None:
    """Return a connection that was used recently, or None; close those that were idle for too long."""
    oldest = time.monotonic() - _MAX_IDLE_S
    with _lock:
        old = [connection for connection in _IDLE if connection.idle_since < oldest]
        found = next((one for one in reversed(_IDLE) if one.name == host and one.idle_since >= oldest), None)
        _IDLE[:] = [connection for connection in _IDLE if connection.idle_since >= oldest and connection is not found]
    for connection in old:
        connection.close()
    return found


def _keep(connection: _Connection) -> None:
    connection.idle_since = time.monotonic()
    with _lock:
        _IDLE.append(connection)


def _socket_pieces(
    connection: _Connection, answer: http.client.HTTPResponse, chunk: int
) -> Generator[tuple[dict[str, Any], bytes]]:
    meta, left, is_kept = _meta_from_headers(answer.headers), answer.length or 0, False
    try:
        yield meta, b""
        while left:
            with _translating_errors():
                piece = answer.read(min(chunk, left))
            if not piece:
                raise SignedError(Failure("Broken", broken="Interrupted"))
            left -= len(piece)
            if not left and not answer.will_close:
                _keep(connection)  # before the last yield: the caller may not resume after it
                is_kept = True
            yield meta, piece
    finally:
        if not is_kept:
            connection.close()


@contextlib.contextmanager
def _translating_errors() -> Iterator[None]:
    """Turn errors of the standard library into SignedError."""
    try:
        yield
    except TimeoutError:
        raise SignedError(Failure("Timeout", broken="Timeout")) from None
    except ConnectionRefusedError:
        raise SignedError(Failure("Broken", broken="Connect")) from None
    except (OSError, http.client.HTTPException):
        raise SignedError(Failure("Broken", broken="Interrupted")) from None
