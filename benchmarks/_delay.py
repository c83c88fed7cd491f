"""A server as if it were far away: each response begins later, and its body is passed on by the kernel.

Bodies go from socket to socket through a pipe, without a copy into this process: the processors are shared with those
who are measured, and what is added should be time alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.store.servers import serving

__all__ = ["delayed"]

_PIPE_BYTES = 1 << 20
_SO_MAX_PACING_RATE = 47
"""Linux's: the kernel sends no faster over this connection."""
_CLOSES = re.compile(rb"\r\nConnection:[^\r]*", re.IGNORECASE)


class _Delaying(BaseHTTPRequestHandler):
    """Waits, asks the server behind it, and hands over what comes as it comes."""

    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        """One request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.rate:  # type: ignore[attr-defined]
            self.connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, self.server.rate)  # type: ignore[attr-defined]
        threading.Event().wait(self.server.delay)  # type: ignore[attr-defined]
        host, _, port = self.server.upstream.partition(":")  # type: ignore[attr-defined]
        with socket.create_connection((host, int(port))) as upstream:
            upstream.sendall(self._request() + body)
            head, rest = _head_of(upstream)
            self.connection.sendall(_CLOSES.sub(b"", head) + rest)
            _relay(upstream, self.connection)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

    def _request(self) -> bytes:
        """As it came, but to a server that hangs up behind its answer, so that the end of it can be seen."""
        kept = [(name, value) for name, value in self.headers.items() if name.lower() != "connection"]
        lines = [f"{self.command} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in kept)]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _head_of(upstream: socket.socket) -> tuple[bytes, bytes]:
    """The headers of an answer, and what of its body came with them."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = upstream.recv(1 << 16)
        if not piece:
            raise ConnectionError("the server hung up inside the headers of an answer")
        data += piece
    head, end, rest = data.partition(b"\r\n\r\n")
    return head + end, rest


def _relay(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes until the source hangs up."""
    out, into = os.pipe()
    try:
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while left := os.splice(source.fileno(), into, _PIPE_BYTES):
            while left:
                left -= os.splice(out, target.fileno(), left)
    finally:
        os.close(out)
        os.close(into)


@contextlib.contextmanager
def delayed(endpoint: str, seconds: float, *, rate: int = 0) -> Iterator[str]:
    """The same server, each response of which begins so much later: yields its endpoint.

    ``rate`` is how many bytes a second one connection gives, where it is not what it can.
    """
    with serving(_Delaying, upstream=endpoint.removeprefix("http://"), delay=seconds, rate=rate) as server:
        yield server.url
