"""Who may ask: those with the token, of this server by its own name, from its own pages."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ._problems import not_allowed_page

__all__ = ["HEADERS", "Door", "guarded"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
"""On every answer, unless it says otherwise itself."""
_OWN = ("same-origin", "none")
"""What a browser says of requests by our own pages, and of addresses that somebody typed."""


@dataclass(frozen=True, slots=True)
class Door:
    """By which names the server may be called, and the token that opens it."""

    token: str
    port: int
    hosts: frozenset[str] = frozenset({"127.0.0.1", "localhost", "[::1]"})
    any_address: bool = False
    """Whether any number of an address will do: it listens at all of the machine's. A name never will: whoever owns a
    name can make it lead here."""

    @property
    def cookie(self) -> str:
        """The name of the cookie. Browsers tell hosts apart, not ports."""
        return f"shoal-{self.port}"

    def is_called(self, host: str) -> bool:
        """Whether a Host header names this server.

        Example:
            >>> door = Door("secret", 8000)
            >>> door.is_called("localhost:8000"), door.is_called("evil.example:8000"), door.is_called("localhost")
            (True, False, False)
        """
        name, _, port = host.rpartition(":")
        if port != str(self.port):
            return False
        return name.lower() in self.hosts or (self.any_address and _is_address(name.strip("[]")))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def guarded(app: AsgiApp, door: Door) -> AsgiApp:
    """The app behind the door: other requests get a page that says what to do, and nothing of the dataset."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        sealed = _sealed(send)
        if not door.is_called(headers.get("host", "")):
            await _refuse(sealed, 421, "This address is not the viewer's own.", "Open the link that it printed.")
        elif headers.get("sec-fetch-site", "none") not in _OWN and headers.get("sec-fetch-mode") != "navigate":
            await _refuse(sealed, 403, "Another site asked for this.", "Open the link that the viewer printed.")
        elif scope["path"].startswith("/static/"):
            await app(scope, receive, sealed)
        elif (rest := _with_token(scope, door)) is not None:
            await _let_in(sealed, door, rest)
        elif _has_cookie(headers.get("cookie", ""), door):
            await app(scope, receive, sealed)
        else:
            todo = "Open the whole link that `shoal view` printed: it ends in a token that opens the door."
            await _refuse(sealed, 403, "The viewer shows its dataset to those who have its link.", todo)

    return answer


def _sealed(send: Send) -> Send:
    """Adds the headers that every answer has."""

    async def sealed(message: Message) -> None:
        if message["type"] == "http.response.start":
            said = {name for name, _ in message.get("headers", ())}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in said]
            message["headers"] = [*message.get("headers", ()), *more]
        await send(message)

    return sealed


def _with_token(scope: Scope, door: Door) -> str | None:
    """The same address without the token, where that is right; None where there is none."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = [value for name, value in pairs if name == "token"]
    if not given or not _same(given[0], door.token) or scope["method"] != "GET":
        return None
    rest = urlencode([pair for pair in pairs if pair[0] != "token"])
    path: str = "/" + scope["path"].lstrip("/")  # two slashes would lead to another host
    return f"{path}?{rest}" if rest else path


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


def _has_cookie(text: str, door: Door) -> bool:
    try:
        morsel = SimpleCookie(text).get(door.cookie)
    except CookieError:
        return False
    return morsel is not None and _same(morsel.value, door.token)


async def _let_in(send: Send, door: Door, address: str) -> None:
    """From now on the cookie says it: the token is out of the address bar, the history and what is passed on."""
    cookie = f"{door.cookie}={door.token}; HttpOnly; SameSite=Lax; Path=/"
    headers = [
        (b"location", address.encode("latin-1", "replace")),
        (b"set-cookie", cookie.encode()),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, status: int, text: str, todo: str) -> None:
    body = not_allowed_page(text, todo).encode()
    headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
