"""Which addresses may be asked: what a stranger's record names must not lead into this machine or its network."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from shoal.errors import AtmosphereError, UntrustedError

__all__ = ["Guard", "is_private_host", "is_private_url"]

_HINT = "pass allow_private=True on a network you trust"


def _is_private_address(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_global


def is_private_host(host: str) -> bool:
    """Whether a host is on this machine or in a private network, by each of its addresses. Unknown ones are.

    Example:
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

    Example:
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

    Example:
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
