"""GET requests by the standard library, because obstore does not show the headers of responses.

`open_signed` repeats a request after a 429 or 503, to read ``Retry-After``. obstore signs the URL. Whatever fails here
is retried by `_requests`.
"""

from __future__ import annotations

import email.utils
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import obstore

from ._clients import Address, Clients
from ._error_mapping import OBSTORE_ERRORS, Failure, parse_error_code
from ._hub_access import hub_headers
from ._options import StoreOptions

__all__ = ["failure_of_answer", "open_signed", "parse_retry_after"]

_CHUNK_BYTES = 1 << 20
_SIGNATURE_LIFETIME = timedelta(minutes=15)
_RATE_LIMIT = re.compile(r"(?:^|;)\s*t=(\d+)")
"""Seconds to wait in a ``RateLimit`` header, which some servers send: ``"api";r=0;t=55``."""


class SignedError(OSError):
    """A request that failed, with the status and headers of the response."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


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
    signed = _signed_url(url, address, clients)
    if signed is None:
        return None
    asked = urllib.request.Request(signed)  # noqa: S310 - http(s) only
    if start or stop is not None:
        asked.add_header("Range", f"bytes={start}-{'' if stop is None else stop - 1}")
    if match is not None:
        asked.add_header("If-Match", match)
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
