"""HTTP by httpx, with two rules of ours: only checked addresses are connected to, and no answer is without end.

Imported in functions only: httpx comes with the extra ``atmosphere``.
"""

from __future__ import annotations

import functools
import ssl
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore
import httpx

from shoal.errors import TooLargeError

from ._guard import Guard

__all__ = ["http_client"]

MOST_ANSWER = 64 << 20
"""Bytes of one answer that is not a shard."""


class _Backend(httpcore.SyncBackend):
    """Connects to addresses that were checked, whatever the name says a moment later."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = self._guard.addresses(host, port)
        for address in addresses[:-1]:
            try:
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError:
                continue
        return super().connect_tcp(addresses[-1], port, timeout, local_address, socket_options)


class _Bounded(httpx.SyncByteStream):
    """A body that ends, or an error."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream = stream
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        seen = 0
        for piece in self._stream:
            seen += len(piece)
            if seen > self._most:
                raise TooLargeError("an answer is too large", expected=f"at most {self._most} bytes")
            yield piece

    def close(self) -> None:
        self._stream.close()


class _Transport(httpx.BaseTransport):
    def __init__(self, inner: httpx.HTTPTransport, guard: Guard, most: int | None) -> None:
        self._inner = inner
        self._guard = guard
        self._most = most

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._guard.check(str(request.url))  # of redirects too; a proxy would connect for us, so it is not enough alone
        response = self._inner.handle_request(request)
        if self._most is not None:
            response.stream = _Bounded(response.stream, self._most)
        return response

    def close(self) -> None:
        self._inner.close()


@functools.cache
def _certificates() -> ssl.SSLContext:
    """What every connection is checked by; to read it takes longer than most requests."""
    return httpx.create_ssl_context()


def _proxy() -> str | None:
    found = urllib.request.getproxies()
    return found.get("https") or found.get("http") or found.get("all")


def http_options(guard: Guard, *, most: int | None = MOST_ANSWER, timeout: float = 30.0) -> dict[str, Any]:
    """What httpx.Client, or the SDK's Request, is made with."""
    inner = httpx.HTTPTransport(verify=_certificates(), proxy=_proxy())
    if _proxy() is None:
        # httpx has no option for this; its pool is httpcore's, which does.
        inner._pool._network_backend = _Backend(guard)  # noqa: SLF001
    return {"transport": _Transport(inner, guard, most), "timeout": timeout}


def http_client(guard: Guard, *, most: int | None = MOST_ANSWER, timeout: float = 30.0) -> httpx.Client:
    """A client that asks only what ``guard`` lets it."""
    return httpx.Client(follow_redirects=True, max_redirects=5, **http_options(guard, most=most, timeout=timeout))
