"""A GET whose headers we see, for a server that said there are too many requests.

obstore does not show ``Retry-After``. So after a 429 or 503 the request is repeated with the standard library, over a
URL that obstore signed: when it fails again we know how long the server wants to be left alone.
"""

from __future__ import annotations

import email.utils
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore

from ._clients import Address, Clients
from ._foreign import FOREIGN, Failure
from ._options import StoreOptions

__all__ = ["SignedError", "open_signed", "seconds_asked"]

_CHUNK = 1 << 20
_GOOD_FOR = timedelta(minutes=15)


class SignedError(OSError):
    """An answer that was no success, with what its headers say."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


def open_signed(
    url: str, address: Address, clients: Clients, options: StoreOptions, start: int, stop: int | None, match: str | None
) -> Iterator[tuple[dict[str, Any], bytes]] | None:
    """The range in pieces, each with what is known of the object; None where the store cannot sign."""
    signed = url if address.kind == "http" else _signed(clients, address.path)
    if signed is None:
        return None
    headers = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop is not None else {}
    if match is not None:
        headers["If-Match"] = match
    asked = urllib.request.Request(signed, headers=headers)  # noqa: S310 - http(s) only
    if address.kind == "http" and options.credential_provider is not None:
        for name, value in options.credential_provider().get("headers", {}).items():
            asked.add_unredirected_header(name, value)  # it is this server's, and not for where it may send us
    return _pieces(asked, options.timeout)


def _signed(clients: Clients, path: str) -> str | None:
    try:
        return obstore.sign(clients.once, "GET", path, _GOOD_FOR)
    except FOREIGN:
        return None  # anonymous, or credentials that cannot sign


def _pieces(asked: urllib.request.Request, timeout: float) -> Iterator[tuple[dict[str, Any], bytes]]:
    ends = time.monotonic() + timeout
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:  # noqa: S310 - http(s) only
            meta = _meta(answer.headers)
            yield meta, b""
            while piece := answer.read(_CHUNK):
                yield meta, piece
                if time.monotonic() > ends:
                    raise SignedError(Failure("Timeout", broken="Timeout"))
    except urllib.error.HTTPError as error:
        with error:
            raise SignedError(_failure(error.code, error.headers)) from None
    except TimeoutError:
        raise SignedError(Failure("Timeout", broken="Timeout")) from None
    except (OSError, ValueError) as error:
        raise SignedError(getattr(error, "failure", None) or Failure("Broken", broken="Interrupted")) from None


def _failure(status: int, headers: Any) -> Failure:
    kind = {404: "FileNotFoundError", 412: "PreconditionError"}.get(status, "GenericError")
    return Failure(kind, status, retry_after=seconds_asked(headers.get("Retry-After")))


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


def _meta(headers: Any) -> dict[str, Any]:
    """As obstore says it."""
    told = headers.get("Content-Range", "").rpartition("/")[2]
    modified = headers.get("Last-Modified")
    return {
        "size": int(told if told.isdecimal() else headers.get("Content-Length", 0)),
        "e_tag": headers.get("ETag"),
        "last_modified": email.utils.parsedate_to_datetime(modified) if modified else datetime.fromtimestamp(0, UTC),
    }
