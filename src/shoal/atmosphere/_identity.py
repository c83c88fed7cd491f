"""Look up accounts: from a handle to a DID, and from a DID to the server that has its repository.

A handle is resolved by the client's own server first, then by DNS, then by the host of that name. In any case the DID's
document must name the handle too, else anybody could claim it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from shoal._optional import require
from shoal.errors import AtmosphereError, RecordNotFoundError, UntrustedError

from ._http import Guard
from ._identifiers import is_did, is_handle

__all__ = ["Identities", "Identity"]

_WELL_KNOWN = ".well-known"
_NOT_IN_DNS = (".test", ".localhost", ".invalid", ".local", ".example")


@dataclass(frozen=True, slots=True)
class Identity:
    """An account: its lasting name, the handle it goes by, and the server that has its repository."""

    did: str
    handle: str | None
    pds: str


class Identities:
    """Looks accounts up, and remembers them as long as it lives.

    Args:
        plc_url: The directory of ``did:plc`` names.
        guard: Which addresses may be asked.
        ask_handle: Asks a server that is known already for the DID of a handle; None when there is none.
    """

    def __init__(self, plc_url: str, guard: Guard, ask_handle: Callable[[str], str | None]) -> None:
        self._plc_url = plc_url.rstrip("/")
        self._guard = guard
        self._ask_handle = ask_handle
        self._lock = threading.Lock()
        self._known: dict[str, Identity] = {}
        self._http: Any = None

    def find(self, account: str) -> Identity:
        """The account of this handle or DID. Raises RecordNotFoundError, AtmosphereError or UntrustedError."""
        name = account.removeprefix("@")
        with self._lock:
            if name not in self._known:
                self._known[name] = self._look_up(name)
            return self._known[name]

    def forget(self) -> None:
        """Look everybody up again."""
        with self._lock:
            self._known.clear()

    def close(self) -> None:
        """Close connections."""
        if self._http is not None:
            self._http.close()

    def _look_up(self, name: str) -> Identity:
        if is_did(name):
            return _identity(name, self._document(name), self._guard)
        if not is_handle(name):
            raise RecordNotFoundError("this is no account", expected="a handle or a DID", found=repr(name[:200]))
        did = self._did_of(name.lower())
        found = _identity(did, self._document(did), self._guard)
        if found.handle != name.lower():
            raise UntrustedError(
                "a handle names an account that does not name it back",
                expected=f"at://{name} in the document of {did}",
                found=found.handle or "no handle",
            )
        return found

    def _did_of(self, handle: str) -> str:
        for ask in (self._ask_handle, self._ask_dns, self._ask_host):
            found = ask(handle)
            if found is not None and is_did(found):
                return found
        raise RecordNotFoundError("nobody knows this handle", found=handle)

    def _ask_dns(self, handle: str) -> str | None:
        require("dns", extra="atmosphere")
        import dns.exception
        import dns.resolver

        if handle.endswith(_NOT_IN_DNS):
            return None
        with contextlib.suppress(dns.exception.DNSException, OSError):
            for answer in dns.resolver.resolve(f"_atproto.{handle}", "TXT", lifetime=5.0):
                text = b"".join(answer.strings).decode(errors="replace")
                if text.startswith("did="):
                    return text.removeprefix("did=")
        return None

    def _ask_host(self, handle: str) -> str | None:
        with contextlib.suppress(AtmosphereError):
            found = self._get(f"https://{handle}/{_WELL_KNOWN}/atproto-did")
            return None if found is None else found.text.strip()
        return None

    def _document(self, did: str) -> Mapping[str, Any]:
        url = f"{self._plc_url}/{did}" if did.startswith("did:plc:") else _did_web_url(did)
        response = self._get(url)
        if response is None:
            raise RecordNotFoundError("there is no such account", found=did)
        try:
            document = response.json()
        except ValueError:
            document = None
        if not isinstance(document, Mapping) or document.get("id") != did:
            raise AtmosphereError("the document of an account cannot be read", found=did)
        return document

    def _get(self, url: str) -> Any:
        """What a URL answers; None where nothing is there. Raises AtmosphereError."""
        require("httpx", extra="atmosphere")
        import httpx

        from ._http import http_client

        if self._http is None:
            self._http = http_client(self._guard, most=1 << 20, timeout=15.0)
        try:
            response = self._http.get(url)
        except httpx.HTTPError as error:
            raise AtmosphereError("an account could not be looked up", found=f"{url}: {error}") from error
        if response.status_code in (404, 410):
            return None
        if response.status_code != 200:
            raise AtmosphereError("an account could not be looked up", found=f"{url}: {response.status_code}")
        return response


def _did_web_url(did: str) -> str:
    """Where the document of a ``did:web`` is.

    Examples:
        >>> _did_web_url("did:web:example.org"), _did_web_url("did:web:localhost%3A8000")
        ('https://example.org/.well-known/did.json', 'http://localhost:8000/.well-known/did.json')
    """
    method, host = did.split(":", 2)[1:]
    if method != "web" or ":" in host:
        raise RecordNotFoundError("this kind of DID is not known", expected="did:plc or did:web", found=did)
    place = unquote(host)
    scheme = "http" if place.partition(":")[0] == "localhost" else "https"
    return f"{scheme}://{place}/{_WELL_KNOWN}/did.json"


def _identity(did: str, document: Mapping[str, Any], guard: Guard) -> Identity:
    services = document.get("service")
    for service in services if isinstance(services, list) else ():
        if isinstance(service, Mapping) and str(service.get("id", "")).endswith("#atproto_pds"):
            endpoint = str(service.get("serviceEndpoint", ""))
            guard.check(endpoint)
            return Identity(did, _handle_in(document), endpoint.rstrip("/"))
    raise RecordNotFoundError("the account names no server", expected="a service #atproto_pds", found=did)


def _handle_in(document: Mapping[str, Any]) -> str | None:
    names = document.get("alsoKnownAs")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name.startswith("at://") and is_handle(name.removeprefix("at://")):
            return name.removeprefix("at://").lower()
    return None
