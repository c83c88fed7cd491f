"""Requests to a personal data server (PDS): sessions, retries, and the SDK's errors as ours."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from shoal._optional import require
from shoal.errors import AtmosphereError, RateLimitError, RecordNotFoundError, SessionError, ShoalError, TooLargeError

from ._http import Guard

__all__ = ["Patience", "Service", "home_file", "session_file"]

_PASSING = frozenset({429, 500, 502, 503, 504})
_EXPIRED = frozenset({"ExpiredToken", "InvalidToken"})
_NOT_FOUND = frozenset({"RecordNotFound", "RepoNotFound", "AccountNotFound", "HandleNotFound", "DidNotFound"})
_NOT_FOUND_WORDS = ("could not locate record", "could not find repo", "blob not found", "unable to resolve handle")
_TOO_LARGE = 413


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server that does not answer, or wants to be left alone, is waited for.

    Examples:
        >>> Patience(tries=1).tries
        1
    """

    tries: int = 6
    first_wait: float = 0.25
    longest_wait: float = 60.0
    """Seconds; a server that asks for more is not waited for."""

    def wait_after(self, attempt: int) -> float:
        """Seconds before the next try, for a failure without a word about it."""
        return min(self.first_wait * 2.0**attempt, self.longest_wait) * (0.5 + random.random() / 2)  # noqa: S311


@dataclass(frozen=True, slots=True)
class _Failure:
    """What is known of a request that failed."""

    status: int | None
    name: str
    words: str
    headers: Mapping[str, str]

    @property
    def is_passing(self) -> bool:
        return self.status is None or self.status in _PASSING

    @property
    def seconds_asked(self) -> float | None:
        """How long the server wants to be left alone."""
        with contextlib.suppress(KeyError, ValueError):
            return float(self.headers["retry-after"])
        with contextlib.suppress(KeyError, ValueError):
            return max(0.0, float(self.headers["ratelimit-reset"]) - time.time())
        return None


class Service:
    """A server by its URL, asked as nobody, or after `login` as an account."""

    def __init__(self, url: str, guard: Guard, patience: Patience) -> None:
        self.url = url.rstrip("/")
        self._guard = guard
        self._patience = patience
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def _client(self) -> Any:
        """The SDK's client; made when first needed, since its import takes half a second."""
        with self._lock:
            if self._made is None:
                require("atproto", extra="atmosphere")
                from atproto import Client
                from atproto_client.request import Request

                from ._http import http_options

                self._made = Client(self.url, request=Request(**http_options(self._guard)))
            return self._made

    def __repr__(self) -> str:
        return f"Service({self.url!r})"

    def login(self, handle: str, password: str) -> None:
        """Become an account. Raises SessionError."""
        client = self._client
        self._ask("log in", lambda: client.login(handle, password, fetch_bsky_profile=False), refresh=False)

    def resume(self, session: str) -> None:
        """Become the account of an exported session. Raises SessionError."""
        client = self._client
        try:
            self._ask("log in", lambda: client.login(session_string=session, fetch_bsky_profile=False), refresh=False)
        except (ValueError, TypeError) as error:  # what cannot be decoded; its text may be the secret
            raise SessionError("this is no exported session", hint="make one with export_session()") from error

    def export_session(self) -> str:
        """The session as text. It is a secret: whoever has it is the account. Raises SessionError without one."""
        self._session()
        text: str = self._client.export_session_string()
        return text

    def refresh(self) -> None:
        """Get new tokens for the session. Raises SessionError when it has ended."""
        client = self._client
        self._session()
        self._ask("renew the session", client._refresh_and_set_session, refresh=False)  # noqa: SLF001 - no public way

    def _session(self) -> Any:
        session = None if self._made is None else self._made._session  # noqa: SLF001 - no public way
        if session is None:
            raise SessionError("nobody is logged in", hint="call login(handle, app_password), or run `shoal login`")
        return session

    @property
    def did(self) -> str | None:
        """Whose session this is; None without one."""
        session = None if self._made is None else self._made._session  # noqa: SLF001
        return None if session is None else str(session.did)

    @property
    def handle(self) -> str | None:
        """The handle of the account; None without a session."""
        session = None if self._made is None else self._made._session  # noqa: SLF001
        return None if session is None else str(session.handle)

    def query(self, nsid: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask for something. Raises AtmosphereError or one of its kinds."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        asked = f"{nsid}?{urlencode(given, doseq=True)}" if given else nsid
        client = self._client
        return _object(self._ask(nsid, lambda: client.invoke_query(asked)), nsid)

    def procedure(self, nsid: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Have something done; as it may be tried again, only what can be done twice. Raises AtmosphereError."""
        headers = {"Content-Type": "application/json"}
        content = json.dumps(body or {}, ensure_ascii=False, allow_nan=False).encode()
        client = self._client
        return _object(self._ask(nsid, lambda: client.invoke_procedure(nsid, content=content, headers=headers)), nsid)

    def upload(self, data: bytes, mime_type: str) -> dict[str, Any]:
        """Give the server a blob. Raises TooLargeError where it takes none of this size."""
        nsid, headers, client = "com.atproto.repo.uploadBlob", {"Content-Type": mime_type}, self._client
        return _object(self._ask(nsid, lambda: client.invoke_procedure(nsid, content=data, headers=headers)), nsid)

    def close(self) -> None:
        """Close connections."""
        if self._made is not None:
            self._made.request.close()

    def _ask(self, what: str, call: Callable[[], Any], *, refresh: bool = True) -> Any:
        attempt = 0
        while True:
            try:
                return call()
            except ShoalError:
                raise
            except Exception as error:
                failure = _failure_of(error)
                if failure is None:
                    raise
                if refresh and failure.name in _EXPIRED and self.did is not None:
                    refresh = False
                    self.refresh()
                    continue
                attempt += 1
                self._wait_or_raise(what, failure, attempt, error)

    def _wait_or_raise(self, what: str, failure: _Failure, attempt: int, error: Exception) -> None:
        wanted = failure.seconds_asked if failure.status is not None else None
        over = wanted is not None and wanted > self._patience.longest_wait
        if not failure.is_passing or over or attempt >= self._patience.tries:
            raise _our_error(what, self.url, failure) from error
        time.sleep(self._patience.wait_after(attempt - 1) if wanted is None else wanted)


def _object(response: Any, nsid: str) -> dict[str, Any]:
    content = response.content
    if isinstance(content, dict):
        return content
    if not content:
        return {}
    raise AtmosphereError("the server's answer is not JSON", found=nsid)


def _failure_of(error: Exception) -> _Failure | None:
    """What the SDK's or httpx's error says; None for any other."""
    import httpx
    from atproto_client.exceptions import InvokeTimeoutError, LoginRequiredError, RequestErrorBase

    if isinstance(error, LoginRequiredError):
        return _Failure(401, "AuthMissing", "nobody is logged in", {})
    if isinstance(error, InvokeTimeoutError | httpx.TimeoutException):
        return _Failure(None, "Timeout", "no answer in time", {})
    if isinstance(error, httpx.TooManyRedirects | httpx.DecodingError | httpx.UnsupportedProtocol):
        return _Failure(400, type(error).__name__, str(error), {})
    if isinstance(error, httpx.HTTPError):
        return _Failure(None, type(error).__name__, str(error), {})
    if not isinstance(error, RequestErrorBase):
        return None
    response = error.response
    if response is None:
        return _Failure(None, "NetworkError", str(error.__cause__ or "no connection"), {})
    content = response.content
    name = str(getattr(content, "error", "") or "")
    words = str(getattr(content, "message", "") or "")
    return _Failure(response.status_code, name, words, response.headers)


def _our_error(what: str, url: str, failure: _Failure) -> AtmosphereError:
    """One sentence: what was asked of whom, and what came of it."""
    words = " ".join((failure.words or failure.name or "no reason given").split())[:300]
    method = what.rpartition(".")[2]
    if failure.status is None:
        return AtmosphereError(f"{url} does not answer", found=words, hint="try again later; nothing is left half done")
    if failure.status == 429:
        asked = failure.seconds_asked
        hint = f"try again in {asked:.0f} s" if asked is not None else "try again later"
        return RateLimitError(f"{url} is asked too often", found=words, hint=hint)
    if failure.name in _EXPIRED or failure.name in ("AuthMissing", "AuthenticationRequired", "AccountTakedown"):
        ended = failure.name in _EXPIRED
        hint = "log in again" if ended else "check the handle and the app password"
        return SessionError("the session has ended" if ended else f"{url} refused the account", found=words, hint=hint)
    if failure.name in _NOT_FOUND or any(text in words.lower() for text in _NOT_FOUND_WORDS):
        return RecordNotFoundError("there is no such thing", found=words)
    if failure.status == _TOO_LARGE or failure.name in ("BlobTooLarge", "PayloadTooLarge", "PayloadTooLargeError"):
        return TooLargeError(f"{url} takes nothing of this size", found=words)
    if failure.status in (401, 403):
        return SessionError(f"{url} does not allow {method}", found=words)
    return AtmosphereError(f"{url} refused {method}", found=f"{failure.status} {words}")


def home_file(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """A file in ``$SHOAL_HOME``, else in the platform's place for data.

    Examples:
        >>> home_file("followed.db", {"SHOAL_HOME": "/data"})
        '/data/followed.db'
    """
    if chosen := environ.get("SHOAL_HOME"):
        return os.path.join(chosen, name)
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Application Support", "shoal", name)
    if os.name == "nt":
        return os.path.join(environ.get("LOCALAPPDATA", home), "shoal", name)
    return os.path.join(environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share"), "shoal", name)


def session_file() -> str:
    """Where `shoal login --save` keeps a session.

    Examples:
        >>> session_file().endswith("atmosphere-session")
        True
    """
    return home_file("atmosphere-session")
