"""An HTTP client that refuses private addresses and unbounded bodies."""

from __future__ import annotations

import functools
import ipaddress
import socket
import ssl
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from shoal.errors import AtmosphereError, TooLargeError, UntrustedError

__all__ = ["Guard", "http_client", "is_private_url"]

MOST_ANSWER = 64 << 20
"""Bytes of one answer that is not a shard."""
_HINT = "pass allow_private=True on a network you trust"


# Imported in functions only: httpx comes with the extra ``atmosphere``.
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


def _is_private_address(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_global


def is_private_host(host: str) -> bool:
    """Whether a host is on this machine or in a private network, by each of its addresses. Unknown ones are.

    Examples:
        >>> is_private_host("127.0.0.1"), is_private_host("10.0.0.8"), is_private_host("::ffff:192.168.1.1")
        (True, True, True)
        >>> is_private_host("1.1.1.1")
        False
    """
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal", ".test", ".invalid")):
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return any(_is_private_address(str(address[4][0])) for address in found)


def is_private_url(url: str) -> bool:
    """Whether others could not read a URL: it is a path, or leads to this machine or a private network.

    Examples:
        >>> (
        ...     is_private_url("http://127.0.0.1/a.tar"),
        ...     is_private_url("data/a.tar"),
        ...     is_private_url("https://1.1.1.1/a.tar"),
        ... )
        (True, True, False)
    """
    parts = urlsplit(url)
    return parts.scheme not in ("http", "https") or not parts.hostname or is_private_host(parts.hostname)


class Guard:
    """What a client may ask: everything public, what its user named, and the rest only with ``allow_private``.

    Examples:
        >>> Guard().check("http://127.0.0.1:8000/a.tar")
        Traceback (most recent call last):
        shoal.errors.UntrustedError: an address in a private network is not asked: found ...
        >>> Guard(named=["http://127.0.0.1:8000"]).check("http://127.0.0.1:8000/a.tar")
    """

    def __init__(self, *, allow_private: bool = False, named: Iterable[str] = ()) -> None:
        self.allow_private = allow_private
        self._named = {_place(url) for url in named}

    def check(self, url: str) -> None:
        """Raise UntrustedError for an address that may not be asked."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise UntrustedError("only http:// and https:// are asked", found=url[:200])
        if not self.is_named(*_place(url)) and is_private_url(url):
            raise _refused(url)

    def is_named(self, host: str, port: int) -> bool:
        """Whether a place is asked without a look at its address."""
        return self.allow_private or (host, port) in self._named

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, all of which may be asked. Raises UntrustedError or AtmosphereError.

        A connection is made to one of these, so that no second look at the name can lead elsewhere.
        """
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise AtmosphereError("a host's name leads nowhere", found=host) from error
        addresses = list(dict.fromkeys(str(address[4][0]) for address in found))
        if not self.is_named(host, port) and any(map(_is_private_address, addresses)):
            raise _refused(f"{host}:{port}")
        return addresses


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise UntrustedError("this is no URL", found=url[:200]) from None
    return parts.hostname or "", port or (80 if parts.scheme == "http" else 443)


def _refused(place: str) -> UntrustedError:
    return UntrustedError("an address in a private network is not asked", found=place[:200], hint=_HINT)
