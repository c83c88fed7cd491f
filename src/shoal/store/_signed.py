"""A GET whose headers we see, for a server that said there are too many requests.

obstore does not show ``Retry-After``. So after a 429 or 503 the request is repeated with the standard library, over a
URL that obstore signed: when it fails again we know how long the server wants to be left alone.
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
from ._foreign import FOREIGN, Failure, code_in
from ._hf_access import hub_headers
from ._options import StoreOptions

__all__ = ["SignedError", "failure_of_answer", "meta_of", "open_signed", "seconds_asked", "signed_get"]

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
    return _pieces(asked, options.timeout)


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


def _pieces(asked: urllib.request.Request, timeout: float) -> Iterator[tuple[dict[str, Any], bytes]]:
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
