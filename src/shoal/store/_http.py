"""Large ranges over plain HTTP: from the socket straight into the bytes that are handed on.

obstore moves what comes through buffers and threads of its own before it is a ``bytes``, which takes twice the
processor time a byte or more. On a fast line without TLS, as between machines of a cluster, that time is what reading
lacks. There obstore signs a request and the standard library makes it. What does not go well is obstore's to repeat.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import re
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from ._clients import Address, Clients
from ._foreign import Failure
from ._fork import anew_in_child
from ._options import StoreOptions
from ._signed import SignedError, failure_of_answer, meta_of, signed_get

__all__ = ["LARGE", "open_plain"]

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
    return _pieces(connection, answer, chunk) if _is_good(connection, answer) else None


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


def _pieces(
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
