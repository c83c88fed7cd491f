"""Options of stores by URL prefix. Secrets are never options; a credential provider returns them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from shoal.errors import OptionError, StoreError

from ._concurrency import ConcurrencyLimit
from ._fork import register_after_fork
from ._url import scheme_of

__all__ = [
    "CredentialProvider",
    "StoreOptions",
    "concurrency_limits_for",
    "configure",
    "configure_all",
    "configured",
    "options_for",
    "refuse_secrets",
    "shown",
]

CredentialProvider = Callable[[], Mapping[str, Any]]
"""Gives credentials, with ``expires_at`` (an aware datetime) where they end; it is asked again before that.

For ``s3://``: ``access_key_id``, ``secret_access_key``, and ``token`` for temporary ones. For ``gs://``: ``token``. For
``az://``: ``access_key``, ``sas_token`` or ``token``. For ``http(s)://``: ``headers``, a mapping. For ``hf://``:
``token``.
"""

_SECRET = re.compile(r"secret|password|token|access_?key|account_?key|sas|credential(?!_provider)", re.IGNORECASE)
_NO_SECRETS = "pass credential_provider=, a function that returns them; or set them in the environment or a profile"
_MINIMUM = {"max_in_flight": 1, "timeout": 0.001, "retries": 0, "part_size": 5 << 20, "cache_bytes": 0}


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How the objects below a URL prefix are reached. See `configure`.

    Examples:
        >>> StoreOptions(endpoint="http://127.0.0.1:9000", timeout=10).retries
        5
    """

    endpoint: str | None = None
    """Where the service is, when it is not the provider's own: ``http://127.0.0.1:9000``."""
    endpoints: tuple[str, ...] = ()
    """Several doors to the same service, in place of ``endpoint``: requests are spread over them."""
    balance: Literal["least-in-flight", "round-robin"] = "least-in-flight"
    """Which of them is asked next."""
    region: str | None = None
    profile: str | None = None
    """The profile of the AWS config files."""
    account: str | None = None
    """The Azure storage account."""
    anonymous: bool = False
    """Sign nothing: for public data."""
    credential_provider: CredentialProvider | None = field(default=None, repr=False)
    """Gives credentials when they are needed, and new ones before they expire."""
    max_in_flight: int = 64
    """Requests at once, over all threads of the process and all objects below the prefix."""
    timeout: float = 60.0
    """Seconds one request may take in all."""
    retries: int = 5
    """How often a request that failed for a passing reason is tried again."""
    part_size: int = 16 << 20
    """Bytes of one request: larger reads and writes go in several at once."""

    cache: Literal["blocks", "shards"] | None = None
    """What of the shards that are read is kept on the local disk: what was read, or whole shards."""
    cache_bytes: int = 64 << 30
    """What the cache folder may take on disk in all; what was not used for longest leaves."""

    def __post_init__(self) -> None:
        if self.cache not in (None, "blocks", "shards"):
            raise OptionError("cache is not one of its values", expected="'blocks', 'shards' or None", found=self.cache)
        for name, least in _MINIMUM.items():
            if not getattr(self, name) >= least:
                raise OptionError(f"{name} is too small", expected=f"at least {least}", found=getattr(self, name))
        given: object = self.endpoints
        if isinstance(given, str):
            raise OptionError("endpoints are a list of URLs", expected=f"[{given!r}]", found=given)
        object.__setattr__(self, "endpoints", tuple(self.endpoints))
        if self.balance not in ("least-in-flight", "round-robin"):
            expected = "'least-in-flight' or 'round-robin'"
            raise OptionError("balance is not one of its values", expected=expected, found=self.balance)
        if self.endpoint is not None and self.endpoints:
            raise OptionError("there is one endpoint or several", expected="endpoint= or endpoints=", found="both")
        for endpoint in (*self.endpoints, *([] if self.endpoint is None else [self.endpoint])):
            if scheme_of(endpoint) not in ("http", "https"):
                raise OptionError("an endpoint is an http:// or https:// URL", found=endpoint)
            refuse_secrets(endpoint)


_NAMES = frozenset(each.name for each in fields(StoreOptions))
_lock = threading.Lock()
_CHOSEN: dict[str, dict[str, Any]] = {}
_LIMITS: dict[str, ConcurrencyLimit] = {"": ConcurrencyLimit(StoreOptions().max_in_flight)}


def configure(prefix: str = "", **options: Any) -> StoreOptions:
    """Set options for all URLs below ``prefix``, or for all stores; return what holds there now.

    Options are the fields of `StoreOptions`. Of several prefixes that fit a URL the longer one decides, option by
    option, whatever the order in which they were set; what nobody set comes from the environment (``AWS_*``,
    ``GOOGLE_*``, ``AZURE_*``) and the AWS config files. ``max_in_flight`` without a prefix bounds all requests of the
    process; with one it bounds those below it as well. Raises OptionError for names it does not know, and for secrets.

    Examples:
        >>> configure("s3://photos", endpoint="http://127.0.0.1:9000", region="us-east-1").endpoint
        'http://127.0.0.1:9000'
        >>> configure("s3://photos/private", timeout=5).endpoint
        'http://127.0.0.1:9000'
    """
    for name in options.keys() - _NAMES:
        if _SECRET.search(name):
            raise OptionError("secrets are not options", expected="credential_provider=", found=name, hint=_NO_SECRETS)
        raise OptionError("there is no such option", expected=", ".join(sorted(_NAMES)), found=name)
    refuse_secrets(prefix)
    StoreOptions(**options)  # says what is wrong before anything is changed
    key = _normalize(prefix)
    with _lock:
        _CHOSEN[key] = {**_CHOSEN.get(key, {}), **options}
        if "max_in_flight" in options:
            _LIMITS[key] = ConcurrencyLimit(options["max_in_flight"])
    return options_for(prefix)


def configured() -> dict[str, dict[str, Any]]:
    """All that `configure` has set in this process, by prefix: for another process, to be given to `configure_all`.

    It can be pickled when the credential providers in it can: functions of a module can, lambdas cannot.

    Examples:
        >>> _ = configure("s3://films", region="eu-west-1")
        >>> configured()["s3://films"]
        {'region': 'eu-west-1'}
    """
    with _lock:
        return {prefix: dict(options) for prefix, options in _CHOSEN.items()}


def configure_all(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Set what `configured` told in another process.

    Examples:
        >>> configure_all({"s3://films": {"region": "eu-west-1"}})
        >>> options_for("s3://films/a.tar").region
        'eu-west-1'
    """
    for prefix, options in settings.items():
        configure(prefix, **options)


def _normalize(prefix: str) -> str:
    return prefix if prefix.endswith("://") else prefix.rstrip("/")


def _matches(prefix: str, url: str) -> bool:
    if not prefix or prefix.endswith("://"):
        return url.startswith(prefix)
    ends = ("", "/", "@") if prefix.startswith("hf://") else ("", "/")  # a repository at any revision
    return url.startswith(prefix) and url[len(prefix) : len(prefix) + 1] in ends


def options_for(url: str) -> StoreOptions:
    """The options that hold for ``url``.

    Examples:
        >>> options_for("s3://no-such-bucket/a.tar").max_in_flight
        64
    """
    chosen: dict[str, Any] = {}
    for prefix in sorted(_CHOSEN, key=len):
        if _matches(prefix, url):
            chosen |= _CHOSEN[prefix]
    return StoreOptions(**chosen)


def concurrency_limits_for(url: str) -> list[ConcurrencyLimit]:
    """Return the limits that a request for ``url`` counts against, that of the longest prefix first."""
    return [_LIMITS[prefix] for prefix in sorted(_LIMITS, key=len, reverse=True) if _matches(prefix, url)]


def _reset_after_fork() -> None:
    """Replace the lock and the limits: a thread that the child does not have may hold them."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()
    for prefix, limit in list(_LIMITS.items()):
        _LIMITS[prefix] = ConcurrencyLimit(limit.limit)


register_after_fork(_reset_after_fork)


def refuse_secrets(url: str) -> None:
    """Raise StoreError for a URL with a user and a password in it: URLs end up in logs, manifests and errors."""
    scheme, mark, rest = url.partition("://")
    user, at, host = rest.partition("/")[0].rpartition("@")
    if mark and at and (":" in user or not scheme.lower().startswith("abfs")):
        raise StoreError(
            "a URL must not hold credentials",
            found=f"{scheme}://...@{host}",
            hint=f"shoal.store.configure: {_NO_SECRETS}",
        )


def shown(url: str) -> str:
    """A URL as errors and logs may show it: what follows the ``?`` of an HTTP URL is often a signature.

    Examples:
        >>> shown("https://host/a.tar?X-Amz-Signature=1234")
        'https://host/a.tar?...'
    """
    if not url.startswith(("http://", "https://")):
        return url
    path, mark, _ = url.partition("?")
    return f"{path}?..." if mark else path
