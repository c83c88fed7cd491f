"""HTTP over plain sockets, and signed requests whose headers are seen.

obstore moves what comes through buffers and threads of its own before it is a ``bytes``, which takes twice the
processor time a byte or more. On a fast line without TLS, as between machines of a cluster, that time is what reading
lacks. There obstore signs a request and the standard library makes it. What does not go well is obstore's to repeat.
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

from ._base import anew_in_child
from ._clients import Address, Clients, hub_headers
from ._error_mapping import FOREIGN, Failure, code_in
from ._options import StoreOptions

__all__ = ["LARGE", "failure_of_answer", "open_plain", "open_signed", "seconds_asked"]


# ----------------------------------------------------------------------------------------- large ranges over plain HTTP


LARGE = 256 << 10
"""Bytes of a request from which on it pays."""
_LONGEST_CONNECT = 5.0
_LONGEST_IDLE = 4.0
"""Seconds after which a connection is not used again: the server may be about to close it."""
_LONGEST_REASON = 64 << 10
"""Bytes that are read of an answer that was no success."""
_PLAIN_URL = re.compile(r"http://([^/@?#]+)(/[!-\"$-~]*)")
_PARTIAL = 206
_DENIED = frozenset({401, 403})
_PASSED_ON = frozenset({404, 408, 412, 416, 429, 500, 502, 503, 504}) | _DENIED
"""Answers that say all there is to know. Others, such as being sent elsewhere, are obstore's to understand."""
_MOST_REFUSED = 3
"""A server that refused as many in a row is not asked so again: not every one takes signed URLs."""


class _Timed(socket.socket):
    """A socket on which an answer has to be there wholly at some moment: else a slow drip would never end."""

    ends = 0.0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_left(self.ends))
        return super().recv_into(buffer, nbytes, flags)


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Connection(http.client.HTTPConnection):
    """A connection for one request after the other."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        self.idle_since = 0.0
        self._ends = 0.0

    def connect(self) -> None:
        made = socket.create_connection((self.host, self.port), min(_LONGEST_CONNECT, _left(self._ends)))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = _Timed(fileno=made.detach())

    def ask(self, path: str, headers: Mapping[str, str], ends: float) -> http.client.HTTPResponse:
        """The beginning of an answer, all of which has to come before ``ends``."""
        self._ends = ends
        if self.sock is None:
            self.connect()
        if isinstance(self.sock, _Timed):  # it is: what else it may be is the base class's
            self.sock.ends = ends
            self.sock.settimeout(_left(ends))
        self.request("GET", path, headers=dict(headers))
        return self.getresponse()


_lock = threading.Lock()
_IDLE: list[_Connection] = []
"""Of all servers, the one used last at the end."""
_REFUSED: Counter[str] = Counter()


def _renew() -> None:
    """The parent's connections are its own, and its lock may be held."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()
    _close_idle()


def _close_idle() -> None:
    while _IDLE:
        _IDLE.pop().close()


atexit.register(_close_idle)
anew_in_child(_renew)


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
    """The range in pieces of ``chunk`` bytes, each with what is known of the object; None where obstore should ask.

    Raises SignedError.
    """
    if not clients.endpoint.startswith("http://") or _needs_own_headers(address, options):
        return None
    asked = signed_get(url, address, clients, start, stop, match)
    host, path = _split(asked[0]) if asked is not None else ("", "")
    if asked is None or not path or _REFUSED[host] >= _MOST_REFUSED or _has_proxy(host):
        return None
    with _telling():
        connection, answer = _answered(host, path, asked[1], time.monotonic() + options.timeout)
    return _socket_pieces(connection, answer, chunk) if _is_good(connection, answer) else None


def _needs_own_headers(address: Address, options: StoreOptions) -> bool:
    """Whether somebody has to be asked for headers each time."""
    return address.kind == "hf" or (address.kind == "http" and options.credential_provider is not None)


def _split(url: str) -> tuple[str, str]:
    """The host, and what to ask it for; nothing where that would have to be quoted first."""
    found = _PLAIN_URL.fullmatch(url)
    return (found[1], found[2]) if found is not None else ("", "")


def _is_good(connection: _Connection, answer: http.client.HTTPResponse) -> bool:
    """Whether an answer brings the bytes. Raises SignedError where it says why not."""
    if answer.status == _PARTIAL and answer.length is not None:
        _REFUSED[connection.name] = 0
        return True
    with contextlib.closing(connection), _telling():
        body = answer.read(_LONGEST_REASON) if answer.status in _PASSED_ON else b""
    if answer.status in _DENIED or answer.status not in _PASSED_ON:
        _REFUSED[connection.name] += 1
    if answer.status in _PASSED_ON:
        raise SignedError(failure_of_answer(answer.status, answer.headers, body))
    return False


def _has_proxy(host: str) -> bool:
    """Whether the user wants requests to go through another server; obstore knows how."""
    return "http" in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


def _answered(
    host: str, path: str, headers: Mapping[str, str], ends: float
) -> tuple[_Connection, http.client.HTTPResponse]:
    """On a connection that is there; on a new one where there is none, or the server has closed it."""
    held = _taken(host)
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


def _taken(host: str) -> _Connection | None:
    """A connection that was used just now; those that were not for long are closed."""
    oldest = time.monotonic() - _LONGEST_IDLE
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
    meta, left, is_kept = meta_of(answer.headers), answer.length or 0, False
    try:
        yield meta, b""
        while left:
            with _telling():
                piece = answer.read(min(chunk, left))
            if not piece:
                raise SignedError(Failure("Broken", broken="Interrupted"))
            left -= len(piece)
            if not left and not answer.will_close:
                _keep(connection)  # now, since who has the last piece may not ask for more
                is_kept = True
            yield meta, piece
    finally:
        if not is_kept:
            connection.close()


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """What the standard library raises, as a failure that is known here."""
    try:
        yield
    except TimeoutError:
        raise SignedError(Failure("Timeout", broken="Timeout")) from None
    except ConnectionRefusedError:
        raise SignedError(Failure("Broken", broken="Connect")) from None
    except (OSError, http.client.HTTPException):
        raise SignedError(Failure("Broken", broken="Interrupted")) from None


# --------------------------------------- a GET whose headers we see, for a server that said there are too many requests


# obstore does not show ``Retry-After``. So after a 429 or 503 the request is repeated with the standard library, over a
# URL that obstore signed: when it fails again we know how long the server wants to be left alone.

_CHUNK = 1 << 20
_GOOD_FOR = timedelta(minutes=15)
_RATE_LIMIT = re.compile(r"(?:^|;)\s*t=(\d+)")
"""Some servers say in this header after how many seconds there is room again: ``"api";r=0;t=55``."""


class SignedError(OSError):
    """An answer that was no success, with what its headers say."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


def open_signed(
    url: str, address: Address, clients: Clients, options: StoreOptions, start: int, stop: int | None, match: str | None
) -> Iterator[tuple[dict[str, Any], bytes]] | None:
    """The range in pieces, each with what is known of the object; None where the store cannot sign."""
    found = signed_get(url, address, clients, start, stop, match)
    if found is None:
        return None
    asked = urllib.request.Request(found[0], headers=found[1])  # noqa: S310 - http(s) only
    for name, value in _headers(address, options).items():
        asked.add_unredirected_header(name, value)  # it is this server's, and not for where it may send us
    return _signed_pieces(asked, options.timeout)


def signed_get(
    url: str, address: Address, clients: Clients, start: int, stop: int | None, match: str | None
) -> tuple[str, dict[str, str]] | None:
    """The URL and the headers of a GET of a range; None where the store cannot sign."""
    signed = _address(url, address, clients)
    if signed is None:
        return None
    headers = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop is not None else {}
    return signed, headers if match is None else {**headers, "If-Match": match}


def _address(url: str, address: Address, clients: Clients) -> str | None:
    if address.kind == "hf":
        return f"{address.root}/{quote(address.path)}"
    return url if address.kind == "http" else _signed(clients, address.path)


def _headers(address: Address, options: StoreOptions) -> Mapping[str, str]:
    if address.kind == "hf":
        return hub_headers(options, os.environ)
    if address.kind != "http" or options.credential_provider is None:
        return {}
    told: Mapping[str, str] = options.credential_provider().get("headers", {})
    return told


def _signed(clients: Clients, path: str) -> str | None:
    try:
        return obstore.sign(clients.once, "GET", path, _GOOD_FOR)
    except FOREIGN:
        return None  # anonymous, or credentials that cannot sign


def _signed_pieces(asked: urllib.request.Request, timeout: float) -> Iterator[tuple[dict[str, Any], bytes]]:
    ends = time.monotonic() + timeout
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:  # noqa: S310 - http(s) only
            meta = meta_of(answer.headers)
            yield meta, b""
            while piece := answer.read(_CHUNK):
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
    """The facts in an answer that was no success; ``X-Error-Code`` is the Hugging Face Hub's own word for it."""
    kind = {404: "FileNotFoundError", 412: "PreconditionError"}.get(status, "GenericError")
    asked = seconds_asked(headers.get("Retry-After"))
    if asked is None and (told := _RATE_LIMIT.search(headers.get("RateLimit") or "")):
        asked = float(told[1])
    return Failure(kind, status, headers.get("X-Error-Code") or code_in(body), retry_after=asked)


def seconds_asked(text: str | None, now: datetime | None = None) -> float | None:
    """What a Retry-After says, as seconds from now: it is a number of them, or a date.

    Example:
        >>> seconds_asked("7"), seconds_asked("soon")
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


def meta_of(headers: Any) -> dict[str, Any]:
    """As obstore says it."""
    told = headers.get("Content-Range", "").rpartition("/")[2]
    modified = headers.get("Last-Modified")
    return {
        "size": int(told if told.isdecimal() else headers.get("Content-Length", 0)),
        "e_tag": headers.get("ETag"),
        "last_modified": email.utils.parsedate_to_datetime(modified) if modified else datetime.fromtimestamp(0, UTC),
    }
